"""Exact nearest rows of a table: scan codes, bound, rescore the few that may win.

A scan reads the head codes (where the table has them), then the full codes of what
survives, and keeps rows whose upper bound reaches the k-th best lower bound so far. Only
those are rescored: float64, in index order, so the answer is that of the definition, with
ties to the lowest row. Nothing here depends on the order in which float32 sums are made.
"""

from __future__ import annotations

import numpy as np
from numba import types

from rsm_fast.kernels.dot_int8 import bounds4, dot1, head_bounds4
from rsm_fast.kernels.jit import F32, F64, I8, I64, U8, Int, Real, kernel
from rsm_fast.kernels.quantize import encode_row_, make_query
from rsm_fast.kernels.rows import CODES, CODES_TYPE, ERROR, QUERY_TYPE, SCALE, Codes, Query

__all__ = ["collect_", "exact_dot", "exact_dots_", "float32_below", "search_", "topk_rows"]

_BUFFER = 1024  # candidates held at a time; a full buffer is rescored and emptied

_f8, _i8 = types.float64, types.int64
_scores, _rows, _mask, _bounds = (
    types.float64[::1],
    types.int64[::1],
    types.uint8[::1],
    types.float32[::1],
)


@kernel(_f8(CODES_TYPE, _i8, types.float32[::1]))
def exact_dot(table: Codes, row: Int, x: F32) -> Real:
    """Dot product of a row with x: float64, added in index order.

    Parameters
    ----------
    table : Codes
    row : int
    x : float32[d]

    Returns
    -------
    float64
        Of the stored vector, or of its dequantised codes where the table keeps no vectors.
    """
    total = 0.0
    if table.vec.shape[0] > 0:
        stored = table.vec[row]
        for j in range(x.shape[0]):
            total += np.float64(stored[j]) * np.float64(x[j])
    else:
        code = table.code[row]
        scale = table.fit[row >> 2, SCALE, row & 3]
        for j in range(x.shape[0]):
            total += np.float64(scale * np.float32(code[j])) * np.float64(x[j])
    return total


@kernel(types.void(CODES_TYPE, _rows, _i8, types.float32[::1], _scores))
def exact_dots_(table: Codes, rows: I64, count: Int, x: F32, out: F64) -> None:
    """`exact_dot` of several rows, four at a time to hide the latency of their sums.

    Parameters
    ----------
    table : Codes
    rows : int64[count]
    count : int
    x : float32[d]
    out : float64[count]
        Result.
    """
    full = count // 4 * 4 if table.vec.shape[0] > 0 else 0
    for k in range(0, full, 4):
        a, b = table.vec[rows[k]], table.vec[rows[k + 1]]
        c, d = table.vec[rows[k + 2]], table.vec[rows[k + 3]]
        first = second = third = fourth = 0.0
        for j in range(x.shape[0]):
            value = np.float64(x[j])
            first += np.float64(a[j]) * value
            second += np.float64(b[j]) * value
            third += np.float64(c[j]) * value
            fourth += np.float64(d[j]) * value
        out[k], out[k + 1], out[k + 2], out[k + 3] = first, second, third, fourth
    for k in range(full, count):
        out[k] = exact_dot(table, rows[k], x)


@kernel(types.void(_bounds, types.float32))
def _replace_smallest_(heap: F32, value: Real) -> None:
    """Put value in place of the root of a min-heap, and restore the heap."""
    size = heap.shape[0]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value


@kernel(
    types.UniTuple(_i8, 2)(
        CODES_TYPE, QUERY_TYPE, _i8, _i8, _mask, types.float32, _bounds, _rows, _bounds, _i8[::1]
    )
)
def collect_(
    table: Codes, query: Query, start: Int, stop: Int, mask: U8, floor: Real,
    heap: F32, rows: I64, bounds: F32, work: I64,
) -> tuple[Int, Int]:  # fmt: skip
    """Gather rows that may be among the best, until the buffer is nearly full.

    Parameters
    ----------
    table : Codes
    query : Query
    start, stop : int
        Rows to scan; start is a multiple of 4.
    mask : uint8[stop]
        Rows with 0 are left out.
    floor : float32
        Rows whose exact score is below it are of no interest.
    heap : float32[k]
        The k best lower bounds so far, a min-heap; updated.
    rows, bounds : int64[m], float32[m]
        Result: candidates and their upper bounds.
    work : int64[3]
        Counters, added to: rows scanned, rows that survived the head, candidates.

    Returns
    -------
    next_start, count : int
        Where to go on, and how many candidates were written.
    """
    # Fields are taken out of the tuples here: within the loop each access would count a
    # reference, at ten times the cost of the arithmetic (bench: max-member gate at 1k).
    code, fit, head, head_fit = table.code, table.fit, table.head, table.head_fit
    q_code, q_correction, q_scale = query.code, query.correction, query.scale
    reach, rest = query.reach, query.rest
    q_head, q_head_correction, q_head_scale = query.head, query.head_correction, query.head_scale
    head_reach, head_rest, tail = query.head_reach, query.head_rest, query.tail
    count = 0
    survivors = 0
    block = np.empty(4, np.float32)
    threshold = max(floor, heap[0])
    heads = head.shape[0] > 0
    limit = rows.shape[0] - 4
    row = start
    while row < stop and count <= limit:
        if heads:
            best = head_bounds4(
                head, row, q_head, q_head_correction, q_head_scale, head_fit,
                head_reach, head_rest, block, tail,
            )  # fmt: skip
        else:
            best = bounds4(
                code, row, q_code, q_correction, q_scale, fit, reach, rest, block,
            )  # fmt: skip
        if best >= threshold:
            for lane in range(4):
                this = row + lane
                upper = block[lane]
                if upper < threshold or this >= stop or mask[this] == 0:
                    continue
                slack = fit[this >> 2, ERROR, lane] * reach + rest
                if heads:
                    survivors += 1
                    dot = dot1(code, this, q_code, q_correction)
                    scale = fit[this >> 2, SCALE, lane] * q_scale
                    upper = np.float32(dot) * scale + slack
                    if upper < threshold:
                        continue
                rows[count] = this
                bounds[count] = upper
                count += 1
                lower = upper - np.float32(2.0) * slack
                if lower > heap[0]:
                    _replace_smallest_(heap, lower)
                    threshold = max(threshold, heap[0])
        row += 4
    work[0] += min(row, stop) - start
    work[1] += survivors
    work[2] += count
    return row, count


