"""Scores of every row of a table, for reads that look at all of them."""

from __future__ import annotations

import math

import numpy as np

from rsm_fast.kernels.dot_int8 import bounds4, correction, project4
from rsm_fast.kernels.jit import F32, F64, FAST, I8, U8, Int, Real, kernel
from rsm_fast.kernels.rows import CODES, ERROR, REACH, SCALE

__all__ = ["dense_score", "dense_scores_", "near_scores_", "subspace_scores_"]

_ROUNDING = 1e-5  # of float32 sums of a thousand products, for vectors of norm 1


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


@kernel("float32(float32[::1], int8[::1])")
def _rounded(x: F32, code: I8) -> Real:
    """The codes of a vector; gives what a code of 1 is worth."""
    largest = np.float32(0.0)
    for j in range(x.shape[0]):
        largest = max(largest, abs(x[j]))
    scale = largest / np.float32(127.0)
    if scale <= np.float32(0.0):
        code[:] = 0
        return np.float32(0.0)
    for j in range(x.shape[0]):
        code[j] = np.int8(np.rint(x[j] / scale))
    return scale


@kernel(f"float64({CODES}, int64, float32[::1], float32[::1])")
def near_scores_(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64, n: Int, x: F32, out: F32,
) -> Real:  # fmt: skip
    """Dot product of every row's codes with a vector, which is kept in two codes of 8 bits.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits
        The table, see `rsm_fast.kernels.rows.Codes`.
    n : int
        Rows in use.
    x : float32[d]
        Norm 1 or less.
    out : float32[n rounded up to a multiple of 4]
        Result.

    Returns
    -------
    float
        No result is further than this from `dense_score` of its row.
    """
    width = x.shape[0]
    first, second = np.empty(width, np.int8), np.empty(width, np.int8)
    scale: Real = _rounded(x, first)
    left = np.empty(width, np.float32)
    for j in range(width):
        left[j] = x[j] - scale * np.float32(first[j])
    finer: Real = _rounded(left, second)
    lost = 0.0
    for j in range(width):
        lost += (np.float64(left[j]) - np.float64(finer) * second[j]) ** 2
    more = np.empty(out.size, np.float32)
    less, finer_less = correction(first), correction(second)
    zero: Real = np.float32(0.0)
    for row in range(0, n, 4):
        bounds4(code, row, first, less, scale, fit, zero, zero, out)
        bounds4(code, row, second, finer_less, finer, fit, zero, zero, more)
    error = np.float32(0.0)
    for row in range(n):
        out[row] += more[row]
        if vec.shape[0] > 0:
            error = max(error, fit[row >> 2, ERROR, row & 3])
    return 1.001 * np.float64(error) + math.sqrt(lost) * limits[REACH] + _ROUNDING


@kernel("float32(float32[:, ::1], int8[:, ::1], float32[:, :, ::1], int64, float32[::1])",
        fastmath=FAST)  # fmt: skip
def dense_score(vec: F32, code: I8, fit: F32, row: Int, x: F32) -> Real:
    """Dot product of one row with a vector, in float32.

    Parameters
    ----------
    vec, code, fit
        Of the table, see `rsm_fast.kernels.rows.Codes`.
    row : int
    x : float32[d]
    """
    total = np.float32(0.0)
    if vec.shape[0] > 0:
        exact = vec[row]
        for j in range(x.shape[0]):
            total += exact[j] * x[j]
        return total
    stored = code[row]
    for j in range(x.shape[0]):
        total += np.float32(stored[j]) * x[j]
    return total * fit[row >> 2, SCALE, row & 3]


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
