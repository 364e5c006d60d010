"""Turns to fill memories with, and what two memories are compared by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rsm_fast import Memory, Turn

Opener = Callable[..., Memory]


def sentences(count: int, *, sessions: int = 4) -> list[Turn]:
    """Different texts about a few topics, in a few sessions."""
    topics = ("harbour", "violin", "compiler", "garden", "glacier", "bakery")
    return [
        Turn(
            f"Note {i}: the {topics[i % 6]} number {i * 37 % 101} was seen near "
            f"{topics[(i * 5 + 1) % 6]} {i * 13 % 17}.",
            role="user" if i % 2 else "assistant",
            timestamp=1_770_000_000 + 60 * i,
            session=f"s{i * sessions // count}",
            id=f"t{i:04d}",
            metadata={"topic": topics[i % 6], "number": i},
        )
        for i in range(count)
    ]


def state_of(memory: Memory) -> Any:
    with memory._core.snapshot() as view:
        return view.state


def fingerprint(memory: Memory) -> dict[str, Any]:
    """All that is derived, in a form that two memories can be compared by."""
    with memory._core.snapshot() as view:
        state = view.state
        arena = state.arena
        rows = np.flatnonzero(arena.alive)
        order = {int(row): place for place, row in enumerate(rows)}
        link = lambda column: [order.get(int(r), -1) for r in column[rows]]  # noqa: E731
        query = arena.prepare_query(memory._core.embed_query("harbour near the garden"))
        atoms = {}
        if state.clusterer is not None:
            for atom in sorted(set(arena.atom[rows].tolist()) - {-1}):
                atoms[atom] = (
                    [order[int(r)] for r in state.clusterer.members(atom)],
                    np.round(state.clusterer.mean(atom), 5).tolist(),
                )
        return {
            "pk": arena.pk[rows].tolist(),
            "atom": arena.atom[rows].tolist(),
            "tokens": arena.tokens[rows].tolist(),
            "micros": arena.micros[rows].tolist(),
            "prev": link(arena.prev),
            "next": link(arena.next),
            "hashes": state.hashes[rows].tolist(),
            "dense": np.round(arena.dense_scores(query)[rows], 6).tolist(),
            "lexical": np.round(
                state.lexical.scores(
                    ["harbour", "garden", "37"],
                    prev=arena.prev,
                    next=arena.next,
                    alive=arena.alive,
                )[rows],
                4,
            ).tolist(),
            "atoms": atoms,
            "next_atom": None if state.clusterer is None else state.clusterer.next_atom,
        }
