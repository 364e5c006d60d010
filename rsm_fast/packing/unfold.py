"""Reading a pack back: from its text to the chunks that it shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rsm_fast.chunking import chunk_text
from rsm_fast.errors import InvalidInputError
from rsm_fast.packing.fold import printed_step
from rsm_fast.packing.markup import decode
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

    @property
    def text(self) -> str:
        """The chunk's text, as `rsm_fast.types.PackedChunk` has it."""
        return chunk_text((turn.role, turn.text) for turn in self.turns)


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
        self._role = ""
        self._labels: dict[str, list[str]] = {}
        if text:
            self._read(text)

    def _read(self, text: str) -> None:
        template = self.template
        lines = text.split("\n")
        ends = {line for line in (template.end_day, template.end_atom, template.end) if line}
        if lines[0] != template.notice:
            raise InvalidInputError(
                f"unfold: expected a pack that begins with {template.notice!r}, "
                f"got {lines[0][:80]!r}"
            )
        for line in lines[1:]:
            if header := template.day_pattern.fullmatch(line):
                self._end_chunk()
                self._day = header["day"]
            elif header := template.atom_pattern.fullmatch(line):
                self._end_chunk()
                self._atom = None if header["atom"] == "-" else int(header["atom"])
            elif turn := template.turn_pattern.match(line):
                self._start_turn(turn["who"], line[turn.end() :])
            elif self._open is not None and template.end_turn and line == template.end_turn:
                self._end_turn()
            elif self._open is not None:
                self._open.lines.append(line)
            elif not line:
                self._end_chunk()
            elif line not in ends:
                raise InvalidInputError(f"unfold: expected a header or a turn, got {line[:80]!r}")
        self._end_chunk()

    def _start_turn(self, who: str, first: str) -> None:
        self._end_open()
        field = _WHO.fullmatch(decode(who) if self.template.markup else who)
        role = (field and field["role"]) or self._role
        if field is None or not role:
            raise InvalidInputError(f"unfold: expected a role before the text, got {who!r}")
        self._role = role
        label = field["label"]
        if not self._turns:
            self._step = int(label[5:]) if label and label.startswith("step") else None
            self._copies = int(field["copies"] or 1)
            self._since = field["since"]
        # A turn on lines of its own begins with the next line.
        self._open = _Open(role, label, [] if self.template.turn.endswith("\n") else [first])

    def _end_open(self) -> None:
        """End a turn whose end nothing marks; after a blank line its chunk ends, too."""
        if self._open is None:
            return
        lines = self._open.lines
        blank = len(lines) > 1 and not lines[-1]
        if blank:
            lines.pop()
        self._end_turn()
        if blank:
            self._end_chunk()

    def _end_turn(self) -> None:
        turn = self._open
        if turn is None:
            return
        lines = turn.lines
        bare = len(lines) > 1 and not self.template.end_turn
        if bare and _ONLY_ESCAPES.fullmatch(lines[-1]):
            lines[-1] = lines[-1][1:]
        body: list[str] = []
        for line in lines:
            match = _REFERENCE.fullmatch(line)
            if match is None:
                body.append(self.template.stored(line))
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
        self._end_open()
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
