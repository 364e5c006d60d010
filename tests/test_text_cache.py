"""Texts kept from pack to pack: the same packs as from fresh ones, bounded, never stale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rsm_fast import Memory, sample
from rsm_fast.instants import Instant
from rsm_fast.packing import TEMPLATES, Form, Frame, Piece, Span, get_template
from rsm_fast.state import TextCache
from rsm_fast.tokens import ByteCounter
from rsm_fast.types import Pack

QUESTIONS = ("How much does the cat weigh?", "Where does the user live?", "What is planned?")


def filled() -> Memory:
    memory = Memory(embedder="hashing")
    memory.add_many(sample.turns())
    return memory


def untimed(pack: Pack) -> Pack:
    stats = replace(pack.stats, embed_us=0.0, score_us=0.0, pack_us=0.0, total_us=0.0)
    return replace(pack, stats=stats)


def variants() -> list[dict[str, Any]]:
    ways = product(sorted(TEMPLATES), ("sessions", "atoms", "flat"), (True, False))
    return [
        {"template": template, "layout": layout, "fold": fold, "explain": fold, "budget": 700}
        for template, layout, fold in ways
    ]


def test_a_pack_of_kept_texts_is_that_of_fresh_ones() -> None:
    with filled() as used:
        for question in QUESTIONS:
            for options in variants():
                used.pack(question, **options)
        for options in variants():
            with filled() as fresh:
                expected = untimed(fresh.pack(QUESTIONS[0], **options))
            assert untimed(used.pack(QUESTIONS[0], **options)) == expected


def test_the_bound_holds_and_changes_no_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    with filled() as memory:
        expected = [untimed(memory.pack(question, budget=2000)) for question in QUESTIONS]
    monkeypatch.setattr(TextCache, "LARGEST", 20_000)
    with filled() as memory:
        for _ in range(2):
            for question, pack in zip(QUESTIONS, expected, strict=True):
                assert untimed(memory.pack(question, budget=2000)) == pack
                assert memory._core._state is not None
                assert 10_000 < memory._core._state.texts.nbytes <= 20_000


def test_the_oldest_texts_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = ByteCounter()
    frame = Frame(get_template("plain"), counter)

    def form(row: int, text: str) -> Form:
        span = Span("user", text, f"t{row}", tuple(counter.count_lines(text.split("\n"))))
        return Form(Piece(row, f"c{row}", (span,), None, None, Instant(row), 0.0), frame)

    cache = TextCache()
    monkeypatch.setattr(TextCache, "LARGEST", 10 * form(0, "word").nbytes)
    for row in range(12):
        cache.put((row, 0), form(row, "word"))
    cache.put((11, 0), form(11, "ward"))
    kept = [row for row in range(12) if cache.get((row, 0)) is not None]
    assert kept == list(range(2, 12)) and cache.nbytes == TextCache.LARGEST
    cache.put((99, 0), form(99, "x" * TextCache.LARGEST))
    assert cache.nbytes == 0 and cache.get((99, 0)) is None


def test_a_changed_text_and_another_atom_are_seen() -> None:
    with filled() as memory:
        before = memory.pack(QUESTIONS[0], budget=3000, layout="atoms")
        chunk = before.chunks[0]
        memory.update(chunk.turn_ids[0], text="The cat weighs eleven stone by now.")
        memory.recalibrate()
        after = memory.pack(QUESTIONS[0], budget=3000, layout="atoms")
        assert "eleven stone" in after.text and chunk.text not in after.text
        atoms = {hit.id: hit.atom for hit in memory.search(QUESTIONS[0], k=500)}
        assert all(atoms[chunk.id] == chunk.atom for chunk in after.chunks)
        assert any(atoms[chunk.id] != chunk.atom for chunk in before.chunks if chunk.id in atoms)


def test_what_was_written_is_at_hand_as_the_store_has_it() -> None:
    turns = [*sample.turns()[:30], "odd \ud800 text\x00 with é漢字🙂\r\n\n and lines\n", "x " * 900]
    for chunk_turns in (1, 3):
        with Memory(embedder="hashing", chunk_turns=chunk_turns) as memory:
            memory.add_many(turns)
            memory.add("One by one as well.", role="Caroline", timestamp="2026-05-03T10:00+02:00")
            memory.update(memory.add("before"), "after it was changed")
            with memory._core.snapshot() as view:
                assert view.state is not None
                written = dict(view.state.texts._written)
                rows = [row for row, _ in written]
                stored = view.reader.pieces(view.state.ns, view.state.arena.pk[rows].tolist())
                versions = view.state.versions.tolist()
            now = {key: record for key, record in written.items() if versions[key[0]] == key[1]}
            known = {record.pk: record for record in stored}
            assert len(now) >= 10
            for (row, _), record in now.items():
                expected = known[int(view.state.arena.pk[row])]
                assert record._replace(pk=expected.pk) == expected


def test_what_was_written_is_bounded_and_packed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    with filled() as memory:
        expected = untimed(memory.pack(QUESTIONS[0], budget=2000))
    monkeypatch.setattr(TextCache, "MOST_WRITTEN", 40)
    with filled() as memory:
        assert memory._core._state is not None
        texts = memory._core._state.texts
        assert 30 <= len(texts._written) <= 40 < texts.written_bytes
        assert untimed(memory.pack(QUESTIONS[0], budget=2000)) == expected
        before = len(texts._written)
        memory.add("long " * 2000)
        assert len(texts._written) == before


def test_what_is_kept_between_questions_follows_every_change(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"

    def found(memory: Memory) -> list[tuple[str, float]]:
        return [
            (hit.id, round(hit.score, 4))
            for question in QUESTIONS
            for hit in memory.search(question, k=300)
        ]

    with Memory.open(path, embedder="hashing") as memory:
        ids = memory.add_many(sample.turns())
        changes: list[Callable[[], object]] = [
            lambda: None,
            lambda: memory.add("The cat weighs much more by now.", session="late"),
            lambda: memory.delete(ids[3]),
            lambda: memory.update(ids[7], "The user lives somewhere else, and the cat as well."),
            lambda: memory.add_many(["one more", "and another one about the cat"]),
        ]
        for change in changes:
            found(memory)
            change()
            with Memory.open(path, embedder="hashing", read_only=True) as fresh:
                assert found(memory) == found(fresh)
