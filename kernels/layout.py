"""How tables of vectors and of atoms lie in memory; what Python and kernels both know.

Nothing here needs Numba. A table (the members of a namespace, or the means of its atoms) is a
tuple of arrays. Rows come in blocks of four: what belongs to a row besides its vector lies in
``fit`` arrays of shape (blocks, items, 4), so that one load serves four rows.

Heads come in blocks of 16,384 rows, two codes of 4 bits a byte. The first half of a block holds
the heads, the second the necks, which only some rows are asked for, and their float32 numbers lie
in planes: so a scan reads long runs, as memory likes it. Within 16 rows, groups of 4 bytes of each
row lie side by side, so that one instruction multiplies the same coordinates of all of them.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "BLOCK",
    "CENTROID",
    "COUNT",
    "ERROR",
    "F32",
    "F64",
    "FEW_ROWS",
    "FIRST",
    "HEAD",
    "HEAD_BYTES",
    "HEAD_FITS",
    "LAYOUT",
    "NECK",
    "NECK_ERROR",
    "NECK_SCALE",
    "NECK_TAIL",
    "TURNED",
    "UNIT",
    "I16",
    "HEAD_ERROR",
    "HEAD_SCALE",
    "I8",
    "I32",
    "I64",
    "LAST",
    "OPEN_ROWS",
    "OPEN_ROWS_EACH",
    "MATE",
    "MAX_MEMBER",
    "NEAREST_MEAN",
    "REACH",
    "REACH_HEAD",
    "ROTATION_ERROR",
    "ROTATION_SKEW",
    "SCALE",
    "SLOT",
    "STALE",
    "TAIL",
    "U8",
    "Atoms",
    "Codes",
]

F32: TypeAlias = npt.NDArray[np.float32]
F64: TypeAlias = npt.NDArray[np.float64]
I8: TypeAlias = npt.NDArray[np.int8]
I16: TypeAlias = npt.NDArray[np.int16]
I32: TypeAlias = npt.NDArray[np.int32]
I64: TypeAlias = npt.NDArray[np.int64]
U8: TypeAlias = npt.NDArray[np.uint8]

FEW_ROWS = 64
"""A namespace of so many rows at most does without kernels until one is loaded."""

OPEN_ROWS, OPEN_ROWS_EACH = 2048, 64
"""Rows from which on heads pay for a search without a least score: so many, and for each row that
is wanted so many more; below, it is quicker to read all full codes."""

HEAD = 128
"""Coordinates of a rotated vector that the first scan reads."""

TURNED = 256
"""Coordinates of a rotated vector that are kept: those of the head, then those of the neck."""

BLOCK, HEAD_FITS = 16_384, 6
HEAD_BYTES, NECK = 128 * BLOCK, 64 * BLOCK
"""Rows in a block of heads (a power of two) and its float32 items a row; its bytes, and where its
necks begin."""

UNIT = 32767.0
"""The value 1 in a rotation, which is kept in 16 bits."""

LAYOUT = 3
"""Of the columns; a snapshot of another one is not taken over."""

SCALE, ERROR = 0, 1
"""Items of ``Codes.fit``: value of a code of 1; norm of ``vector - scale * code``, at least."""

HEAD_SCALE, HEAD_ERROR, TAIL = 0, 1, 2
"""Items of ``Codes.head_fit``: the same for the rotated head; norm of what lies beyond it."""

NECK_SCALE, NECK_ERROR, NECK_TAIL = 3, 4, 5
"""The same for the neck, and the norm of what lies beyond that."""

REACH, REACH_HEAD, ROTATION_ERROR, ROTATION_SKEW = 0, 1, 2, 3
"""Items of ``Codes.limits``: largest norm of any row's codes, and of its head's and neck's;
error of a projection and deviation from orthonormality, both for vectors of norm 1."""

SLOT, MATE = 0, 1
"""Items of a member's links: the slot of its atom, and the next member of it; -1: none."""

COUNT, FIRST, LAST, STALE = 0, 1, 2, 3
"""Items of an atom's links: members, first and last row, whether the basis is approximate."""


MAX_MEMBER, NEAREST_MEAN, CENTROID = 0, 1, 2
"""Gates, see `rsm_fast.kernels.gate`."""


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
    head : int8[capacity / 16384, 2097152] or int8[0, 2097152]
        4-bit codes of the first coordinates after rotation, where there is one.
    head_fit : float32[capacity / 16384, 6, 16384]
        Scale, error and tail of each row's head, then of its neck.
    limits : float64[4]
        Bounds over all rows, see `REACH`.
    """

    vec: F32
    code: I8
    fit: F32
    head: I8
    head_fit: F32
    limits: F64


class Atoms(NamedTuple):
    """The atoms of a namespace by slot; slots are in the order of atom numbers.

    Attributes
    ----------
    vec, code, fit, head, head_fit, limits
        The means, a table as `rsm_fast.kernels.rows.Codes`, always with vectors.
    total : float64[capacity, d]
        Sums of the members.
    links : int32[capacity, 4]
        See `COUNT`.
    alive : uint8[capacity]
        0 for slots whose last member left.
    basis : float32[capacity, r, d]
        Orthonormal rows, strongest first; zeros beyond the rank of the members.
    strength : float64[capacity, r]
        Their squared singular values.
    """

    vec: F32
    code: I8
    fit: F32
    head: I8
    head_fit: F32
    limits: F64
    total: F64
    links: I32
    alive: U8
    basis: F32
    strength: F64
