"""The tables, their version, and the ordered migrations between versions.

``docs/file-format.md`` describes every column. A released version's migration is never
changed: a new version appends one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from rsm_fast.errors import CorruptStoreError, StoreError

__all__ = [
    "APPLICATION_ID",
    "VERSION",
    "check_identity",
    "check_objects",
    "migrate",
    "user_version",
]

APPLICATION_ID: Final = 0x52534D46  # "RSMF"

_V1: Final = (
    """CREATE TABLE namespaces (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  key TEXT NOT NULL UNIQUE,
  salt BLOB NOT NULL,
  settings TEXT NOT NULL,
  generation INTEGER NOT NULL,
  next_turn INTEGER NOT NULL,
  next_chunk INTEGER NOT NULL,
  next_auto INTEGER NOT NULL,
  next_atom INTEGER NOT NULL,
  log_floor INTEGER NOT NULL,
  crc INTEGER NOT NULL
) STRICT""",
    """CREATE TABLE arrays (
  namespace INTEGER NOT NULL REFERENCES namespaces (id),
  name TEXT NOT NULL,
  dtype TEXT NOT NULL,
  shape TEXT NOT NULL,
  data BLOB NOT NULL,
  crc INTEGER NOT NULL,
  PRIMARY KEY (namespace, name)
) STRICT""",
    """CREATE TABLE turns (
  pk INTEGER PRIMARY KEY,
  namespace INTEGER NOT NULL REFERENCES namespaces (id),
  id TEXT NOT NULL,
  role TEXT NOT NULL,
  text TEXT NOT NULL,
  micros INTEGER NOT NULL,
  offset_minutes INTEGER NOT NULL,
  time_given INTEGER NOT NULL,
  session TEXT,
  metadata TEXT,
  expires_at INTEGER,
  superseded_by INTEGER REFERENCES turns (pk),
  crc INTEGER NOT NULL,
  UNIQUE (namespace, id)
) STRICT""",
    """CREATE INDEX turns_expiring ON turns (namespace, expires_at)
  WHERE expires_at IS NOT NULL""",
    """CREATE INDEX turns_superseded ON turns (superseded_by)
  WHERE superseded_by IS NOT NULL""",
    """CREATE TABLE chunks (
  pk INTEGER PRIMARY KEY,
  id TEXT NOT NULL,
  spans BLOB NOT NULL,
  session TEXT,
  micros INTEGER NOT NULL,
  offset_minutes INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  line_tokens BLOB NOT NULL,
  text_hash INTEGER NOT NULL,
  step INTEGER,
  truncated INTEGER NOT NULL,
  atom INTEGER,
  crc INTEGER NOT NULL
) STRICT""",
    """CREATE TABLE chunk_turns (
  turn INTEGER NOT NULL REFERENCES turns (pk) DEFERRABLE INITIALLY DEFERRED,
  chunk INTEGER NOT NULL,
  PRIMARY KEY (turn, chunk)
) STRICT, WITHOUT ROWID""",
    """CREATE TABLE features (
  chunk INTEGER PRIMARY KEY REFERENCES chunks (pk),
  terms BLOB NOT NULL,
  analyser INTEGER NOT NULL,
  vector BLOB,
  crc INTEGER NOT NULL
) STRICT""",
    """CREATE TABLE staged_vectors (
  chunk INTEGER PRIMARY KEY REFERENCES chunks (pk),
  data BLOB NOT NULL,
  crc INTEGER NOT NULL
) STRICT""",
    """CREATE TABLE changes (
  namespace INTEGER NOT NULL REFERENCES namespaces (id),
  generation INTEGER NOT NULL,
  chunk INTEGER NOT NULL,
  PRIMARY KEY (namespace, generation, chunk)
) STRICT, WITHOUT ROWID""",
    """CREATE TABLE snapshots (
  namespace INTEGER PRIMARY KEY REFERENCES namespaces (id),
  generation INTEGER NOT NULL,
  token BLOB NOT NULL,
  crc INTEGER NOT NULL
) STRICT""",
    """CREATE TABLE tombstones (
  slot INTEGER PRIMARY KEY,
  digests BLOB NOT NULL,
  crc INTEGER NOT NULL
) STRICT""",
)

_V2: Final = (
    """CREATE TABLE notes (
  turn INTEGER PRIMARY KEY REFERENCES turns (pk) ON DELETE CASCADE,
  stage INTEGER NOT NULL,
  keywords TEXT NOT NULL,
  tags TEXT NOT NULL,
  context TEXT NOT NULL,
  model TEXT NOT NULL,
  prompts TEXT NOT NULL,
  problem TEXT NOT NULL,
  text_digest INTEGER NOT NULL,
  changed INTEGER NOT NULL,
  space INTEGER NOT NULL,
  vector BLOB,
  crc INTEGER NOT NULL
) STRICT""",
    """CREATE INDEX notes_changed ON notes (changed)""",
    """CREATE TABLE note_links (
  turn INTEGER NOT NULL REFERENCES notes (turn) ON DELETE CASCADE,
  other INTEGER NOT NULL REFERENCES notes (turn) ON DELETE CASCADE,
  PRIMARY KEY (turn, other)
) STRICT, WITHOUT ROWID""",
    """CREATE INDEX note_links_other ON note_links (other)""",
    """CREATE TABLE note_evolutions (
  id INTEGER PRIMARY KEY,
  turn INTEGER NOT NULL REFERENCES notes (turn) ON DELETE CASCADE,
  cause INTEGER NOT NULL,
  micros INTEGER NOT NULL,
  before TEXT NOT NULL,
  after TEXT NOT NULL,
  undone INTEGER NOT NULL,
  crc INTEGER NOT NULL
) STRICT""",
    """CREATE INDEX note_evolutions_turn ON note_evolutions (turn)""",
    """CREATE TABLE note_sources (
  turn INTEGER NOT NULL,
  evolution INTEGER NOT NULL REFERENCES note_evolutions (id) ON DELETE CASCADE,
  PRIMARY KEY (turn, evolution)
) STRICT, WITHOUT ROWID""",
    """CREATE INDEX note_sources_evolution ON note_sources (evolution)""",
)


def _to_version_1(connection: sqlite3.Connection) -> None:
    for statement in _V1:
        connection.execute(statement)


def _to_version_2(connection: sqlite3.Connection) -> None:
    for statement in _V2:
        connection.execute(statement)


_MIGRATIONS: Final[tuple[Callable[[sqlite3.Connection], None], ...]] = (
    _to_version_1,
    _to_version_2,
)
VERSION: Final = len(_MIGRATIONS)


def user_version(connection: sqlite3.Connection) -> int:
    """The schema version that the file says it has; 0 for a new one."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def check_identity(connection: sqlite3.Connection, where: str) -> int:
    """Make sure that the file is a store which this version can read; its schema version.

    0 for a database with nothing in it, as is left by who died before making the tables.

    Raises
    ------
    CorruptStoreError
        If another program made the file.
    StoreError
        If a later version of rsm_fast made it.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    version = user_version(connection)
    if application == version == 0 and _is_blank(connection):
        return 0
    if application != APPLICATION_ID:
        raise CorruptStoreError(
            f"{where}: expected an rsm_fast store (application id {APPLICATION_ID:#x}), got an "
            f"SQLite database with application id {application:#x}; give the path of a store"
        )
    if version > VERSION:
        raise StoreError(
            f"{where}: its format has version {version}, this rsm_fast reads up to {VERSION}; "
            "install a newer rsm_fast"
        )
    return version


def _is_blank(connection: sqlite3.Connection) -> bool:
    """Whether there is a header and nothing else. What is shorter is a file that was cut."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    return pages == 1 and not connection.execute("SELECT 1 FROM sqlite_schema").fetchall()


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema to `VERSION`, inside the transaction that the caller has begun."""
    version = user_version(connection)
    for number, step in enumerate(_MIGRATIONS[version:], start=version + 1):
        step(connection)
        connection.execute(f"PRAGMA user_version = {number:d}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")


def check_objects(connection: sqlite3.Connection, where: str) -> None:
    """Refuse a store whose schema is not the one this version makes.

    A trigger or view that somebody planted would run with our statements, and a damaged
    schema would be misread.

    Raises
    ------
    CorruptStoreError
        Naming the objects that differ.
    """
    found = {
        (str(name), str(sql))
        for name, sql in connection.execute(
            "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
        )
    }
    expected = {(sql.split()[2], sql) for sql in (*_V1, *_V2)}
    if found != expected:
        names = sorted({name for name, _ in found ^ expected})
        raise CorruptStoreError(
            f"{where}: its schema differs from the one of format version {VERSION} "
            f"in {', '.join(names)}; restore a backup or import an export into a new store"
        )
