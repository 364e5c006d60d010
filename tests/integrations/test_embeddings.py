"""Embedders behind an endpoint, against a local server that fails in many ways."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from rsm_fast import Memory
from rsm_fast.embedding import HashingEmbedder
from rsm_fast.errors import EmbedderError, EmbedderMismatchError, InvalidInputError
from rsm_fast.integrations.embeddings import EndpointEmbedder, OpenAIEmbedder


class Server:
    """Embeds by hashing; each request takes one fault from a queue."""

    def __init__(self, dim: int = 64) -> None:
        self.model = HashingEmbedder(dim)
        self.faults: deque[str] = deque()
        self.requests: list[dict[str, Any]] = []
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                request = json.loads(self.rfile.read(length))
                request["key"] = self.headers.get("Authorization")
                outer.requests.append(request)
                outer.answer(self, request)

            def log_message(self, format: str, *args: Any) -> None:
                return None

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def answer(self, handler: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
        fault = self.faults.popleft() if self.faults else "ok"
        rows = self.model.embed_passages(request["input"]).tolist()
        data = [{"index": place, "embedding": row} for place, row in enumerate(rows)]
        body: Any = {"object": "list", "model": request["model"], "data": data}
        status, headers = 200, {}
        if fault[:1].isdigit():
            code, _, wait = fault.partition(" ")
            status, body = int(code), {"error": {"message": f"fault {code}"}}
            headers = {"Retry-After": wait} if wait else {}
            if status == 302:
                headers = {"Location": self.url + "/elsewhere"}
        elif fault == "shuffled":
            data.reverse()
        elif fault == "short":
            data.pop()
        elif fault == "narrow":
            data[0]["embedding"] = rows[0][:3]
        elif fault == "nan":
            data[0]["embedding"] = [float("nan")] * len(rows[0])
        elif fault == "hang":
            self.released.wait(30)
        raw = b"<html>busy</html>" if fault == "html" else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(raw) + (fault == "cut")))
        handler.end_headers()
        handler.wfile.write(raw)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever)
    thread.start()
    yield made
    made.released.set()
    made.http.shutdown()
    thread.join()
    made.http.server_close()


WAITS: list[float] = []


@pytest.fixture
def embedder(server: Server) -> EndpointEmbedder:
    WAITS.clear()
    return EndpointEmbedder(server.url, "tiny", api_key="secret", batch=3, _sleep=WAITS.append)


TEXTS = ["one", "two", "three", "four", "five"]


def test_vectors_are_those_of_the_endpoint_in_batches(
    server: Server, embedder: EndpointEmbedder
) -> None:
    found = embedder.embed_passages(TEXTS)
    np.testing.assert_allclose(found, server.model.embed_passages(TEXTS), atol=1e-6)
    assert [len(request["input"]) for request in server.requests] == [3, 2]
    assert {request["key"] for request in server.requests} == {"Bearer secret"}
    assert embedder.embed_passages([]).shape[0] == 0


def test_dimension_is_learnt_and_held(server: Server, embedder: EndpointEmbedder) -> None:
    assert embedder.dim == 64
    assert "tiny" in embedder.fingerprint and "dim=64" in embedder.fingerprint
    assert len(server.requests) == 1
    asked = EndpointEmbedder(server.url, "tiny", dimensions=32)
    with pytest.raises(EmbedderError, match=r"32"):
        asked.embed_passages(["x"])
    assert server.requests[-1]["dimensions"] == 32


def test_instructions_are_put_before_the_texts(server: Server) -> None:
    embedder = EndpointEmbedder(server.url, "tiny", query_instruction="query: ")
    embedder.embed_queries(["x"])
    embedder.embed_passages(["x"])
    assert [request["input"] for request in server.requests] == [["query: x"], ["x"]]
    assert embedder.fingerprint != EndpointEmbedder(server.url, "tiny").fingerprint


def test_rows_are_put_into_the_order_of_the_texts(
    server: Server, embedder: EndpointEmbedder
) -> None:
    server.faults.append("shuffled")
    found = embedder.embed_passages(TEXTS[:3])
    np.testing.assert_allclose(found, server.model.embed_passages(TEXTS[:3]), atol=1e-6)


@pytest.mark.parametrize("fault", ["500", "503", "429 7", "408", "cut"])
def test_failures_that_may_pass_are_tried_again(
    server: Server, embedder: EndpointEmbedder, fault: str
) -> None:
    server.faults.extend([fault, fault])
    assert embedder.embed_passages(["x"]).shape == (1, 64)
    assert len(server.requests) == 3
    if fault == "429 7":
        assert WAITS == [7.0, 7.0]
    else:
        assert 0.3 < WAITS[0] < 0.7 and 0.7 < WAITS[1] < 1.3


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (["500"] * 9, r"4 times.*status 500: .*fault 500"),
        (["401"], r"status 401"),
        (["302"], r"status 302"),
        (["html"], r"expected 1 embeddings.*html"),
        (["short"], r"expected 1 embeddings"),
        (["nan"], r"nan|NaN|finite"),
    ],
)
def test_failures_that_stay_are_named(
    server: Server, embedder: EndpointEmbedder, faults: list[str], reason: str
) -> None:
    server.faults.extend(faults)
    with pytest.raises(EmbedderError, match=reason) as caught:
        embedder.embed_passages(["x"])
    assert "secret" not in str(caught.value)
    assert len(server.requests) == (4 if faults[0] == "500" else 1)


def test_time_out(server: Server) -> None:
    server.faults.append("hang")
    hurried = EndpointEmbedder(server.url, "tiny", timeout=0.2, retries=0)
    with pytest.raises(EmbedderError, match="tried once, no answer"):
        hurried.embed_passages(["x"])


def test_endpoint_that_is_not_there() -> None:
    nowhere = EndpointEmbedder("http://127.0.0.1:9/v1", "tiny", retries=1, _sleep=WAITS.append)
    with pytest.raises(EmbedderError, match="2 times, no answer"):
        nowhere.embed_passages(["x"])


@pytest.mark.parametrize("fault", ["401", "short", "narrow", "nan", "html"])
def test_store_is_unchanged_after_a_failure(
    server: Server, embedder: EndpointEmbedder, fault: str
) -> None:
    with Memory(embedder=embedder) as memory:
        memory.add_many(["I keep bees.", "I live in Lisbon."])
        server.faults.append(fault)
        with pytest.raises(EmbedderError):
            memory.add("This one fails.")
        assert memory.stats().turns == 2
        memory.add("This one does not.")
        assert memory.search("Which animals?", k=3)
        assert memory.stats().turns == 3


def test_store_refuses_another_model(server: Server, tmp_path: Any) -> None:
    path = tmp_path / "a.rsm"
    with Memory.open(path, embedder=EndpointEmbedder(server.url, "tiny")) as memory:
        memory.add("I keep bees.")
    with Memory.open(path, embedder=EndpointEmbedder(server.url + "/", "tiny")) as memory:
        assert memory.search("bees")
    with pytest.raises(EmbedderMismatchError, match="other"):
        Memory.open(path, embedder=EndpointEmbedder(server.url, "other"))


@pytest.mark.parametrize(
    "options",
    [
        {"base_url": "ftp://x"},
        {"model": ""},
        {"batch": 0},
        {"dimensions": 0},
        {"timeout": 0},
        {"retries": -1},
    ],
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        EndpointEmbedder(**{"base_url": "http://x/v1", "model": "m", **options})


def test_openai_client(server: Server) -> None:
    openai = pytest.importorskip(
        "openai", reason="openai is absent: pip install 'rsm-fast[openai]'"
    )
    with openai.OpenAI(base_url=server.url, api_key="secret", max_retries=0) as client:
        embedder = OpenAIEmbedder(client, "tiny", batch=2)
        server.faults.append("shuffled")
        found = embedder.embed_passages(TEXTS)
        np.testing.assert_allclose(found, server.model.embed_passages(TEXTS), atol=1e-6)
        with Memory(embedder=embedder) as memory:
            memory.add("I keep bees.")
            server.faults.append("500")
            with pytest.raises(EmbedderError, match="500"):
                memory.add("This one fails.")
            assert memory.stats().turns == 1
    with pytest.raises(InvalidInputError, match="client"):
        OpenAIEmbedder(object(), "tiny")
