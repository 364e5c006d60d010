"""A whole read after analysis and routing, in one compiled call."""

import numpy as np

from rsm_fast.kernels.admission import ADMISSION, COLUMNS, admit_
from rsm_fast.kernels.bm25 import bm25_accumulate_
from rsm_fast.kernels.jit import F32, F64, I8, I32, I64, U8, Int, Real, kernel
from rsm_fast.kernels.offers import KNOWN, OFFERED, PRICES
from rsm_fast.kernels.ordering import exact_first_, newer_first_
from rsm_fast.kernels.rows import CODES
from rsm_fast.kernels.scan import near_scores_
from rsm_fast.kernels.scoring import hybrid_scores_, raise_rows_, step_bonus_
from rsm_fast.kernels.weights import (
    DENSE,
    DENSE_FLOOR,
    LENGTH_OFFSET,
    LENGTH_POWER,
    LEXICAL,
    LEXICAL_FLOOR,
    LONGEST_RANGE,
    NEWER_COSINE,
    NEWER_REACH,
    NEWER_SLACK,
    NEWER_SLOPE,
    SMOOTHING,
    SPEAKER,
    STEP_IN_RANGE,
    STEP_NAMED,
    STEP_NEXT,
    STEP_SECOND,
    WINDOW,
)

__all__ = ["rank_", "read_"]

_QUESTION = (
    f"{CODES}, int64, float32[::1], "
    "int32[::1], int32[::1], uint8[::1], uint8[::1], int32[::1], int64[::1], "
    "int32[::1], float32[::1], int32[::1], int32[::1], int32[::1], uint8[::1], int32[:, ::1], "
    "float32[::1], float64, int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], "
    "float64[::1], float64[::1], float32[::1], int32[::1]"
)


@kernel(f"int64({_QUESTION})")
def rank_(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64, n: Int, x: F32,
    prev: I32, following: I32, alive: U8, eligible: U8, tokens: I32, micros: I64,
    terms: I32, worths: F32, start: I32, length: I32, pool_rows: I32, pool_counts: U8, spans: I32,
    norm: F32, k1: Real, labels: I32, named: I32, ranges: I32, raised: I32, equal: I32,
    weights: F64, shares: F64, scores: F32, order: I32,
) -> Int:  # fmt: skip
    """Score every chunk by vectors and words, and put the first in the order of admission.

    Parameters
    ----------
    vec, code, fit, head, head_fit, limits
        The table, see `rsm_fast.kernels.rows.Codes`.
    n : int
        Rows in use.
    x : float32[d]
        The question's vector.
    prev, following : int32[n]
        Row of each chunk's neighbour in its session, -1 for none.
    alive, eligible : uint8[n]
        Chunks whose words count; chunks that the filter lets through.
    tokens, micros : int32[n], int64[n]
    terms, worths, start, length, pool_rows, pool_counts, spans, norm, k1
        See `rsm_fast.kernels.bm25.bm25_accumulate_`.
    labels : int32[n] or int32[0]
        Step label of each chunk, -1 for none; read where `named` is not empty.
    named, ranges : int32[m], int32[2 r]
        Steps that the question names, see `rsm_fast.kernels.scoring.step_bonus_`.
    raised : int32[m]
        Chunks of the speakers whom it is about.
    equal : int32[e]
        Eligible chunks whose text is the question; they go first.
    weights : float64[m]
        See `rsm_fast.kernels.weights`.
    shares : float64[m]
        See `rsm_fast.kernels.ordering.best_first_`.
    scores : float32[n]
        Result; exact for the rows in the order, and for others as far as the order needs it.
    order : int32[e + k]
        Result: the chunks of `equal`, then of the k best those that are not among them.

    Returns
    -------
    int
        Rows in the order.
    """
    padded = np.empty(n + 3, np.float32)
    error = near_scores_(vec, code, fit, head, head_fit, limits, n, x, padded)
    near = padded[:n]
    lexical = np.zeros(n, np.float32)
    bm25_accumulate_(
        terms, worths, start, length, pool_rows, pool_counts, prev, following, alive,
        np.int64(weights[WINDOW]), spans, norm, k1, lexical,
    )  # fmt: skip
    gain = hybrid_scores_(
        near, lexical, prev, following, eligible, weights[DENSE], weights[LEXICAL],
        weights[SMOOTHING], weights[DENSE_FLOOR], weights[LEXICAL_FLOOR],
        np.empty(n, np.float32), scores,
    )  # fmt: skip
    if named.size > 0:
        asked = labels.copy()
        for row in range(n):
            if eligible[row] == 0:
                asked[row] = -1
        bonus = np.empty(4, np.float32)
        bonus[0], bonus[1] = weights[STEP_NAMED], weights[STEP_IN_RANGE]
        bonus[2], bonus[3] = weights[STEP_NEXT], weights[STEP_SECOND]
        step_bonus_(asked, named, ranges, np.int64(weights[LONGEST_RANGE]), bonus, scores)
    raise_rows_(raised, eligible, np.float32(weights[SPEAKER]), scores)
    best = np.empty(order.size - equal.size, np.int32)
    size = exact_first_(
        vec, code, fit, x, near, error, gain, eligible, tokens, micros, shares,
        weights[LENGTH_OFFSET], weights[LENGTH_POWER], np.empty(n, np.float64), scores, best,
    )  # fmt: skip
    newer_first_(
        code, best[: min(size, np.int64(weights[NEWER_REACH]))], scores, tokens, micros,
        weights[NEWER_COSINE], weights[NEWER_SLOPE], np.int64(weights[NEWER_SLACK]),
    )  # fmt: skip
    taken = np.zeros(n if equal.size > 0 else 0, np.uint8)
    for place in range(equal.size):
        order[place] = equal[place]
        taken[equal[place]] = 1
    count: Int = np.int64(equal.size)
    for place in range(size):
        if equal.size == 0 or taken[best[place]] == 0:
            order[count] = best[place]
            count += 1
    return count


