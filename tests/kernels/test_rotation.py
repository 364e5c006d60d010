"""Directions of the heads: orthonormal whatever the sample, and near the best there are."""

from __future__ import annotations

import numpy as np
import pytest

from rsm_fast.arena import Arena
from rsm_fast.kernels.rotation import principal_span_
from tests.oracles_rotation import principal_share


def span_of(sample: np.ndarray, k: int, passes: int = 12) -> tuple[np.ndarray, float]:
    d = sample.shape[1]
    span = np.random.default_rng(1).standard_normal((k, d)).astype(np.float32)
    second, scratch = np.empty((d, d), np.float32), np.empty((k, d), np.float32)
    share = principal_span_(sample, second, scratch, span, passes)
    return span, share


def samples() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    steep = rng.standard_normal((300, 64)) * np.arange(1, 65) ** -1.0
    one = np.repeat(rng.standard_normal((1, 64)), 40, axis=0)
    few = rng.standard_normal((5, 64))
    return {
        "steep": steep,
        "flat": rng.standard_normal((300, 64)),
        "one direction": one,
        "few rows": few,
        "zeros": np.zeros((10, 64)),
        "one hot": np.eye(64)[[3] * 20 + [9] * 10],
        "tiny": steep * 1e-15,
    }


@pytest.mark.parametrize("kind", samples())
def test_the_span_is_orthonormal_and_holds_most(kind: str) -> None:
    sample = samples()[kind].astype(np.float32)
    span, share = span_of(sample, 16)
    assert np.abs(span.astype(np.float64) @ span.T - np.eye(16)).max() < 1e-5
    if np.any(sample):
        best = principal_share(sample, 16)
        assert best - 0.03 <= share <= best + 1e-4


def test_a_flat_spectrum_is_looked_at_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import rsm_fast.kernels.rotation as module

    looked: list[int] = []

    def counting(sample: np.ndarray, *rest: object) -> float:
        looked.append(len(sample))
        return float(principal_span_(sample, *rest))

    monkeypatch.setattr(module, "principal_span_", counting)
    monkeypatch.setattr(Arena, "cascade_rows", 64)
    rng = np.random.default_rng(2)
    arena = Arena(256 * 8)  # far more dimensions than a head has: 128 of them hold little
    for i in range(64 * 10):
        vector = rng.standard_normal(arena.dim).astype(np.float32)
        arena.append(vector / np.linalg.norm(vector), pk=i, tokens=1, micros=i, session=0)
    assert len(looked) == 2
