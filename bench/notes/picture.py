"""t-SNE of a conversation's notes, with and without links and evolution (as in A-MEM's figure).

``python -m bench.notes.picture --out FOLDER`` writes PNG and SVG. The model is the endpoint that
the environment names (see `bench.notes.peer`), else the stand-in; answers that
`bench.notes.conversation` has got are not asked for again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.datasets import Stream, read_dataset
from bench.notes.conversation import kept_model, model_name, slice_of
from bench.quality.vectors import CachedEmbedder, default_cache
from rsm_fast import Memory
from rsm_fast.embedding import Embedder, as_embedder
from rsm_fast.inspect.projections import tsne
from rsm_fast.llm import LanguageModel
from rsm_fast.notes import NoteMemory
from rsm_fast.notes.shelf import embedded_text
from rsm_fast.store.notes import Description

__all__ = ["closeness", "draw", "main", "moved", "note_vectors"]

F32 = npt.NDArray[np.float32]

_NEAREST = 5
_SAME = 0.9999  # cosine of two vectors of one text, made in different batches


def note_vectors(stream: Stream, embedder: Embedder, model: LanguageModel, **options: Any) -> F32:
    """Unit vectors of a conversation's finished notes, float32[n, d], in order of arrival."""
    with Memory(embedder=embedder) as memory:
        notes = NoteMemory(memory, model, **options)
        notes.add_many(stream.turns)
        made = [notes.get(turn.id or "") for turn in stream.turns]
    texts = [
        embedded_text(note.text, Description(note.keywords, note.tags, note.context))
        for note in made
        if note is not None
    ]
    vectors: F32 = embedder.embed_passages(texts)
    return vectors


def closeness(vectors: F32) -> float:
    """Mean cosine of a note with the five nearest others."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1.0)
    return float(np.partition(cosines, -_NEAREST, axis=1)[:, -_NEAREST:].mean())


def moved(vectors: F32, others: F32) -> npt.NDArray[np.bool_]:
    """Which notes have another vector in another variant."""
    return np.einsum("ij,ij->i", vectors, others) < _SAME


def draw(panels: dict[str, F32], sessions: Sequence[int], title: str, folder: Path) -> list[Path]:
    """One panel a variant, all placed by one t-SNE, coloured by session; the files.

    Ringed are the notes whose vector is another than in the last panel.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    count = len(sessions)
    last = list(panels.values())[-1]
    placed = tsne(np.concatenate(list(panels.values())))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.5 * len(panels), 5.2), squeeze=False)
    for number, (name, vectors) in enumerate(panels.items()):
        points = placed[number * count : (number + 1) * count]
        axis = axes[0, number]
        axis.scatter(points[:, 0], points[:, 1], c=list(sessions), cmap="turbo", s=14, linewidths=0)
        ringed = points[moved(vectors, last)]
        axis.scatter(
            ringed[:, 0], ringed[:, 1], s=34, facecolors="none", edgecolors="black", linewidths=0.6
        )
        said = f"{name}\nmean cosine with {_NEAREST} nearest: {closeness(vectors):.3f}"
        axis.set_title(f"{said}; {len(ringed)} of {count} moved" if len(ringed) else said)
        axis.set_xticks([])
        axis.set_yticks([])
    figure.suptitle(title)
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"notes_tsne.{suffix}" for suffix in ("png", "svg")]
    for file in files:
        figure.savefig(file, dpi=110)
    pyplot.close(figure)
    return files


def main(arguments: Sequence[str] | None = None) -> int:
    root = Path(__file__).resolve().parents[2]
    data = Path(os.environ.get("RSM_FAST_DATA", root.parent / "shared" / "data"))
    parser = argparse.ArgumentParser(prog="python -m bench.notes.picture", description=__doc__)
    parser.add_argument("--locomo", type=Path, default=data / "locomo", metavar="PATH")
    parser.add_argument("--stream", type=int, default=0, metavar="N", help="which conversation")
    parser.add_argument("--turns", type=int, metavar="N", help="only so many, the first")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--repairs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=root / "build" / "notes", metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    stream = slice_of(read_dataset("locomo", chosen.locomo).streams[chosen.stream], chosen.turns)
    embedder = CachedEmbedder(as_embedder(None), default_cache())
    given = {"k": chosen.k, "repairs": chosen.repairs}
    with kept_model(chosen.out) as model:
        panels = {
            "with links and evolution": note_vectors(stream, embedder, model, **given),
            "without links and evolution": note_vectors(
                stream, embedder, model, links=False, **given
            ),
        }
    names = {
        name: number for number, name in enumerate(dict.fromkeys(t.session for t in stream.turns))
    }
    sessions = [names[turn.session] for turn in stream.turns]
    who = model_name() or "a rule in place of a language model"
    title = f"Notes of LoCoMo conversation {stream.name}, coloured by session ({who})"
    for file in draw(panels, sessions, title, chosen.out):
        print(file)
    embedder.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
