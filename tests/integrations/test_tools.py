"""The memory as OpenAI tools, also through the real client against a local server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from rsm_fast import Memory, sample
from rsm_fast.errors import InvalidInputError, NotFoundError
from rsm_fast.integrations.tools import OPENAI_TOOLS, answer_tool_calls, call_tool
from rsm_fast.tokens import as_token_counter


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory(embedder="hashing") as made:
        made.add_many(sample.turns())
        yield made


def test_every_tool(memory: Memory) -> None:
    said = call_tool(memory, "remember", '{"text": "The key is under the blue pot.", "role": null}')
    turn_id = said.removeprefix("remembered as ")
    assert "blue pot" in call_tool(memory, "recall", {"query": "Where is the key?", "budget": 200})
    first = call_tool(memory, "search", {"query": "key blue pot", "k": 2}).splitlines()[0]
    assert json.loads(first)["ids"] == [turn_id]
    assert json.loads(call_tool(memory, "stats", ""))["turns"] == len(sample.turns()) + 1
    assert call_tool(memory, "forget", {"ids": [turn_id]}) == "1 entries deleted"
    assert call_tool(memory, "forget", {"where": {"session": "s01"}}) == "14 entries deleted"
    assert call_tool(memory, "search", {"query": "x", "where": {"role": "me"}}) == "nothing found"


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("unknown", {}, "unknown"),
        ("recall", "{", "JSON"),
        ("recall", "[1]", "object"),
        ("recall", {}, "query"),
        ("recall", {"query": 5}, "string"),
        ("recall", {"query": "x", "budget": "many"}, "integer"),
        ("recall", {"query": "x", "budget": True}, "integer"),
        ("recall", {"query": "x", "budget": 9000}, "8000"),
        ("search", {"query": "x", "k": 0}, "1 to 20"),
        ("search", {"query": "x", "where": []}, "object"),
        ("search", {"query": "x", "limit": 3}, "limit"),
        ("forget", {}, "either"),
        ("forget", {"ids": ["s01-01"], "older_than": "1d"}, "either"),
        ("remember", {"text": "x" * 200_001}, "200,000"),
    ],
)
def test_arguments_that_do_not_fit(memory: Memory, name: str, arguments: Any, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        call_tool(memory, name, arguments)
    assert memory.stats().turns == len(sample.turns())


def test_unknown_id(memory: Memory) -> None:
    with pytest.raises(NotFoundError, match="no-such"):
        call_tool(memory, "forget", {"ids": ["no-such"]})


def test_schema_is_small_and_names_the_limits() -> None:
    assert as_token_counter(None)(json.dumps(OPENAI_TOOLS)) < 1500
    assert all(tool["function"]["parameters"]["type"] == "object" for tool in OPENAI_TOOLS)


def test_answers_to_tool_calls(memory: Memory) -> None:
    def call(number: int, name: str, arguments: str) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {"id": f"c{number}", "type": "function", "function": function}

    answers = answer_tool_calls(
        memory,
        [
            call(1, "recall", '{"query": "When do the pens expire?", "budget": 300}'),
            call(2, "somebody_elses", "{}"),
            call(3, "recall", "{}"),
        ],
    )
    assert [a["tool_call_id"] for a in answers] == ["c1", "c3"]
    assert "February 2027" in answers[0]["content"]
    assert answers[1]["content"].startswith("error: recall: expected the argument 'query'")
    assert answer_tool_calls(memory, None) == []


class Model(BaseHTTPRequestHandler):
    """Asks for `recall` first, then answers with what it was given."""

    seen: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(body)
        last = body["messages"][-1]
        if last["role"] == "tool":
            message: dict[str, Any] = {"role": "assistant", "content": last["content"]}
        else:
            arguments = json.dumps({"query": last["content"], "budget": 300})
            function = {"name": "recall", "arguments": arguments}
            calls = [{"id": "c1", "type": "function", "function": function}]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        data = json.dumps(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": "m",
                "choices": [choice],
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        return None


def test_round_trip_through_the_openai_client(memory: Memory) -> None:
    openai = pytest.importorskip(
        "openai", reason="openai is absent: pip install 'rsm-fast[openai]'"
    )
    handler = type("Handler", (Model,), {"seen": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            messages: list[Any] = [{"role": "user", "content": "When do my pens expire?"}]
            first = client.chat.completions.create(model="m", messages=messages, tools=OPENAI_TOOLS)
            asked = first.choices[0].message
            messages += [asked, *answer_tool_calls(memory, asked.tool_calls)]
            last = client.chat.completions.create(model="m", messages=messages, tools=OPENAI_TOOLS)
        assert "February 2027" in str(last.choices[0].message.content)
        assert handler.seen[0]["tools"] == OPENAI_TOOLS  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
