"""Turns into a memory, one by one and in bulk: ids, chunks, words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_cases import Opener, fingerprint, sentences, state_of

from rsm_fast import Memory, Turn
from rsm_fast.analysis import analyse
from rsm_fast.errors import (
    ConflictError,
)


def test_what_was_added_is_found_and_packed(memory_of: Opener) -> None:
    memory = memory_of()
    first = memory.add("I moved to Lisbon in May.", timestamp="2026-05-03T10:00:00Z")
    memory.add("My sister plays the violin.")
    assert first == "00000001"
    pack = memory.pack("Where does the user live? Lisbon?", budget=300)
    assert "I moved to Lisbon in May." in pack.text
    assert 0 < pack.tokens <= 300
    assert pack.chunks[0].turn_ids and pack.stats.admitted == len(pack.chunks)
    hits = memory.search("Lisbon", k=1)
    assert [hit.text for hit in hits] == ["I moved to Lisbon in May."]
    assert hits[0].turn_ids == (first,)
    assert hits[0].timestamp == "2026-05-03T10:00:00Z"


def test_turns_come_in_every_form(memory_of: Opener) -> None:
    memory = memory_of()
    ids = memory.add_many(
        [
            "bare text",
            Turn("a turn", id="x"),
            {"text": "a mapping", "role": "assistant", "mood": "fine"},
            {"content": "chat style", "role": "user"},
        ]
    )
    assert ids == ["00000001", "x", "00000002", "00000003"]
    assert memory.search("a mapping", k=1, where={"mood": "fine"})[0].text == "a mapping"
    assert memory.add({"text": "one more", "id": "y"}) == "y"


@pytest.mark.parametrize("chunk_turns", [1, 3])
def test_add_many_gives_the_same_as_one_by_one(chunk_turns: int) -> None:
    turns = sentences(160)
    if chunk_turns > 1:  # sessions that are talked in by turns
        turns = turns[::2] + turns[1::2]
        turns = [replace(turn, session=f"s{i % 3 + i // 60}") for i, turn in enumerate(turns)]
    bulk, single, blocks = (Memory(embedder="hashing", chunk_turns=chunk_turns) for _ in range(3))
    bulk.add_many(turns)
    for turn in turns:
        single.add(turn)
    blocks.add_many(turns[:70])
    blocks.add_many(turns[70:71])
    blocks.add_many(turns[71:])
    for memory in (bulk, single, blocks):
        memory.flush()
    assert fingerprint(bulk) == fingerprint(single) == fingerprint(blocks)
    assert bulk.stats().atoms > 1


def test_a_progress_callback_hears_of_every_transaction() -> None:
    from rsm_fast.core import Limits

    heard: list[int] = []
    memory = Memory(embedder="hashing", limits=Limits(batch_turns=10))
    memory.add_many(sentences(25), progress=heard.append)
    assert heard == [10, 20, 25]


def test_f40_the_same_batch_twice_changes_nothing(memory_of: Opener) -> None:
    memory = memory_of()
    turns = sentences(30)
    assert memory.add_many(turns) == memory.add_many(turns) == [turn.id for turn in turns]
    assert memory.stats().turns == 30
    memory.add_many([turn.text for turn in turns])  # without ids: always appended
    memory.add_many([turn.text for turn in turns])
    assert memory.stats().turns == 90


def test_an_id_is_never_given_to_another_text(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add("first", id="a")
    with pytest.raises(ConflictError, match="update"):
        memory.add("second", id="a")
    with pytest.raises(ConflictError, match="twice in this call"):
        memory.add_many([Turn("x", id="b"), Turn("y", id="b")])
    with pytest.raises(ConflictError):
        memory.add_many([Turn("new one", id="c"), Turn("second", id="a")])
    assert memory.stats().turns == 1
    memory.delete("a")
    with pytest.raises(ConflictError, match="deleted"):
        memory.add("first", id="a")


def test_automatic_ids_leave_taken_ones_alone(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add("mine", id="00000002")
    assert memory.add_many(["a", "b", "c"]) == ["00000001", "00000003", "00000004"]
    memory.delete("00000004")
    assert memory.add("d") == "00000005"


def test_ids_that_are_taken_after_they_were_looked_at_are_left_alone(memory_of: Opener) -> None:
    memory = memory_of()
    assert memory.add("a") == "00000001"
    memory.add("mine", id="00000003")
    assert [memory.add(text) for text in "bcd"] == ["00000002", "00000004", "00000005"]
    assert memory.add_many([f"turn {i}" for i in range(300)])[-1] == "00000305"


def test_chunks_hold_several_turns_of_one_session(memory_of: Opener) -> None:
    memory = memory_of(chunk_turns=3)
    turns = [
        Turn(f"turn {i} of session {s}", session=f"s{s}", id=f"{s}-{i}")
        for i in range(7)
        for s in range(2)  # interleaved
    ]
    memory.add_many(turns)
    stats = memory.stats()
    assert (stats.turns, stats.chunks) == (14, 6)
    hit = memory.search("turn 6 of session 1", k=1)[0]  # in a chunk that is not full yet
    assert hit.turn_ids == ("1-6",)
    memory.add("turn 7 of session 1", session="s1", id="1-7")
    memory.flush()
    found = {hit.turn_ids for hit in memory.search("turn of session", k=20)}
    assert found == {
        *((f"{s}-0", f"{s}-1", f"{s}-2") for s in range(2)),
        *((f"{s}-3", f"{s}-4", f"{s}-5") for s in range(2)),
        ("0-6",),
        ("1-6", "1-7"),
    }
    assert state_of(memory).open_rows == {}
    memory.add("turn 8 of session 1", session="s1", id="1-8")  # a flushed chunk stays closed
    assert memory.search("turn 8 of session 1", k=1)[0].turn_ids == ("1-8",)


def test_an_unfinished_chunk_goes_on_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    memory = Memory.open(path, embedder="hashing", chunk_turns=3)
    memory.add_many([Turn("one", id="1"), Turn("two", id="2")])
    memory._core.close()  # as a crash would: the chunk is not finished
    with Memory.open(path) as memory:
        memory.add("three", id="3")
        assert memory.search("two", k=1)[0].turn_ids == ("1", "2", "3")
        assert memory.stats().chunks == 1


def test_deleting_inside_a_chunk_leaves_the_others(memory_of: Opener) -> None:
    memory = memory_of(chunk_turns=3)
    memory.add_many([Turn(f"the word {w}", id=w) for w in ("ash", "birch", "cedar", "elm")])
    memory.delete("birch")
    assert memory.search("cedar", k=1)[0].turn_ids == ("ash", "cedar")
    assert "birch" not in memory.pack("birch", budget=500).text
    memory.delete(["ash", "cedar", "elm"])
    assert memory.stats().chunks == 0
    assert memory.search("ash") == []


def test_an_unfinished_chunk_can_lose_a_turn(memory_of: Opener) -> None:
    memory = memory_of(chunk_turns=4)
    memory.add_many([Turn("ash tree", id="a"), Turn("birch tree", id="b")])
    memory.delete("a")
    memory.add_many([Turn("cedar tree", id="c"), Turn("elm tree", id="d"), Turn("fir", id="e")])
    assert memory.search("cedar", k=1)[0].turn_ids == ("b", "c", "d", "e")


def test_the_day_of_arrival_is_no_word_of_a_text(tmp_path: Path, monkeypatch: Any) -> None:
    from datetime import UTC, datetime

    from rsm_fast import state as state_module

    month = datetime.now(UTC).strftime("%B")
    with Memory.open(tmp_path / "agent.rsm", embedder="hashing") as memory:
        memory.add_many([f"The {i}th parcel came by boat." for i in range(20)])
        memory.add(f"The fair is held in {month}.", id="fair")
        memory.add("The mayor spoke.", timestamp="2019-02-03", id="dated")

        def holding(memory: Memory, word: str) -> int:
            state = state_of(memory)
            links = state.arena.prev, state.arena.next
            none = np.full_like(links[0], -1)
            scores = state.lexical.scores([word], prev=none, next=none, alive=state.arena.alive)
            return int(np.count_nonzero(scores))

        words = [analyse(month)[0], "february", "2019"]
        found = [holding(memory, word) for word in words]
        assert found == [1 + (month == "February"), 1 + (month == "February"), 1]
    monkeypatch.setattr(state_module, "ANALYSER_VERSION", 99)  # all texts are analysed again
    with Memory.open(tmp_path / "agent.rsm") as memory:
        assert [holding(memory, word) for word in words] == found
