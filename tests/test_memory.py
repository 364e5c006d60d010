"""The verbs of Memory, in RAM and on a file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rsm_fast import Memory, Turn, sample
from rsm_fast.analysis import analyse
from rsm_fast.errors import (
    BudgetError,
    CalibrationError,
    ConflictError,
    CorruptStoreError,
    EmbedderError,
    EmbedderMismatchError,
    InvalidInputError,
    NotFoundError,
    RSMError,
    StoreClosedError,
)

Opener = Callable[..., Memory]


@pytest.fixture(params=["ram", "file"])
def memory_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens memories in RAM or on one file; closes them at the end."""
    opened: list[Memory] = []

    def open_one(**options: Any) -> Memory:
        options.setdefault("embedder", "hashing")
        if request.param == "ram":
            memory = Memory(**options)
        else:
            memory = Memory.open(tmp_path / "agent.rsm", **options)
        opened.append(memory)
        return memory

    yield open_one
    for memory in opened:
        memory.close()


def sentences(count: int, *, sessions: int = 4) -> list[Turn]:
    """Different texts about a few topics, in a few sessions."""
    topics = ("harbour", "violin", "compiler", "garden", "glacier", "bakery")
    return [
        Turn(
            f"Note {i}: the {topics[i % 6]} number {i * 37 % 101} was seen near "
            f"{topics[(i * 5 + 1) % 6]} {i * 13 % 17}.",
            role="user" if i % 2 else "assistant",
            timestamp=1_770_000_000 + 60 * i,
            session=f"s{i * sessions // count}",
            id=f"t{i:04d}",
            metadata={"topic": topics[i % 6], "number": i},
        )
        for i in range(count)
    ]


def state_of(memory: Memory) -> Any:
    with memory._core.snapshot() as view:
        return view.state


def fingerprint(memory: Memory) -> dict[str, Any]:
    """All that is derived, in a form that two memories can be compared by."""
    with memory._core.snapshot() as view:
        state = view.state
        arena = state.arena
        rows = np.flatnonzero(arena.alive)
        order = {int(row): place for place, row in enumerate(rows)}
        link = lambda column: [order.get(int(r), -1) for r in column[rows]]  # noqa: E731
        query = arena.prepare_query(memory._core.embed_query("harbour near the garden"))
        atoms = {}
        if state.clusterer is not None:
            for atom in sorted(set(arena.atom[rows].tolist()) - {-1}):
                atoms[atom] = (
                    [order[int(r)] for r in state.clusterer.members(atom)],
                    np.round(state.clusterer.mean(atom), 5).tolist(),
                )
        return {
            "pk": arena.pk[rows].tolist(),
            "atom": arena.atom[rows].tolist(),
            "tokens": arena.tokens[rows].tolist(),
            "micros": arena.micros[rows].tolist(),
            "prev": link(arena.prev),
            "next": link(arena.next),
            "hashes": state.hashes[rows].tolist(),
            "dense": np.round(arena.dense_scores(query)[rows], 6).tolist(),
            "lexical": np.round(
                state.lexical.scores(
                    ["harbour", "garden", "37"],
                    prev=arena.prev,
                    next=arena.next,
                    alive=arena.alive,
                )[rows],
                4,
            ).tolist(),
            "atoms": atoms,
            "next_atom": None if state.clusterer is None else state.clusterer.next_atom,
        }


# -- writing and reading ----


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


def test_an_empty_memory_gives_an_empty_pack(memory_of: Opener) -> None:
    memory = memory_of()
    pack = memory.pack("anything", budget=100)
    assert (pack.text, pack.tokens, pack.chunks) == ("", 0, ())
    assert memory.search("anything") == []
    stats = memory.stats()
    assert (stats.turns, stats.chunks, stats.atoms) == (0, 0, 0)
    assert memory.namespaces() == []  # reading made none


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


@pytest.mark.parametrize("gate", ["max-member", "nearest-mean", "centroid"])
@pytest.mark.parametrize("chunk_turns", [1, 3])
def test_reopening_derives_the_same_state(tmp_path: Path, gate: Any, chunk_turns: int) -> None:
    path = tmp_path / "agent.rsm"
    options: dict[str, Any] = {"embedder": "hashing", "gate": gate, "chunk_turns": chunk_turns}
    with Memory.open(path, **options) as memory:
        memory.add_many(sentences(230))
        memory.delete(["t0003", "t0100", "t0229"])
        memory.update("t0050", "The glacier was renamed.")
        memory.flush()
        before = fingerprint(memory)
    with Memory.open(path, **options) as memory:
        assert fingerprint(memory) == before


