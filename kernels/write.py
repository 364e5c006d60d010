"""A whole write after the embedding, in one compiled call."""

from __future__ import annotations

from typing import Any

import numpy as np

from rsm_fast.kernels.append import COLUMNS, put_row_
from rsm_fast.kernels.atoms import ATOMS, lent_atoms
from rsm_fast.kernels.gate import place_
from rsm_fast.kernels.jit import F32, F64, I8, I32, I64, U8, Int, Real, kernel
from rsm_fast.kernels.layout import Atoms
from rsm_fast.kernels.lending import lent_table
from rsm_fast.kernels.rows import CODES, ROTATION, TURNED, Codes
from rsm_fast.kernels.topk import BUFFER, WHOLES, floats_of

__all__ = ["write_row_"]


@kernel(
    f"int64({CODES}, {ROTATION}, {COLUMNS}, int64, float32[::1], float32[::1], int64[::1], "
    f"{ATOMS}, int64, int64, float64, int64[::1])"
)
def write_row_(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64, rotation: Any,
    tokens: I32, micros: I64, atom: I32, prev: I32, following: I32,
    alive: U8, pk: I64, session: I32, links: I32, gated: U8,
    row: Int, raw: F32, centre: F32, values: I64,
    a_vec: F32, a_code: I8, a_fit: F32, a_head: I8, a_head_fit: F32, a_limits: F64, total: F64,
    a_links: I32, a_alive: U8, basis: F32, strength: F64, slots: Int,
    gate: Int, tau: Real, work: I64,
) -> Int:  # fmt: skip
    """Append a row, decide its atom, and bring the atom's statistics up to date.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits, rotation
        The members' table, see `rsm_fast.kernels.append.append_row_`.
    tokens, micros, atom, prev, following, alive, pk, session, links, gated
        The other columns of the arena.
    row : int
        The row to write.
    raw, centre, values
        See `rsm_fast.kernels.append.append_row_`.
    a_vec, a_code, a_fit, a_head, a_head_fit, a_limits, total, a_links, a_alive, basis, strength
        The atoms, see `rsm_fast.kernels.layout.Atoms`; room for one more is given.
    slots : int
        Slots in use.
    gate, tau, work
        See `rsm_fast.kernels.gate.choose_`.

    Returns
    -------
    int
        The slot of the row's atom, ``slots`` for a new one; -1 if the vector is not finite,
        and nothing is written then.
    """
    members = lent_table(Codes(vec, code, fit, head, head_fit, limits))
    atoms = lent_atoms(
        Atoms(a_vec, a_code, a_fit, a_head, a_head_fit, a_limits, total, a_links, a_alive, basis,
              strength)
    )  # fmt: skip
    x, turned = np.zeros(code.shape[1], np.float32), np.empty(TURNED, np.float32)
    if put_row_(
        members.vec, members.code, members.fit, members.head, members.head_fit, members.limits,
        rotation, tokens, micros, atom, prev, following, alive, pk, session, links, gated, row,
        raw, centre, values, x, turned,
    ) == 0:  # fmt: skip
        return -1
    n = np.int64(row)
    while n > 0 and gated[n - 1] == 0:  # rows that wait need no scan
        n -= 1
    known = np.int64(rotation.shape[0])
    return place_(
        members, links, gated, n, atoms, slots, rotation, row, x, gate, tau, work, turned, known,
        np.empty(code.shape[1] + TURNED, np.int8), np.empty(floats_of(max(n, slots)), np.float32),
        np.empty(WHOLES + 1, np.int64), np.empty(BUFFER + 1),
    )[1]  # fmt: skip
