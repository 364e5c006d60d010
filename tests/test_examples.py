"""The programs of docs/examples run as they stand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rsm_fast import Memory, sample

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"


def run(name: str, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        input=stdin,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=240,
    )


class Model(BaseHTTPRequestHandler):
    """Answers every chat with how much it was told, and keeps the requests."""

    requests: list[dict[str, Any]]
    status = 200

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append({"path": self.path, "key": self.headers["Authorization"], **body})
        answer = {"choices": [{"message": {"content": f"answer {len(self.requests)}"}}]}
        data = json.dumps(answer).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        return None


@pytest.fixture
def endpoint() -> Iterator[tuple[str, type[Model]]]:
    handler = type("Handler", (Model,), {"requests": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_agent_loop(tmp_path: Path, endpoint: tuple[str, type[Model]]) -> None:
    url, model = endpoint
    store = tmp_path / "agent.rsm"
    with Memory.open(store, embedder="hashing") as memory:
        memory.add_many(sample.turns())
    done = run(
        "agent_loop.py",
        str(store),
        stdin="When do the adrenaline pens expire?\n\nAnd where is my passport?\n",
        OPENAI_BASE_URL=url,
        OPENAI_MODEL="tiny",
        OPENAI_API_KEY="secret",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "> answer 1\n> answer 2\n> "
    first, second = model.requests
    assert (first["path"], first["model"]) == ("/v1/chat/completions", "tiny")
    assert first["key"] == "Bearer secret"
    system, question = first["messages"]
    assert "February 2027" in system["content"] and "data" in system["content"]
    assert question == {"role": "user", "content": "When do the adrenaline pens expire?"}
    assert "answer 1" in second["messages"][0]["content"], "the first exchange was remembered"
    with Memory.open(store) as memory:
        assert memory.stats().turns == len(sample.turns()) + 4


def test_agent_loop_remembers_nothing_of_a_failed_call(
    tmp_path: Path, endpoint: tuple[str, type[Model]]
) -> None:
    url, model = endpoint
    model.status = 500
    store = tmp_path / "agent.rsm"
    with Memory.open(store, embedder="hashing") as memory:
        memory.add("I keep bees.")
    done = run("agent_loop.py", str(store), stdin="What do I keep?\n", OPENAI_BASE_URL=url)
    assert done.returncode != 0 and "500" in done.stderr
    with Memory.open(store) as memory:
        assert memory.stats().turns == 1


@pytest.mark.usefixtures("packaged_minilm")
def test_bulk_ingest(tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    folder.mkdir()
    (folder / "one.jsonl").write_text(sample.conversation_text(), encoding="utf-8")
    (folder / "two.jsonl").write_text('{"text": "I plan to sow beans in June.", "id": "1"}\n')
    words = [str(tmp_path / "people.rsm"), str(folder), "What did I plan for June?"]
    for _ in range(2):
        done = run("bulk_ingest.py", *words)
        assert done.returncode == 0, done.stderr
        assert "== one:" in done.stdout and "== two:" in done.stdout
        assert "Norway" in done.stdout and "sow beans" in done.stdout
    with Memory.open(words[0], namespace="one") as memory:
        assert memory.stats().turns == len(sample.turns())


@pytest.mark.usefixtures("packaged_minilm")
@pytest.mark.parametrize("words", [[], ["hashing"]])
def test_edge_profile(words: list[str]) -> None:
    done = run("edge_profile.py", *words)
    assert done.returncode == 0, done.stderr
    assert "4.5 kg" in done.stdout and "peak resident memory" in done.stdout


@pytest.mark.usefixtures("packaged_minilm")
def test_mcp_client(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="mcp is absent: pip install 'rsm-fast[mcp]'")
    done = run("mcp_client.py", str(tmp_path / "agent.rsm"))
    assert done.returncode == 0, done.stderr
    assert "tools: remember, recall, search, forget, stats" in done.stdout
    assert "20:30" in done.stdout


@pytest.mark.usefixtures("packaged_minilm")
def test_langgraph_agent(tmp_path: Path) -> None:
    pytest.importorskip(
        "langgraph", reason="langgraph is absent: pip install 'rsm-fast[langgraph]'"
    )
    words = [str(tmp_path / "agent.rsm"), "I keep bees.", "Which animals do I keep?"]
    done = run("langgraph_agent.py", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "> I keep bees.",
        "What I know: nothing yet",
        "> Which animals do I keep?",
        "What I know: I keep bees.",
    ]


@pytest.mark.parametrize("name", ["agent_loop.py", "bulk_ingest.py"])
def test_without_arguments_an_example_says_how_it_is_used(name: str) -> None:
    done = run(name)
    assert done.returncode == 2 and f"python docs/examples/{name}" in done.stderr
