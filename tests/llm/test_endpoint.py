"""The client for OpenAI-compatible endpoints, against a local server and its failures."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.model_server import ModelServer, serving
from rsm_fast.errors import InvalidInputError, LanguageModelError, StoreError
from rsm_fast.llm import AnswerCache, ChatEndpoint, Usage, ask

SCHEMA = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["tags"],
}
HELLO = [{"role": "user", "content": "Hello, who are you?"}]


def reply(request: dict[str, Any]) -> str:
    words = request["messages"][-1]["content"].split()
    return json.dumps({"tags": words[:2]})


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving(reply) as running:
        yield running


@pytest.fixture
def waits() -> list[float]:
    return []


def endpoint(server: ModelServer, waits: list[float] | None = None, **options: Any) -> ChatEndpoint:
    sleep = (lambda _: None) if waits is None else waits.append
    return ChatEndpoint(server.url, "test-model", _sleep=sleep, **{"timeout": 5.0, **options})


def test_answers_with_text_usage_and_model(server: ModelServer) -> None:
    client = endpoint(server, api_key="k-123", seed=7)
    answer = client.chat(HELLO)
    assert json.loads(answer.text) == {"tags": ["Hello,", "who"]}
    assert answer.usage == Usage(1, 0, 4, 3) and answer.model == "test-model"
    client.chat(HELLO, max_tokens=9, temperature=0.5)
    assert client.usage == Usage(2, 0, 8, 6)
    first, second = server.requests
    assert first == {
        "model": "test-model", "messages": HELLO, "temperature": 0.0, "max_tokens": 1024, "seed": 7,
    }  # fmt: skip
    assert (second["max_tokens"], second["temperature"]) == (9, 0.5)
    assert server.headers[0]["Authorization"] == "Bearer k-123"
    assert "k-123" not in repr(client)


def test_usage_is_estimated_where_the_endpoint_does_not_count() -> None:
    with serving(reply, counts=False) as server:
        usage = endpoint(server).chat(HELLO).usage
    assert usage.estimated and usage.prompt_tokens > 10 and usage.completion_tokens == 9


def test_json_is_asked_for_by_schema_first(server: ModelServer) -> None:
    answer = endpoint(server).chat(HELLO, SCHEMA)
    assert answer.parsed == {"tags": ["Hello,", "who"]} and not answer.problem
    assert server.requests[0]["response_format"]["json_schema"]["schema"] == SCHEMA


@pytest.mark.parametrize(
    ("formats", "beside", "kinds"),
    [
        ({"json_object"}, True, ["json_schema", "json_object", "json_object"]),
        ({"json_object"}, False, ["json_schema", "json_object", "json_object", "json_object"]),
        (set(), False, ["json_schema", "json_object", "json_object", None, None]),
    ],
)
def test_falls_back_to_what_the_endpoint_takes_and_remembers_it(
    formats: set[str], beside: bool, kinds: list[str | None]
) -> None:
    with serving(reply, formats=frozenset(formats), schema_beside=beside) as server:
        client = endpoint(server)
        for _ in range(2):
            assert client.chat(HELLO, SCHEMA).parsed == {"tags": ["Hello,", "who"]}
    asked = [request.get("response_format") for request in server.requests]
    assert [None if one is None else one["type"] for one in asked] == kinds


def test_a_refusal_for_another_reason_is_reported_and_changes_no_mode(server: ModelServer) -> None:
    client = endpoint(server)
    server.faults.extend(["400"] * 4)
    with pytest.raises(LanguageModelError, match="HTTP 400: told to fail"):
        client.chat(HELLO, SCHEMA)
    client.chat(HELLO, SCHEMA)
    assert server.requests[-1]["response_format"]["type"] == "json_schema"


def test_tries_again_with_growing_waits(server: ModelServer, waits: list[float]) -> None:
    server.faults.extend(["500", "close", "html", "empty"])
    assert endpoint(server, waits).chat(HELLO).text
    assert len(server.requests) == 5
    assert all(
        most / 2 <= wait <= most for wait, most in zip(waits, [0.5, 1, 2, 4], strict=True)
    ), waits


def test_keeps_to_retry_after(server: ModelServer, waits: list[float]) -> None:
    server.faults.append("429 7")
    endpoint(server, waits).chat(HELLO)
    assert 7.25 <= waits[0] <= 7.5
    server.faults.append("429 3600")
    with pytest.raises(LanguageModelError, match="after 1 attempts: HTTP 429"):
        endpoint(server, waits).chat(HELLO)
    assert len(waits) == 1


def test_gives_up_after_the_last_attempt(server: ModelServer, waits: list[float]) -> None:
    server.faults.extend(["503"] * 3)
    with pytest.raises(LanguageModelError, match="no answer after 3 attempts: HTTP 503"):
        endpoint(server, waits, retries=2).chat(HELLO)
    assert len(waits) == 2


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_a_server_that_never_ends_runs_into_the_time_out(server: ModelServer, fault: str) -> None:
    server.faults.append(fault)
    with pytest.raises(LanguageModelError, match=r"no answer within 0\.3 s"):
        endpoint(server, timeout=0.3, retries=0).chat(HELLO)


def test_an_unreachable_endpoint_says_so() -> None:
    with serving(reply) as server:
        client = endpoint(server, retries=1)
    with pytest.raises(LanguageModelError, match="after 2 attempts: ConnectionRefusedError"):
        client.chat(HELLO)


@pytest.mark.parametrize(("fault", "advice"), [("401", "api_key"), ("404", "base_url")])
def test_a_refusal_says_what_to_do(server: ModelServer, fault: str, advice: str) -> None:
    server.faults.append(fault)
    with pytest.raises(LanguageModelError, match=advice):
        endpoint(server, api_key="secret-key").chat(HELLO)
    assert len(server.requests) == 1


def test_concurrency_is_limited(server: ModelServer) -> None:
    server.delay = 0.05
    client = endpoint(server, concurrency=2)
    threads = [threading.Thread(target=client.chat, args=(HELLO,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.most_active == 2 and client.usage.calls == 6


def test_cached_answers_cost_nothing_and_faulty_ones_are_not_kept(
    server: ModelServer, tmp_path: Path
) -> None:
    path = tmp_path / "cache" / "answers.sqlite"
    server.faults.append("say no JSON at all")
    with AnswerCache(path) as cache:
        client = endpoint(server, cache=cache)
        assert client.chat(HELLO, SCHEMA).problem == "no JSON object stands in it"
        first = client.chat(HELLO, SCHEMA)
        assert len(cache) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = endpoint(server, cache=AnswerCache(path))
    second = again.chat(HELLO, SCHEMA)
    again.close()
    assert len(server.requests) == 2
    assert (second.text, second.parsed) == (first.text, first.parsed)
    assert second.usage == Usage(cached=1)


def test_a_file_that_is_no_cache_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    path.write_bytes(b"something else altogether" * 100)
    with pytest.raises(StoreError, match="answer cache"):
        AnswerCache(path)


def test_ask_has_a_wrong_answer_repaired(server: ModelServer) -> None:
    server.faults.append('say {"tags": "cats"}')
    answer = ask(endpoint(server), HELLO, SCHEMA)
    assert answer.parsed == {"tags": ["That", "cannot"]} and answer.usage.calls == 2
    assert "expected array, got 'cats'" in server.requests[1]["messages"][-1]["content"]


def test_a_truncated_answer_is_told_from_nonsense(server: ModelServer) -> None:
    server.faults.append("length")
    answer = ask(endpoint(server), HELLO, SCHEMA, repairs=0)
    assert "cut at the limit" in answer.problem and answer.parsed is None


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://here/v1", {}),
        ("http://user:pass@here/v1", {}),
        ("http://here:port/v1", {}),
        ("http://here/v1", {"timeout": 0}),
        ("http://here/v1", {"retries": -1}),
        ("http://here/v1", {"concurrency": True}),
        ("http://here/v1", {"json_mode": "xml"}),
        ("http://here/v1", {"api_key": "a\r\nHost: b"}),
    ],
)
def test_bad_options_are_refused(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        ChatEndpoint(url, "m", **options)


@pytest.mark.parametrize("messages", [[], [{"role": "user"}], [{"role": "boss", "content": "x"}]])
def test_bad_messages_are_refused(messages: list[dict[str, str]]) -> None:
    with pytest.raises(InvalidInputError, match="messages"):
        ChatEndpoint("http://127.0.0.1:1/v1", "m").chat(messages)
