"""What a memory costs on a small machine: peak resident memory, bytes a chunk, idle CPU, disk.

``python -m bench.edge [--chunks 10000] [--models hashing minilm] [--write docs/edge.md]`` prints
the table of that page, or writes it between its markers. Every case runs in its own process,
on one CPU. ``--sizes`` measures instead what each extra
installs, by what is installed here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, cast, get_args

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
IDLE_SECONDS = 2.0
Profile = Literal["default", "edge"]
PROFILES = get_args(Profile)
QUESTION = "What does Biscuit weigh, and when is the next appointment?"

Result = dict[str, float]


# -- what one process does ----------------------------------------------------------------------


def resident(field: str = "VmHWM") -> int:
    """Bytes of this process: the highest so far, or (``VmRSS``) now."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    if found is None:
        raise SystemExit("resident memory can be read on Linux only")
    return 1024 * int(found[1])


def texts(count: int) -> Iterator[dict[str, str]]:
    """Different turns of about 110 characters: the sample conversation, over and over."""
    from rsm_fast import sample

    turns = sample.turns()
    for number in range(count):
        turn = turns[number % len(turns)]
        yield {
            "text": f"{turn.text} (entry {number})",
            "role": turn.role,
            "session": f"{turn.session}-{number // len(turns)}",
            "timestamp": f"{2000 + number // 8400}-{1 + number // 700 % 12:02d}-01",
        }


def warm() -> Result:
    """Compile the kernels before anything is measured: a compiler takes memory of its own."""
    from rsm_fast.kernels.jit import warmup

    return {"seconds": sum(warmup().values())}


def imports() -> Result:
    """Only import what any memory needs."""
    import faiss  # noqa: F401
    import numba  # noqa: F401
    import onnxruntime  # noqa: F401
    import tokenizers  # noqa: F401

    import rsm_fast  # noqa: F401

    return {"peak": resident()}


def ingest(store: Path, profile: Profile, model: str, count: int) -> Result:
    """Fill a store, in the way of an agent that also asks."""
    from rsm_fast import Memory

    with Memory.open(store, profile=profile, embedder=model) as memory:
        memory.add_many(texts(count))
        memory.pack(QUESTION, budget=2000)
        now = resident("VmRSS")  # before the peak, which may grow meanwhile
        return {"peak": resident(), "now": now}


def ask(store: Path, profile: Profile, model: str, count: int) -> Result:
    """Open a store, ask it, then do nothing for a while."""
    from rsm_fast import Memory

    with Memory.open(store, profile=profile, embedder=model) as memory:
        for _ in range(20):
            memory.pack(QUESTION, budget=2000)
        stats = memory.stats()
        if stats.chunks < count:
            raise SystemExit(f"expected {count} chunks, got {stats.chunks}")
        before = time.process_time()
        time.sleep(IDLE_SECONDS)
        idle = time.process_time() - before
        return {
            "now": resident("VmRSS"),  # before the peak, which may grow meanwhile
            "peak": resident(),
            "derived": stats.bytes / stats.chunks,
            "file": stats.file_bytes / stats.chunks,
            "idle": idle / IDLE_SECONDS,
        }


# -- the table ----------------------------------------------------------------------------------


