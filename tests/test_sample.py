"""The sample conversation is well formed, and Memory finds its evidence."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from rsm_fast import Memory, sample
from rsm_fast.instants import parse_instant

if TYPE_CHECKING:
    from rsm_fast.embedding import Embedder

# Evidence recall (share of the gold turns that stand in the pack, mean over the questions)
# that the default preset reaches on the sample, less one to four points (measured: 96, 96, 100,
# 100 with the packaged model; 85, 92, 96, 98 with the hashing embedder).
FLOORS = {
    "minilm": {500: 0.90, 1000: 0.93, 2600: 0.98, 4000: 0.98},
    "hashing": {500: 0.77, 1000: 0.85, 2600: 0.95, 4000: 0.95},
}


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+(?:[.,:]\d+)*", text.lower()))


def test_turns_are_well_formed() -> None:
    turns = sample.turns()
    assert 150 <= len(turns) <= 200
    assert len({turn.id for turn in turns}) == len(turns)
    assert {turn.role for turn in turns} == {"user", "assistant"}
    assert 14 <= len({turn.session for turn in turns}) <= 16
    assert all(turn.text.strip() == turn.text and turn.text for turn in turns)
    instants = [parse_instant(turn.timestamp) for turn in turns if turn.timestamp is not None]
    assert len(instants) == len(turns)
    assert [i.micros for i in instants] == sorted({i.micros for i in instants})
    assert len({i.offset_minutes for i in instants}) >= 3, "more than one offset from UTC"
    lengths = sorted(len(turn.text) for turn in turns)
    assert lengths[0] < 60 and lengths[-1] > 500, "short and long turns"


def test_one_session_has_numbered_steps() -> None:
    steps = [t for t in sample.turns() if t.metadata is not None]
    assert {t.session for t in steps} == {"s07"}
    assert [t.metadata["step"] for t in steps if t.metadata] == list(range(1, len(steps) + 1))


def test_every_line_is_one_json_object_with_the_fields_of_a_turn() -> None:
    for line in sample.conversation_text().splitlines():
        record = json.loads(line)
        assert {"id", "role", "text", "timestamp", "session"} <= set(record)


def test_answers_stand_in_the_gold_turns() -> None:
    by_id = {turn.id: turn.text for turn in sample.turns()}
    questions = sample.questions()
    assert 20 <= len(questions) <= 30
    assert len({q.id for q in questions}) == len(questions)
    for question in questions:
        assert question.gold, question.id
        evidence = words(" ".join(by_id[turn_id] for turn_id in question.gold))
        assert words(question.answer) <= evidence, question.id


def recall(memory: Memory, budget: int) -> float:
    shares = []
    for question in sample.questions():
        pack = memory.pack(question.question, budget=budget)
        assert pack.tokens <= budget
        packed = {turn_id for chunk in pack.chunks for turn_id in chunk.turn_ids}
        shares.append(len(packed & set(question.gold)) / len(question.gold))
    return sum(shares) / len(shares)


def check_floors(name: str, embedder: Embedder | str) -> None:
    with Memory(embedder=embedder) as memory:
        memory.add_many(sample.turns())
        reached = {budget: round(recall(memory, budget), 3) for budget in FLOORS[name]}
    short = {b: (r, FLOORS[name][b]) for b, r in reached.items() if r < FLOORS[name][b]}
    assert not short, f"{name}: recall below its floor at {short}; reached {reached}"


@pytest.mark.usefixtures("packaged_minilm")
def test_recall_floor_with_the_packaged_model() -> None:
    check_floors("minilm", "minilm")


def test_recall_floor_without_a_model() -> None:
    check_floors("hashing", "hashing")
