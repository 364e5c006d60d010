"""The first rows of a namespace by NumPy, so that the first add waits for no kernel.

Importing Numba and loading the kernels of a write takes half a second, compiling them many.
Until a process has done that, a namespace of a few rows (`rsm_fast.kernels.layout.FEW_ROWS`)
is decided here, by the float64 definition itself (see `docs/kernels.md`): sums run in index
order, as ``cumsum`` adds. What is decided equals what the kernels decide, bit for bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rsm_fast.kernels.layout import CENTROID, MAX_MEMBER

__all__ = ["centred", "choose", "mean_of"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]


def _dots(rows: F32, x: F32) -> F64:
    """(m,) float64 dot products, each added in index order."""
    products = rows.astype(np.float64) * x.astype(np.float64)
    return products.cumsum(axis=1)[:, -1]


def _norm(x: F64) -> np.float64:
    return np.sqrt((x * x).cumsum()[-1])  # type: ignore[no-any-return]


def centred(raw: F32, mean: F32) -> F32:
    """Subtract a mean and normalise, as `rsm_fast.kernels.quantize.centre_row_`.

    Parameters
    ----------
    raw, mean : float32[dim]

    Returns
    -------
    float32[dim]
        Zeros for a vector that equals the mean.
    """
    rest = raw.astype(np.float64) - mean.astype(np.float64)
    norm = _norm(rest)
    return (rest / norm if norm > 1e-6 else np.zeros_like(rest)).astype(np.float32)


def mean_of(total: F64) -> F32:
    """Mean of an atom from the sum of its members, as `rsm_fast.kernels.atoms.update_mean_`.

    Parameters
    ----------
    total : float64[d]

    Returns
    -------
    float32[d]
        Zeros where the sum has no direction.
    """
    norm = _norm(total)
    return (total / norm if norm > 1e-12 else np.zeros_like(total)).astype(np.float32)


def choose(
    gate: int, tau: float, x: F32, members: F32, slots: I32, means: F32, alive: npt.NDArray[np.bool]
) -> int:
    """Decide where a member goes, as `rsm_fast.kernels.gate.choose_`.

    Parameters
    ----------
    gate, tau
        See there.
    x : float32[d]
        The member.
    members : float32[n, d]
        All that are in an atom.
    slots : int32[n]
        The slot of each.
    means : float32[m, d]
        By slot.
    alive : bool[m]
        Slots that have members.

    Returns
    -------
    int
        The slot to join, or -1.
    """
    if not alive.any():
        return -1
    scores = np.where(alive, _dots(means, x), -np.inf)
    if gate == MAX_MEMBER:
        np.maximum.at(scores, slots, _dots(members, x))
    best = int(scores.argmax())  # the first of equals
    if scores[best] >= tau:
        return best
    if gate in (MAX_MEMBER, CENTROID):
        return -1
    return best if (_dots(members[slots == best], x) >= tau).any() else -1
