"""Turn a BERT-type ONNX model into one that computes in int8, and accept it only if it agrees.

Needs the package onnx (extra ``convert``).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rsm_fast.embedding.models import MODELS
from rsm_fast.embedding.onnx_embedder import OnnxEmbedder
from rsm_fast.embedding.probe_texts import PROBE_TEXTS, calibration_texts
from rsm_fast.embedding.spec import ModelSpec, optimized_folder, replace_folder, resolve_model
from rsm_fast.errors import InvalidInputError, MissingDependencyError, ModelFileError
from rsm_fast.modelfiles import file_sha256

__all__ = ["LEAST_COSINE", "LEAST_MEAN_COSINE", "OptimizedModel", "optimize_model"]

LEAST_COSINE: Final = 0.95
"""The worst probe text must be at least so close to the original."""
LEAST_MEAN_COSINE: Final = 0.985
"""And the mean over all probe texts at least so close."""


@dataclass(frozen=True, slots=True)
class OptimizedModel:
    """What `optimize_model` made.

    Attributes
    ----------
    name : str
        What opens it: a name or a path.
    folder : Path
    sha256, source_sha256 : str
        Hash of the new ONNX file and of the one that it was made from.
    bytes : int
        Size of the new ONNX file.
    cosine_min, cosine_mean : float
        Agreement with the original over the probe texts.
    seconds : float
    """

    name: str
    folder: Path
    sha256: str
    source_sha256: str
    bytes: int
    cosine_min: float
    cosine_mean: float
    seconds: float


def optimize_model(
    model: str | os.PathLike[str] = "minilm",
    *,
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> OptimizedModel:
    """Make the true-int8 version of a model, about 2.5 times as fast on one text.

    Parameters
    ----------
    model : str or path
        As for `OnnxEmbedder`: float32 or weight-only int8.
    output : path, optional
        New folder for the result. Default: the models folder, under the model's name with
        ``-int8`` appended, where a model of the table is found by that name from then on.
    progress : callable, optional
        Called with a line of text at each step.

    Raises
    ------
    MissingDependencyError
        If the package onnx or the model's package is not installed.
    ModelFileError
        If the model's files are missing or damaged, it is no BERT encoder, or the result
        does not agree with the original; nothing is kept then.
    InvalidInputError
        If the model computes in int8 already.
    """
    start = time.perf_counter()
    say = progress or (lambda line: None)
    try:
        from rsm_fast.embedding import bertgraph
    except ImportError as error:
        raise MissingDependencyError(
            f"model optimize needs the package onnx ({error}); run: pip install 'rsm-fast[convert]'"
        ) from error
    spec = resolve_model(model)
    if spec.kind == "int8":
        raise InvalidInputError(f"{spec.model}: computes in int8 already; nothing to optimize")
    name, folder = _destination(model, spec, output)
    folder.parent.mkdir(parents=True, exist_ok=True)
    say(f"reading {spec.model}")
    weights = bertgraph.read_weights(spec.model, **_shape(spec))
    original = OnnxEmbedder(
        model, cache_bytes=0, query_instruction="", passage_instruction="", pooling=spec.pooling
    )
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        say("calibrating")
        largest = _largest_inputs(bertgraph, weights, original)
        say("building")
        made = Path(scratch, folder.name)
        _write_folder(made, spec, weights, bertgraph.build_int8(weights, spec.pooling, largest))
        say(f"comparing with the original on {len(PROBE_TEXTS)} texts")
        candidate = OnnxEmbedder(made, cache_bytes=0, query_instruction="", passage_instruction="")
        cosine = np.einsum(
            "ij,ij->i", original.embed_passages(PROBE_TEXTS), candidate.embed_passages(PROBE_TEXTS)
        )
        least, mean = float(cosine.min()), float(cosine.mean())
        if least < LEAST_COSINE or mean < LEAST_MEAN_COSINE:
            raise ModelFileError(
                f"{spec.model}: expected the int8 version to agree with the original (cosine >= "
                f"{LEAST_COSINE} at worst, >= {LEAST_MEAN_COSINE} on average), got {least:.3f} and "
                f"{mean:.3f}; the original stays in use"
            )
        result = OptimizedModel(
            name=name,
            folder=folder,
            sha256=file_sha256(made / "model.onnx"),
            source_sha256=spec.sha256,
            bytes=(made / "model.onnx").stat().st_size,
            cosine_min=least,
            cosine_mean=mean,
            seconds=time.perf_counter() - start,
        )
        _write_json(made / "rsm_fast.json", _record(result, spec.tokenizer_sha256))
        candidate.close()
        replace_folder(made, folder)
    return result


def _destination(
    model: str | os.PathLike[str], spec: ModelSpec, output: str | os.PathLike[str] | None
) -> tuple[str, Path]:
    if output is not None:
        folder = Path(output).resolve()
        if folder.exists() and any(folder.iterdir()):
            raise InvalidInputError(f"{folder}: expected a new or empty folder, got a full one")
        return str(folder), folder
    if isinstance(model, str) and model in MODELS:
        return f"{model}-int8", optimized_folder(model)
    folder = optimized_folder(spec.tokenizer.parent.resolve().name)
    return str(folder), folder


def _shape(spec: ModelSpec) -> dict[str, Any]:
    """Heads and epsilon, which the graph does not name."""
    if spec.name in MODELS:
        return {"heads": MODELS[spec.name].heads}
    path = spec.tokenizer.parent / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return {
            "heads": int(config["num_attention_heads"]),
            "eps": float(config.get("layer_norm_eps", 1e-12)),
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(
            f"{path}: expected num_attention_heads, which optimizing needs, got {error!r}; copy "
            "the model's config.json there"
        ) from error


def _largest_inputs(
    bertgraph: Any, weights: Any, original: OnnxEmbedder
) -> dict[str, npt.NDArray[np.float32]]:
    """Largest absolute value of each channel of each product's input."""
    import onnxruntime as ort

    model = bertgraph.build_float(weights)
    products = bertgraph.matmul_inputs(model)
    names = sorted(set(products.values()))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    largest: dict[str, npt.NDArray[np.float32]] = {}
    for text in calibration_texts():
        ids = np.array([original.token_ids(text)], np.int64)
        for name, values in zip(names, session.run(names, {"input_ids": ids}), strict=True):
            channels = np.abs(values[0]).max(axis=0)
            largest[name] = np.maximum(largest[name], channels) if name in largest else channels
    return {product: largest[name] for product, name in products.items()}


