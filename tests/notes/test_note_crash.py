"""F33 and forgetting for good, over notes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from crash_harness import Op, State, Trials

from bench.notes.standin import StandIn
from rsm_fast.notes import NoteMemory
from rsm_fast.notes.shelf import embedded_text
from rsm_fast.store.notes import LINKED, NoteReader

POINTS = ("begun", "turns", "commit", "committed", "deleted")
KINDS = ["write:commit 4", "write:deleted 1", "random"]
MORE = [f"write:{point} {times}" for times in (1, 3, 6, 10) for point in POINTS] + ["random"] * 10


class NoteTarget:
    """Turns with their notes; the harness's model knows the turns."""

    def open(self, path: Path) -> NoteMemory:
        return NoteMemory.open(path, StandIn(), k=3, embedder="hashing-32", synchronous="NORMAL")

    def apply(self, opened: NoteMemory, op: Op) -> None:
        if op["verb"] == "add":
            opened.add_many([{"id": id, "text": text} for id, text in op["turns"].items()])
        elif op["verb"] == "delete":
            opened.memory.delete(op["ids"])
        elif op["verb"] == "update":
            opened.memory.update(op["id"], op["text"])
        elif op["verb"] == "compact":
            opened.memory.compact()

    def state(self, opened: NoteMemory) -> State:
        with opened._shelf.reading() as (reader, ns):
            return {} if ns is None else {turn.id: turn.text for turn in reader.all_turns(ns)}

    def check(self, opened: NoteMemory) -> None:
        opened.complete()
        assert opened.memory._core.store.check() == []
        assert opened.stats().pending == 0
        if not self.state(opened):
            return
        opened.search("anything")  # embeds what was taken back
        with opened._shelf.reading() as (reader, ns):
            notes = list(NoteReader(reader).all_notes(ns))
            texts = {turn.pk: turn.text for turn in reader.all_turns(ns)}
        assert {note.turn for note in notes} == set(texts)
        assert all(note.stage == LINKED and note.description.context for note in notes)
        _, made = opened._shelf.embedded(
            [embedded_text(texts[note.turn], note.description) for note in notes]
        )
        kept = np.stack([np.frombuffer(note.vector, "<f4") for note in notes])
        np.testing.assert_allclose(kept, made, atol=1e-6)

    def close(self, opened: NoteMemory) -> None:
        opened.close()


@pytest.mark.filterwarnings("ignore:This process .* multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    "kinds", [KINDS, pytest.param(MORE, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])],
    ids=["few", "many"],
)  # fmt: skip
def test_f33_notes_are_whole_after_any_kill(tmp_path: Path, kinds: list[str]) -> None:
    trials = Trials(NoteTarget(), tmp_path, seed=8)
    trials.run(kinds)
    assert sum(trials.deaths.values()) == len(kinds)


def test_after_compact_nothing_of_a_deleted_turn_is_in_any_file(standin, turns, tmp_path) -> None:
    path = tmp_path / "notes.rsm"
    with NoteMemory.open(path, standin, embedder="hashing") as notes:
        notes.add_many(turns)
        assert "cancell" in notes.get("t1").keywords
        notes.memory.delete("t4")
        notes.memory.compact()
        for file in tmp_path.rglob("*"):
            if file.is_file():
                data = file.read_bytes()
                assert b"cancel" not in data and b"See also t4" not in data, file
        assert "cancell" not in notes.get("t1").keywords
