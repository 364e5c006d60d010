"""What the page shows, gathered from one consistent view of a namespace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rsm_fast.chunking import chunk_text
from rsm_fast.errors import EmbedderMismatchError, InvalidInputError, MissingDependencyError
from rsm_fast.inspect.projections import pca, tsne
from rsm_fast.inspect.terms import characteristic_terms
from rsm_fast.inspect.timeline import Timeline, timeline
from rsm_fast.instants import Instant

if TYPE_CHECKING:
    from rsm_fast import Memory
    from rsm_fast.core import Core
    from rsm_fast.presets import Layout, Preset
    from rsm_fast.state import NamespaceState
    from rsm_fast.store import PieceRecord, Reader
    from rsm_fast.types import MemoryStats, Pack

__all__ = ["MAP_MEMBERS", "AtomSummary", "Findings", "Map", "Member", "examine"]

I32 = npt.NDArray[np.int32]
F64 = npt.NDArray[np.float64]

MAP_MEMBERS = 1000
"""Chunks on the map: a t-SNE of them takes a few seconds."""

_MOST_MEMBERS = 5000
_LISTED_ATOMS = 100
_NEWEST = 3
_TERM_TEXTS = 100
_SNIPPET = 240
_QUERIES = 6
_SEARCHED_TURNS = 2000


@dataclass(frozen=True, slots=True)
class Member:
    """One chunk as the page shows it; ``text`` may be cut."""

    row: int
    id: str
    text: str
    role: str
    session: str | None
    timestamp: str
    atom: int | None


@dataclass(frozen=True, slots=True)
class AtomSummary:
    """One atom: its size, its share of the gated chunks, its words, its newest members."""

    number: int
    size: int
    share: float
    first: str
    last: str
    terms: tuple[str, ...]
    newest: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Map:
    """Chunks on a plane.

    Attributes
    ----------
    members : tuple of Member
    pca, tsne : (n, 2) float64
        Two layouts of them, in the gate's space.
    variance : float
        Share of the variance that the PCA shows.
    total : int
        Chunks that have a vector; ``members`` is a sample of them where it is shorter.
    """

    members: tuple[Member, ...]
    pca: F64
    tsne: F64
    variance: float
    total: int


@dataclass(frozen=True, slots=True)
class Findings:
    """All that the page shows.

    Attributes
    ----------
    stats : MemoryStats
    made : str
        When, ISO 8601.
    atoms : tuple of AtomSummary
        The largest, by size.
    map : Map
    timeline : Timeline or None
        None where nothing is stored.
    packs : tuple of Pack
        Made with ``explain=True``.
    omitted_texts : mapping of str to str
        Texts of left-out chunks by id; they may be cut.
    note : str
        Why there are no packs, if so.
    """

    stats: MemoryStats
    made: str
    atoms: tuple[AtomSummary, ...]
    map: Map
    timeline: Timeline | None
    packs: tuple[Pack, ...]
    omitted_texts: Mapping[str, str]
    note: str


def examine(
    memory: Memory,
    *,
    queries: Sequence[str] | None = None,
    budget: int | None = None,
    preset: str | Preset | None = None,
    layout: Layout | None = None,
    members: int = MAP_MEMBERS,
) -> Findings:
    """Gather what the page shows; parameters and errors as for `write_report`."""
    if not 1 <= members <= _MOST_MEMBERS:
        raise InvalidInputError(f"members: expected 1 to {_MOST_MEMBERS:,}, got {members!r}")
    core = memory._core
    stats = memory.stats()
    packs: tuple[Pack, ...] = ()
    note = ""
    asked = _own_queries(core) if queries is None else queries
    try:
        if asked:  # loads kernels and model, which would spoil the timings of the first pack
            memory.pack(asked[0], budget=budget, preset=preset)
        packs = tuple(
            memory.pack(query, budget=budget, preset=preset, layout=layout, explain=True)
            for query in asked
        )
    except (EmbedderMismatchError, MissingDependencyError) as error:
        if queries is not None:
            raise
        note = f"No question was asked, because the embedder is not at hand: {error}"
    with core.snapshot() as view:
        state = view.state
        if state is None:
            nowhere = np.zeros((0, 2))
            empty = Map((), nowhere, nowhere, 0.0, 0)
            return Findings(stats, _now(), (), empty, None, packs, {}, note)
        rows = state.gated_rows()
        named, omitted_texts = _named(view.reader, state, packs)
        return Findings(
            stats=stats,
            made=_now(),
            atoms=_atoms(view.reader, state),
            map=_map(view.reader, state, _sample(rows, named, members), rows.size),
            timeline=timeline(state, np.flatnonzero(state.arena.alive)),
            packs=packs,
            omitted_texts=omitted_texts,
            note=note,
        )


def _now() -> str:
    return Instant(Instant.now().micros // 1_000_000 * 1_000_000).isoformat()


# -- questions --------------------------------------------------------------------------------


def _own_queries(core: Core) -> list[str]:
    """The newest questions in the memory, or else the words of its largest atoms."""
    with core.snapshot() as view:
        state = view.state
        if state is None or not state.arena.living:
            return []
        living = np.flatnonzero(state.arena.alive)
        newest = living[np.argsort(-state.arena.micros[living], kind="stable")]
        asked: dict[str, None] = {}
        for record in _records(view.reader, state, newest[:_SEARCHED_TURNS]):
            text = record.parts[0].text.strip()
            if text.endswith("?") and "\n" not in text and 12 <= len(text) <= 160:
                asked.setdefault(text)
            if len(asked) == _QUERIES:
                break
        if asked:
            return list(asked)
        words = (" ".join(atom.terms) for atom in _atoms(view.reader, state, limit=_QUERIES))
        return [query for query in words if query]


def _named(
    reader: Reader, state: NamespaceState, packs: Sequence[Pack]
) -> tuple[set[int], dict[str, str]]:
    """Rows of the chunks that packs name, and the texts of those left out."""
    rows: set[int] = set()
    left_out: dict[str, int] = {}
    for pack in packs:
        for chunk_id in (*(c.id for c in pack.chunks), *(c.id for c in pack.omitted)):
            record = reader.chunk_by_id(state.ns, chunk_id)
            row = None if record is None else state.row_of(record.pk)
            if row is not None:
                rows.add(row)
                left_out[chunk_id] = row
    ids = {chunk.id for pack in packs for chunk in pack.omitted}
    wanted = {chunk_id: row for chunk_id, row in left_out.items() if chunk_id in ids}
    members = _members(reader, state, np.array(list(wanted.values()), np.int32))
    return rows, {member.id: member.text for member in members}


# -- chunks -----------------------------------------------------------------------------------


def _records(reader: Reader, state: NamespaceState, rows: npt.ArrayLike) -> Iterable[PieceRecord]:
    keys = state.arena.pk[np.asarray(rows, np.int64)].tolist()
    for start in range(0, len(keys), 64):
        yield from reader.pieces(state.ns, keys[start : start + 64])


def _members(reader: Reader, state: NamespaceState, rows: npt.ArrayLike) -> tuple[Member, ...]:
    wanted = np.asarray(rows, np.int64)
    return tuple(
        Member(
            row=row,
            id=record.id,
            text=_snippet(_text(record)),
            role=record.parts[0].role,
            session=record.session,
            timestamp=Instant(record.micros, record.offset_minutes).isoformat(),
            atom=record.atom,
        )
        for row, record in zip(wanted.tolist(), _records(reader, state, wanted), strict=True)
    )


def _text(record: PieceRecord) -> str:
    return chunk_text((part.role, part.text) for part in record.parts)


def _snippet(text: str) -> str:
    return text if len(text) <= _SNIPPET else text[: _SNIPPET - 1].rstrip() + "…"


# -- atoms ------------------------------------------------------------------------------------


def _atoms(
    reader: Reader, state: NamespaceState, *, limit: int = _LISTED_ATOMS
) -> tuple[AtomSummary, ...]:
    """The largest atoms, by size, then number."""
    if state.clusterer is None:
        return ()
    numbers, counts = state.clusterer.counts()
    total = int(counts.sum())
    order = np.lexsort((numbers, -counts))[:limit]
    return tuple(
        _atom(reader, state, int(numbers[at]), int(counts[at]), total) for at in order.tolist()
    )


def _atom(reader: Reader, state: NamespaceState, number: int, size: int, total: int) -> AtomSummary:
    assert state.clusterer is not None
    rows = state.clusterer.members(number)
    micros = state.arena.micros[rows]
    newest = rows[np.lexsort((-rows, -micros))]
    # Evenly over the atom's members, so that a long one is not described by its last days alone.
    described = rows[:: -(-rows.size // _TERM_TEXTS)]
    texts = [_text(record) for record in _records(reader, state, described)]
    first, last = state.clusterer.time_range(number)
    return AtomSummary(
        number=number,
        size=size,
        share=size / total,
        first=Instant(first).isoformat(),
        last=Instant(last).isoformat(),
        terms=characteristic_terms(
            texts, state.lexical.document_frequency, max(state.lexical.living, 1)
        ),
        newest=_members(reader, state, newest[:_NEWEST]),
    )


# -- map --------------------------------------------------------------------------------------


def _sample(rows: I32, named: set[int], size: int) -> I32:
    """Rows for the map: those that packs name, and the rest drawn evenly; ascending."""
    if rows.size <= size:
        return rows
    drawn = np.random.default_rng(0).choice(rows, size, replace=False)
    also = np.intersect1d(rows, np.array(sorted(named), np.int32))
    return np.union1d(drawn, also).astype(np.int32)


def _map(reader: Reader, state: NamespaceState, rows: I32, total: int) -> Map:
    vectors = state.arena.vec[rows].astype(np.float64)
    flat, variance = pca(vectors)
    return Map(_members(reader, state, rows), flat, tsne(vectors), variance, total)
