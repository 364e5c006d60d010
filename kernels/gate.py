"""The gates: which atom a new member joins, decided as the float64 definition would.

``max-member``: an atom's score is the largest cosine with its mean or any member; the best
atom wins if its score reaches tau. ``nearest-mean``: the atom of nearest mean, if the
cosine with that mean or with any of its members reaches tau. ``centroid``: the atom of
nearest mean, if that cosine reaches tau. Equal scores go to the atom of lowest number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from rsm_fast.kernels.atoms import ATOMS, ATOMS_TYPE, Atoms, join_, lent_atoms, load_row_
from rsm_fast.kernels.dot_int8 import dot1
from rsm_fast.kernels.jit import F32, F64, I8, I32, I64, U8, Int, Real, kernel
from rsm_fast.kernels.layout import CENTROID, MAX_MEMBER, NEAREST_MEAN
from rsm_fast.kernels.lending import lent, lent_table
from rsm_fast.kernels.quantize import make_query
from rsm_fast.kernels.rows import (
    CODES,
    CODES_TYPE,
    ERROR,
    FIRST,
    HEAD,
    MATE,
    QUERY_TYPE,
    ROTATION,
    SCALE,
    SLOT,
    TURNED,
    Codes,
    Query,
)
from rsm_fast.kernels.topk import (
    BUFFER,
    NECK_ROWS,
    WHOLES,
    collect_,
    exact_dot,
    float32_below,
    floats_of,
    room_in,
    scan_,
    search_,
)

__all__ = [
    "CENTROID",
    "MAX_MEMBER",
    "NEAREST_MEAN",
    "assign_rows_",
    "choose_",
    "member_above",
    "place_",
]


_f8, _i8 = types.float64, types.int64
_links, _mask = types.int32[:, ::1], types.uint8[::1]
_best = types.Tuple((_f8, _i8))


@kernel(
    _best(CODES_TYPE, QUERY_TYPE, _i8, _mask, _links, _f8, _i8[::1], types.float32[::1], _i8[::1])
)
def best_member_(
    table: Codes, query: Query, stop: Int, mask: U8, links: I32, floor: Real, work: I64,
    floats: F32, wholes: I64,
) -> tuple[Real, Int]:  # fmt: skip
    """Largest score of a member and the lowest slot that has it.

    Parameters
    ----------
    table : Codes
        The members.
    query : Query
    stop : int
        Rows in use.
    mask : uint8[stop]
        Rows with 0 are left out.
    links : int32[n, 2]
        Of the members.
    floor : float64
        Only scores of at least this.
    work : int64[4]
        Counters, see `search_`.
    floats, wholes : float32[n], int64[m]
        Memory for a search, which the caller holds.

    Returns
    -------
    score, slot
        ``(-inf, -1)`` if there is none.
    """
    links, work = lent(links), lent(work)
    room = room_in(lent(floats), lent(wholes), stop)
    buffer, uppers = room.rows, room.uppers
    best, winner = -np.inf, np.int64(-1)
    one = np.int64(1)  # a literal would make a specialisation of its own, as would -1
    wanted = floor
    scan_(table, query, stop, room.bounds, room.peaks)
    start = np.int64(-1)  # a literal would make a specialisation of its own
    while start < stop:
        start, count = collect_(
            table, query, start, stop, mask, float32_below(wanted), one, room, work
        )
        for c in range(count):
            if np.float64(uppers[c]) < wanted:
                continue
            work[3] += 1
            score = exact_dot(table, buffer[c], query.exact)
            slot = np.int64(links[buffer[c], SLOT])
            if score < wanted or (score == best and slot > winner):
                continue
            best, winner, wanted = score, slot, score
    return best, winner


@kernel(_i8(CODES_TYPE, QUERY_TYPE, _links, _i8, _f8, _i8[::1]))
def member_above(table: Codes, query: Query, links: I32, first: Int, tau: Real, work: I64) -> Int:
    """Whether any member of one chain has a score of at least tau.

    Parameters
    ----------
    table : Codes
        The members.
    query : Query
    links : int32[n, 2]
        Of the members.
    first : int
        First row of the chain.
    tau : float64
    work : int64[4]
        Counters, see `search_`.

    Returns
    -------
    int
        1 or 0.
    """
    code, fit = table.code, table.fit
    q_code, q_correction, q_scale = query.code, query.correction, query.scale
    reach, rest = query.reach, query.rest
    row = first
    least = float32_below(tau)
    while row >= 0:
        work[0] += 1
        lane = row & 3
        slack = fit[row >> 2, ERROR, lane] * reach + rest
        dot = dot1(code, row, q_code, q_correction)
        scale = fit[row >> 2, SCALE, lane] * q_scale
        if np.float32(dot) * scale + slack >= least:
            work[3] += 1
            if exact_dot(table, row, query.exact) >= tau:
                return 1
        row = np.int64(links[row, MATE])
    return 0


@kernel(
    _best(
        CODES_TYPE, _links, _mask, _i8, ATOMS_TYPE, _i8, types.int16[:, ::1], _i8,
        types.float32[::1], _i8, _f8, _i8[::1], types.float32[::1], _i8, types.int8[::1],
        types.float32[::1], _i8[::1], types.float64[::1],
    )
)  # fmt: skip
def choose_(
    members: Codes, links: I32, gated: U8, n: Int, atoms: Atoms, slots: Int,
    rotation: Any, row: Int, x: F32, gate: Int, tau: Real, work: I64, turned: F32, known: Int,
    code: I8, floats: F32, wholes: I64, exact: F64,
) -> tuple[Real, Int]:  # fmt: skip
    """Decide where a member goes.

    Parameters
    ----------
    members : Codes
    links : int32[n, 2]
        Of the members.
    gated : uint8[n]
        1 for members that are in an atom.
    n : int
        Rows in use.
    atoms : Atoms
    slots : int
        Slots in use.
    rotation : int16[256, d] or int16[0, d]
    row : int
        The member; its codes are in the table already, itself it is in no atom.
    x : float32[d]
        Its true values.
    gate : int
        `MAX_MEMBER`, `NEAREST_MEAN` or `CENTROID`.
    tau : float64
    work : int64[4]
        Counters, see `search_`.
    turned, known
        See `rsm_fast.kernels.quantize.make_query`.
    code : int8[d + 256]
        Memory, as are the others; the caller holds all of it.
    floats, wholes, exact : float32[`floats_of` rows], int64[`WHOLES` + 1], float64[`BUFFER` + 1]

    Returns
    -------
    score, slot
        The best score seen (``-inf``: none that mattered), and the slot to join or -1.
    """
    members, links, gated, x, work = (
        lent_table(members), lent(links), lent(gated), lent(x), lent(work),
    )  # fmt: skip
    means = lent_table(
        Codes(atoms.vec, atoms.code, atoms.fit, atoms.head, atoms.head_fit, atoms.limits)
    )
    rotation, alive, atom_links = lent(rotation), lent(atoms.alive), lent(atoms.links)
    width = x.shape[0]
    code, floats, wholes, exact = lent(code), lent(floats), lent(wholes), lent(exact)
    turned = lent(turned)
    stored = members.code[row]
    for j in range(width):
        code[j] = stored[j]
    scale = np.float64(members.fit[row >> 2, SCALE, row & 3])
    error = np.float64(members.fit[row >> 2, ERROR, row & 3])
    scores, rows = exact[BUFFER:], wholes[WHOLES:]
    best, winner = -np.inf, np.int64(-1)
    floor = -np.inf
    if gate == MAX_MEMBER:
        count = np.int64(TURNED if n >= NECK_ROWS else HEAD)
        query = make_query(members.limits, rotation, count, code, scale, error, x, turned, known)
        known = max(known, count)
        best, winner = best_member_(members, query, n, gated, links, tau, work, floats, wholes)
        floor = max(tau, best)
    count = np.int64(TURNED if slots >= NECK_ROWS or not floor > -np.inf else HEAD)
    some = rotation.shape[0] if means.head.shape[0] > 0 else 0  # few means have no heads
    query = make_query(means.limits, rotation[:some], count, code, scale, error, x, turned, known)
    found = search_(means, query, slots, alive, floor, scores, rows, work, floats, wholes, exact)
    if found == 0:
        return best, winner
    if gate == MAX_MEMBER:
        if scores[0] > best or rows[0] < winner:
            return scores[0], rows[0]
        return best, winner
    if scores[0] >= tau:
        return scores[0], rows[0]
    if gate == NEAREST_MEAN:
        query = make_query(
            members.limits, rotation[:0], count, code, scale, error, x, turned, known
        )
        first = np.int64(atom_links[rows[0], FIRST])
        if member_above(members, query, links, first, tau, work) != 0:
            return scores[0], rows[0]
    return scores[0], np.int64(-1)


@kernel(
    _best(
        CODES_TYPE, _links, _mask, _i8, ATOMS_TYPE, _i8, types.int16[:, ::1], _i8,
        types.float32[::1], _i8, _f8, _i8[::1], types.float32[::1], _i8, types.int8[::1],
        types.float32[::1], _i8[::1], types.float64[::1],
    )
)  # fmt: skip
def place_(
    members: Codes, links: I32, gated: U8, n: Int, atoms: Atoms, slots: Int, rotation: Any,
    row: Int, x: F32, gate: Int, tau: Real, work: I64, turned: F32, known: Int,
    code: I8, floats: F32, wholes: I64, exact: F64,
) -> tuple[Real, Int]:  # fmt: skip
    """`choose_` an atom for a member and merge it there, or into a new one.

    Parameters
    ----------
    members, links, gated, n, atoms, slots, row, x, gate, tau, work, turned, known, code, floats
        See `choose_`; room for one more atom is given.
    wholes, exact
        See `choose_`.
    rotation : int16[256, d] or int16[0, d]

    Returns
    -------
    score, slot
        The score behind the decision, and the slot: ``slots`` for a new atom.
    """
    score, slot = choose_(
        members, links, gated, n, atoms, slots, rotation, row, x, gate, tau, work, turned, known,
        code, floats, wholes, exact,
    )  # fmt: skip
    if slot < 0:
        slot = slots
        for item in range(4):
            atoms.links[slot, item] = 0
    join_(members, links, row, atoms, slot, rotation)
    gated[row] = 1
    return score, slot


@kernel(
    f"int64({CODES}, int32[:, ::1], uint8[::1], int64, {ATOMS}, int64, {ROTATION}, "
    "int64[::1], int64, float64, int64[::1], float64[::1], int64[::1])"
)
def assign_rows_(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64, links: I32, gated: U8,
    n: Int, a_vec: F32, a_code: I8, a_fit: F32, a_head: I8, a_head_fit: F32, a_limits: F64,
    total: F64, a_links: I32, alive: U8, basis: F32, strength: F64, slots: Int, rotation: Any,
    rows: I64, gate: Int, tau: Real, out: I64, scores: F64, work: I64,
) -> Int:  # fmt: skip
    """Gate members one after the other and merge each into its atom.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits, links
        The members.
    gated : uint8[n]
        1 for members that are in an atom; updated.
    n : int
        Rows in use.
    a_vec, a_code, a_fit, a_head, a_head_fit, a_limits, total, a_links, alive, basis, strength
        The atoms, see `rsm_fast.kernels.atoms.Atoms`; room for one more each is given.
    slots : int
        Slots in use.
    rotation : int16[256, d] or int16[0, d]
    rows : int64[m]
        The members to gate, in no atom so far.
    gate, tau
        See `choose_`.
    out : int64[m]
        Result: the slot of each.
    scores : float64[m]
        Result: the score behind each decision.
    work : int64[4]
        Counters, see `search_`.

    Returns
    -------
    int
        Slots in use afterwards.
    """
    members = lent_table(Codes(vec, code, fit, head, head_fit, limits))
    atoms = lent_atoms(
        Atoms(a_vec, a_code, a_fit, a_head, a_head_fit, a_limits, total, a_links, alive, basis,
              strength)
    )  # fmt: skip
    x, turned = np.empty(code.shape[1], np.float32), np.empty(TURNED, np.float32)
    floats = np.empty(floats_of(max(n, slots + rows.shape[0])), np.float32)
    wholes, exact = np.empty(WHOLES + 1, np.int64), np.empty(BUFFER + 1)
    q_code = np.empty(code.shape[1] + TURNED, np.int8)
    nothing = np.int64(0)  # a literal would make a specialisation of its own
    while n > 0 and gated[n - 1] == 0:  # rows that wait need no scan
        n -= 1
    for k in range(rows.shape[0]):
        row = rows[k]
        load_row_(members, row, x)
        score, slot = place_(
            members, links, gated, n, atoms, slots, rotation, row, x, gate, tau, work, turned,
            nothing, q_code, floats, wholes, exact,
        )  # fmt: skip
        slots = max(slots, slot + 1)
        n = max(n, row + 1)
        out[k] = slot
        scores[k] = score
    return slots
