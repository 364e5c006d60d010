"""Admission in columns: one kernel decides, and asks where it needs a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import rsm_fast.kernels as kernels
from rsm_fast.kernels.offers import (
    ADDED,
    ADMITTED,
    BELIEVED,
    CONSIDERED,
    DONE,
    ENTRY,
    FOLDED,
    FORM,
    FOUND,
    FREE,
    KNOWN,
    LEAD,
    MAX_MISSES,
    MISSES,
    NAMED_LEAD,
    NEXT,
    NEXT_OFFER,
    OFFERED,
    PRICES,
    RANK,
    ROOM,
    SAVED,
    SHOWN,
    SKIPPED,
    TALLIES,
    TOKENS,
    TWIN,
    UNREAD,
)
from rsm_fast.packing.forms import Form
from rsm_fast.packing.layout import Entry, LayoutName
from rsm_fast.packing.offers import MOST, READ_AT_ONCE, PriceTable, Source

__all__ = ["LEAST_ROOM", "Ledger"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

LEAST_ROOM: Final = 64
"""Tokens below which it does not pay to ask for more offers."""
_SEEN: Final = 1024
"""Lines that a new table has room for."""
_NO_LIMIT: Final = 1 << 60
_KINDS: Final = (np.int32, *[np.int64] * 3, np.int32, *[np.int64] * 2)
"""Of the columns of offers from `_Offered.versions` to `_Offered.twins`."""


class _Map:
    """An open table as `rsm_fast.kernels.admission` takes it."""

    def __init__(self, size: int) -> None:
        capacity = 1 << (2 * size + 1).bit_length()
        self.keys: I64 = np.empty(capacity, np.int64)
        self.values: I32 = np.full(capacity, FREE, np.int32)

    def grown(self, size: int) -> _Map:
        """A larger one with the same keys."""
        larger = _Map(size)
        kernels.admission.spread_(self.keys, self.values, larger.keys, larger.values)
        return larger


@dataclass(slots=True)
class _Offered:
    """What a kernel knows of the offers, by their place in the order.

    Attributes
    ----------
    rows, versions : (k,) int32
    micros, section, headers, tokens, texts, twins, prices
        See `rsm_fast.kernels.admission.admit_`.
    """

    rows: I32
    versions: I32
    micros: I64
    section: I64
    headers: I64
    tokens: I32
    texts: I64
    twins: I64
    prices: I64

    @classmethod
    def room(cls, rows: I32) -> _Offered:
        """Columns to be filled."""
        count = rows.size
        columns = [np.empty(count, kind) for kind in _KINDS]
        return cls(*[rows, *columns, np.empty((count, PRICES), np.int64)])

    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """All of them, in the order of the attributes."""
        return tuple(getattr(self, name) for name in self.__slots__)

    def first(self, count: int) -> _Offered:
        """The first of them."""
        return _Offered(*[column[:count] for column in self.columns()])

    def followed_by(self, more: _Offered) -> _Offered:
        """These, then others."""
        pairs = zip(self.columns(), more.columns(), strict=True)
        return _Offered(*[np.concatenate(pair) for pair in pairs])


class Ledger:
    """The admission of one pack from a `Source`; afterwards the entries that came in.

    Parameters
    ----------
    prices : PriceTable
        Of the frame that the pack is written in.
    by : {"sessions", "atoms", "flat"}
        What makes a section.
    budget : int
        Tokens of the pack, more than its frame takes.
    fold : bool
        Repeated lines are folded.
    """

    def __init__(self, prices: PriceTable, by: LayoutName, *, budget: int, fold: bool) -> None:
        self._frame = frame = prices.frame
        self._by = by
        self._prices = prices
        self._ditto = np.int64(frame.template.ditto)
        self._fold = np.int64(fold)
        self._checked = np.int64(-1)
        self._copied: dict[int, Entry] = {}
        self._tally: I64 = np.zeros(TALLIES, np.int64)
        self._tally[ROOM] = min(budget - frame.fixed, _NO_LIMIT)
        self._sections = self._texts = self._twins = _Map(0)
        self._seen = _Map(_SEEN)
        self._entries: I64 = np.empty((0, ENTRY), np.int64)
        self._skipped: I64 = np.empty((0, 3), np.int64)
        self._pool: I64 = np.empty(0, np.int64)
        self._offered = _Offered.room(np.empty(0, np.int32))
        self._status: int = DONE
        # of a section, beside the day; those of atoms are worked out when they are needed
        self._header = np.int64(-1 if by == "atoms" else 0)

    def read(
        self,
        question: tuple[Any, ...],
        scores: F32,
        order: I32,
        *,
        versions: I32,
        sessions: I32,
        atoms: I32,
        hashes: I64,
    ) -> I32:
        """Rank chunks and admit the first of them, in one compiled call; `admit` goes on.

        Parameters
        ----------
        question : tuple
            From `rsm_fast.retrieval.question`.
        scores, order : (n,) float32, (k,) int32
            From `rsm_fast.retrieval.room_for`; filled.
        versions, sessions, atoms, hashes : (n,) int32 or int64
            As in `Offers`, of all chunks.

        Returns
        -------
        (m,) int32
            The order, whose rows are the first offers.
        """
        groups = {"sessions": sessions, "atoms": atoms, "flat": order[:0]}[self._by]
        self._make_room(order.size)
        *table, self._pool = self._prices.table(scores.size)
        offered = _Offered.room(order)
        self._status = kernels.read.read_(
            *question,
            scores,
            order,
            versions,
            groups,
            hashes,
            *table,
            self._header,
            *offered.columns()[1:],
            *self._books(),
        )
        self._offered = offered.first(int(self._tally[OFFERED]))
        return self._offered.rows

    def admit(self, source: Source) -> None:
        """Admit what a source offers, until it ends or nothing has fitted for a long time."""
        self._source = source
        self._parts = source.offers(self._offered.rows.size)
        if self._offered.rows.size:
            self._run(self._status)
        elif self._extend():
            self._run(self._go_on())

    # -- what came of it ----------------------------------------------------------------------

    @property
    def considered(self) -> int:
        """Offers that were tried."""
        return int(self._tally[CONSIDERED])

    @property
    def tokens(self) -> int:
        """Tokens of the layout."""
        return int(self._tally[TOKENS])

    @property
    def believed(self) -> int:
        """Tokens that folding is believed to save."""
        return int(self._tally[BELIEVED])

    def entries(self) -> tuple[list[Entry], Iterator[list[Entry]]]:
        """What came in, in order of admission; and the same by section, in time order."""
        table = self._entries[: self._tally[ADMITTED]]
        forms = self._source.forms(self._frame, table[:, FORM].tolist())
        made = []
        numbers = table[:, (RANK, ADDED, SAVED)].tolist()
        for at, (form, (rank, added, saved)) in enumerate(zip(forms, numbers, strict=True)):
            entry = self._copied.get(at)
            if entry is None:
                entry = Entry(form, rank)
            entry.added, entry.saved = added, saved
            made.append(entry)
        return made, self._by_section(made)

    def skipped(self) -> list[tuple[Form, int, int]]:
        """What did not fit: chunk, tokens that it would have added, rank."""
        rows = self._skipped[: self._tally[SKIPPED]].tolist()
        forms = self._source.forms(self._frame, [offer for offer, _, _ in rows])
        return [(form, added, rank) for form, (_, added, rank) in zip(forms, rows, strict=True)]

    def _by_section(self, made: list[Entry]) -> Iterator[list[Entry]]:
        following = self._entries[:, NEXT].tolist()
        firsts = self._sections.values
        for at in firsts[firsts >= 0].tolist():
            section = []
            while at >= 0:
                section.append(made[at])
                at = following[at]
            yield section

    # -- running ------------------------------------------------------------------------------

    def _books(self) -> tuple[Any, ...]:
        """What an admission changes and goes by, as kernels take it."""
        maps = self._sections, self._texts, self._twins, self._seen
        arrays = [array for each in maps for array in (each.keys, each.values)]
        tables = self._tally, self._pool, self._entries, self._skipped
        return *tables, *arrays, self._ditto, self._fold, self._checked

    def _go_on(self) -> int:
        offered = self._offered
        columns = offered.rows, *offered.columns()[2:]
        return int(kernels.admission.admit_(*columns, *self._books()))

    def _run(self, status: int) -> None:
        while True:
            if status == DONE:
                if self._tally[MISSES] >= MAX_MISSES or self._most_tokens() < LEAST_ROOM:
                    return
                if not self._extend():
                    return
            elif status == UNREAD:
                self._read()
            elif status == TWIN:
                self._try_copy()
            else:
                self._seen = self._seen.grown(self._seen.keys.size)
            status = self._go_on()

    def _most_tokens(self) -> int:
        """Tokens of text above which an offer gets no closer look."""
        tally = self._tally
        room = int(tally[ROOM] - tally[TOKENS] + tally[BELIEVED])
        return FOLDED * room if self._fold and tally[BELIEVED] else room

    def _make_room(self, count: int) -> None:
        """Have room for so many offers."""
        if count <= len(self._entries):
            return
        self._entries = _longer(self._entries, count)
        self._skipped = _longer(self._skipped, count)
        self._sections = self._sections.grown(count)
        self._texts = self._texts.grown(count)
        self._twins = self._twins.grown(count)

    def _extend(self) -> bool:
        """Take the next part of the offers; False if there is none."""
        more = next(self._parts, None)
        if more is None:
            return False
        rows, versions = more.rows, more.versions
        prices, twins, self._pool = self._prices.of(rows, versions)
        section: I64 = np.zeros(rows.size, np.int64)
        if self._by != "flat":
            section[:] = more.atoms if self._by == "atoms" else more.sessions
        headers = np.full(rows.size, self._header)
        facts = rows, versions, more.micros, section, headers, more.tokens, more.texts
        self._offered = self._offered.followed_by(_Offered(*facts, twins, prices))
        self._make_room(self._offered.rows.size)
        return True

    def _read(self) -> None:
        """Learn what the next offers cost of which nothing is known."""
        offered = self._offered
        for atom in np.unique(offered.section[offered.headers < 0]).tolist():
            cost = self._frame.atom_cost(None if atom < 0 else atom)
            offered.headers[offered.section == atom] = min(cost, MOST)
        start = int(self._tally[NEXT_OFFER])
        wanted = offered.prices[start:, KNOWN] == 0
        wanted &= offered.tokens[start:] <= max(self._most_tokens(), int(offered.tokens[start]))
        places = np.flatnonzero(wanted)[:READ_AT_ONCE] + start
        if not places.size:
            return
        forms = self._source.forms(self._frame, places.tolist())
        rows, versions = offered.rows, offered.versions
        self._prices.learn(rows[places], versions[places], forms)
        prices, twins, self._pool = self._prices.of(rows[start:], versions[start:])
        offered.prices[start:], offered.twins[start:] = prices, twins

    def _try_copy(self) -> None:
        """Count a byte-equal chunk instead of writing it again, if it is one and that fits."""
        tally, entries = self._tally, self._entries
        offer, at = int(tally[NEXT_OFFER]), int(tally[FOUND])
        entry = self._copied.get(at)
        places = [offer] if entry is not None else [offer, int(entries[at, FORM])]
        form, *first = self._source.forms(self._frame, places)
        if entry is None:
            entry = Entry(first[0], int(entries[at, RANK]))
        if form.copy_key != entry.form.copy_key:
            self._checked = np.int64(offer)
            return
        self._copied[at] = entry
        tally[CONSIDERED] += 1
        tally[NEXT_OFFER] += 1
        before, room = int(tally[TOKENS]), int(tally[ROOM] + tally[BELIEVED])
        shown = int(entries[at, SHOWN])
        self._move(at, entry, form, offer)
        if tally[TOKENS] <= max(room, before):
            tally[MISSES] = 0
            return
        self._skipped[tally[SKIPPED]] = offer, tally[TOKENS] - before, tally[CONSIDERED]
        tally[SKIPPED] += 1
        tally[MISSES] += 1
        self._move(at, entry, None, shown)

    def _move(self, at: int, entry: Entry, form: Form | None, offer: int) -> None:
        """Add a copy to an entry, or with None take the last one off, and put it in its place."""
        entries, offered = self._entries, self._offered
        place = (
            self._tally,
            entries,
            offered.prices,
            offered.rows,
            offered.micros,
            offered.section,
            offered.headers,
            self._sections.keys,
            self._sections.values,
            np.int64(at),
            self._ditto,
        )
        kernels.admission.remove_entry_(*place)
        if form is None:
            entry.drop_copy()
            entries[at, SHOWN] = offer
        else:
            entry.add_copy(form.piece)
            if entry.piece is form.piece:
                entries[at, SHOWN] = offer
        entries[at, LEAD] = min(entry.lead_cost(False), MOST)
        entries[at, NAMED_LEAD] = min(entry.lead_cost(True), MOST)
        kernels.admission.insert_entry_(*place, np.int64(_NO_LIMIT))


def _longer(table: I64, count: int) -> I64:
    longer = np.empty((count, table.shape[1]), np.int64)
    longer[: len(table)] = table
    return longer
