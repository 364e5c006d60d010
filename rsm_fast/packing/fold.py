"""Folding: what stands in a pack already is written once and referred to afterwards.

A reference takes a line of its own and stands for lines of an earlier turn of the text, which
it names by a printed label (``step 7`` on streams with step numbers, else ``item 3``):

- ``as in step 7``: the whole turn is the same;
- ``rest as in step 7``: from this line on the turn is the same, lines counted alike;
- ``line 4 as in step 7``, ``lines 4-6 as in step 7``: those lines of that turn.

Lines are counted from 1 in the unfolded text of the turn. Where a label occurs twice, the
latest one above is meant. `rsm_fast.packing.unfold` gives the chunks back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["REFERENCE_TOKENS", "FoldedTurn", "FoldTurn", "fold", "printed_step"]

# What admission charges for a reference before the layout is known, and about what the
# longest form costs ("lines 14-16 as in step 123").
REFERENCE_TOKENS: Final = 8
_WHOLE: Final = 4
_REST: Final = 5
_LINE: Final = 6
_LINES: Final = 8
_NEW_LABEL: Final = 2
_STEP: Final = re.compile(r"(?i)step (-?[0-9]{1,18})(?![0-9])")


def printed_step(text: str) -> str | None:
    """The step label that a text brings itself: ``step 7`` for ``Step 7: go north``."""
    match = _STEP.match(text)
    return None if match is None else f"step {int(match[1])}"


@dataclass(slots=True)
class FoldTurn:
    """A turn to fold: its lines, their tokens, and its step label if one is printed."""

    lines: Sequence[str]
    tokens: Sequence[int]
    step: str | None


@dataclass(slots=True)
class FoldedTurn:
    """Parts of a folded turn, in order.

    Attributes
    ----------
    parts : list
        ``(None, start, stop)`` for own lines written out; ``(target, start, stop)`` for lines
        of turn number ``target``, written as a reference.
    item : bool
        Whether a reference needs an item label here.
    saved : int
        Tokens of the lines that are not written out.
    """

    parts: list[tuple[int | None, int, int]] = field(default_factory=list)
    item: bool = False
    saved: int = 0


def fold(turns: Sequence[FoldTurn]) -> list[FoldedTurn]:
    """Find what can be written as a reference, going through the text from its start.

    A reference is made only where the lines it stands for cost more than it does. Its target
    is the first turn that has those lines.
    """
    folded: list[FoldedTurn] = []
    suffixes: dict[tuple[int, int], int] = {}
    places: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}

    def price(base: int, target: int) -> int | None:
        """Tokens of a reference to a turn; None where its label now names another turn."""
        step = turns[target].step
        if step is None:
            return base if folded[target].item else base + _NEW_LABEL
        return base if labels[step] == target else None

    for number, turn in enumerate(turns):
        lines, tokens = turn.lines, turn.tokens
        result = FoldedTurn()
        count = len(lines)
        # Keys and tokens of each suffix of the turn, last line first.
        keys: list[int] = [0] * count
        rest: list[int] = [0] * (count + 1)
        key = 0
        for at in range(count - 1, -1, -1):
            keys[at] = key = hash((lines[at], key))
            rest[at] = rest[at + 1] + tokens[at]
        at = start = 0
        while at < count:
            if rest[at] <= _WHOLE:
                at = count
                break
            target = suffixes.get((at, keys[at]))
            if target is not None and turns[target].lines[at:] == lines[at:]:
                cost = price(_REST if at else _WHOLE, target)
                if cost is not None and cost < rest[at]:
                    _write(result, start, at)
                    _refer(result, folded, turns, target, at, count, rest[at])
                    at = start = count
                    break
            place = places.get(lines[at]) if tokens[at] else None
            if place is not None:
                target, first = place
                other = turns[target].lines
                length = 1
                while (
                    at + length < count
                    and first + length < len(other)
                    and lines[at + length] == other[first + length]
                ):
                    length += 1
                while length > 1 and not tokens[at + length - 1]:
                    length -= 1
                cost = price(_LINE if length == 1 else _LINES, target)
                value = rest[at] - rest[at + length]
                if cost is not None and cost < value:
                    _write(result, start, at)
                    _refer(result, folded, turns, target, first, first + length, value)
                    at = start = at + length
                    continue
            at += 1
        _write(result, start, count)
        folded.append(result)
        for own, first, last in result.parts:
            if own is None:
                for at in range(first, last):
                    if tokens[at] > _LINE:
                        places.setdefault(lines[at], (number, at))
        for at in range(count):
            if rest[at] > _WHOLE:
                suffixes.setdefault((at, keys[at]), number)
        if turn.step is not None:
            labels[turn.step] = number
    return folded


def _write(result: FoldedTurn, start: int, stop: int) -> None:
    if stop > start:
        result.parts.append((None, start, stop))


def _refer(
    result: FoldedTurn,
    folded: Sequence[FoldedTurn],
    turns: Sequence[FoldTurn],
    target: int,
    start: int,
    stop: int,
    saved: int,
) -> None:
    result.parts.append((target, start, stop))
    result.saved += saved
    if turns[target].step is None:
        folded[target].item = True


def reference(label: str, start: int, stop: int, *, own: int, length: int) -> str:
    """A reference to lines ``start`` to ``stop`` of the turn with that label.

    Parameters
    ----------
    label : str
        ``step 7`` or ``item 3``.
    start, stop : int
        Lines of the target, from 0, ``stop`` excluded.
    own : int
        The line at which the reference stands in its own unfolded turn, from 0.
    length : int
        Lines of the target in all.
    """
    if own == start and stop == length:
        return f"rest as in {label}" if own else f"as in {label}"
    if stop == start + 1:
        return f"line {stop} as in {label}"
    return f"lines {start + 1}-{stop} as in {label}"
