"""Rare, long jobs on one namespace: moving it to another embedder, mending it after a repair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rsm_fast.chunking import embedded_text
from rsm_fast.core import Core, Transaction
from rsm_fast.drafting import Part
from rsm_fast.embedding import Embedder, EmbedderLike, as_embedder, checked_vectors
from rsm_fast.settings import NamespaceSettings
from rsm_fast.state import NamespaceState
from rsm_fast.store import Finding, PieceRecord, Reader, Writer
from rsm_fast.verifying import check
from rsm_fast.writing import Plan, WritePath

__all__ = ["rechunk", "reembed", "repair"]

_BATCH = 64
_STAGED_FOR = "reembedding"
"""Key in a namespace's settings: fingerprint of the embedder whose vectors are put aside."""


def reembed(
    core: Core,
    writing: WritePath,
    embedder: EmbedderLike | None,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Move the namespace to another embedder; see `rsm_fast.memory.Memory.reembed`."""
    target = as_embedder(embedder)
    with core.store.write() as writer:
        record = writer.namespace(core.key)
        if record is None or record.settings["embedder"] == target.fingerprint:
            return
        if record.settings.get(_STAGED_FOR) != target.fingerprint:
            writer.drop_staged(record.id)
            writer.put_settings(record.id, {**record.settings, _STAGED_FOR: target.fingerprint})
        _, total = writer.counts(record.id)
        left = len(writer.unstaged_chunks(record.id, total))
    adopted = False
    while not adopted:
        if progress is not None:
            progress(total - left, total)
        with core.store.read() as reader:
            generation = reader.generation(record.id)
            pieces = reader.pieces(record.id, reader.unstaged_chunks(record.id, _BATCH))
        vectors = _embedded(target, pieces)
        with core.store.write() as writer:
            if writer.generation(record.id) != generation:
                continue  # a text may have changed meanwhile
            writer.stage_vectors(record.id, vectors)
            left -= len(vectors)
            if not writer.unstaged_chunks(record.id, 1):
                _adopt(writer, record.id, target)
                adopted = True
    core.use_embedder(target)
    writing.gate_all()
    if progress is not None:
        progress(total, total)


def _embedded(target: Embedder, pieces: Sequence[PieceRecord]) -> list[tuple[int, bytes]]:
    if not pieces:
        return []
    texts = [embedded_text((part.role, part.text) for part in piece.parts) for piece in pieces]
    vectors = checked_vectors(target, target.embed_passages(texts), len(texts), target.dim)
    return [
        (piece.pk, vector.astype("<f4").tobytes())
        for piece, vector in zip(pieces, vectors, strict=True)
    ]


def _adopt(writer: Writer, ns: int, target: Embedder) -> None:
    """Make the vectors put aside the real ones; every chunk waits to be gated anew."""
    writer.adopt_staged(ns)
    stored = NamespaceSettings.from_dict(writer.namespace_by_id(ns).settings)
    settings = replace(
        stored, embedder=target.fingerprint, embedder_name=target.name, dim=target.dim
    )
    if stored.tau_source == "calibrated":
        settings = replace(settings, tau=None, tau_source="none")
        writer.put_array(ns, "centre", None)
    writer.put_settings(ns, settings.to_dict())
    writer.set_atoms(ns, [(chunk.pk, None) for chunk in writer.all_chunks(ns)])


def repair(core: Core, writing: WritePath, *, drop_damaged: bool) -> list[Finding]:
    """Rebuild what can be rebuilt; see `rsm_fast.memory.Memory.repair`."""
    findings = core.store.repair(drop_damaged=drop_damaged)
    if not findings and (derived := check(core)):
        core.store.repair(also=derived)
        core.drop_state()
    rechunk(core, writing)
    return findings


def rechunk(core: Core, writing: WritePath) -> int:
    """Make chunks of turns that have none, as after a repair that dropped damaged chunks.

    Returns
    -------
    int
        How many turns.
    """
    with core.snapshot() as view:
        if view.state is None or not view.reader.unchunked_turns(view.state.ns):
            return 0

    def plan(reader: Reader, state: NamespaceState | None) -> Plan:
        if state is None:
            return Plan([])
        drafter = writing.drafter(state.settings)
        return Plan(
            [
                draft
                for turn in reader.unchunked_turns(state.ns)
                for draft in drafter.finished([Part(turn, 0, len(turn.text))])
            ]
        )

    def commit(made: Plan, transaction: Transaction) -> int:
        writing.place(transaction, made.drafts, ())
        return len({draft.parts[0].turn.pk for draft in made.drafts})

    return writing.planned(plan, commit)
