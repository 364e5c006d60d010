from __future__ import annotations

import json

import pytest
from llama_server import llama_server

from bench.datasets import Dataset, Question, Stream
from bench.model_server import serving
from bench.quality.answers import answer_all, overlap, prompts_of, summary
from bench.quality.command import main
from rsm_fast.embedding import HashingEmbedder
from rsm_fast.llm import ChatEndpoint
from rsm_fast.tokens import as_token_counter
from rsm_fast.types import Turn

CITIES = {"Ann": "Lisbon", "Bo": "Oslo", "Cy": "Rome"}


def asked(request):
    return request["messages"][1]["content"]


def reply(request):
    """A model that always says Lisbon, and a judge that finds Lisbon right."""
    if "Reference:" in asked(request):
        return json.dumps({"correct": "Reference: Lisbon" in asked(request)})
    return '{"answer": "Lisbon"}'


@pytest.fixture
def dataset():
    turns = tuple(
        Turn(f"{name} lives in {city}.", "user", None, "s", name) for name, city in CITIES.items()
    )
    questions = tuple(
        Question(name, f"Where does {name} live?", 3, (name,), answer=city)
        for name, city in CITIES.items()
    )
    return Dataset("tiny", (Stream("tiny", turns, questions),))


def prompts(dataset):
    return prompts_of(dataset, "bm25-rag-n1", 500, HashingEmbedder(), as_token_counter(None))


def test_answers_are_judged_and_scored(tmp_path, dataset):
    with serving(reply) as server:
        model = ChatEndpoint(server.url, "tiny")
        rows, failed = answer_all(prompts(dataset), tmp_path / "a.jsonl", model, model)
        model.close()
    assert (len(rows), failed) == (3, 0)
    assert summary(rows)["exact"] == pytest.approx(100 / 3)
    assert summary(rows)["judged"] == pytest.approx(100 / 3)
    questions = [asked(request) for request in server.requests if "# Memory" in asked(request)]
    assert len(questions) == 3
    assert all("lives in" in question for question in questions)


def test_a_failing_endpoint_loses_no_finished_answer(tmp_path, dataset):
    path = tmp_path / "answers.jsonl"
    with serving(reply) as server:
        model = ChatEndpoint(server.url, "tiny", retries=0)
        server.faults.extend(["ok", "500", "ok"])
        rows, failed = answer_all(prompts(dataset), path, model, None, concurrency=1)
        assert (len(rows), failed) == (2, 1)
        assert len(path.read_text().splitlines()) == 2
        rows, failed = answer_all(prompts(dataset), path, model, None, concurrency=1)
        assert (len(rows), failed) == (3, 0)
        assert len(server.requests) == 4
        model.close()


def test_a_model_that_writes_no_json_is_taken_at_its_word(tmp_path, dataset):
    with serving(lambda request: "Oslo") as server:
        model = ChatEndpoint(server.url, "tiny")
        rows, _ = answer_all(prompts(dataset), tmp_path / "a.jsonl", model, None)
        model.close()
    assert {row["answer"] for row in rows} == {"Oslo"}


def write_data(tmp_path):
    """The cities as a data set of one's own; gives the options that name it."""
    folder = tmp_path / "data" / "jsonl"
    folder.mkdir(parents=True)
    turns = [{"text": f"{name} lives in {city}.", "id": name} for name, city in CITIES.items()]
    asked = [
        {
            "question": f"Where does {name} live?",
            "evidence": [name],
            "answer": city,
            "category": "place" if name == "Ann" else "other",
        }
        for name, city in CITIES.items()
    ]
    (folder / "own.jsonl").write_text("\n".join(map(json.dumps, turns)))
    (folder / "own.questions.jsonl").write_text("\n".join(map(json.dumps, asked)))
    return [
        *("--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")),
        *("--embedder", "hashing", "--cache", str(tmp_path / "v.sqlite")),
    ]


def test_the_command_answers(tmp_path, capsys):
    options = write_data(tmp_path)
    with serving(reply) as server:
        arguments = ["answer", *options, "--base-url", server.url, "--model", "m"]
        arguments += ["--judge-model", "j", "--price", "1", "2"]
        assert main(arguments) == 0
        first = len(server.requests)
        assert main(arguments) == 0
        assert len(server.requests) == first
    said = capsys.readouterr().out
    assert "jsonl hybrid: 3 answered, 0 failed; exact 33.3" in said
    assert "  other (2): exact " in said and "  place (1): exact " in said
    assert "judgements: 3 calls" in said
    assert ", cost " in said


def test_overlap_by_hand():
    assert overlap("In Lisbon", "Lisbon.") == {"exact": 1.0, "f1": 1.0, "bleu1": 1.0}
    got = overlap("green tea cup", "black tea")
    assert got["exact"] == 0.0
    assert got["f1"] == pytest.approx(0.4)
    assert got["bleu1"] == pytest.approx(1 / 3)
    assert overlap("tea", "black tea")["bleu1"] == pytest.approx(0.36788, abs=1e-4)
    assert overlap("", "tea") == {"exact": 0.0, "f1": 0.0, "bleu1": 0.0}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_model_answers_and_judges(tmp_path, capsys):
    """Plumbing only: so small a model answers poorly."""
    options = write_data(tmp_path)
    with llama_server(tmp_path) as url:
        arguments = ["answer", *options, "--base-url", url, "--model", "smollm2"]
        arguments += ["--judge-model", "smollm2", "--budget", "200", "--concurrency", "1"]
        assert main([*arguments, "--timeout", "300"]) == 0
    said = capsys.readouterr().out
    assert "jsonl hybrid: 3 answered, 0 failed" in said
    assert "answers: " in said
    [file] = (tmp_path / "out" / "answers").glob("*.jsonl")
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert {row["reference"] for row in rows} == set(CITIES.values())
    assert all(row["judged"] in (0.0, 1.0) for row in rows)
