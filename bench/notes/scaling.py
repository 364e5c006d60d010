"""A-MEM's scaling claim: time per retrieval over the number of notes, beside what limits it.

The paper reports 0.31 us at 1,000 notes, growing to 3.70 us at 1,000,000.
``python -m bench.notes.scaling --write`` runs up to 100,000 and writes the tables into
docs/notes.md; ``--full`` adds 1,000,000. Run it pinned: ``taskset -c 1``.

Graphs take long to build, so they are kept in ``--built`` and read back by the next run:
``--only-build`` makes them while the machine has other things to do, ``--resume`` measures
what the results lack.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from bench.datasets import read_dataset
from bench.kernels.vectors import noisy_copies, real_vectors
from bench.notes.engines import ENGINES, ChromaWorker, Engine, Graph
from rsm_fast.embedding import as_embedder
from rsm_fast.kernels.jit import warmup

__all__ = ["Floor", "Row", "main", "measure", "tables"]

F32 = npt.NDArray[np.float32]

SIZES = (1_000, 10_000, 100_000)
FULL_SIZE = 1_000_000
PAPER_US = {1_000: 0.31, 1_000_000: 3.70}
K = 10
WANTED = 0.99
_QUERIES = 100
_ROUNDS = 5
_PAGE = Path(__file__).resolve().parents[2] / "docs" / "notes.md"
_RESULTS = Path(__file__).resolve().parents[2] / "build" / "notes" / "scaling.json"


@dataclass(frozen=True)
class Row:
    """One engine at one size.

    Attributes
    ----------
    micros : float
        Mean processor time of a query, each query's the best of some rounds.
    recall : float
        Share of the exact k that was found.
    effort : int
        Least setting that reached the wanted recall, or the last one tried.
    """

    engine: str
    n: int
    micros: float
    recall: float
    bytes: int
    build_seconds: float
    effort: int


@dataclass(frozen=True)
class Floor:
    """One thing that a retrieval may consist of, and its time."""

    what: str
    micros: float


# -- measuring --------------------------------------------------------------------------------


def measure(
    name: str,
    engine: Engine,
    vectors: F32,
    queries: F32,
    exact: npt.NDArray[np.float64],
    kept: Path | None = None,
) -> Row:
    """Build one engine, find the least effort that reaches the recall, and time it.

    Parameters
    ----------
    exact : float64[q]
        Cosine of the k-th best row of each query, by the definition.
    kept : Path or None
        As in `built`.
    """
    build = built(name, engine, vectors, kept)
    recall, effort = 0.0, 0
    for effort in engine.efforts:
        found = [engine.search(query, K, effort) for query in queries]
        recall = _recall(found, vectors, queries, exact)
        if recall >= WANTED:
            break
    micros = _best_micros(lambda query: engine.search(query, K, effort), queries)
    return Row(name, len(vectors), micros, recall, engine.nbytes(), build, effort)


def built(name: str, engine: Engine, vectors: F32, kept: Path | None = None) -> float:
    """Build an engine, or read back what an earlier run built; processor seconds of building.

    Parameters
    ----------
    kept : Path or None
        Folder of the graphs that were built, if they are to be kept.
    """
    file = None
    if kept is not None and isinstance(engine, Graph):
        kept.mkdir(parents=True, exist_ok=True)
        file = kept / f"{name.replace(' ', '-')}-{len(vectors)}"
        spent = file.with_suffix(".seconds")
        if spent.exists():
            engine.load(file, vectors.shape[1])
            return float(spent.read_text("utf-8"))
    begin = time.process_time()
    engine.build(vectors)
    seconds = time.process_time() - begin
    if file is not None and isinstance(engine, Graph):
        engine.save(file)
        spent.write_text(str(seconds), "utf-8")
    return seconds


def _best_micros(search: Callable[[F32], Any], queries: F32) -> float:
    """Mean over the queries of the best time that each had in some rounds.

    Processor time of this thread, where all engines search: other programs do not count.
    """
    best = np.full(len(queries), np.inf)
    for _ in range(_ROUNDS):
        for number, query in enumerate(queries):
            begin = time.thread_time()
            search(query)
            best[number] = min(best[number], time.thread_time() - begin)
    return float(1e6 * best.mean())


def kth_best(vectors: F32, queries: F32) -> npt.NDArray[np.float64]:
    """Cosine of the k-th best row of each query, float64[q]."""
    best = np.full((len(queries), K), -np.inf)
    wide = queries.astype(np.float64)
    for start in range(0, len(vectors), 20_000):
        scores = wide @ vectors[start : start + 20_000].astype(np.float64).T
        best = np.partition(np.concatenate((best, scores), 1), -K, axis=1)[:, -K:]
    return best.min(1)


def _recall(
    found: Sequence[npt.NDArray[np.int64]],
    vectors: F32,
    queries: F32,
    exact: npt.NDArray[np.float64],
) -> float:
    """Share of the k that are as near as the k-th best; equal cosines count alike."""
    right = 0
    for rows, query, limit in zip(found, queries, exact, strict=True):
        rows = np.unique(rows[rows >= 0])
        scores = vectors[rows].astype(np.float64) @ query.astype(np.float64)
        right += int(np.count_nonzero(scores >= limit - 1e-6))
    return right / (K * len(queries))


# -- what a time can cover --------------------------------------------------------------------


@numba.njit(cache=False)
def _chase(following: npt.NDArray[np.int64], steps: int) -> int:
    at = 0
    for _ in range(steps):
        at = following[at]
    return at


@numba.njit(cache=False)
def _sum(values: npt.NDArray[np.int64]) -> int:
    total = 0
    for value in values:
        total += value
    return total


def _seconds(run: Callable[[], Any], rounds: int = 5) -> float:
    run()
    best = float("inf")
    for _ in range(rounds):
        begin = time.thread_time()
        run()
        best = min(best, time.thread_time() - begin)
    return best


def floors(query: F32, megabytes: int = 1024) -> tuple[list[Floor], float]:
    """Times of the smallest parts, and the bytes that one thread reads per microsecond."""
    import faiss

    repeat = 2_000
    known = {query.tobytes(): np.arange(K)}
    key = query.tobytes()
    hash(key)
    other = query.copy()
    one = faiss.IndexFlatIP(len(query))
    one.add(query[None])
    asked = query[None]

    def nothing() -> None:
        return None

    def times(call: Callable[[], Any]) -> float:
        def loop() -> None:
            for _ in range(repeat):
                call()

        return 1e6 * _seconds(loop) / repeat

    empty = times(nothing)
    size = megabytes * 2**20 // 8
    order = np.random.default_rng(0).permutation(size)
    following = np.empty(size, np.int64)
    following[order] = np.roll(order, 1)
    hops = 20_000
    hop = 1e6 * _seconds(lambda: _chase(following, hops), 20) / hops
    part = size // 16
    read = 1e6 * min(
        _seconds(partial(_sum, following[start : start + part]), 1)
        for start in range(0, size - part + 1, part)
    )
    looked_up, product = times(lambda: known[key]), times(lambda: other @ query)
    searched = times(lambda: one.search(asked, 1))
    parts = [
        Floor("a Python call that does nothing", empty),
        Floor("looking up the finished answer of a known query in a dict", looked_up),
        Floor("one step to a random place in memory (a hop of a graph walk, at least)", hop),
        Floor("one dot product of 384 dimensions, called from Python", product),
        Floor("one call of FAISS for one query on an index of one vector", searched),
    ]
    return parts, following[:part].nbytes / read


def _questions() -> list[str]:
    """Questions of RealMem, spread over all of its personas."""
    root = Path(__file__).resolve().parents[2]
    data = Path(os.environ.get("RSM_FAST_DATA", root.parent / "shared" / "data"))
    streams = read_dataset("realmem", data / "realmem").streams
    asked = [question.text for stream in streams for question in stream.questions]
    return asked[:: max(len(asked) // _QUERIES, 1)][:_QUERIES]


def _embedded(texts: Sequence[str]) -> tuple[F32, Floor]:
    """Vectors of questions, and the median processor time of one, all threads together."""
    embedder = as_embedder(None)
    embedder.embed_queries(["the first call loads the model"])
    vectors, seconds = [], []
    for text in texts:
        begin = time.process_time()
        vectors.append(embedder.embed_queries([text]))
        seconds.append(time.process_time() - begin)
    part = Floor(f"embedding one question ({embedder.name})", 1e6 * float(np.median(seconds)))
    return np.concatenate(vectors), part


# -- writing ----------------------------------------------------------------------------------


def tables(result: dict[str, Any]) -> str:
    """The page's part between the markers."""
    rows = [Row(**row) for row in result["rows"]]
    floor = [Floor(**part) for part in result["floors"]]
    sizes = sorted({row.n for row in rows})
    rate = result["bytes_per_us"]
    lines = [
        f"Measured by `python -m bench.notes.scaling --write` on {result['machine']}, one thread; "
        f"{result['versions']}. {result['dim']} dimensions, k = {K}, {result['queries']} questions "
        f"of RealMem. Times are processor times: of each query the best of {_ROUNDS} rounds, "
        "and their mean (ChromaDB: of all its threads). "
        f"Graphs: the least effort that reaches a recall of {WANTED}. Vectors: MiniLM embeddings "
        f"of RealMem, from {result['real']:,} on noisy copies of them.",
        "",
        "| engine | " + " | ".join(f"{n:,} notes" for n in sizes) + " |",
        "|---|" + "---|" * len(sizes),
        "| **reported in the paper** | "
        + " | ".join(f"{PAPER_US[n]:.2f} us" if n in PAPER_US else "(between)" for n in sizes)
        + " |",
    ]
    by_engine: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_engine.setdefault(row.engine, {})[row.n] = row
    for engine, at in by_engine.items():
        cells = [_cell(at.get(n)) for n in sizes]
        lines.append(f"| {engine} | {' | '.join(cells)} |")
    reading = [f"{n * result['dim'] / rate:,.1f} us" for n in sizes]
    lines += [
        f"| *reading n x {result['dim']} bytes once ({rate / 1000:.0f} GB/s)* | "
        + " | ".join(reading)
        + " |",
        "",
        "| engine | " + " | ".join(f"bytes a note, build at {n:,}" for n in sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    for engine, at in by_engine.items():
        cells = [
            f"{_bytes(at[n])}, {at[n].build_seconds:,.2f} s" if n in at else "not run"
            for n in sizes
        ]
        lines.append(f"| {engine} | {' | '.join(cells)} |")
    lines += ["", "| part of a retrieval | time |", "|---|---|"]
    lines += [f"| {part.what} | {_time(part.micros)} |" for part in floor]
    lines += [f"\n{note}" for note in result.get("notes", [])]
    return "\n".join(lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return "not run"
    recall = "exact" if row.effort == 0 and row.recall >= 1 else f"recall {row.recall:.3f}"
    return f"{_time(row.micros)}, {recall}"


def _bytes(row: Row) -> str:
    return f"{row.bytes / row.n:,.0f}" if row.bytes else "not measured"


def _time(micros: float) -> str:
    if micros >= 1000:
        return f"{micros / 1000:,.2f} ms"
    return f"{micros:.3f} us" if micros < 1 else f"{micros:,.1f} us"


def write_page(result: dict[str, Any], page: Path = _PAGE) -> None:
    """Put the tables between the page's markers."""
    text = page.read_text("utf-8")
    begin, end = "<!-- scaling: begin -->", "<!-- scaling: end -->"
    pattern = re.compile(f"{begin}.*?{end}", re.S)
    if not pattern.search(text):
        raise SystemExit(f"{page}: has no markers {begin} and {end}")
    made = f"{begin}\n{tables(result)}\n{end}"
    page.write_text(pattern.sub(lambda _: made, text), "utf-8")


# -- running ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.notes.scaling", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--full", action="store_true", help="1,000,000 as well")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--graphs-up-to", type=int, default=FULL_SIZE, metavar="N",
                        help="leave graphs out above this size")  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="keep what stands in --out")
    parser.add_argument("--built", type=Path, metavar="FOLDER", help="keep built graphs here")
    parser.add_argument("--only-build", action="store_true", help="measure nothing yet")
    parser.add_argument("--chroma-up-to", type=int, default=100_000, metavar="N")
    parser.add_argument("--chroma-python", type=Path, metavar="FILE",
                        help="an interpreter that has chromadb")  # fmt: skip
    parser.add_argument("--out", type=Path, default=_RESULTS, metavar="FILE")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/notes.md")
    parser.add_argument("--again", action="store_true", help="only write, from --out")
    chosen = parser.parse_args(arguments)
    if chosen.again:
        write_page(json.loads(chosen.out.read_text("utf-8")))
        return 0
    if chosen.only_build and chosen.built is None:
        parser.error("--only-build needs --built")
    if chosen.only_build:
        _build(chosen)
        return 0
    result = _run(chosen)
    print(tables(result))
    if chosen.write:
        write_page(result)
    return 0


def _sizes(chosen: argparse.Namespace) -> list[int]:
    return sorted({*chosen.sizes, *([FULL_SIZE] if chosen.full else [])})


def _wanted(chosen: argparse.Namespace, n: int) -> list[str]:
    """Engines that are to run at one size."""
    names = [
        name for name in chosen.engines if n <= chosen.graphs_up_to or not name.endswith("HNSW")
    ]
    if chosen.chroma_python and n <= chosen.chroma_up_to:
        names.append("ChromaDB")
    return names


def _vectors(n: int) -> tuple[F32, int]:
    """Vectors of n notes, and how many of them are real."""
    real = real_vectors(make=False)
    if len(real) < 1000:
        raise SystemExit("make the vectors first: python -m bench.kernels.vectors")
    return noisy_copies(real, n), min(n, len(real))


def _build(chosen: argparse.Namespace) -> None:
    """Make the graphs that `_run` will need."""
    for n in _sizes(chosen):
        vectors, _ = _vectors(n)
        for name in _wanted(chosen, n):
            if name == "ChromaDB":
                seconds = _chroma(chosen, vectors, vectors[:1], build_only=True)["build"]
            elif isinstance(engine := ENGINES[name](), Graph):
                seconds = built(name, engine, vectors, chosen.built)
            else:
                continue
            print(f"{name}, {n:,} notes: {seconds:,.1f} s", file=sys.stderr, flush=True)


def _run(chosen: argparse.Namespace) -> dict[str, Any]:
    warmup()  # compiling is no part of building
    queries, embedding = _embedded(_questions())
    parts, rate = floors(queries[0])
    parts.append(embedding)
    result: dict[str, Any] = {
        "machine": _machine(),
        "versions": ", ".join(
            f"{name} {version(name)}" for name in ("numpy", "faiss-cpu", "usearch", "hnswlib")
        ),
        "dim": queries.shape[1],
        "queries": len(queries),
        "real": 0,
        "bytes_per_us": rate,
        "floors": [asdict(part) for part in parts],
        "rows": [],
        "notes": [],
    }
    if chosen.resume and chosen.out.exists():
        kept = json.loads(chosen.out.read_text("utf-8"))
        result.update(rows=kept["rows"], notes=kept["notes"], real=kept["real"])
    for n in _sizes(chosen):
        done = {row["engine"] for row in result["rows"] if row["n"] == n}
        if not (names := [name for name in _wanted(chosen, n) if name not in done]):
            continue
        vectors, real = _vectors(n)
        result["real"] = max(result["real"], real)
        exact = kth_best(vectors, queries)
        for name in names:
            if name == "ChromaDB":
                row = _chroma_row(chosen, vectors, queries, exact, result)
            else:
                row = measure(name, ENGINES[name](), vectors, queries, exact, chosen.built)
            result["rows"].append(asdict(row))
            print(row, file=sys.stderr, flush=True)
            chosen.out.parent.mkdir(parents=True, exist_ok=True)
            chosen.out.write_text(json.dumps(result, indent=1), "utf-8")
    return result


def _chroma(
    chosen: argparse.Namespace, vectors: F32, queries: F32, *, build_only: bool = False
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as spare:
        folder = (chosen.built or Path(spare)) / f"ChromaDB-{len(vectors)}"
        folder.mkdir(parents=True, exist_ok=True)
        return ChromaWorker(chosen.chroma_python).run(
            vectors, queries, K, folder, rounds=_ROUNDS, build_only=build_only
        )


def _chroma_row(
    chosen: argparse.Namespace,
    vectors: F32,
    queries: F32,
    exact: npt.NDArray[np.float64],
    result: dict[str, Any],
) -> Row:
    given = _chroma(chosen, vectors, queries)
    found = [np.array(rows, np.int64) for rows in given["found"]]
    note = (
        f"ChromaDB {given['version']} on disk, with its default settings, in a Python of its own; "
        "bytes are those of its files."
    )
    if note not in result["notes"]:
        result["notes"].append(note)
    recall = _recall(found, vectors, queries, exact)
    micros = 1e6 * given["seconds"]
    return Row("ChromaDB", len(vectors), micros, recall, given["bytes"], given["build"], -1)


def _machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        match = re.search(r"model name\s*:\s*(.+)", info.read_text())
        model = match[1] if match else model
    return f"{model}, {os.cpu_count()} CPUs, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
