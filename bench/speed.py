"""``python -m bench speed``: kernels and whole writes against named peers, in one run.

Runs ``bench/kernels`` under pytest-benchmark, measures the machine's own limits beside it, and
with ``--write`` puts the tables into ``docs/kernels.md`` and the figures into
``bench/kernels/result.json``. ``--check`` compares the ratios of a run with that file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "bench" / "kernels" / "result.json"
TOLERANCE = 0.6  # a ratio may fall to so much of the committed one before it counts as a loss


def run(full: bool, select: str | None) -> dict[str, Any]:
    """All benches and limits; one thread for every library."""
    from bench.kernels.limits import cold_starts, head_scan, machine, member_bytes, read_bandwidth
    from bench.kernels.report import compact

    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "RSM_FAST_BENCH_FULL": "1" if full else "0",
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "raw.json"
        command = [
            sys.executable, "-m", "pytest", "bench/kernels", "-q", "-p", "no:cacheprovider",
            "-o", "python_files=bench_*.py", "-o", "python_functions=bench_*",
            "-o", "filterwarnings=default", "--timeout=0", "--benchmark-disable-gc",
            "--benchmark-columns=median,min", f"--benchmark-json={file}",
            "--benchmark-timer=time.thread_time",  # not the time that others took the CPU
        ]  # fmt: skip
        if select:
            command += ["-k", select]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        if done.returncode not in (0, 5):
            raise SystemExit(done.returncode)
        rows = compact(json.loads(file.read_text("utf-8")))
    return {
        "machine": machine(),
        "command": f"python -m bench speed{' --full' * full}",
        "rows": rows,
        "bandwidth": read_bandwidth(),
        "head scan": head_scan(),
        "member bytes": member_bytes(),
        "cold starts": cold_starts(),
    }


def losses(result: dict[str, Any], committed: dict[str, Any]) -> list[str]:
    """Ratios that fell against the committed run."""
    from bench.kernels.report import ratios

    now, before = ratios(result["rows"]), ratios(committed["rows"])
    return [
        f"{name}: {now[name]:.2f}x, was {before[name]:.2f}x"
        for name in sorted(now.keys() & before.keys())
        if now[name] < TOLERANCE * before[name]
    ]


def main(arguments: list[str]) -> int:
    """Run, print, and write or check."""
    parser = argparse.ArgumentParser(prog="python -m bench speed", description=__doc__)
    parser.add_argument("--full", action="store_true", help="up to a million members")
    parser.add_argument("--write", action="store_true", help="write docs and the result file")
    parser.add_argument("--check", action="store_true", help="compare ratios with the result file")
    parser.add_argument("-k", dest="select", help="only the benches that pytest selects by this")
    asked = parser.parse_args(arguments)

    from bench.kernels.report import plot, tables, write_between_markers

    result = run(asked.full, asked.select)
    parts = tables(result)
    for name, part in parts.items():
        print(f"\n## {name}\n\n{part}")
    if asked.write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_between_markers(ROOT / "docs" / "kernels.md", parts)
        plot(result["rows"], ROOT / "docs" / "kernels.svg")
    if asked.check:
        lost = losses(result, json.loads(RESULT.read_text("utf-8")))
        print("\n".join(lost) or "no ratio was lost")
        return 1 if lost else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
