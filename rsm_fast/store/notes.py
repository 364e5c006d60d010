"""Notes over turns: what a language model said of them, how they are linked, how they evolved.

A note stands on the turn that it describes and goes with it. Its text is the turn's own and is
kept nowhere else. `NoteReader` and `NoteWriter` work on a `Reader` and a `Writer`.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from rsm_fast.errors import ConflictError
from rsm_fast.store.filters import Params, compile_where
from rsm_fast.store.reader import Reader
from rsm_fast.store.records import damaged, first_pk, last_pk

__all__ = [
    "DESCRIBED",
    "KEPT",
    "LINKED",
    "Description",
    "EvolutionRecord",
    "NoteReader",
    "NoteRecord",
    "NoteWriter",
    "drop_notes",
    "evolution_from_row",
    "note_from_row",
    "text_digest",
]

KEPT: Final = 0
"""Stage of a note of which only the turn's text is known."""
DESCRIBED: Final = 1
"""Stage of a note that has its description, but has not been held against its neighbours."""
LINKED: Final = 2
"""Stage of a finished note."""

NOTE_COLUMNS: Final = (
    "n.turn, n.stage, n.keywords, n.tags, n.context, n.model, n.prompts, n.problem, "
    "n.text_digest, n.changed, n.space, n.vector, n.crc"
)
EVOLUTION_COLUMNS: Final = "e.id, e.turn, e.cause, e.micros, e.before, e.after, e.undone, e.crc"
_KEYS: Final = "notes INDEXED BY notes_changed"  # which is small: rows hold vectors
_NOTES: Final = f"SELECT {NOTE_COLUMNS} FROM notes n "
_EVOLUTIONS: Final = f"SELECT {EVOLUTION_COLUMNS} FROM note_evolutions e "


class Description(NamedTuple):
    """What a model says about a turn."""

    keywords: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    context: str = ""


class NoteRecord(NamedTuple):
    """One note.

    Attributes
    ----------
    turn : int
        Pk of the turn that it stands on.
    stage : int
        `KEPT`, `DESCRIBED` or `LINKED`.
    description : Description
    model, prompts : str
        Which model described it, by which version of the prompts.
    problem : str
        Why it is not finished; empty if it is.
    text_digest : int
        `text_digest` of the turn's text that it was made from.
    changed : int
        Generation of the namespace that wrote it last; given by the store.
    space : int
        Checksum of the fingerprint of the embedder that made the vector.
    vector : bytes or None
        Unit float32 values, little endian; None: to be embedded anew from the description.
    """

    turn: int
    stage: int
    description: Description
    model: str
    prompts: str
    problem: str
    text_digest: int
    changed: int
    space: int
    vector: bytes | None


class EvolutionRecord(NamedTuple):
    """One rewriting of a note's description.

    Attributes
    ----------
    id : int
        Ascending in time.
    turn, cause : int
        Pks of the turn whose note was rewritten, and of the newer one that led to it.
    micros : int
        When.
    before, after : Description
    undone : bool
    """

    id: int
    turn: int
    cause: int
    micros: int
    before: Description
    after: Description
    undone: bool


