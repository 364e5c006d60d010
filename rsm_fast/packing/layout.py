"""Where chunks stand in the text, and what their frame costs there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

from rsm_fast.instants import Instant
from rsm_fast.packing.escape import ESCAPE
from rsm_fast.packing.fold import TurnLines, printed_step
from rsm_fast.packing.pieces import Piece
from rsm_fast.packing.templates import Template
from rsm_fast.tokens import TokenCounter

__all__ = ["Entry", "Frame", "Layout", "LayoutName", "day_of", "names", "print_lines"]

LayoutName: TypeAlias = Literal["atoms", "sessions", "flat"]
_DAY_MICROS = 86_400_000_000
_MINUTE_MICROS = 60_000_000


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


class Frame:
    """The lines of a template's frame, and what they cost with one counter."""

    def __init__(self, template: Template, counter: TokenCounter) -> None:
        self.template = template
        self.counter = counter
        # Where counts do not add up, each may have a constant part (special tokens) that the
        # whole has once, and a newline may cost a token.
        self._base = self.newline = 0
        if not counter.additive:
            self._base = counter("")
            self.newline = max(0, counter("a\na") - 2 * counter("a") + self._base)
        self._costs: dict[str, int] = {}
        self._days: dict[str, int] = {}
        self._turns: dict[str, int] = {}
        # What stands once: the notice and the end.
        self.fixed = self._base + self._line(template.notice) + self._line(template.end)
        self._end_turn = self._line(template.end_turn)
        self._end_day = self._line(template.end_day)
        self._end_atom = self._line(template.end_atom)

    def cost(self, text: str) -> int:
        """Tokens of a short piece of the frame, remembered."""
        cost = self._costs.get(text)
        if cost is None:
            cost = self._costs[text] = self._count(text)
        return cost

    def turn_cost(self, who: str) -> int:
        """Tokens of what stands before and after a turn's text."""
        cost = self._turns.get(who)
        if cost is None:
            start = self._count(self.template.turn_start(who))
            cost = self._turns[who] = start + self._end_turn
        return cost

    def day_cost(self, day: str) -> int:
        """Tokens of a day's header and end."""
        cost = self._days.get(day)
        if cost is None:
            cost = self._days[day] = self._line(self.template.day_line(day)) + self._end_day
        return cost

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

    def _line(self, text: str) -> int:
        """Tokens of a line with its line break; 0 for a line that is not there."""
        return self.cost(text) + self.newline if text else 0


class Entry:
    """A chunk in the layout, or several byte-equal ones.

    Attributes
    ----------
    rank : int
        How many pieces had been offered up to it.
    pieces : list of Piece
        The copies, in the order in which they were offered; one for most chunks.
    piece : Piece
        The newest of them: it says where the entry stands.
    key : tuple of int
        Time and arrival: the order in a section.
    day : str
        Calendar day as printed.
    first : Instant
        When the first copy was said.
    step : str
        ``step 7``; empty where there is none, or where the text begins with it.
    roles : list of str
        Printed role of each turn.
    turns : sequence of TurnLines
        The turns as `rsm_fast.packing.fold` sees them; empty where nothing is folded.
    printed : list of str
        Text of each turn as printed where nothing is folded: the stored one, but for escapes.
    body : int
        Tokens of these, and of the labels of all turns but the first.
    added, saved : int
        Tokens charged at admission, and what folding was believed to save of them.
    """

    __slots__ = (
        "_leads",
        "added",
        "body",
        "day",
        "first",
        "key",
        "piece",
        "pieces",
        "printed",
        "rank",
        "roles",
        "saved",
        "step",
        "turns",
    )

    def __init__(
        self, piece: Piece, frame: Frame, rank: int, turns: Sequence[TurnLines] = ()
    ) -> None:
        self.rank = rank
        self.pieces = [piece]
        self.first = piece.instant
        self.added = self.saved = 0
        self.turns = turns
        template = frame.template
        body = 0
        roles: list[str] = []
        printed: list[str] = []
        for span in piece.spans:
            text = print_lines(span.text, template)
            body += frame.body_cost(text, span.text, span.line_tokens)
            role = template.role(span.role)
            if roles:
                new = role != roles[-1] or not template.ditto
                body += frame.turn_cost(role if new else "")
            roles.append(role)
            printed.append(text)
        self.body = body
        self.roles = roles
        self.printed = printed
        self.step = ""
        if piece.step is not None:
            step = f"step {piece.step}"
            if printed_step(piece.spans[0].text) != step:
                self.step = step
        self._stand(piece)

    def add_copy(self, piece: Piece) -> None:
        """Count one more byte-equal chunk; the newest one says where the entry stands."""
        self.pieces.append(piece)
        self.first = min(self.first, piece.instant)
        self._stand(max(self.piece, piece, key=_order))

    def drop_copy(self) -> None:
        """Undo the last `add_copy`."""
        self.pieces.pop()
        self.first = min(piece.instant for piece in self.pieces)
        self._stand(max(self.pieces, key=_order))

    def alone(self, frame: Frame) -> int:
        """Tokens of the chunk rendered alone: roles and text, no headers."""
        return frame.turn_cost(self.roles[0]) + self.body

    def label(self, named: bool, item: str = "") -> str:
        """What stands before the first turn: step or item, role if named, number of copies."""
        label = self.step or item
        if named:
            label = f"{label} {self.roles[0]}" if label else self.roles[0]
        if len(self.pieces) > 1:
            first = day_of(self.first)
            since = "" if first == self.day else f" since {first}"
            times = f"({len(self.pieces)} times{since})"
            label = f"{label} {times}" if label else times
        return label

    def lead_cost(self, named: bool, frame: Frame) -> int:
        """Tokens of `label` as printed, remembered."""
        cost = self._leads[named]
        if cost is None:
            cost = self._leads[named] = frame.turn_cost(self.label(named))
        return cost

    def inner_label(self, turn: int, template: Template, item: str = "") -> str:
        """What stands before a turn that is not the chunk's first."""
        role = self.roles[turn]
        if role == self.roles[turn - 1] and template.ditto:
            return item
        return f"{item} {role}" if item else role

    def _stand(self, piece: Piece) -> None:
        self.piece = piece
        self.key = _order(piece)
        self.day = day_of(piece.instant)
        self._leads: list[int | None] = [None, None]


