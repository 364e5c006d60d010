"""A table instead of a network: one vector a vocabulary entry, averaged over a text.

For machines where even a small network is too slow: tens of microseconds a text, at a
recall that is lower (docs/embedders.md says how much). The table is distilled from a local
model by passing every vocabulary entry through it once, after model2vec (Tulkens and van
Dongen 2024): principal components, weighted down by expected frequency. We differ in that
the rows are kept as int8, and in that frequencies follow from the vocabulary's order alone.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rsm_fast.embedding.models import MODELS
from rsm_fast.embedding.protocol import Vectors, clean_texts
from rsm_fast.embedding.spec import replace_folder
from rsm_fast.errors import InvalidInputError, ModelFileError
from rsm_fast.modelfiles import file_sha256, models_folder
from rsm_fast.tokens import WordPieceCounter, shared_counter

__all__ = [
    "STATIC_DIM",
    "STATIC_FILES",
    "STATIC_SUFFIX",
    "TABLE_FILE",
    "StaticEmbedder",
    "StaticModel",
    "distill_model",
    "static_folder",
]

STATIC_SUFFIX: Final = "-static"
"""Appended to a model's name: the table distilled from it."""

STATIC_DIM: Final = 256
"""Columns of a table where nobody asks for another number."""

TABLE_FILE: Final = "table.npy"
_SCALES: Final = "scales.npy"
STATIC_FILES: Final = (TABLE_FILE, _SCALES, "tokenizer.json")
_COMMON: Final = 1e-4  # "a" of smooth inverse frequency (Arora et al. 2017)
_BATCH: Final = 64


def static_folder(name: str) -> Path:
    """Where ``model distill`` puts the table of a model."""
    return models_folder() / f"{name}{STATIC_SUFFIX}"


