"""BM25 over postings that grow, shrink and are read through windows of neighbours.

Postings of all terms share one pool: term `t` owns ``pool_rows[start[t] : start[t] +
length[t]]`` (rows, ascending) and the same slice of ``pool_counts`` (occurrences, at most
255), with room up to ``capacity[t]``. Callers check; kernels trust.
"""

import numpy as np

from rsm_fast.kernels.jit import F32, I32, U8, kernel

__all__ = [
    "bm25_accumulate_",
    "copy_postings_",
    "insert_postings_",
    "remove_postings_",
    "window_lengths_",
]


@kernel(
    "int64(int32[::1], int64, int32[::1], int32[::1], int32[::1], int32[::1], uint8[::1], int64)"
)
def insert_postings_(
    terms: I32,
    row: int,
    start: I32,
    length: I32,
    capacity: I32,
    pool_rows: I32,
    pool_counts: U8,
    top: int,
) -> int:
    """Add one chunk to the postings of its terms, given as often as they occur.

    A full term moves to the end of the pool with half as much room again.

    Returns
    -------
    int
        End of the used pool afterwards, or -1 if the pool is too short (nothing changed).
    """
    need = 0
    for term in terms:
        if length[term] == capacity[term]:
            need += capacity[term] + capacity[term] // 2 + 1
    if top + need > pool_rows.size:
        return -1
    for term in terms:
        size = length[term]
        place = start[term] + size
        while place > start[term] and pool_rows[place - 1] > row:
            place -= 1
        if place > start[term] and pool_rows[place - 1] == row:
            if pool_counts[place - 1] < 255:
                pool_counts[place - 1] += np.uint8(1)
            continue
        later = start[term] + size - place  # rows that stand behind this one
        if size == capacity[term]:
            old = start[term]
            for j in range(size):
                pool_rows[top + j] = pool_rows[old + j]
                pool_counts[top + j] = pool_counts[old + j]
            start[term] = top
            capacity[term] += capacity[term] // 2 + 1
            top += capacity[term]
        place = start[term] + size
        for _ in range(later):
            pool_rows[place] = pool_rows[place - 1]
            pool_counts[place] = pool_counts[place - 1]
            place -= 1
        pool_rows[place] = row
        pool_counts[place] = 1
        length[term] = size + 1
    return top


@kernel("void(uint8[::1], int64, int64, int32[::1], int32[::1], int32[::1], uint8[::1])")
def remove_postings_(
    gone: U8, first: int, last: int, start: I32, length: I32, pool_rows: I32, pool_counts: U8
) -> None:
    """Take the marked rows, which lie between `first` and `last`, out of all postings."""
    for term in range(start.size):
        begin = start[term]
        end = begin + length[term]
        if begin == end or pool_rows[begin] > last or pool_rows[end - 1] < first:
            continue
        kept = begin
        for j in range(begin, end):
            row = pool_rows[j]
            if row < first or row > last or gone[row] == 0:
                pool_rows[kept] = row
                pool_counts[kept] = pool_counts[j]
                kept += 1
        length[term] = kept - begin


@kernel("int64(int32[::1], int32[::1], int32[::1], int32[::1], uint8[::1], int32[::1], uint8[::1])")
def copy_postings_(
    start: I32,
    length: I32,
    capacity: I32,
    pool_rows: I32,
    pool_counts: U8,
    new_rows: I32,
    new_counts: U8,
) -> int:
    """Move all postings into a new pool without the holes that moved terms left.

    Returns
    -------
    int
        End of the used part of the new pool.
    """
    top = 0
    for term in range(start.size):
        old = start[term]
        for j in range(length[term]):
            new_rows[top + j] = pool_rows[old + j]
            new_counts[top + j] = pool_counts[old + j]
        start[term] = top
        top += capacity[term]
    return top