_KNOWN = (
    "int32[::1], int32[::1], int64[::1], int32[::1], int32[::1], int64[::1], int64[:, ::1], "
    "int64, int64, int32[::1]"
)


@kernel(f"int64({_QUESTION}, {_KNOWN}, {COLUMNS}, {ADMISSION})")
def read_(
    vec: F32, code: I8, fit: F32, head: I8, head_fit: F32, limits: F64, n: Int, x: F32,
    prev: I32, following: I32, alive: U8, eligible: U8, tokens: I32, micros: I64,
    terms: I32, worths: F32, start: I32, length: I32, pool_rows: I32, pool_counts: U8, spans: I32,
    norm: F32, k1: Real, labels: I32, named: I32, ranges: I32, raised: I32, equal: I32,
    weights: F64, shares: F64, scores: F32, order: I32,
    versions: I32, groups: I32, hashes: I64,
    slots: I32, slot_versions: I32, slot_twins: I64, slot_prices: I64, slots_used: Int,
    header: Int, offer_versions: I32, offer_micros: I64, section: I64, headers: I64,
    offer_tokens: I32, texts: I64, twins: I64, prices: I64,
    tally: I64, pool: I64, entries: I64, skipped: I64, section_keys: I64, section_first: I32,
    text_keys: I64, text_values: I32, twin_keys: I64, twin_entries: I32, seen_keys: I64,
    seen_values: I32, ditto: Int, fold: Int, checked: Int,
) -> Int:  # fmt: skip
    """Score all chunks, order them, and admit the first to a pack.

    Parameters
    ----------
    vec, ..., order
        See `rank_`.
    versions, hashes : int32[n], int64[n]
        How often each chunk's content has changed; hash of its text.
    groups : int32[n] or int32[0]
        What makes a section: number of each chunk's session or atom; empty: there is only one.
    slots, slot_versions, slot_twins, slot_prices, slots_used
        What chunks are known to cost, see `rsm_fast.packing.PriceTable`.
    header : int
        Tokens of a section's header beside the day, -1 where they differ.
    offer_versions : int32[e + k]
        Result: how often the content of each offer has changed.
    offer_micros, section, headers, offer_tokens, texts, twins, prices
        Result: columns of the offers, in the order. Their number stands in ``tally[OFFERED]``.
    tally, pool, entries, ..., checked
        See `rsm_fast.kernels.admission.admit_`.

    Returns
    -------
    int
        As of `rsm_fast.kernels.admission.admit_`.
    """
    count = rank_(
        vec, code, fit, head, head_fit, limits, n, x, prev, following, alive, eligible, tokens,
        micros, terms, worths, start, length, pool_rows, pool_counts, spans, norm, k1, labels,
        named, ranges, raised, equal, weights, shares, scores, order,
    )  # fmt: skip
    tally[OFFERED] = count
    for place in range(count):
        row = order[place]
        offer_versions[place] = versions[row]
        offer_micros[place] = micros[row]
        section[place] = groups[row] if groups.size > 0 else 0
        headers[place] = header
        offer_tokens[place] = tokens[row]
        texts[place] = hashes[row]
        slot = slots[row]
        prices[place, KNOWN] = 0
        # another thread may be learning: what it has not finished lies beyond the slots in use
        if slot < slots_used and slot_versions[slot] == versions[row]:
            twins[place] = slot_twins[slot]
            for item in range(PRICES):
                prices[place, item] = slot_prices[slot, item]
    return admit_(
        order[:count], offer_micros[:count], section[:count], headers[:count],
        offer_tokens[:count], texts[:count], twins[:count], prices[:count], tally, pool,
        entries, skipped, section_keys, section_first, text_keys, text_values, twin_keys,
        twin_entries, seen_keys, seen_values, ditto, fold, checked,
    )  # fmt: skip
