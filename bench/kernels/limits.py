"""What the machine can do at best, beside which the kernels' figures stand; and cold starts."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from typing import Any

import numpy as np

__all__ = [
    "HEAD_SCAN_BYTES",
    "cold_starts",
    "head_scan",
    "machine",
    "member_bytes",
    "read_bandwidth",
]

HEAD_SCAN_BYTES = 64 + 3 * 4
"""What the first scan reads of a member: its codes, and three float32 numbers."""

_FIRST_CALLS = """
import time
start = time.perf_counter()
import sys
import numpy as np
from rsm_fast.arena import Arena
from rsm_fast.clustering import Clusterer
vector = np.zeros(384, np.float32)
vector[3] = 1.0
arena = Arena(384)
clusterer = Clusterer(arena, gate="nearest-mean", tau=0.5)
clusterer.add(vector, pk=1, tokens=3, micros=5, session=0)
print(time.perf_counter() - start, time.process_time())
assert "numba" not in sys.modules
from rsm_fast.index import top_members
top_members(arena, vector, 1)
print(time.perf_counter() - start, time.process_time())
clusterer.add(vector, pk=2, tokens=3, micros=5, session=0)
assert "faiss" not in sys.modules and "onnxruntime" not in sys.modules
print(time.perf_counter() - start, time.process_time())
"""


def machine() -> dict[str, str]:
    """Processor, instruction set and versions."""
    from rsm_fast.kernels.dot_int8 import instruction_set

    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        pass
    packages = ("numpy", "numba", "llvmlite", "faiss-cpu", "usearch", "hnswlib", "scikit-learn")
    return {
        "processor": f"{model}, {os.cpu_count()} CPUs",
        "int8": instruction_set(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def read_bandwidth() -> list[dict[str, Any]]:
    """Bytes a second that one thread sums, by size of the working set."""
    rows = []
    for size in (256 << 10, 2 << 20, 16 << 20, 256 << 20):
        data = np.ones(size // 8, np.int64)
        times: list[float] = []
        for _ in range(max(5, min(200, (1 << 30) // size))):
            start = time.thread_time()
            data.sum()
            times.append(time.thread_time() - start)
        rows.append(
            {"bytes": size, "best": size / min(times), "median": size / statistics.median(times)}
        )
    return rows


def head_scan(sizes: tuple[int, ...] = (10_000, 100_000)) -> list[dict[str, Any]]:
    """Bytes a second that the first scan reads."""
    from bench.kernels.conftest import arena_of, real
    from rsm_fast.kernels.quantize import make_query, quantize_row_
    from rsm_fast.kernels.rows import HEAD, TURNED, Codes
    from rsm_fast.kernels.topk import scan_

    rows = []
    for size in sizes:
        arena = arena_of(size)
        table: Codes = arena.table.columns
        vector = real()[1][0]
        code = np.empty(vector.size + TURNED, np.int8)
        query = make_query(
            arena.table.limits, arena.table.rotation, HEAD, code,
            *quantize_row_(vector, code[: vector.size]), vector, np.empty(TURNED, np.float32), 0,
        )  # fmt: skip
        query = query._replace(
            correction=np.int32(query.correction),
            **{k: np.float32(v) for k, v in query._asdict().items() if isinstance(v, float)},
        )
        bounds, peaks = np.empty(size + 16, np.float32), np.empty(size // 16 + 1, np.float32)
        times = []
        for _ in range(200):
            start = time.thread_time()
            scan_(table, query, size, bounds, peaks)
            times.append(time.thread_time() - start)
        read = size * HEAD_SCAN_BYTES
        rows.append(
            {"size": size, "best": read / min(times), "median": read / statistics.median(times)}
        )
    return rows


def member_bytes(size: int = 10_000) -> list[dict[str, Any]]:
    """Bytes a member, by what each index says of itself (or writes)."""
    import faiss
    import hnswlib
    from usearch.index import Index

    from bench.kernels.conftest import arena_of, stored
    from rsm_fast.arena import Arena

    vectors = stored(size)
    dim = vectors.shape[1]
    numbers = np.arange(size)
    small = Arena(dim, dtype="int8")
    small.append_many(vectors, pk=numbers, tokens=numbers, micros=numbers, session=numbers * 0)
    found = {
        "rsm_fast": arena_of(size).nbytes,
        "rsm_fast, int8": small.nbytes,
        "NumPy matvec": vectors.nbytes,
    }
    for name, kind in (("IndexFlatIP", "Flat"), ("SQ8", "SQ8"), ("HNSW32", "HNSW32")):
        index = faiss.index_factory(dim, kind, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        found[f"FAISS {name}"] = len(faiss.serialize_index(index))
    graph = Index(ndim=dim, metric="ip", dtype="f32")
    graph.add(numbers, vectors, threads=1)
    found["usearch HNSW"] = graph.serialized_length
    other = hnswlib.Index(space="ip", dim=dim)
    other.init_index(max_elements=size, ef_construction=100, M=32)
    other.add_items(vectors, num_threads=1)
    found["hnswlib"] = other.index_file_size()
    return [{"who": who, "bytes": total / size} for who, total in found.items()]


def cold_starts(trials: int = 5) -> list[dict[str, Any]]:
    """Seconds from process start to the end of some first calls, bytecode compiled."""
    calls = ("first add", "then the first search", "then an add by the kernels")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
        for state, count in (("empty kernel cache", 1), ("warm kernel cache", trials)):
            runs = []
            for _ in range(count):
                done = subprocess.run(
                    [sys.executable, "-c", _FIRST_CALLS],
                    capture_output=True, text=True, check=True, env=environment,
                )  # fmt: skip
                runs.append([[float(x) for x in line.split()] for line in done.stdout.splitlines()])
            for call, (wall, cpu) in zip(calls, np.min(runs, axis=0).tolist(), strict=True):
                rows.append({"what": f"{state}: {call}", "wall": wall, "cpu": cpu})
    return rows
