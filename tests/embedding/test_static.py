"""Tables distilled from a model: quick, deterministic, and checked like any model."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rsm_fast.embedding import as_embedder, commands
from rsm_fast.embedding.onnx_embedder import OnnxEmbedder
from rsm_fast.embedding.static import StaticEmbedder, distill_model
from rsm_fast.errors import InvalidInputError, ModelFileError

TEXTS = ["a cat", "the cat sat", "", "😀", "word " * 5000, "x" * 300_000]


@pytest.fixture(scope="module")
def table(tiny_bge: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("static") / "table"
    return distill_model(tiny_bge, dim=16, output=folder).folder


@pytest.fixture
def copied(table: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(table, tmp_path / "copy"))


def test_unit_rows_independent_of_the_batch(table: Path) -> None:
    embedder = StaticEmbedder(table)
    rows = embedder.embed_passages(TEXTS)
    assert rows.shape == (len(TEXTS), 16)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)
    for text, row in zip(TEXTS, rows, strict=True):
        np.testing.assert_array_equal(embedder.embed_queries([text])[0], row)
    assert embedder.count_tokens("the cat sat") > 0
    assert embedder.max_tokens is None


def test_a_row_is_the_models_vector_projected(table: Path, tiny_bge: Path) -> None:
    """With all components kept, tokens that the model holds for close are close."""
    model = OnnxEmbedder(tiny_bge)
    before, after, entries = model.vocabulary()
    chosen = list(range(200, min(entries, 400)))
    exact = model.embed_ids([[*before, entry, *after] for entry in chosen]).astype(np.float64)
    centre = np.concatenate(
        [
            model.embed_ids(
                [[*before, entry, *after] for entry in range(at, min(at + 64, entries))]
            )
            for at in range(0, entries, 64)
        ]
    ).mean(axis=0)
    exact -= centre
    full = distill_model(tiny_bge, dim=32, output=table.parent / "full")
    assert full.explained == pytest.approx(1.0)
    codes = np.load(full.folder / "table.npy")[chosen].astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    codes /= np.linalg.norm(codes, axis=1, keepdims=True)
    np.testing.assert_allclose(codes @ codes.T, exact @ exact.T, atol=0.02)


def test_order_of_words_does_not_matter_but_words_do(table: Path) -> None:
    one, other, third = StaticEmbedder(table).embed_passages(["a b c", "c b a", "d e f"])
    np.testing.assert_array_equal(one, other)
    assert one @ third < 0.999


def test_opens_by_path_and_by_name(table: Path, tmp_path: Path, monkeypatch) -> None:
    by_path = as_embedder(table)
    assert isinstance(by_path, StaticEmbedder)
    assert as_embedder(by_path.name).fingerprint == by_path.fingerprint
    monkeypatch.setenv("RSM_FAST_MODELS", str(tmp_path))
    with pytest.raises(ModelFileError, match="run: rsm-fast model distill"):
        as_embedder("minilm-static")
    unmade = {state.name: state for state in commands.list_models()}["minilm-static"]
    assert not unmade.present and unmade.dim == 256
    shutil.copytree(table, tmp_path / "minilm-static")
    assert as_embedder("minilm-static").name == "minilm-static"
    assert commands.model_path("minilm-static") == tmp_path / "minilm-static" / "table.npy"
    assert all(check.ok and check.expected for check in commands.verify("minilm-static"))
    states = {state.name: state for state in commands.list_models()}
    assert states["minilm-static"].present
    assert states["minilm-static"].dim == by_path.dim != states["minilm"].dim
    assert "bge-small-en-v1.5-static" not in states


def test_the_same_table_every_time(table: Path, tiny_bge: Path, tmp_path: Path) -> None:
    again = commands.distill(tiny_bge, dim=16, output=tmp_path / "again")
    assert StaticEmbedder(again.folder).fingerprint == StaticEmbedder(table).fingerprint


@pytest.mark.parametrize("file", ["table.npy", "scales.npy", "tokenizer.json", "rsm_fast.json"])
@pytest.mark.parametrize("cut", [True, False])
def test_damage_is_named(copied: Path, file: str, cut: bool) -> None:
    path = copied / file
    if cut:
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.unlink()
    with pytest.raises(ModelFileError, match=file.replace(".", r"\.")):
        StaticEmbedder(copied)


def test_pickled_arrays_are_refused(copied: Path) -> None:
    np.save(copied / "scales.npy", np.array([print], dtype=object), allow_pickle=True)
    (copied / "rsm_fast.json").write_text("{}")
    with pytest.raises(ModelFileError, match="expected the arrays"):
        StaticEmbedder(copied)


@pytest.mark.parametrize("dim", [7, 33, 16.0])
def test_dimensions_are_checked(tiny_bge: Path, dim: object, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="from 8 to 32"):
        distill_model(tiny_bge, dim=dim, output=tmp_path / "x")  # type: ignore[arg-type]


def test_a_full_output_folder_is_left_alone(tiny_bge: Path, table: Path) -> None:
    with pytest.raises(InvalidInputError, match="expected a new or empty folder"):
        distill_model(tiny_bge, dim=16, output=table)
