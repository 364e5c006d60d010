"""Answers of a model that are kept with what they cost: a run counts it whether asked or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rsm_fast.closing import Closing
from rsm_fast.llm import Answer, AnswerCache, LanguageModel, Schema, Usage
from rsm_fast.tokens import TokenCounter

__all__ = ["Kept"]


class Kept(Closing):
    """A model whose answers are kept with what they cost.

    Parameters
    ----------
    model : LanguageModel
    counter : TokenCounter
        Counts where the model does not.
    cache : AnswerCache or None
    name : str
        Of the model, where answers of several stand in one file.
    """

    def __init__(
        self,
        model: LanguageModel,
        counter: TokenCounter,
        cache: AnswerCache | None = None,
        name: str = "",
    ) -> None:
        self.model = model
        self._counter = counter
        self._cache = cache
        self._name = {"model": name} if name else {}

    def chat(self, messages: Sequence[Mapping[str, str]], schema: Schema | None = None) -> Answer:
        """As the model, or as it did before."""
        asked = {"messages": [dict(one) for one in messages], "schema": schema}
        key = AnswerCache.key({**asked, **self._name})
        kept = None if self._cache is None else self._cache.get(key)
        if kept is None:
            kept = self._asked(messages, schema)
            if self._cache is not None:  # an empty one counts as false
                self._cache.put(key, kept)
        tokens = (kept["prompt_tokens"], kept["completion_tokens"])
        usage = Usage(1, 0, *tokens, kept["estimated"])
        return Answer(kept["text"], usage=usage, finish=kept["finish"], model=kept["model"])

    def close(self) -> None:
        """Close the cache; what the model holds is its owner's."""
        if self._cache is not None:
            self._cache.close()

    def _asked(
        self, messages: Sequence[Mapping[str, str]], schema: Schema | None
    ) -> dict[str, Any]:
        given = self.model.chat(messages, schema)
        answer = given if isinstance(given, Answer) else Answer(str(given))
        usage = answer.usage
        if not usage.calls:
            asked = sum(self._counter(message["content"]) for message in messages)
            usage = Usage(1, 0, asked, self._counter(answer.text), estimated=True)
        return {
            "text": answer.text,
            "finish": answer.finish,
            "model": answer.model,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "estimated": usage.estimated,
        }
