"""Deleting, changing and superseding turns: what they leave behind is as if never there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rsm_fast.core import Core, Transaction
from rsm_fast.drafting import Part
from rsm_fast.errors import InvalidInputError, NotFoundError
from rsm_fast.instants import Instant
from rsm_fast.store import ChunkRecord, Reader, TurnRecord, check_namespace_key
from rsm_fast.writing import Plan, WritePath

if TYPE_CHECKING:
    from rsm_fast.state import NamespaceState

__all__ = ["ForgetPath"]


@dataclass(frozen=True, slots=True)
class _ChangePlan(Plan):
    removed_chunks: list[int]
    removed_turns: list[int]
    changed_turns: list[TurnRecord]


class ForgetPath:
    """Takes turns out of one namespace, or gives them other text.

    Parameters
    ----------
    core : Core
    writing : WritePath
    """

    def __init__(self, core: Core, writing: WritePath) -> None:
        self._core = core
        self._writing = writing

    def delete(self, ids: Sequence[str]) -> int:
        """Delete turns; the number of them. An unknown id deletes nothing at all."""
        if not ids:
            return 0
        self._require(ids)

        def plan(reader: Reader, state: NamespaceState | None) -> _ChangePlan:
            turns = self._stored(reader, state, ids)
            return self._plan(reader, state, gone=[turn.pk for turn in turns])

        return len(self._writing.planned(plan, self._commit).removed_turns)

    def forget(
        self, *, before: Instant | None, where: Mapping[str, Any] | None, expired: bool
    ) -> int:
        """Delete every turn that is older, or matches, or has expired; the number of them."""

        def matching(reader: Reader, state: NamespaceState) -> list[int]:
            found: set[int] = set()
            if before is not None or where is not None:
                found.update(
                    reader.matching_turns(
                        state.ns, where=where, before=None if before is None else before.micros
                    )
                )
            if expired:
                found.update(reader.expired_turns(state.ns, Instant.now().micros))
            return sorted(found)

        with self._core.snapshot() as view:
            if view.state is None or not matching(view.reader, view.state):
                return 0

        def plan(reader: Reader, state: NamespaceState | None) -> _ChangePlan:
            return self._plan(reader, state, gone=[] if state is None else matching(reader, state))

        return len(self._writing.planned(plan, self._commit).removed_turns)

    def update(self, id: str, text: str, metadata: str | None, *, keep_metadata: bool) -> None:  # noqa: A002
        """Give a turn other text: it leaves its atom and is gated as new."""
        self._require([id])

        def plan(reader: Reader, state: NamespaceState | None) -> _ChangePlan:
            (turn,) = self._stored(reader, state, [id])
            changed = turn._replace(
                text=text, metadata=turn.metadata if keep_metadata else metadata
            )
            return self._plan(reader, state, changed=[] if changed == turn else [changed])

        self._writing.planned(plan, self._commit)

    def supersede(self, old: str, new: str) -> None:
        """Mark ``old`` as replaced by ``new``."""
        if old == new:
            raise InvalidInputError(f"supersede: expected two different ids, got {old!r} twice")
        self._require([old, new])
        with self._core.transaction() as transaction:
            old_turn, new_turn = self._stored(transaction.writer, transaction.state, [old, new])
            transaction.writer.supersede(transaction.ns, old_turn.pk, new_turn.pk)

    def purge(self, key: str) -> None:
        """Delete a whole namespace of the store."""
        check_namespace_key(key)
        with self._core.lock, self._core.store.write() as writer:
            record = writer.namespace(key)
            if record is not None:
                writer.purge(record.id)

    # -- parts --------------------------------------------------------------------------------

    def _require(self, ids: Sequence[str]) -> None:
        """Refuse unknown ids before anything is written."""
        with self._core.snapshot() as view:
            self._stored(view.reader, view.state, ids)

    def _stored(
        self, reader: Reader, state: NamespaceState | None, ids: Sequence[str]
    ) -> list[TurnRecord]:
        for name in ids:
            if not isinstance(name, str):
                raise InvalidInputError(f"id: expected text, got {name!r:.80}")
        found = {} if state is None else reader.turns_by_id(state.ns, list(ids))
        for name in ids:
            if name not in found:
                raise NotFoundError(
                    f"namespace {self._core.key!r} has no turn {name!r}; `search` and `pack` "
                    "give turn ids (a chunk's id, with '#', is not one)"
                )
        return [found[name] for name in dict.fromkeys(ids)]

    def _plan(
        self,
        reader: Reader,
        state: NamespaceState | None,
        *,
        gone: Sequence[int] = (),
        changed: Sequence[TurnRecord] = (),
    ) -> _ChangePlan:
        """Redraft the chunks that hold these turns."""
        plan = _ChangePlan([], [], list(gone), list(changed))
        touched = [*gone, *(turn.pk for turn in changed)]
        if state is None or not touched:
            return plan
        drafter = self._writing.drafter(state.settings)
        chunks = reader.chunks_of_turns(state.ns, touched)
        turns = self._turns_of(reader, state, chunks)
        turns.update({turn.pk: turn for turn in changed})
        new_texts = {turn.pk for turn in changed}
        removed = set(gone)
        begun: set[int] = set()  # changed turns that are drafted already
        for chunk in chunks:
            parts: list[Part] = []
            for pk, start, stop in chunk.spans:
                if pk in removed:
                    continue
                turn = turns[pk]
                if pk not in new_texts:
                    parts.append(Part(turn, start, stop))
                elif pk not in begun:  # a split turn is drafted whole, in its first chunk
                    begun.add(pk)
                    parts.append(Part(turn, 0, len(turn.text)))
            if not parts:
                plan.removed_chunks.append(chunk.pk)
                continue
            number = int(chunk.id.rpartition("#")[2])
            if chunk.vector is None:
                plan.drafts.append(drafter.unfinished(parts, pk=chunk.pk, part_number=number))
            else:
                plan.drafts.extend(drafter.finished(parts, pk=chunk.pk, part_number=number))
        return plan

    def _turns_of(
        self, reader: Reader, state: NamespaceState, chunks: Sequence[ChunkRecord]
    ) -> dict[int, TurnRecord]:
        keys = {pk for chunk in chunks for pk, _, _ in chunk.spans}
        return {turn.pk: turn for turn in reader.turns(state.ns, sorted(keys))}

    def _commit(self, plan: _ChangePlan, transaction: Transaction) -> _ChangePlan:
        writer, ns, state = transaction.writer, transaction.ns, transaction.state
        state.remove(state.rows_of(plan.removed_chunks).tolist())
        writer.delete_chunks(ns, plan.removed_chunks)
        for turn in plan.changed_turns:
            writer.update_turn(ns, turn)
        if plan.drafts:
            self._writing.place(transaction, plan.drafts, ())
        writer.delete_turns(ns, plan.removed_turns)
        return plan
