from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from bench.ama_method import RsmFastMethod, steps_of


def trajectory(steps=40):
    """As the official harness writes it."""
    lines = []
    for number in range(steps):
        lines += [
            f"Step {number}:",
            f"Action: move {number}",
            f"Observation: room {number}\nStep on",
            "",
        ]
    return "\n".join(lines)


def test_steps_are_turns():
    turns = list(steps_of(trajectory(3)))
    assert [turn.metadata["step"] for turn in turns] == [0, 1, 2]
    assert turns[1].text == "Action: move 1\nObservation: room 1\nStep on"
    (whole,) = steps_of("no steps here")
    assert whole.text == "no steps here"
    assert list(steps_of("  ")) == []


def test_many_threads_build_and_ask(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"budget": 120, "embedder": "hashing"}))
    method = RsmFastMethod(config_path=str(config))

    def episode(number):
        memory = method.memory_construction(trajectory(30 + number), task=f"task {number}")
        with ThreadPoolExecutor(2) as inner:
            packs = list(
                inner.map(
                    lambda step: method.memory_retrieve(memory, f"What at step {step}?"), range(8)
                )
            )
        memory.close()
        return packs

    with ThreadPoolExecutor(3) as pool:
        for packs in pool.map(episode, range(3)):
            assert all(f"move {step}" in pack for step, pack in enumerate(packs))
