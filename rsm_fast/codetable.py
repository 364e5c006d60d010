"""A growing table of vectors with their int8 codes: the members of a namespace, or its means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import rsm_fast.kernels as kernels
from rsm_fast.columns import Column
from rsm_fast.kernels.layout import BLOCK, HEAD_BYTES, HEAD_FITS, TURNED, UNIT, Codes

__all__ = ["FIRST_ROWS", "CodeTable", "padded", "whole_rotation"]

F32 = npt.NDArray[np.float32]
I16 = npt.NDArray[np.int16]

FIRST_ROWS = 256
"""Rows that a new table has room for."""

_TOGETHER = 64  # a capacity is a multiple of it: kernels look at 16 rows at once
_NO_ARRAY: Any = np.zeros(0)


def padded(dim: int) -> int:
    """Row length in a table: the dimension rounded up to a multiple of 64."""
    return -(-dim // 64) * 64


def whole_rotation(rows: F32) -> I16:
    """At most 256 orthonormal rows as a table's heads are made with: times 32767, rounded."""
    whole = np.zeros((TURNED, rows.shape[1]), np.int16)
    whole[: len(rows)] = np.clip(np.rint(rows * UNIT), -UNIT, UNIT)
    return whole


def _blocks(rows: int) -> int:
    """Blocks of heads for so many rows."""
    return -(-rows // BLOCK)


class CodeTable:
    """Vectors with their int8 codes, as `rsm_fast.kernels.rows.Codes` describes them.

    Parameters
    ----------
    dim : int
        Length of a vector.
    with_vectors : bool
        Whether the float32 vectors are kept; else the codes are the truth.
    folder : pathlib.Path or None
        Folder of the disk that the float32 vectors are kept on; None: in memory.

    Attributes
    ----------
    rotation : int16[256, d] or int16[0, d]
        What the heads are made with, times 32767.
    no_rotation : int16[0, d]
        For kernels that are not to look at the heads.
    """

    def __init__(self, dim: int, *, with_vectors: bool = True, folder: Path | None = None) -> None:
        self.width = padded(dim)
        self.with_vectors = with_vectors
        self.capacity = 0
        self.limits = np.zeros(4)
        self.no_rotation: I16 = np.zeros((0, self.width), np.int16)
        self.rotation = self.no_rotation
        self._vec = Column(np.float32, (self.width,), folder=folder)
        self._code = Column(np.int8, (self.width,))
        self._fit = Column(np.float32, (2, 4))
        self._head = Column(np.int8, (HEAD_BYTES,))
        self._head_fit = Column(np.float32, (HEAD_FITS, BLOCK))
        self._columns = self._gathered()
        self._uncoded = 0  # rows up to here have no codes yet
        self.grow(FIRST_ROWS)

    @property
    def columns(self) -> Codes:
        """The arrays at full capacity; replaced when the table grows."""
        if self._uncoded:
            self._encode_stored(self._uncoded)
        return self._columns

    @property
    def vectors(self) -> F32:
        """(capacity, width) float32 or (0, width); the codes may be behind."""
        return self._columns.vec

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, of those that are held in memory."""
        floats = 4 * self.width if self.with_vectors and self._vec.folder is None else 0
        heads = HEAD_BYTES // BLOCK + 4 * HEAD_FITS if len(self.rotation) else 0
        return floats + self.width + 8 + heads

    def grow(self, capacity: int) -> None:
        """Make room for so many rows."""
        capacity = -(-capacity // _TOGETHER) * _TOGETHER
        if capacity <= self.capacity:
            return
        self._columns = Codes(*[_NO_ARRAY] * 6)  # views must go before a mapping can move
        if self.with_vectors:
            self._vec.grow(capacity)
        self._code.grow(capacity)
        self._fit.grow(capacity // 4)
        if len(self.rotation):
            self._head.grow(_blocks(capacity))
            self._head_fit.grow(_blocks(capacity))
        self.capacity = capacity
        self._columns = self._gathered()

    def encode(self, start: int, vectors: F32) -> None:
        """Write consecutive rows of padded vectors, from ``start`` on."""
        stop = start + len(vectors)
        kernels.quantize.encode_rows_(*self.columns, start, stop, vectors, self.rotation)

    def put(self, row: int, vector: F32) -> None:
        """Write one row's vector; its codes follow when somebody asks for `columns`."""
        self._columns.vec[row, : len(vector)] = vector
        self._uncoded = max(self._uncoded, row + 1)

    def set_rotation(self, rotation: I16, n: int) -> None:
        """Make the heads of the first ``n`` rows with a new rotation.

        Parameters
        ----------
        rotation : int16[256, width]
            From `whole_rotation`; how far its rows are from orthonormal is measured here.
        n : int
            Rows in use.
        """
        exact = rotation[rotation.any(axis=1)].astype(np.float64) / UNIT
        off = np.abs(exact @ exact.T - np.eye(len(exact))).sum(axis=1).max()  # >= its 2-norm
        # a coordinate of a vector of norm 1 is rounded by half of 1 / 32767, before that and
        # after it in float32; and the inverse of the Gram matrix is off by a little more
        error = (0.51 * self.width**0.5 / UNIT + 1e-6) * (1 + off)
        self.rotation = rotation
        self.limits[1:] = 0.0, error, 1.01 * off * (1 + off) / (1 - off)
        self._columns = Codes(*[_NO_ARRAY] * 6)
        self._head.grow(_blocks(self.capacity))
        self._head_fit.grow(_blocks(self.capacity))
        self._columns = self._gathered()
        self._encode_stored(n)

    def _encode_stored(self, n: int) -> None:
        self._uncoded = 0
        nothing = np.zeros((0, self.width), np.float32)
        kernels.quantize.encode_rows_(*self._columns, 0, n, nothing, self.rotation)

    def arrays(self, n: int) -> dict[str, npt.NDArray[Any]]:
        """The first ``n`` rows and what belongs to all, with some room to grow."""
        assert self.columns is self._columns  # all rows have their codes
        rows = min(self.capacity, -(-(n + n // 8 + FIRST_ROWS) // _TOGETHER) * _TOGETHER)
        found = {
            "code": self._code.array[:rows],
            "fit": self._fit.array[: rows // 4],
            "limits": self.limits,
            "rotation": self.rotation,
        }
        if self.with_vectors:
            found["vec"] = self._vec.array[:rows]
        if len(self.rotation):
            found["head"] = self._head.array[: _blocks(rows)]
            found["head_fit"] = self._head_fit.array[: _blocks(rows)]
        return found

    def adopt(self, arrays: Mapping[str, npt.NDArray[Any]], n: int) -> None:
        """Take over what `arrays` gave for ``n`` rows; growing copies it."""
        self._columns = Codes(*[_NO_ARRAY] * 6)
        self.limits = arrays["limits"]
        self.rotation = arrays["rotation"]
        self.capacity = len(arrays["code"])
        self._code.adopt(arrays["code"], n)
        self._fit.adopt(arrays["fit"], n // 4)
        if self.with_vectors:
            self._vec.adopt(arrays["vec"], n)
        if len(self.rotation):
            self._head.adopt(arrays["head"], _blocks(n))
            self._head_fit.adopt(arrays["head_fit"], _blocks(n))
        self._columns = self._gathered()

    def close(self) -> None:
        """Let go of the memory."""
        self._columns = Codes(*[_NO_ARRAY] * 6)
        for column in (self._vec, self._code, self._fit, self._head, self._head_fit):
            column.close()
        self.capacity = self._uncoded = 0

    def _gathered(self) -> Codes:
        return Codes(
            self._vec.array,
            self._code.array,
            self._fit.array,
            self._head.array,
            self._head_fit.array,
            self.limits,
        )
