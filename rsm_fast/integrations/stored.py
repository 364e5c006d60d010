"""Reading turns back without a question: by id, by session, by filter."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rsm_fast.instants import Instant

if TYPE_CHECKING:
    from rsm_fast.memory import Memory
    from rsm_fast.store import TurnRecord

__all__ = ["StoredTurn", "deleted_ids", "session_turns", "turns_by_id", "turns_where"]


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """One turn as it is stored.

    Attributes
    ----------
    id, role, text : str
    instant : Instant
    session : str or None
    metadata : mapping
        Empty where none was given.
    """

    id: str
    role: str
    text: str
    instant: Instant
    session: str | None
    metadata: Mapping[str, Any]


def turns_by_id(memory: Memory, ids: Sequence[str]) -> dict[str, StoredTurn]:
    """Those of the ids that exist."""
    with memory._core.store.read() as reader:
        record = reader.namespace(memory.namespace)
        found = {} if record is None else reader.turns_by_id(record.id, ids)
    return {key: _turn(value) for key, value in found.items()}


def deleted_ids(memory: Memory, ids: Sequence[str]) -> set[str]:
    """Those of the ids that were deleted and may not be used again."""
    with memory._core.store.read() as reader:
        record = reader.namespace(memory.namespace)
        return set() if record is None else reader.tombstoned(record.id, ids)


def session_turns(
    memory: Memory, session: str | None, *, last: int | None = None
) -> list[StoredTurn]:
    """The turns of one session in arrival order, or the ``last`` of them."""
    with memory._core.store.read() as reader:
        record = reader.namespace(memory.namespace)
        if record is None:
            return []
        return _turns(reader.session_turns(record.id, session, last=last))


def turns_where(memory: Memory, where: Mapping[str, Any] | None) -> list[StoredTurn]:
    """The turns that a filter selects, in arrival order."""
    with memory._core.store.read() as reader:
        record = reader.namespace(memory.namespace)
        if record is None:
            return []
        return _turns(reader.turns(record.id, reader.matching_turns(record.id, where=where)))


def _turns(records: Iterable[TurnRecord]) -> list[StoredTurn]:
    return [_turn(record) for record in records]


def _turn(record: TurnRecord) -> StoredTurn:
    return StoredTurn(
        id=record.id,
        role=record.role,
        text=record.text,
        instant=Instant(record.micros, record.offset_minutes),
        session=record.session,
        metadata=json.loads(record.metadata) if record.metadata else {},
    )
