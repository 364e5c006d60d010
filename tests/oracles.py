"""Slow, obvious twins of the vector kernels, from the definitions, in float64.

A twin names its kernels in its docstring ("Twin of `module.function`");
tests/kernels/test_registry.py fails if a kernel has none.
"""

from __future__ import annotations

import numpy as np

NEAR = 1e-11  # more than a float64 dot product in any order can be off


def exact_dot(a, b):
    """Twin of `topk.exact_dot`: float64 products, added in index order."""
    products = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    return np.add.accumulate(products)[-1]


def exact_dots(rows, x):
    """Twin of `topk.exact_dots_`."""
    return np.array([exact_dot(row, x) for row in rows])


def squared_norm(x):
    """Twin of `quantize.squared_norm`."""
    return float(np.sum(np.asarray(x, np.float64) ** 2))


def quantize(x):
    """Twin of `quantize.quantize_row_`: codes, scale, norm of what is left."""
    x = np.asarray(x, np.float64)
    largest = np.abs(x).max()
    if largest < 1e-30:
        return np.zeros(len(x), np.int8), 0.0, np.linalg.norm(x)
    scale = float(np.float32(largest) / np.float32(127))
    code = np.clip(np.rint(x * (127 / largest)), -127, 127).astype(np.int8)
    return code, scale, np.linalg.norm(x - scale * code)


def dequantize(code, scale):
    """Twin of `quantize.dequantize_row_`."""
    return np.float32(scale) * np.asarray(code, np.float32)


def encoded(x, rotation):
    """Twin of `quantize.encode_row_`, `quantize.encode_rows_` and `heads.encode_head_`.

    It gives what bounds must cover: the norms of x, of its projection on the rotation's rows,
    and of the rest.
    """
    x = np.asarray(x, np.float64)
    inside = np.asarray(rotation, np.float64) @ x
    outside = x - np.linalg.pinv(np.asarray(rotation, np.float64)) @ inside
    return np.linalg.norm(x), np.linalg.norm(inside), np.linalg.norm(outside)


def turned(rotation, x):
    """Twin of `heads.turn_` and `heads.turn_slack`: an int16 rotation times a vector."""
    return np.asarray(rotation, np.float64) / 32767 @ np.asarray(x, np.float64)


def bounds(row, x):
    """Twin of `quantize.make_query`, `topk.scan_`, `topk.collect_`, and of `topk.room_in` and
    `topk.floats_of` whose memory they write: bounds lie above this."""
    return float(np.asarray(row, np.float64) @ np.asarray(x, np.float64))


def correction(query, biased):
    """Twin of `dot_int8.correction`."""
    return 128 * int(np.asarray(query, np.int64).sum()) if biased else 0


def centred(raw, mean):
    """Twin of `quantize.centre_row_` and `quantize.centre_rows_`."""
    shifted = np.asarray(raw, np.float64) - np.asarray(mean, np.float64)
    norms = np.linalg.norm(shifted, axis=1, keepdims=True)
    return np.where(norms > 1e-6, shifted / np.maximum(norms, 1e-300), 0.0).astype(np.float32)


def cut(values, wanted):
    """Twin of `topk.cut`: the largest value that so many reach, or all; a cut is little below."""
    return np.sort(values)[-min(wanted, len(values))]


def float32_below(value):
    """Twin of `topk.float32_below`: no float32 threshold may lie above this."""
    return float(value)


def top_rows(rows, x, k, mask=None, floor=-np.inf):
    """Twin of `topk.search_` and `topk.topk_rows`: (row, score) by score, then by row."""
    rows = np.asarray(rows)
    allowed = np.arange(len(rows)) if mask is None else np.flatnonzero(mask)
    rough = rows[allowed].astype(np.float64) @ np.asarray(x, np.float64)
    if len(allowed) > k > 0:
        least = np.sort(rough)[-k] - NEAR
        allowed, rough = allowed[rough >= least], rough[rough >= least]
    scored = [(-exact_dot(rows[r], x), int(r)) for r in allowed]
    return [(r, -s) for s, r in sorted(scored) if -s >= floor][:k]


def mean_of(members):
    """Twin of `atoms.update_mean_`: the sum in float64, in order, by its norm."""
    total = np.add.accumulate(np.asarray(members, np.float64))[-1]
    norm = np.sqrt(np.add.accumulate(total * total)[-1])
    return (total / norm if norm > 1e-12 else np.zeros_like(total)).astype(np.float32)


def eigen(matrix):
    """Twin of `atoms.jacobi_`: eigenvalues and vectors, largest first."""
    values, vectors = np.linalg.eigh(np.asarray(matrix, np.float64))
    return values[::-1], vectors[:, ::-1]


def basis_of(members, rank):
    """Twin of `atoms.brand_update_`, `atoms.refresh_basis_` and `atoms.refresh_atom_`.

    First right singular vectors and squared singular values of the member matrix.
    """
    members = np.asarray(members, np.float64)
    _, values, vectors = np.linalg.svd(members, full_matrices=False)
    return vectors[:rank], values[:rank] ** 2


def copied(x):
    """Twin of `quantize.copy_`."""
    return np.array(x)


