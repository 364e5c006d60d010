"""int8 dot products with the instructions of the machine that the code is generated for.

LLVM does not form ``vpdpbusd`` by itself, so the intrinsics here emit it where the *code
generator's* target has it (``NUMBA_CPU_NAME`` may ask for less than the host offers):

=========  ======================================  ============
name       instruction                             bytes a step
=========  ======================================  ============
vnni512    AVX512-VNNI ``vpdpbusd`` on zmm         64
vnni256    AVX-VNNI / AVX512VL ``vpdpbusd`` ymm    32
avx2       ``vpmovsxbw`` + ``vpmaddwd``            16
sdot       ARM dot product                         16
generic    what LLVM makes of it                   16
=========  ======================================  ============

Codes are signed, in [-127, 127]. ``vpdpbusd`` multiplies unsigned by signed bytes, so the
stored byte is flipped to ``code + 128`` and ``128 * sum(query)`` is taken off again: the
*correction*, which `correction` computes and which is 0 for the other instruction sets.
All arithmetic is exact in int32 for up to 65,000 dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rsm_fast.kernels.jit import F32, I8, JIT_DISABLED, Int, kernel

__all__ = [
    "bounds4",
    "correction",
    "dot1",
    "instruction_set",
    "project4",
]

_i8, _i32, _i64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_f32 = ir.FloatType()
_f32x4 = ir.VectorType(_f32, 4)
_i32x4 = ir.VectorType(_i32, 4)

_STEP = {"vnni512": 64, "vnni256": 32, "avx2": 16, "sdot": 16, "generic": 16}
_LANES = {"vnni512": 16, "vnni256": 8, "avx2": 8, "sdot": 4, "generic": 4}


def _choose(features: frozenset[str]) -> str:
    if {"avx512vnni", "avx512bw"} <= features:
        return "vnni512"
    if "avxvnni" in features or {"avx512vnni", "avx512vl"} <= features:
        return "vnni256"
    if "avx2" in features:
        return "avx2"
    if "dotprod" in features:
        return "sdot"
    return "generic"


def _features(context: Any) -> frozenset[str]:
    listed = context.codegen()._tm_features.split(",")
    return frozenset(part[1:] for part in listed if part.startswith("+"))


def instruction_set() -> str:
    """Name of the int8 instructions that the code generator uses in this process.

    Returns
    -------
    str
        ``"vnni512"``, ``"vnni256"``, ``"avx2"``, ``"sdot"``, ``"generic"``, or
        ``"python"`` where compiling is disabled.
    """
    if JIT_DISABLED:
        return "python"
    from numba.core.registry import cpu_target

    return _choose(_features(cpu_target.target_context))


# --- pieces of LLVM IR ---------------------------------------------------------------


def _load(builder: Any, pointer: Any, kind: Any, align: int) -> Any:
    value = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    value.align = align
    return value


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_i32, 0))
    mask = ir.Constant(ir.VectorType(_i32, kind.count), [ir.Constant(_i32, 0)] * kind.count)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), mask)


def _shuffle(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(_i32, len(lanes)), [ir.Constant(_i32, k) for k in lanes])
    return builder.shuffle_vector(a, b, mask)


def _halve(builder: Any, value: Any, count: int, until: int, add: Any) -> Any:
    while count > until:
        half = count // 2
        value = add(
            _shuffle(builder, value, value, list(range(half))),
            _shuffle(builder, value, value, list(range(half, count))),
        )
        count = half
    return value


def _sums4(builder: Any, vectors: list[Any], lanes: int, add: Any) -> Any:
    """Four vectors -> one vector of their four sums, by transposing adds within 128 bits.

    Four separate horizontal sums cost as much as the dot products at d = 384.
    """
    low, high, low2, high2 = [], [], [], []
    for base in range(0, lanes, 4):
        low += [base, lanes + base, base + 1, lanes + base + 1]
        high += [base + 2, lanes + base + 2, base + 3, lanes + base + 3]
        low2 += [base, base + 1, lanes + base, lanes + base + 1]
        high2 += [base + 2, base + 3, lanes + base + 2, lanes + base + 3]
    a, b, c, d = vectors
    ab = add(_shuffle(builder, a, b, low), _shuffle(builder, a, b, high))
    cd = add(_shuffle(builder, c, d, low), _shuffle(builder, c, d, high))
    both = add(_shuffle(builder, ab, cd, low2), _shuffle(builder, ab, cd, high2))
    return _halve(builder, both, lanes, 4, add)


def _multiply_add(builder: Any, isa: str, total: Any, stored: Any, query: Any) -> Any:
    """``total + stored . query`` in groups of lanes, all int8 in and int32 out."""
    step, lanes = _STEP[isa], _LANES[isa]
    if isa.startswith("vnni"):
        flip = ir.Constant(stored.type, [ir.Constant(_i8, -128)] * step)
        name = f"llvm.x86.avx512.vpdpbusd.{step * 8}"
        # LLVM before 22 declares the operands as <n x i32>; newer ones upgrade that form
        words = ir.VectorType(_i32, lanes)
        return _call(
            builder,
            name,
            total.type,
            total,
            builder.bitcast(builder.xor(stored, flip), words),
            builder.bitcast(query, words),
        )
    if isa == "avx2":
        wide = ir.VectorType(ir.IntType(16), step)
        products = _call(
            builder,
            "llvm.x86.avx2.pmadd.wd",
            total.type,
            builder.sext(stored, wide),
            builder.sext(query, wide),
        )
        return builder.add(total, products)
    wide = ir.VectorType(_i32, step)
    products = builder.mul(builder.sext(stored, wide), builder.sext(query, wide))
    if isa == "sdot":
        name = f"llvm.vector.partial.reduce.add.v{lanes}i32.v{step}i32"
        return _call(builder, name, total.type, total, products)
    return builder.add(total, _halve(builder, products, step, lanes, builder.add))


def _loop_dots(builder: Any, isa: str, rows: list[Any], query: Any, size: Any) -> list[Any]:
    """Vectors of partial sums of ``rows[k] . query``; size is a multiple of 64, above 0."""
    step = _STEP[isa]
    code_kind = ir.VectorType(_i8, step)
    sum_kind = ir.VectorType(_i32, _LANES[isa])
    entry = builder.block
    loop = builder.append_basic_block("dot.loop")
    done = builder.append_basic_block("dot.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    at = builder.phi(_i64)
    at.add_incoming(ir.Constant(_i64, 0), entry)
    sums = [builder.phi(sum_kind) for _ in rows]
    part = _load(builder, builder.gep(query, [at]), code_kind, 1)
    after = []
    for row, total in zip(rows, sums, strict=True):
        total.add_incoming(ir.Constant(sum_kind, None), entry)
        stored = _load(builder, builder.gep(row, [at]), code_kind, 1)
        after.append(_multiply_add(builder, isa, total, stored, part))
    following = builder.add(at, ir.Constant(_i64, step))
    for total, value in zip(sums, after, strict=True):
        total.add_incoming(value, builder.block)
    at.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, size), loop, done)
    builder.position_at_end(done)
    return after


class _Emitter:
    """Arguments of one intrinsic call, with arrays unpacked to pointers."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.builder = builder
        self.isa = _choose(_features(context))
        self._context = context
        self._kinds = signature.args
        self._arguments = arguments

    def __getitem__(self, index: int) -> Any:
        return self._arguments[index]

    def array(self, index: int) -> Any:
        made = self._context.make_array(self._kinds[index])
        return made(self._context, self.builder, self._arguments[index])

    def pointer(self, index: int, kind: Any, offset: Any = None) -> Any:
        pointer = self.builder.bitcast(self.array(index).data, kind.as_pointer())
        return pointer if offset is None else self.builder.gep(pointer, [offset])

    def rows(self, index: int, row: Any, count: int, kind: Any = _i8) -> tuple[list[Any], Any]:
        """Pointers to consecutive rows of a matrix, and their length."""
        length = cgutils.unpack_tuple(self.builder, self.array(index).shape, 2)[1]
        pointers = [self.pointer(index, kind, self.builder.mul(row, length))]
        for _ in range(count - 1):
            pointers.append(self.builder.gep(pointers[-1], [length]))
        return pointers, length


