"""What the model is asked about notes, and what of its answers can be used.

Whatever a model answers, only strings of bounded length under ids that were given to it get
past this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from rsm_fast.errors import LanguageModelError
from rsm_fast.instants import Instant
from rsm_fast.llm import Answer, LanguageModel, Schema, Usage, ask
from rsm_fast.store import TurnRecord
from rsm_fast.store.notes import Description

__all__ = [
    "PROMPTS_VERSION",
    "Connected",
    "Described",
    "Neighbour",
    "connect",
    "connect_messages",
    "describe",
    "describe_messages",
]

PROMPTS_VERSION: Final = "1"
"""Version of the prompt files; kept with every note that was made by them."""

_TEXT_CHARS: Final = 6000  # of the note that is asked about
_NEIGHBOUR_CHARS: Final = 800  # of each of its neighbours
_WORDS: Final = 12  # keywords, or tags, that are kept
_WORD_CHARS: Final = 80
_CONTEXT_CHARS: Final = 600

_STRINGS: Final = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
_DESCRIPTION: Final = {
    "keywords": {**_STRINGS, "maxItems": _WORDS},
    "tags": {**_STRINGS, "maxItems": _WORDS},
    "context": {"type": "string", "minLength": 1},
}


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A note that a new one is held against."""

    turn: TurnRecord
    description: Description


@dataclass(frozen=True, slots=True)
class Described:
    """What the model says of one turn; ``problem`` tells what is missing."""

    description: Description
    problem: str
    model: str
    usage: Usage
    unreachable: bool = False


@dataclass(frozen=True, slots=True)
class Connected:
    """Which neighbours (by turn pk) are linked, and which descriptions are rewritten."""

    links: tuple[int, ...]
    rewrites: Mapping[int, Description]
    problem: str
    usage: Usage
    unreachable: bool = False


# -- construction -----------------------------------------------------------------------------


def describe_messages(turn: TurnRecord) -> list[dict[str, str]]:
    """The question for a turn's description."""
    return _messages(
        "describe",
        {
            "speaker": turn.role,
            "time": _time(turn),
            "text": _clipped(turn.text, _TEXT_CHARS),
        },
    )


def describe(model: LanguageModel, turn: TurnRecord, *, repairs: int) -> Described:
    """Have a turn described.

    Never raises for anything that a model does: what cannot be used is a ``problem``.
    """
    schema = {"type": "object", "properties": _DESCRIPTION, "required": list(_DESCRIPTION)}
    try:
        answer = ask(model, describe_messages(turn), schema, repairs=repairs)
    except LanguageModelError as error:
        return Described(Description(), str(error), "", Usage(), unreachable=True)
    description = _description(_mapping(answer), Description())
    missing = [name for name, value in description._asdict().items() if not value]
    problem = ""
    if missing:
        problem = f"the model gave no {', no '.join(missing)} ({answer.problem or 'empty'})"
    return Described(description, problem, answer.model, answer.usage)


# -- links and evolution ----------------------------------------------------------------------


def connect_messages(
    new: Neighbour, neighbours: Sequence[Neighbour], *, evolution: bool
) -> list[dict[str, str]]:
    """The question for links, and with ``evolution`` for rewritten descriptions."""
    return _messages(
        "connect" if evolution else "link",
        {
            "new": _shown(new, _TEXT_CHARS),
            "neighbours": [_shown(neighbour, _NEIGHBOUR_CHARS) for neighbour in neighbours],
        },
    )


def connect(
    model: LanguageModel,
    new: Neighbour,
    neighbours: Sequence[Neighbour],
    *,
    evolution: bool,
    repairs: int,
) -> Connected:
    """Have a new note held against its neighbours, which are addressed by their ids."""
    ids = {neighbour.turn.id: neighbour for neighbour in neighbours}
    known = {"type": "string", "enum": list(ids)}
    most = {"maxItems": len(ids)}  # a weak model under a grammar would go on and on
    properties: dict[str, Any] = {"links": {"type": "array", "items": known, **most}}
    if evolution:
        rewrite = {"type": "object", "properties": {"id": known, **_DESCRIPTION}}
        properties["rewrites"] = {
            "type": "array",
            "items": {**rewrite, "required": ["id", *_DESCRIPTION]},
            **most,
        }
    schema: Schema = {"type": "object", "properties": properties, "required": list(properties)}
    messages = connect_messages(new, neighbours, evolution=evolution)
    try:
        answer = ask(model, messages, schema, repairs=repairs)
    except LanguageModelError as error:
        return Connected((), {}, str(error), Usage(), unreachable=True)
    given = _mapping(answer)
    problems = [name for name in properties if not isinstance(given.get(name), list)]
    links = {
        ids[name].turn.pk: None for entry in _list(given, "links") if (name := _id(entry)) in ids
    }
    rewrites: dict[int, Description] = {}
    for entry in _list(given, "rewrites") if evolution else ():
        if isinstance(entry, Mapping) and (name := _id(entry)) in ids:
            old = ids[name].description
            rewritten = _description(entry, old)
            if rewritten != old:
                rewrites[ids[name].turn.pk] = rewritten
    problem = ""
    if problems:
        problem = f"the model gave no {' and no '.join(problems)} ({answer.problem})"
    return Connected(tuple(links), rewrites, problem, answer.usage)


# -- parts ------------------------------------------------------------------------------------


def _messages(task: str, document: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": _prompt(task)},
        {"role": "user", "content": json.dumps(document, ensure_ascii=False)},
    ]


@lru_cache(maxsize=8)
def _prompt(task: str) -> str:
    folder = resources.files("rsm_fast.notes") / "prompts"
    return (folder / f"{task}.{PROMPTS_VERSION}.md").read_text("utf-8").strip()


def _shown(note: Neighbour, most: int) -> dict[str, Any]:
    return {
        "id": note.turn.id,
        "speaker": note.turn.role,
        "time": _time(note.turn),
        "text": _clipped(note.turn.text, most),
        "context": note.description.context,
        "keywords": note.description.keywords,
        "tags": note.description.tags,
    }


def _time(turn: TurnRecord) -> str:
    return Instant(turn.micros, turn.offset_minutes).isoformat()


def _clipped(text: str, most: int) -> str:
    """A text without its middle, where it is too long to be paid for."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]} [...] {text[-(most // 3) :]}"


def _mapping(answer: Answer) -> Mapping[str, Any]:
    return answer.parsed if isinstance(answer.parsed, Mapping) else {}


def _list(given: Mapping[str, Any], name: str) -> list[Any]:
    value = given.get(name)
    return value if isinstance(value, list) else []


def _id(entry: object) -> str:
    """An id, however the model wrapped it."""
    if isinstance(entry, Mapping):
        entry = entry.get("id")
    return str(entry) if isinstance(entry, str | int) else ""


def _description(given: Mapping[str, Any], old: Description) -> Description:
    """What can be used of a description; the rest stays as it was."""
    return Description(
        _words(given.get("keywords")) or old.keywords,
        _words(given.get("tags")) or old.tags,
        _line(given.get("context"), _CONTEXT_CHARS) or old.context,
    )


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list):
        return ()
    found: dict[str, str] = {}
    for item in value:
        if word := _line(item, _WORD_CHARS):
            found.setdefault(word.casefold(), word)
    return tuple(found.values())[:_WORDS]


def _line(value: object, most: int) -> str:
    """A string as one line, without what no text may hold."""
    if not isinstance(value, str):
        return ""
    text = "".join(" " if char < " " or "\ud800" <= char <= "\udfff" else char for char in value)
    return " ".join(text.split())[:most].rstrip()
