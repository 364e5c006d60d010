"""Admission in columns: one kernel decides, and asks where it needs a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

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
from rsm_fast.packing.forms import Form, Frame
from rsm_fast.packing.layout import Entry, LayoutName
from rsm_fast.packing.offers import MOST, READ_AT_ONCE, Offers, Source

__all__ = ["LEAST_ROOM", "Ledger"]

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

LEAST_ROOM: Final = 64
"""Tokens below which it does not pay to ask for more offers."""
_SEEN: Final = 1024
"""Lines that a new table has room for."""
_NO_LIMIT: Final = 1 << 60


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


class Ledger:
    """The admission of one pack from a `Source`; afterwards the entries that came in.

    Parameters
    ----------
    source : Source
    frame : Frame
    by : {"sessions", "atoms", "flat"}
        What makes a section.
    room : int
        Tokens for all but the notice.
    fold : bool
        Repeated lines are folded.
    """

    def __init__(
        self, source: Source, frame: Frame, by: LayoutName, *, room: int, fold: bool
    ) -> None:
        self._source = source
        self._frame = frame
        self._by = by
        self._prices = source.prices(frame)
        self._ditto = np.int64(frame.template.ditto)
        self._fold = np.int64(fold)
        self._checked = np.int64(-1)
        self._copied: dict[int, Entry] = {}
        self._tally: I64 = np.zeros(TALLIES, np.int64)
        self._tally[ROOM] = min(room, _NO_LIMIT)
        self._parts = source.offers()
        self._sections = self._texts = self._twins = _Map(0)
        self._seen = _Map(_SEEN)
        self._entries: I64 = np.empty((0, ENTRY), np.int64)
        self._skipped: I64 = np.empty((0, 3), np.int64)
        self._offers: Offers | None = None
        self._costs: I64
        self._keys: I64
        if self._extend():
            self._run()

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

    def _run(self) -> None:
        while True:
            offers = self._offers
            assert offers is not None
            status = kernels.admission.admit_(
                self._tally,
                offers.rows,
                offers.micros,
                self._section,
                self._headers,
                offers.tokens,
                offers.texts,
                self._keys,
                self._costs,
                self._pool,
                self._entries,
                self._skipped,
                self._sections.keys,
                self._sections.values,
                self._texts.keys,
                self._texts.values,
                self._twins.keys,
                self._twins.values,
                self._seen.keys,
                self._seen.values,
                self._ditto,
                self._fold,
                self._checked,
            )
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

    def _most_tokens(self) -> int:
        """Tokens of text above which an offer gets no closer look."""
        tally = self._tally
        room = int(tally[ROOM] - tally[TOKENS] + tally[BELIEVED])
        return FOLDED * room if self._fold and tally[BELIEVED] else room

    def _extend(self) -> bool:
        """Take the next part of the offers; False if there is none."""
        more = next(self._parts, None)
        if more is None:
            return False
        costs, keys, self._pool = self._prices.of(more.rows, more.versions)
        if self._offers is None:
            self._offers, self._costs, self._keys = more, costs, keys
        else:
            self._offers = self._offers.followed_by(more)
            self._costs = np.concatenate((self._costs, costs))
            self._keys = np.concatenate((self._keys, keys))
        offers = self._offers
        count = offers.rows.size
        self._headers: I64 = np.zeros(count, np.int64)
        if self._by == "atoms":
            self._section: I64 = offers.atoms.astype(np.int64)
            for atom in np.unique(offers.atoms).tolist():
                cost = self._frame.atom_cost(None if atom < 0 else atom)
                self._headers[offers.atoms == atom] = min(cost, MOST)
        else:
            one = self._by == "flat"
            self._section = np.zeros(count, np.int64) if one else offers.sessions.astype(np.int64)
        self._entries = _longer(self._entries, count)
        self._skipped = _longer(self._skipped, count)
        self._sections = self._sections.grown(count)
        self._texts = self._texts.grown(count)
        self._twins = self._twins.grown(count)
        return True

    def _read(self) -> None:
        """Read the next texts that nothing is known of."""
        offers = self._offers
        assert offers is not None
        start = int(self._tally[NEXT_OFFER])
        wanted = self._costs[start:, KNOWN] == 0
        wanted &= offers.tokens[start:] <= max(self._most_tokens(), int(offers.tokens[start]))
        places = (np.flatnonzero(wanted)[:READ_AT_ONCE] + start).tolist()
        forms = self._source.forms(self._frame, places)
        self._prices.learn(offers.rows[places], offers.versions[places], forms)
        costs, keys, self._pool = self._prices.of(offers.rows[start:], offers.versions[start:])
        self._costs[start:], self._keys[start:] = costs, keys

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
        entries = self._entries
        offers = self._offers
        assert offers is not None
        place = (
            self._tally,
            entries,
            self._costs,
            offers.rows,
            offers.micros,
            self._section,
            self._headers,
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
