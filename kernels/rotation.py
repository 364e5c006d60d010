"""The directions that heads are made of: where most of a sample of vectors lies.

They only have to be orthonormal, and what is lacking there is measured and added to the
bounds; how near they come to the true principal directions decides the speed of a scan and
nothing else. So a few passes of orthogonal iteration do (G. H. Golub and C. F. Van Loan,
Matrix Computations, 4th ed., section 8.2.4), on one thread: LAPACK through a threaded BLAS
took seconds for the same on a busy machine, in the middle of a write.

The directions of a head are then mixed among themselves, by a Hadamard matrix: what they
span stays, but a vector's norm is spread evenly over them, as codes of few bits want it.
"""

from __future__ import annotations

import math

import numpy as np

from rsm_fast.kernels.dot_int8 import project4
from rsm_fast.kernels.jit import F32, FAST, Int, kernel
from rsm_fast.kernels.rows import HEAD

__all__ = ["principal_span_"]

_SAMPLES = 16  # rows of a sample that stay in the nearest cache while moments are summed


@kernel("float32(float32[::1], float32[::1])", fastmath=FAST)
def _dot(a: F32, b: F32) -> float:
    total = a[0] * b[0]
    for j in range(1, a.size):
        total += a[j] * b[j]
    return total  # type: ignore[no-any-return]


@kernel("void(float32[::1], float32)")
def _fill_(x: F32, value: float) -> None:
    for j in range(x.size):
        x[j] = value


@kernel("void(float32[:, ::1], int64, int64, float32[::1], float32[::1])", fastmath=FAST)
def _combine_(rows: F32, start: Int, stop: Int, weights: F32, out: F32) -> None:
    """Add weighted rows; four at a time, for what is added to is loaded and stored each time."""
    four = start + (stop - start) // 4 * 4
    for r in range(start, four, 4):
        a, b, c, d = rows[r], rows[r + 1], rows[r + 2], rows[r + 3]
        k = r - start
        s, t, u, v = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        for j in range(out.size):
            out[j] += (s * a[j] + t * b[j]) + (u * c[j] + v * d[j])
    for r in range(four, stop):
        a, s = rows[r], weights[r - start]
        for j in range(out.size):
            out[j] += s * a[j]


@kernel("void(float32[:, ::1], float32[:, ::1], float32[:, ::1])")
def _product_(weights: F32, rows: F32, out: F32) -> None:
    """Matrix product."""
    first = np.int64(0)  # a literal would make a specialisation of its own
    for a in range(weights.shape[0]):
        _fill_(out[a], np.float32(0.0))
        _combine_(rows, first, rows.shape[0], weights[a], out[a])


@kernel("void(float32[:, ::1])")
def _orthonormalise_(span: F32) -> None:
    """Gram-Schmidt, twice; what vanishes is replaced by a coordinate's direction."""
    spare = 0
    first = np.int64(0)
    along = np.empty(span.shape[0], np.float32)
    for a in range(span.shape[0]):
        row = span[a]
        before = math.sqrt(_dot(row, row))
        while True:
            for _ in range(2):
                four = a // 4 * 4
                for b in range(0, four, 4):
                    project4(span, b, row, along)
                for b in range(four, a):
                    along[b] = _dot(span[b], row)
                for b in range(a):
                    along[b] = -along[b]
                _combine_(span, first, a, along, row)
            size = math.sqrt(_dot(row, row))
            if size > 1e-4 * before and size > 0.0:
                break
            _fill_(row, np.float32(0.0))
            row[spare] = np.float32(1.0)
            spare += 1
            before = 1.0
        scale = np.float32(1.0 / size)
        for j in range(row.size):
            row[j] *= scale


@kernel("float64(float32[:, ::1], float32[:, ::1])")
def _moments_(sample: F32, second: F32) -> float:
    """Second moments over their trace, which is given; zeros where that is 0."""
    m, d = sample.shape
    weights = np.empty(_SAMPLES, np.float32)
    for i in range(d):
        _fill_(second[i], np.float32(0.0))
    for start in range(0, m, _SAMPLES):
        stop = min(start + _SAMPLES, m)
        for i in range(d):
            for r in range(start, stop):
                weights[r - start] = sample[r, i]
            _combine_(sample, start, stop, weights, second[i])
    total = 0.0
    for i in range(d):
        total += np.float64(second[i, i])
    if total > 0.0:
        scale = np.float32(1.0 / total)
        for i in range(d):
            row = second[i]
            for j in range(d):
                row[j] *= scale
    return total


@kernel("void(float32[:, ::1], int64)")
def _mix_(span: F32, start: Int) -> None:
    """Multiply `HEAD` rows by an orthonormal Hadamard matrix."""
    half = np.float32(math.sqrt(0.5))
    step = 1
    while step < HEAD:
        for a in range(start, start + HEAD):
            if (a - start) // step % 2 == 0:
                one, other = span[a], span[a + step]
                for j in range(one.size):
                    x, y = one[j] * half, other[j] * half
                    one[j] = x + y
                    other[j] = x - y
        step *= 2


@kernel("float64(float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1], int64)")
def principal_span_(sample: F32, second: F32, scratch: F32, span: F32, passes: Int) -> float:
    """Turn an orthonormal set of directions towards the principal ones of a sample.

    Parameters
    ----------
    sample : float32[m, d]
        d is a multiple of 64.
    second : float32[d, d]
        Becomes the second moments, ``sample.T @ sample``, over their trace.
    scratch : float32[k, d]
    span : float32[k, d]
        Where to begin; any k independent rows. Becomes orthonormal, principal directions
        first, and mixed within each 128 rows.
    passes : int
        Rounds of iteration, each with the square of the moments.

    Returns
    -------
    float
        Share of the sample's squared norms that lies in the first 128 directions, 0 to 1.
    """
    d = sample.shape[1]
    k = span.shape[0]
    if not _moments_(sample, second) > 0.0:
        _orthonormalise_(span)
        return 0.0
    squared = np.empty((d, d), np.float32)
    _product_(second, second, squared)
    for _ in range(passes):
        _product_(span, squared, scratch)
        for a in range(k):
            size = math.sqrt(_dot(scratch[a], scratch[a]))  # of the square of small shares
            _fill_(span[a], np.float32(0.0))
            if size > 0.0:
                weights = np.empty(1, np.float32)
                weights[0] = np.float32(1.0 / size)
                _combine_(scratch, a, a + 1, weights, span[a])
        _orthonormalise_(span)
    held = 0.0
    _product_(span, second, scratch)
    for a in range(min(k, HEAD)):
        held += np.float64(_dot(scratch[a], span[a]))
    for start in range(0, k - HEAD + 1, HEAD):
        _mix_(span, start)
    return held
