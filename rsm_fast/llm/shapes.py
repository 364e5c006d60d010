"""The part of JSON Schema that answers are held against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["misfit"]

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def misfit(value: object, schema: Mapping[str, Any], where: str = "answer") -> str:
    """What is wrong with a JSON value; empty if it fits.

    Knows ``type``, ``enum``, ``required``, ``properties``, ``items``, ``minItems``,
    ``maxItems``, ``minLength`` and ``maxLength``; all else in the schema is left to the endpoint.

    >>> misfit({"tags": "cats"}, {"properties": {"tags": {"type": "array"}}})
    "answer.tags: expected array, got 'cats'"
    """
    kind = schema.get("type")
    if kind is not None and not _is_a(value, str(kind)):
        return f"{where}: expected {kind}, got {value!r:.60}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where}: expected one of {schema['enum']!r:.200}, got {value!r:.60}"
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                return f"{where}: {name!r} is missing"
        for name, inner in schema.get("properties", {}).items():
            if name in value and (problem := misfit(value[name], inner, f"{where}.{name}")):
                return problem
    if isinstance(value, list):
        if problem := _size(len(value), schema.get("minItems"), schema.get("maxItems"), "items"):
            return f"{where}: {problem}"
        for index, item in enumerate(value):
            if problem := misfit(item, schema.get("items", {}), f"{where}[{index}]"):
                return problem
    if isinstance(value, str):
        limits = schema.get("minLength"), schema.get("maxLength")
        if problem := _size(len(value), *limits, "characters"):
            return f"{where}: {problem}"
    return ""


def _size(size: int, least: int | None, most: int | None, unit: str) -> str:
    if least is not None and size < least:
        return f"expected at least {least} {unit}, got {size}"
    if most is not None and size > most:
        return f"expected at most {most} {unit}, got {size}"
    return ""


def _is_a(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES.get(kind, (object,)))
