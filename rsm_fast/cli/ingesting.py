"""``rsm-fast ingest``: conversation files into a memory, batch by batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rsm_fast.cli.output import Progress
from rsm_fast.cli.readers import Format, Malformed, Record, read_turns
from rsm_fast.errors import InvalidInputError

if TYPE_CHECKING:
    from rsm_fast.memory import Memory

__all__ = ["IngestReport", "check_files", "ingest_files"]

_BATCH_TURNS = 128  # a bar that moves twice a second, and batches that the embedder likes


@dataclass(slots=True)
class IngestReport:
    """What became of the records of some files.

    Attributes
    ----------
    read : int
        Turns that are in the memory now, new ones and those that were there.
    malformed : list of Malformed
        Records that were left out.
    """

    read: int = 0
    malformed: list[Malformed] = field(default_factory=list)


def check_files(files: Sequence[str]) -> None:
    """Fail before anything is stored if a file is not there.

    Raises
    ------
    InvalidInputError
        Naming the first file that is missing or is no file.
    """
    for file in files:
        if file != "-" and not Path(file).is_file():
            what = "a folder" if Path(file).is_dir() else "nothing"
            raise InvalidInputError(f"{file}: expected a file to read, found {what} there")


def ingest_files(
    memory: Memory, files: Sequence[str], *, format: Format, session: str | None
) -> IngestReport:
    """Store the turns of all files, in order; records that cannot be stored are reported."""
    report = IngestReport()
    sizes = {file: Path(file).stat().st_size for file in files if file != "-"}
    before = 0
    with Progress("ingest", sum(sizes.values())) as bar:
        for file in files:
            with _opened(file) as stream:
                found = read_turns(file, format=format, session=session, stream=stream)
                for batch in _batches(found, report):
                    _store(memory, file, batch, report)
                    bar.update(before + batch[-1].consumed, report.read, "turns")
            before += sizes.get(file, 0)
    return report


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    with closing(open(file, "rb")) as stream:
        yield stream


def _batches(found: Iterator[Record | Malformed], report: IngestReport) -> Iterator[list[Record]]:
    batch: list[Record] = []
    for item in found:
        if isinstance(item, Malformed):
            report.malformed.append(item)
            continue
        batch.append(item)
        if len(batch) == _BATCH_TURNS:
            yield batch
            batch = []
    if batch:
        yield batch


def _store(memory: Memory, file: str, batch: Sequence[Record], report: IngestReport) -> None:
    """Store a batch; if the memory refuses it, halve it until the culprit stands alone."""
    try:
        memory.add_many([record.turn for record in batch])
        report.read += len(batch)
    except InvalidInputError as error:
        if len(batch) == 1:
            name = "stdin" if file == "-" else file
            report.malformed.append(Malformed(name, batch[0].line, "", str(error)))
            return
        middle = len(batch) // 2
        _store(memory, file, batch[:middle], report)
        _store(memory, file, batch[middle:], report)
