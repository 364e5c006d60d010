"""`Store`: one SQLite file, or the same in RAM."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Self

import numpy.typing as npt

from rsm_fast.closing import Closing
from rsm_fast.errors import InvalidInputError, RSMError, StoreError, StoreLockedError
from rsm_fast.store.checks import Finding, find, put_right
from rsm_fast.store.connections import Connections, Synchronous, copy_into
from rsm_fast.store.failures import mapped
from rsm_fast.store.lines import export_lines
from rsm_fast.store.points import reach
from rsm_fast.store.reader import Reader
from rsm_fast.store.records import NamespaceRecord
from rsm_fast.store.salvage import Salvage
from rsm_fast.store.snapshots import (
    Snapshot,
    read_snapshot,
    remove_snapshots,
    snapshot_folder,
    snapshot_path,
    write_snapshot,
)
from rsm_fast.store.transfer import Section, restore
from rsm_fast.store.writer import KeptRow, Writer

__all__ = ["Store"]

_OLDEST_SQLITE: Final = (3, 37, 0)  # the first with STRICT tables
_LONGEST_WAIT_S: Final = 2_000_000  # SQLite counts milliseconds in 32 bits


class Store(Closing):
    """All that is kept for good, in one SQLite file. Usable from any number of threads."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._kept: dict[int, KeptRow] = {}  # `Writer.written` of the last one

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
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise StoreError(
                f"SQLite: expected {'.'.join(map(str, _OLDEST_SQLITE))} or later, got "
                f"{sqlite3.sqlite_version}; use a Python that was built with a newer one"
            )
        if synchronous not in ("FULL", "NORMAL"):
            raise InvalidInputError(
                f"synchronous: expected 'FULL' or 'NORMAL', got {synchronous!r}"
            )
        if not isinstance(timeout, (int, float)) or not timeout >= 0:
            raise InvalidInputError(f"timeout: expected seconds >= 0, got {timeout!r}")
        wait = float(min(timeout, _LONGEST_WAIT_S))
        if path is None:
            return cls(Connections(None, synchronous, wait, False))
        return cls(Connections(_resolved(path), synchronous, wait, read_only))

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

    def write(self) -> AbstractContextManager[Writer]:
        """One transaction: kept as a whole if the block ends, else nothing of it.

        Raises
        ------
        StoreLockedError
            If another writer did not finish within the time-out; it names the process.
        StoreError
            If the disk is full or the store read-only. Nothing was kept.
        """
        return _Write(self)

    def file_bytes(self) -> int:
        """Size on disk, write-ahead log and snapshots included; in RAM that of all pages."""
        if self.path is None:
            with self._connections.reading() as connection:
                (pages,) = connection.execute("PRAGMA page_count").fetchone()
                (size,) = connection.execute("PRAGMA page_size").fetchone()
            return int(pages) * int(size)
        files = [Path(f"{self.path}{suffix}") for suffix in ("", "-wal", "-shm")]
        files += snapshot_folder(self.path).glob("*.snap")
        return sum(file.stat().st_size for file in files if file.exists())

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
                self._kept = {}
                writer = Writer(connection, self.path)
                writer.drop_log()
                writer.finish()
                connection.execute("COMMIT")
                connection.execute("VACUUM")
                reach("compact:vacuumed")
                if self.path is None:
                    return
                remove_snapshots(self.path)
                busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise StoreLockedError(
                    f"store {self.path}: a reader kept the write-ahead log in use for longer than "
                    "the time-out, so it could not be emptied; call compact again"
                )
            reach("compact:truncated")

    def save_snapshot(
        self, ns: int, generation: int, arrays: Mapping[str, npt.NDArray[Any]]
    ) -> bool:
        """Keep derived arrays of a namespace beside the store, to open it faster next time.

        Parameters
        ----------
        generation : int
            The generation of the namespace that the arrays belong to.
        arrays : mapping of str to ndarray of numbers

        Returns
        -------
        bool
            False if nothing was saved: in RAM, while another process saves, or because the
            store was compacted since that generation.
        """
        if self.path is None:
            return False
        token = secrets.token_bytes(16)
        if not write_snapshot(snapshot_path(self.path, ns), token, arrays):
            return False
        with self.write() as writer:
            if writer.log_reaches(ns, generation):
                writer.name_snapshot(ns, generation, token)
                return True
        remove_snapshots(self.path, ns)
        return False

    def load_snapshot(self, ns: int) -> Snapshot | None:
        """The arrays that `save_snapshot` kept last; None if there are none to rely on.

        What was committed after `Snapshot.generation` is for `Reader.changes_since`.
        """
        if self.path is None:
            return None
        with self.read() as reader:
            named = reader.snapshot_name(ns)
        if named is None:
            return None
        generation, token = named
        arrays = read_snapshot(snapshot_path(self.path, ns), token)
        return None if arrays is None else Snapshot(generation, arrays)

    def export(self, *, namespace: str | None = None, vectors: bool = True) -> Iterator[bytes]:
        """The store, or one namespace of it, as lines of JSON (see `rsm_fast.store.lines`).

        The lines come from one snapshot and are made as they are asked for.

        Raises
        ------
        NotFoundError
            If there is no such namespace.
        """
        with self.read() as reader:
            lines = export_lines(reader, namespace=namespace, vectors=vectors)
            if self.path is not None:
                yield from lines
                return
            whole = list(lines)
        yield from whole  # in RAM all threads share a connection: do not keep it between lines

    def restore(self, section: Section, *, namespace: str | None = None) -> NamespaceRecord:
        """Make a new namespace of one section of an export, in one transaction.

        Raises
        ------
        ConflictError
            If the namespace exists.
        InvalidInputError
            If a line cannot be used. Nothing is kept then.
        """
        with self.write() as writer:
            return restore(writer, section, key=namespace)

    def check(self) -> list[Finding]:
        """Everything that is wrong: structure, checksums, links, snapshots. Empty if all is well.

        Reads every row once.
        """
        with self._connections.reading() as connection:
            return find(connection, self.path)

    def repair(self, *, drop_damaged: bool = False, also: Sequence[Finding] = ()) -> list[Finding]:
        """Drop or rebuild what is derived and damaged; what is still wrong.

        Chunks without vector (`Reader.open_chunks`) and turns without chunk
        (`Reader.unchunked_turns`) are then for the caller to make anew.

        Parameters
        ----------
        drop_damaged : bool, default False
            Delete turns that do not fit their checksum as well. Their texts are lost.
        also : sequence of Finding
            What somebody else found wrong with derived rows, to be dealt with alike.
        """
        with self._connections.writing() as connection:
            with mapped(self.path):
                connection.execute("BEGIN IMMEDIATE")
                self._kept = {}
                writer = Writer(connection, self.path)
                left = put_right(
                    writer, connection, self.path, drop_damaged=drop_damaged, also=also
                )
                writer.finish()
                connection.execute("COMMIT")
        return left

    def salvage(self, target: str | Path) -> list[Finding]:
        """Carry all that can be read into a new store; what could not.

        For a file whose structure is broken, which `repair` cannot mend. Turns and chunks get
        new pks, all else stays. Then `Reader.open_chunks` and `Reader.unchunked_turns` of the
        new store list what is to be made anew.

        Raises
        ------
        StoreError
            If the target exists or cannot be written.
        """
        path = Path(target).expanduser().absolute()
        if path.exists():
            raise StoreError(f"salvage into {path}: exists already; give a new path")
        with self.read() as reader, type(self).open(path) as rescued:
            salvage = Salvage(reader)
            for section in salvage.sections():
                rescued.restore(section)
            return salvage.lost

    def backup(self, target: str | Path) -> None:
        """Copy the store, as it is now, into a new file; readers and writers go on meanwhile.

        Raises
        ------
        StoreError
            If the target exists or cannot be written.
        """
        path = Path(target).expanduser().absolute()
        with self._connections.reading() as connection:
            copy_into(connection, path)

    def close(self) -> None:
        """Close the store; closing twice is fine."""
        self._connections.close()


