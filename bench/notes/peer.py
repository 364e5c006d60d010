"""A-MEM as a system of the quality harness, with its ablations.

Our definition: one note a turn; a question finds the k nearest notes by cosine and what is
linked with them; texts and descriptions are packed with the project's packer in that order.

The model comes from the environment: ``RSM_FAST_LLM_URL`` and ``RSM_FAST_LLM_MODEL`` (and
``RSM_FAST_LLM_KEY``, where one is needed); answers are kept in ``RSM_FAST_LLM_CACHE`` or the
user's cache folder, so each stream is paid for once. The ``-standin`` systems take
`bench.notes.standin` instead, which is no language model: they show what the machinery costs,
and what linking by shared words gives, not what A-MEM gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from bench.notes.kept import Kept
from bench.notes.standin import StandIn
from bench.quality.packed import Packed, Shown, SystemStats
from rsm_fast import Memory
from rsm_fast.closing import Closing
from rsm_fast.embedding import Embedder
from rsm_fast.errors import InvalidInputError
from rsm_fast.llm import AnswerCache, ChatEndpoint, LanguageModel, Usage
from rsm_fast.notes import NoteMemory
from rsm_fast.tokens import TokenCounter
from rsm_fast.types import Turn

__all__ = ["NOTES", "NoteSystem", "model_from_environment"]

_WORKERS = 4


def model_from_environment(**options: Any) -> ChatEndpoint:
    """The endpoint that the environment names; further options are those of `ChatEndpoint`.

    Raises
    ------
    InvalidInputError
        If it names none.
    """
    url, name = os.environ.get("RSM_FAST_LLM_URL"), os.environ.get("RSM_FAST_LLM_MODEL")
    if not url or not name:
        raise InvalidInputError(
            "a-mem: set RSM_FAST_LLM_URL and RSM_FAST_LLM_MODEL to an OpenAI-compatible endpoint, "
            "or run the systems `a-mem-standin...`, which need none"
        )
    key = os.environ.get("RSM_FAST_LLM_KEY")
    return ChatEndpoint(url, name, **{"api_key": key, "concurrency": _WORKERS, **options})


def _kept_from_environment(counter: TokenCounter) -> Kept:
    """That endpoint, each of its answers paid for once, and counted every time."""
    model = model_from_environment()
    default = user_cache_path("rsm_fast", appauthor=False) / "bench" / "answers.sqlite"
    cache = AnswerCache(Path(os.environ.get("RSM_FAST_LLM_CACHE", default)))
    return Kept(model, counter, cache, model.model)


class NoteSystem:
    """`NoteMemory` behind the harness's verbs.

    Parameters
    ----------
    embedder : Embedder
    counter : TokenCounter
    model : LanguageModel
    details : bool
        Pack descriptions behind the texts.
    own_model : bool
        Close the model with the system.
    options
        Of `NoteMemory`.

    Attributes
    ----------
    usage : Usage
        What all answers of the model cost, or did when they were asked for.
    """

    def __init__(
        self,
        embedder: Embedder,
        counter: TokenCounter,
        model: LanguageModel,
        *,
        details: bool = True,
        own_model: bool = False,
        **options: Any,
    ) -> None:
        memory = Memory(embedder=embedder, count_tokens=counter)
        self._notes = NoteMemory(memory, model, **options)
        self._own = model if own_model and isinstance(model, Closing) else None
        self._details = details
        self._arrived = 0
        self.operations = 0
        self.usage = Usage()

    def write(self, turns: Sequence[Turn]) -> None:
        """Store turns and make their notes."""
        report = self._notes.add_many([self._dated(turn) for turn in turns], workers=_WORKERS)
        self.usage += report.usage
        self.operations += report.asked

    def read(self, query: str, budget: int) -> Packed:
        """One pack."""
        pack = self._notes.pack(query, budget=budget, details=self._details)
        shown = tuple(Shown(chunk.id, chunk.text, chunk.copies) for chunk in pack.chunks)
        return Packed(pack.text, pack.tokens, shown, pack.stats.folded_tokens)

    def ranked_sessions(self, query: str, k: int) -> list[str]:
        """Sessions in the order of their best note."""
        hits = self._notes.search(query, k=40 * k, links=False)
        return list(dict.fromkeys(hit.note.session or "" for hit in hits))[:k]

    def stats(self) -> SystemStats:
        """Notes, and what they cost: per operation is per note written."""
        stats = self._notes.stats()
        operations = max(self.operations, 1)
        return SystemStats(
            chunks=stats.notes,
            bytes=stats.bytes,
            extra={
                "links": float(stats.links),
                "evolutions": float(stats.evolutions),
                "pending": float(stats.pending),
                "calls_per_operation": self.usage.calls / operations,
                "prompt_tokens_per_operation": self.usage.prompt_tokens / operations,
                "answer_tokens_per_operation": self.usage.completion_tokens / operations,
            },
        )

    def close(self) -> None:
        """Close the memory, and its own model's cache."""
        self._notes.close()
        if self._own is not None:
            self._own.close()

    def _dated(self, turn: Turn) -> Turn:
        """A turn without a time gets its place in the stream, as seconds."""
        self._arrived += 1
        return turn if turn.timestamp is not None else replace(turn, timestamp=self._arrived)


def _standin(counter: TokenCounter) -> Kept:
    return Kept(StandIn(), counter)


def _made(model: Callable[[TokenCounter], Kept], **options: Any) -> Callable[..., NoteSystem]:
    return lambda embedder, counter: NoteSystem(
        embedder, counter, model(counter), own_model=True, **options
    )


_ABLATIONS: dict[str, dict[str, Any]] = {
    "": {},
    "/no-evolution": {"evolution": False},
    "/no-links": {"links": False},
    "/texts-only": {"details": False},
    **{f"/k{k}": {"k": k} for k in (20, 30, 40, 50)},
}

NOTES: dict[str, Callable[..., NoteSystem]] = {
    f"{name}{suffix}": _made(model, **options)
    for name, model in (("a-mem", _kept_from_environment), ("a-mem-standin", _standin))
    for suffix, options in _ABLATIONS.items()
}
"""Systems by name; those called ``a-mem`` need an endpoint."""
