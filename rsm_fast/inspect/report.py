"""From a memory to a file that a browser opens."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rsm_fast.inspect.findings import MAP_MEMBERS, Findings, examine
from rsm_fast.inspect.page import render

if TYPE_CHECKING:
    from rsm_fast import Memory
    from rsm_fast.presets import Layout, Preset

__all__ = ["write_report"]


def write_report(
    memory: Memory,
    path: str | Path,
    *,
    queries: Sequence[str] | None = None,
    budget: int | None = None,
    preset: str | Preset | None = None,
    layout: Layout | None = None,
    members: int = MAP_MEMBERS,
) -> Findings:
    """Write one HTML page about a memory: atoms, time, and why packs hold what they hold.

    The page loads nothing and sends nothing. It replaces a file of that name as a whole.

    Parameters
    ----------
    memory : Memory
    path : str or Path
        The file to write.
    queries : sequence of str or None
        Questions whose packs are explained. None takes the newest questions that stand in the
        memory, or else the words of its largest atoms.
    budget, preset, layout
        How the packs are made, as in `rsm_fast.Memory.pack`.
    members : int
        Chunks on the map at most, beside those that the packs name. The map's t-SNE takes time and
        memory with the square of it.

    Returns
    -------
    Findings
        What the page shows.

    Raises
    ------
    InvalidInputError
        If a query is empty, or ``members`` is not 1 to 5,000.
    OSError
        If the file cannot be written.
    """
    findings = examine(
        memory, queries=queries, budget=budget, preset=preset, layout=layout, members=members
    )
    _replace(Path(path), render(findings))
    return findings


def _replace(path: Path, text: str) -> None:
    """Write beside the target, then rename: nobody sees half a page, and only its owner reads it.

    A file that is there keeps its permissions.
    """
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
