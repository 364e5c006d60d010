"""What an embedder is, how any callable becomes one, and how its vectors are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from rsm_fast.errors import EmbedderError, InvalidInputError
from rsm_fast.tokens import without_surrogates

__all__ = [
    "CallableEmbedder",
    "EmbedFunction",
    "Embedder",
    "Vectors",
    "checked_vectors",
    "clean_texts",
]

Vectors: TypeAlias = npt.NDArray[np.float32]
EmbedFunction: TypeAlias = Callable[[list[str]], npt.ArrayLike]

_UNIT_TOLERANCE = 2e-6  # of a float32 norm: closer rows count as unit and stay bit for bit


class Embedder(Protocol):
    """Turns texts into unit vectors.

    Attributes
    ----------
    name : str
        For people.
    dim : int
        Length of a vector.
    fingerprint : str
        Stable text of all that decides the vectors (model hash, pooling, instruction,
        maximum length, dimension). A store keeps it and refuses another.
    max_tokens : int or None
        The longest text, in the unit of `count_tokens`, that is embedded whole; None
        where there is no limit or it is unknown.
    """

    @property
    def name(self) -> str:
        """For people."""

    @property
    def dim(self) -> int:
        """Length of a vector."""

    @property
    def fingerprint(self) -> str:
        """Stable text of all that decides the vectors."""

    @property
    def max_tokens(self) -> int | None:
        """Longest text that is embedded whole, in the unit of `count_tokens`."""

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Unit rows, float32 of shape (len(texts), dim), for texts that are stored."""

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Unit rows, float32 of shape (len(texts), dim), for questions."""

    def count_tokens(self, text: str) -> int:
        """Tokens of a text for this model, special tokens of its template left out."""

    def close(self) -> None:
        """Give back what the embedder holds; using it again is an error or opens it anew."""


def clean_texts(texts: Sequence[str]) -> list[str]:
    """List of the texts with lone surrogates replaced by ``?``.

    Raises
    ------
    InvalidInputError
        If ``texts`` is a bare string, or an item is no string.
    """
    if isinstance(texts, str | bytes):
        raise InvalidInputError(
            f"texts: expected a sequence of strings, got a bare {type(texts).__name__}; "
            "put it into a list"
        )
    cleaned = []
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidInputError(f"texts[{index}]: expected a string, got {type(text).__name__}")
        cleaned.append(without_surrogates(text))
    return cleaned


def checked_vectors(
    embedder: Embedder | str, vectors: npt.ArrayLike, n: int, dim: int | None = None
) -> Vectors:
    """Check what an embedder returned and give it back as float32 unit rows.

    Lists, other float types, integers and read-only arrays are converted; rows that are
    not of unit length are normalised (in float64), unit rows stay as they are.

    Parameters
    ----------
    embedder : Embedder or str
        Where the vectors came from (its name is used in messages).
    vectors : array-like, shape (n, dim)
        What came back.
    n : int
        Texts that were embedded.
    dim : int, optional
        Expected length of a row; None accepts any.

    Returns
    -------
    float32 array, shape (n, dim), C-contiguous and writable

    Raises
    ------
    EmbedderError
        Wrong shape, not numbers, or NaN, infinity or a zero vector in a row; the message
        names the row.
    """
    name = embedder if isinstance(embedder, str) else embedder.name
    expected = f"({n}, {dim if dim is not None else 'd'})"
    try:
        array = np.asarray(vectors)
        if array.dtype.kind not in "fiu":
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise EmbedderError(
            f"embedder {name}: expected numbers of shape {expected}, got {error}"
        ) from error
    if array.ndim == 1 and n == 0 and array.size == 0:
        array = array.reshape(0, dim or 0)
    if array.ndim != 2 or array.shape[0] != n or array.shape[1] != (dim or array.shape[1]):
        raise EmbedderError(
            f"embedder {name}: expected an array of shape {expected}, one row for each text, "
            f"got {array.shape}"
        )
    if n and not array.shape[1]:
        raise EmbedderError(f"embedder {name}: expected rows of length >= 1, got {array.shape}")
    if array.dtype == np.float32:
        # one row far within the bound is the common case, and costs a fifth this way
        unit = n == 1 and abs(float(np.vdot(array, array)) - 1.0) <= _UNIT_TOLERANCE / 2
        if not unit:
            off = np.abs(np.einsum("ij,ij->i", array, array) - 1.0).max(initial=0.0)
            unit = bool(off <= _UNIT_TOLERANCE)  # False for NaN
        if unit:
            flags = array.flags
            whole = flags.c_contiguous and flags.writeable
            return array if whole else np.require(array, requirements=["C", "W"])
    wide = array.astype(np.float64)
    finite = np.isfinite(wide).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise EmbedderError(
            f"embedder {name}: expected finite numbers, got NaN or infinity in row {row} "
            f"of {n}; nothing was stored"
        )
    largest = np.abs(wide).max(axis=1, initial=0.0)
    if not largest.all():
        row = int(np.argmin(largest != 0))
        raise EmbedderError(
            f"embedder {name}: expected vectors that can be normalised, got all zeros in "
            f"row {row} of {n}; nothing was stored"
        )
    wide /= largest[:, None]  # so that squares neither overflow nor vanish
    wide /= np.sqrt(np.einsum("ij,ij->i", wide, wide))[:, None]
    return np.ascontiguousarray(wide, dtype=np.float32)


class CallableEmbedder:
    """Any function ``list[str] -> (n, d) array`` as an `Embedder`.

    Parameters
    ----------
    embed : callable
        Embeds stored texts, and questions too where ``embed_query`` is not given.
    embed_query : callable, optional
        Embeds questions.
    name : str, optional
        Default: the function's own name. Part of the fingerprint, so give one that says
        which model is behind the function.
    dim : int, optional
        Length of a vector. If not given it is found by embedding one word when first asked.
    fingerprint : str, optional
        Default: made of name and dimension.
    max_tokens : int, optional
        See `Embedder`.
    count_tokens : callable, optional
        Counts the tokens of one text as the model does. Default: UTF-8 bytes / 3.
    close : callable, optional
        Called by `close`.
    """

    def __init__(
        self,
        embed: EmbedFunction,
        *,
        embed_query: EmbedFunction | None = None,
        name: str | None = None,
        dim: int | None = None,
        fingerprint: str | None = None,
        max_tokens: int | None = None,
        count_tokens: Callable[[str], int] | None = None,
        close: Callable[[], Any] | None = None,
    ) -> None:
        for option, value in (("dim", dim), ("max_tokens", max_tokens)):
            if value is not None and (not isinstance(value, int | np.integer) or value < 1):
                raise InvalidInputError(f"{option}: expected a whole number >= 1, got {value!r}")
        self._embed = embed
        self._embed_query = embed_query
        self._name = name or str(getattr(embed, "__qualname__", type(embed).__name__))
        self._dim = int(dim) if dim is not None else None
        self._fingerprint = fingerprint
        self._max_tokens = max_tokens
        self._count = count_tokens
        self._close = close

    @property
    def name(self) -> str:
        """For people."""
        return self._name

    @property
    def dim(self) -> int:
        """Length of a vector; embeds one word if it is not known yet."""
        if self._dim is None:
            self.embed_passages(["dimension"])
        assert self._dim is not None  # set by the call above
        return self._dim

    @property
    def fingerprint(self) -> str:
        """Name and dimension, or what was given."""
        return self._fingerprint or f"callable {self._name} d={self.dim}"

    @property
    def max_tokens(self) -> int | None:
        """What was given."""
        return self._max_tokens

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Call the function and check what it gives; see `checked_vectors`."""
        return self._checked(self._embed, texts)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Call the query function (or the one function) and check what it gives."""
        return self._checked(self._embed_query or self._embed, texts)

    def count_tokens(self, text: str) -> int:
        """Tokens by the given function, else UTF-8 bytes / 3 rounded up."""
        if self._count is not None:
            return self._count(text)
        return (len(text.encode("utf-8", "replace")) + 2) // 3

    def close(self) -> None:
        """Call the given function, if any."""
        if self._close is not None:
            self._close()

    def _checked(self, function: EmbedFunction, texts: Sequence[str]) -> Vectors:
        cleaned = clean_texts(texts)
        if not cleaned:
            return np.empty((0, self._dim or 0), np.float32)
        vectors = checked_vectors(self._name, function(cleaned), len(cleaned), self._dim)
        self._dim = vectors.shape[1]
        return vectors
