"""What ``doctor`` holds against a store, and what of it can be put right.

Texts, ids, roles and settings are the truth: damage to them is reported. Everything else is
derived, and `repair` drops or rebuilds what of it is damaged.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rsm_fast.errors import CorruptStoreError, RSMError
from rsm_fast.store.failures import mapped
from rsm_fast.store.notes import (
    EVOLUTION_COLUMNS,
    NOTE_COLUMNS,
    evolution_from_row,
    note_from_row,
)
from rsm_fast.store.reader import (
    CHUNK_COLUMNS,
    NAMESPACE_COLUMNS,
    TURN_COLUMNS,
    array_from_row,
    namespace_from_row,
    tombstones_from_row,
)
from rsm_fast.store.records import (
    check_chunk,
    check_features,
    check_turn,
    features_crc,
    first_pk,
    last_pk,
    namespace_of,
    text_crc,
    unpack_spans,
)
from rsm_fast.store.schema import check_identity, check_objects
from rsm_fast.store.snapshots import read_snapshot, remove_snapshots, snapshot_path
from rsm_fast.store.wal import lost_commits
from rsm_fast.store.writer import Writer

__all__ = ["Finding", "find", "put_right"]

_MODE: Final = 0o600
_MOST: Final = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes
    ----------
    table : str
        Where: a table, or ``"file"``, ``"schema"``, ``"structure"``, ``"index"``.
    key : int, str or None
        Which row: pk of a turn or chunk, number of a namespace.
    message : str
        What is wrong.
    remedy : str
        What `repair` does about it; empty if nothing can be done without losing something.
    """

    table: str
    key: int | str | None
    message: str
    remedy: str


def find(connection: sqlite3.Connection, path: Path | None, *, most: int = _MOST) -> list[Finding]:
    """What is wrong with a store, seen through a connection in a transaction.

    ``most`` findings a table are listed: more say nothing new.
    """
    findings: list[Finding] = []
    inspection = _Inspection(connection, path)
    factory = connection.text_factory
    connection.text_factory = _lenient
    try:
        for step in (
            inspection.file,
            inspection.schema,
            inspection.structure,
            inspection.namespaces,
            inspection.arrays,
            inspection.turns,
            inspection.chunks,
            inspection.features,
            inspection.staged,
            inspection.links,
            inspection.log,
            inspection.tombstones,
            inspection.notes,
            inspection.snapshots,
        ):
            findings += _run(step, path, most)
    finally:
        connection.text_factory = factory
    return findings


def _run(step: Callable[[], Iterator[Finding]], path: Path | None, most: int) -> list[Finding]:
    found: list[Finding] = []
    try:
        with mapped(path):
            for finding in step():
                found.append(finding)
                if len(found) == most:
                    break
    except RSMError as error:
        found.append(Finding("structure", step.__name__, str(error), ""))
    return found


def _lenient(data: bytes) -> str:
    """Text as stored, bytes that are not UTF-8 as lone surrogates: no checksum fits those."""
    return data.decode("utf-8", "surrogateescape")