def child(*words: str) -> Result:
    """Run one case in a fresh process, on one CPU."""
    command = [sys.executable, "-m", "bench.edge", "--child", *words]
    cpu = str(min(os.sched_getaffinity(0)))
    run = subprocess.run(
        ["taskset", "-c", cpu, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{run.stderr[-3000:]}")
    result: Result = json.loads(run.stdout)
    return result


def measure(models: list[str], profiles: list[str], chunks: int) -> str:
    """The table of resident memory."""
    child("warm")
    base = child("imports")["peak"]
    lines = [
        "| embedder, profile | peak while filling | peak of opening and asking | the same, above "
        "imports | derived data a chunk | file a chunk | CPU while idle |",
        "|---|---|---|---|---|---|---|",
    ]
    for model in models:
        for profile in profiles:
            with tempfile.TemporaryDirectory() as folder:
                words = (str(Path(folder, "edge.rsm")), profile, model, str(chunks))
                filled, asked = child("ingest", *words), child("ask", *words)
            lines.append(
                f"| {model}, {profile} | {filled['peak'] / MIB:,.0f} MiB "
                f"| {asked['peak'] / MIB:,.0f} MiB "
                f"| {(asked['peak'] - base) / MIB:,.0f} MiB "
                f"| {asked['derived']:,.0f} bytes | {asked['file']:,.0f} bytes "
                f"| {100 * asked['idle']:.1f} % |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    lines += [
        "",
        f"{chunks:,} chunks of about 110 characters; the imports of numba, faiss, onnxruntime and "
        f"tokenizers alone take {base / MIB:,.0f} MiB of it. `python -m bench.edge`, a model at a "
        "time or all at once (`--models`, `--profiles`); one CPU of "
        f"{platform.machine()}, Python {platform.python_version()}.",
    ]
    return "\n".join(lines)


# -- what an extra installs ----------------------------------------------------------------------


def needed(requirements: Iterable[str]) -> set[str]:
    """Names of the distributions that these requirements bring, themselves included.

    Followed through the metadata of what is installed here.
    """
    found: set[str] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    seen = set()
    while waiting:
        requirement, parent_extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": parent_extra}):
            continue
        name = canonicalize_name(requirement.name)
        found.add(name)
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                needs = metadata.requires(name) or []
                waiting += [(Requirement(text), extra) for text in needs]
    return found


def installed_bytes(names: Iterable[str]) -> int:
    """Bytes of the files of these distributions, compiled bytecode left out."""
    return sum(
        Path(str(file.locate())).stat().st_size
        for name in names
        for file in metadata.files(name) or []
        if file.suffix != ".pyc" and Path(str(file.locate())).is_file()
    )


def sizes() -> str:
    """The table of installed sizes, one row an extra whose packages are installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = sum(
        file.stat().st_size
        for part in ("rsm_fast", "kernels")
        for file in (ROOT / part).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    )
    core = needed(project["dependencies"])
    base = installed_bytes(core) + own
    lines = [
        "| install | on disk | beyond the core | packages beyond the core |",
        "|---|---|---|---|",
        f"| `rsm-fast` | {base / MIB:,.0f} MiB | | {len(core)} in all |",
    ]
    for extra, requirements in project["optional-dependencies"].items():
        try:
            more = needed(requirements) - core
        except metadata.PackageNotFoundError as error:
            print(f"{extra}: left out, {error} is not installed here", file=sys.stderr)
            continue
        size = installed_bytes(more)
        lines.append(
            f"| `rsm-fast[{extra}]` | {(base + size) / MIB:,.0f} MiB | {size / MIB:,.1f} MiB "
            f"| {len(more)} |"
        )
    lines += [
        "",
        f"Sum of file sizes, dependencies included, bytecode not; the package itself is "
        f"{own / MIB:.1f} MiB of it. `python -m bench.edge --sizes`; {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}.",
    ]
    return "\n".join(lines)


def replace_table(page: Path, name: str, table: str) -> None:
    """Write a table between ``<!-- NAME -->`` and ``<!-- end -->``.

    Rows that are there already and were not measured this time stay.
    """
    text = page.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {name} -->\n)(.*?)\n?(<!-- end -->)", re.DOTALL)
    found = pattern.search(text)
    if not found:
        raise SystemExit(f"{page}: no marker <!-- {name} -->")
    lines = table.split("\n")
    end = lines.index("")
    new = {line.split("|")[1] for line in lines[:end]}
    old = [line for line in found[2].split("\n") if line.startswith("| ")]
    lines[end:end] = [line for line in old if line.split("|")[1] not in new]
    merged = "\n".join(lines)
    page.write_text(pattern.sub(lambda m: f"{m[1]}{merged}\n{m[3]}", text), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Measure and print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--models", nargs="+", default=["hashing", "minilm"])
    parser.add_argument("--profiles", nargs="+", default=list(PROFILES), choices=PROFILES)
    parser.add_argument("--sizes", action="store_true", help="installed sizes instead of memory")
    parser.add_argument("--write", type=Path, help="page to write the table into")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.child:
        verb, *words = chosen.child
        if verb == "warm":
            result = warm()
        elif verb == "imports":
            result = imports()
        else:
            store, profile, model, count = words
            run = {"ingest": ingest, "ask": ask}[verb]
            result = run(Path(store), cast(Profile, profile), model, int(count))
        print(json.dumps(result))
        return 0
    table = sizes() if chosen.sizes else measure(chosen.models, chosen.profiles, chosen.chunks)
    if chosen.write:
        replace_table(chosen.write, "sizes" if chosen.sizes else "memory", table)
    else:
        print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
