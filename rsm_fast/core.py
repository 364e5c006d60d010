"""What writing, reading and forgetting share: the store, the lock, the derived state.

Order of locks: the memory's own lock first, then the store's. Texts are embedded before either
is taken.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rsm_fast.embedding import Embedder, EmbedderLike, as_embedder, checked_vectors
from rsm_fast.errors import (
    EmbedderMismatchError,
    InvalidInputError,
    NotFoundError,
    StoreClosedError,
)
from rsm_fast.presets import Preset, checked_count
from rsm_fast.settings import NamespaceSettings, WriteOptions
from rsm_fast.store import Reader, Store, Writer, check_namespace_key
from rsm_fast.tokens import TokenCounter, as_token_counter

if TYPE_CHECKING:
    from rsm_fast.state import NamespaceState

__all__ = ["Core", "Limits", "Snapshot", "Transaction"]

F32 = npt.NDArray[np.float32]

_SNAPSHOT_ROWS = 5_000  # below, a store opens in a fifth of a second without one
_SNAPSHOT_SHARE = 0.05  # of the rows that must have changed since the last one


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes above which input is refused.

    Attributes
    ----------
    text_chars : int
        Characters of one turn's text.
    metadata_bytes : int
        UTF-8 bytes of one turn's metadata as JSON.
    name_chars : int
        Characters of an id, a role or a session name.
    call_turns : int
        Turns in one call of `Memory.add_many`.
    namespaces : int
        Namespaces in one store; above, no new one is made.
    batch_turns : int
        Turns that go into one transaction of `Memory.add_many`; more are stored in several.

    Raises
    ------
    InvalidInputError
        If one is no whole number of 1 or more.
    """

    text_chars: int = 8_000_000
    metadata_bytes: int = 65_536
    name_chars: int = 256
    call_turns: int = 1_000_000
    namespaces: int = 1_000_000
    batch_turns: int = 256

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            checked_count(f"Limits.{name}", value, low=1)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent view: the store's snapshot, and the state at the same generation.

    ``state`` is None where the namespace does not exist.
    """

    reader: Reader
    state: NamespaceState | None
    unlock: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open write transaction and the state that it changes."""

    writer: Writer
    ns: int
    state: NamespaceState


