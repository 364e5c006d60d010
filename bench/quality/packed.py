"""The one interface of all systems, and what a read gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rsm_fast.types import Turn

__all__ = ["Packed", "Shown", "System", "SystemStats"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A turn, or a part of one, that stands in a prompt.

    Attributes
    ----------
    turn : str
        Id of the turn.
    text : str
        What stands there of it, verbatim (a folded repetition counts as standing there).
    copies : int
        How many byte-equal chunks it stands for.
    """

    turn: str
    text: str
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Packed:
    """A prompt and what stands in it.

    Attributes
    ----------
    text : str
    tokens : int
        Tokens of `text` for the packaged WordPiece.
    shown : tuple of Shown
    folded : int
        Tokens that folding saved.
    """

    text: str
    tokens: int
    shown: tuple[Shown, ...]
    folded: int = 0


@dataclass(frozen=True, slots=True)
class SystemStats:
    """State of a system after a stream: groups are atoms, clusters or prototypes."""

    chunks: int
    groups: int = 0
    largest_share: float = 0.0
    bytes: int = 0
    extra: dict[str, float] = field(default_factory=dict)


class System(Protocol):
    """A memory under test: one instance sees one stream."""

    def write(self, turns: Sequence[Turn]) -> None:
        """Store turns; a batch ends a chunk that is not full."""

    def read(self, query: str, budget: int) -> Packed:
        """The prompt for a question."""

    def ranked_sessions(self, query: str, k: int) -> list[str]:
        """The k best sessions, each ranked by its best chunk."""

    def stats(self) -> SystemStats:
        """What the state looks like now."""

    def close(self) -> None:
        """Give everything back."""
