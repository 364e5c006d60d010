"""The read path: score every chunk, order them, fill a pack under its budget."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rsm_fast.analysis import analyse
from rsm_fast.chunking import chunk_text, text_hash
from rsm_fast.core import Core, Snapshot
from rsm_fast.errors import BudgetError, InvalidInputError
from rsm_fast.index import route_atoms
from rsm_fast.instants import Instant, TimestampLike, parse_instant
from rsm_fast.packing import (
    Filled,
    Form,
    Frame,
    Piece,
    Source,
    Span,
    TemplateLike,
    fill,
    get_template,
)
from rsm_fast.presets import Preset
from rsm_fast.retrieval import (
    HybridSettings,
    admission_order,
    asked_speakers,
    asked_steps,
    hybrid_scores,
    labelled_rows,
    newer_first,
    paper_order,
)
from rsm_fast.types import Hit, OmittedChunk, Pack, PackedChunk, PackStats

if TYPE_CHECKING:
    from rsm_fast.packing.templates import Template
    from rsm_fast.state import NamespaceState, TextCache
    from rsm_fast.store import PieceRecord, Reader
    from rsm_fast.tokens import TokenCounter

__all__ = ["DEFAULT_BUDGET", "ReadPath", "Request", "checked_budget"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]

DEFAULT_BUDGET = 4000
"""Tokens of a pack where no budget is given."""

_FETCH = 32
"""Chunks whose texts are read from the store at once."""

_LEAST_ROOM = 64
"""Tokens below which it does not pay to order more than the head."""

_MOST_FRAMES = 16

_HEAD = 512
"""Rows that are ordered at first; a pack of a few thousand tokens seldom tries more."""


def checked_budget(budget: int | None) -> int:
    """A budget in tokens; None means `DEFAULT_BUDGET`.

    Raises
    ------
    BudgetError
        If it is negative or no whole number.
    """
    if budget is None:
        return DEFAULT_BUDGET
    if isinstance(budget, bool) or not isinstance(budget, (int, np.integer)) or budget < 0:
        raise BudgetError(
            f"budget: expected a whole number of tokens, 0 or more (None: {DEFAULT_BUDGET}), "
            f"got {budget!r}"
        )
    return int(budget)


@dataclass(frozen=True, slots=True)
class Request:
    """What a question asks for, checked.

    Attributes
    ----------
    query : str
    preset : Preset
    where : mapping or None
        Filter over turns; see `rsm_fast.memory.Memory.search`.
    as_of : TimestampLike or None
        Look at the memory as it stood then.
    superseded : bool
        Let superseded turns in.
    """

    query: str
    preset: Preset
    where: Mapping[str, Any] | None = None
    as_of: TimestampLike | None = None
    superseded: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.query, str):
            raise InvalidInputError(f"query: expected a string, got {type(self.query).__name__}")
        if not self.query.strip():
            raise InvalidInputError("query: expected some text, got an empty string")


@dataclass(frozen=True, slots=True)
class _Ranked:
    """The outcome of scoring, detached from the state: usable without the lock.

    Attributes
    ----------
    order : (k,) int32
        Rows in the order in which they are tried; the first of them, or all.
    rest : callable or None
        Gives the whole order, where ``order`` is only its beginning.
    scores : (n,) float32
    tokens : (n,) int32
    hashes, keys : (n,) int64
    atoms, versions : (n,) int32
    texts : TextCache
    counter : str
        What the stored counts were made with.
    eligible : int
    """

    order: I32
    rest: Callable[[], I32] | None
    scores: F32
    tokens: I32
    hashes: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    atoms: I32
    versions: I32
    texts: TextCache
    counter: str
    eligible: int

    def blocks(self, most_tokens: Callable[[], int]) -> Iterator[I32]:
        """The order in blocks, without chunks that by then are too long to fit.

        Byte-equal copies of what was given stay, because a pack counts them.
        """
        order, start = self.order, 0
        tokens, twins = self.tokens[order], _numbered(self.hashes[order])
        given = np.zeros(order.size, np.bool_)  # by number of a text
        while True:
            if start >= order.size:
                if self.rest is None or order is not self.order or most_tokens() < _LEAST_ROOM:
                    return
                shown = self.hashes[order][given[twins]]
                order = self.rest()
                tokens, twins = self.tokens[order], _numbered(self.hashes[order])
                given = np.zeros(order.size, np.bool_)
                given[twins[np.isin(self.hashes[order], shown)]] = True
                continue
            fits = (tokens[start:] <= most_tokens()) | given[twins[start:]]
            places = np.flatnonzero(fits)[:_FETCH] + start
            start = int(places[-1]) + 1 if places.size == _FETCH else order.size
            if places.size:
                given[twins[places]] = True
                yield order[places]


class ReadPath:
    """Answers questions on one namespace.

    Parameters
    ----------
    core : Core
    settings : HybridSettings
        Weights of the default read path.
    """

    def __init__(self, core: Core, settings: HybridSettings) -> None:
        self._core = core
        self._settings = settings
        self._frames: dict[Template, Frame] = {}

    # -- verbs --------------------------------------------------------------------------------

    def pack(
        self,
        request: Request,
        *,
        budget: int,
        template: TemplateLike,
        explain: bool,
    ) -> Pack:
        """See `rsm_fast.memory.Memory.pack`."""
        started = time.perf_counter()
        frame = self._frame(template)
        ranked: _Ranked | None = None
        query = self._core.embed_query(request.query) if budget and self._core.exists() else None
        embedded = time.perf_counter()
        with self._core.snapshot() as view:
            if query is not None and view.state is not None:
                ranked = self._rank(view, request, query)
            view.unlock()
            scored = time.perf_counter()
            source: Iterable[Piece] | _Texts = ()
            if ranked is not None:
                assert view.state is not None
                source = _Texts(view.reader, view.state.ns, ranked, scored=explain)
            filled = fill(
                source,
                budget=budget,
                counter=self._core.counter,
                template=frame.template,
                layout=request.preset.layout,
                fold=request.preset.fold,
                explain=explain,
                frame=frame,
            )
        chunks = tuple(_packed_chunks(filled, ranked))
        omitted = tuple(_omitted_chunks(filled))
        ended = time.perf_counter()
        return Pack(
            text=filled.text,
            tokens=filled.tokens,
            budget=budget,
            query=request.query,
            chunks=chunks,
            omitted=omitted,
            stats=PackStats(
                eligible=0 if ranked is None else ranked.eligible,
                scored=0 if ranked is None else ranked.scores.size,
                considered=filled.considered,
                admitted=len(filled.packed),
                folded_tokens=filled.folded_tokens,
                counter=self._core.counter.name,
                preset=request.preset.name,
                layout=request.preset.layout,
                template=frame.template.name,
                embed_us=1e6 * (embedded - started),
                score_us=1e6 * (scored - embedded),
                pack_us=1e6 * (ended - scored),
                total_us=1e6 * (ended - started),
            ),
        )

    def search(self, request: Request, *, k: int) -> list[Hit]:
        """See `rsm_fast.memory.Memory.search`."""
        if k == 0 or not self._core.exists():
            return []
        query = self._core.embed_query(request.query)
        with self._core.snapshot() as view:
            if view.state is None:
                return []
            ranked = self._rank(view, request, query, by_score=k)
            view.unlock()
            order = ranked.order[:k]
            records = view.reader.pieces(view.state.ns, ranked.keys[order].tolist())
        return [
            _hit(record, float(score))
            for record, score in zip(records, ranked.scores[order], strict=True)
        ]

    def _frame(self, template: TemplateLike) -> Frame:
        """What is known of a template's frame, kept from pack to pack."""
        template = get_template(template)
        frame = self._frames.get(template)
        if frame is None:
            if len(self._frames) >= _MOST_FRAMES:
                self._frames.clear()
            frame = self._frames[template] = Frame(template, self._core.counter)
        return frame

    # -- ranking ------------------------------------------------------------------------------

    def _rank(
        self, view: Snapshot, request: Request, query: F32, *, by_score: int | None = None
    ) -> _Ranked:
        """Order the eligible chunks for admission, or only the best ``by_score`` by score."""
        state = view.state
        assert state is not None
        arena = state.arena
        self._embed_open(view.reader, state)
        eligible = self._eligible(view.reader, state, request)
        eligible_count = int(np.count_nonzero(eligible))
        rest: Callable[[], I32] | None = None
        tokens = arena.tokens.copy()
        dense = arena.dense_scores(arena.prepare_query(query))
        if request.preset.ranking == "atoms":
            scores, order = dense, self._paper_order(state, request, query, dense, eligible)
        else:
            scores = self._hybrid_scores(state, request, dense, eligible)
            micros = arena.micros.copy()
            if by_score is not None:
                order = admission_order(scores, eligible, tokens, micros, _BY_SCORE, limit=by_score)
            else:
                settings = self._settings
                order = admission_order(scores, eligible, tokens, micros, settings, limit=_HEAD)
                order = newer_first(order, scores, tokens, micros, arena.code, settings)
                if eligible_count > order.size:
                    rest = partial(_extended, order, scores, eligible, tokens, micros, settings)
        equal = self._equal_rows(state, request, eligible)
        return _Ranked(
            order=_first(equal, order),
            rest=None if rest is None else lambda: _first(equal, rest()),
            scores=scores,
            tokens=tokens,
            hashes=state.hashes.copy(),
            keys=arena.pk.copy(),
            atoms=arena.atom.copy(),
            versions=state.versions.copy(),
            texts=state.texts,
            counter=state.settings.counter,
            eligible=eligible_count,
        )

    def _hybrid_scores(
        self, state: NamespaceState, request: Request, dense: F32, eligible: U8
    ) -> F32:
        arena, settings = state.arena, self._settings
        terms = analyse(request.query)
        lexical = state.lexical.scores(
            terms,
            prev=arena.prev,
            next=arena.next,
            alive=arena.alive,
            window=settings.window,
        )
        asked = asked_steps(request.query)
        steps = None
        if asked:
            steps = labelled_rows(
                state.steps, arena.session, arena.alive, share=settings.labelled_share
            )
        scores = hybrid_scores(
            dense, lexical, arena.prev, arena.next, eligible, settings, steps=steps, asked=asked
        )
        if settings.speaker:
            rows = asked_speakers(state.lexical, terms)
            scores[rows[eligible[rows] != 0]] += np.float32(settings.speaker)
        return scores

    def _paper_order(
        self, state: NamespaceState, request: Request, query: F32, dense: F32, eligible: U8
    ) -> I32:
        """Members of the top atoms; a chunk that is in no atom yet counts as an atom of one."""
        arena, preset = state.arena, request.preset
        if state.clusterer is None:
            rows = np.flatnonzero(eligible)
            best = rows[np.lexsort((rows, -arena.micros[rows], -dense[rows]))]
            return best[: preset.retrieve_atoms].astype(np.int32)
        route = preset.route
        index = None
        if route == "centroid" or route == "singular-vector":
            index = state.atom_index(route)
        atoms, scores = route_atoms(
            state.clusterer,
            arena.prepare_query(query),
            preset.retrieve_atoms,
            route,
            eligible=eligible,
            index=index,
        )
        waiting = np.flatnonzero((arena.atom < 0) & (eligible != 0))
        order = paper_order(
            atoms, dense, eligible, arena.atom, arena.micros, per_atom=preset.per_atom
        )
        if not waiting.size:
            return order
        least = scores[-1] if atoms.size == preset.retrieve_atoms else -np.inf
        better = waiting[dense[waiting] > least]
        better = better[np.argsort(-dense[better], kind="stable")][: preset.retrieve_atoms]
        return np.concatenate((better, order)).astype(np.int32)

    def _eligible(self, reader: Reader, state: NamespaceState, request: Request) -> U8:
        """(n,) uint8, chunks that the filter lets through."""
        now = Instant.now().micros
        if request.where is not None or request.as_of is not None or request.superseded:
            as_of = (
                None
                if request.as_of is None
                else parse_instant(request.as_of, where="as_of").micros
            )
            keys = reader.eligible_chunks(
                state.ns,
                where=request.where,
                as_of=as_of,
                now=now,
                superseded=request.superseded,
            )
            eligible = np.zeros(state.arena.n, np.uint8)
            eligible[state.rows_of(keys)] = 1
            return eligible
        eligible = state.arena.alive.copy()
        gone = [pk for pk, since in reader.superseded(state.ns).items() if since <= now]
        gone += [pk for pk, until in reader.expiring(state.ns).items() if until <= now]
        if gone:
            eligible[state.rows_of(gone)] = 0
        return eligible

    def _equal_rows(self, state: NamespaceState, request: Request, eligible: U8) -> I32:
        """Chunks whose text equals the question, newest first."""
        rows = np.flatnonzero((state.hashes == text_hash(request.query)) & (eligible != 0))
        return rows[np.lexsort((rows, -state.arena.micros[rows]))].astype(np.int32)

    def _embed_open(self, reader: Reader, state: NamespaceState) -> None:
        """Give unfinished chunks a vector for reading; the stored chunk stays unfinished."""
        stale = [row for row, text in state.open_rows.items() if not text]
        if not stale:
            return
        records = reader.pieces(state.ns, state.arena.pk[stale].tolist())
        texts = [_text(record) for record in records]
        for row, text, vector in zip(stale, texts, self._core.embed_passages(texts), strict=True):
            state.arena.replace(row, vector, tokens=int(state.arena.tokens[row]))
            state.open_rows[row] = text


