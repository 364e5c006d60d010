"""Vectors of the notes in RAM, derived from the store and following it."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from rsm_fast.arena import Arena
from rsm_fast.index import top_members
from rsm_fast.store import Reader
from rsm_fast.store.notes import NoteReader, NoteRecord

__all__ = ["NoteState", "space_of"]

F32 = npt.NDArray[np.float32]


def space_of(fingerprint: str) -> int:
    """What a note keeps of the embedder that made its vector."""
    return zlib.crc32(fingerprint.encode())


class NoteState:
    """The vectors of one namespace's notes. Not thread-safe: the memory's lock is held.

    Parameters
    ----------
    ns : int
        Number of the namespace.
    dim : int
    space : int
        `space_of` the embedder in use.

    Attributes
    ----------
    stale : set of int
        Turns whose note waits for its vector.
    """

    def __init__(self, ns: int, dim: int, space: int) -> None:
        self.ns = ns
        self.space = space
        self.generation = -1
        self.stale: set[int] = set()
        self._arena = Arena(dim)
        self._rows: dict[int, int] = {}

    @property
    def living(self) -> int:
        """How many notes there are."""
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Resident bytes."""
        return self._arena.nbytes

    def catch_up(self, reader: Reader) -> None:
        """Apply what was committed since this state's generation."""
        generation = reader.generation(self.ns)
        if generation == self.generation:
            return
        notes = NoteReader(reader)
        if self.generation < 0:
            self._load(list(notes.all_notes(self.ns)))
        else:
            for note in notes.changed_since(self.ns, self.generation):
                self._apply(note)
        if notes.count(self.ns) != len(self._rows):
            for turn in set(self._rows).difference(notes.keys(self.ns)):
                self._arena.remove(self._rows.pop(turn))
                self.stale.discard(turn)
        self.generation = generation

    def put_vectors(self, turns: Sequence[int], vectors: F32) -> None:
        """Give notes, by turn, vectors that were made of their descriptions."""
        for turn, vector in zip(turns, vectors, strict=True):
            if turn in self._rows:
                self._arena.replace(self._rows[turn], vector, tokens=0)
                self.stale.discard(turn)

    def nearest(
        self,
        vector: F32,
        k: int,
        *,
        only: Collection[int] | None = None,
        without: Collection[int] = (),
    ) -> list[tuple[int, float]]:
        """The k notes of largest cosine, exactly: (turn, cosine), best first.

        Parameters
        ----------
        vector : float32[dim]
        k : int
        only : collection of int or None
            Turns that may be found; None: all.
        without : collection of int
            Turns that may not.
        """
        eligible = self._arena.alive.copy()
        if only is not None:
            eligible[:] = 0
            eligible[[self._rows[turn] for turn in only if turn in self._rows]] = 1
        hidden = [self._rows[turn] for turn in (*without, *self.stale) if turn in self._rows]
        eligible[hidden] = 0
        rows, scores = top_members(self._arena, vector, k, eligible=eligible)
        return list(zip(self._arena.pk[rows].tolist(), scores.tolist(), strict=True))

    def cosines(self, vector: F32, turns: Sequence[int]) -> list[float]:
        """Cosine of a vector with each of these notes; those not here get -1."""
        rows = [self._rows.get(turn, -1) for turn in turns]
        query = self._arena.prepare_query(vector)
        return [float(self._arena.vec[row] @ query) if row >= 0 else -1.0 for row in rows]

    def __contains__(self, turn: int) -> bool:
        return turn in self._rows

    def _load(self, notes: Sequence[NoteRecord]) -> None:
        block = np.zeros((len(notes), self._arena.dim), np.float32)
        for row, note in enumerate(notes):
            self._rows[note.turn] = row
            if (vector := self._vector(note)) is not None:
                block[row] = vector
        none = np.zeros(len(notes), np.int64)
        keys = np.fromiter((note.turn for note in notes), np.int64, len(notes))
        self._arena.append_many(block, pk=keys, tokens=none, micros=none, session=none)

    def _apply(self, note: NoteRecord) -> None:
        vector = self._vector(note)
        row = self._rows.get(note.turn)
        if row is None:
            self._rows[note.turn] = self._arena.append(
                vector, pk=note.turn, tokens=0, micros=0, session=0
            )
        else:
            self._arena.replace(row, vector, tokens=0)

    def _vector(self, note: NoteRecord) -> F32 | None:
        """The stored vector if it belongs to the embedder in use; else the note is stale."""
        if note.vector is None or note.space != self.space:
            self.stale.add(note.turn)
            return None
        self.stale.discard(note.turn)
        vector: F32 = np.frombuffer(note.vector, "<f4").astype(np.float32)
        return vector
