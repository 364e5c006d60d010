"""Conversation files to turns: JSONL turns, OpenAI chat messages, plain text.

A record that cannot be read becomes a `Malformed` that names file, line and field; the
others are kept. A turn that brings no id gets a stable one (see `TurnIds`), so reading the
same file again gives the same ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from rsm_fast.errors import InvalidInputError
from rsm_fast.instants import parse_instant
from rsm_fast.types import Turn, as_turn

__all__ = ["FORMATS", "Format", "Malformed", "Record", "TurnIds", "read_turns"]

Format = Literal["auto", "jsonl", "openai", "text"]
FORMATS: tuple[Format, ...] = ("auto", "jsonl", "openai", "text")

_SNIFF_BYTES = 65_536
_WELL_KNOWN_ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
}
# "Name: text", optionally behind "[2026-01-12 19:04]"; a name is a few words, no punctuation.
_SPEAKER = re.compile(
    r"(?:\[(?P<time>[^\]]{8,40})\]\s*)?(?P<name>[^\W\d_][\w '\-]{0,39}):[ \t]+(?P<text>\S.*)"
)
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n\s*")


@dataclass(frozen=True, slots=True)
class Record:
    """One turn, and where it stands: line number (from 1) and bytes of the file used so far."""

    turn: Turn
    line: int
    consumed: int


@dataclass(frozen=True, slots=True)
class Malformed:
    """One record that was left out, and why."""

    file: str
    line: int
    field: str
    reason: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place}: {self.field}: {self.reason}" if self.field else f"{place}: {self.reason}"


class _BadRecord(Exception):
    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field
        self.reason = reason


class TurnIds:
    """Ids for the turns of one file that bring none.

    Such an id is a hash over the turn and all turns before it in the file. So a second
    reading of the file gives the same ids, a file that grew keeps those it had, a sentence
    that is said twice gets two, and files that differ from the start never share one.
    """

    def __init__(self) -> None:
        self._chain = hashlib.sha256()

    def complete(self, turn: Turn) -> Turn:
        """The turn, with an id."""
        fields = [turn.id, turn.role, turn.session, str(turn.timestamp), turn.text]
        self._chain.update(
            json.dumps([*fields, turn.metadata], sort_keys=True, default=str).encode()
        )
        return turn if turn.id is not None else replace(turn, id=self._chain.hexdigest()[:16])


def read_turns(
    path: str, *, format: Format = "auto", session: str | None = None, stream: BinaryIO
) -> Iterator[Record | Malformed]:
    """Read the turns of one file, in its order.

    Parameters
    ----------
    path : str
        Name of the file, for messages, for the session and (its ending) for the format.
    format : {"auto", "jsonl", "openai", "text"}
        ``auto`` looks at the beginning of the content.
    session : str, optional
        Session of the turns that name none. Default: the file's name without its ending.
    stream : binary file
        The content.

    Yields
    ------
    Record or Malformed
        In the order of the file.
    """
    if session is None and path != "-":
        session = Path(path).stem
    name = "stdin" if path == "-" else path
    head = stream.read(_SNIFF_BYTES)
    chosen = _detect(head, path) if format == "auto" else format
    if chosen == "jsonl":
        found = _read_jsonl(_lines(head, stream), session)
    elif chosen == "openai":
        found = _read_json(head + stream.read(), session)
    else:
        found = _read_text(head + stream.read(), session)
    ids = TurnIds()
    for line, consumed, item in found:
        if isinstance(item, _BadRecord):
            yield Malformed(name, line, item.field, item.reason)
        else:
            yield Record(ids.complete(item), line, consumed)


_Found = Iterator[tuple[int, int, Turn | _BadRecord]]


def _detect(head: bytes, path: str) -> Format:
    """jsonl, openai or text, by the ending of the name, else by the first characters."""
    if path.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    if path.endswith((".txt", ".md")):
        return "text"
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"{"):
        first_line, _, rest = start.partition(b"\n")
        try:
            document = json.loads(first_line)
        except ValueError:
            return "openai"  # one object over several lines
        return "openai" if "messages" in document and not rest.strip() else "jsonl"
    if path.endswith(".json") or re.match(rb"\[\s*[{\]]", start):
        return "openai"
    return "text"


def _lines(head: bytes, stream: BinaryIO) -> Iterator[bytes]:
    *whole, rest = head.split(b"\n")
    yield from (line + b"\n" for line in whole)
    rest += stream.readline()
    if rest:
        yield rest
    yield from stream


class _LineNumbers:
    """Line numbers of rising positions in a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._line = 1

    def at(self, position: int) -> int:
        self._line += self._text.count("\n", self._position, position)
        self._position = position
        return self._line


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _BadRecord("", f"expected UTF-8, got byte 0x{raw[error.start]:02x}") from None


