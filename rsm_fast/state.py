"""What is derived from the store for one namespace: vectors, atoms, postings, in RAM.

Nothing here is the truth. A state follows the store by `NamespaceState.catch_up`, and it may be
dropped and loaded anew at any time with the same outcome.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rsm_fast._version import __version__
from rsm_fast.analysis import ANALYSER_VERSION, chunk_terms, pack_terms, unpack_terms
from rsm_fast.arena import Arena
from rsm_fast.chunking import embedded_text
from rsm_fast.clustering import Clusterer
from rsm_fast.columns import Column
from rsm_fast.instants import Instant
from rsm_fast.kernels.layout import LAYOUT
from rsm_fast.lexical import LexicalIndex
from rsm_fast.settings import NamespaceSettings

if TYPE_CHECKING:
    from rsm_fast.index import AtomIndex
    from rsm_fast.packing import Form, Frame, PriceTable
    from rsm_fast.store import ChunkRecord, NamespaceRecord, PieceRecord, Reader

__all__ = ["NamespaceState", "RowContent"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


class RowContent(NamedTuple):
    """What a row holds beside its vector."""

    tokens: int
    micros: int
    terms: Sequence[str]
    text_hash: int
    step: int | None
    truncated: bool


_RECORD_BYTES = 1200  # of a chunk as stored, beside its text
_LARGE = 1000  # tokens of a chunk that is read again when it is packed


class TextCache:
    """Texts of chunks that were packed or written lately, by row and version; bounded.

    A key stands for one content for ever, so several threads may share it.
    """

    LARGEST = 16 << 20  # bytes as printed, some 5,000 turns of a few sentences
    MOST_WRITTEN = 1024  # chunks that were not packed yet

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], Form] = {}
        self._written: dict[tuple[int, int], PieceRecord] = {}
        self._lock = threading.Lock()
        self._prices: PriceTable | None = None
        self.nbytes = 0

    def prices(self, frame: Frame) -> PriceTable:
        """What chunks cost in a frame, as far as it is known; kept for the frame asked for last."""
        with self._lock:
            if self._prices is None or self._prices.frame is not frame:
                from rsm_fast.packing import PriceTable

                self._prices = PriceTable(frame)
            return self._prices

    @property
    def price_bytes(self) -> int:
        """Bytes of the prices, beside ``nbytes`` of the texts."""
        return 0 if self._prices is None else self._prices.nbytes

    def get(self, key: tuple[int, int]) -> Form | None:
        """The chunk as it was put, None if it is not here (any more)."""
        return self._found.get(key)

    def put(self, key: tuple[int, int], form: Form) -> None:
        """Keep a chunk, in place of what stood there; the oldest ones go when all are too large."""
        with self._lock:
            before = self._found.pop(key, None)
            self._found[key] = form
            self.nbytes += form.nbytes - (0 if before is None else before.nbytes)
            while self.nbytes > self.LARGEST:
                oldest = self._found.pop(next(iter(self._found)))
                self.nbytes -= oldest.nbytes

    @property
    def written_bytes(self) -> int:
        """Bytes of what was written and not packed yet, estimated."""
        return sum(_RECORD_BYTES + 8 * record.tokens for record in list(self._written.values()))

    def put_written(self, key: tuple[int, int], record: PieceRecord) -> None:
        """Keep a chunk as it was stored, unless it is large, until it is packed or too old."""
        written = self._written
        if record.tokens > _LARGE:
            return
        if len(written) >= self.MOST_WRITTEN:
            for oldest in list(written)[: self.MOST_WRITTEN // 4]:
                written.pop(oldest, None)
        written[key] = record

    def take_written(self, key: tuple[int, int]) -> PieceRecord | None:
        """The chunk as it was stored, not to be asked for again."""
        return self._written.pop(key, None)


class NamespaceState:
    """Arena, atoms and postings of one namespace. Not thread-safe: `Memory` holds the lock.

    Attributes
    ----------
    ns : int
        The namespace's number in the store.
    settings : NamespaceSettings
        As stored.
    generation : int
        The store's generation that this state stands at, -1 before it was loaded.
    newest_pk : int
        Highest chunk key seen.
    free_ids : int
        No turn has an automatic id from the namespace's next one to below this number.
    arena, clusterer, lexical
        The parts. ``clusterer`` is None while tau is not known.
    """

    def __init__(self, record: NamespaceRecord, *, vectors_on_disk: Path | None = None) -> None:
        self.ns = record.id
        self.settings = NamespaceSettings.from_dict(record.settings)
        self.generation = -1
        self.newest_pk = 0
        self.free_ids = 0
        self.arena = Arena(self.settings.dim, dtype=self.settings.dtype, on_disk=vectors_on_disk)
        self.clusterer: Clusterer | None = None
        self.lexical = LexicalIndex()
        self._vectors_on_disk = vectors_on_disk
        self._hashes = Column(np.int64)
        self._steps = Column(np.int32)
        self._truncated = Column(np.uint8)
        self._versions = Column(np.int32)
        self.texts = TextCache()
        self._atom_index: AtomIndex | None = None
        self._sessions: dict[str | None, int] = {}
        self._leaving: tuple[int, list[tuple[int, int]]] | None = None  # and its generation
        self._open: dict[int, str] = {}  # row of an unfinished chunk: its text as embedded
        self.edition = 0  # of the rows: another one after each change
        self.changes = 0  # rows added, changed or removed since `generation` of the snapshot

    # -- columns ------------------------------------------------------------------------------

    @property
    def hashes(self) -> I64:
        """(n,) int64, `text_hash` of every row's text."""
        return self._hashes.view

    @property
    def steps(self) -> I32:
        """(n,) int32, step label of every row, -1 for none."""
        return self._steps.view

    @property
    def versions(self) -> I32:
        """(n,) int32, how often each row was given another content."""
        return self._versions.view

    @property
    def nbytes(self) -> int:
        """Resident bytes of all derived data."""
        columns = (self._hashes, self._steps, self._truncated, self._versions)
        atoms = self.clusterer.nbytes if self.clusterer is not None else 0
        return (
            self.arena.nbytes
            + atoms
            + self.lexical.nbytes
            + self.texts.nbytes
            + self.texts.price_bytes
            + self.texts.written_bytes
            + sum(column.nbytes for column in columns)
        )

    @property
    def truncated_chunks(self) -> int:
        """Living chunks of which the embedder saw the beginning only."""
        return int(np.count_nonzero(self._truncated.view & self.arena.alive))

    @property
    def open_rows(self) -> dict[int, str]:
        """Rows of unfinished chunks, and the text that their vector was made of ("" for none)."""
        return self._open

    def leaving(self, reader: Reader) -> list[tuple[int, int]]:
        """Rows of chunks that are superseded or expire, and the micros from which they are gone.

        The reader stands at this state's generation.
        """
        if self._leaving is None or self._leaving[0] != self.generation:
            when = [*reader.superseded(self.ns).items(), *reader.expiring(self.ns).items()]
            rows = self.rows_of([pk for pk, _ in when]).tolist()
            micros = [since for _, since in when]
            self._leaving = self.generation, list(zip(rows, micros, strict=True))
        return self._leaving[1]

    def rows_of(self, pks: npt.ArrayLike) -> I32:
        """Rows of chunk keys that are all known here."""
        return np.searchsorted(self.arena.pk, np.asarray(pks, np.int64)).astype(np.int32)

    def row_of(self, pk: int) -> int | None:
        """Row of a chunk key, None if it is not known here."""
        keys = self.arena.pk
        row = int(np.searchsorted(keys, pk))
        return row if row < keys.size and keys[row] == pk else None

    def session_number(self, session: str | None) -> int:
        """The number that stands for a session in the arena."""
        return self._sessions.setdefault(session, len(self._sessions))

    # -- following the store ------------------------------------------------------------------

    def catch_up(self, reader: Reader, record: NamespaceRecord) -> None:
        """Apply what was committed since this state's generation."""
        if record.generation == self.generation:
            return
        self.free_ids = 0
        settings = NamespaceSettings.from_dict(record.settings)
        if self.generation < 0 or settings != self.settings:
            self._load(reader, record, settings)
            return
        changes = reader.changes_since(self.ns, self.generation, self.newest_pk)
        if changes.reload:
            self._load(reader, record, settings)
            return
        gone = (self.row_of(pk) for pk in changes.removed)
        self.remove([row for row in gone if row is not None and self.arena.alive[row]])
        for chunk in changes.upserts:
            self._apply(reader, chunk)
        if self.clusterer is not None:
            self.clusterer.next_atom = record.next_atom
        self.generation = record.generation

    def _load(self, reader: Reader, record: NamespaceRecord, settings: NamespaceSettings) -> None:
        self.__init__(record, vectors_on_disk=self._vectors_on_disk)  # type: ignore[misc]
        columns = reader.columns(self.ns, settings.dim)
        names = np.array(
            [self.session_number(name) for name in (None, *columns.session_names)], np.int32
        )
        self._set_centre(reader)
        self.arena.append_many(
            columns.vector,
            pk=columns.pk,
            tokens=columns.tokens,
            micros=columns.micros,
            session=names[columns.session + 1],
        )
        self._hashes.extend(columns.text_hash)
        self._steps.extend(np.maximum(columns.step, -1))
        self._truncated.extend(columns.truncated)
        self._versions.extend(np.zeros(columns.pk.size, np.int32))
        outdated = np.flatnonzero(columns.analyser != ANALYSER_VERSION)
        anew = self.analysed(reader, columns.pk[outdated].tolist())
        for row in outdated.tolist():
            columns.terms[row] = pack_terms(anew[int(columns.pk[row])])
        self.lexical.load(columns.terms)
        self._open = dict.fromkeys(np.flatnonzero(columns.has_vector == 0).tolist(), "")
        if columns.pk.size:
            self.newest_pk = int(columns.pk[-1])
        rows = np.flatnonzero(columns.atom >= 0).astype(np.int32)
        self._restore_atoms(rows, columns.atom[rows], record.next_atom)
        self.generation = record.generation
        self.changes = columns.pk.size

    def _set_centre(self, reader: Reader) -> None:
        if self.settings.centre and self.settings.tau is not None:
            centre = reader.array(self.ns, "centre")
            self.arena.set_centre(centre, [], np.empty((0, self.settings.dim), np.float32))

    def _restore_atoms(self, rows: I32, atoms: I32, next_atom: int) -> None:
        if self.settings.tau is not None:
            clusterer = self.start_clustering(self.settings.tau, next_atom)
            clusterer.restore(rows, atoms, next_atom)

    # -- snapshots ----------------------------------------------------------------------------

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All that opening has to work out, as plain arrays: what `adopt` takes."""
        sessions = json.dumps([list(self._sessions)]).encode()
        return {
            **{f"arena.{name}": array for name, array in self.arena.arrays().items()},
            **{f"lexical.{name}": array for name, array in self.lexical.arrays().items()},
            "hashes": self.hashes,
            "steps": self.steps,
            "truncated": self._truncated.view,
            "atom": self.arena.atom,
            "open": np.array(list(self._open), np.int64),
            "sessions": np.frombuffer(sessions, np.uint8),
            "made_by": self._made_by(),
        }

    def adopt(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        generation: int,
        reader: Reader,
        record: NamespaceRecord,
    ) -> bool:
        """Take over what `arrays` gave at a generation; False if it does not fit any more."""
        if generation > record.generation or not np.array_equal(
            arrays.get("made_by", np.empty(0)), self._made_by()
        ):
            return False
        self._set_centre(reader)
        self.arena.adopt(_below(arrays, "arena."))
        self.lexical.adopt(_below(arrays, "lexical."))
        n = self.arena.n
        self._hashes.adopt(arrays["hashes"], n)
        self._steps.adopt(arrays["steps"], n)
        self._truncated.adopt(arrays["truncated"], n)
        self._versions.extend(np.zeros(n, np.int32))
        (names,) = json.loads(arrays["sessions"].tobytes())
        self._sessions = {name: number for number, name in enumerate(names)}
        self._open = dict.fromkeys(arrays["open"].tolist(), "")
        self.newest_pk = int(self.arena.pk[-1]) if n else 0
        rows = np.flatnonzero(arrays["atom"] >= 0).astype(np.int32)
        self._restore_atoms(rows, arrays["atom"][rows], record.next_atom)
        self.generation = generation
        return True

    def _made_by(self) -> npt.NDArray[np.uint8]:
        """What arrays depend on beside the stored rows."""
        settings = json.dumps(self.settings.to_dict(), sort_keys=True)
        return np.frombuffer(
            f"{__version__} {ANALYSER_VERSION} {LAYOUT} {settings}".encode(), np.uint8
        )

    # -- rows of the store --------------------------------------------------------------------

    def analysed(self, reader: Reader, pks: Sequence[int]) -> dict[int, list[str]]:
        """Terms of chunks, made anew from their texts."""
        found = {}
        for start in range(0, len(pks), 256):
            pieces = reader.pieces(self.ns, pks[start : start + 256])
            firsts = {piece.parts[0].turn_pk for piece in pieces}
            dated = {turn.pk: turn.time_given for turn in reader.turns(self.ns, sorted(firsts))}
            for piece in pieces:
                text = embedded_text((part.role, part.text) for part in piece.parts)
                given = dated[piece.parts[0].turn_pk]
                instant = Instant(piece.micros, piece.offset_minutes) if given else None
                roles = (part.role for part in piece.parts)
                found[piece.pk] = chunk_terms(text, instant, roles)
        return found

    def _apply(self, reader: Reader, chunk: ChunkRecord) -> None:
        """Bring one row to what another writer has committed."""
        vector = None if chunk.vector is None else np.frombuffer(chunk.vector, "<f4")
        content = RowContent(
            tokens=chunk.tokens,
            micros=chunk.micros,
            terms=self._terms(reader, chunk),
            text_hash=chunk.text_hash,
            step=chunk.step,
            truncated=chunk.truncated,
        )
        row = self.row_of(chunk.pk)
        if row is None:
            row = self.append(vector, content, pk=chunk.pk, session=chunk.session)
        else:
            self.replace(row, vector, content)
        if chunk.atom is not None and self.clusterer is not None:
            self.clusterer.attach(row, chunk.atom)

    def _terms(self, reader: Reader, chunk: ChunkRecord) -> list[str]:
        if chunk.analyser == ANALYSER_VERSION:
            return unpack_terms(chunk.terms)
        return self.analysed(reader, [chunk.pk])[chunk.pk]

    # -- changes (the caller writes them to the store) ----------------------------------------

    def append(
        self,
        vector: F32 | None,
        content: RowContent,
        *,
        pk: int,
        session: str | None,
        gate: bool = False,
    ) -> int:
        """Add a chunk's row; None stands for the vector of an open chunk.

        With ``gate`` its atom is decided in the same breath; else it is in none yet.
        """
        number, tokens, micros = self.session_number(session), content.tokens, content.micros
        if gate:
            assert self.clusterer is not None and vector is not None
            # terms first: the gate reads so much that they would not be in the cache any more
            self.lexical.append(self.arena.n, content.terms)
            row, _ = self.clusterer.add(vector, pk=pk, tokens=tokens, micros=micros, session=number)
        else:
            row = self.arena.append(vector, pk=pk, tokens=tokens, micros=micros, session=number)
            self.lexical.append(row, content.terms)
        self._hashes.append(content.text_hash)
        self._steps.append(-1 if content.step is None else content.step)
        self._truncated.append(content.truncated)
        self._versions.append(0)
        if vector is None:
            self._open[row] = ""
        self.newest_pk = max(self.newest_pk, pk)
        self.changes += 1
        self.edition += 1
        return row

    def replace(self, row: int, vector: F32 | None, content: RowContent) -> None:
        """Give a row another content; it leaves its atom."""
        if self.arena.atom[row] >= 0 and self.clusterer is not None:
            self.clusterer.remove(row)
        self.arena.replace(row, vector, tokens=content.tokens)
        self.arena.micros[row] = content.micros
        self.lexical.replace(row, content.terms)
        self._hashes.view[row] = content.text_hash
        self._steps.view[row] = -1 if content.step is None else content.step
        self._truncated.view[row] = content.truncated
        self._versions.view[row] += 1
        self._open.pop(row, None)
        if vector is None:
            self._open[row] = ""
        self.changes += 1
        self.edition += 1

    def keep_text(self, row: int, record: PieceRecord) -> None:
        """Have a new row's text at hand for the next packs, unless memory is scarce."""
        if self._vectors_on_disk is None:
            self.texts.put_written((row, self._versions.array.item(row)), record)

    def remove(self, rows: Sequence[int]) -> None:
        """Take rows out of everything."""
        for row in rows:
            if self.arena.atom[row] >= 0 and self.clusterer is not None:
                self.clusterer.remove(row)
            self.arena.remove(row)
            self._open.pop(row, None)
        self.lexical.remove(rows)
        self.changes += len(rows)
        self.edition += 1

    def start_clustering(self, tau: float, next_atom: int) -> Clusterer:
        """Begin gating with a known tau."""
        self.clusterer = Clusterer(
            self.arena, gate=self.settings.gate, rank=self.settings.rank, tau=tau
        )
        self.clusterer.next_atom = next_atom
        return self.clusterer

    def atom_index(self, route: Literal["centroid", "singular-vector"]) -> AtomIndex:
        """The FAISS index over the atoms for a route; made at its first use, then kept up."""
        from rsm_fast.index import AtomIndex

        assert self.clusterer is not None
        index = self._atom_index
        if index is None or index.clusterer is not self.clusterer or index.route != route:
            index = self._atom_index = AtomIndex(self.clusterer, route)
        return index

    def gated_rows(self) -> I32:
        """Living rows with a vector, in arrival order: what calibration and gating run over."""
        alive = self.arena.alive.copy()
        alive[list(self._open)] = 0
        return np.flatnonzero(alive).astype(np.int32)

    def distinct_rows(self) -> I32:
        """Of `gated_rows` the first of each text: copies say nothing about a space of vectors."""
        rows = self.gated_rows()
        _, first = np.unique(self.hashes[rows], return_index=True)
        return rows[np.sort(first)]

    def recluster(self, tau: float, mean: F32 | None, raw: F32, rows: I32, next_atom: int) -> None:
        """Gate all rows anew in order of arrival.

        Parameters
        ----------
        tau : float
        mean : (d,) float32 or None
            What is subtracted from vectors before they are compared.
        raw : (k, d) float32
            Unit vectors of ``rows`` as the embedder gave them.
        rows : (k,) int32
            What `gated_rows` gives.
        next_atom : int
            Number of the first new atom.
        """
        for row in rows[self.arena.atom[rows] >= 0].tolist():
            assert self.clusterer is not None
            self.clusterer.remove(row)
        self.arena.set_centre(mean, rows, raw)
        self.changes += len(rows)
        self.start_clustering(tau, next_atom).assign_many(rows)


def _below(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
