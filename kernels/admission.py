"""Filling a pack: which chunks go in, at what cost, under a hard budget.

The columns are those of `rsm_fast.kernels.offers`. Maps are open tables of a power of two of
keys, with values of `FREE` where no key is. Callers check; kernels trust.
"""

import numpy as np

from rsm_fast.kernels.jit import I32, I64, Int, kernel
from rsm_fast.kernels.offers import (
    ADDED,
    ADMITTED,
    BELIEVED,
    BODY,
    CONSIDERED,
    DAY,
    DAY_COST,
    DONE,
    FIRST_ROLE,
    FOLDED,
    FORM,
    FOUND,
    FREE,
    FULL,
    KNOWN,
    LABEL,
    LABELS,
    LAST_ROLE,
    LEAD,
    LEAST,
    LINE_SAME,
    LINES,
    LINES_END,
    LINES_SAME,
    MAX_MISSES,
    MISSES,
    NAMED_LEAD,
    NEXT,
    NEXT_OFFER,
    RANK,
    REST_SAME,
    ROOM,
    SAVED,
    SEEN,
    SHOWN,
    SINGLE,
    SKIPPED,
    TOKENS,
    TURN,
    TWIN,
    UNREAD,
)

__all__ = ["ADMISSION", "COLUMNS", "admit_", "insert_entry_", "remove_entry_", "spread_"]

COLUMNS = "int64[::1], int64[::1], int64[::1], int32[::1], int64[::1], int64[::1], int64[:, ::1]"
"""Columns of offers beside their rows, spelled out in a signature: from `micros` to `prices`."""

ADMISSION = (
    "int64[::1], int64[::1], int64[:, ::1], int64[:, ::1], int64[::1], int32[::1], int64[::1], "
    "int32[::1], int64[::1], int32[::1], int64[::1], int32[::1], int64, int64, int64"
)
"""What an admission changes and goes by, spelled out in a signature: from `tally` to `checked`."""


@kernel("int64(int64[::1], int32[::1], int64)", inline=True)
def _place(keys: I64, values: I32, key: Int) -> Int:
    """Where a key of a map stands, or would."""
    mask = keys.size - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    at = np.int64(mixed >> np.uint64(32)) & mask
    while values[at] != FREE and keys[at] != key:
        at = (at + 1) & mask
    return at


@kernel("void(int64[::1], int32[::1], int64[::1], int32[::1])")
def spread_(keys: I64, values: I32, new_keys: I64, new_values: I32) -> None:
    """Put all keys of a map into an empty one."""
    for at in range(keys.size):
        if values[at] != FREE:
            place = _place(new_keys, new_values, keys[at])
            new_keys[place] = keys[at]
            new_values[place] = values[at]


@kernel("int64(int64[:, ::1], int64[:, ::1], int64[::1], int64, int64, int64)", inline=True)
def _lead(entries: I64, prices: I64, headers: I64, before: Int, entry: Int, ditto: Int) -> Int:
    """Tokens of the frame between an entry and the one before it (-1: none) in its section."""
    shown = entries[entry, SHOWN]
    if before < 0:
        return entries[entry, NAMED_LEAD] + prices[shown, DAY_COST] + headers[shown]
    cost = 0
    earlier = prices[entries[before, SHOWN], DAY]
    other_day = earlier != prices[shown, DAY]
    if other_day:
        cost += prices[shown, DAY_COST]
    last_role = prices[entries[before, FORM], LAST_ROLE]
    if other_day or ditto == 0 or last_role != prices[entries[entry, FORM], FIRST_ROLE]:
        return cost + entries[entry, NAMED_LEAD]
    return cost + entries[entry, LEAD]


@kernel("int64(int64[:, ::1], int32[::1], int64[::1], int64, int64)", inline=True)
def _before(entries: I64, rows: I32, micros: I64, first: Int, offer: Int) -> Int:
    """The last entry of a section that stands before an offer, -1 if none does."""
    found = -1
    at = first
    while at >= 0:
        shown = entries[at, SHOWN]
        if micros[shown] > micros[offer] or (
            micros[shown] == micros[offer] and rows[shown] >= rows[offer]
        ):
            break
        found = at
        at = entries[at, NEXT]
    return found