class StaticEmbedder:
    """Average of table rows of a text's tokens, at unit length.

    Questions and stored texts are embedded alike, texts of any length whole.

    Parameters
    ----------
    folder : path
        What `distill_model` made.

    Raises
    ------
    ModelFileError
        If files are missing, damaged or do not belong together.
    """

    max_tokens: int | None = None

    def __init__(self, folder: str | os.PathLike[str], *, name: str | None = None) -> None:
        folder = Path(folder)
        self.folder = folder
        self.name = name or str(folder.resolve())
        record = _record(folder)
        files = {file: file_sha256(folder / file) for file in STATIC_FILES}
        for file, sha256 in files.items():
            if record.get(file, sha256) != sha256:
                raise ModelFileError(
                    f"{folder / file}: expected sha256 {record[file]}, got {sha256}; "
                    "make the table again: rsm-fast model distill"
                )
        try:
            self._codes: npt.NDArray[np.int8] = np.load(
                folder / TABLE_FILE, mmap_mode="r", allow_pickle=False
            )
            self._scales: npt.NDArray[np.float32] = np.load(folder / _SCALES, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ModelFileError(
                f"{folder}: expected the arrays {TABLE_FILE} and {_SCALES}, got {error}; make the "
                "table again: rsm-fast model distill"
            ) from error
        self.dim = int(self._codes.shape[1])
        self.fingerprint = " ".join(["static", *files.values(), f"dim={self.dim}"])
        counter = shared_counter(folder / "tokenizer.json", files["tokenizer.json"])
        if not isinstance(counter, WordPieceCounter):
            raise ModelFileError(f"{folder}: expected a BERT-type tokenizer.json")
        self._counter = counter
        self._empty = int(record.get("empty_row", 0))

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Unit rows for texts, float32 of shape (n, dim)."""
        cleaned = clean_texts(texts)
        out = np.empty((len(cleaned), self.dim), np.float32)
        for row, text in zip(out, cleaned, strict=True):
            ids = self._counter.ids(text) or [self._empty]
            entries, counts = np.unique(ids, return_counts=True)
            weights = self._scales[entries] * counts.astype(np.float32)
            np.dot(weights, self._codes[entries].astype(np.float32), out=row)
            norm = float(np.sqrt(np.dot(row, row)))
            if norm > 0.0:
                row /= np.float32(norm)
            else:  # rows that cancel out to the last bit
                row[:] = 0.0
                row[0] = 1.0
        return out

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """The same as `embed_passages`."""
        return self.embed_passages(texts)

    @property
    def counter(self) -> WordPieceCounter:
        """What `count_tokens` counts with."""
        return self._counter

    def count_tokens(self, text: str) -> int:
        """Tokens of a text."""
        return self._counter(text)

    def close(self) -> None:
        """Nothing is held but the table, which is mapped."""


@dataclass(frozen=True, slots=True)
class StaticModel:
    """What `distill_model` made.

    Attributes
    ----------
    name : str
        What opens it.
    folder : Path
    sha256, source_sha256 : str
        Hash of the table, and of the model that it was made from.
    bytes : int
        Size of the table with its scales.
    entries, dim : int
        Rows and columns.
    explained : float
        Share of the variance that the kept components explain, 0 to 1.
    seconds : float
    """

    name: str
    folder: Path
    sha256: str
    source_sha256: str
    bytes: int
    entries: int
    dim: int
    explained: float
    seconds: float


def distill_model(
    model: str | os.PathLike[str] = "minilm",
    *,
    dim: int = STATIC_DIM,
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> StaticModel:
    """Make a table of a local model: every vocabulary entry is passed through it once.

    Parameters
    ----------
    model : str or path
        As for `OnnxEmbedder`; it has to be one that takes several texts at once.
    dim : int
        Principal components to keep, 8 to the model's dimension.
    output : path, optional
        Folder for the result. Default: the models folder, under the model's name with
        ``-static`` appended.
    progress : callable, optional
        Called with a line of text now and then.

    Raises
    ------
    InvalidInputError
        If ``dim`` is out of range, or the output folder is full.
    MissingDependencyError, ModelFileError
        As for `OnnxEmbedder`.
    """
    from rsm_fast.embedding.onnx_embedder import OnnxEmbedder

    start = time.perf_counter()
    say = progress or (lambda line: None)
    embedder = OnnxEmbedder(model, cache_bytes=0, query_instruction="", passage_instruction="")
    if not isinstance(dim, int) or not 8 <= dim <= embedder.dim:
        raise InvalidInputError(
            f"dim: expected a whole number from 8 to {embedder.dim}, got {dim!r}"
        )
    known = isinstance(model, str) and model in MODELS
    folder = Path(output) if output is not None else static_folder(Path(embedder.name).name)
    if output is not None and folder.exists() and any(folder.iterdir()):
        raise InvalidInputError(f"{folder}: expected a new or empty folder, got a full one")
    vectors = _entry_vectors(embedder, say)
    say("reducing")
    table, explained = _reduced(vectors, dim)
    codes, scales = _quantised(table)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        made = Path(scratch, folder.name)
        made.mkdir()
        np.save(made / TABLE_FILE, codes, allow_pickle=False)
        np.save(made / _SCALES, scales, allow_pickle=False)
        shutil.copyfile(embedder.spec.tokenizer, made / "tokenizer.json")
        files = {file: file_sha256(made / file) for file in STATIC_FILES}
        record = {
            "made_by": "rsm-fast model distill",
            "source_sha256": embedder.spec.sha256,
            "empty_row": embedder.token_ids("")[0],
            "explained": round(explained, 4),
            **files,
        }
        (made / "rsm_fast.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        replace_folder(made, folder)
    return StaticModel(
        name=f"{model}{STATIC_SUFFIX}" if known and output is None else str(folder.resolve()),
        folder=folder,
        sha256=files[TABLE_FILE],
        source_sha256=embedder.spec.sha256,
        bytes=codes.nbytes + scales.nbytes,
        entries=len(codes),
        dim=dim,
        explained=explained,
        seconds=time.perf_counter() - start,
    )


def _entry_vectors(embedder: Any, say: Callable[[str], None]) -> npt.NDArray[np.float64]:
    """The model's vector of each vocabulary entry, standing alone in the template."""
    before, after, entries = embedder.vocabulary()
    vectors = np.empty((entries, embedder.dim), np.float64)
    for first in range(0, entries, _BATCH):
        if first % (_BATCH * 100) == 0:
            say(f"{first:,} of {entries:,} entries")
        batch = range(first, min(first + _BATCH, entries))
        vectors[batch.start : batch.stop] = embedder.embed_ids(
            [[*before, entry, *after] for entry in batch]
        )
    return vectors


def _reduced(vectors: npt.NDArray[np.float64], dim: int) -> tuple[npt.NDArray[np.float64], float]:
    """Principal components, each row weighted by smooth inverse frequency."""
    centred = vectors - vectors.mean(axis=0)
    values, axes = np.linalg.eigh(centred.T @ centred)
    chosen = axes[:, ::-1][:, :dim]
    # eigh leaves the sign open; fix it so that the same table comes out everywhere.
    chosen = chosen * np.where(chosen[np.abs(chosen).argmax(axis=0), np.arange(dim)] < 0, -1.0, 1.0)
    probability = 1.0 / np.arange(2, len(vectors) + 2)  # Zipf: vocabularies begin with the common
    probability /= probability.sum()
    weights = _COMMON / (_COMMON + probability)
    return centred @ chosen * weights[:, None], float(values[-dim:].sum() / values.sum())


def _quantised(
    table: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Codes in [-127, 127] and a scale for each row."""
    scales = np.abs(table).max(axis=1) / 127
    scales[scales == 0] = 1
    return np.rint(table / scales[:, None]).astype(np.int8), scales.astype(np.float32)


def _record(folder: Path) -> dict[str, Any]:
    path = folder / "rsm_fast.json"
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"{path}: expected what rsm-fast model distill wrote, got {error}; "
            "run: rsm-fast model distill"
        ) from error
