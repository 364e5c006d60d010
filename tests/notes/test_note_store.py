"""Notes in the store: constraints, damage, export and import."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from rsm_fast import Memory
from rsm_fast.errors import ConflictError, CorruptStoreError, InvalidInputError
from rsm_fast.notes import NoteMemory
from rsm_fast.store import Store, read_sections
from rsm_fast.store.notes import Description, NoteReader, NoteRecord, NoteWriter


@pytest.fixture
def path(tmp_path: Path, standin, turns) -> Path:
    """A store with six notes."""
    path = tmp_path / "notes.rsm"
    with NoteMemory.open(path, standin, embedder="hashing") as notes:
        notes.add_many(turns)
        notes.undo("t1")
    return path


@pytest.mark.parametrize("vectors", [True, False])
def test_export_and_import_give_the_same_notes(path: Path, tmp_path: Path, vectors: bool) -> None:
    copy = tmp_path / "copy.rsm"
    with Store.open(path) as store, Store.open(copy) as target:
        lines = list(store.export(vectors=vectors))
        for section in read_sections(lines):
            target.restore(section)
        assert list(target.export(vectors=vectors)) == lines
        assert target.check() == []
    kinds = [line.split(b'"', 4)[3] for line in lines]
    assert kinds.count(b"note") == 6 and kinds.count(b"link") == kinds.count(b"evolution") == 3
    with NoteMemory.open(path, embedder="hashing") as one:
        with NoteMemory.open(copy, embedder="hashing") as other:
            if vectors:
                assert other.search("flight to Lisbon") == one.search("flight to Lisbon")
            assert [other.get(f"t{n}") for n in range(1, 7)] == [
                one.get(f"t{n}") for n in range(1, 7)
            ]
            other.memory.delete("t4")
            assert other.history("t1") == []


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (b'"kind": "note", "id": "t3"', b'"kind": "note", "id": "t33"', "'id'"),
        (b'"stage": 2', b'"stage": 7', "'stage'"),
        (b'"keywords": [', b'"keywords": [1, ', "'keywords'"),
        (b'"kind": "link", "id": "t4", "other": "t1"', b'"kind": "link", "id": "t4"', "'other'"),
        (b'"sources": ["t1"', b'"sources": ["t77"', "'sources'"),
        (b'"undone": true', b'"undone": "so"', "'undone'"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_kept(
    path: Path, tmp_path: Path, old: bytes, new: bytes, field: str
) -> None:
    with Store.open(path) as store:
        whole = b"".join(store.export())
    assert old in whole
    with Store.open(tmp_path / "copy.rsm") as target:
        section = next(read_sections(whole.replace(old, new, 1).splitlines()))
        with pytest.raises(InvalidInputError, match=rf"line \d+: expected {field}"):
            target.restore(section)
        with target.read() as reader:
            assert reader.namespaces() == []


def test_damage_to_a_note_is_found_and_put_right(path: Path) -> None:
    with sqlite3.connect(path) as plain:
        plain.execute("UPDATE notes SET context = 'other' WHERE turn % 7 = 1 OR turn % 7 = 2")
        plain.execute("UPDATE note_evolutions SET after = replace(after, 'See', 'Saw')")
    plain.close()
    with Store.open(path) as store:
        found = {finding.table for finding in store.check()}
        assert found == {"notes", "note_evolutions"}
        with store.read() as reader:
            ns = reader.namespace("default").id
            with pytest.raises(CorruptStoreError, match="note of turn"):
                list(NoteReader(reader).all_notes(ns))
        assert store.repair() == []
        with store.read() as reader:
            assert NoteReader(reader).counts(ns)["evolutions"] == 0
            assert 0 < NoteReader(reader).counts(ns)["pending"] < 6


def test_a_note_needs_its_turn(path: Path) -> None:
    with Store.open(path) as store, store.write() as writer:
        ns = writer.namespace("default").id
        note = NoteRecord((ns << 40) + 99, 0, Description(), "", "", "", 0, 0, 0, None)
        with pytest.raises(ConflictError, match="was deleted"):
            NoteWriter(writer).put(ns, note)


def test_forgetting_follows_what_has_been_seen_through_others(tmp_path: Path) -> None:
    """t1 evolves by t2; t3 evolves having seen t1 since; t2 goes: all is taken back."""
    with Memory.open(tmp_path / "chain.rsm", embedder="hashing") as memory:
        memory.add_many([{"id": f"t{n}", "text": f"turn number {n}"} for n in range(1, 6)])
        with memory._core.store.write() as writer:
            ns = writer.namespace("default").id
            notes = NoteWriter(writer)
            pk = {f"t{n}": writer.turn(ns, f"t{n}").pk for n in range(1, 6)}
            for key in pk.values():
                notes.put(
                    ns, NoteRecord(key, 2, Description((), (), "0"), "", "1", "", 0, 0, 0, None)
                )

            def evolve(turn: str, cause: str, sources: list[str], context: str) -> None:
                (old,) = notes.notes(ns, [pk[turn]])
                notes.evolve(
                    ns,
                    old._replace(description=Description((), (), context)),
                    before=old.description,
                    cause=pk[cause],
                    sources=[pk[name] for name in sources],
                    micros=0,
                )

            evolve("t3", "t1", [], "before, by t1")
            evolve("t1", "t2", [], "by t2")
            evolve("t3", "t4", ["t1"], "by t4, has seen t1")
            evolve("t5", "t4", ["t3"], "by t4, has seen t3")
            evolve("t4", "t5", [], "by t5")
        memory.delete("t2")
        with memory._core.store.read() as reader:
            contexts = {
                name: note.description.context
                for name, key in pk.items()
                for note in NoteReader(reader).notes(ns, [key])
            }
    assert contexts == {"t1": "0", "t3": "before, by t1", "t4": "0", "t5": "0"}
