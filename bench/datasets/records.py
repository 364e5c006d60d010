"""What readers give, and how they speak of malformed records."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rsm_fast.types import Turn

__all__ = [
    "DataError",
    "Dataset",
    "Fact",
    "Problem",
    "Question",
    "Reading",
    "Stream",
    "files_in",
    "open_text",
]


class DataError(Exception):
    """A data set cannot be read at all."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One malformed record: counted and named, never silently skipped."""

    file: str
    line: int | None
    field: str
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.field}: {self.message}"


@dataclass(frozen=True, slots=True)
class Fact:
    """One remembered fact that an answer needs.

    Attributes
    ----------
    text : str
        The fact in the annotators' words.
    session : str
        Session that it was said in.
    turn : str or None
        Id of the turn that it was said in; None where that is not recorded.
    """

    text: str
    session: str
    turn: str | None


@dataclass(frozen=True, slots=True)
class Question:
    """One question to a stream.

    Attributes
    ----------
    id : str
        Unique in the data set.
    text : str
    visible : int
        The question sees this many of the stream's first turns.
    evidence : tuple of str
        Ids of the turns that the answer stands in.
    facts : tuple of Fact
        What the answer needs (RealMem); empty elsewhere.
    answer : str or None
    category : str
        The data set's own kind of question.
    tags : tuple of str
        What reports group by: ``official``, ``spread``, ``label_ok``, ``aggregate`` ...
    """

    id: str
    text: str
    visible: int
    evidence: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    answer: str | None = None
    category: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """One agent's or user's history, and what is asked of it."""

    name: str
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]
    group: str = ""


@dataclass(frozen=True, slots=True)
class Dataset:
    """All streams of a data set, and what was wrong with its records."""

    name: str
    streams: tuple[Stream, ...]
    problems: tuple[Problem, ...] = ()


@dataclass(slots=True)
class Reading:
    """Checks fields of one file and remembers what was wrong."""

    file: str
    problems: list[Problem] = field(default_factory=list)
    line: int | None = None

    def problem(self, where: str, message: str) -> None:
        """Remember one malformed field."""
        self.problems.append(Problem(self.file, self.line, where, message))

    def get(self, record: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
        """``record[key]`` if it is of that kind; else None, and a problem."""
        if not isinstance(record, dict):
            self.problem(where, f"expected an object, got {type(record).__name__}")
            return None
        name = f"{where}.{key}" if where else key
        if key not in record:
            self.problem(name, "is missing")
            return None
        value = record[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            wanted = kind.__name__ if isinstance(kind, type) else "/".join(k.__name__ for k in kind)
            self.problem(name, f"expected {wanted}, got {type(value).__name__} {value!r:.60}")
            return None
        return value

    def json_lines(self, path: Path) -> Iterator[dict[str, Any]]:
        """Objects of a JSONL file; `line` is that of the object given last."""
        for number, text in enumerate(open_text(path).splitlines(), 1):
            self.line = number
            if not text.strip():
                continue
            try:
                record = json.loads(text)
            except json.JSONDecodeError as error:
                self.problem("record", f"not JSON: {error}")
                continue
            if isinstance(record, dict):
                yield record
            else:
                self.problem("record", f"expected an object, got {type(record).__name__}")


def open_text(path: Path) -> str:
    """Text of a file, gzipped or not.

    Raises
    ------
    DataError
        If it cannot be read as UTF-8 text.
    """
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def files_in(path: Path, *patterns: str) -> list[Path]:
    """The file itself, or the files of a folder that match, sorted.

    Raises
    ------
    DataError
        If there are none.
    """
    if path.is_file():
        return [path]
    found = sorted({file for pattern in patterns for file in path.glob(pattern)})
    if not found:
        raise DataError(f"{path}: expected a file or a folder with {' or '.join(patterns)}")
    return found
