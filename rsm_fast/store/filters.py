"""``where`` filters as SQL conditions over one turn.

The filter is a mapping from key to wanted value. ``role``, ``session``, ``timestamp`` and
``id`` are the turn's own fields, every other key is looked up in its metadata.

- a scalar: the value equals it (strings, numbers, booleans and None differ by type);
- a list, tuple, set: any of its items;
- a mapping of ``gte``, ``gt``, ``lte``, ``lt``: a range of numbers, of strings or of times.

A stored list matches if one of its items does. A key that is absent never matches. Every
key of the filter has to match.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeGuard

from rsm_fast.errors import InvalidInputError
from rsm_fast.instants import parse_instant

__all__ = ["Params", "compile_where", "why_not_findable"]

Params: TypeAlias = dict[str, str | int | float | None]

_OPERATORS: Final = {"gte": ">=", "gt": ">", "lte": "<=", "lt": "<"}
_MAX_KEYS: Final = 64
_DEEPEST: Final = 64
_ESCAPED_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def compile_where(where: Mapping[str, Any] | None) -> tuple[str, Params]:
    """The filter as an SQL expression over a row ``t`` of table ``turns``, and its parameters.

    Raises
    ------
    InvalidInputError
        If the filter is not a mapping from text to scalars, lists or ranges.
    """
    if where is None:
        return "1", {}
    if not isinstance(where, Mapping):
        raise InvalidInputError(
            f"where: expected a mapping like {{'role': 'user'}}, got {type(where).__name__}"
        )
    if len(where) > _MAX_KEYS:
        raise InvalidInputError(f"where: expected at most {_MAX_KEYS} keys, got {len(where)}")
    compiler = _Compiler()
    conditions = [compiler.condition(key, wanted) for key, wanted in where.items()]
    return " AND ".join(conditions) or "1", compiler.params


class _Compiler:
    """Collects named parameters while conditions are written."""

    def __init__(self) -> None:
        self.params: Params = {}

    def bind(self, value: str | int | float | None) -> str:
        name = f"w{len(self.params)}"
        self.params[name] = value
        return f":{name}"

    def condition(self, key: object, wanted: object) -> str:
        if not isinstance(key, str):
            raise InvalidInputError(f"where: expected text as keys, got {key!r}")
        place = f"where[{key!r}]"
        _text(key, place)
        if key == "timestamp":
            return self.timestamp(wanted, place)
        if key in ("role", "session", "id"):
            return self.column(f"t.{key}", wanted, place, nullable=key == "session")
        test = self.metadata_test(wanted, place)
        name = self.bind(key)
        item, inner = test("e.type", "e.value"), test("f.type", "f.value")
        return (
            f"EXISTS (SELECT 1 FROM json_each(t.metadata) AS e WHERE e.key = {name} AND ({item} OR "
            f"(e.type = 'array' AND EXISTS (SELECT 1 FROM json_each(e.value) AS f WHERE {inner}))))"
        )

    def timestamp(self, wanted: object, place: str) -> str:
        if isinstance(wanted, Mapping):
            bounds = _bounds(wanted, place)
            return " AND ".join(
                f"t.micros {sign} {self.bind(parse_instant(bound, where=place).micros)}"
                for sign, bound in bounds
            )
        instants = [parse_instant(item, where=place).micros for item in _items(wanted)]
        return f"t.micros IN (SELECT value FROM json_each({self.bind(json.dumps(instants))}))"

    def column(self, column: str, wanted: object, place: str, *, nullable: bool) -> str:
        if isinstance(wanted, Mapping):
            bounds = [(sign, _text(bound, place)) for sign, bound in _bounds(wanted, place)]
            return " AND ".join(f"{column} {sign} {self.bind(bound)}" for sign, bound in bounds)
        items = _items(wanted)
        texts = [_text(item, place) for item in items if item is not None or not nullable]
        if len(items) == 1 and texts:
            return f"{column} = {self.bind(texts[0])}"
        among = f"{column} IN (SELECT value FROM json_each({self.bind(_json(texts))}))"
        return f"({among} OR {column} IS NULL)" if len(texts) < len(items) else among

    def metadata_test(self, wanted: object, place: str) -> Callable[[str, str], str]:
        """A test of (type, value) expressions of one JSON value; the types are SQLite's names."""
        if isinstance(wanted, Mapping):
            return self.metadata_range(wanted, place)
        texts: list[str] = []
        numbers: list[int | float] = []
        literals: set[str] = set()
        for item in _items(wanted):
            if item is None:
                literals.add("null")
            elif isinstance(item, bool):
                literals.add("true" if item else "false")
            elif isinstance(item, str):
                texts.append(_text(item, place))
            elif _is_finite(item):
                numbers.append(item)
            else:
                raise InvalidInputError(
                    f"{place}: expected text, finite numbers, booleans, None, a list of those or "
                    f"a range, got {item!r:.80}"
                )
        groups: list[tuple[str, str]] = []
        if texts:
            groups.append(("'text'", self.bind(_json(texts))))
        if numbers:
            groups.append(("'integer', 'real'", self.bind(_json(numbers))))

        def test(kind: str, value: str) -> str:
            parts = [
                f"({kind} IN ({kinds}) AND {value} IN (SELECT value FROM json_each({name})))"
                for kinds, name in groups
            ]
            parts += [f"{kind} = '{literal}'" for literal in sorted(literals)]
            return f"({' OR '.join(parts) or '0'})"

        return test

    def metadata_range(
        self, wanted: Mapping[object, object], place: str
    ) -> Callable[[str, str], str]:
        bounds = _bounds(wanted, place)
        if all(isinstance(bound, str) for _, bound in bounds):
            kinds = "'text'"
            named = [(sign, self.bind(_text(bound, place))) for sign, bound in bounds]
        else:
            kinds = "'integer', 'real'"
            named = [(sign, self.bind(_number(bound, place))) for sign, bound in bounds]

        def test(kind: str, value: str) -> str:
            signs = " AND ".join(f"{value} {sign} {name}" for sign, name in named)
            return f"({kind} IN ({kinds}) AND {signs})"

        return test


