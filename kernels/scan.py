"""Scores of every row of a table, for reads that look at all of them."""

from __future__ import annotations

import math

import numpy as np

from rsm_fast.kernels.dot_int8 import project4
from rsm_fast.kernels.jit import F32, F64, FAST, I8, U8, Int, kernel
from rsm_fast.kernels.rows import CODES, SCALE

__all__ = ["dense_scores_", "subspace_scores_"]


@kernel(f"void({CODES}, int64, uint8[::1], float32[::1], float32[::1])", fastmath=FAST)
def dense_scores_(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64,
    n: Int, alive: U8, x: F32, out: F32,
) -> None:  # fmt: skip
    """Dot product of every row with a vector, in float32.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits
        The table, see `rsm_fast.kernels.rows.Codes`.
    n : int
        Rows in use.
    alive : uint8[n]
        Rows with 0 get 0.
    x : float32[d]
    out : float32[n rounded up to a multiple of 4]
        Result.
    """
    if vec.shape[0] > 0:
        for row in range(0, n, 4):
            project4(vec, row, x, out)
    else:
        for row in range(n):
            stored = code[row]
            total = np.float32(0.0)
            for j in range(x.shape[0]):
                total += np.float32(stored[j]) * x[j]
            out[row] = total * fit[row >> 2, SCALE, row & 3]
    for row in range(n):
        if alive[row] == 0:
            out[row] = np.float32(0.0)


@kernel("void(float32[:, :, ::1], int64, float32[::1], float32[::1])", fastmath=FAST)
def subspace_scores_(basis: F32, n: Int, x: F32, out: F32) -> None:
    """Norm of the projection of a vector on each basis.

    Parameters
    ----------
    basis : float32[n, r, d]
        Orthonormal or zero rows.
    n : int
        Bases in use.
    x : float32[d]
    out : float32[n]
        Result.
    """
    for k in range(n):
        squared = 0.0
        for a in range(basis.shape[1]):
            row = basis[k, a]
            total = np.float32(0.0)
            for j in range(x.shape[0]):
                total += row[j] * x[j]
            squared += np.float64(total) * np.float64(total)
        out[k] = np.float32(math.sqrt(squared))
