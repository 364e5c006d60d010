"""Two ways to draw vectors on a plane: PCA, and an exact t-SNE for up to about 2,000 points."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rsm_fast.errors import InvalidInputError

__all__ = ["joint_probabilities", "kl_and_gradient", "pca", "tsne"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_TSNE_INPUT_DIM = 50
_EXAGGERATION = 12.0
_LEAST = 1e-12


def pca(vectors: npt.ArrayLike, components: int = 2) -> tuple[F64, float]:
    """Coordinates along the directions of greatest variance.

    Parameters
    ----------
    vectors : (n, d) array
    components : int

    Returns
    -------
    (n, components) float64
        Columns beyond the rank are zero. Each direction is turned so that its largest
        weight is positive: the same vectors always give the same picture.
    float
        Share of the variance that the coordinates hold, 0 to 1.
    """
    x = _checked(vectors)
    out = np.zeros((len(x), components))
    if len(x) < 2:
        return out, 0.0
    centred = x - x.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    kept = directions[:, ::-1][:, :components]
    kept = kept * np.sign(kept[np.abs(kept).argmax(axis=0), np.arange(kept.shape[1])])
    out[:, : kept.shape[1]] = centred @ kept
    total = values.clip(0).sum()
    share = values[::-1][:components].clip(0).sum() / total if total > 0 else 0.0
    return out, float(share)


def tsne(
    vectors: npt.ArrayLike,
    *,
    perplexity: float = 30.0,
    iterations: int = 500,
) -> F64:
    """Coordinates that keep near points near, after van der Maaten and Hinton (2008).

    Exact: time and memory grow with the square of n. Differs from the paper in the start, which
    is the PCA scaled down instead of noise (so nothing here is random), in the learning
    rate n / 48 but at least 50 (Belkina and others, 2019), and in running on the first 50 principal
    components.

    Parameters
    ----------
    vectors : (n, d) array
    perplexity : float
        About how many neighbours a point has; at most (n - 1) / 3 is used.
    iterations : int
        Steps of gradient descent, the first quarter with early exaggeration.

    Returns
    -------
    (n, 2) float64
    """
    x = _checked(vectors)
    start, _ = pca(x)
    if len(x) < 4:
        return start
    reduced, _ = pca(x, min(_TSNE_INPUT_DIM, x.shape[1]))
    p = joint_probabilities(reduced, min(perplexity, (len(x) - 1) / 3)).astype(np.float32)
    y = (1e-4 * start / max(float(start[:, 0].std()), _LEAST)).astype(np.float32)
    rate = max(len(x) / _EXAGGERATION / 4, 50.0)
    step, gains = np.zeros_like(y), np.ones_like(y)
    exaggerated = iterations // 4
    p *= _EXAGGERATION
    for iteration in range(iterations):
        if iteration == exaggerated:
            p /= _EXAGGERATION
        gradient = _gradient(y, p)
        slower = np.sign(gradient) == np.sign(step)
        gains = np.maximum(np.where(slower, gains * 0.8, gains + 0.2), 0.01).astype(np.float32)
        momentum = 0.5 if iteration < exaggerated else 0.8
        step = (momentum * step - rate * gains * gradient).astype(np.float32)
        y += step
        y -= y.mean(axis=0)
    return y.astype(np.float64)


def joint_probabilities(vectors: npt.ArrayLike, perplexity: float) -> F64:
    """How likely two points are neighbours, symmetric, summing to one; section 2 of the paper.

    Parameters
    ----------
    vectors : (n, d) array
    perplexity : float
        Each row's distribution is given this perplexity by bisection over its precision.

    Returns
    -------
    (n, n) float64
    """
    x = _checked(vectors)
    distances = _squared_distances(x)
    np.fill_diagonal(distances, np.inf)
    offsets = distances - distances.min(axis=1, keepdims=True)
    target = np.log(perplexity)
    precision = np.ones(len(x))
    low, high = np.zeros(len(x)), np.full(len(x), np.inf)
    finite = np.where(np.isfinite(offsets), offsets, 0.0)
    for _ in range(50):
        weights = np.exp(-offsets * precision[:, None])
        sums = weights.sum(axis=1)
        entropy = np.log(sums) + precision * (weights * finite).sum(axis=1) / sums
        too_wide = entropy > target
        low = np.where(too_wide, precision, low)
        high = np.where(too_wide, high, precision)
        precision = np.where(np.isinf(high), precision * 2, (low + high) / 2)
        if np.abs(entropy - target).max() < 1e-5:
            break
    conditional = weights / sums[:, None]
    joint: F64 = (conditional + conditional.T) / (2 * len(x))
    return joint


def kl_and_gradient(y: npt.ArrayLike, p: npt.ArrayLike) -> tuple[float, F64]:
    """What `tsne` makes small, and its gradient, in float64: Kullback-Leibler of P from Q.

    Parameters
    ----------
    y : (n, 2) array
        Points on the plane.
    p : (n, n) array
        From `joint_probabilities`.
    """
    points, wanted = np.asarray(y, np.float64), np.asarray(p, np.float64)
    closeness = 1.0 / (1.0 + _squared_distances(points))
    np.fill_diagonal(closeness, 0.0)
    q = np.maximum(closeness / closeness.sum(), _LEAST)
    used = wanted > 0
    kl = float((wanted[used] * np.log(wanted[used] / q[used])).sum())
    return kl, _gradient(points, wanted)


def _gradient(y: npt.NDArray[np.floating], p: npt.NDArray[np.floating]) -> F64:
    """Equation 5 of the paper, in the precision of its input."""
    norms = np.einsum("ij,ij->i", y, y)
    closeness = y @ y.T
    closeness *= -2.0
    closeness += norms
    closeness += norms[:, None]
    np.maximum(closeness, 0.0, out=closeness)
    closeness += 1.0
    np.reciprocal(closeness, out=closeness)
    np.fill_diagonal(closeness, 0.0)
    force = closeness * (-1.0 / closeness.sum(dtype=np.float64)).astype(y.dtype)
    force += p
    force *= closeness
    gradient: F64 = 4.0 * (force.sum(axis=1)[:, None] * y - force @ y)
    return gradient


def _squared_distances(x: F64) -> F64:
    norms = np.einsum("ij,ij->i", x, x)
    distances: F64 = np.maximum(norms[:, None] + norms - 2.0 * (x @ x.T), 0.0)
    return distances


def _checked(vectors: npt.ArrayLike) -> F64:
    x = np.asarray(vectors, np.float64)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise InvalidInputError(
            f"vectors: expected finite values of shape (n, d), got shape {x.shape}"
        )
    return x
