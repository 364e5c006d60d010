"""Import: namespaces from the lines of an export (see `rsm_fast.store.lines`)."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rsm_fast.errors import InvalidInputError
from rsm_fast.instants import parse_instant
from rsm_fast.store.filters import why_not_findable
from rsm_fast.store.lines import FORMAT, Line
from rsm_fast.store.notes import (
    LINKED,
    Description,
    EvolutionRecord,
    NoteRecord,
    NoteWriter,
)
from rsm_fast.store.reader import Reader
from rsm_fast.store.records import (
    ChunkRecord,
    NamespaceRecord,
    Span,
    TurnRecord,
    plain_dtype,
)
from rsm_fast.store.tombstones import SIZE
from rsm_fast.store.writer import Writer

__all__ = [
    "Section",
    "read_sections",
    "restore",
]

_BATCH: Final = 500
_MAX_LINE: Final = 256 << 20
_MAX_MICROS: Final = 2**63 - 1


class Section(NamedTuple):
    """One namespace of an export, read as it is asked for.

    Attributes
    ----------
    key : str
    header : dict
        The line of kind ``namespace``.
    lines : iterator of (line number, dict)
        The other lines of the section; they must be used up before the next section.
    """

    key: str
    header: Line
    lines: Iterator[tuple[int, Line]]

    def turns(self) -> Iterator[tuple[int, Line]]:
        """The lines of kind ``turn`` with their numbers: ``text``, ``id``, ``role`` ..."""
        return ((number, line) for number, line in self.lines if line.get("kind") == "turn")


def read_sections(lines: Iterable[bytes | str]) -> Iterator[Section]:
    """Split an export into its sections.

    Raises
    ------
    InvalidInputError
        If a line is no JSON object, too long, or does not belong to an export; it names the
        line.
    """
    numbered = _parsed(lines)
    pending = next(numbered, None)
    while pending is not None:
        number, header = pending
        if header.get("kind") != "namespace":
            raise InvalidInputError(
                f"import, line {number}: expected an export's line of kind 'namespace', got kind "
                f"{header.get('kind')!r}; other JSONL is for `rsm-fast ingest`"
            )
        if header.get("format") != FORMAT:
            raise InvalidInputError(
                f"import, line {number}: expected export format {FORMAT}, got "
                f"{header.get('format')!r}; use the rsm_fast that wrote it, or a newer one"
            )
        place = _Place(number, header)
        following: list[tuple[int, Line]] = []
        body = _body(numbered, following)
        yield Section(place.text("namespace"), header, body)
        for _ in body:  # what the caller left over
            pass
        pending = following[0] if following else None


def _body(
    numbered: Iterator[tuple[int, Line]], following: list[tuple[int, Line]]
) -> Iterator[tuple[int, Line]]:
    for number, line in numbered:
        if line.get("kind") == "namespace":
            following.append((number, line))
            return
        yield number, line


def _parsed(lines: Iterable[bytes | str]) -> Iterator[tuple[int, Line]]:
    for number, line in enumerate(lines, start=1):
        if len(line) > _MAX_LINE:
            raise InvalidInputError(f"import, line {number}: longer than {_MAX_LINE:,} bytes")
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"import, line {number}: expected a JSON object, got {line[:60]!r} ({error})"
            ) from None
        if not isinstance(value, dict):
            raise InvalidInputError(
                f"import, line {number}: expected a JSON object, got {line[:60]!r}"
            )
        yield number, value


def restore(writer: Writer, section: Section, *, key: str | None = None) -> NamespaceRecord:
    """Make a namespace that holds exactly what a section holds.

    Parameters
    ----------
    key : str, optional
        Name it so. Default: as it was named.

    Raises
    ------
    ConflictError
        If the namespace exists, or the section holds an id twice.
    InvalidInputError
        If a line cannot be used; it names the line.
    """
    first = _Place(0, section.header)
    record = writer.create_namespace(
        section.key if key is None else key, first.mapping("settings"), salt=first.hex("salt", 16)
    )
    ns = record.id
    superseded: list[tuple[str, str]] = []
    groups = itertools.groupby(section.lines, key=lambda numbered: numbered[1].get("kind"))
    for kind, group in groups:
        take = _TAKERS.get(str(kind))
        for batch in _batches(group):
            if take is None:
                raise InvalidInputError(f"import, line {batch[0].number}: unknown kind {kind!r}")
            take(writer, ns, batch)
            if kind == "turn":
                superseded += [
                    (place.text("id"), place.text("superseded_by"))
                    for place in batch
                    if "superseded_by" in place.line
                ]
    for old, new in superseded:
        turns = writer.turns_by_id(ns, [old, new])
        if new not in turns:
            raise InvalidInputError(
                f"import: turn {old!r} is superseded by {new!r}, which is not there"
            )
        writer.supersede(ns, turns[old].pk, turns[new].pk)
    writer.put_counters(
        ns, next_auto=first.integer("next_auto", low=1), next_atom=first.integer("next_atom", low=0)
    )
    return record


def _batches(group: Iterable[tuple[int, Line]]) -> Iterator[list[_Place]]:
    iterator = iter(group)
    while batch := [_Place(*numbered) for numbered in itertools.islice(iterator, _BATCH)]:
        yield batch


def _take_arrays(writer: Writer, ns: int, batch: list[_Place]) -> None:
    for place in batch:
        writer.put_array(ns, place.text("name"), place.array())


def _take_turns(writer: Writer, ns: int, batch: list[_Place]) -> None:
    writer.insert_turns(ns, [place.turn() for place in batch])


def _take_chunks(writer: Writer, ns: int, batch: list[_Place]) -> None:
    spans = [place.spans() for place in batch]
    turns = writer.turns_by_id(ns, list({span[0] for group in spans for span in group}))
    dim = writer.namespace_by_id(ns).settings.get("dim")
    chunks = []
    for place, group in zip(batch, spans, strict=True):
        if missing := [span[0] for span in group if span[0] not in turns]:
            raise place.wrong("spans", "ids of turns that stand above", missing[0])
        pks: tuple[Span, ...] = tuple((turns[id_].pk, start, stop) for id_, start, stop in group)
        chunks.append(place.chunk(pks, dim))
    writer.insert_chunks(ns, chunks)


def _take_tombstones(writer: Writer, ns: int, batch: list[_Place]) -> None:
    writer.put_tombstones(ns, [digest for place in batch for digest in place.digests()])


def _take_notes(writer: Writer, ns: int, batch: list[_Place]) -> None:
    dim = writer.namespace_by_id(ns).settings.get("dim")
    notes = NoteWriter(writer)
    for place in batch:
        notes.put(ns, place.note(place.turn_pk(writer, ns, "id"), dim))


def _take_links(writer: Writer, ns: int, batch: list[_Place]) -> None:
    notes = NoteWriter(writer)
    for place in batch:
        pair = [place.turn_pk(writer, ns, name) for name in ("id", "other")]
        if len(notes.notes(ns, pair)) < 2:
            raise place.wrong("other", "ids of two notes that stand above", place.line)
        notes.link(ns, pair[0], [pair[1]])


def _take_evolutions(writer: Writer, ns: int, batch: list[_Place]) -> None:
    notes = NoteWriter(writer)
    for place in batch:
        turn, cause = (place.turn_pk(writer, ns, name) for name in ("id", "cause"))
        if not notes.notes(ns, [turn]):
            raise place.wrong("id", "the id of a note that stands above", place.line.get("id"))
        sources = place.texts("sources")
        known = writer.turns_by_id(ns, sources)
        if missing := [name for name in sources if name not in known]:
            raise place.wrong("sources", "ids of turns that stand above", missing[0])
        step = EvolutionRecord(
            0,
            turn,
            cause,
            place.integer("micros"),
            _Place(place.number, place.mapping("before")).description(),
            _Place(place.number, place.mapping("after")).description(),
            place.boolean("undone"),
        )
        notes.restore_evolution(ns, step, [record.pk for record in known.values()])


_TAKERS: Final[Mapping[str, Callable[[Writer, int, list[Any]], None]]] = {
    "array": _take_arrays,
    "turn": _take_turns,
    "chunk": _take_chunks,
    "tombstones": _take_tombstones,
    "note": _take_notes,
    "link": _take_links,
    "evolution": _take_evolutions,
}


class _Place:
    """One line, whose fields are checked as they are taken."""

    __slots__ = ("line", "number")

    def __init__(self, number: int, line: Line) -> None:
        self.number = number
        self.line = line

    def wrong(self, name: str, expected: str, got: object) -> InvalidInputError:
        return InvalidInputError(
            f"import, line {self.number}: expected {name!r} as {expected}, got {got!r:.80}"
        )

    def text(self, name: str) -> str:
        value = self.line.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "text", value)
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.line.get(name) is None else self.text(name)

    def integer(self, name: str, *, low: int = -_MAX_MICROS, high: int = _MAX_MICROS) -> int:
        value = self.line.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(name, f"an integer from {low} to {high}", value)
        return value

    def optional_integer(self, name: str, *, low: int = -_MAX_MICROS) -> int | None:
        return None if self.line.get(name) is None else self.integer(name, low=low)

    def boolean(self, name: str) -> bool:
        value = self.line.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def mapping(self, name: str) -> Line:
        value = self.line.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object", value)
        return value

    def base64(self, name: str) -> bytes:
        text = self.text(name)
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise self.wrong(name, "base64", text) from None

    def hex(self, name: str, size: int) -> bytes:
        text = self.text(name)
        try:
            data = bytes.fromhex(text)
        except ValueError:
            data = b""
        if len(data) != size:
            raise self.wrong(name, f"{size} bytes in hexadecimal", text)
        return data

    def digests(self) -> list[bytes]:
        data = self.base64("digests")
        if len(data) % SIZE:
            raise self.wrong("digests", f"runs of {SIZE} bytes", f"{len(data)} bytes")
        return [data[start : start + SIZE] for start in range(0, len(data), SIZE)]

    def array(self) -> npt.NDArray[Any]:
        data, name, shape = self.base64("data"), self.text("dtype"), self.line.get("shape")
        try:
            match shape:
                case [*lengths] if all(type(length) is int and length >= 0 for length in lengths):
                    return np.frombuffer(data, plain_dtype(name)).reshape(lengths)
        except (TypeError, ValueError, OverflowError):
            pass  # said below
        raise self.wrong("data", f"an array of {name} {shape}", data[:16])

    def turn(self) -> TurnRecord:
        instant = parse_instant(
            self.text("timestamp"), where=f"import, line {self.number}, timestamp"
        )
        metadata = self.line.get("metadata")
        try:
            dumped = None
            if metadata is not None:
                dumped = json.dumps(self.mapping("metadata"), ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            raise self.wrong("metadata", "JSON with finite numbers", "other values") from None
        if dumped and (reason := why_not_findable(self.mapping("metadata"), dumped)):
            raise self.wrong("metadata", "what filters can find", reason)
        return TurnRecord(
            pk=0,
            id=self.text("id"),
            role=self.text("role"),
            text=self.text("text"),
            micros=instant.micros,
            offset_minutes=instant.offset_minutes,
            time_given=self.boolean("time_given"),
            session=self.optional_text("session"),
            metadata=dumped,
            expires_at=self.optional_integer("expires_at"),
        )

    def spans(self) -> list[tuple[str, int, int]]:
        spans = self.line.get("spans")
        if not isinstance(spans, list) or not spans:
            raise self.wrong("spans", "a list of [turn id, start, stop]", spans)
        for span in spans:
            match span:
                case [str(), int() as start, int() as stop] if 0 <= start <= stop < 2**62:
                    pass
                case _:
                    raise self.wrong("spans", "a list of [turn id, start, stop]", span)
        return [(span[0], span[1], span[2]) for span in spans]

    def chunk(self, spans: tuple[Span, ...], dim: object) -> ChunkRecord:
        return ChunkRecord(
            pk=0,
            id=self.text("id"),
            spans=spans,
            session=self.optional_text("session"),
            micros=self.integer("micros"),
            offset_minutes=self.integer("offset_minutes", low=-1440, high=1440),
            tokens=self.integer("tokens", low=0, high=2**31 - 1),
            line_tokens=self.base64("line_tokens"),
            terms=self.base64("terms"),
            analyser=self.integer("analyser", low=0, high=2**31 - 1),
            text_hash=self.integer("text_hash", low=-(2**63)),
            step=self.optional_integer("step"),
            truncated=self.boolean("truncated"),
            atom=None
            if self.line.get("atom") is None
            else self.integer("atom", low=0, high=2**31 - 1),
            vector=self.vector(dim),
        )

    def vector(self, dim: object) -> bytes | None:
        if self.line.get("vector") is None:
            return None
        vector = self.base64("vector")
        values = np.frombuffer(vector[: len(vector) // 4 * 4], "<f4").astype(np.float64)
        if len(vector) % 4 or (isinstance(dim, int) and values.size != dim):
            raise self.wrong("vector", f"{dim} float32 values", f"{len(vector)} bytes")
        if not abs(float(values @ values) - 1.0) < 1e-3:
            raise self.wrong("vector", "a unit vector", values[:4].tolist())
        return vector

    def turn_pk(self, reader: Reader, ns: int, name: str) -> int:
        turn = reader.turn(ns, self.text(name))
        if turn is None:
            raise self.wrong(name, "the id of a turn that stands above", self.line[name])
        return turn.pk

    def texts(self, name: str) -> list[str]:
        values = self.line.get(name)
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise self.wrong(name, "a list of texts", values)
        return values

    def description(self) -> Description:
        return Description(
            tuple(self.texts("keywords")), tuple(self.texts("tags")), self.text("context")
        )

    def note(self, turn: int, dim: object) -> NoteRecord:
        return NoteRecord(
            turn=turn,
            stage=self.integer("stage", low=0, high=LINKED),
            description=self.description(),
            model=self.text("model"),
            prompts=self.text("prompts"),
            problem=self.text("problem"),
            text_digest=self.integer("text_digest", low=-(2**63)),
            changed=0,
            space=self.integer("space", low=0, high=2**32 - 1),
            vector=self.vector(dim),
        )
