"""End to end with a real, if very small, language model: plumbing only, its answers are poor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from llama_server import llama_server

from rsm_fast import Memory
from rsm_fast.llm import ChatEndpoint
from rsm_fast.notes import NoteMemory


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_server(tmp_path_factory.mktemp("llama")) as url:
        yield url


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_real_model_makes_notes(url: str, turns) -> None:
    llm = ChatEndpoint(url, "smollm2", timeout=400.0, retries=1, concurrency=1, max_tokens=300)
    with Memory(embedder="hashing") as memory:
        notes = NoteMemory(memory, llm, k=2, repairs=0)
        report = notes.add_many(turns[:3], workers=1)
        stats = notes.stats()
        texts = [notes.get(turn["id"]).text for turn in turns[:3]]
        described = [note for turn in turns[:3] if (note := notes.get(turn["id"])).keywords]
        pack = notes.pack("How do we get to Lisbon?", budget=300)
        findings = memory._core.store.check()
    assert texts == [turn["text"] for turn in turns[:3]]
    assert (report.asked, stats.notes, report.stopped) == (3, 3, "")
    assert report.usage.calls >= 3 and report.usage.prompt_tokens > 600
    assert not report.usage.estimated
    assert len(described) >= 2
    assert pack.tokens <= 300 and "Lisbon" in pack.text
    assert findings == []
