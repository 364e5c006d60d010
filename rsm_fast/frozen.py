"""Making many frozen results quickly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, make_dataclass
from typing import Any, TypeVar

__all__ = ["maker"]

_Made = TypeVar("_Made")


def maker(kind: type[_Made]) -> Callable[..., _Made]:
    """A constructor by position of a frozen dataclass with slots, four times as fast as its own.

    A frozen class sets each field through ``object.__setattr__``. This fills an object of a twin
    with the same slots that is not frozen, and then makes it one of ``kind``. Fields without a
    value are an error; ``__post_init__`` is not called.
    """
    names = [(field.name, field.type) for field in fields(kind)]  # type: ignore[arg-type]
    twin: Any = make_dataclass(
        kind.__name__, names, bases=kind.__bases__, namespace={}, eq=False, slots=True
    )

    def make(*values: Any) -> _Made:
        made: _Made = twin(*values)
        made.__class__ = kind
        return made

    return make
