"""`Store`: one SQLite file, or the same in RAM."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from rsm_fast.errors import InvalidInputError, StoreLockedError
from rsm_fast.store.connections import Connections, Synchronous
from rsm_fast.store.failures import mapped
from rsm_fast.store.points import reach
from rsm_fast.store.reader import Reader
from rsm_fast.store.writer import Writer

__all__ = ["Store"]


class Store:
    """All that is kept for good, in one SQLite file. Usable from any number of threads."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @classmethod
    def open(
        cls,
        path: str | Path | None,
        *,
        synchronous: Synchronous = "FULL",
        timeout: float = 5.0,
        read_only: bool = False,
    ) -> Self:
        """Open a store, making it if there is none.

        Parameters
        ----------
        path : str, Path or None
            The file (made with mode 0600); None keeps everything in RAM.
        synchronous : {"FULL", "NORMAL"}
            FULL: a write that returned survives a power cut. NORMAL: it survives a crash of
            the process, and a power cut may lose the last writes but never mixes states.
        timeout : float
            Seconds to wait for another writer.
        read_only : bool
            Never write, not even to migrate.

        Raises
        ------
        CorruptStoreError
            If the file is not a store, or damaged.
        StoreError
            If it cannot be opened, or a later version of rsm_fast made it.
        """
        if synchronous not in ("FULL", "NORMAL"):
            raise InvalidInputError(
                f"synchronous: expected 'FULL' or 'NORMAL', got {synchronous!r}"
            )
        if not timeout >= 0:
            raise InvalidInputError(f"timeout: expected seconds >= 0, got {timeout!r}")
        where = None if path is None else Path(path).expanduser().absolute()
        return cls(Connections(where, synchronous, timeout, read_only and path is not None))

    @property
    def path(self) -> Path | None:
        """Where the store lies; None in RAM."""
        return self._connections.path

    @property
    def read_only(self) -> bool:
        """Whether writes are refused."""
        return self._connections.read_only

    @contextlib.contextmanager
    def read(self) -> Iterator[Reader]:
        """One consistent snapshot. Never waits for a writer (in RAM: for one transaction)."""
        with self._connections.reading() as connection:
            yield Reader(connection, self.path)

    @contextlib.contextmanager
    def write(self) -> Iterator[Writer]:
        """One transaction: kept as a whole if the block ends, else nothing of it.

        Raises
        ------
        StoreLockedError
            If another writer did not finish within the time-out; it names the process.
        StoreError
            If the disk is full or the store read-only. Nothing was kept.
        """
        with self._connections.writing() as connection:
            with mapped(self.path):
                connection.execute("BEGIN IMMEDIATE")
            reach("write:begun")
            writer = Writer(connection, self.path)
            yield writer
            writer.finish()
            reach("write:commit")
            with mapped(self.path):
                connection.execute("COMMIT")
            reach("write:committed")

    def file_bytes(self) -> int:
        """Size on disk, write-ahead log included; in RAM the size of SQLite's pages."""
        if self.path is None:
            with self._connections.reading() as connection:
                (pages,) = connection.execute("PRAGMA page_count").fetchone()
                (size,) = connection.execute("PRAGMA page_size").fetchone()
            return int(pages) * int(size)
        return sum(
            file.stat().st_size
            for suffix in ("", "-wal", "-shm")
            if (file := Path(f"{self.path}{suffix}")).exists()
        )

    def compact(self) -> None:
        """Give back free space, and leave no trace of what was deleted in any file.

        The database is written anew and the write-ahead log emptied. Other processes that
        are far behind will read the namespace from the start.

        Raises
        ------
        StoreLockedError
            If a reader or writer did not finish within the time-out. What was deleted may
            then still stand in the log: call it again.
        """
        with self._connections.writing() as connection:
            reach("compact:begun")
            with mapped(self.path):
                connection.execute("BEGIN IMMEDIATE")
                writer = Writer(connection, self.path)
                writer.drop_log()
                writer.finish()
                connection.execute("COMMIT")
                connection.execute("VACUUM")
                reach("compact:vacuumed")
                if self.path is None:
                    return
                busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise StoreLockedError(
                    f"store {self.path}: a reader kept the write-ahead log in use for longer than "
                    "the time-out, so it could not be emptied; call compact again"
                )
            reach("compact:truncated")

    def close(self) -> None:
        """Close the store; closing twice is fine."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
