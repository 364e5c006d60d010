"""Exact nearest rows of a table: scan codes, bound, rescore the few that may win.

A scan reads the head codes (where the table has them) and bounds every row from above.
The rows of largest bounds are looked at first, by their full codes, which gives a good
k-th best lower bound; then all others whose upper bound reaches it. What is left is
rescored in float64 and index order, so the answer is that of the definition, with ties to
the lowest row. Nothing depends on the order in which float32 sums are made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from rsm_fast.kernels.dot_int8 import bounds4, dot1, head_bounds4
from rsm_fast.kernels.jit import F32, F64, I8, I64, U8, Int, Real, kernel
from rsm_fast.kernels.quantize import encode_row_, make_query
from rsm_fast.kernels.rows import (
    CODES,
    CODES_TYPE,
    ERROR,
    HEAD,
    QUERY_TYPE,
    SCALE,
    Codes,
    Query,
)

__all__ = ["collect_", "exact_dot", "exact_dots_", "float32_below", "scan_", "search_", "topk_rows"]

_BUFFER = 1024  # candidates held at a time; a full buffer is rescored and emptied

_f8, _i8 = types.float64, types.int64
_scores, _rows, _mask, _bounds = (
    types.float64[::1],
    types.int64[::1],
    types.uint8[::1],
    types.float32[::1],
)


@kernel(_f8(CODES_TYPE, _i8, types.float32[::1]), inner=False)
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


@kernel(types.void(CODES_TYPE, _rows, _i8, types.float32[::1], _scores), inner=False)
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


@kernel(types.void(_bounds, _rows, types.float32, _i8))
def _replace_smallest_(heap: F32, rows: I64, value: Real, row: Int) -> None:
    """Put a value and its row in place of the root of a min-heap, and restore the heap."""
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
        rows[at] = rows[child]
        at = child
    heap[at] = value
    rows[at] = row


@kernel(
    types.void(CODES_TYPE, QUERY_TYPE, _i8, _mask, types.float32, _bounds, _bounds, _bounds, _rows),
    inner=False,
)
def scan_(
    table: Codes, query: Query, stop: Int, mask: U8, floor: Real,
    bounds: F32, peaks: F32, seeds: F32, seed_rows: I64,
) -> None:  # fmt: skip
    """Upper bound of every row's score, from the heads or, without them, the full codes.

    Parameters
    ----------
    table : Codes
    query : Query
    stop : int
        Rows to scan.
    mask : uint8[stop]
        Rows with 0 are no seeds.
    floor : float32
        Rows whose bound is below it are no seeds.
    bounds : float32[stop rounded up to a multiple of 4]
        Result.
    peaks : float32[blocks of four rows]
        Result: the largest bound of each block.
    seeds, seed_rows : float32[m], int64[m]
        Result: the m rows of largest bounds, a min-heap; -1 where there are fewer.
    """
    # Fields are taken out of the tuples here: within the loop each access would count a
    # reference, at ten times the cost of the arithmetic (bench: max-member gate at 1k).
    code, fit, head, head_fit = table.code, table.fit, table.head, table.head_fit
    q_code, q_correction, q_scale = query.code, query.correction, query.scale
    reach, rest = query.reach, query.rest
    q_head, q_head_correction, q_head_scale = query.head, query.head_correction, query.head_scale
    head_reach, head_rest, tail = query.head_reach, query.head_rest, query.tail
    for k in range(seeds.shape[0]):
        seeds[k] = np.float32(-np.inf)
        seed_rows[k] = -1
    heads = head.shape[0] > 0
    least = floor
    for row in range(0, stop, 4):
        if heads:
            best = head_bounds4(
                head, row, q_head, q_head_correction, q_head_scale, head_fit,
                head_reach, head_rest, bounds, tail,
            )  # fmt: skip
        else:
            best = bounds4(code, row, q_code, q_correction, q_scale, fit, reach, rest, bounds)
        peaks[row >> 2] = best
        if best >= least:
            for this in range(row, min(row + 4, stop)):
                if bounds[this] >= least and bounds[this] > seeds[0] and mask[this] != 0:
                    _replace_smallest_(seeds, seed_rows, bounds[this], this)
                    least = max(floor, seeds[0])


@kernel(
    types.UniTuple(_i8, 2)(
        CODES_TYPE, QUERY_TYPE, _i8, _i8, _mask, types.float32,
        _bounds, _bounds, _bounds, _rows, _rows, _bounds, _rows,
    )
)  # fmt: skip
def collect_(
    table: Codes, query: Query, start: Int, stop: Int, mask: U8, floor: Real,
    bounds: F32, peaks: F32, heap: F32, heap_rows: I64, rows: I64, uppers: F32, work: I64,
) -> tuple[Int, Int]:  # fmt: skip
    """Gather rows that may be among the best, until the buffer is nearly full.

    Parameters
    ----------
    table : Codes
    query : Query
    start, stop : int
        Rows to look at; start is a multiple of 4, or -1: the rows of ``heap_rows`` first,
        whose bounds are then set to NaN.
    mask : uint8[stop]
        Rows with 0 are left out.
    floor : float32
        Rows whose exact score is below it are of no interest.
    bounds, peaks
        From `scan_`.
    heap, heap_rows : float32[k], int64[k]
        The k best lower bounds so far, a min-heap, and their rows; updated.
    rows, uppers : int64[m], float32[m]
        Result: candidates and their upper bounds.
    work : int64[4]
        Counters, added to: rows scanned, rows bounded by their full codes, candidates.

    Returns
    -------
    next_start, count : int
        Where to go on, and how many candidates were written.
    """
    code, fit = table.code, table.fit
    q_code, q_correction, q_scale = query.code, query.correction, query.scale
    reach, rest = query.reach, query.rest
    heads = table.head.shape[0] > 0
    count = 0
    survivors = 0
    seeds = heap_rows.copy()
    if start < 0:
        first = -4 * seeds.shape[0]
        for k in range(heap.shape[0]):
            heap[k] = np.float32(-np.inf)
        work[0] += stop
    else:
        first = start
    threshold = max(floor, heap[0])
    limit = rows.shape[0] - 4
    row = first
    while row < stop and count <= limit:
        this, end = row, min(row + 4, stop)
        if row < 0:  # the seeds, one in each step
            this = seeds[-row // 4 - 1]
            end = this + 1 if this >= 0 else this
        elif peaks[row >> 2] < threshold:
            end = row
        while this < end:
            upper = bounds[this]
            if upper >= threshold and mask[this] != 0:
                slack = fit[this >> 2, ERROR, this & 3] * reach + rest
                survivors += 1
                if heads:
                    dot = dot1(code, this, q_code, q_correction)
                    scale = fit[this >> 2, SCALE, this & 3] * q_scale
                    upper = np.float32(dot) * scale + slack
                if upper >= threshold:
                    rows[count] = this
                    uppers[count] = upper
                    count += 1
                    lower = upper - np.float32(2.0) * slack
                    if lower > heap[0]:
                        _replace_smallest_(heap, heap_rows, lower, this)
                        threshold = max(threshold, heap[0])
            if row < 0:
                bounds[this] = np.float32(np.nan)  # reaches no threshold, not even -inf
            this += 1
        row += 4
    work[1] += survivors
    work[2] += count
    return row, count


@kernel(types.float32(_f8), inline=True)
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
        Counters, added to: scanned, bounded by full codes, candidates, rescored.

    Returns
    -------
    int
        How many there are, at most k.
    """
    k = scores.shape[0]
    found = 0
    if k == 0:
        return found
    bounds = np.empty(stop + 3, np.float32)
    peaks = np.empty(stop // 4 + 1, np.float32)
    heap = np.empty(k, np.float32)
    heap_rows = np.empty(k, np.int64)
    buffer = np.empty(_BUFFER + k, np.int64)
    uppers = np.empty(_BUFFER + k, np.float32)
    exact = np.empty(_BUFFER + k, np.float64)
    wanted = floor
    scan_(table, query, stop, mask, float32_below(wanted), bounds, peaks, heap, heap_rows)
    start = np.int64(-1)  # a literal would make a specialisation of its own
    while start < stop:
        start, count = collect_(
            table, query, start, stop, mask, float32_below(wanted),
            bounds, peaks, heap, heap_rows, buffer, uppers, work,
        )  # fmt: skip
        least = max(wanted, np.float64(heap[0]))
        kept = np.int64(0)
        for c in range(count):
            if np.float64(uppers[c]) >= least:
                buffer[kept] = buffer[c]
                kept += 1
        exact_dots_(table, buffer, kept, query.exact, exact)
        work[3] += kept
        for c in range(kept):
            score, row = exact[c], buffer[c]
            if score < wanted:
                continue
            if found == k and not _before(score, row, scores[k - 1], rows[k - 1]):
                continue
            at = min(found, k - 1)
            while at > 0 and _before(score, row, scores[at - 1], rows[at - 1]):
                scores[at] = scores[at - 1]
                rows[at] = rows[at - 1]
                at -= 1
            scores[at] = score
            rows[at] = row
            found = min(found + 1, k)
        if found == k:
            wanted = max(wanted, scores[k - 1])
    return found


@kernel(types.boolean(_f8, _i8, _f8, _i8), inline=True)
def _before(score: Real, row: Int, other: Real, other_row: Int) -> Any:
    return score > other or (score == other and row < other_row)


@kernel(
    f"int64({CODES}, int64, float32[::1], float32[:, ::1], uint8[::1], float64, "
    "float64[::1], int64[::1], int64[::1])"
)
def topk_rows(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64,
    n: Int, x: F32, rotation: F32, mask: U8, floor: Real, scores: F64, rows: I64, work: I64,
) -> Int:  # fmt: skip
    """The k rows of a table with the largest dot products with a free vector, exactly.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits
        The table, see `rsm_fast.kernels.rows.Codes`.
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
    width = code.shape[1]
    source = Codes(
        np.empty((1, width), np.float32),
        np.empty((1, width), np.int8),
        np.empty((1, 2, 4), np.float32),
        np.empty((1 if rotation.shape[0] > 0 else 0, HEAD), np.int8),
        np.empty((1, 3, 4), np.float32),
        limits.copy(),
    )
    first = np.int64(0)  # a literal would make specialisations of its own
    encode_row_(
        source.vec, source.code, source.fit, source.head, source.head_fit, source.limits,
        first, x, rotation,
    )  # fmt: skip
    table = Codes(vec, code, fit, head, head_fit, limits)
    query = make_query(table, source, first, x)
    return search_(table, query, n, mask, floor, scores, rows, work)
