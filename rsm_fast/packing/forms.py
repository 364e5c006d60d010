"""How chunks look in one frame: what can be known of them before they have a place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, TypeVar

from rsm_fast.instants import Instant
from rsm_fast.packing.escape import ESCAPE
from rsm_fast.packing.fold import TurnLines, printed_step
from rsm_fast.packing.pieces import Piece
from rsm_fast.packing.templates import Template
from rsm_fast.tokens import TokenCounter

__all__ = ["Form", "Frame", "day_of", "order_of", "print_lines"]

_DAY_MICROS: Final = 86_400_000_000
_MINUTE_MICROS: Final = 60_000_000
_MOST_REMEMBERED: Final = 10_000  # short texts of a frame, of each kind

_Value = TypeVar("_Value")


@lru_cache(maxsize=4096)
def _day(number: int, offset_minutes: int) -> str:
    day = Instant(number * _DAY_MICROS).date()
    if offset_minutes == 0:
        return day
    sign = "+" if offset_minutes > 0 else "-"
    return f"{day} {sign}{abs(offset_minutes) // 60:02d}:{abs(offset_minutes) % 60:02d}"


def day_of(instant: Instant) -> str:
    """The calendar day at the original offset, with the offset where it is not UTC."""
    local = instant.micros + instant.offset_minutes * _MINUTE_MICROS
    return _day(local // _DAY_MICROS, instant.offset_minutes)


def order_of(piece: Piece) -> tuple[int, int]:
    """Time and arrival: what chunks are put in order by."""
    return piece.instant.micros, piece.row


class _Remembered(dict[str, _Value]):
    """What a function of short texts gives, worked out once for each; bounded."""

    def __init__(self, function: Callable[[str], _Value]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, text: str) -> _Value:
        value = self._function(text)
        if len(self) >= _MOST_REMEMBERED:
            self.clear()
        self[text] = value
        return value


class Frame:
    """The lines of a template's frame, and what they cost with one counter.

    It remembers what it has counted, so it pays to use one for many packs.

    Attributes
    ----------
    costs, days, turns : mapping of str to int
        Tokens of a short piece of the frame, of a day's header and end, and of what stands
        before (by label) and after a turn's text.
    starts : mapping of str to str
        What stands before a turn's text, by label.
    fixed : int
        Tokens of what stands once: the notice and the end.
    """

    def __init__(self, template: Template, counter: TokenCounter) -> None:
        self.template = template
        self.counter = counter
        # Where counts do not add up, each may have a constant part (special tokens) that the
        # whole has once, and a newline may cost a token.
        self._base = self.newline = 0
        if not counter.additive:
            self._base = counter("")
            self.newline = max(0, counter("a\na") - 2 * counter("a") + self._base)
        self.costs = _Remembered(self._count)
        self.days = _Remembered(self._day_cost)
        self.turns = _Remembered(self._turn_cost)
        self.starts = _Remembered(template.turn_start)
        self.fixed = self._base + self._line(template.notice) + self._line(template.end)
        self._end_turn = self._line(template.end_turn)
        self._end_day = self._line(template.end_day)
        self._end_atom = self._line(template.end_atom)

    def atom_cost(self, atom: int | None) -> int:
        """Tokens of an atom's header and end."""
        return self._line(self.template.atom_line(atom)) + self._end_atom

    def body_cost(self, printed: str, stored: str, tokens: Sequence[int]) -> int:
        """Tokens of the printed lines of a text, of which the stored ones are known."""
        if printed is not stored:
            tokens = self.counter.count_lines(printed.split("\n"))
        if self.counter.additive:
            return sum(tokens)
        return sum(tokens) + (self.newline - self._base) * len(tokens) + self.newline

    def least_cost(self, piece: Piece) -> int:
        """Tokens of the stored lines of a chunk, without any frame."""
        tokens = sum([sum(span.line_tokens) for span in piece.spans])
        if self._base:
            tokens -= self._base * sum([len(span.line_tokens) for span in piece.spans])
        return tokens

    def _count(self, text: str) -> int:
        return max(0, self.counter(text) - self._base)

    def _turn_cost(self, who: str) -> int:
        return self._count(self.template.turn_start(who)) + self._end_turn

    def _day_cost(self, day: str) -> int:
        return self._line(self.template.day_line(day)) + self._end_day

    def _line(self, text: str) -> int:
        """Tokens of a line with its line break; 0 for a line that is not there."""
        return self.costs[text] + self.newline if text else 0


