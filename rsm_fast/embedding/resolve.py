"""From what a caller may give as ``embedder=`` to an `Embedder`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, TypeAlias, cast

from rsm_fast.embedding.hashing import HashingEmbedder
from rsm_fast.embedding.models import MODELS
from rsm_fast.embedding.protocol import CallableEmbedder, Embedder, EmbedFunction
from rsm_fast.embedding.spec import default_model
from rsm_fast.errors import InvalidInputError

__all__ = ["EmbedderLike", "as_embedder"]

EmbedderLike: TypeAlias = Embedder | EmbedFunction | str | os.PathLike[str]
"""What a caller may give as ``embedder=``; see `as_embedder`."""


def as_embedder(
    value: EmbedderLike | None = None,
) -> Embedder:
    """Make an `Embedder` of what a caller gave.

    Parameters
    ----------
    value : Embedder, callable, str, path or None
        * None: the packaged MiniLM, its true-int8 version where ``rsm-fast model optimize``
          made one;
        * an object with ``embed_passages``: used as it is, missing optional parts filled in;
        * a callable ``list[str] -> (n, d) array``: wrapped, its results checked;
        * ``"hashing"`` (or ``"hashing-512"`` ...), ``"minilm"`` or another name of
          ``rsm-fast model list``;
        * a path: a folder with a model, or an ``.onnx`` file.

    Raises
    ------
    InvalidInputError
        If it is none of these.
    MissingDependencyError
        If the model needs a package that is not installed; the message has the command.
    ModelFileError
        If its files are missing or damaged.
    """
    if value is None:
        return open_model(default_model())
    if isinstance(value, str | os.PathLike):
        return open_model(value)
    if callable(getattr(value, "embed_passages", None)):
        return _completed(value)
    if callable(value):
        return CallableEmbedder(value)
    raise InvalidInputError(
        "embedder: expected an Embedder, a callable list[str] -> (n, d) array, a model name "
        f"or a path, got {type(value).__name__}"
    )


def open_model(name: str | os.PathLike[str]) -> Embedder:
    """Open a model by its name in the table, by an embedder's own name, or by its path."""
    if hashing := re.fullmatch(r"hashing(?:-([0-9]+))?", str(name)):
        return HashingEmbedder(int(hashing[1])) if hashing[1] else HashingEmbedder()
    from rsm_fast.embedding.onnx_embedder import OnnxEmbedder
    from rsm_fast.embedding.static import STATIC_SUFFIX, StaticEmbedder, static_folder

    if isinstance(name, str) and name.endswith(STATIC_SUFFIX):
        base = name.removesuffix(STATIC_SUFFIX)
        if base in MODELS:
            return StaticEmbedder(static_folder(base), name=name)
    if Path(name, "table.npy").is_file():
        return StaticEmbedder(name)
    return OnnxEmbedder(name if isinstance(name, str) else Path(name))


def _completed(value: Any) -> Embedder:
    """Give an object with ``embed_passages`` the parts of the protocol that it lacks."""
    parts = ("name", "fingerprint", "embed_queries", "count_tokens", "close", "max_tokens", "dim")
    if all(hasattr(value, part) for part in parts):
        return cast(Embedder, value)
    return CallableEmbedder(
        value.embed_passages,
        embed_query=getattr(value, "embed_queries", None),
        name=getattr(value, "name", None) or type(value).__name__,
        dim=getattr(value, "dim", None),
        fingerprint=getattr(value, "fingerprint", None),
        max_tokens=getattr(value, "max_tokens", None),
        count_tokens=getattr(value, "count_tokens", None),
        close=getattr(value, "close", None),
    )
