"""What may be given as an embedder, and what is done with what it returns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rsm_fast.embedding import (
    CallableEmbedder,
    HashingEmbedder,
    as_embedder,
    checked_vectors,
    clean_texts,
)
from rsm_fast.errors import EmbedderError, InvalidInputError, ModelFileError, NotFoundError

GOOD = np.array([[3.0, 4.0], [0.0, 2.0]])


@pytest.mark.parametrize(
    "vectors",
    [
        GOOD,
        GOOD.astype(np.float32),
        GOOD.astype(np.float16),
        GOOD.astype(np.int64),
        GOOD.tolist(),
        tuple(map(tuple, GOOD)),
        np.asfortranarray(GOOD),
        GOOD * 1e300,
        GOOD * 1e-300,
        np.repeat(GOOD, 2, axis=1)[:, ::2],
    ],
)
def test_f26_accepted_conversions(vectors: object) -> None:
    out = checked_vectors("x", vectors, 2, 2)  # type: ignore[arg-type]
    assert out.dtype == np.float32
    assert out.flags.c_contiguous
    assert out.flags.writeable
    np.testing.assert_allclose(out, [[0.6, 0.8], [0.0, 1.0]], rtol=1e-6)


def test_f26_a_read_only_array_is_copied_where_needed() -> None:
    unit = np.array([[1.0, 0.0]], np.float32)
    unit.setflags(write=False)
    out = checked_vectors("x", unit, 1, 2)
    assert out.flags.writeable
    np.testing.assert_array_equal(out, unit)


def test_unit_rows_stay_bit_for_bit() -> None:
    rows = HashingEmbedder(64).embed_passages([f"text number {n}" for n in range(200)])
    np.testing.assert_array_equal(checked_vectors("x", rows, 200, 64), rows)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0], [np.nan, 1.0]], "NaN or infinity in row 1 of 2"),
        ([[1.0, 2.0], [np.inf, 1.0]], "NaN or infinity in row 1 of 2"),
        ([[0.0, 0.0], [1.0, 1.0]], "all zeros in row 0 of 2"),
        ([[1.0, 2.0]], r"expected an array of shape \(2, 2\).*got \(1, 2\)"),
        ([[1.0, 2.0, 3.0]] * 2, r"got \(2, 3\)"),
        ([1.0, 2.0], r"got \(2,\)"),
        ([[1.0, 2.0], [1.0]], r"expected numbers of shape \(2, 2\)"),
        ([["a", "b"], ["c", "d"]], "expected numbers"),
        (None, "expected"),
        (np.ones((2, 2, 1)), r"got \(2, 2, 1\)"),
    ],
)
def test_f26_refused(vectors: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        checked_vectors("x", vectors, 2, 2)  # type: ignore[arg-type]
    assert isinstance(caught.value, EmbedderError)
    assert "embedder x" in str(caught.value)


@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.float64]),
        st.tuples(st.integers(1, 4), st.integers(1, 9)),
        elements=st.floats(-(2.0**99), 2.0**99, width=32).filter(lambda x: abs(x) > 1e-30),
    )
)
def test_any_finite_rows_become_unit_rows_of_the_same_direction(vectors: np.ndarray) -> None:
    out = checked_vectors("x", vectors, len(vectors), vectors.shape[1])
    wide = vectors.astype(np.float64)
    exact = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    np.testing.assert_allclose(out, exact, atol=3e-6)


def test_no_texts() -> None:
    assert checked_vectors("x", [], 0, 7).shape == (0, 7)
    assert HashingEmbedder(16).embed_passages([]).shape == (0, 16)
    assert CallableEmbedder(lambda texts: np.ones((len(texts), 3))).embed_passages([]).shape[0] == 0


@pytest.mark.parametrize("texts", ["bare", b"bare", ["a", None], ["a", b"b"], ["a", 3]])
def test_texts_must_be_strings(texts: object) -> None:
    with pytest.raises(InvalidInputError, match="expected a"):
        clean_texts(texts)  # type: ignore[arg-type]


def test_f25_lone_surrogates_are_replaced() -> None:
    assert clean_texts(["a\ud800b", "fine 😀"]) == ["a?b", "fine 😀"]


class TestAsEmbedder:
    def test_a_callable(self) -> None:
        calls: list[list[str]] = []

        def embed(texts: list[str]) -> list[list[float]]:
            calls.append(texts)
            return [[len(text), 1.0] for text in texts]

        embedder = as_embedder(embed)
        assert embedder.dim == 2
        assert embedder.dim == 2
        assert len(calls) == 1
        np.testing.assert_allclose(embedder.embed_queries(["abc"]), [[3 / 10**0.5, 1 / 10**0.5]])
        assert "embed" in embedder.name
        assert embedder.fingerprint.endswith("d=2")
        assert embedder.max_tokens is None
        assert embedder.count_tokens("abcd") == 2
        embedder.close()

    def test_a_callable_that_changes_its_dimension(self) -> None:
        sizes = iter([2, 3])
        embedder = as_embedder(lambda texts: np.ones((len(texts), next(sizes))))
        embedder.embed_passages(["a"])
        with pytest.raises(EmbedderError, match=r"shape \(1, 2\).*got \(1, 3\)"):
            embedder.embed_passages(["b"])

    def test_a_whole_embedder_is_used_as_it_is(self) -> None:
        embedder = HashingEmbedder(32)
        assert as_embedder(embedder) is embedder

    def test_missing_parts_are_filled_in(self) -> None:
        class Half:
            name = "half"
            dim = 4

            def embed_passages(self, texts: list[str]) -> np.ndarray:
                return np.full((len(texts), 4), 2.0)

        embedder = as_embedder(Half())  # type: ignore[arg-type]
        assert (embedder.name, embedder.dim) == ("half", 4)
        np.testing.assert_array_equal(embedder.embed_queries(["q"]), [[0.5] * 4])

    def test_names(self) -> None:
        assert as_embedder("hashing").name == "hashing-256"
        with pytest.raises(NotFoundError, match=r"minilm.*bge-small-en-v1\.5.*'nonsense'"):
            as_embedder("nonsense")

    def test_a_known_model_that_is_not_here(self) -> None:
        with pytest.raises(ModelFileError, match="rsm-fast model fetch bge-small-en-v1.5"):
            as_embedder("bge-small-en-v1.5")

    def test_a_path_that_is_not_there(self, tmp_path) -> None:
        with pytest.raises(ModelFileError, match="expected a folder with a model"):
            as_embedder(tmp_path / "none")

    def test_something_else(self) -> None:
        with pytest.raises(InvalidInputError, match="got int"):
            as_embedder(3)  # type: ignore[arg-type]

    @pytest.mark.parametrize("option", [{"dim": 0}, {"dim": 1.5}, {"max_tokens": -1}])
    def test_bad_options(self, option: dict[str, object]) -> None:
        with pytest.raises(InvalidInputError, match="expected a whole number"):
            CallableEmbedder(lambda texts: np.ones((1, 2)), **option)  # type: ignore[arg-type]
