"""Readers: each gives streams of turns, questions and where their evidence stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.datasets.ama import read_ama
from bench.datasets.jsonl import read_jsonl
from bench.datasets.locomo import read_locomo
from bench.datasets.realmem import read_realmem
from bench.datasets.records import DataError, Dataset, Fact, Problem, Question, Stream

__all__ = [
    "READERS",
    "DataError",
    "Dataset",
    "Fact",
    "Problem",
    "Question",
    "Stream",
    "read_dataset",
]

READERS: dict[str, Callable[[Path], Dataset]] = {
    "realmem": read_realmem,
    "locomo": read_locomo,
    "ama": read_ama,
    "jsonl": read_jsonl,
}


def read_dataset(kind: str, path: str | Path) -> Dataset:
    """Read one data set.

    Parameters
    ----------
    kind : {"realmem", "locomo", "ama", "jsonl"}
    path : str or Path
        A file, or a folder of files.

    Raises
    ------
    DataError
        If the kind is unknown, nothing is there, or nothing in it can be read. Single
        malformed records are counted in ``Dataset.problems`` instead.
    """
    if kind not in READERS:
        raise DataError(f"data set: expected one of {sorted(READERS)}, got {kind!r}")
    return READERS[kind](Path(path))
