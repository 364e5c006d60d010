"""Exact nearest rows of a table: scan codes, bound, rescore the few that may win.

A scan reads the head codes (where the table has them) and bounds every row from above.
The rows of largest bounds are looked at first, by their full codes, which gives a good
k-th best lower bound; then all others whose upper bound reaches it, by their necks and, if
the bound still does, by their full codes. What is left is rescored in float64 and index
order, so the answer is that of the definition, with ties to the lowest row. Nothing depends
on the order in which float32 sums are made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from rsm_fast.kernels.dot_int8 import bounds4, dot1
from rsm_fast.kernels.heads import (
    head_bounds16,
    lowest_bit,
    neck_bounds16,
    prefetch_row,
    reaching16,
)
from rsm_fast.kernels.jit import F32, F64, I8, I32, I64, U8, Int, Real, kernel
from rsm_fast.kernels.lending import lent, lent_table
from rsm_fast.kernels.quantize import make_query, quantize_row_, squared_norm
from rsm_fast.kernels.rows import (
    CODES,
    CODES_TYPE,
    ERROR,
    HEAD,
    QUERY_TYPE,
    ROOM_TYPE,
    ROTATION,
    SCALE,
    TURNED,
    Codes,
    Query,
    Room,
)

__all__ = [
    "BUFFER",
    "NECK_ROWS",
    "WHOLES",
    "collect_",
    "cut",
    "exact_dot",
    "exact_dots_",
    "float32_below",
    "floats_of",
    "room_in",
    "scan_",
    "search_",
    "topk_rows",
]

PICKED, BUFFER = 512, 1536
"""Rows that are looked at more closely at a time; candidates that are held at a time. A full
buffer is rescored and emptied."""

WHOLES = BUFFER + PICKED
"""Length of the int64 array that a search needs."""

_SEEDS = 3  # times k rows of large bounds are looked at first; bench: top 64
_BINS = 512  # of the histogram that finds them
_AHEAD = 8  # rows whose full codes are asked for before they are read

NECK_ROWS = 30_000
"""Rows from which on necks pay for one best row too: the full codes come from DRAM there."""

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


@kernel(
    types.void(CODES_TYPE, _rows, _i8, types.float32[::1], _scores),
    inner=False,
    fastmath=("contract",),  # the product of two float32 is exact: a fused sum is no other
)
def exact_dots_(table: Codes, rows: I64, count: Int, x: F32, out: F64) -> None:
    """`exact_dot` of several rows, eight at a time to hide the latency of their sums.

    Parameters
    ----------
    table : Codes
    rows : int64[count]
    count : int
    x : float32[d]
    out : float64[count]
        Result.
    """
    full = count // 8 * 8 if table.vec.shape[0] > 0 else 0
    vec = table.vec
    for k in range(0, full, 8):
        a, b, c, d = vec[rows[k]], vec[rows[k + 1]], vec[rows[k + 2]], vec[rows[k + 3]]
        e, f, g, h = vec[rows[k + 4]], vec[rows[k + 5]], vec[rows[k + 6]], vec[rows[k + 7]]
        s = t = u = v = w = y = z = q = 0.0
        for j in range(x.shape[0]):
            value = np.float64(x[j])
            s += np.float64(a[j]) * value
            t += np.float64(b[j]) * value
            u += np.float64(c[j]) * value
            v += np.float64(d[j]) * value
            w += np.float64(e[j]) * value
            y += np.float64(f[j]) * value
            z += np.float64(g[j]) * value
            q += np.float64(h[j]) * value
        out[k], out[k + 1], out[k + 2], out[k + 3] = s, t, u, v
        out[k + 4], out[k + 5], out[k + 6], out[k + 7] = w, y, z, q
    for k in range(full, count):
        out[k] = exact_dot(table, rows[k], x)


@kernel(types.void(CODES_TYPE, QUERY_TYPE, _i8, _bounds, _bounds), inner=False)
def scan_(table: Codes, query: Query, stop: Int, bounds: F32, peaks: F32) -> None:
    """Upper bound of every row's score, from the heads or, without them, the full codes.

    Parameters
    ----------
    table : Codes
    query : Query
    stop : int
        Rows to scan.
    bounds : float32[stop rounded up to a multiple of 16]
        Result.
    peaks : float32[blocks of 16 rows]
        Result: the largest bound of each block.
    """
    # Fields are taken out of the tuples here: within the loop each access would count a
    # reference, at ten times the cost of the arithmetic (bench: max-member gate at 1k).
    code, fit, head, head_fit = table.code, table.fit, table.head, table.head_fit
    q_code, q_correction, q_scale = query.code, query.correction, query.scale
    reach, rest = query.reach, query.rest
    q_head, q_head_less, q_head_scale = query.head, query.head_less, query.head_scale
    head_reach, head_rest, tail = query.head_reach, query.head_rest, query.tail
    if head.shape[0] > 0:
        for row in range(0, stop, 16):
            peaks[row >> 4] = head_bounds16(
                head, row, q_head, q_head_less, q_head_scale, head_fit,
                head_reach, head_rest, bounds, tail,
            )  # fmt: skip
        return
    for row in range(0, stop, 16):
        best: Real = np.float32(-np.inf)
        for four in range(row, row + 16, 4):
            peak = bounds4(code, four, q_code, q_correction, q_scale, fit, reach, rest, bounds)
            best = max(best, peak)
        peaks[row >> 4] = best


@kernel(_i8(types.float32, types.float32, types.float32), inline=True)
def _bin(value: Real, low: Real, factor: Real) -> Int:
    place = np.int64((value - low) * factor)
    return min(max(place, np.int64(0)), np.int64(_BINS - 1))


@kernel(types.UniTuple(types.float32, 2)(_bounds, _i8))
def _range(values: F32, count: Int) -> tuple[Real, Real]:
    """Smallest and largest, in 16 lanes: LLVM makes no vectors of one running maximum."""
    lows, highs = np.empty(16, np.float32), np.empty(16, np.float32)
    for j in range(16):
        lows[j] = highs[j] = values[0]
    full = count // 16 * 16
    for start in range(0, full, 16):
        part = values[start : start + 16]
        for j in range(16):
            lows[j] = part[j] if part[j] < lows[j] else lows[j]
            highs[j] = part[j] if part[j] > highs[j] else highs[j]
    low, high = values[0], values[0]
    for j in range(16):
        low, high = min(low, lows[j]), max(high, highs[j])
    for c in range(full, count):
        low, high = min(low, values[c]), max(high, values[c])
    return low, high


@kernel(types.float32(_bounds, _i8, _i8))
def cut(values: F32, count: Int, wanted: Int) -> Real:
    """A value that enough others reach, little below the largest such.

    Parameters
    ----------
    values : float32[count]
    count, wanted : int
        At least 1 each.

    Returns
    -------
    float32
        ``wanted`` of the values are not smaller, or all are.
    """
    low, high = _range(values, count)
    if wanted == 1:
        return high
    if not high - low > np.float32(1e-20) or wanted >= count:
        return low
    bins = np.zeros(_BINS, np.int64)
    factor = np.float32(_BINS - 1) / (high - low)
    for c in range(count):
        bins[_bin(values[c], low, factor)] += 1
    place, seen = np.int64(_BINS - 1), bins[_BINS - 1]
    while place > 0 and seen < wanted:
        place -= 1
        seen += bins[place]
    # what fell into a bin lies above its lower edge, but for the rounding of the division
    edge = low + (np.float32(place) - np.float32(0.01)) / factor
    return max(low, edge - np.float32(1e-6) * max(abs(low), abs(high)))


@kernel(ROOM_TYPE(_bounds, _rows, _i8), inline=True)
def room_in(floats: F32, wholes: I64, stop: Int) -> Room:
    """Lay out the arrays of a search of so many rows.

    Parameters
    ----------
    floats, wholes : float32[n], int64[m]
        Memory, see `floats_of` and `WHOLES`.
    stop : int

    Returns
    -------
    Room
    """
    peaks = stop + 16
    uppers = peaks + (stop >> 4) + 1
    lowers = uppers + BUFFER
    picked = lowers + BUFFER
    return Room(
        floats[:peaks],
        floats[peaks:uppers],
        wholes[:BUFFER],
        floats[uppers:lowers],
        floats[lowers:picked],
        wholes[BUFFER:WHOLES],
        floats[picked : picked + PICKED],
    )


@kernel(_i8(_i8), inline=True)
def floats_of(stop: Int) -> Int:
    """Length of a float32 array with room for a search of so many rows.

    Parameters
    ----------
    stop : int

    Returns
    -------
    int
    """
    return stop + 16 + (stop >> 4) + 1 + 2 * BUFFER + PICKED


@kernel(
    types.UniTuple(_i8, 2)(
        CODES_TYPE, QUERY_TYPE, types.boolean, _i8, _i8, _mask, types.float32, ROOM_TYPE
    )
)
def _pick_(
    table: Codes, query: Query, necks: Any, start: Int, stop: Int, mask: U8, threshold: Real,
    room: Room,
) -> tuple[Int, Int]:  # fmt: skip
    """Rows whose bound, and that of the neck if asked, reaches a threshold.

    Gives where to go on, and how many there are.
    """
    head, head_fit, q_head = table.head, table.head_fit, query.head
    less, scale, reach = query.neck_less, query.neck_scale, query.neck_reach
    rest, tail, wide = query.neck_rest, query.neck_tail, query.tail
    bounds, peaks, picked, uppers = room.bounds, room.peaks, room.picked, room.picked_uppers
    count = np.int64(0)
    limit = picked.shape[0] - 16
    row = start
    while row < stop and count <= limit:
        if peaks[row >> 4] >= threshold:
            hits = reaching16(bounds, row, threshold)
            if necks and hits != 0:
                hits = neck_bounds16(
                    head, row, q_head, less, scale, head_fit, reach, rest, bounds, tail, wide,
                    bounds, threshold,
                )  # fmt: skip
            while hits != 0:
                lane = lowest_bit(hits)
                hits &= hits - 1
                this = row + lane
                if this < stop and mask[this] != 0:
                    picked[count] = this
                    uppers[count] = bounds[this]
                    count += 1
        row += 16
    return row, count


@kernel(_i8(_rows, _bounds, _i8, _i8))
def _largest_of_(rows: I64, uppers: F32, count: Int, wanted: Int) -> Int:
    """Keep about so many rows of the largest bounds, in their order; gives how many."""
    if count <= wanted:
        return count
    least = cut(uppers, count, wanted)
    kept = np.int64(0)
    for c in range(count):
        rows[kept], uppers[kept] = rows[c], uppers[c]
        kept += np.int64(uppers[c] >= least)
    return kept


@kernel(
    types.UniTuple(_i8, 2)(
        CODES_TYPE, QUERY_TYPE, _i8, _i8, _mask, types.float32, _i8, ROOM_TYPE, _rows
    ),
    inner=False,
)
def collect_(
    table: Codes, query: Query, start: Int, stop: Int, mask: U8, floor: Real, k: Int,
    room: Room, work: I64,
) -> tuple[Int, Int]:  # fmt: skip
    """Gather rows that may be among the best, until the buffer is nearly full.

    Parameters
    ----------
    table : Codes
    query : Query
    start, stop : int
        Rows to look at; start is a multiple of 16, or -1: some rows of large bounds first,
        whose bounds are then set to NaN; those only, unless one above a floor is wanted, for their
        exact scores are the best threshold for all others.
    mask : uint8[stop]
        Rows with 0 are left out.
    floor : float32
        Rows whose exact score is below it are of no interest.
    k : int
        How many are wanted.
    room : Room
        Bounds and peaks from `scan_`; candidates and their upper bounds are written.
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
    bounds, peaks, rows, uppers, lowers = (
        room.bounds, room.peaks, room.rows, room.uppers, room.lowers,
    )  # fmt: skip
    picked, picked_uppers = room.picked, room.picked_uppers
    heads = table.head.shape[0] > 0
    necks = heads and query.necks != 0
    count = np.int64(0)
    seeding = start < 0
    unbounded = k > 1 or (heads and not floor > -np.inf)
    only_seeds = seeding and unbounded
    row = max(start, 0)
    if seeding:
        work[0] += stop
    threshold = floor
    limit = rows.shape[0] - picked.shape[0]
    while row < stop and count <= limit:
        reach_for = threshold
        if seeding:
            seeds = _SEEDS * k if unbounded else np.int64(1)
            reach_for = max(floor, cut(peaks, (stop + 15) >> 4, seeds))
        following, found = _pick_(
            table, query, necks and not seeding, row, stop, mask, reach_for, room
        )
        if not seeding:
            row = following
        if only_seeds and seeding:  # of few blocks, many rows were picked
            found = _largest_of_(picked, picked_uppers, found, _SEEDS * k)
        work[1] += found
        for c in range(min(found, _AHEAD)):
            prefetch_row(code, picked[c])
        before = count
        for c in range(found):
            this, upper = picked[c], picked_uppers[c]
            if c + _AHEAD < found:
                prefetch_row(code, picked[c + _AHEAD])
            slack = fit[this >> 2, ERROR, this & 3] * reach + rest
            if heads:
                dot = dot1(code, this, q_code, q_correction)
                scale = fit[this >> 2, SCALE, this & 3] * q_scale
                upper = np.float32(dot) * scale + slack
            lower = upper - np.float32(2.0) * slack
            rows[count], uppers[count], lowers[count] = this, upper, lower
            count += np.int64(upper >= threshold)
            if k == 1:
                threshold = max(threshold, lower)
            if seeding:
                bounds[this] = np.float32(np.nan)  # reaches no threshold, not even -inf
        seeding = False
        work[2] += count - before
        if count >= k > 1:
            threshold = max(threshold, cut(lowers, count, k))
        kept = np.int64(0)
        for c in range(count):
            rows[kept], uppers[kept], lowers[kept] = rows[c], uppers[c], lowers[c]
            kept += np.int64(uppers[c] >= threshold)
        count = kept
        if only_seeds:
            break
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


