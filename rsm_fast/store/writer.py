"""Changes to a store, inside one transaction."""

from __future__ import annotations

import json
import secrets
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy.typing as npt

from rsm_fast.errors import ConflictError, InvalidInputError, NotFoundError
from rsm_fast.store.notes import drop_notes
from rsm_fast.store.points import reach
from rsm_fast.store.reader import Reader, purged, tombstones_from_row
from rsm_fast.store.records import (
    CHUNK_FIELDS,
    ChunkRecord,
    NamespaceRecord,
    NamespaceRow,
    TurnRecord,
    chunk_crc,
    damaged,
    features_crc,
    first_pk,
    last_pk,
    namespace_crc,
    pack_spans,
    text_crc,
    turn_crc,
    unpack_spans,
)
from rsm_fast.store.tombstones import id_digest, join, slot_crc, slot_of, slots

__all__ = ["KeptRow", "Writer", "check_namespace_key"]

_MAX_KEY: Final = 256
_EDITION: Final = (
    "SELECT generation, crc, EXISTS (SELECT 1 FROM tombstones WHERE slot BETWEEN ?2 AND ?3) "
    "FROM namespaces WHERE id = ?1"
)
_UPDATE_NAMESPACE: Final = (
    "UPDATE namespaces SET settings = ?4, generation = ?5, next_turn = ?6, next_chunk = ?7, "
    "next_auto = ?8, next_atom = ?9, log_floor = ?10, crc = ?11 WHERE id = ?1"
)
_INSERT_TURN: Final = (
    "INSERT INTO turns (pk, id, role, text, micros, offset_minutes, time_given, session, metadata, "
    "expires_at, superseded_by, crc, namespace) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"
)
_UPDATE_TURN: Final = (
    "UPDATE turns SET id = ?2, role = ?3, text = ?4, micros = ?5, offset_minutes = ?6, "
    "time_given = ?7, session = ?8, metadata = ?9, expires_at = ?10, superseded_by = ?11, "
    "crc = ?12 WHERE pk = ?1 AND namespace = ?13"
)
_INSERT_CHUNK: Final = "INSERT INTO chunks VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"
_UPDATE_CHUNK: Final = (
    "UPDATE chunks SET id = ?2, spans = ?3, session = ?4, micros = ?5, offset_minutes = ?6, "
    "tokens = ?7, line_tokens = ?8, text_hash = ?9, step = ?10, truncated = ?11, atom = ?12, "
    "crc = ?13 WHERE pk = ?1"
)
_PUT_FEATURES: Final = (
    "INSERT INTO features VALUES (?,?,?,?,?) ON CONFLICT (chunk) DO UPDATE SET "
    "terms = excluded.terms, analyser = excluded.analyser, vector = excluded.vector, "
    "crc = excluded.crc"
)


class KeptRow(NamedTuple):
    """A namespace's row as it was written, its checksum, and whether it has tombstones."""

    row: NamespaceRow
    crc: int
    tombstones: bool


