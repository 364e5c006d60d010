"""The embedder without a model: the same everywhere, and useful enough for tests."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsm_fast.embedding import HashingEmbedder
from rsm_fast.errors import InvalidInputError

TEXTS = ["", " ", "I moved to Lisbon in May.", "due October 15th", "😀😀", "漢字 kana", "a" * 500]
SHA = "78f555ce085e9b85ed111173a08bb16e3a90f53bcd41298569ed6f50ee7bd51d"


def digest() -> str:
    return hashlib.sha256(HashingEmbedder(96).embed_passages(TEXTS).tobytes()).hexdigest()


def test_the_same_in_every_process_and_on_every_machine() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_hashing; "
        "print(test_hashing.digest())"
    )
    for seed in ("1", "2"):
        out = subprocess.run(
            [sys.executable, "-c", code, __file__.rsplit("/", 1)[0]],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert out.stdout.strip() == digest()
    assert digest() == SHA


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=8), st.sampled_from([8, 64, 256]))
def test_unit_rows_independent_of_the_batch(texts: list[str], dim: int) -> None:
    embedder = HashingEmbedder(dim)
    rows = embedder.embed_passages(texts)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)
    fresh = HashingEmbedder(dim)
    for text, row in zip(reversed(texts), rows[::-1], strict=True):
        np.testing.assert_array_equal(fresh.embed_queries([text])[0], row)


def test_spelling_is_close_and_strangers_are_far() -> None:
    rows = HashingEmbedder().embed_passages(
        ["Where does the user live now?", "The user now lives in Lisbon", "Bake bread at 230 C"]
    )
    assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.15
    assert abs(rows[1] @ rows[2]) < 0.2


def test_dim_is_checked() -> None:
    with pytest.raises(InvalidInputError, match="dim: expected a whole number >= 8"):
        HashingEmbedder(4)
    assert HashingEmbedder(8).fingerprint != HashingEmbedder(16).fingerprint


def test_count_tokens_and_close() -> None:
    embedder = HashingEmbedder()
    assert embedder.count_tokens("Hello, world!") == 4
    embedder.close()
    assert embedder.embed_passages(["x"]).shape == (1, 256)
