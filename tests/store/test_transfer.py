"""Export, import and backup."""

from __future__ import annotations

import itertools
import json
import sqlite3
import stat
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsm_fast.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    RSMError,
    StoreError,
)
from rsm_fast.store import Store, read_sections


@pytest.fixture
def rich(store, namespace, new_turn, add_turns) -> Store:
    for key in ("b", "a"):
        ns = namespace(store, key, nested={"x": [1.5, None, "é"]})
        with store.write() as writer:
            keys = add_turns(
                writer,
                ns,
                new_turn("1", "Zoë\0 said: \u2028 \U0001f600", session="s", metadata='{"a": 0.1}'),
                new_turn("2", "b", micros=123_456_789, offset_minutes=-330, expires_at=7),
                new_turn("3", "c", time_given=False, role="tool"),
                new_turn("4", "d", micros=-1),
            )
            writer.supersede(ns, keys[0][0], keys[3][0])
            writer.delete_chunks(ns, [keys[2][1]])
            writer.delete_turns(ns, [keys[2][0]])
            writer.put_array(ns, "centre", np.arange(8, dtype=np.float32))
            writer.take_ids(ns, 41)
            writer.put_next_atom(ns, 3)
    return store


def copy(lines, **options) -> Store:
    target = Store.open(None)
    for section in read_sections(lines):
        target.restore(section, **options)
    return target


def test_the_round_trip_is_equal_byte_by_byte(rich):
    lines = list(rich.export())
    with copy(lines) as target:
        assert list(target.export()) == lines
        assert target.check() == []
        with target.read() as reader:
            record = reader.namespace("a")
            assert (record.next_auto, record.next_atom) == (42, 3)
            assert reader.tombstoned(record.id, ["3", "1"]) == {"3"}
            [turn] = [turn for turn in reader.all_turns(record.id) if turn.id == "1"]
            assert turn.superseded_by == reader.turn(record.id, "4").pk
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    b"".join(lines).decode("utf-8")


def test_one_namespace_under_another_name(rich):
    lines = list(rich.export(namespace="a"))
    with copy(lines, namespace="c") as target:
        again = list(target.export(namespace="c"))
        assert again[1:] == lines[1:]
        assert json.loads(again[0])["namespace"] == "c"
    with pytest.raises(NotFoundError, match="'z'"):
        list(rich.export(namespace="z"))


def test_without_vectors(rich):
    lines = list(rich.export(vectors=False))
    assert b'"vector":' not in b"".join(lines)
    with copy(lines) as target, target.read() as reader:
        ns = reader.namespace("a").id
        assert len(reader.open_chunks(ns)) == reader.counts(ns)[1] == 3
        assert list(target.export(vectors=False)) == lines


def test_f40_an_existing_namespace_is_left_alone(rich):
    lines = list(rich.export())
    for section in read_sections(lines):
        with pytest.raises(ConflictError, match="exists"):
            rich.restore(section)
    assert list(rich.export()) == lines
    ids = [[line["id"] for _, line in section.turns()] for section in read_sections(lines)]
    assert ids == [["1", "2", "4"]] * 2


def test_export_is_one_snapshot(path, namespace, new_turn, add_turns):
    with Store.open(path) as store:
        ns = namespace(store)
        with store.write() as writer:
            add_turns(writer, ns, *(new_turn(f"{n}") for n in range(50)))
        lines = store.export()
        first = next(lines)
        with store.write() as writer:
            add_turns(writer, ns, new_turn("later"))
        assert b"later" not in b"".join(itertools.chain([first], lines))


def test_export_in_ram_can_be_read_in_any_thread(namespace):
    with Store.open(None) as store:
        namespace(store)
        namespace(store, "b")
        lines = store.export()
        found = [next(lines)]
        thread = threading.Thread(target=lambda: found.extend(lines))
        thread.start()
        thread.join()
        assert len(found) == 2


def test_a_bad_line_is_named_and_nothing_is_kept(rich):
    lines = list(rich.export(namespace="a"))
    for number in range(len(lines)):
        for broken in (b"{", b"[]", b'{"kind": "what"}', b'{"kind": "turn"}', b"\xff", b"[" * 5000):
            damaged = [*lines[:number], broken, *lines[number + 1 :]]
            with Store.open(None) as target:
                with pytest.raises(InvalidInputError, match=f"line {number + 1}"):
                    for section in read_sections(damaged):
                        target.restore(section)
                with target.read() as reader:
                    assert reader.namespaces() == []


