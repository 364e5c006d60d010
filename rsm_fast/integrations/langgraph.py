"""A LangGraph `BaseStore` on a `Memory`: items that persist, found by meaning and by word.

Each item is one turn of the memory. Its id is made from namespace and key, so that it is found
without a search; its fields are metadata, so that filters apply before the best are chosen.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rsm_fast import Memory, Turn
from rsm_fast.errors import InvalidInputError
from rsm_fast.instants import Instant, parse_instant
from rsm_fast.integrations import missing_extra
from rsm_fast.integrations.stored import StoredTurn, deleted_ids, turns_by_id, turns_where

try:
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        TTLConfig,
        get_text_at_path,
    )
except ImportError as error:
    raise missing_extra("langgraph", "langgraph") from error

__all__ = ["RSMStore"]

_FIELD: Final = "v."
_LEVEL: Final = "ns."
_NEVER: Final = 1 << 62
_MINUTE: Final = 60_000_000
_TRIED_IDS: Final = 8


class RSMStore(BaseStore):
    """Long-term memory for LangGraph agents in one namespace of a `Memory`.

    It behaves like LangGraph's `InMemoryStore` with an index, and beyond that: items persist,
    a query is matched by word as well as by meaning, expired items are never returned.
    Scores of query searches are the memory's own: higher is better, and they are not cosines.

    Parameters
    ----------
    memory : Memory
        With one turn to a chunk, which is the default. It stays the caller's to close.
    fields : sequence of str
        Which fields of an item are searched by default, as paths of LangGraph's index
        configuration; ``"$"`` is the whole item.
    ttl : TTLConfig, optional
        Default time to live, and whether reading an item renews it.
    """

    supports_ttl = True
    __slots__ = ("_fields", "_memory", "ttl_config")

    def __init__(
        self, memory: Memory, *, fields: Sequence[str] = ("$",), ttl: TTLConfig | None = None
    ) -> None:
        self._memory = memory
        self._fields = tuple(fields)
        self.ttl_config = ttl

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations: reads see the state before the batch, the last write to a key wins."""
        results: list[Result] = []
        puts: dict[tuple[tuple[str, ...], str], PutOp] = {}
        for op in ops:
            if isinstance(op, PutOp):
                puts[op.namespace, op.key] = op
                results.append(None)
            elif isinstance(op, GetOp):
                results.append(self._get(op))
            elif isinstance(op, SearchOp):
                results.append(list(self._search(op)))
            elif isinstance(op, ListNamespacesOp):
                results.append(self._list_namespaces(op))
            else:
                raise InvalidInputError(f"batch: expected LangGraph operations, got {op!r}")
        self._put(list(puts.values()))
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch` in a thread."""
        return await asyncio.to_thread(self.batch, list(ops))

    def sweep_ttl(self) -> int:
        """Delete expired items for good; how many."""
        return self._memory.forget(where={"expires": {"lte": Instant.now().micros}})

    # -- writing ------------------------------------------------------------------------------

    def _put(self, ops: Sequence[PutOp]) -> None:
        held = self._held([(op.namespace, op.key) for op in ops])
        new: list[Turn] = []
        gone: list[str] = []
        for op in ops:
            old, free_id = held[op.namespace, op.key]
            if op.value is None:
                gone += [old.id] if old is not None else []
                continue
            text, metadata = self._written(op)
            if old is None:
                # A session of its own: items are no neighbours of each other.
                new.append(Turn(text, role="item", session=free_id, id=free_id, metadata=metadata))
            else:
                self._memory.update(old.id, text, metadata=metadata)
        self._memory.add_many(new)
        self._memory.delete(gone)

    def _written(self, op: PutOp) -> tuple[str, dict[str, Any]]:
        """Text and metadata of an item."""
        value = dict(op.value or {})
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"item {op.key!r} of {op.namespace!r}: expected JSON values, {error}"
            ) from error
        text = "" if op.index is False else self._text(value, op.index or self._fields)
        ttl = op.ttl if op.ttl is not None else (self.ttl_config or {}).get("default_ttl")
        now = Instant.now()
        return text.strip() or op.key, {
            "key": op.key,
            "depth": len(op.namespace),
            **{f"{_LEVEL}{level}": name for level, name in enumerate(op.namespace)},
            **{f"{_FIELD}{name}": item for name, item in value.items()},
            "indexed": bool(text.strip()),
            "updated": now.isoformat(),
            "ttl": ttl,
            "expires": _NEVER if ttl is None else now.micros + round(ttl * _MINUTE),
        }

    def _text(self, value: dict[str, Any], fields: Sequence[str]) -> str:
        lines: list[str] = []
        for field in fields:
            if field == "$":
                lines += [f"{name}: {_readable(item)}" for name, item in value.items()]
            else:
                lines += get_text_at_path(value, field)
        return "\n".join(line for line in lines if line.strip())

    # -- reading ------------------------------------------------------------------------------

    def _get(self, op: GetOp) -> Item | None:
        turn, _ = self._held([(op.namespace, op.key)])[op.namespace, op.key]
        if turn is None or _expired(turn):
            return None
        self._renew([turn], op.refresh_ttl)
        return Item(**_item_fields(turn))

    def _held(
        self, places: Sequence[tuple[tuple[str, ...], str]]
    ) -> dict[tuple[tuple[str, ...], str], tuple[StoredTurn | None, str]]:
        """For each place the turn that it holds, and the id that a new one would get.

        The memory never uses the id of a deleted turn again, so ids are numbered.
        """
        held: dict[tuple[tuple[str, ...], str], tuple[StoredTurn | None, str]] = {}
        for place in places:
            base = hashlib.sha256(json.dumps([*place[0], place[1]]).encode()).hexdigest()[:32]
            first = 0
            while place not in held:
                ids = [f"{base}-{number}" for number in range(first, first + _TRIED_IDS)]
                living = turns_by_id(self._memory, ids)
                used = deleted_ids(self._memory, ids)
                if living:
                    held[place] = (next(iter(living.values())), "")
                elif free := [turn_id for turn_id in ids if turn_id not in used]:
                    held[place] = (None, free[0])
                first += _TRIED_IDS
        return held

    def _search(self, op: SearchOp) -> Iterator[SearchItem]:
        where = _where(op)
        wanted = op.offset + op.limit
        if op.query:
            found = self._ranked(op, {**where, "indexed": True}, wanted)
            if len(found) < wanted:  # as LangGraph's own: fill up with items without index
                rest = turns_where(self._memory, {**where, "indexed": False})
                found += [(turn, None) for turn in rest if _matches(turn, op.filter)]
        else:
            turns = turns_where(self._memory, where)
            found = [(turn, None) for turn in turns if _matches(turn, op.filter)]
        page = found[op.offset : wanted]
        self._renew([turn for turn, _ in page], op.refresh_ttl)
        for turn, score in page:
            yield SearchItem(**_item_fields(turn), score=score)

    def _ranked(
        self, op: SearchOp, where: dict[str, Any], wanted: int
    ) -> list[tuple[StoredTurn, float | None]]:
        """At least ``wanted`` items that match, best first, or all there are."""
        k = max(wanted, 1)
        while True:
            hits = self._memory.search(str(op.query), k=k, where=where)
            scores: dict[str, float] = {}
            for hit in hits:  # a long item is several chunks: its best one counts
                scores.setdefault(hit.turn_ids[0], hit.score)
            turns = turns_by_id(self._memory, list(scores))
            found: list[tuple[StoredTurn, float | None]] = [
                (turns[turn_id], score)
                for turn_id, score in scores.items()
                if turn_id in turns and _matches(turns[turn_id], op.filter)
            ]
            if len(found) >= wanted or len(hits) < k:
                return found
            k *= 4

    def _renew(self, turns: Sequence[StoredTurn], asked: bool) -> None:
        if not asked or not (self.ttl_config or {}).get("refresh_on_read", True):
            return
        now = Instant.now().micros
        for turn in turns:
            ttl = turn.metadata["ttl"]
            if ttl is not None:
                metadata = {**turn.metadata, "expires": now + round(ttl * _MINUTE)}
                self._memory.update(turn.id, turn.text, metadata=metadata)

    def _list_namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found = {_namespace(turn) for turn in turns_where(self._memory, _alive())}
        matching = {
            path
            for path in found
            if all(_path_matches(condition, path) for condition in op.match_conditions or ())
        }
        if op.max_depth is not None:
            matching = {path[: op.max_depth] for path in matching}
        return sorted(matching)[op.offset : op.offset + op.limit]


# --- items and turns -------------------------------------------------------------------------


def _namespace(turn: StoredTurn) -> tuple[str, ...]:
    return tuple(turn.metadata[f"{_LEVEL}{level}"] for level in range(turn.metadata["depth"]))


def _value(turn: StoredTurn) -> dict[str, Any]:
    return {
        name.removeprefix(_FIELD): item
        for name, item in turn.metadata.items()
        if name.startswith(_FIELD)
    }


def _item_fields(turn: StoredTurn) -> dict[str, Any]:
    return {
        "namespace": _namespace(turn),
        "key": turn.metadata["key"],
        "value": _value(turn),
        "created_at": turn.instant.to_datetime(),
        "updated_at": parse_instant(turn.metadata["updated"]).to_datetime(),
    }


def _expired(turn: StoredTurn) -> bool:
    return bool(turn.metadata["expires"] <= Instant.now().micros)


def _readable(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# --- filters ---------------------------------------------------------------------------------


def _alive() -> dict[str, Any]:
    return {"expires": {"gt": Instant.now().micros}}


def _where(op: SearchOp) -> dict[str, Any]:
    """What of a search the memory can select by itself; `_matches` decides in the end."""
    where = _alive()
    where.update({f"{_LEVEL}{level}": name for level, name in enumerate(op.namespace_prefix)})
    for name, wanted in (op.filter or {}).items():
        if isinstance(wanted, str):
            where[f"{_FIELD}{name}"] = wanted
    return where


def _matches(turn: StoredTurn, wanted: Mapping[str, Any] | None) -> bool:
    value = _value(turn)
    return all(_compare(value.get(name), item) for name, item in (wanted or {}).items())


def _compare(value: Any, wanted: Any) -> bool:
    """LangGraph's filters: operators, nested mappings, lists item by item, equality."""
    if isinstance(wanted, Mapping):
        if any(str(key).startswith("$") for key in wanted):
            return all(_operator(value, key, operand) for key, operand in wanted.items())
        return isinstance(value, Mapping) and all(
            _compare(value.get(key), item) for key, item in wanted.items()
        )
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(value, (list, tuple))
            and len(value) == len(wanted)
            and all(map(_compare, value, wanted))
        )
    return bool(value == wanted)


def _operator(value: Any, name: str, operand: Any) -> bool:
    if name == "$eq":
        return bool(value == operand)
    if name == "$ne":
        return bool(value != operand)
    if name not in ("$gt", "$gte", "$lt", "$lte"):
        raise InvalidInputError(f"filter: expected $eq, $ne, $gt, $gte, $lt or $lte, got {name!r}")
    try:
        left, right = float(value), float(operand)
    except (TypeError, ValueError):
        return False
    return {
        "$gt": left > right,
        "$gte": left >= right,
        "$lt": left < right,
        "$lte": left <= right,
    }[name]


def _path_matches(condition: MatchCondition, path: tuple[str, ...]) -> bool:
    wanted = condition.path
    if len(path) < len(wanted):
        return False
    part = (
        path[: len(wanted)] if condition.match_type == "prefix" else path[len(path) - len(wanted) :]
    )
    return all(name in ("*", own) for name, own in zip(wanted, part, strict=False))
