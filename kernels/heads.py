"""The first coordinates of rotated rows as codes of 4 bits, and what a scan makes of them.

A code c of 0 to 15 stands for ``(c - 7.5) * scale``. Codes of 4 bits lose a tenth of a norm,
which Cauchy and Schwarz turn into bounds wider than those of 8 bits, but not by so much as
half the bytes are worth: a first scan is bound by the bytes that it reads. The rotation must
spread a vector evenly over the coordinates for that, see `rsm_fast.kernels.rotation`.

The layout of a block of rows is described in `rsm_fast.kernels.rows`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rsm_fast.kernels.dot_int8 import (
    _LANES,
    _call,
    _Emitter,
    _f32,
    _halve,
    _i8,
    _i32,
    _i64,
    _load,
    _shuffle,
    _splat,
    _store_bounds,
    _sums4,
)
from rsm_fast.kernels.jit import F32, F64, FAST, I8, I64, JIT_DISABLED, Int, Real, kernel
from rsm_fast.kernels.layout import UNIT
from rsm_fast.kernels.lending import lent
from rsm_fast.kernels.rows import (
    BLOCK,
    HEAD,
    HEAD_BYTES,
    HEAD_ERROR,
    HEAD_FITS,
    HEAD_SCALE,
    NECK,
    NECK_ERROR,
    NECK_SCALE,
    NECK_TAIL,
    REACH_HEAD,
    ROTATION,
    ROTATION_ERROR,
    ROTATION_SKEW,
    TAIL,
    TURNED,
)

__all__ = [
    "encode_head_",
    "head_bounds16",
    "lowest_bit",
    "neck_bounds16",
    "prefetch_row",
    "reaching16",
    "turn_",
    "turn_slack",
]

_UP = 1.0 + 1e-6  # more than the rounding of a float64 sum and of the step to float32
_LOADING = 0.335  # step in standard deviations that loses least of a normal distribution

_HALF = HEAD // 2  # bytes of a head: two codes in each
_AHEAD = 128  # rows that a scan has fetched before it comes to them
_f32x16, _i16 = ir.VectorType(_f32, 16), ir.IntType(16)


# --- pieces of LLVM IR ---------------------------------------------------------------


def _nibbles(builder: Any, stored: Any) -> list[Any]:
    """The lower and the upper code of each byte."""
    lanes = stored.type.count
    mask = ir.Constant(stored.type, [ir.Constant(_i8, 15)] * lanes)
    four = ir.Constant(stored.type, [ir.Constant(_i8, 4)] * lanes)
    return [builder.and_(stored, mask), builder.lshr(stored, four)]


def _add_groups(builder: Any, isa: str, total: Any, codes: list[Any], words: list[Any]) -> Any:
    """Add to each int32 lane the dot products of its group of 4 codes with a word of 4 int8."""
    lanes = total.type
    if isa.startswith("vnni"):
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes.count}"
        for code, word in zip(codes, words, strict=True):
            spread = _splat(builder, word, lanes)
            total = _call(builder, name, lanes, total, builder.bitcast(code, lanes), spread)
        return total
    spread = [builder.bitcast(_splat(builder, word, lanes), codes[0].type) for word in words]
    if isa == "avx2":
        short = ir.VectorType(_i16, 2 * lanes.count)
        name = "llvm.x86.avx2.pmadd.ub.sw"  # at most 4 products of 15 * 127: no saturation
        pairs = [
            _call(builder, name, short, code, word)
            for code, word in zip(codes, spread, strict=True)
        ]
        ones = ir.Constant(short, [ir.Constant(_i16, 1)] * short.count)
        both = builder.add(*pairs)
        return builder.add(total, _call(builder, "llvm.x86.avx2.pmadd.wd", lanes, both, ones))
    for code, word in zip(codes, spread, strict=True):
        if isa == "sdot":
            total = _call(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", lanes, total, code, word)
            continue
        for place in range(4):
            one, other = (
                builder.sext(_shuffle(builder, v, v, list(range(place, 4 * lanes.count, 4))), lanes)
                for v in (code, word)
            )
            total = builder.add(total, builder.mul(one, other))
    return total


def _joined(builder: Any, parts: list[Any]) -> Any:
    while len(parts) > 1:
        width = 2 * parts[0].type.count
        parts = [
            _shuffle(builder, parts[k], parts[k + 1], list(range(width)))
            for k in range(0, len(parts), 2)
        ]
    return parts[0]


def _prefetch(builder: Any, start: Any, lines: range) -> None:
    numbers = [ir.Constant(_i32, value) for value in (0, 3, 1)]
    for line in lines:
        ahead = builder.gep(start, [ir.Constant(_i64, line)])
        _call(builder, "llvm.prefetch.p0", ir.VoidType(), ahead, *numbers)


def _place(emitter: _Emitter, index: int, kind: Any, row: Any, block: int, each: int) -> Any:
    """Pointer to what belongs to a row in blocks of so many items, so many for each row."""
    b = emitter.builder
    start = b.mul(b.lshr(row, ir.Constant(_i64, BLOCK.bit_length() - 1)), ir.Constant(_i64, block))
    lane = b.mul(b.and_(row, ir.Constant(_i64, BLOCK - 1)), ir.Constant(_i64, each))
    return emitter.pointer(index, kind, b.add(start, lane))


def _dots16(emitter: _Emitter, codes: Any, query: Any) -> Any:
    """Dot products of 16 rows of 128 codes with a query, as float32."""
    b, isa = emitter.builder, emitter.isa
    lanes = _LANES[isa] if isa != "generic" else 16
    stored_kind = ir.VectorType(_i8, 4 * lanes)
    # several sums for the same rows: one would wait for the latency of each instruction
    chains = 4 if lanes == 16 else 2
    sums = [ir.Constant(ir.VectorType(_i32, lanes), None)] * (chains * 16 // lanes)
    for group in range(0, _HALF, 4):
        chain = group // 4 % chains * (16 // lanes)
        words = [
            _load(b, b.gep(query, [ir.Constant(_i64, start + group)]), _i32, 1)
            for start in (0, _HALF)
        ]
        for part in range(16 // lanes):
            at = ir.Constant(_i64, 16 * group + 4 * lanes * part)
            stored = _load(b, b.gep(codes, [at]), stored_kind, 1)
            sums[chain + part] = _add_groups(b, isa, sums[chain + part], _nibbles(b, stored), words)
    while len(sums) > 16 // lanes:
        half = len(sums) // 2
        sums = [b.add(one, other) for one, other in zip(sums[:half], sums[half:], strict=True)]
    return b.sitofp(_joined(b, sums), _f32x16)


def _slack(emitter: _Emitter, fits: Any, items: tuple[int, int], factors: tuple[int, int]) -> Any:
    """Two items of 16 rows times two of the query's numbers."""
    b = emitter.builder
    parts = [
        b.fmul(
            _load(b, b.gep(fits, [ir.Constant(_i64, BLOCK * item)]), _f32x16, 4),
            _splat(b, emitter[factor], _f32x16),
        )
        for item, factor in zip(items, factors, strict=True)
    ]
    return b.fadd(*parts)


