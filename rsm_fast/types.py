"""What goes in and what comes out: turns, hits, packs, statistics. All results are frozen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

from rsm_fast.errors import InvalidInputError
from rsm_fast.instants import TimestampLike

__all__ = [
    "Hit",
    "JSONValue",
    "MemoryStats",
    "OmittedChunk",
    "Pack",
    "PackStats",
    "PackedChunk",
    "Turn",
    "TurnLike",
    "as_turn",
]

JSONValue: TypeAlias = (
    "None | bool | int | float | str | Sequence[JSONValue] | Mapping[str, JSONValue]"
)

_TURN_FIELDS = ("text", "role", "timestamp", "session", "id", "metadata", "ttl")


@dataclass(frozen=True, slots=True)
class Turn:
    """One message or one agent step.

    Attributes
    ----------
    text : str
        What was said or observed, kept verbatim.
    role : str
        Who said it: ``"user"``, ``"assistant"``, a speaker's name ...
    timestamp : str, int, float, datetime, date or None
        See `rsm_fast.instants.parse_instant`. None means the time of arrival.
    session : str or None
        Conversation that the turn belongs to. None means one common session.
    id : str or None
        Unique in its namespace. None means: give one (a zero-padded counter).
    metadata : mapping or None
        JSON values under string keys; usable in ``where`` filters.
    ttl : str, timedelta, float or None
        How long after its timestamp the turn is remembered, such as ``"30d"``. None: for good.
    """

    text: str
    role: str = "user"
    timestamp: TimestampLike | None = None
    session: str | None = None
    id: str | None = None
    metadata: Mapping[str, JSONValue] | None = None
    ttl: str | timedelta | float | None = None


TurnLike: TypeAlias = Turn | Mapping[str, Any] | str


def as_turn(value: TurnLike, *, where: str = "turn") -> Turn:
    """Accept a `Turn`, a mapping with the same keys, or bare text.

    In a mapping, ``content`` serves as ``text``, and unknown keys go to the metadata.

    Raises
    ------
    InvalidInputError
        If the value is something else, or a mapping without text.
    """
    if isinstance(value, Turn):
        return value
    if isinstance(value, str):
        return Turn(value)
    if not isinstance(value, Mapping):
        raise InvalidInputError(
            f"{where}: expected a Turn, a mapping with 'text' or a string, "
            f"got {type(value).__name__}"
        )
    known = {key: value[key] for key in _TURN_FIELDS if key in value}
    extra = {key: item for key, item in value.items() if key not in _TURN_FIELDS}
    if "text" not in known:
        if "content" not in extra:
            raise InvalidInputError(
                f"{where}: expected a key 'text' (or 'content'), got keys {sorted(map(str, value))}"
            )
        known["text"] = extra.pop("content")
    if known.get("role") is None:
        known.pop("role", None)
    if extra:
        metadata = known.get("metadata") or {}
        if not isinstance(metadata, Mapping):
            raise InvalidInputError(
                f"{where}: expected metadata as a mapping, got {type(metadata).__name__}"
            )
        known["metadata"] = {**extra, **metadata}
    return Turn(**known)


class _Result:
    """Conversions that all results share."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars, ready for JSON."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def to_json(self) -> str:
        """`to_dict` as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Hit(_Result):
    """One chunk that `Memory.search` found.

    Attributes
    ----------
    id : str
        Chunk id: the id of its first turn, ``#`` and the part number.
    turn_ids : tuple of str
        The turns that the chunk holds.
    text : str
        The chunk's text, verbatim.
    score : float
        The preset's own score; not comparable across queries.
    atom : int or None
        The atom that the chunk belongs to; None before it was gated.
    session, timestamp : str
        Session name (None: the common session); ISO 8601 with offset.
    role : str
        Role of the chunk's first turn.
    """

    id: str
    turn_ids: tuple[str, ...]
    text: str
    score: float
    atom: int | None
    session: str | None
    timestamp: str
    role: str


@dataclass(frozen=True, slots=True)
class PackedChunk(_Result):
    """One chunk that stands in a pack.

    Attributes are those of `Hit`, and

    tokens : int
        Tokens of the chunk's own text rendered alone, in the pack's unit.
    copies : int
        How many byte-equal chunks this one stands for.
    reason : str
        Why it is in (filled where ``explain=True``, else empty).
    """

    id: str
    turn_ids: tuple[str, ...]
    text: str
    score: float
    atom: int | None
    session: str | None
    timestamp: str
    role: str
    tokens: int
    copies: int = 1
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OmittedChunk(_Result):
    """One chunk that does not stand in a pack, and why (only where ``explain=True``)."""

    id: str
    score: float
    tokens: int
    atom: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class PackStats(_Result):
    """Work counters and timings of one pack.

    Attributes
    ----------
    eligible, scored, considered, admitted : int
        Chunks that passed the filter; that got a score; that were tried against the
        budget; that stand in the pack.
    folded_tokens : int
        Tokens saved by folding, against writing every chunk out.
    counter : str
        Name of the token counter: the unit of ``tokens`` and ``budget``.
    preset, layout, template : str
        What the pack was made with.
    embed_us, score_us, pack_us, total_us : float
        Wall time in microseconds: embedding the query; scoring, and the admission of what need
        not be read; the rest of it, layout, rendering and this result; the whole call.
    """

    eligible: int
    scored: int
    considered: int
    admitted: int
    folded_tokens: int
    counter: str
    preset: str
    layout: str
    template: str
    embed_us: float
    score_us: float
    pack_us: float
    total_us: float


@dataclass(frozen=True, slots=True)
class Pack(_Result):
    """The prompt text made for one query under a token budget.

    Attributes
    ----------
    text : str
        What goes into the prompt. ``tokens <= budget`` always holds for it, headers included.
    tokens, budget : int
        Tokens of ``text`` and their cap, in the unit named by ``stats.counter``.
    query : str
        The question that the pack was made for.
    chunks : tuple of PackedChunk
        What stands in the text, in the order of the text.
    omitted : tuple of OmittedChunk
        What was tried and left out; empty unless ``explain=True``.
    stats : PackStats
    """

    text: str
    tokens: int
    budget: int
    query: str
    chunks: tuple[PackedChunk, ...]
    omitted: tuple[OmittedChunk, ...]
    stats: PackStats


@dataclass(frozen=True, slots=True)
class MemoryStats(_Result):
    """The state of one namespace.

    Attributes
    ----------
    turns, chunks, atoms : int
        Living turns, chunks and atoms.
    largest_atom_share : float
        Share of the gated chunks that the largest atom holds, 0 to 1.
    bytes, file_bytes : int
        Resident derived data (arenas, postings, atoms); size of the store on disk.
    pending_chunks : int
        Chunks not yet in an atom (the open chunk, or tau not known yet).
    tau : float or None
        The gate's cosine threshold; None until it is calibrated.
    warnings : tuple of str
        What an operator should look at, such as a giant atom.
    settings : mapping
        Gate, rank, dtype, embedder, counter ... that the namespace runs with.
    """

    turns: int
    chunks: int
    atoms: int
    largest_atom_share: float
    bytes: int
    file_bytes: int
    pending_chunks: int
    tau: float | None
    namespace: str
    path: str | None
    warnings: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
