"""Runs systems over data sets; a run that was stopped continues where it stood.

One unit is one system on one stream. Its results are one JSON file, written when it is done
and skipped if it is there and was made with the same versions and budgets.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.datasets import Dataset, Stream, read_dataset
from bench.quality.measures import RANKS, Scorer, ranking_measures
from bench.quality.packed import System
from bench.quality.suite import make_system
from bench.quality.vectors import CachedEmbedder
from rsm_fast.embedding import Embedder, as_embedder
from rsm_fast.tokens import as_token_counter

__all__ = ["BUDGETS", "Plan", "Unit", "read_results", "run", "run_stream"]

BUDGETS = (1000, 2600, 4000, 5000)

_FORMAT = 1
_REPORTING = {"results.py", "stats.py", "tables.py", "pictures.py", "report.py", "__main__.py"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run.

    Attributes
    ----------
    data : tuple of (kind, path)
    systems : tuple of str
    budgets : tuple of int
    embedder : str
        What `as_embedder` takes; ``""`` is the packaged model.
    cache : Path
        Vectors.
    out : Path
        Results.
    questions : int or None
        Only the first so many questions of each stream.
    any_source : bool
        Take finished results as done even if the source has changed since.
    """

    data: tuple[tuple[str, Path], ...]
    systems: tuple[str, ...]
    cache: Path
    out: Path
    budgets: tuple[int, ...] = BUDGETS
    embedder: str = ""
    questions: int | None = None
    any_source: bool = False


@dataclass(frozen=True, slots=True)
class Unit:
    """One system on one stream."""

    kind: str
    path: Path
    stream: int
    name: str
    system: str


def run(plan: Plan, *, workers: int = 2) -> list[Path]:
    """Run what is not done yet.

    Returns
    -------
    list of Path
        The result files of all units of the plan.
    """
    plan.out.mkdir(parents=True, exist_ok=True)
    units = list(_units(plan))
    todo = [unit for unit in units if not _is_done(plan, unit)]
    progress = _Progress(len(units), len(units) - len(todo))
    if todo and workers <= 1:
        for unit in todo:
            _run_unit(plan, unit)
            progress.step(unit)
    elif todo:
        with ProcessPoolExecutor(workers, initializer=_one_thread) as pool:
            running = {pool.submit(_run_unit, plan, unit): unit for unit in todo}
            for future in as_completed(running):
                future.result()
                progress.step(running[future])
    return [_result_path(plan, unit) for unit in units]


def run_stream(
    stream: Stream,
    system: System,
    embedder: CachedEmbedder | Embedder,
    *,
    budgets: Sequence[int],
    ranked: bool,
    scorer: Scorer | None = None,
) -> dict[str, Any]:
    """Put one stream through one system, questions in the order in which they are asked.

    Parameters
    ----------
    stream : Stream
    system : System
    embedder : Embedder
        One that counts its ``seconds`` has them left out of the times.
    budgets : sequence of int
    ranked : bool
        Take the ranking measures too.
    scorer : Scorer, optional
        That of the stream, made here if not given.

    Returns
    -------
    dict
        ``rows`` (one per question and budget), ``rankings``, ``trace`` (chunks, groups and share
        of the largest after each batch), ``stats`` (with times, and what a system adds).
    """
    scorer = scorer or Scorer(stream)
    rows: list[dict[str, Any]] = []
    written = 0
    write_seconds = read_seconds = 0.0
    reads = 0
    rankings = []
    trace: list[tuple[int, int, float]] = []
    for question in sorted(stream.questions, key=lambda question: question.visible):
        if question.visible > written:
            batch = stream.turns[written : question.visible]
            before = getattr(embedder, "seconds", 0.0)
            start = time.perf_counter()
            system.write(batch)
            write_seconds += time.perf_counter() - start
            write_seconds -= getattr(embedder, "seconds", 0.0) - before
            written = question.visible
            state = system.stats()
            trace.append((state.chunks, state.groups, round(state.largest_share, 4)))
        for budget in budgets:
            before = getattr(embedder, "seconds", 0.0)
            start = time.perf_counter()
            packed = system.read(question.text, budget)
            read_seconds += time.perf_counter() - start
            read_seconds -= getattr(embedder, "seconds", 0.0) - before
            reads += 1
            rows.append(
                {
                    "id": question.id,
                    "category": question.category,
                    "tags": list(question.tags),
                    "budget": budget,
                    "tokens": packed.tokens,
                    "folded": packed.folded,
                    **_rounded(scorer.measure(question, packed)),
                }
            )
        if ranked and question.facts:
            sessions = system.ranked_sessions(question.text, max(RANKS))
            measures = ranking_measures(sessions, {fact.session for fact in question.facts})
            rankings.append({"id": question.id, **_rounded(measures)})
    stats = system.stats()
    return {
        "rows": rows,
        "rankings": rankings,
        "trace": trace,
        "stats": {
            "turns": written,
            "chunks": stats.chunks,
            "groups": stats.groups,
            "largest_share": stats.largest_share,
            "bytes": stats.bytes,
            "write_us": 1e6 * write_seconds / max(written, 1),
            "read_us": 1e6 * read_seconds / max(reads, 1),
            **stats.extra,
        },
    }


