"""Spans of a traced memory, against the real OpenTelemetry SDK."""

from __future__ import annotations

import asyncio

import pytest

from rsm_fast import Memory
from rsm_fast.errors import NotFoundError
from rsm_fast.integrations.otel import TracedMemory

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is absent")

from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: E402
    InMemorySpanExporter,
)


def test_each_verb_is_a_span_without_any_text() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    memory = TracedMemory(Memory(embedder="hashing", namespace="tenant"), tracer_provider=provider)
    memory.add("The gate code is 4711.", id="code")
    pack = memory.pack("What is the gate code?", budget=100)
    assert asyncio.run(memory.apack("gate code", budget=50)).tokens <= 50
    assert memory.search("gate", k=3)[0].turn_ids == ("code",)
    with pytest.raises(NotFoundError):
        memory.delete("nobody")
    assert memory.stats().turns == 1
    memory.close()
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == [
        "rsm_fast.add", "rsm_fast.pack", "rsm_fast.apack", "rsm_fast.search", "rsm_fast.delete"
    ]  # fmt: skip
    attributes = dict(spans[1].attributes or {})
    assert attributes["rsm_fast.namespace"] == "tenant"
    assert attributes["rsm_fast.tokens"] == pack.tokens
    assert attributes["rsm_fast.chunks"] == 1
    assert not spans[-1].status.is_ok and spans[-1].events[0].name == "exception"
    assert "4711" not in "".join(span.to_json() for span in spans)
