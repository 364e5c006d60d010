"""From SQLite's errors to the project's own, with what to do about each."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from types import TracebackType

from rsm_fast.errors import (
    CorruptStoreError,
    InvalidInputError,
    RSMError,
    StoreError,
    StoreLockedError,
)

__all__ = ["as_store_error", "lock_holder", "mapped"]

_WAL_WRITE_LOCK_BYTE = 120  # of the -shm file, see "WAL-mode File Format" 2.3.1, SQLite docs


def lock_holder(path: Path | None) -> int | None:
    """Process id that holds the write lock of the store at ``path``, where it can be known.

    Linux lists every POSIX lock in ``/proc/locks``. Asking through a descriptor of our own is
    no choice: closing it would drop all locks that this process holds on the file.
    """
    if path is None:
        return None
    try:
        shm = os.stat(f"{path}-shm")
        lines = Path("/proc/locks").read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    inode = f"{os.major(shm.st_dev):02x}:{os.minor(shm.st_dev):02x}:{shm.st_ino}"
    for line in lines:
        fields = line.split()
        if "->" in fields or len(fields) < 8 or fields[3] != "WRITE" or fields[5] != inode:
            continue
        end = fields[7]
        if int(fields[6]) <= _WAL_WRITE_LOCK_BYTE and (
            end == "EOF" or int(end) >= _WAL_WRITE_LOCK_BYTE
        ):
            pid = int(fields[4])
            return pid if pid > 0 else None
    return None


def as_store_error(error: sqlite3.Error, path: Path | None) -> RSMError:
    """The project's error for one of SQLite's."""
    where = "the store in RAM" if path is None else f"store {path}"
    code = getattr(error, "sqlite_errorcode", None) or 0
    primary = code & 0xFF
    text = str(error)
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        pid = lock_holder(path)
        holder = f"process {pid}" if pid else "another process"
        return StoreLockedError(
            f"{where}: locked by {holder} for longer than the time-out; "
            "try again, or open the store with a longer timeout="
        )
    if primary == sqlite3.SQLITE_NOTADB:
        return CorruptStoreError(
            f"{where}: expected an rsm_fast store, got a file that is not an SQLite database, "
            "or one whose header is damaged; give the right path or restore a backup"
        )
    if primary == sqlite3.SQLITE_CORRUPT or "malformed" in text or "decode to UTF-8" in text:
        return CorruptStoreError(
            f"{where}: stored bytes are damaged ({text}); run `rsm-fast doctor`, "
            "restore a backup or export what can still be read"
        )
    if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_WRITE:
        return StoreError(
            f"{where}: no room to write (disk full, quota or file size limit; {text}); "
            "nothing of this write was kept; make room and repeat it"
        )
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StoreError(
            f"{where}: expected to be allowed to write, but it is read-only ({text}); "
            "check the permissions of the file and of its folder"
        )
    if primary == sqlite3.SQLITE_CANTOPEN:
        return StoreError(
            f"{where}: cannot be opened ({text}); check that the folder exists and may be used"
        )
    if primary == sqlite3.SQLITE_TOOBIG:
        return InvalidInputError(f"{where}: a text or a filter is too large for SQLite ({text})")
    if primary == sqlite3.SQLITE_IOERR:
        return StoreError(f"{where}: the file system reported an error ({text})")
    return StoreError(f"{where}: {type(error).__name__}: {text}")


class mapped:
    """A context that turns what SQLite raises inside into the project's errors.

    A class and not a generator, because it stands around every statement.
    """

    __slots__ = ("_path",)

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def __enter__(self) -> None:
        """Nothing to set up."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        if isinstance(error, sqlite3.Error):
            raise as_store_error(error, self._path) from error
        if isinstance(error, UnicodeDecodeError):  # in SQLite's message about a damaged schema
            malformed = sqlite3.DatabaseError("malformed schema")
            raise as_store_error(malformed, self._path) from error
        if isinstance(error, UnicodeEncodeError):
            raise InvalidInputError(
                f"text: expected Unicode that UTF-8 can hold, got a lone surrogate "
                f"at position {error.start}; replace it before adding"
            ) from error
        if isinstance(error, OverflowError):
            raise InvalidInputError(f"expected integers of at most 64 bits: {error}") from error
