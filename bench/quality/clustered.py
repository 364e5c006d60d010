"""Systems that read through clusters: RSM-full and its peers, on equal terms.

Where a paper leaves a peer undefined, this is our definition:

- **RSM-full**: `rsm_fast.clustering` with the stated gate; retrieval takes the K best atoms by
  centroid (or singular vector, best member, subspace), and of each its k best members.
- **DP-means**: the gate ``centroid`` at RSM's own tau: a chunk joins the nearest mean if its
  cosine is at least tau, else opens a cluster; means are exact (Kulis and Jordan, 2012, with
  a cosine, one pass).
- **Online K-Means**: MacQueen's rule (1967). K is the number of atoms that RSM (gate
  ``max-member``) has for the same chunks; the first K centres are chunks drawn by the seed from
  the first 200 (the first K for seed 0); each chunk moves its nearest centre by 1 / count.
- **Streaming-Proto**: prototypes as exponential averages. A chunk joins the prototype of
  highest cosine if that is at least tau, which then becomes ``normalise(0.9 p + 0.1 x)``; else it
  is a new prototype.

Tau is the stated percentile of the pairwise cosines of 50 chunks: the first 50 for seed 0, else
50 of the first 200 drawn by the seed. A system clusters in order of arrival; chunks that came
before tau was known are clustered then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from bench.quality.packed import SystemStats
from bench.quality.ranked import Columns, RankedSystem
from rsm_fast.arena import Arena
from rsm_fast.clustering import Calibration, Clusterer, TauCalibrator
from rsm_fast.errors import CalibrationError
from rsm_fast.index import route_atoms
from rsm_fast.packing import Piece
from rsm_fast.presets import Gate, Route, VectorType
from rsm_fast.retrieval import paper_order
from rsm_fast.types import Turn

__all__ = ["ClusterSettings", "ClusterSystem", "Method"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

Method = Literal["rsm", "online-kmeans", "streaming-proto"]
Packer = Literal["atoms", "cosine", "newest"]

_CALIBRATION = 50
_DRAWN_FROM = 200


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What one clustered system is.

    Attributes
    ----------
    method : str
    gate, percentile, centre, rank, dtype : as in `rsm_fast`
        The write path of ``rsm``; the peers use percentile and centre.
    route : str
        How the clusters are chosen (``rsm`` only; the peers go by centroid).
    clusters, members : int
        K and k.
    packer : {"atoms", "cosine", "newest"}
        Atom by atom with headers, or the same members by cosine, or the newest of them first.
    fill : bool
        Use the rest of the budget, by cosine.
    seed : int
        Draws the calibration items and the first centres.
    """

    method: Method = "rsm"
    gate: Gate = "max-member"
    percentile: float = 70.0
    centre: bool = False
    rank: int = 1
    dtype: VectorType = "float32"
    route: Route = "centroid"
    clusters: int = 6
    members: int = 8
    packer: Packer = "cosine"
    fill: bool = True
    seed: int = 0


class _Grouping(Protocol):
    """Puts chunks into groups as they come."""

    @property
    def atom(self) -> I32:
        """Group of every row."""

    def add(self, rows: range) -> None:
        """Group new rows."""

    def top(self, query: F32, k: int) -> I32:
        """The k best groups."""

    def dense(self, query: F32) -> F32:
        """Cosine of every row in the grouping's space."""


class ClusterSystem(RankedSystem):
    """Reads the best members of the best clusters.

    Parameters
    ----------
    columns : Columns
    settings : ClusterSettings
    """

    def __init__(self, columns: Columns, settings: ClusterSettings) -> None:
        super().__init__(columns, self._rank)
        self.settings = settings
        self.grouping: _Grouping | None = None
        if settings.packer == "atoms":
            self.layout = "atoms"

    def piece(self, row: int) -> Piece:
        """With its cluster's number, where that is printed."""
        piece = self.columns.pieces[row]
        if self.layout != "atoms" or self.grouping is None:
            return piece
        return replace(piece, atom=int(self.grouping.atom[row]))

    def write(self, turns: Sequence[Turn]) -> None:
        """Store turns and cluster their chunks, once there are enough to calibrate on."""
        rows = self.columns.write(turns)
        if self.grouping is not None:
            self.grouping.add(rows)
        elif self.columns.n >= (_CALIBRATION if self.settings.seed == 0 else _DRAWN_FROM):
            self._start()

    def stats(self) -> SystemStats:
        """Chunks and clusters."""
        if self.grouping is None:
            return SystemStats(chunks=self.columns.n)
        sizes = np.bincount(self.grouping.atom)
        sizes = sizes[sizes > 0]
        return SystemStats(
            chunks=self.columns.n,
            groups=int(sizes.size),
            largest_share=float(sizes.max() / sizes.sum()),
        )

    def _start(self) -> None:
        chosen = self.settings
        rng = np.random.default_rng(chosen.seed)
        first = self.columns.vectors[:_DRAWN_FROM]
        rows = np.arange(min(_CALIBRATION, len(first)))
        if chosen.seed:
            rows = rng.permutation(len(first))[:_CALIBRATION]
        calibrator = TauCalibrator(chosen.percentile, chosen.centre)
        calibration = calibrator.calibrate(np.ascontiguousarray(first[rows]))
        if chosen.method == "rsm":
            self.grouping = _Atoms(self.columns, chosen, calibration)
        elif chosen.method == "streaming-proto":
            self.grouping = _Prototypes(self.columns, calibration)
        else:
            self.grouping = _KMeans(self.columns, calibration, chosen.seed)
        self.grouping.add(range(self.columns.n))

    def _rank(self, columns: Columns, query: str) -> I32:
        if self.grouping is None:
            try:
                self._start()
            except CalibrationError:  # fewer than two chunks: nothing to cluster
                return np.arange(columns.n, dtype=np.int32)
        assert self.grouping is not None
        vector = columns.embedder.embed_queries([query])[0]
        dense = self.grouping.dense(vector)
        columns_of = (
            dense,
            np.ones(columns.n, np.uint8),
            self.grouping.atom,
            np.array([piece.instant.micros for piece in columns.pieces], np.int64),
        )
        best = self.grouping.top(vector, self.settings.clusters)
        order = paper_order(best, *columns_of, per_atom=self.settings.members)
        if self.settings.packer == "cosine":
            order = order[np.argsort(-dense[order], kind="stable")]
        elif self.settings.packer == "newest":
            order = np.sort(order)[::-1]
        if self.settings.fill:
            rest = np.setdiff1d(np.arange(columns.n, dtype=np.int32), order)
            order = np.concatenate((order, rest[np.argsort(-dense[rest], kind="stable")]))
        return order


