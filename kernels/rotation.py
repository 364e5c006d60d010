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

from rsm_fast.kernels.jit import F32, FAST, Int, kernel
from rsm_fast.kernels.rows import HEAD

__all__ = ["principal_span_"]


@kernel("float32(float32[::1], float32[::1])", fastmath=FAST)
def _dot(a: F32, b: F32) -> float:
    total = a[0] * b[0]
    for j in range(1, a.size):
        total += a[j] * b[j]
    return total  # type: ignore[no-any-return]


@kernel("void(float32[::1], float32, float32[::1])", fastmath=FAST)
def _add_(a: F32, factor: float, b: F32) -> None:
    for j in range(a.size):
        b[j] += factor * a[j]


@kernel("void(float32[:, ::1])")
def _orthonormalise_(span: F32) -> None:
    """Gram-Schmidt, twice; what vanishes is replaced by a coordinate's direction."""
    spare = 0
    for a in range(span.shape[0]):
        row = span[a]
        before = math.sqrt(_dot(row, row))
        while True:
            for _ in range(2):
                for b in range(a):
                    _add_(span[b], -_dot(span[b], row), row)
            size = math.sqrt(_dot(row, row))
            if size > 1e-4 * before and size > 0.0:
                break
            row[:] = 0.0
            row[spare] = 1.0
            spare += 1
            before = 1.0
        for j in range(row.size):
            row[j] /= size


@kernel("void(float32[:, ::1], float32[:, ::1])")
def _square_(matrix: F32, out: F32) -> None:
    """Product of a symmetric matrix with itself."""
    for i in range(matrix.shape[0]):
        out[i] = 0.0
        for j in range(matrix.shape[0]):
            _add_(matrix[j], matrix[i, j], out[i])


@kernel("void(float32[:, ::1], int64)")
def _mix_(span: F32, start: Int) -> None:
    """Multiply `HEAD` rows by an orthonormal Hadamard matrix."""
    half = np.float32(math.sqrt(0.5))
    step = 1
    while step < HEAD:
        for a in range(start, start + HEAD):
            if (a - start) // step % 2 == 0:
                for j in range(span.shape[1]):
                    one, other = span[a, j] * half, span[a + step, j] * half
                    span[a, j] = one + other
                    span[a + step, j] = one - other
        step *= 2


@kernel("float64(float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1], int64)")
def principal_span_(sample: F32, second: F32, scratch: F32, span: F32, passes: Int) -> float:
    """Turn an orthonormal set of directions towards the principal ones of a sample.

    Parameters
    ----------
    sample : float32[m, d]
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
    second[:] = 0.0
    for r in range(sample.shape[0]):
        for i in range(d):
            _add_(sample[r], sample[r, i], second[i])
    total = 0.0
    for i in range(d):
        total += second[i, i]
    if not total > 0.0:
        _orthonormalise_(span)
        return 0.0
    for i in range(d):
        for j in range(d):
            second[i, j] = second[i, j] / total
    squared = np.empty((d, d), np.float32)
    _square_(second, squared)
    _orthonormalise_(span)
    for _ in range(passes):
        for a in range(k):
            scratch[a] = 0.0
            for i in range(d):
                _add_(squared[i], span[a, i], scratch[a])
        span[:] = scratch
        _orthonormalise_(span)
    held = 0.0
    for a in range(min(k, HEAD)):
        scratch[a] = 0.0
        for i in range(d):
            _add_(second[i], span[a, i], scratch[a])
        held += _dot(scratch[a], span[a])
    for start in range(0, k - HEAD + 1, HEAD):
        _mix_(span, start)
    return held
