"""Writing a layout out as text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from rsm_fast.packing.escape import ESCAPE
from rsm_fast.packing.fold import FoldedTurn, FoldTurn, fold, printed_step, reference
from rsm_fast.packing.layout import (
    Entry,
    Frame,
    Layout,
    atom_text,
    ends_bare,
    first_label,
    inner_label,
)

__all__ = ["Rendered", "render"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text and what stands in it.

    Attributes
    ----------
    text : str
    tokens : int
        Sum of the tokens of its parts, or the count of the whole (`counted`).
    entries : list of (Entry, int)
        Chunks in the order of the text, each with its number of copies.
    saved : int
        Tokens saved by folding.
    """

    text: str
    tokens: int
    entries: list[tuple[Entry, int]]
    saved: int

    def counted(self, tokens: int) -> Rendered:
        """The same with the true count of the whole."""
        return replace(self, tokens=tokens)


NOTHING: Final = Rendered("", 0, [], 0)


def render(layout: Layout, frame: Frame, *, fold: bool) -> Rendered:
    """Write the chunks of a layout.

    The tokens of the result are the sum of its parts; for a counter that adds up over
    white space that is the count of the text.
    """
    template = frame.template
    sections = list(layout.sections())
    folding = _Folding([entry for section in sections for entry in section], frame, fold=fold)
    out = [template.notice]
    standing: list[tuple[Entry, int]] = []
    turn = 0
    for section in sections:
        before: Entry | None = None
        for entry in section:
            if before is None and layout.by == "atoms":
                out += ("", template.atom.format(atom=atom_text(entry.piece.atom)))
                out.append(template.day.format(day=entry.day))
            elif before is None or before.day != entry.day:
                out += ("", template.day.format(day=entry.day))
            else:
                out.append("")
            for index in range(len(entry.roles)):
                item = folding.item(turn)
                who = inner_label(entry, index, item) if index else first_label(before, entry, item)
                out.append(template.turn.format(who=who) + folding.body(turn, entry, index))
                turn += 1
            standing.append((entry, len(entry.pieces)))
            before = entry
    tokens = frame.notice + layout.tokens - folding.saved
    return Rendered("\n".join(out), tokens, standing, folding.saved)


class _Folding:
    """References and item labels of a text, and what they save."""

    def __init__(self, entries: list[Entry], frame: Frame, *, fold: bool) -> None:
        self.saved = 0
        self._escaper = frame.template.escaper
        self._turns: list[FoldTurn] = []
        self._folded: list[FoldedTurn] = []
        self._items: dict[int, str] = {}
        if fold:
            self._fold(entries, frame)

    def item(self, turn: int) -> str:
        """The item label that a turn needs, or nothing."""
        return self._items.get(turn, "")

    def body(self, turn: int, entry: Entry, index: int) -> str:
        """The text of a turn as printed."""
        text = entry.piece.spans[index].text
        if not self._folded or self._folded[turn].saved == 0:
            return self._written(text, bare=ends_bare(text))
        lines = self._turns[turn].lines
        out = []
        at = 0
        for target, start, stop in self._folded[turn].parts:
            if target is None:
                bare = stop == len(lines) and ends_bare(text)
                out.append(self._written("\n".join(lines[start:stop]), bare=bare))
            else:
                out.append(self._reference(target, start, stop, at))
            at += stop - start
        return "\n".join(out)

    def _written(self, text: str, *, bare: bool) -> str:
        text = self._escaper.escape(text)
        if not bare:
            return text
        last = text.rfind("\n") + 1
        return text[:last] + ESCAPE + text[last:]

    def _reference(self, target: int, start: int, stop: int, own: int) -> str:
        turn = self._turns[target]
        label = self._items.get(target) or turn.step or ""
        return reference(label, start, stop, own=own, length=len(turn.lines))

    def _fold(self, entries: list[Entry], frame: Frame) -> None:
        for entry in entries:
            for index, (span, lines) in enumerate(
                zip(entry.piece.spans, entry.lines(), strict=True)
            ):
                step = (entry.step if index == 0 else "") or printed_step(span.text)
                self._turns.append(FoldTurn(lines, span.line_tokens, step))
        self._folded = fold(self._turns)
        for turn, folded in enumerate(self._folded):
            if folded.item:
                self._items[turn] = f"item {len(self._items) + 1}"
        for label in self._items.values():
            self.saved -= frame.cost(label)
        for source, folded in zip(self._turns, self._folded, strict=True):
            if not folded.saved:
                continue
            lines = list(source.lines)
            at = 0
            for target, start, stop in folded.parts:
                if target is not None:
                    own = lines[at : at + stop - start]
                    self.saved -= frame.cost(self._reference(target, start, stop, at))
                    self.saved += frame.escape * sum(map(self._escaper.count, own))
                    if at + stop - start == len(lines) and ends_bare("\n".join(lines)):
                        self.saved += frame.escape
                at += stop - start
            self.saved += folded.saved
