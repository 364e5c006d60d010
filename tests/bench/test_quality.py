from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.datasets import Fact, Question, Stream
from bench.notes.peer import NOTES
from bench.quality.command import main
from bench.quality.measures import Scorer, ranking_measures
from bench.quality.packed import Packed, Shown
from bench.quality.results import Results, Row
from bench.quality.run import Plan, run, run_stream
from bench.quality.stats import compare
from bench.quality.suite import GROUPS, PAPER, PEERS, SYSTEMS, make_system
from bench.quality.tables import fill_document, render_all
from bench.quality.vectors import CachedEmbedder
from rsm_fast.embedding import HashingEmbedder
from rsm_fast.tokens import as_token_counter
from rsm_fast.types import Turn

TOPICS = ("tea", "chess", "Lisbon", "violin", "garden", "rust")


def small_stream() -> Stream:
    """Six sessions of twelve turns; a question about each topic's own session."""
    turns, questions = [], []
    for number, topic in enumerate(TOPICS):
        for turn in range(12):
            text = f"{topic} number {turn}: we spoke about {topic} and the weather of day {turn}."
            turns.append(
                Turn(
                    text,
                    ("user", "assistant")[turn % 2],
                    f"2026-02-0{number + 1}",
                    topic,
                    f"{topic}:{turn}",
                )
            )
        fact = Fact(f"{topic} number 3", topic, f"{topic}:3")
        questions.append(
            Question(
                f"q{number}",
                f"What about {topic} number 3?",
                len(turns),
                (f"{topic}:3",),
                (fact,),
                category="kind",
            )
        )
    return Stream("small", tuple(turns), tuple(questions))


@pytest.fixture(scope="module")
def results_of(tmp_path_factory):
    stream = small_stream()
    embedder = HashingEmbedder()
    counter = as_token_counter(None)

    def make(name):
        system = make_system(name, embedder, counter)
        try:
            return run_stream(stream, system, embedder, budgets=(150, 600), ranked=True)
        finally:
            system.close()

    return make


WITHOUT_ENDPOINT = sorted(name for name in SYSTEMS if name.split("/")[0] != "a-mem")


@pytest.mark.parametrize("name", WITHOUT_ENDPOINT)
def test_every_system_runs_on_a_small_stream(results_of, name):
    result = results_of(name)
    assert len(result["rows"]) == 12
    assert len(result["rankings"]) == 6
    assert result["stats"]["turns"] == 72
    for row in result["rows"]:
        assert all(0.0 <= row[key] <= 1.0 for key in ("sess", "cov", "src"))
        if name != "full-context":
            assert row["tokens"] <= row["budget"]


def test_measures_tell_systems_apart(results_of):
    def mean(name, measure, budget):
        rows = [row for row in results_of(name)["rows"] if row["budget"] == budget]
        return float(np.mean([row[measure] for row in rows]))

    assert mean("full-context", "src", 150) == 1.0
    assert mean("full-context", "cov", 150) == 1.0
    assert mean("no-memory", "sess", 600) == 0.0
    assert mean("hybrid", "src", 600) > mean("recent-n1", "src", 600) - 1e-9
    assert mean("bm25-rag-n1", "sess", 150) == 1.0


def test_measures_by_hand():
    turns = (
        Turn("I moved to Lisbon in May", "user", None, "s1", "a"),
        Turn("Tea is fine", "user", None, "s1", "b"),
        Turn("Tea is fine", "user", None, "s2", "c"),
        Turn("Later talk", "user", None, "s2", "d"),
    )
    facts = (Fact("User lives in Lisbon", "s1", "a"), Fact("likes tea", "s2", "c"))
    stream = Stream("x", turns, ())
    scorer = Scorer(stream)
    question = Question("q", "?", 4, ("a", "c"), facts)
    nothing = scorer.measure(question, Packed("", 0, ()))
    assert nothing == {"src": 0.0, "sess": 0.0, "cov": 0.0}
    half = Shown("a", "I moved to L")
    measured = scorer.measure(question, Packed("", 0, (half,)))
    assert measured["src"] == pytest.approx(0.25)
    assert measured["sess"] == 0.5
    assert measured["cov"] == 0.0  # what is shown of the turn has no word of the memory
    copies = Shown("b", "Tea is fine", copies=2)
    assert scorer.measure(question, Packed("", 0, (copies,)))["src"] == 0.5
    early = Question("q", "?", 2, ("c",))
    assert scorer.measure(early, Packed("", 0, (copies,)))["evidence"] == 0.0
    answer = Question("q", "?", 4, ("a",), answer="in May, to Lisbon")
    whole = Shown("a", turns[0].text)
    assert scorer.measure(answer, Packed("", 0, (whole,))) == {"evidence": 1.0, "answer": 1.0}


