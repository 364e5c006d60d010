"""Every kernel is declared once, has a twin, and compiles to what it declares."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rsm_fast.kernels.jit import JIT_DISABLED, REGISTRY, warmup

pytestmark = pytest.mark.timeout(1200)  # compiling everything takes minutes on a busy machine

SCRIPT = """
import json
import numpy as np
from rsm_fast.arena import Arena
from rsm_fast.clustering import Clusterer
from rsm_fast.index import top_members
rng = np.random.default_rng(7)
vectors = rng.standard_normal((100, 64)).astype(np.float32)  # more than NumPy decides
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
arena = Arena(64)
clusterer = Clusterer(arena, gate="nearest-mean", tau=0.1, rank=2)
for i, v in enumerate(vectors):
    clusterer.assign(arena.append(v, pk=i, tokens=1, micros=i, session=0))
rows, _ = top_members(arena, vectors[3], 5)
print(json.dumps([arena.atom.tolist(), rows.tolist()]))
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**kept, **environment},
    )


def outcome(code: str, **environment: str) -> object:
    done = run(code, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_public_kernel_has_a_twin(repo_root: Path) -> None:
    for module in (repo_root / "kernels").glob("*.py"):
        importlib.import_module(f"rsm_fast.kernels.{module.stem}")
    oracles = "".join(p.read_text("utf-8") for p in (repo_root / "tests").glob("oracles*.py"))
    twins = {
        name
        for text in re.findall(r"Twin of [^\"]*", oracles)
        for name in re.findall(r"`(\w+\.\w+)`", text)
    }
    public = {name for name in REGISTRY if "._" not in name}
    assert public - twins == set()


@pytest.mark.skipif(JIT_DISABLED, reason="plain functions have no signatures")
def test_kernels_have_the_declared_specialisation_only() -> None:
    warmup()
    for name, entry in REGISTRY.items():
        compiled = entry.function.nopython_signatures
        assert len(compiled) == 1, f"{name} grew {compiled}"
        declared, returned = entry.declared()
        assert tuple(compiled[0].args) == tuple(declared), name
        assert compiled[0].return_type == returned, name


@pytest.mark.skipif(JIT_DISABLED, reason="plain functions can be called by anyone")
@pytest.mark.skipif(JIT_DISABLED, reason="without the JIT there are no specialisations")
@pytest.mark.parametrize("early", [True, False])
def test_another_specialisation_leaves_callers_alone(tmp_path: Path, early: bool) -> None:
    code = """
from rsm_fast.kernels.jit import kernel

@kernel("float64(float64)")
def twice(x):
    return x * 2.0

@kernel("float64(float64)")
def four_times(x):
    return twice(x) * 2.0

EARLY = {early} and twice(3)  # a whole number: not what is declared
first = four_times(1.25)
assert twice(3) == 6.0 and len(twice.overloads) == 2
again = kernel("float64(float64)")(lambda x: twice(x) + four_times(x))
print([first, four_times(1.25), again(1.25)])
"""
    script = tmp_path / "script.py"
    script.write_text(code.format(early=early), "utf-8")
    done = outcome(f"import runpy; runpy.run_path({str(script)!r})", NUMBA_CACHE_DIR=str(tmp_path))
    assert done == [5.0, 5.0, 7.5]


def test_an_inner_kernel_refuses_python() -> None:
    importlib.import_module("rsm_fast.kernels.gate")
    entry = REGISTRY["gate.choose_"]
    function = entry.function
    for _ in range(2):  # before it is compiled, and after
        with pytest.raises(TypeError, match="called by kernels only"):
            function(*[None] * len(entry.declared()[0]))
        entry.compile()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="needs another user")
def test_f02_read_only_site_packages_and_no_home() -> None:
    drop = "import os; os.setgid(65534); os.setuid(65534)\n"
    there = run(drop + "import rsm_fast")
    if there.returncode:
        pytest.skip("the checkout itself cannot be read by an unprivileged user")
    done = run(drop + SCRIPT, HOME="/nonexistent", XDG_CACHE_HOME="/nonexistent/cache")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Warning") <= 1
    assert json.loads(done.stdout) == outcome(SCRIPT)


@pytest.mark.timing
def test_f03_first_call_after_warmup_is_no_slower(tmp_path: Path) -> None:
    code = """
import json, time
from rsm_fast import Memory, warmup
warmup()
import numpy as np
memory = Memory(embedder="hashing")
memory.add_many(f"The note number {i} is about the harbour." for i in range(300))
ratios = {}
for verb, calls in (
    ("add", [lambda i=i: memory.add(f"Another note, number {i}.") for i in range(100)]),
    ("search", [lambda i=i: memory.search(f"note {i}", k=5) for i in range(100)]),
    ("pack", [lambda i=i: memory.pack(f"note {i}?", budget=500) for i in range(100)]),
):
    spent = []
    for call in calls:
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    ratios[verb] = spent[0] / float(np.median(spent))
print(json.dumps(ratios))
"""
    worst = float("inf")
    for _ in range(5):
        ratios = outcome(code, NUMBA_CACHE_DIR=str(tmp_path))
        assert isinstance(ratios, dict)
        worst = min(worst, max(ratios.values()))
        if worst < 6.0:
            break
    assert worst < 6.0  # FAULTS F03: 3 times the median, doubled


def test_f04_eight_processes_on_an_empty_cache(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SCRIPT],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(8)
    ]
    results = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * 8, results
    assert len({out for out, _ in results}) == 1


def test_f05_threads_under_the_workqueue_layer() -> None:
    code = SCRIPT + (
        "import threading\n"
        "def read():\n"
        "    for k in range(500):\n"
        "        top_members(arena, vectors[k % 60], 5)\n"
        "threads = [threading.Thread(target=read) for _ in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    outcome(code, NUMBA_THREADING_LAYER="workqueue")


@pytest.mark.parametrize(
    "environment",
    [{"NUMBA_CPU_NAME": "haswell"}, {"NUMBA_CPU_NAME": "generic"}, {"NUMBA_DISABLE_JIT": "1"}],
    ids=["haswell", "generic", "no-jit"],
)
def test_f10_other_targets_decide_the_same(environment: dict[str, str]) -> None:
    assert outcome(SCRIPT, FAISS_OPT_LEVEL="generic", **environment) == outcome(SCRIPT)
