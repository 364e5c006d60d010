"""The ONNX embedder against golden vectors, and the kinds of model it must take."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rsm_fast.embedding import as_embedder
from rsm_fast.embedding.onnx_embedder import OnnxEmbedder
from rsm_fast.embedding.onnxfile import summarise
from rsm_fast.errors import InvalidInputError, ModelFileError
from rsm_fast.tokens import load_tokenizer

VARIANTS = {
    "plain": "tiny_bge/onnx/model.onnx",
    "external data": "tiny_bge_variants/external/onnx/model.onnx",
    "no token types": "tiny_bge_variants/no_token_type_ids.onnx",
    "two outputs": "tiny_bge_variants/st_outputs.onnx",
    "int8": "tiny_bge_variants/model_int8.onnx",
}


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", a, b)


@pytest.fixture(scope="module")
def tiny(tiny_bge: Path) -> OnnxEmbedder:
    return OnnxEmbedder(tiny_bge)


@pytest.fixture
def tiny_copy(tiny_bge: Path, tmp_path: Path) -> Path:
    """A folder of the tiny model that a test may damage."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_bge, folder, copy_function=shutil.copyfile)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


class TestGolden:
    def test_the_packaged_model(
        self, packaged_minilm: None, golden_texts: list[str], golden_minilm: np.ndarray
    ) -> None:
        vectors = OnnxEmbedder("minilm").embed_passages(golden_texts)
        cosine = cosines(vectors, golden_minilm)
        assert cosine.min() >= 0.99
        assert cosine.mean() >= 0.999
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)

    def test_the_packaged_model_in_true_int8(
        self, minilm_int8: str, golden_texts: list[str], golden_minilm: np.ndarray
    ) -> None:
        embedder = OnnxEmbedder(minilm_int8)
        assert embedder.spec.kind == "int8"
        cosine = cosines(embedder.embed_passages(golden_texts), golden_minilm)
        assert cosine.min() >= 0.95
        assert cosine.mean() >= 0.985

    @pytest.mark.parametrize("variant", VARIANTS)
    @pytest.mark.parametrize("pooling", ["cls", "mean"])
    def test_every_kind_of_export(
        self,
        golden_dir: Path,
        tiny_bge: Path,
        golden_texts: list[str],
        golden_tiny: dict[str, np.ndarray],
        variant: str,
        pooling: str,
    ) -> None:
        embedder = OnnxEmbedder(golden_dir / VARIANTS[variant], tokenizer=tiny_bge, pooling=pooling)
        # A sentence_embedding output is pooled already, by CLS in this file.
        expected = golden_tiny["cls" if variant == "two outputs" else pooling]
        cosine = cosines(embedder.embed_passages(golden_texts), expected)
        assert cosine.min() > (0.99 if variant == "int8" else 0.9999)

    def test_token_counts(
        self, tiny: OnnxEmbedder, golden_texts: list[str], golden_tiny: dict[str, np.ndarray]
    ) -> None:
        counts = [len(tiny.token_ids(text)) for text in golden_texts]
        assert counts == golden_tiny["n_tokens"].tolist()


