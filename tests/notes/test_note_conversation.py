"""A conversation as notes: the slice, what it costs, its answers by category, its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.datasets import Question, Stream
from bench.model_server import serving
from bench.notes import conversation
from bench.notes.conversation import kept_model, run_variant, slice_of, tables, write_page
from bench.notes.kept import Kept
from bench.notes.standin import StandIn
from rsm_fast.embedding import as_embedder
from rsm_fast.llm import AnswerCache
from rsm_fast.tokens import as_token_counter
from rsm_fast.types import as_turn


@pytest.fixture
def stream(turns) -> Stream:
    asked = (
        Question("trip/0", "When does the flight leave?", 6, ("t1",), answer="on Friday",
                 category="time"),
        Question("trip/1", "What happened to the flight?", 6, ("t1", "t4"), answer="cancelled",
                 category="multi-hop"),
        Question("trip/2", "How does he feel?", 6, ("t2",), category="time"),
    )  # fmt: skip
    return Stream("trip", tuple(as_turn(turn) for turn in turns), asked)


def answering(request: dict[str, Any]) -> str:
    """The stand-in, which also answers every question in the same way."""
    if request["messages"][1]["content"].startswith("# Memory"):
        return json.dumps({"answer": "on Friday"})
    return StandIn().reply(request)


def test_a_slice_keeps_the_questions_that_it_can_answer(stream) -> None:
    assert [q.id for q in slice_of(stream, None).questions] == ["trip/0", "trip/1"]
    first = slice_of(stream, 3)
    assert len(first.turns) == 3
    assert [(q.id, q.visible) for q in first.questions] == [("trip/0", 3)]
    assert slice_of(stream, None, 1).questions == slice_of(stream, 6).questions[:1]


def test_a_variant_is_made_answered_and_shown(stream, tmp_path: Path, monkeypatch) -> None:
    embedder, counter = as_embedder("hashing"), as_token_counter(None)
    stream = slice_of(stream, None)
    results = []
    with serving(answering) as server:
        monkeypatch.setenv("RSM_FAST_LLM_URL", server.url)
        monkeypatch.setenv("RSM_FAST_LLM_MODEL", "stand-in")
        for _ in range(2):
            with kept_model(tmp_path) as model:
                results.append(
                    run_variant(
                        "links and evolution", {"k": 3}, stream, model, budget=200,
                        answers=tmp_path / "answers", embedder=embedder, counter=counter,
                    )
                )  # fmt: skip
        asked = len(server.requests)
    first, again = results
    assert first == again and asked == 11 + 2  # a second run asks nothing, and counts the same
    assert first.notes == 6 and first.pending == 0 and first.links > 0 and first.evolutions > 0
    assert first.usage.calls == 11 and not first.usage.estimated and first.usage.prompt_tokens > 500
    assert 0 < first.most_tokens <= 200 and first.evidence == 1.0
    assert {row["category"]: row["f1"] for row in first.answered} == {"time": 1.0, "multi-hop": 0.0}
    text = tables([first], stream, 200, "the command")
    assert "| links and evolution | 6 (0) | " in text and "| 100.0 % | " in text
    assert "| F1 / BLEU-1 | multi-hop (1) | time (1) | all |" in text
    assert "| links and evolution | 0.0 / 0.0 | 100.0 / 100.0 | 50.0 / 50.0 |" in text


def test_a_model_that_does_not_count_is_counted(stream, tmp_path: Path) -> None:
    counter = as_token_counter(None)
    asked = json.dumps({"text": "A cat.", "speaker": "me"})
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": asked}]
    with AnswerCache(tmp_path / "answers.sqlite") as cache:
        standin = StandIn()
        answers = [Kept(standin, counter, cache).chat(messages) for _ in range(2)]
    assert standin.calls == 1 and answers[0] == answers[1]
    usage = answers[0].usage
    assert usage.estimated and usage.completion_tokens == counter(answers[0].text)
    assert usage.prompt_tokens == sum(counter(message["content"]) for message in messages)


def test_the_command_writes_its_table(monkeypatch, tmp_path: Path, data_dir, capsys) -> None:
    page = tmp_path / "page.md"
    markers = (
        "<!-- conversation with a rule: begin -->\nold\n<!-- conversation with a rule: end -->"
    )
    page.write_text(f"before\n{markers}\nafter\n", "utf-8")
    monkeypatch.delenv("RSM_FAST_LLM_URL", raising=False)
    monkeypatch.setattr(conversation, "as_embedder", lambda _: as_embedder("hashing"))
    monkeypatch.setattr(conversation, "default_cache", lambda: tmp_path / "vectors.sqlite")
    monkeypatch.setattr(conversation.write_page, "__defaults__", (page,))
    arguments = ["--turns", "12", "--k", "2", "3", "--write", "--out", str(tmp_path)]
    assert conversation.main([*arguments, "--locomo", str(data_dir / "locomo")]) == 0
    written = page.read_text("utf-8")
    assert written.startswith("before\n") and written.endswith("\nafter\n") and "old" not in written
    assert "12 turns of LoCoMo's conversation 26" in written
    assert written.count("| 12 (0) |") == 5 and "F1" not in written
    assert capsys.readouterr().out.strip() in written
    with pytest.raises(SystemExit, match="markers"):
        write_page("text", "another place", page)
