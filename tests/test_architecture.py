"""The shape of the code: who may import whom, and what an import may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAVY = ("numba", "faiss", "onnxruntime", "tokenizers")

# Data flows down this list; a module imports only what stands above it here.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "rsm_fast._version",
        "rsm_fast.closing",
        "rsm_fast.errors",
        "rsm_fast.frozen",
        "rsm_fast.numbered",
        "rsm_fast.recent",
    ),
    ("rsm_fast.instants", "rsm_fast.modelfiles"),
    (
        "rsm_fast.types",
        "rsm_fast.kernels",
        "rsm_fast.analysis",
        "rsm_fast.chunking",
        "rsm_fast.llm",
    ),
    ("rsm_fast.tokens", "rsm_fast.presets"),
    ("rsm_fast.embedding", "rsm_fast.columns", "rsm_fast.small"),
    ("rsm_fast.codetable",),
    ("rsm_fast.arena",),
    ("rsm_fast.clustering", "rsm_fast.lexical"),
    ("rsm_fast.index", "rsm_fast.store"),
    ("rsm_fast.retrieval", "rsm_fast.packing", "rsm_fast.settings"),
    ("rsm_fast.state",),
    ("rsm_fast.core",),
    ("rsm_fast.drafting",),
    ("rsm_fast.writing", "rsm_fast.reading", "rsm_fast.verifying"),
    ("rsm_fast.forgetting", "rsm_fast.looking", "rsm_fast.maintenance"),
    ("rsm_fast.memory",),
    ("rsm_fast.warming",),
    ("rsm_fast", "rsm_fast.sample", "rsm_fast.notes"),
    ("rsm_fast.integrations", "rsm_fast.inspect"),
    ("rsm_fast.cli",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def modules(root: Path) -> dict[str, Path]:
    found = {}
    for path in sorted((root / "rsm_fast").rglob("*.py")) + sorted((root / "kernels").glob("*.py")):
        parts = list(path.relative_to(root).with_suffix("").parts)
        if parts[0] == "kernels":
            parts.insert(0, "rsm_fast")
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    for length in range(len(parts), 1, -1):
        if ".".join(parts[:length]) in RANK:
            return ".".join(parts[:length])
    return module if module == "rsm_fast" else None


def imports_of(path: Path) -> set[str]:
    """Every rsm_fast module imported anywhere in a file, but for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name for name in found if name == "rsm_fast" or name.startswith("rsm_fast.")}


def test_every_module_has_a_layer_and_imports_only_above_it(repo_root: Path) -> None:
    wrong = []
    for module, path in modules(repo_root).items():
        own = layer_of(module)
        if own is None:
            wrong.append(f"{module} has no layer")
            continue
        for imported in imports_of(path):
            other = layer_of(imported)
            if other is None:
                wrong.append(f"{module} imports {imported}, which has no layer")
            elif other != own and RANK[other] >= RANK[own] and module != "rsm_fast":
                wrong.append(f"{module} imports {imported}, which stands below or beside it")
    assert not wrong, "\n".join(wrong)


def test_only_the_decorator_calls_njit_and_nothing_unpickles(repo_root: Path) -> None:
    wrong = []
    for module, path in modules(repo_root).items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                jit = name in ("numba.njit", "numba.jit", "numba.prange", "numba.vectorize")
                if jit and module != "rsm_fast.kernels.jit":
                    wrong.append(f"{module} imports {name}")
                if name.split(".")[0] in ("pickle", "cloudpickle", "dill", "marshal", "shelve"):
                    wrong.append(f"{module} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_module_is_a_giant(repo_root: Path) -> None:
    giants = {
        module: lines
        for module, path in modules(repo_root).items()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 650
    }
    assert not giants


def run_python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("module", ["rsm_fast", "rsm_fast.memory", "rsm_fast.cli"])
def test_f01_import_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert run_python(code).strip() == "[]"


@pytest.mark.timing
def test_f01_import_is_quick() -> None:
    run_python("import rsm_fast")  # bytecode and page cache
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        run_python("import rsm_fast")
        whole = time.perf_counter() - start
        start = time.perf_counter()
        run_python("pass")
        best = min(best, whole - (time.perf_counter() - start))
    assert best < 0.6  # FAULTS F01: 0.3 s, doubled
