"""Statistics of atoms: exact means, rank-r bases, and the chain of members.

A mean is ``float32(sum / |sum|)`` with the sum in float64 over the members in row order,
so that adding a member and recomputing from all of them give the same bits. A basis follows
the appends by Brand's update (M. Brand, Fast low-rank modifications of the thin singular
value decomposition, 2006) and is made exact, when asked for, by warm orthogonal iteration.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from rsm_fast.kernels.jit import F32, F64, FAST, I8, I32, U8, Int, Real, kernel
from rsm_fast.kernels.layout import Atoms
from rsm_fast.kernels.lending import lent, lent_table
from rsm_fast.kernels.quantize import copy_, dequantize_row_, encode_row_
from rsm_fast.kernels.rows import (
    CODES,
    CODES_TYPE,
    COUNT,
    FIRST,
    LAST,
    MATE,
    ROTATION,
    SCALE,
    SLOT,
    STALE,
    TURNED,
    Codes,
)

__all__ = [
    "ATOMS",
    "ATOMS_TYPE",
    "Atoms",
    "attach_",
    "brand_update_",
    "chain_rows_",
    "join_",
    "lent_atoms",
    "load_row_",
    "rebuild_atom_",
    "rebuild_atoms_",
    "refresh_atom_",
    "refresh_basis_",
    "update_mean_",
]


ATOMS = f"{CODES}, float64[:, ::1], int32[:, ::1], uint8[::1], float32[:, :, ::1], float64[:, ::1]"
ATOMS_TYPE = types.NamedTuple(
    [
        *CODES_TYPE.types,
        types.float64[:, ::1],
        types.int32[:, ::1],
        types.uint8[::1],
        types.float32[:, :, ::1],
        types.float64[:, ::1],
    ],
    Atoms,
)
_i8, _x, _links = types.int64, types.float32[::1], types.int32[:, ::1]
_rotation = types.int16[:, ::1]
_small = types.float64[:, ::1]


@kernel(ATOMS_TYPE(ATOMS_TYPE), inline=True)
def lent_atoms(atoms: Atoms) -> Atoms:
    """Atoms as `rsm_fast.kernels.lending.lent` arrays.

    Parameters
    ----------
    atoms : Atoms

    Returns
    -------
    Atoms
    """
    return Atoms(
        lent(atoms.vec),
        lent(atoms.code),
        lent(atoms.fit),
        lent(atoms.head),
        lent(atoms.head_fit),
        lent(atoms.limits),
        lent(atoms.total),
        lent(atoms.links),
        lent(atoms.alive),
        lent(atoms.basis),
        lent(atoms.strength),
    )


@kernel(types.void(CODES_TYPE, _i8, _x), inner=False)
def load_row_(table: Codes, row: Int, out: F32) -> None:
    """Copy the true values of a row: its vector, else its dequantised codes.

    Parameters
    ----------
    table : Codes
    row : int
    out : float32[d]
        Result.
    """
    if table.vec.shape[0] > 0:
        copy_(table.vec[row], out)
    else:
        dequantize_row_(table.code[row], table.fit[row >> 2, SCALE, row & 3], out)


@kernel("void(float64[::1], float32[::1])")
def update_mean_(total: F64, mean: F32) -> None:
    """``mean = float32(total / |total|)``, all in float64 and in index order.

    Parameters
    ----------
    total : float64[d]
        Sum of the members.
    mean : float32[d]
        Result; zeros where the sum has no direction.
    """
    squared = 0.0
    for j in range(total.shape[0]):
        squared += total[j] * total[j]
    norm = math.sqrt(squared)
    for j in range(total.shape[0]):
        mean[j] = np.float32(total[j] / norm) if norm > 1e-12 else np.float32(0.0)


@kernel(types.void(_small, _small))
def jacobi_(matrix: F64, vectors: F64) -> None:
    """Eigenvalues of a small symmetric matrix, largest first, by Jacobi rotations.

    Parameters
    ----------
    matrix : float64[k, k]
        Symmetric; replaced by a diagonal one.
    vectors : float64[k, k]
        Result: eigenvectors in columns.
    """
    k = matrix.shape[0]
    for a in range(k):
        for b in range(k):
            vectors[a, b] = 1.0 if a == b else 0.0
    for _ in range(30):
        off = diagonal = 0.0
        for a in range(k):
            diagonal += matrix[a, a] * matrix[a, a]
            for b in range(a + 1, k):
                off += matrix[a, b] * matrix[a, b]
        if off <= 1e-28 * diagonal:
            break
        for a in range(k - 1):
            for b in range(a + 1, k):
                if matrix[a, b] == 0.0:
                    continue
                theta = (matrix[b, b] - matrix[a, a]) / (2.0 * matrix[a, b])
                t = 1.0 / (abs(theta) + math.sqrt(theta * theta + 1.0))
                if theta < 0.0:
                    t = -t
                c = 1.0 / math.sqrt(t * t + 1.0)
                s = t * c
                for i in range(k):
                    p, q = matrix[i, a], matrix[i, b]
                    matrix[i, a], matrix[i, b] = c * p - s * q, s * p + c * q
                for i in range(k):
                    p, q = matrix[a, i], matrix[b, i]
                    matrix[a, i], matrix[b, i] = c * p - s * q, s * p + c * q
                for i in range(k):
                    p, q = vectors[i, a], vectors[i, b]
                    vectors[i, a], vectors[i, b] = c * p - s * q, s * p + c * q
    for a in range(k):  # selection sort by eigenvalue
        best = a
        for b in range(a + 1, k):
            if matrix[b, b] > matrix[best, best]:
                best = b
        if best != a:
            matrix[a, a], matrix[best, best] = matrix[best, best], matrix[a, a]
            for i in range(k):
                vectors[i, a], vectors[i, best] = vectors[i, best], vectors[i, a]


@kernel("void(float32[:, ::1], float64[::1], float32[::1])", fastmath=FAST)
def brand_update_(basis: F32, strength: F64, x: F32) -> None:
    """Append one vector to a rank-r eigenbasis of the second-moment matrix.

    ``C + x x^T`` is projected on the basis and the part of x outside it, an (r + 1)-square
    problem, and cut to rank r again (Brand 2006, section 3). Exact up to r members.

    Parameters
    ----------
    basis : float32[r, d]
        Orthonormal rows, or zeros; updated.
    strength : float64[r]
        Squared singular values, largest first; updated.
    x : float32[d]
    """
    r, d = basis.shape
    k = r + 1
    p = np.empty(k)
    for t in range(k):
        p[t] = 0.0
    outside = np.empty(d, np.float32)
    copy_(x, outside)
    for _ in range(2):  # twice, so that rounding leaves it orthogonal
        for t in range(r):
            s = np.float32(0.0)
            for j in range(d):
                s += basis[t, j] * outside[j]
            p[t] += np.float64(s)
            for j in range(d):
                outside[j] -= s * basis[t, j]
    squared = 0.0
    for j in range(d):
        squared += np.float64(outside[j]) * np.float64(outside[j])
    rho = math.sqrt(squared)
    if rho > 1e-6:
        factor = np.float32(1.0 / rho)
        for j in range(d):
            outside[j] *= factor
        p[r] = rho
    else:
        for j in range(d):
            outside[j] = np.float32(0.0)
    small = np.empty((k, k))
    vectors = np.empty((k, k))
    for a in range(k):
        for b in range(k):
            small[a, b] = p[a] * p[b]
    for a in range(r):
        small[a, a] += strength[a]
    jacobi_(small, vectors)
    turned = np.empty((r, d), np.float32)
    for a in range(r):
        for j in range(d):
            turned[a, j] = np.float32(0.0)
        strength[a] = max(small[a, a], 0.0)
        for b in range(r):
            s = np.float32(vectors[b, a])
            for j in range(d):
                turned[a, j] += s * basis[b, j]
        s = np.float32(vectors[r, a])
        for j in range(d):
            turned[a, j] += s * outside[j]
    for a in range(r):
        copy_(turned[a], basis[a])


@kernel("int64(float32[:, ::1], float32[:, ::1], float64[::1], float64, int64)", fastmath=FAST)
def refresh_basis_(members: F32, basis: F32, strength: F64, tolerance: Real, cap: Int) -> Int:
    """Orthogonal iteration with Rayleigh-Ritz, warm-started, until a residual bound.

    Stops when ``|C v - s v| <= tolerance * s_0`` for each row v with strength s, where
    C is the second-moment matrix of the members.

    Parameters
    ----------
    members : float32[m, d]
    basis : float32[r, d]
        Start and result: orthonormal rows or zeros, strongest first.
    strength : float64[r]
        Result: squared singular values.
    tolerance : float
        Relative residual; 2e-6 gives the first vector to about 1e-5 at usual gaps.
    cap : int
        At most so many passes over the members.

    Returns
    -------
    int
        Passes made.
    """
    r, d = basis.shape
    image = np.empty((r, d), np.float32)
    turned = np.empty((r, d), np.float32)
    small = np.empty((r, r))
    vectors = np.empty((r, r))
    for step in range(1, cap + 1):
        _apply_moment_(members, basis, image)
        for a in range(r):
            for b in range(a, r):
                s = 0.0
                for j in range(d):
                    s += np.float64(basis[a, j]) * np.float64(image[b, j])
                small[a, b] = s
                small[b, a] = s
        jacobi_(small, vectors)
        _turn_(basis, vectors, turned)
        _turn_(image, vectors, turned)
        worst = 0.0
        for a in range(r):
            strength[a] = max(small[a, a], 0.0)
            value = np.float32(small[a, a])
            residual = 0.0
            for j in range(d):
                rest = np.float64(image[a, j] - value * basis[a, j])
                residual += rest * rest
            worst = max(worst, residual)
        if math.sqrt(worst) <= tolerance * strength[0] or step == cap:
            return step
        _orthonormalise_(image, strength[0] * 1e-9)
        for a in range(r):
            copy_(image[a], basis[a])
    return cap


@kernel("void(float32[:, ::1], float32[:, ::1], float32[:, ::1])", fastmath=FAST)
def _apply_moment_(members: F32, basis: F32, image: F32) -> None:
    """``image = basis C``, one pass over the members, four at a time."""
    m, d = members.shape
    for a in range(basis.shape[0]):
        for j in range(d):
            image[a, j] = np.float32(0.0)
    full = m // 4 * 4
    for i in range(0, full, 4):
        p, q, u, v = members[i], members[i + 1], members[i + 2], members[i + 3]
        for a in range(basis.shape[0]):
            row, target = basis[a], image[a]
            s = np.float32(0.0)
            t = np.float32(0.0)
            w = np.float32(0.0)
            z = np.float32(0.0)
            for j in range(d):
                value = row[j]
                s += p[j] * value
                t += q[j] * value
                w += u[j] * value
                z += v[j] * value
            for j in range(d):
                target[j] += s * p[j] + t * q[j] + w * u[j] + z * v[j]
    for i in range(full, m):
        p = members[i]
        for a in range(basis.shape[0]):
            row, target = basis[a], image[a]
            s = np.float32(0.0)
            for j in range(d):
                s += p[j] * row[j]
            for j in range(d):
                target[j] += s * p[j]


@kernel("void(float32[:, ::1], float64[:, ::1], float32[:, ::1])", fastmath=FAST)
def _turn_(rows: F32, vectors: F64, scratch: F32) -> None:
    """``rows = vectors^T rows``."""
    r, d = rows.shape
    for a in range(r):
        for j in range(d):
            scratch[a, j] = np.float32(0.0)
        for b in range(r):
            s = np.float32(vectors[b, a])
            for j in range(d):
                scratch[a, j] += s * rows[b, j]
    for a in range(r):
        copy_(scratch[a], rows[a])


@kernel("void(float32[:, ::1], float64)", fastmath=FAST)
def _orthonormalise_(rows: F32, least: Real) -> None:
    """Gram-Schmidt, twice; rows whose rest is shorter than ``least`` become zero."""
    r, d = rows.shape
    for a in range(r):
        for _ in range(2):
            for b in range(a):
                s = np.float32(0.0)
                for j in range(d):
                    s += rows[a, j] * rows[b, j]
                for j in range(d):
                    rows[a, j] -= s * rows[b, j]
        squared = 0.0
        for j in range(d):
            squared += np.float64(rows[a, j]) * np.float64(rows[a, j])
        norm = math.sqrt(squared)
        factor = np.float32(1.0 / norm) if norm > least else np.float32(0.0)
        for j in range(d):
            rows[a, j] *= factor


@kernel(
    f"int64({CODES}, int32[:, ::1], int64, float32[:, ::1], float32[::1], float32[:, ::1], "
    "float64[::1], float64, int64)"
)
def refresh_atom_(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64, links: I32, first: Int,
    gathered: F32, mean: F32, basis: F32, strength: F64, tolerance: Real, cap: Int,
) -> Int:  # fmt: skip
    """`refresh_basis_` for one atom, its first vector turned towards the mean.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits, links
        The members.
    first : int
        First row of the atom's chain.
    gathered : float32[m, d]
        Scratch for the atom's m members.
    mean : float32[d]
    basis, strength, tolerance, cap
        See `refresh_basis_`.

    Returns
    -------
    int
        Passes made.
    """
    members = Codes(vec, code, fit, head, head_fit, limits)
    row = first
    for k in range(gathered.shape[0]):
        load_row_(members, row, gathered[k])
        row = np.int64(links[row, MATE])
    passes = refresh_basis_(gathered, basis, strength, tolerance, cap)
    along = 0.0
    for j in range(mean.shape[0]):
        along += np.float64(mean[j]) * np.float64(basis[0, j])
    if along < 0.0:
        for j in range(mean.shape[0]):
            basis[0, j] = -basis[0, j]
    return passes


@kernel("int64(int32[:, ::1], int64, int32[::1])")
def chain_rows_(links: I32, first: Int, out: I32) -> Int:
    """Write the rows of a chain of members.

    Parameters
    ----------
    links : int32[n, 2]
        Of the members.
    first : int
        First row, or -1.
    out : int32[count]
        Result, ascending.

    Returns
    -------
    int
        How many.
    """
    count = 0
    row = first
    while row >= 0:
        out[count] = row
        count += 1
        row = np.int64(links[row, MATE])
    return count


@kernel(types.void(CODES_TYPE, _links, ATOMS_TYPE, _i8, _rotation), inner=False)
def rebuild_atom_(members: Codes, links: I32, atoms: Atoms, slot: Int, rotation: Any) -> None:
    """Recompute sum, mean and basis of one atom from its chain.

    Parameters
    ----------
    members : Codes
    links : int32[n, 2]
        Of the members.
    atoms : Atoms
        Count, first and last row are given; the rest is written.
    slot : int
    rotation : int16[256, d] or int16[0, d]
    """
    x = np.empty(members.code.shape[1], np.float32)
    total = atoms.total[slot]
    for j in range(total.shape[0]):
        total[j] = 0.0
    for a in range(atoms.basis.shape[1]):
        atoms.strength[slot, a] = 0.0
        for j in range(total.shape[0]):
            atoms.basis[slot, a, j] = np.float32(0.0)
    row = np.int64(atoms.links[slot, FIRST])
    while row >= 0:
        load_row_(members, row, x)
        _add_(total, x)
        if atoms.basis.shape[1] > 0:
            brand_update_(atoms.basis[slot], atoms.strength[slot], x)
        row = np.int64(links[row, MATE])
    _finish_(atoms, slot, rotation, x)


@kernel("void(float64[::1], float32[::1])")
def _add_(total: F64, x: F32) -> None:
    for j in range(total.shape[0]):
        total[j] += np.float64(x[j])


@kernel(types.void(ATOMS_TYPE, _i8, _rotation, _x))
def _finish_(atoms: Atoms, slot: Int, rotation: Any, mean: F32) -> None:
    """Mean, its codes and the flags, once the sum is right; ``mean`` is scratch."""
    update_mean_(atoms.total[slot], mean)
    turned = rotation.shape[0] if atoms.head.shape[0] > 0 else 0  # few means have no heads
    encode_row_(
        atoms.vec, atoms.code, atoms.fit, atoms.head, atoms.head_fit, atoms.limits,
        slot, mean, rotation[:turned], np.empty(TURNED, np.float32),
    )  # fmt: skip
    count = atoms.links[slot, COUNT]
    atoms.alive[slot] = 1 if count > 0 else 0
    atoms.links[slot, STALE] = 1 if count > 1 and atoms.basis.shape[1] > 0 else 0


@kernel(types.void(CODES_TYPE, _links, _i8, ATOMS_TYPE, _i8, _rotation))
def join_(members: Codes, links: I32, row: Int, atoms: Atoms, slot: Int, rotation: Any) -> None:
    """Put a member into an atom and bring its statistics up to date.

    Parameters
    ----------
    members : Codes
    links : int32[n, 2]
        Of the members; updated.
    row : int
        The member, in no atom so far.
    atoms : Atoms
        Updated. A slot with a count of 0 starts a new atom.
    slot : int
    rotation : int16[256, d] or int16[0, d]
    """
    chain = atoms.links[slot]
    links[row, SLOT] = slot
    links[row, MATE] = -1
    last = np.int64(chain[LAST])
    chain[COUNT] += 1
    if chain[COUNT] == 1:
        chain[FIRST] = row
        chain[LAST] = row
        rebuild_atom_(members, links, atoms, slot, rotation)
    elif row > last:
        links[last, MATE] = row
        chain[LAST] = row
        x = np.empty(members.code.shape[1], np.float32)
        load_row_(members, row, x)
        _add_(atoms.total[slot], x)
        if atoms.basis.shape[1] > 0:
            brand_update_(atoms.basis[slot], atoms.strength[slot], x)
        _finish_(atoms, slot, rotation, x)
    else:  # an updated chunk comes back to its old place in the order
        before = np.int64(-1)
        here = np.int64(chain[FIRST])
        while here < row:
            before = here
            here = np.int64(links[here, MATE])
        links[row, MATE] = here
        if before < 0:
            chain[FIRST] = row
        else:
            links[before, MATE] = row
        rebuild_atom_(members, links, atoms, slot, rotation)


@kernel(f"void({CODES}, int32[:, ::1], int64, {ATOMS}, int64, {ROTATION})")
def attach_(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64, links: I32, row: Int,
    a_vec: F32, a_code: I8, a_fit: F32, a_head: I8, a_head_fit: F32, a_limits: F64, total: F64,
    a_links: I32, alive: U8, basis: F32, strength: F64, slot: Int, rotation: Any,
) -> None:  # fmt: skip
    """`join_` with a decision that was made elsewhere.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits, links
        The members.
    row : int
        The member, in no atom so far.
    a_vec, a_code, a_fit, a_head, a_head_fit, a_limits, total, a_links, alive, basis, strength
        The atoms, see `Atoms`.
    slot : int
        Its atom; a count of 0 starts a new one.
    rotation : int16[256, d] or int16[0, d]
    """
    members = lent_table(Codes(vec, code, fit, head, head_fit, limits))
    atoms = lent_atoms(
        Atoms(a_vec, a_code, a_fit, a_head, a_head_fit, a_limits, total, a_links, alive, basis,
              strength)
    )  # fmt: skip
    join_(members, links, row, atoms, slot, rotation)


@kernel(f"void({CODES}, int32[:, ::1], int64, {ATOMS}, int64, {ROTATION})")
def rebuild_atoms_(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64, links: I32, n: Int,
    a_vec: F32, a_code: I8, a_fit: F32, a_head: I8, a_head_fit: F32, a_limits: F64, total: F64,
    a_links: I32, alive: U8, basis: F32, strength: F64, slots: Int, rotation: Any,
) -> None:  # fmt: skip
    """Make all atoms anew from the slots of the members.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits, links
        The members; ``links[:, SLOT]`` is given, the chains are written.
    n : int
        Rows in use.
    a_vec, a_code, a_fit, a_head, a_head_fit, a_limits, total, a_links, alive, basis, strength
        The atoms, see `Atoms`; all is written.
    slots : int
        Slots in use.
    rotation : int16[256, d] or int16[0, d]
    """
    members = lent_table(Codes(vec, code, fit, head, head_fit, limits))
    atoms = lent_atoms(
        Atoms(a_vec, a_code, a_fit, a_head, a_head_fit, a_limits, total, a_links, alive, basis,
              strength)
    )  # fmt: skip
    for slot in range(slots):
        a_links[slot, COUNT] = 0
        a_links[slot, FIRST] = -1
        a_links[slot, LAST] = -1
    for row in range(n):
        links[row, MATE] = -1
        member_slot = np.int64(links[row, SLOT])
        if member_slot < 0:
            continue
        chain = a_links[member_slot]
        if chain[COUNT] == 0:
            chain[FIRST] = row
        else:
            links[chain[LAST], MATE] = row
        chain[LAST] = row
        chain[COUNT] += 1
    for slot in range(slots):
        rebuild_atom_(members, links, atoms, slot, rotation)
