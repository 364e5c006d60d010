"""Look for damage in a write-ahead log that SQLite itself passes over in silence.

After a crash SQLite replays the log up to the first frame whose checksum fails, which is
right for a torn write at the end. If whole transactions stand behind that frame, though, the
log was damaged and they are lost; the user ought to hear of it. Format: "WAL-mode File
Format", section 4, in SQLite's documentation.
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

__all__ = ["lost_commits"]

_HEADER: Final = struct.Struct(">8I")
_FRAME_HEADER: Final = 24
_MAGIC: Final = 0x377F0682  # the lowest bit says that checksums read big-endian words
_BLOCK: Final = 256  # frames at a time
_MASK: Final = 0xFFFFFFFF

Words = npt.NDArray[np.uint32]


def lost_commits(wal: Path) -> int:
    """How many whole transactions stand behind a damaged frame of a log.

    0 for a log that is absent, whole, cut, or changed by a writer while it was read.
    """
    try:
        with open(wal, "rb") as file:
            head = file.read(_HEADER.size)
            if len(head) < _HEADER.size:
                return 0
            lost = _count(file, head)
            file.seek(0)
            return lost if file.read(_HEADER.size) == head else 0
    except OSError:
        return 0


def _count(file: BinaryIO, head: bytes) -> int:
    magic, _, page_size, _, salt1, salt2, sum1, sum2 = _HEADER.unpack(head)
    if page_size == 0 or page_size % 8 or page_size > 65536:
        page_size = 4096  # the header is damaged; ours are of this size
    order = ">u4" if magic & 1 else "<u4"
    words = np.frombuffer(head[:24], order).astype(np.uint32)
    sums = _checksums(np.zeros((1, 2), np.uint32), words[None])
    broken = magic & ~1 != _MAGIC or sums.tolist() != [[sum1, sum2]]
    salts: Words | None = None if broken else np.array([salt1, salt2], np.uint32)
    previous = np.array([sum1, sum2], np.uint32)
    size = _FRAME_HEADER + page_size
    lost = 0
    while block := file.read(size * _BLOCK):
        count = len(block) // size
        raw = np.frombuffer(block, np.uint8, count * size).reshape(count, size)
        if count == 0:
            break
        header = np.ascontiguousarray(raw[:, :_FRAME_HEADER]).view(">u4").astype(np.uint32)
        if salts is None:
            salts = header[0, 2:4]
        covered = np.concatenate((raw[:, :8], raw[:, _FRAME_HEADER:]), axis=1)
        stored = header[:, 4:6]
        before = np.concatenate((previous[None], stored[:-1]))
        sums = _checksums(before, np.ascontiguousarray(covered).view(order).astype(np.uint32))
        whole = (sums == stored).all(axis=1) & (header[:, 2:4] == salts).all(axis=1)
        damage = np.flatnonzero(~whole)
        first = 0 if broken else (int(damage[0]) if damage.size else count)
        broken = broken or damage.size > 0
        lost += int(np.count_nonzero(whole[first:] & (header[first:, 1] != 0)))
        previous = stored[-1]
    return lost


def _checksums(before: Words, words: Words) -> Words:
    """SQLite's checksum of rows of words, each going on from its own pair in ``before``."""
    weights, power = _weights(words.shape[1])
    out = np.empty((len(words), 2), np.uint32)
    for side in (0, 1):
        out[:, side] = (words * weights[side]).sum(axis=1, dtype=np.uint32)
        out[:, side] += before[:, 0] * power[side, 0] + before[:, 1] * power[side, 1]
    return out


@functools.lru_cache(maxsize=4)
def _weights(count: int) -> tuple[Words, Words]:
    """The checksum is linear modulo 2**32: weight of each word, and of the pair gone on from.

    A step is ``s0 += x0 + s1; s1 += x1 + s0``, so ``M = [[1, 1], [1, 2]]`` on the sums.
    """
    weights = np.empty((2, count), np.uint32)
    m = ((1, 0), (0, 1))
    for pair in range(count - 2, -1, -2):
        (a, b), (c, d) = m
        weights[:, pair] = ((a + b) & _MASK, (c + d) & _MASK)
        weights[:, pair + 1] = (b, d)
        m = (
            ((a + b) & _MASK, (a + 2 * b) & _MASK),
            ((c + d) & _MASK, (c + 2 * d) & _MASK),
        )
    return weights, np.array(m, np.uint32)