class Core:
    """One namespace of one store, with what is derived from it.

    Parameters
    ----------
    store : Store
    key : str
        Namespace; it is created by the first write, never by reading.
    preset : Preset
        Fills in what ``options`` leave open.
    options : WriteOptions
        What the caller chose for the write path.
    embedder : Embedder, callable, str, Path or None
        None means the namespace's own where it is known by name, else the packaged one.
    count_tokens : TokenCounter, callable or None
    vectors_on_disk : bool
        Keep float vectors in a mapped file instead of in RAM.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        *,
        preset: Preset,
        options: WriteOptions,
        limits: Limits,
        embedder: EmbedderLike | None,
        count_tokens: Callable[[str], int] | TokenCounter | None,
        vectors_on_disk: bool,
    ) -> None:
        check_namespace_key(key)
        self.store = store
        self.key = key
        self.preset = preset
        self.options = options
        self.limits = limits
        self.lock = threading.RLock()
        self._pid = os.getpid()
        self._given_embedder = embedder
        self._embedder: Embedder | None = None
        self.counter = as_token_counter(count_tokens)
        self._vectors_on_disk = (
            Path(store.path).parent if vectors_on_disk and store.path is not None else None
        )
        self._state: NamespaceState | None = None
        self._closed = False
        with store.read() as reader:
            record = reader.namespace(key)
        if record is not None:
            settings = NamespaceSettings.from_dict(record.settings)
            settings.check_options(options, namespace=key)
            if embedder is not None:
                self._resolve(settings)

    # -- the embedder -------------------------------------------------------------------------

    @property
    def embedder(self) -> Embedder:
        """The embedder, resolved at first use and held against the namespace's fingerprint."""
        if self._embedder is None:
            with self.store.read() as reader:
                record = reader.namespace(self.key)
            stored = None if record is None else NamespaceSettings.from_dict(record.settings)
            self._resolve(stored)
        assert self._embedder is not None
        return self._embedder

    def _resolve(self, stored: NamespaceSettings | None) -> None:
        given = self._given_embedder
        if given is None and stored is not None and stored.embedder_name:
            given = stored.embedder_name
        try:
            embedder = as_embedder(given)
        except NotFoundError as error:
            if stored is None or self._given_embedder is not None:
                raise
            raise EmbedderMismatchError(
                f"namespace {self.key!r} was embedded with {stored.embedder_name!r}, which is no "
                "model that can be opened by name; give it with embedder="
            ) from error
        if stored is not None:
            stored.check_embedder(
                embedder.fingerprint,
                embedder.dim,
                namespace=self.key,
                where=str(self.store.path or "the store in RAM"),
            )
        self._embedder = embedder

    def use_embedder(self, embedder: Embedder) -> None:
        """Go on with another embedder; the store's vectors must be its own by now."""
        with self.lock:
            self._embedder = self._given_embedder = embedder
            self._state = None

    def embed_passages(self, texts: Sequence[str]) -> F32:
        """Unit vectors of texts to be stored, checked, shape (n, d) float32."""
        embedder = self.embedder
        return checked_vectors(embedder, embedder.embed_passages(texts), len(texts), embedder.dim)

    def embed_query(self, text: str) -> F32:
        """Unit vector of a question, checked, shape (d,) float32."""
        embedder = self.embedder
        vectors = checked_vectors(embedder, embedder.embed_queries([text]), 1, embedder.dim)
        vector: F32 = vectors[0]
        return vector

    # -- consistent views ---------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether the namespace has been written to, as far as seen without waiting."""
        self._check_open()
        if self._state is not None:
            return True
        with self.store.read() as reader:
            return reader.namespace(self.key) is not None

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """A snapshot of the store and the state caught up with it, under the lock.

        `Snapshot.unlock` gives the lock back early: the state must not be used after that, the
        reader may be.
        """
        self._check_open()
        self.lock.acquire()
        locked = True

        def unlock() -> None:
            nonlocal locked
            if locked:
                locked = False
                self.lock.release()

        try:
            with self.store.read() as reader:
                state = self._caught_up(reader)
                yield Snapshot(reader, state, unlock)
        finally:
            unlock()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A write transaction, committed at the end; after an error nothing has changed.

        Makes the namespace if there is none.
        """
        self._check_open()
        with self.lock:
            try:
                with self.store.write() as writer:
                    state = self._caught_up(writer)
                    if state is None:
                        self._check_room(writer)
                        writer.create_namespace(self.key, self.new_settings().to_dict())
                        state = self._caught_up(writer)
                    assert state is not None
                    yield Transaction(writer, state.ns, state)
                    state.generation = writer.generation(state.ns)
            except BaseException:
                self._state = None  # what was derived from the transaction goes with it
                raise

    def _check_room(self, writer: Writer) -> None:
        ((count,),) = writer.rows("SELECT count(*) FROM namespaces")
        if count >= self.limits.namespaces:
            raise InvalidInputError(
                f"namespace {self.key!r}: the store holds {count:,} namespaces, and no more than "
                f"{self.limits.namespaces:,} are allowed; purge some, or raise Limits.namespaces"
            )

    def drop_state(self) -> None:
        """Derive everything anew at the next call."""
        with self.lock:
            self._state = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def save_snapshot(self) -> None:
        """Keep the derived state beside the store where opening it anew would take a while."""
        with self.lock:
            state = self._state
            if state is None or self.store.read_only:
                return
            n = state.arena.n
            if n >= _SNAPSHOT_ROWS and state.changes > _SNAPSHOT_SHARE * n:
                self.store.save_snapshot(state.ns, state.generation, state.arrays())
                state.changes = 0

    def close(self) -> None:
        """Drop the state and close the store."""
        with self.lock:
            self._closed = True
            self._state = None
            self.store.close()

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            # After a fork the lock may be held by a thread that does not exist here.
            self._pid = os.getpid()
            self.lock = threading.RLock()
            self._state = None
        if self._closed:
            raise StoreClosedError("this Memory was closed; open it again with Memory.open(path)")

    def new_settings(self) -> NamespaceSettings:
        """Settings that the namespace gets at its first write."""
        embedder = self.embedder
        return NamespaceSettings.create(
            self.preset,
            self.options,
            embedder=embedder.fingerprint,
            embedder_name=embedder.name,
            dim=embedder.dim,
            counter=self.counter.name,
        )

    def _caught_up(self, reader: Reader) -> NamespaceState | None:
        """The state at the reader's generation; None where there is no such namespace."""
        state = self._state
        if state is not None:
            try:
                if reader.generation(state.ns) == state.generation:
                    return state
            except NotFoundError:  # purged, perhaps made anew since
                self._state = None
        record = reader.namespace(self.key)
        if record is None:
            return None
        if self._state is None:
            from rsm_fast.state import NamespaceState

            state = NamespaceState(record, vectors_on_disk=self._vectors_on_disk)
            snapshot = self.store.load_snapshot(record.id)
            if snapshot is not None and not state.adopt(
                snapshot.arrays, snapshot.generation, reader, record
            ):
                state = NamespaceState(record, vectors_on_disk=self._vectors_on_disk)
            self._state = state
        self._state.catch_up(reader, record)
        return self._state
