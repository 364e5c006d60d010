"""Where chunks stand in the text, and what their frame costs there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Literal, TypeAlias

from rsm_fast.packing.forms import Form, Frame, day_of, order_of
from rsm_fast.packing.pieces import Piece
from rsm_fast.packing.templates import Template

__all__ = ["Entry", "Layout", "LayoutName", "names"]

LayoutName: TypeAlias = Literal["atoms", "sessions", "flat"]
_KEY = attrgetter("key")


class Entry:
    """A chunk in the layout, or several byte-equal ones.

    Attributes
    ----------
    form : Form
        How they are printed.
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
    added, saved : int
        Tokens charged at admission, and what folding was believed to save of them.
    """

    __slots__ = (
        "_leads",
        "added",
        "day",
        "first",
        "form",
        "key",
        "piece",
        "pieces",
        "rank",
        "saved",
    )

    def __init__(self, form: Form, rank: int) -> None:
        form.prepare()
        piece = form.piece
        self.form = form
        self.rank = rank
        self.piece = piece
        self.pieces = [piece]
        self.first = piece.instant
        self.key = form.key
        self.day = form.day
        self.added = self.saved = 0
        self._leads: tuple[int, int] | None = form.leads

    def add_copy(self, piece: Piece) -> None:
        """Count one more byte-equal chunk; the newest one says where the entry stands."""
        self.pieces.append(piece)
        self.first = min(self.first, piece.instant)
        self._stand(max(self.piece, piece, key=order_of))

    def drop_copy(self) -> None:
        """Undo the last `add_copy`."""
        self.pieces.pop()
        self.first = min(piece.instant for piece in self.pieces)
        self._stand(max(self.pieces, key=order_of))

    def label(self, named: bool, item: str = "") -> str:
        """What stands before the first turn: step or item, role if named, number of copies."""
        labels = self.form.labels
        label = labels[named]
        if item and not labels[0]:
            label = f"{item} {label}" if label else item
        if len(self.pieces) > 1:
            first = day_of(self.first)
            since = "" if first == self.day else f" since {first}"
            times = f"({len(self.pieces)} times{since})"
            label = f"{label} {times}" if label else times
        return label

    def lead_cost(self, named: bool) -> int:
        """Tokens of `label` as printed, and of what stands after the turn."""
        if self._leads is None:
            turns = self.form.frame.turns
            self._leads = turns[self.label(False)], turns[self.label(True)]
        return self._leads[named]

    def inner_label(self, turn: int, template: Template, item: str = "") -> str:
        """What stands before a turn that is not the chunk's first."""
        roles = self.form.roles
        role = roles[turn]
        if role == roles[turn - 1] and template.ditto:
            return item
        return f"{item} {role}" if item else role

    def _stand(self, piece: Piece) -> None:
        self.piece = piece
        self.key = order_of(piece)
        self.day = day_of(piece.instant)
        self._leads = None


def names(before: Entry | None, entry: Entry, template: Template) -> bool:
    """Whether the speaker of an entry's first turn is named after the entry before it."""
    return (
        before is None
        or before.day != entry.day
        or before.form.roles[-1] != entry.form.roles[0]
        or not template.ditto
    )


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

    def adopt(self, sections: Iterable[list[Entry]], tokens: int) -> None:
        """Take over sections in time order, and what all of them cost."""
        self._sections = {self._section_of(section[0]): section for section in sections}
        self.tokens = tokens

    def insert(self, entry: Entry, limit: int | None = None) -> int:
        """Put ``entry`` in its place, unless that adds more than ``limit`` tokens.

        Returns
        -------
        int
            Tokens that it adds, or would.
        """
        name = self._section_of(entry)
        section = self._sections.get(name, [])
        at = bisect_left(section, entry.key, key=_KEY)
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
        at = bisect_left(section, entry.key, key=_KEY)
        del section[at]
        self.tokens -= self._added(section, at, entry)
        if not section:
            del self._sections[name]

    def _added(self, section: list[Entry], at: int, entry: Entry) -> int:
        """Tokens that an entry adds where it stands between two others."""
        before = section[at - 1] if at else None
        added = self._lead(before, entry) + entry.form.body
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
        cost = entry.lead_cost(names(before, entry, frame.template))
        if before is None:
            cost += frame.days[entry.day]
            if self.by == "atoms":
                cost += frame.atom_cost(entry.piece.atom)
        elif before.day != entry.day:
            cost += frame.days[entry.day]
        return cost
