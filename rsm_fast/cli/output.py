"""How the command line writes: results to stdout, remarks and progress to stderr."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

__all__ = ["Progress", "duration", "json_document", "line", "one_line", "remark", "table"]

_BAR_CELLS = 24
_REDRAW_SECONDS = 0.1


def line(text: str = "") -> None:
    """Write one line of a result."""
    sys.stdout.write(text + "\n")


def json_document(value: object) -> None:
    """Write a result as one JSON document."""
    line(json.dumps(value, ensure_ascii=False, indent=2))


def remark(text: str) -> None:
    """Write one line that is not part of the result."""
    sys.stderr.write(text + "\n")


def table(rows: Iterable[Sequence[Any]], *, indent: int = 0) -> str:
    """Columns side by side: numbers to the right, all else to the left.

    The last column is not padded.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        return ""
    widths = [max(len(text) for text, _ in column) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        parts = [
            text.rjust(width) if right else text.ljust(width)
            for (text, right), width in zip(row, widths, strict=True)
        ]
        lines.append(" " * indent + "  ".join(parts).rstrip())
    return "\n".join(lines)


def _cell(value: Any) -> tuple[str, bool]:
    if isinstance(value, float):
        return f"{value:.3f}", True
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}", True
    return str(value), False


def one_line(text: str, width: int | None = None) -> str:
    """A text on one line, cut to the width of the terminal (80 where there is none)."""
    width = width or shutil.get_terminal_size((80, 24)).columns
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: max(width - 3, 0)].rstrip() + "..."


def duration(microseconds: float) -> str:
    """A length of time in the unit that reads best."""
    if microseconds < 1_000:
        return f"{microseconds:.0f} us"
    if microseconds < 1_000_000:
        return f"{microseconds / 1_000:.1f} ms"
    return f"{microseconds / 1_000_000:.1f} s"


class Progress:
    """A bar on standard error while something goes on; silent unless that is a terminal."""

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = max(total, 1)
        self._shown = sys.stderr.isatty()
        self._begin = time.monotonic()
        self._next = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def update(self, done: float, count: int, unit: str) -> None:
        """Redraw at ``done`` of the total; ``count`` things of a unit are through."""
        now = time.monotonic()
        if not self._shown or (now < self._next and done < self._total):
            return
        self._next = now + _REDRAW_SECONDS
        share = min(done / self._total, 1.0)
        filled = round(share * _BAR_CELLS)
        rate = count / max(now - self._begin, 1e-9)
        text = (
            f"{self._label} [{'#' * filled}{'.' * (_BAR_CELLS - filled)}] {share:4.0%} "
            f"{count:,} {unit}, {rate:,.0f}/s"
        )
        sys.stderr.write("\r\x1b[K" + one_line(text))
        sys.stderr.flush()
