"""float32 rows to int8 codes, with error norms that make every later bound rigorous.

A row m is kept as ``m = scale * code + r`` with the norm of r stored, rounded up. After an
orthonormal projection R the *head*, the first coordinates of R m, is kept with fewer bits, and
the norm of the rest of m, the *tail*. By Cauchy and Schwarz, for any x,

    ``<x, m> <= s_x s_m <c_x, c_m> + |x| e_m + e_x |s_m c_m|``
    ``<x, m> <= <R x, R m> + tail_x tail_m + skew |x| |m|``

where skew is the deviation of ``R R^T`` from the identity. What rounding loses of R m is
added to the head's error.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from rsm_fast.kernels.dot_int8 import correction
from rsm_fast.kernels.heads import encode_head_, turn_, turn_slack
from rsm_fast.kernels.jit import F32, F64, FAST, I8, Int, Real, kernel
from rsm_fast.kernels.lending import lent
from rsm_fast.kernels.rows import (
    CODES,
    ERROR,
    HEAD,
    QUERY_TYPE,
    REACH,
    REACH_HEAD,
    ROTATION,
    ROTATION_SKEW,
    SCALE,
    TURNED,
    Query,
)

__all__ = [
    "centre_row_",
    "centre_rows_",
    "copy_",
    "dequantize_row_",
    "encode_row_",
    "encode_rows_",
    "make_query",
    "quantize_row_",
    "squared_norm",
]

_UP = 1.0 + 1e-6  # more than the rounding of a float64 sum and of the step to float32
_ROUNDING = 1e-6  # float32 rounding of one bound, relative to both norms: six steps of 2^-24


@kernel("float64(float32[::1])", fastmath=FAST)
def squared_norm(x: F32) -> Real:
    """Sum of squares in float64, in any order.

    Parameters
    ----------
    x : float32[n]

    Returns
    -------
    float64
    """
    total = 0.0
    for j in range(x.shape[0]):
        value = np.float64(x[j])
        total += value * value
    return total


@kernel("void(float32[::1], float32[::1])", inline=True)
def copy_(x: F32, out: F32) -> None:
    """Copy a vector; a slice assignment would cost ten times as much to compile.

    Parameters
    ----------
    x, out : float32[n]
    """
    for j in range(x.shape[0]):
        out[j] = x[j]


@kernel("float32(float32[::1])")
def _largest(x: F32) -> Real:
    """Largest absolute value, in 16 lanes: LLVM makes no vectors of one running maximum."""
    lanes = np.zeros(16, np.float32)
    full = x.shape[0] // 16 * 16
    for start in range(0, full, 16):
        part = x[start : start + 16]
        for j in range(16):
            value = abs(part[j])
            lanes[j] = value if value > lanes[j] else lanes[j]
    largest = np.float32(0.0)
    for j in range(16):
        largest = max(largest, lanes[j])
    for j in range(full, x.shape[0]):
        largest = max(largest, abs(x[j]))
    return largest


@kernel("UniTuple(float64, 2)(float32[::1], int8[::1])", fastmath=FAST)
def quantize_row_(x: F32, code: I8) -> tuple[Real, Real]:
    """Write the codes of one vector.

    Parameters
    ----------
    x : float32[n]
        Finite values.
    code : int8[n]
        Result, in [-127, 127].

    Returns
    -------
    scale, error : float64
        Value of a code of 1 (a float32 number), and the norm of ``x - scale * code``.
    """
    largest = _largest(x)
    if largest < np.float32(1e-30):  # zero or subnormal: all of it is error
        for j in range(x.shape[0]):
            code[j] = 0
        return 0.0, math.sqrt(squared_norm(x))
    scale = np.float32(largest / np.float32(127.0))
    factor = np.float32(127.0) / largest
    error = 0.0
    for j in range(x.shape[0]):
        rounded = np.rint(x[j] * factor)
        code[j] = np.int8(rounded)
        rest = np.float64(x[j]) - np.float64(scale) * np.float64(rounded)
        error += rest * rest
    return np.float64(scale), math.sqrt(error)


@kernel("void(int8[::1], float32, float32[::1])")
def dequantize_row_(code: I8, scale: Real, out: F32) -> None:
    """Write ``float32(scale * code)``: the truth of a table that keeps no float vectors.

    Parameters
    ----------
    code : int8[n]
    scale : float32
    out : float32[n]
        Result.
    """
    for j in range(code.shape[0]):
        out[j] = scale * np.float32(code[j])


@kernel(f"void({CODES}, int64, float32[::1], {ROTATION}, float32[::1])")
def encode_row_(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64,
    row: Int, x: F32, rotation: Any, turned: F32,
) -> None:  # fmt: skip
    """Write one row of a table: vector, codes, head and bounds.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits
        The table, see `rsm_fast.kernels.rows.Codes`.
    row : int
    x : float32[d]
        The vector, padded. Where ``vec`` has no rows it is replaced by its dequantised codes.
    rotation : int16[256, d] or int16[0, d]
        Orthonormal rows; none: the table has no heads.
    turned : float32[256]
        Result: the vector after rotation, if there is one.
    """
    vec, code, fit, limits = lent(vec), lent(code), lent(fit), lent(limits)
    block, lane = row >> 2, row & 3
    scale, error = quantize_row_(x, code[row])
    if vec.shape[0] > 0:
        copy_(x, vec[row])
    else:
        dequantize_row_(code[row], np.float32(scale), x)
        error = 1e-7 * math.sqrt(squared_norm(x))
    squared = squared_norm(x) * _UP
    norm = math.sqrt(squared)
    fit[block, SCALE, lane] = np.float32(scale)
    fit[block, ERROR, lane] = np.float32(error * _UP)
    limits[REACH] = max(limits[REACH], (norm + error) * _UP)
    if rotation.shape[0] == 0:
        return
    count = np.int64(TURNED)  # a literal would make a specialisation of its own
    slack = turn_(rotation, limits, count, x, norm, turned)
    encode_head_(head, head_fit, limits, row, turned, squared, slack)


@kernel(f"void({CODES}, int64, int64, float32[:, ::1], {ROTATION})")
def encode_rows_(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64,
    start: Int, stop: Int, source: F32, rotation: Any,
) -> None:  # fmt: skip
    """`encode_row_` for the rows from ``start`` to before ``stop``.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits
        The table.
    start, stop : int
        Rows to write.
    source : float32[stop - start, d] or float32[0, d]
        Their vectors; none: what the table holds already, as after a new rotation.
    rotation : int16[256, d] or int16[0, d]
    """
    vec, code, fit, source = lent(vec), lent(code), lent(fit), lent(source)
    x, turned = np.empty(code.shape[1], np.float32), np.empty(TURNED, np.float32)
    for row in range(start, stop):
        if source.shape[0] > 0:
            copy_(source[row - start], x)
        elif vec.shape[0] > 0:
            copy_(vec[row], x)
        else:
            dequantize_row_(code[row], fit[row >> 2, SCALE, row & 3], x)
        encode_row_(vec, code, fit, head, head_fit, limits, row, x, rotation, turned)


@kernel(
    QUERY_TYPE(
        types.float64[::1], types.int16[:, ::1], types.int64, types.int8[::1], types.float64,
        types.float64, types.float32[::1], types.float32[::1], types.int64,
    ),
    inner=False,
)  # fmt: skip
def make_query(
    limits: F64, rotation: Any, count: Int, code: I8, scale: Real, error: Real, exact: F32,
    turned: F32, known: Int,
) -> Query:  # fmt: skip
    """Prepare a coded vector for a scan.

    Parameters
    ----------
    limits : float64[4]
        Of the table that will be scanned.
    rotation : int16[256, d] or int16[0, d]
        What the table's heads were made with.
    count : int
        Coordinates to rotate it to: 128 for the heads, 256 for the necks as well.
    code : int8[d + 256]
        The vector's codes; those of its head and neck are written behind them.
    scale, error : float64
        From `quantize_row_`.
    exact : float32[d]
        Its true values.
    turned : float32[256]
        The vector after rotation, written as far as it is not known.
    known : int
        How many of its first coordinates are.

    Returns
    -------
    Query
        It holds ``code`` and ``exact`` without counting, so the caller's caller owns them.
    """
    code, exact, turned = lent(code), lent(exact), lent(turned)
    limits, rotation = lent(limits), lent(rotation)
    width = exact.shape[0]
    head = code[width : width + (TURNED if rotation.shape[0] > 0 else 0)]
    code = code[:width]
    norm = math.sqrt(squared_norm(exact) * _UP)
    both = norm * limits[REACH]
    rest = error * limits[REACH] + _ROUNDING * both
    head_scale = neck_scale = 0.0
    head_less = neck_less = head_reach = head_rest = tail = neck_reach = neck_rest = neck_tail = 0.0
    necks = np.int64(0)
    if rotation.shape[0] > 0:
        start, middle = np.int64(0), np.int64(HEAD)  # literals would make specialisations
        slack = turn_slack(limits, norm)
        if known < count:
            turn_(rotation, limits, count, exact, norm, turned)
        loose = (limits[ROTATION_SKEW] + 1e-6) * norm * norm + 2.2 * slack * norm + slack * slack
        head_scale, lost = quantize_row_(turned[:HEAD], head[:HEAD])
        inside = squared_norm(turned[:HEAD])
        beyond = norm * norm - inside
        head_less = 7.5 * _sum_of(head, start)
        head_reach = math.sqrt(inside) + slack
        head_rest = (lost + slack) * limits[REACH_HEAD]
        head_rest += (limits[ROTATION_SKEW] + _ROUNDING) * both
        tail = math.sqrt(max(0.0, beyond) + loose)
        if count > HEAD:
            necks = np.int64(1)
            neck_scale, lost = quantize_row_(turned[HEAD:TURNED], head[HEAD:])
            inside = squared_norm(turned[HEAD:TURNED])
            neck_less = 7.5 * _sum_of(head, middle)
            neck_reach = math.sqrt(inside) + slack
            neck_rest = (lost + slack) * limits[REACH_HEAD] + 2.0 * _ROUNDING * both
            neck_tail = math.sqrt(max(0.0, beyond - inside) + loose)
    return Query(
        exact,
        code,
        correction(code),
        np.float32(scale),
        np.float32(norm * _UP),
        np.float32(rest * _UP + 1e-30),
        head,
        np.float32(head_less),
        np.float32(head_scale),
        np.float32(head_reach * _UP),
        np.float32(head_rest * _UP + 1e-30),
        np.float32(tail * _UP),
        necks,
        np.float32(neck_less),
        np.float32(neck_scale),
        np.float32(neck_reach * _UP),
        np.float32(neck_rest * _UP + 1e-30),
        np.float32(neck_tail * _UP),
    )


@kernel("float64(int8[::1], int64)")
def _sum_of(code: I8, start: Int) -> Real:
    total = np.int64(0)
    for j in range(HEAD):
        total += np.int64(code[start + j])
    return np.float64(total)


@kernel("void(float32[::1], float32[::1], float32[::1])")
def centre_row_(raw: F32, mean: F32, out: F32) -> None:
    """Subtract a mean and normalise, in float64 and in index order.

    Parameters
    ----------
    raw, mean : float32[dim]
    out : float32[d]
        Result in the first dim places; zeros for a row that equals the mean.
    """
    total = 0.0
    for j in range(mean.shape[0]):
        value = np.float64(raw[j]) - np.float64(mean[j])
        total += value * value
    norm = math.sqrt(total)
    for j in range(mean.shape[0]):
        value = np.float64(raw[j]) - np.float64(mean[j])
        out[j] = np.float32(value / norm) if norm > 1e-6 else np.float32(0.0)


@kernel("void(float32[:, ::1], float32[::1], float32[:, ::1])")
def centre_rows_(raw: F32, mean: F32, out: F32) -> None:
    """`centre_row_` for many.

    Parameters
    ----------
    raw : float32[m, dim]
    mean : float32[dim]
    out : float32[m, d]
        Result.
    """
    for i in range(raw.shape[0]):
        centre_row_(raw[i], mean, out[i])
