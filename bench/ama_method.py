"""rsm_fast as a memory method of AMA-Bench's official harness.

Register it there before the run::

    from bench.ama_method import RsmFastMethod
    from src.method_register import register_method

    register_method("rsm_fast", RsmFastMethod)

and choose it with ``--method rsm_fast``. The harness may build and question many memories from
many threads at once: a memory object belongs to one episode, and `Memory` is thread-safe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rsm_fast.embedding import Embedder, as_embedder
from rsm_fast.memory import Memory
from rsm_fast.types import Turn

__all__ = ["RsmFastMethod", "steps_of"]

_STEP = re.compile(r"^(?:Step|Turn) (\d+):[ \t]*\n(?=\s*Action:)", re.MULTILINE)


class RsmFastMethod:
    """One `Memory` per trajectory, one pack per question.

    Parameters
    ----------
    budget : int
        Tokens of a pack, in the packaged WordPiece's unit.
    preset : str
        ``"hybrid"`` or ``"paper"``.
    embedder : str or None
        What `rsm_fast.embedding.as_embedder` takes; None is the packaged model.
    config_path : str or None
        JSON file with any of these.
    embedding_engine : object
        The harness's own; not used.
    """

    def __init__(
        self,
        budget: int = 4000,
        preset: str = "hybrid",
        embedder: str | None = None,
        config_path: str | None = None,
        embedding_engine: Any = None,
    ) -> None:
        given = json.loads(Path(config_path).read_text("utf-8")) if config_path else {}
        self.budget = int(given.get("budget", budget))
        self.preset = str(given.get("preset", preset))
        self.embedder: Embedder = as_embedder(given.get("embedder", embedder))

    def memory_construction(self, traj_text: str, task: str = "") -> Memory:
        """Read a trajectory as the harness writes it, one turn a step.

        Parameters
        ----------
        traj_text : str
            ``Step N:``, ``Action: ...``, ``Observation: ...`` for every step.
        task : str
            Remembered as the first turn where it is given.

        Returns
        -------
        Memory
        """
        memory = Memory(embedder=self.embedder, preset=self.preset)
        turns = list(steps_of(traj_text))
        if task.strip():
            turns.insert(0, Turn(f"Task: {task}", "user", session="task", id="task"))
        memory.add_many(turns)
        memory.flush()
        return memory

    def memory_retrieve(self, memory: Memory, question: str) -> str:
        """The pack for a question."""
        return memory.pack(question, budget=self.budget).text


def steps_of(traj_text: str) -> Iterator[Turn]:
    """Turns of a trajectory text; a text without steps is one turn."""
    starts = list(_STEP.finditer(traj_text))
    if not starts and traj_text.strip():
        yield Turn(traj_text.strip(), "agent", session="trajectory")
    seen: set[str] = set()
    for place, match in enumerate(starts):
        end = starts[place + 1].start() if place + 1 < len(starts) else len(traj_text)
        number = match[1] if match[1] not in seen else f"{match[1]}.{place}"
        seen.add(number)
        yield Turn(
            traj_text[match.end() : end].strip("\n"),
            "agent",
            session="trajectory",
            id=f"step-{number}",
            metadata={"step": int(match[1])},
        )
