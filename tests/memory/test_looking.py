"""Reading turns back as they are stored."""

from __future__ import annotations

import pytest
from memory_cases import Opener, sentences

from rsm_fast import Memory
from rsm_fast.errors import (
    InvalidInputError,
)


def test_turns_are_read_back_as_they_are_stored(memory_of: Opener) -> None:
    memory = memory_of()
    assert memory.turns() == [] and memory.get("t0003") is None
    turns = sentences(20)
    memory.add_many(turns)
    again = memory.get("t0003")
    assert again is not None
    assert again.text == turns[3].text and again.metadata == turns[3].metadata
    assert again.timestamp == "2026-02-02T02:43:00Z"
    assert [turn.id for turn in memory.turns(last=2)] == ["t0018", "t0019"]
    violins = memory.turns(where={"topic": "violin"})
    assert [turn.id for turn in violins] == ["t0001", "t0007", "t0013", "t0019"]
    copy = Memory(embedder="hashing")
    copy.add_many(memory.turns())
    assert copy.turns() == memory.turns()
    with pytest.raises(InvalidInputError, match="last"):
        memory.turns(last=0)
