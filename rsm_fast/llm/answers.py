"""What a language model is asked, and what it answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import iscoroutine
from typing import Any, Final, NoReturn, Protocol, TypeAlias

from rsm_fast.errors import LanguageModelError
from rsm_fast.llm.shapes import misfit

__all__ = [
    "Answer",
    "LanguageModel",
    "Message",
    "Schema",
    "Usage",
    "ask",
    "extract_json",
]

Message: TypeAlias = Mapping[str, str]
Schema: TypeAlias = Mapping[str, Any]

_THINKING: Final = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.S)
_OPENING: Final = re.compile(r"[{\[]")
_TRIES: Final = 64  # places in an answer where JSON may begin
_SHOWN: Final = 2000  # characters of a wrong answer that the model is shown again


@dataclass(frozen=True, slots=True)
class Usage:
    """What answers cost.

    Attributes
    ----------
    calls : int
        Answers that an endpoint gave.
    cached : int
        Answers that came from the cache, and cost nothing.
    prompt_tokens, completion_tokens : int
        As the endpoint counted them.
    estimated : bool
        Some endpoint did not count, and a token was taken for three UTF-8 bytes.
    """

    calls: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers together."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.cached + other.cached,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.estimated or other.estimated,
        )

    def cost(self, *, prompt_price: float, completion_price: float) -> float:
        """Money, for prices per million tokens."""
        return (
            self.prompt_tokens * prompt_price + self.completion_tokens * completion_price
        ) / 1_000_000


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer.

    Attributes
    ----------
    text : str
        As the model wrote it.
    parsed : JSON value or None
        What was asked for by a schema; None without a schema, or where nothing of that shape
        stands in the text.
    usage : Usage
    problem : str
        Why ``parsed`` is not what the schema asks for; empty if all is well.
    finish : str
        Why the model stopped, as the endpoint says: ``"stop"``, ``"length"`` ...
    model : str
        Which model answered.
    """

    text: str
    parsed: Any = None
    usage: Usage = field(default_factory=Usage)
    problem: str = ""
    finish: str = "stop"
    model: str = ""


class LanguageModel(Protocol):
    """Anything that answers messages.

    `rsm_fast.llm.ChatEndpoint` is one. One's own may give an `Answer`, the text, or a parsed
    JSON object; and raise what it likes, which counts as no answer.
    """

    def chat(
        self, messages: Sequence[Message], schema: Schema | None = None
    ) -> Answer | str | Mapping[str, Any]:
        """Answer messages like ``{"role": "user", "content": "..."}``.

        With a schema, the answer should be JSON that fits it.
        """


def ask(
    model: LanguageModel,
    messages: Sequence[Message],
    schema: Schema,
    *,
    repairs: int = 1,
) -> Answer:
    """An answer as JSON, asked for again where it does not fit.

    Parameters
    ----------
    model : LanguageModel
    messages : sequence of Message
    schema : Schema
    repairs : int
        How often the model is shown what was wrong with its answer.

    Returns
    -------
    Answer
        With ``problem`` if the last answer does not fit either, or none came when it was asked
        once more; ``parsed`` may then hold what of it is JSON. ``usage`` covers all rounds.

    Raises
    ------
    LanguageModelError
        If the model gives no answer at all.
    """
    usage = Usage()
    asked = list(messages)
    answer: Answer | None = None
    for round_ in range(repairs + 1):
        try:
            answer = _asked(model, asked, schema)
        except LanguageModelError as error:
            if answer is None:
                raise
            answer = replace(answer, problem=f"{answer.problem}; asked once more: {error}")
            break  # with what was paid for
        usage += answer.usage
        if not answer.problem or round_ == repairs:
            break
        asked = [
            *messages,
            {"role": "assistant", "content": answer.text[:_SHOWN]},
            {
                "role": "user",
                "content": f"That cannot be used: {answer.problem}. Answer once more, with "
                "nothing but one JSON object as described.",
            },
        ]
    assert answer is not None
    return replace(answer, usage=usage)


def _asked(model: LanguageModel, messages: Sequence[Message], schema: Schema) -> Answer:
    try:
        given = model.chat(messages, schema)
    except LanguageModelError:
        raise
    except Exception as error:  # anybody's code
        raise LanguageModelError(
            f"{type(model).__name__}.chat failed: {type(error).__name__}: {error}"
        ) from error
    return _checked(given, schema, model)


def _checked(given: object, schema: Schema, model: object) -> Answer:
    if iscoroutine(given):
        given.close()  # else Python warns that nobody has waited for it
        raise LanguageModelError(
            f"{type(model).__name__}.chat: expected an answer, got a coroutine; wait for it "
            "inside, as by asyncio.run"
        )
    if isinstance(given, Mapping):
        given = Answer(json.dumps(given, ensure_ascii=False, default=str), dict(given))
    elif isinstance(given, str):
        given = Answer(given)
    if not isinstance(given, Answer):
        raise LanguageModelError(
            f"{type(model).__name__}.chat: expected an Answer, text or a mapping, "
            f"got {type(given).__name__}"
        )
    return parsed_answer(given, schema)


def parsed_answer(answer: Answer, schema: Schema) -> Answer:
    """The answer with ``parsed`` and ``problem`` as the schema asks."""
    value = answer.parsed
    if value is None:
        value = extract_json(answer.text)
    if value is None:
        cut = "; it was cut at the limit of tokens" if answer.finish == "length" else ""
        return replace(answer, parsed=None, problem=f"no JSON object stands in it{cut}")
    return replace(answer, parsed=value, problem=misfit(value, schema))


def extract_json(text: str) -> dict[str, Any] | None:
    """The first JSON object that stands in a text, None if there is none.

    What the model thought aloud, fences and words around the object are passed over.

    >>> extract_json('Sure! ```json {"tags": ["cat"]} ```')
    {'tags': ['cat']}
    """
    decoder = json.JSONDecoder(parse_constant=_refuse)
    text = _THINKING.sub("", text)
    start = 0
    for _ in range(_TRIES):
        opening = _OPENING.search(text, start)
        if opening is None:
            return None
        try:
            value, end = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            start = opening.start() + 1
            continue
        if isinstance(value, dict):
            return value
        inner = next((item for item in value if isinstance(item, dict)), None)
        if inner is not None:
            return inner
        start = end
    return None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