class _Texts(Source):
    """Chunks with their texts, read in blocks as a pack needs them.

    Parameters
    ----------
    reader : Reader
    ns : int
    ranked : _Ranked
    scored : bool
        Chunks are to carry their scores.
    """

    def __init__(self, reader: Reader, ns: int, ranked: _Ranked, *, scored: bool) -> None:
        self._reader = reader
        self._ns = ns
        self._ranked = ranked
        self._scored = scored

    def forms(self, frame: Frame, most_tokens: Callable[[], int]) -> Iterator[Form]:
        """In the order of admission; see `rsm_fast.packing.Source`."""
        ranked = self._ranked
        cache = ranked.texts
        for rows in ranked.blocks(most_tokens):
            keys = list(zip(rows.tolist(), ranked.versions[rows].tolist(), strict=True))
            atoms = ranked.atoms[rows].tolist()
            found = {key: form for key in keys if (form := cache.get(key)) is not None}
            missing = [key for key in keys if key not in found]
            if missing:
                read = self._reader.pieces(
                    self._ns, ranked.keys[[row for row, _ in missing]].tolist()
                )
                for key, record in zip(missing, read, strict=True):
                    found[key] = Form(self._piece(record, key[0], frame.counter), frame)
                    cache.put(key, found[key])
            for key, atom in zip(keys, atoms, strict=True):
                form = found[key]
                piece = form.piece
                if form.frame is not frame or piece.atom != (None if atom < 0 else atom):
                    form = Form(replace(piece, atom=None if atom < 0 else atom), frame)
                    cache.put(key, form)
                if self._scored:
                    form = Form(replace(piece, score=float(ranked.scores[key[0]])), frame)
                yield form

    def _piece(self, record: PieceRecord, row: int, counter: TokenCounter) -> Piece:
        counts: Sequence[int]
        if self._ranked.counter != counter.name:
            lines = [line for part in record.parts for line in part.text.split("\n")]
            counts = counter.count_lines(lines)
        else:
            stored = array("I")
            stored.frombytes(record.line_tokens)
            counts = stored
        spans = []
        start = 0
        for part in record.parts:
            stop = start + part.text.count("\n") + 1
            spans.append(Span(part.role, part.text, part.turn_id, tuple(counts[start:stop])))
            start = stop
        return Piece(
            row=row,
            id=record.id,
            spans=tuple(spans),
            atom=record.atom,
            session=record.session,
            instant=Instant(record.micros, record.offset_minutes),
            score=0.0,
            step=record.step,
        )


