"""Conversation files: formats, stable ids, and records that cannot be read."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsm_fast.cli.readers import Format, Malformed, Record, read_turns
from rsm_fast.types import Turn


def read(
    content: str | bytes, path: str = "chat.jsonl", *, format: Format = "auto", session: Any = None
) -> list[Record | Malformed]:
    raw = content.encode() if isinstance(content, str) else content
    return list(read_turns(path, format=format, session=session, stream=io.BytesIO(raw)))


def turns(content: str | bytes, path: str = "chat.jsonl", **options: Any) -> list[Turn]:
    found = read(content, path, **options)
    bad = [item for item in found if isinstance(item, Malformed)]
    assert not bad
    return [item.turn for item in found if isinstance(item, Record)]


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


# --- JSON Lines ------------------------------------------------------------------------------


def test_jsonl_turn_with_every_field() -> None:
    record = {
        "id": "a1",
        "role": "assistant",
        "text": "Noted.",
        "timestamp": "2026-05-03T10:00:00+02:00",
        "session": "s1",
        "metadata": {"step": 3},
        "channel": "mail",
    }
    (turn,) = turns(lines(record))
    assert turn == Turn(
        "Noted.",
        role="assistant",
        timestamp="2026-05-03T10:00:00+02:00",
        session="s1",
        id="a1",
        metadata={"step": 3, "channel": "mail"},
    )


def test_jsonl_defaults() -> None:
    first, second = turns('{"content": "hello"}\n\n{"text": "there", "id": 7, "session": 3}')
    assert (first.text, first.role, first.session, first.timestamp) == (
        "hello",
        "user",
        "chat",
        None,
    )
    assert (second.id, second.session) == ("7", "3")
    assert turns('{"text": "x"}', session="mine")[0].session == "mine"
    assert turns('{"text": "x"}', "-", format="jsonl")[0].session is None


def test_jsonl_byte_order_mark_and_crlf() -> None:
    assert [t.text for t in turns(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"}\r\n')] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "field", "words"),
    [
        ('{"text": "x"', "", "not valid JSON"),
        ("[1]", "", "expected an object, got an array"),
        ('"x"', "", "expected an object, got a string"),
        ('{"role": "user"}', "text", "expected a key 'text'"),
        ('{"text": 5}', "text", "expected a string, got 5"),
        ('{"text": "  "}', "text", "white space"),
        ('{"text": "x", "role": []}', "role", "expected a string, got an array"),
        ('{"text": "x", "timestamp": "yesterday"}', "timestamp", "'yesterday'"),
        ('{"text": "x", "timestamp": true}', "timestamp", "True"),
        ('{"text": "x", "timestamp": []}', "timestamp", "list"),
        ('{"text": "x", "id": 1.5}', "id", "expected a string, got 1.5"),
        ('{"text": "x", "session": {}}', "session", "expected a string, got an object"),
        ('{"text": "x", "metadata": "m"}', "metadata", "mapping"),
        ('{"text": "x", "metadata": "m", "more": 1}', "metadata", "mapping"),
        ('{"content": [5]}', "content[0]", "expected an object"),
        ('{"content": null}', "text", "expected a string, got null"),
        ('{"content": []}', "content", "expected text or tool calls"),
        ('{"content": 5, "tool_calls": []}', "content", "expected text or an array, got 5"),
        ('{"content": null, "tool_calls": [{}]}', "tool_calls[0]", "name"),
    ],
)
def test_malformed_line_is_named_and_the_others_are_kept(line: str, field: str, words: str) -> None:
    before, bad, after = read(f'{{"text": "before"}}\n{line}\n{{"text": "after"}}\n')
    assert isinstance(before, Record) and isinstance(after, Record)
    assert isinstance(bad, Malformed)
    assert (bad.file, bad.line, bad.field) == ("chat.jsonl", 2, field)
    assert words in bad.reason
    assert str(bad).startswith("chat.jsonl:2: ")


def test_line_that_is_not_utf8() -> None:
    good, bad = read(b'{"text": "a"}\n{"text": "\xff"}\n')
    assert isinstance(good, Record)
    assert isinstance(bad, Malformed) and "expected UTF-8, got byte 0xff" in bad.reason


def test_deeply_nested_line() -> None:
    (bad,) = read("[" * 200_000)
    assert isinstance(bad, Malformed) and bad.line == 1


def test_position_and_line_of_each_record() -> None:
    content = '{"text": "a"}\n\n{"text": "b"}'
    found = [item for item in read(content) if isinstance(item, Record)]
    assert [(item.line, item.consumed) for item in found] == [(1, 14), (3, len(content))]


def test_lines_longer_than_the_first_block() -> None:
    texts = ["x" * 100_000, "y" * 70_000, "z"]
    assert [t.text for t in turns(lines(*({"text": text} for text in texts)))] == texts


# --- ids -------------------------------------------------------------------------------------


def test_second_reading_gives_the_same_ids_and_a_longer_file_keeps_them() -> None:
    content = lines({"text": "ok"}, {"text": "ok"}, {"text": "bye"})
    ids = [turn.id for turn in turns(content)]
    assert len(set(ids)) == 3
    assert [turn.id for turn in turns(content)] == ids
    assert [turn.id for turn in turns(content + lines({"text": "ok"}))][:3] == ids
    assert [turn.id for turn in turns(content, "folder/chat.jsonl")] == ids


def test_files_that_differ_from_the_start_share_no_id() -> None:
    a = turns(lines({"text": "hi, it is Monday"}, {"text": "ok"}))
    b = turns(lines({"text": "hi, it is Tuesday"}, {"text": "ok"}))
    assert not {turn.id for turn in a} & {turn.id for turn in b}


@given(st.lists(st.text(min_size=1).filter(str.strip), max_size=20))
def test_ids_are_unique_in_a_file(texts: list[str]) -> None:
    found = turns(lines(*({"text": text} for text in texts)))
    assert [turn.text for turn in found] == texts
    assert len({turn.id for turn in found}) == len(texts)


# --- OpenAI chat messages --------------------------------------------------------------------

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "data:"}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("document", [MESSAGES, {"model": "m", "messages": MESSAGES}])
def test_openai_messages(document: Any, indent: int | None) -> None:
    found = turns(json.dumps(document, indent=indent), "chat.json")
    assert [(turn.role, turn.text) for turn in found] == [
        ("system", "Be brief."),
        ("user", "What is this?\n[image_url]"),
        ("assistant", 'look({"n": 1})'),
        ("tool", "a cat"),
    ]
    assert {turn.session for turn in found} == {"chat"}
    assert found[3].metadata == {"tool_call_id": "c1"}


def test_openai_message_that_is_malformed_is_named_by_line_and_field() -> None:
    content = '{\n"messages": [\n{"role": "user", "content": "a"},\n{"role": "user"},\n7]}'
    good, no_content, number = read(content, "chat.json")
    assert isinstance(good, Record) and good.line == 3
    assert isinstance(no_content, Malformed)
    assert (no_content.line, no_content.field) == (4, "messages[1].text")
    assert isinstance(number, Malformed)
    assert (number.line, number.field) == (5, "messages[2]")


def test_openai_document_without_messages() -> None:
    (bad,) = read('{\n"title": "x"\n}', "chat.json")
    assert isinstance(bad, Malformed) and "messages" in bad.reason
    (broken,) = read('{"messages": [', "chat.json")
    assert isinstance(broken, Malformed) and "not valid JSON" in broken.reason


def test_jsonl_of_conversations() -> None:
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    found = turns(lines(chat, chat), "train.jsonl")
    assert [turn.session for turn in found] == ["train-1", "train-1", "train-2", "train-2"]
    assert len({turn.id for turn in found}) == 4


@pytest.mark.parametrize(
    ("content", "path", "count"),
    [
        ('[{"role": "user", "content": "a"}]', "-", 1),
        ('{"messages": [{"role": "user", "content": "a"}]}', "-", 1),
        ('{"text": "a"}\n{"text": "b"}\n', "-", 2),
        ('{"text": "a"}\n{"text": "b"}\n', "chat.json", 2),
        ("[]", "chat.json", 0),
        ("a\n\nb", "notes.txt", 2),
        ("[note] a\n\nb", "-", 2),
        ("", "chat.jsonl", 0),
        ("", "notes.txt", 0),
    ],
)
def test_auto_format(content: str, path: str, count: int) -> None:
    assert len(turns(content, path)) == count


# --- plain text ------------------------------------------------------------------------------


def test_paragraphs() -> None:
    content = "First paragraph,\nsecond line.\r\n\r\n\n  Second: paragraph.\n\nThird."
    found = [item for item in read(content, "notes.txt") if isinstance(item, Record)]
    assert [item.turn.text for item in found] == [
        "First paragraph,\nsecond line.",
        "Second: paragraph.",
        "Third.",
    ]
    assert [item.line for item in found] == [1, 5, 7]
    assert {(item.turn.role, item.turn.session) for item in found} == {("user", "notes")}


def test_dialogue() -> None:
    content = (
        "User: What about the boat?\nNote: this line belongs to the user.\n\nAnd this one.\n"
        "Assistant: It leaves at 20:30.\nUser: Thanks.\n"
    )
    assert [(t.role, t.text) for t in turns(content, "chat.txt")] == [
        ("user", "What about the boat?\nNote: this line belongs to the user.\n\nAnd this one."),
        ("assistant", "It leaves at 20:30."),
        ("user", "Thanks."),
    ]


def test_dialogue_of_other_names_with_times() -> None:
    content = "[2026-01-12 19:04] The baker: Bread?\n[2026-01-12T19:05:00Z] Guest: Please.\n"
    assert [(t.role, t.text, t.timestamp) for t in turns(content, "chat.txt")] == [
        ("The baker", "Bread?", "2026-01-12 19:04"),
        ("Guest", "Please.", "2026-01-12T19:05:00Z"),
    ]


def test_text_with_a_colon_is_no_dialogue() -> None:
    content = "Shopping: milk, eggs.\n\nThe rent is due on Friday.\n"
    assert len(turns(content, "notes.txt")) == 2
    assert {turn.role for turn in turns(content, "notes.txt")} == {"user"}


def test_text_that_is_not_utf8_is_named_by_line() -> None:
    (bad,) = read(b"fine\n\nbroken \xff\n", "notes.txt")
    assert isinstance(bad, Malformed) and bad.line == 3


@given(st.binary(max_size=300), st.sampled_from(["a.jsonl", "a.json", "a.txt", "-"]))
def test_any_bytes_give_records_or_reasons(content: bytes, path: str) -> None:
    for item in read(content, path):
        if isinstance(item, Record):
            assert item.turn.text.strip() and item.turn.id and 0 < item.consumed <= len(content)
        else:
            assert item.reason and item.line >= 1


@given(st.text(max_size=300))
def test_text_loses_no_word(text: str) -> None:
    content = text.replace("\r", "")
    found = turns(content.encode("utf-8", "replace"), "notes.txt")
    kept = " ".join(turn.text for turn in found).split()
    names = {turn.role for turn in found}
    if names <= {"user"}:
        assert kept == content.encode("utf-8", "replace").decode().split()
