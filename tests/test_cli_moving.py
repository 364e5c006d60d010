"""The command line's export, import, backup and model commands."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rsm_fast import Memory, sample
from rsm_fast.cli import main

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *words: str) -> tuple[int, str, str]:
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: Capture, *words: str) -> Any:
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as memory:
        memory.add_many(sample.turns())
        memory.delete(["s01-01"])
        memory.supersede("s01-03", "s09-01")
    with Memory.open(path, embedder="hashing", namespace="other", chunk_turns=2) as memory:
        memory.add("I keep bees.", ttl="1000000d", metadata={"n": [1, None]})
    return path


def answers(path: Path, namespace: str = "default") -> Any:
    with Memory.open(path, namespace=namespace) as memory:
        return [hit.to_dict() for hit in memory.search("rent of the flat", k=200)]


def test_export_and_import_bring_everything_over(
    store: Path, tmp_path: Path, capsys: Capture
) -> None:
    first, second = str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")
    new = tmp_path / "new.rsm"
    assert run(capsys, "export", str(store), "-o", first)[0] == 0
    found = run_json(capsys, "import", str(new), first)
    assert [n["namespace"] for n in found["namespaces"]] == ["default", "other"]
    assert [n["turns_added"] for n in found["namespaces"]] == [len(sample.turns()) - 1, 1]
    assert run(capsys, "export", str(new), "-o", second)[0] == 0
    assert Path(first).read_bytes() == Path(second).read_bytes()
    assert answers(new) == answers(store)
    with Memory.open(new) as memory:
        memory.delete("s02-01")
    again = run_json(capsys, "import", str(new), first)
    assert [n["turns_added"] for n in again["namespaces"]] == [0, 0], "deleted stays deleted"


def test_import_under_another_name(store: Path, tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "one.jsonl")
    assert run(capsys, "export", str(store), "-n", "other", "-o", file)[0] == 0
    assert run(capsys, "import", str(store), file, "-n", "copy")[0] == 0
    assert run_json(capsys, "namespaces", str(store)) == ["copy", "default", "other"]
    assert run_json(capsys, "stats", str(store), "-n", "copy")["turns"] == 1


def test_several_namespaces_cannot_get_one_name(
    store: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = str(tmp_path / "all.jsonl")
    assert run(capsys, "export", str(store), "-o", file)[0] == 0
    code, _, err = run(capsys, "import", str(tmp_path / "new.rsm"), file, "-n", "x")
    assert code == 1 and "several namespaces" in err


def test_light_export_is_embedded_again(store: Path, tmp_path: Path, capsys: Capture) -> None:
    full, light = str(tmp_path / "full.jsonl"), str(tmp_path / "light.jsonl")
    new = tmp_path / "new.rsm"
    assert run(capsys, "export", str(store), "-o", full)[0] == 0
    assert run(capsys, "export", str(store), "--light", "-o", light)[0] == 0
    assert Path(light).stat().st_size < Path(full).stat().st_size / 2
    assert run(capsys, "import", str(new), light, "-e", "hashing")[0] == 0
    found = answers(new)
    assert {hit["id"] for hit in found} == {hit["id"] for hit in answers(store)}
    assert "s01-03" not in {turn for hit in found for turn in hit["turn_ids"]}, "superseded"
    assert run_json(capsys, "stats", str(new), "-n", "other")["settings"]["chunk_turns"] == 2


def test_export_through_a_pipe(
    store: Path, tmp_path: Path, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["export", str(store), "-n", "other"]) == 0
    exported = capfdbinary.readouterr().out
    kinds = [json.loads(line)["kind"] for line in exported.splitlines()]
    assert kinds[0] == "namespace" and "turn" in kinds
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(exported)))
    new = str(tmp_path / "new.rsm")
    assert main(["import", new, "-"]) == 0
    with Memory.open(new, namespace="other") as memory:
        assert memory.stats().turns == 1


def test_export_overwrites_nothing(store: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "precious.txt"
    file.write_text("precious")
    code, _, err = run(capsys, "export", str(store), "-o", str(file))
    assert code == 1 and str(file) in err
    assert file.read_text() == "precious"


def test_unknown_namespace_is_not_exported(store: Path, tmp_path: Path, capsys: Capture) -> None:
    code, _, err = run(capsys, "export", str(store), "-n", "nobody")
    assert code == 1 and "nobody" in err


def test_import_of_something_else(store: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text('{"text": "hello"}\n')
    code, _, err = run(capsys, "import", str(store), str(file))
    assert code == 1 and "rsm-fast ingest" in err
    code, _, err = run(capsys, "import", str(store), str(tmp_path / "nothing"))
    assert code == 1 and "nothing" in err


def test_backup(store: Path, tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "copy.rsm"
    with Memory.open(store) as memory:  # in use
        assert run_json(capsys, "backup", str(store), str(target))["bytes"] > 0
        memory.add("Added afterwards.")
    with Memory.open(target) as copy:
        assert copy.stats().turns == len(sample.turns()) - 1
    code, _, err = run(capsys, "backup", str(store), str(target))
    assert code == 1 and str(target) in err


# --- doctor and models -----------------------------------------------------------------------


def test_f34_doctor_names_damage(store: Path, capsys: Capture) -> None:
    found = run_json(capsys, "doctor", str(store), "-e", "hashing")
    assert found["problems"] == []
    counts = {each["key"]: (each["turns"], each["chunks"]) for each in found["store"]["namespaces"]}
    assert counts["other"] == (1, 1)
    break_text(store, b"bees")
    code, out, _ = run(capsys, "doctor", str(store), "-e", "hashing", "--json")
    assert code == 1 and any("turn" in problem for problem in json.loads(out)["problems"])


def break_text(store: Path, word: bytes) -> None:
    data = bytearray(store.read_bytes())
    data[data.index(word)] ^= 1
    store.write_bytes(data)


def test_doctor_repairs_what_it_may(store: Path, capsys: Capture) -> None:
    break_text(store, b"bees")
    words = ["doctor", str(store), "-e", "hashing", "--repair", "--json"]
    code, out, _ = run(capsys, *words)
    assert code == 1 and json.loads(out)["problems"], "a text is not thrown away unasked"
    code, out, _ = run(capsys, *words, "--drop-damaged")
    assert code == 0 and json.loads(out)["problems"] == []
    assert run_json(capsys, "stats", str(store), "-n", "other")["turns"] == 0
    assert run_json(capsys, "stats", str(store))["turns"] == len(sample.turns()) - 1


def test_salvage(store: Path, tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "saved.rsm"
    found = run_json(capsys, "salvage", str(store), str(target))
    assert found["lost"] == []
    assert found["turns_kept"] == {"default": len(sample.turns()) - 1, "other": 1}
    assert answers(target) == answers(store)
    code, _, err = run(capsys, "salvage", str(store), str(target))
    assert code == 1 and str(target) in err
    break_text(store, b"bees")
    code, out, err = run(capsys, "salvage", str(store), str(tmp_path / "again.rsm"))
    assert code == 3 and "lost: turns" in err and "default: 189 turns" in out


def test_reembed(store: Path, capsys: Capture) -> None:
    found = run_json(capsys, "reembed", str(store), "-e", "hashing-64")
    assert (found["embedder"], found["chunks"]) == ("hashing-64", len(sample.turns()) - 1)
    settings = run_json(capsys, "stats", str(store))["settings"]
    assert settings["dim"] == 64
    assert run_json(capsys, "search", str(store), "adrenaline pens", "-k", "1")
    assert run_json(capsys, "stats", str(store), "-n", "other")["settings"]["dim"] == 256
    code, _, err = run(capsys, "search", str(store), "x", "-e", "hashing")
    assert code == 1 and "rsm-fast reembed" in err


@pytest.mark.usefixtures("packaged_minilm")
def test_model_commands(capsys: Capture) -> None:
    models = run_json(capsys, "model", "list")
    minilm = next(model for model in models if model["name"] == "minilm")
    assert minilm["present"] and minilm["dim"] == 384
    assert "bge-small-en-v1.5" in run(capsys, "model", "list")[1]
    checks = run_json(capsys, "model", "verify", "minilm")
    assert checks and all(check["ok"] and check["expected"] for check in checks)
    assert run(capsys, "model", "verify", "minilm")[1].startswith("ok")
    assert run(capsys, "model", "path", "minilm")[1].strip() == minilm["path"]


def test_model_that_is_not_known(capsys: Capture) -> None:
    for verb in ("path", "verify", "fetch"):
        code, _, err = run(capsys, "model", verb, "no-such-model")
        assert code == 1 and "no-such-model" in err and "Traceback" not in err
