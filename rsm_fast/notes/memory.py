"""`NoteMemory`: the few verbs of a memory that a language model keeps in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from rsm_fast.closing import Closing
from rsm_fast.errors import InvalidInputError, NotFoundError
from rsm_fast.instants import TimestampLike
from rsm_fast.llm import LanguageModel
from rsm_fast.memory import Memory
from rsm_fast.notes.reading import NoteFinder, NoteQuery, shown_evolution
from rsm_fast.notes.shelf import Shelf
from rsm_fast.notes.types import (
    CompletionReport,
    Estimate,
    Evolution,
    Note,
    NoteHit,
    NoteStats,
)
from rsm_fast.notes.writing import Method, NoteMaker
from rsm_fast.packing import TemplateLike
from rsm_fast.presets import Layout, checked_choice
from rsm_fast.reading import checked_budget
from rsm_fast.store.notes import NoteReader, NoteWriter
from rsm_fast.types import Pack, TurnLike

__all__ = ["NoteMemory"]


class NoteMemory(Closing):
    """Notes over the turns of a `Memory`, after A-MEM (Xu et al., arXiv 2502.12110).

    Each turn gets a note: keywords, tags and a context from a language model, links to the
    notes that belong together with it, and a vector of all of that. The arrival of a note may
    have the descriptions of its neighbours rewritten. Texts are the turns' own: nothing here
    changes them, and `Memory` works on them as before.

    Parameters
    ----------
    memory : Memory
        Holds the turns. Delete, update and forget there: notes follow.
    llm : LanguageModel or None
        Any object with ``chat(messages, schema)``, such as `rsm_fast.llm.ChatEndpoint`. None:
        notes can be read, and new ones stay pending.
    k : int
        Notes that a new one is held against, and that a question finds. A-MEM uses 10 to 50.
    links : bool
        Ask the model which of them belong together.
    evolution : bool
        Have it rewrite their descriptions as well; needs ``links``.
    repairs : int
        How often an answer that cannot be used is asked for again.

    Raises
    ------
    InvalidInputError
        If an option is out of range.
    """

    def __init__(
        self,
        memory: Memory,
        llm: LanguageModel | None = None,
        *,
        k: int = 10,
        links: bool = True,
        evolution: bool = True,
        repairs: int = 1,
    ) -> None:
        self.memory = memory
        self._method = Method(k, links, evolution and links, repairs)
        core = memory._core
        self._core = core
        self._shelf = Shelf(core)
        self._maker = NoteMaker(self._shelf, llm, self._method)
        self._finder = NoteFinder(core, self._shelf)

    @classmethod
    def open(
        cls,
        path: str | Path,
        llm: LanguageModel | None = None,
        *,
        k: int = 10,
        links: bool = True,
        evolution: bool = True,
        repairs: int = 1,
        **options: Any,
    ) -> Self:
        """Open or make a store; further options are those of `Memory.open`."""
        memory = Memory.open(path, **options)
        try:
            return cls(memory, llm, k=k, links=links, evolution=evolution, repairs=repairs)
        except BaseException:
            memory.close()
            raise

    # -- writing ------------------------------------------------------------------------------

    def add(self, text: TurnLike, **fields: Any) -> str:
        """Store one turn, then make its note; parameters are those of `Memory.add`.

        The turn is durable before the model is asked. Whatever the model does, this returns
        its id; `get` tells whether the note is pending.
        """
        turn_id = self.memory.add(text, **fields)
        self._complete([turn_id], workers=1)
        return turn_id

    def add_many(
        self,
        turns: Iterable[TurnLike],
        *,
        workers: int = 4,
        progress: Callable[[int], None] | None = None,
    ) -> CompletionReport:
        """Store turns, all of them first, then make their notes.

        Parameters
        ----------
        turns : iterable of Turn, mapping or str
        workers : int
            Descriptions that are asked for at a time, ahead of linking.
        progress : callable, optional
            Called with the number of turns that were gone through.
        """
        ids = self.memory.add_many(turns)
        return self._complete(ids, workers=workers, progress=progress)

    def complete(
        self,
        *,
        limit: int | None = None,
        workers: int = 4,
        progress: Callable[[int], None] | None = None,
    ) -> CompletionReport:
        """Make the notes that are pending, in the order in which their turns arrived.

        That is also the way to make notes of a whole existing memory. Each note is committed
        by itself: a run that was stopped continues with the next call.

        Parameters
        ----------
        limit : int or None
            At most so many turns.
        workers, progress
            As in `add_many`.

        Returns
        -------
        CompletionReport
        """
        return self._complete(None, workers=workers, limit=limit, progress=progress)

    def estimate(self, *, limit: int | None = None) -> Estimate:
        """What `complete` would cost, without asking anything."""
        return self._maker.estimate(self._pending(None, limit))

    def undo(self, id: str) -> Evolution:  # noqa: A002
        """Take back the last rewriting of a note's description.

        Raises
        ------
        NotFoundError
            If there is no such note, or nothing to take back.
        """
        with self._shelf.writing() as (writer, ns):
            turn = None if ns is None else writer.turn(ns, id)
            step = None
            if turn is not None and ns is not None:
                step = NoteWriter(writer).undo(ns, turn.pk)
            if step is None:
                raise NotFoundError(f"note {id!r}: no rewriting of it is left to be undone")
            return shown_evolution(writer, id, step)

    def clear(self) -> None:
        """Remove all notes with their links and history; the turns stay."""
        with self._shelf.writing() as (writer, ns):
            if ns is not None:
                NoteWriter(writer).clear(ns)

    # -- reading ------------------------------------------------------------------------------

    def search(
        self,
        query: str,
        *,
        k: int | None = None,
        links: bool | None = None,
        where: Mapping[str, Any] | None = None,
        as_of: TimestampLike | None = None,
        superseded: bool = False,
    ) -> list[NoteHit]:
        """The k nearest notes, best first, and then the notes linked with them.

        Parameters
        ----------
        query : str
        k : int or None
            How many nearest ones; None: as the memory was opened with.
        links : bool or None
            Let linked notes come along; None: as the memory was opened with.
        where, as_of, superseded
            As in `Memory.search`; they hold for linked notes too.
        """
        return self._finder.search(self._query(query, k, links, where, as_of, superseded))

    def pack(
        self,
        query: str,
        *,
        budget: int | None = None,
        k: int | None = None,
        links: bool | None = None,
        details: bool = True,
        layout: Layout = "sessions",
        template: TemplateLike = "markdown",
        fold: bool = True,
        where: Mapping[str, Any] | None = None,
        as_of: TimestampLike | None = None,
        superseded: bool = False,
        explain: bool = False,
    ) -> Pack:
        """The prompt text of what `search` finds, within a budget.

        Parameters
        ----------
        query : str
        budget : int or None
            Cap on the tokens of the whole text. None means 4000.
        k, links, where, as_of, superseded
            As in `search`.
        details : bool
            Write context, keywords and tags behind each text.
        layout, template, fold, explain
            As in `Memory.pack`.
        """
        checked_choice(layout, Layout, where="layout")
        return self._finder.pack(
            self._query(query, k, links, where, as_of, superseded),
            budget=checked_budget(budget),
            layout=layout,
            template=template,
            fold=fold,
            details=details,
            explain=explain,
        )

    def get(self, id: str) -> Note | None:  # noqa: A002
        """The note of a turn; None if there is no such turn."""
        return self._finder.get(id)

    def pending(self) -> list[Note]:
        """What `complete` would go through, in order of arrival."""
        return self._finder.pending()

    def history(self, id: str) -> list[Evolution]:  # noqa: A002
        """How a note was rewritten, oldest first."""
        return self._finder.history(id)

    def stats(self) -> NoteStats:
        """Counts of this namespace."""
        return self._finder.stats()

    # -- async twins --------------------------------------------------------------------------
    # A thread does the work; a cancelled call still finishes or rolls back there.

    async def aadd(self, text: TurnLike, **fields: Any) -> str:
        """`add` without blocking the event loop."""
        return await asyncio.to_thread(self.add, text, **fields)

    async def aadd_many(self, turns: Iterable[TurnLike], **options: Any) -> CompletionReport:
        """`add_many` without blocking the event loop."""
        return await asyncio.to_thread(self.add_many, turns, **options)

    async def acomplete(self, **options: Any) -> CompletionReport:
        """`complete` without blocking the event loop."""
        return await asyncio.to_thread(self.complete, **options)

    async def asearch(self, query: str, **options: Any) -> list[NoteHit]:
        """`search` without blocking the event loop."""
        return await asyncio.to_thread(self.search, query, **options)

    async def apack(self, query: str, **options: Any) -> Pack:
        """`pack` without blocking the event loop."""
        return await asyncio.to_thread(self.pack, query, **options)

    # -- life ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the memory below."""
        self.memory.close()

    def __repr__(self) -> str:
        return f"NoteMemory({self.memory!r}, k={self._method.k})"

    # -- parts --------------------------------------------------------------------------------

    def _query(
        self,
        query: str,
        k: int | None,
        links: bool | None,
        where: Mapping[str, Any] | None,
        as_of: TimestampLike | None,
        superseded: bool,
    ) -> NoteQuery:
        return NoteQuery(
            query,
            self._method.k if k is None else k,
            self._method.links if links is None else links,
            where,
            as_of,
            superseded,
        )

    def _complete(
        self,
        ids: Iterable[str] | None,
        *,
        workers: int,
        limit: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> CompletionReport:
        if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
            raise InvalidInputError(f"workers: expected 1 or more, got {workers!r}")
        turns = self._pending(ids, limit)
        return self._maker.complete(turns, workers=workers, progress=progress)

    def _pending(self, ids: Iterable[str] | None, limit: int | None) -> list[int]:
        """Pks of the pending turns, in order of arrival; of these ids, or all."""
        if limit is not None and (not isinstance(limit, int) or limit < 0):
            raise InvalidInputError(f"limit: expected a whole number, 0 or more, got {limit!r}")
        with self._shelf.reading() as (reader, ns):
            if ns is None:
                return []
            among = None
            if ids is not None:
                among = [turn.pk for turn in reader.turns_by_id(ns, list(ids)).values()]
            return NoteReader(reader).pending(ns, among)[:limit]
