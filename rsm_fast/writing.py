"""The write path: embed, then gate and store in one transaction."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from rsm_fast.clustering import TauCalibrator
from rsm_fast.core import Core, Transaction
from rsm_fast.drafting import Draft, Drafter, Part, checked_turn
from rsm_fast.errors import CalibrationError, ConflictError, InvalidInputError
from rsm_fast.instants import Instant
from rsm_fast.settings import NamespaceSettings
from rsm_fast.state import RowContent
from rsm_fast.store import ChunkRecord, Reader, TurnRecord
from rsm_fast.types import TurnLike

if TYPE_CHECKING:
    from rsm_fast.state import NamespaceState

__all__ = ["CALIBRATION_SIZE", "GIANT_ATOM_SHARE", "Plan", "WritePath", "open_drafts"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

CALIBRATION_SIZE = 50
"""Chunks of different texts that tau is calibrated on; RSM-full takes at most 50 items."""

GIANT_ATOM_SHARE = 0.5
"""An atom with more than this share of the chunks is reported."""

_AUTOMATIC_ID = "{:08d}"
_IDS_AHEAD = 256  # automatic ids that are looked at beyond those that are wanted
_REPLANS = 8  # times that a plan may be overtaken by other writers before the lock is held for it

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one transaction will write, made without the lock."""

    drafts: list[Draft]


@dataclass(frozen=True, slots=True)
class _AddPlan(Plan):
    batch: Sequence[TurnRecord]
    known: set[str]
    new: Sequence[TurnRecord]


P = TypeVar("P", bound=Plan)
T = TypeVar("T")


