"""Gate and merge: which atom a chunk joins, and what an atom knows about its members.

Every decision equals that of the float64 definition (see `rsm_fast.kernels.gate`); the
statistics of an atom are always those of its members, whatever joined and left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

import rsm_fast.kernels as kernels
import rsm_fast.small as small
from rsm_fast.arena import Arena, CodeTable, rows_array
from rsm_fast.columns import Column
from rsm_fast.errors import CalibrationError, InvalidInputError
from rsm_fast.kernels.layout import (
    CENTROID,
    COUNT,
    FIRST,
    LAST,
    MATE,
    MAX_MEMBER,
    NEAREST_MEAN,
    SLOT,
    STALE,
    Atoms,
)

__all__ = ["Calibration", "Clusterer", "TauCalibrator"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

Gate = Literal["max-member", "nearest-mean", "centroid"]

_GATES = {"max-member": MAX_MEMBER, "nearest-mean": NEAREST_MEAN, "centroid": CENTROID}
_RESIDUAL = 2e-6  # gives first vectors to a chord of about 1e-5 at the gaps of real atoms
_PASSES = 200
_BLOCK = 2048  # rows gated at a time, between which the means may get their heads
_ATOM = 2  # place of the atoms' numbers among `Arena.arrays_beside`


@dataclass(frozen=True, slots=True)
class Calibration:
    """What calibration found.

    Attributes
    ----------
    tau : float
        Cosine threshold in the space that ``mean`` defines.
    mean : float32[dim] or None
        What to subtract from vectors before they are normalised; None: nothing.
    percentile : float
    size : int
        Vectors that were used.
    """

    tau: float
    mean: F32 | None
    percentile: float
    size: int


class TauCalibrator:
    """Choose tau as a percentile of the pairwise cosines of a few vectors.

    Parameters
    ----------
    percentile : float
        0 to 100. The published method takes 70 on raw cosines.
    centre : bool
        Subtract the mean of the vectors and normalise again, before.
    size : int
        At most so many vectors are used, the first ones.
    """

    def __init__(self, percentile: float = 95.0, centre: bool = True, size: int = 50) -> None:
        if not 0.0 <= percentile <= 100.0:
            raise InvalidInputError(f"percentile: expected 0 to 100, got {percentile!r}")
        if size < 2:
            raise InvalidInputError(f"size: expected at least 2, got {size!r}")
        self.percentile = float(percentile)
        self.centre = centre
        self.size = size

    def calibrate(self, vectors: F32) -> Calibration:
        """Find tau for vectors like these.

        Parameters
        ----------
        vectors : float32[n, dim]
            Raw unit vectors.

        Returns
        -------
        Calibration

        Raises
        ------
        CalibrationError
            If there are fewer than two different vectors.
        """
        used = np.ascontiguousarray(vectors[: self.size], np.float32)
        if used.ndim != 2 or not np.isfinite(used).all():
            raise InvalidInputError(
                f"vectors: expected finite values of shape (n, dim), got shape {used.shape}"
            )
        if len(np.unique(used, axis=0)) < 2:
            raise CalibrationError(
                f"calibration needs at least 2 different texts, got {len(used)} "
                f"({len(np.unique(used, axis=0))} different); give more texts or a fixed tau"
            )
        mean = None
        if self.centre:
            mean = used.mean(axis=0, dtype=np.float64).astype(np.float32)
            centred = np.zeros_like(used)
            kernels.quantize.centre_rows_(used, mean, centred)
            used = centred[np.any(centred != 0.0, axis=1)]
        exact = used.astype(np.float64)
        cosines = (exact @ exact.T)[np.triu_indices(len(used), 1)]
        tau = float(np.clip(np.percentile(cosines, self.percentile), -1.0, 1.0))
        return Calibration(tau, mean, self.percentile, min(len(vectors), self.size))


class Clusterer:
    """The atoms of one namespace. Not thread-safe: `Memory` holds the lock.

    Parameters
    ----------
    arena : Arena
        The chunks. Their ``atom`` column is written here, first of all with -1.
    gate : {"max-member", "nearest-mean", "centroid"}
    rank : int
        Vectors in an atom's basis; 0: none.
    tau : float or None
        Cosine threshold; must be set before anything is assigned.

    Attributes
    ----------
    next_atom : int
        Number of the next new atom; numbers are never used twice.
    slots : int
        Atoms that have a place in the tables, emptied ones included.
    stamps : int64[capacity]
        Change counter of each slot, for those who mirror the atoms.
    changes : int
        The counter's present value.
    epoch : int
        Goes up when slots are numbered anew.
    work : int64[4]
        Since the start: rows scanned, survivors of the head, candidates, rescored rows.
    """

    def __init__(
        self, arena: Arena, *, gate: Gate, rank: int = 1, tau: float | None = None
    ) -> None:
        if gate not in get_args(Gate):
            raise InvalidInputError(f"gate: expected one of {get_args(Gate)}, got {gate!r}")
        if rank < 0:
            raise InvalidInputError(f"rank: expected 0 or more, got {rank!r}")
        self.arena = arena
        self.gate = gate
        self.rank = rank
        self.tau = tau
        self.next_atom = 0
        self.work = np.zeros(4, np.int64)
        self._one = np.empty(1, np.int64)
        self._slot_found = np.empty(1, np.int64)
        self._score = np.empty(1)
        self.changes = 0
        self.epoch = 0
        self._reset()

    def _reset(self) -> None:
        arena = self.arena
        arena.atom[:] = -1
        arena.gated[: arena.n] = 0
        arena.links[: arena.n] = -1
        self.slots = 0
        self._rough = False  # whether only the slots of members and the means' vectors are known
        self._left: set[int] = set()  # slots whose statistics still count rows that left
        self.epoch += 1
        self._slot_of: dict[int, int] = {}
        width = arena.table.width
        self.means = CodeTable(arena.dim)
        self._total = Column(np.float64, (width,))
        self._links = Column(np.int32, (4,))
        self._alive = Column(np.uint8)
        self._basis = Column(np.float32, (self.rank, width))
        self._strength = Column(np.float64, (self.rank,))
        self._numbers = Column(np.int32)
        self._stamps = Column(np.int64)
        self._grow(self.means.capacity)

    def _grow(self, capacity: int) -> None:
        self.atoms: Atoms | None = None  # views must go before a mapping can move
        self.means.grow(capacity)
        for column in (
            self._total, self._links, self._alive, self._basis, self._strength,
            self._numbers, self._stamps,
        ):  # fmt: skip
            column.grow(self.means.capacity)
        self._gather()

    def _gather(self) -> None:
        self.atoms = Atoms(
            *self.means.columns,
            self._total.array,
            self._links.array,
            self._alive.array,
            self._basis.array,
            self._strength.array,
        )
        self.stamps = self._stamps.array

    # -- reading ------------------------------------------------------------------------------

    @property
    def n_atoms(self) -> int:
        """Atoms that have members."""
        return len(self._slot_of)

    @property
    def nbytes(self) -> int:
        """Resident bytes of the atoms' tables."""
        width = self.arena.table.width
        entry = 8 * width + 4 * self.rank * width + 8 * self.rank + 16 + 1 + 4 + 8
        return self.slots * (self.means.row_bytes + entry)

    @property
    def alive(self) -> npt.NDArray[np.uint8]:
        """(slots,) uint8, 0 for slots whose last member left."""
        return self._alive.array[: self.slots]

    @property
    def numbers(self) -> I32:
        """(slots,) int32, the atom number of each slot, ascending."""
        return self._numbers.array[: self.slots]

    def counts(self) -> tuple[I32, I32]:
        """Numbers of the atoms, ascending, and how many members each has."""
        slots = np.flatnonzero(self.alive)
        return self.numbers[slots], self._links.array[slots, COUNT]

    def largest_share(self) -> float:
        """Share of the gated chunks that the largest atom holds; 0 without atoms."""
        counts = self.counts()[1]
        return float(counts.max() / counts.sum()) if len(counts) else 0.0

    def slot(self, atom: int) -> int:
        """The slot of an atom.

        Raises
        ------
        InvalidInputError
            If there is no such atom.
        """
        found = self._slot_of.get(atom)
        if found is None:
            raise InvalidInputError(f"atom: expected one that has members, got {atom}")
        return found

    def members(self, atom: int) -> I32:
        """Rows of an atom's members, in order of arrival."""
        self.settle()
        chain = self._links.array[self.slot(atom)]
        rows = np.empty(int(chain[COUNT]), np.int32)
        kernels.atoms.chain_rows_(self.arena.links, int(chain[FIRST]), rows)
        return rows

    def mean(self, atom: int) -> F32:
        """(dim,) float32, the normalised sum of an atom's members."""
        self.settle()
        return self.means.columns.vec[self.slot(atom), : self.arena.dim].copy()

    def basis(self, atom: int) -> F32:
        """(r, dim) float32 orthonormal rows, strongest first; zeros beyond the atom's rank.

        The first is the first singular vector of the member matrix, turned towards the mean.
        """
        self.settle()
        slot = self.slot(atom)
        self._refresh(slot)
        return self._basis.array[slot, :, : self.arena.dim].copy()

    def time_range(self, atom: int) -> tuple[int, int]:
        """Earliest and latest time of an atom's members, in microseconds."""
        micros = self.arena.micros[self.members(atom)]
        return int(micros.min()), int(micros.max())

    def refresh_bases(self) -> None:
        """Bring every basis that follows its members only roughly to the residual bound."""
        self.settle()
        for slot in np.flatnonzero(self._links.array[: self.slots, STALE]).tolist():
            self._refresh(slot)

    def settle(self) -> None:
        """Bring the means up to date with the rows that left and with the arena's rotation.

        Whoever reads the tables calls this first. A row that leaves only notes its atom, so
        that a thousand rows that leave one atom cost one rebuilding of it.
        """
        arena = self.arena
        rotation = arena.table.rotation
        turned = len(rotation) > 0 and self.slots >= arena.cascade_means  # few need no heads
        if turned and self.means.rotation is not rotation:
            self.atoms = None
            self.means.set_rotation(rotation, self.slots)
            self._gather()
        if self._rough:
            self._rebuild()
        if not self._left:
            return
        assert self.atoms is not None
        slots = arena.links[: arena.n, SLOT]
        for slot in sorted(self._left):
            rows = np.flatnonzero(slots == slot)
            ends = (rows[0], rows[-1]) if len(rows) else (-1, -1)
            self._links.array[slot, [FIRST, LAST]] = ends
            arena.links[rows, MATE] = np.append(rows[1:], -1)[: len(rows)]
            kernels.atoms.rebuild_atom_(
                arena.table.columns, arena.links, self.atoms, slot, rotation
            )
        self._left.clear()

    def _refresh(self, slot: int) -> None:
        chain = self._links.array[slot]
        if not chain[STALE] or self.rank == 0:
            return
        members = np.empty((int(chain[COUNT]), self.arena.table.width), np.float32)
        kernels.atoms.refresh_atom_(
            *self.arena.table.columns, self.arena.links, int(chain[FIRST]), members,
            self.means.columns.vec[slot], self._basis.array[slot], self._strength.array[slot],
            _RESIDUAL, _PASSES,
        )  # fmt: skip
        chain[STALE] = 0
        self._touch(slot)

    # -- changes ------------------------------------------------------------------------------

    def add(
        self, vector: F32, *, pk: int, tokens: int, micros: int, session: int
    ) -> tuple[int, int]:
        """`Arena.append` and `assign` in one compiled call, with the same outcome.

        Parameters
        ----------
        vector, pk, tokens, micros, session
            See `Arena.append`.

        Returns
        -------
        row, atom : int
        """
        arena = self.arena
        if self.tau is None or arena.few:
            row = arena.append(vector, pk=pk, tokens=tokens, micros=micros, session=session)
            return row, self.assign(row)
        row, given, centre, values = arena.begin(vector, pk, tokens, micros, session)
        before = self.slots
        if before == self.means.capacity:
            self._grow(2 * before)
        self.settle()
        assert self.atoms is not None
        table = arena.table
        slot = kernels.write.write_row_(
            *table.columns, table.rotation, *arena.arrays_beside, row, given, centre, values,
            *self.atoms, before, _GATES[self.gate], self.tau, self.work,
        )  # fmt: skip
        if slot < 0:
            arena.refuse_infinite(given)
        if slot == before:
            self.slots += 1
            self._name_slots(before)
        atom = int(self._numbers.array[slot])
        arena.arrays_beside[_ATOM][row] = atom
        arena.finish(row, session)
        self._touch(slot)
        return row, atom

    def assign(self, row: int) -> int:
        """Gate a row and merge it into its atom.

        Parameters
        ----------
        row : int
            A living row in no atom.

        Returns
        -------
        int
            The atom's number.
        """
        arena = self.arena
        if self.tau is None or not 0 <= row < arena.n or arena.gated[row] or not arena.alive[row]:
            self._check(rows_array([row]))  # says what is wrong
        if self.slots == self.means.capacity:
            self._grow(2 * self.slots)
        self._one[0] = row
        before = self.slots
        self._gate(self._one, self._slot_found, self._score)
        slot = int(self._slot_found[0])
        if self.slots > before:
            self._name_slots(before)
        atom = int(self._numbers.array[slot])
        arena.atom[row] = atom
        self._touch(slot)
        return atom

    def assign_many(self, rows: npt.ArrayLike) -> I32:
        """`assign` for many rows, in the given order, with the same outcome.

        Parameters
        ----------
        rows : int[m]
            Living rows in no atom.

        Returns
        -------
        int32[m]
            Atom numbers.

        Raises
        ------
        InvalidInputError
            If tau is not known, or a row is dead, in an atom, or given twice.
        """
        wanted = rows_array(rows)
        self._check(wanted)
        out = np.empty(len(wanted), np.int64)
        scores = np.empty(len(wanted))
        if self.slots + len(wanted) > self.means.capacity:
            self._grow(max(2 * self.means.capacity, self.slots + len(wanted)))
        before = self.slots
        for start in range(0, len(wanted), _BLOCK):
            part = slice(start, start + _BLOCK)
            self._gate(wanted[part], out[part], scores[part])
        self._name_slots(before)
        arena = self.arena
        numbers = self._numbers.array[out]
        arena.atom[wanted] = numbers
        self.stamps[out] = np.arange(self.changes + 1, self.changes + 1 + len(out))
        self.changes += len(out)
        return numbers

    def _gate(self, rows: I64, slots: I64, scores: F64) -> None:
        """Let the kernel decide and merge; there is room for a new atom each."""
        arena = self.arena
        if arena.few and not self._left:
            slots[:] = [self._gate_small(row) for row in rows.tolist()]
            return
        self.settle()
        assert self.atoms is not None
        self.slots = kernels.gate.assign_rows_(
            *arena.table.columns, arena.links, arena.gated, arena.n,
            *self.atoms, self.slots, arena.table.rotation,
            rows, _GATES[self.gate], self.tau, slots, scores, self.work,
        )  # fmt: skip

    def _gate_small(self, row: int) -> int:
        """Decide without a kernel; `settle` makes the rest of the statistics."""
        arena = self.arena
        vectors = arena.table.vectors
        members = np.flatnonzero(arena.gated[: arena.n])
        slots = arena.links[members, SLOT]
        slot = small.choose(
            _GATES[self.gate], self.tau or 0.0, vectors[row], vectors[members], slots,
            self.means.vectors[: self.slots], self.alive != 0,
        )  # fmt: skip
        if slot < 0:
            slot = self.slots
            self.slots += 1
            self._links.array[slot] = 0
        arena.links[row, SLOT] = slot
        arena.gated[row] = 1
        self._links.array[slot, COUNT] += 1
        self._alive.array[slot] = 1
        own = np.flatnonzero(arena.links[: arena.n, SLOT] == slot)
        total = vectors[own].astype(np.float64).cumsum(axis=0)[-1]
        self.means.put(slot, small.mean_of(total))
        self._rough = True
        return slot

    def attach(self, row: int, atom: int) -> None:
        """Put a row into a given atom, as another writer decided.

        Parameters
        ----------
        row : int
            A living row in no atom.
        atom : int
            A known atom or a new number.
        """
        self._check(rows_array([row]), tau_needed=False)
        arena = self.arena
        self.settle()
        slot = self._slot_of.get(atom)
        if slot is None:
            if self.slots and atom <= self._numbers.array[self.slots - 1]:
                self._attach_between(row, atom)
                return
            slot = self.slots
            if slot == self.means.capacity:
                self._grow(2 * slot)
            self._links.array[slot] = 0
            self._numbers.array[slot] = atom
            self._slot_of[atom] = slot
            self.slots += 1
        assert self.atoms is not None
        kernels.atoms.attach_(
            *arena.table.columns, arena.links, row, *self.atoms, slot, arena.table.rotation
        )
        arena.gated[row] = 1
        arena.atom[row] = atom
        self.next_atom = max(self.next_atom, atom + 1)
        self._touch(slot)

    def _attach_between(self, row: int, atom: int) -> None:
        """Slots are in the order of numbers: an older number needs them numbered anew."""
        rows = np.flatnonzero(self.arena.gated[: self.arena.n])
        atoms = self.arena.atom[rows]
        self.restore(np.r_[rows, row], np.r_[atoms, np.int32(atom)], self.next_atom)

    def remove(self, row: int) -> None:
        """Take a row out of its atom; an atom without members vanishes.

        Parameters
        ----------
        row : int

        Raises
        ------
        InvalidInputError
            If the row is in no atom.
        """
        arena = self.arena
        if not 0 <= row < arena.n or arena.atom[row] < 0:
            raise InvalidInputError(f"row: expected one that is in an atom, got {row}")
        slot = int(arena.links[row, SLOT])
        arena.links[row] = -1
        arena.gated[row] = 0
        arena.atom[row] = -1
        self._links.array[slot, COUNT] -= 1
        if not self._links.array[slot, COUNT]:
            self._alive.array[slot] = 0
            del self._slot_of[int(self._numbers.array[slot])]
        self._left.add(slot)
        self._touch(slot)

    def restore(self, rows: npt.ArrayLike, atoms: npt.ArrayLike, next_atom: int) -> None:
        """Rebuild all atoms from stored assignments.

        Parameters
        ----------
        rows : int[m]
            Living rows; all others are in no atom afterwards.
        atoms : int[m]
            Their atom numbers.
        next_atom : int
            Number of the next new atom.

        Raises
        ------
        InvalidInputError
            If a row is dead, or an atom number is negative or not below ``next_atom``.
        """
        wanted, numbers = rows_array(rows), np.ascontiguousarray(atoms, np.int32)
        arena = self.arena
        if len(wanted) != len(numbers):
            raise InvalidInputError(f"atoms: expected {len(wanted)} numbers, got {len(numbers)}")
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < next_atom:
            raise InvalidInputError(
                f"atoms: expected numbers from 0 to below {next_atom}, got "
                f"{numbers.min()} to {numbers.max()}"
            )
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= arena.n):
            raise InvalidInputError(f"rows: expected rows below {arena.n}")
        if not arena.alive[wanted].all():
            raise InvalidInputError("rows: expected living rows, got a deleted one")
        self._reset()
        self.next_atom = next_atom
        unique, slots = np.unique(numbers, return_inverse=True)
        self._grow(max(self.means.capacity, len(unique)))
        self.slots = len(unique)
        self._numbers.array[: self.slots] = unique
        self._slot_of = {int(number): slot for slot, number in enumerate(unique)}
        arena.atom[wanted] = numbers
        arena.gated[wanted] = 1
        arena.links[wanted, SLOT] = slots
        self.settle()
        self._rebuild()
        self.changes += 1
        self._stamps.array[: self.slots] = self.changes

    def _rebuild(self) -> None:
        """Make all atoms anew from the slots of their members."""
        self._rough = False
        arena = self.arena
        assert self.atoms is not None
        kernels.atoms.rebuild_atoms_(
            *arena.table.columns, arena.links, arena.n, *self.atoms, self.slots,
            arena.table.rotation,
        )  # fmt: skip

    def _name_slots(self, before: int) -> None:
        for slot in range(before, self.slots):
            self._numbers.array[slot] = self.next_atom
            self._slot_of[self.next_atom] = slot
            self.next_atom += 1

    def _touch(self, slot: int) -> None:
        self.changes += 1
        self._stamps.array[slot] = self.changes

    def _check(self, rows: I64, *, tau_needed: bool = True) -> None:
        arena = self.arena
        if tau_needed and self.tau is None:
            raise InvalidInputError("tau is not known yet: calibrate first, or give tau=")
        if not len(rows):
            return
        if rows.min() < 0 or rows.max() >= arena.n:
            raise InvalidInputError(f"rows: expected rows below {arena.n}, got {rows.max()}")
        if len(rows) > 1 and len(np.unique(rows)) < len(rows):
            raise InvalidInputError("rows: expected each row once")
        if not arena.alive[rows].all() or arena.gated[rows].any():
            raise InvalidInputError(
                "rows: expected living rows that are in no atom; "
                "take a row out with Clusterer.remove before it is gated anew"
            )
