"""Slow, obvious twins of the kernels behind the read path, from the definitions, in float64."""

from __future__ import annotations

from collections import Counter
from math import log, sqrt

import numpy as np


def window_of(row, prev, next_, alive, window):
    """Rows of a chunk's window: itself and living neighbours at most `window` steps away."""
    rows = [row]
    for links in (prev, next_):
        at = row
        for _ in range(window):
            at = links[at]
            if at < 0:
                break
            if alive[at]:
                rows.append(at)
    return rows


def window_lengths(lengths, prev, next_, alive, window):
    """Twin of `bm25.window_lengths_`: the lengths and their mean over living chunks."""
    sums = [
        sum(lengths[r] for r in window_of(row, prev, next_, alive, window)) if alive[row] else 0.0
        for row in range(len(lengths))
    ]
    living = [size for size, is_alive in zip(sums, alive, strict=True) if is_alive]
    return sums, sum(living) / len(living) if living else 0.0


def bm25_scores(documents, question, prev, next_, alive, window, k1, b):
    """Twin of `LexicalIndex.scores` and of `bm25.bm25_accumulate_`.

    `documents` holds each row's list of terms, None for one that was removed.
    """
    n = len(documents)
    stored = [d for d in documents if d is not None]
    sizes, mean = window_lengths(
        [len(d) if d is not None else 0 for d in documents], prev, next_, alive, window
    )
    counts = [Counter(d or ()) for d in documents]
    scores = [0.0] * n
    for term, times in Counter(question).items():
        holders = sum(term in d for d in stored)
        if not holders:
            continue
        idf = log(1 + (len(stored) - holders + 0.5) / (holders + 0.5))
        for row in range(n):
            if not alive[row]:
                continue
            frequency = sum(
                min(counts[r][term], 255) for r in window_of(row, prev, next_, alive, window)
            )
            norm = k1 * (1 - b + b * sizes[row] / mean) if mean else k1 * (1 - b)
            if frequency:
                scores[row] += times * idf * frequency * (k1 + 1) / (frequency + norm)
    return scores


class PostingsOracle:
    """Twin of `bm25.insert_postings_`, `bm25.remove_postings_` and `bm25.copy_postings_`.

    A dict from term to {row: count}.
    """

    def __init__(self):
        self.postings = {}

    def insert(self, row, terms):
        for term, count in Counter(terms).items():
            self.postings.setdefault(term, {})[row] = min(count, 255)

    def remove(self, row):
        for rows in self.postings.values():
            rows.pop(row, None)


def z_scores(values, eligible, floor):
    """z-scores over the eligible; 0 elsewhere and where nothing deviates."""
    chosen = [float(v) for v, e in zip(values, eligible, strict=True) if e]
    if not chosen:
        return [0.0] * len(values)
    mean = sum(chosen) / len(chosen)
    deviation = max(sqrt(sum((v - mean) ** 2 for v in chosen) / len(chosen)), floor)
    if deviation < 1e-6:
        return [0.0] * len(values)
    return [
        (float(v) - mean) / deviation if e else 0.0 for v, e in zip(values, eligible, strict=True)
    ]


def hybrid_scores(dense, lexical, prev, next_, eligible, weights, smoothing, floors):
    """Twin of `scoring.hybrid_scores_`."""
    dense_z = z_scores(dense, eligible, floors[0])
    lexical_z = z_scores(lexical, eligible, floors[1])
    base = [weights[0] * d + weights[1] * x for d, x in zip(dense_z, lexical_z, strict=True)]
    out = []
    for row in range(len(base)):
        near = [base[r] for r in (prev[row], next_[row]) if r >= 0 and eligible[r]]
        extra = smoothing * sum(near) / len(near) if near else 0.0
        out.append(base[row] + extra if eligible[row] else 0.0)
    return out


def exact_scores(near, exact, scores, gain, eligible):
    """Twin of `ordering.exact_first_`, for all rows."""
    return [
        float(score) + gain * (exact[row] - near[row]) if eligible[row] else 0.0
        for row, score in enumerate(scores)
    ]


def step_bonus(steps, named, ranges, longest_range, bonus):
    """Twin of `scoring.step_bonus_`: what is added to each chunk."""
    out = []
    for step in steps:
        earned = [0.0]
        if step >= 0:
            for name in named:
                distance = abs(step - name)
                if distance <= 2:
                    earned.append(bonus[(0, 2, 3)[distance]])
            for first, last in ranges:
                if last - first < longest_range and first <= step <= last:
                    earned.append(bonus[1])
        out.append(max(earned))
    return out


def admission_order(scores, eligible, tokens, micros, power, offset):
    """Twin of `ordering.best_first_`, and of `retrieval.admission_order` without a limit."""
    rows = [row for row, e in enumerate(eligible) if e]
    least = min((float(scores[row]) for row in rows), default=0.0)
    worth = {r: (float(scores[r]) - least) / (tokens[r] + offset) ** power for r in rows}
    return sorted(rows, key=lambda r: (-worth[r], -micros[r], r))


def raise_rows(rows, eligible, bonus, scores):
    """Twin of `scoring.raise_rows_`."""
    return [s + bonus if row in rows and eligible[row] else s for row, s in enumerate(scores)]


def newer_first(cosine, scores, tokens, micros, least_cosine, slope, slack, order):
    """Twin of `ordering.newer_first_`: take one chunk after the other from what is left."""
    left, out = list(order), []
    while left:
        here = left[0]
        before = [
            other
            for other in left[1:]
            if cosine[here][other] >= least_cosine
            and micros[other] > micros[here]
            and tokens[other] <= tokens[here] + slack
            and scores[other] >= scores[here] - slope * (cosine[here][other] - least_cosine / 2)
        ]
        newest = max(before, key=lambda other: (micros[other], -left.index(other)), default=here)
        out.append(newest)
        left.remove(newest)
    return out


def rank_scores(
    near, exact, documents, terms, prev, next_, alive, eligible, weights, words,
    steps, asked, raised, got,
):  # fmt: skip
    """Twin of `read.rank_`: exact scores, and `got` as it may be, row by row exact or of codes."""
    window = weights.window
    lexical = bm25_scores(documents, terms, prev, next_, alive, window, words.k1, words.b)
    by, floors = (weights.dense, weights.lexical), (weights.dense_floor, weights.lexical_floor)
    scores = hybrid_scores(near, lexical, prev, next_, eligible, by, weights.smoothing, floors)
    labels = [step if e else -1 for step, e in zip(steps, eligible, strict=True)]
    bonus = weights.step_named, weights.step_in_range, weights.step_next, weights.step_second
    added = step_bonus(labels, asked.named, asked.ranges, weights.longest_range, bonus)
    scores = [score + more for score, more in zip(scores, added, strict=True)]
    scores = raise_rows(set(raised.tolist()), eligible, weights.speaker, scores)
    chosen = [float(v) for v, e in zip(near, eligible, strict=True) if e]
    deviation = max(np.std(chosen) if chosen else 0.0, weights.dense_floor)
    gain = weights.dense / deviation if deviation >= 1e-6 else 0.0
    all_exact = np.array(exact_scores(near, exact, scores, gain, eligible))
    scores = np.array(scores)
    return all_exact, np.where(abs(all_exact - got) < abs(scores - got), all_exact, scores)
