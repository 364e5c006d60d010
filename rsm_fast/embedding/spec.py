"""From a model's name or path to its files and settings, read from its own configuration."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from rsm_fast.embedding.hub import read_pin
from rsm_fast.embedding.models import MODELS, ModelInfo, Pooling, model_info
from rsm_fast.embedding.onnxfile import summarise
from rsm_fast.errors import InvalidInputError, MissingDependencyError, ModelFileError
from rsm_fast.modelfiles import (
    PACKAGED_MODEL,
    PACKAGED_TOKENIZER,
    KnownFile,
    check_file,
    file_sha256,
    models_folder,
    packaged_file,
)

__all__ = [
    "INT8_SUFFIX",
    "ModelSpec",
    "default_model",
    "optimized_folder",
    "replace_folder",
    "resolve_model",
]

_ONNX_PLACES = ("onnx/model.onnx", "model.onnx", "onnx/model_int8.onnx", "model_int8.onnx")
_DEFAULT_LENGTH = 512
INT8_SUFFIX: Final = "-int8"
"""Appended to a model's name: its true-int8 version."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Where a model's files lie and how its vectors are made.

    Attributes
    ----------
    name : str
        What opens it again: its name in the table, or its path.
    model, tokenizer : Path
        The ONNX file and the tokenizer.json.
    sha256 : str
        Hash of the ONNX file, or of its hash and those of its external data.
    tokenizer_sha256 : str
        Hash of tokenizer.json.
    kind : {"int8", "float"}
        What the graph computes in.
    pooling : {"cls", "mean"}
        Used where the graph gives token vectors.
    query_instruction, passage_instruction : str
        Put before a text; often empty.
    max_length : int
        Longest input in tokens, special tokens included.
    dim : int or None
        Length of a vector, where the configuration says it.
    """

    name: str
    model: Path
    tokenizer: Path
    sha256: str
    tokenizer_sha256: str
    kind: str
    pooling: Pooling
    query_instruction: str
    passage_instruction: str
    max_length: int
    dim: int | None


def resolve_model(
    model: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    pooling: Literal["auto", "cls", "mean"] = "auto",
    max_length: int | None = None,
    query_instruction: str | None = None,
    passage_instruction: str | None = None,
) -> ModelSpec:
    """Find a model's files and settings; None and "auto" mean: as the model's files say.

    Parameters
    ----------
    model : str or path
        Name in the table, folder of a model, or an ``.onnx`` file.
    tokenizer : path, optional
        tokenizer.json, or the folder that holds it and the configuration; for an ``.onnx``
        file without them beside it.
    pooling : {"auto", "cls", "mean"}
        Auto: ``1_Pooling/config.json``, else CLS for models named bge, else the mean.
    max_length : int, optional
        Lowers the model's own limit; never raises it.
    query_instruction, passage_instruction : str, optional
        Auto: ``config_sentence_transformers.json``, else the table.

    Raises
    ------
    InvalidInputError
        If an option has no such value.
    NotFoundError
        If it is neither a path nor a known name.
    MissingDependencyError, ModelFileError
        If files are missing or not what they should be.
    """
    if pooling not in ("auto", "cls", "mean"):
        raise InvalidInputError(f"pooling: expected 'auto', 'cls' or 'mean', got {pooling!r}")
    if max_length is not None and (not isinstance(max_length, int) or max_length < 3):
        raise InvalidInputError(f"max_length: expected a whole number >= 3, got {max_length!r}")
    spec = _find(model, tokenizer)
    if pooling != "auto":
        spec = replace(spec, pooling=pooling)
    if max_length is not None:
        spec = replace(spec, max_length=min(spec.max_length, max_length))
    if query_instruction is not None:
        spec = replace(spec, query_instruction=query_instruction)
    if passage_instruction is not None:
        spec = replace(spec, passage_instruction=passage_instruction)
    return spec


def _find(model: str | os.PathLike[str], tokenizer: str | os.PathLike[str] | None) -> ModelSpec:
    if model == "minilm":
        return _packaged()
    if (
        isinstance(model, str)
        and model.removesuffix(INT8_SUFFIX) in MODELS
        and (model.endswith(INT8_SUFFIX))
    ):
        return _optimized(model.removesuffix(INT8_SUFFIX))
    path = Path(model)
    if path.exists():
        return _local(path, Path(tokenizer) if tokenizer is not None else None)
    if isinstance(model, str) and model in MODELS:
        return _fetched(model_info(model))
    if isinstance(model, str) and os.sep not in model and not model.endswith(".onnx"):
        model_info(model)  # raises, listing the names
    raise ModelFileError(f"{path}: expected a folder with a model or an .onnx file, got nothing")


def optimized_folder(name: str) -> Path:
    """Where ``model optimize`` puts the true-int8 version of a model."""
    return models_folder() / f"{name}{INT8_SUFFIX}"


def default_model() -> str:
    """``"minilm-int8"`` where it was made, else ``"minilm"``."""
    made = (optimized_folder("minilm") / "model.onnx").is_file()
    return f"minilm{INT8_SUFFIX}" if made else "minilm"


def _optimized(base: str) -> ModelSpec:
    folder = optimized_folder(base)
    model = folder / "model.onnx"
    command = f"rsm-fast model optimize {base}"
    if not model.is_file():
        raise ModelFileError(
            f"{model}: the int8 version of {base} is not on this machine; run: {command} "
            "(needs pip install 'rsm-fast[convert]')"
        )
    record = _read_json(folder / "rsm_fast.json")
    check_file(model, sha256=record.get("sha256"), mend=f"run: {command}")
    return replace(_local(folder, None), name=f"{base}{INT8_SUFFIX}")


def _packaged() -> ModelSpec:
    """The MiniLM that comes as a Python package."""
    info = MODELS["minilm"]
    model, tokenizer = (_packaged_path(known) for known in (PACKAGED_MODEL, PACKAGED_TOKENIZER))
    return ModelSpec(
        name=info.name,
        model=model,
        tokenizer=tokenizer,
        sha256=PACKAGED_MODEL.sha256,
        tokenizer_sha256=PACKAGED_TOKENIZER.sha256,
        kind="float",
        pooling=info.pooling,
        query_instruction=info.query_instruction,
        passage_instruction="",
        max_length=info.max_length,
        dim=info.dim,
    )


def _packaged_path(known: KnownFile) -> Path:
    path = packaged_file(known)
    if path is None:
        raise MissingDependencyError(
            "the default embedder needs the packaged model MiniLM, which is not installed; "
            "run: pip install 'rsm-fast[minilm]' (or pass embedder= a callable, the folder of a "
            "BGE model, or 'hashing')"
        )
    check_file(path, size=known.size, sha256=known.sha256, mend=f"run: {known.install}")
    return path


def _fetched(info: ModelInfo) -> ModelSpec:
    """A model of the table: a folder that was put there by hand, or what was fetched."""
    folder = models_folder() / info.name
    pin = None if folder.is_dir() else read_pin(info.name)
    if pin is not None:
        folder = Path(pin.folder)
        damaged = pin.damaged()
        if damaged:
            raise ModelFileError(
                f"{folder / damaged[0]}: expected the file that was fetched first, sha256 "
                f"{pin.sha256[damaged[0]]}, got another or none; run: rsm-fast model fetch "
                f"{info.name}"
            )
    if not (folder / info.onnx_file).is_file():
        raise ModelFileError(
            f"{folder / info.onnx_file}: the model {info.name} is not on this machine; run: "
            f"rsm-fast model fetch {info.name} (needs pip install 'rsm-fast[hub]' and a network), "
            f"or copy the files of {info.repository} into that folder, or set RSM_FAST_MODELS to "
            "the folder that holds it"
        )
    for file, sha256 in info.sha256.items():
        check_file(folder / file, sha256=sha256, mend=f"run: rsm-fast model fetch {info.name}")
    spec = _local(folder, None)
    return replace(
        spec,
        name=info.name,
        pooling=info.pooling,
        query_instruction=info.query_instruction,
        max_length=min(spec.max_length, info.max_length),
        dim=info.dim,
    )


def _local(path: Path, tokenizer: Path | None) -> ModelSpec:
    """A folder laid out as on the hub, or one ONNX file with the rest beside or above it."""
    if path.is_file():
        model = path
        folder = path.parent.parent if path.parent.name == "onnx" else path.parent
    else:
        folder = path
        places = [folder / place for place in _ONNX_PLACES]
        model = next((place for place in places if place.is_file()), places[0])
        if not model.is_file():
            raise ModelFileError(
                f"{folder}: expected one of {', '.join(_ONNX_PLACES)} in the folder, got none; "
                "a model folder has the ONNX file, tokenizer.json and config.json"
            )
    if tokenizer is not None and tokenizer.is_dir():
        folder = tokenizer
    elif tokenizer is not None:
        folder = tokenizer.parent
    vocabulary = tokenizer if tokenizer and tokenizer.is_file() else folder / "tokenizer.json"
    if not vocabulary.is_file():
        raise ModelFileError(
            f"{vocabulary}: expected the model's tokenizer.json, got no such file; copy it there "
            "or pass tokenizer="
        )
    config = _read_json(folder / "config.json")
    limits = [
        config.get("max_position_embeddings"),
        _read_json(folder / "sentence_bert_config.json").get("max_seq_length"),
    ]
    query, passage = _instructions(folder)
    summary = summarise(model)
    return ModelSpec(
        name=str(path.resolve()),
        model=model,
        tokenizer=vocabulary,
        sha256=_joint_sha256([model, *(model.parent / name for name in summary.external)]),
        tokenizer_sha256=file_sha256(vocabulary),
        kind=summary.kind,
        pooling=_pooling(folder, config),
        query_instruction=query,
        passage_instruction=passage,
        max_length=min([value for value in limits if isinstance(value, int)] or [_DEFAULT_LENGTH]),
        dim=config.get("hidden_size"),
    )


def _joint_sha256(files: list[Path]) -> str:
    """Identity of an ONNX file with the external data that it needs."""
    hashes = [file_sha256(path) for path in files]
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def _pooling(folder: Path, config: dict[str, Any]) -> Pooling:
    path = folder / "1_Pooling" / "config.json"
    modes = _read_json(path)
    if not modes:
        names = f"{folder.name} {config.get('_name_or_path', '')}".lower()
        return "cls" if "bge" in names else "mean"
    short = modes.get("pooling_mode")
    chosen = (
        [short]
        if isinstance(short, str)
        else [
            mode
            for mode, key in (
                ("cls", "pooling_mode_cls_token"),
                ("mean", "pooling_mode_mean_tokens"),
                ("max", "pooling_mode_max_tokens"),
                ("mean_sqrt_len", "pooling_mode_mean_sqrt_len_tokens"),
                ("weightedmean", "pooling_mode_weightedmean_tokens"),
                ("lasttoken", "pooling_mode_lasttoken"),
            )
            if modes.get(key)
        ]
    )
    if len(chosen) != 1 or chosen[0] not in ("cls", "mean"):
        raise ModelFileError(
            f"{path}: expected pooling 'cls' or 'mean', got {chosen}; such a model cannot be "
            "used here (pass pooling= to override)"
        )
    return cast(Pooling, chosen[0])


def _instructions(folder: Path) -> tuple[str, str]:
    """Prefixes of queries and passages."""
    prompts = _read_json(folder / "config_sentence_transformers.json").get("prompts") or {}
    query = prompts.get("query")
    if not isinstance(query, str):
        query = MODELS[folder.name].query_instruction if folder.name in MODELS else ""
    passage = prompts.get("passage", prompts.get("document", ""))
    return query, passage if isinstance(passage, str) else ""


def _read_json(path: Path) -> dict[str, Any]:
    """Content of a configuration file; empty where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: expected JSON, got {error}") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def replace_folder(made: Path, folder: Path) -> None:
    """Put the new folder in place of the old one, if any; the old one leaves last."""
    import tempfile  # a start that writes nothing does without

    with contextlib.ExitStack() as stack:
        if folder.exists():
            old = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder.parent)))
            os.replace(folder, old / folder.name)
        os.replace(made, folder)