class NoteReader:
    """Notes in one snapshot.

    Parameters
    ----------
    reader : Reader
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def notes(self, ns: int, turns: Sequence[int]) -> list[NoteRecord]:
        """The notes of these turns, in the order asked; missing ones are left out."""
        found = {row[0]: row for row in self._reader._by_pk(_NOTES, "n.turn", ns, turns)}
        return [note_from_row(found[pk]) for pk in turns if pk in found]

    def all_notes(self, ns: int) -> Iterator[NoteRecord]:
        """Every note in arrival order of its turn."""
        sql = _NOTES + "WHERE n.turn BETWEEN ? AND ? ORDER BY n.turn"
        return map(note_from_row, self._reader._stream(sql, (first_pk(ns), last_pk(ns))))

    def changed_since(self, ns: int, generation: int) -> list[NoteRecord]:
        """Notes written after a generation, in arrival order."""
        sql = _NOTES + "WHERE n.changed > ? AND n.turn BETWEEN ? AND ? ORDER BY n.turn"
        rows = self._reader._all(sql, (generation, first_pk(ns), last_pk(ns)))
        return [note_from_row(row) for row in rows]

    def keys(self, ns: int) -> list[int]:
        """Pks of the turns that have a note, ascending."""
        sql = f"SELECT turn FROM {_KEYS} WHERE turn BETWEEN ? AND ? ORDER BY turn"
        return [pk for (pk,) in self._reader._all(sql, (first_pk(ns), last_pk(ns)))]

    def count(self, ns: int) -> int:
        """How many notes there are."""
        sql = f"SELECT count(*) FROM {_KEYS} WHERE turn BETWEEN ? AND ?"
        (count,) = self._reader._one(sql, (first_pk(ns), last_pk(ns))) or (0,)
        return int(count)

    def counts(self, ns: int) -> dict[str, int]:
        """How many notes, pending turns, links and evolutions there are."""
        bounds: Params = {"low": first_pk(ns), "high": last_pk(ns), "done": LINKED}
        row = self._reader._one(
            f"SELECT (SELECT count(*) FROM {_KEYS} WHERE turn BETWEEN :low AND :high), "
            "(SELECT count(*) FROM turns t LEFT JOIN notes n ON n.turn = t.pk "
            " WHERE t.pk BETWEEN :low AND :high AND coalesce(n.stage, -1) < :done), "
            "(SELECT count(*) FROM note_links WHERE turn BETWEEN :low AND :high), "
            "(SELECT count(*) FROM note_evolutions WHERE turn BETWEEN :low AND :high "
            " AND NOT undone)",
            bounds,
        )
        assert row is not None
        return dict(zip(("notes", "pending", "links", "evolutions"), row, strict=True))

    def pending(self, ns: int, among: Sequence[int] | None = None) -> list[int]:
        """Pks of the turns without a finished note, in arrival order; of some, or of all."""
        if among is not None:
            select = "SELECT turn, stage FROM notes "
            stages = dict(self._reader._by_pk(select, "turn", ns, among))
            return sorted({pk for pk in among if stages.get(pk, KEPT) < LINKED})
        sql = (
            "SELECT t.pk FROM turns t LEFT JOIN notes n ON n.turn = t.pk "
            "WHERE t.pk BETWEEN ? AND ? AND coalesce(n.stage, -1) < ? ORDER BY t.pk"
        )
        rows = self._reader._all(sql, (first_pk(ns), last_pk(ns), LINKED))
        return [pk for (pk,) in rows]

    def links(self, ns: int, turns: Sequence[int]) -> dict[int, list[int]]:
        """What each of these notes is linked with, in either direction, ascending."""
        linked: dict[int, set[int]] = {pk: set() for pk in turns}
        for near, far in (("turn", "other"), ("other", "turn")):
            select = f"SELECT {near}, {far} FROM note_links "
            for pk, other in self._reader._by_pk(select, near, ns, list(linked)):
                linked[pk].add(other)
        return {pk: sorted(others) for pk, others in linked.items()}

    def all_links(self, ns: int) -> list[tuple[int, int]]:
        """Every link as (newer, older), ascending."""
        sql = "SELECT turn, other FROM note_links WHERE turn BETWEEN ? AND ? ORDER BY turn, other"
        return [(a, b) for a, b in self._reader._all(sql, (first_pk(ns), last_pk(ns)))]

    def evolutions(self, ns: int, turn: int) -> list[EvolutionRecord]:
        """How one note was rewritten, oldest first."""
        sql = _EVOLUTIONS + "WHERE e.turn = ? AND e.turn BETWEEN ? AND ? ORDER BY e.id"
        rows = self._reader._all(sql, (turn, first_pk(ns), last_pk(ns)))
        return [evolution_from_row(row) for row in rows]

    def all_evolutions(self, ns: int) -> Iterator[tuple[EvolutionRecord, list[int]]]:
        """Every rewriting with the turns that it has seen, oldest first."""
        sql = _EVOLUTIONS + "WHERE e.turn BETWEEN ? AND ? ORDER BY e.id"
        for row in self._reader._stream(sql, (first_pk(ns), last_pk(ns))):
            sources = "SELECT turn FROM note_sources WHERE evolution = ? ORDER BY turn"
            seen = [pk for (pk,) in self._reader._all(sources, (row[0],))]
            yield evolution_from_row(row), seen

    def eligible(
        self,
        ns: int,
        *,
        where: Mapping[str, Any] | None = None,
        as_of: int | None = None,
        superseded: bool = False,
    ) -> set[int]:
        """Pks of the noted turns that match.

        Parameters are those of `Reader.eligible_chunks`.
        """
        condition, params = compile_where(where)
        params.update(first=first_pk(ns), last=last_pk(ns), as_of=as_of, now=time.time_ns() // 1000)
        conditions = [condition, "(t.expires_at IS NULL OR t.expires_at > :now)"]
        if as_of is not None:
            conditions.append("t.micros <= :as_of")
        if not superseded:
            later = "(SELECT s.micros FROM turns s WHERE s.pk = t.superseded_by) > :as_of"
            conditions.append(f"(t.superseded_by IS NULL OR coalesce({later}, 0))")
        sql = (
            "SELECT t.pk FROM turns t JOIN notes n ON n.turn = t.pk WHERE t.pk BETWEEN :first AND "
            f":last AND {' AND '.join(conditions)}"
        )
        return {pk for (pk,) in self._reader._all(sql, params)}

    def hidden(self, ns: int, *, superseded: bool = False) -> set[int]:
        """Pks of the turns that no question may find now: expired, or superseded unless asked."""
        now = time.time_ns() // 1000
        found = set(self._reader.expired_turns(ns, now))
        if not superseded:
            sql = (
                "SELECT t.pk FROM turns t JOIN turns s ON s.pk = t.superseded_by "
                "WHERE t.superseded_by BETWEEN ? AND ? AND s.micros <= ?"
            )
            rows = self._reader._all(sql, (first_pk(ns), last_pk(ns), now))
            found.update(pk for (pk,) in rows)
        return found


class NoteWriter(NoteReader):
    """Changes notes, inside the transaction of a `Writer`.

    Parameters
    ----------
    writer : Writer
    """

    def __init__(self, writer: Reader) -> None:
        super().__init__(writer)
        self._writer: Any = writer

    def put(self, ns: int, note: NoteRecord) -> None:
        """Write a note, new or anew; its links and history stay."""
        _put(self._writer, note._replace(changed=self._writer._touch(ns).generation))

    def link(self, ns: int, turn: int, others: Iterable[int]) -> None:
        """Link a note with others."""
        self._writer._touch(ns)
        self._many(
            "INSERT OR IGNORE INTO note_links VALUES (?,?)",
            [(turn, other) for other in others if other != turn],
        )

    def evolve(
        self,
        ns: int,
        note: NoteRecord,
        *,
        before: Description,
        cause: int,
        sources: Iterable[int],
        micros: int,
    ) -> None:
        """Write a note whose description was rewritten, and remember what it was before.

        Parameters
        ----------
        note : NoteRecord
            As it is from now on.
        before : Description
        cause : int
            The new turn that led to it.
        sources : iterable of int
            Every turn that the model has seen for it: if one is forgotten, so is this.
        micros : int
            When.
        """
        fields = (note.turn, cause, micros, _dump(before), _dump(note.description), 0)
        with self._writer._mapped:
            execute = self._writer._connection.execute
            cursor = execute(
                "INSERT INTO note_evolutions (turn, cause, micros, before, after, undone, crc) "
                "VALUES (?,?,?,?,?,?,0)",
                fields,
            )
            row = (cursor.lastrowid, *fields)
            execute("UPDATE note_evolutions SET crc = ? WHERE id = ?", (_crc(row), row[0]))
        self._many(
            "INSERT OR IGNORE INTO note_sources VALUES (?,?)",
            [(source, row[0]) for source in {cause, *sources}],
        )
        self.put(ns, note)

    def undo(self, ns: int, turn: int) -> EvolutionRecord | None:
        """Take back the last rewriting of a note; None if there is none left.

        The note then has no vector until it is embedded anew.
        """
        standing = [step for step in self.evolutions(ns, turn) if not step.undone]
        if not standing:
            return None
        last = standing[-1]
        (note,) = self.notes(ns, [turn])
        self.put(ns, note._replace(description=last.before, vector=None))
        fields = (last.id, turn, last.cause, last.micros, _dump(last.before), _dump(last.after), 1)
        self._many(
            "UPDATE note_evolutions SET undone = 1, crc = ? WHERE id = ?",
            [(_crc(fields), last.id)],
        )
        return last._replace(undone=True)

    def set_vectors(self, ns: int, space: int, vectors: Iterable[tuple[int, bytes]]) -> None:
        """Give notes, by turn, vectors of the embedder that ``space`` stands for."""
        given = dict(vectors)
        for note in self.notes(ns, list(given)):
            self.put(ns, note._replace(space=space, vector=given[note.turn]))

    def restore_evolution(self, ns: int, step: EvolutionRecord, sources: Iterable[int]) -> None:
        """Write a rewriting as it was exported."""
        self._writer._touch(ns)
        row = (
            step.turn, step.cause, step.micros, _dump(step.before), _dump(step.after),
            int(step.undone),
        )  # fmt: skip
        with self._writer._mapped:
            execute = self._writer._connection.execute
            number = execute(
                "INSERT INTO note_evolutions (turn, cause, micros, before, after, undone, crc) "
                "VALUES (?,?,?,?,?,?,0)",
                row,
            ).lastrowid
            execute(
                "UPDATE note_evolutions SET crc = ? WHERE id = ?", (_crc((number, *row)), number)
            )
        self._many(
            "INSERT OR IGNORE INTO note_sources VALUES (?,?)",
            [(source, number) for source in sources],
        )

    def clear(self, ns: int) -> None:
        """Remove all notes of a namespace; the turns stay."""
        self._writer._touch(ns)
        self._many("DELETE FROM notes WHERE turn BETWEEN ? AND ?", [(first_pk(ns), last_pk(ns))])

    def _many(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._writer._mapped:
            self._writer._connection.executemany(sql, rows)


def drop_notes(writer: Any, ns: int, turns: Sequence[int], *, text: str | None = None) -> None:
    """Remove the notes of turns, and every rewriting of others that has seen them.

    A rewriting may carry what a forgotten turn said into another note's description. So each
    is taken back, with all that came after it on the same note, and with those that have seen
    that note since.

    Parameters
    ----------
    writer : Writer
    ns : int
    turns : sequence of int
    text : str, optional
        Do nothing if the only turn's note was made from this text.
    """
    reader = NoteReader(writer)
    if not writer._one("SELECT 1 FROM notes WHERE turn BETWEEN ? AND ? LIMIT 1", _bounds(ns)):
        return
    if text is not None:
        notes = reader.notes(ns, turns)
        if not notes or notes[0].text_digest == text_digest(text):
            return
    first = _first_tainted(writer, ns, turns)
    gone = set(turns)
    restored = []
    for turn, step in first.items():
        if turn in gone:
            continue
        (row,) = writer._all(_EVOLUTIONS + "WHERE e.id = ?", (step,))
        (note,) = reader.notes(ns, [turn])
        restored.append(
            note._replace(
                description=evolution_from_row(row).before,
                vector=None,
                changed=writer._touch(ns).generation,
            )
        )
    with writer._mapped:
        writer._connection.executemany(
            "DELETE FROM note_evolutions WHERE turn = ? AND id >= ?", list(first.items())
        )
        writer._connection.executemany(
            "DELETE FROM notes WHERE turn = ?", [(turn,) for turn in turns]
        )
    for note in restored:
        _put(writer, note)


def _first_tainted(writer: Any, ns: int, turns: Sequence[int]) -> dict[int, int]:
    """By turn the first rewriting of its note that these turns have had a part in."""
    first: dict[int, int] = {}
    waiting = [(turn, 0) for turn in turns]
    sql = (
        "SELECT e.turn, min(e.id) FROM note_sources s JOIN note_evolutions e ON e.id = s.evolution "
        "WHERE s.turn = ? AND e.id >= ? AND e.turn BETWEEN ? AND ? GROUP BY e.turn"
    )
    while waiting:
        seen, since = waiting.pop()
        for turn, step in writer._all(sql, (seen, since, first_pk(ns), last_pk(ns))):
            if step < first.get(turn, step + 1):
                first[turn] = step
                waiting.append((turn, step + 1))
    return first


def text_digest(text: str) -> int:
    """Signed 64 bit hash that tells whether a turn's text is still the same."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def note_from_row(row: tuple[Any, ...]) -> NoteRecord:
    """A note from its stored fields and their CRC.

    Raises
    ------
    CorruptStoreError
        If the CRC does not fit.
    """
    if not _whole(row):
        raise damaged("note of turn", row[0])
    turn, stage, keywords, tags, context, *rest = row[:-1]
    description = Description(tuple(json.loads(keywords)), tuple(json.loads(tags)), context)
    return NoteRecord(turn, stage, description, *rest)


