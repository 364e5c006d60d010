"""A deterministic embedder without a model: hashed words and character n-grams.

For tests, examples and machines that cannot hold a model. It knows spelling, not meaning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rsm_fast.embedding.protocol import Vectors, clean_texts
from rsm_fast.errors import InvalidInputError

__all__ = ["HashingEmbedder"]

_WORDS: Final = re.compile(r"\w+|[^\w\s]+")
_MOST_CACHED_WORDS: Final = 20_000
_LONGEST_CACHED_WORD: Final = 48
_LONGEST_GRAMMED_WORD: Final = 256
_COMMON: Final = frozenset(
    "a an and are as at be but by did do does for from had has have he her his how i if in is "
    "it its me my not of on or our she so that the their them there they this to was we were "
    "what when where which who will with would you your".split()
)

_Features: TypeAlias = npt.NDArray[np.int32]


def _hash(text: str) -> int:
    """62 bits of a text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 2


class HashingEmbedder:
    """Signed feature hashing (Weinberger et al. 2009) of words and their character 3-grams.

    A word adds +-4 to two coordinates chosen by BLAKE2 (+-1 if it is one of the commonest
    English words or a run of symbols), each 3-gram of a longer word +-1 to one; the sums are whole
    numbers, so the vectors are the same on every machine, bit for bit, whatever the order
    of texts or the size of a batch.

    Parameters
    ----------
    dim : int
        Length of a vector, at least 8.
    """

    max_tokens: int | None = None

    def __init__(self, dim: int = 256) -> None:
        if not isinstance(dim, int | np.integer) or dim < 8:
            raise InvalidInputError(f"dim: expected a whole number >= 8, got {dim!r}")
        self.dim = int(dim)
        self.name = f"hashing-{self.dim}"
        self.fingerprint = f"hashing v1 d={self.dim}"
        self._cache: dict[str, tuple[_Features, _Features]] = {}

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Unit rows for texts, float32 of shape (n, dim)."""
        cleaned = clean_texts(texts)
        out = np.empty((len(cleaned), self.dim), np.float32)
        for row, text in zip(out, cleaned, strict=True):
            row[:] = self._embed(text)
        return out

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """The same as `embed_passages`: there is no instruction."""
        return self.embed_passages(texts)

    def count_tokens(self, text: str) -> int:
        """Words and symbol runs of a text."""
        return sum(1 for _ in _WORDS.finditer(text))

    def close(self) -> None:
        """Nothing is held but a cache of words, which is dropped."""
        self._cache.clear()

    def _embed(self, text: str) -> npt.NDArray[np.float64]:
        words = _WORDS.findall(text.lower())
        features = [self._features(word) for word in words]
        if not features:
            features = [self._features("")]
        places = np.concatenate([place for place, _ in features])
        weights = np.concatenate([weight for _, weight in features])
        sums = np.bincount(places, weights=weights, minlength=self.dim)
        square = float(np.dot(sums, sums))
        if square == 0.0:  # signs cancelled out to the last coordinate
            sums[_hash(text) % self.dim] = square = 1.0
        return sums / np.sqrt(square)  # type: ignore[no-any-return]

    def _features(self, word: str) -> tuple[_Features, _Features]:
        """Coordinates and signed weights of one word."""
        known = self._cache.get(word)
        if known is not None:
            return known
        common = word in _COMMON or not word[:1].isalnum()
        weight = 1 if common else 4
        pieces = [f"1{word}", f"2{word}"]
        weights = [weight, weight]
        if not common and len(word) > 2:
            edged = f"<{word[:_LONGEST_GRAMMED_WORD]}>"
            grams = [f"3{edged[start : start + 3]}" for start in range(len(edged) - 2)]
            pieces += grams
            weights += [1] * len(grams)
        hashed = np.array([_hash(piece) for piece in pieces], np.int64)
        signs = 1 - 2 * (hashed & 1)
        places = ((hashed >> 1) % self.dim).astype(np.int32)
        features = places, (signs * np.array(weights)).astype(np.int32)
        if len(word) <= _LONGEST_CACHED_WORD:
            if len(self._cache) >= _MOST_CACHED_WORDS:
                self._cache.clear()
            self._cache[word] = features
        return features
