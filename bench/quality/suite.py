"""The systems under test, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bench.notes.peer import NOTES
from bench.quality.clustered import ClusterSettings, ClusterSystem
from bench.quality.own import MemorySystem
from bench.quality.packed import System
from bench.quality.ranked import (
    Bm25,
    Columns,
    Dense,
    FullContext,
    FusedRanks,
    NoMemory,
    Order,
    RankedSystem,
    Recent,
)
from rsm_fast.embedding import Embedder
from rsm_fast.tokens import TokenCounter

__all__ = ["ABLATIONS", "CROSSED", "GROUPS", "PAPER", "PEERS", "SEEDED", "SYSTEMS", "make_system"]

Factory = Callable[[Embedder, TokenCounter], System]


def _ranked(order: Order, turns: int, *, fold: bool = False) -> Factory:
    return lambda embedder, counter: RankedSystem(
        Columns(embedder, counter, turns), order, fold=fold
    )


def _plain(kind: type[RankedSystem]) -> Factory:
    return lambda embedder, counter: kind(Columns(embedder, counter, 1), Recent())


def _clustered(turns: int = 5, **settings: Any) -> Factory:
    return lambda embedder, counter: ClusterSystem(
        Columns(embedder, counter, turns), ClusterSettings(**settings)
    )


def _own(**options: Any) -> Factory:
    return lambda embedder, counter: MemorySystem(embedder, **options)


_A: dict[str, Any] = {"gate": "max-member"}
_B: dict[str, Any] = {"gate": "nearest-mean"}
_C: dict[str, Any] = {"gate": "centroid"}
_P70: dict[str, Any] = {"percentile": 70.0, "centre": False}
_P95: dict[str, Any] = {"percentile": 95.0, "centre": True}

PEERS: dict[str, Factory] = {
    "no-memory": _plain(NoMemory),
    "full-context": _plain(FullContext),
    "recent-n1": _ranked(Recent(), 1),
    "budget-rag-n1": _ranked(Dense(), 1),
    "budget-rag-n5": _ranked(Dense(), 5),
    "bm25-rag-n1": _ranked(Bm25(), 1),
    "bm25-rag-n5": _ranked(Bm25(), 5),
    "rrf-n1": _ranked(FusedRanks(), 1),
    "streaming-proto-n5": _clustered(method="streaming-proto", **_P70),
    "online-kmeans-n5": _clustered(method="online-kmeans", **_P70),
    "dp-means-n5": _clustered(**_C, **_P70),
    "rsm-paper": _own(preset="paper"),
    "rsm-a-p70-n5": _clustered(**_A, **_P70),
    "rsm-b-p70-n5": _clustered(**_B, **_P70),
    "rsm-a-p95-n5": _clustered(**_A, **_P95),
    "rsm-b-p95-n5": _clustered(**_B, **_P95),
    "rsm-b-p70-n1": _clustered(1, **_B, **_P70),
    "hybrid": _own(),
    "hybrid-no-fold": _own(changes={"fold": False}),
}
"""Every system of the papers, and ours. ``rsm-paper`` is the preset as published, through
`Memory`; the other ``rsm-*`` use up the budget."""

_PUBLISHED: dict[str, Any] = {**_P70, "packer": "atoms", "fill": False}

PAPER: dict[str, Factory] = {
    **{
        f"{rule}/{packer}": _clustered(**gate, **{**_PUBLISHED, "packer": packer})
        for rule, gate in (("member", _A), ("centroid", _C))
        for packer in ("atoms", "cosine", "newest")
    },
    **{
        f"route/{route}": _clustered(**_A, **_PUBLISHED, route=route, rank=4)
        for route in ("singular-vector", "max-member", "subspace")
    },
    **{
        f"rank/{rank}": _clustered(**_A, **_PUBLISHED, route="subspace", rank=rank)
        for rank in (1, 2, 8)
    },
    "int8": _clustered(**_A, **_PUBLISHED, dtype="int8"),
}
"""Contrasts of the paper's design without backfill: merge rule x packer, retrieval rules (the
centroid is ``member/atoms``), ranks, int8."""

SEEDED: dict[str, Factory] = {
    f"{name}/seed{seed}": _clustered(**options, fill=False, packer="atoms", seed=seed)
    for seed in (0, 1, 2, 3)
    for name, options in {
        "rsm-a": {**_A, **_P70},
        "rsm-b": {**_B, **_P70},
        "dp-means": {**_C, **_P70},
        "online-kmeans": {"method": "online-kmeans", **_P70},
    }.items()
}
"""Four seeds of the stochastic parts; all else is deterministic."""

_VARIANTS: dict[str, dict[str, Any]] = {
    "dense-only": {"weights": {"lexical": 0.0}},
    "bm25-only": {"weights": {"dense": 0.0}},
    "no-speaker": {"weights": {"speaker": 0.0}},
    "no-smoothing": {"weights": {"smoothing": 0.0}},
    "no-window": {"weights": {"window": 0}},
    "no-length-rule": {"weights": {"length_power": 0.0}},
    "no-step-lookup": {
        "weights": {"step_named": 0.0, "step_in_range": 0.0, "step_next": 0.0, "step_second": 0.0}
    },
    "chunk-5": {"changes": {"chunk_turns": 5}},
    "layout-atoms": {"changes": {"layout": "atoms"}},
    "layout-flat": {"changes": {"layout": "flat"}},
}
ABLATIONS: dict[str, Factory] = {
    f"hybrid/{name}": _own(**options) for name, options in _VARIANTS.items()
}
"""The default read path with one part taken out or changed."""

GROUPS: dict[str, dict[str, Factory]] = {
    "peers": PEERS,
    "ablations": ABLATIONS,
    "paper": PAPER,
    "seeds": SEEDED,
}
CROSSED = ("budget-rag-n1", "bm25-rag-n1", "rrf-n1", "rsm-paper", "hybrid")
"""Systems that are run with a second embedder too."""

SYSTEMS: dict[str, Factory] = {
    **{name: make for group in GROUPS.values() for name, make in group.items()},
    **NOTES,  # in no group: they are run only if named, since a language model has to answer
}


def make_system(name: str, embedder: Embedder, counter: TokenCounter) -> System:
    """A fresh system of that name."""
    return partial(SYSTEMS[name], embedder, counter)()
