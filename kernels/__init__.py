"""Compiled kernels. They trust their input: the modules above check it.

A kernel is a function of arrays and scalars. `rsm_fast.kernels.jit.kernel` is the one
decorator; nothing else in the project calls Numba's.

Importing Numba takes a third of a second, so the modules above write
``kernels.append.append_row_``, which loads the module at its first use, and do without as long
as `loaded` is false and there is little to do.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rsm_fast.kernels import (
        admission,
        append,
        atoms,
        bm25,
        gate,
        ordering,
        quantize,
        read,
        rotation,
        scan,
        scoring,
        topk,
        write,
    )

__all__ = [
    "admission", "append", "atoms", "bm25", "gate", "loaded", "ordering", "quantize", "read",
    "rotation", "scan", "scoring", "topk", "write",
]  # fmt: skip


def loaded() -> bool:
    """Whether this process has loaded Numba for a kernel."""
    return f"{__name__}.jit" in sys.modules


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
