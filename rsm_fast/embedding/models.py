"""The models that are known by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from rsm_fast.errors import NotFoundError
from rsm_fast.modelfiles import PACKAGED_MODEL, PACKAGED_TOKENIZER

__all__ = ["MODELS", "ModelInfo", "Pooling", "model_info"]

Pooling = Literal["cls", "mean"]

_BGE_ENGLISH: Final = "Represent this sentence for searching relevant passages: "
_BGE_CHINESE: Final = "为这个句子生成表示以用于检索相关文章："


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of a model before its files are there.

    Attributes
    ----------
    name : str
        What a user types.
    repository : str or None
        ``owner/name`` on the hub; None for a model that comes as a Python package.
    onnx_file : str
        Path of the ONNX file in the repository.
    dim, heads : int
        Length of a vector; attention heads.
    pooling : {"cls", "mean"}
        How token vectors become one.
    query_instruction : str
        Prefix of questions, with its trailing space; empty for none.
    max_length : int
        Longest input in tokens, special tokens included.
    licence : str
        SPDX identifier.
    revision : str or None
        Commit that is fetched; None: not known here, recorded at the first fetch and held
        from then on.
    sha256 : mapping
        File to hash, where known; hashes not listed are recorded at the first fetch.
    """

    name: str
    repository: str | None
    onnx_file: str
    dim: int
    heads: int
    pooling: Pooling
    query_instruction: str
    max_length: int
    licence: str
    revision: str | None = None
    sha256: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def _bge(name: str, dim: int, heads: int, instruction: str) -> ModelInfo:
    return ModelInfo(
        name=name,
        repository=f"BAAI/{name}",
        onnx_file="onnx/model.onnx",
        dim=dim,
        heads=heads,
        pooling="cls",
        query_instruction=instruction,
        max_length=512,
        licence="MIT",
    )


MODELS: Final = MappingProxyType(
    {
        info.name: info
        for info in (
            ModelInfo(
                name="minilm",
                repository=None,
                onnx_file="model.onnx",
                dim=384,
                heads=12,
                pooling="mean",
                query_instruction="",
                max_length=512,
                licence="Apache-2.0",
                sha256=MappingProxyType(
                    {
                        "model.onnx": PACKAGED_MODEL.sha256,
                        "tokenizer.json": PACKAGED_TOKENIZER.sha256,
                    }
                ),
            ),
            _bge("bge-small-en-v1.5", 384, 12, _BGE_ENGLISH),
            _bge("bge-base-en-v1.5", 768, 12, _BGE_ENGLISH),
            _bge("bge-large-en-v1.5", 1024, 16, _BGE_ENGLISH),
            _bge("bge-small-zh-v1.5", 512, 8, _BGE_CHINESE),
        )
    }
)
"""Models by name, in the order in which they are listed."""


def model_info(name: str) -> ModelInfo:
    """Entry of the table.

    Raises
    ------
    NotFoundError
        Listing the names that there are.
    """
    try:
        return MODELS[name]
    except KeyError:
        raise NotFoundError(
            f"expected a model name ({', '.join(MODELS)}, hashing) or the path of a folder "
            f"with a model, got {name!r}; see: rsm-fast model list"
        ) from None
