"""Why the sessions' options are what they are: each one changed, everything else kept.

``python -m bench.embedding_options MODEL.onnx`` prints CPU milliseconds of one text by its
tokens, for `session_options` and for every deviation from it, taken in turns and the best
of all; then CPU microseconds per token by batch size. MODEL is an encoder with a batch
dimension (a model optimized by this project takes one text at a time and skips the latter).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rsm_fast.embedding.cpu import instructions
from rsm_fast.embedding.onnxfile import summarise
from rsm_fast.embedding.session import session_options

SIZES = (16, 128, 512)


def deviations(ort: Any) -> dict[str, Callable[[Any], None]]:
    levels = ort.GraphOptimizationLevel

    def option(name: str, value: Any) -> Callable[[Any], None]:
        return lambda options: setattr(options, name, value)

    def entry(name: str, value: str) -> Callable[[Any], None]:
        return lambda options: options.add_session_config_entry(name, value)

    return {
        "as shipped": lambda options: None,
        "SkipLayerNormFusion on": entry("optimization.disable_specified_optimizers", ""),
        "optimization level basic": option("graph_optimization_level", levels.ORT_ENABLE_BASIC),
        "optimization off": option("graph_optimization_level", levels.ORT_DISABLE_ALL),
        "memory pattern on": option("enable_mem_pattern", True),
        "CPU arena off": option("enable_cpu_mem_arena", False),
        "prepacking off": entry("session.disable_prepacking", "1"),
        "two intra-op threads, no spinning": option("intra_op_num_threads", 2),
        "u8 x u8 products (CPUs without VNNI)": entry("session.x64quantprecision", "1"),
    }


def feed_of(session: Any, ids: np.ndarray) -> dict[str, np.ndarray]:
    values = {"attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return {item.name: values.get(item.name, ids) for item in session.get_inputs()}


def cpu_seconds(session: Any, feed: dict[str, np.ndarray]) -> float:
    start = time.process_time()
    session.run(None, feed)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    import onnxruntime as ort

    kind = summarise(arguments.model).kind
    random = np.random.default_rng(0)
    sessions = {}
    for name, change in deviations(ort).items():
        options = session_options(kind, instructions())
        change(options)
        sessions[name] = ort.InferenceSession(
            str(arguments.model), options, providers=["CPUExecutionProvider"]
        )
    best: dict[tuple[str, int], float] = {}
    for _ in range(arguments.rounds):
        for name, session in sessions.items():
            for size in SIZES:
                feed = feed_of(session, random.integers(1000, 29_000, (1, size)))
                seconds = cpu_seconds(session, feed)
                best[name, size] = min(best.get((name, size), np.inf), seconds)
    print(f"{arguments.model} ({kind}), CPU ms of one text\n")
    print("| options | " + " | ".join(map(str, SIZES)) + " |\n|---|" + "---|" * len(SIZES))
    for name in sessions:
        print(f"| {name} | " + " | ".join(f"{best[name, n] * 1e3:.2f}" for n in SIZES) + " |")
    shipped = sessions["as shipped"]
    if shipped.get_inputs()[0].shape[0] == 1:
        return
    batches = (1, 2, 4, 8, 16, 32)
    print("\nCPU us per token by batch size\n")
    print("| tokens | " + " | ".join(map(str, batches)) + " |\n|---|" + "---|" * len(batches))
    for size in (8, 16, 32, 64, 128, 256):
        cells = []
        for batch in batches:
            feed = feed_of(shipped, random.integers(1000, 29_000, (batch, size)))
            seconds = min(cpu_seconds(shipped, feed) for _ in range(arguments.rounds))
            cells.append(f"{seconds / (batch * size) * 1e6:.0f}")
        print(f"| {size} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
