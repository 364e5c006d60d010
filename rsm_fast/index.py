"""Which atoms, and which members, stand nearest to a query.

`AtomIndex` keeps one vector of every atom in a FAISS flat index; `top_members` is exact
top-k over the chunks by our own kernels, and `route_atoms` chooses atoms by any route.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

import rsm_fast.kernels as kernels
from rsm_fast.arena import Arena, CodeTable, padded
from rsm_fast.clustering import Clusterer
from rsm_fast.errors import InvalidInputError
from rsm_fast.kernels.layout import OPEN_ROWS, OPEN_ROWS_EACH

__all__ = ["AtomIndex", "Route", "route_atoms", "top_atoms", "top_members"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]

_NOT_FINITE = "query: expected finite values, got NaN or infinity"
_F32, _I32 = np.dtype(np.float32), np.dtype(np.int32)
_NO_COUNTERS = np.zeros(0, np.int64)

Route = Literal["centroid", "singular-vector", "max-member", "subspace"]


class AtomIndex:
    """A FAISS flat inner-product index over the atoms, for one route.

    Rows are updated in place; slots of vanished atoms stay and are masked. FAISS's own
    thread setting is left alone: a search for one query runs in the calling thread.

    Parameters
    ----------
    clusterer : Clusterer
        Mirrored at each search.
    route : {"centroid", "singular-vector"}
        Which vector stands for an atom.
    """

    def __init__(
        self,
        clusterer: Clusterer,
        route: Literal["centroid", "singular-vector"] = "centroid",
    ) -> None:
        import faiss

        if route not in ("centroid", "singular-vector"):
            raise InvalidInputError(
                f"route: expected 'centroid' or 'singular-vector', got {route!r}"
            )
        self.clusterer = clusterer
        self.route = route
        self._faiss: Any = faiss
        self._epoch = -1
        self._changes = 0
        self._index: Any = None

    def __len__(self) -> int:
        return self.clusterer.n_atoms

    def top_atoms(
        self, query: F32, k: int, *, eligible_atoms: npt.ArrayLike | None = None
    ) -> tuple[I32, F32]:
        """The k atoms of largest inner product with a query.

        Parameters
        ----------
        query : float32[dim]
            In the arena's space, from `Arena.prepare_query`.
        k : int
        eligible_atoms : bool[n_atoms] or None
            In the order of `Clusterer.counts`; None: all.

        Returns
        -------
        atoms, scores : int32[m], float32[m]
            Best first, m at most k; equal scores by atom number.
        """
        self._mirror()
        clusterer = self.clusterer
        mask = _slot_mask(clusterer, eligible_atoms)
        wanted = min(k, int(np.count_nonzero(mask)))
        if wanted <= 0:
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        options = None
        if wanted < k or not mask.all():
            bits = np.packbits(mask, bitorder="little")
            selector = self._faiss.IDSelectorBitmap(bits)
            options = self._faiss.SearchParameters(sel=selector)
        asked = np.zeros((1, self._index.d), np.float32)
        asked[0, : len(query)] = query
        scores, slots = self._index.search(asked, wanted, params=options)
        found = slots[0] >= 0
        slots, scores = slots[0][found], scores[0][found]
        order = np.lexsort((slots, -scores))
        return clusterer.numbers[slots[order]], scores[order]

    def _mirror(self) -> None:
        clusterer = self.clusterer
        clusterer.settle()
        if self.route == "singular-vector":
            clusterer.refresh_bases()
        if self._epoch != clusterer.epoch:
            self._index = self._faiss.IndexFlatIP(padded(clusterer.arena.dim))
            self._epoch = clusterer.epoch
            self._changes = 0
        if self._changes == clusterer.changes:
            return
        rows = self._vectors()
        known = int(self._index.ntotal)
        changed = np.flatnonzero(clusterer.stamps[:known] > self._changes)
        if len(changed):  # the pointer moves when rows are added, so it is taken anew
            pointer = self._index.get_xb()
            stored = self._faiss.rev_swig_ptr(pointer, known * self._index.d)
            stored.reshape(known, -1)[changed] = rows[changed]
        if clusterer.slots > known:
            self._index.add(rows[known : clusterer.slots])
        self._changes = clusterer.changes

    def _vectors(self) -> F32:
        if self.route == "centroid":
            return self.clusterer.means.columns.vec
        return first_vectors(self.clusterer)


def first_vectors(clusterer: Clusterer) -> F32:
    """(slots, d) float32, the first basis vector of every slot; the mean where there is none."""
    assert clusterer.atoms is not None
    if clusterer.rank == 0:
        return clusterer.means.columns.vec[: clusterer.slots]
    return np.ascontiguousarray(clusterer.atoms.basis[: clusterer.slots, 0])


def _scores_by_first_vector(clusterer: Clusterer, x: F32) -> F32:
    """(slots,) float32 inner products, on this thread: a matrix product may take several."""
    means = clusterer.means.columns
    rows = means.vec
    if clusterer.rank and clusterer.atoms is not None:
        rows = np.ascontiguousarray(clusterer.atoms.basis[:, 0])
    out = np.empty(clusterer.slots + 3, np.float32)
    kernels.scan.dense_scores_(
        rows, *means[1:], clusterer.slots, np.ascontiguousarray(clusterer.alive), x, out
    )
    return out[: clusterer.slots]


def _slot_mask(clusterer: Clusterer, eligible_atoms: npt.ArrayLike | None) -> U8:
    """1 for slots that may be found."""
    mask = clusterer.alive.copy()
    if eligible_atoms is None:
        return mask
    given = np.asarray(eligible_atoms)
    if given.shape != (clusterer.n_atoms,):
        raise InvalidInputError(
            f"eligible_atoms: expected {clusterer.n_atoms} flags, one for each atom in the order "
            f"of Clusterer.counts(), got shape {given.shape}"
        )
    mask[np.flatnonzero(mask)] = given != 0
    return mask


def _padded_query(query: F32, dim: int, width: int) -> F32:
    if dim == width and type(query) is np.ndarray:  # as they mostly come
        if query.dtype is _F32 and query.shape == (dim,) and query.flags.carray:
            return query
    given = np.ascontiguousarray(query, np.float32)
    if given.shape != (dim,):
        raise InvalidInputError(
            f"query: expected {dim} finite values, got an array of shape {given.shape}"
        )
    x = np.zeros(width, np.float32)
    x[:dim] = given
    return x


def top_members(
    arena: Arena,
    query: F32,
    k: int,
    *,
    eligible: npt.ArrayLike | None = None,
    least: float = -math.inf,
) -> tuple[I32, F32]:
    """The k living chunks of largest cosine with a query, exactly.

    Parameters
    ----------
    arena : Arena
    query : float32[dim]
        From `Arena.prepare_query`.
    k : int
    eligible : uint8[n] or bool[n] or None
        Rows that may be found; None: all living ones.
    least : float
        Only cosines of at least this; the higher, the quicker.

    Returns
    -------
    rows, scores : int32[m], float32[m]
        Best first, m at most k; equal scores by row. Scores are those of the float64
        definition, rounded.
    """
    mask = arena.mask
    if eligible is not None:
        given = np.asarray(eligible)
        if given.shape != (arena.n,):
            raise InvalidInputError(f"eligible: expected {arena.n} flags, got shape {given.shape}")
        mask = arena.alive & (given != 0)  # uint8 and bool: uint8
    x = _padded_query(query, arena.dim, arena.table.width)
    return _top(arena.table, arena.n, x, k, mask, least)


def top_atoms(
    clusterer: Clusterer, query: F32, k: int, *, eligible_atoms: npt.ArrayLike | None = None
) -> tuple[I32, F32]:
    """The k atoms whose means have the largest cosine with a query, exactly.

    Parameters are those of `AtomIndex.top_atoms`, whose answer this is without FAISS.
    """
    arena = clusterer.arena
    x = _padded_query(query, arena.dim, arena.table.width)
    mask = _slot_mask(clusterer, eligible_atoms)
    clusterer.settle()
    slots, scores = _top(clusterer.means, clusterer.slots, x, k, mask)
    return clusterer.numbers[slots], scores


def _top(
    table: CodeTable, n: int, x: F32, k: int, mask: U8, least: float = -math.inf
) -> tuple[I32, F32]:
    if not 0 <= k <= n:
        k = max(min(k, n), 0)
    scores, rows = np.empty(k, _F32), np.empty(k, _I32)
    rotation = table.rotation
    if least == -math.inf and n < OPEN_ROWS + OPEN_ROWS_EACH * k:
        rotation = table.no_rotation
    found = kernels.topk.topk_rows(
        *table.columns, n, x, rotation, mask, least, scores, rows, _NO_COUNTERS
    )
    if found == k:
        return rows, scores
    if found < 0:
        raise InvalidInputError(_NOT_FINITE)
    return rows[:found], scores[:found]


def route_atoms(
    clusterer: Clusterer,
    query: F32,
    k: int,
    route: Route = "centroid",
    *,
    eligible: npt.ArrayLike | None = None,
    index: AtomIndex | None = None,
) -> tuple[I32, F32]:
    """The k atoms to read for a query.

    Parameters
    ----------
    clusterer : Clusterer
    query : float32[dim]
        From `Arena.prepare_query`.
    k : int
    route : {"centroid", "singular-vector", "max-member", "subspace"}
        Score of an atom: the query's cosine with its mean; with its first singular vector;
        the largest with any eligible member; the norm of the query's projection on its basis.
    eligible : uint8[n] or bool[n] or None
        Rows that may be read: only atoms that hold such a row are considered.
    index : AtomIndex or None
        Used where it serves the route; else the atoms are scored here.

    Returns
    -------
    atoms, scores : int32[m], float32[m]
        Best first, m at most k; equal scores by atom number.
    """
    if route not in get_args(Route):
        raise InvalidInputError(f"route: expected one of {get_args(Route)}, got {route!r}")
    arena = clusterer.arena
    rows = arena.gated[: arena.n].copy()
    if eligible is not None:
        rows &= np.asarray(eligible) != 0
    if route == "max-member":
        return _by_best_member(clusterer, query, k, rows)
    atoms = None
    if eligible is not None:
        atoms = np.isin(clusterer.counts()[0], np.unique(arena.atom[rows != 0]))
    if index is not None and index.route == route:
        return index.top_atoms(query, k, eligible_atoms=atoms)
    if route == "centroid":
        return top_atoms(clusterer, query, k, eligible_atoms=atoms)
    x = _padded_query(query, arena.dim, arena.table.width)
    if not math.isfinite(x @ x):
        raise InvalidInputError(_NOT_FINITE)
    clusterer.refresh_bases()
    if route == "singular-vector":
        scores = _scores_by_first_vector(clusterer, x)
    else:
        assert clusterer.atoms is not None
        scores = np.empty(clusterer.slots, np.float32)
        kernels.scan.subspace_scores_(clusterer.atoms.basis, clusterer.slots, x, scores)
    slots = np.flatnonzero(_slot_mask(clusterer, atoms))
    best = slots[np.lexsort((slots, -scores[slots]))][: max(k, 0)]
    return clusterer.numbers[best], scores[best]


def _by_best_member(clusterer: Clusterer, query: F32, k: int, rows: U8) -> tuple[I32, F32]:
    arena = clusterer.arena
    scores = arena.dense_scores(query)
    gated = np.flatnonzero(rows)
    slots = arena.links[gated, 0]
    best = np.full(clusterer.slots, -np.inf, np.float32)
    np.maximum.at(best, slots, scores[gated])
    found = np.unique(slots)
    order = found[np.lexsort((found, -best[found]))][: max(k, 0)]
    return clusterer.numbers[order], best[order]