def _estimate(emitter: _Emitter, codes: Any, query: Any, fits: Any, item: int) -> Any:
    """Dot products without their bias, times both scales; arguments 3 and 4 are the query's."""
    b = emitter.builder
    dots = b.fsub(_dots16(emitter, codes, query), _splat(b, emitter[3], _f32x16))
    scale = _load(b, b.gep(fits, [ir.Constant(_i64, BLOCK * item)]), _f32x16, 4)
    return b.fmul(dots, b.fmul(scale, _splat(b, emitter[4], _f32x16)))


def _emit_head_bounds(emitter: _Emitter) -> Any:
    b = emitter.builder
    row = emitter[1]
    codes = _place(emitter, 0, _i8, row, HEAD_BYTES, _HALF)
    fits = _place(emitter, 5, _f32, row, HEAD_FITS * BLOCK, 1)
    _prefetch(b, codes, range(_HALF * _AHEAD, _HALF * (_AHEAD + 16), 64))
    ahead = b.bitcast(fits, _i8.as_pointer())
    _prefetch(b, ahead, range(4 * _AHEAD, 4 * (_AHEAD + 3 * BLOCK), 4 * BLOCK))
    bound = _estimate(emitter, codes, emitter.pointer(2, _i8), fits, HEAD_SCALE)
    slack = _slack(emitter, fits, (HEAD_ERROR, TAIL), (6, 9))
    slack = b.fadd(slack, _splat(b, emitter[7], _f32x16))
    return _store_bounds(emitter, b.fadd(bound, slack), emitter.pointer(8, _f32, row))


