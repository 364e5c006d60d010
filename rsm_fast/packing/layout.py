"""Where chunks stand in the text, and what their frame costs there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, TypeAlias

from rsm_fast.instants import Instant
from rsm_fast.packing.escape import ESCAPE, clean_label
from rsm_fast.packing.fold import printed_step
from rsm_fast.packing.pieces import Piece
from rsm_fast.packing.templates import Template
from rsm_fast.tokens import TokenCounter

__all__ = [
    "Entry",
    "Frame",
    "Layout",
    "LayoutName",
    "atom_text",
    "day_of",
    "ends_bare",
    "first_label",
    "inner_label",
]

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
    """Token costs of a template's frame lines for one counter."""

    def __init__(self, template: Template, counter: TokenCounter) -> None:
        self.template = template
        self.counter = counter
        # A newline is free where counts add up over it; else it may cost a token.
        self.newline = 0 if counter.additive else 1
        self._costs: dict[str, int] = {}
        self.notice = self.cost(template.notice)
        self.escape = self.cost(ESCAPE)

    def cost(self, text: str) -> int:
        """Tokens of a short piece of the frame, remembered."""
        cost = self._costs.get(text)
        if cost is None:
            cost = self._costs[text] = self.counter(text)
        return cost

    def who(self, label: str) -> int:
        """Tokens of what stands before a turn's text."""
        return self.cost(self.template.turn.format(who=label))

    def day(self, day: str) -> int:
        """Tokens of a day's header with its line break."""
        return self.cost(self.template.day.format(day=day)) + self.newline

    def atom(self, atom: int | None) -> int:
        """Tokens of an atom's header with its line break."""
        return self.cost(self.template.atom.format(atom=atom_text(atom))) + self.newline


