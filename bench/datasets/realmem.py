"""RealMem (Bian et al., arXiv 2601.06966): one file per persona, sessions in order of time.

Official protocol: every user turn marked ``is_query`` is asked against the memory of all
earlier sessions; gold are the memories that the assistant's next turn is said to have used.
A gold memory of the running session cannot be found by that protocol and is left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.datasets.records import (
    DataError,
    Dataset,
    Fact,
    Question,
    Reading,
    Stream,
    files_in,
    open_text,
)
from rsm_fast.types import Turn

__all__ = ["read_realmem"]


def read_realmem(path: Path) -> Dataset:
    """Read persona files as published (``_metadata``, ``dialogues``)."""
    streams, problems = [], []
    for file in files_in(path, "*.json", "*.json.gz"):
        reading = Reading(file.name)
        try:
            streams.append(_persona(json.loads(open_text(file)), file, reading))
        except json.JSONDecodeError as error:
            reading.problem("file", f"not JSON: {error}")
        problems += reading.problems
    if not any(stream.turns for stream in streams):
        raise DataError(f"{path}: no readable session; first problems: {problems[:3]}")
    return Dataset("realmem", tuple(streams), tuple(problems))


def _persona(document: Any, file: Path, reading: Reading) -> Stream:
    name = file.name.split(".")[0].removesuffix("_dialogues_256k")
    turns: list[Turn] = []
    questions: list[Question] = []
    sources: dict[tuple[str, str], str] = {}  # (session, memory) -> turn it was said in
    seen: set[str] = set()
    for number, session in enumerate(reading.get(document, "dialogues", list, "") or ()):
        where = f"dialogues[{number}]"
        uuid = reading.get(session, "session_uuid", str, where)
        said = reading.get(session, "dialogue_turns", list, where)
        if uuid is None or said is None:
            continue
        day = (reading.get(session, "current_time", str, where) or "").split(" ")[0] or None
        start = len(turns)
        texts: dict[int, str] = {}
        for position, turn in enumerate(said):
            place = f"{where}.dialogue_turns[{position}]"
            text = reading.get(turn, "content", str, place)
            speaker = reading.get(turn, "speaker", str, place)
            if text is None or speaker is None:
                continue
            if not text.strip():
                reading.problem(f"{place}.content", "is empty")
                continue
            texts[position] = text
            turns.append(Turn(text, speaker, day, uuid, f"{uuid}:{position}"))
            if turn.get("is_query"):
                answer = said[position + 1] if position + 1 < len(said) else None
                question = _question(
                    turn, answer, f"{name}/{uuid}:{position}", start, seen, sources, reading, place
                )
                if question is not None:
                    questions.append(question)
        for item, memory in enumerate(session.get("extracted_memory") or ()):
            place = f"{where}.extracted_memory[{item}]"
            content = reading.get(memory, "content", (str, dict, list), place)
            source = _source(memory, texts) if content is not None else None
            if source is not None:
                sources[uuid, _text(content)] = f"{uuid}:{source}"
        seen.add(uuid)
    return Stream(name, tuple(turns), tuple(questions))


def _question(
    turn: dict[str, Any],
    answer: Any,
    id: str,
    visible: int,
    seen: set[str],
    sources: dict[tuple[str, str], str],
    reading: Reading,
    where: str,
) -> Question | None:
    """The question of a turn, or None where nothing can be found in earlier sessions."""
    used = reading.get(answer, "memory_used", list, f"{where} (the turn that answers it)")
    facts = []
    for item, memory in enumerate(used or ()):
        place = f"{where} (the turn that answers it).memory_used[{item}]"
        session = reading.get(memory, "session_uuid", str, place)
        content = reading.get(memory, "content", (str, dict, list), place)
        if session is None or content is None or session not in seen:
            continue
        text = _text(content)
        facts.append(Fact(text, session, sources.get((session, text))))
    if not facts:
        return None
    return Question(
        id,
        turn["content"],
        visible,
        evidence=tuple(dict.fromkeys(fact.turn for fact in facts if fact.turn is not None)),
        facts=tuple(facts),
        answer=answer.get("content"),
        category=str(turn.get("category_name") or ""),
    )


def _source(memory: dict[str, Any], texts: dict[int, str]) -> int | None:
    """Position of the turn that a memory was taken from: its snapshot, nearest its number."""
    number = memory.get("source_turn")
    snapshot = memory.get("source_content_snapshot")
    same = [position for position, text in texts.items() if text == snapshot]
    near = number - 1 if isinstance(number, int) else 0
    return min(same, key=lambda position: abs(position - near), default=None)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
