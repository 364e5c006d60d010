"""Columns of an admission: what Python and the kernel both know. Nothing here needs Numba.

An *offer* is a chunk that may go into a pack, in the order of admission. What it costs in the
pack's frame are its *prices*; a row of `PRICES` numbers. Its lines that may be folded lie in a
pool, turn after turn: `TURN` numbers for the turn, then a key and the tokens of each line.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ADDED",
    "ADMITTED",
    "BELIEVED",
    "BODY",
    "CONSIDERED",
    "DAY",
    "DAY_COST",
    "DONE",
    "ENTRY",
    "FIRST_ROLE",
    "FOLDED",
    "FORM",
    "FREE",
    "FOUND",
    "FULL",
    "KNOWN",
    "LABEL",
    "LABELS",
    "LAST_ROLE",
    "LEAD",
    "LEAST",
    "LINES",
    "LINES_END",
    "LINES_SAME",
    "LINE_SAME",
    "MAX_MISSES",
    "MISSES",
    "NAMED_LEAD",
    "NEXT",
    "NEXT_OFFER",
    "OFFERED",
    "PRICES",
    "RANK",
    "REST_SAME",
    "ROOM",
    "SAVED",
    "SEEN",
    "SHOWN",
    "SINGLE",
    "SKIPPED",
    "TALLIES",
    "TOKENS",
    "TURN",
    "TWIN",
    "UNREAD",
]

FREE: Final = -2
"""Value of a place in a map where no key is."""

MAX_MISSES: Final = 32
"""Chunks in a row that did not fit, after which no more are tried."""

FOLDED: Final = 6
"""A chunk this many times as long as the room left is not expected to fold into it. (None is,
before the first repeated line.)"""

LINE_SAME, REST_SAME, LINES_SAME, LABELS = 4, 5, 8, 2
"""Tokens of the references to one line, to the rest of a turn and to some lines of it, with a
label of so many tokens (WordPiece)."""

PRICES: Final = 13
KNOWN, LEAST, BODY, LEAD, NAMED_LEAD, DAY, DAY_COST, FIRST_ROLE, LAST_ROLE, LABEL = range(10)
LINES, LINES_END, SINGLE = 10, 11, 12
"""Of an offer: whether the rest is known; tokens of its stored lines; of its turns as printed,
but for what stands before the first, unnamed and with the speaker's name; number of its day,
and tokens of that header; numbers of its first and last role; tokens of its label in a
reference; where its lines begin and end in the pool; whether it is no copy of any other."""

TURN: Final = 4
"""Of a turn in the pool: key of its whole text, its tokens, its lines that follow, and whether
the whole is more than one line."""

ENTRY: Final = 8
FORM, SHOWN, NEXT, ADDED, SAVED, RANK = 0, 1, 2, 5, 6, 7
"""Of an entry of the pack: the offer that is printed, the newest copy, which says where it
stands, the next entry of the section (-1: none); its lead and named lead, at `LEAD` and
`NAMED_LEAD` as in the prices; tokens that it added and was believed to save, and its rank."""

TALLIES: Final = 11
NEXT_OFFER, CONSIDERED, MISSES, ADMITTED, SKIPPED, TOKENS, BELIEVED, SEEN, ROOM, FOUND = range(10)
OFFERED = 10
"""How far it has come: the next offer; offers considered, not fitting in a row, admitted,
skipped; tokens of the layout, and those that folding is believed to save; keys seen; tokens for
all but the notice; the entry that the next offer may be a copy of; offers of a whole read."""

DONE, UNREAD, TWIN, FULL = range(4)
"""Why it stopped: nothing more to do; what the next offer costs is not known; it may be a copy of
what is in; the table of keys is too small."""
