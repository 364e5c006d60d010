"""What a namespace looks like from outside: counts, sizes, warnings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rsm_fast.core import Core
from rsm_fast.instants import Instant
from rsm_fast.state import NamespaceState
from rsm_fast.store import TurnRecord
from rsm_fast.types import MemoryStats, Turn
from rsm_fast.writing import GIANT_ATOM_SHARE

__all__ = ["memory_stats", "stored_turns"]

_COPIES_SHARE = 0.3
"""A namespace with more than this share of byte-equal copies is reported."""


def memory_stats(core: Core) -> MemoryStats:
    """See `rsm_fast.memory.Memory.stats`."""
    path = None if core.store.path is None else str(core.store.path)
    with core.snapshot() as view:
        state = view.state
        if state is None:
            return MemoryStats(
                turns=0,
                chunks=0,
                atoms=0,
                largest_atom_share=0.0,
                bytes=0,
                file_bytes=core.store.file_bytes(),
                pending_chunks=0,
                tau=None,
                namespace=core.key,
                path=path,
            )
        turns, chunks = view.reader.counts(state.ns)
        clusterer, arena = state.clusterer, state.arena
        return MemoryStats(
            turns=turns,
            chunks=chunks,
            atoms=0 if clusterer is None else clusterer.n_atoms,
            largest_atom_share=0.0 if clusterer is None else clusterer.largest_share(),
            bytes=state.nbytes,
            file_bytes=core.store.file_bytes(),
            pending_chunks=int(np.count_nonzero((arena.alive != 0) & (arena.atom < 0))),
            tau=state.settings.tau,
            namespace=core.key,
            path=path,
            warnings=tuple(_warnings(core, state)),
            settings={**state.settings.to_dict(), "token_counter": core.counter.name},
        )


def stored_turns(
    core: Core, *, ids: Sequence[str] | None, where: Mapping[str, Any] | None, last: int | None
) -> list[Turn]:
    """See `rsm_fast.memory.Memory.turns`; with ``ids``, those of them that exist."""
    with core.store.read() as reader:
        record = reader.namespace(core.key)
        if record is None:
            return []
        if ids is not None:
            found = reader.turns_by_id(record.id, ids)
            return [_turn(found[name]) for name in ids if name in found]
        keys = reader.matching_turns(record.id, where=where)
        return [_turn(turn) for turn in reader.turns(record.id, keys if not last else keys[-last:])]


def _turn(record: TurnRecord) -> Turn:
    return Turn(
        text=record.text,
        role=record.role,
        timestamp=Instant(record.micros, record.offset_minutes).isoformat(),
        session=record.session,
        id=record.id,
        metadata=json.loads(record.metadata) if record.metadata else None,
        ttl=None if record.expires_at is None else (record.expires_at - record.micros) / 1e6,
    )


def _warnings(core: Core, state: NamespaceState) -> list[str]:
    found = []
    living = state.arena.living
    if state.clusterer is not None and living:
        share = state.clusterer.largest_share()
        if share > GIANT_ATOM_SHARE and state.clusterer.n_atoms > 1 or share == 1.0 and living > 50:
            found.append(
                f"giant atom: one atom holds {100 * share:.0f} % of the chunks; "
                "recalibrate with a higher percentile, or use the default preset's gate"
            )
    hashes = state.hashes[state.arena.alive != 0]
    copies = hashes.size - np.unique(hashes).size
    if copies > _COPIES_SHARE * living:
        found.append(
            f"copies: {copies} of {living} chunks equal an earlier one byte for byte; "
            "is packed output being stored again?"
        )
    if state.truncated_chunks:
        found.append(
            f"truncated: the embedder saw only the beginning of {state.truncated_chunks} chunks; "
            "use fewer turns to a chunk, or a preset that splits long texts"
        )
    if core.counter.name != state.settings.counter:
        found.append(
            f"token counter: counts were stored in {state.settings.counter}, packs now count "
            f"in {core.counter.name} and count each text again"
        )
    return found
