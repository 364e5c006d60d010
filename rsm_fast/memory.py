"""`Memory`: the few verbs that users call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from rsm_fast.closing import Closing
from rsm_fast.core import Core, Limits
from rsm_fast.embedding import EmbedderLike
from rsm_fast.errors import InvalidInputError
from rsm_fast.instants import Instant, TimestampLike, parse_duration, parse_instant
from rsm_fast.packing import TemplateLike
from rsm_fast.presets import (
    Gate,
    Layout,
    Preset,
    Route,
    VectorType,
    changed_preset,
    checked_choice,
    checked_count,
    get_preset,
)
from rsm_fast.settings import WriteOptions
from rsm_fast.store import Finding, Store
from rsm_fast.tokens import TokenCounter
from rsm_fast.types import Hit, JSONValue, MemoryStats, Pack, Turn, TurnLike

if TYPE_CHECKING:
    from datetime import timedelta

    from rsm_fast.forgetting import ForgetPath
    from rsm_fast.reading import ReadPath, Request
    from rsm_fast.retrieval import HybridSettings
    from rsm_fast.writing import WritePath

__all__ = ["Memory"]

DEFAULT_NAMESPACE = "default"


class Memory(Closing):
    """A compact memory for one agent or user: turns in, a prompt within budget out.

    ``Memory()`` lives in RAM; `Memory.open` keeps everything in one SQLite file. A Memory may be
    used from many threads, and a file from many processes.

    Parameters
    ----------
    embedder : Embedder, callable, str, Path or None
        An object with the verbs of `rsm_fast.embedding.Embedder`; a callable that takes a list
        of n strings and gives an (n, d) array; a name such as ``"minilm"``; a model's folder.
        None takes what the namespace was made with, else the packaged MiniLM.
    count_tokens : callable or None
        Counts the tokens of a text; the unit of every budget. None takes the packaged
        WordPiece where it is installed, else UTF-8 bytes divided by three.
    preset : {"hybrid", "paper"} or Preset
        The default read path, and what fills in the write path's open choices.
    tau : float or None
        Fixes the gate's cosine threshold, on raw cosines. None has it calibrated on the first
        50 chunks.
    gate : {"max-member", "nearest-mean", "centroid"} or None
        Which vectors of an atom a new chunk is compared with.
    chunk_turns : int or None
        Turns to a chunk.
    rank : int or None
        Rows of each atom's basis.
    dtype : {"float32", "int8"} or None
        With ``"int8"`` the quantised vectors are the truth, and float vectors are not kept.
    percentile, centre
        How tau is calibrated; see `rsm_fast.clustering.TauCalibrator`.
    route : {"centroid", "singular-vector", "max-member", "subspace"} or None
        How atoms are scored against a question where the preset ranks by atoms (`paper`).
    layout, fold
        As in `pack`, for every pack of this memory.
    namespace : str
        Key of this memory in its store, 1 to 256 characters; nothing crosses it.
    vectors : {"ram", "disk"}
        Where float vectors are held; ``"disk"`` maps a file.
    hybrid : HybridSettings or None
        Other weights for the default read path.
    limits : Limits
        Sizes above which input is refused.

    Raises
    ------
    InvalidInputError
        If an option is out of range, or contradicts what the namespace was made with.
    """

    def __init__(
        self,
        *,
        embedder: EmbedderLike | None = None,
        count_tokens: Callable[[str], int] | TokenCounter | None = None,
        preset: str | Preset = "hybrid",
        tau: float | None = None,
        gate: Gate | None = None,
        chunk_turns: int | None = None,
        rank: int | None = None,
        dtype: VectorType | None = None,
        percentile: float | None = None,
        centre: bool | None = None,
        route: Route | None = None,
        layout: Layout | None = None,
        fold: bool | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        vectors: Literal["ram", "disk"] = "ram",
        hybrid: HybridSettings | None = None,
        limits: Limits | None = None,
        _store: Store | None = None,
    ) -> None:
        self._preset = changed_preset(get_preset(preset), route=route, layout=layout, fold=fold)
        self._hybrid = hybrid
        if not isinstance(limits, Limits | None):
            raise InvalidInputError(f"limits: expected Limits(...), got {limits!r:.80}")
        checked_choice(vectors, Literal["ram", "disk"], where="vectors")
        options = WriteOptions(
            gate=gate,
            rank=rank,
            chunk_turns=chunk_turns,
            dtype=dtype,
            percentile=percentile,
            centre=centre,
            tau=tau,
        )
        self._core = Core(
            Store.open(None) if _store is None else _store,
            namespace,
            preset=self._preset,
            options=options,
            limits=limits or Limits(),
            embedder=embedder,
            count_tokens=count_tokens,
            vectors_on_disk=vectors == "disk",
        )

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        profile: Literal["default", "edge"] = "default",
        synchronous: Literal["FULL", "NORMAL"] | None = None,
        timeout: float = 5.0,
        read_only: bool = False,
        **options: Any,
    ) -> Self:
        """Open or make a store.

        Parameters
        ----------
        path : str or Path
            The SQLite file.
        profile : {"default", "edge"}
            ``"edge"`` is for small machines: ``synchronous="NORMAL"``, int8 vectors for a new
            namespace, ``vectors="disk"`` for one that has float vectors. What is given beside
            it wins.
        synchronous : {"FULL", "NORMAL"} or None
            FULL survives a power cut; NORMAL may then lose the last writes, never mix states.
            None: as the profile says, FULL by default.
        timeout : float
            Seconds to wait for another writer.
        read_only : bool
            Never write.
        **options
            As for `Memory`.

        Raises
        ------
        StoreError
            If the file is no store, damaged, of a later version, or cannot be opened.
        EmbedderMismatchError
            If ``embedder`` differs from the one that the namespace was made with.
        """
        checked_choice(profile, Literal["default", "edge"], where="profile")
        if path is None or path == ":memory:":
            raise InvalidInputError(f"path: expected a file, got {path!r}; Memory() lives in RAM")
        edge = profile == "edge"
        store = Store.open(
            path,
            synchronous=synchronous or ("NORMAL" if edge else "FULL"),
            timeout=timeout,
            read_only=read_only,
        )
        try:
            if edge:
                options = {**_edge_options(store, options), **options}
            return cls(**options, _store=store)
        except BaseException:
            store.close()
            raise

    # -- writing ------------------------------------------------------------------------------

    def add(
        self,
        text: TurnLike,
        *,
        role: str = "user",
        timestamp: TimestampLike | None = None,
        session: str | None = None,
        id: str | None = None,  # noqa: A002
        metadata: Mapping[str, JSONValue] | None = None,
        ttl: str | timedelta | float | None = None,
    ) -> str:
        """Store one turn; it is durable when this returns.

        Parameters
        ----------
        text : str, Turn or mapping
            The turn's text, or a whole turn (then the other parameters must be left out).
        role, timestamp, session, id, metadata
            As in `Turn`. The same id with the same text changes nothing.
        ttl : str, timedelta, float or None
            How long after its timestamp the turn is remembered.

        Returns
        -------
        str
            The turn's id.

        Raises
        ------
        InvalidInputError
            If the turn cannot be stored.
        ConflictError
            If the id is taken by another text.
        """
        if isinstance(text, str):
            turn: TurnLike = Turn(text, role, timestamp, session, id, metadata, ttl)
        elif (role, timestamp, session, id, metadata, ttl) == ("user", *[None] * 5):
            turn = text
        else:
            raise InvalidInputError(
                "add: give either a text with role=, timestamp= ..., or one Turn without them"
            )
        return self._writing.add_many([turn])[0]

    def add_many(
        self,
        turns: Iterable[TurnLike],
        *,
        progress: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Store many turns: the same result as one by one, in fewer transactions.

        All turns are checked before the first is stored.

        Parameters
        ----------
        turns : iterable of Turn, mapping or str
        progress : callable, optional
            Called with the number of turns stored so far, after each transaction.

        Returns
        -------
        list of str
            Ids, in the order of the turns.
        """
        if isinstance(turns, (str, Mapping, Turn)):
            raise InvalidInputError(
                f"turns: expected several turns, got one {type(turns).__name__}; use add()"
            )
        if not isinstance(turns, Iterable):
            raise InvalidInputError(f"turns: expected several turns, got {turns!r:.80}")
        return self._writing.add_many(turns, progress=progress)

    def flush(self) -> None:
        """Embed and gate unfinished chunks (only where ``chunk_turns`` is above 1)."""
        self._writing.flush()

    def calibrate(self, texts: Sequence[str] | None = None) -> float:
        """Find tau now, on these texts or on the chunks so far; tau.

        Raises
        ------
        CalibrationError
            If tau is known already, or there are fewer than two items.
        """
        return self._writing.calibrate_on(texts, anew=False)

    def recalibrate(self, texts: Sequence[str] | None = None) -> float:
        """Find tau anew and cluster all chunks again in order of arrival; tau."""
        return self._writing.calibrate_on(texts, anew=True)

    def reembed(
        self,
        embedder: EmbedderLike | None,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Move this namespace to another embedder.

        New vectors are put aside batch by batch; the namespace stays usable with the old
        embedder until the last of them is there, and a run that was stopped goes on where it
        was. Then all chunks are gated anew.

        Parameters
        ----------
        embedder : Embedder, callable, str, Path or None
            As for `Memory`.
        progress : callable, optional
            Called with the number of chunks done and the number of all.
        """
        from rsm_fast.maintenance import reembed

        reembed(self._core, self._writing, embedder, progress)

    # -- reading ------------------------------------------------------------------------------

    def pack(
        self,
        query: str,
        *,
        budget: int | None = None,
        preset: str | Preset | None = None,
        layout: Layout | None = None,
        template: TemplateLike = "markdown",
        fold: bool | None = None,
        where: Mapping[str, Any] | None = None,
        as_of: TimestampLike | None = None,
        superseded: bool = False,
        explain: bool = False,
    ) -> Pack:
        """Make the prompt text for a question.

        Parameters
        ----------
        query : str
            The question.
        budget : int or None
            Cap on the tokens of the whole text, headers included. None means 4000.
        preset : str, Preset or None
            Another read path than this memory's own.
        layout : {"sessions", "atoms", "flat"} or None
            What stands together in the text; None: as the preset says.
        template : str or Template
            How the frame is written.
        fold : bool or None
            Write repeated lines once and refer to them afterwards; None: as the preset says.
        where, as_of, superseded
            As in `search`.
        explain : bool
            Say for each chunk why it is in or out.

        Returns
        -------
        Pack

        Raises
        ------
        BudgetError
            If the budget is negative or no whole number.
        """
        from rsm_fast.reading import checked_budget

        request = self._request(query, preset, where, as_of, superseded)
        if layout is not None or fold is not None:
            changed = changed_preset(request.preset, layout=layout, fold=fold)
            request = replace(request, preset=changed)
        return self._reading.pack(
            request,
            budget=checked_budget(budget),
            template=template,
            explain=explain,
        )

    def search(
        self,
        query: str,
        *,
        k: int = 10,
        preset: str | Preset | None = None,
        where: Mapping[str, Any] | None = None,
        as_of: TimestampLike | None = None,
        superseded: bool = False,
    ) -> list[Hit]:
        """The k chunks that score best, best first.

        Parameters
        ----------
        query : str
        k : int
            How many at most, 0 or more.
        preset : str, Preset or None
        where : mapping or None
            Filter: a chunk is eligible if all its turns match. Keys are ``role``, ``session``,
            ``id``, ``timestamp`` or metadata keys; a value must be equal, a list means any of
            them, ``{"gte": a, "lt": b}`` a range. Applied before the k are chosen.
        as_of : TimestampLike or None
            Look at the memory as it stood then.
        superseded : bool
            Let superseded turns in.
        """
        request = self._request(query, preset, where, as_of, superseded)
        return self._reading.search(request, k=checked_count("k", k, low=0))

    # -- forgetting ---------------------------------------------------------------------------

    def delete(self, ids: str | Iterable[str]) -> int:
        """Delete turns by id; how many. With an unknown id nothing is deleted.

        Raises
        ------
        NotFoundError
            If there is no such turn.
        """
        if not isinstance(ids, Iterable):
            raise InvalidInputError(f"ids: expected one id or several, got {ids!r:.80}")
        return self._forgetting.delete([ids] if isinstance(ids, str) else list(ids))

    def update(
        self,
        id: str,  # noqa: A002
        text: str,
        *,
        metadata: Mapping[str, JSONValue] | None = None,
    ) -> None:
        """Give a turn another text; it keeps its id, place and time, and is gated as new.

        ``metadata`` replaces the stored one if given.
        """
        from rsm_fast.drafting import checked_metadata, checked_text

        limits = self._core.limits
        self._forgetting.update(
            id,
            checked_text(text, limits=limits, where="text"),
            checked_metadata(metadata, limits=limits, where="metadata"),
            keep_metadata=metadata is None,
        )

    def supersede(self, old: str, new: str) -> None:
        """Mark turn ``old`` as replaced by ``new``: kept for history, packed only on request."""
        self._forgetting.supersede(old, new)

    def forget(
        self,
        *,
        older_than: str | timedelta | float | None = None,
        before: TimestampLike | None = None,
        where: Mapping[str, Any] | None = None,
        expired: bool = False,
    ) -> int:
        """Delete all turns that match; how many.

        Parameters
        ----------
        older_than : str, timedelta, float or None
            Age from now, such as ``"90d"``.
        before : TimestampLike or None
            Timestamp from which on turns are kept.
        where : mapping or None
            As in `search`; together with an age both must hold. An empty one counts as none.
        expired : bool
            Also delete what has outlived its ``ttl``.

        Raises
        ------
        InvalidInputError
            If nothing says what to forget; `purge` empties the namespace.
        """
        if older_than is not None and before is not None:
            raise InvalidInputError("forget: give older_than= or before=, not both")
        where = where or None  # a filter without conditions says nothing either
        limit = None if before is None else parse_instant(before, where="before")
        if older_than is not None:
            age = parse_duration(older_than, where="older_than")
            limit = Instant(Instant.now().micros - age)
        if limit is None and where is None and not expired:
            raise InvalidInputError(
                "forget: expected older_than=, before=, where= or expired=True; "
                "use purge() to delete the whole namespace"
            )
        return self._forgetting.forget(before=limit, where=where, expired=expired)

    def purge(self, namespace: str | None = None) -> None:
        """Delete this whole namespace, or another one of the store; one that is not there is not
        made.
        """
        self._forgetting.purge(self.namespace if namespace is None else namespace)

    def compact(self) -> None:
        """Write the file anew: no trace of deleted text is left, free space is given back."""
        self._core.store.compact()

    def check(self) -> list[Finding]:
        """Everything that is wrong with the store, or derived wrongly for this namespace.

        Reads every row of the store, and holds this namespace's words, counts, atoms and links
        against those that its texts give.
        """
        from rsm_fast.verifying import check

        return check(self._core)

    def repair(self, *, drop_damaged: bool = False) -> list[Finding]:
        """Rebuild whatever damage in the store can be rebuilt; what is still wrong then.

        Parameters
        ----------
        drop_damaged : bool
            Also delete turns whose text does not fit its checksum; without it they stay, and
            reading them raises `CorruptStoreError`.
        """
        from rsm_fast.maintenance import repair

        return repair(self._core, self._writing, drop_damaged=drop_damaged)

    # -- looking ------------------------------------------------------------------------------

    def stats(self) -> MemoryStats:
        """Counts, sizes, tau and warnings of this namespace."""
        from rsm_fast.looking import memory_stats

        return memory_stats(self._core)

    def get(self, id: str) -> Turn | None:  # noqa: A002
        """The turn of an id, as it is stored; None if there is none."""
        from rsm_fast.looking import stored_turns

        if not isinstance(id, str):
            raise InvalidInputError(f"id: expected text, got {id!r:.80}")
        return next(iter(stored_turns(self._core, ids=[id], where=None, last=None)), None)

    def turns(
        self, *, where: Mapping[str, Any] | None = None, last: int | None = None
    ) -> list[Turn]:
        """Turns as they are stored, in order of arrival.

        Parameters
        ----------
        where : mapping or None
            As in `search`; None: all turns.
        last : int or None
            Only so many of them, the newest.
        """
        from rsm_fast.looking import stored_turns

        newest = None if last is None else checked_count("last", last, low=1)
        return stored_turns(self._core, ids=None, where=where, last=newest)

    def namespaces(self) -> list[str]:
        """Keys of all namespaces in the store."""
        with self._core.store.read() as reader:
            return [record.key for record in reader.namespaces()]

    @property
    def namespace(self) -> str:
        """Key of this memory's namespace."""
        return self._core.key

    @property
    def path(self) -> Path | None:
        """The store's file, None in RAM."""
        return self._core.store.path

    # -- async twins --------------------------------------------------------------------------
    # A thread does the work; a cancelled call still finishes or rolls back there.

    async def aadd(self, text: TurnLike, **options: Any) -> str:
        """`add` without blocking the event loop."""
        return await asyncio.to_thread(self.add, text, **options)

    async def aadd_many(self, turns: Iterable[TurnLike], **options: Any) -> list[str]:
        """`add_many` without blocking the event loop."""
        return await asyncio.to_thread(self.add_many, turns, **options)

    async def apack(self, query: str, **options: Any) -> Pack:
        """`pack` without blocking the event loop."""
        return await asyncio.to_thread(self.pack, query, **options)

    async def asearch(self, query: str, **options: Any) -> list[Hit]:
        """`search` without blocking the event loop."""
        return await asyncio.to_thread(self.search, query, **options)

    # -- life ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish open chunks and close the store. Closing twice does nothing."""
        if self._core.closed:
            return
        try:
            if not self._core.store.read_only:
                self.flush()
                self._core.save_snapshot()
        finally:
            self._core.close()

    def __repr__(self) -> str:
        return f"Memory({str(self.path or 'in RAM')!r}, namespace={self.namespace!r})"

    # -- parts, loaded with NumPy and Numba at first use ---------------------------------------

    @cached_property
    def _writing(self) -> WritePath:
        from rsm_fast.writing import WritePath

        return WritePath(self._core)

    @cached_property
    def _reading(self) -> ReadPath:
        from rsm_fast.reading import ReadPath
        from rsm_fast.retrieval import HybridSettings

        if not isinstance(self._hybrid, HybridSettings | None):
            raise InvalidInputError(f"hybrid: expected HybridSettings, got {self._hybrid!r:.80}")
        return ReadPath(self._core, self._hybrid or HybridSettings())

    @cached_property
    def _forgetting(self) -> ForgetPath:
        from rsm_fast.forgetting import ForgetPath

        return ForgetPath(self._core, self._writing)

    def _request(
        self,
        query: str,
        preset: str | Preset | None,
        where: Mapping[str, Any] | None,
        as_of: TimestampLike | None,
        superseded: bool,
    ) -> Request:
        from rsm_fast.reading import Request

        chosen = self._preset if preset is None else get_preset(preset)
        return Request(query, chosen, where, as_of, superseded)


def _edge_options(store: Store, options: Mapping[str, Any]) -> dict[str, Any]:
    """What ``profile="edge"`` adds; the kind of vectors of a namespace that exists is settled."""
    with store.read() as reader:
        known = reader.namespace(options.get("namespace", DEFAULT_NAMESPACE)) is not None
    return {"vectors": "disk"} if known else {"vectors": "disk", "dtype": "int8"}
