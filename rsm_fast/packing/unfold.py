"""Reading a pack back: from its text to the chunks that it shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rsm_fast.errors import InvalidInputError
from rsm_fast.packing.fold import printed_step
from rsm_fast.packing.templates import MARKDOWN, REFERENCE, TemplateLike, get_template

__all__ = ["UnfoldedChunk", "UnfoldedTurn", "unfold"]

_WHO: Final = re.compile(
    r"(?:(?P<label>(?:step|item) -?[0-9]+)(?: |$))?(?P<role>.*?) ?"
    r"(?:\((?P<copies>[0-9]+) times(?: since (?P<since>[^)]*))?\))?"
)
_REFERENCE: Final = re.compile(REFERENCE)
_ONLY_ESCAPES: Final = re.compile(r"\\+")


@dataclass(frozen=True, slots=True)
class UnfoldedTurn:
    """One turn as a pack shows it: the printed role, and the stored text."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class UnfoldedChunk:
    """One chunk as a pack shows it.

    Attributes
    ----------
    turns : tuple of UnfoldedTurn
    day : str
        Calendar day as printed.
    atom : int or None
        Number of the atom, if the layout prints it.
    step : int or None
        Step number, if printed before the chunk.
    copies : int
        How many byte-equal chunks it stands for.
    since : str or None
        Day of the first of them, where that is another day.
    """

    turns: tuple[UnfoldedTurn, ...]
    day: str
    atom: int | None
    step: int | None
    copies: int
    since: str | None


def unfold(text: str, template: TemplateLike = MARKDOWN) -> list[UnfoldedChunk]:
    """Give back the chunks that a pack's text shows, references filled in, escapes undone.

    Parameters
    ----------
    text : str
        ``Pack.text``, unchanged.
    template : str or Template
        What the pack was written with.

    Raises
    ------
    InvalidInputError
        If the text is not such a pack.
    """
    return _Reader(text, template).chunks


@dataclass(slots=True)
class _Open:
    """A turn being read."""

    role: str
    label: str | None
    lines: list[str]


class _Reader:
    def __init__(self, text: str, template: TemplateLike) -> None:
        self.template = get_template(template)
        self.chunks: list[UnfoldedChunk] = []
        self._day = ""
        self._atom: int | None = None
        self._step: int | None = None
        self._copies = 1
        self._since: str | None = None
        self._turns: list[UnfoldedTurn] = []
        self._open: _Open | None = None
        self._labels: dict[str, list[str]] = {}
        if text:
            self._read(text)

    def _read(self, text: str) -> None:
        lines = text.split("\n")
        if lines[0] != self.template.notice:
            raise InvalidInputError(
                f"unfold: expected a pack that begins with {self.template.notice!r}, "
                f"got {lines[0][:80]!r}"
            )
        for line in lines[1:]:
            if header := self.template.day_pattern.fullmatch(line):
                self._end_chunk()
                self._day = header["day"]
            elif header := self.template.atom_pattern.fullmatch(line):
                self._end_chunk()
                self._atom = None if header["atom"] == "-" else int(header["atom"])
            elif turn := self.template.turn_pattern.match(line):
                self._start_turn(turn["who"], line[turn.end() :])
            elif self._open is not None:
                self._open.lines.append(line)
            elif line:
                raise InvalidInputError(f"unfold: expected a header or a turn, got {line[:80]!r}")
        self._end_chunk()

    def _start_turn(self, who: str, first: str) -> None:
        field = _WHO.fullmatch(who)
        if field is None:
            raise InvalidInputError(f"unfold: expected a role, got {who!r}")
        before = self._open.role if self._open else self._turns[-1].role if self._turns else None
        if self._open is not None and len(self._open.lines) > 1 and not self._open.lines[-1]:
            self._open.lines.pop()
            self._end_chunk()
        self._end_turn()
        role = field["role"] or before
        if role is None:
            raise InvalidInputError("unfold: expected a role at the first turn, got none")
        label = field["label"]
        if not self._turns:
            self._step = int(label[5:]) if label and label.startswith("step") else None
            self._copies = int(field["copies"] or 1)
            self._since = field["since"]
        self._open = _Open(role, label, [first])

    def _end_turn(self) -> None:
        turn = self._open
        if turn is None:
            return
        lines = turn.lines
        if len(lines) > 1 and _ONLY_ESCAPES.fullmatch(lines[-1]):
            lines[-1] = lines[-1][1:]
        body: list[str] = []
        for line in lines:
            match = _REFERENCE.fullmatch(line)
            if match is None:
                body.append(self.template.escaper.unescape(line))
            else:
                body += self._referred(match, len(body))
        label = turn.label or printed_step("\n".join(body[:1]))
        if label is not None:
            self._labels[label] = body
        self._turns.append(UnfoldedTurn(turn.role, "\n".join(body)))
        self._open = None

    def _referred(self, match: re.Match[str], own: int) -> list[str]:
        target = self._labels.get(match["label"])
        if target is None:
            raise InvalidInputError(f"unfold: {match[0]!r} refers to nothing above it")
        if match["rest"] is not None:
            return target[own:]
        if match["first"] is None:
            return target[own : own + 1]
        return target[int(match["first"]) - 1 : int(match["last"] or match["first"])]

    def _end_chunk(self) -> None:
        if self._open is not None and len(self._open.lines) > 1 and not self._open.lines[-1]:
            self._open.lines.pop()
        self._end_turn()
        if self._turns:
            self.chunks.append(
                UnfoldedChunk(
                    tuple(self._turns),
                    self._day,
                    self._atom,
                    self._step,
                    self._copies,
                    self._since,
                )
            )
            self._turns = []
