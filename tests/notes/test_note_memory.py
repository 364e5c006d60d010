"""Notes: construction, links, evolution, retrieval, packing, forgetting."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from rsm_fast import Memory
from rsm_fast.errors import InvalidInputError, NotFoundError
from rsm_fast.notes import NoteMemory


def everything(notes: NoteMemory) -> list[Any]:
    ids = [f"t{number}" for number in range(1, 7)]
    return [(notes.get(id), notes.history(id)) for id in ids]


def without_time(found: list[Any]) -> list[Any]:
    return [
        (note, [(e.cause, e.before, e.after, e.undone) for e in history]) for note, history in found
    ]


def test_a_turn_becomes_a_described_linked_and_evolving_note(make, standin, turns) -> None:
    notes = make(standin)
    for turn in turns:
        assert notes.add(turn) == turn["id"]
    first = notes.get("t1")
    assert first.text == turns[0]["text"] and not first.pending
    assert {"flight", "lisbon"} <= set(first.keywords)
    assert first.tags[1] == "by user" and first.model == "" and first.prompts == "1"
    assert "t4" in first.links and "t1" in notes.get("t4").links
    assert set(notes.get("t3").links) == {"t5"}
    assert first.context.endswith("See also t4.")
    step = notes.history("t1")[0]
    assert step.before["context"] != step.after["context"] and not step.undone
    stats = notes.stats()
    assert (stats.notes, stats.pending) == (6, 0)
    assert stats.links == stats.evolutions == 3 and stats.bytes > 0


def test_the_first_note_needs_one_call_and_later_ones_two(make, standin, turns) -> None:
    notes = make(standin)
    report = notes.add_many(turns)
    assert standin.calls == 11 == report.asked * 2 - 1
    assert (report.finished, report.problems, report.stopped) == (6, {}, "")


def test_evolution_never_touches_a_text(make, standin, turns) -> None:
    notes = make(standin)
    notes.add_many(turns)
    assert [notes.get(turn["id"]).text for turn in turns] == [turn["text"] for turn in turns]
    assert [hit.text for hit in notes.memory.search(turns[0]["text"], k=1)] == [turns[0]["text"]]


@pytest.mark.parametrize(
    ("options", "calls", "linked", "evolved"),
    [
        ({}, 11, True, True),
        ({"evolution": False}, 11, True, False),
        ({"links": False}, 6, False, False),
    ],
)
def test_ablations(make, standin, turns, options, calls, linked, evolved) -> None:
    notes = make(standin, **options)
    notes.add_many(turns)
    stats = notes.stats()
    assert (standin.calls, stats.links > 0, stats.evolutions > 0) == (calls, linked, evolved)
    assert stats.pending == 0


def test_bulk_gives_what_one_by_one_gives(make, standin, turns) -> None:
    one, many = make(standin), make(standin)
    for turn in turns:
        one.add(turn)
    many.add_many(turns, workers=3)
    assert without_time(everything(one)) == without_time(everything(many))


def test_k_bounds_the_neighbours_that_the_model_sees(make, turns) -> None:
    seen = []

    class Watching:
        def chat(self, messages: Any, schema: Any = None) -> dict[str, Any]:
            asked = json.loads(messages[1]["content"])
            if "neighbours" in asked:
                seen.append([note["id"] for note in asked["neighbours"]])
                return {"links": [], "rewrites": []}
            return {"keywords": ["a"], "tags": ["b"], "context": "c"}

    make(Watching(), k=2).add_many(turns)
    assert [len(ids) for ids in seen] == [1, 2, 2, 2, 2]
    assert set(seen[3]) & {"t3"}  # the other bread


def test_search_gives_the_nearest_and_then_what_is_linked(make, standin, turns) -> None:
    notes = make(standin, k=1)
    notes.add_many(turns)
    hits = notes.search("Which bread does the bakery sell?", k=1)
    assert [hit.via for hit in hits] == [None, hits[0].note.id]
    assert {hit.note.id for hit in hits} == {"t3", "t5"}
    assert [hit.note.id for hit in notes.search("bakery bread", k=1, links=False)] in (
        ["t3"],
        ["t5"],
    )
    assert notes.search("bread", k=0) == []
    scores = [hit.score for hit in notes.search("bread", k=6)]
    assert scores == sorted(scores, reverse=True) and len(scores) == 6


def test_search_is_exact(make, standin, turns) -> None:
    notes = make(standin, links=False)
    notes.add_many(turns)
    core = notes.memory._core
    query = core.embed_query("suitcase for the train")
    with notes._shelf.reading() as (reader, ns):
        from rsm_fast.store.notes import NoteReader

        stored = {
            note.turn: np.frombuffer(note.vector, "<f4")
            for note in NoteReader(reader).all_notes(ns)
        }
    expected = sorted(stored, key=lambda turn: -float(stored[turn] @ query))
    hits = notes.search("suitcase for the train", k=6)
    with notes._shelf.reading() as (reader, ns):
        assert [reader.turn(ns, hit.note.id).pk for hit in hits] == expected


def test_filters_hold_for_hits_and_for_links(make, standin, turns) -> None:
    notes = make(standin)
    notes.add_many(turns)
    assert {hit.note.role for hit in notes.search("Lisbon", where={"role": "assistant"})} == {
        "assistant"
    }
    early = notes.search("Lisbon", k=1, as_of="2026-05-02T12:00:00Z")
    assert {hit.note.id for hit in early} <= {"t1", "t2"}
    notes.memory.supersede("t1", "t4")
    assert "t1" not in {hit.note.id for hit in notes.search("flight to Lisbon", k=6)}
    assert "t1" in {hit.note.id for hit in notes.search("flight to Lisbon", superseded=True)}


def test_a_pack_keeps_its_budget_and_shows_the_descriptions(make, standin, turns) -> None:
    notes = make(standin)
    notes.add_many(turns)
    full = notes.pack("How do we get to Lisbon?", budget=1000)
    assert full.text.count("keywords:") == len(full.chunks) == full.stats.admitted
    assert "We take the train to Lisbon" in full.text
    bare = notes.pack("How do we get to Lisbon?", budget=1000, details=False)
    assert "keywords:" not in bare.text and bare.tokens < full.tokens
    for budget in range(0, 160, 7):
        pack = notes.pack("How do we get to Lisbon?", budget=budget)
        assert len(pack.text.split()) == pack.tokens <= budget
    assert notes.pack("anything", budget=0).text == ""


def test_undo_takes_back_one_rewriting_at_a_time(make, standin, turns) -> None:
    notes = make(standin)
    notes.add_many(turns)
    history = notes.history("t1")
    assert history
    for step in reversed(history):
        undone = notes.undo("t1")
        assert undone.undone and undone.after == step.after
        note = notes.get("t1")
        assert {"keywords": list(note.keywords), "tags": list(note.tags)} == {
            name: step.before[name] for name in ("keywords", "tags")
        }
        assert note.context == step.before["context"]
    with pytest.raises(NotFoundError, match="no rewriting"):
        notes.undo("t1")
    assert all(step.undone for step in notes.history("t1"))
    fresh = make(standin, links=False)
    fresh.add(turns[0])
    assert notes.search(turns[0]["text"], k=1)[0].score == pytest.approx(
        fresh.search(turns[0]["text"], k=1)[0].score, abs=1e-6
    )


def test_what_a_deleted_turn_caused_goes_with_it(make, standin, turns) -> None:
    notes, never = make(standin), make(standin)
    notes.add_many(turns)
    never.add_many([turn for turn in turns if turn["id"] != "t4"])
    assert any("t4" in step.after["context"] for step in notes.history("t1"))
    notes.memory.delete("t4")
    assert notes.get("t4") is None
    for turn in turns:
        if turn["id"] == "t4":
            continue
        note = notes.get(turn["id"])
        assert "t4" not in note.links and "t4" not in note.context
        assert all("t4" not in json.dumps(step.to_dict()) for step in notes.history(turn["id"]))
    assert "t4" not in {hit.note.id for hit in notes.search("flight to Lisbon cancelled", k=6)}


def test_an_updated_turn_is_described_anew(make, standin, turns) -> None:
    notes = make(standin)
    notes.add_many(turns)
    notes.memory.update("t3", "The cinema on Mill Street shows old films.")
    note = notes.get("t3")
    assert note.pending and note.keywords == () and note.links == ()
    assert "rye" not in notes.get("t5").context or "t3" not in notes.get("t5").context
    assert notes.complete().finished == 1
    assert "cinema" in notes.get("t3").keywords


def test_every_verb_stands_a_purge_by_another_process(make, standin, turns, tmp_path) -> None:
    path = tmp_path / "notes.rsm"
    notes = make(standin, path, k=3)
    notes.add_many(turns)
    assert notes.search("Lisbon")
    with Memory.open(path, embedder="hashing") as other:
        other.purge()
    assert notes.search("Lisbon") == [] and notes.pack("Lisbon", budget=500).text == ""
    assert notes.get("t1") is None and notes.history("t1") == [] and notes.pending() == []
    assert (notes.stats().notes, notes.estimate().calls, notes.complete().asked) == (0, 0, 0)
    notes.clear()
    with pytest.raises(NotFoundError, match="no rewriting"):
        notes.undo("t1")
    with NoteMemory.open(path, standin, embedder="hashing") as other:
        other.add("The ferry to Lisbon runs on Sundays.", id="new")
    assert [hit.note.id for hit in notes.search("Lisbon")] == ["new"]
    assert "ferry" in notes.pack("Lisbon", budget=500).text
    assert notes.memory._core.store.check() == []


def test_notes_whose_vectors_wait_when_they_are_purged(
    make, standin, turns, tmp_path, monkeypatch
) -> None:
    path = tmp_path / "notes.rsm"
    notes = make(standin, path, k=3)
    notes.add_many(turns)
    evolved = next(turn["id"] for turn in turns if notes.history(turn["id"]))
    notes.undo(evolved)  # its vector is made by the next search
    embedded = notes._shelf.embedded

    def purged_meanwhile(texts: list[str]) -> object:
        with Memory.open(path, embedder="hashing") as other:
            other.purge()
        return embedded(texts)

    monkeypatch.setattr(notes._shelf, "embedded", purged_meanwhile)
    assert notes.search("Lisbon") == []
    assert notes.stats().notes == 0 and notes.memory._core.store.check() == []


def test_purge_takes_the_notes_along(make, standin, turns) -> None:
    notes = make(standin)
    notes.add_many(turns)
    assert notes.search("Lisbon")
    notes.memory.purge()
    notes.clear()
    assert notes.search("Lisbon") == [] and notes.stats().notes == 0
    assert notes.pack("Lisbon", budget=500).text == ""
    notes.add(turns[0])
    assert [hit.note.id for hit in notes.search("Lisbon")] == ["t1"]


def test_clear_keeps_the_turns(make, standin, turns) -> None:
    notes = make(standin)
    notes.add_many(turns)
    notes.clear()
    assert notes.stats().notes == 0 and notes.stats().pending == 6
    assert notes.memory.stats().turns == 6
    assert notes.search("Lisbon") == []


def test_notes_come_back_with_the_store(make, standin, turns, tmp_path) -> None:
    path = tmp_path / "notes.rsm"
    with NoteMemory.open(path, standin, embedder="hashing") as notes:
        notes.add_many(turns)
        before = (without_time(everything(notes)), notes.search("Lisbon", k=3))
    reopened = make(path=path)
    assert (without_time(everything(reopened)), reopened.search("Lisbon", k=3)) == before
    assert reopened.memory._core.store.check() == []


def test_two_memories_on_one_file_see_each_other(make, standin, turns, tmp_path) -> None:
    path = tmp_path / "notes.rsm"
    one, other = make(standin, path), make(standin, path)
    one.add(turns[0])
    assert [hit.note.id for hit in other.search("Lisbon")] == ["t1"]
    other.add(turns[3])
    assert {hit.note.id for hit in one.search("Lisbon")} == {"t1", "t4"}
    one.memory.delete("t4")
    assert [hit.note.id for hit in other.search("Lisbon")] == ["t1"]
    assert other.get("t1").context == one.get("t1").context


def test_namespaces_share_nothing(make, standin, turns, tmp_path) -> None:
    path = tmp_path / "notes.rsm"
    mine = make(standin, path, namespace="mine")
    theirs = make(standin, path, namespace="theirs")
    mine.add_many(turns[:3])
    theirs.add_many(turns[3:])
    assert {hit.note.id for hit in mine.search("Lisbon")} == {"t1", "t2", "t3"}
    assert theirs.stats().notes == 3 and theirs.get("t1") is None
    mine.memory.purge()
    assert theirs.stats().notes == 3


def test_another_embedder_gives_notes_new_vectors(make, standin, turns, tmp_path) -> None:
    path = tmp_path / "notes.rsm"
    with NoteMemory.open(path, standin, embedder="hashing") as notes:
        notes.add_many(turns)
        with notes._shelf.writing() as (writer, ns):
            import rsm_fast.store.notes as stored

            table = stored.NoteWriter(writer)
            for note in table.notes(ns, table.keys(ns)):
                table.put(ns, note._replace(space=1, vector=bytes(note.vector)[::-1]))
    with NoteMemory.open(path, embedder="hashing", read_only=True) as notes:
        assert notes.search(turns[4]["text"], k=1)[0].note.id == "t5"
    reopened = make(path=path)
    assert reopened.search(turns[4]["text"], k=1)[0].note.id == "t5"
    with reopened._shelf.reading() as (reader, ns):
        spaces = {note.space for note in stored.NoteReader(reader).all_notes(ns)}
    assert spaces == {reopened._shelf.embedded([])[0]}


def test_reading_needs_no_write_lock(make, standin, turns, tmp_path) -> None:
    path = tmp_path / "notes.rsm"
    notes = make(standin, path, timeout=0.05)
    notes.add_many(turns)
    notes.undo("t1")  # leaves it without a vector
    with Memory.open(path, embedder="hashing") as other, other._core.store.write():
        assert {hit.note.id for hit in notes.search("flight to Lisbon", k=6)} >= {"t1"}
    assert {hit.note.id for hit in notes.search("flight to Lisbon", k=6)} >= {"t1"}


def test_an_existing_memory_gets_its_notes_later(standin, turns) -> None:
    with Memory(embedder="hashing") as memory:
        memory.add_many(turns)
        notes = NoteMemory(memory, standin)
        assert [note.id for note in notes.pending()] == [turn["id"] for turn in turns]
        assert notes.complete(limit=2).finished == 2
        assert notes.complete().finished == 4
        assert notes.complete().asked == 0


def test_a_long_text_is_embedded_by_its_end_and_description(turns) -> None:
    from rsm_fast.notes.shelf import _fitting

    class Narrow:
        max_tokens = 10

        def count_tokens(self, text: str) -> int:
            return len(text.split())

    text = " ".join(f"word{number}" for number in range(200)) + " description"
    fitting = _fitting(text, Narrow())
    assert fitting.endswith("word199 description") and len(fitting.split()) <= 10


def test_async_twins(make, standin, turns) -> None:
    notes = make(standin)

    async def run() -> tuple[Any, ...]:
        await notes.aadd(turns[0])
        report = await notes.aadd_many(turns[1:])
        await notes.acomplete()
        return (
            report.finished,
            len(await notes.asearch("Lisbon", k=2, links=False)),
            (await notes.apack("Lisbon", budget=500)).tokens > 10,
        )

    assert asyncio.run(run()) == (5, 2, True)


@pytest.mark.parametrize(
    "options", [{"k": 0}, {"k": True}, {"repairs": -1}, {"k": "ten"}, {"repairs": 1.5}]
)
def test_bad_options_are_refused(make, options) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        make(**options)


def test_bad_questions_are_refused(make) -> None:
    notes = make()
    for query, options in [("", {}), ("x", {"k": -1}), ("x", {"budget": -1}), (None, {})]:
        with pytest.raises(InvalidInputError):
            notes.pack(query, **options)
    with pytest.raises(InvalidInputError, match="workers"):
        notes.complete(workers=0)
    with pytest.raises(InvalidInputError, match="limit"):
        notes.complete(limit=-1)
