"""Growing arrays: pages of anonymous memory, or of a file without a name."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rsm_fast.errors import StoreError

__all__ = ["Column"]

_FIRST_ROWS = 64
_RESERVE_FROM, _RESERVED = 8 << 20, 4 << 30
"""Bytes from which on a column takes so many addresses at once: moving the page table entries of
a hundred thousand vectors would stall one append for as long as twenty others take."""


class Column:
    """An array of zeros whose first axis grows; pages are taken only when written.

    The memory is one anonymous private mapping (or a mapped file). A large one has addresses
    to grow into, and a small one moves page table entries, not data (``mremap``), so that no
    single append stalls; where the system can do neither, or while somebody holds a view of a
    small one, the data is copied.

    Parameters
    ----------
    dtype : numpy dtype
    item : tuple of int
        Shape of one entry.
    folder : pathlib.Path or None
        Folder of the disk to keep the data on, in a file that has no name and goes with the
        process; None keeps it in memory.

    Attributes
    ----------
    array : ndarray of shape (capacity, *item)
        The whole mapping; replaced when the column grows.
    n : int
        Entries in use by `append` and `extend`.
    """

    def __init__(
        self, dtype: npt.DTypeLike, item: tuple[int, ...] = (), *, folder: Path | None = None
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.item = item
        self.n = 0
        self._entry = int(np.prod(item, dtype=np.int64)) * self.dtype.itemsize
        self.folder = folder
        self._file: int | None = None  # descriptor
        self._close_file: Callable[[], object] | None = None
        self._map: mmap.mmap | None = None
        self.array: npt.NDArray[Any] = self._empty()

    @property
    def view(self) -> npt.NDArray[Any]:
        """The entries in use."""
        return self.array[: self.n]

    @property
    def nbytes(self) -> int:
        """Bytes of the entries in use."""
        return self.n * self._entry

    def append(self, value: Any) -> None:
        """Add one entry."""
        if self.n == len(self.array):
            self.grow(max(_FIRST_ROWS, 2 * self.n))
        self.array[self.n] = value
        self.n += 1

    def extend(self, values: npt.ArrayLike) -> None:
        """Add many entries."""
        given = np.asarray(values)
        stop = self.n + len(given)
        if stop > len(self.array):
            self.grow(max(_FIRST_ROWS, 2 * self.n, stop))
        self.array[self.n : stop] = given
        self.n = stop

    def grow(self, capacity: int) -> None:
        """Make room for ``capacity`` entries; what is there stays."""
        if capacity <= len(self.array):
            return
        if self._entry == 0:
            self.array = np.zeros((capacity, *self.item), self.dtype)
            return
        size = capacity * self._entry
        if self._resized(size):
            self.array = self._view_of(capacity)
            return
        old = self.array
        kept_in_file = self._file is not None
        self._map = self._new_map(size)
        self.array = self._view_of(capacity)
        if not kept_in_file:
            self.array[: len(old)] = old

    def adopt(self, array: npt.NDArray[Any], n: int) -> None:
        """Use an array that was mapped elsewhere, ``n`` entries of it; growing copies it."""
        if array.dtype != self.dtype or array.shape[1:] != self.item or n > len(array):
            raise ValueError(
                f"adopt: expected {self.dtype} of shape (>= {n}, {self.item}), "
                f"got {array.dtype} of shape {array.shape}"
            )
        self._map = None
        self._let_go_of_file()
        self.array = array
        self.n = n

    def close(self) -> None:
        """Let go of the memory, and of the file."""
        self.array = self._empty()
        self.n = 0
        self._map = None
        self._let_go_of_file()

    def _let_go_of_file(self) -> None:
        if self._close_file is not None:
            self._close_file()
            self._file = self._close_file = None

    def _empty(self) -> npt.NDArray[Any]:
        return np.zeros((0, *self.item), self.dtype)

    def _view_of(self, capacity: int) -> npt.NDArray[Any]:
        count = capacity * self._entry // self.dtype.itemsize
        flat = np.frombuffer(self._map, self.dtype, count)  # type: ignore[arg-type]
        return flat.reshape(capacity, *self.item)

    def _resized(self, size: int) -> bool:
        if self._map is None or self.folder is not None or sys.platform != "linux":
            return False
        if size <= len(self._map):
            return True
        capacity = len(self.array)
        self.array = self._empty()
        for wanted in _lengths(size):
            try:
                self._map.resize(wanted)
                return True
            except (BufferError, OSError, SystemError):  # a view is held, or no room beside it
                continue
        self.array = self._view_of(capacity)
        return False

    def _new_map(self, size: int) -> mmap.mmap:
        try:
            if self.folder is not None:
                if self._file is None:
                    self._file, name = tempfile.mkstemp(dir=self.folder)
                    self._close_file = weakref.finalize(self, os.close, self._file)
                    os.unlink(name)
                os.truncate(self._file, size)
                return mmap.mmap(self._file, size)
            if sys.platform == "win32":
                return mmap.mmap(-1, size)
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
            for wanted in _lengths(size)[:-1]:
                try:
                    return mmap.mmap(-1, wanted, flags=flags)
                except OSError:  # so many addresses are not to be had
                    continue
            return mmap.mmap(-1, size, flags=flags)
        except OSError as error:
            where = "of memory" if self.folder is None else f"in {self.folder}"
            raise StoreError(
                f"{size:,} bytes {where} are needed for vectors and could not be had ({error}); "
                "free some, or open the namespace with dtype='int8'"
            ) from error


def _lengths(size: int) -> list[int]:
    """What to ask for: with addresses to grow into, if it is large, and without."""
    large = sys.platform == "linux" and _RESERVE_FROM <= size < _RESERVED
    return [_RESERVED, size] if large else [size]
