"""A bounded cache of vectors of repeated texts."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["VectorCache", "text_key"]

Row: TypeAlias = "tuple[npt.NDArray[np.float32] | npt.NDArray[np.int8], float]"

_caches: weakref.WeakSet[VectorCache] = weakref.WeakSet()
_ENTRY_OVERHEAD = 250  # bytes of key, array object and dictionary slot


def text_key(*parts: str) -> bytes:
    """16 bytes that stand for a sequence of strings."""
    digest = blake2b(digest_size=16)
    for part in parts:
        code = part.encode()
        digest.update(len(code).to_bytes(8, "little"))
        digest.update(code)
    return digest.digest()


class VectorCache:
    """Least recently used rows leave first; bounded in bytes. Safe to use from threads.

    A row is kept in the form it was asked for (float32, or int8 with its scale), so a
    cached answer equals a fresh one bit for bit.

    Parameters
    ----------
    max_bytes : int
        About what it may hold; 0 turns it off.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.hits = 0
        self.misses = 0
        self._bytes = 0
        self._rows: OrderedDict[bytes, Row] = OrderedDict()
        self._lock = threading.Lock()
        _caches.add(self)

    @property
    def nbytes(self) -> int:
        """Bytes held, bookkeeping included."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: bytes) -> Row | None:
        """The row and its scale, or None; the row is shared, so copy from it only."""
        with self._lock:
            row = self._rows.get(key)
            if row is None:
                self.misses += 1
            else:
                self.hits += 1
                self._rows.move_to_end(key)
            return row

    def put(self, key: bytes, row: Row) -> None:
        """Keep a row; the array must not be changed afterwards."""
        size = row[0].nbytes + _ENTRY_OVERHEAD
        if size > self.max_bytes:
            return
        with self._lock:
            if key not in self._rows:
                self._bytes += size
            self._rows[key] = row
            while self._bytes > self.max_bytes:
                _, (old, _) = self._rows.popitem(last=False)
                self._bytes -= old.nbytes + _ENTRY_OVERHEAD

    def clear(self) -> None:
        """Drop all rows."""
        with self._lock:
            self._rows.clear()
            self._bytes = 0


def _renew_locks() -> None:
    """A lock that another thread held at the time of a fork would stay held in the child."""
    for cache in _caches:
        cache._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)