class Writer(Reader):
    """A `Reader` that may change things. Made by `Store.write`.

    Each namespace that was changed gets its next generation, once, at the end.

    Parameters
    ----------
    kept : dict, optional
        ``written`` of the writer before, read again only where another process wrote since.

    Attributes
    ----------
    written : dict
        After `finish`, the rows of the namespaces that were changed.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path | None,
        kept: dict[int, KeptRow] | None = None,
    ) -> None:
        super().__init__(connection, path)
        self.written: dict[int, KeptRow] = {}
        self._kept = {} if kept is None else kept
        self._in_file = path is not None  # where other processes may write
        self._rows: dict[int, NamespaceRow] = {}  # as they are, or will be where touched
        self._touched: set[int] = set()
        self._tombstones_seen: dict[int, bool] = {}

    # -- namespaces ---------------------------------------------------------------------

    def create_namespace(
        self, key: str, settings: Mapping[str, Any], *, salt: bytes | None = None
    ) -> NamespaceRecord:
        """Make a namespace; ConflictError if the key is taken.

        ``salt``, 16 bytes, is what ids of deleted turns are hashed with; random by default.
        """
        check_namespace_key(key)
        fields = (
            key, secrets.token_bytes(16) if salt is None else salt, _dump(settings),
            0, 1, 1, 1, 0, 0,
        )  # fmt: skip
        with self._mapped:
            try:
                cursor = self._connection.execute(
                    "INSERT INTO namespaces (key, salt, settings, generation, next_turn, "
                    "next_chunk, next_auto, next_atom, log_floor, crc) "
                    "VALUES (?,?,?,?,?,?,?,?,?,0)",
                    fields,
                )
            except sqlite3.IntegrityError:
                raise ConflictError(f"namespace {key!r}: exists already") from None
            ns = int(cursor.lastrowid or 0)
            self._connection.execute(
                "UPDATE namespaces SET crc = ? WHERE id = ?", (namespace_crc((ns, *fields)), ns)
            )
        self._touch(ns)
        return self.namespace_by_id(ns)

    def put_settings(self, ns: int, settings: Mapping[str, Any]) -> None:
        """Replace the settings of a namespace."""
        self._touch(ns).settings = _dump(settings)

    def put_array(self, ns: int, name: str, array: npt.NDArray[Any] | None) -> None:
        """Keep a small array, such as a calibration mean, under a name; None removes it."""
        self._touch(ns)
        with self._mapped:
            self._connection.execute(
                "DELETE FROM arrays WHERE namespace = ? AND name = ?", (ns, name)
            )
            if array is None:
                return
            if array.dtype.kind not in "biuf":
                raise InvalidInputError(f"array {name!r}: expected numbers, got {array.dtype}")
            little = array.astype(array.dtype.newbyteorder("<"), order="C")
            dtype, shape, data = little.dtype.str, json.dumps(little.shape), little.tobytes()
            crc = text_crc(ns, name, dtype, shape, zlib.crc32(data))
            self._connection.execute(
                "INSERT INTO arrays VALUES (?,?,?,?,?,?)", (ns, name, dtype, shape, data, crc)
            )

    def take_ids(self, ns: int, count: int) -> int:
        """Reserve ``count`` automatic ids; the first number of the run, from 1."""
        row = self._touch(ns)
        row.next_auto += count
        return row.next_auto - count

    def put_next_atom(self, ns: int, next_atom: int) -> None:
        """Keep the number that the next new atom will get."""
        self._touch(ns).next_atom = next_atom

    def put_counters(self, ns: int, *, next_auto: int, next_atom: int) -> None:
        """Set the number of the next automatic id and of the next new atom."""
        row = self._touch(ns)
        row.next_auto, row.next_atom = next_auto, next_atom

    def put_tombstones(self, ns: int, digests: Iterable[bytes]) -> None:
        """Keep hashes of deleted ids, made with the namespace's salt."""
        self._touch(ns)
        by_slot: dict[int, set[bytes]] = {}
        for digest in digests:
            by_slot.setdefault(slot_of(ns, digest), set()).add(digest)
        with self._mapped:
            for slot, added in by_slot.items():
                row = self._one("SELECT slot, digests, crc FROM tombstones WHERE slot = ?", (slot,))
                rests = join(added.union(tombstones_from_row(row) if row else ()))
                self._connection.execute(
                    "INSERT OR REPLACE INTO tombstones VALUES (?,?,?)",
                    (slot, rests, slot_crc(slot, rests)),
                )
                self._tombstones_seen[ns] = True

    def purge(self, ns: int) -> None:
        """Remove a namespace with all that it holds, tombstones and settings included."""
        self._touch(ns)
        low, high = first_pk(ns), last_pk(ns)
        with self._mapped:
            execute = self._connection.execute
            execute("DELETE FROM chunk_turns WHERE turn BETWEEN ? AND ?", (low, high))
            for table in ("features", "staged_vectors"):
                execute(f"DELETE FROM {table} WHERE chunk BETWEEN ? AND ?", (low, high))
            execute("DELETE FROM chunks WHERE pk BETWEEN ? AND ?", (low, high))
            # the newer turn may go before the older one that points at it
            execute(
                "UPDATE turns SET superseded_by = NULL WHERE superseded_by BETWEEN ? AND ?",
                (low, high),
            )
            for table in ("turns", "arrays", "changes", "snapshots"):
                execute(f"DELETE FROM {table} WHERE namespace = ?", (ns,))
            execute("DELETE FROM tombstones WHERE slot BETWEEN ? AND ?", slots(ns))
            execute("DELETE FROM namespaces WHERE id = ?", (ns,))
        del self._rows[ns]
        self._touched.remove(ns)
        self._tombstones_seen.pop(ns, None)

    # -- turns --------------------------------------------------------------------------

    def insert_turns(self, ns: int, turns: Sequence[TurnRecord]) -> list[int]:
        """Append turns; their pks.

        Raises
        ------
        ConflictError
            If an id is in use, or was deleted.
        """
        row = self._touch(ns)
        for id_ in self.tombstoned(ns, [turn.id for turn in turns]):
            raise ConflictError(f"turn {id_!r}: was deleted, and ids are never used twice")
        start = first_pk(ns) + row.next_turn
        pks = list(range(start, start + len(turns)))
        row.next_turn += len(turns)
        with self._mapped:
            rows = []
            for pk, turn in zip(pks, turns, strict=True):
                fields = (pk, *turn[1:])
                rows.append((*fields, turn_crc(fields), ns))
            try:
                self._connection.executemany(_INSERT_TURN, rows)
            except sqlite3.IntegrityError as error:
                raise self._conflict(ns, turns, start, error) from None
        reach("write:turns")
        return pks

    def update_turn(self, ns: int, turn: TurnRecord) -> None:
        """Write a turn anew, found by its pk. Its chunks are the caller's to replace.

        With another text, what a note says of the turn is forgotten.
        """
        self._touch(ns)
        drop_notes(self, ns, [turn.pk], text=turn.text)
        fields = tuple(turn)
        with self._mapped:
            cursor = self._connection.execute(_UPDATE_TURN, (*fields, turn_crc(fields), ns))
        if cursor.rowcount != 1:
            raise NotFoundError(f"turn {turn.id!r}: no such turn in namespace {ns}")
        self._log_turns(ns, [turn.pk])

    def supersede(self, ns: int, old_pk: int, new_pk: int) -> None:
        """Mark a turn as replaced by a newer one; it stays for history."""
        turns = {turn.pk: turn for turn in self.turns(ns, [old_pk, new_pk])}
        missing = {old_pk, new_pk}.difference(turns)
        if missing or old_pk == new_pk:
            raise NotFoundError(f"supersede: expected two turns of one namespace, got {turns}")
        self.update_turn(ns, turns[old_pk]._replace(superseded_by=new_pk))

    def delete_turns(self, ns: int, pks: Iterable[int]) -> None:
        """Remove turns for good. Of each stays a keyed hash of its id, so it is never reused.

        What they superseded becomes current again. Their chunks have to be deleted or
        replaced in the same transaction.
        """
        self._touch(ns)
        pks = list(pks)
        drop_notes(self, ns, pks)
        salt = self.salt(ns)
        digests = []
        for pk in pks:
            with self._mapped:
                for row in self._connection.execute(
                    "SELECT pk FROM turns WHERE superseded_by = ?", (pk,)
                ).fetchall():
                    for turn in self.turns(ns, row):
                        self.update_turn(ns, turn._replace(superseded_by=None))
                row = self._connection.execute(
                    "DELETE FROM turns WHERE pk = ? AND namespace = ? RETURNING id", (pk, ns)
                ).fetchone()
                if row is None:
                    raise NotFoundError(f"turn {pk}: no such turn in namespace {ns}")
            digests.append(id_digest(salt, row[0]))
        self.put_tombstones(ns, digests)
        reach("write:deleted")

    # -- chunks -------------------------------------------------------------------------

    def insert_chunks(self, ns: int, chunks: Sequence[ChunkRecord]) -> list[int]:
        """Append chunks of turns that are stored already; their pks."""
        row = self._touch(ns)
        start = first_pk(ns) + row.next_chunk
        pks = list(range(start, start + len(chunks)))
        row.next_chunk += len(chunks)
        rows, links, features = [], [], []
        with self._mapped:
            for pk, chunk in zip(pks, chunks, strict=True):
                fields = _chunk_fields(pk, chunk)
                rows.append((*fields, chunk_crc(fields)))
                links += [(span[0], pk) for span in chunk.spans]
                features.append(_features(pk, chunk))
            execute_many = self._connection.executemany
            execute_many(_INSERT_CHUNK, rows)
            execute_many("INSERT OR IGNORE INTO chunk_turns VALUES (?,?)", links)
            execute_many(_PUT_FEATURES, features)
        reach("write:chunks")
        return pks

    def replace_chunk(self, ns: int, chunk: ChunkRecord) -> None:
        """Write a chunk anew, found by its pk: spans, texts' derivatives, vector and atom."""
        self._touch(ns)
        fields = _chunk_fields(chunk.pk, chunk)
        with self._mapped:
            execute = self._connection.execute
            old = execute("SELECT spans FROM chunks WHERE pk = ?", (chunk.pk,)).fetchone()
            if old is None or not first_pk(ns) < chunk.pk <= last_pk(ns):
                raise NotFoundError(f"chunk {chunk.id!r}: no such chunk in namespace {ns}")
            self._unlink(chunk.pk, old[0])
            execute(_UPDATE_CHUNK, (*fields, chunk_crc(fields)))
            self._connection.executemany(
                "INSERT OR IGNORE INTO chunk_turns VALUES (?,?)",
                [(span[0], chunk.pk) for span in chunk.spans],
            )
            execute(_PUT_FEATURES, _features(chunk.pk, chunk))
            execute("DELETE FROM staged_vectors WHERE chunk = ?", (chunk.pk,))
        self._log(ns, [chunk.pk])

    def set_atoms(self, ns: int, atoms: Iterable[tuple[int, int | None]]) -> None:
        """Assign chunks, given by pk, to atoms; None takes a chunk out of its atom."""
        self._touch(ns)
        wanted = dict(atoms)
        rows = []
        for row in self._bare_chunks(ns, list(wanted)):
            fields = (*row[: CHUNK_FIELDS - 1], wanted[row[0]])
            rows.append((fields[-1], chunk_crc(fields), row[0]))
        if len(rows) < len(wanted):
            raise NotFoundError(f"set_atoms: {len(wanted) - len(rows)} chunks do not exist")
        with self._mapped:
            self._connection.executemany("UPDATE chunks SET atom = ?, crc = ? WHERE pk = ?", rows)
        self._log(ns, wanted)

    def set_vectors(self, ns: int, vectors: Iterable[tuple[int, bytes]]) -> None:
        """Give chunks, given by pk, their vectors."""
        self._touch(ns)
        wanted = dict(vectors)
        chunks = [chunk._replace(vector=wanted[chunk.pk]) for chunk in self.chunks(ns, [*wanted])]
        if len(chunks) < len(wanted):
            raise NotFoundError(f"set_vectors: {len(wanted) - len(chunks)} chunks do not exist")
        with self._mapped:
            self._connection.executemany(
                _PUT_FEATURES, [_features(chunk.pk, chunk) for chunk in chunks]
            )
        self._log(ns, wanted)

    def stage_vectors(self, ns: int, vectors: Iterable[tuple[int, bytes]]) -> None:
        """Put aside vectors of the next embedder, by chunk pk; nothing else sees them yet.

        So a namespace can be embedded anew step by step, and stays usable meanwhile.
        """
        with self._mapped:
            try:
                self._connection.executemany(
                    "INSERT OR REPLACE INTO staged_vectors VALUES (?,?,?)",
                    [(pk, data, features_crc(pk, b"", 0, data)) for pk, data in vectors],
                )
            except sqlite3.IntegrityError:
                raise NotFoundError("stage_vectors: a chunk does not exist (any more)") from None

    def adopt_staged(self, ns: int) -> None:
        """Make the vectors put aside the real ones, all at once.

        Raises
        ------
        InvalidInputError
            If a chunk has none yet.
        """
        if self.unstaged_chunks(ns, 1):
            raise InvalidInputError("adopt_staged: some chunks have no staged vector yet")
        self._touch(ns)
        bounds = (first_pk(ns), last_pk(ns))
        sql = (
            "SELECT f.chunk, f.terms, f.analyser, s.data, s.crc FROM features f "
            "JOIN staged_vectors s ON s.chunk = f.chunk WHERE f.chunk > ? AND f.chunk <= ? "
            "ORDER BY f.chunk LIMIT 1000"
        )
        low = bounds[0]
        while rows := self._all(sql, (low, bounds[1])):
            for pk, _, _, data, crc in rows:
                if features_crc(pk, b"", 0, data) != crc:
                    raise damaged("staged vector of chunk", pk)
            with self._mapped:
                self._connection.executemany(
                    _PUT_FEATURES,
                    [(*row[:4], features_crc(row[0], *row[1:4])) for row in rows],
                )
            self._log(ns, [row[0] for row in rows])
            low = rows[-1][0]
        self.drop_staged(ns)

    def drop_staged(self, ns: int) -> None:
        """Throw away the vectors that were put aside."""
        with self._mapped:
            self._connection.execute(
                "DELETE FROM staged_vectors WHERE chunk BETWEEN ? AND ?",
                (first_pk(ns), last_pk(ns)),
            )

    def name_snapshot(self, ns: int, generation: int, token: bytes) -> None:
        """Say which sidecar snapshot belongs to the namespace. Not a change of its content."""
        with self._mapped:
            self._connection.execute(
                "INSERT OR REPLACE INTO snapshots VALUES (?,?,?,?)",
                (ns, generation, token, text_crc(ns, generation, token)),
            )

    def delete_chunks(self, ns: int, pks: Iterable[int]) -> None:
        """Remove chunks; their turns stay."""
        self._touch(ns)
        pks = list(pks)
        with self._mapped:
            execute = self._connection.execute
            for pk in pks:
                row = execute("SELECT spans FROM chunks WHERE pk = ?", (pk,)).fetchone()
                if row is None or not first_pk(ns) < pk <= last_pk(ns):
                    raise NotFoundError(f"chunk {pk}: no such chunk in namespace {ns}")
                self._unlink(pk, row[0])
                for table in ("features", "staged_vectors"):
                    execute(f"DELETE FROM {table} WHERE chunk = ?", (pk,))
                execute("DELETE FROM chunks WHERE pk = ?", (pk,))
        self._log(ns, pks)
        reach("write:deleted")

    # -- plumbing -----------------------------------------------------------------------

    def namespace(self, key: str) -> NamespaceRecord | None:
        """The namespace of exactly this key, with what this transaction changed."""
        record = super().namespace(key)
        return None if record is None else self.namespace_by_id(record.id)

    def generation(self, ns: int) -> int:
        """The generation that the namespace has, or will have once this is committed."""
        return self._namespace(ns).generation

    def next_chunk_pk(self, ns: int) -> int:
        """The pk that `insert_chunks` gives next."""
        return first_pk(ns) + self._namespace(ns).next_chunk

    def finish(self) -> None:
        """Write back the counters. `Store.write` calls it just before it commits."""
        with self._mapped:
            for ns in self._touched:
                row = self._rows[ns]
                fields = row.fields()
                crc = namespace_crc(fields)
                self._connection.execute(_UPDATE_NAMESPACE, (*fields, crc))
                self.written[ns] = KeptRow(row, crc, self._has_tombstones(ns))

    def drop_log(self) -> None:
        """Forget which chunks changed; who is behind will have to read everything anew."""
        for record in self.namespaces():
            self._touch(record.id).log_floor = record.generation
        with self._mapped:
            self._connection.execute("DELETE FROM changes")

    def _touch(self, ns: int) -> NamespaceRow:
        """The namespace's row, to be written back by `finish` with the next generation."""
        row = self._namespace(ns)
        if ns not in self._touched:
            self._touched.add(ns)
            row.generation += 1
        return row

    def _namespace(self, ns: int) -> NamespaceRow:
        """The row, read once: nobody else can change it while this transaction is open."""
        row = self._rows.get(ns)
        if row is None:
            kept = self._kept.pop(ns, None)
            if kept is None or self._in_file:
                found = self._one(_EDITION, (ns, *slots(ns)))
                if found is None:
                    raise purged(ns)
                generation, crc, tombstones = found
                if kept is None or (kept.row.generation, kept.crc) != (generation, crc):
                    kept = KeptRow(super()._namespace(ns), crc, bool(tombstones))
            row = self._rows[ns] = kept.row
            self._tombstones_seen.setdefault(ns, kept.tombstones)
        return row

    def _has_tombstones(self, ns: int) -> bool:
        seen = self._tombstones_seen.get(ns)
        if seen is None:
            seen = self._tombstones_seen[ns] = super()._has_tombstones(ns)
        return seen

    def _log(self, ns: int, pks: Iterable[int]) -> None:
        """Note chunks that changed or went; new ones are found by their pk."""
        generation = self._touch(ns).generation
        with self._mapped:
            self._connection.executemany(
                "INSERT OR IGNORE INTO changes VALUES (?,?,?)", [(ns, generation, pk) for pk in pks]
            )

    def _log_turns(self, ns: int, pks: Sequence[int]) -> None:
        sql = "SELECT chunk FROM chunk_turns WHERE turn = ?"
        self._log(ns, [chunk for pk in pks for (chunk,) in self._all(sql, (pk,))])

    def _unlink(self, pk: int, spans: bytes) -> None:
        self._connection.executemany(
            "DELETE FROM chunk_turns WHERE turn = ? AND chunk = ?",
            [(turn, pk) for turn, _, _ in unpack_spans(spans)],
        )

    def _conflict(
        self, ns: int, turns: Sequence[TurnRecord], start: int, error: sqlite3.IntegrityError
    ) -> InvalidInputError:
        """The error for turns that could not be inserted from pk ``start`` on."""
        seen: set[str] = set()
        for turn in turns:
            stored = self.turn(ns, turn.id)
            if turn.id in seen or (stored is not None and stored.pk < start):
                return ConflictError(
                    f"turn {turn.id!r}: the id is in use; give another one, or use update"
                )
            seen.add(turn.id)
        return InvalidInputError(f"turns: cannot be stored ({error})")