@kernel(types.float32(_f8))
def float32_below(value: Real) -> Real:
    """A float32 just below a float64: a threshold may only be rounded down.

    Parameters
    ----------
    value : float64

    Returns
    -------
    float32
    """
    if value < -1e30:
        return np.float32(-np.inf)
    return np.float32(value - 1e-7 * abs(value) - 1e-30)


@kernel(_i8(CODES_TYPE, QUERY_TYPE, _i8, _mask, _f8, _scores, _rows, _i8[::1]))
def search_(
    table: Codes, query: Query, stop: Int, mask: U8, floor: Real,
    scores: F64, rows: I64, work: I64,
) -> Int:  # fmt: skip
    """The k best rows of a table, exactly.

    Parameters
    ----------
    table : Codes
    query : Query
    stop : int
        Number of rows.
    mask : uint8[stop]
        Rows with 0 are left out.
    floor : float64
        Only scores of at least this; ``-inf`` for all.
    scores, rows : float64[k], int64[k]
        Result, best first; equal scores by row.
    work : int64[4]
        Counters, added to: scanned, survived the head, candidates, rescored.

    Returns
    -------
    int
        How many there are, at most k.
    """
    k = scores.shape[0]
    found = 0
    if k == 0:
        return found
    heap = np.empty(k, np.float32)
    for c in range(k):
        heap[c] = np.float32(-np.inf)
    buffer = np.empty(_BUFFER, np.int64)
    uppers = np.empty(_BUFFER, np.float32)
    exact = np.empty(_BUFFER, np.float64)
    wanted = floor
    start = 0
    while start < stop:
        start, count = collect_(
            table, query, start, stop, mask, float32_below(wanted), heap, buffer, uppers, work
        )
        least = max(wanted, np.float64(heap[0]))
        kept = 0
        for c in range(count):
            if np.float64(uppers[c]) >= least:
                buffer[kept] = buffer[c]
                kept += 1
        exact_dots_(table, buffer, kept, query.exact, exact)
        work[3] += kept
        for c in range(kept):
            score = exact[c]
            if score < wanted or (found == k and score <= scores[k - 1]):
                continue
            at = min(found, k - 1)
            while at > 0 and scores[at - 1] < score:
                scores[at] = scores[at - 1]
                rows[at] = rows[at - 1]
                at -= 1
            scores[at] = score
            rows[at] = buffer[c]
            found = min(found + 1, k)
        if found == k:
            wanted = max(wanted, scores[k - 1])
    return found


@kernel(
    f"int64({CODES}, {CODES}, int64, float32[::1], float32[:, ::1], uint8[::1], float64, "
    "float64[::1], int64[::1], int64[::1])"
)
def topk_rows(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64, q_vec: F32, q_code: I8,
    q_fit: F32, q_head: I8, q_head_fit: F32, q_limits: F64, n: Int, x: F32, rotation: F32,
    mask: U8, floor: Real, scores: F64, rows: I64, work: I64,
) -> Int:  # fmt: skip
    """The k rows of a table with the largest dot products with a free vector, exactly.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits
        The table, see `rsm_fast.kernels.rows.Codes`.
    q_vec, q_code, q_fit, q_head, q_head_fit, q_limits
        A table of at least one row with vectors, scratch for the coded query.
    n : int
        Rows in use.
    x : float32[d]
        The query, padded, finite.
    rotation : float32[128, d] or float32[0, d]
        What the table's heads were made with.
    mask : uint8[n]
        Rows with 0 are left out.
    floor : float64
        Only scores of at least this.
    scores, rows : float64[k], int64[k]
        Result, best first; equal scores by row.
    work : int64[4]
        Counters, see `search_`.

    Returns
    -------
    int
        How many there are.
    """
    for item in range(4):
        q_limits[item] = limits[item]
    encode_row_(q_vec, q_code, q_fit, q_head, q_head_fit, q_limits, 0, x, rotation)
    table = Codes(vec, code, fit, head, head_fit, limits)
    source = Codes(q_vec, q_code, q_fit, q_head, q_head_fit, q_limits)
    query = make_query(table, source, 0, x)
    return search_(table, query, n, mask, floor, scores, rows, work)
