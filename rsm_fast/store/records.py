"""Rows of the store as immutable records, and the checksums that protect them."""

from __future__ import annotations

import json
import re
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rsm_fast.errors import CorruptStoreError

__all__ = [
    "STEP_NONE",
    "Changes",
    "ChunkColumns",
    "ChunkRecord",
    "NamespaceRecord",
    "NamespaceRow",
    "PiecePart",
    "PieceRecord",
    "Span",
    "TurnRecord",
    "CHUNK_FIELDS",
    "check_chunk",
    "check_features",
    "check_turn",
    "chunk_crc",
    "chunk_from_row",
    "damaged",
    "features_crc",
    "first_pk",
    "last_pk",
    "namespace_crc",
    "namespace_of",
    "pack_spans",
    "plain_dtype",
    "text_crc",
    "turn_crc",
    "turn_from_row",
    "unpack_spans",
    "vector_crc",
]

Span: TypeAlias = tuple[int, int, int]

STEP_NONE: Final = -(2**63)  # in ChunkColumns.step: the chunk has no step label
CHUNK_FIELDS: Final = 12  # columns of table chunks before its CRC
_PK_BITS: Final = 40
_PLAIN_DTYPE: Final = re.compile("[<>|=]?(?:b1|[iu][1248]|f[248])")
_SPAN = struct.Struct("<3q")


def first_pk(ns: int) -> int:
    """Every pk of namespace ``ns`` is greater than this."""
    return ns << _PK_BITS


def last_pk(ns: int) -> int:
    """Every pk of namespace ``ns`` is at most this."""
    return ((ns + 1) << _PK_BITS) - 1


def namespace_of(pk: int) -> int:
    """The number of the namespace that a pk belongs to."""
    return pk >> _PK_BITS


class TurnRecord(NamedTuple):
    """One turn. ``pk`` is given by the store; 0 before that."""

    pk: int
    id: str
    role: str
    text: str
    micros: int
    offset_minutes: int
    time_given: bool
    session: str | None
    metadata: str | None
    expires_at: int | None = None
    superseded_by: int | None = None

    def named(self, id_: str) -> TurnRecord:
        """The same turn with an id; in a fifth of the time that `_replace` takes."""
        return TurnRecord(self.pk, id_, *self[2:])


class ChunkRecord(NamedTuple):
    """One chunk.

    Attributes
    ----------
    spans : tuple of (turn pk, start, stop)
        The slices of turn texts that the chunk holds, in code points.
    line_tokens, terms : bytes
        Token counts by line and analysed terms, in formats that their users own.
    text_hash : int
        Signed 64 bit hash of the chunk's normalised text.
    vector : bytes or None
        Raw unit float32 values, little endian; None for a chunk not embedded yet.
    """

    pk: int
    id: str
    spans: tuple[Span, ...]
    session: str | None
    micros: int
    offset_minutes: int
    tokens: int
    line_tokens: bytes
    terms: bytes
    analyser: int
    text_hash: int = 0
    step: int | None = None
    truncated: bool = False
    atom: int | None = None
    vector: bytes | None = None


class PiecePart(NamedTuple):
    """The slice of one turn that stands in a chunk."""

    turn_id: str
    role: str
    text: str
    turn_pk: int


class PieceRecord(NamedTuple):
    """A chunk with its texts: what packing needs."""

    pk: int
    id: str
    session: str | None
    micros: int
    offset_minutes: int
    tokens: int
    line_tokens: bytes
    step: int | None
    truncated: bool
    atom: int | None
    parts: tuple[PiecePart, ...]


class NamespaceRecord(NamedTuple):
    """One namespace: its number, key, settings and counters."""

    id: int
    key: str
    settings: dict[str, Any]
    generation: int
    next_auto: int
    next_atom: int


