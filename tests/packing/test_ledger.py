"""Admission by kernel: the same packs as chunk by chunk, and what it asks for."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles_packing import filled_one_by_one, spread
from packing_cases import ROWS, WORDS, piece, pieces_of

import rsm_fast.kernels as kernels
from rsm_fast.packing import (
    TEMPLATES,
    Filled,
    Form,
    Frame,
    Offers,
    Piece,
    PriceTable,
    Source,
    fill,
    get_template,
)
from rsm_fast.packing import ledger as ledger_module
from rsm_fast.tokens import CallableCounter


class Given(Source):
    """Pieces in their order, in parts; it notes which texts were asked for."""

    def __init__(
        self, pieces: Sequence[Piece], parts: Sequence[int] = (), table: PriceTable | None = None
    ) -> None:
        self.pieces = pieces
        self.tokens = [sum(sum(span.line_tokens) for span in p.spans) for p in pieces]
        self.texts = [hash(tuple(span.text for span in p.spans)) for p in pieces]
        self.read: list[int] = []
        self.parts = [part for part in sorted(parts) if part < len(pieces)]
        self._table = table
        self._sessions: dict[str | None, int] = {}

    def offers(self, begun: int = 0) -> Iterator[Offers]:
        sessions = self._sessions
        stops = [*self.parts, len(self.pieces)]
        start = 0
        for stop in stops:
            some = self.pieces[start:stop]
            if some:
                yield Offers(
                    rows=np.array([p.row for p in some], np.int32),
                    versions=np.zeros(len(some), np.int32),
                    micros=np.array([p.instant.micros for p in some], np.int64),
                    sessions=np.array(
                        [sessions.setdefault(p.session, len(sessions)) for p in some], np.int32
                    ),
                    atoms=np.array([-1 if p.atom is None else p.atom for p in some], np.int32),
                    tokens=np.array(self.tokens[start:stop], np.int32),
                    texts=np.array(self.texts[start:stop], np.int64),
                )
            start = stop

    def prices(self, frame: Frame) -> PriceTable:
        if self._table is None or self._table.frame is not frame:
            self._table = PriceTable(frame)
        return self._table

    def forms(self, frame: Frame, places: Sequence[int]) -> list[Form]:
        self.read += places
        return [Form(self.pieces[place], frame) for place in places]


def one_by_one(source: Given, frame: Frame, layout: str, budget: int, *, fold: bool) -> Filled:
    columns = source.pieces, source.tokens, source.texts
    return filled_one_by_one(*columns, frame, layout, budget, fold=fold, parts=source.parts)


@settings(max_examples=300, deadline=None)
@given(
    ROWS,
    st.sampled_from(["sessions", "atoms", "flat"]),
    st.booleans(),
    st.integers(0, 120) | st.integers(0, 2000) | st.just(10**30),
    st.sampled_from(sorted(TEMPLATES)),
    st.lists(st.integers(0, 12), max_size=2),
    st.sampled_from(["words", "specials", "huge"]),
)
def test_a_kernel_admits_what_python_would(
    rows: list[Any],
    layout: str,
    fold: bool,
    budget: int,
    template: str,
    parts: list[int],
    counter: str,
) -> None:
    counters: dict[str, Any] = {
        "words": WORDS,
        "specials": CallableCounter(lambda text: len(text.split()) + 2),
        "huge": CallableCounter(lambda text: 10**25 * len(text)),
    }
    frame = Frame(get_template(template), counters[counter])
    source = Given(pieces_of(rows), parts)
    expected = one_by_one(source, frame, layout, budget, fold=fold)
    options: dict[str, Any] = {"template": template, "layout": layout, "frame": frame}
    for _ in range(2):  # prices unknown, and known
        filled = fill(source, budget=budget, counter=frame.counter, fold=fold, **options)
        assert filled == expected


def talk(count: int, *, seed: int = 0) -> list[Piece]:
    """Turns of some lines, many of which come again, some whole."""
    rng = random.Random(seed)
    lines = [f"the line number {n} has a few words of its own" for n in range(60)]
    pieces = []
    for row in range(count):
        text = "\n".join(rng.choice(lines) for _ in range(rng.randint(1, 5)))
        text = "thank you" if row % 9 == 0 else text
        day = f"2026-05-{1 + row % 28:02d}"
        pieces.append(piece(row, text, session=f"s{row % 7}", at=day, roles=("user", "agent")))
    return pieces


@pytest.mark.parametrize("budget", [200, 1000, 5000, 60_000])
@pytest.mark.parametrize("fold", [True, False])
def test_many_chunks_with_copies_and_repeated_lines(
    budget: int, fold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_SEEN", 4)  # the table of lines has to grow
    frame = Frame(get_template("markdown"), WORDS)
    source = Given(talk(900), [100, 400])
    expected = one_by_one(source, frame, "sessions", budget, fold=fold)
    filled = fill(source, budget=budget, counter=WORDS, fold=fold, frame=frame)
    assert filled == expected
    assert filled.tokens > budget // 2 or budget == 60_000
    assert budget == 200 or any(packed.copies > 1 for packed in filled.packed)


def test_texts_that_cannot_fit_are_not_read() -> None:
    pieces = [piece(0, "short one")]
    pieces += [piece(row, "a long text " * 60) for row in range(1, 40)]
    pieces += [piece(40, "the other short one"), piece(41, "short one")]
    source = Given(pieces)
    frame = Frame(get_template("markdown"), WORDS)
    filled = fill(source, budget=40, counter=WORDS, frame=frame)
    assert [p.copies for p in filled.packed] == [1, 2] or [p.copies for p in filled.packed] == [
        2,
        1,
    ]
    assert set(source.read) == {0, 40, 41} and filled.considered == 3


def test_prices_that_are_known_need_no_text_of_what_stays_out() -> None:
    pieces = [piece(row, f"number {row} " * (1 + row % 5)) for row in range(200)]
    table = PriceTable(Frame(get_template("markdown"), WORDS))
    options: dict[str, Any] = {"budget": 100, "counter": WORDS, "frame": table.frame}
    first = fill(Given(pieces, table=table), **options)
    again = Given(pieces, table=table)
    assert fill(again, **options) == first
    assert len(again.read) == len(first.packed)


def test_a_table_of_prices_stays_small_and_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PriceTable, "LARGEST", 60_000)
    table = PriceTable(Frame(get_template("markdown"), WORDS))
    pieces = talk(3000)
    for start in range(0, 3000, 300):
        source = Given(pieces[start : start + 300], table=table)
        filled = fill(source, budget=3000, counter=WORDS, frame=table.frame)
        assert filled == one_by_one(source, table.frame, "sessions", 3000, fold=True)
        assert table.nbytes < 400_000


def test_another_version_of_a_row_has_prices_of_its_own() -> None:
    frame = Frame(get_template("markdown"), WORDS)
    table = PriceTable(frame)
    rows, old, new = (np.array([value], np.int32) for value in (5, 0, 1))
    assert table.of(rows, old)[0][0, 0] == 0
    table.learn(rows, old, [Form(piece(5, "as it was"), frame)])
    assert table.of(rows, old)[0][0, 1] == 3 and table.of(rows, new)[0][0, 0] == 0
    table.learn(rows, new, [Form(piece(5, "now"), frame)])
    assert table.of(rows, new)[0][0, 1] == 1 and table.of(rows, old)[0][0, 0] == 0


def test_several_threads_share_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PriceTable, "LARGEST", 80_000)  # it is cleared meanwhile
    table = PriceTable(Frame(get_template("markdown"), WORDS))
    pieces = talk(600)
    orders = [random.Random(seed).sample(pieces, 600) for seed in range(4)]
    expected = [
        one_by_one(Given(order), table.frame, "sessions", 2000, fold=True) for order in orders
    ]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            source = Given(orders[number], table=table)
            got = fill(source, budget=2000, counter=WORDS, frame=table.frame)
            if got != expected[number]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@given(st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.integers(-1, 1000), max_size=50))
@settings(max_examples=100, deadline=None)
def test_maps_keep_their_keys_when_they_grow(wanted: dict[int, int]) -> None:
    keys: np.ndarray[Any, Any] = np.array(list(wanted), np.int64)
    values = np.array(list(wanted.values()), np.int32)
    new_keys, new_values = np.empty(128, np.int64), np.full(128, -2, np.int32)
    kernels.admission.spread_(keys, values, new_keys, new_values)
    assert spread(new_keys.tolist(), new_values.tolist()) == wanted
