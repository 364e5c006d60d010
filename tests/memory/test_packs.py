"""What packs and searches give: presets, layouts, filters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from memory_cases import Opener, sentences
from oracles_packing import reading_in_steps

from rsm_fast import Memory, Pack, Turn
from rsm_fast.errors import (
    InvalidInputError,
)


def test_an_empty_memory_gives_an_empty_pack(memory_of: Opener) -> None:
    memory = memory_of()
    pack = memory.pack("anything", budget=100)
    assert (pack.text, pack.tokens, pack.chunks) == ("", 0, ())
    assert memory.search("anything") == []
    stats = memory.stats()
    assert (stats.turns, stats.chunks, stats.atoms) == (0, 0, 0)
    assert memory.namespaces() == []  # reading made none


def test_preset_paper_packs_members_of_the_top_atoms(memory_of: Opener) -> None:
    memory = memory_of(preset="paper", chunk_turns=1)
    memory.add_many(sentences(150))
    pack = memory.pack("harbour near the garden", budget=3000)
    assert pack.stats.preset == "paper" and pack.stats.layout == "atoms"
    atoms = {chunk.atom for chunk in pack.chunks}
    assert 1 <= len(atoms) <= 6
    assert all(sum(c.atom == atom for c in pack.chunks) <= 8 for atom in atoms)


@pytest.mark.parametrize("route", ["centroid", "singular-vector", "max-member", "subspace"])
def test_every_route_finds_what_was_asked_for(route: Any) -> None:
    memory = Memory(embedder="hashing", preset="paper", chunk_turns=1, route=route, rank=4)
    memory.add_many(sentences(120))
    pack = memory.pack("Note 42: the harbour number 39", budget=1500)
    assert any("number 39" in chunk.text for chunk in pack.chunks)
    with pytest.raises(InvalidInputError, match="route"):
        Memory(embedder="hashing", route="nearest")  # type: ignore[arg-type]


def test_preset_paper_reads_before_tau_is_known(memory_of: Opener) -> None:
    memory = memory_of(preset="paper")
    memory.add_many(["The tram leaves at 7:40.", "The violin is out of tune."])
    assert "7:40" in memory.pack("When does the tram leave?", budget=300).text


@pytest.mark.parametrize("layout", ["atoms", "sessions", "flat"])
def test_layouts_hold_the_same_chunks(layout: Any) -> None:
    memory = Memory(embedder="hashing")
    memory.add_many(sentences(60))
    pack = memory.pack("harbour", budget=10**6, layout=layout)
    assert len(pack.chunks) == 60 and pack.stats.layout == layout


def test_explain_gives_reasons() -> None:
    memory = Memory(embedder="hashing")
    memory.add_many(sentences(80))
    pack = memory.pack("harbour", budget=300, explain=True)
    assert all(chunk.reason for chunk in pack.chunks)
    assert pack.omitted and all(item.reason for item in pack.omitted)
    assert memory.pack("harbour", budget=300).omitted == ()


def test_int8_finds_what_float32_finds() -> None:
    turns = sentences(200)
    exact, small = Memory(embedder="hashing"), Memory(embedder="hashing", dtype="int8")
    exact.add_many(turns)
    small.add_many(turns)
    first = [hit.id for hit in exact.search("violin near the glacier", k=10)]
    second = [hit.id for hit in small.search("violin near the glacier", k=10)]
    assert len(set(first) & set(second)) >= 8
    assert small.stats().bytes < exact.stats().bytes


def test_filters_come_before_the_top_k(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add_many(sentences(100))
    hits = memory.search("harbour", k=5, where={"topic": "bakery"})
    assert len(hits) == 5
    assert all("the bakery number" in hit.text for hit in hits)
    assert len(memory.search("harbour", k=200, where={"role": ["user", "assistant"]})) == 100
    assert len(memory.search("harbour", k=99, where={"number": {"gte": 10, "lt": 20}})) == 10
    assert memory.search("harbour", where={"absent": 1}) == []
    assert len(memory.search("harbour", k=99, as_of=1_770_000_000 + 60 * 9)) == 10


def test_results_are_frozen_and_become_json() -> None:
    memory = Memory(embedder="hashing")
    memory.add_many(sentences(10))
    pack = memory.pack("harbour", budget=200)
    with pytest.raises(AttributeError):
        pack.text = ""  # type: ignore[misc]
    data = pack.to_dict()
    assert data["stats"]["counter"] == pack.stats.counter
    assert data["chunks"][0]["id"] == pack.chunks[0].id
    assert '"tokens"' in pack.to_json()
    assert memory.stats().to_dict()["turns"] == 10


@pytest.mark.parametrize("route", ["centroid", "singular-vector"])
def test_the_published_read_path_asks_faiss(route: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rsm_fast.index import AtomIndex, route_atoms

    memory = Memory(embedder="hashing", preset="paper", chunk_turns=1, route=route)
    memory.add_many(sentences(150))
    asked: list[list[int]] = []
    top_atoms = AtomIndex.top_atoms

    def spy(self: AtomIndex, query: Any, k: int, **options: Any) -> Any:
        atoms, scores = top_atoms(self, query, k, **options)
        exact, _ = route_atoms(self.clusterer, query, k, self.route)  # without FAISS
        assert set(atoms.tolist()) == set(exact.tolist())
        asked.append(atoms.tolist())
        return atoms, scores

    monkeypatch.setattr(AtomIndex, "top_atoms", spy)
    for number in range(5):  # the index follows what is written between
        assert memory.pack("harbour near the garden", budget=500).chunks
        memory.delete(f"t{number:04d}")
        memory.add(f"Another harbour, number {number}.")
    assert len(asked) == 5


def test_facts_are_looked_for_in_the_own_words_of_who_is_asked_about() -> None:
    turns = [("Ann", "The cat sleeps"), ("Bo", "A cat sleeps"), ("user", "One cat sleeps")]
    with Memory(embedder="hashing") as memory:
        memory.add_many([{"text": text, "role": role} for role, text in turns])
        for question, role in (("Bo, cat?", "Bo"), ("Ann, cat?", "Ann"), ("sleeping cat", "user")):
            assert memory.search(question, k=1)[0].role == role
        everyone = memory.search("cat", k=3, where={"role": "Bo"})
        assert [hit.role for hit in everyone] == ["Bo"]


@pytest.mark.parametrize("layout", ["atoms", "sessions", "flat"])
@pytest.mark.parametrize("fold", [True, False])
def test_one_call_reads_as_its_steps_do(layout: Any, fold: bool) -> None:
    turns = sentences(700, sessions=30)
    late = {"timestamp": 1_780_000_000}
    turns += [Turn("The same words again.", session="copies", **late) for _ in range(40)]
    more = (f"{turn.text}\nAnd line {place % 3} again." for place, turn in enumerate(turns[:700:9]))
    turns += [Turn(text, **late) for text in more]
    memories = [Memory(embedder="hashing", layout=layout, fold=fold) for _ in range(2)]
    for memory in memories:
        memory.add_many(turns)
        memory.delete([f"t{number:04d}" for number in range(50, 90)])
    questions = (
        "harbour",
        "Where was garden 4 seen by the assistant?",
        "At step 3?",
        turns[9].text,
    )
    filters = {}, {"where": {"topic": "violin"}}, {"as_of": 1_770_003_000}
    for _ in range(2):  # prices unknown, and known
        for question in (*questions, "The same words again."):
            for budget in (12, 90, 1500, 40_000):
                for options in filters:
                    whole = memories[0].pack(question, budget=budget, **options)
                    with reading_in_steps():
                        steps = memories[1].pack(question, budget=budget, **options)
                    assert _outcome(whole) == _outcome(steps)
                    assert whole.tokens <= budget


def test_a_read_that_offers_less_than_it_has_room_for() -> None:
    memory = Memory(embedder="hashing")
    memory.add_many(sentences(300))
    assert memory.pack("harbour", budget=100, where={"topic": "none"}).chunks == ()
    assert len(memory.pack("harbour", budget=9000, where={"number": 7}).chunks) == 1
    # copies of the question are among the best, so that the next part makes fewer than was thought
    for count in range(250, 266):
        memory = Memory(embedder="hashing")
        memory.add_many(["where is the harbour"] * 8 + sentences(count))
        whole = memory.pack("where is the harbour", budget=100_000)
        assert sum(chunk.copies for chunk in whole.chunks) == 8 + count
        with reading_in_steps():
            assert _outcome(memory.pack("where is the harbour", budget=100_000)) == _outcome(whole)


def test_threads_read_alike_while_they_read_together() -> None:
    questions = [f"Where was garden {number} seen near the harbour?" for number in range(12)]
    one, many = (Memory(embedder="hashing") for _ in range(2))
    for memory in (one, many):
        memory.add_many(sentences(600, sessions=20))
    alone = [_outcome(one.pack(question, budget=1200)) for question in questions]
    found = [one.search(question, k=9) for question in questions]
    with ThreadPoolExecutor(4) as pool:  # of texts and prices that nobody has read before
        packs = list(pool.map(lambda q: many.pack(q, budget=1200), questions * 4))
        hits = list(pool.map(lambda q: many.search(q, k=9), questions * 4))
    assert [_outcome(pack) for pack in packs] == alone * 4
    assert hits == found * 4


def test_lengths_by_another_counter_shut_nothing_out(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing", count_tokens=_letters) as memory:
        memory.add_many(sentences(30))
    with Memory.open(path, embedder="hashing", count_tokens=_words) as memory:
        pack = memory.pack("harbour", budget=100)  # a chunk has more letters than that
        assert 4 <= len(pack.chunks) and pack.tokens <= 100


def _letters(text: str) -> int:
    return 10 * len(text)


def _words(text: str) -> int:
    return len(text.split())


def _outcome(pack: Pack) -> tuple[Any, ...]:
    stats = pack.stats
    return pack.text, pack.chunks, stats.considered, stats.scored, stats.folded_tokens
