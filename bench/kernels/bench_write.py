"""Whole writes: one by one and in bulk, and what an atom's statistics cost."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import numpy as np
import pytest

from bench.kernels.conftest import Timer, clustered, real, stored
from rsm_fast.arena import Arena
from rsm_fast.clustering import Clusterer
from rsm_fast.index import AtomIndex, top_atoms
from rsm_fast.kernels.atoms import refresh_basis_

FULL = os.environ.get("RSM_FAST_BENCH_FULL") == "1"
SIZES = [1000, 10_000] + [100_000] * FULL
ROUNDS = 200


def add(clusterer: Clusterer, vector: np.ndarray) -> int:
    return clusterer.add(vector, pk=clusterer.arena.n, tokens=9, micros=9, session=0)[1]


@pytest.mark.parametrize("gate", ["nearest-mean", "max-member"])
@pytest.mark.parametrize("size", SIZES)
def bench_add(timed: Timer, size: int, gate: str) -> None:
    """Append, gate, mean, codes, basis."""
    clusterer = clustered(size, gate)
    timed(
        lambda vector: add(clusterer, vector), real()[1], rounds=ROUNDS,
        operation=f"add, {gate}", size=size, who="rsm_fast", table="writes",
    )  # fmt: skip


@pytest.mark.parametrize("size", [500, 5000])
def bench_add_to_one_atom(timed: Timer, size: int) -> None:
    """A whole write beyond the gate: there is one mean to look at. Heads from 768 rows on."""
    clusterer = Clusterer(Arena(384), gate="centroid", tau=-2.0)
    for vector in stored(10_000)[:size]:
        add(clusterer, vector)
    timed(
        lambda vector: add(clusterer, vector), real()[1], rounds=ROUNDS,
        operation="add, one atom", size=size, who="rsm_fast", table="writes",
    )  # fmt: skip
    assert clusterer.n_atoms == 1


@pytest.mark.parametrize("size", [10_000, 100_000] + [200_000, 1_000_000] * FULL)
def bench_longest_add(benchmark: Any, size: int) -> None:
    """Adds to columns that are full, so that the first of them doubles every column."""
    clusterer = clustered(size, "nearest-mean")
    spent: list[float] = []

    def timed_add(vector: np.ndarray) -> None:
        start = time.thread_time()
        add(clusterer, vector)
        spent.append(time.thread_time() - start)

    feed = itertools.cycle(real()[1])
    benchmark.extra_info.update(
        operation="add, nearest-mean", size=size, who="rsm_fast", table="longest", reads=spent
    )
    benchmark.pedantic(lambda: timed_add(next(feed)), rounds=ROUNDS, iterations=1)
    longest = max(spent) / float(np.median(spent))
    benchmark.extra_info["longest / median"] = f"{longest:.1f}"


@pytest.mark.parametrize("size", SIZES)
def bench_append_alone(timed: Timer, size: int) -> None:
    """What an add costs beyond gate and merge."""
    arena = clustered(size, "centroid").arena
    timed(
        lambda v: arena.append(v, pk=arena.n, tokens=9, micros=9, session=0), real()[1],
        rounds=ROUNDS, operation="append alone", size=size, who="rsm_fast", table="writes",
    )  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("over", ["members", "means"])
def bench_faiss_search_and_add(timed: Timer, size: int, over: str) -> None:
    """The least that a FAISS user pays for a write: search k = 1, then add."""
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(384)
    rows = stored(size)
    if over == "means":
        clusterer = clustered(size, "nearest-mean")
        rows = np.ascontiguousarray(clusterer.means.columns.vec[: clusterer.slots])
    index.add(rows)

    def write(vector: np.ndarray) -> None:
        index.search(vector[None], 1)
        if over == "members":
            index.add(vector[None])

    timed(
        write, real()[1], rounds=ROUNDS, operation=f"FAISS over {over}", size=size,
        who="FAISS IndexFlatIP", table="writes",
    )  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("who", ["rsm_fast", "AtomIndex (FAISS)"])
def bench_top_atoms(timed: Timer, size: int, who: str) -> None:
    """The ten nearest atoms, while means move: one write before each read."""
    clusterer = clustered(size, "nearest-mean")
    index = AtomIndex(clusterer)
    vectors = itertools.cycle(real()[1])
    spent: list[float] = []

    def read(query: np.ndarray) -> Any:
        add(clusterer, next(vectors))
        start = time.thread_time()
        found = index.top_atoms(query, 10) if who != "rsm_fast" else top_atoms(clusterer, query, 10)
        spent.append(time.thread_time() - start)
        return found

    timed(
        read, real()[1], rounds=200, operation="top 10 atoms", size=size, who=who,
        table="atoms", reads=spent, atoms=clusterer.n_atoms,
    )  # fmt: skip


@pytest.mark.parametrize("gate", ["nearest-mean", "max-member"])
@pytest.mark.parametrize("how", ["bulk", "one by one"])
def bench_ingest(benchmark: Any, gate: str, how: str) -> None:
    """10,000 vectors into an empty namespace."""
    vectors, numbers = stored(10_000), np.arange(10_000)
    tau = 0.53 if gate == "nearest-mean" else 0.7

    def ingest() -> None:
        clusterer = Clusterer(Arena(384), gate=gate, tau=tau)
        if how == "bulk":
            rows = clusterer.arena.append_many(
                vectors, pk=numbers, tokens=numbers, micros=numbers, session=numbers * 0
            )
            clusterer.assign_many(rows)
        else:
            for vector in vectors:
                add(clusterer, vector)

    benchmark.extra_info.update(operation=f"ingest, {gate}", size=10_000, who=how, table="bulk")
    benchmark.pedantic(ingest, rounds=2, warmup_rounds=1)


@pytest.mark.parametrize("who", ["sgemm + argmax", "MiniBatchKMeans.partial_fit"])
def bench_ingest_peer(benchmark: Any, who: str) -> None:
    """What a NumPy or scikit-learn user would run over the same stream."""
    vectors = stored(10_000)

    def sgemm() -> None:
        for start in range(0, len(vectors), 256):
            block = vectors[start : start + 256]
            (block @ vectors[: start + 256].T).argmax(axis=1)

    def kmeans() -> None:
        from sklearn.cluster import MiniBatchKMeans

        model = MiniBatchKMeans(n_clusters=1000, batch_size=1000, n_init=1, random_state=0)
        for start in range(0, len(vectors), 1000):
            model.partial_fit(vectors[start : start + 1000])

    benchmark.extra_info.update(operation="ingest", size=10_000, who=who, table="bulk")
    benchmark.pedantic(sgemm if who.startswith("sgemm") else kmeans, rounds=2, warmup_rounds=1)


@pytest.mark.parametrize("members", [4, 32, 256])
@pytest.mark.parametrize("who", ["rsm_fast", "numpy.linalg.svd"])
def bench_first_vector(benchmark: Any, members: int, who: str) -> None:
    """First singular vector of an atom, warm from the basis without its last member."""
    vectors = stored(10_000)
    near = vectors[np.argsort(-(vectors @ vectors[7]))[:members]]
    exact = np.linalg.svd(near.astype(np.float64), full_matrices=False)[2][0]
    start = np.linalg.svd(near[:-1].astype(np.float64), full_matrices=False)[2][:1]
    basis, strength = np.empty((1, 384), np.float32), np.zeros(1)

    def ours() -> None:
        basis[:] = start
        refresh_basis_(near, basis, strength, 2e-6, 200)

    ours()
    aligned = basis[0].astype(np.float64) * np.sign(basis[0] @ exact)
    chord = float(np.linalg.norm(aligned / np.linalg.norm(aligned) - exact))
    assert chord <= 1e-5
    benchmark.extra_info.update(
        operation="first singular vector", size=members, who=who, table="bases", chord=chord
    )
    run = ours if who == "rsm_fast" else lambda: np.linalg.svd(near, full_matrices=False)
    benchmark.pedantic(run, rounds=200 if members < 200 else 20, warmup_rounds=3)
