"""One query among members, a whole read, and the peers."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import rsm_fast.kernels as kernels
from bench.hot import Ready
from bench.kernels.conftest import Timer, arena_of, clustered, real, stored
from bench.kernels.peers import SEARCHERS, Search
from bench.kernels.vectors import real_questions, real_texts, real_vectors
from rsm_fast import Memory, Turn
from rsm_fast.arena import Arena
from rsm_fast.clustering import Clusterer
from rsm_fast.index import top_atoms, top_members
from rsm_fast.kernels.topk import topk_rows
from rsm_fast.tokens import as_token_counter

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


@pytest.mark.parametrize("who", ["rsm_fast", "FAISS IndexFlatIP", "NumPy matvec"])
@pytest.mark.parametrize("size", [10_000, 100_000])
def bench_cold(timed: Timer, size: int, who: str) -> None:
    """The gate after something else has filled the caches."""
    arena = arena_of(size)
    peer = None if who == "rsm_fast" else built(who, size)
    other = np.ones(400 << 17)  # 400 MB
    spent: list[float] = []

    def search(query: np.ndarray) -> None:
        other.sum()
        start = time.thread_time()
        if peer is None:
            top_members(arena, query, 1, least=0.7)
        else:
            peer(query, 1)
        spent.append(time.thread_time() - start)

    timed(
        search, real()[1], rounds=40, operation="gate, caches cold", size=size, who=who,
        reads=spent, bytes=arena.table.row_bytes if peer is None else 4 * 384,
    )  # fmt: skip


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


@lru_cache(maxsize=1)
def wide(dim: int) -> tuple[Arena, np.ndarray]:
    """10,000 vectors of more dimensions: pieces of neighbours side by side."""
    near = stored(10_000)
    joined = np.concatenate([np.roll(near, k, axis=0) for k in range(3)], axis=1)[:, :dim]
    vectors = joined / np.linalg.norm(joined, axis=1, keepdims=True)
    arena, numbers = Arena(dim), np.arange(len(near))
    arena.append_many(vectors, pk=numbers, tokens=numbers, micros=numbers, session=numbers * 0)
    return arena, vectors


@pytest.mark.parametrize("who", ["rsm_fast", "FAISS IndexFlatIP"])
@pytest.mark.parametrize("dim", [768, 1024])
def bench_width(timed: Timer, dim: int, who: str) -> None:
    """The gate at other dimensions; it is asked with noisy copies of what is stored."""
    arena, vectors = wide(dim)
    noise = np.random.default_rng(1).standard_normal((200, dim)).astype(np.float32)
    queries = vectors[:200] + noise * np.float32(0.8 / dim**0.5)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    peer = None if who == "rsm_fast" else SEARCHERS[who][0](vectors)
    timed(
        lambda q: top_members(arena, q, 1, least=0.7) if peer is None else peer(q, 1), queries,
        rounds=100, operation=f"gate at d = {dim}", size=10_000, who=who,
    )  # fmt: skip


@lru_cache(maxsize=1)
def default_atoms(size: int) -> tuple[Clusterer, np.ndarray]:
    """The atoms of the default preset, centred and with tau at P95, and queries among them."""
    clusterer = clustered(size, "nearest-mean")
    return clusterer, np.array([clusterer.arena.prepare_query(q) for q in real()[1][:300]])


@pytest.mark.parametrize("who", ["rsm_fast", "FAISS IndexFlatIP"])
@pytest.mark.parametrize("size", [10_000, 100_000])
def bench_means(timed: Timer, size: int, who: str) -> None:
    """The nearest mean, as the default preset's gate asks for it, over the same vectors."""
    clusterer, queries = default_atoms(size)
    means = clusterer.means
    exact = np.ascontiguousarray(means.columns.vec[: clusterer.slots, :384])
    peer = None if who == "rsm_fast" else SEARCHERS[who][0](exact)
    work = np.zeros(4, np.int64)
    for query in queries:
        topk_rows(
            *means.columns, clusterer.slots, query, means.rotation, clusterer.alive, -np.inf,
            np.empty(1, np.float32), np.empty(1, np.int32), work,
        )  # fmt: skip
    timed(
        lambda q: top_atoms(clusterer, q, 1) if peer is None else peer(q, 1), queries,
        rounds=150, operation="nearest mean", size=size, who=who, table="means",
        atoms=clusterer.n_atoms, kept=f"{100 * work[1] / work[0]:.2f} %",
    )  # fmt: skip


READERS = ["rsm_fast", "rsm_fast, whole pack", "FAISS, 10 atoms", "FAISS, 64 members"]


@lru_cache(maxsize=1)
def memory_of(size: int) -> tuple[Memory, list[str]]:
    """A memory of so many pieces of real turns, read once, and real questions."""
    vectors, texts = real_vectors(), real_texts()[:size]
    memory = Memory(embedder=Ready(vectors, as_token_counter()), chunk_turns=1)
    memory.add_many(Turn(text, session=f"s{place // 30}") for place, text in enumerate(texts))
    questions = real_questions()[:60]
    for question in questions:
        memory.pack(question, budget=4000)
    return memory, questions


@pytest.mark.parametrize("who", READERS)
@pytest.mark.parametrize("size", [1000, 10_000])
def bench_read(timed: Timer, monkeypatch: pytest.MonkeyPatch, size: int, who: str) -> None:
    """Scoring, ordering and admission of 4,000 tokens in one call, and FAISS for its search."""
    memory, questions = memory_of(size)
    spent: list[float] = []
    facts: dict[str, Any] = {"operation": "read", "size": size, "who": who, "table": "read"}
    if who.startswith("FAISS"):
        with memory._core.snapshot() as view:
            assert view.state is not None and view.state.clusterer is not None
            means = view.state.clusterer.means.columns.vec[: view.state.clusterer.slots, :384]
        rows = np.ascontiguousarray(means) if "atoms" in who else stored(size)
        peer, k = SEARCHERS["FAISS IndexFlatIP"][0](rows), 10 if "atoms" in who else 64
        timed(lambda q: peer(q, k), real()[1], rounds=ROUNDS[size], rows=len(rows), **facts)
        return
    if who == "rsm_fast":
        read = kernels.read.read_

        def timed_read(*arguments: Any) -> Any:
            start = time.thread_time()
            status = read(*arguments)
            spent.append(time.thread_time() - start)
            return status

        monkeypatch.setattr(kernels.read, "read_", timed_read)
        facts["reads"] = spent
    timed(
        lambda question: memory.pack(question, budget=4000), questions, rounds=ROUNDS[size],
        rows=size, **facts,
    )  # fmt: skip
