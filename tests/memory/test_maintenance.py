"""Reopening, embedding anew, mending; snapshots and small machines."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_cases import Opener, fingerprint, sentences

from rsm_fast import Memory, sample
from rsm_fast.errors import (
    CorruptStoreError,
    EmbedderMismatchError,
    InvalidInputError,
)


@pytest.mark.parametrize("gate", ["max-member", "nearest-mean", "centroid"])
@pytest.mark.parametrize("chunk_turns", [1, 3])
def test_reopening_derives_the_same_state(tmp_path: Path, gate: Any, chunk_turns: int) -> None:
    path = tmp_path / "agent.rsm"
    options: dict[str, Any] = {"embedder": "hashing", "gate": gate, "chunk_turns": chunk_turns}
    with Memory.open(path, **options) as memory:
        memory.add_many(sentences(230))
        memory.delete(["t0003", "t0100", "t0229"])
        memory.update("t0050", "The glacier was renamed.")
        memory.flush()
        before = fingerprint(memory)
    with Memory.open(path, **options) as memory:
        assert fingerprint(memory) == before


def test_the_embedder_is_remembered_by_name(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as memory:
        memory.add("The tram leaves at 7:40.")
    with Memory.open(path) as memory:
        assert memory.search("tram", k=1)[0].text == "The tram leaves at 7:40."


@pytest.mark.parametrize("tau", [None, 0.7])
def test_reembed_moves_to_another_embedder(memory_of: Opener, tau: float | None) -> None:
    memory = memory_of(embedder="hashing-64", tau=tau)
    memory.add_many(sentences(90))
    heard: list[tuple[int, int]] = []
    memory.reembed("hashing-128", progress=lambda done, total: heard.append((done, total)))
    stats = memory.stats()
    assert stats.settings["dim"] == 128 and stats.settings["embedder_name"] == "hashing-128"
    assert (stats.turns, stats.pending_chunks) == (90, 0)
    assert heard[0] == (0, 90) and heard[-1] == (90, 90)
    fresh = Memory(embedder="hashing-128", tau=tau)
    fresh.add_many(sentences(90))
    before, after = fingerprint(fresh), fingerprint(memory)
    assert before["dense"] == after["dense"] and before["lexical"] == after["lexical"]
    partition = [
        [a == b for b in state["atom"]] for state in (before, after) for a in state["atom"]
    ]
    assert partition[:90] == partition[90:]
    memory.add("One more about the harbour.")
    memory.reembed("hashing-128")  # nothing to do


def test_reembed_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    embedded: list[str] = []
    broken = True

    def embed(texts: list[str]) -> Any:
        if broken and len(embedded) > 64:
            raise ConnectionError("the endpoint is gone")
        embedded.extend(texts)
        return np.array([[len(text), text.count("a"), 1.0] for text in texts])

    with Memory.open(path, embedder="hashing") as memory:
        memory.add_many(sentences(200))
        before = fingerprint(memory)
        with pytest.raises(Exception, match="endpoint is gone"):
            memory.reembed(embed)
        assert fingerprint(memory) == before  # usable as it was
        memory.update("t0000", "Changed meanwhile.")
    with Memory.open(path) as memory:
        broken = False
        embedded.clear()
        memory.reembed(embed)
        # 64 of 200 were done, one of them changed since; one text more tells the dimension
        assert 200 - 64 <= len(embedded) <= 200 - 64 + 2
        assert memory.stats().settings["dim"] == 3
        assert memory.search("Changed meanwhile.", k=1)[0].turn_ids == ("t0000",)
    with Memory.open(path, embedder=embed) as memory:
        assert memory.stats().turns == 200
    with pytest.raises(EmbedderMismatchError):
        Memory.open(path, embedder="hashing")


def test_f34_damage_is_noticed_and_what_is_derived_is_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as memory:
        memory.add_many(sentences(60))
        before = fingerprint(memory)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE chunks SET tokens = tokens + 1 WHERE id = 't0007#0'")
    with Memory.open(path) as memory:
        with pytest.raises(CorruptStoreError, match="doctor"):
            memory.search(sentences(60)[7].text, k=1)
        assert memory.repair() == []
        assert memory.search(sentences(60)[7].text, k=1)[0].turn_ids == ("t0007",)
        after = fingerprint(memory)
        assert sorted(after["hashes"]) == sorted(before["hashes"])
        assert memory.stats().pending_chunks == 0


def test_a_snapshot_opens_to_the_same_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rsm_fast import core
    from rsm_fast.store import Reader

    monkeypatch.setattr(core, "_SNAPSHOT_ROWS", 50)
    path = tmp_path / "agent.rsm"
    turns = sentences(220)
    with Memory.open(path, embedder="hashing") as memory:
        memory.add_many(turns[:150])
        memory.delete(["t0003", "t0149"])
        memory.update("t0050", "The glacier was renamed.")
        before = fingerprint(memory)
    assert list(tmp_path.glob("agent.rsm-snapshots/*"))
    read_whole = Reader.columns
    whole: list[int] = []
    monkeypatch.setattr(
        Reader, "columns", lambda self, ns, dim: whole.append(ns) or read_whole(self, ns, dim)
    )
    with Memory.open(path) as memory:
        assert fingerprint(memory) == before
        assert whole == []  # nothing was read but what changed since
        memory.add_many(turns[150:153])  # too few for another snapshot
        memory.delete("t0010")
        before = fingerprint(memory)
    with Memory.open(path) as memory:
        assert fingerprint(memory) == before and whole == []
        memory.add_many(turns[153:])  # the mapped arrays have to grow
        before = fingerprint(memory)
    with Memory.open(path) as memory:
        assert fingerprint(memory) == before and whole == []
        memory.recalibrate([turn.text for turn in turns[100:150]])
        memory._core.close()  # without saving: the snapshot was made with another tau
    with Memory.open(path) as memory:
        assert fingerprint(memory)["next_atom"] > before["next_atom"] and len(whole) == 1
    for file in tmp_path.glob("agent.rsm-snapshots/*"):
        file.write_bytes(file.read_bytes()[:-1000])
    with Memory.open(path) as memory:
        assert memory.stats().turns == 217 and len(whole) == 2


def test_float_vectors_may_lie_on_disk(tmp_path: Path) -> None:
    turns = sentences(300)
    plain = Memory(embedder="hashing")
    plain.add_many(turns)
    with Memory.open(tmp_path / "agent.rsm", embedder="hashing", vectors="disk") as memory:
        memory.add_many(turns)
        left, right = fingerprint(memory), fingerprint(plain)
        assert {**left, "pk": None} == {**right, "pk": None}
        assert memory.stats().bytes < plain.stats().bytes - 300 * 4 * 200
        assert {path.name for path in tmp_path.iterdir()} <= {
            "agent.rsm", "agent.rsm-wal", "agent.rsm-shm", "agent.rsm-lock",
        }  # fmt: skip


def test_edge_profile_keeps_int8_and_takes_what_is_there(tmp_path: Path) -> None:
    new, old = tmp_path / "new.rsm", tmp_path / "old.rsm"
    with Memory.open(old, embedder="hashing") as memory:
        memory.add_many(sample.turns())
        whole = memory.stats().bytes
    with Memory.open(new, embedder="hashing", profile="edge") as memory:
        memory.add_many(sample.turns())
        assert memory.stats().settings["dtype"] == "int8"
        assert memory.stats().bytes < 0.7 * whole
    with Memory.open(new, profile="edge") as memory:
        assert "Biscuit" in memory.pack("What does Biscuit weigh?", budget=200).text
    with Memory.open(old, profile="edge") as memory:
        assert memory.stats().settings["dtype"] == "float32"
        assert memory.stats().bytes < 0.7 * whole
    with Memory.open(tmp_path / "f.rsm", embedder="hashing", profile="edge", dtype="float32") as m:
        m.add("x")
        assert m.stats().settings["dtype"] == "float32"
    with pytest.raises(InvalidInputError, match="profile"):
        Memory.open(new, profile="tiny")  # type: ignore[arg-type]


def test_a_memory_in_use_is_found_as_it_should_be(memory_of: Opener) -> None:
    for chunk_turns in (1, 3):
        memory = memory_of(namespace=f"of {chunk_turns}", chunk_turns=chunk_turns)
        memory.add_many(sentences(130))
        memory.delete(["t0003", "t0100"])
        memory.update("t0050", "The glacier was renamed.")
        memory.add("Said at no known time.", session="s3")
        memory.search("harbour", k=3)  # gives an unfinished chunk a vector for a while
        memory.supersede("t0001", "t0002")
        assert memory.check() == []


@pytest.mark.parametrize("column", ["text_hash", "tokens", "terms"])
def test_what_was_derived_wrongly_is_found_and_made_anew(tmp_path: Path, column: str) -> None:
    """As a bug would leave it: the checksums fit, only the content is another text's."""
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as memory:
        memory.add_many(sentences(60))
        with memory._core.store.write() as writer:
            (chunk,) = writer.chunks(1, [list(writer.all_chunks(1))[7].pk])
            wrong: dict[str, Any] = {"text_hash": 1, "tokens": 1, "terms": b"other\nwords"}
            writer.replace_chunk(1, chunk._replace(**{column: wrong[column]}))
        assert memory._core.store.check() == []
        (finding,) = memory.check()
        assert "t0007#0" in finding.message and finding.key == chunk.pk and finding.remedy
        assert memory.repair() == []
        memory.flush()
        assert memory.check() == []
        assert memory.search(sentences(60)[7].text, k=1)[0].turn_ids == ("t0007",)
        assert memory.stats().chunks == 60


def test_a_snapshot_that_differs_from_a_rebuild_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rsm_fast import core
    from rsm_fast.state import NamespaceState

    monkeypatch.setattr(core, "_SNAPSHOT_ROWS", 50)
    path = tmp_path / "agent.rsm"
    arrays = NamespaceState.arrays
    with monkeypatch.context() as broken:
        broken.setattr(
            NamespaceState, "arrays", lambda self: {**arrays(self), "hashes": self.hashes + 1}
        )
        with Memory.open(path, embedder="hashing") as memory:
            memory.add_many(sentences(120))
    with Memory.open(path) as memory:
        (finding,) = memory.check()
        assert finding.table == "snapshots" and finding.message.startswith("hashes")
        assert memory.repair() == [] == memory.check()
        assert not list(tmp_path.glob("agent.rsm-snapshots/*"))