class WritePath:
    """Adds turns to one namespace.

    Parameters
    ----------
    core : Core
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._drafter: Drafter | None = None
        self._look_for_giant_at = 2 * CALIBRATION_SIZE

    # -- adding -------------------------------------------------------------------------------

    def add_many(
        self,
        turns: Iterable[TurnLike],
        *,
        progress: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Store turns in order; see `rsm_fast.memory.Memory.add_many`."""
        limits = self._core.limits
        now = Instant.now()
        checked = [
            checked_turn(turn, limits=limits, now=now, where=f"turns[{index}]")
            for index, turn in enumerate(islice(turns, limits.call_turns + 1))
        ]
        if len(checked) > limits.call_turns:
            raise InvalidInputError(
                f"turns: expected at most {limits.call_turns:,} in one call, got more; give them "
                "in several calls, or raise Limits.call_turns"
            )
        self._check_batch(checked)
        if len(checked) > limits.batch_turns:  # refuse before storing any
            with self._core.snapshot() as view:
                if view.state is not None:
                    self._known(view.reader, view.state.ns, checked)
        ids: list[str] = []
        for start in range(0, len(checked), limits.batch_turns):
            ids.extend(self._add_batch(checked[start : start + limits.batch_turns]))
            if progress is not None:
                progress(len(ids))
        return ids

    def _check_batch(self, turns: Sequence[TurnRecord]) -> None:
        texts: dict[str, str] = {}
        for index, turn in enumerate(turns):
            if turn.id and texts.setdefault(turn.id, turn.text) != turn.text:
                raise ConflictError(
                    f"turns[{index}].id: {turn.id!r} stands twice in this call with different "
                    "texts; give each turn its own id"
                )

    def _known(self, reader: Reader, ns: int, turns: Sequence[TurnRecord]) -> set[str]:
        """Ids of these turns that are stored already, with the same text."""
        ids = [turn.id for turn in turns if turn.id]
        if not ids:
            return set()
        stored = reader.turns_by_id(ns, ids)
        for turn in turns:
            if turn.id in stored and stored[turn.id].text != turn.text:
                raise ConflictError(
                    f"id {turn.id!r} is taken by another text in namespace {self._core.key!r}; "
                    "use update(id, text) to change a turn, or give a new id"
                )
        gone = reader.tombstoned(ns, [name for name in ids if name not in stored])
        if gone:
            raise ConflictError(
                f"id {min(gone)!r} belonged to a deleted turn of namespace {self._core.key!r}; "
                "ids are never used again, give a new one"
            )
        return set(stored)

    def planned(
        self,
        plan: Callable[[Reader, NamespaceState | None], P],
        commit: Callable[[P, Transaction], T],
        *,
        still_valid: Callable[[P, Transaction], bool] | None = None,
    ) -> T:
        """Plan and embed without the write lock, then commit what still holds.

        A plan that other writers have overtaken is made again; after a few times it is made
        under the lock.

        Parameters
        ----------
        plan : callable
            Makes a `Plan` from a snapshot.
        commit : callable
            Writes it.
        still_valid : callable, optional
            Whether a plan made at an older generation holds all the same.
        """
        for _ in range(_REPLANS):
            with self._core.snapshot() as view:
                made = plan(view.reader, view.state)
                generation = -1 if view.state is None else view.state.generation
            self._embed(made.drafts)
            with self._core.transaction() as transaction:
                if generation == transaction.state.generation or (
                    still_valid is not None and still_valid(made, transaction)
                ):
                    return commit(made, transaction)
        with self._core.transaction() as transaction:
            made = plan(transaction.writer, transaction.state)
            self._embed(made.drafts)
            return commit(made, transaction)

    def _add_batch(self, batch: Sequence[TurnRecord]) -> list[str]:
        """Store one batch in one transaction; the ids of all its turns, in order."""
        drafter = self._drafter
        if drafter is not None and drafter.alone and not any(turn.id for turn in batch):
            # Nothing stored has a say in the plan, so no snapshot is needed to make it.
            plan = _AddPlan(drafter.drafts(batch, {}), batch, set(), batch)
            self._embed(plan.drafts)
            with self._core.transaction() as transaction:
                settings = transaction.state.settings
                if settings is drafter.settings or settings == drafter.settings:
                    return self._commit(plan, transaction)
        return self.planned(
            lambda reader, state: self._plan(reader, state, batch),
            self._commit,
            still_valid=self._still_valid,
        )

    def _plan(
        self, reader: Reader, state: NamespaceState | None, batch: Sequence[TurnRecord]
    ) -> _AddPlan:
        known = set() if state is None else self._known(reader, state.ns, batch)
        new: list[TurnRecord] = []
        first: dict[str, None] = {}
        for turn in batch:
            if turn.id and (turn.id in known or turn.id in first):
                continue
            if turn.id:
                first[turn.id] = None
            new.append(turn)
        unfinished: dict[str | None, Draft] = {}
        if state is not None and state.open_rows:
            sessions = {turn.session for turn in new}
            unfinished = {
                session: draft
                for session, draft in open_drafts(reader, state).items()
                if session in sessions
            }
        drafter = self.drafter(None if state is None else state.settings)
        return _AddPlan(drafter.drafts(new, unfinished), batch, known, new)

    def drafter(self, settings: NamespaceSettings | None) -> Drafter:
        """The drafter of the namespace's settings, or of those that it will get."""
        core = self._core
        wanted = settings or core.new_settings()
        if self._drafter is None or self._drafter.settings != wanted:
            self._drafter = Drafter(wanted, counter=core.counter, embedder=core.embedder)
        return self._drafter

    def _embed(self, drafts: Sequence[Draft]) -> None:
        complete = [draft for draft in drafts if draft.complete]
        if complete:
            vectors = self._core.embed_passages([draft.to_embed for draft in complete])
            for draft, vector in zip(complete, vectors, strict=True):
                draft.vector = vector

    def _still_valid(self, plan: _AddPlan, transaction: Transaction) -> bool:
        """Whether what others committed since leaves the plan as it is."""
        state = transaction.state
        if any(draft.pk for draft in plan.drafts) or state.settings.chunk_turns > 1:
            return False
        return self._known(transaction.writer, state.ns, plan.batch) == plan.known

    def _commit(self, plan: _AddPlan, transaction: Transaction) -> list[str]:
        writer, ns, state = transaction.writer, transaction.ns, transaction.state
        automatic = len([turn for turn in plan.new if not turn.id])
        names = iter(self._automatic_ids(transaction, automatic))
        turns = [turn if turn.id else turn.named(next(names)) for turn in plan.new]
        if automatic < len(turns):
            state.free_ids = 0
        pks = writer.insert_turns(ns, turns)
        keys = [(pk, turn.id) for pk, turn in zip(pks, turns, strict=True)]
        self.place(transaction, plan.drafts, keys)
        self.warn_of_giant(state)
        if len(turns) == len(plan.batch):
            return [turn.id for turn in turns]
        new_ids = iter(turns)
        seen: set[str] = set()
        ids = []
        for turn in plan.batch:
            if turn.id and (turn.id in plan.known or turn.id in seen):
                ids.append(turn.id)
            else:
                ids.append(next(new_ids).id)
                seen.add(ids[-1])
        return ids

    def _automatic_ids(self, transaction: Transaction, count: int) -> list[str]:
        """So many ids that no turn has or had, from the namespace's counter."""
        writer, ns, state = transaction.writer, transaction.ns, transaction.state
        free: list[str] = []
        while len(free) < count:
            missing = count - len(free)
            start = writer.take_ids(ns, missing)
            names = [_AUTOMATIC_ID.format(number) for number in range(start, start + missing)]
            taken = writer.tombstoned(ns, names)
            if start + missing > state.free_ids:
                # as text, numbers of one length are ordered like numbers: one look suffices
                last = _AUTOMATIC_ID.format(start + missing + _IDS_AHEAD - 1)
                if len(names[0]) == len(last) and not writer.any_id_between(ns, names[0], last):
                    state.free_ids = start + missing + _IDS_AHEAD
                else:
                    taken.update(writer.turns_by_id(ns, names))
            free += [name for name in names if name not in taken] if taken else names
        return free

    # -- placing chunks -----------------------------------------------------------------------

    def place(
        self,
        transaction: Transaction,
        drafts: Sequence[Draft],
        keys: Sequence[tuple[int, str]],
    ) -> None:
        """Give drafts their rows and atoms, and write them.

        Parameters
        ----------
        transaction : Transaction
        drafts : sequence of Draft
            Embedded where they are complete.
        keys : sequence of (int, str)
            Key and id of each new turn.
        """
        writer, ns, state = transaction.writer, transaction.ns, transaction.state
        new_pk = itertools.count(writer.next_chunk_pk(ns))
        alone = len(drafts) == 1 and state.clusterer is not None
        alone = alone and drafts[0].complete and not drafts[0].pk  # one row, written as a whole
        rows = [
            self._row_for(state, draft, draft.pk or next(new_pk), gate=alone) for draft in drafts
        ]
        if state.clusterer is not None and not alone:
            # Gated in the order in which they became complete, as one by one.
            complete = sorted(
                (draft.parts[-1].index, place, rows[place])
                for place, draft in enumerate(drafts)
                if draft.complete
            )
            if len(complete) == 1:
                state.clusterer.assign(complete[0][2])
            elif complete:
                state.clusterer.assign_many([row for *_, row in complete])
        new: list[ChunkRecord] = []
        atoms = state.arena.atom
        for row, draft in zip(rows, drafts, strict=True):
            atom = atoms.item(row)
            record = draft.record(keys, None if atom < 0 else atom)
            state.keep_text(row, draft.piece(keys, record))
            if draft.pk:
                writer.replace_chunk(ns, record)
            else:
                new.append(record)
        if new:
            writer.insert_chunks(ns, new)
        if state.clusterer is not None:
            writer.put_next_atom(ns, state.clusterer.next_atom)
        else:
            self._calibrate_if_ready(transaction)

    def _row_for(self, state: NamespaceState, draft: Draft, pk: int, *, gate: bool) -> int:
        first = draft.parts[0].turn
        content = RowContent(
            draft.tokens, first.micros, draft.terms, draft.text_hash, draft.step, draft.truncated
        )
        if draft.pk:
            row = state.row_of(draft.pk)
            assert row is not None
            state.replace(row, draft.vector, content)
            return row
        return state.append(draft.vector, content, pk=pk, session=first.session, gate=gate)

    def flush(self) -> None:
        """Embed and gate every unfinished chunk."""
        with self._core.snapshot() as view:
            if view.state is None or not view.state.open_rows:
                return
        self.planned(
            self._finishing, lambda plan, transaction: self.place(transaction, plan.drafts, ())
        )

    def _finishing(self, reader: Reader, state: NamespaceState | None) -> Plan:
        if state is None:
            return Plan([])
        drafter = self.drafter(state.settings)
        return Plan(
            [
                draft
                for unfinished in open_drafts(reader, state).values()
                for draft in drafter.finished(
                    unfinished.parts, pk=unfinished.pk, part_number=unfinished.part_number
                )
            ]
        )

    # -- calibration --------------------------------------------------------------------------

    def calibrate_on(self, texts: Sequence[str] | None, *, anew: bool) -> float:
        """Find tau and gate every chunk; see `rsm_fast.memory.Memory.calibrate`."""
        vectors = None if texts is None else self._core.embed_passages(list(texts))
        with self._core.transaction() as transaction:
            state = transaction.state
            if state.settings.tau is not None and not anew:
                raise CalibrationError(
                    f"namespace {self._core.key!r} has tau {state.settings.tau:.4f} already "
                    f"({state.settings.tau_source}); use recalibrate() to cluster anew"
                )
            if vectors is None:
                vectors = self._raw(transaction, state.distinct_rows()[:CALIBRATION_SIZE])
            self.calibrate(transaction, vectors)
            assert state.settings.tau is not None
            return state.settings.tau

    def gate_all(self) -> None:
        """Gate every chunk anew: with a given tau, or calibrated once there are enough texts."""
        with self._core.transaction() as transaction:
            settings = transaction.state.settings
            if settings.tau_source == "given" and settings.tau is not None:
                self._recluster(transaction, settings.tau, None)
            else:
                self._calibrate_if_ready(transaction)

    def _calibrate_if_ready(self, transaction: Transaction) -> None:
        """Calibrate on the first chunks of different texts, once there are enough of them."""
        rows = transaction.state.distinct_rows()[:CALIBRATION_SIZE]
        if rows.size < CALIBRATION_SIZE:
            return
        vectors = self._raw(transaction, rows)
        if np.any(vectors != vectors[0]):  # a model may take all of them for one unknown word
            self.calibrate(transaction, vectors)

    def calibrate(self, transaction: Transaction, vectors: F32) -> None:
        """Set tau from raw unit vectors (n, d), then gate all chunks in order of arrival."""
        writer, ns, state = transaction.writer, transaction.ns, transaction.state
        settings = state.settings
        calibration = TauCalibrator(
            percentile=settings.percentile, centre=self._centre_wanted(settings)
        ).calibrate(vectors[:CALIBRATION_SIZE])
        state.settings = settings.with_tau(
            calibration.tau, "calibrated", centre=calibration.mean is not None
        )
        writer.put_settings(ns, state.settings.to_dict())
        writer.put_array(ns, "centre", calibration.mean)
        self._recluster(transaction, calibration.tau, calibration.mean)

    def _recluster(self, transaction: Transaction, tau: float, mean: F32 | None) -> None:
        writer, ns, state = transaction.writer, transaction.ns, transaction.state
        rows = state.gated_rows()
        next_atom = writer.namespace_by_id(ns).next_atom
        state.recluster(tau, mean, self._raw(transaction, rows), rows, next_atom)
        assert state.clusterer is not None
        writer.set_atoms(
            ns,
            zip(state.arena.pk[rows].tolist(), state.arena.atom[rows].tolist(), strict=True),
        )
        writer.put_next_atom(ns, state.clusterer.next_atom)

    def _raw(self, transaction: Transaction, rows: I32) -> F32:
        """Vectors of rows as the embedder gave them."""
        state = transaction.state
        keys = state.arena.pk[rows].tolist()
        return transaction.writer.vectors(transaction.ns, keys, state.settings.dim)

    def _centre_wanted(self, settings: NamespaceSettings) -> bool:
        if settings.tau_source == "given":  # a given tau had switched centring off
            return self._core.preset.centre
        return settings.centre

    def warn_of_giant(self, state: NamespaceState) -> None:
        """Log once when one atom holds most of the chunks."""
        if state.clusterer is None or state.arena.n < self._look_for_giant_at:
            return
        self._look_for_giant_at = state.arena.n + CALIBRATION_SIZE
        share = state.clusterer.largest_share()
        if share > GIANT_ATOM_SHARE:
            self._look_for_giant_at = sys.maxsize
            _log.warning(
                "namespace %r: one atom holds %.0f %% of the chunks, so atoms tell little apart; "
                "a higher percentile or centre=True makes smaller ones (see docs/concepts.md)",
                self._core.key,
                100 * share,
            )


def open_drafts(reader: Reader, state: NamespaceState) -> dict[str | None, Draft]:
    """Unfinished chunks by session, ready to be continued."""
    rows = sorted(state.open_rows)
    chunks = reader.chunks(state.ns, state.arena.pk[rows].tolist())
    turn_keys = {pk for chunk in chunks for pk, _, _ in chunk.spans}
    turns = {turn.pk: turn for turn in reader.turns(state.ns, sorted(turn_keys))}
    return {
        chunk.session: Draft(
            parts=[Part(turns[pk], start, stop) for pk, start, stop in chunk.spans],
            part_number=int(chunk.id.rpartition("#")[2]),
            complete=False,
            pk=chunk.pk,
        )
        for chunk in chunks
    }
