"""Systems that rank chunks in memory and pack them with the project's own packer.

They differ in nothing but the order in which chunks are tried against the budget, so a
difference in recall is one of ranking. Layout, template and counting are those of `rsm_fast`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from bench.quality.packed import Packed, Shown, SystemStats
from rsm_fast.analysis import analyse, date_terms, step_label
from rsm_fast.chunking import chunk_text
from rsm_fast.embedding import Embedder
from rsm_fast.instants import Instant, parse_instant
from rsm_fast.lexical import LexicalIndex
from rsm_fast.packing import Piece, Span, fill
from rsm_fast.tokens import TokenCounter
from rsm_fast.types import Turn

__all__ = [
    "Bm25",
    "Columns",
    "Dense",
    "FullContext",
    "FusedRanks",
    "NoMemory",
    "Order",
    "RankedSystem",
    "Recent",
]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

LayoutName: TypeAlias = Literal["atoms", "sessions", "flat"]

_PLAIN_ROLES = frozenset({"user", "assistant", "agent"})


class Columns:
    """Chunks of one stream with what ranking needs.

    Parameters
    ----------
    embedder : Embedder
    counter : TokenCounter
    chunk_turns : int
        Turns to a chunk; a chunk never crosses a session.
    """

    def __init__(self, embedder: Embedder, counter: TokenCounter, chunk_turns: int) -> None:
        self.embedder = embedder
        self.counter = counter
        self.chunk_turns = chunk_turns
        self.pieces: list[Piece] = []
        self.session: list[str] = []
        self._vectors: F32 = np.empty((0, embedder.dim), np.float32)
        self._unembedded: list[str] = []
        self._lexical = LexicalIndex()
        self._unindexed: list[str] = []
        self._written = 0

    @property
    def n(self) -> int:
        """Number of chunks."""
        return len(self.pieces)

    @property
    def vectors(self) -> F32:
        """(n, d) float32, embedded at the first look: not every system needs them."""
        if self._unembedded:
            new = self.embedder.embed_passages(self._unembedded)
            self._vectors = np.concatenate((self._vectors, new))
            self._unembedded = []
        return self._vectors

    @property
    def lexical(self) -> LexicalIndex:
        """Terms of texts and dates, indexed at the first look."""
        for row, text in enumerate(self._unindexed, self._lexical.n):
            dated = date_terms(self.pieces[row].instant)
            self._lexical.append(row, [*_terms(text), *dated])
        self._unindexed = []
        return self._lexical

    def write(self, turns: Sequence[Turn]) -> range:
        """Add turns; gives the rows of the new chunks."""
        first = self.n
        groups: list[list[Turn]] = []
        growing: dict[str | None, list[Turn]] = {}
        for turn in turns:
            group = growing.setdefault(turn.session, [])
            if not group:
                groups.append(group)
            group.append(turn)
            if len(group) == self.chunk_turns:
                del growing[turn.session]
        texts = [_text(group) for group in groups]
        self._unembedded += texts
        self._unindexed += texts
        for row, group in enumerate(groups, first):
            instant = self._instant(group[0])
            self.session.append(group[0].session or "")
            step = step_label(group[0].text, group[0].metadata)
            self.pieces.append(
                Piece(
                    row=row,
                    id=f"{group[0].id}#0",
                    spans=tuple(self._span(turn) for turn in group),
                    atom=None,
                    session=group[0].session,
                    instant=instant,
                    score=0.0,
                    step=step if step >= 0 else None,
                )
            )
        return range(first, self.n)

    def lexical_scores(self, query: str, window: int = 0) -> F32:
        """BM25 of every chunk, without neighbours unless a window is given."""
        none = np.full(self.n, -1, np.int32)
        alive = np.ones(self.n, np.uint8)
        return self.lexical.scores(analyse(query), prev=none, next=none, alive=alive, window=window)

    def dense_scores(self, query: str) -> F32:
        """Cosine of every chunk."""
        scores: F32 = self.vectors @ self.embedder.embed_queries([query])[0]
        return scores

    def _instant(self, turn: Turn) -> Instant:
        """The turn's time; without one its place in the stream, as seconds."""
        self._written += 1
        if turn.timestamp is None:
            return Instant(self._written * 1_000_000)
        return parse_instant(turn.timestamp)

    def _span(self, turn: Turn) -> Span:
        counts = self.counter.count_lines(turn.text.split("\n"))
        return Span(turn.role, turn.text, turn.id or "", tuple(counts))


class Order(Protocol):
    """A rule that orders chunks for a question."""

    def __call__(self, columns: Columns, query: str) -> I32:
        """Rows, first tried first; rows that are left out are never packed."""


