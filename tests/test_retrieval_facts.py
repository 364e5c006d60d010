"""What the packaged model makes of facts that contradict each other."""

from __future__ import annotations

import pytest

from rsm_fast import Memory

TALK = (
    "The weather was nice on Sunday.",
    "I went hiking in the hills with Tom.",
    "My sister called about the wedding.",
    "I bought new running shoes.",
    "The dentist appointment went well.",
)


@pytest.mark.usefixtures("packaged_minilm")
@pytest.mark.parametrize("talk", [(), TALK], ids=["alone", "among others"])
@pytest.mark.parametrize(
    ("old", "new", "question"),
    [
        ("I work at A", "I now work at B", "employer"),
        ("I work at Acme Corp.", "I now work at Globex.", "Where do I work?"),
        (
            "My favourite colour is blue.",
            "My favourite colour is green now.",
            "What is my favourite colour?",
        ),
        (
            "The meeting is at 3pm on Friday.",
            "The meeting was moved to 5pm on Friday.",
            "When is the meeting?",
        ),
    ],
)
def test_f44_a_tight_budget_keeps_the_newer_of_two_facts(old, new, question, talk):
    with Memory() as memory:
        memory.add(old, timestamp="2026-01-10")
        memory.add_many([{"text": text, "timestamp": "2026-02-10"} for text in talk])
        newest = memory.add(new, timestamp="2026-05-10")
        both = memory.pack(question, budget=400)
        assert both.text.index(old) < both.text.index(new)
        assert "2026-01-10" in both.text and "2026-05-10" in both.text
        alone = memory.pack(question, budget=400, where={"id": newest})
        for budget in range(alone.tokens, alone.tokens + 12):
            assert new in memory.pack(question, budget=budget).text
