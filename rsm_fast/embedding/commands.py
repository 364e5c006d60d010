"""What the command line does with models: plain functions with plain results."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rsm_fast.embedding.cpu import has_int8_dot, instructions, usable_cpus
from rsm_fast.embedding.models import MODELS
from rsm_fast.embedding.static import (
    STATIC_DIM,
    STATIC_FILES,
    STATIC_SUFFIX,
    TABLE_FILE,
    StaticEmbedder,
    static_folder,
)
from rsm_fast.errors import ModelFileError, RSMError
from rsm_fast.modelfiles import (
    PACKAGED_MODEL,
    PACKAGED_TOKENIZER,
    hash_file,
    models_folder,
    packaged_file,
)

if TYPE_CHECKING:
    from rsm_fast.embedding.hub import Pin
    from rsm_fast.embedding.optimize import OptimizedModel
    from rsm_fast.embedding.static import StaticModel

__all__ = [
    "FileCheck",
    "ModelState",
    "distill",
    "fetch",
    "list_models",
    "model_path",
    "optimize",
    "runtime_report",
    "verify",
]


@dataclass(frozen=True, slots=True)
class ModelState:
    """One line of ``rsm-fast model list``.

    Attributes
    ----------
    name : str
    present : bool
        Whether it can be opened without a network.
    dim : int
        Length of a vector; of a table that nobody made yet, what `distill` makes by default.
    pooling, licence : str
    source : str
        The hub's repository, the Python package, or the command that makes it.
    path : str or None
        The model file, where present.
    default : bool
        Whether a memory without ``embedder=`` takes it.
    """

    name: str
    present: bool
    dim: int
    pooling: str
    licence: str
    source: str
    path: str | None
    default: bool


@dataclass(frozen=True, slots=True)
class FileCheck:
    """One file that `verify` hashed.

    Attributes
    ----------
    path : str
    sha256 : str
        As found; empty where the file is missing.
    expected : str
        As recorded; empty where nothing is.
    ok : bool
        The file is there, and as recorded where that is.
    """

    path: str
    sha256: str
    expected: str
    ok: bool


def list_models() -> list[ModelState]:
    """All models of the table and what was made of them, with where they are."""
    from rsm_fast.embedding.spec import INT8_SUFFIX, default_model

    default = default_model()
    states = []
    for info in MODELS.values():
        source = info.repository or "pip install 'rsm-fast[minilm]'"
        for name, origin in (
            (info.name, source),
            (f"{info.name}{INT8_SUFFIX}", f"rsm-fast model optimize {info.name}"),
            (f"{info.name}{STATIC_SUFFIX}", f"rsm-fast model distill {info.name}"),
        ):
            path = _path_or_none(name)
            if path is None and origin is not source and info.repository is not None:
                continue  # what nobody made of a model that has to be fetched is no news
            states.append(
                ModelState(
                    name=name,
                    present=path is not None,
                    dim=_dim(name, info.dim, path),
                    pooling=info.pooling,
                    licence=info.licence,
                    source=origin,
                    path=None if path is None else str(path),
                    default=name == default,
                )
            )
    return states


def fetch(name: str, *, progress: Callable[[str], None] | None = None) -> Pin:
    """Download a model; see `rsm_fast.embedding.hub.fetch_model`."""
    from rsm_fast.embedding.hub import fetch_model

    return fetch_model(name, progress=progress)


def verify(name: str) -> list[FileCheck]:
    """Hash a model's files anew, stamps ignored, and hold them against what is recorded.

    Raises
    ------
    NotFoundError, MissingDependencyError, ModelFileError
        If there is no such model, or it is not on this machine.
    """
    checks = []
    for path, expected in _recorded_files(name):
        found = hash_file(path) if path.is_file() else ""
        ok = bool(found) and expected in ("", found)
        checks.append(FileCheck(str(path), found, expected, ok))
    return checks


def model_path(name: str) -> Path:
    """Path of a model's ONNX file (or of its table), checked.

    Raises
    ------
    NotFoundError, MissingDependencyError, ModelFileError
        If there is no such model, or it is not on this machine, or damaged.
    """
    from rsm_fast.embedding.spec import resolve_model

    base = _static_base(name)
    if base is not None:
        return StaticEmbedder(static_folder(base)).folder / TABLE_FILE
    return resolve_model(name).model


def optimize(
    name: str | os.PathLike[str] = "minilm",
    *,
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> OptimizedModel:
    """Make a model's true-int8 version; see `rsm_fast.embedding.optimize.optimize_model`."""
    from rsm_fast.embedding.optimize import optimize_model

    return optimize_model(name, output=output, progress=progress)


