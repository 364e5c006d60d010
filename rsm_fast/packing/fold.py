"""Folding: what stands in a pack already is written once and referred to afterwards.

A reference takes a line of its own and stands for lines of an earlier turn of the text, which
it names by a printed label (``step 7`` on streams with step numbers, else ``item 3``):

- ``all as in step 7``: the whole turn is the same;
- ``rest as in step 7``: from this line on the turn is the same, lines counted alike;
- ``as in step 7``: this one line is that turn's line of the same number;
- ``line 4 as in step 7``, ``lines 4-6 as in step 7``: those lines of that turn.

Lines are counted from 1 in the unfolded text of the turn. Where a label occurs twice, the
latest one above is meant. `rsm_fast.packing.unfold` gives the chunks back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import Final, TypeAlias

from rsm_fast.kernels.offers import LABELS, LINE_SAME, LINES_SAME, REST_SAME

__all__ = [
    "FoldedTurn",
    "Mark",
    "Run",
    "Seen",
    "TurnLines",
    "fold",
    "printed_step",
    "reference",
]

# Of a reference to one line of another number, beside those that the kernel of admission knows. A
# line that costs no more than the cheapest of them is never the start of a reference.
_LINE: Final = 6
_STEP: Final = re.compile(r"(?i)step (-?[0-9]{1,18})(?![0-9])")


# Number, text and tokens of a line that is long enough to be worth a reference. (A plain
# tuple: a pack makes hundreds, and a named one takes ten times as long to make.)
Mark: TypeAlias = tuple[int, str, int]


class TurnLines:
    """The lines of a turn, and those worth a reference.

    Attributes
    ----------
    text : str
    tokens : sequence of int
        Tokens of each line.
    total : int
        Tokens of all lines.
    marks : list of Mark
        Lines that cost more than a reference to them.
    parts : list of str
        What may be found again: these lines, and the whole text of several lines.
    """

    __slots__ = ("_lines", "_rests", "marks", "parts", "text", "tokens", "total")

    def __init__(self, text: str, tokens: Sequence[int]) -> None:
        self.text = text
        self.tokens = tokens
        self.total = sum(tokens)
        self._lines: list[str] | None = None
        self._rests: list[int] | None = None
        if len(tokens) == 1:
            self.marks = [(0, text, tokens[0])] if tokens[0] > LINE_SAME else []
        else:
            lines = self.lines
            self.marks = [
                (at, lines[at], cost) for at, cost in enumerate(tokens) if cost > LINE_SAME
            ]
        self.parts = [line for _, line, _ in self.marks]
        if self.parts and len(tokens) > 1:
            self.parts.append(text)

    @property
    def lines(self) -> list[str]:
        r"""``text.split("\n")``."""
        if self._lines is None:
            self._lines = self.text.split("\n")
        return self._lines

    def rests(self) -> list[int]:
        """For each mark a hash of its line number, it and all marks after it."""
        if self._rests is None:
            key = 0
            keys = [key := hash((at, line, key)) for at, line, _ in reversed(self.marks)]
            keys.reverse()
            self._rests = keys
        return self._rests


def printed_step(text: str) -> str | None:
    """The step label that a text brings itself: ``step 7`` for ``Step 7: go north``."""
    match = _STEP.match(text) if text[:1] in "sS" else None
    return None if match is None else f"step {int(match[1])}"


class Seen:
    """The lines and turns of a pack, for what folding will save before the layout is known.

    Attributes
    ----------
    repeated : set of str
        Those that stand in several turns: nothing else can be folded, or referred to.
    """

    __slots__ = ("_parts", "repeated")

    def __init__(self) -> None:
        self._parts: set[str] = set()
        self.repeated: set[str] = set()

    def meets(self, turn: TurnLines) -> bool:
        """Whether anything of a turn stands in the pack."""
        return turn.text in self._parts or not self._parts.isdisjoint(turn.parts)

    def saving(self, turn: TurnLines, label: int = LABELS) -> int:
        """Tokens that references are going to save if a turn joins.

        Parameters
        ----------
        turn : TurnLines
        label : int
            Tokens of a label.
        """
        seen = self._parts
        if turn.parts and turn.text in seen:
            return max(0, turn.total - (REST_SAME - LABELS + label))
        saved = run = lines = 0
        for _, line, tokens in turn.marks:
            if line in seen:
                run += tokens
                lines += 1
            elif run:
                saved += run - ((LINE_SAME if lines == 1 else LINES_SAME) - LABELS + label)
                run = lines = 0
        if run:
            # The last lines of a turn are mostly the last lines of the other one, too.
            saved += run - (REST_SAME - LABELS + label)
        return max(0, saved)

    def add(self, turn: TurnLines) -> None:
        """A turn joins."""
        if turn.text in self.repeated:  # and so is every part of it
            return
        seen, parts = self._parts, turn.parts
        if not seen.isdisjoint(parts):
            self.repeated |= seen.intersection(parts)
        seen.update(parts)


# Lines of a turn of the text: its number, the first of them, and the one after the last.
Run: TypeAlias = tuple[int, int, int]


class FoldedTurn:
    """What is written of a turn.

    Attributes
    ----------
    runs : list of Run
        Its lines in order, as lines of this or, by reference, of earlier turns.
    saved : int
        Tokens of the lines that references stand for; 0 where the turn is written out.
    labelled : bool
        Whether some reference needs an item label here.
    """

    __slots__ = ("labelled", "runs", "saved")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.saved = 0
        self.labelled = False


_WHOLE: Final = FoldedTurn()
"""A turn of which no line stands anywhere else; its runs are not asked for."""


def fold(
    turns: Sequence[TurnLines], steps: Sequence[str | None], repeated: Set[str]
) -> list[FoldedTurn]:
    """Find what can be written as a reference, going through the text from its start.

    A reference is made only where the lines it stands for cost more than it does. Its target
    is the first turn that has those lines written out, or for the rest of a turn the first
    that has it at all, so following references takes few hops.

    Parameters
    ----------
    turns : sequence of TurnLines
        All turns in the order of the text.
    steps : sequence of str or None
        The step label printed at each turn, if one is.
    repeated : set of str
        As `Seen` has it after these turns, or more.
    """
    folder = _Folder(turns, steps, repeated)
    for number, turn in enumerate(turns):
        folder.fold(number, turn)
    return folder.folded


class _Folder:
    """What has been read of a text: its turns, and where their lines stand."""

    def __init__(
        self, turns: Sequence[TurnLines], steps: Sequence[str | None], repeated: Set[str]
    ) -> None:
        self.turns = turns
        self.steps = steps
        self.repeated = repeated
        self.folded: list[FoldedTurn] = []
        # First turn with a text; with a hash of its lines from some line on; and where marked
        # lines are written out.
        self._wholes: dict[str, int] = {}
        self._rests: dict[int, int] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._latest: dict[str, int] = {}

    def fold(self, number: int, turn: TurnLines) -> None:
        """Fold the next turn."""
        if self.repeated.isdisjoint(turn.parts):
            self.folded.append(_WHOLE)
        else:
            self.folded.append(FoldedTurn())
            self._look(number, turn, self.folded[number])
        step = self.steps[number]
        if step is not None:
            self._latest[step] = number

    def _look(self, number: int, turn: TurnLines, result: FoldedTurn) -> None:
        """Look through a turn for what can be referred to."""
        repeated = self.repeated
        marks = turn.marks
        # The whole turn may be the same; its first lines need not be marked.
        if marks[0][1] in repeated and self._wholes.setdefault(turn.text, number) != number:
            run = self._whole(number, turn)
            if run is not None:
                result.runs.append(run)
                result.saved = turn.total
                self._label(run[0])
                return
        rests, places = self._rests, self._places
        written = 0
        for (at, line, _), key in zip(marks, turn.rests(), strict=True):
            if at < written or line not in repeated:
                continue
            run = None
            if at and rests.setdefault(key, number) != number:
                run = self._rest(number, turn, at, key)
            if run is None and places.setdefault(line, (number, at))[0] != number:
                run = self._line(number, turn, at, line)
            if run is not None:
                if at > written:
                    result.runs.append((number, written, at))
                result.runs.append(run)
                written = at + run[2] - run[1]
                result.saved += sum(turn.tokens[at:written])
                self._label(run[0])
        if len(turn.tokens) > written:
            result.runs.append((number, written, len(turn.tokens)))

    def _label(self, target: int) -> None:
        """A turn is referred to."""
        if self.steps[target] is None:
            self.folded[target].labelled = True

    def _whole(self, number: int, turn: TurnLines) -> Run | None:
        """Refer to the turn that is the same, if that saves anything."""
        target = self._wholes[turn.text]
        if self._stale(target):
            self._wholes[turn.text] = number
            return None
        count = len(turn.tokens)
        if self._price(REST_SAME if count > 1 else LINE_SAME, target) >= turn.total:
            return None
        return target, 0, count

    def _rest(self, number: int, turn: TurnLines, at: int, key: int) -> Run | None:
        """Refer to the turn that is the same from line ``at`` on, if that saves anything."""
        target = self._rests[key]
        if self._stale(target):
            self._rests[key] = number
            return None
        count = len(turn.tokens)
        lines, other = turn.lines, self.turns[target].lines
        if len(other) != count or lines[at:] != other[at:]:
            return None
        base = REST_SAME if count - at > 1 else LINE_SAME
        if self._price(base, target) >= sum(turn.tokens[at:]):
            return None
        return target, at, count

    def _line(self, number: int, turn: TurnLines, at: int, line: str) -> Run | None:
        """Refer to the turn that has this line, and maybe the next ones, if that saves anything."""
        target, first = self._places[line]
        if self._stale(target):
            self._places[line] = (number, at)
            return None
        length = _common(turn.lines, at, self.turns[target].lines, first)
        while length > 1 and not turn.tokens[at + length - 1]:
            length -= 1
        base = LINES_SAME if length > 1 else LINE_SAME if first == at else _LINE
        if self._price(base, target) >= sum(turn.tokens[at : at + length]):
            return None
        return target, first, first + length

    def _stale(self, target: int) -> bool:
        step = self.steps[target]
        return step is not None and self._latest[step] != target

    def _price(self, base: int, target: int) -> int:
        """Tokens of a reference to a turn, with the label that it may need there."""
        if self.steps[target] is None and not self.folded[target].labelled:
            return base + LABELS
        return base


def _common(a: Sequence[str], at: int, b: Sequence[str], first: int) -> int:
    """How many lines are equal from ``a[at]`` and ``b[first]`` on."""
    longest = min(len(a) - at, len(b) - first)
    length = 0
    while length < longest and a[at + length] == b[first + length]:
        length += 1
    return length


def reference(start: int, stop: int, own: int, length: int) -> str:
    """A reference to lines of an earlier turn, but for that turn's label at its end.

    Parameters
    ----------
    start, stop : int
        Lines of the target, from 0, ``stop`` excluded.
    own : int
        The line at which the reference stands in its own unfolded turn, from 0.
    length : int
        Lines of the target in all.
    """
    if stop == start + 1:
        return "as in" if own == start else f"line {stop} as in"
    if own == start and stop == length:
        return "rest as in" if own else "all as in"
    return f"lines {start + 1}-{stop} as in"
