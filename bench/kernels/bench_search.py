"""One query among members: the exact gate (k = 1, tau 0.7) and exact top-k, and the peers."""

from __future__ import annotations

import os
from functools import lru_cache

import numpy as np
import pytest

from bench.kernels.conftest import Timer, arena_of, real, stored
from bench.kernels.peers import SEARCHERS, Search
from rsm_fast.arena import Arena
from rsm_fast.index import top_members

FULL = os.environ.get("RSM_FAST_BENCH_FULL") == "1"
SIZES = [1000, 10_000, 100_000] + [1_000_000] * FULL
OPERATIONS = {"gate, k = 1, tau 0.7": (1, 0.7), "top 10": (10, -np.inf), "top 64": (64, -np.inf)}
ROUNDS = {1000: 300, 10_000: 150, 100_000: 40, 1_000_000: 20}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("size", SIZES)
def bench_rsm_fast(timed: Timer, size: int, operation: str) -> None:
    """Head, int8, float64: the whole cascade, from Python."""
    k, least = OPERATIONS[operation]
    arena = arena_of(size)

    def search(query: np.ndarray) -> np.ndarray:
        return top_members(arena, query, k, least=least)[0]

    timed(
        search, real()[1], rounds=ROUNDS[size], operation=operation, size=size, who="rsm_fast",
        bytes=arena.table.row_bytes,
    )  # fmt: skip
    exact = stored(size).astype(np.float32)
    for query in real()[1][:20]:
        scores = exact @ query
        found = search(query)
        assert len(found) == min(k, int((scores >= least - 1e-5).sum())) or k == 1
        if len(found):
            assert scores[found].min() >= np.sort(scores)[-k] - 1e-5


@pytest.mark.parametrize("size", [1000, 2000, 4000, 8000])
@pytest.mark.parametrize("cascade", [False, True], ids=["int8", "cascade"])
def bench_crossover(
    timed: Timer, monkeypatch: pytest.MonkeyPatch, size: int, cascade: bool
) -> None:
    """Where the rotation begins to pay."""
    monkeypatch.setattr(Arena, "cascade_rows", 1 if cascade else 10**9)
    arena = Arena(384)
    vectors, numbers = stored(10_000)[:size], np.arange(size)
    arena.append_many(vectors, pk=numbers, tokens=numbers, micros=numbers, session=numbers * 0)
    timed(
        lambda query: top_members(arena, query, 1, least=0.7), real()[1], rounds=300,
        operation="gate, k = 1, tau 0.7", size=size, who="cascade" if cascade else "int8 alone",
        table="cross-over",
    )  # fmt: skip


@lru_cache(maxsize=1)
def built(who: str, size: int) -> Search:
    """A peer's index, built once for all operations."""
    return SEARCHERS[who][0](stored(size))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("who", SEARCHERS)
@pytest.mark.parametrize("size", SIZES)
def bench_peer(timed: Timer, who: str, size: int, operation: str) -> None:
    """The same question to a peer."""
    if size > SEARCHERS[who][1] and not FULL:
        pytest.skip("takes minutes to build; in the full run")
    k, _ = OPERATIONS[operation]
    search = built(who, size)
    timed(
        lambda query: search(query, k), real()[1], rounds=ROUNDS[size] // 2,
        operation=operation, size=size, who=who, bytes=4 * 384,
    )  # fmt: skip
