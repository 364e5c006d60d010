"""Making notes: description, vector, links and evolution of one turn after another."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from rsm_fast.errors import InvalidInputError
from rsm_fast.instants import Instant
from rsm_fast.llm import LanguageModel, Usage
from rsm_fast.notes.asking import (
    PROMPTS_VERSION,
    Connected,
    Described,
    Neighbour,
    connect,
    connect_messages,
    describe,
    describe_messages,
)
from rsm_fast.notes.shelf import Shelf, embedded_text
from rsm_fast.notes.types import CompletionReport, Estimate
from rsm_fast.store import TurnRecord
from rsm_fast.store.notes import (
    DESCRIBED,
    KEPT,
    LINKED,
    Description,
    NoteReader,
    NoteRecord,
    NoteWriter,
    text_digest,
)

__all__ = ["Method", "NoteMaker"]

_GIVE_UP = 3
"""Turns in a row for which the model cannot be reached, after which completing stops."""

_DESCRIBE_ANSWER = 90
"""Tokens assumed for a description, about what models write for the prompt."""
_LINK_ANSWER = 40
_REWRITES = 0.15
"""Share of the neighbours whose description is assumed to be rewritten."""

_NO_MODEL = "no model was given"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Method:
    """Which parts of the method are on.

    Attributes
    ----------
    k : int
        Neighbours that a new note is held against.
    links : bool
        Ask which of them belong together with it.
    evolution : bool
        Have their descriptions rewritten too; needs ``links``.
    repairs : int
        How often an answer that cannot be used is asked for again.
    """

    k: int = 10
    links: bool = True
    evolution: bool = True
    repairs: int = 1

    def __post_init__(self) -> None:
        for name, low, high in (("k", 1, 1000), ("repairs", 0, 10)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise InvalidInputError(
                    f"{name}: expected a whole number from {low} to {high}, got {value!r}"
                )
        if self.evolution and not self.links:
            raise InvalidInputError(
                "evolution: needs links; give links=True, or evolution=False as well"
            )


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of one turn."""

    problem: str = ""
    links: int = 0
    evolutions: int = 0
    unreachable: bool = False
    usage: Usage = Usage()