@kernel(
    _i8(CODES_TYPE, QUERY_TYPE, _i8, _mask, _f8, _scores, _rows, _rows, _bounds, _rows, _scores)
)
def search_(
    table: Codes, query: Query, stop: Int, mask: U8, floor: Real,
    scores: F64, rows: I64, work: I64, floats: F32, wholes: I64, exact: F64,
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
    floats, wholes, exact : float32[`floats_of` stop], int64[`WHOLES`], float64[`BUFFER`]
        Memory, which the caller holds, so that nothing here counts a reference.

    Returns
    -------
    int
        How many there are, at most k.
    """
    scores, rows, work, exact = lent(scores), lent(rows), lent(work), lent(exact)
    room = room_in(lent(floats), lent(wholes), stop)
    buffer = room.rows
    k = scores.shape[0]
    found = 0
    wanted = floor
    scan_(table, query, stop, room.bounds, room.peaks)
    start = np.int64(-1)  # a literal would make a specialisation of its own
    while start < stop:
        start, count = collect_(
            table, query, start, stop, mask, float32_below(wanted), k, room, work
        )
        exact_dots_(table, buffer, count, query.exact, exact)
        work[3] += count
        for c in range(count):
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
    f"int64({CODES}, int64, float32[::1], {ROTATION}, uint8[::1], float64, "
    "float32[::1], int32[::1], int64[::1])"
)
def topk_rows(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64,
    n: Int, x: F32, rotation: Any, mask: U8, floor: Real, scores: F32, rows: I32, work: I64,
) -> Int:  # fmt: skip
    """The k rows of a table with the largest dot products with a free vector, exactly.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits
        The table, see `rsm_fast.kernels.rows.Codes`.
    n : int
        Rows in use.
    x : float32[d]
        The query, padded.
    rotation : int16[256, d] or int16[0, d]
        What the table's heads were made with; none: they are not looked at.
    mask : uint8[n]
        Rows with 0 are left out.
    floor : float64
        Only scores of at least this.
    scores, rows : float32[k], int32[k]
        Result, best first by the float64 scores; equal scores by row.
    work : int64[4] or int64[0]
        Counters, see `search_`, if they are wanted.

    Returns
    -------
    int
        How many there are; -1 if x is not finite.
    """
    k = scores.shape[0]
    if k == 0:
        return np.int64(0)
    q_code = np.empty(x.shape[0] + TURNED, np.int8)
    floats, wholes = np.empty(floats_of(n), np.float32), np.empty(WHOLES + k, np.int64)
    return _topk_in_(
        Codes(vec, code, fit, head, head_fit, limits), n, x, rotation, mask, floor, scores, rows,
        work, q_code, floats, wholes, np.empty(BUFFER + k),
    )  # fmt: skip


@kernel(
    _i8(
        CODES_TYPE, _i8, types.float32[::1], types.int16[:, ::1], _mask, _f8, _bounds,
        types.int32[::1], _rows, types.int8[::1], _bounds, _rows, _scores,
    )
)  # fmt: skip
def _topk_in_(
    table: Codes, n: Int, x: F32, rotation: Any, mask: U8, floor: Real, scores: F32, rows: I32,
    work: I64, q_code: I8, floats: F32, wholes: I64, exact: F64,
) -> Int:  # fmt: skip
    """`topk_rows` in memory that its caller holds."""
    table = lent_table(table)
    x, mask, q_code, floats = lent(x), lent(mask), lent(q_code), lent(floats)
    wholes, exact = lent(wholes), lent(exact)
    if not np.isfinite(squared_norm(x)):
        return np.int64(-1)
    k = scores.shape[0]
    scale, error = quantize_row_(x, q_code[: x.shape[0]])
    if rotation.shape[0] == 0 and table.head.shape[0] > 0:
        table = Codes(
            table.vec, table.code, table.fit, table.head[:0], table.head_fit, table.limits
        )
    necks = k > 1 or n >= NECK_ROWS or not floor > -np.inf
    count = np.int64(TURNED if necks else HEAD)
    nothing = np.int64(0)  # a literal would make a specialisation of its own
    query = make_query(
        table.limits, rotation, count, q_code, scale, error * (1.0 + 1e-6), x, floats, nothing
    )
    counters = np.zeros(4, np.int64)
    best, found_rows = exact[BUFFER:], wholes[WHOLES:]
    found = search_(table, query, n, mask, floor, best, found_rows, counters, floats, wholes, exact)
    for c in range(found):
        scores[c] = np.float32(best[c])
        rows[c] = np.int32(found_rows[c])
    for c in range(work.shape[0]):
        work[c] += counters[c]
    return found
