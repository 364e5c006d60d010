"""The words that tell an atom from the rest of a memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from math import log

from rsm_fast.analysis import analyse

__all__ = ["characteristic_terms"]

_WORD = re.compile(r"[^\W_][\w'.,:-]*[^\W_]|[^\W_]")


def characteristic_terms(
    texts: Sequence[str],
    document_frequency: Callable[[str], int],
    documents: int,
    *,
    count: int = 6,
) -> tuple[str, ...]:
    """The terms that stand in an atom's chunks far more often than in all chunks.

    A term's weight is the Kullback-Leibler term p log(p / q): p the share of the atom's chunks that
    hold it, q the share of all chunks.

    Parameters
    ----------
    texts : sequence of str
        The atom's chunks, or some of them.
    document_frequency : callable
        In how many of all chunks a term stands.
    documents : int
        How many chunks there are in all, 1 or more.
    count : int
        Terms wanted at most.

    Returns
    -------
    tuple of str
        As written most often in the texts, lower case, heaviest first.
    """
    held: Counter[str] = Counter()
    spellings: dict[str, Counter[str]] = {}
    for text in texts:
        terms = set(analyse(text))
        held.update(terms)
        for word in _WORD.findall(text):
            for term in analyse(word):
                if term in terms:
                    spellings.setdefault(term, Counter())[word.lower()] += 1
    weights = {}
    for term, number in held.items():
        inside = number / len(texts)
        outside = max(document_frequency(term), 1) / documents
        weights[term] = inside * log(inside / min(outside, 1.0))
    best = sorted((term for term in weights if weights[term] > 0), key=lambda t: (-weights[t], t))
    spelled = dict.fromkeys(_spelling(term, spellings) for term in best)  # "A-55" is two terms
    return tuple(spelled)[:count]


def _spelling(term: str, spellings: dict[str, Counter[str]]) -> str:
    known = spellings.get(term)
    return term if known is None else min(known, key=lambda word: (-known[word], word))