def why_not_findable(metadata: Mapping[str, Any], dumped: str) -> str | None:
    r"""Why filters would not find metadata rightly; None if they do.

    SQLite ends a text of JSON at a NUL character, so that ``"admin\0x"`` would match
    ``"admin"``, and it and Python give up on a thousand or so levels.

    Parameters
    ----------
    metadata : mapping
    dumped : str
        The same as JSON.
    """
    if "\\u0000" in dumped and _ESCAPED_NUL.search(dumped):
        return "holds a NUL character"
    if dumped.count("{") + dumped.count("[") > _DEEPEST and _depth(metadata) > _DEEPEST:
        return f"expected at most {_DEEPEST} levels, one in another"
    return None


def _depth(value: object) -> int:
    """How many mappings and lists stand one in another."""
    deepest = 0
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, Mapping):
            inner: Iterable[object] = item.values()
        elif isinstance(item, (list, tuple)):
            inner = item
        else:
            continue
        deepest = max(deepest, depth)
        waiting.extend((one, depth + 1) for one in inner)
    return deepest


def _items(wanted: object) -> list[Any]:
    if isinstance(wanted, (list, tuple, set, frozenset)):
        return list(wanted)
    return [wanted]


def _bounds(wanted: Mapping[Any, Any], place: str) -> list[tuple[str, Any]]:
    unknown = [name for name in wanted if name not in _OPERATORS]
    if unknown or not wanted:
        raise InvalidInputError(
            f"{place}: expected a range with some of {', '.join(_OPERATORS)}, got {dict(wanted)!r}"
        )
    return [(_OPERATORS[name], bound) for name, bound in wanted.items()]


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(f"{place}: expected text, got {value!r:.80}")
    if "\0" in value:
        raise InvalidInputError(f"{place}: expected text without NUL, got {value!r:.80}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{place}: expected valid Unicode, got {value!r}") from None
    return value


def _number(value: object, place: str) -> int | float:
    if isinstance(value, bool) or not _is_finite(value):
        raise InvalidInputError(
            f"{place}: expected bounds that are all finite numbers or all text, got {value!r:.80}"
        )
    return value if abs(value) < 2**63 else float(value)


def _is_finite(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that SQLite can hold: a whole one too large for a float is not."""
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:
        return False


def _json(values: object) -> str:
    return json.dumps(values, ensure_ascii=False)
