"""No wrong decision on real embeddings: MiniLM vectors of RealMem turns, and noisy copies."""

from __future__ import annotations

import numpy as np
import oracles
import pytest

from bench.kernels.vectors import noisy_copies, real_vectors
from rsm_fast.arena import Arena
from rsm_fast.clustering import Clusterer, TauCalibrator
from rsm_fast.index import top_members

TAUS = [0.5, 0.6, 0.7, 0.8, 0.85, 0.9]


def check(vectors: np.ndarray, gate: str, taus: list[float], centre: bool) -> None:
    arena = Arena(vectors.shape[1])
    if centre:
        arena.set_centre(TauCalibrator().calibrate(vectors).mean, [], vectors[:0])
    rows = arena.append_many(
        vectors,
        pk=np.arange(len(vectors)),
        tokens=np.ones(len(vectors)),
        micros=np.arange(len(vectors)),
        session=np.zeros(len(vectors)),
    )
    assert len(arena.table.rotation) > 0  # the whole cascade is at work
    exact = arena.vec.astype(np.float64)
    gram = np.empty((len(exact), len(exact)))
    for start in range(0, len(exact), 1000):  # of 20,000 at once some builds of OpenBLAS crash
        gram[start : start + 1000] = exact[start : start + 1000] @ exact.T
    for tau in taus:
        found = Clusterer(arena, gate=gate, tau=tau).assign_many(rows)  # type: ignore[arg-type]
        wanted = oracles.cluster(arena.vec, gate, tau, gram=gram)
        wrong = np.flatnonzero(found != wanted)
        assert not len(wrong), f"tau {tau}: first wrong decision at row {wrong[0]}"


@pytest.fixture(scope="module")
def real(data_dir, packaged_minilm) -> np.ndarray:
    return real_vectors(3000)


@pytest.mark.parametrize(("gate", "centre"), [("max-member", False), ("nearest-mean", True)])
def test_three_thousand_real_vectors_at_six_taus(real, gate: str, centre: bool) -> None:
    check(noisy_copies(real, 4000), gate, TAUS, centre)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("gate", ["max-member", "nearest-mean", "centroid"])
@pytest.mark.parametrize("centre", [False, True])
def test_fifteen_thousand_real_vectors_at_six_taus(
    data_dir, packaged_minilm, gate: str, centre: bool
) -> None:
    check(noisy_copies(real_vectors(15_000), 20_000), gate, TAUS, centre)


def test_top_members_of_real_vectors(real) -> None:
    arena = Arena(384)
    rows_held = noisy_copies(real, 7000)  # so many that heads are read for 64 as well
    n = len(rows_held)
    arena.append_many(
        rows_held, pk=np.arange(n), tokens=np.ones(n), micros=np.arange(n), session=np.zeros(n)
    )
    for query in real[::300]:
        for k in (1, 10, 64):
            rows, _ = top_members(arena, query, k)
            assert rows.tolist() == [r for r, _ in oracles.top_rows(rows_held, query, k)]