# --- JSON Lines ------------------------------------------------------------------------------


def _read_jsonl(lines: Iterable[bytes], session: str | None) -> _Found:
    consumed = 0
    for number, raw in enumerate(lines, 1):
        consumed += len(raw)
        try:
            text = _decode(raw).strip()
            if not text:
                continue
            value = _parse_json(text)
            if isinstance(value, Mapping) and isinstance(value.get("messages"), list):
                own = f"{session}-{number}" if session else str(number)
                for turn in _conversation(value, own):
                    yield number, consumed, turn
            else:
                yield number, consumed, _turn(value, session)
        except _BadRecord as error:
            yield number, consumed, error


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _BadRecord("", f"not valid JSON: {error}") from None
    except RecursionError:
        raise _BadRecord("", "JSON nested too deeply") from None


def _turn(value: Any, session: str | None) -> Turn:
    if not isinstance(value, Mapping):
        raise _BadRecord("", f"expected an object, got {_kind(value)}")
    if "text" not in value and ("tool_calls" in value or isinstance(value.get("content"), list)):
        return _message(value, session)
    try:
        turn = as_turn(value)
    except InvalidInputError as error:
        field = "metadata" if "expected metadata" in str(error) else "text"
        raise _BadRecord(field, str(error).removeprefix("turn: ")) from None
    return _checked(turn, session)


def _checked(turn: Turn, session: str | None) -> Turn:
    """The turn with its fields checked; numbers as id or session are taken as text."""
    if not isinstance(turn.text, str):
        raise _BadRecord("text", f"expected a string, got {_kind(turn.text)}")
    if not turn.text.strip():
        raise _BadRecord("text", "expected some text, got nothing but white space")
    if not isinstance(turn.role, str):
        raise _BadRecord("role", f"expected a string, got {_kind(turn.role)}")
    if turn.timestamp is not None:
        try:
            parse_instant(turn.timestamp)
        except InvalidInputError as error:
            raise _BadRecord("timestamp", str(error).removeprefix("timestamp: ")) from None
    if turn.metadata is not None and not isinstance(turn.metadata, Mapping):
        raise _BadRecord("metadata", f"expected a mapping, got {_kind(turn.metadata)}")
    own_session = _name("session", turn.session)
    return replace(
        turn,
        id=_name("id", turn.id),
        session=session if own_session is None else own_session,
    )


def _name(field: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise _BadRecord(field, f"expected a string, got {_kind(value)}")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", type(None): "null"}
    return names.get(type(value), f"{value!r}")


# --- OpenAI chat messages --------------------------------------------------------------------


def _read_json(raw: bytes, session: str | None) -> _Found:
    size = len(raw)
    try:
        document = _parse_json(_decode(raw))
        messages = document.get("messages") if isinstance(document, Mapping) else document
        if not isinstance(messages, list):
            raise _BadRecord(
                "messages", "expected a list of messages, or an object with 'messages'"
            )
    except _BadRecord as error:
        yield 1, size, error
        return
    lines = _LineNumbers(text := raw.decode("utf-8-sig"))
    for number, (start, message) in enumerate(zip(_starts(text, messages), messages, strict=True)):
        try:
            item: Turn | _BadRecord = _turn(message, session)
        except _BadRecord as error:
            item = _BadRecord(f"messages[{number}].{error.field}".rstrip("."), error.reason)
        yield lines.at(start), size * (number + 1) // len(messages), item


def _starts(text: str, messages: list[Any]) -> Iterator[int]:
    """Where each element of the list of messages begins in the text."""
    decoder = json.JSONDecoder()
    at = 0
    if text.lstrip()[:1] == "{":
        at = re.compile(r'"messages"\s*:\s*').search(text).end()  # type: ignore[union-attr]
    at = text.index("[", at) + 1
    space = re.compile(r"[\s,]*")
    for _ in messages:
        at = space.match(text, at).end()  # type: ignore[union-attr]
        yield at
        at = decoder.raw_decode(text, at)[1]


def _conversation(document: Mapping[str, Any], session: str | None) -> Iterator[Turn | _BadRecord]:
    for number, message in enumerate(document["messages"]):
        try:
            yield _turn(message, session)
        except _BadRecord as error:
            yield _BadRecord(f"messages[{number}].{error.field}".rstrip("."), error.reason)


def _message(value: Mapping[str, Any], session: str | None) -> Turn:
    """One message whose content is a list of parts, or that calls tools."""
    lines: list[str] = []
    content = value.get("content") or []
    if not isinstance(content, (str, list)):
        raise _BadRecord("content", f"expected text or an array, got {_kind(content)}")
    for position, part in enumerate([content] if isinstance(content, str) else content):
        lines.append(_part(part, f"content[{position}]"))
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list):
        raise _BadRecord("tool_calls", f"expected an array, got {_kind(calls)}")
    for position, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise _BadRecord(f"tool_calls[{position}]", "expected a function with a name")
        lines.append(f"{function['name']}({function.get('arguments', '')})")
    if not lines:
        raise _BadRecord("content", "expected text or tool calls, got neither")
    rest = {key: item for key, item in value.items() if key not in ("content", "tool_calls")}
    return _checked(as_turn({**rest, "text": "\n".join(lines)}), session)