def atom_text(atom: int | None) -> str:
    """How an atom's number is printed."""
    return "-" if atom is None else str(atom)


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
    step : str
        ``step 7``; empty where there is none, or where the text begins with it.
    roles : list of str
        Printed role of each turn.
    body : int
        Tokens of the stored lines, escape characters and line breaks included.
    inner : int
        Tokens of the labels of all turns but the first.
    added, saved : int
        Tokens charged at admission, and what folding was believed to save of them.
    """

    __slots__ = (
        "_lines",
        "added",
        "body",
        "day",
        "first",
        "inner",
        "key",
        "piece",
        "pieces",
        "rank",
        "roles",
        "saved",
        "step",
    )

    def __init__(self, piece: Piece, frame: Frame, rank: int) -> None:
        self.rank = rank
        self.pieces = [piece]
        self.first = piece.instant
        self.added = self.saved = 0
        self._lines: list[list[str]] | None = None
        escaper = frame.template.escaper
        body = inner = 0
        roles: list[str] = []
        for span in piece.spans:
            text = span.text
            body += sum(span.line_tokens)
            if frame.newline:
                body += frame.newline * (len(span.line_tokens) + 1)
            if escaper.suspicious(text):
                body += frame.escape * escaper.count(text)
            if ends_bare(text):
                body += frame.escape
            role = clean_label(span.role)
            if roles:
                inner += frame.who("" if role == roles[-1] else role)
            roles.append(role)
        self.body = body
        self.inner = inner
        self.roles = roles
        self.step = ""
        if piece.step is not None:
            step = f"step {piece.step}"
            if printed_step(piece.spans[0].text) != step:
                self.step = step
        self._stand(piece)

    def lines(self) -> list[list[str]]:
        """The stored lines of each turn."""
        if self._lines is None:
            self._lines = [span.text.split("\n") for span in self.piece.spans]
        return self._lines

    def add_copy(self, piece: Piece) -> None:
        """Count one more byte-equal chunk; the newest one says where the entry stands."""
        self.pieces.append(piece)
        self.first = min(self.first, piece.instant)
        if (piece.instant.micros, piece.row) > self.key:
            self._stand(piece)

    def drop_copy(self) -> None:
        """Undo the last `add_copy`."""
        self.pieces.pop()
        self.first = min(piece.instant for piece in self.pieces)
        self._stand(max(self.pieces, key=lambda piece: (piece.instant.micros, piece.row)))

    def alone(self, frame: Frame) -> int:
        """Tokens of the chunk rendered alone: roles and text, no headers."""
        return frame.who(self.roles[0]) + self.inner + self.body

    def times(self) -> str:
        """``(3 times since 2026-05-03)`` for copies, else empty."""
        if len(self.pieces) == 1:
            return ""
        first = day_of(self.first)
        since = "" if first == self.day else f" since {first}"
        return f"({len(self.pieces)} times{since})"

    def _stand(self, piece: Piece) -> None:
        self.piece = piece
        self.key = (piece.instant.micros, piece.row)
        self.day = day_of(piece.instant)


def ends_bare(text: str) -> bool:
    """Whether a text of several lines ends with one that is empty or only backslashes.

    It would be lost in the blank line between chunks, so it gets an escape character.
    """
    if not text.endswith(("\n", "\\")):
        return False
    last = text.rfind("\n")
    return last >= 0 and not text[last + 1 :].strip("\\")


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

    def __len__(self) -> int:
        return sum(map(len, self._sections.values()))

    def sections(self) -> Iterator[list[Entry]]:
        """Sections in the order of their earliest chunk, chunks in time order."""
        return iter(sorted(self._sections.values(), key=lambda section: section[0].key))

    def added_by(self, entry: Entry) -> int:
        """Tokens that inserting ``entry`` would add."""
        section = self._sections.get(self._section_of(entry))
        if section is None:
            return self._step(None, entry) + entry.body + entry.inner
        at = bisect_left(section, entry.key, key=lambda other: other.key)
        before = section[at - 1] if at else None
        after = section[at] if at < len(section) else None
        added = self._step(before, entry) + entry.body + entry.inner
        if after is not None:
            added += self._step(entry, after) - self._step(before, after)
        return added

    def insert(self, entry: Entry, added: int | None = None) -> None:
        """Put ``entry`` in its place; ``added`` is what `added_by` gave, if it is known."""
        self.tokens += self.added_by(entry) if added is None else added
        section = self._sections.setdefault(self._section_of(entry), [])
        section.insert(bisect_left(section, entry.key, key=lambda other: other.key), entry)

    def remove(self, entry: Entry) -> None:
        """Take ``entry`` out again."""
        name = self._section_of(entry)
        section = self._sections[name]
        del section[bisect_left(section, entry.key, key=lambda other: other.key)]
        if not section:
            del self._sections[name]
        self.tokens -= self.added_by(entry)

    def _section_of(self, entry: Entry) -> int | str | None:
        if self.by == "sessions":
            return entry.piece.session
        return entry.piece.atom if self.by == "atoms" else None

    def _step(self, before: Entry | None, entry: Entry) -> int:
        """Tokens of the frame between two neighbours."""
        cost = 0
        if before is None and self.by == "atoms":
            cost += self.frame.atom(entry.piece.atom)
        if before is None or before.day != entry.day:
            cost += self.frame.day(entry.day)
        return cost + self.frame.who(first_label(before, entry))


def first_label(before: Entry | None, entry: Entry, item: str = "") -> str:
    """The label of a chunk's first turn: step or item, role if needed, number of copies."""
    parts = []
    if label := entry.step or item:
        parts.append(label)
    if before is None or before.day != entry.day or before.roles[-1] != entry.roles[0]:
        parts.append(entry.roles[0])
    if len(entry.pieces) > 1:
        parts.append(entry.times())
    return " ".join(parts)


def inner_label(entry: Entry, turn: int, item: str = "") -> str:
    """The label of a turn of a chunk that is not its first."""
    role = entry.roles[turn]
    if role == entry.roles[turn - 1]:
        return item
    return f"{item} {role}" if item else role
