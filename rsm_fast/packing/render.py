"""Writing a layout out as text."""

from __future__ import annotations

from collections.abc import Sequence

from rsm_fast.packing.fold import FoldedTurn, TurnLines, fold, printed_step, reference
from rsm_fast.packing.layout import Entry, Frame, Layout, names, print_lines

__all__ = ["Rendering"]


class Rendering:
    """How the chunks of a layout are going to be written.

    Attributes
    ----------
    tokens : int
        Sum of the tokens of all parts of the text. For a counter that adds up over white
        space it is the count of the text.
    saved : int
        Tokens saved by folding.
    """

    def __init__(self, layout: Layout, frame: Frame, *, fold: bool) -> None:
        self._frame = frame
        self._by = layout.by
        self._sections = [list(section) for section in layout.sections()]
        self._folded: Sequence[FoldedTurn] = ()
        # By number of the turn in the text: item labels, and its references by number of run.
        self._items: dict[int, str] = {}
        self._references: dict[tuple[int, int], str] = {}
        self.saved = self._fold() if fold else 0
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
                for index, body in enumerate(entry.printed):
                    item = items.get(number, "")
                    if index:
                        who = entry.inner_label(index, template, item)
                    else:
                        who = entry.label(names(before, entry, template), item)
                    if folded and folded[number].saved:
                        body = self._folded_body(number, entry.turns[index], body)
                    out.append(template.turn_start(who) + body)
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
        plain = printed is turn.text
        out = []
        at = 0
        for run, (target, start, stop) in enumerate(self._folded[number].runs):
            at += stop - start
            if target == number:
                if plain:
                    out += turn.lines[start:stop]
                else:
                    out.append(self._own_lines(turn, start, stop))
            else:
                out.append(self._references[number, run])
        return "\n".join(out)

    def _own_lines(self, turn: TurnLines, start: int, stop: int) -> str:
        """Lines of a turn as printed."""
        stored = "\n".join(turn.lines[start:stop])
        template = self._frame.template
        end = stop == len(turn.tokens)
        if start:
            return print_lines(f"\n{stored}", template, end=end)[1:]
        return print_lines(stored, template, end=end)

    def _fold(self) -> int:
        """Find references and labels; gives the tokens that they save."""
        frame = self._frame
        turns: list[TurnLines] = []
        steps: list[str | None] = []
        escaped: list[int] = []
        for entry in self.entries:
            for index, (turn, printed) in enumerate(zip(entry.turns, entry.printed, strict=True)):
                if printed is not turn.text:
                    escaped.append(len(turns))
                turns.append(turn)
                steps.append((index == 0 and entry.step) or printed_step(turn.text))
        folded = self._folded = fold(turns, steps)
        saved = 0
        for number, result in enumerate(folded):
            if result.labelled:
                label = self._items[number] = f"item {len(self._items) + 1}"
                saved -= frame.cost(label)
        for number, result in enumerate(folded):
            if result.saved:
                saved += result.saved
                at = 0
                for run, (target, start, stop) in enumerate(result.runs):
                    if target != number:
                        label = steps[target] or self._items[target]
                        length = len(turns[target].tokens)
                        lead = reference(start, stop, own=at, length=length)
                        self._references[number, run] = f"{lead} {label}"
                        saved -= frame.cost(lead) + frame.cost(label)
                    at += stop - start
        for number in escaped:
            if folded[number].saved:
                saved += self._saved_escapes(number, turns[number])
        return saved

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
