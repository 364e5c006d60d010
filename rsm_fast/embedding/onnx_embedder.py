"""BERT-type sentence encoders (BGE, MiniLM, E5, GTE) on ONNX Runtime, without torch."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from rsm_fast.embedding.batching import group_by_length
from rsm_fast.embedding.cache import Row, VectorCache, text_key
from rsm_fast.embedding.cpu import usable_cpus
from rsm_fast.embedding.protocol import Vectors, clean_texts
from rsm_fast.embedding.session import Session, open_session
from rsm_fast.embedding.spec import ModelSpec, resolve_model
from rsm_fast.errors import EmbedderError, InvalidInputError, ModelFileError
from rsm_fast.tokens import TokenCounter, WordPieceCounter, shared_counter, shared_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["OnnxEmbedder"]

Role = Literal["passage", "query"]

_CHARACTERS_PER_TOKEN = 40  # of a text that is cut before it is tokenised
_CACHE_BYTES = 2 << 20


class OnnxEmbedder:
    """Embed texts with a BERT-type ONNX model.

    The constructor reads small files only; the model is loaded at the first use. Any number
    of embedders and threads share one loaded model in a process, and after a fork the child
    loads its own. Vectors do not depend on the order of texts, on what is embedded
    together, or on the number of threads (models in float arithmetic: within 1e-6).

    Parameters
    ----------
    model : str or path
        ``"minilm"`` (the packaged model), another name of ``rsm-fast model list``, a folder
        laid out as on the hub, or an ``.onnx`` file.
    tokenizer : path, optional
        tokenizer.json, or a folder with it and the configuration, where they do not lie
        with the model.
    pooling : {"auto", "cls", "mean"}
        Auto takes what the model's own files say; without them CLS for models named bge,
        else the mean.
    max_length : int
        Longest input in tokens, special tokens included; the model's own limit if that is
        lower.
    query_instruction, passage_instruction : str, optional
        Put before questions and before stored texts. None takes the model's own (BGE has
        one for questions); ``""`` turns it off.
    threads : int or None
        Texts that are embedded side by side in one call; None takes all CPUs that the
        process may use. A single text always runs on one thread.
    batch_invariant : bool
        True runs a model that computes in int8 one text at a time. False groups short
        texts, up to a third faster, and lets vectors depend on their neighbours (cosine
        down to 0.945).
    cache_bytes : int
        Bound of the cache of repeated texts; 0 turns it off.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "minilm",
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        pooling: Literal["auto", "cls", "mean"] = "auto",
        max_length: int = 512,
        query_instruction: str | None = None,
        passage_instruction: str | None = None,
        threads: int | None = 1,
        batch_invariant: bool = True,
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise InvalidInputError(f"threads: expected a whole number >= 1, got {threads!r}")
        if not isinstance(cache_bytes, int) or cache_bytes < 0:
            raise InvalidInputError(f"cache_bytes: expected bytes >= 0, got {cache_bytes!r}")
        self._spec = resolve_model(
            model,
            tokenizer=tokenizer,
            pooling=pooling,
            max_length=max_length,
            query_instruction=query_instruction,
            passage_instruction=passage_instruction,
        )
        self._threads = threads
        self._alone = self._spec.kind == "int8" and batch_invariant
        self._cache = VectorCache(cache_bytes)
        self._session: Session | None = None
        self._session_pid = 0
        self._truncated = 0
        self._counts = threading.Lock()

    @property
    def spec(self) -> ModelSpec:
        """Files and settings."""
        return self._spec

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._spec.name

    @property
    def dim(self) -> int:
        """Length of a vector; loads the model if its configuration does not say it."""
        return self._spec.dim or self._open().dim or self._embed_one_word()

    @property
    def fingerprint(self) -> str:
        """All that decides the vectors."""
        spec = self._spec
        return (
            f"onnx {spec.sha256} tokenizer={spec.tokenizer_sha256} pooling={spec.pooling} "
            f"max_length={spec.max_length} dim={self.dim} query={spec.query_instruction!r} "
            f"passage={spec.passage_instruction!r}"
        )

    @property
    def max_tokens(self) -> int | None:
        """Longest stored text, as `count_tokens` counts, that is embedded whole."""
        template = self._template()
        taken = template.specials + self.count_tokens(self._spec.passage_instruction)
        return max(0, self._spec.max_length - taken)

    @property
    def truncated(self) -> int:
        """Texts so far whose end did not fit into the model's window."""
        return self._truncated

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Unit rows for texts that are stored.

        Parameters
        ----------
        texts : sequence of str
            Any strings; lone surrogates become ``?``, and what exceeds the model's window is cut
            off (see `truncated`, `max_tokens`).

        Returns
        -------
        float32 array, shape (len(texts), dim)
            Rows of length 1.

        Raises
        ------
        InvalidInputError
            If an item is no string.
        MissingDependencyError, ModelFileError
            If the model cannot be loaded.
        EmbedderError
            If the model gives numbers that cannot be normalised.
        """
        return self._embed(texts, self._spec.passage_instruction)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Unit rows for questions; as `embed_passages`, with the query instruction."""
        return self._embed(texts, self._spec.query_instruction)

    def embed_into(
        self,
        texts: Sequence[str],
        codes: npt.NDArray[np.int8],
        scales: npt.NDArray[np.float32],
        rows: npt.ArrayLike | None = None,
        *,
        role: Role = "passage",
    ) -> None:
        """Embed straight into int8 rows: ``codes[row] * scales[row]`` is the unit vector.

        Parameters
        ----------
        texts : sequence of str
            As for `embed_passages`.
        codes : int8 array, shape (capacity, >= dim)
            Written in [-127, 127]; columns beyond ``dim`` are left alone.
        scales : float32 array, shape (capacity,)
            Largest absolute coordinate / 127.
        rows : array-like of int, shape (len(texts),), optional
            Where each text goes; None means 0, 1, 2 ...
        role : {"passage", "query"}
            Which instruction is put before the texts.
        """
        instruction = {
            "passage": self._spec.passage_instruction,
            "query": self._spec.query_instruction,
        }.get(role)
        if instruction is None:
            raise InvalidInputError(f"role: expected 'passage' or 'query', got {role!r}")
        cleaned = clean_texts(texts)
        places = np.arange(len(cleaned)) if rows is None else np.asarray(rows)
        if places.shape != (len(cleaned),) or places.dtype.kind not in "iu":
            raise InvalidInputError(
                f"rows: expected {len(cleaned)} whole numbers, one for each text, got shape "
                f"{places.shape} of {places.dtype}"
            )
        if codes.dtype != np.int8 or codes.ndim != 2 or codes.shape[1] < self.dim:
            raise InvalidInputError(
                f"codes: expected int8 of shape (n, >= {self.dim}), got {codes.dtype} {codes.shape}"
            )
        if scales.dtype != np.float32 or scales.shape != codes.shape[:1]:
            raise InvalidInputError(
                f"scales: expected float32 of shape {codes.shape[:1]}, got {scales.dtype} "
                f"{scales.shape}"
            )
        self._fill(cleaned, instruction, _Int8Sink(codes[:, : self.dim], scales, places))

    @property
    def counter(self) -> TokenCounter:
        """What `count_tokens` counts with."""
        return shared_counter(self._spec.tokenizer, self._spec.tokenizer_sha256)

    def count_tokens(self, text: str) -> int:
        """Tokens of a text for this model, without the special ones of its template."""
        return self.counter(text)

    def token_ids(self, text: str) -> list[int]:
        """Ids that the model is fed: special tokens around the text, cut to the window."""
        template = self._template()
        room = self._spec.max_length - template.specials
        encode = self._encoder()
        # A text far over the window is tokenised only as far as needed: a prefix that ends
        # at white space has the tokens that the whole text begins with.
        size = max(room, 1) * _CHARACTERS_PER_TOKEN
        while True:
            part = _prefix(text, size)
            body = encode(part)
            if len(body) > room:
                with self._counts:
                    self._truncated += 1
                break
            if len(part) == len(text):
                break
            size *= 4
        return [*template.before, *body[:room], *template.after]

    def embed_ids(self, inputs: list[list[int]]) -> Vectors:
        """Unit rows for token ids as `token_ids` gives them, run together where possible."""
        session = self._open()
        groups = [[ids] for ids in inputs] if self._alone or session.single else [inputs]
        vectors = [vector for group in groups for vector in self._run(session, group)]
        return np.stack([_unit(vector, "(ids)", self.name) for vector in vectors])

    def vocabulary(self) -> tuple[list[int], list[int], int]:
        """Ids that the template puts before and after a text, and the vocabulary's size."""
        template = self._template()
        tokenizer = shared_tokenizer(self._spec.tokenizer, self._spec.tokenizer_sha256)
        return template.before, template.after, int(tokenizer.get_vocab_size())

    def cache_stats(self) -> dict[str, int]:
        """Hits, misses, rows and bytes of the cache of repeated texts."""
        cache = self._cache
        return {
            "hits": cache.hits,
            "misses": cache.misses,
            "rows": len(cache),
            "bytes": cache.nbytes,
        }

    def close(self) -> None:
        """Let go of the model and the cache; the next use opens it again."""
        self._session = None
        self._cache.clear()

    def __getstate__(self) -> object:
        raise TypeError("an OnnxEmbedder cannot be pickled; make one in each process")

    def _embed(self, texts: Sequence[str], instruction: str) -> Vectors:
        cleaned = clean_texts(texts)
        out = np.empty((len(cleaned), self.dim), np.float32)
        self._fill(cleaned, instruction, _FloatSink(out))
        return out

    def _fill(self, texts: list[str], instruction: str, sink: _Sink) -> None:
        """Put a vector for each text into the sink; each distinct text is embedded once."""
        places: dict[str, list[int]] = {}
        for index, text in enumerate(texts):
            places.setdefault(text, []).append(index)
        missing = []
        for text, indices in places.items():
            key = text_key(sink.form, instruction, text)
            row = self._cache.get(key)
            if row is None:
                missing.append((key, instruction + text, indices))
            else:
                sink.write(row, indices)
        if not missing:
            return
        session = self._open()
        inputs = [self.token_ids(text) for _, text, _ in missing]
        groups = group_by_length([len(ids) for ids in inputs], alone=self._alone or session.single)

        def run(group: list[int]) -> None:
            vectors = self._run(session, [inputs[index] for index in group])
            for index, vector in zip(group, vectors, strict=True):
                key, text, indices = missing[index]
                row = sink.row(_unit(vector, text, self.name))
                sink.write(row, indices)
                self._cache.put(key, row)

        workers = min(len(groups), self._threads or usable_cpus())
        if workers == 1:
            for group in groups:
                run(group)
        else:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(workers, thread_name_prefix="rsm-embed") as pool:
                for _ in pool.map(run, groups):
                    pass

    def _run(self, session: Session, inputs: list[list[int]]) -> Iterable[Vectors]:
        """Vectors, not yet normalised, of texts that run together."""
        longest = max(map(len, inputs))
        ids = np.full((len(inputs), longest), self._template().padding, np.int64)
        mask = np.zeros((len(inputs), longest), np.int64)
        for row, tokens in enumerate(inputs):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        output = session.run(ids, mask)
        if output.shape[-1] != self.dim:
            raise ModelFileError(
                f"{self._spec.model}: expected vectors of {self.dim} numbers (hidden_size in "
                f"config.json), got {output.shape[-1]}; the files belong to two models"
            )
        if session.pooled:
            return output
        if self._spec.pooling == "cls":
            return output[:, 0]
        # By each text's own length, so that padding cannot change a bit of it.
        return [row[: len(tokens)].mean(axis=0) for row, tokens in zip(output, inputs, strict=True)]

    def _open(self) -> Session:
        """Session of this process; a fork drops the parent's."""
        session = self._session
        if session is None or self._session_pid != os.getpid():
            session = open_session(self._spec.model, self._spec.sha256, self._spec.kind)
            self._session, self._session_pid = session, os.getpid()
            self._counts = threading.Lock()  # the parent's may have been held at the fork
        return session

    def _embed_one_word(self) -> int:
        template = self._template()
        ids = np.array([[*template.before, *template.after]], np.int64)
        return int(self._open().run(ids, np.ones_like(ids)).shape[-1])

    def _encoder(self) -> Callable[[str], list[int]]:
        """Text to ids, without special tokens."""
        counter = self.counter
        if isinstance(counter, WordPieceCounter):
            return counter.ids
        tokenizer = shared_tokenizer(self._spec.tokenizer, self._spec.tokenizer_sha256)
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids

    def _template(self) -> _Template:
        return _shared_template(self._spec.tokenizer, self._spec.tokenizer_sha256)


