"""Sizes, vectors and the way of timing that all kernel benches share."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bench.kernels.vectors import noisy_copies, real_vectors
from rsm_fast.arena import Arena
from rsm_fast.clustering import Clusterer, TauCalibrator

F32 = npt.NDArray[np.float32]
HELD_OUT = 1000


@lru_cache(maxsize=1)
def real() -> tuple[F32, F32]:
    """What is stored, and held-out vectors of the same kind to ask with."""
    vectors = real_vectors(make=os.environ.get("RSM_FAST_BENCH_EMBED", "1") == "1")
    return vectors[:-HELD_OUT], np.random.default_rng(0).permutation(vectors[-HELD_OUT:])


@lru_cache(maxsize=2)
def stored(size: int) -> F32:
    """So many vectors: real ones, then noisy copies."""
    return noisy_copies(real()[0], size)


@lru_cache(maxsize=2)
def arena_of(size: int, centre: bool = False) -> Arena:
    """An arena that holds `stored`."""
    vectors = stored(size)
    arena = Arena(vectors.shape[1])
    if centre:
        arena.set_centre(TauCalibrator().calibrate(vectors).mean, [], vectors[:0])
    numbers = np.arange(size)
    arena.append_many(vectors, pk=numbers, tokens=numbers, micros=numbers, session=numbers * 0)
    return arena


def clustered(size: int, gate: Any) -> Clusterer:
    """A clusterer over an arena of its own, as the default or on raw cosines with tau 0.7."""
    arena_of.cache_clear()
    arena = arena_of(size, gate == "nearest-mean")
    arena_of.cache_clear()
    tau = TauCalibrator().calibrate(stored(size)).tau if gate == "nearest-mean" else 0.7
    clusterer = Clusterer(arena, gate=gate, tau=tau)
    clusterer.assign_many(np.arange(size))
    return clusterer


Timer = Callable[..., Any]


@pytest.fixture
def timed(benchmark: Any) -> Iterator[Timer]:
    """Time a call over many inputs, one round each, and note what it was."""

    def run(call: Callable[[Any], Any], inputs: Any, *, rounds: int, **facts: Any) -> Any:
        feed = itertools.cycle(inputs)
        benchmark.extra_info.update(facts)
        return benchmark.pedantic(
            lambda: call(next(feed)), rounds=rounds, warmup_rounds=min(20, rounds), iterations=1
        )

    yield run
