"""SQLite connections of one store: made alike, pooled, and never carried across a fork."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Literal, TypeAlias

from rsm_fast.errors import (
    CorruptStoreError,
    RSMError,
    StoreClosedError,
    StoreError,
    StoreLockedError,
)
from rsm_fast.store.failures import mapped
from rsm_fast.store.points import reach
from rsm_fast.store.schema import VERSION, check_identity, check_objects, migrate
from rsm_fast.store.snapshots import snapshot_folder
from rsm_fast.store.wal import lost_commits

__all__ = ["Connections", "Synchronous", "copy_into"]

Synchronous: TypeAlias = Literal["FULL", "NORMAL"]

_CACHE_KIB: Final = 8192
_CHECKPOINT_PAGES: Final = 1000
_WAL_KEPT_BYTES: Final = 4 << 20
_IDLE_KEPT: Final = 8
_FORK_WAIT_S: Final = 5.0
_TRY_AGAIN_S: Final = 0.01


class _Writing(AbstractContextManager[sqlite3.Connection]):
    """`Connections.writing`; no generator, because it stands around every write."""

    __slots__ = ("_connections",)

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def __enter__(self) -> sqlite3.Connection:
        return self._connections.lend_writer()

    def __exit__(self, *_: object) -> None:
        self._connections.take_back_writer()


class Connections:
    """One writing connection and a pool of reading ones, for any number of threads.

    In RAM (``path=None``) there is a single connection, and everybody takes turns.
    """

    def __init__(
        self, path: Path | None, synchronous: Synchronous, timeout: float, read_only: bool
    ) -> None:
        self.path = path
        self.timeout = timeout
        self.read_only = read_only
        self._synchronous = synchronous
        self._turn = threading.RLock()  # the writer's, and in RAM everybody's
        self._writing = False
        self._pool = threading.Condition()
        self._writer: sqlite3.Connection | None = None
        self._idle: list[sqlite3.Connection] = []
        self._lent = 0
        self._closed = False
        self._forked = False
        if path is not None:
            if path in _tainted:
                raise StoreError(_forked_in_use(path))
            self._prepare_file(path)
        else:
            with mapped(None):
                self._writer = self._connect()
                self._writer.execute("BEGIN IMMEDIATE")
                migrate(self._writer)
                self._writer.execute("COMMIT")
        _OPEN.add(self)

    # -- lending ------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection inside a read transaction: one consistent snapshot."""
        connection = self._borrow()
        nested = connection.in_transaction
        try:
            if not nested:
                with mapped(self.path):
                    connection.execute("BEGIN")
            yield connection
        finally:
            try:
                if not nested and connection.in_transaction:
                    connection.execute("ROLLBACK")  # nothing was written
            finally:
                self._give_back(connection)

    def writing(self) -> AbstractContextManager[sqlite3.Connection]:
        """The writing connection, outside any transaction, for this thread alone.

        Raises
        ------
        StoreLockedError
            If another thread has it for longer than the time-out.
        """
        return _Writing(self)

    def lend_writer(self) -> sqlite3.Connection:
        """Begin what `writing` stands for; `take_back_writer` ends it."""
        if self.read_only:
            raise StoreError(f"store {self.path}: was opened read-only; open it for writing")
        if not self._turn.acquire(timeout=self.timeout):
            raise StoreLockedError(
                f"{self._where()}: locked by another thread of this process ({os.getpid()}) for "
                f"longer than {self.timeout:g} s; try again, or open with a longer timeout="
            )
        try:
            self._check_usable()
            if self._writing:
                raise StoreError(f"{self._where()}: write() inside write() of the same thread")
            if self._writer is None:
                with mapped(self.path):
                    self._writer = self._connect()
        except BaseException:
            self._turn.release()
            raise
        self._writing = True
        return self._writer

    def take_back_writer(self) -> None:
        """End what `lend_writer` began, and a transaction that is still open."""
        try:
            self._writing = False
            if self._writer is not None and self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        finally:
            self._turn.release()

    def close(self) -> None:
        """Close all connections; later calls raise StoreClosedError. Waits for readers at work."""
        with self._turn, self._pool:
            self._closed = True
            self._pool.wait_for(lambda: self._lent == 0, timeout=self.timeout)
            self._close_idle()
        _OPEN.discard(self)

    def __del__(self) -> None:
        if hasattr(self, "_idle"):  # it was made as far as having connections
            self._close_idle()

    def _borrow(self) -> sqlite3.Connection:
        if self.path is None:
            self._turn.acquire()
            try:
                self._check_usable()
                if self._writer is None:
                    raise StoreClosedError("the store in RAM is closed")
            except BaseException:
                self._turn.release()
                raise
            return self._writer
        with self._pool:
            self._check_usable()
            self._lent += 1
            if self._idle:
                return self._idle.pop()
        try:
            with mapped(self.path):
                return self._connect()
        except BaseException:
            with self._pool:
                self._lent -= 1
                self._pool.notify_all()
            raise

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if self.path is None:
            self._turn.release()
            return
        with self._pool:
            self._lent -= 1
            if len(self._idle) < _IDLE_KEPT and not self._closed:
                self._idle.append(connection)
            else:  # one at a time: of two that close together neither is the last, the log stays
                connection.close()
            self._pool.notify_all()

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self._where()}: is closed; open it again")
        if self._forked:
            raise StoreError(_forked_in_use(self.path))

    def _close_idle(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _where(self) -> str:
        return "the store in RAM" if self.path is None else f"store {self.path}"

    # -- making -------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        connection = self._reach_file()
        try:
            # no mmap_size: little gain, and a file cut meanwhile would end the process (SIGBUS)
            for pragma in (
                "foreign_keys = ON",
                "secure_delete = ON",
                "trusted_schema = OFF",
                "cell_size_check = ON",
                f"synchronous = {self._synchronous}",
                f"cache_size = -{_CACHE_KIB}",
                f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
                f"journal_size_limit = {_WAL_KEPT_BYTES}",
            ):
                connection.execute(f"PRAGMA {pragma}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _reach_file(self) -> sqlite3.Connection:
        if self.path is None:
            return self._raw(":memory:")
        if not self.read_only:
            return self._raw(self.path.as_uri() + "?mode=rw")
        connection = self._raw(self.path.as_uri() + "?mode=ro")
        try:
            connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
        except sqlite3.OperationalError:
            connection.close()
            wal = Path(f"{self.path}-wal")
            if wal.exists() and wal.stat().st_size:
                raise
            # a folder where not even the shared-memory file can be made: nobody writes here
            return self._raw(self.path.as_uri() + "?mode=ro&immutable=1")
        except BaseException:
            connection.close()
            raise
        return connection

    def _raw(self, database: str) -> sqlite3.Connection:
        return sqlite3.connect(
            database,
            timeout=self.timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            uri=self.path is not None,
        )

    def _prepare_file(self, path: Path) -> None:
        """Make the file if there is none, refuse what is no store, migrate an older one."""
        where = f"store {path}"
        if not path.exists():
            if self.read_only:
                raise StoreError(f"{where}: does not exist; open it for writing to make it")
            _create(path)
        if not path.is_file():
            raise StoreError(f"{where}: expected a file, got a folder or a device")
        if path.stat().st_size == 0:
            self._take_empty(path, where)
        if not self.read_only and not os.access(path, os.W_OK):
            raise StoreError(
                f"{where}: may not be written; change its permissions, or open it with "
                "read_only=True"
            )
        if lost := lost_commits(Path(f"{path}-wal")):
            warnings.warn(
                f"{where}: its write-ahead log is damaged, and {lost} transactions behind the "
                "damage cannot be used; the store opens at the last whole state before it",
                RuntimeWarning,
                stacklevel=5,
            )
        with mapped(path):
            connection = self._connect()
            try:
                connection.execute("BEGIN")  # or another one's migration shows half-way through
                version = check_identity(connection, where)
                connection.execute("ROLLBACK")
                if not self.read_only:
                    _use_log(connection, path, self.timeout)
                if version < VERSION:
                    if self.read_only:
                        raise StoreError(
                            f"{where}: has format version {version} and must be brought to "
                            f"{VERSION} first; open it once for writing"
                        )
                    connection.execute("BEGIN IMMEDIATE")
                    migrate(connection)
                    connection.execute("COMMIT")
                check_objects(connection, where)
            except BaseException:
                connection.close()
                raise
        self._idle.append(connection)

    def _take_empty(self, path: Path, where: str) -> None:
        """Let a store be made of a file of no bytes, unless something says that it was one."""
        wal = Path(f"{path}-wal")
        remains = wal.exists() and wal.stat().st_size or snapshot_folder(path).exists()
        if path.stat().st_size:
            return  # another one has just made a store in it
        if remains:
            raise CorruptStoreError(
                f"{where}: expected a store, got an empty file beside the log or the snapshots "
                "of one; restore a backup, or delete them all to begin anew"
            )
        if self.read_only:
            raise StoreError(f"{where}: is an empty file; open it for writing to make a store")
        warnings.warn(
            f"{where}: was an empty file, a new store is made in it", RuntimeWarning, stacklevel=6
        )
        with contextlib.suppress(PermissionError):  # another user's: `doctor` tells of its mode
            os.chmod(path, 0o600)
        with mapped(path), contextlib.closing(_plain(path, self.timeout)):
            pass  # it has a header now, and stands for a database of nothing

    # -- forks --------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Close every connection, so that the child inherits none; they reopen when needed.

        SQLite keeps lock state per process outside the connection ("How To Corrupt An SQLite
        Database File", section 2.6), so even a new connection in the child would be wrong.
        """
        self._turn.acquire()
        self._pool.acquire()
        if self.path is not None and not self._writing:
            self._pool.wait_for(lambda: self._lent == 0, timeout=_FORK_WAIT_S)
            if self._lent == 0:
                self._close_idle()

    def after_fork(self, in_child: bool) -> None:
        """Go on; in the child, refuse to work where a connection had to stay open."""
        if in_child and self.path is not None and (self._lent or self._writer is not None):
            self._forked = True
            _tainted.add(self.path)
            _ABANDONED.extend(self._idle)
            self._idle.clear()
            if self._writer is not None:
                _ABANDONED.append(self._writer)
                self._writer = None
        self._pool.release()
        self._turn.release()


_OPEN: weakref.WeakSet[Connections] = weakref.WeakSet()
_ABANDONED: list[sqlite3.Connection] = []  # inherited by a fork: must not even be closed
_tainted: set[Path] = set()  # stores whose locks this process has from its parent, but not really
_frozen: list[Connections] = []
_forking = threading.Lock()  # two threads may fork at once


def _forked_in_use(path: Path | None) -> str:
    return (
        f"store {path}: the process forked while this store was in use, so this child may not "
        "touch it; fork outside of transactions, or start a new process instead"
    )


def _before_fork() -> None:
    _forking.acquire()
    for connections in list(_OPEN):
        connections.before_fork()
        _frozen.append(connections)


def _after_fork_in_parent() -> None:
    _thaw(in_child=False)


def _after_fork_in_child() -> None:
    _thaw(in_child=True)


def _thaw(*, in_child: bool) -> None:
    while _frozen:
        _frozen.pop().after_fork(in_child)
    _forking.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)


def _create(path: Path) -> None:
    """Make an empty store; of several processes that make it at once, the first wins."""
    with _new_file(path) as temporary, contextlib.closing(_plain(temporary)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        migrate(connection)
        connection.execute("COMMIT")
    reach("create:link")


def copy_into(source: sqlite3.Connection, path: Path) -> None:
    """Copy a database, as ``source`` sees it, into a new file (SQLite's online backup)."""
    if path.exists():
        raise StoreError(f"backup {path}: exists already; give a new path")
    with _new_file(path) as temporary, contextlib.closing(_plain(temporary)) as target:
        source.backup(target)


def _plain(path: Path, timeout: float = 5.0) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None)
    try:
        _use_log(connection, path, timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def _use_log(connection: sqlite3.Connection, path: Path, timeout: float) -> None:
    ends = time.monotonic() + timeout
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            # of two that change it at once neither can wait, and SQLite refuses without waiting
            kind = error.sqlite_errorcode & 0xFF  # without what SQLite says further
            if kind != sqlite3.SQLITE_BUSY or time.monotonic() > ends:
                raise
            time.sleep(_TRY_AGAIN_S)
    if mode != "wal":
        raise StoreError(
            f"store {path}: its file system cannot share memory between processes "
            f"(journal mode {mode!r}); choose a local folder"
        )


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """An empty file of mode 0600 to fill, which stands at ``path`` afterwards.

    It is filled under a temporary name and linked into place, so that an empty or half-made
    file is never seen there. A file that another process put there meanwhile stays.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with mapped(path):
            yield temporary
        reach("create:schema")
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass  # another process was faster
        except OSError:  # no hard links here
            if not path.exists():
                os.rename(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if isinstance(error, RSMError):
            raise
        raise StoreError(
            f"store {path}: cannot be made ({error.strerror}); check that its folder exists, "
            "may be written and has room"
        ) from error
    finally:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{temporary}{suffix}").unlink(missing_ok=True)
