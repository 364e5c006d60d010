"""The columns that hold one growing table of vectors, as kernels see them.

Python hands the arrays of a table to a kernel one by one, because Numba unpacks a tuple
argument at three times the cost; inside, they travel together as `Codes`.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import types

from rsm_fast.kernels.jit import F32, I8, I64, Int, Real
from rsm_fast.kernels.layout import (
    BLOCK,
    COUNT,
    ERROR,
    FIRST,
    HEAD,
    HEAD_BYTES,
    HEAD_ERROR,
    HEAD_FITS,
    HEAD_SCALE,
    LAST,
    MATE,
    NECK,
    NECK_ERROR,
    NECK_SCALE,
    NECK_TAIL,
    REACH,
    REACH_HEAD,
    ROTATION_ERROR,
    ROTATION_SKEW,
    SCALE,
    SLOT,
    STALE,
    TAIL,
    TURNED,
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
    "BLOCK",
    "HEAD",
    "HEAD_BYTES",
    "HEAD_ERROR",
    "HEAD_FITS",
    "HEAD_SCALE",
    "NECK",
    "NECK_ERROR",
    "NECK_SCALE",
    "NECK_TAIL",
    "QUERY_TYPE",
    "REACH",
    "REACH_HEAD",
    "ROTATION",
    "ROTATION_ERROR",
    "ROOM_TYPE",
    "ROTATION_SKEW",
    "SCALE",
    "TAIL",
    "TURNED",
    "Codes",
    "Query",
    "Room",
]


class Query(NamedTuple):
    """A vector on its way through a table, prepared once.

    ``<query, row> <= dot * scale * row scale + reach * row error + rest``, and the same with
    the signs turned below. For the head ``tail * row tail`` is added; the neck's bound is the
    head's with the tail's part replaced by that of the neck and of the tail beyond it.
    """

    exact: F32  # [d]
    code: I8  # [d]
    correction: Int
    scale: Real
    reach: Real
    rest: Real
    head: I8  # [256], or [0] without a rotation
    head_less: Real  # taken off a dot product, because codes 0 to 15 stand for -7.5 to 7.5
    head_scale: Real
    head_reach: Real
    head_rest: Real
    tail: Real
    necks: Int  # 1 if the neck was prepared
    neck_less: Real
    neck_scale: Real
    neck_reach: Real
    neck_rest: Real
    neck_tail: Real


class Room(NamedTuple):
    """What one search writes: bounds of all rows, and the rows that it looks at more closely."""

    bounds: F32  # [rows rounded up to a multiple of 16]
    peaks: F32  # [blocks of 16 rows], the largest bound of each
    rows: I64  # [m], candidates
    uppers: F32  # [m], their bounds from above
    lowers: F32  # [m], and from below
    picked: I64  # [p], rows whose full codes are read next; m is at least 2 p
    picked_uppers: F32  # [p]


CODES = (
    "float32[:, ::1], int8[:, ::1], float32[:, :, ::1], int8[:, ::1], float32[:, :, ::1], "
    "float64[::1]"
)
"""`Codes` spelled out in a signature."""

ROTATION = "int16[:, ::1]"
"""Orthonormal rows times 32767; none: the table has no heads."""

_matrix = types.float32[:, ::1]
_codes = types.int8[:, ::1]
_blocks = types.float32[:, :, ::1]
CODES_TYPE = types.NamedTuple(
    [_matrix, _codes, _blocks, _codes, _blocks, types.float64[::1]], Codes
)
QUERY_TYPE = types.NamedTuple(
    [types.float32[::1], types.int8[::1], types.int32]
    + [types.float32] * 3
    + [types.int8[::1]]
    + [types.float32] * 5
    + [types.int64]
    + [types.float32] * 5,
    Query,
)
_floats, _wholes = types.float32[::1], types.int64[::1]
ROOM_TYPE = types.NamedTuple([_floats, _floats, _wholes, _floats, _floats, _wholes, _floats], Room)
