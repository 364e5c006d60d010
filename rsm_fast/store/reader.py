"""Everything that can be asked of a store, in one consistent snapshot."""

from __future__ import annotations

import itertools
import json
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rsm_fast.errors import CorruptStoreError, NotFoundError
from rsm_fast.store.failures import mapped
from rsm_fast.store.filters import Params, compile_where
from rsm_fast.store.records import (
    CHUNK_FIELDS,
    STEP_NONE,
    Changes,
    ChunkColumns,
    ChunkRecord,
    NamespaceRecord,
    NamespaceRow,
    PiecePart,
    PieceRecord,
    TurnRecord,
    check_chunk,
    check_features,
    check_turn,
    chunk_from_row,
    damaged,
    first_pk,
    last_pk,
    namespace_crc,
    plain_dtype,
    text_crc,
    turn_from_row,
    unpack_spans,
)
from rsm_fast.store.tombstones import id_digest, slot_crc, slot_of, slots, split

__all__ = ["Reader", "array_from_row", "namespace_from_row", "purged", "tombstones_from_row"]

TURN_COLUMNS: Final = (
    "t.pk, t.id, t.role, t.text, t.micros, t.offset_minutes, t.time_given, t.session, "
    "t.metadata, t.expires_at, t.superseded_by, t.crc"
)
CHUNK_COLUMNS: Final = (
    "c.pk, c.id, c.spans, c.session, c.micros, c.offset_minutes, c.tokens, c.line_tokens, "
    "c.text_hash, c.step, c.truncated, c.atom, c.crc"
)
_CHUNKS: Final = (
    f"SELECT {CHUNK_COLUMNS}, f.terms, f.analyser, f.vector, f.crc "
    "FROM chunks c LEFT JOIN features f ON f.chunk = c.pk "
)
_BARE_CHUNKS: Final = f"SELECT {CHUNK_COLUMNS} FROM chunks c "
_TURNS: Final = f"SELECT {TURN_COLUMNS} FROM turns t "
NAMESPACE_COLUMNS: Final = (
    "id, key, salt, settings, generation, next_turn, next_chunk, next_auto, next_atom, "
    "log_floor, crc"
)
_NAMESPACE: Final = f"SELECT {NAMESPACE_COLUMNS} FROM namespaces WHERE id = ?"
_TOMBSTONES: Final = "SELECT slot, digests, crc FROM tombstones"
_BATCH: Final = 1000
_MAX_MARKS: Final = 512


