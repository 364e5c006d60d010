"""Which chunks answer a question, and in which order they are tried against the budget.

`question` is what the default read path hands to its kernel, `paper_order` is the order of the
published system. Everything takes columns and gives columns or rows; no state is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields, replace
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

import rsm_fast.kernels as kernels
from rsm_fast.arena import Arena
from rsm_fast.chunking import PLAIN_ROLES
from rsm_fast.errors import InvalidInputError
from rsm_fast.lexical import LexicalIndex

__all__ = [
    "AskedSteps",
    "HybridSettings",
    "admission_order",
    "asked_speakers",
    "asked_steps",
    "labelled_rows",
    "paper_order",
    "question",
    "room_for",
]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_NO_ROWS: I32 = np.empty(0, np.int32)
_LENGTHS = 4096  # tokens that a table of powers covers


@dataclass(frozen=True, slots=True)
class HybridSettings:
    """Weights of the default read path; the defaults are the best that ``bench`` measured.

    Attributes
    ----------
    dense, lexical : float
        Weights of the z-scores of cosine and BM25.
    window : int
        Neighbours on each side whose terms count as the chunk's own in BM25.
    smoothing : float
        Share of the neighbours' mean score that is added.
    dense_floor, lexical_floor : float
        Least deviation a z-score divides by, so that in a store of a few chunks small
        differences stay small.
    length_power, length_offset : float
        A chunk is admitted by (score - least score) / (tokens + offset) ** power.
    labelled_share : float
        A session has step labels if at least this share of its chunks carries one.
    longest_range : int
        Steps in the longest range that the step lookup follows.
    newer_reach : int
        So many chunks at the head of the order are looked at for newer
        ones about the same thing, which go first; 0 turns it off.
    newer_cosine : float
        Two chunks are about the same thing from this cosine on.
    newer_slope : float
        A newer chunk goes first if it scores lower by no more than ``slope * (cosine -
        newer_cosine / 2)``.
    newer_slack : int
        Tokens by which it may be longer than the older one.
    step_named, step_in_range, step_next, step_second : float
        What the step lookup adds to a chunk's score.
    speaker : float
        What is added to the chunks of a speaker whom the question names, and to the user's where
        it names none: facts about people stand in their own words.
    """

    dense: float = 1.0
    lexical: float = 0.65
    window: int = 4
    smoothing: float = 0.25
    dense_floor: float = 0.1
    lexical_floor: float = 0.2
    length_power: float = 0.18
    length_offset: float = 8.0
    labelled_share: float = 0.8
    longest_range: int = 32
    newer_reach: int = 32
    newer_cosine: float = 0.3
    newer_slope: float = 2.5
    newer_slack: int = 8
    step_named: float = 4.0
    step_in_range: float = 3.0
    step_next: float = 2.0
    step_second: float = 1.5
    speaker: float = 1.0

    def __post_init__(self) -> None:
        for name in ("window", "newer_reach", "longest_range"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidInputError(f"{name}: expected a whole number from 0, got {value!r}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
                raise InvalidInputError(f"{field.name}: expected a finite number, got {value!r}")
        if self.length_offset <= 0.0:
            raise InvalidInputError(
                f"length_offset: expected a number above 0, got {self.length_offset!r}"
            )


@dataclass(frozen=True, slots=True)
class AskedSteps:
    """Steps of an agent's run that a question names.

    Attributes
    ----------
    named : tuple of int
        Single steps, ends of ranges included.
    ranges : tuple of (int, int)
        First and last step of each range.
    """

    named: tuple[int, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.named)


_NUMBER = r"(?:steps?\s*|turns?\s*)?#?\s*([0-9]{1,9})"
_RANGE = re.compile(
    rf"\b(between\s+)?(?:steps?|turns?)\s*#?\s*([0-9]{{1,9}})\s*"
    rf"(to|through|thru|until|till|and|[-–—])\s*{_NUMBER}",
    re.IGNORECASE,
)
_LIST = re.compile(
    r"\b(?:steps?|turns?)\s*#?\s*([0-9]{1,9}(?:\s*(?:,|&|\band\b|\bor\b)+\s*[0-9]{1,9}\b)*)",
    re.IGNORECASE,
)


def asked_steps(question: str) -> AskedSteps:
    """Steps that a question names: "step 12", "steps 3, 5 and 9", "from step 3 to step 7"."""
    named: dict[int, None] = {}
    ranges: dict[tuple[int, int], None] = {}
    for match in _RANGE.finditer(question):
        first, last = int(match[2]), int(match[4])
        if match[3].lower() != "and" or match[1]:
            ranges[min(first, last), max(first, last)] = None
            named.update(dict.fromkeys((first, last)))
    for match in _LIST.finditer(question):
        named.update(dict.fromkeys(int(number) for number in re.findall("[0-9]+", match[1])))
    return AskedSteps(tuple(named), tuple(ranges))


def asked_speakers(lexical: LexicalIndex, terms: Iterable[str]) -> I32:
    """Chunks of the speakers whom a question names, or those of the user if it names none.

    Parameters
    ----------
    lexical : LexicalIndex
    terms : iterable of str
        The question's terms, from `rsm_fast.analysis.analyse`.

    Returns
    -------
    (k,) int32
        Rows, ascending.
    """
    rows = [lexical.rows(f"@{term}") for term in dict.fromkeys(terms) if term not in PLAIN_ROLES]
    named = [each for each in rows if each.size]
    found = named or [each for each in map(lexical.rows, ("@user", "@human")) if each.size]
    if len(found) == 1:  # as it mostly is; `unique` takes longer than the BM25 of a question
        return found[0]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int32)


def labelled_rows(steps: I32, session: I32, alive: U8, *, share: float = 0.8) -> I32:
    """Step labels of those sessions that really are labelled.

    A bare "step 3" also occurs in ordinary talk, so a label counts only where at least
    `share` of the session's living chunks carry one.

    Parameters
    ----------
    steps, session : (n,) int32
        Label of each chunk (-1: none) and number of its session (0 or more).
    alive : (n,) uint8

    Returns
    -------
    (n,) int32
        `steps`, with -1 in all other sessions.
    """
    if not steps.size:
        return steps
    living = alive != 0
    chunks = np.bincount(session[living], minlength=int(session.max()) + 1)
    labels = np.bincount(session[living & (steps >= 0)], minlength=chunks.size)
    labelled = labels >= share * np.maximum(chunks, 1)
    return np.where(labelled[session] & living, steps, np.int32(-1)).astype(np.int32)


def question(
    arena: Arena,
    words: tuple[Any, ...],
    query: F32,
    eligible: U8,
    settings: HybridSettings,
    *,
    asked: AskedSteps | None = None,
    steps: I32 = _NO_ROWS,
    raised: I32 = _NO_ROWS,
    equal: I32 = _NO_ROWS,
    by_score: bool = False,
) -> tuple[Any, ...]:
    """A question after analysis and routing, as the kernels of a read take it.

    Parameters
    ----------
    arena : Arena
    words : tuple
        From `rsm_fast.lexical.LexicalIndex.asked`.
    query : (d,) float32
        From `Arena.prepare_query`.
    eligible : (n,) uint8
        Chunks that the filter let through; mean and deviation run over them.
    settings : HybridSettings
    asked, steps : AskedSteps, (n,) int32
        From `asked_steps` and, if there are any, from `labelled_rows`.
    raised : (k,) int32
        From `asked_speakers`.
    equal : (k,) int32
        Eligible chunks that go before all others.
    by_score : bool
        Order by score alone, whatever a chunk costs and however old it is.

    Returns
    -------
    tuple
        The arguments of `rsm_fast.kernels.read.rank_` up to ``shares``.
    """
    named, ranges = (asked.named, asked.ranges) if asked else ((), ())
    weights, shares = _weights(settings, by_score)
    return (
        *arena.table.columns,
        np.int64(arena.n),
        arena.padded_query(query),
        arena.prev,
        arena.next,
        arena.alive,
        eligible,
        arena.tokens,
        arena.micros,
        *words,
        steps,
        np.array(named, np.int32),
        np.array(ranges, np.int32).ravel(),
        raised,
        equal,
        weights,
        shares,
    )


def room_for(arena: Arena, equal: I32, limit: int) -> tuple[F32, I32]:
    """Empty scores and an empty order of so many rows, ``equal`` apart."""
    return np.empty(arena.n, np.float32), np.empty(min(limit, arena.n) + equal.size, np.int32)


@lru_cache(maxsize=16)
def _weights(settings: HybridSettings, by_score: bool) -> tuple[F64, F64]:
    """The settings as kernels take them, and the shares of a score by length."""
    if by_score:
        settings = replace(settings, length_power=0.0, newer_reach=0)
    weights = np.array(astuple(settings), np.float64)  # places: `rsm_fast.kernels.weights`
    return weights, _shares(settings.length_offset, settings.length_power)


def admission_order(
    scores: F32,
    eligible: U8,
    tokens: I32,
    micros: I64,
    settings: HybridSettings,
    *,
    limit: int | None = None,
) -> I32:
    """Rows in the order in which they are tried against the budget.

    Parameters
    ----------
    scores : (n,) float32
    eligible : (n,) uint8
    tokens : (n,) int32
        Tokens of each chunk's text.
    micros : (n,) int64
        Time of each chunk.
    limit : int, optional
        Give only the first so many rows; they are the same as without a limit.

    Returns
    -------
    (k,) int32
        Eligible rows by (score - least score) / (tokens + offset) ** power; ties newer
        first, then lowest row.
    """
    order = np.empty(scores.size if limit is None else min(limit, scores.size), np.int32)
    offset, power = settings.length_offset, settings.length_power
    size = kernels.ordering.best_first_(
        scores,
        eligible,
        tokens,
        micros,
        _shares(offset, power),
        offset,
        power,
        np.empty(scores.size, np.float64),
        order,
    )
    return order[:size]


@lru_cache(maxsize=16)
def _shares(offset: float, power: float) -> npt.NDArray[np.float64]:
    """(tokens + offset) ** -power for small numbers of tokens, since powers are slow."""
    return np.asarray((np.arange(_LENGTHS) + offset) ** -power, np.float64)


def paper_order(
    atoms: I32,
    dense: F32,
    eligible: U8,
    atom: I32,
    micros: I64,
    *,
    per_atom: int = 8,
    fill: bool = False,
) -> I32:
    """Rows in the order of RSM-full: the top atoms, and in each its best members.

    Parameters
    ----------
    atoms : (k,) int32
        Atoms, best first.
    dense : (n,) float32
        Cosine of each chunk with the question.
    eligible : (n,) uint8
    atom : (n,) int32
        Atom of each chunk.
    per_atom : int
        Members taken of each atom.
    fill : bool
        Let all other chunks follow by cosine, so that the budget is used up.

    Returns
    -------
    (m,) int32
        Ties newer first, then lowest row.
    """
    taken = []
    for number in atoms:
        rows = np.flatnonzero((atom == number) & (eligible != 0))
        taken.append(_best_first(dense[rows], micros[rows], rows, per_atom))
    order = np.concatenate(taken) if taken else np.empty(0, np.int32)
    if fill:
        rest = eligible != 0
        rest[order] = False
        rows = np.flatnonzero(rest)
        order = np.concatenate((order, _best_first(dense[rows], micros[rows], rows, None)))
    return order


def _best_first(
    worth: npt.NDArray[np.floating], micros: I64, rows: npt.NDArray[np.intp], limit: int | None
) -> I32:
    """Rows by falling worth, ties newer first, then lowest row."""
    if limit is not None and limit < rows.size:
        if limit <= 0:
            return np.empty(0, np.int32)
        least = np.partition(worth, rows.size - limit)[rows.size - limit]
        keep = worth >= least
        worth, micros, rows = worth[keep], micros[keep], rows[keep]
    order = np.lexsort((rows, -micros, -worth))[:limit]
    return rows[order].astype(np.int32)
