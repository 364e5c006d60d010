"""Hold what is derived from the texts against what a rebuild gives; the last part of ``doctor``.

Checksums find bytes that changed. This finds what was derived wrongly, or is out of step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from rsm_fast.analysis import ANALYSER_VERSION, pack_terms
from rsm_fast.chunking import chunk_text, text_hash
from rsm_fast.core import Core
from rsm_fast.state import NamespaceState
from rsm_fast.store import Finding, Reader
from rsm_fast.tokens import TokenCounter

__all__ = ["check"]

_BATCH = 256


def check(core: Core) -> list[Finding]:
    """See `rsm_fast.memory.Memory.check`."""
    if damage := core.store.check():
        return damage  # rows that are damaged cannot be worked with
    with core.snapshot() as view:
        if view.state is None:
            return []
        return [
            *_of_chunks(view.reader, view.state, core.counter),
            *_of_state(view.reader, view.state),
        ]


def _of_chunks(reader: Reader, state: NamespaceState, counter: TokenCounter) -> Iterator[Finding]:
    """Stored hashes, counts and words against the texts."""
    columns = reader.columns(state.ns, state.settings.dim)
    counted = counter.name == state.settings.counter
    for start in range(0, columns.pk.size, _BATCH):
        pks = columns.pk[start : start + _BATCH].tolist()
        words = state.analysed(reader, pks)
        for row, piece in enumerate(reader.pieces(state.ns, pks), start=start):
            text = chunk_text((part.role, part.text) for part in piece.parts)
            if text_hash(text) != columns.text_hash[row] or (
                counted and counter(text) > piece.tokens
            ):
                yield Finding(
                    "chunks", piece.pk, f"chunk {piece.id!a}: its hash or count is another text's",
                    "drop it, to be made anew from its turns",
                )  # fmt: skip
            elif (
                columns.analyser[row] == ANALYSER_VERSION
                and pack_terms(words[piece.pk]) != columns.terms[row]
            ):
                yield Finding(
                    "features", piece.pk, f"chunk {piece.id!a}: its words are another text's",
                    "empty them, to be made anew from the text",
                )  # fmt: skip


def _of_state(reader: Reader, state: NamespaceState) -> Iterator[Finding]:
    """What this process works with, perhaps from a snapshot, against one built from the rows."""
    record = reader.namespace_by_id(state.ns)
    rebuilt = NamespaceState(record)
    rebuilt.catch_up(reader, record)
    here, anew = _content(state), _content(rebuilt)
    wrong = [name for name, array in anew.items() if not _equal(here[name], array)]
    if wrong:
        yield Finding(
            "snapshots", state.ns, f"{', '.join(wrong)}: other than a rebuild gives",
            "drop it; it is rebuilt",
        )  # fmt: skip


def _content(state: NamespaceState) -> dict[str, npt.NDArray[Any]]:
    """All that is derived of living chunks, whatever rows they have."""
    arena, arrays = state.arena, state.arrays()
    rows = np.flatnonzero(arena.alive)
    (names,) = json.loads(arrays["sessions"].tobytes())
    labels = np.array([json.dumps(name) for name in names])
    atoms = sorted(set(arena.atom[rows].tolist()) - {-1})
    means = [] if state.clusterer is None else [state.clusterer.mean(atom) for atom in atoms]
    return {
        "chunks": arena.pk[rows],
        "open chunks": np.sort(arena.pk[list(state.open_rows)]),
        "vectors": arena.code[[row for row in rows.tolist() if row not in state.open_rows]],
        "atoms": arena.atom[rows],
        "means": np.array(means, np.float32),
        "tokens": arena.tokens[rows],
        "times": arena.micros[rows],
        "sessions": labels[arena.session[rows]],
        "neighbours": np.stack(
            [_keys(arena.pk, arena.prev[rows]), _keys(arena.pk, arena.next[rows])]
        ),
        "hashes": state.hashes[rows],
        "steps": state.steps[rows],
        "truncation": arrays["truncated"][rows],
        **_postings(arrays, arena.pk),
    }


def _keys(pk: npt.NDArray[np.int64], rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Keys of rows, 0 where there is none."""
    return np.where(rows < 0, 0, pk[np.maximum(rows, 0)])


def _postings(
    arrays: dict[str, npt.NDArray[Any]], pk: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[Any]]:
    """Words in their order, and under each the keys of its chunks with their counts."""
    lengths = arrays["lexical.length"].astype(np.int64)
    words = np.array(arrays["lexical.vocabulary"].tobytes().decode().split("\n"))[: lengths.size]
    used = np.flatnonzero(lengths)
    lengths, words = lengths[used], words[used]
    begins = np.cumsum(lengths) - lengths
    places = np.arange(lengths.sum()) + np.repeat(
        arrays["lexical.start"][used].astype(np.int64) - begins, lengths
    )
    known, ranks = np.unique(words, return_inverse=True)
    keys = pk[arrays["lexical.pool_rows"][places]]
    counts = arrays["lexical.pool_counts"][places].astype(np.int64)
    order = np.lexsort((keys, np.repeat(ranks, lengths)))
    return {
        "words": known,
        "postings": np.stack([np.repeat(ranks, lengths)[order], keys[order], counts[order]]),
    }


def _equal(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.kind == "f":
        return bool(np.allclose(one, other, rtol=0.0, atol=1e-5))
    return bool(np.array_equal(one, other))