def _dump(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, ensure_ascii=False, allow_nan=False)


def check_namespace_key(key: str) -> None:
    """Refuse keys that could be mistaken for a path or cannot be stored.

    Raises
    ------
    InvalidInputError
        Unless the key is text of 1 to 256 characters without NUL, lone surrogates and
        path components ``.`` or ``..``.
    """
    if not isinstance(key, str) or not 1 <= len(key) <= _MAX_KEY:
        raise InvalidInputError(
            f"namespace: expected text of 1 to {_MAX_KEY} characters, got {key!r:.80}"
        )
    bad = "\0" in key or any("\ud800" <= char <= "\udfff" for char in key)
    if bad or not {".", ".."}.isdisjoint(key.replace("\\", "/").split("/")):
        raise InvalidInputError(
            "namespace: expected text without NUL, lone surrogates and the path components "
            f"'.' and '..', got {key!r}"
        )


def _chunk_fields(pk: int, chunk: ChunkRecord) -> tuple[Any, ...]:
    return (
        pk, chunk.id, pack_spans(chunk.spans), chunk.session, chunk.micros, chunk.offset_minutes,
        chunk.tokens, chunk.line_tokens, chunk.text_hash, chunk.step, chunk.truncated, chunk.atom,
    )  # fmt: skip


def _features(pk: int, chunk: ChunkRecord) -> tuple[Any, ...]:
    terms, analyser, vector = chunk.terms, chunk.analyser, chunk.vector
    return pk, terms, analyser, vector, features_crc(pk, terms, analyser, vector)
