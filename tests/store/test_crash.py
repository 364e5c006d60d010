"""F33: SIGKILL at random instants and at every named point of a write."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crash_harness import Op, State, Trials

from rsm_fast.store import ChunkRecord, Store, TurnRecord, points

# newer Pythons warn of what these tests are about
pytestmark = pytest.mark.filterwarnings("ignore:This process .* multi-threaded:DeprecationWarning")


class StoreTarget:
    """The store layer by itself: one chunk a turn."""

    def __init__(self, synchronous: str = "NORMAL") -> None:
        self.synchronous = synchronous

    def open(self, path: Path) -> Store:
        store = Store.open(path, synchronous=self.synchronous)
        with store.read() as reader:
            made = reader.namespace("a") is not None
        if not made:
            with store.write() as writer:
                writer.create_namespace("a", {"dim": 8})
        return store

    def apply(self, opened: Store, op: Op) -> None:
        if op["verb"] == "compact":
            opened.compact()
            return
        if op["verb"] == "snapshot":
            with opened.read() as reader:
                columns = reader.columns(1, 8)
                generation = reader.generation(1)
            opened.save_snapshot(1, generation, {"pk": columns.pk, "vector": columns.vector})
            return
        with opened.write() as writer:
            if op["verb"] == "add":
                turns = [
                    TurnRecord(0, name, "user", text, 0, 0, True, None, '{"n": 1}')
                    for name, text in op["turns"].items()
                ]
                pks = writer.insert_turns(1, turns)
                writer.insert_chunks(
                    1, [chunk(turn._replace(pk=pk)) for turn, pk in zip(turns, pks, strict=True)]
                )
                return
            names = op["ids"] if op["verb"] == "delete" else [op["id"]]
            found = writer.turns_by_id(1, names)
            keys = [found[name].pk for name in names]
            chunks = writer.chunks_of_turns(1, keys)
            if op["verb"] == "delete":
                writer.delete_chunks(1, [chunk.pk for chunk in chunks])
                writer.delete_turns(1, keys)
            else:
                changed = found[names[0]]._replace(text=op["text"])
                writer.update_turn(1, changed)
                writer.replace_chunk(1, chunk(changed)._replace(pk=chunks[0].pk))

    def state(self, opened: Store) -> State:
        with opened.read() as reader:
            return {turn.id: turn.text for turn in reader.all_turns(1)}

    def check(self, opened: Store) -> None:
        # a kill between the sidecar and its name in the store leaves a sidecar that does not count
        wrong = [finding for finding in opened.check() if finding.table != "snapshots"]
        assert wrong == []
        with opened.read() as reader:
            turns = {turn.pk: turn for turn in reader.all_turns(1)}
            for found in reader.all_chunks(1):
                [(key, _, _)] = found.spans
                assert found == chunk(turns.pop(key))._replace(pk=found.pk)
            assert turns == {}
        snapshot = opened.load_snapshot(1)
        if snapshot is not None:
            assert len(snapshot.arrays["pk"]) == len(snapshot.arrays["vector"])

    def close(self, opened: Store) -> None:
        opened.close()


def chunk(turn: TurnRecord) -> ChunkRecord:
    vector = np.full(8, len(turn.text), np.float32).tobytes()
    return ChunkRecord(
        0, turn.id + "#0", ((turn.pk, 0, len(turn.text)),), None, 0, 0, len(turn.text), b"",
        turn.text[:20].encode(), 1, vector=vector,
    )  # fmt: skip


def kinds(kills: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    every = [f"{point} {chance.randint(1, 4)}" for point in points.POINTS if "create" not in point]
    chosen = []
    while len(chosen) < kills:
        chosen += every + ["random"] * len(every)
    return chosen[:kills]


def test_f33_killed_writers_leave_the_old_state_or_the_new(tmp_path):
    trials = Trials(StoreTarget(), tmp_path, seed=1)
    trials.run(kinds(25, 1))
    assert sum(trials.deaths.values()) == 25
    assert trials.acknowledged > 100


@pytest.mark.slow
@pytest.mark.parametrize("synchronous", ["NORMAL", "FULL"])
def test_f33_five_hundred_kills(tmp_path, synchronous):
    trials = Trials(StoreTarget(synchronous), tmp_path, seed=2)
    trials.run(kinds(500, 2))
    assert sum(trials.deaths.values()) == 500


@pytest.mark.parametrize("point", ["create:schema", "create:link"])
def test_f33_killed_while_a_store_is_made(path, point):
    def die(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid == 0:
        points.set_hook(die)
        Store.open(path)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    with Store.open(path) as store:
        assert store.check() == []


def test_f33_killed_at_every_statement_of_a_delete(tmp_path):
    target = StoreTarget()
    turns = {f"{n}": f"text {n}" for n in range(4)}
    op = {"verb": "delete", "ids": ["1", "2"]}
    outcomes = []
    for statement in range(1, 100):
        path = tmp_path / f"{statement}.rsm"
        opened = target.open(path)
        target.apply(opened, {"verb": "add", "turns": turns})
        pid = os.fork()
        if pid == 0:
            left = statement

            def trace(_: str) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            with opened._connections.writing() as connection:
                connection.set_trace_callback(trace)
            target.apply(opened, op)
            os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        state = target.state(opened)
        target.check(opened)
        target.close(opened)
        outcomes.append(len(state))
        if not killed:
            break
    assert len(outcomes) > 10
    assert set(outcomes) == {2, 4}
    assert outcomes == sorted(outcomes, reverse=True)


def test_the_hook_is_off_by_default(monkeypatch, file_store):
    seen: list[Any] = []
    points.set_hook(seen.append)
    try:
        with file_store.write():
            pass
    finally:
        points.set_hook(None)
    assert seen == ["write:begun", "write:commit", "write:committed"]
    assert set(seen) < set(points.POINTS)
    with file_store.write():
        pass
    assert len(seen) == 3


class TornTarget(StoreTarget):
    """Wrong on purpose: adds in two transactions."""

    def apply(self, opened: Store, op: Op) -> None:
        if op["verb"] == "add" and len(op["turns"]) > 1:
            for name, text in op["turns"].items():
                super().apply(opened, {"verb": "add", "turns": {name: text}})
        else:
            super().apply(opened, op)


def test_the_harness_notices_a_torn_write(tmp_path):
    with pytest.raises(AssertionError, match="neither the old state nor the new"):
        Trials(TornTarget(), tmp_path, seed=3).run(kinds(200, 3))
