"""Each kernel against its twin. Small enough to run without the JIT and on other targets."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rsm_fast.codetable import CodeTable, padded, whole_rotation
from rsm_fast.kernels import atoms as atom_kernels
from rsm_fast.kernels import heads, quantize, scan, topk
from rsm_fast.kernels.dot_int8 import correction, instruction_set
from rsm_fast.kernels.jit import JIT_DISABLED
from rsm_fast.kernels.rows import (
    BLOCK,
    ERROR,
    HEAD,
    HEAD_ERROR,
    HEAD_SCALE,
    NECK_ERROR,
    NECK_SCALE,
    NECK_TAIL,
    SCALE,
    TAIL,
    TURNED,
)

EXAMPLES = 10 if JIT_DISABLED else 40
FLOATS = st.floats(-4, 4, width=32, allow_subnormal=True)
VECTORS = hnp.arrays(np.float32, st.sampled_from([64, 128]), elements=FLOATS)


def unit_rows(count: int, dim: int, seed: int, *, spread: float = 1.0) -> np.ndarray:
    """Rows around a few centres, so that cosines are not all near zero."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(count // 8, 1), dim))
    rows = centres[rng.integers(0, len(centres), count)]
    rows = rows + spread * rng.standard_normal((count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def orthonormal(rows: int, dim: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.linalg.qr(rng.standard_normal((dim, dim)))[0][:rows].astype(np.float32)


def table_of(vectors: np.ndarray, *, rotated: bool = False, floats: bool = True) -> CodeTable:
    table = CodeTable(vectors.shape[1], with_vectors=floats)
    table.grow(len(vectors))
    wide = np.zeros((len(vectors), table.width), np.float32)
    wide[:, : vectors.shape[1]] = vectors
    table.encode(0, wide)
    if rotated:
        rotation = orthonormal(min(TURNED, table.width), table.width, 5)
        table.set_rotation(whole_rotation(rotation), len(vectors))
    return table


def truth(table: CodeTable, n: int) -> np.ndarray:
    """What a table holds: its vectors, or the dequantised codes."""
    if table.with_vectors:
        return table.columns.vec[:n].copy()
    scales = table.columns.fit[:, SCALE].reshape(-1)[:n]
    codes = table.columns.code[:n]
    return np.array([oracles.dequantize(c, s) for c, s in zip(codes, scales, strict=True)])


def top(table, n, x, k, mask=None, floor=-np.inf):
    scores, rows, work = np.empty(k, np.float32), np.empty(k, np.int32), np.zeros(4, np.int64)
    allowed = np.ones(n, np.uint8) if mask is None else mask
    wide = np.zeros(table.width, np.float32)
    wide[: len(x)] = x
    found = topk.topk_rows(
        *table.columns, n, wide, table.rotation, allowed, floor, scores, rows, work
    )
    return list(zip(rows[:found].tolist(), scores[:found].tolist(), strict=True)), work


def wanted_top(held, x, k, mask=None, floor=-np.inf):
    """The oracle's answer, with scores as they are handed out."""
    found = oracles.top_rows(held, x, k, mask, floor)
    return [(row, float(np.float32(score))) for row, score in found]


def test_correction_is_exact() -> None:
    query = np.random.default_rng(0).integers(-127, 128, 1024).astype(np.int8)
    biased = instruction_set().startswith("vnni")
    assert correction(query) == oracles.correction(query, biased)


@given(VECTORS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_quantisation_matches_its_twin(x: np.ndarray) -> None:
    code = np.zeros(len(x), np.int8)
    scale, error = quantize.quantize_row_(x, code)
    _, wanted_scale, _ = oracles.quantize(x)
    assert scale == pytest.approx(wanted_scale, rel=1e-6)
    assert np.abs(code.astype(int)).max(initial=0) <= 127
    left = np.linalg.norm(x.astype(np.float64) - scale * code)
    assert error == pytest.approx(left, rel=1e-6, abs=1e-12)
    half = scale / 2 * (1 + 1e-5)  # rounded to the nearest code, in float32
    assert (np.abs(x - np.float64(scale) * code) <= half + 1e-30).all()
    assert quantize.squared_norm(x) == pytest.approx(oracles.squared_norm(x), rel=1e-12)


@pytest.mark.parametrize("dim", [64, 384, 1024])
def test_f11_any_unit_vector_survives_its_codes(dim: int) -> None:
    rng = np.random.default_rng(dim)
    one_hot = np.eye(dim, dtype=np.float32)[[0, dim // 2, dim - 1]]
    small = rng.standard_normal((50, dim)).astype(np.float32)
    rows = np.concatenate([small / np.linalg.norm(small, axis=1, keepdims=True), one_hot])
    table = table_of(rows, floats=False)
    back = truth(table, len(rows))[:, :dim]
    cosines = np.sum(back * rows, axis=1) / np.linalg.norm(back, axis=1)
    assert cosines.min() >= 0.99
    assert cosines[-3:] == pytest.approx([1.0] * 3)


def decoded_heads(table: CodeTable, row: int) -> tuple[np.ndarray, np.ndarray]:
    """What the 4-bit codes of a row's head and neck stand for."""
    columns, lane = table.columns, row % BLOCK
    halves = columns.head[row // BLOCK].view(np.uint8).reshape(2, BLOCK // 16, 16, 16, 4)
    packed = halves[:, lane // 16, :, lane % 16].reshape(2, HEAD // 2)
    codes = np.concatenate((packed & 15, packed >> 4), axis=1) - 7.5
    fits = columns.head_fit[row // BLOCK, :, lane].astype(np.float64)
    return fits[HEAD_SCALE] * codes[0], fits[NECK_SCALE] * codes[1]


@pytest.mark.parametrize("floats", [True, False])
@pytest.mark.parametrize("dim", [128, 384])
def test_stored_errors_and_tails_cover_the_truth(floats: bool, dim: int) -> None:
    rows = unit_rows(70, dim, 3)
    rows[7] = 0.0
    rows[8] *= np.float32(1e-3)
    rows[9] *= np.float32(1e-39)
    rows[10] = np.eye(dim, dtype=np.float32)[5]
    table = table_of(rows, rotated=True, floats=floats)
    held = truth(table, 70)
    columns = table.columns
    exact = table.rotation.astype(np.float64) / 32767
    used = min(TURNED, dim)
    for row in range(70):
        block, lane = row // 4, row % 4
        decoded = columns.fit[block, SCALE, lane] * columns.code[row].astype(np.float64)
        assert np.linalg.norm(held[row] - decoded) <= columns.fit[block, ERROR, lane]
        fits = columns.head_fit[row // BLOCK, :, row % BLOCK]
        norm, inside, outside = oracles.encoded(held[row], exact[:HEAD])
        head, neck = decoded_heads(table, row)
        projected = exact @ held[row]
        assert np.linalg.norm(projected[:HEAD] - head) <= fits[HEAD_ERROR]
        assert np.linalg.norm(projected[HEAD:] - neck) <= fits[NECK_ERROR]
        assert outside <= fits[TAIL]
        assert oracles.encoded(held[row], exact[:used])[2] <= fits[NECK_TAIL]
        assert norm <= table.limits[0]
        assert inside <= table.limits[1] + fits[HEAD_ERROR]


def test_a_turned_vector_is_off_by_no_more_than_is_said() -> None:
    table = table_of(unit_rows(3, 384, 1), rotated=True)
    for x in (*unit_rows(20, 384, 7), np.eye(384, dtype=np.float32)[9], np.zeros(384, np.float32)):
        for factor in (1.0, 40.0, 1e-3, 1e-39):
            scaled = x * np.float32(factor)
            out = np.empty(TURNED, np.float32)
            norm = float(np.linalg.norm(scaled.astype(np.float64))) * (1 + 1e-9)
            slack = heads.turn_(table.rotation, table.limits, TURNED, scaled, norm, out)
            off = np.linalg.norm(out - oracles.turned(table.rotation, scaled))
            assert off <= slack <= 1e-3 * norm + 1e-29


@pytest.mark.parametrize("count", [HEAD, TURNED])
def test_bounds_of_heads_and_necks_lie_above_the_scores(count: int) -> None:
    rows = unit_rows(150, 384, 12, spread=0.5)
    rows[20:30] *= np.float32(1.001)
    table = table_of(rows, rotated=True)
    allowed = np.ones(150, np.uint8)
    for x in (rows[0], rows[22], -rows[3], unit_rows(1, 384, 77)[0] * np.float32(3.0)):
        code = np.empty(384 + TURNED, np.int8)
        scale, error = quantize.quantize_row_(x, code[:384])
        query = quantize.make_query(
            table.limits, table.rotation, count, code, scale, error * (1 + 1e-6), x,
            np.empty(TURNED, np.float32), 0,
        )  # fmt: skip
        # Python's numbers would make specialisations of their own
        query = query._replace(
            correction=np.int32(query.correction),
            **{k: np.float32(v) for k, v in query._asdict().items() if isinstance(v, float)},
        )
        wholes = np.empty(topk.WHOLES, np.int64)
        room = topk.room_in(np.empty(topk.floats_of(150), np.float32), wholes, 150)
        bounds, peaks = room.bounds[:160], room.peaks[:10]
        topk.scan_(table.columns, query, 150, room.bounds, room.peaks)
        exact = np.array([oracles.bounds(row, x) for row in rows])
        assert (bounds[:150] >= exact).all()
        assert (peaks == bounds.reshape(10, 16).max(axis=1)).all()
        found, uppers = room.rows, room.uppers
        start, taken, work = -1, set(), np.zeros(4, np.int64)
        lowest = np.float32(-1e30)  # a float64 would make a specialisation of its own
        while start < 150:
            start, m = topk.collect_(
                table.columns, query, start, 150, allowed, lowest, 3, room, work
            )
            taken |= set(found[:m].tolist())
            assert (uppers[:m] >= exact[found[:m]]).all()
        assert set(np.argsort(exact)[-3:].tolist()) <= taken


def test_centring_matches_its_twin() -> None:
    raw = unit_rows(30, 70, 1)
    mean = raw[3].copy()
    out = np.zeros((30, padded(70)), np.float32)
    quantize.centre_rows_(raw, mean, out)
    np.testing.assert_allclose(out[:, :70], oracles.centred(raw, mean), atol=1e-7)
    assert not out[3].any()


def test_exact_dot_is_bit_equal_to_its_twin() -> None:
    rows = unit_rows(23, 384, 2)
    x = unit_rows(1, 384, 9)[0]
    table = table_of(rows)
    wanted = oracles.exact_dots(rows, x)
    out = np.empty(23)
    topk.exact_dots_(table.columns, np.arange(23), 23, x, out)
    assert (out == wanted).all()
    assert topk.exact_dot(table.columns, 4, x) == wanted[4]
    coded = table_of(rows, floats=False)
    decoded = truth(coded, 23)
    topk.exact_dots_(coded.columns, np.arange(23), 23, x, out)
    assert (out == oracles.exact_dots(decoded, x)).all()


@given(hnp.arrays(np.float32, st.integers(1, 40), elements=FLOATS), st.integers(1, 45))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_cut_is_reached_by_as_many_as_wanted(values: np.ndarray, wanted: int) -> None:
    least = topk.cut(values, len(values), wanted)
    assert np.count_nonzero(values >= least) >= min(wanted, len(values))
    assert least >= oracles.cut(values, wanted) - (np.ptp(values) / 500 + 1e-6)


@given(st.floats(-2, 2))
@settings(max_examples=EXAMPLES, deadline=None)
def test_thresholds_are_only_rounded_down(value: float) -> None:
    below = float(topk.float32_below(value))
    assert value - 1e-6 <= below <= oracles.float32_below(value)


@given(
    count=st.integers(1, 140),
    k=st.integers(0, 150),
    dim=st.sampled_from([64, 100, 300]),
    seed=st.integers(0, 1000),
    rotated=st.booleans(),
    floats=st.booleans(),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_topk_matches_its_twin(
    count: int, k: int, dim: int, seed: int, rotated: bool, floats: bool
) -> None:
    rows = unit_rows(count, dim, seed)
    rows[count // 2 :: 3] = rows[0]  # ties
    rng = np.random.default_rng(seed)
    rotated = rotated and padded(dim) >= HEAD
    table = table_of(rows, rotated=rotated, floats=floats)
    held = truth(table, count)
    mask = (rng.random(count) < 0.8).astype(np.uint8)
    for x in (rows[0], rows[-1], unit_rows(1, dim, seed + 1)[0]):
        wide = np.zeros(table.width, np.float32)
        wide[:dim] = x
        found, _ = top(table, count, x, k, mask)
        assert found == wanted_top(held, wide, k, mask)
        found, _ = top(table, count, x, k, mask, floor=0.5)
        assert found == wanted_top(held, wide, k, mask, floor=0.5)


def test_topk_is_exact_when_every_row_is_a_candidate() -> None:
    """More candidates than the buffer holds: all at the same distance."""
    count = 150 if JIT_DISABLED else 5000
    rng = np.random.default_rng(4)
    x = np.zeros(128, np.float32)
    x[0] = 1.0
    rows = rng.standard_normal((count, 128)).astype(np.float32)
    rows[:, 0] = 0.0
    rows *= np.sqrt(0.75) / np.linalg.norm(rows, axis=1, keepdims=True)
    rows[:, 0] = 0.5 + 1e-7 * rng.standard_normal(count)
    for rotated in (False, True):
        table = table_of(rows, rotated=rotated)
        found, work = top(table, count, x, 9)
        assert found == wanted_top(rows, x, 9)
        assert work[0] == count
        assert work[3] <= count


@pytest.mark.parametrize("dim", [257] if JIT_DISABLED else [257, 768, 1000, 1024])
@pytest.mark.parametrize("floats", [True, False])
def test_topk_is_exact_at_other_dimensions(dim: int, floats: bool) -> None:
    count = 40 if JIT_DISABLED else 1500
    rows = unit_rows(count, dim, dim, spread=0.7)
    rows[count // 2 :: 9] = rows[1]
    table = table_of(rows, rotated=True, floats=floats)
    held = truth(table, count)
    mask = (np.arange(count) % 7 != 3).astype(np.uint8)
    for x in (rows[1], rows[5], unit_rows(1, dim, 3)[0]):
        wide = np.zeros(table.width, np.float32)
        wide[:dim] = x
        for k, floor in ((1, 0.6), (1, -np.inf), (40, -np.inf)):
            found, work = top(table, count, x, k, mask, floor)
            assert found == wanted_top(held, wide, k, mask, floor)
            assert work[0] == count


@pytest.mark.parametrize("k", [1, 5])
def test_a_query_that_is_not_finite_is_refused(k: int) -> None:
    table = table_of(unit_rows(20, 64, 1))
    for value in (np.nan, np.inf):
        x = np.ones(64, np.float32)
        x[7] = value
        scores, rows, work = np.empty(k, np.float32), np.empty(k, np.int32), np.zeros(4, np.int64)
        assert (
            topk.topk_rows(
                *table.columns, 20, x, table.rotation, np.ones(20, np.uint8), -np.inf, scores,
                rows, work,
            )
            == -1
        )  # fmt: skip


def test_mean_is_bit_equal_to_its_twin() -> None:
    members = unit_rows(17, 384, 6)
    total = np.add.accumulate(members.astype(np.float64))[-1]
    mean = np.empty(384, np.float32)
    atom_kernels.update_mean_(total, mean)
    assert (mean == oracles.mean_of(members)).all()
    atom_kernels.update_mean_(np.zeros(384), mean)
    assert not mean.any()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_jacobi_matches_its_twin(size: int) -> None:
    half = np.random.default_rng(size).standard_normal((size, size))
    matrix = half @ half.T
    values, vectors = oracles.eigen(matrix)
    work, found = matrix.copy(), np.empty((size, size))
    atom_kernels.jacobi_(work, found)
    np.testing.assert_allclose(np.diag(work), values, atol=1e-12 * values[0])
    np.testing.assert_allclose(np.abs(found), np.abs(vectors), atol=1e-9)


@pytest.mark.parametrize(("members", "rank"), [(1, 1), (3, 4), (4, 4), (12, 1), (30, 4)])
def test_bases_match_their_twin(members: int, rank: int) -> None:
    rows = unit_rows(members, 128, members, spread=0.6)
    rows = (rows + 2 * rows[0]) / np.linalg.norm(rows + 2 * rows[0], axis=1, keepdims=True)
    rows = rows.astype(np.float32)
    vectors, strength = oracles.basis_of(rows, rank)
    basis, found = np.zeros((rank, 128), np.float32), np.zeros(rank)
    for row in rows:
        atom_kernels.brand_update_(basis, found, row)
    np.testing.assert_allclose(basis @ basis.T, np.diag(found > 0), atol=2e-5)
    if members <= rank:  # Brand's update is exact up to its rank
        np.testing.assert_allclose(found[:members], strength, rtol=1e-4, atol=1e-5)
    atom_kernels.refresh_basis_(rows, basis, found, 2e-6, 300)
    chord = np.sqrt(max(0.0, 2 - 2 * abs(basis[0].astype(float) @ vectors[0])))
    assert chord <= 3e-4  # float32 of a dot near 1; the residual test below is the sharp one
    residual = rows.T.astype(float) @ (rows.astype(float) @ basis[0]) - strength[0] * basis[0]
    assert np.linalg.norm(residual) <= 5e-6 * strength[0]
    kept = min(rank, members)
    np.testing.assert_allclose(found[:kept], strength[:kept], rtol=1e-3, atol=1e-5)


def test_scores_of_all_rows_match_their_twins() -> None:
    rows = unit_rows(37, 100, 8)
    alive = np.ones(37, np.uint8)
    alive[5] = 0
    for floats in (True, False):
        table = table_of(rows, floats=floats)
        x = np.zeros(table.width, np.float32)
        x[:100] = rows[3]
        out = np.empty(40, np.float32)
        scan.dense_scores_(*table.columns, 37, alive, x, out)
        wanted = oracles.dense_scores(truth(table, 37), x, alive)
        np.testing.assert_allclose(out[:37], wanted, atol=2e-6)
        error = scan.near_scores_(*table.columns, 37, x, out)
        wanted = oracles.dense_scores(truth(table, 37), x, np.ones(37))
        assert np.abs(out[:37] - wanted).max() <= error < (0.03 if floats else 1e-3)
        vec, code, fit = table.columns[:3]
        single = [scan.dense_score(vec, code, fit, row, x) for row in range(37)]
        np.testing.assert_allclose(single, wanted, atol=2e-6)
    bases = np.array([orthonormal(3, 128, k) for k in range(5)])
    found = np.empty(5, np.float32)
    x = unit_rows(1, 128, 4)[0]
    scan.subspace_scores_(bases, 5, x, found)
    np.testing.assert_allclose(found, oracles.subspace_scores(bases, x), atol=1e-6)
