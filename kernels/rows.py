"""The columns that hold one growing table of vectors, as kernels see them.

A table (the members of a namespace, or the means of its atoms) is a tuple of arrays.
Python hands them to a kernel one by one, because Numba unpacks a tuple argument at three
times the cost; inside, they travel together as `Codes`.

Rows come in blocks of four: what belongs to a row besides its vector lies in ``fit``
arrays of shape (blocks, items, 4), so that one load serves four rows.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import types

from rsm_fast.kernels.jit import F32, F64, I8, Int, Real

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

HEAD = 128
"""Coordinates of a rotated vector that the first scan reads."""

SCALE, ERROR = 0, 1
"""Items of ``Codes.fit``: value of a code of 1; norm of ``vector - scale * code``, at least."""

HEAD_SCALE, HEAD_ERROR, TAIL = 0, 1, 2
"""Items of ``Codes.head_fit``: the same for the rotated head; norm of what lies beyond it."""

REACH, REACH_HEAD, ROTATION_ERROR, ROTATION_SKEW = 0, 1, 2, 3
"""Items of ``Codes.limits``: largest norm of any row's codes, and of its head's; float32
error of a projection and deviation from orthonormality, both for vectors of norm 1."""

SLOT, MATE = 0, 1
"""Items of a member's links: the slot of its atom, and the next member of it; -1: none."""

COUNT, FIRST, LAST, STALE = 0, 1, 2, 3
"""Items of an atom's links: members, first and last row, whether the basis is approximate."""


class Codes(NamedTuple):
    """One table of vectors.

    Attributes
    ----------
    vec : float32[capacity, d] or float32[0, d]
        The vectors, d padded with zeros to a multiple of 64. Without them the dequantised
        codes are the truth.
    code : int8[capacity, d]
        The vectors divided by their scale and rounded, in [-127, 127].
    fit : float32[capacity / 4, 2, 4]
        Scale and error of each row, by blocks of four.
    head : int8[capacity, 128] or int8[0, 0]
        Codes of the first coordinates after rotation, where there is one.
    head_fit : float32[capacity / 4, 3, 4]
        Scale, error and tail of each row.
    limits : float64[4]
        Bounds over all rows, see `REACH`.
    """

    vec: F32
    code: I8
    fit: F32
    head: I8
    head_fit: F32
    limits: F64


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
