"""Sidecar snapshots: derived arrays of a namespace in a memory-mapped file.

A snapshot only saves time at opening; it may be deleted whenever one likes. It counts only
if the store itself names it: a random token stands in the file and in table ``snapshots``.
So a sidecar of another store, of an older state, or of a store that was restored from a
backup is never mistaken for the right one.

File: 8 bytes ``RSMSNAP1``, uint32 length and uint32 CRC32 of the header, the header in JSON,
then the arrays, each at a multiple of 64 bytes, little endian, with its CRC32 in the header.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rsm_fast.errors import InvalidInputError, StoreError
from rsm_fast.store.points import reach
from rsm_fast.store.records import plain_dtype

__all__ = ["Snapshot", "remove_snapshots", "snapshot_folder", "snapshot_path"]

_MAGIC: Final = b"RSMSNAP1"
_LENGTHS: Final = struct.Struct("<II")
_ALIGN: Final = 64
_MAX_HEADER: Final = 1 << 20
_KINDS: Final = "biuf"


class Snapshot(NamedTuple):
    """Derived arrays as they were at one generation.

    Attributes
    ----------
    generation : int
        The generation of the namespace that the arrays were made from.
    arrays : dict of str to ndarray
        Mapped copy-on-write: writable, and writing changes memory only.
    """

    generation: int
    arrays: dict[str, npt.NDArray[Any]]


def snapshot_folder(store: Path) -> Path:
    """The folder that holds the snapshots of a store."""
    return store.with_name(store.name + "-snapshots")


def snapshot_path(store: Path, ns: int) -> Path:
    """The snapshot of a namespace."""
    return snapshot_folder(store) / f"{ns:d}.snap"


def remove_snapshots(store: Path, ns: int | None = None) -> None:
    """Delete the snapshot of a namespace, or all of a store."""
    folder = snapshot_folder(store)
    if not folder.is_dir():
        return
    for file in folder.glob("*.snap*" if ns is None else f"{ns:d}.snap*"):
        file.unlink(missing_ok=True)
    if ns is None:
        with contextlib.suppress(OSError):  # something else was put there
            folder.rmdir()


def write_snapshot(path: Path, token: bytes, arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Write a snapshot file, replacing the old one in one step.

    Returns
    -------
    bool
        False if another process is just writing it.

    Raises
    ------
    InvalidInputError
        If something is not an array of numbers.
    StoreError
        If it cannot be written; the old file stays.
    """
    entries: list[dict[str, Any]] = []
    blocks: list[npt.NDArray[Any]] = []
    offset = 0
    for name, array in arrays.items():
        if array.dtype.kind not in _KINDS:
            raise InvalidInputError(f"snapshot array {name!r}: expected numbers, got {array.dtype}")
        block = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        offset += -offset % _ALIGN
        entries.append(
            {
                "name": name,
                "dtype": block.dtype.str,
                "shape": list(array.shape),
                "offset": offset,
                "crc": zlib.crc32(_bytes(block)),
            }
        )
        blocks.append(block)
        offset += block.nbytes
    header = json.dumps({"token": token.hex(), "bytes": offset, "arrays": entries}).encode()
    if len(header) > _MAX_HEADER:
        raise InvalidInputError(f"snapshot: expected fewer arrays than {len(entries)}")
    fresh = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with _sole_writer(fresh) as file:
            if file is None:
                return False
            file.write(_MAGIC + _LENGTHS.pack(len(header), zlib.crc32(header)) + header)
            start = _data_start(len(header))
            for entry, block in zip(entries, blocks, strict=True):
                file.seek(start + entry["offset"])
                file.write(_bytes(block))
            file.truncate(start + offset)
            file.flush()
            reach("snapshot:written")
            os.replace(fresh, path)
            reach("snapshot:renamed")
    except OSError as error:
        raise StoreError(
            f"snapshot {path}: cannot be written ({error.strerror}); nothing is lost, "
            "opening takes longer"
        ) from error
    return True


@contextlib.contextmanager
def _sole_writer(path: Path) -> Iterator[BinaryIO | None]:
    """A file to fill, empty, for this process alone; None while another one fills it.

    What a killed process left there is overwritten, so such files do not pile up.
    """
    with open(os.open(path, os.O_CREAT | os.O_RDWR, 0o600), "r+b") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        # the other may have renamed the file just before this one got the lock
        if not path.exists() or os.fstat(opened.fileno()).st_ino != path.stat().st_ino:
            yield None
            return
        opened.truncate(0)
        yield opened


def read_snapshot(path: Path, token: bytes) -> dict[str, npt.NDArray[Any]] | None:
    """The arrays of a snapshot file, mapped copy-on-write; None if it is not the one named
    by ``token``, or not whole.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            fixed = file.read(len(_MAGIC) + _LENGTHS.size)
            if len(fixed) < len(_MAGIC) + _LENGTHS.size or not fixed.startswith(_MAGIC):
                return None
            length, crc = _LENGTHS.unpack(fixed[len(_MAGIC) :])
            if length > min(size, _MAX_HEADER):
                return None
            header = file.read(length)
            if len(header) != length or zlib.crc32(header) != crc:
                return None
            parsed = json.loads(header)
            start = _data_start(length)
            if parsed["token"] != token.hex() or size != start + parsed["bytes"]:
                return None
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return {entry["name"]: _array(view, start, size, entry) for entry in parsed["arrays"]}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None  # damaged or crafted: derived data, to be rebuilt


def _array(view: mmap.mmap, start: int, size: int, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    dtype = plain_dtype(entry["dtype"])
    shape = tuple(int(length) for length in entry["shape"])
    if min(shape, default=0) < 0:
        raise ValueError(f"array of {dtype} {shape}")
    count = math.prod(shape)
    first = start + int(entry["offset"])
    if first < start or first % _ALIGN or first + count * dtype.itemsize > size:
        raise ValueError(f"array at {first}")
    if count == 0:
        return np.empty(shape, dtype)
    array = np.frombuffer(view, dtype, count, first).reshape(shape)
    if zlib.crc32(_bytes(array)) != entry["crc"]:
        raise ValueError("checksum")
    return array


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    flat: memoryview = array.reshape(-1).view(np.uint8).data
    return flat


def _data_start(header: int) -> int:
    end = len(_MAGIC) + _LENGTHS.size + header
    return end + -end % _ALIGN
