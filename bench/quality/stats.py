"""Paired intervals and tests for the difference of two systems on the same questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Difference", "compare"]

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of two means.

    Attributes
    ----------
    mean : float
    low, high : float
        95 % interval, percentile bootstrap over questions.
    p : float
        Two-sided permutation test (random signs of the paired differences).
    """

    mean: float
    low: float
    high: float
    p: float

    def __str__(self) -> str:
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def compare(
    differences: Sequence[F64], weights: Sequence[float], *, draws: int = 4000, seed: int = 0
) -> Difference:
    """Interval and p-value of a weighted sum of mean paired differences.

    Parameters
    ----------
    differences : sequence of (n_i,) float64
        Paired differences of each stratum (a data set or a domain), resampled on its own.
    weights : sequence of float
        Weight of each stratum's mean.
    """
    rng = np.random.default_rng(seed)
    resampled = np.zeros(draws)
    permuted = np.zeros(draws)
    observed = 0.0
    for values, weight in zip(differences, weights, strict=True):
        n = len(values)
        observed += weight * float(values.mean())
        for start in range(0, draws, 500):
            part = slice(start, start + 500)
            chosen = rng.integers(0, n, (len(resampled[part]), n))
            resampled[part] += weight * values[chosen].mean(axis=1)
            signs = 2.0 * rng.integers(0, 2, (len(permuted[part]), n)) - 1.0
            permuted[part] += weight * (signs @ values) / n
    low, high = np.percentile(resampled, [2.5, 97.5])
    extreme = np.count_nonzero(np.abs(permuted) >= abs(observed) - 1e-12)
    return Difference(observed, float(low), float(high), (extreme + 1) / (draws + 1))
