"""``python -m bench convert``: a data set's streams as JSONL turns, for ``rsm-fast ingest``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.datasets import READERS, read_dataset
from rsm_fast.types import Turn

__all__ = ["main", "write_turns"]


def write_turns(turns: Sequence[Turn], path: Path) -> None:
    """Write turns as JSONL, fields without a value left out."""
    with path.open("w", encoding="utf-8") as file:
        for turn in turns:
            record = {key: value for key, value in asdict(turn).items() if value is not None}
            json.dump(record, file, ensure_ascii=False, default=str)
            file.write("\n")


def main(arguments: list[str]) -> int:
    """Convert; 0, or 3 where records had to be left out."""
    parser = argparse.ArgumentParser(prog="python -m bench convert", description=__doc__)
    parser.add_argument("kind", choices=sorted(READERS))
    parser.add_argument("path", type=Path, help="a file, or a folder of files")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("."), help="folder for STREAM.jsonl"
    )
    options = parser.parse_args(arguments)
    dataset = read_dataset(options.kind, options.path)
    options.output.mkdir(parents=True, exist_ok=True)
    for stream in dataset.streams:
        target = options.output / f"{stream.name.replace('/', '_')}.jsonl"
        write_turns(stream.turns, target)
        print(f"{target}: {len(stream.turns):,} turns")
    for problem in dataset.problems:
        print(problem, file=sys.stderr)
    return 3 if dataset.problems else 0
