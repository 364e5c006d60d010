"""Export: everything that a namespace holds, as lines of JSON.

An export is a sequence of sections, one a namespace, by key. A section is a line of kind
``namespace``, its arrays, its turns in arrival order, its chunks in arrival order, its
tombstones, and the notes that there are with their links and evolutions. Two exports of equal
content are equal byte by byte, whichever store it lies in.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from rsm_fast.errors import NotFoundError
from rsm_fast.instants import Instant
from rsm_fast.store.notes import Description, NoteReader
from rsm_fast.store.reader import Reader
from rsm_fast.store.records import ChunkRecord, NamespaceRecord, TurnRecord

__all__ = [
    "FORMAT",
    "Line",
    "array_lines",
    "chunk_line",
    "export_lines",
    "header_line",
    "note_lines",
    "section_lines",
    "tombstones_line",
    "turn_line",
]

FORMAT: Final = 1

Line: TypeAlias = dict[str, Any]


def export_lines(
    reader: Reader, *, namespace: str | None = None, vectors: bool = True
) -> Iterator[bytes]:
    """The lines of an export, UTF-8 with a line feed each.

    Parameters
    ----------
    namespace : str, optional
        Key of the only namespace to export. Default: all.
    vectors : bool, default True
        Write the vectors too; without them, the texts are embedded anew after an import.

    Raises
    ------
    NotFoundError
        If there is no such namespace.
    """
    records = reader.namespaces()
    if namespace is not None:
        records = [record for record in records if record.key == namespace]
        if not records:
            raise NotFoundError(f"namespace {namespace!r}: there is none of this key to export")
    for record in records:
        for line in section_lines(reader, record, vectors):
            yield json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def section_lines(reader: Reader, record: NamespaceRecord, vectors: bool) -> Iterator[Line]:
    """All lines of one namespace, as objects."""
    ns = record.id
    yield header_line(record, reader.salt(ns), vectors)
    yield from array_lines(reader, ns)
    for turn in reader.all_turns(ns):
        newer = turn.superseded_by
        yield turn_line(turn, None if newer is None else reader.turn_id(newer))
    for chunk in reader.all_chunks(ns):
        names = [reader.turn_id(turn) for turn, _, _ in chunk.spans]
        yield chunk_line(chunk if vectors else chunk._replace(vector=None), names)
    for digests in reader.tombstones(ns):
        yield tombstones_line(digests)
    yield from note_lines(reader, ns, vectors)


def header_line(record: NamespaceRecord, salt: bytes, vectors: bool) -> Line:
    """The first line of a section."""
    return {
        "kind": "namespace",
        "format": FORMAT,
        "namespace": record.key,
        "vectors": vectors,
        "settings": record.settings,
        "next_auto": record.next_auto,
        "next_atom": record.next_atom,
        "salt": salt.hex(),
    }


def array_lines(reader: Reader, ns: int) -> Iterator[Line]:
    """The arrays of a namespace."""
    for name in reader.array_names(ns):
        array = reader.array(ns, name)
        if array is not None:
            yield {
                "kind": "array",
                "name": name,
                "dtype": array.dtype.str,
                "shape": list(array.shape),
                "data": _base64(array.tobytes()),
            }


def turn_line(turn: TurnRecord, superseded_by: str | None) -> Line:
    """A turn; ``superseded_by`` is the id of the newer one."""
    line: Line = {
        "kind": "turn",
        "id": turn.id,
        "role": turn.role,
        "text": turn.text,
        "timestamp": Instant(turn.micros, turn.offset_minutes).isoformat(),
        "time_given": turn.time_given,
        "session": turn.session,
        "metadata": None if turn.metadata is None else json.loads(turn.metadata),
    }
    if turn.expires_at is not None:
        line["expires_at"] = turn.expires_at
    if superseded_by is not None:
        line["superseded_by"] = superseded_by
    return line


def chunk_line(chunk: ChunkRecord, turn_ids: Sequence[str]) -> Line:
    """A chunk; ``turn_ids`` name the turns of its spans."""
    line: Line = {
        "kind": "chunk",
        "id": chunk.id,
        "spans": [
            [name, start, stop]
            for name, (_, start, stop) in zip(turn_ids, chunk.spans, strict=True)
        ],
        "session": chunk.session,
        "micros": chunk.micros,
        "offset_minutes": chunk.offset_minutes,
        "tokens": chunk.tokens,
        "line_tokens": _base64(chunk.line_tokens),
        "terms": _base64(chunk.terms),
        "analyser": chunk.analyser,
        "text_hash": chunk.text_hash,
        "step": chunk.step,
        "truncated": chunk.truncated,
        "atom": chunk.atom,
    }
    if chunk.vector is not None:
        line["vector"] = _base64(chunk.vector)
    return line


def tombstones_line(digests: list[bytes]) -> Line:
    """What deleted ids left behind."""
    return {"kind": "tombstones", "digests": _base64(b"".join(digests))}


def note_lines(reader: Reader, ns: int, vectors: bool) -> Iterator[Line]:
    """The notes of a namespace with their links and evolutions."""
    notes = NoteReader(reader)
    for note in notes.all_notes(ns):
        line: Line = {
            "kind": "note",
            "id": reader.turn_id(note.turn),
            "stage": note.stage,
            **_description_line(note.description),
            "model": note.model,
            "prompts": note.prompts,
            "problem": note.problem,
            "text_digest": note.text_digest,
            "space": note.space,
        }
        if vectors and note.vector is not None:
            line["vector"] = _base64(note.vector)
        yield line
    for turn, other in notes.all_links(ns):
        yield {"kind": "link", "id": reader.turn_id(turn), "other": reader.turn_id(other)}
    for step, sources in notes.all_evolutions(ns):
        yield {
            "kind": "evolution",
            "id": reader.turn_id(step.turn),
            "cause": reader.turn_id(step.cause),
            "micros": step.micros,
            "before": _description_line(step.before),
            "after": _description_line(step.after),
            "undone": step.undone,
            "sources": [reader.turn_id(source) for source in sources],
        }


def _description_line(description: Description) -> Line:
    keywords, tags, context = description
    return {"keywords": list(keywords), "tags": list(tags), "context": context}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
