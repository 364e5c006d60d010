"""The MCP server, with the SDK's own client over both transports."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="mcp is absent: pip install 'rsm-fast[mcp]'")

from mcp import Client, MCPError, StdioServerParameters

from rsm_fast import Memory, sample
from rsm_fast.integrations import mcp as server_module
from rsm_fast.integrations.mcp import MemoryServer
from rsm_fast.integrations.tools import MAX_HIT_CHARS, MAX_PACK_CHARS
from rsm_fast.tokens import as_token_counter


def words(store: Path, *more: str) -> list[str]:
    return ["-m", "rsm_fast.cli", "mcp", "--store", str(store), "-e", "hashing", *more]


@asynccontextmanager
async def over_stdio(store: Path, *more: str) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(command=sys.executable, args=words(store, *more))
    async with Client(parameters, read_timeout_seconds=120) as client:
        yield client


@asynccontextmanager
async def over_http(store: Path, *more: str) -> AsyncIterator[Client]:
    with http_server(store, *more) as url:
        async with Client(url, read_timeout_seconds=120) as client:
            yield client


@contextmanager
def http_server(store: Path, *more: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [sys.executable, *words(store, "--http", "--port", str(port), *more)]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        if process.stderr is not None:
            process.stderr.close()


async def call(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    (content,) = result.content
    return str(content.text)  # type: ignore[union-attr]


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)  # type: ignore[union-attr]


def run(scenario: Callable[[Client], Awaitable[None]], connection: Any) -> None:
    async def whole() -> None:
        async with connection as client:
            await scenario(client)

    asyncio.run(whole())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as memory:
        memory.add_many(sample.turns())
    return path


async def whole_life(client: Client) -> None:
    """Every tool once, as an agent would."""
    said = await call(
        client,
        "remember",
        text="The spare key is under the blue pot.",
        session="today",
        timestamp="2026-09-01T08:00:00Z",
        metadata={"topic": "home"},
    )
    turn_id = said.removeprefix("remembered as ")
    text = await call(client, "recall", query="Where is the spare key?", budget=300)
    assert "blue pot" in text and "2026-09-01" in text
    first = (await call(client, "search", query="spare key blue pot", k=3)).splitlines()[0]
    assert json.loads(first)["ids"] == [turn_id]
    filtered = await call(client, "search", query="key", where={"topic": "home"})
    assert len(filtered.splitlines()) == 1
    assert json.loads(await call(client, "stats"))["turns"] == len(sample.turns()) + 1
    assert await call(client, "forget", ids=[turn_id]) == "1 entries deleted"
    assert "blue pot" not in await call(client, "recall", query="Where is the spare key?")
    resources = await client.list_resources()
    assert [str(r.uri) for r in resources.resources] == ["memory://namespaces"]
    listed = await client.read_resource("memory://namespaces")
    assert json.loads(listed.contents[0].text) == ["default"]  # type: ignore[union-attr]
    one = await client.read_resource("memory://namespaces/default")
    assert json.loads(one.contents[0].text)["turns"] == len(sample.turns())  # type: ignore[union-attr]


@pytest.mark.parametrize("transport", [over_stdio, over_http])
def test_every_tool(store: Path, transport: Callable[..., Any]) -> None:
    run(whole_life, transport(store))


async def malformed_arguments(client: Client) -> None:
    for tool, arguments, reason in (
        ("remember", {}, "text"),
        ("remember", {"text": "   "}, "text"),
        ("remember", {"text": "x", "timestamp": "yesterday"}, "timestamp"),
        ("recall", {"query": "x", "budget": -1}, "budget"),
        ("recall", {"query": "x", "budget": 10**9}, "budget"),
        ("recall", {"query": ""}, "query"),
        ("search", {"query": "x", "k": 1000}, "k"),
        ("search", {"query": "x", "where": {"role": {"near": 1}}}, "near"),
        ("forget", {}, "ids"),
        ("forget", {"ids": ["no-such-turn"]}, "no-such-turn"),
        ("forget", {"ids": ["s01-01"], "older_than": "1d"}, "either"),
        ("forget", {"older_than": "long"}, "older_than"),
        ("remember", {"text": "x", "namespace": "../x"}, ".."),
        ("no_such_tool", {}, "no_such_tool"),
    ):
        message = await refused(client, tool, **arguments)
        assert reason in message, (tool, arguments, message)
    assert json.loads(await call(client, "stats"))["turns"] == len(sample.turns())


def test_malformed_arguments_get_the_reason_and_change_nothing(store: Path) -> None:
    run(malformed_arguments, over_stdio(store))


async def unknown_namespace(client: Client) -> None:
    assert await call(client, "recall", query="rent", namespace="nobody") == "nothing found"
    assert await call(client, "search", query="rent", namespace="nobody") == "nothing found"
    assert json.loads(await call(client, "stats", namespace="nobody"))["turns"] == 0
    listed = await client.read_resource("memory://namespaces")
    assert json.loads(listed.contents[0].text) == ["default"]  # type: ignore[union-attr]
    await call(client, "remember", text="Zebras are mine.", namespace="acme/user-7")
    assert "Zebras" not in await call(client, "recall", query="zebras")
    assert "Zebras" in await call(client, "recall", query="zebras", namespace="acme/user-7")


def test_unknown_namespaces_read_as_empty_and_are_not_made(store: Path) -> None:
    run(unknown_namespace, Client(MemoryServer(store, embedder="hashing").mcp))


async def pinned_namespace(client: Client) -> None:
    await call(client, "remember", text="For one user.")
    assert "alone" in await refused(client, "recall", query="rent", namespace="default")
    listed = await client.read_resource("memory://namespaces")
    assert json.loads(listed.contents[0].text) == ["acme/user-7"]  # type: ignore[union-attr]
    with pytest.raises(MCPError):
        await client.read_resource("memory://namespaces/default")


def test_pinned_server_shows_no_other_namespace(store: Path) -> None:
    run(pinned_namespace, Client(MemoryServer(store, namespace="acme/user-7").mcp))
    with Memory.open(store, namespace="acme/user-7") as memory:
        assert memory.stats().turns == 1


def test_f51_tool_list_costs_under_1500_tokens() -> None:
    server = MemoryServer("unused.rsm")
    tools = asyncio.run(server.mcp.list_tools())
    text = json.dumps([t.model_dump(mode="json", by_alias=True, exclude_none=True) for t in tools])
    assert {tool.name for tool in tools} == {"remember", "recall", "search", "forget", "stats"}
    assert as_token_counter(None)(text) < 1500
    assert len(text) / 3 < 1500, "also for a tokenizer of three characters a token"


async def large_outputs(client: Client) -> None:
    long = "word " * 20_000
    for number in range(30):
        await call(client, "remember", text=f"{number} {long}", role="speaker", session="s" * 200)
    lines = (await call(client, "search", query="word", k=20)).splitlines()
    assert len(lines) == 20
    assert all(len(line) < 4 * MAX_HIT_CHARS for line in lines)
    text = await call(client, "recall", query="word", budget=8000)
    assert as_token_counter(None)(text) <= 8000
    await call(client, "remember", text="blob " + "QUJD" * 45_000)  # one unknown word for WordPiece
    assert len(await call(client, "recall", query="blob", budget=100)) <= MAX_PACK_CHARS
    assert len(await refused(client, "search", query="x", where={"a" * 90_000: {"b": 1}})) < 3000
    assert len(await call(client, "stats")) < 2000


def test_f51_every_output_is_capped(tmp_path: Path) -> None:
    run(large_outputs, Client(MemoryServer(tmp_path / "a.rsm", embedder="hashing").mcp))


def test_memories_that_are_not_used_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_OPEN_NAMESPACES", 2)
    server = MemoryServer(tmp_path / "a.rsm", embedder="hashing")
    for name in ("a", "b", "c", "a"):
        server.remember(f"I am {name}.", namespace=name)
        assert len(server._open) <= 2
    assert json.loads(server.stats("a"))["turns"] == 2
    server.close()
    assert not server._open


@pytest.mark.timing
def test_initialize_is_answered_at_once(store: Path) -> None:
    """The store and the kernels are loaded afterwards."""
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *words(store)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        seconds.append(time.perf_counter() - begin)
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()
        assert answer["result"]["serverInfo"]["name"] == "rsm-fast"
    assert min(seconds) < 2.0, seconds


def test_http_refuses_other_hosts(store: Path) -> None:
    """A web page that resolves its own name to the loopback address gets nothing."""
    with http_server(store) as url:
        request = urllib.request.Request(
            url, data=b"{}", headers={"Host": "evil.example", "Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=30)
        assert refusal.value.code in (403, 421)
        refusal.value.close()
