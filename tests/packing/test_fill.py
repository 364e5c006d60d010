"""Packs under a budget: the cap, what is admitted, layouts, copies, reasons."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_cases import ROWS, WORDS, pack, piece, pieces_of, read_back, shown

from rsm_fast.instants import Instant
from rsm_fast.packing import TEMPLATES, Piece, unfold
from rsm_fast.packing.admission import MAX_MISSES, MAX_OMITTED
from rsm_fast.packing.forms import day_of
from rsm_fast.tokens import ByteCounter, CallableCounter, TokenCounter, as_token_counter

LAYOUTS = ("sessions", "atoms", "flat")
BUDGETS = st.integers(0, 300) | st.integers(0, 5000) | st.just(10**9)


@settings(max_examples=200, deadline=None)
@given(ROWS, st.sampled_from(LAYOUTS), st.booleans(), BUDGETS, st.sampled_from(sorted(TEMPLATES)))
def test_f45_budget_holds_and_the_text_reads_back(
    rows: list[Any], layout: str, fold: bool, budget: int, template: str
) -> None:
    filled = pack(pieces_of(rows), budget, layout=layout, fold=fold, template=template)
    assert filled.tokens == WORDS(filled.text) <= budget
    assert read_back(filled, template) == shown(filled, template)
    chunks = unfold(filled.text, template)
    assert [chunk.day for chunk in chunks] == [day_of(p.piece.instant) for p in filled.packed]
    assert [chunk.copies for chunk in chunks] == [p.copies for p in filled.packed]
    if layout == "atoms":
        assert [chunk.atom for chunk in chunks] == [p.piece.atom for p in filled.packed]
    if budget == 10**9:
        assert sum(p.copies for p in filled.packed) == len(rows)


def wayward(text: str) -> int:
    """A counter without any order: longer texts may count less."""
    return zlib.crc32(text.encode("utf-8", "replace")) % 90


NASTY: dict[str, Callable[[str], int]] = {
    "bytes": lambda text: len(text.encode("utf-8", "replace")),
    "thirds": ByteCounter(),
    "squares": lambda text: len(text) ** 2,
    "newlines": lambda text: 1 + 40 * text.count("\n"),
    "constant": lambda text: 17,
    "nothing": lambda text: 0,
    "wayward": wayward,
    "specials": lambda text: len(text.split()) + 2,
}


@settings(max_examples=200, deadline=None)
@given(ROWS, st.booleans(), BUDGETS, st.sampled_from(sorted(NASTY)), st.booleans())
def test_f45_budget_holds_for_any_counter(
    rows: list[Any], fold: bool, budget: int, name: str, additive: bool
) -> None:
    # Some of them do not add up, whatever they say.
    counter = CallableCounter(NASTY[name], name=name, additive=additive)
    filled = pack(pieces_of(rows, counter), budget, fold=fold, counter=counter)
    assert filled.tokens <= budget
    if filled.text:
        assert filled.tokens == counter(filled.text)
    assert read_back(filled) == shown(filled)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.booleans(), st.integers(0, 400), st.sampled_from(sorted(TEMPLATES)))
def test_f45_sums_are_exact_for_the_packaged_counter(
    packaged_minilm: None, rows: list[Any], fold: bool, budget: int, template: str
) -> None:
    counter = as_token_counter()
    filled = pack(pieces_of(rows, counter), budget, fold=fold, counter=counter, template=template)
    assert filled.tokens == counter(filled.text) <= budget


def test_f48_ideographs_and_emoji_stay_under_the_cap(packaged_minilm: None) -> None:
    for counter in (as_token_counter(), ByteCounter()):
        texts = [
            f"第{n}条记录：今天天气很好，我们去公园 🙂🎉{'👩‍👩‍👧' * (n % 5)}" for n in range(200)
        ]
        pieces = [piece(n, text, counter=counter) for n, text in enumerate(texts)]
        for budget in (500, 1000, 4000):
            filled = pack(pieces, budget, counter=counter)
            assert 0.9 * budget < counter(filled.text) <= budget


def test_a_counter_that_does_not_add_up_is_asked_for_the_whole_at_most_twice() -> None:
    longest: list[int] = []

    def byte_pairs(text: str) -> int:
        longest.append(len(text))
        return len(text.replace(". ", ".").replace(".\n", ".")) // 4 + text.count("\n")

    counter = CallableCounter(byte_pairs, name="pairs")
    rng = random.Random(5)
    for budget in (300, 1000, 4000):
        pieces = [
            piece(n, " ".join(rng.choices(["alpha", "beta.", "gamma.\n"], k=20)), counter=counter)
            for n in range(300)
        ]
        longest.clear()
        filled = pack(pieces, budget, counter=counter)
        assert 0.9 * budget <= filled.tokens <= budget
        assert sum(size > budget for size in longest) <= 2


def test_special_tokens_of_a_counter_are_charged_once() -> None:
    counter = CallableCounter(lambda text: len(text.split()) + 2, name="specials")
    pieces = [piece(n, f"line {n}\nand another", counter=counter) for n in range(300)]
    filled = pack(pieces, 400, counter=counter)
    assert 0.95 * 400 < filled.tokens == counter(filled.text) <= 400


@pytest.mark.parametrize("budget", [0, 1, 4])
def test_f46_a_budget_below_any_pack_gives_an_empty_one(budget: int) -> None:
    filled = pack([piece(0, "hello")], budget, explain=True)
    assert (filled.text, filled.tokens, filled.packed) == ("", 0, ())


def test_f45_a_smaller_later_item_fits_after_a_big_one_was_skipped() -> None:
    filled = pack([piece(0, "word " * 500), piece(1, "small one")], 40, explain=True)
    assert [p.piece.row for p in filled.packed] == [1]
    assert [(o.piece.row, o.reason) for o in filled.omitted] == [
        (0, "needs over 500 tokens, 36 left")
    ]
    assert filled.packed[0].reason == "rank 2, score 0.999: adds 5 tokens"
    assert filled.considered == 2


def test_no_more_pieces_are_taken_than_needed() -> None:
    taken = []

    def source() -> Iterator[Piece]:
        for row in range(10_000):
            taken.append(row)
            yield piece(row, f"chunk number {row} with some words")

    filled = pack(source(), 100)
    assert len(filled.packed) > 10
    assert len(taken) == filled.considered == len(filled.packed) + MAX_MISSES


def test_reasons_are_bounded() -> None:
    # Every second piece fits, so admission goes on.
    pieces = [piece(row, "w" if row % 2 else "word " * 3000 + str(row)) for row in range(2000)]
    pieces = [piece(p.row, f"{p.spans[0].text} {p.row}") for p in pieces]
    filled = pack(pieces, 2800, explain=True)
    assert len(filled.omitted) == MAX_OMITTED
    assert filled.considered > 2 * MAX_OMITTED


def test_sessions_stand_together_in_the_order_of_their_first_chunk() -> None:
    pieces = [
        piece(0, "late b", session="b", at="2026-05-09"),
        piece(1, "early b", session="b", at="2026-05-02"),
        piece(2, "only a", session="a", at="2026-05-04"),
    ]
    text = pack(pieces, layout="sessions").text
    assert text.splitlines()[2:] == [
        "# 2026-05-02",
        "user \tearly b",
        "",
        "# 2026-05-09",
        "user \tlate b",
        "",
        "# 2026-05-04",
        "user \tonly a",
    ]
    flat = pack(pieces, layout="flat").text
    assert flat.index("early b") < flat.index("only a") < flat.index("late b")


def test_atoms_have_headers() -> None:
    pieces = [
        piece(0, "in seven", atom=7, at="2026-05-04"),
        piece(1, "in none", at="2026-05-05"),
        piece(2, "also in seven", atom=7, at="2026-05-03"),
    ]
    assert pack(pieces, layout="atoms").text.splitlines()[2:] == [
        "# Atom 7",
        "# 2026-05-03",
        "user \talso in seven",
        "",
        "# 2026-05-04",
        "user \tin seven",
        "",
        "# Atom -",
        "# 2026-05-05",
        "user \tin none",
    ]


def test_a_speaker_is_named_where_it_changes() -> None:
    pieces = [
        piece(0, "one", "two", roles=("ann", "bob"), at=Instant(1)),
        piece(1, "three", roles=("bob",), at=Instant(2)),
        piece(2, "four", roles=("ann",), at=Instant(3)),
    ]
    filled = pack(pieces)
    assert filled.text.splitlines()[3:] == [
        "ann \tone",
        "bob \ttwo",
        "",
        " \tthree",
        "",
        "ann \tfour",
    ]
    assert read_back(filled) == shown(filled)


def test_f41_and_f43_days_are_printed_with_their_offset_in_true_order() -> None:
    pieces = [
        piece(0, "newest", at="2026-05-03T23:30:00-02:00"),
        piece(1, "back-filled", at="2019-01-01T00:30:00+09:00"),
        piece(2, "middle", at="2026-05-03T23:30:00Z"),
    ]
    days = [chunk.day for chunk in unfold(pack(pieces).text)]
    assert days == ["2019-01-01 +09:00", "2026-05-03", "2026-05-03 -02:00"]


def test_f30_equal_chunks_are_shown_once_with_count_first_and_last_time() -> None:
    pieces = [piece(row, "again and again", at=Instant(row * 3_600_000_000)) for row in range(500)]
    random.Random(3).shuffle(pieces)
    filled = pack(pieces, 100)
    assert filled.text.count("again and again") == 1
    assert "user (500 times since 1970-01-01) \tagain and again" in filled.text
    assert [(p.copies, p.piece.row, len(set(p.ids))) for p in filled.packed] == [(500, 499, 500)]
    (chunk,) = unfold(filled.text)
    assert (chunk.copies, chunk.since, chunk.day) == (500, "1970-01-01", "1970-01-21")


def test_f28_chunks_that_differ_at_all_are_kept_apart() -> None:
    texts = [
        "due October 15th",
        "due October 16th",
        "not due October 15th",
        "40 EUR",
        "400 EUR",
        "40 EUR ",
    ]
    filled = pack([piece(row, text) for row, text in enumerate(texts)])
    assert [p.piece.spans[0].text for p in filled.packed] == texts
    assert all(p.copies == 1 for p in filled.packed)
    by_role = pack([piece(0, "same"), piece(1, "same", roles=("assistant",))])
    assert len(by_role.packed) == 2


def test_admission_charges_what_the_text_grows_by() -> None:
    rng = random.Random(9)
    for layout in LAYOUTS:
        pieces = [
            piece(
                row,
                "word " * rng.randrange(1, 30) + str(row),
                roles=(rng.choice("ab"),),
                session=rng.choice("xyz"),
                atom=rng.randrange(3),
                at=Instant(rng.randrange(10) * 40_000_000_000),
            )
            for row in range(40)
        ]
        sizes = [pack(pieces[:n], 10**6, layout=layout, fold=False) for n in range(1, 41)]
        for before, after in zip(sizes, sizes[1:], strict=False):
            exact = pack(pieces[: len(after.packed)], after.tokens, layout=layout, fold=False)
            assert len(exact.packed) == len(after.packed) == len(before.packed) + 1
            tight = pack(pieces[: len(after.packed)], after.tokens - 1, layout=layout, fold=False)
            assert len(tight.packed) == len(before.packed)


def test_the_counter_is_only_asked_for_frame_and_escaped_lines_where_counts_add_up() -> None:
    asked: list[str] = []

    class Listening:
        name = "listening"
        additive = True

        def __call__(self, text: str) -> int:
            asked.append(text)
            return WORDS(text)

        def count_lines(self, lines: Any) -> list[int]:
            return [self(line) for line in lines]

    counter: TokenCounter = Listening()
    pieces = [piece(row, f"stored text number {row}") for row in range(50)]
    filled = pack(pieces, 200, counter=counter)
    # The whole once, since only the packaged counter's sums are taken for granted.
    assert [text for text in asked if "stored" in text] == [filled.text]
