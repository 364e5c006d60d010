"""The kernel tests once more on other targets; what each target's code is made of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from rsm_fast.kernels import dot_int8, heads
from rsm_fast.kernels.jit import JIT_DISABLED

HERE = Path(__file__).parent


@pytest.mark.skipif(JIT_DISABLED, reason="runs the suite itself")
@pytest.mark.parametrize(
    "environment",
    [{"NUMBA_CPU_NAME": "haswell"}, {"NUMBA_CPU_NAME": "generic"}, {"NUMBA_DISABLE_JIT": "1"}],
    ids=["haswell", "generic", "no-jit"],
)
@pytest.mark.timeout(900)
def test_kernel_suite_on_other_targets(environment: dict[str, str], repo_root: Path) -> None:
    """Exactness must not depend on the instructions, nor on compiling at all."""
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
            str(HERE / "test_kernels.py"), str(HERE / "test_gates.py"),
        ],
        cwd=repo_root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]


class Emitter(NamedTuple):
    """What the pieces of IR ask of the emitter of an intrinsic."""

    builder: ir.IRBuilder
    isa: str


def assembly(triple: str, cpu: str, features: str, *, head: bool = False) -> str:
    """The inner loop of `dot1`, or of `head_bounds16`, compiled for a target."""
    isa = dot_int8._choose(frozenset(f[1:] for f in features.split(",") if f))
    pointer, wide = ir.IntType(8).as_pointer(), ir.IntType(64)
    module = ir.Module()
    module.triple = triple
    result = ir.VectorType(ir.FloatType(), 16) if head else ir.IntType(32)
    function = ir.Function(module, ir.FunctionType(result, [pointer, pointer, wide]), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    row, query, size = function.args
    if head:
        builder.ret(heads._dots16(Emitter(builder, isa), row, query))  # type: ignore[arg-type]
    else:
        (part,) = dot_int8._loop_dots(builder, isa, [row], query, size)
        lanes = dot_int8._LANES[isa]
        name = f"llvm.vector.reduce.add.v{lanes}i32"
        builder.ret(dot_int8._call(builder, name, ir.IntType(32), part))
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(cpu=cpu, features=features, opt=3)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    return machine.emit_assembly(parsed)


@pytest.mark.parametrize(
    ("triple", "cpu", "features", "instruction"),
    [
        ("aarch64-unknown-linux-gnu", "neoverse-n1", "+dotprod", "sdot"),
        ("aarch64-unknown-linux-gnu", "generic", "", "smull"),
        ("x86_64-unknown-linux-gnu", "x86-64-v4", "+avx512vnni,+avx512bw,+avx512vl", "vpdpbusd"),
        ("x86_64-unknown-linux-gnu", "alderlake", "+avxvnni,+avx2", "vpdpbusd"),
        ("x86_64-unknown-linux-gnu", "haswell", "+avx2", "vpmaddwd"),
        ("x86_64-unknown-linux-gnu", "x86-64", "", "pmul"),
    ],
)
def test_instructions_by_target(triple: str, cpu: str, features: str, instruction: str) -> None:
    assert instruction in assembly(triple, cpu, features)


@pytest.mark.parametrize(
    ("triple", "cpu", "features", "instruction"),
    [
        ("aarch64-unknown-linux-gnu", "neoverse-n1", "+dotprod", "sdot"),
        ("aarch64-unknown-linux-gnu", "generic", "", "smlal"),
        ("x86_64-unknown-linux-gnu", "x86-64-v4", "+avx512vnni,+avx512bw,+avx512vl", "vpdpbusd"),
        ("x86_64-unknown-linux-gnu", "alderlake", "+avxvnni,+avx2", "vpdpbusd"),
        ("x86_64-unknown-linux-gnu", "haswell", "+avx2", "vpmaddubsw"),
        ("x86_64-unknown-linux-gnu", "x86-64", "", "pmaddwd"),
    ],
)
def test_instructions_of_heads_by_target(
    triple: str, cpu: str, features: str, instruction: str
) -> None:
    assert instruction in assembly(triple, cpu, features, head=True)


def test_the_choice_prefers_the_widest() -> None:
    choices = {
        "vnni512": {"avx512vnni", "avx512bw", "avx2"},
        "vnni256": {"avxvnni", "avx2"},
        "avx2": {"avx2", "fma"},
        "sdot": {"dotprod", "neon"},
        "generic": {"sse2"},
    }
    for name, features in choices.items():
        assert dot_int8._choose(frozenset(features)) == name
    assert dot_int8._choose(frozenset({"avx512vnni", "avx512vl", "avx2"})) == "vnni256"