@dataclass(slots=True)
class NamespaceRow:
    """A namespace as it stands in its table, without the CRC; a writer changes it in place."""

    id: int
    key: str
    salt: bytes
    settings: str
    generation: int
    next_turn: int
    next_chunk: int
    next_auto: int
    next_atom: int
    log_floor: int

    def record(self) -> NamespaceRecord:
        """What the outside sees of it."""
        return NamespaceRecord(
            self.id, self.key, json.loads(self.settings), self.generation, self.next_auto,
            self.next_atom,
        )  # fmt: skip

    def fields(self) -> tuple[Any, ...]:
        """The columns in the order of the table."""
        return (
            self.id, self.key, self.salt, self.settings, self.generation, self.next_turn,
            self.next_chunk, self.next_auto, self.next_atom, self.log_floor,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChunkColumns:
    """All chunks of a namespace as columns of length n, ascending pk.

    Attributes
    ----------
    pk, micros, text_hash, step : int64[n]
        ``step`` is `STEP_NONE` where there is none.
    offset_minutes, tokens, atom, session, analyser : int32[n]
        ``atom`` and ``session`` are -1 where there is none.
    session_names : list of str
        ``session_names[session[i]]`` is the name.
    truncated, has_vector : uint8[n]
    vector : float32[n, d], C-contiguous
        Zeros where ``has_vector`` is 0.
    terms : list of bytes, length n
    """

    pk: npt.NDArray[np.int64]
    micros: npt.NDArray[np.int64]
    offset_minutes: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    atom: npt.NDArray[np.int32]
    session: npt.NDArray[np.int32]
    session_names: list[str]
    analyser: npt.NDArray[np.int32]
    text_hash: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    truncated: npt.NDArray[np.uint8]
    has_vector: npt.NDArray[np.uint8]
    vector: npt.NDArray[np.float32]
    terms: list[bytes]


@dataclass(frozen=True, slots=True)
class Changes:
    """What others committed since a generation.

    Attributes
    ----------
    reload : bool
        The log does not reach back that far: read `ChunkColumns` anew; the lists are empty.
    generation : int
        The generation that the namespace has now.
    removed : list of int
        Chunk pks that are gone.
    upserts : list of ChunkRecord
        New and changed chunks, ascending pk.
    """

    reload: bool
    generation: int
    removed: list[int]
    upserts: list[ChunkRecord]


def plain_dtype(name: object) -> np.dtype[Any]:
    """The dtype of numbers that a file names, such as ``<f4``; ValueError for any other text.

    `numpy.dtype` itself parses more than names, and raises what its parser raises.
    """
    if not isinstance(name, str) or not _PLAIN_DTYPE.fullmatch(name):
        raise ValueError(f"expected a dtype like '<f4', got {name!r:.40}")
    return np.dtype(name)


def pack_spans(spans: tuple[Span, ...]) -> bytes:
    """Spans as little-endian int64 triples."""
    if len(spans) == 1:
        return _SPAN.pack(*spans[0])
    return b"".join(_SPAN.pack(*span) for span in spans)


def unpack_spans(data: bytes) -> tuple[Span, ...]:
    """The inverse of `pack_spans`."""
    if len(data) == _SPAN.size:
        return (_SPAN.unpack(data),)
    return tuple(_SPAN.iter_unpack(data))


def text_crc(*fields: object) -> int:
    """CRC32 over fields written one after another."""
    return zlib.crc32("\0".join(map(str, fields)).encode())


def namespace_crc(row: tuple[Any, ...]) -> int:
    """`text_crc` of the fields of a namespace, in the order of its table."""
    ns, key, salt, settings, generation, turn, chunk, auto, atom, floor = row
    return zlib.crc32(
        f"{ns}\0{key}\0{salt}\0{settings}\0{generation}\0{turn}\0{chunk}\0{auto}\0{atom}\0"
        f"{floor}".encode()
    )


def vector_crc(pk: int, data: bytes) -> int:
    """CRC32 over a vector, bound to the chunk that it belongs to."""
    return zlib.crc32(data, pk & 0xFFFFFFFF)


def turn_crc(row: tuple[Any, ...]) -> int:
    """CRC32 over the fields of a turn, in the order of `TurnRecord`."""
    pk, id_, role, text, micros, offset, given, session, metadata, expires, superseded = row
    return zlib.crc32(
        f"{pk}\0{id_}\0{role}\0{text}\0{micros}\0{offset}\0{given:d}\0{session}\0{metadata}\0"
        f"{expires}\0{superseded}".encode()
    )


def chunk_crc(row: tuple[Any, ...]) -> int:
    """CRC32 over the stored fields of a chunk, in the order of table ``chunks``."""
    pk, id_, spans, session, micros, offset, tokens, lines, text_hash, step, truncated, atom = row
    head = (
        f"{pk}\0{id_}\0{session}\0{micros}\0{offset}\0{tokens}\0{text_hash}\0{step}\0"
        f"{truncated:d}\0{atom}\0"
    )
    return zlib.crc32(lines, zlib.crc32(spans, zlib.crc32(head.encode())))


def features_crc(pk: int, terms: bytes, analyser: int, vector: bytes | None) -> int:
    """CRC32 over the features of a chunk, bound to the chunk that they belong to."""
    crc = zlib.crc32(terms, (pk * 1_000_003 + analyser) & 0xFFFFFFFF)
    return crc if vector is None else zlib.crc32(vector, crc)


def check_turn(row: tuple[Any, ...]) -> None:
    """Hold the row of a turn against its CRC, the last field."""
    try:
        if turn_crc(row[:-1]) == row[-1]:
            return
    except (TypeError, ValueError):  # damage changed the type of a field
        pass
    raise damaged("turn", row[0])


def turn_from_row(row: tuple[Any, ...]) -> TurnRecord:
    """A turn from its stored fields and CRC.

    Raises
    ------
    CorruptStoreError
        If the CRC does not fit the fields.
    """
    check_turn(row)
    return TurnRecord._make(row[:-1])._replace(time_given=bool(row[6]))


def check_chunk(row: tuple[Any, ...]) -> None:
    """Hold the row of a chunk, `CHUNK_FIELDS` of them and its CRC, against the CRC."""
    try:
        if chunk_crc(row[:CHUNK_FIELDS]) == row[CHUNK_FIELDS]:
            return
    except (TypeError, ValueError):  # damage changed the type of a field
        pass
    raise damaged("chunk", row[0])


def check_features(pk: int, terms: bytes, analyser: int, vector: bytes | None, crc: int) -> None:
    """Hold the features of a chunk against their CRC."""
    try:
        if features_crc(pk, terms, analyser, vector) == crc:
            return
    except (TypeError, ValueError):  # damage changed the type of a field
        pass
    raise damaged("features of chunk", pk)


def chunk_from_row(row: tuple[Any, ...]) -> ChunkRecord:
    """A chunk from its stored fields, their CRC, its features and theirs.

    Raises
    ------
    CorruptStoreError
        If a CRC does not fit, or the features are missing.
    """
    check_chunk(row)
    check_features(row[0], *row[CHUNK_FIELDS + 1 :])
    (
        pk, id_, spans, session, micros, offset, tokens, lines, text_hash, step, truncated, atom,
        _, terms, analyser, vector, _,
    ) = row  # fmt: skip
    return ChunkRecord(
        pk, id_, unpack_spans(spans), session, micros, offset, tokens, lines, terms, analyser,
        text_hash, step, bool(truncated), atom, vector,
    )  # fmt: skip


def damaged(kind: str, pk: object) -> CorruptStoreError:
    """The error for a row that its checksum does not fit."""
    return CorruptStoreError(
        f"{kind} {pk}: stored bytes do not match their checksum; run `rsm-fast doctor`, "
        "which tells what is damaged and rebuilds what can be derived"
    )
