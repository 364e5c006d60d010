"""The command line, end to end on stores made with the hashing embedder."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rsm_fast import Memory, __version__, sample
from rsm_fast.cli import main
from rsm_fast.cli.arguments import parser
from rsm_fast.cli.commands import COMMANDS
from rsm_fast.cli.where import join_conditions, parse_condition
from rsm_fast.errors import InvalidInputError

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *words: str) -> tuple[int, str, str]:
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: Capture, *words: str) -> Any:
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out)


def program(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rsm_fast.cli", *words],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    file = tmp_path / "chat.jsonl"
    file.write_text(sample.conversation_text(), encoding="utf-8")
    return file


@pytest.fixture
def store(tmp_path: Path, chat: Path, capsys: Capture) -> str:
    path = str(tmp_path / "agent.rsm")
    code, _, err = run(capsys, "ingest", path, str(chat), "-e", "hashing")
    assert code == 0, err
    return path


# --- the program itself ----------------------------------------------------------------------


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from rsm_fast.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'numba', 'faiss', 'onnxruntime', 'tokenizers', 'sqlite3'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    assert "exit codes" in done.stdout


def test_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == f"rsm-fast {__version__}"


def test_wrong_usage(capsys: Capture) -> None:
    assert main([]) == 2
    for words in (["nonsense"], ["pack", "x.rsm"], ["pack", "x.rsm", "q", "--budget", "many"]):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 2
    assert "usage: rsm-fast" in capsys.readouterr().err


def test_every_command_has_a_function_and_an_example() -> None:
    commands = next(a for a in parser()._actions if a.dest == "command").choices
    assert commands is not None and set(commands) == set(COMMANDS)
    for name, command in commands.items():
        assert "example:" in command.format_help(), name


def test_console_script_is_this_program() -> None:
    done = program("--version")
    assert (done.returncode, done.stdout) == (0, f"rsm-fast {__version__}\n")


# --- demo ------------------------------------------------------------------------------------


def test_demo(capsys: Capture) -> None:
    code, out, _ = run(
        capsys, "demo", "-e", "hashing", "-q", "What is Biscuit's weight?", "-b", "500"
    )
    assert code == 0
    assert "question: What is Biscuit's weight?" in out
    assert "4.8 kg" in out and "of 500 tokens" in out and " ms" in out


def test_demo_json(capsys: Capture) -> None:
    found = run_json(capsys, "demo", "-e", "hashing")
    assert found["turns"] == len(sample.turns())
    assert 0 < found["pack"]["tokens"] <= found["pack"]["budget"]
    assert "7 Alder Row" in found["pack"]["text"]


# --- ingest ----------------------------------------------------------------------------------


def test_ingest_stores_every_turn_and_a_second_time_none(
    tmp_path: Path, chat: Path, capsys: Capture
) -> None:
    words = ["ingest", str(tmp_path / "a.rsm"), str(chat), "-e", "hashing"]
    first = run_json(capsys, *words)
    total = len(sample.turns())
    assert (first["turns_added"], first["turns_present"], first["malformed"]) == (total, 0, [])
    again = run_json(capsys, *words)
    assert (again["turns_added"], again["turns_present"]) == (0, total)


def test_f40_ingest_without_ids_is_idempotent_and_follows_a_growing_file(
    tmp_path: Path, capsys: Capture
) -> None:
    file, path = tmp_path / "log.jsonl", str(tmp_path / "a.rsm")
    file.write_text('{"text": "ok"}\n{"text": "ok"}\n')
    assert run_json(capsys, "ingest", path, str(file), "-e", "hashing")["turns_added"] == 2
    with file.open("a") as more:
        more.write('{"text": "later"}\n')
    grown = run_json(capsys, "ingest", path, str(file))
    assert (grown["turns_added"], grown["turns_present"]) == (1, 2)


def test_ingest_goes_on_where_it_was_interrupted(
    tmp_path: Path, chat: Path, capsys: Capture
) -> None:
    path = str(tmp_path / "a.rsm")
    half = tmp_path / "half" / "chat.jsonl"
    half.parent.mkdir()
    half.write_text("".join(chat.read_text().splitlines(keepends=True)[:100]))
    assert run_json(capsys, "ingest", path, str(half), "-e", "hashing")["turns_added"] == 100
    rest = run_json(capsys, "ingest", path, str(chat))
    assert (rest["turns_added"], rest["turns_present"]) == (90, 100)


def test_malformed_records_are_named_counted_and_left_out(tmp_path: Path, capsys: Capture) -> None:
    file, path = tmp_path / "chat.jsonl", str(tmp_path / "a.rsm")
    file.write_text(
        '{"text": "good", "id": "1"}\n{"text": 5}\nnot json\n'
        '{"text": "other", "id": "1"}\n{"text": "fine", "id": "2"}\n'
    )
    code, out, err = run(capsys, "ingest", path, str(file), "-e", "hashing")
    assert code == 3
    assert f"{file}:2: text: expected a string, got 5" in err
    assert f"{file}:3: not valid JSON" in err
    assert f"{file}:4: " in err, "an id that is taken by another text"
    assert "2 turns added" in out and "3 records left out" in out
    code, out, _ = run(capsys, "ingest", path, str(file), "--json")
    found = json.loads(out)
    assert code == 3
    assert (found["turns_present"], found["records_left_out"]) == (2, 3)
    assert [bad["line"] for bad in found["malformed"]] == [2, 3, 4]


def test_many_malformed_records_do_not_flood_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text("{}\n" * 100 + '{"text": "good"}\n')
    code, _, err = run(capsys, "ingest", str(tmp_path / "a.rsm"), str(file), "-e", "hashing")
    assert code == 3
    assert len(err.splitlines()) == 21 and "... and 80 more" in err


def test_ingest_of_a_missing_file_makes_no_store(
    tmp_path: Path, chat: Path, capsys: Capture
) -> None:
    path = tmp_path / "a.rsm"
    for missing in (tmp_path / "nowhere.jsonl", tmp_path):
        code, _, err = run(capsys, "ingest", str(path), str(chat), str(missing))
        assert code == 1 and str(missing) in err and "Traceback" not in err
        assert not path.exists()


def test_ingest_of_every_format_and_from_standard_input(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "a.rsm")
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps({"messages": [{"role": "user", "content": "I like plums."}]}))
    notes = tmp_path / "notes.txt"
    notes.write_text("User: Hello there.\nAssistant: Good morning.\n")
    found = run_json(capsys, "ingest", path, str(messages), str(notes), "-e", "hashing")
    assert found["turns_added"] == 3
    stdin = io.TextIOWrapper(io.BytesIO(b"A paragraph.\n\nAnother one.\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run_json(capsys, "ingest", path, "-", "--session", "piped")["turns_added"] == 2
    hits = run_json(capsys, "search", path, "paragraph", "--where", "session=piped")
    assert {hit["session"] for hit in hits} == {"piped"} and len(hits) == 2


def test_settings_of_a_new_store(tmp_path: Path, chat: Path, capsys: Capture) -> None:
    path = str(tmp_path / "a.rsm")
    words = ["ingest", path, str(chat), "-e", "hashing", "--chunk-turns", "3", "--gate", "centroid"]
    assert main(words) == 0
    capsys.readouterr()
    settings = run_json(capsys, "stats", path)["settings"]
    assert (settings["chunk_turns"], settings["gate"]) == (3, "centroid")
    code, _, err = run(capsys, "ingest", path, str(chat), "--chunk-turns", "5")
    assert code == 1 and "chunk_turns" in err


def test_progress_is_shown_on_a_terminal_only(tmp_path: Path, chat: Path) -> None:
    path = str(tmp_path / "a.rsm")
    words = [sys.executable, "-m", "rsm_fast.cli", "ingest", path, str(chat), "-e", "hashing"]
    leader, follower = pty.openpty()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=follower)
    os.close(follower)
    shown = read_until_closed(leader)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and b"190 turns added" in out
    assert b"100%" in shown and b"190 turns" in shown
    assert program("ingest", path, str(chat)).stderr == ""


def read_until_closed(terminal: int) -> bytes:
    """What is written to a terminal until nobody has it open any more."""
    shown = b""
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            block = b""
        if not block:
            os.close(terminal)
            return shown
        shown += block


# --- pack, search, stats ---------------------------------------------------------------------


def test_pack_prints_the_text_alone(store: str, capsys: Capture) -> None:
    code, out, err = run(capsys, "pack", store, "What does Biscuit weigh?", "-b", "300")
    assert code == 0
    with Memory.open(store) as memory:
        pack = memory.pack("What does Biscuit weigh?", budget=300)
    assert out == pack.text + "\n"
    assert f"{pack.tokens} of 300 tokens" in err
    assert run(capsys, "pack", store, "x", "--quiet")[2] == ""


def test_pack_json_holds_the_whole_result(store: str, capsys: Capture) -> None:
    found = run_json(
        capsys, "pack", store, "rent", "-b", "200", "--layout", "flat", "--where", "role=user"
    )
    assert set(found) == {"text", "tokens", "budget", "query", "chunks", "omitted", "stats"}
    assert found["tokens"] <= found["budget"] == 200
    assert found["stats"]["layout"] == "flat"
    assert {chunk["role"] for chunk in found["chunks"]} == {"user"}


def test_pack_explains_on_standard_error(store: str, capsys: Capture) -> None:
    code, out, err = run(capsys, "pack", store, "rent", "-b", "200", "--explain")
    assert code == 0
    lines = [row.split() for row in err.splitlines()]
    verdicts = [row[0] for row in lines if row]
    assert "in" in verdicts and "out" in verdicts
    assert "why" not in out


def test_pack_as_of(store: str, capsys: Capture) -> None:
    early = run_json(capsys, "pack", store, "Where do I live?", "--as-of", "2026-02-01")
    assert early["chunks"] and all(c["timestamp"] < "2026-02-01" for c in early["chunks"])


def test_budget_zero_prints_nothing_and_a_negative_one_is_an_error(
    store: str, capsys: Capture
) -> None:
    code, out, _ = run(capsys, "pack", store, "x", "--budget", "0")
    assert (code, out) == (0, "")
    code, out, err = run(capsys, "pack", store, "x", "--budget", "-5")
    assert (code, out) == (1, "") and "budget" in err and "Traceback" not in err


def test_search(store: str, capsys: Capture) -> None:
    hits = run_json(capsys, "search", store, "adrenaline pens", "-k", "3")
    assert len(hits) == 3
    assert [h["score"] for h in hits] == sorted((h["score"] for h in hits), reverse=True)
    code, out, _ = run(capsys, "search", store, "adrenaline pens", "-k", "3")
    assert code == 0 and len(out.splitlines()) == 6
    assert all(hit["id"] in out for hit in hits)


def test_where_with_ranges(store: str, capsys: Capture) -> None:
    hits = run_json(capsys, "search", store, "depot", "-k", "50", "-w", "step>=5", "-w", "step<8")
    assert sorted(hit["text"][:7] for hit in hits) == ["step 5:", "step 6:", "step 7:"]


def test_stats_and_namespaces(store: str, chat: Path, capsys: Capture) -> None:
    found = run_json(capsys, "stats", store)
    assert {"turns", "chunks", "atoms", "largest_atom_share", "bytes"} <= set(found)
    assert found["turns"] == len(sample.turns())
    code, out, _ = run(capsys, "stats", store)
    assert code == 0 and "largest_atom_share" in out
    assert main(["ingest", store, str(chat), "-e", "hashing", "-n", "acme/user-7"]) == 0
    capsys.readouterr()
    assert run_json(capsys, "namespaces", store) == ["acme/user-7", "default"]


def test_f29_namespaces_do_not_see_each_other(store: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "other.jsonl"
    file.write_text('{"text": "I keep bees."}\n')
    assert main(["ingest", store, str(file), "-e", "hashing", "-n", "other"]) == 0
    capsys.readouterr()
    (hit,) = run_json(capsys, "search", store, "rent", "-n", "other")
    assert hit["text"] == "I keep bees."


@pytest.mark.parametrize(
    "words",
    [
        ["pack", "{}", "q"],
        ["search", "{}", "q"],
        ["stats", "{}"],
        ["namespaces", "{}"],
        ["delete", "{}", "1"],
        ["forget", "{}", "--older-than", "1d"],
        ["purge", "{}", "-n", "x", "--yes"],
        ["compact", "{}"],
        ["reembed", "{}", "-e", "hashing"],
        ["export", "{}"],
        ["backup", "{}", "{}.copy"],
        ["salvage", "{}", "{}.copy"],
    ],
)
def test_only_ingest_makes_a_store(tmp_path: Path, capsys: Capture, words: list[str]) -> None:
    path = tmp_path / "nothing.rsm"
    code, out, err = run(capsys, *(word.format(path) for word in words))
    assert (code, out) == (1, "")
    assert "no store there" in err and "rsm-fast ingest" in err
    assert not path.exists()


def test_reading_an_unknown_namespace_gives_nothing_and_makes_nothing(
    store: str, capsys: Capture
) -> None:
    code, out, _ = run(capsys, "pack", store, "x", "-n", "nobody", "-e", "hashing")
    assert (code, out) == (0, "")
    assert run_json(capsys, "search", store, "x", "-n", "nobody", "-e", "hashing") == []
    assert run_json(capsys, "namespaces", store) == ["default"]


def test_file_that_is_no_store(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.rsm"
    path.write_text("just text, and enough of it that nobody takes it for a database\n" * 50)
    code, _, err = run(capsys, "pack", str(path), "x")
    assert code == 1 and str(path) in err and "Traceback" not in err
    assert path.read_text().startswith("just text")


# --- care ------------------------------------------------------------------------------------


def test_delete(store: str, capsys: Capture) -> None:
    assert run_json(capsys, "delete", store, "s01-03", "s01-04")["turns_deleted"] == 2
    assert run_json(capsys, "stats", store)["turns"] == len(sample.turns()) - 2
    code, _, err = run(capsys, "delete", store, "s01-03")
    assert code == 1 and "s01-03" in err


def test_forget(store: str, capsys: Capture) -> None:
    in_march = sum(t.session == "s05" for t in sample.turns())
    found = run_json(capsys, "forget", store, "--where", "session=s05")
    assert found["turns_deleted"] == in_march
    early = sum(str(t.timestamp) < "2026-02" for t in sample.turns())
    found = run_json(capsys, "forget", store, "--before", "2026-02-01")
    assert found["turns_deleted"] == early
    code, _, err = run(capsys, "forget", store)
    assert code == 1 and "older_than" in err


def test_purge(store: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    code, _, err = run(capsys, "purge", store, "-n", "default")
    assert code == 1 and "--yes" in err, "nobody can be asked where stdin is no terminal"
    code, _, err = run(capsys, "purge", store, "-n", "nobody", "--yes")
    assert code == 1 and "nobody" in err
    assert run_json(capsys, "purge", store, "-n", "default", "--yes")["turns_deleted"] == 190
    assert run_json(capsys, "namespaces", store) == []


def test_compact_wipes_what_was_deleted(store: str, capsys: Capture) -> None:
    assert main(["forget", store, "--where", "session=s13"]) == 0
    capsys.readouterr()
    found = run_json(capsys, "compact", store)
    assert found["bytes_after"] <= found["bytes_before"]
    files = Path(store).parent.glob(Path(store).name + "*")
    assert not any(b"SKGBA-55219" in file.read_bytes() for file in files)


# --- machine ---------------------------------------------------------------------------------


def test_warmup(capsys: Capture) -> None:
    found = run_json(capsys, "warmup")
    assert found["seconds"] and all(value >= 0 for value in found["seconds"].values())


def test_doctor(store: str, capsys: Capture) -> None:
    found = run_json(capsys, "doctor", store, "-e", "hashing")
    assert found["problems"] == []
    assert found["versions"]["rsm-fast"] == __version__
    assert found["cpu"]["int8_dot_in_use"]
    (namespace,) = found["store"]["namespaces"]
    assert namespace["key"] == "default" and namespace["turns"] == 190
    assert namespace["embedder_name"] == "hashing-256" and namespace["embedder"]
    code, out, _ = run(capsys, "doctor", "-e", "hashing")
    assert code == 0 and "int8_dot_in_use" in out and "all is well" in out


def test_doctor_reports_a_missing_model(capsys: Capture, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "doctor", "-e", str(tmp_path / "no-model"))
    assert code == 1 and "problem: embedder" in out


def test_a_store_that_may_not_be_written_can_be_read(
    store: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = os.access
    monkeypatch.setattr(
        "rsm_fast.cli.opening.os.access",
        lambda path, mode: not (mode & os.W_OK) and access(path, mode),
    )
    before = Path(store).read_bytes()
    for command in (["search", store, "rent"], ["pack", store, "rent"], ["stats", store]):
        code, out, err = run(capsys, *command)
        assert code == 0 and out, err
    code, _, err = run(capsys, "forget", store, "--older-than", "1d")
    assert code == 1 and "read-only" in err
    assert Path(store).read_bytes() == before


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http"])
def test_a_port_that_is_none_is_wrong_usage(store: str, capsys: Capture, port: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["mcp", "--store", store, "--http", f"--port={port}"])
    assert stopped.value.code == 2 and "1 to 65535" in capsys.readouterr().err


# --- pipes and signals -----------------------------------------------------------------------


def test_reader_of_the_output_goes_away(store: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rsm_fast.cli", "search", store, "the", "-k", "190", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=120) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_interrupt_is_no_traceback(tmp_path: Path) -> None:
    fifo, path = tmp_path / "endless.jsonl", tmp_path / "a.rsm"
    os.mkfifo(fifo)
    words = [sys.executable, "-m", "rsm_fast.cli", "ingest", str(path), "-", "-e", "hashing"]
    reader = os.open(fifo, os.O_RDWR)  # both ends stay open, so reading waits for ever
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # a gate may ignore it, and
    try:  # whoever is started by it would, too
        process = subprocess.Popen(words, stdin=reader, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, heard)
    assert process.stderr is not None
    for _ in range(600):
        if path.exists():
            break
        time.sleep(0.05)
    for _ in range(8):  # Python may drop an interrupt that comes within a callback: press again
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
            break
    assert process.returncode == 130
    message = process.stderr.read()
    process.stderr.close()
    os.close(reader)
    assert b"interrupted" in message and b"Traceback" not in message


def test_output_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text('{"text": "na\\u00efve caf\\u00e9 \\u2603"}\n')
    path = str(tmp_path / "a.rsm")
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert program("ingest", path, str(file), "-e", "hashing", env=env).returncode == 0
    done = program("search", path, "snow", env=env)
    assert done.returncode == 0 and "\\u2603" in done.stdout


# --- conditions ------------------------------------------------------------------------------


def test_conditions() -> None:
    parsed = map(
        parse_condition,
        ["role=user", "step>=3", "step < 10", "tag=a", "tag=b", 'id="7"', "done=true", "note=a=b"],
    )
    assert join_conditions(parsed) == {
        "role": "user",
        "step": {"gte": 3, "lt": 10},
        "tag": ["a", "b"],
        "id": "7",
        "done": True,
        "note": "a=b",
    }
    assert join_conditions([]) is None


@pytest.mark.parametrize("text", ["role", "=x", ">3", ""])
def test_condition_without_key_or_sign(text: str) -> None:
    with pytest.raises(InvalidInputError, match="KEY=VALUE"):
        parse_condition(text)


def test_value_and_bound_for_one_key() -> None:
    with pytest.raises(InvalidInputError, match="not both"):
        join_conditions([("step", 1), ("step", {"gte": 2})])
