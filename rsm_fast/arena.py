"""The columns of one namespace's chunks: growing arrays, vectors with their int8 codes.

Rows are in arrival order, never moved and never reused; a deleted row stays with
``alive = 0``. All of it is derived from the store and may be dropped at any time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

import rsm_fast.kernels as kernels
import rsm_fast.small as small
from rsm_fast.codetable import FIRST_ROWS, CodeTable, padded, whole_rotation
from rsm_fast.columns import Column
from rsm_fast.errors import InvalidInputError
from rsm_fast.kernels.layout import FEW_ROWS, HEAD, SLOT, TURNED

__all__ = ["Arena", "CodeTable", "padded"]

F32 = npt.NDArray[np.float32]
I16 = npt.NDArray[np.int16]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_RELEARN = 8  # the rotation is learned at `Arena.cascade_rows` and once more at so many times it
_SAMPLE = 2048
_PASSES = 2  # of orthogonal iteration; more do not make a scan faster
_LEAST_ENERGY = 0.6  # share of the squared norms in the head, below which a head prunes nothing
_F32 = np.dtype(np.float32)
_KEPT_COLUMNS = ("tokens", "micros", "prev", "next", "alive", "pk", "session")


class Arena:
    """Growing columns of one namespace's chunks. Not thread-safe: `Memory` holds the lock.

    Parameters
    ----------
    dim : int
        Dimension of the vectors.
    dtype : {"float32", "int8"}
        With "int8" no float vectors are kept: the dequantised codes are the truth.
    on_disk : pathlib.Path or None
        Folder of the disk that the float vectors are kept on; None: in memory.
    reserve : int
        Rows to make room for at once.

    Attributes
    ----------
    n, living : int
        Rows used, dead ones included; rows that are alive.
    centre : float32[dim] or None
        What is subtracted from raw vectors before they are normalised.
    table : CodeTable
        Vectors and codes in the gate's space.
    arrays_beside : tuple of ndarray
        The other columns at full capacity, as kernels take them.
    """

    cascade_rows = 768
    """Rows from which on scans read rotated heads first; below, a rotation costs more."""

    cascade_means = 2048
    """The same for the means of atoms, whose heads are made anew with every merge."""

    def __init__(
        self,
        dim: int,
        *,
        dtype: Literal["float32", "int8"] = "float32",
        on_disk: Path | None = None,
        reserve: int = 0,
    ) -> None:
        if dim < 1:
            raise InvalidInputError(f"dim: expected a positive whole number, got {dim!r}")
        self.dim = dim
        self.dtype = dtype
        self.n = 0
        self.living = 0
        self.centre: F32 | None = None
        with_vectors = dtype == "float32"
        self.table = CodeTable(dim, with_vectors=with_vectors, folder=on_disk)
        self._columns: dict[str, Column] = {
            "tokens": Column(np.int32),
            "micros": Column(np.int64),
            "atom": Column(np.int32),
            "prev": Column(np.int32),
            "next": Column(np.int32),
            "alive": Column(np.uint8),
            "pk": Column(np.int64),
            "session": Column(np.int32),
            "links": Column(np.int32, (2,)),
            "gated": Column(np.uint8),
        }
        self._values: I64 = np.zeros(5, np.int64)
        self._zeros: F32 = np.zeros(dim, np.float32)
        self._no_centre: F32 = np.zeros(0, np.float32)
        self._newest: dict[int, int] = {}  # session: its last living row
        self._learn_at = self.cascade_rows
        self.grow(max(reserve, FIRST_ROWS))

    # -- columns, of length n ---------------------------------------------------------------

    @property
    def vec(self) -> F32:
        """(n, dim) float32 vectors in the gate's space; with dtype "int8", decoded anew."""
        if self.table.with_vectors:
            return self.table.vectors[: self.n, : self.dim]
        out = np.empty((self.n, self.table.width), np.float32)
        for row in range(self.n):
            kernels.atoms.load_row_(self.table.columns, row, out[row])
        return out[:, : self.dim]

    @property
    def code(self) -> npt.NDArray[np.int8]:
        """(n, dim) int8 codes of the vectors."""
        return self.table.columns.code[: self.n, : self.dim]

    @property
    def tokens(self) -> I32:
        """(n,) int32 tokens of each chunk's own text."""
        return self._columns["tokens"].array[: self.n]

    @property
    def micros(self) -> I64:
        """(n,) int64 microseconds since 1970, UTC."""
        return self._columns["micros"].array[: self.n]

    @property
    def atom(self) -> I32:
        """(n,) int32 atom numbers, -1 for none."""
        return self._columns["atom"].array[: self.n]

    @property
    def prev(self) -> I32:
        """(n,) int32 row of the previous living chunk of the session, -1 for none."""
        return self._columns["prev"].array[: self.n]

    @property
    def next(self) -> I32:
        """(n,) int32 row of the next living chunk of the session, -1 for none."""
        return self._columns["next"].array[: self.n]

    @property
    def alive(self) -> U8:
        """(n,) uint8, 0 for deleted rows."""
        return self._columns["alive"].array[: self.n]

    @property
    def mask(self) -> U8:
        """(capacity,) uint8, `alive` as kernels take it, which look at n entries only."""
        return self._columns["alive"].array

    @property
    def pk(self) -> I64:
        """(n,) int64 keys in the store, ascending."""
        return self._columns["pk"].array[: self.n]

    @property
    def session(self) -> I32:
        """(n,) int32 session numbers."""
        return self._columns["session"].array[: self.n]

    @property
    def links(self) -> I32:
        """(capacity, 2) int32 slot of the atom and next member of it, for the clusterer."""
        return self._columns["links"].array

    @property
    def gated(self) -> U8:
        """(capacity,) uint8, 1 for rows that are in an atom, for the clusterer."""
        return self._columns["gated"].array

    @property
    def nbytes(self) -> int:
        """Resident bytes of all rows in use."""
        others = sum(column._entry for column in self._columns.values())
        return self.n * (self.table.row_bytes + others)

    # -- changes ------------------------------------------------------------------------------

    def grow(self, capacity: int) -> None:
        """Make room for so many rows."""
        self.arrays_beside: tuple[
            npt.NDArray[Any], ...
        ] = ()  # views must go before a mapping moves
        self.table.grow(capacity)
        for column in self._columns.values():
            column.grow(self.table.capacity)
        self.arrays_beside = tuple(column.array for column in self._columns.values())

    def append(self, vector: F32 | None, *, pk: int, tokens: int, micros: int, session: int) -> int:
        """Add one chunk.

        Parameters
        ----------
        vector : float32[dim] or None
            Raw unit vector; None for a chunk that has none yet (zeros are kept).
        pk, tokens, micros, session : int
            Key in the store, token count, time, session number.

        Returns
        -------
        int
            Its row.

        Raises
        ------
        InvalidInputError
            If the vector has another shape or values that are not finite.
        """
        row, given, centre, values = self.begin(vector, pk, tokens, micros, session)
        if row < FEW_ROWS and self.few:
            self._append_small(row, given, centre, values)
        elif not kernels.append.append_row_(
            *self.table.columns, self.table.rotation, *self.arrays_beside, row, given, centre,
            values,
        ):  # fmt: skip
            self.refuse_infinite(given)
        self.finish(row, session)
        return row

    def begin(
        self, vector: F32 | None, pk: int, tokens: int, micros: int, session: int
    ) -> tuple[int, F32, F32, I64]:
        """Room for a row, and what `rsm_fast.kernels.append.append_row_` takes for it.

        Returns
        -------
        row, raw, centre, values
            See there.
        """
        row = self.n
        if row == self.table.capacity:
            self.grow(2 * row)
        given = self._shaped(self._zeros if vector is None else np.asarray(vector), rows=False)
        centre = self._no_centre if self.centre is None or vector is None else self.centre
        values = self._values  # one by one: an array made of a tuple takes four times as long
        values[0] = tokens
        values[1] = micros
        values[2] = pk
        values[3] = session
        values[4] = self._newest.get(session, -1)
        return row, given, centre, values

    def finish(self, row: int, session: int) -> None:
        """Count a row that a kernel has written."""
        self._newest[session] = row
        self.n += 1
        self.living += 1
        if self.n >= self._learn_at:
            self._learn_rotation()

    @property
    def few(self) -> bool:
        """Whether the rows are so few that NumPy does until a kernel is loaded."""
        return self.n <= FEW_ROWS and self.table.with_vectors and not kernels.loaded()

    def _append_small(self, row: int, raw: F32, centre: F32, values: I64) -> None:
        """As `rsm_fast.kernels.append.append_row_`."""
        if not np.isfinite(raw).all():
            self.refuse_infinite(raw)
        self.table.put(row, small.centred(raw, centre) if centre.size else raw)
        tokens, micros, pk, session, before = values.tolist()
        entries = (tokens, micros, -1, before, -1, 1, pk, session, -1, 0)
        for column, value in zip(self.arrays_beside, entries, strict=True):
            column[row] = value
        if before >= 0:
            self._columns["next"].array[before] = row

    def append_many(
        self,
        vectors: F32,
        *,
        pk: npt.ArrayLike,
        tokens: npt.ArrayLike,
        micros: npt.ArrayLike,
        session: npt.ArrayLike,
    ) -> range:
        """Add many chunks, with the same outcome as `append` one by one.

        Parameters
        ----------
        vectors : float32[m, dim]
            Raw unit vectors; zeros for chunks that have none yet.
        pk, tokens, micros, session : int[m]

        Returns
        -------
        range
            Their rows.
        """
        given = self._checked(np.asarray(vectors), rows=True)
        start, stop = self.n, self.n + len(given)
        numbers = np.asarray(session, np.int32)
        if stop > self.table.capacity:
            self.grow(max(stop, min(2 * start, 2 * stop)))
        for block in range(0, len(given), 4096):
            self.table.encode(start + block, self._centred(given[block : block + 4096]))
        columns = self._columns
        columns["tokens"].array[start:stop] = tokens
        columns["micros"].array[start:stop] = micros
        columns["atom"].array[start:stop] = -1
        columns["alive"].array[start:stop] = 1
        columns["pk"].array[start:stop] = pk
        columns["session"].array[start:stop] = numbers
        columns["links"].array[start:stop] = -1
        columns["gated"].array[start:stop] = 0
        self._link_many(start, numbers)
        self.n = stop
        self.living += len(given)
        if stop >= self._learn_at:
            self._learn_rotation()
        return range(start, stop)

    def _learn_rotation(self) -> None:
        """Point the heads along the principal directions of a sample of the rows.

        Where the spectrum is flat a head says too little, and scans read the full codes.
        """
        width = self.table.width
        if len(self.table.rotation) > 0 or width < 2 * HEAD:  # learned twice; or too narrow
            self._learn_at = sys.maxsize
        else:
            self._learn_at = _RELEARN * max(self.n, self.cascade_rows)
        if width < 2 * HEAD:
            return
        rows = np.linspace(0, self.n - 1, min(self.n, _SAMPLE)).astype(np.int64)
        if self.table.with_vectors:
            sample = self.table.vectors[rows]
        else:
            sample = np.empty((len(rows), width), np.float32)
            for k, row in enumerate(rows.tolist()):
                kernels.atoms.load_row_(self.table.columns, row, sample[k])
        span = np.random.default_rng(0).standard_normal((TURNED, width)).astype(np.float32)
        span[:, self.dim :] = 0.0  # padding stays zero
        energy = kernels.rotation.principal_span_(
            sample, np.empty((width, width), np.float32), np.empty_like(span), span, _PASSES
        )
        if energy >= _LEAST_ENERGY:
            self.table.set_rotation(whole_rotation(span), self.n)

    def _link_many(self, start: int, numbers: I32) -> None:
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        rows = (order + start).astype(np.int32)
        first = np.r_[True, ordered[1:] != ordered[:-1]] if len(rows) else np.zeros(0, bool)
        before = np.r_[np.int32(-1), rows[:-1]] if len(rows) else rows
        heads = np.flatnonzero(first)
        before[heads] = [self._newest.get(int(ordered[k]), -1) for k in heads]
        prev, following = self._columns["prev"].array, self._columns["next"].array
        prev[rows] = before
        following[rows] = -1
        known = before >= 0
        following[before[known]] = rows[known]
        tails = np.r_[heads[1:] - 1, len(rows) - 1] if len(rows) else heads
        for k in tails:
            self._newest[int(ordered[k])] = int(rows[k])

    def remove(self, row: int) -> None:
        """Mark a row dead and join its neighbours; it must have left its atom before.

        Parameters
        ----------
        row : int

        Raises
        ------
        InvalidInputError
            If the row is not alive or still in an atom.
        """
        self._check_free(row)
        columns = self._columns
        before, after = int(self.prev[row]), int(self.next[row])
        if before >= 0:
            columns["next"].array[before] = after
        if after >= 0:
            columns["prev"].array[after] = before
        session = int(self.session[row])
        if self._newest.get(session) == row:
            if before >= 0:
                self._newest[session] = before
            else:
                del self._newest[session]
        columns["prev"].array[row] = columns["next"].array[row] = -1
        columns["alive"].array[row] = 0
        self.living -= 1

    def replace(self, row: int, vector: F32 | None, *, tokens: int) -> None:
        """Give a row another vector in place; it must have left its atom before.

        Parameters
        ----------
        row : int
        vector : float32[dim] or None
            Raw unit vector; None for none yet.
        tokens : int

        Raises
        ------
        InvalidInputError
            If the row is not alive or still in an atom, or the vector cannot be used.
        """
        self._check_free(row)
        self.table.encode(row, self._prepared(vector))
        self._columns["tokens"].array[row] = tokens

    def set_centre(self, mean: F32 | None, rows: npt.ArrayLike, raw: F32) -> None:
        """Change the space: derive the given rows anew from their raw vectors.

        Parameters
        ----------
        mean : float32[dim] or None
            What to subtract; None for raw vectors.
        rows : int[m]
            All rows that have a vector.
        raw : float32[m, dim]
            Their raw unit vectors.
        """
        self.centre = None if mean is None else self._checked(np.asarray(mean), rows=False)
        given = self._checked(np.asarray(raw), rows=True)
        for row, vector in zip(np.asarray(rows).tolist(), given, strict=True):
            self.table.encode(row, self._centred(vector[None]))

    # -- snapshots ----------------------------------------------------------------------------

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All that the arena holds, but for the atoms: what `adopt` takes."""
        found = {f"table.{name}": array for name, array in self.table.arrays(self.n).items()}
        rows = min(self.table.capacity, len(found["table.code"]))
        for name in _KEPT_COLUMNS:
            found[name] = self._columns[name].array[:rows]
        found["counts"] = np.array([self.n, self.living, min(self._learn_at, 2**62)], np.int64)
        return found

    def adopt(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `arrays` gave; every row is in no atom afterwards."""
        self.arrays_beside = ()
        self.n, self.living, self._learn_at = arrays["counts"].tolist()
        table = {
            name.removeprefix("table."): array
            for name, array in arrays.items()
            if name.startswith("table.")
        }
        self.table.adopt(table, self.n)
        for name in _KEPT_COLUMNS:
            self._columns[name].adopt(arrays[name], self.n)
        for name in ("atom", "links", "gated"):
            self._columns[name].grow(self.table.capacity)
        self.atom[:] = -1
        self.links[:] = -1
        self.gated[:] = 0
        self.arrays_beside = tuple(column.array for column in self._columns.values())
        rows = np.flatnonzero(self.alive)[::-1]
        sessions, last = np.unique(self.session[rows], return_index=True)
        self._newest = dict(zip(sessions.tolist(), rows[last].tolist(), strict=True))

    # -- reading ------------------------------------------------------------------------------

    def prepare_query(self, vector: F32) -> F32:
        """A raw unit vector in the arena's space.

        Parameters
        ----------
        vector : float32[dim]

        Returns
        -------
        float32[dim]
        """
        return self._centred(self._checked(np.asarray(vector), rows=False)[None])[0, : self.dim]

    def padded_query(self, query: F32) -> F32:
        """A prepared query, float32[dim], as kernels take it: with zeros up to the row length."""
        x = np.zeros(self.table.width, np.float32)
        x[: self.dim] = query
        return x

    def dense_scores(self, query: F32) -> F32:
        """Cosine of every row with a prepared query.

        Parameters
        ----------
        query : float32[dim]
            From `prepare_query`.

        Returns
        -------
        float32[n]
            0 for dead rows; mask them by `alive`.
        """
        x = self.padded_query(query)
        out = np.empty(self.n + 3, np.float32)
        kernels.scan.dense_scores_(
            *self.table.columns, self.n, self._columns["alive"].array, x, out
        )
        return out[: self.n]

    def close(self) -> None:
        """Let go of the memory and of the file of vectors."""
        self.arrays_beside = ()
        self.table.close()
        for column in self._columns.values():
            column.close()
        self.n = self.living = 0

    # -- checks -------------------------------------------------------------------------------

    def _prepared(self, vector: F32 | None) -> F32:
        if vector is None:
            return np.zeros((1, self.table.width), np.float32)
        return self._centred(self._checked(np.asarray(vector), rows=False)[None])

    def _checked(self, values: npt.NDArray[Any], *, rows: bool) -> F32:
        """float32, C-contiguous, finite and of the right shape, or an error that says so."""
        given = self._shaped(values, rows=rows)
        if not np.isfinite(given).all():
            self.refuse_infinite(given)
        return given

    def _shaped(self, values: npt.NDArray[Any], *, rows: bool) -> F32:
        shape = values.shape[1:] if rows else values.shape
        if not rows and shape == self._zeros.shape and values.dtype is _F32:
            if values.flags.carray:  # as they mostly come
                return values
        if values.ndim != 1 + rows or shape != (self.dim,):
            wanted = f"(n, {self.dim})" if rows else f"({self.dim},)"
            raise InvalidInputError(
                f"vectors: expected an array of shape {wanted}, got {values.shape}; "
                "does the embedder have the namespace's dimension?"
            )
        if values.dtype.kind not in "fiu":
            raise InvalidInputError(
                f"vectors: expected numbers (float32), got dtype {values.dtype}"
            )
        if values.dtype == np.float32 and values.flags.c_contiguous and values.flags.writeable:
            return values
        return np.array(values, np.float32, order="C")

    def refuse_infinite(self, given: F32) -> NoReturn:
        """Say which row of raw vectors is not finite."""
        good = np.isfinite(given).reshape(-1, self.dim).all(axis=1)
        raise InvalidInputError(
            f"vectors: expected finite values, got NaN or infinity in row {int(good.argmin())}"
        )

    def _centred(self, raw: F32) -> F32:
        out = np.zeros((len(raw), self.table.width), np.float32)
        if self.centre is None:
            out[:, : self.dim] = raw
        else:
            kernels.quantize.centre_rows_(raw, self.centre, out)
        return out

    def _check_free(self, row: int) -> None:
        if not 0 <= row < self.n or not self.alive[row]:
            raise InvalidInputError(f"row: expected a living row below {self.n}, got {row}")
        if self.links[row, SLOT] >= 0:
            raise InvalidInputError(
                f"row {row}: is in atom {int(self.atom[row])}; take it out with Clusterer.remove"
            )


def rows_array(rows: Sequence[int] | npt.ArrayLike) -> I64:
    """Row numbers as kernels take them."""
    return np.ascontiguousarray(rows, np.int64)