def test_a_second_memory_on_the_file_sees_each_commit(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as one, Memory.open(path) as two:
        turns = sentences(120)
        one.add_many(turns[:30])
        assert two.search("harbour", k=1)
        two.add_many(turns[30:60])
        one.add_many(turns[60:90])
        two.delete("t0010")
        one.update("t0020", "A bakery opened.")
        two.add_many(turns[90:])
        assert fingerprint(one) == fingerprint(two)
        with Memory.open(path) as three:
            assert fingerprint(three) == fingerprint(one)


def test_the_embedder_is_remembered_by_name(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as memory:
        memory.add("The tram leaves at 7:40.")
    with Memory.open(path) as memory:
        assert memory.search("tram", k=1)[0].text == "The tram leaves at 7:40."


# -- ids ----


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


# -- bad input ----


@pytest.mark.parametrize(
    "turn",
    [
        "",
        " \n\t",
        3,
        None,
        {"role": "user"},
        Turn("x", role=""),
        Turn("x", role="r" * 300),
        Turn("x", id=""),
        Turn("x", id="a\0b"),
        Turn("x", session="\ud800"),
        Turn("x", timestamp="soon"),
        Turn("x", metadata={"a": float("nan")}),
        Turn("x", metadata={1: "a"}),  # type: ignore[dict-item]
        Turn("x", metadata={"a": object()}),  # type: ignore[dict-item]
        Turn("x", metadata={"a": "b" * 70_000}),
        Turn("x", ttl="soon"),
    ],
)
def test_a_turn_that_cannot_be_stored_is_refused_whole(memory_of: Opener, turn: Any) -> None:
    memory = memory_of()
    memory.add("kept", id="k")
    with pytest.raises(InvalidInputError, match=r"turns\[1\]"):
        memory.add_many(["fine", turn])
    assert memory.stats().turns == 1
    assert memory.add("fine") == "00000001"


def test_options_out_of_range_are_refused() -> None:
    for options in (
        {"preset": "best"},
        {"gate": "mean"},
        {"tau": 2},
        {"tau": "high"},
        {"rank": 0},
        {"chunk_turns": 1.5},
        {"percentile": 101},
        {"dtype": "float16"},
        {"tau": 0.8, "centre": True},
        {"vectors": "cloud"},
        {"namespace": ""},
        {"namespace": "../x"},
        {"namespace": "n" * 257},
        {"count_tokens": 3},
        {"embedder": 3},
    ):
        with pytest.raises(RSMError):
            Memory(**{"embedder": "hashing", **options}).add("x")  # type: ignore[arg-type]


def test_options_that_contradict_the_store_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing", gate="centroid") as memory:
        memory.add("x")
    with pytest.raises(InvalidInputError, match="gate"):
        Memory.open(path, gate="max-member")
    with Memory.open(path, gate="centroid") as memory:
        assert memory.stats().settings["gate"] == "centroid"


@pytest.mark.parametrize("budget", [-1, -5, 1.5, "many", True])
def test_f46_budgets_that_are_none_are_refused(memory_of: Opener, budget: Any) -> None:
    memory = memory_of()
    memory.add("x")
    with pytest.raises(BudgetError, match="budget"):
        memory.pack("x", budget=budget)


def test_f46_budgets_at_the_ends(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add_many(sentences(60))
    assert memory.pack("harbour", budget=0).text == ""
    assert memory.pack("harbour", budget=1).tokens <= 1
    assert memory.pack("harbour", budget=None).budget == 4000
    everything = memory.pack("harbour", budget=10**9)
    assert len(everything.chunks) == 60


def test_bad_questions_are_refused(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add("x")
    for call in (
        lambda: memory.pack(""),
        lambda: memory.pack(3),  # type: ignore[arg-type]
        lambda: memory.search("x", k=-1),
        lambda: memory.search("x", where={"a": {"like": 1}}),
        lambda: memory.search("x", where="role"),  # type: ignore[arg-type]
        lambda: memory.search("x", as_of="soon"),
        lambda: memory.pack("x", layout="columns"),  # type: ignore[arg-type]
        lambda: memory.pack("x", template="latex"),
        lambda: memory.add_many("one text"),
        lambda: memory.add(Turn("x"), role="assistant"),
    ):
        with pytest.raises(InvalidInputError):
            call()


@pytest.mark.parametrize(
    "vectors",
    [
        lambda n: np.full((n, 8), np.nan),
        lambda n: np.full((n, 8), np.inf),
        lambda n: np.zeros((n, 8)),
        lambda n: np.ones((n, 7)),
        lambda n: np.ones((n + 1, 8)),
        lambda n: np.ones(8),
        lambda n: "vectors",
        lambda n: None,
    ],
)
def test_f26_bad_vectors_are_refused_and_change_nothing(tmp_path: Path, vectors: Any) -> None:
    broken = False

    def embed(texts: list[str]) -> Any:
        good = np.arange(1, 8 * len(texts) + 1, dtype=np.float64).reshape(-1, 8)
        return vectors(len(texts)) if broken else good.tolist()

    with Memory.open(tmp_path / "agent.rsm", embedder=embed) as memory:
        memory.add_many(["one", "two"])
        before = fingerprint(memory)
        broken = True
        with pytest.raises((EmbedderError, InvalidInputError)):
            memory.add("three")
        with pytest.raises((EmbedderError, InvalidInputError)):
            memory.pack("three")
        broken = False
        assert fingerprint(memory) == before
        assert memory.stats().turns == 2


def test_f26_other_array_types_are_accepted() -> None:
    def embed(texts: list[str]) -> Any:
        array = np.ones((len(texts), 4), np.float64)
        array.setflags(write=False)
        return array

    memory = Memory(embedder=embed)
    memory.add("one")
    assert memory.search("one", k=1)[0].text == "one"


def test_f27_another_embedder_is_refused_and_texts_stay(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as memory:
        memory.add("The tram leaves at 7:40.")
    with pytest.raises(EmbedderMismatchError, match=r"3 dimensions.*reembed"):
        Memory.open(path, embedder=lambda texts: np.ones((len(texts), 3)))
    with Memory.open(path, embedder="hashing") as memory:
        assert memory.search("tram", k=1)[0].text == "The tram leaves at 7:40."


def test_a_closed_memory_says_so(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add("x")
    memory.close()
    memory.close()
    for call in (lambda: memory.add("y"), lambda: memory.pack("y"), lambda: memory.stats()):
        with pytest.raises(StoreClosedError):
            call()


# -- chunks of several turns ----


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


# -- calibration ----


def test_chunks_wait_until_tau_is_known(memory_of: Opener) -> None:
    memory = memory_of()
    turns = sentences(60)
    memory.add_many(turns[:49])
    stats = memory.stats()
    assert stats.tau is None and stats.pending_chunks == 49 and stats.atoms == 0
    memory.add(turns[49])
    stats = memory.stats()
    assert stats.tau is not None and stats.pending_chunks == 0 and stats.atoms > 0
    assert stats.settings["tau_source"] == "calibrated"
    tau = stats.tau
    memory.add_many(turns[50:])
    assert memory.stats().tau == tau  # frozen


def test_a_given_tau_gates_from_the_first_chunk(memory_of: Opener) -> None:
    memory = memory_of(tau=0.9)
    memory.add_many(["one thing", "one thing", "another matter"])
    stats = memory.stats()
    assert (stats.tau, stats.atoms, stats.pending_chunks) == (0.9, 2, 0)
    with pytest.raises(CalibrationError):
        memory.calibrate()


def test_calibrate_and_recalibrate(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add_many(sentences(20))
    tau = memory.calibrate([turn.text for turn in sentences(50)])
    assert memory.stats().tau == tau and memory.stats().pending_chunks == 0
    with pytest.raises(CalibrationError, match="recalibrate"):
        memory.calibrate()
    memory.add_many(turn.text + " again" for turn in sentences(50))
    assert -1 <= memory.recalibrate() <= 1
    assert memory.stats().pending_chunks == 0
    with pytest.raises(RSMError):
        Memory(embedder="hashing").calibrate(["one"])


def test_a_giant_atom_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(embedder="hashing", tau=-1.0)
    with caplog.at_level("WARNING", logger="rsm_fast"):
        memory.add_many(sentences(120))
        memory.add("one more")
    assert memory.stats().largest_atom_share == 1.0
    assert any("giant atom" in warning for warning in memory.stats().warnings)
    assert sum("one atom holds" in record.message for record in caplog.records) == 1


# -- presets ----


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


# -- forgetting ----


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


def test_f29_namespaces_do_not_touch(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with (
        Memory.open(path, embedder="hashing", namespace="A") as a,
        Memory.open(path, embedder="hashing", namespace="B") as b,
    ):
        a.add("the same text", id="x")
        b.add("the same text", id="x")
        a.delete("x")
        assert a.search("the same text") == []
        assert b.search("the same text", k=1)[0].text == "the same text"
        assert a.namespaces() == ["A", "B"]


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


# -- filters ----


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


# -- threads, async ----


def test_threads_may_share_a_memory(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add_many(sentences(60))
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for i in range(15):
                memory.add(f"writer {number} wrote line {i}")
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    def read() -> None:
        try:
            for _ in range(20):
                pack = memory.pack("harbour writer line", budget=400)
                assert pack.tokens <= 400
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    threads += [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert memory.stats().turns == 105


def test_async_twins_do_the_same() -> None:
    async def run() -> None:
        memory = Memory(embedder="hashing")
        await memory.aadd("The tram leaves at 7:40.", id="tram")
        await memory.aadd_many(sentences(20))
        assert (await memory.asearch("tram", k=1))[0].turn_ids == ("tram",)
        assert "7:40" in (await memory.apack("When does the tram leave?", budget=200)).text

    asyncio.run(run())


# -- results ----


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


# -- maintenance ----


@pytest.mark.parametrize("tau", [None, 0.7])
def test_reembed_moves_to_another_embedder(memory_of: Opener, tau: float | None) -> None:
    memory = memory_of(embedder="hashing-64", tau=tau)
    memory.add_many(sentences(90))
    heard: list[tuple[int, int]] = []
    memory.reembed("hashing-128", progress=lambda done, total: heard.append((done, total)))
    stats = memory.stats()
    assert stats.settings["dim"] == 128 and stats.settings["embedder_name"] == "hashing-128"
    assert (stats.turns, stats.pending_chunks) == (90, 0)
    assert heard[0] == (0, 90) and heard[-1] == (90, 90)
    fresh = Memory(embedder="hashing-128", tau=tau)
    fresh.add_many(sentences(90))
    before, after = fingerprint(fresh), fingerprint(memory)
    assert before["dense"] == after["dense"] and before["lexical"] == after["lexical"]
    partition = [
        [a == b for b in state["atom"]] for state in (before, after) for a in state["atom"]
    ]
    assert partition[:90] == partition[90:]
    memory.add("One more about the harbour.")
    memory.reembed("hashing-128")  # nothing to do


def test_reembed_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    embedded: list[str] = []
    broken = True

    def embed(texts: list[str]) -> Any:
        if broken and len(embedded) > 64:
            raise ConnectionError("the endpoint is gone")
        embedded.extend(texts)
        return np.array([[len(text), text.count("a"), 1.0] for text in texts])

    with Memory.open(path, embedder="hashing") as memory:
        memory.add_many(sentences(200))
        before = fingerprint(memory)
        with pytest.raises(Exception, match="endpoint is gone"):
            memory.reembed(embed)
        assert fingerprint(memory) == before  # usable as it was
        memory.update("t0000", "Changed meanwhile.")
    with Memory.open(path) as memory:
        broken = False
        embedded.clear()
        memory.reembed(embed)
        # 64 of 200 were done, one of them changed since; one text more tells the dimension
        assert 200 - 64 <= len(embedded) <= 200 - 64 + 2
        assert memory.stats().settings["dim"] == 3
        assert memory.search("Changed meanwhile.", k=1)[0].turn_ids == ("t0000",)
    with Memory.open(path, embedder=embed) as memory:
        assert memory.stats().turns == 200
    with pytest.raises(EmbedderMismatchError):
        Memory.open(path, embedder="hashing")


def test_f34_damage_is_noticed_and_what_is_derived_is_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as memory:
        memory.add_many(sentences(60))
        before = fingerprint(memory)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE chunks SET tokens = tokens + 1 WHERE id = 't0007#0'")
    with Memory.open(path) as memory:
        with pytest.raises(CorruptStoreError, match="doctor"):
            memory.search(sentences(60)[7].text, k=1)
        assert memory.repair() == []
        assert memory.search(sentences(60)[7].text, k=1)[0].turn_ids == ("t0007",)
        after = fingerprint(memory)
        assert sorted(after["hashes"]) == sorted(before["hashes"])
        assert memory.stats().pending_chunks == 0


def test_a_fork_goes_on_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as memory:
        memory.add_many(sentences(60))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of the suite's runner
            child = os.fork()
        if child == 0:
            try:
                memory.add("written by the child", id="child")
                os._exit(0 if memory.search("written by the child", k=1) else 1)
            except BaseException:  # noqa: BLE001
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert memory.search("written by the child", k=1)[0].turn_ids == ("child",)


def test_a_snapshot_opens_to_the_same_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rsm_fast import core
    from rsm_fast.store import Reader

    monkeypatch.setattr(core, "_SNAPSHOT_ROWS", 50)
    path = tmp_path / "agent.rsm"
    turns = sentences(220)
    with Memory.open(path, embedder="hashing") as memory:
        memory.add_many(turns[:150])
        memory.delete(["t0003", "t0149"])
        memory.update("t0050", "The glacier was renamed.")
        before = fingerprint(memory)
    assert list(tmp_path.glob("agent.rsm-snapshots/*"))
    read_whole = Reader.columns
    whole: list[int] = []
    monkeypatch.setattr(
        Reader, "columns", lambda self, ns, dim: whole.append(ns) or read_whole(self, ns, dim)
    )
    with Memory.open(path) as memory:
        assert fingerprint(memory) == before
        assert whole == []  # nothing was read but what changed since
        memory.add_many(turns[150:153])  # too few for another snapshot
        memory.delete("t0010")
        before = fingerprint(memory)
    with Memory.open(path) as memory:
        assert fingerprint(memory) == before and whole == []
        memory.add_many(turns[153:])  # the mapped arrays have to grow
        before = fingerprint(memory)
    with Memory.open(path) as memory:
        assert fingerprint(memory) == before and whole == []
        memory.recalibrate([turn.text for turn in turns[100:150]])
        memory._core.close()  # without saving: the snapshot was made with another tau
    with Memory.open(path) as memory:
        assert fingerprint(memory)["next_atom"] > before["next_atom"] and len(whole) == 1
    for file in tmp_path.glob("agent.rsm-snapshots/*"):
        file.write_bytes(file.read_bytes()[:-1000])
    with Memory.open(path) as memory:
        assert memory.stats().turns == 217 and len(whole) == 2


def test_float_vectors_may_lie_on_disk(tmp_path: Path) -> None:
    turns = sentences(300)
    plain = Memory(embedder="hashing")
    plain.add_many(turns)
    with Memory.open(tmp_path / "agent.rsm", embedder="hashing", vectors="disk") as memory:
        memory.add_many(turns)
        left, right = fingerprint(memory), fingerprint(plain)
        assert {**left, "pk": None} == {**right, "pk": None}
        assert memory.stats().bytes < plain.stats().bytes - 300 * 4 * 200
        assert {path.name for path in tmp_path.iterdir()} <= {
            "agent.rsm", "agent.rsm-wal", "agent.rsm-shm", "agent.rsm-lock",
        }  # fmt: skip


def test_edge_profile_keeps_int8_and_takes_what_is_there(tmp_path: Path) -> None:
    new, old = tmp_path / "new.rsm", tmp_path / "old.rsm"
    with Memory.open(old, embedder="hashing") as memory:
        memory.add_many(sample.turns())
        whole = memory.stats().bytes
    with Memory.open(new, embedder="hashing", profile="edge") as memory:
        memory.add_many(sample.turns())
        assert memory.stats().settings["dtype"] == "int8"
        assert memory.stats().bytes < 0.7 * whole
    with Memory.open(new, profile="edge") as memory:
        assert "Biscuit" in memory.pack("What does Biscuit weigh?", budget=200).text
    with Memory.open(old, profile="edge") as memory:
        assert memory.stats().settings["dtype"] == "float32"
        assert memory.stats().bytes < 0.7 * whole
    with Memory.open(tmp_path / "f.rsm", embedder="hashing", profile="edge", dtype="float32") as m:
        m.add("x")
        assert m.stats().settings["dtype"] == "float32"
    with pytest.raises(InvalidInputError, match="profile"):
        Memory.open(new, profile="tiny")  # type: ignore[arg-type]


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


# -- words ----


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


def test_facts_are_looked_for_in_the_own_words_of_who_is_asked_about():
    turns = [("Ann", "The cat sleeps"), ("Bo", "A cat sleeps"), ("user", "One cat sleeps")]
    with Memory(embedder="hashing") as memory:
        memory.add_many([{"text": text, "role": role} for role, text in turns])
        for question, role in (("Bo, cat?", "Bo"), ("Ann, cat?", "Ann"), ("sleeping cat", "user")):
            assert memory.search(question, k=1)[0].role == role
        everyone = memory.search("cat", k=3, where={"role": "Bo"})
        assert [hit.role for hit in everyone] == ["Bo"]
