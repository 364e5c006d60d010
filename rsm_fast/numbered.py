"""Numbers for texts."""

from __future__ import annotations

__all__ = ["Numbered"]


class Numbered(dict[str, int]):
    """Numbers of texts, in the order in which they were asked for; a new text gets the next one."""

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        return number
