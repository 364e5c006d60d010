"""Gather docs/benchmarks.md from the pages that measured: ``python docs/build_benchmarks.py``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "benchmarks.md"

_HEAD = """\
# Benchmarks

<!-- Gathered by docs/build_benchmarks.py from the pages named below; do not edit. -->

Rows of tables that stand, with their conditions and with what they do not show, in the pages named.
Times come from different days of a shared machine: compare ratios, and only within a table.
"""


@dataclass(frozen=True)
class Excerpt:
    """Some rows and columns of one table of a page.

    Attributes
    ----------
    title, about, command : str
        Heading, what the rows say, what measures them anew.
    page, anchor : str
        Where the table stands.
    first : str
        Heading of the table's first column; the first table that has it is taken.
    rows : tuple of str
        What a row begins with, bold or not, to be taken; none: all rows.
    columns : int or None
        How many columns are taken, from the left; None: all.
    """

    title: str
    about: str
    command: str
    page: str
    anchor: str
    first: str
    rows: tuple[str, ...] = ()
    columns: int | None = None


EXCERPTS = (
    Excerpt(
        "Quality",
        "Percent of the evidence in the prompt, by the same embedder and tokens for all.",
        "python -m bench quality run --docs docs/quality.md",
        "quality.md",
        "all-systems",
        "system",
        ("full-context", "budget-rag-n1", "bm25-rag-n1", "bm25-rag-n5", "rrf-n1", "hybrid"),
        4,
    ),
    Excerpt(
        "Kernels",
        "One query; a peer's column says how many times longer it takes, by median and (by best).",
        "python -m bench speed",
        "kernels.md",
        "figures",
        "operation",
        tuple(f"{what} | {n}" for n in ("10,000", "100,000") for what in ("gate", "top 10")),
    ),
    Excerpt(
        "Notes of an agent",
        "Exact search among notes against approximate graphs.",
        "python -m bench.notes.scaling",
        "notes.md",
        "the-scaling-claim",
        "engine",
    ),
    Excerpt(
        "Store",
        "Durable writes, opening, filtering.",
        "python -m bench.store --chunks 100000",
        "file-format.md",
        "cost",
        "what",
    ),
    Excerpt(
        "Packing",
        "What folding equal lines saves, without loss.",
        "python -m bench.packing --write docs/packing.md",
        "packing.md",
        "folding",
        "whole streams",
    ),
    Excerpt(
        "Embedder",
        "Same weights, same run, one thread.",
        "python -m bench.embedding",
        "embedders.md",
        "figures",
        "figure",
    ),
    Excerpt(
        "Small machines",
        "Whole processes, 10,000 chunks.",
        "python -m bench.edge",
        "edge.md",
        "what-it-takes",
        "embedder, profile",
    ),
)


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(_section(excerpt) for excerpt in EXCERPTS)


def _section(excerpt: Excerpt) -> str:
    rows = list(_table(excerpt))
    chosen = [*rows[:2], *_chosen(rows[2:], excerpt)]
    shown = "\n".join("| " + " | ".join(row[: excerpt.columns]) + " |" for row in chosen)
    source = f"[{excerpt.page.removesuffix('.md')}]({excerpt.page}#{excerpt.anchor})"
    return (
        f"\n## {excerpt.title}\n\n{excerpt.about} From {source}; `{excerpt.command}`.\n\n{shown}\n"
    )


def _table(excerpt: Excerpt) -> Iterator[list[str]]:
    """Cells of the first table whose first column is so headed, head and rule included."""
    lines = (DOCS / excerpt.page).read_text(encoding="utf-8").splitlines()
    start = next((at for at, line in enumerate(lines) if _cells(line)[:1] == [excerpt.first]), None)
    if start is None:
        raise SystemExit(f"docs/{excerpt.page}: no table headed {excerpt.first!r}")
    for line in lines[start:]:
        if not line.startswith("|"):
            return
        yield _cells(line)


def _chosen(rows: Iterable[list[str]], excerpt: Excerpt) -> Iterator[list[str]]:
    found = set()
    for row in rows:
        text = " | ".join(row).replace("*", "")
        names = [name for name in excerpt.rows if _begins(text, name)]
        found.update(names)
        if names or not excerpt.rows:
            yield row
    if missing := set(excerpt.rows) - found:
        raise SystemExit(f"docs/{excerpt.page}: no rows {sorted(missing)}")


def _begins(row: str, name: str) -> bool:
    """Whether the row's first cells begin with the parts of the name, the last one equal to it."""
    cells, parts = row.split(" | "), name.split(" | ")
    return cells[len(parts) - 1] == parts[-1] and all(map(str.startswith, cells, parts))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if "|" in line else []


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
