"""F33 through `Memory`: what was acknowledged survives SIGKILL, and derived state fits it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from crash_harness import Op, State, Trials

from rsm_fast import Memory
from rsm_fast.store import Store, points

# newer Pythons warn of what these tests are about
pytestmark = pytest.mark.filterwarnings("ignore:This process .* multi-threaded:DeprecationWarning")


class MemoryTarget:
    """A memory with the deterministic embedder."""

    def open(self, path: Path) -> Memory:
        return Memory.open(path, embedder="hashing-64", synchronous="NORMAL")

    def apply(self, opened: Memory, op: Op) -> None:
        match op["verb"]:
            case "add":
                opened.add_many({"id": name, "text": text} for name, text in op["turns"].items())
            case "delete":
                opened.delete(op["ids"])
            case "update":
                opened.update(op["id"], op["text"])
            case "compact":
                opened.compact()
            case "snapshot":
                opened.flush()

    def state(self, opened: Memory) -> State:
        assert opened.path is not None
        with Store.open(opened.path) as store, store.read() as reader:
            record = reader.namespace(opened.namespace)
            turns = [] if record is None else reader.all_turns(record.id)
            return {turn.id: turn.text for turn in turns}

    def check(self, opened: Memory) -> None:
        assert opened.path is not None
        with Store.open(opened.path) as store, store.read() as reader:
            assert [found for found in store.check() if found.table != "snapshots"] == []
            record = reader.namespace(opened.namespace)
            if record is None:
                return
            columns = reader.columns(record.id, 64)
            assert columns.has_vector.all()
            assert (columns.atom < record.next_atom).all()
        state = self.state(opened)
        stats = opened.stats()
        assert (stats.turns, stats.chunks) == (len(state), len(columns.pk))
        gated = columns.atom[columns.atom >= 0]
        assert stats.atoms == len(np.unique(gated))
        assert stats.pending_chunks == len(columns.pk) - len(gated)
        for name in sorted(state)[::10]:
            assert state[name] in {hit.text for hit in opened.search(state[name], k=3)}

    def close(self, opened: Memory) -> None:
        opened.close()


def kinds(kills: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    places = [point for point in points.POINTS if point.split(":")[0] in ("write", "compact")]
    chosen: list[str] = []
    while len(chosen) < kills:
        chosen += [f"{point} {chance.randint(1, 4)}" for point in places]
        chosen += ["random"] * len(places)
    return chosen[:kills]


def test_f33_a_killed_memory_has_all_it_acknowledged(tmp_path):
    trials = Trials(MemoryTarget(), tmp_path, seed=4)
    trials.run(kinds(14, 4))
    assert sum(trials.deaths.values()) == 14


@pytest.mark.slow
def test_f33_five_hundred_killed_memories(tmp_path):
    trials = Trials(MemoryTarget(), tmp_path, seed=5)
    trials.run(kinds(500, 5))
    assert sum(trials.deaths.values()) == 500
