"""A model that fails in every way there is: the store stays whole, and can be completed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.model_server import ModelServer, serving
from bench.notes.standin import StandIn
from rsm_fast import Memory
from rsm_fast.llm import AnswerCache, ChatEndpoint
from rsm_fast.notes import NoteMemory

GOOD = {"keywords": ["tram"], "tags": ["travel"], "context": "About a tram."}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving(StandIn().reply) as running:
        yield running


def endpoint(server: ModelServer, **options: Any) -> ChatEndpoint:
    options = {"timeout": 0.5, "retries": 0, **options}
    return ChatEndpoint(server.url, "stand-in", _sleep=lambda _: None, **options)


class Scripted:
    """Describes well; what it says of neighbours is given."""

    def __init__(self, connected: Any, described: Any = None) -> None:
        self.connected = connected
        self.described = described or GOOD

    def chat(self, messages: Any, schema: Any = None) -> Any:
        asked = json.loads(messages[1]["content"])
        given_ = self.connected if "neighbours" in asked else self.described
        if isinstance(given_, Exception):
            raise given_
        return given_


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("500", "HTTP 500"),
        ("429 9", "HTTP 429"),
        ("401", "HTTP 401"),
        ("hang", "no answer within"),
        ("close", "no answer after"),
        ("html", "expected a chat completion"),
        ("empty", "expected a chat completion"),
        ("length", "no JSON object stands in it; it was cut"),
        ("say I would rather talk about the weather.", "no JSON object stands in it"),
        ('say {"keywords": [], "tags": ["a"], "context": "b"}', "the model gave no keywords"),
        ('say {"tags": 3}', "no keywords, no tags, no context"),
        ("say " + "[" * 5000, "no JSON object"),
    ],
)
def test_a_description_that_fails_leaves_a_pending_note(
    make, server, turns, fault, problem
) -> None:
    notes = make(endpoint(server), repairs=0)
    server.faults.append(fault)
    assert notes.add(turns[0]) == "t1"
    note = notes.get("t1")
    assert note.pending and problem in note.problem and note.text == turns[0]["text"]
    assert [hit.note.id for hit in notes.search("flight to Lisbon")] == ["t1"]
    assert notes.memory._core.store.check() == []
    assert notes.complete().finished == 1
    assert not notes.get("t1").pending and notes.get("t1").problem == ""


@pytest.mark.parametrize(
    "fault", ["500", "hang", "say no idea", 'say {"links": "t1"}', "length", "html"]
)
def test_linking_that_fails_keeps_the_description_and_is_completed(
    make, server, turns, fault
) -> None:
    notes = make(endpoint(server), repairs=0)
    notes.add(turns[0])
    server.faults.extend(["ok", fault])
    notes.add(turns[3])
    note = notes.get("t4")
    assert note.pending and note.problem and note.keywords and not note.links
    asked = len(server.requests)
    assert notes.complete().finished == 1
    assert notes.get("t4").links == ("t1",)
    assert len(server.requests) == asked + 1  # the description was not asked for again


@pytest.mark.parametrize(
    "connected",
    [
        {"links": ["t99", "1", 1, None, {"id": "t1"}, ["t1"], "t4"], "rewrites": []},
        {"links": [], "rewrites": [{"id": "t99", **GOOD}, "t1", None, {"id": ["t1"], **GOOD}]},
        {"links": [], "rewrites": [{"id": "t1"}]},
        {"links": [], "rewrites": [{"id": "t1", "keywords": [], "tags": 7, "context": "  "}]},
        {"links": {"t1": True}, "rewrites": "t1"},
        {"links": [], "rewrites": [{"id": "t1", "text": "We fly to Rome.", "links": ["t1"]}]},
    ],
)
def test_unknown_ids_and_odd_shapes_change_nothing(make, turns, connected) -> None:
    notes = make(Scripted(connected), repairs=0)
    notes.add(turns[0])
    before = notes.get("t1")
    notes.add(turns[3])
    after = notes.get("t1")
    expected = ("t4",) if {"id": "t1"} in list(connected["links"]) else ()
    assert after.links == expected
    assert (after.text, after.keywords, after.tags, after.context) == (
        before.text,
        before.keywords,
        before.tags,
        before.context,
    )
    assert notes.history("t1") == []


def test_what_can_be_used_of_a_rewriting_is_used(make, turns) -> None:
    rewrite = {"id": "t1", "keywords": "one, two,, ONE", "context": "a\x00b\nc \ud800" + "x" * 5000}
    notes = make(Scripted({"links": ["t1"], "rewrites": [rewrite]}), repairs=0)
    notes.add(turns[0])
    notes.add(turns[3])
    note = notes.get("t1")
    assert note.keywords == ("one", "two") and note.tags == ("travel",)
    assert note.context.startswith("a b c xxx") and len(note.context) == 600
    assert notes.history("t1")[0].before["context"] == "About a tram."


def test_an_unknown_id_is_asked_about_once_more(make, turns) -> None:
    class Learning(Scripted):
        def chat(self, messages: Any, schema: Any = None) -> Any:
            if len(messages) > 2:
                assert "expected one of ['t1']" in messages[-1]["content"]
                return {"links": ["t1"], "rewrites": []}
            return super().chat(messages, schema)

    notes = make(Learning({"links": ["no. 1"], "rewrites": []}))
    notes.add_many([turns[0], turns[3]])
    assert notes.get("t4").links == ("t1",)


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), ValueError("?"), TimeoutError()])
def test_a_model_that_raises_is_a_problem_and_no_error(make, turns, error) -> None:
    notes = make(Scripted({"links": [], "rewrites": []}, error))
    assert notes.add(turns[0]) == "t1"
    assert "Scripted.chat failed" in notes.get("t1").problem


def test_without_a_model_notes_wait(make, turns, standin) -> None:
    notes = make()
    report = notes.add_many(turns)
    assert report.stopped == "" and set(report.problems.values()) == {"no model was given"}
    assert len(notes.pending()) == 6 == len(notes.search("anything", k=6))
    assert NoteMemory(notes.memory, standin).complete().finished == 6


def test_a_described_note_waits_for_its_links_without_a_model(make, server, turns) -> None:
    notes = make(endpoint(server), repairs=0)
    server.faults.extend(["ok", "ok", "500"])
    notes.add_many([turns[0], turns[3]], workers=1)
    described = notes.get("t4")
    assert described.pending and described.keywords
    report = NoteMemory(notes.memory).complete()
    assert report.problems == {"t4": "no model was given"}
    assert notes.get("t4").keywords == described.keywords
    assert notes.complete().finished == 1 and notes.get("t4").links == ("t1",)


def test_a_note_that_evolved_before_it_was_linked_stays_so(make, turns) -> None:
    """t4 waits for its links, and is rewritten by t1, which comes before it."""

    class Poor(Scripted):
        """Describes all but t1, links nothing."""

        def chat(self, messages: Any, schema: Any = None) -> Any:
            asked = json.loads(messages[1]["content"])
            return GOOD if asked.get("text") in (turns[1]["text"], turns[3]["text"]) else "?"

    first = make(Poor(None), repairs=0)
    first.add_many([turns[0], turns[1], turns[3]], workers=1)
    assert [note.id for note in first.pending()] == ["t1", "t2", "t4"]
    rewrite = {"id": "t4", "keywords": ["new"], "tags": ["new"], "context": "New."}
    second = NoteMemory(first.memory, Scripted({"links": [], "rewrites": [rewrite]}), repairs=0)
    assert second.complete().finished == 3
    note = second.get("t4")
    assert note.context == "New." and not note.pending and note.keywords == ("new",)
    assert first.memory._core.store.check() == []


def test_two_runs_at_once_keep_the_first_description(make, turns) -> None:
    """Another run finishes t1 while the model still thinks about it."""

    class Slow(Scripted):
        def chat(self, messages: Any, schema: Any = None) -> Any:
            if not other:
                other.append(NoteMemory(notes.memory, Scripted(None)).complete())
            return {**GOOD, "context": "Too late."}

    other: list[Any] = []
    notes = make(Slow(None), repairs=0)
    notes.add(turns[0])
    assert other[0].finished == 1
    assert notes.get("t1").context == "About a tram." and not notes.get("t1").pending


def test_an_endpoint_that_is_down_stops_a_long_run(make, server, turns) -> None:
    notes = make(endpoint(server))
    server.faults.extend(["ok", *["503"] * 50])
    report = notes.add_many(turns, workers=1)
    assert "3 times in a row" in report.stopped and report.asked == 4
    server.faults.clear()
    assert notes.complete().finished == 5
    assert notes.stats().pending == 0


def test_a_run_that_was_interrupted_continues(make, server, turns, tmp_path: Path) -> None:
    path = tmp_path / "notes.rsm"
    notes = make(endpoint(server), path)

    def interrupt(count: int) -> None:
        if count == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        notes.add_many(turns, progress=interrupt)
    notes.close()
    again = make(endpoint(server), path)
    assert [note.id for note in again.pending()] == ["t4", "t5", "t6"]
    assert again.complete().finished == 3
    whole = make(StandIn(), k=10)
    whole.add_many(turns)
    for turn in turns:
        one, other = again.get(turn["id"]), whole.get(turn["id"])
        assert (one.keywords, one.context, one.links) == (
            other.keywords,
            other.context,
            other.links,
        )


def test_an_answer_cache_makes_a_second_run_free(server, turns, tmp_path: Path) -> None:
    for run in range(2):
        client = endpoint(server, cache=AnswerCache(tmp_path / "answers.sqlite"))
        with Memory(embedder="hashing") as memory:
            report = NoteMemory(memory, client).add_many(turns)
        client.close()
        assert report.finished == 6
        assert (report.usage.calls, report.usage.cached) == ((11, 0), (0, 11))[run]
    assert len(server.requests) == 11


def test_descriptions_are_asked_for_ahead_and_bounded(make, server, turns) -> None:
    server.delay = 0.1
    notes = make(endpoint(server, timeout=5.0))
    notes.add_many(turns, workers=3)
    assert 2 <= server.most_active <= 4


def test_a_dry_run_counts_what_a_run_takes(server, turns) -> None:
    with Memory(embedder="hashing") as memory:
        memory.add_many(turns)
        notes = NoteMemory(memory, endpoint(server), k=3)
        estimate = notes.estimate()
        assert server.requests == [] and notes.stats().notes == 0
        notes.complete()
        counted = sum(
            memory._core.counter(message["content"]) + 4
            for request in server.requests
            for message in request["messages"]
        )
        assert notes.estimate().calls == notes.estimate(limit=0).notes == 0
    assert estimate.calls == len(server.requests) == 11 and estimate.notes == 6
    assert estimate.prompt_tokens == pytest.approx(counted, rel=0.1)
    assert estimate.completion_tokens > 11 * 40


@pytest.mark.parametrize("change", ["delete", "update", "evolve", "purge"])
def test_what_others_change_while_the_model_thinks_is_left_alone(make, turns, change) -> None:
    """The model answers about t1 and t4 when t1 has changed already."""

    class Slow(Scripted):
        def chat(self, messages: Any, schema: Any = None) -> Any:
            asked = json.loads(messages[1]["content"])
            if "neighbours" in asked and asked["new"]["id"] == "t4":
                if change == "delete":
                    notes.memory.delete("t1")
                elif change == "update":
                    notes.memory.update("t4", "Nothing is cancelled.")
                elif change == "purge":
                    notes.memory.purge()
                else:
                    NoteMemory(notes.memory, Scripted(self.connected)).add(turns[1])
            return super().chat(messages, schema)

    rewrite = {"id": "t1", "keywords": ["new"], "tags": ["new"], "context": "New."}
    notes = make(Slow({"links": ["t1"], "rewrites": [rewrite]}), repairs=0)
    notes.add(turns[0])
    notes.add(turns[3])
    if change == "delete":
        assert notes.get("t1") is None and notes.get("t4").links == ()
    elif change == "update":
        assert notes.get("t4").pending and notes.get("t1").context == "About a tram."
    elif change == "purge":
        assert notes.get("t4") is None and notes.stats().notes == 0
    else:
        assert [step.cause for step in notes.history("t1")] == ["t2"]
    assert notes.memory._core.store.check() == []


def test_threads_may_add_at_once(make, standin) -> None:
    notes = make(standin, k=3)

    def add(name: str) -> None:
        for number in range(4):
            notes.add(f"{name} has seen bird number {number}", id=f"{name}-{number}")

    threads = [threading.Thread(target=add, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert notes.stats().notes == 12 and notes.stats().pending == 0
    assert len(notes.search("bird", k=12, links=False)) == 12


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("t1"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "links", "rewrites", "keywords", "tags", "context"]), inner
        )
    ),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None)
@given(described=JSON, connected=JSON)
def test_no_answer_damages_the_store(described: Any, connected: Any) -> None:
    with Memory(embedder="hashing") as memory:
        notes = NoteMemory(memory, Scripted(connected, described), repairs=0)
        notes.add("The tram leaves at 7:40.", id="t1")
        notes.add("The tram was late.", id="t2")
        assert memory._core.store.check() == []
        assert [notes.get(id).text for id in ("t1", "t2")] == [
            "The tram leaves at 7:40.",
            "The tram was late.",
        ]
        assert len(notes.search("tram", k=2)) == 2