def _order(piece: Piece) -> tuple[int, int]:
    return piece.instant.micros, piece.row


def names(before: Entry | None, entry: Entry, template: Template) -> bool:
    """Whether the speaker of an entry's first turn is named after the entry before it."""
    return (
        before is None
        or before.day != entry.day
        or before.roles[-1] != entry.roles[0]
        or not template.ditto
    )


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


class Layout:
    """Chunks by section, in time order, with the exact cost of their frame.

    A section is an atom, a session or everything. In each, a header names the day before the
    first chunk and wherever the day changes; a turn is named where its speaker is not that
    of the turn before.
    """

    def __init__(self, by: LayoutName, frame: Frame) -> None:
        self.by = by
        self.frame = frame
        self.tokens = 0
        self._sections: dict[int | str | None, list[Entry]] = {}

    def sections(self) -> Iterator[list[Entry]]:
        """Sections in the order of their earliest chunk, chunks in time order."""
        return iter(sorted(self._sections.values(), key=lambda section: section[0].key))

    def insert(self, entry: Entry, limit: int | None = None) -> int:
        """Put ``entry`` in its place, unless that adds more than ``limit`` tokens.

        Returns
        -------
        int
            Tokens that it adds, or would.
        """
        name = self._section_of(entry)
        section = self._sections.get(name, [])
        at = bisect_left(section, entry.key, key=_key)
        added = self._added(section, at, entry)
        if limit is None or added <= limit:
            self.tokens += added
            section.insert(at, entry)
            self._sections[name] = section
        return added

    def remove(self, entry: Entry) -> None:
        """Take ``entry`` out again."""
        name = self._section_of(entry)
        section = self._sections[name]
        at = bisect_left(section, entry.key, key=_key)
        del section[at]
        self.tokens -= self._added(section, at, entry)
        if not section:
            del self._sections[name]

    def _added(self, section: list[Entry], at: int, entry: Entry) -> int:
        """Tokens that an entry adds where it stands between two others."""
        before = section[at - 1] if at else None
        added = self._lead(before, entry) + entry.body
        if at < len(section):
            after = section[at]
            added += self._lead(entry, after) - self._lead(before, after)
        return added

    def _section_of(self, entry: Entry) -> int | str | None:
        if self.by == "sessions":
            return entry.piece.session
        return entry.piece.atom if self.by == "atoms" else None

    def _lead(self, before: Entry | None, entry: Entry) -> int:
        """Tokens of the frame between an entry and the one before it in its section."""
        frame = self.frame
        cost = entry.lead_cost(names(before, entry, frame.template), frame)
        if before is None:
            cost += frame.day_cost(entry.day)
            if self.by == "atoms":
                cost += frame.atom_cost(entry.piece.atom)
        elif before.day != entry.day:
            cost += frame.day_cost(entry.day)
        return cost


def _key(entry: Entry) -> tuple[int, int]:
    return entry.key