def test_official_ranking_measures():
    got = ranking_measures(["b", "a", "x", "c"], ["a", "c"])
    assert got["recall_any@5"] == 1.0
    assert got["recall_all@5"] == 1.0
    assert got["ndcg@5"] == pytest.approx((1 + 1 / 2) / (1 + 1))
    assert ranking_measures(["x"], ["a"])["recall_any@20"] == 0.0


def test_intervals_and_permutations():
    rng = np.random.default_rng(1)
    clear = compare([rng.normal(2.0, 1.0, 200), rng.normal(2.0, 1.0, 100)], [0.5, 0.5])
    assert clear.low < clear.mean < clear.high
    assert clear.low > 1.5
    assert clear.p < 0.001
    nothing = compare([rng.normal(0.0, 1.0, 200)], [1.0])
    assert nothing.low < 0 < nothing.high
    assert nothing.p > 0.01
    assert compare([rng.normal(0.0, 1.0, 20)], [1.0], seed=3) != nothing


def write_own_data(folder: Path) -> None:
    stream = small_stream()
    turns = [
        {"text": t.text, "role": t.role, "timestamp": t.timestamp, "session": t.session, "id": t.id}
        for t in stream.turns
    ]
    asked = [{"question": q.text, "evidence": list(q.evidence)} for q in stream.questions]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.jsonl").write_text("\n".join(map(json.dumps, turns)))
    (folder / "own.questions.jsonl").write_text("\n".join(map(json.dumps, asked)))


@pytest.fixture
def plan(tmp_path):
    write_own_data(tmp_path / "data" / "jsonl")
    return Plan(
        data=(("jsonl", tmp_path / "data" / "jsonl"),),
        systems=("recent-n1", "bm25-rag-n1"),
        cache=tmp_path / "vectors.sqlite",
        out=tmp_path / "out",
        budgets=(200,),
        embedder="hashing",
    )


def test_a_stopped_run_continues(plan, capsys):
    files = run(plan, workers=1)
    names = [file.parent.name for file in files]
    assert names == ["recent-n1@hashing", "bm25-rag-n1@hashing"]
    times = [file.stat().st_mtime_ns for file in files]
    files[0].unlink()
    assert run(plan, workers=1) == files
    assert files[0].exists()
    assert files[1].stat().st_mtime_ns == times[1]
    assert "1/2" in capsys.readouterr().err


def test_a_changed_source_is_run_again_unless_told_otherwise(plan, monkeypatch):
    (file, _) = run(plan, workers=1)
    before = file.stat().st_mtime_ns
    monkeypatch.setattr("bench.quality.run._source_hash", lambda: "other")
    run(replace(plan, any_source=True), workers=1)
    assert file.stat().st_mtime_ns == before
    run(plan, workers=1)
    assert file.stat().st_mtime_ns > before


