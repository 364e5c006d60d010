"""Writing a layout out as text."""

from __future__ import annotations

from collections.abc import Sequence

from rsm_fast.packing.escape import ESCAPE
from rsm_fast.packing.fold import FoldedTurn, fold, printed_step, reference
from rsm_fast.packing.layout import Entry, Frame, Layout, ends_bare

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
        self.tokens = frame.notice + layout.tokens - self.saved if self._sections else 0

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
        out = [template.notice]
        number = 0
        for section in self._sections:
            before: Entry | None = None
            for entry in section:
                out.append("")
                if before is None and atoms:
                    out.append(template.atom_line(entry.piece.atom))
                if before is None or before.day != entry.day:
                    out.append(template.day_line(entry.day))
                for index, span in enumerate(entry.piece.spans):
                    item = items.get(number, "")
                    who = entry.inner_label(index, item) if index else entry.label(before, item)
                    if self._folded and self._folded[number].saved:
                        body = self._folded_body(number, entry, index)
                    elif entry.plain:
                        body = span.text
                    else:
                        body = self._escaped(span.text, bare=ends_bare(span.text))
                    out.append(template.turn_start(who) + body)
                    number += 1
                before = entry
        return "\n".join(out)

    def _escaped(self, text: str, *, bare: bool) -> str:
        text = self._frame.template.escaper.escape(text)
        if not bare:
            return text
        last = text.rfind("\n") + 1
        return text[:last] + ESCAPE + text[last:]

    def _folded_body(self, number: int, entry: Entry, index: int) -> str:
        turn = entry.turns[index]
        lines = turn.lines
        out = []
        at = 0
        for run, (target, start, stop) in enumerate(self._folded[number].runs):
            if target == number:
                own = "\n".join(lines[start:stop])
                if not entry.plain:
                    bare = stop == len(lines) and ends_bare(turn.text)
                    own = self._escaped(own, bare=bare)
                out.append(own)
            else:
                out.append(self._references[number, run])
            at += stop - start
        return "\n".join(out)

    def _fold(self) -> int:
        """Find references and labels; gives the tokens that they save."""
        turns = []
        steps = []
        plain = []
        for entry in self.entries:
            turns += entry.turns
            plain += [entry.plain] * len(entry.turns)
            steps.append(entry.step or printed_step(entry.turns[0].text))
            steps += [printed_step(turn.text) for turn in entry.turns[1:]]
        folded = fold(turns, steps)
        self._folded = folded
        frame, escaper = self._frame, self._frame.template.escaper
        saved = 0
        for number, result in enumerate(folded):
            if result.labelled:
                label = self._items[number] = f"item {len(self._items) + 1}"
                saved -= frame.cost(label)
        for number, result in enumerate(folded):
            if not result.saved:
                continue
            turn = turns[number]
            saved += result.saved
            at = 0
            for run, (target, start, stop) in enumerate(result.runs):
                if target != number:
                    label = steps[target] or self._items[target]
                    text = reference(label, start, stop, own=at, length=len(turns[target].tokens))
                    self._references[number, run] = text
                    saved -= frame.cost(text)
                    if not plain[number]:
                        own = "\n".join(turn.lines[at : at + stop - start])
                        escapes = escaper.count(own)
                        if at + stop - start == len(turn.tokens):
                            escapes += ends_bare(turn.text)
                        saved += frame.escape * escapes
                at += stop - start
        return saved
