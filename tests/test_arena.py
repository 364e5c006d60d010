"""The columns of chunks: growth, neighbours, spaces, and what they refuse."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rsm_fast import columns
from rsm_fast.arena import Arena, padded
from rsm_fast.columns import Column
from rsm_fast.errors import InvalidInputError

COLUMNS = ("tokens", "micros", "atom", "prev", "next", "alive", "pk", "session")


def unit(count: int, dim: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def filled(vectors: np.ndarray, sessions: np.ndarray, **options) -> Arena:
    arena = Arena(vectors.shape[1], **options)
    for i, (x, session) in enumerate(zip(vectors, sessions, strict=True)):
        arena.append(x, pk=10 + i, tokens=i, micros=5 * i, session=int(session))
    return arena


def test_column_grows_and_keeps_its_data(tmp_path) -> None:
    for folder in (None, tmp_path):
        column = Column(np.int32, (3,), folder=folder)
        wanted = np.arange(30_000, dtype=np.int32).reshape(-1, 3)
        column.append(wanted[0])
        held = column.view  # growing with a view about must not break it
        column.extend(wanted[1:])
        assert (column.view == wanted).all()
        assert (held == wanted[:1]).all()
        assert column.nbytes == wanted.nbytes
        for row in wanted[:600]:
            column.append(row)
        assert (column.view[len(wanted) :] == wanted[:600]).all()
        column.close()
        assert len(column.view) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="others copy")
@pytest.mark.parametrize("addresses", [4 << 30, 1 << 60], ids=["reserved", "not to be had"])
def test_a_large_column_stays_where_it_is(monkeypatch, addresses: int) -> None:
    monkeypatch.setattr(columns, "_RESERVED", addresses)
    column = Column(np.float32, (64,))
    column.grow(40_000)
    column.array[39_999] = 7.0
    held = column.array
    column.grow(90_000)
    assert len(column.array) == 90_000
    assert (column.array[39_999] == 7.0).all() and not column.array[40_000:].any()
    assert np.shares_memory(held, column.array) == (addresses == 4 << 30)


@pytest.mark.parametrize("dim", [1, 64, 100, 384])
def test_vectors_come_back_as_given(dim: int) -> None:
    vectors = unit(700, dim)
    arena = filled(vectors, np.zeros(700))
    assert arena.vec.shape == (700, dim)
    assert (arena.vec == vectors).all()
    assert arena.n == arena.living == 700
    assert arena.pk.tolist() == list(range(10, 710))
    assert (arena.atom == -1).all()


@given(sessions=st.lists(st.integers(0, 3), max_size=25), cut=st.integers(0, 25), data=st.data())
@settings(max_examples=40, deadline=None)
def test_neighbours_are_those_of_the_session(sessions, cut, data) -> None:
    vectors = unit(len(sessions), 8) if sessions else np.zeros((0, 8), np.float32)
    one_by_one = filled(vectors, np.array(sessions))
    bulk = Arena(8)
    cut = min(cut, len(sessions))
    for part in (slice(0, cut), slice(cut, None)):
        rows = np.arange(len(sessions))[part]
        bulk.append_many(
            vectors[part], pk=10 + rows, tokens=rows, micros=5 * rows, session=sessions[part]
        )
    living = set(range(len(sessions)))
    for row in data.draw(
        st.lists(st.sampled_from(sorted(living)), unique=True) if living else st.just([])
    ):
        one_by_one.remove(row)
        bulk.remove(row)
        living.discard(row)
    for name in COLUMNS:
        assert getattr(one_by_one, name).tolist() == getattr(bulk, name).tolist(), name
    for row in living:
        before = [r for r in living if r < row and sessions[r] == sessions[row]]
        after = [r for r in living if r > row and sessions[r] == sessions[row]]
        assert one_by_one.prev[row] == max(before, default=-1)
        assert one_by_one.next[row] == min(after, default=-1)
    assert one_by_one.living == len(living)
    new = one_by_one.append(unit(1, 8)[0], pk=99, tokens=1, micros=0, session=2)
    assert one_by_one.prev[new] == max((r for r in living if sessions[r] == 2), default=-1)


def test_centre_moves_all_rows_and_queries_into_one_space() -> None:
    raw = unit(40, 100)
    arena = filled(raw, np.zeros(40))
    mean = raw.mean(axis=0)
    arena.set_centre(mean, np.arange(40), raw)
    fresh = Arena(100)
    fresh.set_centre(mean, [], raw[:0])
    fresh.append_many(
        raw, pk=np.arange(40), tokens=np.ones(40), micros=np.ones(40), session=np.zeros(40)
    )
    wanted = raw.astype(np.float64) - mean
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(arena.vec, wanted, atol=1e-6)
    assert (arena.vec == fresh.vec).all()
    assert (arena.code == fresh.code).all()
    assert (arena.prepare_query(raw[7]) == arena.vec[7]).all()
    scores = arena.dense_scores(arena.prepare_query(raw[7]))
    assert scores.argmax() == 7
    np.testing.assert_allclose(scores, wanted @ wanted[7], atol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_dead_rows_score_nothing(dtype: str) -> None:
    vectors = unit(9, 64)
    arena = filled(vectors, np.zeros(9), dtype=dtype)
    arena.remove(4)
    scores = arena.dense_scores(vectors[4])
    assert scores[4] == 0.0
    np.testing.assert_allclose(
        np.delete(scores, 4), np.delete(arena.vec @ vectors[4], 4), atol=1e-5
    )


def test_int8_and_on_disk_hold_less_memory(tmp_path) -> None:
    vectors = unit(500, 384)
    full = filled(vectors, np.zeros(500))
    coded = filled(vectors, np.zeros(500), dtype="int8")
    mapped = filled(vectors, np.zeros(500), on_disk=tmp_path)
    assert (mapped.vec == vectors).all()
    assert np.sum(coded.vec * vectors, axis=1).min() > 0.998
    assert full.nbytes / 500 <= 3200
    assert mapped.nbytes / 500 <= 1400
    assert coded.nbytes == mapped.nbytes
    mapped.close()
    assert list(tmp_path.iterdir()) == []


def test_replace_keeps_the_row_and_its_place() -> None:
    vectors = unit(5, 64)
    arena = filled(vectors, np.zeros(5))
    other = unit(1, 64, seed=9)[0]
    arena.replace(2, other, tokens=77)
    assert (arena.vec[2] == other).all()
    assert arena.tokens[2] == 77
    assert (arena.prev[2], arena.next[2], arena.pk[2]) == (1, 3, 12)
    arena.replace(2, None, tokens=0)
    assert not arena.vec[2].any()


def test_open_chunks_have_no_vector_yet() -> None:
    arena = Arena(64)
    row = arena.append(None, pk=1, tokens=3, micros=0, session=0)
    assert not arena.vec[row].any()
    assert arena.dense_scores(unit(1, 64)[0])[row] == 0.0


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.complex64, "U3", object]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    )
)
@settings(max_examples=60, deadline=None)
def test_bad_vectors_are_refused_and_change_nothing(value: np.ndarray) -> None:
    arena = filled(unit(3, 4), np.zeros(3))
    before = arena.vec.copy()
    good = value.shape == (4,) and value.dtype.kind in "fiu" and np.isfinite(value).all()
    with np.errstate(over="ignore"):
        narrow = value.astype(np.float32) if good else value
    if good and np.isfinite(narrow).all() and np.isfinite(np.abs(narrow).sum()):
        assert arena.append(value, pk=9, tokens=1, micros=1, session=0) == 3
        return
    with pytest.raises(InvalidInputError, match="vectors: expected"), np.errstate(over="ignore"):
        arena.append(value, pk=9, tokens=1, micros=1, session=0)
    assert arena.n == 3
    assert (arena.vec == before).all()


def test_read_only_and_strided_vectors_are_accepted() -> None:
    vectors = unit(4, 128)
    frozen = vectors[0].copy()
    frozen.flags.writeable = False
    arena = Arena(64)
    arena.append(frozen[::2], pk=1, tokens=1, micros=1, session=0)
    assert (arena.vec[0] == frozen[::2]).all()


def test_rows_in_atoms_or_dead_are_not_touched() -> None:
    arena = filled(unit(3, 64), np.zeros(3))
    arena.links[1, 0] = 0
    with pytest.raises(InvalidInputError, match="take it out with"):
        arena.remove(1)
    arena.remove(0)
    for call in (lambda: arena.remove(0), lambda: arena.replace(0, None, tokens=1)):
        with pytest.raises(InvalidInputError, match="living row"):
            call()
    with pytest.raises(InvalidInputError, match="living row"):
        arena.remove(17)
    with pytest.raises(InvalidInputError, match="dim"):
        Arena(0)


def test_padding() -> None:
    assert [padded(d) for d in (1, 64, 65, 384, 1000)] == [64, 64, 128, 384, 1024]
