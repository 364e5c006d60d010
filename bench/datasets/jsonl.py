"""A folder of one's own: ``NAME.jsonl`` holds turns, ``NAME.questions.jsonl`` what is asked.

A turn has ``text`` (or ``content``) and optionally ``role, timestamp, session, id, metadata``.
A question has ``question`` and ``evidence`` (a list of turn ids), and optionally ``answer``,
``category`` and ``visible`` (how many of the first turns it sees; all if absent). A turn
without an id has its line's number, counted from 1, as id.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.datasets.records import DataError, Dataset, Question, Reading, Stream, files_in
from rsm_fast.errors import InvalidInputError
from rsm_fast.types import Turn, as_turn

__all__ = ["read_jsonl"]

_QUESTIONS = ".questions"


def read_jsonl(path: Path) -> Dataset:
    """Read every conversation of a folder, or one file and the questions beside it."""
    streams, problems = [], []
    for file in files_in(path, "*.jsonl", "*.jsonl.gz"):
        name = file.name.split(".jsonl")[0]
        if name.endswith(_QUESTIONS):
            continue
        reading = Reading(file.name)
        turns = _turns(file, reading)
        problems += reading.problems
        asked = file.with_name(file.name.replace(".jsonl", f"{_QUESTIONS}.jsonl", 1))
        reading = Reading(asked.name)
        questions = _questions(asked, name, turns, reading) if asked.exists() else ()
        problems += reading.problems
        streams.append(Stream(name, tuple(turns), tuple(questions)))
    if not any(stream.turns for stream in streams):
        raise DataError(f"{path}: no readable turn; first problems: {problems[:3]}")
    return Dataset("jsonl", tuple(streams), tuple(problems))


def _turns(file: Path, reading: Reading) -> list[Turn]:
    turns = []
    for record in reading.json_lines(file):
        try:
            turn = as_turn(record)
        except InvalidInputError as error:
            reading.problem("text", str(error))
            continue
        if not isinstance(turn.text, str) or not turn.text.strip():
            reading.problem("text", f"expected text, got {turn.text!r:.60}")
            continue
        turns.append(turn if turn.id is not None else replace(turn, id=str(reading.line)))
    return turns


def _questions(file: Path, name: str, turns: list[Turn], reading: Reading) -> list[Question]:
    known = {turn.id for turn in turns}
    questions = []
    for record in reading.json_lines(file):
        text = reading.get(record, "question", str, "")
        evidence = reading.get(record, "evidence", list, "")
        if text is None or evidence is None:
            continue
        unknown = [id for id in evidence if str(id) not in known]
        if unknown:
            reading.problem("evidence", f"names no turn: {', '.join(map(str, unknown[:5]))}")
        kept = tuple(str(id) for id in evidence if str(id) in known)
        visible = record.get("visible", len(turns))
        if not isinstance(visible, int) or not 0 <= visible <= len(turns):
            reading.problem("visible", f"expected 0 to {len(turns)}, got {visible!r}")
            continue
        answer = record.get("answer")
        questions.append(
            Question(
                f"{name}/{reading.line}",
                text,
                visible,
                kept,
                answer=None if answer is None else str(answer),
                category=str(record.get("category") or ""),
            )
        )
    return questions
