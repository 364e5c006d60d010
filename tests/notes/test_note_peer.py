"""A-MEM in the quality harness: a real conversation against a local endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.datasets import Question, Stream, read_dataset
from bench.model_server import ModelServer, serving
from bench.notes.peer import NOTES, model_from_environment
from bench.notes.standin import StandIn
from bench.quality.run import run_stream
from bench.quality.suite import SYSTEMS, make_system
from rsm_fast.embedding import as_embedder
from rsm_fast.errors import InvalidInputError
from rsm_fast.tokens import as_token_counter
from rsm_fast.types import Turn


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    with serving(StandIn().reply) as running:
        monkeypatch.setenv("RSM_FAST_LLM_URL", running.url)
        monkeypatch.setenv("RSM_FAST_LLM_MODEL", "stand-in")
        monkeypatch.setenv("RSM_FAST_LLM_CACHE", str(tmp_path / "answers.sqlite"))
        yield running


def conversation(data_dir: Path, turns: int) -> Stream:
    stream = read_dataset("locomo", data_dir / "locomo").streams[0]
    first = {turn.id for turn in stream.turns[:turns]}
    asked = [
        Question(q.id, q.text, turns, q.evidence, answer=q.answer, category=q.category)
        for q in stream.questions
        if first.issuperset(q.evidence)
    ]
    return Stream(stream.name, stream.turns[:turns], tuple(asked[:4]))


@pytest.mark.parametrize(
    ("name", "calls", "links", "evolutions"),
    [("a-mem", 79, True, True), ("a-mem/no-evolution", 79, True, False),
     ("a-mem/no-links", 40, False, False)],
)  # fmt: skip
def test_a_locomo_conversation_becomes_notes(
    data_dir, server, name, calls, links, evolutions
) -> None:
    stream = conversation(data_dir, 40)
    embedder, counter = as_embedder("hashing"), as_token_counter(None)
    system = make_system(name, embedder, counter)
    result = run_stream(stream, system, embedder, budgets=(300, 1000), ranked=True)
    stats = system.stats()
    assert len(server.requests) == calls and stats.chunks == 40 and stats.extra["pending"] == 0
    assert (stats.extra["links"] > 0, stats.extra["evolutions"] > 0) == (links, evolutions)
    assert stats.extra["calls_per_operation"] == pytest.approx(calls / 40)
    assert stats.extra["prompt_tokens_per_operation"] > 100
    assert len(result["rows"]) == 8
    for row in result["rows"]:
        assert 0 < row["tokens"] <= row["budget"]
    packed = system.read(stream.questions[0].text, 1000)
    assert counter(packed.text) == packed.tokens
    texts = {turn.id: turn.text for turn in stream.turns}
    assert packed.shown and all(part.text == texts[part.turn] for part in packed.shown)
    system.close()


def test_a_second_run_takes_its_answers_from_the_cache_and_counts_what_they_cost(server) -> None:
    turns = [Turn(f"the {word} cat sleeps", id=word) for word in ("red", "old", "fat")]
    extra = []
    for _ in range(2):
        system = make_system("a-mem", as_embedder("hashing"), as_token_counter(None))
        system.write(turns)
        assert system.stats().chunks == 3
        extra.append(system.stats().extra)
        system.close()
    assert len(server.requests) == 5
    assert extra[0] == extra[1] and extra[0]["prompt_tokens_per_operation"] > 100


def test_every_system_has_its_name_in_the_suite() -> None:
    assert set(NOTES) <= set(SYSTEMS)
    system = make_system("a-mem-standin/k20", as_embedder("hashing"), as_token_counter(None))
    system.write([Turn("no time was given", id="a"), Turn("nor here", id="b")])
    assert system.ranked_sessions("time", 2) == [""]
    system.close()


def test_without_an_endpoint_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RSM_FAST_LLM_URL", raising=False)
    with pytest.raises(InvalidInputError, match="RSM_FAST_LLM_URL"):
        model_from_environment()