def distill(
    name: str | os.PathLike[str] = "minilm",
    *,
    dim: int = STATIC_DIM,
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> StaticModel:
    """Make a model's static table; see `rsm_fast.embedding.static.distill_model`."""
    from rsm_fast.embedding.static import distill_model

    return distill_model(name, dim=dim, output=output, progress=progress)


def runtime_report() -> dict[str, Any]:
    """What ``rsm-fast doctor`` says about local models.

    Returns
    -------
    dict
        ``instructions`` (vector instructions in use, None where unknown), ``int8_dot``
        (whether int8 products are summed without saturation; without, a slower exact path
        is taken), ``usable_cpus``, ``machine``, the versions of ``onnxruntime`` and
        ``tokenizers`` (None where not installed), ``models_folder``, ``default_model``, and
        ``default_model_error`` (None where it opens).
    """
    from rsm_fast.embedding.spec import default_model, resolve_model

    flags = instructions()
    error = None
    try:
        resolve_model(default_model())
    except RSMError as problem:
        error = str(problem)
    return {
        "instructions": None if flags is None else list(flags),
        "int8_dot": has_int8_dot(flags),
        "usable_cpus": usable_cpus(),
        "machine": platform.machine(),
        "onnxruntime": _version("onnxruntime"),
        "tokenizers": _version("tokenizers"),
        "models_folder": str(models_folder()),
        "default_model": default_model(),
        "default_model_error": error,
    }


def _recorded_files(name: str) -> list[tuple[Path, str]]:
    """Files of a model, each with the hash that is recorded for it, or ""."""
    from rsm_fast.embedding.hub import read_pin
    from rsm_fast.embedding.spec import INT8_SUFFIX, optimized_folder, resolve_model

    if name == "minilm":
        known = (PACKAGED_MODEL, PACKAGED_TOKENIZER)
        paths = [packaged_file(file) for file in known]
        if None not in paths:
            return [(path, file.sha256) for path, file in zip(paths, known, strict=True) if path]
    base = name.removesuffix(INT8_SUFFIX)
    if name != base and base in MODELS:
        folder = optimized_folder(base)
        record = folder / "rsm_fast.json"
        if record.is_file():
            sha256 = json.loads(record.read_text(encoding="utf-8"))
            return [
                (folder / "model.onnx", str(sha256.get("sha256", ""))),
                (folder / "tokenizer.json", str(sha256.get("tokenizer_sha256", ""))),
            ]
    static = _static_base(name)
    if static is not None and (static_folder(static) / "rsm_fast.json").is_file():
        folder = static_folder(static)
        record = json.loads((folder / "rsm_fast.json").read_text(encoding="utf-8"))
        return [(folder / file, str(record.get(file, ""))) for file in STATIC_FILES]
    pin = read_pin(name) if name in MODELS and not (models_folder() / name).is_dir() else None
    if pin is not None:
        return [(Path(pin.folder, file), sha256) for file, sha256 in pin.sha256.items()]
    spec = resolve_model(name)  # raises where there is nothing to verify
    info = MODELS.get(name)
    expected = "" if info is None else info.sha256.get(info.onnx_file, "")
    return [(spec.model, expected), (spec.tokenizer, "")]


def _static_base(name: str) -> str | None:
    """The model that a static table's name stands for, or None for other names."""
    base = name.removesuffix(STATIC_SUFFIX)
    return base if base != name and base in MODELS else None


def _dim(name: str, full: int, path: Path | None) -> int:
    """Dimension of a model or of the table made of it; ``full`` is the model's own."""
    if _static_base(name) is None:
        return full
    return STATIC_DIM if path is None else StaticEmbedder(path.parent).dim


def _path_or_none(name: str) -> Path | None:
    try:
        return model_path(name)
    except (ModelFileError, ImportError):
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
