"""Any sequence of changes: the store against a dict, and a follower against the store."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from rsm_fast.errors import ConflictError
from rsm_fast.store import ChunkRecord, Store, TurnRecord

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


def chunk(turn: TurnRecord, part: int, atom: int | None) -> ChunkRecord:
    middle = len(turn.text) // 2
    span = (turn.pk, 0, middle) if part == 0 else (turn.pk, middle, len(turn.text))
    vector = np.full(4, len(turn.text) + part, np.float32).tobytes()
    return ChunkRecord(
        0, f"{turn.id}#{part}", (span,), turn.session, turn.micros, 0, len(turn.text), b"", b"", 1,
        atom=atom, vector=vector,
    )  # fmt: skip


class StoreMachine(RuleBasedStateMachine):
    """Two namespaces of one file; another `Store` object follows the first of them."""

    turns = Bundle("turns")

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "x.rsm"
        self.store = Store.open(self.path, synchronous="NORMAL")
        self.follower = Store.open(self.path)
        with self.store.write() as writer:
            self.ns = writer.create_namespace("a", {"dim": 4}).id
            other = writer.create_namespace("b", {"dim": 4}).id
            turn = TurnRecord(0, "1", "user", "other", 0, 0, True, None, None)
            [pk] = writer.insert_turns(other, [turn])
            writer.insert_chunks(other, [chunk(turn._replace(pk=pk), 0, 0)])
        self.other = other
        self.model: dict[str, TurnRecord] = {}
        self.gone: set[str] = set()
        self.held: dict[int, ChunkRecord] = {}
        self.seen, self.newest = 0, 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            assert self.store.check() == []
            self.store.close()
            self.follower.close()
            self.folder.cleanup()

    def chunks_of(self, reader, turn: TurnRecord) -> list[ChunkRecord]:
        return reader.chunks_of_turns(self.ns, [turn.pk])

    @rule(
        target=turns,
        name=st.integers(0, 30).map(str),
        text=TEXTS,
        session=st.none() | st.just("s"),
        atom=st.none() | st.integers(0, 3),
    )
    def add(self, name, text, session, atom):
        record = TurnRecord(0, name, "user", text, len(text), 0, True, session, None)
        if name in self.model or name in self.gone:
            with pytest.raises(ConflictError), self.store.write() as writer:
                writer.insert_turns(self.ns, [record])
            return name
        with self.store.write() as writer:
            [pk] = writer.insert_turns(self.ns, [record])
            record = record._replace(pk=pk)
            writer.insert_chunks(self.ns, [chunk(record, part, atom) for part in (0, 1)])
        self.model[name] = record
        return name

    @rule(name=consumes(turns))
    def delete(self, name):
        if name not in self.model:
            return
        with self.store.write() as writer:
            chunks = self.chunks_of(writer, self.model[name])
            writer.delete_chunks(self.ns, [chunk.pk for chunk in chunks])
            writer.delete_turns(self.ns, [self.model[name].pk])
        pk = self.model.pop(name).pk
        self.gone.add(name)
        for other, turn in self.model.items():
            if turn.superseded_by == pk:
                self.model[other] = turn._replace(superseded_by=None)

    @rule(name=turns, text=TEXTS)
    def update(self, name, text):
        if name not in self.model:
            return
        turn = self.model[name]._replace(text=text)
        with self.store.write() as writer:
            writer.update_turn(self.ns, turn)
            for part, old in enumerate(self.chunks_of(writer, turn)):
                writer.replace_chunk(self.ns, chunk(turn, part, None)._replace(pk=old.pk))
        self.model[name] = turn

    @rule(old=turns, new=turns)
    def supersede(self, old, new):
        if old == new or old not in self.model or new not in self.model:
            return
        with self.store.write() as writer:
            writer.supersede(self.ns, self.model[old].pk, self.model[new].pk)
        self.model[old] = self.model[old]._replace(superseded_by=self.model[new].pk)

    @rule(name=turns, atom=st.none() | st.integers(0, 9))
    def assign(self, name, atom):
        if name in self.model:
            with self.store.write() as writer:
                pks = [chunk.pk for chunk in self.chunks_of(writer, self.model[name])]
                writer.set_atoms(self.ns, [(pk, atom) for pk in pks])

    @rule(name=turns)
    def fail(self, name):
        with pytest.raises(ZeroDivisionError), self.store.write() as writer:
            for turn in writer.all_turns(self.ns):
                writer.delete_chunks(self.ns, [c.pk for c in self.chunks_of(writer, turn)])
            raise ZeroDivisionError

    @rule()
    def compact(self):
        self.store.compact()

    @rule()
    def reopen(self):
        self.store.close()
        self.store = Store.open(self.path, synchronous="NORMAL")

    @precondition(lambda self: hasattr(self, "path"))
    @rule()
    def follow(self):
        with self.follower.read() as reader:
            changes = reader.changes_since(self.ns, self.seen, self.newest)
            if changes.reload:
                self.held = {chunk.pk: chunk for chunk in reader.all_chunks(self.ns)}
            for pk in changes.removed:
                del self.held[pk]
            self.held.update({chunk.pk: chunk for chunk in changes.upserts})
            self.seen, self.newest = changes.generation, max([*self.held, self.newest])
            assert self.held == {chunk.pk: chunk for chunk in reader.all_chunks(self.ns)}
            columns = reader.columns(self.ns, 4)
        assert columns.pk.tolist() == sorted(self.held)
        assert [-1 if c.atom is None else c.atom for _, c in sorted(self.held.items())] == (
            columns.atom.tolist()
        )

    @invariant()
    def equals_the_model(self):
        if not hasattr(self, "path"):
            return
        with self.store.read() as reader:
            assert {turn.id: turn for turn in reader.all_turns(self.ns)} == self.model
            names = [str(number) for number in range(31)]
            assert reader.tombstoned(self.ns, names) == self.gone
            eligible = set(reader.eligible_chunks(self.ns).tolist())
            current = [t.pk for t in self.model.values() if t.superseded_by is None]
            assert eligible == {c.pk for c in reader.chunks_of_turns(self.ns, current)}
            for piece in reader.pieces(self.ns, sorted(eligible)):
                [part] = piece.parts
                assert part.text in self.model[part.turn_id].text
            assert reader.counts(self.other) == (1, 1)


StoreMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestStoreMachine = StoreMachine.TestCase