class _Inspection:
    """The single checks, each a generator of findings."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self.connection = connection
        self.path = path
        self.where = "the store in RAM" if path is None else f"store {path}"
        self.lengths: dict[int, int] = {}
        self.pairs: set[tuple[int, int]] = set()

    def rows(self, sql: str, *params: object) -> Iterator[tuple[Any, ...]]:
        return iter(self.connection.execute(sql, params))

    def file(self) -> Iterator[Finding]:
        if self.path is None:
            return
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if mode & ~_MODE:
            yield Finding(
                "file", None, f"mode is {mode:04o}: others may read the memory", "set mode 0600"
            )
        if lost := lost_commits(Path(f"{self.path}-wal")):
            yield Finding("wal", None, f"{lost} transactions stand behind a damaged frame", "")

    def schema(self) -> Iterator[Finding]:
        try:
            check_identity(self.connection, self.where)
            check_objects(self.connection, self.where)
        except RSMError as error:
            yield Finding("schema", None, str(error), "")

    def structure(self) -> Iterator[Finding]:
        for (message,) in self.rows(f"PRAGMA integrity_check({_MOST})"):
            if message != "ok":
                index = "index" in str(message)
                yield Finding(
                    "index" if index else "structure",
                    None,
                    f"SQLite: {message}",
                    "rebuild the indexes" if index else "",
                )
        for table, row, parent, _ in self.rows("PRAGMA foreign_key_check"):
            remedy = {"features": "drop them", "staged_vectors": "drop them"}.get(
                str(table), "rebuild them from the chunks" if table == "chunk_turns" else ""
            )
            yield Finding(str(table), row, f"refers to a missing row of {parent}", remedy)

    def namespaces(self) -> Iterator[Finding]:
        for row in self.rows(f"SELECT {NAMESPACE_COLUMNS} FROM namespaces"):
            try:
                namespace = namespace_from_row(row)
            except (CorruptStoreError, UnicodeEncodeError):
                yield Finding("namespaces", row[0], "settings or counters are damaged", "")
                continue
            high = last_pk(row[0])
            for table, next_pk in (
                ("turns", namespace.next_turn),
                ("chunks", namespace.next_chunk),
            ):
                sql = f"SELECT max(pk) FROM {table} WHERE pk <= ?"
                for (newest,) in self.rows(sql, high):
                    if newest is not None and newest >= first_pk(row[0]) + next_pk:
                        yield Finding("namespaces", row[0], f"counter of {table} is behind", "")

    def arrays(self) -> Iterator[Finding]:
        for row in self.rows("SELECT * FROM arrays"):
            if not _fits(array_from_row, row):
                yield Finding("arrays", row[1], f"of namespace {row[0]}: is damaged", "drop it")

    def turns(self) -> Iterator[Finding]:
        for row in self.rows(f"SELECT {TURN_COLUMNS}, t.namespace FROM turns t ORDER BY t.pk"):
            self.lengths[row[0]] = len(row[3]) if isinstance(row[3], str) else -1
            if not _fits(check_turn, row[:-1]) or namespace_of(row[0]) != row[-1]:
                yield Finding("turns", row[0], f"turn {row[1]!a} does not fit its checksum", "")

    def chunks(self) -> Iterator[Finding]:
        for row in self.rows(f"SELECT {CHUNK_COLUMNS} FROM chunks c ORDER BY c.pk"):
            pk = row[0]
            if not _fits(check_chunk, row):
                yield Finding(
                    "chunks", pk, f"chunk {row[1]!a} does not fit its checksum",
                    "drop it, to be made anew from its turns",
                )  # fmt: skip
                continue
            for turn, start, stop in unpack_spans(row[2]):
                self.pairs.add((turn, pk))
                if not 0 <= start <= stop <= self.lengths.get(turn, -1):
                    yield Finding(
                        "chunks", pk, f"chunk {row[1]!a} reaches beyond turn {turn}",
                        "drop it, to be made anew from its turns",
                    )  # fmt: skip

    def features(self) -> Iterator[Finding]:
        sql = (
            "SELECT c.pk, f.terms, f.analyser, f.vector, f.crc FROM chunks c "
            "LEFT JOIN features f ON f.chunk = c.pk"
        )
        for row in self.rows(sql):
            if not _fits(lambda fields: check_features(*fields), row):
                yield Finding(
                    "features", row[0], "terms and vector are missing or do not fit their checksum",
                    "empty them, to be made anew from the text",
                )  # fmt: skip

    def staged(self) -> Iterator[Finding]:
        for pk, data, crc in self.rows("SELECT chunk, data, crc FROM staged_vectors"):
            if not _fits(lambda fields: check_features(*fields), (pk, b"", 0, data, crc)):
                yield Finding("staged_vectors", pk, "does not fit its checksum", "drop it")

    def links(self) -> Iterator[Finding]:
        found = set(self.rows("SELECT turn, chunk FROM chunk_turns"))
        for turn, chunk in sorted(found ^ self.pairs, key=repr):
            yield Finding(
                "chunk_turns", chunk, f"link to turn {turn} differs from the chunk's spans",
                "rebuild them from the chunks",
            )  # fmt: skip

    def log(self) -> Iterator[Finding]:
        sql = (
            "SELECT l.chunk FROM changes l LEFT JOIN namespaces n ON n.id = l.namespace "
            "WHERE n.id IS NULL OR l.generation > n.generation OR l.chunk >> 40 != l.namespace"
        )
        for (chunk,) in self.rows(sql):
            yield Finding("changes", chunk, "an impossible change is noted", "drop the log")

    def tombstones(self) -> Iterator[Finding]:
        for row in self.rows("SELECT slot, digests, crc FROM tombstones"):
            if not _fits(tombstones_from_row, row):
                yield Finding(
                    "tombstones", row[0], "what deleted ids left behind is damaged",
                    "drop it; those ids could be used again",
                )  # fmt: skip

    def notes(self) -> Iterator[Finding]:
        for row in self.rows(f"SELECT {NOTE_COLUMNS} FROM notes n"):
            if not _fits(note_from_row, row):
                yield Finding(
                    "notes", row[0], "does not fit its checksum", "drop it, to be made anew"
                )
        for row in self.rows(f"SELECT {EVOLUTION_COLUMNS} FROM note_evolutions e"):
            if not _fits(evolution_from_row, row):
                yield Finding("note_evolutions", row[0], "does not fit its checksum", "drop it")

    def snapshots(self) -> Iterator[Finding]:
        for ns, generation, token, crc in self.rows("SELECT * FROM snapshots"):
            if text_crc(ns, generation, token) != crc or (
                self.path is not None and read_snapshot(snapshot_path(self.path, ns), token) is None
            ):
                yield Finding(
                    "snapshots", ns, "the sidecar snapshot is missing, damaged or another's",
                    "drop it; it is rebuilt",
                )  # fmt: skip


def _fits(check: Callable[[tuple[Any, ...]], object], row: tuple[Any, ...]) -> bool:
    try:
        check(row)
    except (CorruptStoreError, UnicodeEncodeError, ValueError, TypeError):
        return False
    return True


def put_right(
    writer: Writer,
    connection: sqlite3.Connection,
    path: Path | None,
    *,
    drop_damaged: bool,
    also: Sequence[Finding] = (),
) -> list[Finding]:
    """Drop or rebuild what is derived and damaged, inside the writer's transaction.

    Parameters
    ----------
    drop_damaged : bool
        Delete turns that do not fit their checksum as well.
    also : sequence of Finding
        Further findings, dealt with alike.

    Returns
    -------
    list of Finding
        What is still wrong.
    """
    execute = connection.execute
    findings = [*find(connection, path, most=2**31), *also]
    keys: dict[str, list[Any]] = {}
    for finding in findings:
        keys.setdefault(finding.table, []).append(finding.key)
    if not findings:
        return []
    if path is not None and "file" in keys:
        os.chmod(path, _MODE)
    if "index" in keys:
        execute("REINDEX")
    if drop_damaged:
        for pk in keys.get("turns", []):
            for (chunk,) in execute("SELECT chunk FROM chunk_turns WHERE turn = ?", (pk,)):
                keys.setdefault("chunks", []).append(chunk)
            execute("UPDATE turns SET superseded_by = NULL WHERE superseded_by = ?", (pk,))
            execute("DELETE FROM chunk_turns WHERE turn = ?", (pk,))
            execute("DELETE FROM turns WHERE pk = ?", (pk,))
    for pk in set(keys.get("chunks", [])):
        for table in ("features", "staged_vectors", "chunk_turns"):
            execute(f"DELETE FROM {table} WHERE chunk = ?", (pk,))
        execute("DELETE FROM chunks WHERE pk = ?", (pk,))
    for pk in set(keys.get("features", [])).difference(keys.get("chunks", [])):
        execute("DELETE FROM features WHERE chunk = ?", (pk,))
        execute(
            "INSERT INTO features SELECT pk, x'', 0, NULL, ? FROM chunks WHERE pk = ?",
            (features_crc(pk, b"", 0, None), pk),
        )
    for pk in keys.get("staged_vectors", []):
        execute("DELETE FROM staged_vectors WHERE chunk = ?", (pk,))
    if "chunk_turns" in keys or "chunks" in keys:
        _rebuild_links(connection)
    for name in keys.get("arrays", []):
        execute("DELETE FROM arrays WHERE name = ?", (name,))
    for slot in keys.get("tombstones", []):
        execute("DELETE FROM tombstones WHERE slot = ?", (slot,))
    for pk in keys.get("notes", []):
        execute("DELETE FROM notes WHERE turn = ?", (pk,))
    for number in keys.get("note_evolutions", []):
        execute("DELETE FROM note_evolutions WHERE id = ?", (number,))
    for ns in keys.get("snapshots", []):
        execute("DELETE FROM snapshots WHERE namespace = ?", (ns,))
        if path is not None:
            remove_snapshots(path, ns)
    if "namespaces" not in keys:
        writer.drop_log()
    return find(connection, path)


def _rebuild_links(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM chunk_turns")
    rows = connection.execute("SELECT pk, spans FROM chunks").fetchall()
    connection.executemany(
        "INSERT OR IGNORE INTO chunk_turns VALUES (?,?)",
        [(turn, pk) for pk, spans in rows for turn, _, _ in unpack_spans(spans)],
    )