def evolution_from_row(row: tuple[Any, ...]) -> EvolutionRecord:
    """A rewriting from its stored fields and their CRC.

    Raises
    ------
    CorruptStoreError
        If the CRC does not fit.
    """
    if not _whole(row):
        raise damaged("evolution of a note", row[0])
    number, turn, cause, micros, before, after, undone, _ = row
    return EvolutionRecord(number, turn, cause, micros, _load(before), _load(after), bool(undone))


def _bounds(ns: int) -> tuple[int, int]:
    return first_pk(ns), last_pk(ns)


def _whole(row: tuple[Any, ...]) -> bool:
    try:
        return bool(_crc(row[:-1]) == row[-1])
    except (TypeError, ValueError):  # damage changed the type of a field
        return False


def _crc(fields: tuple[Any, ...]) -> int:
    crc = 0
    for field in fields:
        data = field if isinstance(field, bytes) else f"{field}".encode()
        crc = zlib.crc32(b"\0" + data, crc)
    return crc


def _put(writer: Any, note: NoteRecord) -> None:
    turn, stage, description, *rest = note
    fields = (
        turn,
        stage,
        json.dumps(description.keywords, ensure_ascii=False),
        json.dumps(description.tags, ensure_ascii=False),
        description.context,
        *rest,
    )
    names = "stage keywords tags context model prompts problem text_digest changed space vector crc"
    updates = ", ".join(f"{name} = excluded.{name}" for name in names.split())
    with writer._mapped:
        cursor = writer._connection.execute(
            f"INSERT INTO notes SELECT {','.join('?' * 13)} "
            "WHERE EXISTS (SELECT 1 FROM turns WHERE pk = ?1) "
            f"ON CONFLICT (turn) DO UPDATE SET {updates}",
            (*fields, _crc(fields)),
        )
    if cursor.rowcount != 1:
        raise ConflictError(f"note: its turn {turn} was deleted meanwhile")


def _dump(description: Description) -> str:
    return json.dumps(description, ensure_ascii=False)


def _load(text: str) -> Description:
    keywords, tags, context = json.loads(text)
    return Description(tuple(keywords), tuple(tags), context)
