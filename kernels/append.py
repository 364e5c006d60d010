"""Everything that adding one chunk to the arena writes, in one compiled call."""

from __future__ import annotations

from typing import Any

import numpy as np

from rsm_fast.kernels.jit import F32, F64, I8, I32, I64, U8, Int, kernel
from rsm_fast.kernels.quantize import centre_row_, encode_row_
from rsm_fast.kernels.rows import CODES, MATE, ROTATION, SLOT, TURNED

__all__ = ["COLUMNS", "append_row_", "put_row_"]


COLUMNS = (
    "int32[::1], int64[::1], int32[::1], int32[::1], int32[::1], uint8[::1], int64[::1], "
    "int32[::1], int32[:, ::1], uint8[::1]"
)
"""The columns of an arena beside its table, spelled out in a signature."""


@kernel("boolean(float32[::1])", fastmath=("reassoc",))
def _finite(x: F32) -> bool:
    total = np.float32(0.0)
    for j in range(x.shape[0]):
        total += x[j] * np.float32(0.0)  # NaN for NaN and infinities
    return total == np.float32(0.0)  # type: ignore[no-any-return]


@kernel(f"int64({CODES}, {ROTATION}, {COLUMNS}, int64, float32[::1], float32[::1], int64[::1])")
def append_row_(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64, rotation: Any,
    tokens: I32, micros: I64, atom: I32, prev: I32, following: I32,
    alive: U8, pk: I64, session: I32, links: I32, gated: U8,
    row: Int, raw: F32, centre: F32, values: I64,
) -> Int:  # fmt: skip
    """Write the next row of every column.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits, rotation
        The table of vectors.
    tokens, micros, atom, prev, following, alive, pk, session, links, gated
        The other columns of the arena.
    row : int
        The row to write.
    raw : float32[dim]
        The raw unit vector.
    centre : float32[dim] or float32[0]
        What to subtract before normalising; empty: nothing.
    values : int64[5]
        Tokens, microseconds, key, session, and the last living row of the session or -1.

    Returns
    -------
    int
        1, or 0 if the vector is not finite; nothing is written then.
    """
    x, turned = np.zeros(code.shape[1], np.float32), np.empty(TURNED, np.float32)
    return put_row_(
        vec, code, fit, head, head_fit, limits, rotation, tokens, micros, atom, prev, following,
        alive, pk, session, links, gated, row, raw, centre, values, x, turned,
    )  # fmt: skip


@kernel(
    f"int64({CODES}, {ROTATION}, {COLUMNS}, int64, float32[::1], float32[::1], int64[::1], "
    "float32[::1], float32[::1])",
    inner=True,
)
def put_row_(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64, rotation: Any,
    tokens: I32, micros: I64, atom: I32, prev: I32, following: I32,
    alive: U8, pk: I64, session: I32, links: I32, gated: U8,
    row: Int, raw: F32, centre: F32, values: I64, x: F32, turned: F32,
) -> Int:  # fmt: skip
    """`append_row_`, and what it found out about the vector.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits, rotation
        The table of vectors.
    tokens, micros, atom, prev, following, alive, pk, session, links, gated
        The other columns of the arena.
    row, raw, centre, values
        See `append_row_`.
    x : float32[d]
        Zeros. Result: the vector's true values.
    turned : float32[256]
        Result: the same after rotation, if there is one.

    Returns
    -------
    int
        1, or 0 if the vector is not finite; nothing is written then.
    """
    if centre.shape[0] > 0:
        centre_row_(raw, centre, x)
    else:
        for j in range(raw.shape[0]):
            x[j] = raw[j]
    if not _finite(raw):
        return 0
    encode_row_(vec, code, fit, head, head_fit, limits, row, x, rotation, turned)
    tokens[row] = np.int32(values[0])
    micros[row] = values[1]
    pk[row] = values[2]
    session[row] = np.int32(values[3])
    before = values[4]
    atom[row] = -1
    prev[row] = np.int32(before)
    following[row] = -1
    alive[row] = 1
    gated[row] = 0
    links[row, SLOT] = -1
    links[row, MATE] = -1
    if before >= 0:
        following[before] = np.int32(row)
    return 1
