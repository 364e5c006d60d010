"""BM25 over a chunk and its neighbours, on postings that follow every write.

The document of a chunk is its own terms together with those of its neighbours within a
window; the window is looked up when a question comes, so a late neighbour counts, and a
chunk of one turn ranks as well as a chunk of five.

Source of the weighting: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25
and Beyond", 2009, section 3; idf in the never-negative form of Lucene. We differ in the
document (a window), whose mean length runs over the living chunks, and in the document
frequency, which counts chunks and not windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import log
from sys import getsizeof
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

import rsm_fast.kernels as kernels
from rsm_fast.kernels.layout import FEW_ROWS
from rsm_fast.numbered import Numbered

__all__ = ["LexicalIndex"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]

_Number = TypeVar("_Number", np.float32, np.int32, np.uint8)

_LARGEST_COUNT = 255


class LexicalIndex:
    """Postings of one namespace's chunks, in memory. Not thread-safe: `Memory` holds the lock.

    Parameters
    ----------
    k1 : float
        How slowly repeated terms saturate.
    b : float
        How much long windows are held back, 0 to 1.
    """

    def __init__(self, *, k1: float = 1.2, b: float = 0.75) -> None:
        self.k1 = k1
        self.b = b
        self._numbers = Numbered()
        self._start: I32 = np.zeros(256, np.int32)
        self._length: I32 = np.zeros(256, np.int32)
        self._capacity: I32 = np.zeros(256, np.int32)
        self._pool_rows: I32 = np.zeros(1024, np.int32)
        self._pool_counts: U8 = np.zeros(1024, np.uint8)
        self._top = 0
        self._sizes: F32 = np.zeros(64, np.float32)  # terms of each row, repetitions counted
        self._present: U8 = np.zeros(64, np.uint8)  # 1 for rows that are in the postings
        self._living = 0
        self._n = 0
        self._kept: tuple[tuple[int, int, int], I32, F32] | None = None
        self._waiting: list[tuple[int, Sequence[str]]] = []  # rows whose postings are not made yet

    @property
    def n(self) -> int:
        """Rows seen, removed ones included."""
        return self._n

    @property
    def living(self) -> int:
        """Rows that are in the postings."""
        return self._living

    @property
    def nbytes(self) -> int:
        """Resident bytes: arrays exactly, the vocabulary's strings and numbers estimated."""
        arrays = (
            self._start,
            self._length,
            self._capacity,
            self._pool_rows,
            self._pool_counts,
            self._sizes,
            self._present,
        )
        vocabulary = getsizeof(self._numbers) + 85 * len(self._numbers)
        return sum(array.nbytes for array in arrays) + vocabulary

    def load(self, packed: Sequence[bytes]) -> None:
        """Fill an empty index with the terms of chunks 0, 1, 2 ...; as `append` one by one.

        Parameters
        ----------
        packed : sequence of bytes
            What `rsm_fast.analysis.pack_terms` gave for each chunk.
        """
        if self._n:
            raise ValueError(f"load: expected an empty index, got one of {self._n} rows")
        n = len(packed)
        if not n:
            return
        sizes = np.array([terms.count(b"\n") + 1 if terms else 0 for terms in packed], np.int64)
        words = b"\n".join(filter(None, packed)).decode("utf-8").split("\n")
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, int(sizes.sum()))
        keys = numbers * n + np.repeat(np.arange(n), sizes)
        keys.sort()
        first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if keys.size else keys
        self._pool_rows = (keys[first] % n).astype(np.int32)
        counts = np.diff(np.append(first, keys.size))
        self._pool_counts = np.minimum(counts, _LARGEST_COUNT).astype(np.uint8)
        self._top = first.size
        self._make_room_for_terms()
        lengths = np.bincount(keys[first] // n, minlength=self._length.size)
        self._length[:] = lengths
        self._capacity[:] = lengths
        self._start[:] = np.cumsum(lengths) - lengths
        self._sizes = sizes.astype(np.float32)
        self._present = np.ones(n, np.uint8)
        self._living = self._n = n

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All that the index holds: what `adopt` takes."""
        self._settle()
        terms = len(self._numbers)
        return {
            "start": self._start[:terms],
            "length": self._length[:terms],
            "capacity": self._capacity[:terms],
            "pool_rows": self._pool_rows[: self._top],
            "pool_counts": self._pool_counts[: self._top],
            "sizes": self._sizes[: self._n],
            "present": self._present[: self._n],
            "vocabulary": np.frombuffer("\n".join(self._numbers).encode(), np.uint8),
        }

    def adopt(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `arrays` gave."""
        terms = arrays["vocabulary"].tobytes().decode()
        self._numbers.clear()
        self._numbers.update(
            {term: number for number, term in enumerate(terms.split("\n"))} if terms else {}
        )
        self._start, self._length = arrays["start"], arrays["length"]
        self._capacity = arrays["capacity"]
        self._pool_rows, self._pool_counts = arrays["pool_rows"], arrays["pool_counts"]
        self._top = self._pool_rows.size
        self._sizes, self._present = arrays["sizes"], arrays["present"]
        self._n = self._present.size
        self._living = int(np.count_nonzero(self._present))

    def append(self, row: int, terms: Sequence[str]) -> None:
        """Add the terms of a new chunk.

        Parameters
        ----------
        row : int
            Row of the chunk; rows come in ascending order, gaps are allowed.
        terms : sequence of str
            What `rsm_fast.analysis.analyse` gave, with the terms of the chunk's date.
        """
        if row < self._n:
            raise ValueError(f"row: expected {self._n} or more (rows ascend), got {row}")
        self._n = row + 1
        if self._n > self._sizes.size:
            self._sizes = _grown(self._sizes, self._n)
            self._present = _grown(self._present, self._n)
        self._sizes[row] = len(terms)
        self._present[row] = 1
        self._living += 1
        self._waiting.append((row, terms))
        if row >= FEW_ROWS or kernels.loaded():
            self._settle()

    def remove(self, rows: int | Sequence[int]) -> None:
        """Take chunks out; the windows of their neighbours no longer hold their terms.

        Many at once cost as much as one: a pass over the postings.
        """
        doomed = np.atleast_1d(np.asarray(rows, np.int64))
        if not doomed.size:
            return
        gone = np.zeros(self._n, np.uint8)
        gone[doomed] = 1
        if np.any(gone > self._present[: self._n]):
            missing = doomed[self._present[doomed] == 0].tolist()
            raise ValueError(f"rows: expected rows that were appended, got {missing}")
        self._settle()
        kernels.bm25.remove_postings_(
            gone,
            int(doomed.min()),
            int(doomed.max()),
            self._start[: len(self._numbers)],
            self._length[: len(self._numbers)],
            self._pool_rows,
            self._pool_counts,
        )
        self._sizes[doomed] = 0.0
        self._present[doomed] = 0
        self._living -= int(gone.sum())

    def replace(self, row: int, terms: Sequence[str]) -> None:
        """Give a chunk other terms."""
        self.remove(row)
        self._sizes[row] = len(terms)
        self._present[row] = 1
        self._living += 1
        self._insert(row, terms)

    def document_frequency(self, term: str) -> int:
        """How many living chunks hold the term."""
        self._settle()
        number = self._numbers.get(term)
        return 0 if number is None else int(self._length[number])

    def rows(self, term: str) -> I32:
        """Living chunks that hold the term, ascending."""
        self._settle()
        number = self._numbers.get(term)
        if number is None:
            return np.empty(0, np.int32)
        start = int(self._start[number])
        return self._pool_rows[start : start + int(self._length[number])].copy()

    def scores(
        self,
        terms: Sequence[str],
        *,
        prev: I32,
        next: I32,
        alive: U8,
        window: int = 2,
        edition: int | None = None,
    ) -> F32:
        """BM25 of every chunk's window for a question.

        Parameters
        ----------
        terms : sequence of str
            The question's terms; one that comes twice counts twice.
        prev, next : (n,) int32
            Row of each chunk's neighbour in its session, -1 for none.
        alive : (n,) uint8
            Chunks that may give to a window and get a score.
        window : int
            Neighbours on each side.
        edition : int, optional
            As long as it is the same, so are ``prev``, ``next``, ``alive`` and the terms of all
            chunks; what depends on these alone is then kept.

        Returns
        -------
        (n,) float32
            0 where nothing matched.
        """
        terms_, worths, *postings, spans, norm, k1 = self.asked(
            terms, prev=prev, next=next, alive=alive, window=window, edition=edition
        )
        out = np.zeros(alive.size, np.float32)
        kernels.bm25.bm25_accumulate_(
            terms_, worths, *postings, prev, next, alive, np.int64(window), spans, norm, k1, out
        )
        return out

    def asked(
        self,
        terms: Sequence[str],
        *,
        prev: I32,
        next: I32,
        alive: U8,
        window: int = 2,
        edition: int | None = None,
    ) -> tuple[Any, ...]:
        """What kernels take of a question's words; the parameters are those of `scores`.

        Returns
        -------
        tuple
            Numbers and worth of the terms, the postings, the chunks' windows and what their
            frequencies are held against, k1; see `rsm_fast.kernels.bm25.bm25_accumulate_`.
        """
        self._settle()
        numbers, worths = [], []
        for term, count in Counter(terms).items():
            number = self._numbers.get(term)
            frequency = 0 if number is None else int(self._length[number])
            if frequency:
                numbers.append(number)
                idf = log(1.0 + (self.living - frequency + 0.5) / (frequency + 0.5))
                worths.append(idf * count)
        return (
            np.array(numbers, np.int32),
            np.array(worths, np.float32),
            self._start,
            self._length,
            self._pool_rows,
            self._pool_counts,
            *self._windows(prev, next, alive, window, edition),
            self.k1,
        )

    def _windows(
        self, prev: I32, next: I32, alive: U8, window: int, edition: int | None
    ) -> tuple[I32, F32]:
        """Spans of the chunks' windows and what their frequencies are held against.

        Kept from question to question.
        """
        n = alive.size
        if edition is not None and self._kept is not None and self._kept[0] == (edition, n, window):
            return self._kept[1:]
        norm, spans = np.empty(n, np.float32), np.empty((n, 2), np.int32)
        sizes = self._sizes[:n] if self._n >= n else _grown(self._sizes, n)[:n]
        mean = kernels.bm25.window_lengths_(sizes, prev, next, alive, window, norm, spans)
        norm *= np.float32(self.k1 * self.b / max(mean, 1e-9))
        norm += np.float32(self.k1 * (1.0 - self.b))
        self._kept = None if edition is None else ((edition, n, window), spans, norm)
        return spans, norm

    def _insert(self, row: int, terms: Sequence[str]) -> None:
        ids = np.fromiter(map(self._numbers.__getitem__, terms), np.int32, len(terms))
        self._make_room_for_terms()
        while True:
            top = kernels.bm25.insert_postings_(
                ids,
                row,
                self._start,
                self._length,
                self._capacity,
                self._pool_rows,
                self._pool_counts,
                self._top,
            )
            if top >= 0:
                break
            self._grow_pool(ids)
        self._top = top

    def _settle(self) -> None:
        """Make the postings of the rows that wait; the first few wait for a kernel's loading."""
        waiting, self._waiting = self._waiting, []
        for row, terms in waiting:
            self._insert(row, terms)

    def _make_room_for_terms(self) -> None:
        if len(self._numbers) > self._start.size:
            self._start = _grown(self._start, len(self._numbers))
            self._length = _grown(self._length, len(self._numbers))
            self._capacity = _grown(self._capacity, len(self._numbers))

    def _grow_pool(self, ids: I32) -> None:
        """A larger pool without the holes that moved terms left."""
        used = int(self._capacity[: len(self._numbers)].sum())
        needed = used + int((self._capacity[ids] + self._capacity[ids] // 2 + 1).sum())
        rows: I32 = np.zeros(needed + needed // 4 + 1024, np.int32)
        counts: U8 = np.zeros(rows.size, np.uint8)
        self._top = kernels.bm25.copy_postings_(
            self._start,
            self._length,
            self._capacity,
            self._pool_rows,
            self._pool_counts,
            rows,
            counts,
        )
        self._pool_rows, self._pool_counts = rows, counts


def _grown(array: npt.NDArray[_Number], size: int) -> npt.NDArray[_Number]:
    grown = np.zeros(max(size, array.size + array.size // 2), array.dtype)
    grown[: array.size] = array
    return grown
