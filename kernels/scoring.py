"""From similarities to one score per chunk."""

import numpy as np

from rsm_fast.kernels.jit import F32, FAST, I32, U8, Real, kernel

__all__ = ["hybrid_scores_", "raise_rows_", "step_bonus_"]


@kernel(
    "float64(float32[::1], float32[::1], int32[::1], int32[::1], uint8[::1], float64, float64,"
    " float64, float64, float64, float32[::1], float32[::1])",
    fastmath=FAST,
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
) -> Real:
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

    Returns
    -------
    float
        By what a cosine is multiplied in its row's score.
    """
    n = dense.size
    count, dense_sum, lexical_sum = 0.0, 0.0, 0.0
    for row in range(n):
        here = np.float64(eligible[row] != 0)
        count += here
        dense_sum += here * dense[row]
        lexical_sum += here * lexical[row]
    if count == 0.0:
        out[:] = 0.0
        return 0.0
    dense_mean = dense_sum / count
    lexical_mean = lexical_sum / count
    dense_square, lexical_square = 0.0, 0.0
    for row in range(n):
        here = np.float64(eligible[row] != 0)
        dense_square += here * (dense[row] - dense_mean) ** 2
        lexical_square += here * (lexical[row] - lexical_mean) ** 2
    dense_deviation = max(np.sqrt(dense_square / count), dense_floor)
    lexical_deviation = max(np.sqrt(lexical_square / count), lexical_floor)
    dense_gain = dense_weight / dense_deviation if dense_deviation >= 1e-6 else 0.0
    lexical_gain = lexical_weight / lexical_deviation if lexical_deviation >= 1e-6 else 0.0
    for row in range(n):
        here = np.float64(eligible[row] != 0)
        base[row] = here * (
            dense_gain * (dense[row] - dense_mean) + lexical_gain * (lexical[row] - lexical_mean)
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
    return dense_gain


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