class _Atoms:
    """The project's own write path."""

    def __init__(self, columns: Columns, chosen: ClusterSettings, known: Calibration) -> None:
        self.columns = columns
        self.route = chosen.route
        self.arena = Arena(columns.embedder.dim, dtype=chosen.dtype)
        if known.mean is not None:
            self.arena.set_centre(known.mean, [], np.empty((0, columns.embedder.dim), np.float32))
        self.clusterer = Clusterer(self.arena, gate=chosen.gate, rank=chosen.rank, tau=known.tau)

    @property
    def atom(self) -> I32:
        return self.arena.atom

    def add(self, rows: range) -> None:
        if not rows:
            return
        pieces = self.columns.pieces
        self.arena.append_many(
            np.ascontiguousarray(self.columns.vectors[rows.start : rows.stop]),
            pk=np.arange(rows.start, rows.stop, dtype=np.int64),
            tokens=np.zeros(len(rows), np.int32),
            micros=np.array([pieces[row].instant.micros for row in rows], np.int64),
            session=np.zeros(len(rows), np.int32),
        )
        self.clusterer.assign_many(np.arange(rows.start, rows.stop, dtype=np.int32))

    def top(self, query: F32, k: int) -> I32:
        eligible = np.ones(self.arena.n, np.uint8)
        prepared = self.arena.prepare_query(query)
        return route_atoms(self.clusterer, prepared, k, self.route, eligible=eligible)[0]

    def dense(self, query: F32) -> F32:
        scores: F32 = self.arena.dense_scores(self.arena.prepare_query(query))
        return scores


class _Centres:
    """Cluster centres as unit rows, in raw or centred space."""

    def __init__(self, columns: Columns, known: Calibration) -> None:
        self.columns = columns
        self.mean = known.mean
        self.tau = known.tau
        self._atom: I32 = np.empty(0, np.int32)
        self.centres: F32 = np.empty((0, columns.embedder.dim), np.float32)

    @property
    def atom(self) -> I32:
        return self._atom

    def add(self, rows: range) -> None:
        vectors = self._space(self.columns.vectors[rows.start : rows.stop])
        numbers = [self.assign(vector) for vector in vectors]
        self._atom = np.concatenate((self._atom, np.array(numbers, np.int32)))

    def assign(self, vector: F32) -> int:
        raise NotImplementedError

    def top(self, query: F32, k: int) -> I32:
        cosine = self.centres @ self._space(query[None])[0]
        return np.argsort(-cosine, kind="stable")[:k].astype(np.int32)

    def dense(self, query: F32) -> F32:
        scores: F32 = self._space(self.columns.vectors) @ self._space(query[None])[0]
        return scores

    def _space(self, vectors: F32) -> F32:
        if self.mean is None:
            return vectors
        return _unit(vectors - self.mean)


class _Prototypes(_Centres):
    """Exponential averages."""

    rate = 0.1

    def assign(self, vector: F32) -> int:
        cosine = self.centres @ vector
        if cosine.size and cosine.max() >= self.tau:
            best = int(cosine.argmax())
            moved = (1.0 - self.rate) * self.centres[best] + self.rate * vector
            self.centres[best] = _unit(moved[None])[0]
            return best
        self.centres = np.concatenate((self.centres, vector[None]))
        return len(self.centres) - 1


class _KMeans(_Centres):
    """MacQueen's online k-means with as many clusters as RSM has atoms."""

    def __init__(self, columns: Columns, known: Calibration, seed: int) -> None:
        super().__init__(columns, known)
        self.known = known
        self.seed = seed

    def add(self, rows: range) -> None:
        """Cluster anew with the K of all chunks so far: K is not known from the start."""
        peer = _Atoms(self.columns, ClusterSettings(), self.known)
        peer.add(range(self.columns.n))
        k = peer.clusterer.n_atoms
        vectors = self._space(self.columns.vectors)
        rng = np.random.default_rng(self.seed)  # the same draw each time
        pool = min(max(k, _DRAWN_FROM), len(vectors))
        first = rng.permutation(pool)[:k] if self.seed else np.arange(min(k, pool))
        self.sums = vectors[first].astype(np.float64)
        self.counts = np.ones(len(first))
        self.centres = _unit(vectors[first])
        self._atom = np.array([self.assign(vector) for vector in vectors], np.int32)

    def assign(self, vector: F32) -> int:
        best = int((self.centres @ vector).argmax())
        self.sums[best] += vector
        self.counts[best] += 1
        self.centres[best] = _unit(self.sums[best][None])[0]
        return best


def _unit(vectors: npt.NDArray[np.floating]) -> F32:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: F32 = (vectors / np.maximum(norms, 1e-12)).astype(np.float32)
    return unit