class TestIndependence:
    def test_of_order_batch_and_threads_in_float(
        self, tiny_bge: Path, golden_texts: list[str]
    ) -> None:
        alone = np.concatenate(
            [OnnxEmbedder(tiny_bge, cache_bytes=0).embed_passages([text]) for text in golden_texts]
        )
        order = np.random.default_rng(7).permutation(len(golden_texts))
        for threads in (1, 2, 4):
            embedder = OnnxEmbedder(tiny_bge, threads=threads, cache_bytes=0)
            shuffled = embedder.embed_passages([golden_texts[index] for index in order])
            np.testing.assert_allclose(shuffled, alone[order], atol=1e-6)

    def test_of_order_batch_and_threads_in_int8_bit_for_bit(
        self, golden_dir: Path, tiny_bge: Path, golden_texts: list[str]
    ) -> None:
        def make(threads: int) -> OnnxEmbedder:
            path = golden_dir / VARIANTS["int8"]
            return OnnxEmbedder(path, tokenizer=tiny_bge, threads=threads, cache_bytes=0)

        one = make(1)
        alone = np.concatenate([one.embed_passages([text]) for text in golden_texts])
        order = np.random.default_rng(7).permutation(len(golden_texts))
        for threads in (1, 3):
            shuffled = make(threads).embed_passages([golden_texts[index] for index in order])
            np.testing.assert_array_equal(shuffled, alone[order])

    def test_of_neighbours_can_be_given_up(
        self, golden_dir: Path, tiny_bge: Path, golden_texts: list[str]
    ) -> None:
        path = golden_dir / VARIANTS["int8"]
        grouped = OnnxEmbedder(path, tokenizer=tiny_bge, batch_invariant=False)
        alone = OnnxEmbedder(path, tokenizer=tiny_bge)
        cosine = cosines(grouped.embed_passages(golden_texts), alone.embed_passages(golden_texts))
        assert 0.9 < cosine.min() < 1 - 1e-6

    def test_threads_share_one_embedder(self, tiny_bge: Path, golden_texts: list[str]) -> None:
        embedder = OnnxEmbedder(tiny_bge)
        expected = OnnxEmbedder(tiny_bge, cache_bytes=0).embed_passages(golden_texts)
        with ThreadPoolExecutor(8) as pool:
            for vectors in pool.map(embedder.embed_passages, [golden_texts] * 16):
                np.testing.assert_allclose(vectors, expected, atol=1e-6)


class TestCache:
    def test_a_cached_row_equals_a_fresh_one(self, tiny_bge: Path) -> None:
        embedder = OnnxEmbedder(tiny_bge)
        first = embedder.embed_passages(["a", "b", "a"])
        again = embedder.embed_passages(["b", "a"])
        np.testing.assert_array_equal(first[[1, 0]], again)
        np.testing.assert_array_equal(first[0], first[2])
        stats = embedder.cache_stats()
        assert (stats["rows"], stats["hits"], stats["misses"]) == (2, 2, 2)

    def test_changing_a_result_does_not_change_the_cache(self, tiny_bge: Path) -> None:
        embedder = OnnxEmbedder(tiny_bge)
        first = embedder.embed_passages(["a"])
        kept = first.copy()
        first[:] = 0
        np.testing.assert_array_equal(embedder.embed_passages(["a"]), kept)

    def test_is_bounded(self, tiny_bge: Path) -> None:
        embedder = OnnxEmbedder(tiny_bge, cache_bytes=4000)
        embedder.embed_passages([f"text {number}" for number in range(50)])
        stats = embedder.cache_stats()
        assert stats["bytes"] <= 4000
        assert 5 < stats["rows"] < 15
        embedder.close()
        assert embedder.cache_stats()["bytes"] == 0

    def test_can_be_off(self, tiny_bge: Path) -> None:
        embedder = OnnxEmbedder(tiny_bge, cache_bytes=0)
        embedder.embed_passages(["a", "a"])
        assert embedder.cache_stats()["rows"] == 0

    def test_the_longest_unused_leaves_first(self, tiny_bge: Path) -> None:
        embedder = OnnxEmbedder(tiny_bge, cache_bytes=2 * (32 * 4 + 250))
        embedder.embed_passages(["a"])
        embedder.embed_passages(["b"])
        embedder.embed_passages(["a"])
        embedder.embed_passages(["c"])
        hits = embedder.cache_stats()["hits"]
        embedder.embed_passages(["a"])
        assert embedder.cache_stats()["hits"] == hits + 1