class Form:
    """A chunk as a frame prints it, but for what depends on its place. Many packs may share it.

    The attributes from ``key`` on are there once `prepare` was called, ``label_cost`` once
    `turns` was.

    Attributes
    ----------
    piece : Piece
    frame : Frame
    least : int
        Tokens of the stored lines alone.
    copy_key : tuple or None
        Equal for byte-equal chunks; None for chunks with a step number, which have no copies.
    key : tuple of int
        Time and arrival: the order in a section.
    day : str
        Calendar day as printed.
    roles : list of str
        Printed role of each turn.
    printed : list of str
        Text of each turn as printed where nothing is folded: the stored one, but for escapes.
    body : int
        Tokens of these, and of the labels of all turns but the first.
    steps : list of str or None
        The step label that each turn shows: before it, or as the beginning of its text.
    labels : tuple of str
        What stands before the first turn, the speaker unnamed and named: ``step 7``, ``step 7
        user``; without the step where there is none, or where the text begins with it.
    leads : tuple of int
        Tokens of these as printed, and of what stands after the turn.
    alone : int
        Tokens of the chunk rendered alone: roles and text, no headers.
    label_cost : int
        Tokens of a label as references to the chunk carry it.
    """

    __slots__ = (
        "_turns",
        "alone",
        "body",
        "copy_key",
        "day",
        "frame",
        "key",
        "label_cost",
        "labels",
        "leads",
        "least",
        "piece",
        "printed",
        "roles",
        "steps",
    )

    def __init__(self, piece: Piece, frame: Frame) -> None:
        self.piece = piece
        self.frame = frame
        self.least = frame.least_cost(piece)
        self.copy_key: object = None
        if piece.step is None:
            self.copy_key = tuple([(span.role, span.text) for span in piece.spans])
        self.roles: list[str] = []
        self._turns: list[TurnLines] | None = None

    def prepare(self) -> None:
        """Work out what a place in the layout asks for, unless that is done."""
        if self.roles:
            return
        piece, frame = self.piece, self.frame
        template = frame.template
        self.key = order_of(piece)
        self.day = day_of(piece.instant)
        roles: list[str] = []
        body = 0
        self.printed = [print_lines(span.text, template) for span in piece.spans]
        for span, text in zip(piece.spans, self.printed, strict=True):
            body += frame.body_cost(text, span.text, span.line_tokens)
            role = template.role(span.role)
            if roles:
                named = role != roles[-1] or not template.ditto
                body += frame.turns[role if named else ""]
            roles.append(role)
        self.body = body
        self.steps = [printed_step(span.text) for span in piece.spans]
        label, named_label = "", roles[0]
        if piece.step is not None:
            step = f"step {piece.step}"
            if self.steps[0] != step:
                label = self.steps[0] = step
                named_label = f"{step} {roles[0]}"
        self.labels = label, named_label
        self.leads = frame.turns[label], frame.turns[named_label]
        self.alone = frame.turns[roles[0]] + body
        self.roles = roles

    @property
    def nbytes(self) -> int:
        """Bytes that it takes at most, estimated: its texts twice, since folding splits them."""
        spans = self.piece.spans
        return 1200 + sum(2 * len(span.text) + 150 * len(span.line_tokens) for span in spans)

    def turns(self) -> list[TurnLines]:
        """The turns as `rsm_fast.packing.fold` sees them."""
        if self._turns is None:
            step = self.piece.step
            self.label_cost = self.frame.costs["item 1" if step is None else f"step {step}"]
            self._turns = [TurnLines(span.text, span.line_tokens) for span in self.piece.spans]
        return self._turns


def print_lines(text: str, template: Template, *, end: bool = True) -> str:
    """Stored lines as printed; ``end``: they are the last of their turn.

    Where nothing marks the end of a turn, a last line that is empty or only backslashes would
    be lost in the blank line after it, so it gets an escape character.
    """
    printed = template.printed(text)
    if end and not template.end_turn and printed.endswith(("\n", ESCAPE)):
        last = printed.rfind("\n") + 1
        if last and not printed[last:].strip(ESCAPE):
            return printed[:last] + ESCAPE + printed[last:]
    return printed