class RankedSystem:
    """Chunks in the order of a rule, filled into the budget.

    Parameters
    ----------
    columns : Columns
    order : Order
    fold : bool
        Write repeated lines once.
    """

    def __init__(self, columns: Columns, order: Order, *, fold: bool = False) -> None:
        self.columns = columns
        self.order = order
        self.fold = fold
        self.layout: LayoutName = "sessions"

    def piece(self, row: int) -> Piece:
        """What is packed for a row."""
        return self.columns.pieces[row]

    def write(self, turns: Sequence[Turn]) -> None:
        """Store turns."""
        self.columns.write(turns)

    def read(self, query: str, budget: int) -> Packed:
        """Fill the budget in the rule's order."""
        filled = fill(
            (self.piece(row) for row in self._ordered(query)),
            budget=budget,
            counter=self.columns.counter,
            layout=self.layout,
            fold=self.fold,
        )
        shown = [
            Shown(span.turn_id, span.text, item.copies)
            for item in filled.packed
            for span in item.piece.spans
        ]
        return Packed(filled.text, filled.tokens, tuple(shown), filled.folded_tokens)

    def ranked_sessions(self, query: str, k: int) -> list[str]:
        """Sessions in the order in which their first chunk comes."""
        names = (self.columns.session[row] for row in self._ordered(query))
        return list(islice(dict.fromkeys(names), k))

    def stats(self) -> SystemStats:
        """Number of chunks."""
        return SystemStats(chunks=self.columns.n)

    def close(self) -> None:
        """Nothing is held."""

    def _ordered(self, query: str) -> Iterator[int]:
        return iter(self.order(self.columns, query).tolist() if self.columns.n else [])


class NoMemory(RankedSystem):
    """The prompt without any memory."""

    def read(self, query: str, budget: int) -> Packed:
        """Nothing."""
        return Packed("", 0, ())

    def ranked_sessions(self, query: str, k: int) -> list[str]:
        """None."""
        return []


class FullContext(RankedSystem):
    """Everything, whatever it costs: the ceiling of recall and of tokens."""

    def read(self, query: str, budget: int) -> Packed:
        """The whole history in order of arrival; the budget is not kept."""
        text = "\n".join(
            f"{span.role}: {span.text}" for piece in self.columns.pieces for span in piece.spans
        )
        tokens = sum(
            sum(span.line_tokens) + 2 for piece in self.columns.pieces for span in piece.spans
        )
        shown = [Shown(s.turn_id, s.text) for piece in self.columns.pieces for s in piece.spans]
        return Packed(text, tokens, tuple(shown))


class Recent:
    """Newest chunks first."""

    def __call__(self, columns: Columns, query: str) -> I32:
        """Rows backwards."""
        return np.arange(columns.n - 1, -1, -1, dtype=np.int32)


class Dense:
    """Budget-RAG: chunks by cosine with the question."""

    def __call__(self, columns: Columns, query: str) -> I32:
        """Rows by falling cosine."""
        return _falling(columns.dense_scores(query))


class Bm25:
    """BM25-RAG: chunks by BM25; those without a matching term follow, newest first."""

    def __call__(self, columns: Columns, query: str) -> I32:
        """Rows by falling BM25."""
        return _falling(columns.lexical_scores(query))


class FusedRanks:
    """Reciprocal rank fusion (Cormack et al., 2009) of cosine and BM25.

    Parameters
    ----------
    k : int
        Constant of the fusion.
    """

    def __init__(self, k: int = 60) -> None:
        self.k = k

    def __call__(self, columns: Columns, query: str) -> I32:
        """Rows by the sum of 1 / (k + rank); what BM25 does not match has no rank there."""
        score = np.zeros(columns.n)
        dense = _falling(columns.dense_scores(query))
        score[dense] += 1.0 / (self.k + 1 + np.arange(columns.n))
        lexical = columns.lexical_scores(query)
        matched = _falling(lexical)[: np.count_nonzero(lexical)]
        score[matched] += 1.0 / (self.k + 1 + np.arange(matched.size))
        return _falling(score)


def _text(group: Sequence[Turn]) -> str:
    """What is embedded and indexed: with the names of people who speak, and step numbers.

    `rsm_fast` looks steps up instead; without the number in their documents its peers could
    not find any, and the official harness has it there too.
    """
    texts = []
    for turn in group:
        step = step_label(turn.text, turn.metadata)
        texts.append(turn.text if step < 0 else f"Step {step}\n{turn.text}")
    if len(group) == 1:
        named = group[0].role.lower() not in _PLAIN_ROLES
        return f"{group[0].role}: {texts[0]}" if named else texts[0]
    return chunk_text((turn.role, text) for turn, text in zip(group, texts, strict=True))


_terms = lru_cache(maxsize=8192)(analyse)  # several systems of a process see the same stream


def _falling(score: npt.NDArray[np.floating]) -> I32:
    """Rows by falling score, ties newest first."""
    rows = np.arange(score.size)
    return np.lexsort((-rows, -score)).astype(np.int32)
