"""Places of a read path's weights in the array that kernels take. Nothing here needs Numba.

They are those of the fields of `rsm_fast.retrieval.HybridSettings`, which says what each means.
"""

from __future__ import annotations

__all__ = [
    "DENSE",
    "DENSE_FLOOR",
    "LABELLED_SHARE",
    "LENGTH_OFFSET",
    "LENGTH_POWER",
    "LEXICAL",
    "LEXICAL_FLOOR",
    "LONGEST_RANGE",
    "NEWER_COSINE",
    "NEWER_REACH",
    "NEWER_SLACK",
    "NEWER_SLOPE",
    "SMOOTHING",
    "SPEAKER",
    "STEP_IN_RANGE",
    "STEP_NAMED",
    "STEP_NEXT",
    "STEP_SECOND",
    "WINDOW",
]

DENSE, LEXICAL, WINDOW, SMOOTHING, DENSE_FLOOR, LEXICAL_FLOOR = range(6)
LENGTH_POWER, LENGTH_OFFSET, LABELLED_SHARE, LONGEST_RANGE = range(6, 10)
NEWER_REACH, NEWER_COSINE, NEWER_SLOPE, NEWER_SLACK = range(10, 14)
STEP_NAMED, STEP_IN_RANGE, STEP_NEXT, STEP_SECOND, SPEAKER = range(14, 19)
