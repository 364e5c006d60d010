"""OpenTelemetry: a span for each verb of a memory (extra ``otel``)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rsm_fast._version import __version__
from rsm_fast.errors import MissingDependencyError
from rsm_fast.types import Pack

if TYPE_CHECKING:
    from rsm_fast.memory import Memory

__all__ = ["TracedMemory"]

_VERBS = frozenset(
    "add add_many pack search delete update forget supersede flush compact reembed".split()
    + ["aadd", "aadd_many", "apack", "asearch"]
)


class TracedMemory:
    """A `Memory` whose verbs are spans; everything else is passed through.

    A span is called ``rsm_fast.pack`` and so on. It carries the namespace and, for a pack, its
    budget, tokens, chunks and what embedding, scoring and packing took; no text of a turn or a
    question ever. An error is recorded on the span and raised on.

    Parameters
    ----------
    memory : Memory
    tracer_provider : opentelemetry.trace.TracerProvider or None
        None: the process's own.

    Raises
    ------
    MissingDependencyError
        If the package opentelemetry-api is not installed.
    """

    def __init__(self, memory: Memory, *, tracer_provider: Any = None) -> None:
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise MissingDependencyError(
                "TracedMemory needs opentelemetry-api; run: pip install 'rsm-fast[otel]'"
            ) from error
        self._memory = memory
        self._tracer = trace.get_tracer("rsm_fast", __version__, tracer_provider=tracer_provider)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._memory, name)
        return self._traced(name, value) if name in _VERBS else value

    def _traced(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        attributes = {"rsm_fast.namespace": self._memory.namespace}

        def span() -> Any:
            return self._tracer.start_as_current_span(f"rsm_fast.{name}", attributes=attributes)

        if inspect.iscoroutinefunction(verb):

            @functools.wraps(verb)
            async def call(*args: Any, **options: Any) -> Any:
                with span() as current:
                    return _described(current, await verb(*args, **options))
        else:

            @functools.wraps(verb)
            def call(*args: Any, **options: Any) -> Any:
                with span() as current:
                    return _described(current, verb(*args, **options))

        return call


def _described(span: Any, result: Any) -> Any:
    if isinstance(result, Pack):
        stats = result.stats
        span.set_attributes(
            {
                "rsm_fast.budget": result.budget,
                "rsm_fast.tokens": result.tokens,
                "rsm_fast.chunks": stats.admitted,
                "rsm_fast.eligible": stats.eligible,
                "rsm_fast.folded_tokens": stats.folded_tokens,
                "rsm_fast.embed_us": stats.embed_us,
                "rsm_fast.score_us": stats.score_us,
                "rsm_fast.pack_us": stats.pack_us,
            }
        )
    elif isinstance(result, list):
        span.set_attribute("rsm_fast.results", len(result))
    return result
