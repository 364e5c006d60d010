"""``rsm-fast notes`` against a local model server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.model_server import ModelServer, serving
from bench.notes.standin import StandIn
from rsm_fast import Memory
from rsm_fast.cli import main


@pytest.fixture
def store(tmp_path: Path, turns) -> str:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as memory:
        memory.add_many(turns)
    return str(path)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving(StandIn().reply) as running:
        yield running


def test_from_a_dry_run_to_an_undo(store, server, capsys, monkeypatch) -> None:
    monkeypatch.setenv("MY_KEY", "k-1")
    assert main(["notes", "complete", store, "--dry-run", "--json"]) == 0
    estimate = json.loads(capsys.readouterr().out)
    assert (estimate["notes"], estimate["calls"]) == (6, 11) and not server.requests
    endpoint = ["--base-url", server.url, "--model", "stand-in", "--api-key-variable", "MY_KEY"]
    assert main(["notes", "complete", store, *endpoint, "--limit", "4"]) == 0
    assert "4 of 4 notes finished" in capsys.readouterr().out
    assert server.headers[0]["Authorization"] == "Bearer k-1"
    assert main(["notes", "complete", store, *endpoint, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["finished"], report["pending"], report["usage"]["calls"]) == (2, 0, 4)
    assert main(["notes", "stats", store]) == 0
    assert "6 notes, 0 turns pending, 3 links, 3 rewritings" in capsys.readouterr().out
    assert main(["notes", "search", store, "rye bread", "-k", "1", "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)
    assert {hit["note"]["id"] for hit in hits} == {"t3", "t5"}
    assert main(["notes", "search", store, "rye bread", "-k", "1", "--no-links"]) == 0
    assert "via" in capsys.readouterr().out
    assert main(["notes", "pack", store, "rye bread", "--budget", "200"]) == 0
    assert "keywords:" in capsys.readouterr().out
    assert main(["notes", "pack", store, "rye bread", "--bare", "-w", "role=user"]) == 0
    out = capsys.readouterr().out
    assert "keywords:" not in out and "bread" not in out
    assert main(["notes", "undo", store, "t1"]) == 0
    assert "as before t4" in capsys.readouterr().out
    assert main(["notes", "show", store, "t1"]) == 0
    assert "rewritten by t4" in (out := capsys.readouterr().out) and "undone" in out


def test_what_stays_pending_is_told(store, server, capsys) -> None:
    endpoint = ["--base-url", server.url, "--model", "stand-in"]
    server.faults.extend(["say no"] * 2)
    assert main(["notes", "complete", store, *endpoint, "--workers", "1"]) == 3
    captured = capsys.readouterr()
    assert "5 of 6 notes finished" in captured.out
    assert "t1: the model gave no keywords" in captured.err and "1 notes are pend" in captured.err
    assert main(["notes", "show", store, "t1"]) == 0
    assert "pending: the model gave no" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["complete", "STORE"], "--base-url and --model"),
        (["undo", "STORE", "t1"], "no rewriting"),
        (["show", "STORE", "t99"], "no turn 't99'"),
        (["stats", "STORE.missing"], "no store there"),
    ],
)
def test_errors_say_what_to_do(store, capsys, words, message) -> None:
    assert main(["notes", *(word.replace("STORE", store) for word in words)]) == 1
    assert message in capsys.readouterr().err
