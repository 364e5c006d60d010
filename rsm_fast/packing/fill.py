"""Admission: which chunks go into a pack, under a hard budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from rsm_fast.packing.fold import REFERENCE_TOKENS
from rsm_fast.packing.layout import Entry, Frame, Layout, LayoutName
from rsm_fast.packing.pieces import Filled, Omitted, PackedPiece, Piece
from rsm_fast.packing.render import NOTHING, Rendered, render
from rsm_fast.packing.templates import MARKDOWN, TemplateLike, get_template
from rsm_fast.tokens import TokenCounter, WordPieceCounter

__all__ = ["MAX_MISSES", "MAX_OMITTED", "fill"]

MAX_MISSES: Final = 64
"""Pieces in a row that did not fit, after which no more are tried."""
MAX_OMITTED: Final = 200
"""Left-out chunks that ``explain`` reports at most."""
_LEAST_ROOM: Final = 4  # below this many tokens of room another round does not pay
_ROUNDS: Final = 4
_SLACK: Final = 0.03  # room left by an estimate that is worth a second count

_Key: TypeAlias = tuple[tuple[str, str], ...]


def fill(
    pieces: Iterable[Piece],
    *,
    budget: int,
    counter: TokenCounter,
    template: TemplateLike = MARKDOWN,
    layout: LayoutName = "sessions",
    fold: bool = True,
    explain: bool = False,
) -> Filled:
    """Fill a pack: admit chunks in the given order, lay them out, write the text.

    A chunk is charged what it adds to the text: its lines, escape characters, the header or
    speaker's name that only it needs, and for lines that the pack has already the price of a
    reference. What does not fit is skipped and the next one tried. Byte-equal chunks without
    a step number become one with a count.

    Parameters
    ----------
    pieces : iterable of Piece
        Candidates in the order of admission; taken one by one, and no more than needed.
    budget : int
        Cap on the tokens of the whole text, 0 or more.
    counter : TokenCounter
        What counts. Where its counts add up over newlines nothing is counted again; otherwise
        the text is counted as a whole, normally once or twice.
    template : str or Template
        How the frame is written.
    layout : {"sessions", "atoms", "flat"}
        What stands together. Always in time order, sections by their earliest chunk.
    fold : bool
        Write repeated lines once and refer to them afterwards.
    explain : bool
        Give reasons.

    Returns
    -------
    Filled
        ``counter(text) <= budget`` holds for its text.
    """
    frame = Frame(get_template(template), counter)
    return _Filler(frame, layout, budget, fold=fold, explain=explain).run(iter(pieces))


class _Filler:
    def __init__(
        self, frame: Frame, layout: LayoutName, budget: int, *, fold: bool, explain: bool
    ) -> None:
        self.frame = frame
        self.budget = budget
        self.fold = fold
        self.explain = explain
        self.layout = Layout(layout, frame)
        self.considered = 0
        self.admitted: list[Entry] = []
        self._room = budget - frame.notice
        # Tokens that folding is believed to save, and what the last rendering corrected.
        self._believed = 0
        self._correction = 0
        self._seen: Counter[str] = Counter()
        self._by_text: dict[_Key, Entry] = {}
        self._skipped: list[tuple[Piece, int, int]] = []
        self._reasons: dict[int, str] = {}

    def run(self, source: Iterator[Piece]) -> Filled:
        if self._room <= 0:
            return self._result(NOTHING)
        self._admit(source)
        if not self.frame.counter.additive:
            return self._result(self._counted())
        rendered = self._exact()
        if not isinstance(self.frame.counter, WordPieceCounter):
            # The promise is about newlines; the frame also joins parts within a line.
            rendered = self._capped(rendered)
        return self._result(rendered)

    # -- admission ---------------------------------------------------------------------------

    @property
    def _used(self) -> int:
        return self.layout.tokens - self._believed + self._correction

    def _admit(self, source: Iterator[Piece]) -> None:
        """Take pieces until the source ends or nothing has fitted for a long time."""
        misses = 0
        for piece in source:
            self.considered += 1
            if self._try(piece, self.considered):
                misses = 0
            else:
                misses += 1
                if misses >= MAX_MISSES:
                    break

    def _retry(self) -> bool:
        """Try again what did not fit before; True if something does now."""
        skipped, self._skipped = self._skipped, []
        grown = False
        for piece, added, rank in skipped:
            if added <= self._room - self._used:
                grown |= self._try(piece, rank)
            else:
                self._skipped.append((piece, added, rank))
        return grown

    def _try(self, piece: Piece, rank: int) -> bool:
        if piece.step is None:
            twin = self._by_text.get(_text_key(piece))
            if twin is not None:
                return self._add_copy(twin, piece, rank)
        entry = Entry(piece, self.frame, rank)
        saved = self._saving(entry) if self.fold else 0
        added = self.layout.added_by(entry) - saved
        room = self._room - self._used
        if added > room:
            self._skip(piece, added, rank, f"needs {added} tokens, {max(room, 0)} left")
            return False
        self._insert(entry, added, saved)
        return True

    def _skip(self, piece: Piece, added: int, rank: int, reason: str) -> None:
        self._skipped.append((piece, added, rank))
        if self.explain:
            self._reasons[piece.row] = reason

    def _insert(self, entry: Entry, added: int, saved: int) -> None:
        self.layout.insert(entry, added + saved)
        self.admitted.append(entry)
        entry.added = added
        entry.saved = saved
        self._believed += saved
        if entry.piece.step is None:
            self._by_text[_text_key(entry.piece)] = entry
        if self.fold:
            for lines in entry.lines():
                self._seen.update(lines)

    def _cut(self, number: int = 1) -> None:
        """Take out the entries that were admitted last."""
        for _ in range(min(number, len(self.admitted))):
            entry = self.admitted.pop()
            self.layout.remove(entry)
            self._believed -= entry.saved
            if self.fold:
                for lines in entry.lines():
                    self._seen.subtract(lines)
            if entry.piece.step is None:
                del self._by_text[_text_key(entry.piece)]
            for piece in entry.pieces:
                self._skip(piece, entry.added, entry.rank, "cut again: the whole was too long")

    def _add_copy(self, entry: Entry, piece: Piece, rank: int) -> bool:
        """Count a byte-equal chunk instead of writing it again."""
        before = self.layout.tokens
        self.layout.remove(entry)
        entry.add_copy(piece)
        self.layout.insert(entry)
        if self._used <= self._room:
            return True
        added = self.layout.tokens - before
        self.layout.remove(entry)
        entry.drop_copy()
        self.layout.insert(entry)
        self._skip(piece, added, rank, f"byte-equal copy of {entry.piece.id}, no room to say so")
        return False

    def _saving(self, entry: Entry) -> int:
        """Tokens that references are believed to save if ``entry`` is admitted."""
        seen = self._seen
        saved = 0
        for span, lines in zip(entry.piece.spans, entry.lines(), strict=True):
            run = 0
            for line, tokens in zip(lines, span.line_tokens, strict=True):
                if seen.get(line):
                    run += tokens
                else:
                    if run > REFERENCE_TOKENS:
                        saved += run - REFERENCE_TOKENS
                    run = 0
            if run > REFERENCE_TOKENS:
                saved += run - REFERENCE_TOKENS
        return saved

    # -- rendering under the cap -------------------------------------------------------------

    def _render(self) -> Rendered:
        if not self.admitted:
            return NOTHING
        rendered = render(self.layout, self.frame, fold=self._believed > 0)
        self._correction = rendered.tokens - (
            self.frame.notice + self.layout.tokens - self._believed
        )
        return rendered

    def _exact(self) -> Rendered:
        """Render where counts add up, so that the sum of the parts is the count."""
        rendered = self._render()
        for _ in range(_ROUNDS):
            room = self.budget - rendered.tokens
            if not rendered.saved or room < _LEAST_ROOM or not self._retry():
                break
            rendered = self._render()
        cut = 1
        while rendered.tokens > self.budget:
            self._cut(cut)
            rendered = self._render()
            cut *= 2
        return rendered

    def _counted(self) -> Rendered:
        """Render where only the count of the whole text is true."""
        rendered = self._render()
        if not rendered.text:
            return rendered
        estimate, count = rendered.tokens, self.frame.counter(rendered.text)
        if count > self.budget:
            target = estimate * self.budget // count - 2
            self._cut()
            while self.admitted and self.frame.notice + self._used > target:
                self._cut()
            return self._capped(self._render())
        rendered = rendered.counted(count)
        if self.budget - count > max(_SLACK * self.budget, _LEAST_ROOM):
            self._room = estimate * self.budget // max(count, 1) - self.frame.notice - 2
            if self._retry():
                larger = self._render()
                count = self.frame.counter(larger.text)
                if count <= self.budget:
                    return larger.counted(count)
        return rendered

    def _capped(self, rendered: Rendered) -> Rendered:
        """Count the whole text and cut chunks until it fits."""
        cut = 1
        while rendered.text:
            count = self.frame.counter(rendered.text)
            if count <= self.budget:
                return rendered.counted(count)
            self._cut(cut)
            rendered = self._render()
            cut *= 2
        return rendered

    # -- result ------------------------------------------------------------------------------

    def _result(self, rendered: Rendered) -> Filled:
        packed = []
        standing = set()
        for entry, copies in rendered.entries:
            standing.add(entry.piece.row)
            reason = ""
            if self.explain:
                score = entry.piece.score
                reason = f"rank {entry.rank}, score {score:.4g}: adds {entry.added} tokens"
                if copies > 1:
                    reason += f"; stands for {copies} byte-equal chunks"
            ids = tuple(piece.id for piece in entry.pieces[:copies])
            alone = entry.alone(self.frame)
            packed.append(PackedPiece(entry.piece, alone, copies, ids, reason))
        omitted = []
        if self.explain:
            left = [piece for piece, _, _ in self._skipped if piece.row not in standing]
            for piece in left[:MAX_OMITTED]:
                alone = Entry(piece, self.frame, 0).alone(self.frame)
                omitted.append(Omitted(piece, alone, self._reasons[piece.row]))
        return Filled(
            rendered.text,
            rendered.tokens,
            tuple(packed),
            tuple(omitted),
            self.considered,
            rendered.saved,
        )


def _text_key(piece: Piece) -> _Key:
    return tuple((span.role, span.text) for span in piece.spans)
