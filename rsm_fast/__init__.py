"""rsm_fast: an embedded, CPU-only, compact memory for LLM agents.

>>> from rsm_fast import Memory                                       # doctest: +SKIP
>>> memory = Memory.open("agent.rsm")                                 # doctest: +SKIP
>>> memory.add("I moved to Lisbon in May.", role="user")              # doctest: +SKIP
>>> memory.pack("Where does the user live?", budget=4000).text        # doctest: +SKIP

Importing this package is cheap: NumPy, Numba, FAISS, ONNX Runtime and tokenizers load at first use.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rsm_fast._version import __version__
from rsm_fast.errors import RSMError
from rsm_fast.types import Hit, MemoryStats, OmittedChunk, Pack, PackedChunk, PackStats, Turn

if TYPE_CHECKING:
    from rsm_fast.core import Limits as Limits
    from rsm_fast.memory import Memory as Memory
    from rsm_fast.packing.unfold import unfold as unfold
    from rsm_fast.warming import warmup as warmup

__all__ = [
    "Hit",
    "Limits",
    "Memory",
    "MemoryStats",
    "OmittedChunk",
    "Pack",
    "PackStats",
    "PackedChunk",
    "RSMError",
    "Turn",
    "__version__",
    "unfold",
    "warmup",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    if name == "Memory":
        from rsm_fast.memory import Memory

        return Memory
    if name == "Limits":
        from rsm_fast.core import Limits

        return Limits
    if name == "unfold":
        from rsm_fast.packing import unfold

        return unfold
    if name == "warmup":
        from rsm_fast.warming import warmup

        return warmup
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
