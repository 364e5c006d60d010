"""AMA-Bench's open-end format: one agent trajectory a line, with questions about it.

A step is one turn, written as the official harness writes it (``Action: ...``, ``Observation:
...``), with the step number in the metadata. BabyAI's observation is taken before the step's
action, TextWorld's after it. Evidence are the turns that the answer is computed from
(``evidence_turns``, else the official ``relevant_turn_indices``).

Tags of a question: ``official`` or ``spread`` (the selection it belongs to; a question of both
comes twice), ``label_ok`` (unless our check found the official answer wrong), ``aggregate``
(more evidence than a budget holds).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.datasets.records import DataError, Dataset, Question, Reading, Stream, files_in
from rsm_fast.types import Turn

__all__ = ["SELECTIONS", "read_ama"]

SELECTIONS = {"official": "qa_pairs", "spread": "qa_pairs_spread"}


def read_ama(path: Path) -> Dataset:
    """Read episodes from JSONL files."""
    streams, problems = [], []
    for file in files_in(path, "*.jsonl", "*.jsonl.gz"):
        reading = Reading(file.name)
        for record in reading.json_lines(file):
            stream = _episode(record, reading)
            if stream is not None:
                streams.append(stream)
        problems += reading.problems
    if not streams:
        raise DataError(f"{path}: no readable episode; first problems: {problems[:3]}")
    return Dataset("ama", tuple(streams), tuple(problems))


def _episode(record: dict[str, Any], reading: Reading) -> Stream | None:
    name = reading.get(record, "episode_id", str, "")
    steps = reading.get(record, "trajectory", list, "")
    if name is None or not steps:
        return None
    turns = []
    for position, step in enumerate(steps):
        where = f"trajectory[{position}]"
        number = reading.get(step, "turn_idx", int, where)
        action = reading.get(step, "action", str, where)
        observation = reading.get(step, "observation", str, where)
        if number is None or action is None or observation is None:
            continue
        text = f"Action: {action}\nObservation: {observation}"
        turns.append(Turn(text, "agent", None, name, str(number), {"step": number}))
    known = {turn.id for turn in turns}
    questions = []
    for selection, key in SELECTIONS.items():
        for number, pair in enumerate(record.get(key) or ()):
            question = _question(
                pair, f"{name}/{selection}/{number}", len(turns), known, reading, f"{key}[{number}]"
            )
            if question is not None:
                tags = (selection, *question.tags)
                questions.append(_with_tags(question, tags))
    domain = str(record.get("domain", ""))
    return Stream(name, tuple(turns), tuple(questions), group=f"{domain}/{record.get('bin', '')}")


def _question(
    pair: Any, id: str, visible: int, known: set[str | None], reading: Reading, where: str
) -> Question | None:
    text = reading.get(pair, "question", str, where)
    if text is None:
        return None
    given = pair.get("evidence_turns", pair.get("relevant_turn_indices"))
    if not given:  # null: no turn of the trajectory shows the answer
        return None
    evidence = [str(turn) for turn in given]
    unknown = [turn for turn in evidence if turn not in known]
    if unknown:
        reading.problem(f"{where}.evidence_turns", f"names no step: {', '.join(unknown[:5])}")
        evidence = [turn for turn in evidence if turn in known]
        if not evidence:
            return None
    tags = []
    if pair.get("label_ok", True):
        tags.append("label_ok")
    if pair.get("aggregate", len(evidence) > 20):
        tags.append("aggregate")
    return Question(
        id,
        text,
        visible,
        tuple(dict.fromkeys(evidence)),
        answer=pair.get("answer"),
        category=str(pair.get("sub_type") or pair.get("type") or ""),
        tags=tuple(tags),
    )


def _with_tags(question: Question, tags: tuple[str, ...]) -> Question:
    return Question(
        question.id,
        question.text,
        question.visible,
        question.evidence,
        question.facts,
        question.answer,
        question.category,
        tags,
    )