def _emit_bounds(emitter: _Emitter) -> Any:
    b = emitter.builder
    row = emitter[1]
    rows, width = emitter.rows(0, row, 4)
    parts = _loop_dots(b, emitter.isa, rows, emitter.pointer(2, _i8), width)
    dots = _sums4(b, parts, _LANES[emitter.isa], b.add)
    dots = b.sitofp(b.sub(dots, _splat(b, emitter[3], _i32x4)), _f32x4)
    start = b.mul(b.lshr(row, ir.Constant(_i64, 2)), ir.Constant(_i64, 8))
    fit = [
        _load(b, emitter.pointer(5, _f32, b.add(start, ir.Constant(_i64, 4 * k))), _f32x4, 4)
        for k in range(2)
    ]
    bound = b.fmul(dots, b.fmul(fit[0], _splat(b, emitter[4], _f32x4)))
    rest = b.fadd(b.fmul(fit[1], _splat(b, emitter[6], _f32x4)), _splat(b, emitter[7], _f32x4))
    return _store_bounds(emitter, b.fadd(bound, rest), emitter.pointer(8, _f32, row))


def _store_bounds(emitter: _Emitter, bound: Any, target: Any) -> Any:
    """Write a vector of bounds, and give the largest."""
    b = emitter.builder
    b.store(bound, b.bitcast(target, bound.type.as_pointer())).align = 4
    name = f"llvm.vector.reduce.fmax.v{bound.type.count}f32"
    maximum = cgutils.get_or_insert_function(b.module, ir.FunctionType(_f32, [bound.type]), name)
    return b.call(maximum, [bound], fastmath=("nnan", "nsz"))


