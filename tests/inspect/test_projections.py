"""PCA and t-SNE against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from rsm_fast.errors import InvalidInputError
from rsm_fast.inspect.projections import joint_probabilities, kl_and_gradient, pca, tsne


def blobs(n: int, *, kinds: int = 5, dim: int = 40, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    kind = rng.integers(kinds, size=n)
    centres = rng.normal(size=(kinds, dim))
    return centres[kind] + 0.3 * rng.normal(size=(n, dim)), kind


def test_pca_is_the_singular_value_decomposition() -> None:
    x, _ = blobs(60)
    places, share = pca(x)
    centred = x - x.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    assert np.allclose(np.abs(places), np.abs(left[:, :2] * values[:2]))
    assert share == pytest.approx((values[:2] ** 2).sum() / (values**2).sum())
    again, _ = pca(x[::-1])
    assert np.allclose(again, places[::-1]), "the same points, whatever their order"


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few_points_have_places(n: int) -> None:
    x = np.random.default_rng(0).normal(size=(n, 8))
    for places in (pca(x)[0], tsne(x)):
        assert places.shape == (n, 2) and np.isfinite(places).all()


def test_equal_points_have_places() -> None:
    places = tsne(np.ones((40, 8)))
    assert np.isfinite(places).all()


def test_rows_have_the_wanted_perplexity() -> None:
    x, _ = blobs(80)
    distances = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    p = joint_probabilities(x, 12.0)
    assert p.sum() == pytest.approx(1.0)
    assert np.array_equal(p, p.T) and not p.diagonal().any()
    row = np.delete(distances[7], 7)
    best = min(
        np.geomspace(1e-3, 1e3, 4000),
        key=lambda precision: abs(_perplexity(row, precision) - 12.0),
    )
    conditional = np.exp(-row * best) / np.exp(-row * best).sum()
    # p_ij = (p_j|i + p_i|j) / 2n holds at least the half that row i gives
    assert (np.delete(p[7], 7) * 2 * len(x) >= conditional * 0.99).all()


def _perplexity(row: np.ndarray, precision: float) -> float:
    p = np.exp(-(row - row.min()) * precision)
    p /= p.sum()
    return float(np.exp(-(p[p > 0] * np.log(p[p > 0])).sum()))


def test_gradient_is_that_of_the_divergence() -> None:
    x, _ = blobs(25)
    p = joint_probabilities(x, 6.0)
    y = np.random.default_rng(1).normal(size=(25, 2))
    _, gradient = kl_and_gradient(y, p)
    for point, axis in ((0, 0), (11, 1), (24, 0)):
        moved = np.zeros_like(y)
        moved[point, axis] = 1e-5
        difference = kl_and_gradient(y + moved, p)[0] - kl_and_gradient(y - moved, p)[0]
        assert gradient[point, axis] == pytest.approx(difference / 2e-5, rel=1e-4, abs=1e-8)


def test_tsne_brings_the_divergence_down_and_keeps_neighbours() -> None:
    x, kind = blobs(250)
    places = tsne(x)
    p = joint_probabilities(x, 30.0)
    flat, _ = pca(x)
    assert kl_and_gradient(places, p)[0] < 0.6 * kl_and_gradient(flat, p)[0]
    distances = ((places[:, None] - places[None]) ** 2).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    nearest = distances.argsort(axis=1)[:, :10]
    assert (kind[nearest] == kind[:, None]).mean() > 0.97
    assert np.array_equal(tsne(x), places), "nothing here is random"


def test_values_that_are_no_points_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="finite"):
        pca(np.array([[np.nan, 1.0]]))
    with pytest.raises(InvalidInputError, match=r"\(n, d\)"):
        tsne(np.ones(4))