@kernel(
    "float64(float32[::1], int32[::1], int32[::1], uint8[::1], int64, float32[::1], int32[:, ::1])"
)
def window_lengths_(
    lengths: F32, prev: I32, next: I32, alive: U8, window: int, out: F32, spans: I32
) -> float:
    """Length of each living chunk's window (the chunk and its neighbours) in terms.

    Parameters
    ----------
    lengths : (n,) float32
        Terms of each chunk.
    prev, next : (n,) int32
        Row of each chunk's neighbour in its session, -1 for none.
    alive : (n,) uint8
    window : int
        Neighbours on each side.
    out : (n,) float32
        The lengths, 0 for chunks that are gone.
    spans : (n, 2) int32
        First row and end of the window where its rows follow each other, (-1, -1) elsewhere.

    Returns
    -------
    float
        Mean over the living chunks; 0 without any.
    """
    total = 0.0
    living = 0
    for row in range(lengths.size):
        out[row] = 0.0
        spans[row, 0] = -1
        spans[row, 1] = -1
        if alive[row] == 0:
            continue
        size = lengths[row]
        before = row
        after = row
        first = row
        last = row
        whole = True
        for _ in range(window):
            if before >= 0:
                before = prev[before]
                if before >= 0:
                    first -= 1
                    whole = whole and before == first and alive[before] != 0
                    if alive[before] != 0:
                        size += lengths[before]
            if after >= 0:
                after = next[after]
                if after >= 0:
                    last += 1
                    whole = whole and after == last and alive[after] != 0
                    if alive[after] != 0:
                        size += lengths[after]
        out[row] = size
        total += size
        living += 1
        if whole:
            spans[row, 0] = first
            spans[row, 1] = last + 1
    return total / living if living > 0 else 0.0


@kernel(
    "void(int32[::1], float32[::1], int32[::1], int32[::1], int32[::1], uint8[::1], int32[::1],"
    " int32[::1], uint8[::1], int64, int32[:, ::1], float32[::1], float64, float32[::1])"
)
def bm25_accumulate_(
    terms: I32,
    weights: F32,
    start: I32,
    length: I32,
    pool_rows: I32,
    pool_counts: U8,
    prev: I32,
    next: I32,
    alive: U8,
    window: int,
    spans: I32,
    norm: F32,
    k1: float,
    scores: F32,
) -> None:
    """Add the BM25 contributions of some terms to the scores of the chunks they reach.

    A chunk's frequency of a term is the sum over its window. Only what a term reaches is visited:
    rows that follow each other as runs, and others one by one.

    Parameters
    ----------
    terms, weights : (m,) int32, float32
        Terms of the question and what each is worth (idf times its count there).
    window : int
        Neighbours on each side.
    spans : (n, 2) int32
        From `window_lengths_`.
    norm : (n,) float32
        ``k1 * (1 - b + b * window length / mean window length)`` of each chunk.
    scores : (n,) float32
        Changed in place.
    """
    n = scores.size if window > 0 else 0
    frequency = np.zeros(n, np.float32)
    touched, runs = np.empty(n, np.int32), np.empty((n, 2), np.int32)
    for i in range(terms.size):
        first = start[terms[i]]
        gain = weights[i] * np.float32(k1 + 1.0)
        if window == 0:
            for j in range(first, first + length[terms[i]]):
                row = pool_rows[j]
                if alive[row] != 0:
                    count = np.float32(pool_counts[j])
                    scores[row] += gain * count / (count + norm[row])
            continue
        reached, last = 0, -1
        for j in range(first, first + length[terms[i]]):
            row = pool_rows[j]
            if alive[row] == 0:
                continue
            count = np.float32(pool_counts[j])
            begin, end = spans[row, 0], spans[row, 1]
            if begin >= 0:
                near = frequency[begin:end]
                for k in range(near.size):
                    near[k] += count
                if last >= 0 and begin <= runs[last, 1]:
                    runs[last, 1] = end
                else:
                    last += 1
                    runs[last, 0] = begin
                    runs[last, 1] = end
                continue
            if frequency[row] == 0.0:
                touched[reached] = row
                reached += 1
            frequency[row] += count
            before = row
            after = row
            for _ in range(window):
                if before >= 0:
                    before = prev[before]
                    if before >= 0 and alive[before] != 0:
                        if frequency[before] == 0.0:
                            touched[reached] = before
                            reached += 1
                        frequency[before] += count
                if after >= 0:
                    after = next[after]
                    if after >= 0 and alive[after] != 0:
                        if frequency[after] == 0.0:
                            touched[reached] = after
                            reached += 1
                        frequency[after] += count
        for j in range(reached):
            row = touched[j]
            scores[row] += gain * frequency[row] / (frequency[row] + norm[row])
            frequency[row] = 0.0
        for j in range(last + 1):  # parts of arrays, since LLVM makes vectors of their loops
            begin, end = runs[j, 0], runs[j, 1]
            near, against, out = frequency[begin:end], norm[begin:end], scores[begin:end]
            for k in range(near.size):
                out[k] += gain * near[k] / (near[k] + against[k])
                near[k] = 0.0
