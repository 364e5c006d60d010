"""The read path: score every chunk, order them, fill a pack under its budget."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import rsm_fast.kernels as kernels
from rsm_fast.analysis import analyse
from rsm_fast.chunking import chunk_text, text_hash
from rsm_fast.core import Core, Snapshot
from rsm_fast.errors import BudgetError, InvalidInputError
from rsm_fast.frozen import maker
from rsm_fast.index import route_atoms
from rsm_fast.instants import Instant, TimestampLike, parse_instant
from rsm_fast.packing import (
    Filled,
    Form,
    Frame,
    Ledger,
    Offers,
    Piece,
    PriceTable,
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
    labelled_rows,
    paper_order,
    question,
    room_for,
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

_MOST_FRAMES = 16

_HEAD = 256
"""Rows that are ordered at first; a pack of a few thousand tokens seldom tries more."""

_LONGER = 4
"""So many times as many rows are ordered next."""


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
    rest : iterator
        Rows that follow, in parts, where ``order`` is only the beginning.
    scores : (n,) float32
    columns : Offers
        Of all rows.
    keys : (n,) int64
    texts : TextCache
    counter : str
        What the stored counts were made with.
    eligible : int
    """

    order: I32
    rest: Iterator[I32]
    scores: F32
    columns: Offers
    keys: npt.NDArray[np.int64]
    texts: TextCache
    counter: str
    eligible: int


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
        ledger: Ledger | None = None
        query = self._core.embed_query(request.query) if budget and self._core.exists() else None
        embedded = time.perf_counter()
        with self._core.snapshot() as view:
            if query is not None and view.state is not None:
                if self._in_one_call(view.state, request.preset, explain) and budget > frame.fixed:
                    prices, preset = view.state.texts.prices(frame), request.preset
                    ledger = Ledger(prices, preset.layout, budget=budget, fold=preset.fold)
                ranked = self._rank(view, request, query, ledger=ledger)
            view.unlock()
            scored = time.perf_counter()
            source: Iterable[Piece] | _Texts = ()
            if ranked is not None:
                assert view.state is not None
                counter = self._core.counter
                source = _Texts(view.reader, view.state.ns, ranked, counter, scored=explain)
            filled = fill(
                source,
                budget=budget,
                counter=self._core.counter,
                template=frame.template,
                layout=request.preset.layout,
                fold=request.preset.fold,
                explain=explain,
                frame=frame,
                ledger=ledger,
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

    def _in_one_call(self, state: NamespaceState, preset: Preset, explain: bool) -> bool:
        """Whether a kernel may admit: it takes lengths for true, and gives no reasons."""
        counted = state.settings.counter == self._core.counter.name
        return preset.ranking == "hybrid" and counted and not explain

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
        self,
        view: Snapshot,
        request: Request,
        query: F32,
        *,
        by_score: int | None = None,
        ledger: Ledger | None = None,
    ) -> _Ranked:
        """Order the eligible chunks for admission, or only the best ``by_score`` by score.

        With a ledger, which the default ranking can do with, the first are admitted as well.
        """
        state = view.state
        assert state is not None
        arena = state.arena
        self._embed_open(view.reader, state)
        eligible = self._eligible(view.reader, state, request)
        eligible_count = int(np.count_nonzero(eligible))
        columns = Offers(
            rows=np.arange(arena.n, dtype=np.int32),
            versions=state.versions.copy(),
            micros=arena.micros.copy(),
            sessions=arena.session.copy(),
            atoms=arena.atom.copy(),
            tokens=arena.tokens.copy(),
            texts=state.hashes.copy(),
        )
        equal = self._equal_rows(state, request, eligible)
        prepared = arena.prepare_query(query)
        rest: Iterator[I32] = iter(())
        if request.preset.ranking == "atoms":
            scores = arena.dense_scores(prepared)
            order = self._paper_order(state, request, query, scores, eligible)
            order = _first(equal, order)
        else:
            limit = _HEAD if by_score is None else by_score
            asked = self._question(
                state, request, prepared, eligible, equal, by_score=by_score is not None
            )
            scores, order = room_for(arena, equal, limit)
            if ledger is None:
                order = order[: kernels.read.rank_(*asked, scores, order)]
            else:
                order = ledger.read(
                    asked,
                    scores,
                    order,
                    versions=columns.versions,
                    sessions=columns.sessions,
                    atoms=columns.atoms,
                    hashes=columns.texts,
                )
            if by_score is None and eligible_count > limit:
                facts = scores, eligible, columns.tokens, columns.micros, self._settings
                rest = _following(equal, limit, *facts)
        return _Ranked(
            order=order,
            rest=rest,
            scores=scores,
            columns=columns,
            keys=arena.pk.copy(),
            texts=state.texts,
            counter=state.settings.counter,
            eligible=eligible_count,
        )

    def _question(
        self,
        state: NamespaceState,
        request: Request,
        query: F32,
        eligible: U8,
        equal: I32,
        *,
        by_score: bool,
    ) -> tuple[Any, ...]:
        """Analyse and route a question, for the default ranking."""
        arena, settings = state.arena, self._settings
        terms = analyse(request.query)
        words = state.lexical.asked(
            terms,
            prev=arena.prev,
            next=arena.next,
            alive=arena.alive,
            window=settings.window,
            edition=state.edition,
        )
        asked = asked_steps(request.query)
        steps: I32 = np.empty(0, np.int32)
        raised = steps
        if asked:
            share = settings.labelled_share
            steps = labelled_rows(state.steps, arena.session, arena.alive, share=share)
        if settings.speaker:
            raised = asked_speakers(state.lexical, terms)
        return question(
            arena,
            words,
            query,
            eligible,
            settings,
            asked=asked,
            steps=steps,
            raised=raised,
            equal=equal,
            by_score=by_score,
        )

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
        gone = [row for row, since in state.leaving(reader) if since <= now]
        if gone:
            eligible[gone] = 0
        return eligible

    def _equal_rows(self, state: NamespaceState, request: Request, eligible: U8) -> I32:
        """Chunks whose text equals the question, newest first."""
        same = np.flatnonzero(state.hashes == text_hash(request.query)).astype(np.int32)
        if not same.size:
            return same
        rows: I32 = same[eligible[same] != 0]
        newest: I32 = rows[np.lexsort((rows, -state.arena.micros[rows]))]
        return newest

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
    """Chunks with their texts, read as a pack needs them.

    Parameters
    ----------
    reader : Reader
    ns : int
    ranked : _Ranked
    counter : TokenCounter
        What counts in this pack.
    scored : bool
        Chunks are to carry their scores.
    """

    def __init__(
        self, reader: Reader, ns: int, ranked: _Ranked, counter: TokenCounter, *, scored: bool
    ) -> None:
        self._reader = reader
        self._ns = ns
        self._ranked = ranked
        self._scored = scored
        self._order = ranked.order
        self._counted = ranked.counter == counter.name

    def offers(self, begun: int = 0) -> Iterator[Offers]:
        """In the order of admission: the head, if it is not known, then the others."""
        ranked = self._ranked
        if not begun:
            yield self._at(self._order)
        for more in ranked.rest:
            self._order = np.concatenate((self._order, more))
            yield self._at(more)

    def _at(self, rows: I32) -> Offers:
        offers = self._ranked.columns.at(rows)
        return offers if self._counted else replace(offers, tokens=np.zeros_like(offers.tokens))

    def prices(self, frame: Frame) -> PriceTable:
        """See `rsm_fast.packing.Source`."""
        return self._ranked.texts.prices(frame)

    def forms(self, frame: Frame, places: Sequence[int]) -> list[Form]:
        """See `rsm_fast.packing.Source`."""
        ranked = self._ranked
        cache = ranked.texts
        rows = self._order[places]
        keys = list(zip(rows.tolist(), ranked.columns.versions[rows].tolist(), strict=True))
        found = {key: form for key in keys if (form := cache.get(key)) is not None}
        missing = [key for key in keys if key not in found]
        if missing:
            records = {key: record for key in missing if (record := cache.take_written(key))}
            unread = [key for key in missing if key not in records]
            if unread:
                pks = ranked.keys[[row for row, _ in unread]].tolist()
                records |= zip(unread, self._reader.pieces(self._ns, pks), strict=True)
            for key, record in records.items():
                found[key] = Form(self._piece(record, key[0], frame.counter), frame)
                cache.put(key, found[key])
        forms = []
        atoms = ranked.columns.atoms[rows].tolist()
        for key, number in zip(keys, atoms, strict=True):
            form, atom = found[key], None if number < 0 else number
            if form.frame is not frame or form.piece.atom != atom:
                form = Form(replace(form.piece, atom=atom), frame)
                cache.put(key, form)
            if self._scored:
                form = Form(replace(form.piece, score=float(ranked.scores[key[0]])), frame)
            forms.append(form)
        return forms

    def _piece(self, record: PieceRecord, row: int, counter: TokenCounter) -> Piece:
        counts: Sequence[int]
        if not self._counted:
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
            spans.append(_new_span(part.role, part.text, part.turn_id, tuple(counts[start:stop])))
            start = stop
        instant = Instant(record.micros, record.offset_minutes)
        return _new_piece(
            row, record.id, tuple(spans), record.atom, record.session, instant, 0.0, record.step
        )


