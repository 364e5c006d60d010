"""Conditions of ``--where``: ``role=user``, ``step>=10``, ``tag=a`` repeated for any of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from rsm_fast.errors import InvalidInputError

__all__ = ["join_conditions", "parse_condition"]

_CONDITION = re.compile(
    r"(?P<key>[^=<>!\s][^=<>!]*?)\s*(?P<sign>>=|<=|=|>|<)\s*(?P<value>.*)", re.S
)
_BOUNDS = {">=": "gte", ">": "gt", "<=": "lte", "<": "lt"}

Condition = tuple[str, Any]


def parse_condition(text: str) -> Condition:
    """One condition as key and wanted value; a bound is a mapping such as ``{"gte": 10}``.

    A value that reads as a JSON number, true, false or a quoted string is taken as that, all
    else as text.

    Raises
    ------
    InvalidInputError
        If the text has no key or no sign.
    """
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(f"expected KEY=VALUE, KEY>=VALUE or KEY<VALUE, got {text!r}")
    value = _value(match["value"])
    sign = match["sign"]
    return match["key"], value if sign == "=" else {_BOUNDS[sign]: value}


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (str, bool, int, float)) else text


def join_conditions(conditions: Iterable[Condition]) -> dict[str, Any] | None:
    """The ``where`` of `Memory.pack`: a key given twice means any of, bounds make a range.

    Raises
    ------
    InvalidInputError
        If a key has both a value and a bound.
    """
    where: dict[str, Any] = {}
    for key, value in conditions:
        if key not in where:
            where[key] = value
            continue
        before = where[key]
        if isinstance(before, dict) != isinstance(value, dict):
            raise InvalidInputError(f"--where {key}: give values or bounds, not both")
        if isinstance(value, dict):
            where[key] = {**before, **value}
        else:
            where[key] = [*before, value] if isinstance(before, list) else [before, value]
    return where or None