def _emit_neck_bounds(emitter: _Emitter) -> Any:
    b = emitter.builder
    row = emitter[1]
    codes = b.gep(_place(emitter, 0, _i8, row, HEAD_BYTES, _HALF), [ir.Constant(_i64, NECK)])
    fits = _place(emitter, 5, _f32, row, HEAD_FITS * BLOCK, 1)
    query = b.gep(emitter.pointer(2, _i8), [ir.Constant(_i64, HEAD)])
    bound = _estimate(emitter, codes, query, fits, NECK_SCALE)
    more = b.fadd(
        _slack(emitter, fits, (NECK_ERROR, NECK_TAIL), (6, 9)), _splat(b, emitter[7], _f32x16)
    )
    before = b.fmul(
        _load(b, b.gep(fits, [ir.Constant(_i64, BLOCK * TAIL)]), _f32x16, 4),
        _splat(b, emitter[10], _f32x16),
    )
    bound = b.fadd(b.fadd(bound, more), b.fsub(_load_row(emitter, 8, row), before))
    target = emitter.pointer(11, _f32, row)
    b.store(bound, b.bitcast(target, bound.type.as_pointer())).align = 4
    return _reaching(b, bound, emitter[12])


def _load_row(emitter: _Emitter, index: int, row: Any) -> Any:
    return _load(emitter.builder, emitter.pointer(index, _f32, row), _f32x16, 4)


def _reaching(builder: Any, bound: Any, threshold: Any) -> Any:
    """Which lanes reach a threshold: bits of an int64. NaN reaches none."""
    hits = builder.fcmp_ordered(">=", bound, _splat(builder, threshold, bound.type))
    return builder.zext(builder.bitcast(hits, ir.IntType(16)), _i64)


def _emit_turn(emitter: _Emitter) -> None:
    """Four int16 rows times an int16 vector, exactly."""
    b = emitter.builder
    isa = emitter.isa
    step = 32 if isa == "vnni512" else 16
    lanes = step // 2 if isa in ("vnni512", "vnni256", "avx2") else 4
    kind, sum_kind = ir.VectorType(_i16, step), ir.VectorType(_i32, lanes)
    rows, width = emitter.rows(0, emitter[1], 4, _i16)
    vector = emitter.pointer(2, _i16)
    entry = b.block
    loop, done = b.append_basic_block("turn.loop"), b.append_basic_block("turn.done")
    b.branch(loop)
    b.position_at_end(loop)
    at = b.phi(_i64)
    at.add_incoming(ir.Constant(_i64, 0), entry)
    sums = [b.phi(sum_kind) for _ in rows]
    factor = _load(b, b.gep(vector, [at]), kind, 2)
    after = []
    for row, total in zip(rows, sums, strict=True):
        total.add_incoming(ir.Constant(sum_kind, None), entry)
        stored = _load(b, b.gep(row, [at]), kind, 2)
        if isa in ("vnni512", "vnni256", "avx2"):
            name = "llvm.x86.avx512.pmaddw.d.512" if step == 32 else "llvm.x86.avx2.pmadd.wd"
            products = _call(b, name, sum_kind, stored, factor)
        else:
            wide = ir.VectorType(_i32, step)
            products = b.mul(b.sext(stored, wide), b.sext(factor, wide))
            products = _halve(b, products, step, lanes, b.add)
        after.append(b.add(total, products))
    following = b.add(at, ir.Constant(_i64, step))
    for total, value in zip(sums, after, strict=True):
        total.add_incoming(value, b.block)
    at.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, width), loop, done)
    b.position_at_end(done)
    four = ir.VectorType(_f32, 4)
    dots = b.sitofp(_sums4(b, after, lanes, b.add), four)
    target = b.bitcast(emitter.pointer(4, _f32, emitter[1]), four.as_pointer())
    b.store(b.fmul(dots, _splat(b, emitter[3], four)), target).align = 4


