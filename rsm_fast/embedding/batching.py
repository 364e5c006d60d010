"""Which texts run together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["GROUP_TEXTS", "GROUP_TOKENS", "group_by_length"]

# Best CPU time per token lies at about 256 tokens a run; above 512 the working set leaves
# the L2 cache and it gets slower (bench/embedding_options.py).
GROUP_TOKENS: Final = 256
GROUP_TEXTS: Final = 16


def group_by_length(lengths: Sequence[int], *, alone: bool) -> list[list[int]]:
    """Split texts into groups of similar length, longest group first.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of each text.
    alone : bool
        One text a group: models with dynamic int8 scale their activations over the whole
        batch, so only so is a text's vector independent of its neighbours.

    Returns
    -------
    list of lists of int
        Positions in ``lengths``; each stands in one group. A group of more than one text has at
        most `GROUP_TOKENS` padded tokens and `GROUP_TEXTS` texts, and its shortest text is
        at most max(8, 6 %) shorter than its longest.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    if alone:
        return [[index] for index in order]
    groups: list[list[int]] = []
    longest = 0
    for index in order:
        group = groups[-1] if groups else []
        fits = (
            bool(group)
            and len(group) < GROUP_TEXTS
            and (len(group) + 1) * longest <= GROUP_TOKENS
            and longest - lengths[index] <= max(8, longest * 6 // 100)
        )
        if fits:
            group.append(index)
        else:
            groups.append([index])
            longest = lengths[index]
    return groups
