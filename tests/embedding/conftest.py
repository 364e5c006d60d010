"""Golden vectors, and a place for stamps and models that is not the user's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def own_models_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or writes the user's models folder."""
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RSM_FAST_MODELS", str(folder))
        yield folder


@pytest.fixture(scope="session")
def golden_dir(data_dir: Path) -> Path:
    return data_dir / "golden"


@pytest.fixture(scope="session")
def golden_texts(golden_dir: Path) -> list[str]:
    return json.loads((golden_dir / "golden_texts.json").read_text(encoding="utf-8"))["texts"]


@pytest.fixture(scope="session")
def golden_minilm(golden_dir: Path) -> np.ndarray:
    """Vectors by sentence-transformers, fp32, 512 tokens, mean pooling."""
    return np.load(golden_dir / "golden_minilm.npz")["vectors"]


@pytest.fixture(scope="session")
def golden_tiny(golden_dir: Path) -> dict[str, np.ndarray]:
    with np.load(golden_dir / "tiny_bge" / "golden.npz") as file:
        return {name: file[name] for name in ("cls", "mean", "n_tokens")}


@pytest.fixture(scope="session")
def tiny_bge(golden_dir: Path) -> Path:
    return golden_dir / "tiny_bge"


@pytest.fixture(scope="session")
def minilm_int8(packaged_minilm: None, own_models_folder: Path) -> str:
    """Name of the packaged model's true-int8 version, made once for the suite."""
    pytest.importorskip("onnx", reason="needs pip install 'rsm-fast[convert]'")
    from rsm_fast.embedding.optimize import optimize_model

    return optimize_model("minilm").name