class _Sink(Protocol):
    """Where vectors go, and in which form they are cached."""

    form: str

    def row(self, unit: Vectors) -> Row:
        """The form in which a unit vector is kept."""

    def write(self, row: Row, indices: list[int]) -> None:
        """Put a kept row wherever its text stands."""


class _FloatSink:
    form = "float32"

    def __init__(self, out: Vectors) -> None:
        self._out = out

    def row(self, unit: Vectors) -> Row:
        return unit, 1.0

    def write(self, row: Row, indices: list[int]) -> None:
        self._out[indices] = row[0]


class _Int8Sink:
    form = "int8"

    def __init__(
        self,
        codes: npt.NDArray[np.int8],
        scales: npt.NDArray[np.float32],
        rows: npt.NDArray[Any],
    ) -> None:
        self._codes, self._scales, self._rows = codes, scales, rows

    def row(self, unit: Vectors) -> Row:
        scale = np.float32(np.abs(unit).max() / np.float32(127.0))
        return np.rint(unit / scale).astype(np.int8), float(scale)

    def write(self, row: Row, indices: list[int]) -> None:
        rows = self._rows[indices]
        self._codes[rows] = row[0]
        self._scales[rows] = row[1]


class _Template:
    """Special tokens that a tokenizer puts around a text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        bare = tokenizer.encode("a", add_special_tokens=False).ids
        whole = tokenizer.encode("a").ids
        start = next(
            (at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), len(whole)
        )
        self.before: list[int] = whole[:start]
        self.after: list[int] = whole[start + len(bare) :]
        self.specials = len(self.before) + len(self.after)
        padding = tokenizer.token_to_id("[PAD]")
        self.padding: int = padding if padding is not None else 0


@functools.lru_cache(maxsize=4)
def _shared_template(path: Path, sha256: str) -> _Template:
    return _Template(shared_tokenizer(path, sha256))


def _prefix(text: str, size: int) -> str:
    """At most about ``size`` characters of a text, ending before white space."""
    if len(text) <= size:
        return text
    for end in range(size, len(text)):
        if text[end].isspace():
            return text[:end]
    return text


def _unit(vector: Vectors, text: str, name: str) -> Vectors:
    """The vector at length 1."""
    norm = float(np.sqrt(np.dot(vector, vector)))
    if not (np.isfinite(norm) and norm > 0.0):
        raise EmbedderError(
            f"embedder {name}: expected a vector that can be normalised, got norm {norm} for "
            f"the text {text[:60]!r}"
        )
    return vector / np.float32(norm)