def _make_intrinsics() -> tuple[Any, ...]:
    f4 = types.float32

    @intrinsic
    def head_bounds16(typingctx, head, row, query, less, scale, fit, reach, rest, out, tail):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return _emit_head_bounds(_Emitter(context, builder, signature, arguments))

        return f4(head, types.intp, query, f4, f4, fit, f4, f4, out, f4), generate

    @intrinsic
    def neck_bounds16(  # type: ignore[no-untyped-def]
        typingctx, head, row, query, less, scale, fit, reach, rest, bounds, tail, head_tail, out,
        threshold,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return _emit_neck_bounds(_Emitter(context, builder, signature, arguments))

        floats = (f4, f4, fit, f4, f4, bounds, f4, f4, out, f4)
        return types.int64(head, types.intp, query, *floats), generate

    @intrinsic
    def reaching16(typingctx, bounds, row, threshold):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            emitter = _Emitter(context, builder, signature, arguments)
            return _reaching(builder, _load_row(emitter, 0, arguments[1]), arguments[2])

        return types.int64(bounds, types.intp, f4), generate

    @intrinsic
    def lowest_bit(typingctx, bits):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return _call(
                builder, "llvm.cttz.i64", _i64, arguments[0], ir.Constant(ir.IntType(1), 1)
            )

        return types.int64(types.int64), generate

    @intrinsic
    def turn4(typingctx, rotation, row, vector, factor, out):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            _emit_turn(_Emitter(context, builder, signature, arguments))
            return context.get_dummy_value()

        return types.void(rotation, types.intp, vector, f4, out), generate

    @intrinsic
    def prefetch_row(typingctx, code, row):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            (pointer,), _ = _Emitter(context, builder, signature, arguments).rows(
                0, arguments[1], 1
            )
            _prefetch(builder, pointer, range(0, 384, 64))
            return context.get_dummy_value()

        return types.void(code, types.intp), generate

    return head_bounds16, neck_bounds16, reaching16, lowest_bit, turn4, prefetch_row


# --- the same in plain Python, for NUMBA_DISABLE_JIT=1 ---------------------------------


def _estimates(
    head: I8, row: int, start: int, query: I8, less: float, scale: float, fits: F32
) -> F32:
    first = start + row % BLOCK * _HALF
    part = head[row // BLOCK, first : first + 16 * _HALF].view(np.uint8).astype(np.int64)
    codes = part.reshape(_HALF // 4, 16, 4).transpose(1, 0, 2).reshape(16, _HALF)
    wide = query.astype(np.int64)
    dots = (codes & 15) @ wide[:_HALF] + (codes >> 4) @ wide[_HALF:]
    return (dots.astype(np.float32) - np.float32(less)) * (fits * np.float32(scale))


def _head_bounds16(
    head: I8, row: int, query: I8, less: float, scale: float, fit: F32, reach: float,
    rest: float, out: F32, tail: float,
) -> float:  # fmt: skip
    fits = fit[row // BLOCK, :, row % BLOCK : row % BLOCK + 16]
    estimate = _estimates(head, row, 0, query[:HEAD], less, scale, fits[HEAD_SCALE])
    slack = fits[HEAD_ERROR] * np.float32(reach) + fits[TAIL] * np.float32(tail)
    out[row : row + 16] = estimate + (slack + np.float32(rest))
    return float(out[row : row + 16].max())


def _neck_bounds16(
    head: I8, row: int, query: I8, less: float, scale: float, fit: F32, reach: float,
    rest: float, bounds: F32, tail: float, head_tail: float, out: F32, threshold: float,
) -> int:  # fmt: skip
    fits = fit[row // BLOCK, :, row % BLOCK : row % BLOCK + 16]
    estimate = _estimates(head, row, NECK, query[HEAD:], less, scale, fits[NECK_SCALE])
    slack = fits[NECK_ERROR] * np.float32(reach) + fits[NECK_TAIL] * np.float32(tail)
    before = bounds[row : row + 16] - fits[TAIL] * np.float32(head_tail)
    out[row : row + 16] = estimate + (slack + np.float32(rest)) + before
    return _reaching16(out, row, threshold)


def _reaching16(bounds: F32, row: int, threshold: float) -> int:
    return sum(1 << k for k in range(16) if bounds[row + k] >= threshold)


def _lowest_bit(bits: int) -> int:
    return (int(bits) & -int(bits)).bit_length() - 1


def _turn4(rotation: Any, row: int, vector: Any, factor: Real, out: F32) -> None:
    dots = rotation[row : row + 4].astype(np.int64) @ vector.astype(np.int64)
    out[row : row + 4] = dots.astype(np.float32) * np.float32(factor)


def _prefetch_row(code: I8, row: int) -> None:
    pass


if JIT_DISABLED:
    head_bounds16, neck_bounds16, reaching16 = _head_bounds16, _neck_bounds16, _reaching16
    lowest_bit, turn4, prefetch_row = _lowest_bit, _turn4, _prefetch_row
else:
    head_bounds16, neck_bounds16, reaching16, lowest_bit, turn4, prefetch_row = _make_intrinsics()


@kernel("float64(float64[::1], float64)", inline=True)
def turn_slack(limits: F64, norm: Real) -> Real:
    """At least the norm of what `turn_` is off.

    Parameters
    ----------
    limits : float64[4]
        Of the table, see `rsm_fast.kernels.rows.Codes`.
    norm : float64
        Of the vector, at least.

    Returns
    -------
    float64
    """
    return 2.0 * norm if norm < 1e-30 else limits[ROTATION_ERROR] * norm


@kernel(f"float64({ROTATION}, float64[::1], int64, float32[::1], float64, float32[::1])")
def turn_(rotation: Any, limits: F64, count: Int, x: F32, norm: Real, out: F32) -> Real:
    """The first coordinates of a rotated vector.

    Both factors are whole numbers of 16 bits, so the sums are exact: what is lost lies in
    the vector's rounding, and in the rotation, which is by definition the rounded one.

    Parameters
    ----------
    rotation : int16[256, d]
    limits : float64[4]
        Of the table, see `rsm_fast.kernels.rows.Codes`.
    count : int
        Coordinates to work out, a multiple of 4.
    x : float32[d]
    norm : float64
        Of x, at least.
    out : float32[count]
        Result.

    Returns
    -------
    float64
        `turn_slack`
    """
    if norm < 1e-30:
        for k in range(count):
            out[k] = np.float32(0.0)
        return turn_slack(limits, norm)
    whole = np.empty(x.shape[0], np.int16)
    largest = norm * _UP
    unit = np.float32(UNIT / largest)
    for j in range(x.shape[0]):
        whole[j] = np.int16(np.rint(x[j] * unit))
    factor = np.float32(largest / (UNIT * UNIT))
    for k in range(0, count, 4):
        turn4(rotation, k, whole, factor, out)
    return turn_slack(limits, norm)


@kernel("UniTuple(float64, 3)(float32[::1], int64, int64[::1])", fastmath=FAST)
def _quantize4_(y: F32, start: Int, code: I64) -> tuple[Real, Real, Real]:
    """Codes of 128 values from ``start`` on; their scale, what is lost, and their norm."""
    total = 0.0
    for j in range(HEAD):
        value = np.float64(y[start + j])
        total += value * value
    deviation = math.sqrt(total / HEAD)
    if deviation < 1e-30:
        for j in range(HEAD):
            code[start + j] = 8
        return 0.0, math.sqrt(total), math.sqrt(total)
    scale = np.float32(_LOADING * deviation)
    factor = np.float32(1.0) / scale
    error = 0.0
    for j in range(HEAD):
        step = min(max(np.float64(np.floor(y[start + j] * factor)), -8.0), 7.0)
        code[start + j] = np.int64(step) + 8
        rest = np.float64(y[start + j]) - np.float64(scale) * (step + 0.5)
        error += rest * rest
    return np.float64(scale), math.sqrt(error), math.sqrt(total)


@kernel(
    "void(int8[:, ::1], float32[:, :, ::1], float64[::1], int64, float32[::1], float64, float64)"
)
def encode_head_(
    head: I8, head_fit: F32, limits: F64, row: Int, y: F32, squared: Real, slack: Real
) -> None:
    """Write head and neck of one row.

    Parameters
    ----------
    head, head_fit, limits
        Of the table, see `rsm_fast.kernels.rows.Codes`.
    row : int
    y : float32[256]
        The row after rotation.
    squared : float64
        Square of the row's norm, at least.
    slack : float64
        From `turn_`.
    """
    head, head_fit = lent(head), lent(head_fit)
    block, lane = row // BLOCK, row % BLOCK
    code = np.empty(TURNED, np.int64)
    start, middle = np.int64(0), np.int64(HEAD)  # literals would make specialisations
    scale, lost, norm = _quantize4_(y, start, code)
    neck_scale, neck_lost, neck_norm = _quantize4_(y, middle, code)
    into = head[block]
    for first in range(0, TURNED, HEAD):
        start = first // HEAD * NECK + lane // 16 * (16 * _HALF) + lane % 16 * 4
        for group in range(0, _HALF, 4):
            for j in range(group, group + 4):
                both = code[first + j] + 16 * code[first + _HALF + j]
                into[start + 15 * group + j] = both - 256 if both > 127 else both
    loose = (limits[ROTATION_SKEW] + 1e-6) * squared + 2.2 * slack * math.sqrt(squared) + slack**2
    beyond = squared - norm * norm
    fits = head_fit[block]
    fits[HEAD_SCALE, lane] = np.float32(scale)
    fits[HEAD_ERROR, lane] = np.float32((lost + slack) * _UP)
    fits[TAIL, lane] = np.float32(math.sqrt(max(0.0, beyond) + loose) * _UP)
    fits[NECK_SCALE, lane] = np.float32(neck_scale)
    fits[NECK_ERROR, lane] = np.float32((neck_lost + slack) * _UP)
    rest = max(0.0, beyond - neck_norm * neck_norm) + loose
    fits[NECK_TAIL, lane] = np.float32(math.sqrt(rest) * _UP)
    largest = max(norm + lost, neck_norm + neck_lost) + slack
    limits[REACH_HEAD] = max(limits[REACH_HEAD], largest * _UP)