class Reader:
    """Queries over one snapshot. Made by `Store.read`; valid inside its ``with`` block only.

    ``ns`` is always the number of a namespace, `NamespaceRecord.id`. Every method raises
    `CorruptStoreError` where stored bytes do not match their checksum.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self._connection = connection
        self._mapped = mapped(path)

    # -- namespaces ---------------------------------------------------------------------

    def namespaces(self) -> list[NamespaceRecord]:
        """All namespaces, by key."""
        rows = self._all(f"SELECT {NAMESPACE_COLUMNS} FROM namespaces ORDER BY key")
        return [namespace_from_row(row).record() for row in rows]

    def namespace(self, key: str) -> NamespaceRecord | None:
        """The namespace of exactly this key."""
        row = self._one(f"SELECT {NAMESPACE_COLUMNS} FROM namespaces WHERE key = ?", (key,))
        return namespace_from_row(row).record() if row else None

    def namespace_by_id(self, ns: int) -> NamespaceRecord:
        """The namespace of this number; NotFoundError if it was purged."""
        return self._namespace(ns).record()

    def generation(self, ns: int) -> int:
        """The number of the last write to the namespace; NotFoundError if it was purged."""
        row = self._one("SELECT generation FROM namespaces WHERE id = ?", (ns,))
        if row is None:
            raise purged(ns)
        return int(row[0])

    def array(self, ns: int, name: str) -> npt.NDArray[Any] | None:
        """A copy of an array kept by `Writer.put_array`."""
        row = self._one(
            "SELECT namespace, name, dtype, shape, data, crc FROM arrays "
            "WHERE namespace = ? AND name = ?",
            (ns, name),
        )
        return array_from_row(row) if row else None

    def array_names(self, ns: int) -> list[str]:
        """Names of the arrays that are kept, sorted."""
        rows = self._all("SELECT name FROM arrays WHERE namespace = ? ORDER BY name", (ns,))
        return [name for (name,) in rows]

    def salt(self, ns: int) -> bytes:
        """What the ids of deleted turns are hashed with."""
        row = self._one("SELECT salt FROM namespaces WHERE id = ?", (ns,))
        if row is None:
            raise purged(ns)
        return bytes(row[0])

    def counts(self, ns: int) -> tuple[int, int]:
        """How many turns and chunks the namespace has."""
        bounds = (first_pk(ns), last_pk(ns))
        (turns,) = self._one("SELECT count(*) FROM turns WHERE namespace = ?", (ns,)) or (0,)
        (chunks,) = self._one("SELECT count(*) FROM chunks WHERE pk BETWEEN ? AND ?", bounds) or (
            0,
        )
        return turns, chunks

    # -- turns --------------------------------------------------------------------------

    def turn(self, ns: int, id: str) -> TurnRecord | None:  # noqa: A002
        """The turn of this id."""
        row = self._one(_TURNS + "WHERE t.namespace = ? AND t.id = ?", (ns, id))
        return turn_from_row(row) if row else None

    def turns(self, ns: int, pks: Sequence[int]) -> list[TurnRecord]:
        """The turns of these pks, in the order asked; missing ones are left out."""
        found = {row[0]: row for row in self._by_pk(_TURNS, "t.pk", ns, pks)}
        return [turn_from_row(found[pk]) for pk in pks if pk in found]

    def turn_id(self, pk: int) -> str:
        """The id of the turn of this pk; CorruptStoreError if something refers to none."""
        row = self._one("SELECT id FROM turns WHERE pk = ?", (pk,))
        if row is None:
            raise CorruptStoreError(
                f"turn {pk}: is referred to, but missing; run `rsm-fast doctor`"
            )
        return str(row[0])

    def turns_by_id(self, ns: int, ids: Sequence[str]) -> dict[str, TurnRecord]:
        """Those of the ids that exist."""
        sql = _TURNS + "WHERE t.namespace = ? AND t.id IN "
        rows = (row for part in _parts(ids) for row in self._all(sql + _marks(part), (ns, *part)))
        return {row[1]: turn_from_row(row) for row in rows}

    def any_id_between(self, ns: int, first: str, last: str) -> bool:
        """Whether a turn has an id from ``first`` to ``last``, both included."""
        sql = "SELECT 1 FROM turns WHERE namespace = ? AND id BETWEEN ? AND ? LIMIT 1"
        return self._one(sql, (ns, first, last)) is not None

    def tombstoned(self, ns: int, ids: Sequence[str]) -> set[str]:
        """Those of the ids that were deleted, and therefore may not be used again."""
        if not self._has_tombstones(ns):
            return set()
        salt = self.salt(ns)
        digests = {id_digest(salt, id_): id_ for id_ in ids}
        wanted = sorted({slot_of(ns, digest) for digest in digests})
        sql = f"{_TOMBSTONES} WHERE slot IN "
        rows = (row for part in _parts(wanted) for row in self._all(sql + _marks(part), part))
        return {
            digests[digest]
            for row in rows
            for digest in tombstones_from_row(row)
            if digest in digests
        }

    def all_turns(self, ns: int) -> Iterator[TurnRecord]:
        """Every turn in arrival order, read as they are asked for."""
        sql = _TURNS + "WHERE t.pk BETWEEN ? AND ? ORDER BY t.pk"
        return map(turn_from_row, self._stream(sql, (first_pk(ns), last_pk(ns))))

    def session_turns(
        self, ns: int, session: str | None, *, last: int | None = None
    ) -> list[TurnRecord]:
        """The turns of one session in arrival order, or the ``last`` of them."""
        sql = (
            _TURNS + "WHERE t.pk BETWEEN ? AND ? AND t.session IS ? ORDER BY t.pk DESC "
            "LIMIT coalesce(?, -1)"
        )
        rows = self._all(sql, (first_pk(ns), last_pk(ns), session, last))
        return [turn_from_row(row) for row in reversed(rows)]

    def matching_turns(
        self,
        ns: int,
        *,
        where: Mapping[str, Any] | None = None,
        before: int | None = None,
    ) -> list[int]:
        """Pks of the turns that a filter selects, ascending; ``before``: micros, exclusive."""
        condition, params = compile_where(where)
        params.update(first=first_pk(ns), last=last_pk(ns))
        sql = f"SELECT t.pk FROM turns t WHERE t.pk BETWEEN :first AND :last AND ({condition})"
        if before is not None:
            sql += " AND t.micros < :before"
            params["before"] = before
        return [pk for (pk,) in self._all(sql + " ORDER BY t.pk", params)]

    def expired_turns(self, ns: int, now: int) -> list[int]:
        """Pks of the turns whose time to live has passed at ``now`` (micros)."""
        sql = "SELECT pk FROM turns WHERE namespace = ? AND expires_at <= ? ORDER BY pk"
        return [pk for (pk,) in self._all(sql, (ns, now))]

    # -- chunks -------------------------------------------------------------------------

    def chunks(self, ns: int, pks: Sequence[int]) -> list[ChunkRecord]:
        """The chunks of these pks, in the order asked; missing ones are left out."""
        found = {row[0]: row for row in self._by_pk(_CHUNKS, "c.pk", ns, pks)}
        return [chunk_from_row(found[pk]) for pk in pks if pk in found]

    def chunks_of_turns(self, ns: int, turn_pks: Sequence[int]) -> list[ChunkRecord]:
        """The chunks that hold a part of one of these turns, ascending pk."""
        sql = "SELECT DISTINCT chunk FROM chunk_turns WHERE turn IN "
        pks = {pk for part in _parts(turn_pks) for (pk,) in self._all(sql + _marks(part), part)}
        return self.chunks(ns, sorted(pks))

    def chunk_by_id(self, ns: int, chunk_id: str) -> ChunkRecord | None:
        """The chunk of this id, ``firstturn#part``."""
        turn_id, mark, _ = chunk_id.rpartition("#")
        row = self._one("SELECT pk FROM turns WHERE namespace = ? AND id = ?", (ns, turn_id))
        if not mark or row is None:
            return None
        chunks = self.chunks_of_turns(ns, [row[0]])
        return next((chunk for chunk in chunks if chunk.id == chunk_id), None)

    def all_chunks(self, ns: int) -> Iterator[ChunkRecord]:
        """Every chunk in arrival order, read as they are asked for."""
        sql = _CHUNKS + "WHERE c.pk BETWEEN ? AND ? ORDER BY c.pk"
        return map(chunk_from_row, self._stream(sql, (first_pk(ns), last_pk(ns))))

    def open_chunks(self, ns: int) -> list[ChunkRecord]:
        """The chunks without a vector, ascending pk."""
        sql = _CHUNKS + "WHERE c.pk BETWEEN ? AND ? AND f.vector IS NULL ORDER BY c.pk"
        return [chunk_from_row(row) for row in self._all(sql, (first_pk(ns), last_pk(ns)))]

    def columns(self, ns: int, dim: int) -> ChunkColumns:
        """All chunks as columns, vectors as one block.

        Parameters
        ----------
        dim : int
            Length of the vectors.

        Raises
        ------
        CorruptStoreError
            If a vector has another length.
        """
        _, n = self.counts(ns)
        integers = np.empty((9, n), np.int64)
        flags = np.zeros((2, n), np.uint8)
        vector = np.zeros((n, dim), np.float32)
        sessions: dict[str | None, int] = {None: -1}
        terms: list[bytes] = []
        sql = _CHUNKS + "WHERE c.pk BETWEEN ? AND ? ORDER BY c.pk"
        start = 0
        for rows in self._batches(sql, (first_pk(ns), last_pk(ns))):
            stop = start + len(rows)
            for row in rows:
                check_chunk(row)
                check_features(row[0], *row[CHUNK_FIELDS + 1 :])
            (
                pk, _, _, names, micros, offsets, tokens, _, hashes, steps, truncated, atoms, _,
                packed, analyser, vectors, _,
            ) = zip(*rows, strict=True)  # fmt: skip
            for name in names:
                sessions.setdefault(name, len(sessions) - 1)
            integers[:, start:stop] = (
                pk,
                micros,
                hashes,
                [STEP_NONE if step is None else step for step in steps],
                offsets,
                tokens,
                [-1 if atom is None else atom for atom in atoms],
                [sessions[name] for name in names],
                analyser,
            )
            flags[0, start:stop] = truncated
            _fill_vectors(vector[start:stop], flags[1, start:stop], pk, vectors)
            terms.extend(packed)
            start = stop
        small = integers[4:].astype(np.int32)
        return ChunkColumns(
            pk=integers[0],
            micros=integers[1],
            text_hash=integers[2],
            step=integers[3],
            offset_minutes=small[0],
            tokens=small[1],
            atom=small[2],
            session=small[3],
            session_names=[name for name in sessions if name is not None],
            analyser=small[4],
            truncated=flags[0],
            has_vector=flags[1],
            vector=vector,
            terms=terms,
        )

    def vectors(self, ns: int, pks: Sequence[int], dim: int) -> npt.NDArray[np.float32]:
        """Raw vectors of chunks, float32[n, dim]; NotFoundError where one has none."""
        out = np.zeros((len(pks), dim), np.float32)
        found = {chunk.pk: chunk.vector for chunk in self.chunks(ns, list(dict.fromkeys(pks)))}
        missing = [pk for pk in pks if found.get(pk) is None]
        if missing:
            raise NotFoundError(f"chunk {missing[0]} has no vector")
        _fill_vectors(out, np.zeros(len(pks), np.uint8), pks, [found[pk] for pk in pks])
        return out

    def changes_since(self, ns: int, generation: int, newest_pk: int) -> Changes:
        """What was committed after ``generation``.

        Parameters
        ----------
        generation : int
            The generation that the caller knows.
        newest_pk : int
            The highest chunk pk that the caller holds; 0 for none.
        """
        namespace = self._namespace(ns)
        if generation == namespace.generation:
            return Changes(False, generation, [], [])
        if not namespace.log_floor <= generation < namespace.generation:
            return Changes(True, namespace.generation, [], [])
        sql = "SELECT DISTINCT chunk FROM changes WHERE namespace = ? AND generation > ?"
        touched = [pk for (pk,) in self._all(sql, (ns, generation)) if pk <= newest_pk]
        changed = self.chunks(ns, sorted(touched))
        sql = _CHUNKS + "WHERE c.pk > ? AND c.pk <= ? ORDER BY c.pk"
        new = self._all(sql, (max(newest_pk, first_pk(ns)), last_pk(ns)))
        removed = set(touched).difference(chunk.pk for chunk in changed)
        upserts = changed + [chunk_from_row(row) for row in new]
        return Changes(False, namespace.generation, sorted(removed), upserts)

    def pieces(self, ns: int, chunk_pks: Sequence[int]) -> list[PieceRecord]:
        """Chunks with their texts, in the order asked; missing ones are left out."""
        found = {row[0]: (row, unpack_spans(row[2])) for row in self._bare_chunks(ns, chunk_pks)}
        wanted = {span[0] for _, spans in found.values() for span in spans}
        turns = {}
        for row in self._by_pk(_TURNS, "t.pk", ns, list(wanted)):
            check_turn(row)
            turns[row[0]] = row
        pieces = []
        for pk in chunk_pks:
            if pk not in found:
                continue
            row, spans = found[pk]
            try:
                parts = tuple(
                    PiecePart(turn[1], turn[2], turn[3][start:stop], turn_pk)
                    for turn_pk, start, stop in spans
                    for turn in (turns[turn_pk],)
                )
            except KeyError as error:
                raise CorruptStoreError(
                    f"chunk {pk}: its turn {error} is missing; run `rsm-fast doctor`"
                ) from None
            _, id_, _, session, micros, offset, tokens, lines, _, step, truncated, atom, _ = row
            pieces.append(
                PieceRecord(
                    pk,
                    id_,
                    session,
                    micros,
                    offset,
                    tokens,
                    lines,
                    step,
                    bool(truncated),
                    atom,
                    parts,
                )  # fmt: skip
            )
        return pieces

    # -- filters ------------------------------------------------------------------------

    def eligible_chunks(
        self,
        ns: int,
        *,
        where: Mapping[str, Any] | None = None,
        as_of: int | None = None,
        now: int | None = None,
        superseded: bool = False,
    ) -> npt.NDArray[np.int64]:
        """Pks of the chunks all of whose turns match, ascending.

        Parameters
        ----------
        where : mapping, optional
            See `rsm_fast.store.filters`.
        as_of : int, optional
            Micros: only turns up to then, and what was superseded later still counts.
        now : int, optional
            Micros: turns that expired by then do not count. Default: the current time.
        superseded : bool, default False
            Let superseded turns count as well.
        """
        condition, params = compile_where(where)
        params.update(first=first_pk(ns), last=last_pk(ns), as_of=as_of)
        params["now"] = time.time_ns() // 1000 if now is None else now
        conditions = [condition, "(t.expires_at IS NULL OR t.expires_at > :now)"]
        if as_of is not None:
            conditions.append("t.micros <= :as_of")
        if not superseded:
            later = "(SELECT n.micros FROM turns n WHERE n.pk = t.superseded_by) > :as_of"
            conditions.append(f"(t.superseded_by IS NULL OR coalesce({later}, 0))")
        sql = (
            f"SELECT CASE WHEN {' AND '.join(conditions)} THEN s.chunk ELSE -s.chunk END "
            "FROM turns t CROSS JOIN chunk_turns s ON s.turn = t.pk "
            "WHERE t.pk BETWEEN :first AND :last"
        )
        with self._mapped:
            cells = itertools.chain.from_iterable(self._connection.execute(sql, params))
            signed = np.fromiter(cells, np.int64)
        if not len(signed):
            return signed
        numbers = np.abs(signed) - first_pk(ns)
        if numbers.min() < 1 or numbers.max() >= 2**31:
            raise damaged("links to chunks of namespace", ns)
        eligible = np.zeros(numbers.max() + 1, bool)
        eligible[numbers] = True
        eligible[numbers[signed < 0]] = False
        return np.flatnonzero(eligible) + first_pk(ns)

    def tombstones(self, ns: int) -> Iterator[list[bytes]]:
        """The hashes that deleted ids left behind, ascending, in lists of some size."""
        rows = self._all(f"{_TOMBSTONES} WHERE slot BETWEEN ? AND ? ORDER BY slot", slots(ns))
        return map(tombstones_from_row, rows)

    def superseded(self, ns: int) -> dict[int, int]:
        """Chunks with a superseded turn, and the micros from which they are (the newer turn's)."""
        sql = (
            "SELECT s.chunk, min(n.micros) FROM turns t JOIN turns n ON n.pk = t.superseded_by "
            "JOIN chunk_turns s ON s.turn = t.pk WHERE t.superseded_by BETWEEN ? AND ? "
            "GROUP BY s.chunk"
        )
        return dict(self._all(sql, (first_pk(ns), last_pk(ns))))

    def expiring(self, ns: int) -> dict[int, int]:
        """Chunks with a time to live, and the micros at which the first of their turns expires."""
        sql = (
            "SELECT s.chunk, min(t.expires_at) FROM turns t JOIN chunk_turns s ON s.turn = t.pk "
            "WHERE t.namespace = ? AND t.expires_at IS NOT NULL GROUP BY s.chunk"
        )
        return dict(self._all(sql, (ns,)))

    # -- housekeeping -------------------------------------------------------------------

    def log_reaches(self, ns: int, generation: int) -> bool:
        """Whether `changes_since` can tell what happened since then."""
        namespace = self._namespace(ns)
        return namespace.log_floor <= generation <= namespace.generation

    def snapshot_name(self, ns: int) -> tuple[int, bytes] | None:
        """Generation and token of the sidecar snapshot that belongs to the namespace."""
        row = self._one("SELECT * FROM snapshots WHERE namespace = ?", (ns,))
        if row is None:
            return None
        if text_crc(*row[:-1]) != row[-1]:
            raise damaged("snapshot name of namespace", ns)
        return row[1], row[2]

    def unstaged_chunks(self, ns: int, limit: int) -> list[int]:
        """Pks of up to ``limit`` chunks without a vector of the next embedder, ascending."""
        sql = (
            "SELECT c.pk FROM chunks c LEFT JOIN staged_vectors s ON s.chunk = c.pk "
            "WHERE c.pk BETWEEN ? AND ? AND s.chunk IS NULL ORDER BY c.pk LIMIT ?"
        )
        return [pk for (pk,) in self._all(sql, (first_pk(ns), last_pk(ns), limit))]

    def unchunked_turns(self, ns: int) -> list[TurnRecord]:
        """Turns that stand in no chunk: a repair dropped it. Ascending pk."""
        sql = _TURNS + (
            "LEFT JOIN chunk_turns s ON s.turn = t.pk WHERE t.pk BETWEEN ? AND ? "
            "AND s.turn IS NULL ORDER BY t.pk"
        )
        return [turn_from_row(row) for row in self._all(sql, (first_pk(ns), last_pk(ns)))]

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Unchecked rows of any query; for repair and salvage."""
        return self._all(sql, params)

    # -- plumbing -----------------------------------------------------------------------

    def _namespace(self, ns: int) -> NamespaceRow:
        row = self._one(_NAMESPACE, (ns,))
        if row is None:
            raise purged(ns)
        return namespace_from_row(row)

    def _has_tombstones(self, ns: int) -> bool:
        sql = "SELECT 1 FROM tombstones WHERE slot BETWEEN ? AND ? LIMIT 1"
        return self._one(sql, slots(ns)) is not None

    def _bare_chunks(self, ns: int, pks: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        """Checked rows of table ``chunks``, in no order."""
        for row in self._by_pk(_BARE_CHUNKS, "c.pk", ns, pks):
            check_chunk(row)
            yield row

    def _one(self, sql: str, params: Sequence[Any] | Params = ()) -> tuple[Any, ...] | None:
        with self._mapped:
            row: tuple[Any, ...] | None = self._connection.execute(sql, params).fetchone()
            return row

    def _all(self, sql: str, params: Sequence[Any] | Params = ()) -> list[tuple[Any, ...]]:
        with self._mapped:
            return self._connection.execute(sql, params).fetchall()

    def _batches(self, sql: str, params: Sequence[Any]) -> Iterator[list[tuple[Any, ...]]]:
        with self._mapped:
            cursor = self._connection.execute(sql, params)
        while True:
            with self._mapped:
                rows = cursor.fetchmany(_BATCH)
            if not rows:
                return
            yield rows

    def _stream(self, sql: str, params: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        for rows in self._batches(sql, params):
            yield from rows

    def _by_pk(
        self, select: str, column: str, ns: int, pks: Sequence[int]
    ) -> Iterator[tuple[Any, ...]]:
        """Rows of the given pks, those of other namespaces left out, in no order."""
        low, high = first_pk(ns), last_pk(ns)
        for part in _parts([int(pk) for pk in pks if low < pk <= high]):
            yield from self._all(f"{select}WHERE {column} IN {_marks(part)}", part)


def namespace_from_row(row: tuple[Any, ...]) -> NamespaceRow:
    """A namespace from its stored fields and their CRC."""
    if namespace_crc(row[:-1]) != row[-1]:
        raise damaged("namespace", row[0])
    return NamespaceRow(*row[:-1])


def array_from_row(row: tuple[Any, ...]) -> npt.NDArray[Any]:
    """An array from its row in table ``arrays``."""
    ns, name, dtype, shape, data, crc = row
    if not isinstance(data, bytes) or text_crc(ns, name, dtype, shape, zlib.crc32(data)) != crc:
        raise damaged(f"array {name!r} of namespace", ns)
    try:
        return np.frombuffer(data, plain_dtype(dtype)).reshape(json.loads(shape)).copy()
    except (TypeError, ValueError, OverflowError):  # made by somebody who knew the checksum
        raise damaged(f"array {name!r} of namespace", ns) from None


def tombstones_from_row(row: tuple[Any, ...]) -> list[bytes]:
    """The hashes of deleted ids that stand in a row of table ``tombstones``."""
    slot, rests, crc = row
    if not isinstance(rests, bytes) or slot_crc(slot, rests) != crc:
        raise damaged("tombstones", slot)
    return split(slot, rests)


def _fill_vectors(
    out: npt.NDArray[np.float32],
    present: npt.NDArray[np.uint8],
    pks: Iterable[int],
    vectors: Sequence[bytes | None],
) -> None:
    size = out.shape[1] * 4
    for pk, data in zip(pks, vectors, strict=True):
        if data is not None and len(data) != size:
            raise CorruptStoreError(
                f"chunk {pk}: expected a vector of {out.shape[1]} float32 values, "
                f"got {len(data)} bytes; the namespace's settings name another dimension"
            )
    present[:] = [data is not None for data in vectors]
    block = b"".join(data for data in vectors if data is not None)
    rows = np.frombuffer(block, "<f4").reshape(-1, out.shape[1])
    if len(rows) == len(out):
        out[:] = rows
    else:
        out[present != 0] = rows


def purged(ns: int) -> NotFoundError:
    """The error for a namespace that is gone."""
    return NotFoundError(f"namespace {ns}: it was purged; open it by its key to start anew")


def _parts(values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The values in runs whose length is a power of two, the last one repeated to fill up.

    Few different lengths mean few different statements to prepare.
    """
    for start in range(0, len(values), _MAX_MARKS):
        part = tuple(values[start : start + _MAX_MARKS])
        fill = (1 << (len(part) - 1).bit_length()) - len(part)
        yield part + part[-1:] * fill


def _marks(part: Sequence[Any]) -> str:
    return f"({','.join('?' * len(part))})"