def _write_folder(folder: Path, spec: ModelSpec, weights: Any, model: bytes) -> None:
    """A folder that `OnnxEmbedder` opens like any other."""
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model)
    shutil.copyfile(spec.tokenizer, folder / "tokenizer.json")
    _write_json(
        folder / "config.json",
        {
            "model_type": "bert",
            "hidden_size": weights.dim,
            "num_attention_heads": weights.heads,
            "num_hidden_layers": weights.layers,
            "max_position_embeddings": spec.max_length,
        },
    )
    _write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": weights.dim,
            "pooling_mode_cls_token": spec.pooling == "cls",
            "pooling_mode_mean_tokens": spec.pooling == "mean",
        },
    )
    _write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {"query": spec.query_instruction, "passage": spec.passage_instruction}},
    )


def _record(result: OptimizedModel, tokenizer_sha256: str) -> dict[str, Any]:
    import onnx
    import onnxruntime

    return {
        "made_by": "rsm-fast model optimize",
        "source_sha256": result.source_sha256,
        "sha256": result.sha256,
        "tokenizer_sha256": tokenizer_sha256,
        "cosine_min": round(result.cosine_min, 5),
        "cosine_mean": round(result.cosine_mean, 5),
        "probe_texts": len(PROBE_TEXTS),
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