class TestInt8Rows:
    def test_match_the_float_rows(self, tiny: OnnxEmbedder, golden_texts: list[str]) -> None:
        count = len(golden_texts)
        codes = np.full((count, 64), 99, np.int8)
        scales = np.zeros(count, np.float32)
        rows = np.random.default_rng(1).permutation(count)
        tiny.embed_into(golden_texts, codes, scales, rows)
        exact = tiny.embed_passages(golden_texts)
        back = (codes[rows, :32] * scales[rows, None]).astype(np.float32)
        np.testing.assert_allclose(back, exact, atol=scales.max() / 2 + 1e-6)
        assert np.abs(codes[:, :32]).max() == 127
        assert (codes[:, 32:] == 99).all()
        twice = np.zeros_like(codes), np.zeros_like(scales)
        tiny.embed_into(golden_texts, *twice, rows)
        np.testing.assert_array_equal(twice[0][:, :32], codes[:, :32])

    def test_default_rows_and_queries(self, tiny_bge: Path) -> None:
        embedder = OnnxEmbedder(tiny_bge, query_instruction="find: ")
        codes, scales = np.zeros((2, 32), np.int8), np.zeros(2, np.float32)
        embedder.embed_into(["a", "b"], codes, scales, role="query")
        exact = embedder.embed_queries(["a", "b"])
        assert cosines(codes * scales[:, None], exact).min() > 0.995

    @pytest.mark.parametrize(
        ("codes", "scales", "rows", "role", "message"),
        [
            (np.zeros((2, 31), np.int8), np.zeros(2, np.float32), None, "query", "codes: expected"),
            (np.zeros((2, 32), np.int16), np.zeros(2, np.float32), None, "query", "codes"),
            (np.zeros((2, 32), np.int8), np.zeros(2), None, "query", "scales: expected float32"),
            (np.zeros((2, 32), np.int8), np.zeros(2, np.float32), [0, 1], "query", "rows"),
            (np.zeros((2, 32), np.int8), np.zeros(2, np.float32), None, "answer", "role"),
        ],
    )
    def test_wrong_targets(
        self,
        tiny: OnnxEmbedder,
        codes: np.ndarray,
        scales: np.ndarray,
        rows: list[int] | None,
        role: str,
        message: str,
    ) -> None:
        with pytest.raises(InvalidInputError, match=message):
            tiny.embed_into(["a"], codes, scales, rows, role=role)  # type: ignore[arg-type]


