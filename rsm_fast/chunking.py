"""Turns to chunks: how a session's turns are grouped, and how an over-long text is split.

A chunk never crosses a session. A text longer than the embedder's window is split at
sentence ends; the parts put together are the text again, character by character.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator

__all__ = ["PLAIN_ROLES", "chunk_text", "embedded_text", "split_text", "text_hash"]

# A sentence ends behind . ! ? ... or their wide forms with closing quotes, or at a line break;
# the white space that follows belongs to the sentence before it. The first character decides
# which, so that the search can run from one such character to the next.
_SENTENCE_END = re.compile(
    r"[.!?\u2026\u3002\uff01\uff1f\n]"
    r"(?:(?<=[.!?\u2026])[.!?\u2026]*[\"'\u201d\u2019)\]]*\s+"
    r"|(?<=[\u3002\uff01\uff1f])[\u3002\uff01\uff1f]*|(?<=\n)\n*)"
)
_WORD_END = re.compile(r"\s+")


def chunk_text(parts: Iterable[tuple[str, str]]) -> str:
    """The text of a chunk from its parts (role, text): bare for one part, else with roles."""
    listed = list(parts)
    if len(listed) == 1:
        return listed[0][1]
    return "\n".join([f"{role}: {text}" for role, text in listed])


PLAIN_ROLES = frozenset({"user", "assistant", "system", "tool", "human", "ai", "agent", "bot"})
"""Roles that say nothing about who speaks; any other is a name, and is embedded and indexed."""


def embedded_text(parts: Iterable[tuple[str, str]]) -> str:
    """What is embedded and indexed of a chunk: its text, with the speaker if that is a name."""
    listed = list(parts)
    if len(listed) == 1 and listed[0][0].lower() not in PLAIN_ROLES:
        return "{}: {}".format(*listed[0])
    return chunk_text(listed)


def text_hash(text: str) -> int:
    """Signed 64-bit hash of a text in Unicode NFC, white space around it left out."""
    data = unicodedata.normalize("NFC", text).strip().encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def split_text(text: str, *, window: int, count_tokens: Callable[[str], int]) -> list[str]:
    """Split a text into parts of at most ``window`` tokens, at sentence ends where possible.

    A sentence that alone exceeds the window is split at white space, and a word that alone
    does, between characters. ``"".join(parts) == text`` always holds.

    Parameters
    ----------
    text : str
        Any text.
    window : int
        Largest number of tokens of a part, at least 1.
    count_tokens : callable
        Tokens of a text, in the unit of the window.

    Returns
    -------
    list of str
        One part for a text whose sentences fit together, else two or more non-empty ones.
    """
    parts: list[str] = []
    current = ""
    used = 0
    for piece in _cut(text, _SENTENCE_END):
        cost = count_tokens(piece)
        if current and used + cost > window:
            parts.append(current)
            current, used = "", 0
        if cost > window:
            parts.extend(_split_sentence(piece, window, count_tokens))
        else:
            current += piece
            used += cost
    if current:
        parts.append(current)
    return _with_no_blank_part(parts)


def _cut(text: str, boundary: re.Pattern[str]) -> Iterator[str]:
    start = 0
    for match in boundary.finditer(text):
        if match.end() > start:
            yield text[start : match.end()]
            start = match.end()
    if start < len(text):
        yield text[start:]


def _split_sentence(text: str, window: int, count_tokens: Callable[[str], int]) -> Iterator[str]:
    current = ""
    used = 0
    for word in _cut(text, _WORD_END):
        cost = count_tokens(word)
        if current and used + cost > window:
            yield current
            current, used = "", 0
        if cost > window:
            yield from _split_word(word, window, count_tokens)
        else:
            current += word
            used += cost
    if current:
        yield current


def _split_word(word: str, window: int, count_tokens: Callable[[str], int]) -> Iterator[str]:
    if len(word) <= window or count_tokens(word) <= window or len(word) == 1:
        yield word
        return
    middle = len(word) // 2
    yield from _split_word(word[:middle], window, count_tokens)
    yield from _split_word(word[middle:], window, count_tokens)


def _with_no_blank_part(parts: list[str]) -> list[str]:
    """Glue parts of white space alone to the part before (or after, at the beginning)."""
    glued: list[str] = []
    lead = ""
    for part in parts:
        if part.strip():
            glued.append(lead + part)
            lead = ""
        elif glued:
            glued[-1] += part
        else:
            lead += part
    return glued or [lead]
