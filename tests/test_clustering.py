"""Calibration, and atoms that stay those of their members whatever joins and leaves."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsm_fast.arena import Arena
from rsm_fast.clustering import Clusterer, TauCalibrator
from rsm_fast.errors import CalibrationError, InvalidInputError

GATES = ["max-member", "nearest-mean", "centroid"]


def near(seed: int, count: int, dim: int = 64, centres: int = 4, spread: float = 0.6):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((centres, dim))[rng.integers(0, centres, count)]
    rows = rows + spread * rng.standard_normal(rows.shape)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def make(vectors, gate="nearest-mean", tau=0.7, rank=2, dtype="float32"):
    arena = Arena(vectors.shape[1], dtype=dtype)
    clusterer = Clusterer(arena, gate=gate, tau=tau, rank=rank)
    for i, x in enumerate(vectors):
        clusterer.assign(arena.append(x, pk=i, tokens=1, micros=100 - i, session=0))
    return arena, clusterer


def check_atoms(arena: Arena, clusterer: Clusterer) -> None:
    """Every statistic equals what the members say."""
    held = arena.vec
    numbers, counts = clusterer.counts()
    assert len(numbers) == clusterer.n_atoms
    assert sorted(set(arena.atom.tolist()) - {-1}) == numbers.tolist()
    for atom, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        rows = np.flatnonzero(arena.atom == atom)
        assert clusterer.members(atom).tolist() == rows.tolist()
        assert len(rows) == count
        assert (clusterer.mean(atom) == oracles.mean_of(held[rows])).all()
        micros = arena.micros[rows]
        assert clusterer.time_range(atom) == (micros.min(), micros.max())
        basis = clusterer.basis(atom)
        wanted, _ = oracles.basis_of(held[rows], clusterer.rank)
        along = abs(float(basis[0].astype(float) @ wanted[0]))
        assert along == pytest.approx(1.0, abs=1e-5)
        assert basis[0] @ clusterer.mean(atom) >= 0.0


@given(
    seed=st.integers(0, 1000),
    gate=st.sampled_from(GATES),
    dtype=st.sampled_from(["float32", "int8"]),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_atoms_are_those_of_their_members(seed, gate, dtype, data) -> None:
    vectors = near(seed, 30)
    arena, clusterer = make(vectors, gate, dtype=dtype)
    for row in data.draw(st.lists(st.integers(0, 29), unique=True, max_size=30)):
        clusterer.remove(row)
        if data.draw(st.booleans()):
            arena.remove(row)
        else:  # updated in place, gated as new, possibly into the middle of its old atom
            arena.replace(row, near(seed + row + 1, 1)[0], tokens=2)
            clusterer.assign(row)
    check_atoms(arena, clusterer)
    atoms, numbers = arena.atom.copy(), clusterer.next_atom
    means = {a: clusterer.mean(a) for a in clusterer.counts()[0].tolist()}
    rows = np.flatnonzero(atoms >= 0)
    again = Clusterer(arena, gate=gate, tau=0.7, rank=2)
    assert (arena.atom == -1).all()
    again.restore(rows, atoms[rows], numbers)
    assert (arena.atom == atoms).all()
    check_atoms(arena, again)
    assert all((again.mean(a) == mean).all() for a, mean in means.items())


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("parts", [[40], [1, 39], [13, 13, 14]])
def test_assign_many_equals_assign(gate: str, parts: list[int]) -> None:
    vectors = near(2, 40)
    arena, clusterer = make(vectors, gate)
    other, bulk = Arena(64), None
    other.append_many(
        vectors, pk=np.arange(40), tokens=np.ones(40), micros=100 - np.arange(40),
        session=np.zeros(40),
    )  # fmt: skip
    bulk = Clusterer(other, gate=gate, tau=0.7, rank=2)
    start = 0
    for part in parts:
        bulk.assign_many(range(start, start + part))
        start += part
    assert other.atom.tolist() == arena.atom.tolist()
    assert bulk.next_atom == clusterer.next_atom
    for atom in clusterer.counts()[0].tolist():
        assert (bulk.mean(atom) == clusterer.mean(atom)).all()
        assert (bulk.basis(atom) == clusterer.basis(atom)).all()


def test_atom_numbers_are_never_used_twice() -> None:
    vectors = np.eye(64, dtype=np.float32)[:6]
    arena, clusterer = make(vectors)
    clusterer.remove(5)
    arena.remove(5)
    row = arena.append(vectors[5], pk=9, tokens=1, micros=0, session=0)
    assert clusterer.assign(row) == 6
    assert clusterer.n_atoms == 6
    with pytest.raises(InvalidInputError, match="atom: expected"):
        clusterer.members(5)


def test_attach_follows_another_writer() -> None:
    vectors = near(5, 30)
    arena, clusterer = make(vectors)
    mirror = Arena(64)
    follower = Clusterer(mirror, gate="nearest-mean", tau=0.7, rank=2)
    for i, x in enumerate(vectors):
        mirror.append(x, pk=i, tokens=1, micros=100 - i, session=0)
    for row in (*range(0, 30, 2), *range(1, 30, 2)):  # older atom numbers come late
        follower.attach(row, int(arena.atom[row]))
    assert mirror.atom.tolist() == arena.atom.tolist()
    assert follower.next_atom == clusterer.next_atom
    check_atoms(mirror, follower)


def test_growth_keeps_everything() -> None:
    vectors = near(1, 1500, centres=700, spread=0.2)
    arena, clusterer = make(vectors, tau=0.95)
    assert clusterer.n_atoms > 512
    rows = clusterer.members(int(clusterer.counts()[0][0]))
    assert (clusterer.mean(0) == oracles.mean_of(vectors[rows])).all()
    assert 0 < clusterer.largest_share() < 0.1
    assert clusterer.nbytes > 0


def test_what_the_clusterer_refuses() -> None:
    arena, clusterer = make(near(0, 5))
    for rows, message in (([7], "below 5"), ([0], "in no atom"), ([-1], "below 5")):
        with pytest.raises(InvalidInputError, match=message):
            clusterer.assign_many(rows)
    row = arena.append(near(9, 1)[0], pk=9, tokens=1, micros=0, session=0)
    with pytest.raises(InvalidInputError, match="each row once"):
        clusterer.assign_many([row, row])
    clusterer.tau = None
    with pytest.raises(InvalidInputError, match="tau"):
        clusterer.assign(row)
    with pytest.raises(InvalidInputError, match="in an atom"):
        clusterer.remove(row)
    with pytest.raises(InvalidInputError, match="below 3"):
        clusterer.restore([0], [3], 3)
    with pytest.raises(InvalidInputError, match="gate"):
        Clusterer(arena, gate="nearest")  # type: ignore[arg-type]
    clusterer.tau = 0.5
    assert clusterer.assign_many([]).tolist() == []


def test_calibration_is_the_percentile_of_pairwise_cosines() -> None:
    vectors = near(3, 80)
    raw = TauCalibrator(70, centre=False).calibrate(vectors)
    used = vectors[:50].astype(np.float64)
    pairs = [used[a] @ used[b] for a in range(50) for b in range(a)]
    assert raw.tau == pytest.approx(np.percentile(pairs, 70))
    assert raw.mean is None
    assert raw.size == 50
    centred = TauCalibrator(95, centre=True, size=20).calibrate(vectors)
    shifted = oracles.centred(vectors[:20], vectors[:20].astype(float).mean(axis=0))
    pairs = [shifted[a].astype(float) @ shifted[b] for a in range(20) for b in range(a)]
    assert centred.tau == pytest.approx(np.percentile(pairs, 95), abs=1e-6)
    assert centred.mean is not None


@pytest.mark.parametrize("count", [0, 1, 5])
def test_calibration_needs_two_different_vectors(count: int) -> None:
    same = np.repeat(near(0, 1), count, axis=0)
    with pytest.raises(CalibrationError, match="at least 2 different"):
        TauCalibrator().calibrate(same)
    with pytest.raises(InvalidInputError, match="percentile"):
        TauCalibrator(101)
    with pytest.raises(InvalidInputError, match="size"):
        TauCalibrator(size=1)
    with pytest.raises(InvalidInputError, match="finite"):
        TauCalibrator().calibrate(np.full((3, 4), np.nan, np.float32))