def _make_intrinsics() -> tuple[Any, Any, Any, Any]:
    @intrinsic
    def bias(typingctx):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            isa = _choose(_features(context))
            return ir.Constant(_i32, 128 if isa.startswith("vnni") else 0)

        return types.int32(), generate

    @intrinsic
    def dot1(typingctx, code, row, query, correction):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            emitter = _Emitter(context, builder, signature, arguments)
            rows, width = emitter.rows(0, emitter[1], 1)
            lanes = _LANES[emitter.isa]
            (part,) = _loop_dots(builder, emitter.isa, rows, emitter.pointer(2, _i8), width)
            total = _call(builder, f"llvm.vector.reduce.add.v{lanes}i32", _i32, part)
            return builder.sub(total, emitter[3])

        return types.int32(code, types.intp, query, types.int32), generate

    @intrinsic
    def bounds4(typingctx, code, row, query, correction, scale, fit, a, c, out):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return _emit_bounds(_Emitter(context, builder, signature, arguments))

        f4 = types.float32
        return f4(code, types.intp, query, types.int32, f4, fit, f4, f4, out), generate

    @intrinsic
    def project4(typingctx, matrix, row, vector, out):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            _emit_project(_Emitter(context, builder, signature, arguments))
            return context.get_dummy_value()

        return types.void(matrix, types.intp, vector, out), generate

    return bias, dot1, bounds4, project4


def _emit_project(emitter: _Emitter) -> None:
    """Four float32 rows times a vector; two sums of 16 lanes a row, so errors are bounded."""
    b = emitter.builder
    lanes, unroll = 16, 2
    kind = ir.VectorType(_f32, lanes)
    width = cgutils.unpack_tuple(b, emitter.array(0).shape, 2)[1]
    rows = [emitter.pointer(0, _f32, b.mul(emitter[1], width))]
    for _ in range(3):
        rows.append(b.gep(rows[-1], [width]))
    vector = emitter.pointer(2, _f32)
    entry = b.block
    loop, done = b.append_basic_block("project.loop"), b.append_basic_block("project.done")
    b.branch(loop)
    b.position_at_end(loop)
    at = b.phi(_i64)
    at.add_incoming(ir.Constant(_i64, 0), entry)
    sums = [b.phi(kind) for _ in range(4 * unroll)]
    after = []
    for part in range(unroll):
        here = b.add(at, ir.Constant(_i64, part * lanes))
        factor = _load(b, b.gep(vector, [here]), kind, 4)
        for k in range(4):
            total = sums[4 * part + k]
            total.add_incoming(ir.Constant(kind, None), entry)
            stored = _load(b, b.gep(rows[k], [here]), kind, 4)
            # fmuladd, not fma: without FMA in the target that would call libm
            after.append(_call(b, "llvm.fmuladd.v16f32", kind, stored, factor, total))
    following = b.add(at, ir.Constant(_i64, lanes * unroll))
    for total, value in zip(sums, after, strict=True):
        total.add_incoming(value, b.block)
    at.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, width), loop, done)
    b.position_at_end(done)
    pairs = [b.fadd(after[k], after[4 + k]) for k in range(4)]
    products = _sums4(b, pairs, lanes, b.fadd)
    target = b.bitcast(emitter.pointer(3, _f32, emitter[1]), _f32x4.as_pointer())
    b.store(products, target).align = 4


# --- the same in plain Python, for NUMBA_DISABLE_JIT=1 ---------------------------------


def _dot1(code: I8, row: int, query: I8, correction: int) -> int:
    return int(code[row].astype(np.int64) @ query.astype(np.int64)) - correction


def _bounds4(
    code: I8, row: int, query: I8, correction: int, scale: float, fit: F32, a: float, c: float,
    out: F32,
) -> float:  # fmt: skip
    dots = code[row : row + 4].astype(np.int64) @ query.astype(np.int64) - correction
    block = fit[row // 4]
    bound = dots.astype(np.float32) * (block[0] * np.float32(scale))
    out[row : row + 4] = bound + (block[1] * np.float32(a) + np.float32(c))
    return float(out[row : row + 4].max())


def _project4(matrix: F32, row: int, vector: F32, out: F32) -> None:
    out[row : row + 4] = matrix[row : row + 4] @ vector


def _bias() -> int:
    return 0


if JIT_DISABLED:
    bias, dot1, bounds4, project4 = _bias, _dot1, _bounds4, _project4
else:
    bias, dot1, bounds4, project4 = _make_intrinsics()


@kernel("int32(int8[::1])")
def correction(query: I8) -> Int:
    """What `dot1` and the bounds must take off because stored bytes are biased.

    Parameters
    ----------
    query : int8[d]
        Codes of the query.

    Returns
    -------
    int32
        ``128 * sum(query)`` for the VNNI instruction sets, else 0.
    """
    total = np.int64(0)
    for j in range(query.shape[0]):
        total += np.int64(query[j])
    return np.int32(total * bias())