class TestWindow:
    def test_the_tokenizers_own_truncation_agrees(
        self, tiny: OnnxEmbedder, tiny_bge: Path, golden_texts: list[str]
    ) -> None:
        reference = load_tokenizer(tiny_bge / "tokenizer.json")
        reference.enable_truncation(512)
        for text in [*golden_texts, "word " * 3000, " " * 50_000 + "end", "x" * 90_000 + " end"]:
            assert tiny.token_ids(text) == reference.encode(text).ids

    def test_counts_and_limits(self, tiny_bge: Path) -> None:
        embedder = OnnxEmbedder(tiny_bge, max_length=12)
        assert embedder.max_tokens == 10
        words = ["word"] * 4
        per_word = embedder.count_tokens("word")
        fits = " ".join(words[: 10 // per_word])
        assert embedder.count_tokens(fits) <= 10
        embedder.embed_passages([fits])
        assert embedder.truncated == 0
        embedder.embed_passages([fits + " word" * 9])
        assert embedder.truncated == 1

    def test_never_above_the_models_own(self, tiny_copy: Path) -> None:
        (tiny_copy / "sentence_bert_config.json").write_text('{"max_seq_length": 64}')
        assert OnnxEmbedder(tiny_copy).max_tokens == 62
        assert OnnxEmbedder(tiny_copy, max_length=500).max_tokens == 62


class TestConfiguration:
    def test_pooling_follows_the_models_files(
        self, tiny_copy: Path, golden_texts: list[str], golden_tiny: dict[str, np.ndarray]
    ) -> None:
        config = tiny_copy / "1_Pooling" / "config.json"
        texts, rows = golden_texts[:20], slice(20)
        for pooling in ("cls", "mean"):
            for content in (
                {f"pooling_mode_{'cls_token' if pooling == 'cls' else 'mean_tokens'}": True},
                {"pooling_mode": pooling},
            ):
                config.write_text(json.dumps(content))
                vectors = OnnxEmbedder(tiny_copy).embed_passages(texts)
                assert cosines(vectors, golden_tiny[pooling][rows]).min() > 0.9999

    def test_pooling_without_a_file(self, tiny_copy: Path) -> None:
        shutil.rmtree(tiny_copy / "1_Pooling")
        assert OnnxEmbedder(tiny_copy).spec.pooling == "mean"
        renamed = tiny_copy.rename(tiny_copy.parent / "bge-copy")
        assert OnnxEmbedder(renamed).spec.pooling == "cls"

    def test_another_pooling_is_refused(self, tiny_copy: Path) -> None:
        (tiny_copy / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
        with pytest.raises(ModelFileError, match=r"expected pooling 'cls' or 'mean'.*max"):
            OnnxEmbedder(tiny_copy)

    def test_instructions_from_the_models_files(self, tiny_copy: Path) -> None:
        (tiny_copy / "config_sentence_transformers.json").write_text(
            json.dumps({"prompts": {"query": "query: ", "passage": "passage: "}})
        )
        embedder = OnnxEmbedder(tiny_copy)
        plain = OnnxEmbedder(tiny_copy, query_instruction="", passage_instruction="")
        np.testing.assert_allclose(
            embedder.embed_queries(["cat"]), plain.embed_passages(["query: cat"]), atol=1e-6
        )
        np.testing.assert_allclose(
            embedder.embed_passages(["cat"]), plain.embed_passages(["passage: cat"]), atol=1e-6
        )
        assert embedder.max_tokens == plain.max_tokens - plain.count_tokens("passage: ")

    def test_the_table_knows_bge_by_its_folders_name(self, tiny_copy: Path) -> None:
        renamed = tiny_copy.rename(tiny_copy.parent / "bge-small-en-v1.5")
        assert OnnxEmbedder(renamed).spec.query_instruction.startswith("Represent this sentence")

    @pytest.mark.parametrize(
        "options",
        [
            {"threads": 0},
            {"threads": "2"},
            {"max_length": 2},
            {"max_length": 12.5},
            {"pooling": "max"},
            {"cache_bytes": -1},
        ],
    )
    def test_bad_options(self, tiny_bge: Path, options: dict[str, object]) -> None:
        with pytest.raises(InvalidInputError, match=f"{next(iter(options))}: expected"):
            OnnxEmbedder(tiny_bge, **options)  # type: ignore[arg-type]

    def test_the_name_opens_the_model_again(self, tiny: OnnxEmbedder) -> None:
        assert as_embedder(tiny.name).fingerprint == tiny.fingerprint

    def test_the_fingerprint_holds_what_decides_the_vectors(self, tiny_bge: Path) -> None:
        prints = {
            OnnxEmbedder(tiny_bge, **options).fingerprint  # type: ignore[arg-type]
            for options in (
                {},
                {"pooling": "mean"},
                {"max_length": 100},
                {"query_instruction": "q: "},
                {"passage_instruction": "p: "},
            )
        }
        assert len(prints) == 5
        assert OnnxEmbedder(tiny_bge, threads=4).fingerprint in prints

    def test_is_never_pickled(self, tiny: OnnxEmbedder) -> None:
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(tiny)

    def test_texts_are_checked(self, tiny: OnnxEmbedder) -> None:
        with pytest.raises(InvalidInputError, match="bare str"):
            tiny.embed_passages("text")
        assert tiny.embed_passages([]).shape == (0, 32)


def test_f25_odd_texts_have_vectors(tiny: OnnxEmbedder) -> None:
    texts = ["", " \n\t", "\0", "\ud800", "a" * 1_800_000, "word " * 360_000, "\0" * 100_000]
    vectors = tiny.embed_passages(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


class TestDamage:
    """Each error names the file, what was expected and what to do."""

    def no_tokenizer(self, folder: Path) -> None:
        (folder / "tokenizer.json").unlink()

    def no_model(self, folder: Path) -> None:
        (folder / "onnx" / "model.onnx").unlink()

    def cut_model(self, folder: Path) -> None:
        path = folder / "onnx" / "model.onnx"
        path.write_bytes(path.read_bytes()[:1024])

    def empty_model(self, folder: Path) -> None:
        (folder / "onnx" / "model.onnx").write_bytes(b"")

    def other_model(self, folder: Path) -> None:
        (folder / "onnx" / "model.onnx").write_bytes(b"<html>404</html>" * 100)

    def cut_tokenizer(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        path.write_text(path.read_text(encoding="utf-8")[:1000], encoding="utf-8")

    def bad_config(self, folder: Path) -> None:
        (folder / "config.json").write_text("{")

    def list_config(self, folder: Path) -> None:
        (folder / "config.json").write_text("[]")

    def other_dimension(self, folder: Path) -> None:
        (folder / "config.json").write_text('{"hidden_size": 384}')

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (no_tokenizer, r"tokenizer\.json: expected the model's tokenizer"),
            (no_model, r"expected one of onnx/model\.onnx"),
            (cut_model, r"model\.onnx: expected a whole ONNX model.*1,024 bytes"),
            (empty_model, r"model\.onnx"),
            (other_model, r"model\.onnx: expected a whole ONNX model"),
            (cut_tokenizer, r"tokenizer\.json: expected a tokenizer\.json"),
            (bad_config, r"config\.json: expected JSON"),
            (list_config, r"config\.json: expected a JSON object"),
            (other_dimension, r"expected vectors of 384 numbers.*got 32"),
        ],
        ids=lambda value: getattr(value, "__name__", None),
    )
    def test_is_named(
        self, tiny_copy: Path, damage: Callable[[TestDamage, Path], None], message: str
    ) -> None:
        damage(self, tiny_copy)
        with pytest.raises(ModelFileError, match=message):
            OnnxEmbedder(tiny_copy).embed_passages(["text"])

    def test_missing_external_data(self, golden_dir: Path, tiny_bge: Path, tmp_path: Path) -> None:
        path = tmp_path / "model.onnx"
        shutil.copyfile(golden_dir / VARIANTS["external data"], path)
        with pytest.raises(ModelFileError, match=r"model\.onnx_data: expected the weights of"):
            OnnxEmbedder(path, tokenizer=tiny_bge)

    def test_models_that_are_no_encoders(self, tiny_bge: Path, tmp_path: Path) -> None:
        onnx = pytest.importorskip("onnx")
        helper = onnx.helper
        cases = {
            "pixels": ([("pixels", 1)], [("last_hidden_state", 1, 3)], "expected inputs input_ids"),
            "logits": ([("input_ids", 7)], [("logits", 1, 2)], "expected an output sentence_emb"),
        }
        for name, (inputs, outputs, message) in cases.items():
            node = (
                helper.make_node("Cast", [inputs[0][0]], [outputs[0][0]], to=1)
                if outputs[0][2] == 2
                else helper.make_node("Unsqueeze", [inputs[0][0], "axis"], [outputs[0][0]])
            )
            graph = helper.make_graph(
                [node],
                "g",
                [helper.make_tensor_value_info(name, kind, ["b", "n"]) for name, kind in inputs],
                [
                    helper.make_tensor_value_info(name, kind, [None] * rank)
                    for name, kind, rank in outputs
                ],
                [helper.make_tensor("axis", 7, [1], [2])] if outputs[0][2] == 3 else [],
            )
            model = helper.make_model(
                graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
            )
            path = tmp_path / f"{name}.onnx"
            path.write_bytes(model.SerializeToString())
            with pytest.raises(ModelFileError, match=message):
                OnnxEmbedder(path, tokenizer=tiny_bge).embed_passages(["a"])


def test_a_label_says_nothing_about_int8(golden_dir: Path, packaged_minilm: None) -> None:
    kinds = {name: summarise(golden_dir / path).kind for name, path in VARIANTS.items()}
    assert kinds == {name: "int8" if name == "int8" else "float" for name in VARIANTS}
    packaged = OnnxEmbedder("minilm").spec  # weight-only: its file says int8 in its name
    assert packaged.kind == summarise(packaged.model).kind == "float"
    external = summarise(golden_dir / VARIANTS["external data"]).external
    assert external == ("model.onnx_data",)
