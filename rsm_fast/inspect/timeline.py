"""How many chunks each stretch of time holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rsm_fast.instants import Instant

if TYPE_CHECKING:
    from rsm_fast.state import NamespaceState

__all__ = ["Timeline", "timeline"]

I64 = npt.NDArray[np.int64]

_SECOND = 1_000_000
_HOUR = 3600 * _SECOND
_DAY = 24 * _HOUR
_STEPS: tuple[tuple[int, str], ...] = (
    (_SECOND, "second"),
    (60 * _SECOND, "minute"),
    (10 * 60 * _SECOND, "10 minutes"),
    (_HOUR, "hour"),
    (6 * _HOUR, "6 hours"),
    (_DAY, "day"),
    (7 * _DAY, "week"),
    (28 * _DAY, "4 weeks"),
    (364 * _DAY, "52 weeks"),
    (3640 * _DAY, "520 weeks"),
    (36400 * _DAY, "5,200 weeks"),
)
_MONDAY = -3 * _DAY  # 1969-12-29, the Monday before the epoch
_MOST_STEPS = 72


@dataclass(frozen=True, slots=True)
class Timeline:
    """Chunks counted by their own time, in stretches of equal length.

    Attributes
    ----------
    step : str
        Length of a stretch, in words.
    starts : tuple of str
        Beginning of each stretch.
    atoms : tuple of int
        Atom of each row of ``counts``; the last row has all other chunks.
    counts : (len(atoms) + 1, len(starts)) int64
    """

    step: str
    starts: tuple[str, ...]
    atoms: tuple[int, ...]
    counts: I64


def timeline(state: NamespaceState, rows: npt.ArrayLike, *, atoms: int = 8) -> Timeline | None:
    """Count chunks over time, those of the largest atoms apart.

    Parameters
    ----------
    state : NamespaceState
    rows : (k,) int
        The chunks to count.
    atoms : int
        How many atoms get a row of their own.
    """
    wanted = np.asarray(rows, np.int64)
    if not wanted.size:
        return None
    micros, atom = state.arena.micros[wanted], state.arena.atom[wanted]
    first, last = int(micros.min()), int(micros.max())
    step, name = next(
        ((size, name) for size, name in _STEPS if (last - first) // size < _MOST_STEPS),
        _STEPS[-1],
    )
    origin = (first - _MONDAY) // step * step + _MONDAY
    buckets = (micros - origin) // step
    numbers, sizes = np.unique(atom[atom >= 0], return_counts=True)
    largest = numbers[np.lexsort((numbers, -sizes))][:atoms]
    counts = np.zeros((largest.size + 1, int(buckets.max()) + 1), np.int64)
    row_of = {int(number): row for row, number in enumerate(largest)}
    lines = [row_of.get(number, largest.size) for number in atom.tolist()]
    np.add.at(counts, (np.array(lines), buckets), 1)
    starts = [max(origin + index * step, first) for index in range(counts.shape[1])]
    return Timeline(name, tuple(_label(start, step) for start in starts), tuple(row_of), counts)


def _label(micros: int, step: int) -> str:
    instant = Instant(micros)
    return instant.date() if step >= _DAY else instant.to_datetime().strftime("%Y-%m-%d %H:%M")
