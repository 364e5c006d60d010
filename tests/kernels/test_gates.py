"""Decisions of the gates against the float64 definition, on friendly and hostile vectors."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsm_fast.arena import Arena
from rsm_fast.clustering import Clusterer
from rsm_fast.kernels.jit import JIT_DISABLED

GATES = ["max-member", "nearest-mean", "centroid"]
EXAMPLES = 6 if JIT_DISABLED else 40


def streamed(vectors, gate, tau, *, dtype="float32", many=False, rotate_at=None):
    """Atoms of vectors added one by one, and what the arena holds of the vectors."""
    arena = Arena(vectors.shape[1], dtype=dtype)
    if rotate_at is not None:
        arena.cascade_rows = arena.cascade_means = rotate_at
    clusterer = Clusterer(arena, gate=gate, tau=tau)
    if many:
        rows = arena.append_many(
            vectors,
            pk=np.arange(len(vectors)),
            tokens=np.ones(len(vectors)),
            micros=np.arange(len(vectors)),
            session=np.zeros(len(vectors)),
        )
        atoms = clusterer.assign_many(rows)
    else:
        found = []
        for i, x in enumerate(vectors):  # a whole write in one call, or in two
            facts = {"pk": i, "tokens": 1, "micros": i, "session": 0}
            if i % 3:
                found.append(clusterer.add(x, **facts)[1])
            else:
                found.append(clusterer.assign(arena.append(x, **facts)))
        atoms = np.array(found)
    return atoms, arena, clusterer


def near(rng, centres, count, spread):
    rows = centres[rng.integers(0, len(centres), count)]
    rows = rows + spread * rng.standard_normal(rows.shape)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def one_ulp_around(tau: float, dim: int = 64) -> np.ndarray:
    """Pairs whose cosine is tau, and the float32 numbers next to it."""
    rows = []
    value = np.float32(tau)
    for k in range(8):
        base = np.zeros(dim, np.float32)
        base[2 * k] = 1.0
        rows.append(base)
        for cosine in (value, np.nextafter(value, np.float32(2)), np.nextafter(value, -value)):
            other = np.zeros(dim, np.float32)
            other[2 * k] = cosine
            other[2 * k + 1] = np.sqrt(1 - np.float64(cosine) ** 2)
            rows.append(other)
    return np.array(rows)


def adversaries() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    count = 60 if JIT_DISABLED else 160
    centres = rng.standard_normal((12, 64))
    plain = near(rng, centres, count, 0.8)
    lengths = (1 + rng.uniform(-1e-3, 1e-3, (count, 1))).astype(np.float32)
    tiny = plain.copy()
    tiny[::5] *= np.float32(1e-39)  # subnormal
    return {
        "duplicates": plain[rng.integers(0, 9, count)],
        "antipodal": np.concatenate([plain[: count // 2], -plain[: count // 2]]),
        "isotropic": near(rng, rng.standard_normal((count, 64)), count, 1.0),
        "one-hot": np.eye(64, dtype=np.float32)[rng.integers(0, 64, count)],
        "one ulp around tau": one_ulp_around(0.6),
        "subnormal": tiny,
        "norms of 1 +- 1e-3": plain * lengths,
        "single": plain[:1],
        "five": plain[:5],
        "zeros among them": plain * (rng.random((count, 1)) < 0.9).astype(np.float32),
        "odd width": near(rng, rng.standard_normal((12, 77)), count, 0.8),
        "narrow": near(rng, rng.standard_normal((3, 3)), count, 0.3),
    }


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("name", list(adversaries()))
def test_hostile_vectors_are_decided_as_defined(name: str, gate: str) -> None:
    vectors = adversaries()[name]
    for tau in (0.3, 0.6, float(np.float32(0.6)), 0.9999999):
        wanted = oracles.cluster(vectors, gate, tau)
        atoms, _, _ = streamed(vectors, gate, tau)
        assert atoms.tolist() == wanted.tolist()
    atoms, _, _ = streamed(vectors, gate, tau, many=True)
    assert atoms.tolist() == wanted.tolist()


@given(
    seed=st.integers(0, 10_000),
    dim=st.sampled_from([8, 64, 65]),
    count=st.integers(1, 50),
    spread=st.sampled_from([0.05, 0.5, 1.5]),
    tau=st.floats(-0.2, 1.0),
    gate=st.sampled_from(GATES),
    dtype=st.sampled_from(["float32", "int8"]),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_stream_is_decided_as_defined(seed, dim, count, spread, tau, gate, dtype) -> None:
    rng = np.random.default_rng(seed)
    vectors = near(rng, rng.standard_normal((4, dim)), count, spread)
    atoms, arena, _ = streamed(vectors, gate, tau, dtype=dtype)
    assert atoms.tolist() == oracles.cluster(arena.vec, gate, tau).tolist()
    again, _, _ = streamed(vectors, gate, tau, dtype=dtype, many=True)
    assert again.tolist() == atoms.tolist()


@pytest.mark.skipif(JIT_DISABLED, reason="learning the rotation takes minutes in plain Python")
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_heads_of_members_and_means_leave_decisions_as_they_are(
    gate: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Arena, "cascade_rows", 16)
    monkeypatch.setattr(Arena, "cascade_means", 16)
    rng = np.random.default_rng(8)
    vectors = near(rng, rng.standard_normal((20, 300)), 700, 0.9)
    vectors[30::7] = vectors[3]
    for tau in (0.4, 0.55, 0.9):
        atoms, arena, clusterer = streamed(vectors, gate, tau, dtype=dtype)
        assert len(arena.table.rotation) > 0
        clusterer.settle()
        if clusterer.n_atoms >= 16:
            assert clusterer.means.rotation is arena.table.rotation
        assert (clusterer.means.limits < 1.5).all()  # the same rotation, as near orthonormal
        assert atoms.tolist() == oracles.cluster(arena.vec, gate, tau).tolist()


@pytest.mark.parametrize("gate", GATES)
def test_scaling_all_vectors_up_does_not_break_the_bounds(gate: str) -> None:
    vectors = adversaries()["isotropic"] * np.float32(40.0)
    atoms, _, _ = streamed(vectors, gate, 700.0)
    assert atoms.tolist() == oracles.cluster(vectors, gate, 700.0).tolist()


@pytest.mark.parametrize("gate", GATES)
def test_deleted_rows_never_win(gate: str) -> None:
    rng = np.random.default_rng(3)
    vectors = near(rng, rng.standard_normal((6, 64)), 80, 0.8)
    _, arena, clusterer = streamed(vectors, gate, 0.7)
    model = oracles.Atoms(gate, 0.7)
    for row, x in enumerate(vectors):
        model.assign(row, x)
    for row in range(0, 80, 3):
        clusterer.remove(row)
        arena.remove(row)
        model.leave(row)
    for k, x in enumerate(near(rng, vectors.astype(float), 60, 0.4)):
        row = arena.append(x, pk=80 + k, tokens=1, micros=0, session=0)
        assert clusterer.assign(row) == model.assign(row, x)
    for atom, rows in model.members.items():
        assert clusterer.members(atom).tolist() == rows
        assert (clusterer.mean(atom) == model.means[atom]).all()
