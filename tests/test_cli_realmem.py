"""The command line on real conversations: every persona of RealMem, converted by bench's reader."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from bench.datasets import read_dataset
from rsm_fast import Turn
from rsm_fast.cli import main

BUDGETS = (1000, 2600, 4000, 5000)


def ingest_and_pack(
    file: Path, folder: Path, embedder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (stream,) = read_dataset("realmem", file).streams
    chat, store = folder / "chat.jsonl", str(folder / "agent.rsm")
    chat.write_text("".join(line(turn) for turn in stream.turns), encoding="utf-8")
    for added in (len(stream.turns), 0):
        assert main(["ingest", store, str(chat), "-e", embedder, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["turns_added"], report["records_left_out"]) == (added, 0)
    for question in stream.questions[:: max(len(stream.questions) // 3, 1)]:
        for budget in BUDGETS:
            assert main(["pack", store, question.text, "-b", str(budget), "--json"]) == 0
            pack = json.loads(capsys.readouterr().out)
            assert 0.8 * budget < pack["tokens"] <= budget


def line(turn: Turn) -> str:
    return json.dumps(dataclasses.asdict(turn), ensure_ascii=False, default=str) + "\n"


def test_one_persona(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ingest_and_pack(min(personas(data_dir)), tmp_path, "hashing", capsys)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_persona(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in personas(data_dir):
        folder = tmp_path / file.stem
        folder.mkdir()
        ingest_and_pack(file, folder, "hashing", capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("packaged_minilm")
@pytest.mark.timeout(1800)
def test_one_persona_with_the_packaged_model(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest_and_pack(min(personas(data_dir)), tmp_path, "minilm", capsys)


def personas(data_dir: Path) -> list[Path]:
    found = sorted((data_dir / "realmem").glob("*.json*"))
    assert found, f"no personas in {data_dir / 'realmem'}"
    return found
