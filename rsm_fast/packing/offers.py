"""Chunks on offer to a pack: where they come from, and what they cost in a frame."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from rsm_fast.kernels.offers import KNOWN, PRICES
from rsm_fast.numbered import Numbered
from rsm_fast.packing.forms import Form, Frame

__all__ = ["MOST", "READ_AT_ONCE", "Offers", "PriceTable", "Source"]

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

_Number = TypeVar("_Number", np.int32, np.int64)

MOST: Final = 1 << 40
"""Tokens that a kernel adds up at most for one thing; any more do not fit either."""

READ_AT_ONCE: Final = 32
"""Chunks whose texts are read at once."""

_FIRST: Final = 256  # rows of a new table


@dataclass(frozen=True, slots=True)
class Offers:
    """Some chunks in the order of admission.

    Attributes
    ----------
    rows, versions : (k,) int32
        What a chunk is known by, and how often its content has changed.
    micros : (k,) int64
        Their times.
    sessions : (k,) int32
        Numbers of their sessions.
    atoms : (k,) int32
        Numbers of their atoms, -1 for none.
    tokens : (k,) int32
        Tokens of their stored texts, 0 where they are not known.
    texts : (k,) int64
        Hashes of their texts.
    """

    rows: I32
    versions: I32
    micros: I64
    sessions: I32
    atoms: I32
    tokens: I32
    texts: I64

    def at(self, places: I32) -> Offers:
        """Some of them, in another order."""
        return Offers(*[getattr(self, name)[places] for name in self.__slots__])

    def followed_by(self, more: Offers) -> Offers:
        """These, then others."""
        joined = [
            np.concatenate((getattr(self, name), getattr(more, name))) for name in self.__slots__
        ]
        return Offers(*joined)


class Source(ABC):
    """Chunks in the order of admission, whose texts are read only where that is needed."""

    @abstractmethod
    def offers(self, begun: int = 0) -> Iterator[Offers]:
        """What is known without the texts, in one or more parts, but for the first so many."""

    @abstractmethod
    def prices(self, frame: Frame) -> PriceTable:
        """What is known of the chunks' costs in a frame, kept from pack to pack."""

    @abstractmethod
    def forms(self, frame: Frame, places: Sequence[int]) -> list[Form]:
        """Chunks as they look in a frame, by their places in the order."""


class PriceTable:
    """What chunks cost in one frame, by row and version. Several threads may share it.

    A key stands for one content for ever: what was learnt of it stays true.
    """

    LARGEST = 16 << 20  # bytes, some 100,000 chunks of a line or two

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._lock = threading.Lock()
        self._number = Numbered()  # days and roles
        self._clear()

    def _clear(self) -> None:
        self._slots: I32 = np.zeros(0, np.int32)  # by row; slot 0 stands for what is not known
        self._versions: I32 = np.full(_FIRST, -1, np.int32)
        self._twins: I64 = np.zeros(_FIRST, np.int64)
        self._prices: I64 = np.zeros((_FIRST, PRICES), np.int64)
        self._pool: I64 = np.zeros(8 * _FIRST, np.int64)
        self._size = 1
        self._used = 0

    @property
    def nbytes(self) -> int:
        """Resident bytes."""
        arrays = (self._slots, self._versions, self._twins, self._prices, self._pool)
        return sum(array.nbytes for array in arrays)

    def of(self, rows: I32, versions: I32) -> tuple[I64, I64, I64]:
        """Prices of some chunks.

        Returns
        -------
        (k, PRICES) int64
            `KNOWN` is 0 for those of which nothing is known yet.
        (k,) int64
            Keys, equal for byte-equal chunks.
        int64
            The pool that the prices point into.
        """
        with self._lock:
            self._reach(int(rows.max()) + 1 if rows.size else 0)
            slots = self._slots[rows]
            prices = self._prices[slots]
            prices[self._versions[slots] != versions, KNOWN] = 0
            return prices, self._twins[slots], self._pool

    def table(self, rows: int) -> tuple[I32, I32, I64, I64, np.int64, I64]:
        """The whole table, for a kernel.

        Returns
        -------
        (rows or more,) int32
            The slot of each row, 0 where nothing is known.
        (k,) int32, (k,) int64, (k, PRICES) int64
            Of each slot, the version of its chunk, its key and its prices. A slot that is not
            below the next number may be half-written, and is to be taken for 0.
        int64
            Slots in use.
        int64
            The pool that the prices point into.
        """
        with self._lock:
            self._reach(rows)
            table = self._slots, self._versions, self._twins, self._prices
            return *table, np.int64(self._size), self._pool

    def _reach(self, rows: int) -> None:
        """Have a slot for so many rows."""
        if rows > self._slots.size:
            slots = np.zeros(rows + self._slots.size // 2, np.int32)
            slots[: self._slots.size] = self._slots
            self._slots = slots

    def learn(self, rows: I32, versions: I32, forms: Sequence[Form]) -> None:
        """Keep what chunks cost; their rows were asked for before, and none comes twice."""
        with self._lock:
            if self.nbytes > self.LARGEST:
                asked = self._slots.size
                self._clear()
                self._slots = np.zeros(asked, np.int32)
            prices: list[tuple[int, ...]] = []
            twins: list[int] = []
            lines: list[int] = []
            days, number = self.frame.days, self._number
            start = self._used
            for form in forms:
                form.prepare()
                for turn in form.turns():
                    marks = turn.marks
                    total = min(turn.total, MOST)
                    lines += (hash(turn.text), total, len(marks), len(turn.tokens) > 1)
                    for _, line, tokens in marks:
                        lines += (hash(line), min(tokens, MOST))
                day, roles, end = form.day, form.roles, self._used + len(lines)
                lead, named_lead = form.leads
                costs = form.least, form.body, lead, named_lead, days[day], form.label_cost
                least, body, lead, named_lead, day_cost, label = (min(c, MOST) for c in costs)
                single = form.copy_key is None
                # in the order of the columns of `rsm_fast.kernels.offers`
                prices.append((1, least, body, lead, named_lead, number[day], day_cost,
                    number[roles[0]], number[roles[-1]], label, start, end, single))  # fmt: skip
                twins.append(hash(form.copy_key))
                start = end
            self._make_room(len(prices), len(lines))
            slots = slice(self._size, self._size + len(prices))
            self._pool[self._used : start] = lines
            self._prices[slots] = prices
            self._twins[slots] = twins
            self._versions[slots] = versions
            self._slots[rows] = np.arange(slots.start, slots.stop)
            self._size, self._used = slots.stop, start

    def _make_room(self, chunks: int, lines: int) -> None:
        while self._size + chunks > len(self._prices):
            self._versions = _doubled(self._versions)
            self._twins = _doubled(self._twins)
            self._prices = _doubled(self._prices)
        while self._used + lines > self._pool.size:
            self._pool = _doubled(self._pool)


def _doubled(array: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    larger = np.zeros((2 * len(array), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
