"""What stays of the ids of deleted turns: short salted hashes, so that no id is used twice.

A hash has 7 bytes. Those of a namespace that share the first byte stand in one row, sorted, so
a deleted id costs about 6 bytes; a new id is mistaken for a deleted one with a probability of
``n / 2**56`` where ``n`` were deleted.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from rsm_fast.errors import InvalidInputError

__all__ = ["SIZE", "id_digest", "join", "slot_crc", "slot_of", "slots", "split"]

SIZE: Final = 7
_BUCKETS: Final = 256


def id_digest(salt: bytes, id_: str) -> bytes:
    """The hash of an id, `SIZE` bytes.

    Raises
    ------
    InvalidInputError
        If the id holds a lone surrogate.
    """
    try:
        return blake2b(id_.encode(), digest_size=SIZE, key=salt).digest()
    except UnicodeEncodeError:
        raise InvalidInputError(f"id: expected valid Unicode, got {id_!r}") from None


def slots(ns: int) -> tuple[int, int]:
    """First and last row number of a namespace in table ``tombstones``."""
    return ns * _BUCKETS, ns * _BUCKETS + _BUCKETS - 1


def slot_of(ns: int, digest: bytes) -> int:
    """The row that holds a hash."""
    return ns * _BUCKETS + digest[0]


def slot_crc(slot: int, rests: bytes) -> int:
    """CRC32 of a row, bound to its number."""
    return zlib.crc32(rests, slot & 0xFFFFFFFF)


def split(slot: int, rests: bytes) -> list[bytes]:
    """The hashes that a row holds, ascending."""
    first = bytes([slot % _BUCKETS])
    step = SIZE - 1
    return [first + rests[start : start + step] for start in range(0, len(rests), step)]


def join(digests: Iterable[bytes]) -> bytes:
    """The inverse of `split`, for hashes of one row in any order."""
    return b"".join(sorted({digest[1:] for digest in digests}))
