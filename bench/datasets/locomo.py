"""LoCoMo (Maharana et al., ACL 2024): long conversations of two friends, with questions.

Evidence are the turns (``dia_id``) that the annotators name. Categories: 1 multi-hop, 2 time,
3 open domain, 4 single-hop; 5 (adversarial, the answer is not there) is left out. As in the
official code, what a shared photo shows is part of the turn's text.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.datasets.records import (
    DataError,
    Dataset,
    Question,
    Reading,
    Stream,
    files_in,
    open_text,
)
from rsm_fast.types import Turn

__all__ = ["CATEGORIES", "read_locomo"]

CATEGORIES = {1: "multi-hop", 2: "time", 3: "open-domain", 4: "single-hop"}
_SESSION = re.compile(r"session_(\d+)")
_DIA_ID = re.compile(r"D:?\s*(\d+)\s*:\s*(\d+)")


def read_locomo(path: Path) -> Dataset:
    """Read conversation files (``session_k``, ``qa``), or the published list of all."""
    streams, problems = [], []
    for file in files_in(path, "*.json", "*.json.gz"):
        reading = Reading(file.name)
        try:
            document = json.loads(open_text(file))
        except json.JSONDecodeError as error:
            reading.problem("file", f"not JSON: {error}")
        else:
            for number, one in enumerate(document if isinstance(document, list) else [document]):
                name = file.name.split(".")[0]
                if isinstance(document, list):
                    name = str(one.get("sample_id", f"{name}-{number}"))
                streams.append(_conversation(one, name, reading))
        problems += reading.problems
    if not any(stream.turns for stream in streams):
        raise DataError(f"{path}: no readable session; first problems: {problems[:3]}")
    return Dataset("locomo", tuple(streams), tuple(problems))


def _conversation(document: Any, name: str, reading: Reading) -> Stream:
    sessions = document.get("conversation", document) if isinstance(document, dict) else document
    turns = []
    keys = sessions if isinstance(sessions, dict) else ()
    numbers = sorted(int(match[1]) for key in keys if (match := _SESSION.fullmatch(key)))
    for number in numbers:
        key = f"session_{number}"
        time = _time(reading.get(sessions, f"{key}_date_time", str, ""), key, reading)
        for position, turn in enumerate(reading.get(sessions, key, list, "") or ()):
            where = f"{key}[{position}]"
            text = reading.get(turn, "text", str, where)
            speaker = reading.get(turn, "speaker", str, where)
            id = reading.get(turn, "dia_id", str, where)
            if text is None or speaker is None or id is None:
                continue
            if turn.get("blip_caption"):
                text = f"{text} [shares a photo: {turn['blip_caption']}]".lstrip()
            if text.strip():
                turns.append(Turn(text, speaker, time, key, id))
            else:
                reading.problem(f"{where}.text", "is empty")
    known = {turn.id for turn in turns}
    questions = []
    for number, record in enumerate(reading.get(document, "qa", list, "") or ()):
        where = f"qa[{number}]"
        category = reading.get(record, "category", int, where)
        text = reading.get(record, "question", str, where)
        if category not in CATEGORIES or text is None:
            continue
        evidence = _evidence(record, where, known, reading)
        if evidence:
            questions.append(
                Question(
                    f"{name}/{number}",
                    text,
                    len(turns),
                    evidence,
                    answer=str(record["answer"]) if "answer" in record else None,
                    category=CATEGORIES[category],
                )
            )
    return Stream(name, tuple(turns), tuple(questions))


def _evidence(
    record: dict[str, Any], where: str, known: set[str | None], reading: Reading
) -> tuple[str, ...]:
    """Turn ids; "D8:6; D9:17" and "D:11:26" are read as meant, anything else is a problem."""
    ids: list[str] = []
    given = reading.get(record, "evidence", list, where) or ()
    if not given:
        reading.problem(f"{where}.evidence", "is empty: the question cannot be scored")
    for entry in given:
        found = [f"D{int(a)}:{int(b)}" for a, b in _DIA_ID.findall(str(entry))]
        unknown = [id for id in found if id not in known]
        if unknown or not found:
            reading.problem(f"{where}.evidence", f"names no turn: {entry!r}")
        ids += [id for id in found if id in known]
    return tuple(dict.fromkeys(ids))


def _time(text: str | None, key: str, reading: Reading) -> datetime | None:
    """Read "1:56 pm on 8 May, 2023"."""
    if text is None:
        return None
    try:
        return datetime.strptime(text.strip(), "%I:%M %p on %d %B, %Y")
    except ValueError:
        reading.problem(f"{key}_date_time", f"expected '1:56 pm on 8 May, 2023', got {text!r}")
        return None
