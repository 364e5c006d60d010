"""Finding notes: the k nearest, and those linked with them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rsm_fast.errors import InvalidInputError
from rsm_fast.instants import Instant, TimestampLike, parse_instant
from rsm_fast.notes.shelf import Shelf, details_text
from rsm_fast.notes.state import NoteState
from rsm_fast.notes.types import Evolution, Note, NoteHit, NoteStats
from rsm_fast.packing import Filled, Piece, Span, TemplateLike, fill, get_template
from rsm_fast.store import Reader, TurnRecord
from rsm_fast.store.notes import LINKED, Description, EvolutionRecord, NoteReader, NoteRecord
from rsm_fast.types import OmittedChunk, Pack, PackedChunk, PackStats

if TYPE_CHECKING:
    from rsm_fast.core import Core
    from rsm_fast.presets import Layout

__all__ = ["NoteFinder", "NoteQuery", "shown_evolution"]

NOTE_ROLE = "note"
"""What a note's description is labelled with in a pack."""


@dataclass(frozen=True, slots=True)
class NoteQuery:
    """What a question to the notes asks for, checked.

    Attributes
    ----------
    text : str
    k : int
    links : bool
        Let the notes linked with the k nearest come along.
    where, as_of, superseded
        As in `rsm_fast.Memory.search`.
    """

    text: str
    k: int = 10
    links: bool = True
    where: Mapping[str, Any] | None = None
    as_of: TimestampLike | None = None
    superseded: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise InvalidInputError(f"query: expected some text, got {self.text!r:.80}")
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 0:
            raise InvalidInputError(f"k: expected a whole number, 0 or more, got {self.k!r}")


@dataclass(frozen=True, slots=True)
class _Found:
    """One note of an answer, by the pk of its turn."""

    turn: int
    score: float
    via: int | None


