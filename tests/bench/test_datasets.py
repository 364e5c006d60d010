from __future__ import annotations

import gzip
import json

import pytest

from bench.datasets import DataError, read_dataset


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = value if isinstance(value, str) else json.dumps(value)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def said(text, speaker="User", **more):
    return {"speaker": speaker, "content": text, **more}


def realmem():
    return {
        "_metadata": {},
        "dialogues": [
            {
                "session_identifier": "one",
                "session_uuid": "s1",
                "current_time": "2026-01-04 (Sunday)",
                "dialogue_turns": [said("I moved to Lisbon."), said("How nice!", "Assistant")],
                "extracted_memory": [
                    {
                        "content": "User lives in Lisbon",
                        "source_turn": 1,
                        "source_content_snapshot": "I moved to Lisbon.",
                    }
                ],
            },
            {
                "session_identifier": "two",
                "session_uuid": "s2",
                "current_time": "2026-01-05 (Monday)",
                "dialogue_turns": [
                    said("Where do I live?", is_query=True, category_name="Static"),
                    said(
                        "In Lisbon.",
                        "Assistant",
                        memory_used=[
                            {"session_uuid": "s1", "content": "User lives in Lisbon"},
                            {"session_uuid": "s2", "content": "User asks"},
                        ],
                    ),
                ],
                "extracted_memory": [],
            },
        ],
    }


def test_realmem_asks_about_earlier_sessions_only(tmp_path):
    write(tmp_path / "Ada_Smith.json.gz", realmem())
    dataset = read_dataset("realmem", tmp_path)
    (stream,) = dataset.streams
    (question,) = stream.questions
    assert [turn.id for turn in stream.turns] == ["s1:0", "s1:1", "s2:0", "s2:1"]
    assert stream.turns[0].timestamp == "2026-01-04"
    assert question.visible == 2
    assert [(fact.session, fact.turn) for fact in question.facts] == [("s1", "s1:0")]
    assert question.evidence == ("s1:0",)
    assert question.category == "Static"
    assert not dataset.problems


def test_malformed_realmem_records_are_named(tmp_path):
    document = realmem()
    document["dialogues"][0]["dialogue_turns"][1]["content"] = None
    document["dialogues"][0]["dialogue_turns"].append(said("  "))
    document["dialogues"].append({"session_identifier": "three"})
    write(tmp_path / "a.json", document)
    write(tmp_path / "b.json", "{not json")
    problems = [str(problem) for problem in read_dataset("realmem", tmp_path).problems]
    assert problems[0] == (
        "a.json: dialogues[0].dialogue_turns[1].content: expected str, got NoneType None"
    )
    assert problems[1] == "a.json: dialogues[0].dialogue_turns[2].content: is empty"
    assert problems[2] == "a.json: dialogues[2].session_uuid: is missing"
    assert problems[-1].startswith("b.json: file: not JSON")


def locomo(**more):
    return {
        "speaker_a": "Ann",
        "speaker_b": "Bo",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Ann", "dia_id": "D1:1", "text": "I like tea."},
            {"speaker": "Bo", "dia_id": "D1:2", "text": "Look!", "blip_caption": "a red car"},
        ],
        "session_2_date_time": "9:00 am on 9 May, 2023",
        "qa": [
            {"question": "Tea?", "answer": 1, "evidence": ["D1:1; D:1:2"], "category": 4},
            {"question": "Trap?", "evidence": ["D1:1"], "category": 5},
        ],
        **more,
    }


def test_locomo_evidence_and_time(tmp_path):
    write(tmp_path / "26.json", locomo())
    dataset = read_dataset("locomo", tmp_path / "26.json")
    (stream,) = dataset.streams
    (question,) = stream.questions
    assert question.evidence == ("D1:1", "D1:2")
    assert question.category == "single-hop"
    assert stream.turns[1].text == "Look! [shares a photo: a red car]"
    assert stream.turns[0].timestamp.isoformat() == "2023-05-08T13:56:00"
    assert not dataset.problems


