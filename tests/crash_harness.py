"""Kill a writer with SIGKILL again and again, and hold what is left against what it acknowledged.

A `Target` does operations on a store; the parent process keeps a model of what they mean. The
child announces each operation on a pipe, does it, and acknowledges it. After the kill the store
must be the model after all acknowledged operations, or that plus the one which was under way.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rsm_fast.store import points

Op = dict[str, Any]
State = dict[str, str]


class Target(Protocol):
    """One way of writing to a store, such as `Store` itself or `Memory`."""

    def open(self, path: Path) -> Any:
        """Open the store, making it if there is none."""

    def apply(self, opened: Any, op: Op) -> None:
        """Do one operation: ``add``, ``delete``, ``update``, ``compact`` ..."""

    def state(self, opened: Any) -> State:
        """Text by id."""

    def check(self, opened: Any) -> None:
        """Raise unless the store is whole and what is derived equals a rebuild."""

    def close(self, opened: Any) -> None:
        """Close."""


def apply_to_model(state: State, op: Op) -> State:
    """The meaning of an operation."""
    state = dict(state)
    match op["verb"]:
        case "add":
            state.update(op["turns"])
        case "delete":
            for name in op["ids"]:
                del state[name]
        case "update":
            state[op["id"]] = op["text"]
        case "compact" | "snapshot" | "reopen":
            pass
        case other:
            raise ValueError(other)
    return state


def plan(chance: random.Random, state: State, serial: int) -> Op:
    """A sensible next operation."""
    verb = chance.choices(
        ["add", "delete", "update", "compact", "snapshot", "reopen"], [60, 15, 12, 5, 4, 4]
    )[0]
    if verb == "delete" and len(state) > 3:
        return {"verb": "delete", "ids": chance.sample(sorted(state), chance.randint(1, 3))}
    if verb == "update" and state:
        return {
            "verb": "update",
            "id": chance.choice(sorted(state)),
            "text": f"changed to {serial} " + "y" * chance.randint(0, 3000),
        }
    if verb in ("compact", "snapshot", "reopen"):
        return {"verb": verb}
    return {
        "verb": "add",
        "turns": {
            f"{serial}-{n}": f"text {serial}-{n} " + "x" * chance.randint(0, 2000)
            for n in range(chance.choice([1, 1, 1, 2, 20]))
        },
    }


@dataclass
class Trials:
    """Runs of one target; counts where the child was when it died."""

    target: Target
    folder: Path
    seed: int = 0
    trials_per_store: int = 12
    deaths: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0

    def run(self, kinds: Iterable[str]) -> None:
        """One kill for each of ``kinds``: ``"random"``, or a point and how often it is met first,
        such as ``"write:commit 3"``.
        """
        state: State = {}
        path = self.folder / "none"
        for number, kind in enumerate(kinds):
            if number % self.trials_per_store == 0:
                path, state = self.folder / f"{number}.rsm", {}
            state = self._trial(path, state, kind, number)

    def _trial(self, path: Path, state: State, kind: str, number: int) -> State:
        chance = random.Random(f"{self.seed}-{number}-{kind}")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._write_until_killed(path, state, kind, chance, number * 1_000_000, writing)
        os.close(writing)
        if kind == "random":
            select.select([reading], [], [], 30)
            time.sleep(chance.uniform(0, 0.05))
            os.kill(pid, signal.SIGKILL)
        with os.fdopen(reading, "rb") as pipe:
            lines = pipe.read().split(b"\n")[:-1]
        _, status = os.waitpid(pid, 0)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            raise AssertionError(f"{kind}: the child ended by itself: {status}, {lines[-1:]!r:.99}")
        before, after = state, state
        for line in lines:
            if line.startswith(b"ack"):
                before = after
                self.acknowledged += 1
            else:
                after = apply_to_model(before, json.loads(line))
        under_way = "nothing" if not lines or lines[-1] == b"ack" else json.loads(lines[-1])["verb"]
        self.deaths[f"{kind.split()[0]} in {under_way}"] += 1
        opened = self.target.open(path)
        try:
            found = self.target.state(opened)
            if found not in (before, after):
                raise AssertionError(
                    f"{kind}, {under_way} under way: neither the old state nor the new: "
                    f"{describe(found, before)} against the old, {describe(found, after)} "
                    "against the new"
                )
            self.target.check(opened)
        finally:
            self.target.close(opened)
        return found

    def _write_until_killed(
        self, path: Path, state: State, kind: str, chance: random.Random, serial: int, pipe: int
    ) -> None:
        """The child. Never returns."""
        status = 1
        try:
            if kind != "random":
                point, _, times = kind.partition(" ")
                points.set_hook(_kill_at(point, int(times)))
            opened = self.target.open(path)
            while True:
                serial += 1
                op = plan(chance, state, serial)
                os.write(pipe, json.dumps(op).encode() + b"\n")
                if op["verb"] == "reopen":
                    self.target.close(opened)
                    opened = self.target.open(path)
                else:
                    self.target.apply(opened, op)
                state = apply_to_model(state, op)
                os.write(pipe, b"ack\n")
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)


def describe(found: State, wanted: State) -> str:
    """How two states differ, in few words."""
    missing = sorted(set(wanted) - set(found))[:5]
    extra = sorted(set(found) - set(wanted))[:5]
    other = sorted(k for k in set(found) & set(wanted) if found[k] != wanted[k])[:5]
    return f"missing {missing}, extra {extra}, other text {other}"


def _kill_at(point: str, times: int) -> Callable[[str], None]:
    met = 0

    def hook(name: str) -> None:
        nonlocal met
        if name == point:
            met += 1
            if met == times:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook
