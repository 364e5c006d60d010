"""The memory as tools that a model calls: what they do, and their JSON schema for OpenAI's API.

`OPENAI_TOOLS` goes into the ``tools`` of a chat request, `answer_tool_calls` makes the messages
that answer what the model called. Nothing beside rsm_fast is needed. Every output is capped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rsm_fast.errors import InvalidInputError, RSMError

if TYPE_CHECKING:
    from rsm_fast.memory import Memory

__all__ = [
    "MAX_BUDGET",
    "MAX_HITS",
    "MAX_HIT_CHARS",
    "MAX_PACK_CHARS",
    "MAX_REASON_CHARS",
    "MAX_TEXT_CHARS",
    "OPENAI_TOOLS",
    "answer_tool_calls",
    "call_tool",
    "forget",
    "reason",
    "recall",
    "remember",
    "search",
    "stats",
]

MAX_BUDGET: Final = 8000
MAX_HITS: Final = 20
MAX_HIT_CHARS: Final = 400
MAX_TEXT_CHARS: Final = 200_000
MAX_PACK_CHARS: Final = 100_000
MAX_REASON_CHARS: Final = 2_000

_NOTHING: Final = "nothing found"


# --- what the tools do -----------------------------------------------------------------------


def remember(
    memory: Memory,
    text: str,
    *,
    role: str = "user",
    session: str | None = None,
    timestamp: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """Store one turn."""
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidInputError(
            f"text: expected at most {MAX_TEXT_CHARS:,} characters, got {len(text):,}"
        )
    turn_id = memory.add(text, role=role, session=session, timestamp=timestamp, metadata=metadata)
    return f"remembered as {turn_id}"


def recall(
    memory: Memory, query: str, *, budget: int = 2000, where: Mapping[str, Any] | None = None
) -> str:
    """The pack for a question, in at most `MAX_BUDGET` tokens and `MAX_PACK_CHARS`.

    What a tokenizer takes for one unknown word, such as a file in base64, may be of any length.
    """
    _check_at_most("budget", budget, MAX_BUDGET)
    text = memory.pack(query, budget=budget, where=where).text
    return _cut(text, MAX_PACK_CHARS) or _NOTHING


def search(
    memory: Memory, query: str, *, k: int = 5, where: Mapping[str, Any] | None = None
) -> str:
    """At most `MAX_HITS` hits, each a line of JSON with its text cut to `MAX_HIT_CHARS`."""
    _check_at_most("k", k, MAX_HITS)
    lines = [
        json.dumps(
            {
                "ids": list(hit.turn_ids),
                "time": hit.timestamp,
                "role": _cut(hit.role),
                "session": None if hit.session is None else _cut(hit.session),
                "text": _cut(hit.text),
            },
            ensure_ascii=False,
        )
        for hit in memory.search(query, k=k, where=where)
    ]
    return "\n".join(lines) or _NOTHING


def forget(
    memory: Memory,
    *,
    ids: Sequence[str] | None = None,
    older_than: str | None = None,
    where: Mapping[str, Any] | None = None,
) -> str:
    """Delete turns by ids, or by age and filter."""
    if bool(ids) == bool(older_than or where):
        raise InvalidInputError("forget: give either ids, or older_than and/or where")
    if ids:
        count = memory.delete(ids)
    else:
        count = memory.forget(older_than=older_than or None, where=where or None)
    return f"{count} entries deleted"


def stats(memory: Memory) -> str:
    """What the memory holds, as JSON."""
    found = memory.stats()
    names = ("namespace", "turns", "chunks", "atoms", "largest_atom_share", "warnings")
    return json.dumps({name: getattr(found, name) for name in names}, ensure_ascii=False)


def _check_at_most(name: str, value: int, most: int) -> None:
    if isinstance(value, int) and value > most:
        raise InvalidInputError(f"{name}: expected at most {most}, got {value}")


def _cut(text: str, most: int = MAX_HIT_CHARS) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def reason(error: RSMError) -> str:
    """What an error says, for a model to read: it may quote what it was given at length."""
    return _cut(str(error), MAX_REASON_CHARS)


# --- the same for OpenAI's API ---------------------------------------------------------------

_WHERE: Final = {
    "type": "object",
    "description": "Filter by role, session, timestamp, metadata; list: any of; "
    '{"gte": a, "lt": b}: range',
}
_TEXT: Final = {"type": "string"}


def _tool(
    name: str, description: str, properties: Mapping[str, Any], *required: str
) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": dict(properties),
                "required": list(required),
                "additionalProperties": False,
            },
        },
    }


OPENAI_TOOLS: Final[list[dict[str, Any]]] = [
    _tool(
        "remember",
        "Store a message, fact or observation for later conversations.",
        {
            "text": {**_TEXT, "description": "Kept word by word"},
            "role": {**_TEXT, "description": "Who said it"},
            "session": {**_TEXT, "description": "Conversation it belongs to"},
            "timestamp": {**_TEXT, "description": "ISO 8601; default: now"},
            "metadata": {"type": "object"},
        },
        "text",
    ),
    _tool(
        "recall",
        "Get what the memory holds about a question, as text with dates, within a budget.",
        {
            "query": {**_TEXT, "description": "Question or topic"},
            "budget": {
                "type": "integer",
                "description": "Most tokens (default 2000)",
                "minimum": 0,
                "maximum": MAX_BUDGET,
            },
            "where": _WHERE,
        },
        "query",
    ),
    _tool(
        "search",
        "List the best matching entries with their ids, one a line, as JSON.",
        {
            "query": {**_TEXT, "description": "Question or key words"},
            "k": {
                "type": "integer",
                "description": "How many (default 5)",
                "minimum": 1,
                "maximum": MAX_HITS,
            },
            "where": _WHERE,
        },
        "query",
    ),
    _tool(
        "forget",
        "Delete entries for good: by ids, or all that are old enough and match the filter.",
        {
            "ids": {"type": "array", "items": _TEXT, "description": "Ids that search showed"},
            "older_than": {**_TEXT, "description": "Age like 90d, 12h"},
            "where": _WHERE,
        },
    ),
    _tool("stats", "How much the memory holds, as JSON.", {}),
]
"""Tool definitions for ``chat.completions.create(tools=OPENAI_TOOLS)``."""

_FUNCTIONS: Final[dict[str, Callable[..., str]]] = {
    "remember": remember,
    "recall": recall,
    "search": search,
    "forget": forget,
    "stats": stats,
}
_PARAMETERS: Final = {
    tool["function"]["name"]: tool["function"]["parameters"] for tool in OPENAI_TOOLS
}
_JSON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "object": (dict,),
    "array": (list,),
}


def call_tool(memory: Memory, name: str, arguments: str | Mapping[str, Any]) -> str:
    """Run the tool that a model called.

    Parameters
    ----------
    memory : Memory
    name : str
        Name of the tool.
    arguments : str or mapping
        As the model gave them: JSON text, or parsed.

    Raises
    ------
    InvalidInputError
        If there is no such tool, or the arguments do not fit its schema.
    RSMError
        If the memory refuses them.
    """
    if name not in _FUNCTIONS:
        raise InvalidInputError(f"tool: expected one of {sorted(_FUNCTIONS)}, got {name!r}")
    given = _checked_arguments(name, arguments)
    return _FUNCTIONS[name](memory, **given)


def answer_tool_calls(memory: Memory, tool_calls: Iterable[Any] | None) -> list[dict[str, Any]]:
    """Messages that answer the tool calls of one chat completion.

    A call that cannot be served is answered with the reason, for the model to read.

    Parameters
    ----------
    memory : Memory
    tool_calls : iterable
        ``message.tool_calls`` of the `openai` client, or the same as dicts. Calls of tools that
        are not of the memory are left to the caller.
    """
    messages = []
    for call in tool_calls or ():
        plain = call if isinstance(call, Mapping) else call.model_dump()
        function = plain["function"]
        if function["name"] not in _FUNCTIONS:
            continue
        try:
            content = call_tool(memory, function["name"], function["arguments"])
        except RSMError as error:
            content = f"error: {reason(error)}"
        messages.append({"role": "tool", "tool_call_id": plain["id"], "content": content})
    return messages


def _checked_arguments(name: str, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise InvalidInputError(f"{name}: expected arguments as JSON, {error}") from error
    if not isinstance(arguments, Mapping):
        raise InvalidInputError(f"{name}: expected arguments as an object, got {arguments!r}")
    schema = _PARAMETERS[name]
    given = {key: value for key, value in arguments.items() if value is not None}
    for key in schema["required"]:
        if key not in given:
            raise InvalidInputError(f"{name}: expected the argument {key!r}, got {sorted(given)}")
    for key, value in given.items():
        wanted = schema["properties"].get(key)
        if wanted is None:
            raise InvalidInputError(
                f"{name}: expected arguments among {sorted(schema['properties'])}, got {key!r}"
            )
        if not isinstance(value, _JSON_TYPES[wanted["type"]]) or isinstance(value, bool):
            raise InvalidInputError(
                f"{name}: {key}: expected a JSON {wanted['type']}, got {value!r}"
            )
        if "minimum" in wanted and not wanted["minimum"] <= value <= wanted["maximum"]:
            raise InvalidInputError(
                f"{name}: {key}: expected {wanted['minimum']} to {wanted['maximum']}, got {value}"
            )
    return given
