"""Embedders behind an endpoint: any OpenAI-compatible one, or the `openai` client's.

Texts go out in batches; failures that may pass are tried again; every answer is checked for
its number of rows and their length. An answer that cannot be used is an error, and the memory
stays as it was, because texts are embedded before anything is written.
"""

from __future__ import annotations

import http.client
import json
import math
import random
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from rsm_fast._version import __version__
from rsm_fast.embedding import Vectors, checked_vectors, clean_texts
from rsm_fast.errors import EmbedderError, InvalidInputError

__all__ = ["EndpointEmbedder", "OpenAIEmbedder"]

_RETRIED: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 60.0
_MOST_BYTES: Final = 256 << 20
_BLOCK: Final = 1 << 16
_EXCERPT: Final = 300


class _RemoteEmbedder(ABC):
    """Batches, instructions and checks; how a batch is sent is left to the subclasses.

    Attributes
    ----------
    name : str
        The model's name.
    max_tokens : int or None
        Longest text that the model takes, as far as the caller said so.
    """

    def __init__(
        self,
        model: str,
        *,
        dimensions: int | None,
        batch: int,
        query_instruction: str,
        passage_instruction: str,
        max_tokens: int | None,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise InvalidInputError(f"model: expected a name, got {model!r}")
        for what, value in (("dimensions", dimensions), ("batch", batch)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidInputError(f"{what}: expected 1 or more, got {value!r}")
        self.name = model
        self.max_tokens = max_tokens
        self._asked_dimensions = dimensions
        self._dim = dimensions
        self._batch = batch
        self._query_instruction = query_instruction
        self._passage_instruction = passage_instruction

    @property
    def dim(self) -> int:
        """Length of a vector; the first time, one word is embedded to learn it."""
        if self._dim is None:
            self._dim = int(self._embed(["dimension"], "").shape[1])
        return self._dim

    @property
    def fingerprint(self) -> str:
        """Model, dimension and instructions; not the address, which may change."""
        return (
            f"endpoint model={self.name} dim={self.dim} "
            f"query={self._query_instruction!r} passage={self._passage_instruction!r}"
        )

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Unit rows for texts that are stored."""
        return self._embed(texts, self._passage_instruction)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Unit rows for questions."""
        return self._embed(texts, self._query_instruction)

    def count_tokens(self, text: str) -> int:
        """A cautious guess: a third of the UTF-8 bytes, rounded up."""
        return math.ceil(len(text.encode("utf-8", "replace")) / 3)

    def close(self) -> None:  # noqa: B027 (part of the protocol)
        """Nothing is held between calls."""

    def _embed(self, texts: Sequence[str], instruction: str) -> Vectors:
        cleaned = [instruction + text for text in clean_texts(texts)]
        rows: list[Any] = []
        for start in range(0, len(cleaned), self._batch):
            part = cleaned[start : start + self._batch]
            answered = self._send(part)
            if len(answered) != len(part):
                raise EmbedderError(
                    f"embedder {self.name}: expected {len(part)} rows, got {len(answered)}"
                )
            rows.extend(answered)
        return checked_vectors(self.name, rows, len(cleaned), self._dim)

    @abstractmethod
    def _send(self, texts: list[str]) -> list[Any]:
        """One row for each text, in their order."""


class EndpointEmbedder(_RemoteEmbedder):
    """A model behind an OpenAI-compatible ``/embeddings`` endpoint. Standard library only.

    Parameters
    ----------
    base_url : str
        Such as ``http://127.0.0.1:8080/v1``; ``/embeddings`` is added.
    model : str
        Name of the model, as the endpoint knows it.
    api_key : str, optional
        Sent as a bearer token; it is in no message.
    dimensions : int, optional
        Length of the vectors: asked for, and held against what comes. Default: what comes.
    batch : int
        Texts in one request.
    timeout : float
        Seconds for one attempt.
    retries : int
        Attempts after the first where the endpoint is unreachable, slow, busy or failing; the
        waits double from half a second, and a ``Retry-After`` is kept to.
    query_instruction, passage_instruction : str
        Put before questions and before stored texts.
    max_tokens : int, optional
        The model's window: longer texts are split by the memory.

    Raises
    ------
    InvalidInputError
        If an option is out of range.
    EmbedderError
        From the embedding verbs, if there is no usable answer.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        dimensions: int | None = None,
        batch: int = 64,
        timeout: float = 30.0,
        retries: int = 3,
        query_instruction: str = "",
        passage_instruction: str = "",
        max_tokens: int | None = None,
        _sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(
            model,
            dimensions=dimensions,
            batch=batch,
            query_instruction=query_instruction,
            passage_instruction=passage_instruction,
            max_tokens=max_tokens,
        )
        if not isinstance(base_url, str) or not base_url.startswith(("http://", "https://")):
            raise InvalidInputError(f"base_url: expected http:// or https://, got {base_url!r}")
        if not timeout > 0:
            raise InvalidInputError(f"timeout: expected seconds above 0, got {timeout!r}")
        if not isinstance(retries, int) or retries < 0:
            raise InvalidInputError(f"retries: expected 0 or more, got {retries!r}")
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": f"rsm-fast/{__version__}",
        }
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = timeout
        self._retries = retries
        self._sleep = _sleep
        self._opener = urllib.request.build_opener(_NoRedirect)

    def _send(self, texts: list[str]) -> list[Any]:
        request: dict[str, Any] = {
            "model": self.name,
            "input": texts,
            "encoding_format": "float",
        }
        if self._asked_dimensions is not None:
            request["dimensions"] = self._asked_dimensions
        body = json.dumps(request).encode()
        for attempt in range(self._retries + 1):
            try:
                return self._rows(self._post(body), len(texts))
            except _TryAgain as failure:
                if attempt == self._retries:
                    tried = "once" if attempt == 0 else f"{attempt + 1} times"
                    raise EmbedderError(
                        f"embedder {self.name} at {self._url}: tried {tried}, {failure}"
                    ) from failure
                backoff = _FIRST_WAIT * 2**attempt * random.uniform(0.75, 1.25)
                self._sleep(min(max(backoff, failure.wait), _LONGEST_WAIT))
        raise AssertionError("unreachable")

    def _post(self, body: bytes) -> bytes:
        request = urllib.request.Request(self._url, data=body, headers=self._headers)
        deadline = time.monotonic() + self._timeout
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                return _read(response, deadline)
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(_EXCERPT).decode("utf-8", "replace").strip()
            message = f"got status {error.code}: {said or error.reason}"
            if error.code in _RETRIED:
                raise _TryAgain(message, _retry_after(error.headers.get("Retry-After"))) from None
            raise EmbedderError(f"embedder {self.name} at {self._url}: {message}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise _TryAgain(f"no answer ({reason or type(error).__name__})") from error

    def _rows(self, answer: bytes, count: int) -> list[Any]:
        """The vectors of an answer in the order of the texts."""
        try:
            data = json.loads(answer)["data"]
            rows = {int(entry.get("index", place)): entry for place, entry in enumerate(data)}
            return [rows[place]["embedding"] for place in range(count)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            said = answer[:_EXCERPT].decode("utf-8", "replace")
            raise EmbedderError(
                f"embedder {self.name} at {self._url}: expected {count} embeddings under 'data', "
                f"got {said!r}"
            ) from error


class OpenAIEmbedder(_RemoteEmbedder):
    """A model behind a client of the `openai` package, whose retries and time-outs apply.

    Parameters
    ----------
    client : openai.OpenAI
        It stays the caller's to close.
    model : str
    dimensions, batch, query_instruction, passage_instruction, max_tokens
        As for `EndpointEmbedder`.
    """

    def __init__(
        self,
        client: Any,
        model: str,
        *,
        dimensions: int | None = None,
        batch: int = 64,
        query_instruction: str = "",
        passage_instruction: str = "",
        max_tokens: int | None = None,
    ) -> None:
        super().__init__(
            model,
            dimensions=dimensions,
            batch=batch,
            query_instruction=query_instruction,
            passage_instruction=passage_instruction,
            max_tokens=max_tokens,
        )
        if not hasattr(client, "embeddings"):
            raise InvalidInputError(
                f"client: expected an openai.OpenAI client, got {type(client).__name__}"
            )
        self._client = client

    def _send(self, texts: list[str]) -> list[Any]:
        import openai

        options = {} if self._asked_dimensions is None else {"dimensions": self._asked_dimensions}
        try:
            answer = self._client.embeddings.create(model=self.name, input=texts, **options)
        except openai.OpenAIError as error:
            raise EmbedderError(f"embedder {self.name}: {error}") from error
        return [entry.embedding for entry in sorted(answer.data, key=lambda entry: entry.index)]


class _TryAgain(Exception):
    """What may pass; ``wait`` is what the server asked for, in seconds."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: it would carry the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The whole body, unless it is too long or comes too slowly."""
    parts: list[bytes] = []
    size = 0
    while part := response.read1(_BLOCK):
        parts.append(part)
        size += len(part)
        if size > _MOST_BYTES:
            raise EmbedderError(f"endpoint: answer longer than {_MOST_BYTES:,} bytes")
        if time.monotonic() > deadline:
            raise _TryAgain("the answer came too slowly")
    expected = response.headers.get("Content-Length")
    if expected is not None and size < int(expected):
        raise _TryAgain("the answer was cut off")
    return b"".join(parts)


def _retry_after(value: str | None) -> float:
    try:
        return max(float(value or 0), 0.0)
    except ValueError:
        return 0.0
