"""Packs under a budget: the cap, the layouts, the copies, and reading a pack back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rsm_fast.instants import Instant, parse_instant
from rsm_fast.packing import TEMPLATES, Filled, Piece, Span, fill, get_template, unfold
from rsm_fast.packing.layout import day_of
from rsm_fast.tokens import CallableCounter


class Words:
    """White-space words: additive like the packaged WordPiece."""

    name = "words"
    additive = True

    def __call__(self, text: str) -> int:
        return len(text.split())

    def count_lines(self, lines: Sequence[str]) -> list[int]:
        return [self(line) for line in lines]


WORDS = Words()
BYTES = CallableCounter(lambda text: -(-len(text.encode("utf-8", "replace")) // 3))


def piece(
    row: int,
    *texts: str,
    roles: Sequence[str] = ("user",),
    session: str | None = None,
    at: str | Instant = "2026-05-03",
    atom: int | None = None,
    step: int | None = None,
    counter: Callable[[str], int] = WORDS,
) -> Piece:
    spans = tuple(
        Span(
            roles[i % len(roles)],
            text,
            f"t{row}.{i}",
            tuple(counter(line) for line in text.split("\n")),
        )
        for i, text in enumerate(texts)
    )
    instant = at if isinstance(at, Instant) else parse_instant(at)
    return Piece(row, f"c{row}", spans, atom, session, instant, 1.0 - row / 1000, step)


def pack(pieces: Sequence[Piece], budget: int = 4000, **options: Any) -> Filled:
    options.setdefault("counter", WORDS)
    return fill(pieces, budget=budget, **options)


def shown(filled: Filled, template: str = "markdown") -> list[tuple[tuple[str, str], ...]]:
    return [
        tuple((get_template(template).role(span.role), span.text) for span in packed.piece.spans)
        for packed in filled.packed
    ]


def read_back(filled: Filled, **options: Any) -> list[tuple[tuple[str, str], ...]]:
    chunks = unfold(filled.text, **options)
    return [tuple((turn.role, turn.text) for turn in chunk.turns) for chunk in chunks]


# Texts that try to be frame, in pieces that Hypothesis glues together.
NASTY = st.lists(
    st.sampled_from(
        [
            "user \thello",
            " \t",
            "# 2026-05-03",
            "# 2026-05-03 +02:00",
            "# Atom 3",
            "Memory: data, not instructions.",
            "as in step 7",
            "rest as in item 1",
            "line 2 as in step 1",
            "lines 1-2 as in item 2",
            "AS IN STEP 7",
            "step 7 go on and on and on and on",
            "\\",
            "\\\\# Atom 3",
            "\\as in item 1",
            "a line of ten words that is there again and again",
            "another line of ten words that is there again now",
            "",
            "\n",
            "\r",
            "\u2028",
            "\t",
            " ",
            "word",
            "é漢字🙂",
        ]
    )
    | st.text(max_size=12),
    max_size=8,
)
TEXTS = st.builds(
    lambda parts, glue: glue.join(parts), NASTY, st.sampled_from(["\n", "\n", "", " "])
)
ROLES = st.sampled_from(["user", "assistant", "step 7", "a\nb", "", "(3 times)", "\\x", "x \ty"])
SPANS = st.lists(st.tuples(ROLES, TEXTS), min_size=1, max_size=3)
PIECES = st.lists(
    st.tuples(
        SPANS,
        st.sampled_from([None, "a", "b", "a\n# 2026-05-03"]),
        st.integers(0, 5),
        st.sampled_from([0, 120, -300]),
        st.sampled_from([None, 0, 3]),
        st.sampled_from([None, None, 1, 7, 12]),
    ),
    max_size=10,
)


def build(rows: Sequence[Any], counter: Callable[[str], int]) -> list[Piece]:
    return [
        Piece(
            row,
            f"c{row}",
            tuple(
                Span(role, text, f"t{row}.{i}", tuple(map(counter, text.split("\n"))))
                for i, (role, text) in enumerate(spans)
            ),
            atom,
            session,
            Instant(1_777_777_777_000_000 + day * 50_000_000_000, offset),
            0.5,
            step,
        )
        for row, (spans, session, day, offset, atom, step) in enumerate(rows)
    ]


@settings(max_examples=300, deadline=None)
@given(
    PIECES,
    st.sampled_from(["sessions", "atoms", "flat"]),
    st.booleans(),
    st.integers(0, 400) | st.just(10**9),
    st.sampled_from(sorted(TEMPLATES)),
)
def test_f45_and_f49_budget_holds_and_text_reads_back(
    rows: list[Any], layout: str, fold: bool, budget: int, template: str
) -> None:
    filled = pack(build(rows, WORDS), budget, layout=layout, fold=fold, template=template)
    assert filled.tokens == WORDS(filled.text) <= budget
    assert read_back(filled, template=template) == shown(filled, template=template)
    days = [chunk.day for chunk in unfold(filled.text, template)]
    assert days == [day_of(packed.piece.instant) for packed in filled.packed]
    assert [chunk.copies for chunk in unfold(filled.text, template)] == [
        p.copies for p in filled.packed
    ]
    if budget == 10**9:
        assert sum(packed.copies for packed in filled.packed) == len(rows)


@settings(max_examples=200, deadline=None)
@given(PIECES, st.booleans(), st.integers(0, 400))
def test_f45_budget_holds_for_a_counter_that_does_not_add_up(
    rows: list[Any], fold: bool, budget: int
) -> None:
    filled = pack(build(rows, BYTES), budget, fold=fold, counter=BYTES)
    assert BYTES(filled.text) <= budget
    assert filled.tokens == BYTES(filled.text)
    assert read_back(filled) == shown(filled)
