"""From the results of a run to the tables and the plot of docs/kernels.md."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["compact", "plot", "ratios", "tables", "write_between_markers"]

Row = dict[str, Any]


def compact(raw: dict[str, Any]) -> list[Row]:
    """One small row for each benchmark of pytest-benchmark's JSON."""
    rows = []
    for bench in raw["benchmarks"]:
        row = dict(bench["extra_info"])
        spent = row.pop("reads", None)
        if spent:
            row.update(median=float(np.median(spent)) * 1e6, best=float(min(spent)) * 1e6)
        else:
            row.update(median=bench["stats"]["median"] * 1e6, best=bench["stats"]["min"] * 1e6)
        row.setdefault("table", "search")
        rows.append(row)
    return rows


def ratios(rows: list[Row]) -> dict[str, float]:
    """Peer's time over ours (best of each), by operation, size and peer."""
    ours = {(r["table"], r["operation"], r["size"]): r for r in rows if r["who"] == "rsm_fast"}
    found = {}
    for row in rows:
        own = ours.get((row["table"], row["operation"], row["size"]))
        if own is not None and row["who"] != "rsm_fast":
            name = f"{row['operation']} | {row['size']} | {row['who']}"
            found[name] = row["best"] / own["best"]
    return found


def _us(row: Row) -> str:
    def number(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"

    return f"{number(row['median'])} ({number(row['best'])})"


def _table(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _versus(rows: list[Row], name: str) -> str:
    """Sizes down, ours in microseconds and every peer as a ratio to ours."""
    by_size: dict[tuple[str, int], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        if row["table"] == name:
            by_size[row["operation"], row["size"]][row["who"]] = row
    peers = [who for who in dict.fromkeys(r["who"] for r in rows if r["table"] == name)]
    peers = [who for who in peers if who != "rsm_fast"]
    body = []
    for (operation, size), group in by_size.items():
        own = group.get("rsm_fast")
        if own is None:
            continue
        line = [operation, f"{size:,}", _us(own)]
        for who in peers:
            peer = group.get(who)
            ratio = "" if peer is None else f"{peer['median'] / own['median']:.1f}x"
            best = "" if peer is None else f" ({peer['best'] / own['best']:.1f}x)"
            line.append(ratio + best)
        body.append(line)
    return _table(["operation", "size", "rsm_fast, us", *peers], body)


def _plain(rows: list[Row], name: str, facts: tuple[str, ...] = ()) -> str:
    body = [
        [r["operation"], f"{r['size']:,}", r["who"], _us(r), *(str(r.get(f, "")) for f in facts)]
        for r in rows
        if r["table"] == name
    ]
    return _table(["operation", "size", "who", "us, median (best)", *facts], body)


def _bulk(rows: list[Row]) -> str:
    chosen = [r for r in rows if r["table"] == "bulk"]
    body = []
    for row in chosen:
        per_add = row["best"] / row["size"]
        one_by_one = [
            r["best"] for r in chosen
            if r["operation"] == row["operation"] and r["who"] == "one by one"
        ]  # fmt: skip
        ratio = f"{one_by_one[0] / row['best']:.2f}x" if one_by_one else ""
        body.append([row["operation"], row["who"], f"{per_add:.1f}", ratio])
    return _table(["operation", "who", "us an add, best", "against one by one"], body)


def _growth(rows: list[Row]) -> str:
    series: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        if row["table"] in ("search", "words"):
            series[row["operation"], row["who"]].append((row["size"], row["best"]))
    body = []
    for (operation, who), points in series.items():
        if len(points) > 1:
            sizes, times = np.log(np.array(sorted(points))).T
            body.append([operation, who, f"{np.polyfit(sizes, times, 1)[0]:.2f}"])
    return _table(["operation", "who", "time grows as size to the power of"], body)


def tables(result: dict[str, Any]) -> dict[str, str]:
    """Markdown by marker name."""
    rows = result["rows"]
    limits = [
        [f"{r['bytes'] / 2**20:g} MB", f"{r['best'] / 1e9:.0f}", f"{r['median'] / 1e9:.0f}"]
        for r in result["bandwidth"]
    ]
    scans = [
        [f"{r['size']:,}", f"{r['best'] / 1e9:.0f}", f"{r['median'] / 1e9:.0f}"]
        for r in result["head scan"]
    ]
    starts = [
        [r["what"], f"{1e3 * r['cpu']:.0f}", f"{1e3 * r['wall']:.0f}"]
        for r in result["cold starts"]
    ]
    return {
        "machine": _table(
            ["what", "value"],
            [[k, v] for k, v in result["machine"].items()] + [["command", result["command"]]],
        ),
        "search": _versus(rows, "search"),
        "words": _versus(rows, "words"),
        "growth": _growth(rows),
        "crossover": _plain(rows, "cross-over"),
        "means": _plain(rows, "means", ("atoms", "kept")),
        "writes": _plain(rows, "writes"),
        "longest": _plain(rows, "longest", ("longest / median",)),
        "atoms": _plain(rows, "atoms", ("atoms",)),
        "read": _plain(rows, "read", ("rows",)),
        "bulk": _bulk(rows),
        "bases": _versus(rows, "bases"),
        "limits": _table(["working set", "GB/s, best", "median"], limits)
        + "\n\n"
        + _table(["members", "head scan, GB/s, best", "median"], scans),
        "bytes": _table(
            ["who", "bytes a member"],
            [[r["who"], f"{r['bytes']:,.0f}"] for r in result["member bytes"]],
        ),
        "cold": _table(["state", "CPU, ms", "elapsed after the interpreter's start, ms"], starts),
    }


def plot(rows: list[Row], path: Path) -> None:
    """Time against size, both logarithmic."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "rsm_fast"
    import matplotlib.pyplot as plt

    operation = "gate, k = 1, tau 0.7"
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for who in dict.fromkeys(r["who"] for r in rows if r["table"] == "search"):
        points = sorted(
            (r["size"], r["best"])
            for r in rows
            if r["table"] == "search" and r["operation"] == operation and r["who"] == who
        )
        axes.loglog(
            *zip(*points, strict=True), marker="o", label=who, lw=2.5 if who == "rsm_fast" else 1
        )
    axes.set(xlabel="members", ylabel="microseconds, best", title="Nearest of all members")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def write_between_markers(path: Path, parts: dict[str, str]) -> None:
    """Put each part between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``."""
    text = path.read_text(encoding="utf-8")
    for name, part in parts.items():
        pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text, count = re.subn(
            pattern, lambda m, part=part: f"{m[1]}{part}\n{m[2]}", text, flags=re.S
        )
        if count != 1:
            raise ValueError(f"{path}: expected one pair of markers for {name!r}, got {count}")
    path.write_text(text, encoding="utf-8")
