"""The columns that hold one growing table of vectors, as kernels see them.

Python hands the arrays of a table to a kernel one by one, because Numba unpacks a tuple
argument at three times the cost; inside, they travel together as `Codes`.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import types

from rsm_fast.kernels.jit import F32, I8, Int, Real
from rsm_fast.kernels.layout import (
    COUNT,
    ERROR,
    FIRST,
    HEAD,
    HEAD_ERROR,
    HEAD_SCALE,
    LAST,
    MATE,
    REACH,
    REACH_HEAD,
    ROTATION_ERROR,
    ROTATION_SKEW,
    SCALE,
    SLOT,
    STALE,
    TAIL,
    Codes,
)

__all__ = [
    "STALE",
    "SLOT",
    "MATE",
    "LAST",
    "FIRST",
    "COUNT",
    "CODES",
    "CODES_TYPE",
    "ERROR",
    "HEAD",
    "HEAD_ERROR",
    "HEAD_SCALE",
    "QUERY_TYPE",
    "REACH",
    "REACH_HEAD",
    "ROTATION_ERROR",
    "ROTATION_SKEW",
    "SCALE",
    "TAIL",
    "Codes",
    "Query",
]


class Query(NamedTuple):
    """A vector on its way through a table, prepared once.

    ``<query, row> <= dot * scale * row scale + reach * row error + rest`` (plus
    ``tail * row tail`` for the head), and the same with the signs turned below.
    """

    exact: F32  # [d]
    code: I8  # [d]
    correction: Int
    scale: Real
    reach: Real
    rest: Real
    head: I8  # [128] or [0]
    head_correction: Int
    head_scale: Real
    head_reach: Real
    head_rest: Real
    tail: Real


CODES = (
    "float32[:, ::1], int8[:, ::1], float32[:, :, ::1], int8[:, ::1], float32[:, :, ::1], "
    "float64[::1]"
)
"""`Codes` spelled out in a signature."""

_matrix = types.float32[:, ::1]
_codes = types.int8[:, ::1]
_blocks = types.float32[:, :, ::1]
CODES_TYPE = types.NamedTuple(
    [_matrix, _codes, _blocks, _codes, _blocks, types.float64[::1]], Codes
)
QUERY_TYPE = types.NamedTuple(
    [types.float32[::1], types.int8[::1], types.int32]
    + [types.float32] * 3
    + [types.int8[::1], types.int32]
    + [types.float32] * 4,
    Query,
)