@kernel(
    "int64(int64[::1], int64[:, ::1], int64[:, ::1], int32[::1], int64[::1], int64[::1],"
    " int64[::1], int64[::1], int32[::1], int64, int64, int64)"
)
def insert_entry_(
    tally: I64,
    entries: I64,
    prices: I64,
    rows: I32,
    micros: I64,
    section: I64,
    headers: I64,
    section_keys: I64,
    section_first: I32,
    entry: Int,
    ditto: Int,
    limit: Int,
) -> Int:
    """Put an entry in its place, unless that adds more than `limit` tokens.

    Returns
    -------
    int
        Tokens that it adds, or would.
    """
    shown = entries[entry, SHOWN]
    at = _place(section_keys, section_first, section[shown])
    first = max(np.int64(section_first[at]), np.int64(-1))
    before = _before(entries, rows, micros, first, shown)
    after = entries[before, NEXT] if before >= 0 else first
    added = _lead(entries, prices, headers, before, entry, ditto)
    added += prices[entries[entry, FORM], BODY]
    if after >= 0:
        added += _lead(entries, prices, headers, entry, after, ditto)
        added -= _lead(entries, prices, headers, before, after, ditto)
    if added > limit:
        return added
    tally[TOKENS] += added
    entries[entry, NEXT] = after
    if before >= 0:
        entries[before, NEXT] = entry
    else:
        section_keys[at] = section[shown]
        section_first[at] = entry
    return added


@kernel(
    "void(int64[::1], int64[:, ::1], int64[:, ::1], int32[::1], int64[::1], int64[::1],"
    " int64[::1], int64[::1], int32[::1], int64, int64)"
)
def remove_entry_(
    tally: I64,
    entries: I64,
    prices: I64,
    rows: I32,
    micros: I64,
    section: I64,
    headers: I64,
    section_keys: I64,
    section_first: I32,
    entry: Int,
    ditto: Int,
) -> None:
    """Take an entry out of its place."""
    shown = entries[entry, SHOWN]
    at = _place(section_keys, section_first, section[shown])
    before = _before(entries, rows, micros, np.int64(section_first[at]), shown)
    after = entries[entry, NEXT]
    less = _lead(entries, prices, headers, before, entry, ditto)
    less += prices[entries[entry, FORM], BODY]
    if after >= 0:
        less += _lead(entries, prices, headers, entry, after, ditto)
        less -= _lead(entries, prices, headers, before, after, ditto)
    tally[TOKENS] -= less
    if before >= 0:
        entries[before, NEXT] = after
    else:
        section_first[at] = after


@kernel("int64(int64[::1], int64, int64, int64, int64[::1], int32[::1])")
def _saving(pool: I64, start: Int, end: Int, label: Int, keys: I64, values: I32) -> Int:
    """Tokens that references are going to save if turns join a pack whose keys are given."""
    total = 0
    more = label - LABELS
    at = start
    while at < end:
        lines = pool[at + 2]
        first = at + TURN
        last = first + 2 * lines
        if lines > 0 and values[_place(keys, values, pool[at])] != FREE:
            total += max(0, pool[at + 1] - REST_SAME - more)
            at = last
            continue
        saved, run, length = 0, 0, 0
        for line in range(first, last, 2):
            if values[_place(keys, values, pool[line])] != FREE:
                run += pool[line + 1]
                length += 1
            elif run > 0:
                saved += run - (LINE_SAME if length == 1 else LINES_SAME) - more
                run, length = 0, 0
        if run > 0:
            # the last lines of a turn are mostly the last lines of the other one, too
            saved += run - REST_SAME - more
        total += max(0, saved)
        at = last
    return total


@kernel("int64(int64[::1], int64, int64, int64[::1], int32[::1])")
def _join(pool: I64, start: Int, end: Int, keys: I64, values: I32) -> Int:
    """Add the keys of turns to a map; gives how many of them are new."""
    new = 0
    at = start
    while at < end:
        lines = pool[at + 2]
        last = at + TURN + 2 * lines
        if lines > 0:
            # where the whole is one line, its key is that of the line
            for line in range(at if pool[at + 3] != 0 else at + TURN, last, 2):
                if line == at + 2:
                    continue
                place = _place(keys, values, pool[line])
                if values[place] == FREE:
                    keys[place] = pool[line]
                    values[place] = 0
                    new += 1
        at = last
    return new