@pytest.mark.parametrize(
    ("kind", "field", "values"),
    [
        ("namespace", "format", [0, 2, None]),
        ("namespace", "namespace", ["", "..", 5]),
        ("namespace", "settings", [None, []]),
        ("namespace", "salt", ["", "zz", "00" * 15]),
        ("namespace", "next_auto", [0, "1", True, 2**70]),
        ("array", "data", ["", "!", "AAAA", 5]),
        ("array", "dtype", ["O", "U5", "|V8", "", "nonsense", 5]),
        ("array", "shape", [[-1], [9], 8, ["x"], [2**62, 2**62]]),
        ("turn", "id", [None, 5, "\ud800"]),
        ("turn", "text", [None, "\ud800"]),
        ("turn", "timestamp", [None, "now", 5]),
        ("turn", "metadata", [[], "x", {"a": "admin\0x"}, {"\0": 1}]),
        ("turn", "time_given", [1, None]),
        ("turn", "expires_at", ["x", 2**64]),
        ("turn", "superseded_by", ["none", 5]),
        ("chunk", "spans", [None, [], [["1", 3, 1]], [["9", 0, 1]], [[1, 0, 1]], [["1", -1, 1]]]),
        ("chunk", "vector", ["AAAA", "!", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="]),
        ("chunk", "tokens", [-1, 2**40, None, 1.5]),
        ("chunk", "atom", [-1, "x"]),
        ("chunk", "terms", [None, "%"]),
        ("tombstones", "digests", [None, "AAAA", "%"]),
    ],
)
def test_wrong_values_are_refused(rich, kind, field, values):
    lines = [json.loads(line) for line in rich.export(namespace="a")]
    at = next(n for n, line in enumerate(lines) if line["kind"] == kind)
    for value in values:
        damaged = [*lines[:at], {**lines[at], field: value}, *lines[at + 1 :]]
        with Store.open(None) as target:
            with pytest.raises(InvalidInputError):
                for section in read_sections(map(json.dumps, damaged)):
                    target.restore(section)
            with target.read() as reader:
                assert reader.namespaces() == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
FIELDS = st.sampled_from(
    ["id", "role", "text", "timestamp", "time_given", "session", "metadata", "expires_at", "spans",
     "superseded_by", "micros", "offset_minutes", "tokens", "line_tokens", "terms", "analyser",
     "text_hash", "step", "truncated", "atom", "vector", "name", "dtype", "shape", "data",
     "digests", "namespace", "settings", "salt", "next_auto", "next_atom", "format", "kind"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_change_of_an_export_is_imported_or_refused(data):
    with Store.open(None) as store:
        with store.write() as writer:
            ns = writer.create_namespace("a", {}).id
            writer.put_array(ns, "x", np.zeros(2))
        lines = [json.loads(line) for line in store.export()]
    lines.append(
        {"kind": "turn", "id": "1", "role": "user", "text": "x", "timestamp": "2026-01-01",
         "time_given": True, "session": None, "metadata": {"a": 1}}
    )  # fmt: skip
    lines.append(
        {"kind": "chunk", "id": "1#0", "spans": [["1", 0, 1]], "session": None, "micros": 0,
         "offset_minutes": 0, "tokens": 1, "line_tokens": "", "terms": "", "analyser": 1,
         "text_hash": 0, "step": None, "truncated": False, "atom": None}
    )  # fmt: skip
    lines.append({"kind": "tombstones", "digests": "AAAAAAAAAA=="})
    for _ in range(data.draw(st.integers(1, 3))):
        line = data.draw(st.sampled_from(lines))
        line[data.draw(FIELDS)] = data.draw(JSON)
    with Store.open(None) as target:
        try:
            for section in read_sections(map(json.dumps, lines)):
                target.restore(section)
        except RSMError:
            return
        exported = list(target.export())
        with copy(exported) as again:
            assert list(again.export()) == exported


@settings(max_examples=200, deadline=None)
@given(lines=st.lists(st.binary(max_size=30) | st.text(max_size=30), max_size=5))
def test_any_lines_are_refused_or_empty(lines):
    with Store.open(None) as target:
        try:
            for section in read_sections(lines):
                target.restore(section)
        except RSMError:
            return
        assert list(target.export()) == []


def test_backup_of_a_live_store(path, namespace, new_turn, add_turns):
    copy_path = path.with_name("backup.rsm")
    with Store.open(path, synchronous="NORMAL") as store:
        ns = namespace(store)
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                with store.write() as writer:
                    add_turns(writer, ns, new_turn(f"{number}-a"), new_turn(f"{number}-b"))
                number += 1

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for number in range(5):
                target = path.with_name(f"backup-{number}.rsm")
                store.backup(target)
                with Store.open(target) as copied, copied.read() as reader:
                    assert copied.check() == []
                    turns, chunks = reader.counts(ns)
                    assert turns == chunks
                    assert turns % 2 == 0
        finally:
            stop.set()
            thread.join()
        store.backup(copy_path)
        assert stat.S_IMODE(copy_path.stat().st_mode) == 0o600
        with pytest.raises(StoreError, match="exists already"):
            store.backup(copy_path)
        with Store.open(copy_path) as copied:
            assert list(copied.export()) == list(store.export())
        with pytest.raises(StoreError):
            store.backup(path.parent / "none" / "x.rsm")


def test_backup_from_ram(namespace, path):
    with Store.open(None) as store:
        namespace(store)
        store.backup(path)
    with Store.open(path) as copied, copied.read() as reader:
        assert [record.key for record in reader.namespaces()] == ["a"]
    with sqlite3.connect(path) as plain:
        assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    plain.close()