def _part(part: Any, field: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise _BadRecord(field, f"expected an object with 'text', got {_kind(part)}")
    for key in ("text", "refusal"):
        if isinstance(part.get(key), str):
            return str(part[key])
    return f"[{part.get('type', 'part without text')}]"


# --- plain text ------------------------------------------------------------------------------


def _read_text(raw: bytes, session: str | None) -> _Found:
    try:
        text = _decode(raw).replace("\r\n", "\n")
    except _BadRecord as error:
        yield raw[: _bad_byte(raw)].count(b"\n") + 1, len(raw), error
        return
    names = _speakers(text)
    pieces = _dialogue(text, names) if names else _paragraphs(text)
    lines = _LineNumbers(text)
    for start, end, turn in pieces:
        yield lines.at(start), len(raw) * end // len(text), replace(turn, session=session)


def _bad_byte(raw: bytes) -> int:
    try:
        raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return error.start
    return len(raw)


def _speakers(text: str) -> set[str]:
    """Names that begin turns: well-known roles, and what stands before a colon at least twice.

    Empty unless the first line begins with one of them. Where every line has the form, every
    name counts.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    matches = [_SPEAKER.match(line) for line in lines]
    counts = Counter(match["name"] for match in matches if match)
    everywhere = all(matches)
    names = {
        name
        for name, count in counts.items()
        if everywhere or count >= 2 or name.lower() in _WELL_KNOWN_ROLES
    }
    first = matches[0] if matches else None
    return names if first and first["name"] in names else set()


def _dialogue(text: str, names: set[str]) -> Iterator[tuple[int, int, Turn]]:
    """A turn from each line that begins with a name to the next such line."""
    turn: Turn | None = None
    begin = at = 0
    for line in text.split("\n"):
        match = _SPEAKER.match(line)
        if match and match["name"] in names and (time := _time(match["time"])) is not False:
            if turn:
                yield begin, at, replace(turn, text=turn.text.rstrip())
            name = match["name"]
            role = _WELL_KNOWN_ROLES.get(name.lower(), name)
            turn, begin = Turn(match["text"], role=role, timestamp=time), at
        elif turn:
            turn = replace(turn, text=f"{turn.text}\n{line}")
        at += len(line) + 1
    if turn:
        yield begin, len(text), replace(turn, text=turn.text.rstrip())


def _time(value: str | None) -> str | None | Literal[False]:
    """The time in brackets; False if the brackets hold something else."""
    if value is None:
        return None
    try:
        parse_instant(value)
    except InvalidInputError:
        return False
    return value


def _paragraphs(text: str) -> Iterator[tuple[int, int, Turn]]:
    start = 0
    for end in [*(match.end() for match in _PARAGRAPH_END.finditer(text)), len(text)]:
        paragraph = text[start:end]
        if paragraph.strip():
            lead = len(paragraph) - len(paragraph.lstrip("\n"))
            yield start + lead, end, Turn(paragraph.strip("\n").rstrip())
        start = end
