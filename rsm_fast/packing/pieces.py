"""What goes into the packer and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rsm_fast.instants import Instant

__all__ = ["Filled", "Omitted", "PackedPiece", "Piece", "Span"]


@dataclass(frozen=True, slots=True)
class Span:
    r"""One turn, or the part of one, that a chunk holds.

    Attributes
    ----------
    role : str
        Who said it, as stored. It is printed on one line, control characters as spaces.
    text : str
        What was said, printed verbatim.
    turn_id : str
        Id of the turn.
    line_tokens : tuple of int
        Tokens of each line of ``text``, lines being what ``text.split("\n")`` gives, as the
        pack's token counter counts them.
    """

    role: str
    text: str
    turn_id: str
    line_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """One chunk that may go into a pack.

    Attributes
    ----------
    row : int
        Arrival order in the namespace; decides where instants are equal.
    id : str
        Chunk id.
    spans : tuple of Span
        The turns of the chunk, one or more, in order.
    atom : int or None
        Atom of the chunk; None before it was gated.
    session : str or None
        Session name; None is the common session.
    instant : Instant
        When the chunk's first turn was said.
    score : float
        The preset's own score, shown in reasons (and used for nothing else).
    step : int or None
        Step number on streams that number their steps.
    """

    row: int
    id: str
    spans: tuple[Span, ...]
    atom: int | None
    session: str | None
    instant: Instant
    score: float
    step: int | None = None


class PackedPiece(NamedTuple):
    """One chunk that stands in the text.

    Attributes
    ----------
    piece : Piece
        The chunk; of byte-equal copies the newest.
    tokens : int
        Tokens of the chunk's own text rendered alone: role and text, no headers.
    copies : int
        How many byte-equal chunks it stands for, itself included.
    ids : tuple of str
        Chunk ids of those, in the order in which they were offered.
    reason : str
        Why it is in (empty unless ``explain``).
    """

    piece: Piece
    tokens: int
    copies: int
    ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Omitted:
    """One chunk that was tried and left out.

    Attributes
    ----------
    piece : Piece
    tokens : int
        Tokens of the chunk's own text rendered alone.
    reason : str
        Why it is out.
    """

    piece: Piece
    tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class Filled:
    """A filled pack.

    Attributes
    ----------
    text : str
        The rendered pack; empty where nothing fits.
    tokens : int
        Tokens of ``text``, never above the budget.
    packed : tuple of PackedPiece
        What stands in the text, in its order.
    omitted : tuple of Omitted
        What was left out, at most `rsm_fast.packing.admission.MAX_OMITTED` (only if ``explain``).
    considered : int
        Pieces that were tried against the budget.
    folded_tokens : int
        Tokens that references save against writing every line out.
    """

    text: str
    tokens: int
    packed: tuple[PackedPiece, ...]
    omitted: tuple[Omitted, ...]
    considered: int
    folded_tokens: int