def test_malformed_locomo_records_are_named(tmp_path):
    questions = [
        {"question": "None?", "evidence": [], "category": 1},
        {"question": "Gone?", "evidence": ["D9:9", "D1:1"], "category": 2},
        {"evidence": ["D1:1"], "category": 2},
    ]
    write(tmp_path / "x.json", locomo(qa=questions, session_1_date_time="yesterday"))
    dataset = read_dataset("locomo", tmp_path)
    assert [question.evidence for question in dataset.streams[0].questions] == [("D1:1",)]
    said = "\n".join(map(str, dataset.problems))
    assert "session_1_date_time: expected '1:56 pm on 8 May, 2023', got 'yesterday'" in said
    assert "qa[0].evidence: is empty" in said
    assert "qa[1].evidence: names no turn: 'D9:9'" in said
    assert "qa[2].question: is missing" in said


def episode(**more):
    pair = {"question": "What at step 1?", "answer": "left", "sub_type": "A1", "type": "A"}
    return {
        "episode_id": "e1",
        "domain": "babyai",
        "bin": "8K",
        "trajectory": [
            {"turn_idx": number, "action": "left", "observation": f"wall {number}"}
            for number in range(3)
        ],
        "qa_pairs": [{**pair, "evidence_turns": [1], "label_ok": True, "aggregate": False}],
        "qa_pairs_spread": [
            {**pair, "evidence_turns": [0, 7], "label_ok": False},
            {**pair, "evidence_turns": None},
        ],
        **more,
    }


def test_ama_steps_and_tags(tmp_path):
    lines = [json.dumps(episode()), "", "[1]", "{", json.dumps({"episode_id": "e2"})]
    write(tmp_path / "dev.jsonl.gz", "\n".join(lines))
    dataset = read_dataset("ama", tmp_path)
    (stream,) = dataset.streams
    first, second = stream.questions
    assert stream.turns[2].text == "Action: left\nObservation: wall 2"
    assert stream.turns[2].metadata == {"step": 2}
    assert first.tags == ("official", "label_ok")
    assert (second.evidence, second.tags) == (("0",), ("spread",))
    assert stream.group == "babyai/8K"
    assert [(p.line, p.field) for p in dataset.problems] == [
        (1, "qa_pairs_spread[0].evidence_turns"),
        (3, "record"),
        (4, "record"),
        (5, "trajectory"),
    ]


def test_own_jsonl(tmp_path):
    turns = [{"content": "hello", "role": "user", "id": "a"}, {"text": ""}, {"text": "bye"}]
    write(tmp_path / "talk.jsonl", "\n".join(map(json.dumps, turns)))
    asked = [
        {"question": "Hello?", "evidence": ["a", "zzz"]},
        {"question": "Bye?", "evidence": [3], "visible": 9},
        {"question": "Bye?", "evidence": [3], "category": "end", "answer": 5},
    ]
    write(tmp_path / "talk.questions.jsonl", "\n".join(map(json.dumps, asked)))
    dataset = read_dataset("jsonl", tmp_path)
    (stream,) = dataset.streams
    assert [turn.id for turn in stream.turns] == ["a", "3"]
    assert [question.evidence for question in stream.questions] == [("a",), ("3",)]
    assert stream.questions[1].answer == "5"
    assert [(p.file, p.line, p.field) for p in dataset.problems] == [
        ("talk.jsonl", 2, "text"),
        ("talk.questions.jsonl", 1, "evidence"),
        ("talk.questions.jsonl", 2, "visible"),
    ]


@pytest.mark.parametrize("kind", ["realmem", "locomo", "ama", "jsonl"])
def test_nothing_to_read_is_an_error(tmp_path, kind):
    with pytest.raises(DataError, match="expected a file or a folder"):
        read_dataset(kind, tmp_path)


def test_unknown_kind_and_broken_archive(tmp_path):
    with pytest.raises(DataError, match="expected one of"):
        read_dataset("other", tmp_path)
    (tmp_path / "x.json.gz").write_bytes(b"\x1f\x8b\x00")
    with pytest.raises(DataError, match="cannot be read"):
        read_dataset("realmem", tmp_path)


def test_the_real_files_are_read_whole(data_dir):
    sizes = {}
    for kind in ("realmem", "locomo", "ama"):
        dataset = read_dataset(kind, data_dir / kind)
        sizes[kind] = sum(len(stream.questions) for stream in dataset.streams)
        assert len(dataset.problems) < 20
        for stream in dataset.streams:
            ids = {turn.id for turn in stream.turns}
            assert len(ids) == len(stream.turns)
            assert all(set(question.evidence) <= ids for question in stream.questions)
    assert min(sizes.values()) > 300
