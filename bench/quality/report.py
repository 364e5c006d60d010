"""One self-contained HTML page of a run: tables and pictures."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["write_report"]

_TITLES = {
    "made-with": "Made with",
    "main": "All systems",
    "gains": "The default against each",
    "not-below": "The default against the strongest simple peers",
    "locomo": "LoCoMo by category",
    "ama-types": "AMA by question type and length",
    "ranking": "RealMem's official ranking measures",
    "costs": "What it costs",
    "notes": "A-MEM",
    "ablations": "Parts of the default read path",
    "paper": "Contrasts of the published design",
    "seeds": "Four seeds",
    "embedders": "Other embedders",
}
_STYLE = """body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:80em;padding:0 1em}
table{border-collapse:collapse;font-size:12px}td,th{border:1px solid #ccc;padding:.2em .5em}
th{background:#f3f3f3;text-align:left}svg{max-width:100%;height:auto}"""


def write_report(path: Path, tables: dict[str, str], pictures: Sequence[Path]) -> None:
    """Write the page.

    Parameters
    ----------
    path : Path
    tables : dict
        Markdown by name, as `bench.quality.tables.render_all` gives it.
    pictures : sequence of Path
        SVG files, embedded.
    """
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>rsm_fast: quality</title>",
        f"<style>{_STYLE}</style><h1>How much of the truth fits into the budget</h1>",
    ]
    for picture in pictures:
        drawing = picture.read_text("utf-8")
        parts.append(drawing[drawing.index("<svg") :])
    for name, table in tables.items():
        parts.append(f"<h2>{html.escape(_TITLES.get(name, name))}</h2>{_html(table)}")
    path.write_text("\n".join(parts), "utf-8")


def _html(markdown: str) -> str:
    """A markdown table, or a paragraph, as HTML."""
    lines = markdown.split("\n")
    if not lines[0].startswith("|"):
        return f"<p>{html.escape(markdown)}</p>"
    rows = [[_cell(cell) for cell in line.strip("|").split("|")] for line in lines]
    head, body = rows[0], rows[2:]
    return "".join(
        [
            "<table><tr>",
            *(f"<th>{cell}</th>" for cell in head),
            "</tr>",
            *(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body),
            "</table>",
        ]
    )


def _cell(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(text.strip()))
