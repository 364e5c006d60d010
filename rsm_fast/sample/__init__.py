"""A sample conversation with questions, for the demo and the suite.

One person talks with an assistant through most of 2026: 190 turns in 15 sessions, in which
job, home, allergies and plans change, and one session where the assistant works in numbered
steps. Person, firms and places of business are made up.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from rsm_fast.types import Turn, as_turn

__all__ = ["Question", "conversation_text", "questions", "turns"]


@dataclass(frozen=True, slots=True)
class Question:
    """One question about the sample conversation, with what a right answer rests on.

    Attributes
    ----------
    id : str
        ``q01``, ``q02`` ...
    question, answer : str
        The question; its answer in words that occur in the gold turns.
    gold : tuple of str
        Ids of the turns that hold the answer.
    kind : str
        ``fact``, ``numbers``, ``date``, ``code``, ``update`` (an older value was replaced),
        ``history`` (several values over time) or ``agent`` (a numbered step).
    """

    id: str
    question: str
    answer: str
    gold: tuple[str, ...]
    kind: str


def conversation_text() -> str:
    """The conversation as it is shipped: JSON Lines, one turn a line."""
    return files("rsm_fast.sample").joinpath("conversation.jsonl").read_text(encoding="utf-8")


def turns() -> list[Turn]:
    """The turns of the conversation, in the order of time."""
    return [as_turn(json.loads(line)) for line in conversation_text().splitlines()]


def questions() -> list[Question]:
    """The questions about the conversation."""
    text = files("rsm_fast.sample").joinpath("questions.json").read_text(encoding="utf-8")
    return [Question(**{**entry, "gold": tuple(entry["gold"])}) for entry in json.loads(text)]