def appended(raw, mean):
    """Twin of `append.append_row_` and `append.put_row_`, also in `write.write_row_`: what the
    arena holds then."""
    return np.asarray(raw, np.float32) if mean is None else centred([raw], mean)[0]


def dense_scores(rows, x, alive):
    """Twin of `scan.dense_scores_`, of `scan.dense_score`, and nearly of `scan.near_scores_`."""
    scores = np.asarray(rows, np.float64) @ np.asarray(x, np.float64)
    return np.where(np.asarray(alive) != 0, scores, 0.0)


def subspace_scores(bases, x):
    """Twin of `scan.subspace_scores_`."""
    return np.linalg.norm(np.asarray(bases, np.float64) @ np.asarray(x, np.float64), axis=1)


class Atoms:
    """Plain lists and a matrix of means; decides and merges by the definition.

    Twin of `gate.best_member_`, `gate.member_above`, `gate.choose_`, `gate.place_`,
    `gate.assign_rows_`, `atoms.join_`, `atoms.attach_`, `atoms.rebuild_atom_`,
    `atoms.rebuild_atoms_`, `atoms.chain_rows_` and `atoms.load_row_`; `atoms.lent_atoms` and
    `lending.lent_table` change none of it.
    """

    def __init__(self, gate, tau):
        self.gate = gate
        self.tau = tau
        self.vectors = {}  # row: vector
        self.atom = {}  # row: atom
        self.members = {}  # atom: rows
        self.means = {}  # atom: float32 mean
        self.next_atom = 0

    def choose(self, x):
        """Atom for a vector, None for a new one."""
        if not self.members:
            return None
        atoms = sorted(self.members)
        means = np.array([self.means[a] for a in atoms])
        if self.gate == "max-member":
            rows = list(self.atom)
            candidates = np.concatenate([means, [self.vectors[r] for r in rows]])
            owners = atoms + [self.atom[r] for r in rows]
        else:
            candidates, owners = means, atoms
        rough = candidates.astype(np.float64) @ x.astype(np.float64)
        near = np.flatnonzero(rough >= rough.max() - NEAR)
        scored = [(-exact_dot(candidates[c], x), owners[c]) for c in near]
        score, atom = min(scored)
        if -score >= self.tau:
            return atom
        if self.gate == "nearest-mean":
            rows = np.array([self.vectors[r] for r in self.members[atom]])
            rough = rows.astype(np.float64) @ x.astype(np.float64)
            for row in rows[rough >= self.tau - NEAR]:
                if exact_dot(row, x) >= self.tau:
                    return atom
        return None

    def assign(self, row, x):
        atom = self.choose(x)
        if atom is None:
            atom = self.next_atom
            self.next_atom += 1
        self.attach(row, x, atom)
        return atom

    def attach(self, row, x, atom):
        self.vectors[row] = x
        self.atom[row] = atom
        self.members[atom] = sorted([*self.members.get(atom, []), row])
        self._refresh(atom)

    def leave(self, row):
        atom = self.atom.pop(row)
        self.members[atom].remove(row)
        if self.members[atom]:
            self._refresh(atom)
        else:
            del self.members[atom], self.means[atom]
        del self.vectors[row]

    def _refresh(self, atom):
        self.means[atom] = mean_of([self.vectors[r] for r in self.members[atom]])


def cluster(vectors, gate, tau, *, gram=None):
    """Atoms of vectors that arrive one after the other, with sums kept as they grow.

    ``gram`` may hold all float64 dot products of the vectors, to be shared between calls.
    """
    vectors = np.asarray(vectors, np.float32)
    exact = vectors.astype(np.float64)
    means = np.zeros_like(exact)  # float32 values
    sums = np.zeros_like(exact)
    atoms = np.full(len(vectors), -1)
    members = []
    for row in range(len(vectors)):
        by_member = exact[:row] @ exact[row] if gram is None else gram[row, :row]
        atom = _choose(exact, means, atoms, members, row, by_member, gate, tau)
        if atom is None:
            atom = len(members)
            members.append([])
        members[atom].append(row)
        atoms[row] = atom
        sums[atom] += exact[row]
        norm = np.sqrt(np.add.accumulate(sums[atom] ** 2)[-1])
        means[atom] = (sums[atom] / norm).astype(np.float32) if norm > 1e-12 else 0.0
    return atoms


def _choose(exact, means, atoms, members, row, by_member, gate, tau):
    k = len(members)
    if not k:
        return None
    x = exact[row]
    scores = means[:k] @ x
    top = scores.max()
    if gate == "max-member":
        top = max(top, by_member.max())
    candidates = [(means[a], a) for a in np.flatnonzero(scores >= top - NEAR)]
    if gate == "max-member":
        candidates += [(exact[r], atoms[r]) for r in np.flatnonzero(by_member >= top - NEAR)]
    score, atom = min((-exact_dot(c, x), int(owner)) for c, owner in candidates)
    if -score >= tau:
        return atom
    if gate == "nearest-mean":
        rows = np.array(members[atom])
        if any(exact_dot(exact[r], x) >= tau for r in rows[by_member[rows] >= tau - NEAR]):
            return atom
    return None
