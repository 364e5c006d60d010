"""BM25 over chunks of real turns, and the peers: the ten best for a real question."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import pytest

from bench.kernels.conftest import Timer
from bench.kernels.vectors import real_questions, real_texts
from rsm_fast.analysis import analyse
from rsm_fast.lexical import LexicalIndex
from rsm_fast.retrieval import HybridSettings, admission_order

FULL = os.environ.get("RSM_FAST_BENCH_FULL") == "1"
SIZES = [1000, 10_000, 100_000] + [1_000_000] * FULL
SESSION = 30  # chunks

Search = Callable[[list[str]], Any]


@lru_cache(maxsize=1)
def documents() -> list[list[str]]:
    """Terms of pieces of real turns."""
    return [analyse(text) for text in real_texts()]


def stored(size: int) -> list[list[str]]:
    """So many chunks: real ones, then those from the beginning again."""
    found = documents()
    return [found[place % len(found)] for place in range(size)]


def _ours(size: int, window: int) -> Search:
    index = LexicalIndex()
    for row, terms in enumerate(stored(size)):
        index.append(row, terms)
    rows = np.arange(size, dtype=np.int32)
    prev = np.where(rows % SESSION > 0, rows - 1, -1).astype(np.int32)
    following = np.where((rows + 1) % SESSION > 0, rows + 1, -1).astype(np.int32)
    following[-1] = -1
    alive = np.ones(size, np.uint8)
    links = {"prev": prev, "next": following, "alive": alive}
    by_score = HybridSettings(length_power=0.0)
    facts = alive, np.ones(size, np.int32), rows.astype(np.int64), by_score

    def search(terms: list[str]) -> Any:
        scores = index.scores(terms, **links, window=window, edition=1)
        return admission_order(scores, *facts, limit=10)

    return search


def _bm25s(size: int) -> Search:
    import bm25s

    index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    index.index(stored(size), show_progress=False)
    return lambda terms: index.retrieve([terms], k=10, show_progress=False)


def _fts5(size: int) -> Search:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE chunks USING fts5(body, tokenize = 'ascii')")
    rows = ((" ".join(terms),) for terms in stored(size))
    while block := list(islice(rows, 10_000)):
        connection.executemany("INSERT INTO chunks VALUES (?)", block)
    connection.execute("INSERT INTO chunks (chunks) VALUES ('optimize')")

    def search(terms: list[str]) -> Any:
        asked = " OR ".join(f'"{term}"' for term in dict.fromkeys(terms))
        select = "SELECT rowid FROM chunks WHERE chunks MATCH ? ORDER BY rank LIMIT 10"
        return connection.execute(select, (asked,)).fetchall()

    return search


MAKERS: dict[str, Callable[[int], Search]] = {
    "rsm_fast": lambda size: _ours(size, 0),
    "rsm_fast, windows of 9": lambda size: _ours(size, 4),
    "bm25s": _bm25s,
    "SQLite FTS5": _fts5,
}


@pytest.mark.parametrize("who", MAKERS)
@pytest.mark.parametrize("size", SIZES)
def bench_bm25(timed: Timer, size: int, who: str) -> None:
    """Scores of every chunk that shares a word with the question, and the ten best."""
    search = MAKERS[who](size)
    asked = [analyse(question) for question in real_questions()[:100]]
    timed(
        search, asked, rounds=100 if size < 100_000 else 30, operation="BM25, ten best",
        size=size, who=who, table="words",
    )  # fmt: skip