def read_results(folder: Path) -> Iterator[dict[str, Any]]:
    """The finished units of a run, in the order of their file names."""
    for path in sorted(folder.glob("*/*/*.json")):
        yield json.loads(path.read_text("utf-8"))


def _units(plan: Plan) -> Iterator[Unit]:
    """Stream by stream, so that what the systems of one share is still at hand."""
    for kind, path in plan.data:
        for number, stream in enumerate(_dataset(kind, path).streams):
            for system in plan.systems:
                yield Unit(kind, path, number, stream.name, system)


def _run_unit(plan: Plan, unit: Unit) -> None:
    stream = _dataset(unit.kind, unit.path).streams[unit.stream]
    if plan.questions is not None:
        stream = Stream(stream.name, stream.turns, stream.questions[: plan.questions], stream.group)
    embedder = _embedder(plan.embedder, plan.cache)
    system = make_system(unit.system, embedder, as_token_counter(None))
    try:
        result = run_stream(
            stream,
            system,
            embedder,
            budgets=plan.budgets,
            ranked=unit.kind == "realmem",
            scorer=_scorer(unit.kind, unit.path, unit.stream),
        )
    finally:
        system.close()
    result.update(
        dataset=unit.kind,
        stream=stream.name,
        group=stream.group,
        system=_label(unit.system, plan.embedder),
        made_with=_made_with(plan),
    )
    path = _result_path(plan, unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.{os.getpid()}.part")
    half.write_text(json.dumps(result, ensure_ascii=False), "utf-8")
    half.replace(path)


def _result_path(plan: Plan, unit: Unit) -> Path:
    # The folder tells data sets of the same kind apart, such as two halves.
    place = hashlib.sha256(str(unit.path.resolve()).encode()).hexdigest()[:6]
    system = _label(unit.system, plan.embedder).replace("/", "+")
    return plan.out / f"{unit.kind}-{place}" / system / f"{unit.name}.json"


def _label(system: str, embedder: str) -> str:
    """A system's name in results; another embedder than the packaged one stands behind an @."""
    return f"{system}@{Path(embedder).name}" if embedder else system


def _is_done(plan: Plan, unit: Unit) -> bool:
    path = _result_path(plan, unit)
    if not path.exists():
        return False
    found = json.loads(path.read_text("utf-8"))["made_with"]
    wanted = _made_with(plan)
    if plan.any_source:
        found["source"] = wanted["source"]
    return bool(found == wanted)


def _made_with(plan: Plan) -> dict[str, Any]:
    """What a result depends on beside the system's name."""
    return {
        "format": _FORMAT,
        "rsm_fast": version("rsm-fast"),
        "source": _source_hash(),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "python": platform.python_version(),
        "embedder": plan.embedder or "packaged",
        "budgets": list(plan.budgets),
        "questions": plan.questions,
    }


@lru_cache(maxsize=1)
def _source_hash() -> str:
    """Hash of everything that ranks, packs or measures."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for folder in ("rsm_fast", "kernels", "bench/datasets", "bench/quality"):
        for path in sorted((root / folder).rglob("*.py")):
            place = path.relative_to(root)
            if not {"cli", "integrations"} & set(place.parts) and path.name not in _REPORTING:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@lru_cache(maxsize=8)
def _dataset(kind: str, path: Path) -> Dataset:
    return read_dataset(kind, path)


@lru_cache(maxsize=2)
def _scorer(kind: str, path: Path, number: int) -> Scorer:
    return Scorer(_dataset(kind, path).streams[number])


@lru_cache(maxsize=2)
def _embedder(name: str, cache: Path) -> CachedEmbedder:
    return CachedEmbedder(as_embedder(name or None), cache)


def _one_thread() -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"


def _rounded(measures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 5) for name, value in measures.items()}


class _Progress:
    """A line on stderr that says how far the run is."""

    def __init__(self, total: int, done: int) -> None:
        self.total = total
        self.done = done
        self.before = done
        self.started = time.monotonic()
        self._write("" if done < total else "nothing left to do")

    def step(self, unit: Unit) -> None:
        self.done += 1
        ran = self.done - self.before
        left = (time.monotonic() - self.started) / ran * (self.total - self.done)
        self._write(f"{unit.system} on {unit.kind}/{unit.name}, {left / 60:.1f} min left")

    def _write(self, note: str) -> None:
        end = "\r" if sys.stderr.isatty() and self.done < self.total else "\n"
        bar = "#" * (30 * self.done // max(self.total, 1))
        line = f"[{bar:<30}] {self.done}/{self.total} {note}"
        sys.stderr.write(f"\x1b[2K{line}{end}" if sys.stderr.isatty() else f"{line}\n")
        sys.stderr.flush()
