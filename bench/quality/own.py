"""The project's own `Memory` as a system under test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.quality.packed import Packed, Shown, SystemStats
from rsm_fast.embedding import Embedder
from rsm_fast.memory import Memory
from rsm_fast.presets import Preset, get_preset
from rsm_fast.retrieval import HybridSettings
from rsm_fast.types import Turn

__all__ = ["MemorySystem"]


class MemorySystem:
    """`Memory` in RAM, driven through its public verbs only.

    Parameters
    ----------
    embedder : Embedder
    preset : str
    changes : dict
        Fields of the preset to change (``layout``, ``fold``, ``chunk_turns`` ...).
    weights : dict
        Fields of `HybridSettings` to change.
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        preset: str = "hybrid",
        changes: dict[str, Any] | None = None,
        weights: dict[str, Any] | None = None,
    ) -> None:
        chosen: Preset = replace(get_preset(preset), **(changes or {}))
        self._memory = Memory(
            embedder=embedder,
            preset=chosen,
            hybrid=replace(HybridSettings(), **weights) if weights else None,
        )
        self._layout = chosen.layout
        self._fold = chosen.fold
        self._flush = chosen.chunk_turns > 1

    def write(self, turns: Sequence[Turn]) -> None:
        """Store turns."""
        self._memory.add_many(turns)
        if self._flush:
            self._memory.flush()

    def read(self, query: str, budget: int) -> Packed:
        """One pack."""
        pack = self._memory.pack(query, budget=budget, layout=self._layout, fold=self._fold)
        shown = []
        for chunk in pack.chunks:
            alone = len(chunk.turn_ids) == 1
            shown += [Shown(id, chunk.text if alone else "", chunk.copies) for id in chunk.turn_ids]
        return Packed(pack.text, pack.tokens, tuple(shown), pack.stats.folded_tokens)

    def ranked_sessions(self, query: str, k: int) -> list[str]:
        """Sessions in the order of their best hit."""
        hits = self._memory.search(query, k=10 * k)
        return list(dict.fromkeys(hit.session or "" for hit in hits))[:k]

    def stats(self) -> SystemStats:
        """As `Memory.stats` gives them."""
        stats = self._memory.stats()
        return SystemStats(stats.chunks, stats.atoms, stats.largest_atom_share, stats.bytes)

    def close(self) -> None:
        """Close the memory."""
        self._memory.close()
