"""Deleting, changing, superseding and purging turns."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_cases import Opener, sentences

from rsm_fast import Memory
from rsm_fast.errors import (
    InvalidInputError,
    NotFoundError,
    RSMError,
)


def test_deleted_turns_are_gone(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add_many(sentences(70))
    assert memory.delete(["t0001", "t0002"]) == 2
    assert memory.stats().turns == 68
    with pytest.raises(NotFoundError, match="t0001"):
        memory.delete(["t0005", "t0001"])
    assert memory.stats().turns == 68
    assert not {"t0001", "t0002"} & {i for h in memory.search("note", k=99) for i in h.turn_ids}


def test_an_updated_turn_keeps_id_and_time(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add_many(sentences(60))
    memory.update("t0007", "The lighthouse keeper retired.")
    hit = memory.search("lighthouse keeper", k=1)[0]
    assert hit.turn_ids == ("t0007",) and hit.text == "The lighthouse keeper retired."
    memory.update("t0007", "The lighthouse closed.", metadata={"topic": "sea"})
    assert memory.search("x", k=5, where={"topic": "sea"})[0].text == "The lighthouse closed."
    with pytest.raises(NotFoundError):
        memory.update("nobody", "text")
    with pytest.raises(InvalidInputError):
        memory.update("t0007", " ")
    assert memory.stats().turns == 60


def test_forget_by_age_and_filter(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add_many(sentences(60))
    assert memory.forget(where={"topic": "violin"}) == 10
    assert memory.forget(before=1_770_000_000 + 60 * 30) == 25
    assert memory.forget(older_than="100000d") == 0
    assert memory.stats().turns == 25
    for bad in ({}, {"older_than": "soon"}, {"older_than": "1d", "before": 3}):
        with pytest.raises(InvalidInputError):
            memory.forget(**bad)


def test_ttl_hides_and_then_forgets(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add("old news about the ferry", timestamp=1_000_000_000, ttl="30d")
    memory.add("the ferry runs hourly", ttl="30d")
    assert [hit.text for hit in memory.search("ferry")] == ["the ferry runs hourly"]
    assert memory.forget(expired=True) == 1
    assert memory.stats().turns == 1


def test_superseded_turns_are_packed_only_on_request(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add("I work at the mill.", id="old", timestamp="2026-01-01")
    memory.add("I work at the port.", id="new", timestamp="2026-05-01")
    memory.supersede("old", "new")
    assert "mill" not in memory.pack("Where do I work?", budget=300).text
    assert "mill" in memory.pack("Where do I work?", budget=300, superseded=True).text
    assert "mill" in memory.pack("Where do I work?", budget=300, as_of="2026-02-01").text
    for bad in (("old", "old"), ("old", "nobody")):
        with pytest.raises(RSMError):
            memory.supersede(*bad)


def test_purge_empties_the_namespace_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with (
        Memory.open(path, embedder="hashing", namespace="a") as a,
        Memory.open(path, embedder="hashing", namespace="b") as b,
    ):
        a.add("in a")
        b.add("in b")
        a.purge()
        assert a.stats().turns == 0 and a.search("in") == []
        assert b.search("in", k=1)[0].text == "in b"
        a.add("in a again")
        assert a.stats().turns == 1
        a.purge("b")
        a.purge("nobody")
        assert a.namespaces() == ["a"] and b.search("in") == []
        with pytest.raises(InvalidInputError, match="namespace"):
            a.purge("")


def test_packs_never_show_an_older_text(memory_of: Opener) -> None:
    memory = memory_of(tau=0.5)
    memory.add_many(sentences(30))
    for number in range(5):
        assert "harbour" in memory.pack("harbour", budget=300).text  # texts are kept for the next
        memory.update("t0000", f"The harbour has {number} cranes.")
        pack = memory.pack("How many cranes has the harbour?", budget=300)
        assert f"{number} cranes" in pack.text and f"{number - 1} cranes" not in pack.text
    memory.delete("t0000")
    assert "cranes" not in memory.pack("harbour cranes", budget=1000).text
    memory.recalibrate([turn.text for turn in sentences(50)])
    atoms = {chunk.id: chunk.atom for chunk in memory.pack("harbour", budget=1000).chunks}
    found = {hit.id: hit.atom for hit in memory.search("harbour", k=30)}
    assert all(found[name] == atom for name, atom in atoms.items())
