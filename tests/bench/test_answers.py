from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bench.datasets import Dataset, Question, Stream
from bench.quality.answers import answer_all, overlap, prompts_of, summary
from bench.quality.endpoint import Endpoint, EndpointError
from rsm_fast.embedding import HashingEmbedder
from rsm_fast.tokens import as_token_counter
from rsm_fast.types import Turn

SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}}


class Server:
    """A chat endpoint that does what `behave(body)` says: (status, content)."""

    def __init__(self, behave):
        self.bodies = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.bodies.append(body)
                status, content = behave(body)
                answer = {
                    "choices": [{"message": {"content": content}}],
                    "usage": {"prompt_tokens": 10, "completion_tokens": 2},
                }
                data = json.dumps(answer if status == 200 else {"error": content}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def serve():
    servers = []

    def start(behave):
        servers.append(Server(behave))
        return servers[-1]

    yield start
    for server in servers:
        server.http.shutdown()
        server.http.server_close()


def endpoint(server, tmp_path, **options):
    return Endpoint(server.url, "tiny", tmp_path / "cache.sqlite", pause=0.001, **options)


def test_answers_are_cached_on_disk(serve, tmp_path):
    server = serve(lambda body: (200, '{"answer": "Lisbon"}'))
    first = endpoint(server, tmp_path)
    assert first.ask("system", "user", SCHEMA) == {"answer": "Lisbon"}
    assert first.ask("system", "user", SCHEMA) == {"answer": "Lisbon"}
    first.close()
    second = endpoint(server, tmp_path)
    assert second.ask("system", "user", SCHEMA) == {"answer": "Lisbon"}
    assert len(server.bodies) == 1
    assert (second.usage.calls, second.usage.cached) == (0, 1)
    assert first.usage.cost(1.0, 10.0) == pytest.approx(30e-6)
    assert server.bodies[0]["response_format"]["type"] == "json_object"
    second.close()


def test_json_mode_falls_back(serve, tmp_path):
    def picky(body):
        return (400, "no") if "response_format" in body else (200, "It is Lisbon")

    server = serve(picky)
    client = endpoint(server, tmp_path)
    assert client.ask("system", "user", SCHEMA) == {"answer": "It is Lisbon"}
    assert len(server.bodies) == 3
    client.close()


def test_overload_is_retried_and_a_refusal_is_not(serve, tmp_path):
    left = [503, 429]
    server = serve(lambda body: (left.pop(), "busy") if left else (200, '{"answer": "x"}'))
    client = endpoint(server, tmp_path)
    assert client.ask("s", "u", SCHEMA) == {"answer": "x"}
    assert client.usage.retries == 2
    client.close()
    refusing = serve(lambda body: (401, "key"))
    client = endpoint(refusing, tmp_path)
    with pytest.raises(EndpointError, match="status 401"):
        client.ask("s", "other", SCHEMA)
    assert len(refusing.bodies) == 1
    client.close()


def test_an_endpoint_that_is_away(tmp_path):
    client = Endpoint("http://127.0.0.1:9/v1", "m", tmp_path / "c.sqlite", attempts=2, pause=0.001)
    with pytest.raises(EndpointError, match="2 attempts"):
        client.ask("s", "u", SCHEMA)
    client.close()


@pytest.fixture
def dataset():
    turns = tuple(
        Turn(f"{name} lives in {city}.", "user", None, "s", name)
        for name, city in (("Ann", "Lisbon"), ("Bo", "Oslo"), ("Cy", "Rome"))
    )
    questions = tuple(
        Question(turn.id, f"Where does {turn.id} live?", 3, (turn.id,), answer=city)
        for turn, city in zip(turns, ("Lisbon", "Oslo", "Rome"), strict=True)
    )
    return Dataset("tiny", (Stream("tiny", turns, questions),))


def test_a_failing_endpoint_loses_no_finished_answer(serve, tmp_path, dataset):
    broken = [True]

    def model(body):
        asked = body["messages"][1]["content"]
        if broken[0] and "does Bo live" in asked:
            return 400, "broken"
        if "Reference:" in asked:
            return 200, json.dumps({"correct": "Lisbon" in asked})
        return 200, '{"answer": "Lisbon"}'

    server = serve(model)
    client = endpoint(server, tmp_path)
    path = tmp_path / "answers.jsonl"

    def prompts():
        embedder, counter = HashingEmbedder(), as_token_counter(None)
        return prompts_of(dataset, "bm25-rag-n1", 500, embedder, counter)

    rows, failed = answer_all(prompts(), path, client, client, concurrency=2)
    assert (len(rows), failed) == (2, 1)
    assert len(path.read_text().splitlines()) == 2
    broken[0] = False
    rows, failed = answer_all(prompts(), path, client, client, concurrency=2)
    assert (len(rows), failed) == (3, 0)
    assert summary(rows)["exact"] == pytest.approx(100 / 3)
    assert summary(rows)["judged"] == pytest.approx(100.0)
    assert all(
        "lives in" in body["messages"][1]["content"]
        or "Reference" in body["messages"][1]["content"]
        for body in server.bodies
    )
    client.close()


def test_overlap_by_hand():
    assert overlap("In Lisbon", "Lisbon.") == {"exact": 1.0, "f1": 1.0, "bleu1": 1.0}
    got = overlap("green tea cup", "black tea")
    assert got["exact"] == 0.0
    assert got["f1"] == pytest.approx(0.4)
    assert got["bleu1"] == pytest.approx(1 / 3)
    assert overlap("tea", "black tea")["bleu1"] == pytest.approx(0.36788, abs=1e-4)
    assert overlap("", "tea") == {"exact": 0.0, "f1": 0.0, "bleu1": 0.0}
