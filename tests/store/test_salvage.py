"""A file whose structure is broken: what can be read is carried into a new store."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from rsm_fast.errors import RSMError, StoreError
from rsm_fast.store import Store

PAGE = 4096


@pytest.fixture
def whole(path, namespace, new_turn, add_turns) -> list[bytes]:
    """The export of a store of two namespaces, some pages large."""
    with Store.open(path) as store:
        for key in ("a", "b"):
            ns = namespace(store, key)
            turns = [new_turn(f"{key}{n}", f"text {n} " * 20) for n in range(300)]
            with store.write() as writer:
                keys = add_turns(writer, ns, *turns)
                writer.supersede(ns, keys[1][0], keys[200][0])
                writer.put_array(ns, "centre", np.ones(8, np.float32))
                writer.delete_chunks(ns, [keys[5][1]])
                writer.delete_turns(ns, [keys[5][0]])
                writer.take_ids(ns, 7)
        return list(store.export())


def pages_of(path: Path, table: str) -> list[int]:
    plain = sqlite3.connect(path)
    sql = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY pageno"
    pages = [page for (page,) in plain.execute(sql, (table,))]
    plain.close()
    return pages


def break_page(path: Path, page: int) -> None:
    data = bytearray(path.read_bytes())
    data[(page - 1) * PAGE : (page - 1) * PAGE + 200] = b"\xa5" * 200
    path.write_bytes(data)


def salvage(path: Path) -> tuple[list, Store]:
    target = path.with_name("rescued.rsm")
    target.unlink(missing_ok=True)
    with Store.open(path) as store:
        lost = store.salvage(target)
    return lost, Store.open(target)


def test_of_a_whole_store_nothing_is_lost(whole, path):
    lost, rescued = salvage(path)
    with rescued:
        assert lost == []
        assert list(rescued.export()) == whole
        assert rescued.check() == []
    with Store.open(path) as store, pytest.raises(StoreError, match="exists already"):
        store.salvage(path.with_name("rescued.rsm"))


@pytest.mark.parametrize(
    "table", ["sqlite_autoindex_turns_1", "chunk_turns", "features", "chunks", "tombstones"]
)
def test_no_text_is_lost_where_only_derived_pages_are_broken(whole, path, table):
    break_page(path, pages_of(path, table)[0])
    with Store.open(path) as store:
        assert store.check() != []
    lost, rescued = salvage(path)
    with rescued:
        assert rescued.check() == []
        turns = [line for line in rescued.export() if b'"kind": "turn"' in line]
        assert turns == [line for line in whole if b'"kind": "turn"' in line]
        assert {finding.table for finding in lost} <= {table, "chunks"}
        with rescued.read() as reader:
            record = reader.namespace("a")
            assert (record.next_auto, record.settings) == (8, {"dim": 8})
            without = len(reader.open_chunks(record.id)) + len(reader.unchunked_turns(record.id))
            assert (without > 0) == (table in ("features", "chunks"))


def test_only_the_turns_of_a_broken_page_are_lost(whole, path):
    break_page(path, pages_of(path, "turns")[3])
    lost, rescued = salvage(path)
    with rescued, rescued.read() as reader:
        assert rescued.check() == []
        gone = {finding.key for finding in lost if finding.table == "turns"}
        assert 3 < len(gone) < 40
        kept = reader.counts(reader.namespace("a").id)[0]
        kept += reader.counts(reader.namespace("b").id)[0]
        # two keys were free before: those of the deleted turns
        assert 598 - len(gone) <= kept <= 598 - len(gone) + 2


def test_f34_salvage_never_crashes_and_never_invents(whole, path):
    original = path.read_bytes()
    known = [json.loads(line) for line in whole if b'"kind": "turn"' in line]
    for line in known:
        line.pop("superseded_by", None)
    chance = random.Random(9)
    rescues = 0
    for _ in range(12):
        data = bytearray(original)
        for _ in range(3):
            page = chance.randrange(1, len(data) // PAGE)  # the first page holds the schema
            start = page * PAGE + chance.randrange(PAGE - 64)
            data[start : start + 64] = chance.randbytes(64)
        path.write_bytes(data)
        try:
            _, rescued = salvage(path)
        except RSMError:
            continue
        with rescued:
            turns = [json.loads(line) for line in rescued.export() if b'"kind": "turn"' in line]
            for line in turns:
                line.pop("superseded_by", None)
            assert all(line in known for line in turns)
            rescues += 1
    assert rescues > 5
