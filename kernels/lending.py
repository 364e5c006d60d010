"""Arrays that nobody counts: what Python hands to a kernel lives until the call ends.

Numba counts a reference whenever an array goes into a named tuple or comes out of one, by an
instruction that locks the bus; a search of a thousand rows spent a tenth of its time so. An
array without an owner has nothing to count.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from rsm_fast.kernels.jit import JIT_DISABLED, kernel
from rsm_fast.kernels.rows import CODES_TYPE, Codes

__all__ = ["lent", "lent_table"]


def _make_intrinsic() -> Any:
    @intrinsic
    def lent(typingctx, array):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            kind = signature.args[0]
            made = context.make_array(kind)(context, builder, arguments[0])
            made.meminfo = ir.Constant(made.meminfo.type, None)
            made.parent = cgutils.get_null_value(made.parent.type)
            return made._getvalue()

        return array(array), generate

    return lent


def _lent(array: Any) -> Any:
    return array


lent = _lent if JIT_DISABLED else _make_intrinsic()
"""An argument as an array without an owner; never something that the same kernel made, which
would be gone after its last mention: its caller holds an argument until the call ends."""


@kernel(CODES_TYPE(CODES_TYPE), inline=True)
def lent_table(table: Codes) -> Codes:
    """A table of `lent` arrays.

    Parameters
    ----------
    table : Codes

    Returns
    -------
    Codes
    """
    return Codes(
        lent(table.vec),
        lent(table.code),
        lent(table.fit),
        lent(table.head),
        lent(table.head_fit),
        lent(table.limits),
    )
