"""What was worked out for words lately."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TypeVar

__all__ = ["Recent"]

_Value = TypeVar("_Value")


class Recent(dict[str, _Value]):
    """A bounded dictionary that asks a function for what it lacks, and forgets words of long ago.

    It has two generations: where the younger is full it becomes the older, whose words come back
    as they are asked for. So a word in use is not forgotten, and looking one up costs no more than
    in any dictionary. Several threads may use it: they can only do the same work twice.

    Parameters
    ----------
    look_up : callable
        Gives the value of a word; it says by `put` or `keep` what is to be remembered.
    most : int
        Words of both generations.
    """

    def __init__(self, look_up: Callable[[str], _Value], *, most: int) -> None:
        super().__init__()
        self._look_up = look_up
        self._most = most
        self._older: dict[str, _Value] = {}

    def __missing__(self, word: str) -> _Value:
        found = self._older.get(word)
        if found is None:
            return self._look_up(word)
        self.put(word, found)
        return found

    @property
    def size(self) -> int:
        """Words that are remembered, those of both generations twice."""
        return len(self) + len(self._older)

    def lacking(self, words: Iterable[str]) -> set[str]:
        """Those words that would have to be looked up."""
        older = self._older
        return {word for word in words if word not in self and word not in older}

    def put(self, word: str, value: _Value) -> None:
        """Remember one word."""
        if len(self) >= self._most // 2:
            self._turn_over()
        self[word] = value

    def keep(self, found: Mapping[str, _Value]) -> None:
        """Remember some words."""
        room = self._most // 2
        if len(self) + len(found) > room:
            self._turn_over()
        self.update(islice(found.items(), room))

    def _turn_over(self) -> None:
        self._older = dict(self)
        self.clear()
