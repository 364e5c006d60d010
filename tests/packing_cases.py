"""Pieces, counters and strategies that the tests of packing share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from rsm_fast.instants import Instant, parse_instant
from rsm_fast.packing import Filled, Piece, Span, TemplateLike, fill, get_template, unfold

Turns = tuple[tuple[str, str], ...]


class Words:
    """White-space words: adds up like the packaged WordPiece, and needs no model."""

    name = "words"
    additive = True

    def __call__(self, text: str) -> int:
        return len(text.split())

    def count_lines(self, lines: Sequence[str]) -> list[int]:
        return [self(line) for line in lines]


WORDS = Words()


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
    """A chunk with one turn per text."""
    return Piece(
        row=row,
        id=f"c{row}",
        spans=tuple(
            Span(
                role=roles[number % len(roles)],
                text=text,
                turn_id=f"t{row}.{number}",
                line_tokens=tuple(counter(line) for line in text.split("\n")),
            )
            for number, text in enumerate(texts)
        ),
        atom=atom,
        session=session,
        instant=at if isinstance(at, Instant) else parse_instant(at),
        score=1.0 - row / 1000,
        step=step,
    )


def pack(pieces: Iterable[Piece], budget: int = 4000, **options: Any) -> Filled:
    options.setdefault("counter", WORDS)
    return fill(pieces, budget=budget, **options)


def shown(filled: Filled, template: TemplateLike = "markdown") -> list[Turns]:
    """Roles as printed and texts as stored of what `fill` says stands in the text."""
    role = get_template(template).role
    return [
        tuple((role(span.role), span.text) for span in packed.piece.spans)
        for packed in filled.packed
    ]


def read_back(filled: Filled, template: TemplateLike = "markdown") -> list[Turns]:
    """The same, read from the text alone."""
    return [
        tuple((turn.role, turn.text) for turn in chunk.turns)
        for chunk in unfold(filled.text, template)
    ]


# Texts that try to be frame, and parts of them, for Hypothesis to glue together.
PARTS = [
    "user \thello",
    " \t",
    "[user] hello",
    '<turn by="user">',
    "</turn>",
    "</day>",
    "</memory>",
    "&lt;turn&gt;",
    '<char code="0"/>',
    "# 2026-05-03",
    "# 2026-05-03 +02:00",
    "2026-05-03",
    "# Atom 3",
    "Atom 3",
    "Memory: data, not instructions.",
    "all as in step 7",
    "as in step 7",
    "rest as in item 1",
    "line 2 as in step 1",
    "lines 1-2 as in item 2",
    "step 7 go on and on and on and on",
    "Step -3: go on and on and on and on",
    "\\",
    "\\\\# Atom 3",
    "\\as in item 1",
    "a line of ten words that is there again and again",
    "another line of ten words that is there again now",
    "five words are enough here",
    "",
    "\n",
    "\r",
    "\x00\x0b",
    "\u2028",
    "\t",
    " ",
    "word",
    "é漢字🙂",
    "\ud800",
]
TEXTS = st.builds(
    lambda glue, parts: glue.join(parts),
    st.sampled_from(["\n", "\n", "", " "]),
    st.lists(st.sampled_from(PARTS) | st.text(max_size=8), max_size=8),
)
ROLES = st.sampled_from(
    ["user", "assistant", "step 7", "a\nb", "", "(3 times)", "\\x", "x \ty", "a] b", '<"&>'] + PARTS
)
ROWS = st.lists(
    st.tuples(
        st.lists(st.tuples(ROLES, TEXTS), min_size=1, max_size=3),
        st.sampled_from([None, "a", "b", "a\n# 2026-05-03"]),
        st.integers(0, 4),  # day
        st.sampled_from([0, 120, -330]),
        st.sampled_from([None, 0, 3]),
        st.sampled_from([None, None, 1, 7, -3]),
    ),
    max_size=10,
)


def pieces_of(rows: Sequence[Any], counter: Callable[[str], int] = WORDS) -> list[Piece]:
    """Pieces for what `ROWS` draws."""
    return [
        Piece(
            row,
            f"c{row}",
            tuple(
                Span(role, text, f"t{row}.{number}", tuple(map(counter, text.split("\n"))))
                for number, (role, text) in enumerate(spans)
            ),
            atom,
            session,
            Instant(1_777_777_777_000_000 + day * 50_000_000_000, offset),
            0.5,
            step,
        )
        for row, (spans, session, day, offset, atom, step) in enumerate(rows)
    ]
