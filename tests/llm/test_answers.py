"""Finding JSON in what models write, and holding it against a schema."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsm_fast.errors import LanguageModelError
from rsm_fast.llm import Answer, Usage, ask, extract_json, misfit

SCHEMA = {
    "type": "object",
    "properties": {
        "links": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "why": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["links"],
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', {"a": 1}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('Of course! {"a": {"b": [1, 2]}} Anything else?', {"a": {"b": [1, 2]}}),
        ('<think>maybe {"a": 2}?</think>{"a": 1}', {"a": 1}),
        ('{broken {"a": 1}', {"a": 1}),
        ('[{"a": 1}, {"a": 2}]', {"a": 1}),
        ('["x"] then {"a": 1}', {"a": 1}),
        ('{"a": "the }{ of it"}', {"a": "the }{ of it"}),
        ('{"a": NaN}', None),
        ('{"a": 1', None),
        ("nothing here", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_the_first_object_is_found(text: str, found: object) -> None:
    assert extract_json(text) == found


@given(st.text(max_size=200))
def test_any_text_gives_an_object_or_none(text: str) -> None:
    assert isinstance(extract_json(text), dict | None)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"links": []}, ""),
        ({"links": ["1"], "why": "so", "kind": "a", "more": 3}, ""),
        ([], "answer: expected object"),
        ({}, "'links' is missing"),
        ({"links": ["1", 2]}, "answer.links[1]: expected string, got 2"),
        ({"links": ["1", "2", "3"]}, "at most 2 items"),
        ({"links": [], "why": "because"}, "at most 5 characters"),
        ({"links": [], "kind": "c"}, "expected one of"),
        ({"links": True}, "expected array, got True"),
    ],
)
def test_misfits_are_named(value: object, problem: str) -> None:
    found = misfit(value, SCHEMA)
    assert problem in found if problem else found == ""


def test_a_boolean_is_no_number() -> None:
    assert misfit(True, {"type": "integer"}) and not misfit(True, {"type": "boolean"})


class Scripted:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    def chat(self, messages: Any, schema: Any = None) -> Any:
        self.asked.append(messages)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_any_object_with_the_verb_will_do() -> None:
    for given_ in ('{"links": []}', {"links": []}, Answer('{"links": []}', usage=Usage(1))):
        assert ask(Scripted(given_), [], SCHEMA).parsed == {"links": []}


def test_what_is_left_wrong_is_told() -> None:
    model = Scripted({"links": 1}, {"links": 2, "why": "x"})
    answer = ask(model, [{"role": "user", "content": "?"}], SCHEMA)
    assert answer.parsed == {"links": 2, "why": "x"} and "expected array" in answer.problem
    assert len(model.asked[1]) == 3


@pytest.mark.parametrize("broken", [RuntimeError("no memory"), 3])
def test_a_model_that_fails_is_one_error(broken: object) -> None:
    with pytest.raises(LanguageModelError, match="Scripted.chat"):
        ask(Scripted(broken), [], SCHEMA)


def test_an_async_model_is_told_what_to_do() -> None:
    class Async:
        """Answers later."""

        async def chat(self, messages: Any, schema: Any = None) -> Any:
            return {}

    with pytest.raises(LanguageModelError, match="asyncio.run"):
        ask(Async(), [], SCHEMA)  # type: ignore[arg-type]


def test_an_answer_that_was_paid_for_is_kept_when_no_second_one_comes() -> None:
    class Once:
        """Answers once, and then no more."""

        def __init__(self) -> None:
            self.calls = 0

        def chat(self, messages: Any, schema: Any = None) -> Any:
            self.calls += 1
            if self.calls > 1:
                raise TimeoutError("gone")
            return Answer('{"why": "so"}', usage=Usage(1, 0, 7, 3))

    answer = ask(Once(), [], SCHEMA)
    assert answer.parsed == {"why": "so"} and answer.usage.tokens == 10
    assert "'links' is missing; asked once more: Once.chat failed" in answer.problem


def test_costs_add_up() -> None:
    usage = Usage(1, 0, 1000, 500) + Usage(2, 1, 3000, 500, estimated=True)
    assert usage == Usage(3, 1, 4000, 1000, True) and usage.tokens == 5000
    assert usage.cost(prompt_price=1.0, completion_price=10.0) == pytest.approx(0.014)