def _following(equal: I32, begun: int, scores: F32, *facts: Any) -> Iterator[I32]:
    """What follows in the order of admission after its first rows, in ever longer parts."""
    while begun < scores.size:
        order = admission_order(scores, *facts, limit=_LONGER * begun)
        rest = order[begun:]
        if not rest.size:
            return
        begun = order.size
        yield rest[~np.isin(rest, equal)] if equal.size else rest


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
    rows = [piece.row for piece, *_ in filled.packed]
    scores = ranked.scores[rows].tolist()
    for (piece, tokens, copies, _, reason), score in zip(filled.packed, scores, strict=True):
        spans = piece.spans
        alone = len(spans) == 1
        yield _packed_chunk(
            piece.id,
            (spans[0].turn_id,) if alone else tuple([span.turn_id for span in spans]),
            spans[0].text if alone else chunk_text((span.role, span.text) for span in spans),
            score,
            piece.atom,
            piece.session,
            _iso(piece.instant.micros, piece.instant.offset_minutes),
            spans[0].role,
            tokens,
            copies,
            reason,
        )


_packed_chunk = maker(PackedChunk)
_new_piece = maker(Piece)
_new_span = maker(Span)


@lru_cache(maxsize=16_384)
def _iso(micros: int, offset_minutes: int) -> str:
    return Instant(micros, offset_minutes).isoformat()


def _omitted_chunks(filled: Filled) -> Iterator[OmittedChunk]:
    for item in filled.omitted:
        piece = item.piece
        yield OmittedChunk(piece.id, piece.score, item.tokens, piece.atom, item.reason)
