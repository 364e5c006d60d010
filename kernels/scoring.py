"""From similarities to one score per chunk."""

import numpy as np

from rsm_fast.kernels.jit import F32, F64, I8, I32, I64, U8, Int, Real, kernel

__all__ = ["best_first_", "hybrid_scores_", "newer_first_", "raise_rows_", "step_bonus_"]

_BINS = 2048


@kernel(
    "void(float32[::1], float32[::1], int32[::1], int32[::1], uint8[::1], float64, float64,"
    " float64, float64, float64, float32[::1], float32[::1])"
)
def hybrid_scores_(
    dense: F32,
    lexical: F32,
    prev: I32,
    next: I32,
    eligible: U8,
    dense_weight: float,
    lexical_weight: float,
    smoothing: float,
    dense_floor: float,
    lexical_floor: float,
    base: F32,
    out: F32,
) -> None:
    """Weighted sum of two z-scores, then a share of the neighbours' mean on top.

    Mean and deviation run over the eligible chunks. A deviation below its floor counts as
    the floor, below 1e-6 the z-score is 0. Chunks that are not eligible get 0.

    Parameters
    ----------
    dense, lexical : (n,) float32
        Cosine and BM25 score of each chunk.
    prev, next : (n,) int32
        Row of each chunk's neighbour in its session, -1 for none.
    eligible : (n,) uint8
    base : (n,) float32
        Work space.
    out : (n,) float32
        The scores.
    """
    n = dense.size
    count = 0
    dense_sum = 0.0
    lexical_sum = 0.0
    for row in range(n):
        if eligible[row] != 0:
            count += 1
            dense_sum += dense[row]
            lexical_sum += lexical[row]
    if count == 0:
        out[:] = 0.0
        return
    dense_mean = dense_sum / count
    lexical_mean = lexical_sum / count
    dense_square = 0.0
    lexical_square = 0.0
    for row in range(n):
        if eligible[row] != 0:
            dense_square += (dense[row] - dense_mean) ** 2
            lexical_square += (lexical[row] - lexical_mean) ** 2
    dense_deviation = max(np.sqrt(dense_square / count), dense_floor)
    lexical_deviation = max(np.sqrt(lexical_square / count), lexical_floor)
    dense_gain = dense_weight / dense_deviation if dense_deviation >= 1e-6 else 0.0
    lexical_gain = lexical_weight / lexical_deviation if lexical_deviation >= 1e-6 else 0.0
    for row in range(n):
        base[row] = 0.0
        if eligible[row] != 0:
            base[row] = dense_gain * (dense[row] - dense_mean) + lexical_gain * (
                lexical[row] - lexical_mean
            )
    for row in range(n):
        out[row] = 0.0
        if eligible[row] == 0:
            continue
        near = 0.0
        neighbours = 0
        if prev[row] >= 0 and eligible[prev[row]] != 0:
            near += base[prev[row]]
            neighbours += 1
        if next[row] >= 0 and eligible[next[row]] != 0:
            near += base[next[row]]
            neighbours += 1
        out[row] = base[row] + (smoothing * near / neighbours if neighbours > 0 else 0.0)


@kernel("void(int32[::1], int32[::1], int32[::1], int64, float32[::1], float32[::1])")
def step_bonus_(
    steps: I32, named: I32, ranges: I32, longest_range: int, bonus: F32, scores: F32
) -> None:
    """Raise the chunks whose step number a question names.

    Parameters
    ----------
    steps : (n,) int32
        Step label of each chunk, -1 for none.
    named : (m,) int32
        Steps that the question names.
    ranges : (2 r,) int32
        First and last step of each range that it names.
    longest_range : int
        Longer ranges are left out.
    bonus : (4,) float32
        For a named step, inside a range, next to a named step, two steps away.
    scores : (n,) float32
        Changed in place: the largest bonus that a chunk earns is added.
    """
    for row in range(steps.size):
        step = steps[row]
        if step < 0:
            continue
        best = np.float32(0.0)
        for i in range(named.size):
            distance = abs(step - named[i])
            if distance == 0:
                best = max(best, bonus[0])
            elif distance <= 2:
                best = max(best, bonus[1 + distance])
        for i in range(0, ranges.size, 2):
            inside = ranges[i] <= step <= ranges[i + 1]
            if inside and ranges[i + 1] - ranges[i] < longest_range:
                best = max(best, bonus[1])
        scores[row] += best


@kernel("void(int32[::1], uint8[::1], float32, float32[::1])")
def raise_rows_(rows: I32, eligible: U8, bonus: float, scores: F32) -> None:
    """Add a bonus to the scores of some rows, as far as they are eligible.

    Parameters
    ----------
    rows : (m,) int32
        None twice.
    eligible : (n,) uint8
    bonus : float
    scores : (n,) float32
        Changed in place.
    """
    for row in rows:
        if eligible[row] != 0:
            scores[row] += bonus


@kernel("boolean(float64[::1], int64[::1], int32, int32)", inline=True)
def _goes_first(worth: F64, micros: I64, row: int, other: int) -> Int:
    """Whether a row is tried before another: higher worth, then newer, then lower number."""
    if worth[row] != worth[other]:
        return worth[row] > worth[other]
    if micros[row] != micros[other]:
        return micros[row] > micros[other]
    return row < other


@kernel("void(float64[::1], int64[::1], int32[::1], int64, int64)", inline=True)
def _sink(worth: F64, micros: I64, heap: I32, place: int, size: int) -> None:
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


@kernel("float64(float64[::1], float64, int64)", inline=True)
def _floor(worth: F64, most: float, limit: int) -> float:
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


@kernel(
    "int64(float32[::1], uint8[::1], int32[::1], int64[::1], float64[::1], float64, float64,"
    " float64[::1], int32[::1])"
)
def best_first_(
    scores: F32,
    eligible: U8,
    tokens: I32,
    micros: I64,
    costs: F64,
    offset: float,
    power: float,
    worth: F64,
    order: I32,
) -> int:
    """The first rows by (score - least score) / (tokens + offset) ** power.

    Ties: newer first, then lowest row.

    Parameters
    ----------
    scores, eligible, tokens, micros : (n,) float32, uint8, int32, int64
    costs : (m,) float64
        What is divided by for 0 to m - 1 tokens; worked out for more than that.
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
    limit = order.size
    if limit == 0:
        return 0
    n = scores.size
    least = np.float32(np.inf)
    for row in range(n):
        if eligible[row] != 0 and scores[row] < least:
            least = scores[row]
    most = 0.0
    for row in range(n):
        worth[row] = -1.0
        if eligible[row] != 0:
            length = tokens[row]
            cost = costs[length] if 0 <= length < costs.size else (length + offset) ** power
            worth[row] = (np.float64(scores[row]) - np.float64(least)) / cost
            most = max(most, worth[row])
    floor = _floor(worth, most, limit)
    size = 0
    for number in range(n):
        here = np.int32(number)
        if worth[here] < floor:
            continue
        if size < limit:
            order[size] = here
            size += 1
            if size == limit:
                for place in range(size // 2 - 1, -1, -1):
                    _sink(worth, micros, order, place, size)
        elif _goes_first(worth, micros, here, order[0]):
            order[0] = here
            _sink(worth, micros, order, 0, size)
    if size < limit:
        for place in range(size // 2 - 1, -1, -1):
            _sink(worth, micros, order, place, size)
    for end in range(size - 1, 0, -1):
        last = order[0]
        order[0] = order[end]
        order[end] = last
        _sink(worth, micros, order, 0, end)
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
    least_cosine: float,
    slope: float,
    slack: int,
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
