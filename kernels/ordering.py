"""Which rows come first, and of two about the same thing the newer one."""

import numpy as np

from rsm_fast.kernels.jit import F32, F64, I8, I32, I64, U8, Int, Real, kernel
from rsm_fast.kernels.rows import ERROR
from rsm_fast.kernels.scan import dense_score

__all__ = ["best_first_", "exact_first_", "newer_first_"]

_BINS = 2048


@kernel("boolean(float64[::1], int64[::1], int32, int32)", inline=True)
def _goes_first(worth: F64, micros: I64, row: Int, other: Int) -> Int:
    """Whether a row is tried before another: higher worth, then newer, then lower number."""
    if worth[row] != worth[other]:
        return worth[row] > worth[other]
    if micros[row] != micros[other]:
        return micros[row] > micros[other]
    return row < other


@kernel("void(float64[::1], int64[::1], int32[::1], int64, int64)", inline=True)
def _sink(worth: F64, micros: I64, heap: I32, place: Int, size: Int) -> None:
    """Let an entry of a heap, whose root goes last, sink to where it belongs."""
    row = heap[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _goes_first(worth, micros, heap[child], heap[child + 1]):
            child += 1
        if not _goes_first(worth, micros, row, heap[child]):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = row


@kernel("int64(float64[::1], int64[::1], int32[::1], int64, int32)")
def _taken(worth: F64, micros: I64, heap: I32, size: Int, row: Int) -> Int:
    """Take a row into a heap of limited length, if it is one of the best; gives its size."""
    if size == heap.size:
        if _goes_first(worth, micros, row, heap[0]):
            heap[0] = row
            _sink(worth, micros, heap, np.int64(0), size)
        return size
    heap[size] = row
    size += 1
    if size == heap.size:
        _heapify(worth, micros, heap, size)
    return size


@kernel("void(float64[::1], int64[::1], int32[::1], int64)")
def _heapify(worth: F64, micros: I64, heap: I32, size: Int) -> None:
    for place in range(size // 2 - 1, -1, -1):
        _sink(worth, micros, heap, place, size)


@kernel("void(float64[::1], int64[::1], int32[::1], int64)")
def _put_in_order(worth: F64, micros: I64, heap: I32, size: Int) -> None:
    """Make the order of what was taken, best first."""
    if size < heap.size:
        _heapify(worth, micros, heap, size)
    for end in range(size - 1, 0, -1):
        last = heap[0]
        heap[0] = heap[end]
        heap[end] = last
        _sink(worth, micros, heap, np.int64(0), end)


@kernel("float64(float64[::1], float64, int64)", inline=True)
def _floor(worth: F64, most: Real, limit: Int) -> Real:
    """A worth, 0 or more, that at least `limit` rows reach if so many are at 0 or above."""
    counts = np.zeros(_BINS, np.int32)
    if most <= 0.0:
        return 0.0
    scale = (_BINS - 1) / most
    for row in range(worth.size):
        if worth[row] >= 0.0:
            counts[int(worth[row] * scale)] += 1
    found = 0
    for part in range(_BINS - 1, 0, -1):
        found += counts[part]
        if found >= limit:
            return (part / scale) * (1.0 - 1e-12)
    return 0.0


@kernel("void(int32[::1], float64[::1], float64, float64, float64[::1])")
def _shares(tokens: I32, table: F64, offset: Real, power: Real, out: F64) -> None:
    """(tokens + offset) ** -power, looked up as far as the table goes: powers are slow."""
    last = np.int32(table.size - 1)
    longest = np.int32(0)
    for row in range(tokens.size):
        longest = max(longest, tokens[row])
        out[row] = table[min(max(tokens[row], np.int32(0)), last)]
    if longest > last:
        for row in range(tokens.size):
            if tokens[row] > last:
                out[row] = np.float64(tokens[row] + offset) ** -power


@kernel(
    "int64(float32[::1], uint8[::1], int32[::1], int64[::1], float64[::1], float64, float64,"
    " float64[::1], int32[::1])"
)
def best_first_(
    scores: F32,
    eligible: U8,
    tokens: I32,
    micros: I64,
    shares: F64,
    offset: Real,
    power: Real,
    worth: F64,
    order: I32,
) -> Int:
    """The first rows by (score - least score) / (tokens + offset) ** power.

    Ties: newer first, then lowest row.

    Parameters
    ----------
    scores, eligible, tokens, micros : (n,) float32, uint8, int32, int64
    shares : (m,) float64
        (tokens + offset) ** -power for 0 to m - 1 tokens; worked out for more than that.
    offset, power : float
    worth : (n,) float64
        Work space.
    order : (k,) int32
        The rows.

    Returns
    -------
    int
        How many there are: k, or all eligible rows.
    """
    if order.size == 0:
        return 0
    _shares(tokens, shares, offset, power, worth)
    least: Real = np.float32(np.inf)
    for row in range(scores.size):
        if eligible[row] != 0:
            least = min(least, scores[row])
    most = 0.0
    for row in range(scores.size):
        value = (np.float64(scores[row]) - np.float64(least)) * worth[row]
        worth[row] = value if eligible[row] != 0 else -1.0
        most = max(most, worth[row])
    floor = _floor(worth, most, order.size)
    size: Int = np.int64(0)  # a literal would be a type of its own
    for number in range(scores.size):
        row = np.int32(number)  # type: ignore[assignment]
        if worth[row] >= floor:
            size = _taken(worth, micros, order, size, row)
    _put_in_order(worth, micros, order, size)
    return size


@kernel(
    "int64(float32[:, ::1], int8[:, ::1], float32[:, :, ::1], float32[::1], float32[::1], float64,"
    " float64, uint8[::1], int32[::1], int64[::1], float64[::1], float64, float64, float64[::1],"
    " float32[::1], int32[::1])"
)
def exact_first_(
    vec: F32,
    code: I8,
    fit: F32,
    x: F32,
    near: F32,
    error: Real,
    gain: Real,
    eligible: U8,
    tokens: I32,
    micros: I64,
    shares: F64,
    offset: Real,
    power: Real,
    worth: F64,
    scores: F32,
    order: I32,
) -> Int:
    """The first rows, as `best_first_` would give them if `dense_score` were in all scores.

    The scores are made exact of all rows that may be among them, and of the lowest: every other
    row stays below them, whatever its exact score is.

    Parameters
    ----------
    vec, code, fit
        Of the table, see `rsm_fast.kernels.rows.Codes`.
    x : (d,) float32
        The question's vector.
    near : (n,) float32
        Cosines from `near_scores_`.
    error : float
        By which they may be wrong.
    gain : float
        By what its cosine is multiplied in a row's score.
    eligible, tokens, micros, shares, offset, power, worth, order
        As in `best_first_`.
    scores : (n,) float32
        Made with `near`; changed in place.

    Returns
    -------
    int
        As of `best_first_`.
    """
    n = scores.size
    if order.size == 0:
        return 0
    least: Real = np.float32(np.inf)
    widest: Real = np.float32(0.0)
    for row in range(n):
        if eligible[row] != 0:
            least = min(least, scores[row])
            widest = max(widest, abs(scores[row]))
    own = abs(gain) * error + 1e-6 * (1.0 + widest)
    # of a row: less than that by what its own codes are better than the worst
    better = abs(gain) * 1.001
    worst = np.float32(0.0)
    if vec.shape[0] > 0:
        for row in range(n):
            worst = max(worst, fit[row >> 2, ERROR, row & 3])
    exact = np.zeros(n, np.uint8)
    highest = least + np.float32(2.0 * own)
    lowest: Real = np.float32(np.inf)
    for row in range(n):
        if eligible[row] != 0 and scores[row] <= highest:
            scores[row] += np.float32(gain * (dense_score(vec, code, fit, row, x) - near[row]))
            exact[row] = 1
            lowest = min(lowest, scores[row])
    share = np.empty(n, np.float64)
    _shares(tokens, shares, offset, power, share)
    reach = np.full(n, np.float32(own))
    if vec.shape[0] > 0:
        for block in range(n >> 2):
            for k in range(4):
                reach[4 * block + k] -= better * (worst - fit[block, ERROR, k])
    for row in range(n):
        if exact[row] != 0:
            reach[row] = 0.0
    most = 0.0
    for row in range(n):
        value = (np.float64(scores[row]) - lowest - reach[row]) * share[row]
        worth[row] = max(0.0, value) if eligible[row] != 0 else -1.0
        most = max(most, worth[row])
    floor = _floor(worth, most, order.size) * (1.0 - 1e-12)
    size: Int = np.int64(0)  # a literal would be a type of its own
    for number in range(n):
        row = np.int32(number)  # type: ignore[assignment]
        if (np.float64(scores[row]) - lowest + reach[row]) * share[row] < floor:
            continue
        if eligible[row] == 0:
            continue
        if exact[row] == 0:
            score = dense_score(vec, code, fit, number, x)
            scores[row] += np.float32(gain * (score - near[row]))
        worth[row] = (np.float64(scores[row]) - lowest) * share[row]
        size = _taken(worth, micros, order, size, row)
    _put_in_order(worth, micros, order, size)
    return size


@kernel(
    "void(int8[:, ::1], int32[::1], float32[::1], int32[::1], int64[::1], float64, float64, int64)"
)
def newer_first_(
    code: I8,
    order: I32,
    scores: F32,
    tokens: I32,
    micros: I64,
    least_cosine: Real,
    slope: Real,
    slack: Int,
) -> None:
    """Let newer chunks go before older ones about the same thing.

    Each place of the order goes to the newest of the chunks that may go before the one that
    stands there. Cosines are those of the codes.

    Parameters
    ----------
    code : (n, d) int8
    order : (m,) int32
        Rows in the order of admission; changed in place.
    scores, tokens, micros : (n,) float32, int32, int64
    least_cosine : float
        Chunks below it are not about the same thing.
    slope : float
        A newer chunk may score lower by ``slope * (cosine - least_cosine / 2)``.
    slack : int
        Tokens by which a newer chunk may be longer.
    """
    for place in range(order.size):
        here = order[place]
        best = place
        for later in range(place + 1, order.size):
            other = order[later]
            if (
                micros[other] <= micros[here]
                or micros[other] <= micros[order[best]]
                or tokens[other] > tokens[here] + slack
            ):
                continue
            near = _cosine(code[here], code[other])
            if near >= least_cosine and scores[other] >= scores[here] - slope * (
                near - 0.5 * least_cosine
            ):
                best = later
        chosen = order[best]
        for later in range(best, place, -1):
            order[later] = order[later - 1]
        order[place] = chosen


@kernel("float64(int8[::1], int8[::1])", inline=True)
def _cosine(a: I8, b: I8) -> Real:
    """Cosine of two rows of codes; 0 where one of them is 0."""
    both, first, second = np.int32(0), np.int32(0), np.int32(0)
    for j in range(a.size):
        x, y = np.int32(a[j]), np.int32(b[j])
        both += x * y
        first += x * x
        second += y * y
    if first == 0 or second == 0:
        return 0.0
    return both / np.sqrt(np.float64(first) * np.float64(second))