_BY_SCORE = HybridSettings(length_power=0.0)
"""Orders by the score alone, whatever a chunk costs."""


def _extended(order: I32, *columns: Any) -> I32:
    """The whole order of admission, of which ``order`` is the beginning."""
    return np.concatenate((order, admission_order(*columns)[order.size :]))


def _first(rows: I32, order: I32) -> I32:
    """``order`` with some rows moved to its head."""
    return np.concatenate((rows, order[~np.isin(order, rows)])) if rows.size else order


def _text(record: PieceRecord) -> str:
    return chunk_text((part.role, part.text) for part in record.parts)


def _hit(record: PieceRecord, score: float) -> Hit:
    return Hit(
        id=record.id,
        turn_ids=tuple(part.turn_id for part in record.parts),
        text=_text(record),
        score=score,
        atom=record.atom,
        session=record.session,
        timestamp=Instant(record.micros, record.offset_minutes).isoformat(),
        role=record.parts[0].role,
    )


def _packed_chunks(filled: Filled, ranked: _Ranked | None) -> Iterator[PackedChunk]:
    if ranked is None:
        return
    scores = ranked.scores
    for item in filled.packed:
        piece = item.piece
        spans = piece.spans
        alone = len(spans) == 1
        yield PackedChunk(
            piece.id,
            (spans[0].turn_id,) if alone else tuple([span.turn_id for span in spans]),
            spans[0].text if alone else chunk_text((span.role, span.text) for span in spans),
            float(scores[piece.row]),
            piece.atom,
            piece.session,
            piece.instant.isoformat(),
            spans[0].role,
            item.tokens,
            item.copies,
            item.reason,
        )


def _omitted_chunks(filled: Filled) -> Iterator[OmittedChunk]:
    for item in filled.omitted:
        piece = item.piece
        yield OmittedChunk(piece.id, piece.score, item.tokens, piece.atom, item.reason)


def _numbered(hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """For each text a number below their count, equal for equal hashes."""
    return np.unique(hashes, return_inverse=True)[1]
