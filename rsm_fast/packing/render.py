"""Writing a layout out as text."""

from __future__ import annotations

from collections.abc import Sequence, Set

from rsm_fast.packing.fold import FoldedTurn, TurnLines, fold, reference
from rsm_fast.packing.forms import Frame, print_lines
from rsm_fast.packing.layout import Entry, Layout, names

__all__ = ["Rendering"]


class Rendering:
    """How the chunks of a layout are going to be written.

    Parameters
    ----------
    layout : Layout
    frame : Frame
    repeated : set of str
        Lines and turns that stand in several turns (`rsm_fast.packing.fold.Seen`); those are
        looked through for references.

    Attributes
    ----------
    tokens : int
        Sum of the tokens of all parts of the text. For a counter that adds up over white
        space it is the count of the text.
    saved : int
        Tokens saved by folding.
    """

    def __init__(self, layout: Layout, frame: Frame, repeated: Set[str]) -> None:
        self._frame = frame
        self._by = layout.by
        self._sections = [list(section) for section in layout.sections()]
        self._folded: Sequence[FoldedTurn] = ()
        # By number of the turn in the text: its step, item label, lines.
        self._steps: list[str | None] = []
        self._items: dict[int, str] = {}
        self._lengths: list[int] = []
        self.saved = self._fold(repeated) if repeated else 0
        self.tokens = frame.fixed + layout.tokens - self.saved if self._sections else 0

    @property
    def entries(self) -> list[Entry]:
        """The chunks in the order of the text."""
        return [entry for section in self._sections for entry in section]

    def write(self) -> str:
        """The text."""
        if not self._sections:
            return ""
        template = self._frame.template
        starts = self._frame.starts
        atoms = self._by == "atoms"
        items = self._items
        folded = self._folded
        out = [template.notice]
        number = 0
        for section in self._sections:
            before: Entry | None = None
            for entry in section:
                if before is not None and before.day != entry.day and template.end_day:
                    out.append(template.end_day)
                out.append("")
                if before is None and atoms:
                    out.append(template.atom_line(entry.piece.atom))
                if before is None or before.day != entry.day:
                    out.append(template.day_line(entry.day))
                for index, body in enumerate(entry.form.printed):
                    item = items.get(number, "")
                    if index:
                        who = entry.inner_label(index, template, item)
                    else:
                        who = entry.label(names(before, entry, template), item)
                    if folded and folded[number].saved:
                        body = self._folded_body(number, entry.form.turns()[index], body)
                    out.append(starts[who] + body)
                    if template.end_turn:
                        out.append(template.end_turn)
                    number += 1
                before = entry
            if template.end_day:
                out.append(template.end_day)
            if template.end_atom and atoms:
                out.append(template.end_atom)
        if template.end:
            out.append(template.end)
        return "\n".join(out)

    def _folded_body(self, number: int, turn: TurnLines, printed: str) -> str:
        """A turn with its references."""
        runs = self._folded[number].runs
        if len(runs) == 1:
            return self._reference(*runs[0], 0)
        plain = printed is turn.text
        out = []
        at = 0
        for target, start, stop in runs:
            if target != number:
                out.append(self._reference(target, start, stop, at))
            elif plain:
                out += turn.lines[start:stop]
            else:
                out.append(self._own_lines(turn, start, stop))
            at += stop - start
        return "\n".join(out)

    def _reference(self, target: int, start: int, stop: int, at: int) -> str:
        """The line that stands for lines of an earlier turn, as line ``at`` of its own."""
        return f"{reference(start, stop, at, self._lengths[target])} {self._label(target)}"

    def _own_lines(self, turn: TurnLines, start: int, stop: int) -> str:
        """Lines of a turn as printed."""
        stored = "\n".join(turn.lines[start:stop])
        template = self._frame.template
        end = stop == len(turn.tokens)
        if start:
            return print_lines(f"\n{stored}", template, end=end)[1:]
        return print_lines(stored, template, end=end)

    def _fold(self, repeated: Set[str]) -> int:
        """Find references and labels; gives the tokens that they save."""
        costs = self._frame.costs
        turns: list[TurnLines] = []
        printed: list[str] = []
        for entry in self.entries:
            form = entry.form
            turns += form.turns()
            self._steps += form.steps
            printed += form.printed
        folded = self._folded = fold(turns, self._steps, repeated)
        lengths = self._lengths = [len(turn.tokens) for turn in turns]
        saved = 0
        for number, result in enumerate(folded):
            if result.labelled:
                label = self._items[number] = f"item {len(self._items) + 1}"
                saved -= costs[label]
        for number, result in enumerate(folded):
            if result.saved:
                saved += result.saved
                if printed[number] is not turns[number].text:
                    saved += self._saved_escapes(number, turns[number])
                at = 0
                for target, start, stop in result.runs:
                    if target != number:
                        lead = reference(start, stop, at, lengths[target])
                        saved -= costs[lead] + costs[self._label(target)]
                    at += stop - start
        return saved

    def _label(self, target: int) -> str:
        """What a turn is called that something refers to."""
        return self._steps[target] or self._items[target]

    def _saved_escapes(self, number: int, turn: TurnLines) -> int:
        """Tokens of escapes that are not written because their lines are folded."""
        frame = self._frame
        saved = 0
        at = 0
        for target, start, stop in self._folded[number].runs:
            first, at = at, at + stop - start
            if target != number:
                printed = self._own_lines(turn, first, at)
                saved += sum(frame.counter.count_lines(printed.split("\n")))
                saved -= sum(turn.tokens[first:at])
        return saved
