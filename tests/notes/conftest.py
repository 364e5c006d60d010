"""A small conversation, and a model that needs no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bench.notes.standin import StandIn
from rsm_fast import Memory
from rsm_fast.notes import NoteMemory

TURNS = [
    {"id": "t1", "text": "Our flight to Lisbon leaves on Friday morning.", "role": "user"},
    {"id": "t2", "text": "I packed the blue suitcase for Lisbon.", "role": "user"},
    {"id": "t3", "text": "The bakery on Mill Street sells rye bread.", "role": "assistant"},
    {"id": "t4", "text": "The flight to Lisbon on Friday is cancelled.", "role": "user"},
    {"id": "t5", "text": "Rye bread from the bakery keeps for a week.", "role": "assistant"},
    {"id": "t6", "text": "We take the train to Lisbon with the blue suitcase.", "role": "user"},
]


@pytest.fixture
def turns() -> list[dict[str, Any]]:
    return [
        {**turn, "timestamp": f"2026-05-0{day}T10:00:00Z"}
        for day, turn in enumerate(TURNS, start=1)
    ]


@pytest.fixture
def make() -> Iterator[Callable[..., NoteMemory]]:
    """Makes note memories in RAM, or at a path."""
    made: list[NoteMemory] = []

    def make_one(llm: Any = None, path: Any = None, **options: Any) -> NoteMemory:
        if path is None:
            memory = Memory(embedder="hashing", count_tokens=lambda text: len(text.split()))
            notes = NoteMemory(memory, llm, **options)
        else:
            notes = NoteMemory.open(path, llm, embedder="hashing", **options)
        made.append(notes)
        return notes

    yield make_one
    for notes in made:
        notes.close()


@pytest.fixture
def standin() -> StandIn:
    return StandIn()
