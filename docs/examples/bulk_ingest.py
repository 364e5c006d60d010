"""Bring a folder of conversations in, one namespace a file, and ask one of them.

    python docs/examples/bulk_ingest.py people.rsm conversations/ "What did I plan for June?"

Each file is JSON Lines: one turn a line with text, role, timestamp, session and id. Running it
again changes nothing, because ids that are there already are skipped.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from rsm_fast import Memory


def read_turns(file: Path) -> list[dict[str, Any]]:
    """The turns of one file."""
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def ingest(store: str, folder: Path) -> dict[str, int]:
    """Bring each file of a folder into a namespace of its name; turns held, by namespace."""
    held = {}
    for file in sorted(folder.glob("*.jsonl")):
        turns = read_turns(file)
        begin = time.perf_counter()
        with Memory.open(store, namespace=file.stem) as memory:
            memory.add_many(turns)
            held[file.stem] = memory.stats().turns
        seconds = time.perf_counter() - begin
        sys.stderr.write(f"{file.stem}: {len(turns)} turns in {seconds:.1f} s\n")
    return held


def main(arguments: list[str]) -> int:
    """Ingest, then ask each namespace the question."""
    if len(arguments) != 3:
        sys.stderr.write(__doc__ or "")
        return 2
    store, folder, question = arguments
    for namespace in ingest(store, Path(folder)):
        with Memory.open(store, namespace=namespace) as memory:
            pack = memory.pack(question, budget=500)
        sys.stdout.write(f"== {namespace}: {pack.tokens} tokens\n{pack.text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