class NoteFinder:
    """Reads the notes of one namespace.

    Parameters
    ----------
    core : Core
    shelf : Shelf
    """

    def __init__(self, core: Core, shelf: Shelf) -> None:
        self._core = core
        self._shelf = shelf

    # -- verbs --------------------------------------------------------------------------------

    def search(self, query: NoteQuery) -> list[NoteHit]:
        """The k nearest notes, best first, then those linked with them, best first."""
        if not query.k or not self._core.exists():
            return []
        vector = self._core.embed_query(query.text)
        with self._shelf.view() as (reader, state):
            if state is None:
                return []
            found = self._find(reader, state, query, vector)
            notes = self._notes(reader, state.ns, [one.turn for one in found])
        return [
            NoteHit(notes[one.turn], one.score, None if one.via is None else notes[one.via].id)
            for one in found
            if one.turn in notes
        ]

    def pack(
        self,
        query: NoteQuery,
        *,
        budget: int,
        layout: Layout,
        template: TemplateLike,
        fold: bool,
        details: bool,
        explain: bool,
    ) -> Pack:
        """The prompt text of what `search` finds, within a budget."""
        started = time.perf_counter()
        template = get_template(template)
        pieces: Iterator[Piece] = iter(())
        eligible = 0
        embedded = scored = time.perf_counter()
        if budget and query.k and self._core.exists():
            vector = self._core.embed_query(query.text)
            embedded = scored = time.perf_counter()
            with self._shelf.view() as (reader, state):
                if state is not None:
                    found = self._find(reader, state, query, vector)
                    eligible = state.living
                    scored = time.perf_counter()
                    pieces = self._pieces(self._texts(reader, state.ns, found), details)
        filled = fill(
            pieces,
            budget=budget,
            counter=self._core.counter,
            template=template,
            layout=layout,
            fold=fold,
            explain=explain,
        )
        ended = time.perf_counter()
        return Pack(
            text=filled.text,
            tokens=filled.tokens,
            budget=budget,
            query=query.text,
            chunks=tuple(_packed(filled)),
            omitted=tuple(
                OmittedChunk(item.piece.id, item.piece.score, item.tokens, None, item.reason)
                for item in filled.omitted
            ),
            stats=PackStats(
                eligible=eligible,
                scored=eligible,
                considered=filled.considered,
                admitted=len(filled.packed),
                folded_tokens=filled.folded_tokens,
                counter=self._core.counter.name,
                preset="notes",
                layout=layout,
                template=template.name,
                embed_us=1e6 * (embedded - started),
                score_us=1e6 * (scored - embedded),
                pack_us=1e6 * (ended - scored),
                total_us=1e6 * (ended - started),
            ),
        )

    def get(self, turn_id: str) -> Note | None:
        """The note on a turn; one without description if nobody has made it yet."""
        with self._shelf.reading() as (reader, ns):
            turn = None if ns is None else reader.turn(ns, turn_id)
            if turn is None or ns is None:
                return None
            return self._notes(reader, ns, [turn.pk])[turn.pk]

    def pending(self) -> list[Note]:
        """Turns without a finished note, in order of arrival."""
        with self._shelf.reading() as (reader, ns):
            if ns is None:
                return []
            return list(self._notes(reader, ns, NoteReader(reader).pending(ns)).values())

    def history(self, turn_id: str) -> list[Evolution]:
        """How a note was rewritten, oldest first."""
        with self._shelf.reading() as (reader, ns):
            turn = None if ns is None else reader.turn(ns, turn_id)
            if turn is None or ns is None:
                return []
            steps = NoteReader(reader).evolutions(ns, turn.pk)
            return [shown_evolution(reader, turn_id, step) for step in steps]

    def stats(self) -> NoteStats:
        """Counts."""
        with self._shelf.reading() as (reader, ns):
            counts = {} if ns is None else NoteReader(reader).counts(ns)
        return NoteStats(
            notes=counts.get("notes", 0),
            pending=counts.get("pending", 0),
            links=counts.get("links", 0),
            evolutions=counts.get("evolutions", 0),
            bytes=self._shelf.nbytes,
        )

    # -- ranking ------------------------------------------------------------------------------

    def _find(
        self, reader: Reader, state: NoteState, query: NoteQuery, vector: npt.NDArray[np.float32]
    ) -> list[_Found]:
        notes = NoteReader(reader)
        only: set[int] | None = None
        hidden: set[int] = set()
        if query.where is not None or query.as_of is not None:
            as_of = None if query.as_of is None else parse_instant(query.as_of, where="as_of")
            only = notes.eligible(
                state.ns,
                where=query.where,
                as_of=None if as_of is None else as_of.micros,
                superseded=query.superseded,
            )
        else:
            hidden = notes.hidden(state.ns, superseded=query.superseded)
        near = state.nearest(vector, query.k, only=only, without=hidden)
        found = [_Found(turn, score, None) for turn, score in near]
        if not query.links:
            return found
        links = notes.links(state.ns, [one.turn for one in found])
        best = {one.turn for one in found}
        via: dict[int, int] = {}
        for one in found:
            for other in links[one.turn]:
                if other not in best and other not in hidden and (only is None or other in only):
                    via.setdefault(other, one.turn)
        scores = state.cosines(vector, list(via))
        along = [
            _Found(turn, score, hit) for (turn, hit), score in zip(via.items(), scores, strict=True)
        ]
        return found + sorted(along, key=lambda one: (-one.score, one.turn))

    # -- texts --------------------------------------------------------------------------------

    def _notes(self, reader: Reader, ns: int, turns: Sequence[int]) -> dict[int, Note]:
        """Notes by turn, in the order asked."""
        notes = NoteReader(reader)
        known = {note.turn: note for note in notes.notes(ns, turns)}
        links = notes.links(ns, turns)
        others = sorted({other for linked in links.values() for other in linked})
        names = {turn.pk: turn.id for turn in reader.turns(ns, others)}
        return {
            turn.pk: _note(turn, known.get(turn.pk), [names[pk] for pk in links[turn.pk]])
            for turn in reader.turns(ns, turns)
        }

    def _texts(
        self, reader: Reader, ns: int, found: Sequence[_Found]
    ) -> list[tuple[_Found, TurnRecord, Description]]:
        keys = [one.turn for one in found]
        turns = {turn.pk: turn for turn in reader.turns(ns, keys)}
        notes = {note.turn: note.description for note in NoteReader(reader).notes(ns, keys)}
        return [(one, turns[one.turn], notes[one.turn]) for one in found if one.turn in turns]

    def _pieces(
        self, texts: Sequence[tuple[_Found, TurnRecord, Description]], details: bool
    ) -> Iterator[Piece]:
        """What may go into the pack; lines are counted as they are asked for."""
        for one, turn, description in texts:
            spans = [self._span(turn.role, turn.text, turn.id)]
            if details and (text := details_text(description)):
                spans.append(self._span(NOTE_ROLE, text, turn.id))
            yield Piece(
                row=one.turn,
                id=turn.id,
                spans=tuple(spans),
                atom=None,
                session=turn.session,
                instant=Instant(turn.micros, turn.offset_minutes),
                score=one.score,
            )

    def _span(self, role: str, text: str, turn_id: str) -> Span:
        return Span(role, text, turn_id, tuple(self._core.counter.count_lines(text.split("\n"))))


def _note(turn: TurnRecord, note: NoteRecord | None, links: Sequence[str]) -> Note:
    alone = Note(
        id=turn.id,
        text=turn.text,
        role=turn.role,
        session=turn.session,
        timestamp=Instant(turn.micros, turn.offset_minutes).isoformat(),
    )
    if note is None:
        return alone
    return Note(
        alone.id,
        alone.text,
        alone.role,
        alone.session,
        alone.timestamp,
        *note.description,
        links=tuple(links),
        pending=note.stage < LINKED,
        problem=note.problem,
        model=note.model,
        prompts=note.prompts,
    )


def shown_evolution(reader: Reader, turn_id: str, step: EvolutionRecord) -> Evolution:
    """A rewriting of a turn's note, with ids."""
    return Evolution(
        id=turn_id,
        cause=reader.turn_id(step.cause),
        timestamp=Instant(step.micros).isoformat(),
        before=_plain(step.before),
        after=_plain(step.after),
        undone=step.undone,
    )


def _plain(description: Description) -> dict[str, Any]:
    keywords, tags, context = description
    return {"keywords": list(keywords), "tags": list(tags), "context": context}


def _packed(filled: Filled) -> Iterator[PackedChunk]:
    for item in filled.packed:
        piece = item.piece
        yield PackedChunk(
            id=piece.id,
            turn_ids=item.ids,
            text=piece.spans[0].text,
            score=piece.score,
            atom=None,
            session=piece.session,
            timestamp=piece.instant.isoformat(),
            role=piece.spans[0].role,
            tokens=item.tokens,
            copies=item.copies,
            reason=item.reason,
        )
