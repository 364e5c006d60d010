"""Admission: which chunks go into a pack, under a hard budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from itertools import chain
from typing import Final

from rsm_fast.kernels.offers import FOLDED, MAX_MISSES
from rsm_fast.packing.fold import Seen
from rsm_fast.packing.forms import Form, Frame
from rsm_fast.packing.layout import Entry, Layout, LayoutName
from rsm_fast.packing.ledger import Ledger
from rsm_fast.packing.offers import READ_AT_ONCE, Source
from rsm_fast.packing.pieces import Filled, Omitted, PackedPiece, Piece
from rsm_fast.packing.render import Rendering
from rsm_fast.packing.templates import MARKDOWN, TemplateLike, get_template
from rsm_fast.tokens import TokenCounter, WordPieceCounter

__all__ = ["MAX_MISSES", "MAX_OMITTED", "fill"]

MAX_OMITTED: Final = 200
"""Left-out chunks that ``explain`` reports at most."""
_ROUNDS: Final = 2  # times that room found by folding is filled again
_LEAST_ROOM: Final = 0.01  # share of the budget below which that does not pay
_SLACK: Final = 0.03  # share of the budget left by an estimate that is worth a second count


def fill(
    pieces: Iterable[Piece] | Source,
    *,
    budget: int,
    counter: TokenCounter,
    template: TemplateLike = MARKDOWN,
    layout: LayoutName = "sessions",
    fold: bool = True,
    explain: bool = False,
    frame: Frame | None = None,
    ledger: Ledger | None = None,
) -> Filled:
    """Fill a pack: admit chunks in the given order, lay them out, write the text.

    A chunk is charged what it adds to the text: its lines, escape characters, the header or
    speaker's name that only it needs, and for lines that the pack has already the price of a
    reference. What does not fit is skipped and the next one tried. Byte-equal chunks without
    a step number become one with a count.

    Parameters
    ----------
    pieces : iterable of Piece, or Source
        Candidates in the order of admission; taken one by one, and no more than needed. Of a
        `Source` no text is read that is too long to be worth it, and a kernel decides; with
        ``explain`` all are tried.
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
    frame : Frame, optional
        Of that template and counter, kept from earlier packs.
    ledger : Ledger, optional
        The admission of that pack from that source, if it has begun.

    Returns
    -------
    Filled
        ``counter(text) <= budget`` holds for its text.
    """
    if frame is None:
        frame = Frame(get_template(template), counter)
    filler = _Filler(frame, layout, budget, fold=fold, explain=explain)
    if isinstance(pieces, Source) and not explain:
        filler.admit_offers(pieces, ledger)
    elif isinstance(pieces, Source):
        filler.admit(_in_order(pieces, frame))
    else:
        filler.admit(Form(piece, frame) for piece in pieces)
    return filler.result(*filler.write())


class _Filler:
    """One pack being filled."""

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
        self.room = budget - frame.fixed
        # Tokens that folding is believed to save, and the share of them that it really did.
        self.believed = 0
        self.realised = 1.0
        self._ledger: Ledger | None = None  # until what it knows is needed
        self._seen = Seen()
        self._by_text: dict[object, Entry] = {}  # by `Form.copy_key`
        self._skipped: list[tuple[Form, int, int]] = []
        self._reasons: dict[int, str] = {}

    # -- admission ---------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Tokens in use beside the notice, as far as known before rendering."""
        return self.layout.tokens - int(self.believed * self.realised)

    def admit(self, forms: Iterable[Form]) -> None:
        """Take chunks until they end or nothing has fitted for a long time."""
        if self.room <= 0:
            return
        misses = 0
        for form in forms:
            self.considered += 1
            if self._try(form, self.considered):
                misses = 0
            else:
                misses += 1
                if misses >= MAX_MISSES:
                    break

    def admit_offers(self, source: Source, ledger: Ledger | None) -> None:
        """The same for what a kernel can decide; what is too long is passed over."""
        if self.room <= 0:
            return
        if ledger is None:
            prices = source.prices(self.frame)
            ledger = Ledger(prices, self.layout.by, budget=self.budget, fold=self.fold)
        self._ledger = ledger
        ledger.admit(source)
        self.considered = ledger.considered
        self.believed = ledger.believed
        self.admitted, sections = ledger.entries()
        self.layout.adopt(sections, ledger.tokens)

    def _settle(self) -> None:
        """Know what `admit` would know by now."""
        ledger, self._ledger = self._ledger, None
        if ledger is None:
            return
        self._skipped = ledger.skipped()
        for entry in self.admitted:
            self._remember(entry)

    def _remember(self, entry: Entry) -> None:
        form = entry.form
        if form.copy_key is not None:
            self._by_text[form.copy_key] = entry
        if self.fold:
            for turn in form.turns():
                self._seen.add(turn)

    def _retry(self) -> bool:
        """Try again what did not fit before; True if something does now."""
        self._settle()
        skipped, self._skipped = self._skipped, []
        admitted = len(self.admitted)
        for form, added, rank in skipped:
            if added > self.room - self.used or self._twin(form) is not None:
                self._skipped.append((form, added, rank))
            else:
                self._try(form, rank)
        return len(self.admitted) > admitted

    def _try(self, form: Form, rank: int) -> bool:
        twin = self._twin(form)
        if twin is not None:
            return self._add_copy(twin, form, rank)
        room = self.room - self.used
        least = form.least
        saved = 0
        if self.fold and (least <= room or (self.believed and least <= FOLDED * room)):
            saved = self._saving(form)
            least -= saved
        if least > room:
            reason = f"needs over {least} tokens, {room} left" if self.explain else ""
            self._skip(form, least, rank, reason)
            return False
        entry = Entry(form, rank)
        added = self.layout.insert(entry, limit=room + saved) - saved
        if added > room:
            reason = f"needs {added} tokens, {room} left" if self.explain else ""
            self._skip(form, added, rank, reason)
            return False
        entry.saved = saved
        entry.added = added
        self.admitted.append(entry)
        self.believed += saved
        self._remember(entry)
        return True

    def _saving(self, form: Form) -> int:
        """Tokens that references are going to save if a chunk joins."""
        saved, seen = 0, self._seen
        for turn in form.turns():
            if seen.meets(turn):
                saved += seen.saving(turn, form.label_cost)
        return saved

    def _twin(self, form: Form) -> Entry | None:
        """The entry that holds a byte-equal chunk; chunks with a step number have none."""
        key = form.copy_key
        return None if key is None else self._by_text.get(key)

    def _add_copy(self, entry: Entry, form: Form, rank: int) -> bool:
        """Count a byte-equal chunk instead of writing it again."""
        before = self.used
        self.layout.remove(entry)
        entry.add_copy(form.piece)
        self.layout.insert(entry)
        if self.used <= max(self.room, before):
            return True
        added = self.used - before
        self.layout.remove(entry)
        entry.drop_copy()
        self.layout.insert(entry)
        self._skip(form, added, rank, f"byte-equal copy of {entry.piece.id}, no room to say so")
        return False

    def _skip(self, form: Form, added: int, rank: int, reason: str) -> None:
        self._skipped.append((form, added, rank))
        if self.explain:
            self._reasons[form.piece.row] = reason

    def _cut(self, number: int) -> None:
        """Take out the entries that were admitted last."""
        self._settle()
        for _ in range(min(number, len(self.admitted))):
            entry = self.admitted.pop()
            self.layout.remove(entry)
            self.believed -= entry.saved
            if entry.form.copy_key is not None:
                del self._by_text[entry.form.copy_key]
            for piece in entry.pieces:
                form = entry.form if piece is entry.form.piece else Form(piece, self.frame)
                self._skip(form, entry.added, entry.rank, "cut again: the whole was too long")

    # -- writing under the cap ---------------------------------------------------------------

    def write(self) -> tuple[Rendering, str, int]:
        """The text and its tokens, at most the budget."""
        counter = self.frame.counter
        if not counter.additive:
            return self._write_counted()
        rendering = self._render()
        for _ in range(_ROUNDS):
            room = self.budget - rendering.tokens
            if not rendering.saved or room < _LEAST_ROOM * self.budget or not self._retry():
                break
            rendering = self._render()
        while rendering.tokens > self.budget:
            self._cut(1)
            while self.admitted and self.used > self.room:
                self._cut(1)
            rendering = self._render()
        if isinstance(counter, WordPieceCounter):
            return rendering, rendering.write(), rendering.tokens
        # The promise is about newlines; the frame also joins parts within a line.
        return self._capped(rendering)

    def _write_counted(self) -> tuple[Rendering, str, int]:
        """Write where only the count of the whole text is true."""
        rendering = self._render()
        text = rendering.write()
        count = self.frame.counter(text) if text else 0
        if count > self.budget:
            target = rendering.tokens * self.budget // count - 2 - self.frame.fixed
            self._cut(1)
            while self.admitted and self.used > target:
                self._cut(1)
            return self._capped(self._render())
        if text and self.budget - count > _SLACK * self.budget:
            estimate = rendering.tokens * self.budget // max(count, 1)
            self.room = estimate - 2 - self.frame.fixed
            if self._retry():
                larger = self._render()
                larger_text = larger.write()
                larger_count = self.frame.counter(larger_text)
                if larger_count <= self.budget:
                    return larger, larger_text, larger_count
        return rendering, text, count

    def _capped(self, rendering: Rendering) -> tuple[Rendering, str, int]:
        """Count the whole text, and cut chunks until it fits."""
        cut = 1
        while text := rendering.write():
            count = self.frame.counter(text)
            if count <= self.budget:
                return rendering, text, count
            self._cut(cut)
            rendering = self._render()
            cut *= 2
        return rendering, "", 0

    def _render(self) -> Rendering:
        repeated: Set[str] = frozenset()
        if self.believed > 0 and self._ledger is None:
            repeated = self._seen.repeated
        elif self.believed > 0:
            turns = chain.from_iterable(entry.form.turns() for entry in self.admitted)
            counts = Counter(chain.from_iterable(turn.parts for turn in turns))
            repeated = {part for part, count in counts.items() if count > 1}
        rendering = Rendering(self.layout, self.frame, repeated)
        if self.believed > 0:
            self.realised = rendering.saved / self.believed
        return rendering

    # -- result ------------------------------------------------------------------------------

    def result(self, rendering: Rendering, text: str, tokens: int) -> Filled:
        """What `fill` returns."""
        packed = []
        rows = set()
        for entry in rendering.entries:
            piece = entry.piece
            copies = len(entry.pieces)
            reason = ""
            if self.explain:
                rows.add(piece.row)
                reason = f"rank {entry.rank}, score {piece.score:.4g}: adds {entry.added} tokens"
                if copies > 1:
                    reason += f"; stands for {copies} byte-equal chunks"
            ids = (piece.id,) if copies == 1 else tuple([copy.id for copy in entry.pieces])
            packed.append(PackedPiece(piece, entry.form.alone, copies, ids, reason))
        omitted = []
        if self.explain:
            left = [form for form, _, _ in self._skipped if form.piece.row not in rows]
            for form in left[:MAX_OMITTED]:
                form.prepare()
                reason = self._reasons[form.piece.row]
                omitted.append(Omitted(form.piece, form.alone, reason))
        return Filled(text, tokens, tuple(packed), tuple(omitted), self.considered, rendering.saved)


def _in_order(source: Source, frame: Frame) -> Iterator[Form]:
    """All chunks of a source, read some at a time."""
    start = 0
    for offers in source.offers():
        stop = start + offers.rows.size
        for first in range(start, stop, READ_AT_ONCE):
            yield from source.forms(frame, range(first, min(first + READ_AT_ONCE, stop)))
        start = stop