@kernel(f"int64(int32[::1], {COLUMNS}, {ADMISSION})")
def admit_(
    rows: I32,
    micros: I64,
    section: I64,
    headers: I64,
    tokens: I32,
    texts: I64,
    twins: I64,
    prices: I64,
    tally: I64,
    pool: I64,
    entries: I64,
    skipped: I64,
    section_keys: I64,
    section_first: I32,
    text_keys: I64,
    text_values: I32,
    twin_keys: I64,
    twin_entries: I32,
    seen_keys: I64,
    seen_values: I32,
    ditto: Int,
    fold: Int,
    checked: Int,
) -> Int:
    """Admit offers in their order until they end, or nothing has fitted for a long time.

    An offer is charged what it adds to the text: its lines, the headers and speakers' names
    that only it needs, less what references to lines of the pack will save. One that is
    longer than there is room (with folding: than it may fold into) is passed over, unless its
    text is in the pack.

    Parameters
    ----------
    rows, micros : (k,) int32, int64
        What entries of a section are put in order by.
    section : (k,) int64
        Key of the section that each belongs to.
    headers : (k,) int64
        Tokens of a section's header beside the day, -1 where they are not known.
    tokens : (k,) int32
        Tokens of the stored text.
    texts, twins : (k,) int64
        Equal for equal texts; equal for byte-equal chunks.
    prices : (k, PRICES) int64
    tally : (TALLIES,) int64
        Changed in place.
    pool : int64
        Turns and lines, see `rsm_fast.kernels.offers`.
    entries, skipped : (k, ENTRY), (k, 3) int64
        What came in; what did not, with the tokens that it would add and its rank.
    section_keys, ..., seen_values
        Maps: from section to first entry, of texts, from twins to entries, of lines and turns.
    ditto : int
        1 if a speaker is named only where it changes.
    fold : int
        1 if repeated lines are folded.
    checked : int
        The offer that is no copy of what is in, although its key is; -1: none.

    Returns
    -------
    int
        `DONE`, `UNREAD`, `TWIN` or `FULL`; with the last three nothing of the offer at
        ``tally[NEXT_OFFER]`` was counted.
    """
    for offer in range(tally[NEXT_OFFER], rows.size):
        tally[NEXT_OFFER] = offer
        if tally[MISSES] >= MAX_MISSES:
            return DONE
        room = tally[ROOM] - (tally[TOKENS] - tally[BELIEVED])
        folding = fold != 0 and tally[BELIEVED] > 0
        if tokens[offer] > (FOLDED * room if folding else room):
            if text_values[_place(text_keys, text_values, texts[offer])] == FREE:
                continue
        if prices[offer, KNOWN] == 0 or headers[offer] < 0:
            return UNREAD
        twin = _place(twin_keys, twin_entries, twins[offer])
        single = prices[offer, SINGLE] != 0 or offer == checked
        if not single and twin_entries[twin] != FREE:
            tally[FOUND] = twin_entries[twin]
            return TWIN
        start, end = prices[offer, LINES], prices[offer, LINES_END]
        if fold != 0 and 2 * (tally[SEEN] + (end - start) // 2) >= seen_keys.size:
            return FULL
        tally[CONSIDERED] += 1
        least = prices[offer, LEAST]
        saved = 0
        if fold != 0 and (least <= room or (folding and least <= FOLDED * room)):
            saved = _saving(pool, start, end, prices[offer, LABEL], seen_keys, seen_values)
            least -= saved
        added = least
        if least <= room:
            entry = tally[ADMITTED]
            entries[entry, FORM] = offer
            entries[entry, SHOWN] = offer
            entries[entry, LEAD] = prices[offer, LEAD]
            entries[entry, NAMED_LEAD] = prices[offer, NAMED_LEAD]
            added = insert_entry_(
                tally, entries, prices, rows, micros, section, headers, section_keys,
                section_first, entry, ditto, room + saved,
            ) - saved  # fmt: skip
            if added <= room:
                entries[entry, ADDED] = added
                entries[entry, SAVED] = saved
                entries[entry, RANK] = tally[CONSIDERED]
                tally[ADMITTED] += 1
                tally[BELIEVED] += saved
                tally[MISSES] = 0
                if not single:
                    twin_keys[twin] = twins[offer]
                    twin_entries[twin] = entry
                place = _place(text_keys, text_values, texts[offer])
                text_keys[place] = texts[offer]
                text_values[place] = entry
                if fold != 0:
                    tally[SEEN] += _join(pool, start, end, seen_keys, seen_values)
                continue
        at = tally[SKIPPED]
        skipped[at, 0] = offer
        skipped[at, 1] = added
        skipped[at, 2] = tally[CONSIDERED]
        tally[SKIPPED] += 1
        tally[MISSES] += 1
    tally[NEXT_OFFER] = rows.size
    return DONE