class NoteMaker:
    """Turns into notes, one namespace.

    Parameters
    ----------
    shelf : Shelf
    model : LanguageModel or None
        None: notes are kept, and pending.
    method : Method
    """

    def __init__(self, shelf: Shelf, model: LanguageModel | None, method: Method) -> None:
        self._shelf = shelf
        self._model = model
        self._method = method

    def complete(
        self,
        turns: Sequence[int],
        *,
        workers: int,
        progress: Callable[[int], None] | None = None,
    ) -> CompletionReport:
        """Make notes of turns, given by pk in order of arrival.

        Descriptions are asked for ahead, by ``workers`` at a time. Links and evolution depend
        on the notes before, so they come one after another: the outcome does not depend on
        ``workers``. Each turn is committed by itself; a run that was stopped is started again.
        """
        usage = Usage()
        problems: dict[str, str] = {}
        links = evolutions = asked = in_a_row = 0
        stopped = ""
        for turn, described in self._described(turns, workers):
            outcome = self._finish(turn, described)
            asked += 1
            usage += outcome.usage
            links += outcome.links
            evolutions += outcome.evolutions
            if outcome.problem:
                problems[turn.id] = outcome.problem
                _log.warning("note %s is pending: %s", turn.id, outcome.problem)
            in_a_row = in_a_row + 1 if outcome.unreachable else 0
            if progress is not None:
                progress(asked)
            if in_a_row == _GIVE_UP and self._model is not None:
                stopped = f"the model could not be reached {_GIVE_UP} times in a row"
                break
        finished = asked - len(problems)
        return CompletionReport(asked, finished, links, evolutions, problems, stopped, usage)

    def estimate(self, turns: Sequence[int]) -> Estimate:
        """Calls and tokens that `complete` would take."""
        count = self._shelf.counter
        method = self._method
        calls = prompts = answers = 0
        with self._shelf.reading() as (reader, ns):
            if ns is None:
                return Estimate(0, 0, 0, 0, count.name)
            existing = NoteReader(reader).counts(ns)["notes"]
            shown = 0  # tokens of all turns so far as neighbours
            number = 0
            for number, turn in enumerate(self._records(turns), 1):
                note = next(iter(NoteReader(reader).notes(ns, [turn.pk])), None)
                if note is None or note.stage < DESCRIBED:
                    calls += 1
                    prompts += _tokens(count, describe_messages(turn))
                    answers += _DESCRIBE_ANSWER
                one = Neighbour(turn, _TYPICAL)
                alone = connect_messages(one, [], evolution=method.evolution)
                beside = connect_messages(one, [one], evolution=method.evolution)
                base = _tokens(count, alone)
                near = min(method.k, existing + number - 1)
                if method.links and near:
                    mean = shown / (number - 1) if number > 1 else _tokens(count, beside) - base
                    calls += 1
                    prompts += base + round(near * mean)
                    answers += _LINK_ANSWER
                    if method.evolution:
                        answers += round(_REWRITES * near * _DESCRIBE_ANSWER)
                shown += _tokens(count, beside) - base
        return Estimate(number, calls, prompts, answers, count.name)

    # -- describing, ahead --------------------------------------------------------------------

    def _described(
        self, turns: Sequence[int], workers: int
    ) -> Iterator[tuple[TurnRecord, Described]]:
        """Turns with their descriptions, in order; a bounded number is under way."""
        pending: deque[tuple[TurnRecord, Future[Described]]] = deque()
        with ThreadPoolExecutor(workers, "rsm-fast-notes") as pool:
            try:
                for turn in self._records(turns):
                    pending.append((turn, pool.submit(self._describe, turn)))
                    if len(pending) > 2 * workers:
                        first, future = pending.popleft()
                        yield first, future.result()
                while pending:
                    first, future = pending.popleft()
                    yield first, future.result()
            finally:
                for _, future in pending:
                    future.cancel()

    def _records(self, turns: Sequence[int]) -> Iterator[TurnRecord]:
        for start in range(0, len(turns), 64):
            with self._shelf.reading() as (reader, ns):
                records = [] if ns is None else reader.turns(ns, turns[start : start + 64])
            yield from records

    def _describe(self, turn: TurnRecord) -> Described:
        with self._shelf.reading() as (reader, ns):
            notes = [] if ns is None else NoteReader(reader).notes(ns, [turn.pk])
        if notes and notes[0].stage >= DESCRIBED:  # an earlier run came so far
            return Described(notes[0].description, "", notes[0].model, Usage())
        if self._model is None:
            return Described(Description(), _NO_MODEL, "", Usage(), unreachable=True)
        return describe(self._model, turn, repairs=self._method.repairs)

    # -- linking and evolution, one after another ----------------------------------------------

    def _finish(self, turn: TurnRecord, described: Described) -> _Outcome:
        """Embed a described turn, hold it against its neighbours, commit."""
        space, (vector,) = self._shelf.embedded([embedded_text(turn.text, described.description)])
        note = NoteRecord(
            turn=turn.pk,
            stage=KEPT if described.problem else DESCRIBED,
            description=described.description,
            model=described.model,
            prompts=PROMPTS_VERSION,
            problem=described.problem,
            text_digest=text_digest(turn.text),
            changed=0,
            space=space,
            vector=vector.astype("<f4").tobytes(),
        )
        connected = Connected((), {}, "", Usage())
        near: dict[int, tuple[NoteRecord, Neighbour]] = {}
        if not described.problem and self._method.links:
            near = self._neighbours(turn, vector)
            if near and self._model is None:  # an earlier run had one, for the description
                connected = Connected((), {}, _NO_MODEL, Usage(), unreachable=True)
            elif near and self._model is not None:
                connected = connect(
                    self._model,
                    Neighbour(turn, described.description),
                    [neighbour for _, neighbour in near.values()],
                    evolution=self._method.evolution,
                    repairs=self._method.repairs,
                )
        if not described.problem:
            note = note._replace(
                stage=DESCRIBED if connected.problem else LINKED, problem=connected.problem
            )
        links, evolutions = self._commit(note, near, connected)
        return _Outcome(
            described.problem or connected.problem,
            links,
            evolutions,
            described.unreachable or connected.unreachable,
            described.usage + connected.usage,
        )

    def _neighbours(
        self, turn: TurnRecord, vector: np.ndarray
    ) -> dict[int, tuple[NoteRecord, Neighbour]]:
        with self._shelf.view() as (reader, state):
            if state is None:  # purged meanwhile
                return {}
            found = [pk for pk, _ in state.nearest(vector, self._method.k, without=[turn.pk])]
            turns = {record.pk: record for record in reader.turns(state.ns, found)}
            notes = NoteReader(reader).notes(state.ns, found)
        return {note.turn: (note, Neighbour(turns[note.turn], note.description)) for note in notes}

    def _commit(
        self,
        note: NoteRecord,
        near: dict[int, tuple[NoteRecord, Neighbour]],
        connected: Connected,
    ) -> tuple[int, int]:
        """Write a note, its links, and the neighbours that evolve: one transaction.

        What others changed or deleted meanwhile is left as it is.
        """
        rewritten = list(connected.rewrites.items())
        space, vectors = self._shelf.embedded(
            [embedded_text(near[pk][1].turn.text, new) for pk, new in rewritten]
        )
        now = Instant.now().micros
        evolutions = 0
        with self._shelf.writing() as (writer, ns):
            notes = NoteWriter(writer)
            turns = [] if ns is None else writer.turns(ns, [note.turn])
            if ns is None or not turns or text_digest(turns[0].text) != note.text_digest:
                return 0, 0
            standing = {old.turn: old for old in notes.notes(ns, [note.turn, *near])}
            notes.put(ns, _merged(note, standing.pop(note.turn, None)))
            links = [pk for pk in connected.links if pk in standing]
            notes.link(ns, note.turn, links)
            for (pk, new), vector in zip(rewritten, vectors, strict=True):
                seen, _ = near[pk]
                if standing.get(pk) != seen:
                    continue
                changed = seen._replace(
                    description=new, space=space, vector=vector.astype("<f4").tobytes()
                )
                notes.evolve(
                    ns,
                    changed,
                    before=seen.description,
                    cause=note.turn,
                    sources=near,
                    micros=now,
                )
                evolutions += 1
        return len(links), evolutions


def _merged(note: NoteRecord, standing: NoteRecord | None) -> NoteRecord:
    """A note with the description that it has got meanwhile, by another run or by evolution."""
    if standing is None or standing.stage < DESCRIBED or note.stage < DESCRIBED:
        return note if standing is None or standing.stage <= note.stage else standing
    finished = LINKED in (note.stage, standing.stage)
    return standing._replace(
        stage=LINKED if finished else DESCRIBED, problem="" if finished else note.problem
    )


_TYPICAL = Description(
    ("first keyword", "second keyword", "third keyword", "fourth", "fifth"),
    ("first tag", "second tag", "third tag"),
    "One sentence of some twenty words that says what the message is about and what it is for.",
)


def _tokens(count: Callable[[str], int], messages: Sequence[dict[str, str]]) -> int:
    """Tokens of a question, with what chat templates add to each message."""
    return sum(count(message["content"]) + 4 for message in messages)