class _Write(AbstractContextManager[Writer]):
    """`Store.write`; no generator, because it stands around every write."""

    __slots__ = ("_connection", "_store", "_writer")

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> Writer:
        store = self._store
        connections = store._connections
        self._connection = connections.lend_writer()
        try:
            with mapped(store.path):
                self._connection.execute("BEGIN IMMEDIATE")
            reach("write:begun")
            kept, store._kept = store._kept, {}
            self._writer = Writer(self._connection, store.path, kept)
            return self._writer
        except BaseException:
            connections.take_back_writer()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        store = self._store
        try:
            if kind is None:
                self._writer.finish()
                reach("write:commit")
                with mapped(store.path):
                    self._connection.execute("COMMIT")
                store._kept = self._writer.written
                reach("write:committed")
        finally:
            store._connections.take_back_writer()


def _resolved(path: object) -> Path:
    """The one name of a file; a path that no file can have is refused."""
    try:
        whole = Path(os.fspath(path))  # type: ignore[call-overload]
        if "\0" in str(whole):
            raise InvalidInputError(f"path: expected a path without NUL, got {str(path)!r}")
        resolved = whole.expanduser().resolve()
        resolved.exists()
    except (TypeError, ValueError, RuntimeError) as error:  # bytes; surrogates; unknown ~user
        if isinstance(error, RSMError):
            raise
        raise InvalidInputError(f"path: expected the path of a file, got {path!r:.80}") from error
    except OSError as error:  # too long, a loop of links
        raise StoreError(f"store {str(path):.80}: cannot be opened ({error.strerror})") from error
    return resolved
