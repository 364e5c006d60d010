"""Models turned into true int8: equal in meaning, accepted only after comparison."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from rsm_fast.embedding import as_embedder, commands, spec
from rsm_fast.embedding.onnx_embedder import OnnxEmbedder
from rsm_fast.errors import InvalidInputError, MissingDependencyError, ModelFileError

pytest.importorskip("onnx", reason="needs pip install 'rsm-fast[convert]'")

from rsm_fast.embedding import optimize


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    monkeypatch.setenv("RSM_FAST_MODELS", str(folder))
    return folder


@pytest.fixture
def tiny_copy(tiny_bge: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_bge, folder, copy_function=shutil.copyfile)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_agrees_with_golden_vectors(
    models: Path,
    tiny_copy: Path,
    golden_texts: list[str],
    golden_tiny: dict[str, np.ndarray],
    pooling: str,
) -> None:
    (tiny_copy / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
    lines: list[str] = []
    result = optimize.optimize_model(tiny_copy, progress=lines.append)
    assert [line.split()[0] for line in lines] == [
        "reading",
        "calibrating",
        "building",
        "comparing",
    ]
    assert result.cosine_min >= 0.99
    assert result.folder == models / "tiny-int8"
    embedder = as_embedder(result.name)
    assert isinstance(embedder, OnnxEmbedder)
    assert (embedder.spec.kind, embedder.spec.pooling) == ("int8", pooling)
    vectors = embedder.embed_passages(golden_texts)
    cosine = np.einsum("ij,ij->i", vectors, golden_tiny[pooling])
    assert cosine.min() > 0.99
    # And is no other pooling by mistake.
    other = golden_tiny["mean" if pooling == "cls" else "cls"]
    assert cosine.mean() > np.einsum("ij,ij->i", vectors, other).mean()
    assert embedder.fingerprint != OnnxEmbedder(tiny_copy).fingerprint


def test_one_text_at_a_time_whatever_the_threads(models: Path, tiny_bge: Path) -> None:
    name = optimize.optimize_model(tiny_bge).name
    texts = [f"text number {n}" for n in range(30)]
    one = OnnxEmbedder(name, cache_bytes=0, batch_invariant=False).embed_passages(texts)
    two = OnnxEmbedder(name, cache_bytes=0, threads=3).embed_passages(texts[::-1])[::-1]
    np.testing.assert_array_equal(one, two)


def test_the_bytes_are_the_same_every_time(models: Path, tiny_bge: Path, tmp_path: Path) -> None:
    first = optimize.optimize_model(tiny_bge)
    again = optimize.optimize_model(tiny_bge)
    elsewhere = optimize.optimize_model(tiny_bge, output=tmp_path / "out")
    assert first.sha256 == again.sha256 == elsewhere.sha256
    assert elsewhere.folder == tmp_path / "out"
    assert not [path for path in models.iterdir() if path.name.startswith((".", "tmp"))]


def test_instructions_and_window_are_carried_over(models: Path, tiny_copy: Path) -> None:
    (tiny_copy / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "query: ", "passage": "passage: "}})
    )
    (tiny_copy / "sentence_bert_config.json").write_text('{"max_seq_length": 100}')
    made = OnnxEmbedder(optimize.optimize_model(tiny_copy).name).spec
    assert (made.query_instruction, made.passage_instruction) == ("query: ", "passage: ")
    assert made.max_length == 100


def test_disagreement_is_refused_and_leaves_nothing(
    models: Path, tiny_bge: Path, monkeypatch
) -> None:
    monkeypatch.setattr(optimize, "LEAST_COSINE", 1.1)
    with pytest.raises(ModelFileError, match="the original stays in use"):
        optimize.optimize_model(tiny_bge)
    assert not list(models.glob("*int8*"))


def test_int8_is_not_optimized_twice(models: Path, golden_dir: Path, tiny_bge: Path) -> None:
    folder = models / "again"
    shutil.copytree(tiny_bge, folder, copy_function=shutil.copyfile)
    target = folder / "onnx" / "model.onnx"
    shutil.copyfile(golden_dir / "tiny_bge_variants" / "model_int8.onnx", target)
    with pytest.raises(InvalidInputError, match="int8 already"):
        optimize.optimize_model(folder)


def test_weights_that_are_no_bert(models: Path, tiny_copy: Path) -> None:
    import onnx

    path = tiny_copy / "onnx" / "model.onnx"
    model = onnx.load(str(path))
    for item in model.graph.initializer:
        item.name = item.name.replace("word_embeddings", "tokens")
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = name.replace("word_embeddings", "tokens")
    onnx.save(model, str(path))
    with pytest.raises(ModelFileError, match="export of a BERT encoder"):
        optimize.optimize_model(tiny_copy)


@pytest.mark.parametrize("content", ["{}", '{"num_attention_heads": 5}'])
def test_heads_are_needed(models: Path, tiny_copy: Path, content: str) -> None:
    (tiny_copy / "config.json").write_text(content)
    with pytest.raises(ModelFileError, match="heads"):
        optimize.optimize_model(tiny_copy)


def test_a_full_output_folder_is_left_alone(models: Path, tiny_bge: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="expected a new or empty folder"):
        optimize.optimize_model(tiny_bge, output=tiny_bge)


def test_without_the_package_onnx(models: Path, tiny_bge: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "rsm_fast.embedding.bertgraph", raising=False)
    monkeypatch.delattr("rsm_fast.embedding.bertgraph", raising=False)
    with pytest.raises(MissingDependencyError, match=r"pip install 'rsm-fast\[convert\]'"):
        optimize.optimize_model(tiny_bge)


class TestTheDefault:
    def test_is_the_int8_version_once_made(self, minilm_int8: str) -> None:
        assert minilm_int8 == spec.default_model() == "minilm-int8"
        assert as_embedder().name == "minilm-int8"
        assert as_embedder("minilm").name == "minilm"  # an older store's model still opens
        states = {state.name: state for state in commands.list_models()}
        assert states["minilm-int8"].default
        assert not states["minilm"].default
        assert all(check.ok and check.expected for check in commands.verify("minilm-int8"))
        assert commands.runtime_report()["default_model_error"] is None

    def test_is_the_packaged_model_before(self, models: Path, packaged_minilm: None) -> None:
        assert as_embedder().name == "minilm"
        with pytest.raises(ModelFileError, match="run: rsm-fast model optimize minilm"):
            as_embedder("minilm-int8")
        states = {state.name: state for state in commands.list_models()}
        assert states["minilm"].present
        assert states["minilm"].default
        assert not states["minilm-int8"].present
        assert all(check.ok for check in commands.verify("minilm"))

    def test_damage_is_named(self, models: Path, own_models_folder: Path, minilm_int8: str) -> None:
        shutil.copytree(own_models_folder / minilm_int8, models / minilm_int8)
        path = models / minilm_int8 / "model.onnx"
        path.write_bytes(path.read_bytes()[:-1000] + bytes(1000))
        with pytest.raises(ModelFileError, match=r"model\.onnx: expected.*rsm-fast model optimize"):
            as_embedder()
        assert not commands.verify(minilm_int8)[0].ok
        assert "rsm-fast model optimize" in commands.runtime_report()["default_model_error"]
