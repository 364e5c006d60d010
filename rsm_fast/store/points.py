"""Named points of the write path, where a crash test may stop the process.

`hook` is None outside such tests: a point then costs one comparison.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["POINTS", "reach", "set_hook"]

POINTS = (
    "create:schema",
    "create:link",
    "write:begun",
    "write:turns",
    "write:chunks",
    "write:deleted",
    "write:commit",
    "write:committed",
    "compact:begun",
    "compact:vacuumed",
    "compact:truncated",
    "snapshot:written",
    "snapshot:renamed",
)

_hook: Callable[[str], None] | None = None


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Call ``hook(name)`` at every point from now on; None switches it off."""
    global _hook
    _hook = hook


def reach(name: str) -> None:
    """Tell the hook, if there is one, that the point ``name`` is reached."""
    if _hook is not None:
        _hook(name)