@pytest.mark.usefixtures("packaged_minilm")
def test_the_command_runs_and_writes_everything(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="pictures need it: pip install 'rsm-fast[plot]'")
    write_own_data(tmp_path / "data" / "jsonl")
    page = tmp_path / "quality.md"
    page.write_text(
        "# Quality\n<!-- table: main -->old<!-- end -->\n<!-- table: nix -->x<!-- end -->"
    )
    arguments = ["run", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    arguments += ["--cache", str(tmp_path / "v.sqlite"), "--workers", "1"]
    arguments += ["--system", "hybrid", "--system", "budget-rag-n1", "--budget", "300"]
    assert main([*arguments, "--docs", str(page)]) == 0
    assert "**hybrid**" in page.read_text()
    assert "<!-- table: nix -->x<!-- end -->" in page.read_text()
    assert (tmp_path / "out" / "report.html").read_text().count("<svg") == 3
    assert (tmp_path / "out" / "pictures" / "quality-against-tokens.png").stat().st_size > 1000
    assert "hybrid" in capsys.readouterr().out


def test_missing_data_is_an_error_that_says_so(tmp_path, capsys):
    assert main(["check", "--data", str(tmp_path / "none")]) == 2
    assert "--data" in capsys.readouterr().err


def test_results_know_their_headlines(tmp_path):
    rows = [
        {
            "id": "q",
            "category": "",
            "tags": ["official", "label_ok"],
            "budget": 2600,
            "tokens": 10,
            "folded": 0,
            "evidence": value,
        }
        for value in (1.0,)
    ]
    for domain, system, value in (
        ("babyai", "hybrid", 1.0),
        ("textworld", "hybrid", 0.5),
        ("babyai", "other", 0.0),
        ("textworld", "other", 0.5),
    ):
        folder = tmp_path / "ama-x" / system
        folder.mkdir(parents=True, exist_ok=True)
        unit = {
            "system": system,
            "dataset": "ama",
            "stream": domain,
            "group": f"{domain}/8K",
            "rows": [{**rows[0], "id": domain, "evidence": value}],
            "rankings": [],
            "trace": [],
            "stats": {},
            "made_with": {},
        }
        (folder / f"{domain}.json").write_text(json.dumps(unit))
    results = Results.load(tmp_path)
    assert results.headline("hybrid", "A official") == pytest.approx(75.0)
    assert np.isnan(results.headline("hybrid", "J"))
    difference = results.difference("hybrid", "other", "A official")
    assert difference is not None
    assert difference.mean == pytest.approx(50.0)


def made_up_results():
    """All systems on one question of each kind, the default better by a tenth."""
    results = Results()
    stats = dict.fromkeys(("groups", "chunks", "bytes", "write_us", "read_us"), 10.0)
    results.made_with = dict.fromkeys(("rsm_fast", "source", "python", "numpy", "numba"), "1")
    results.made_with |= {"embedder": "packaged", "budgets": [2600]}
    kinds = (("realmem", ""), ("locomo", ""), ("ama", "babyai/8K"), ("ama", "textworld/8K"))
    tags = frozenset({"official", "spread", "label_ok"})
    for name in [*(name for group in GROUPS.values() for name in group), "hybrid@other"]:
        value = 0.6 if name.startswith("hybrid") else 0.5
        for dataset, group in kinds:
            measures = {"tokens": 2000.0, "folded": 0.0}
            measures |= dict.fromkeys(("sess", "cov", "src", "evidence", "answer"), value)
            row = Row(
                dataset, group or dataset, group, f"{dataset}{group}", "A", tags, 2600, measures
            )
            results.rows[name].append(row)
            unit = {"dataset": dataset, "stream": row.stream, "group": group, "trace": []}
            results.units[name].append({**unit, "stats": {**stats, "largest_share": 0.25}})
    return results


def test_every_table_is_filled_where_all_systems_were_run():
    tables = render_all(made_up_results())
    assert "| hybrid | other | 60.0 |" in tables["embedders"]
    assert "| **hybrid** | 60.0 | 60.0 | 60.0 |" in tables["short"]
    assert tables["short"].count("\n") == 9
    claims = tables["replicates"].splitlines()[2:]
    assert len(claims) == 6
    assert all("+0.0 [+0.0, +0.0]" in claim or "25 %" in claim for claim in claims)
    assert "the largest atom holds 25 % of them" in tables["replicates"]
    assert "it uses 2,000 of 2,600 tokens" in tables["replicates"]
    assert tables["seeds"].count("50.0 (50.0 to 50.0)") == 12
    assert tables["paper"].count("\n") == 1 + len(PAPER)
    assert "no-speaker" in tables["ablations"]
    assert tables["notes"] == "No system that keeps notes was run."
    made = made_up_results()
    del made.rows["int8"]
    assert "int8" not in render_all(made)["replicates"]


def test_what_notes_cost_stands_beside_what_they_show():
    results = made_up_results()
    parts = {"links": 25.0, "evolutions": 5.0, "calls_per_operation": 2.0}
    parts |= {"prompt_tokens_per_operation": 1234.4, "answer_tokens_per_operation": 99.6}
    results.rows["a-mem"] = results.rows["rrf-n1"]
    results.units["a-mem"] = [
        {**unit, "stats": {**unit["stats"], **parts}} for unit in results.units["rrf-n1"]
    ]
    lines = render_all(results)["notes"].splitlines()
    assert lines[2:] == [
        "| budget-rag-n1 | 50.0 |  |  |  |  |",
        "| **hybrid** | 60.0 |  |  |  |  |",
        "| a-mem | 50.0 | 2.5 | 0.5 | 2.0 | 1,234 + 100 |",
    ]


def test_documents_keep_what_stands_outside_the_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: a -->\nold\n<!-- end -->\nafter")
    assert fill_document(page, {"a": "new"}) == ["a"]
    assert page.read_text() == "before\n<!-- table: a -->\n\nnew\n\n<!-- end -->\nafter"


def test_vectors_are_remembered(tmp_path):
    class Counting(HashingEmbedder):
        calls = 0

        def embed_passages(self, texts):
            Counting.calls += len(texts)
            return super().embed_passages(texts)

    path = tmp_path / "v.sqlite"
    first = CachedEmbedder(Counting(), path)
    vectors = first.embed_passages(["one", "two", "one"])
    assert Counting.calls == 2
    first.close()
    second = CachedEmbedder(Counting(), path)
    np.testing.assert_array_equal(second.embed_passages(["two", "one"]), vectors[[1, 0]])
    assert Counting.calls == 2
    assert second.embed_passages([]).shape == (0, second.dim)


def test_names_of_systems_are_unique():
    assert sum(map(len, GROUPS.values())) + len(NOTES) == len(SYSTEMS)
    assert "hybrid" in PEERS
