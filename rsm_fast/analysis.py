"""From text to index terms: one documented function, `analyse`.

The rules, in order:

1. Text is brought to NFKC and casefolded.
2. A **word** is a run of letters, digits and combining marks, with apostrophes inside. Its
   possessive ``'s`` goes, Latin accents go, and a light English stemmer takes plural and
   verb endings off. Words of more than 64 characters are cut there.
3. **Numbers** are kept: ``"12:"`` gives ``12``, ``"007"`` gives ``7``, ``"1,000"`` gives
   ``1000``, ``"15th"`` gives ``15``, ``"3.5"`` stays.
4. Scripts written **without spaces** (Han, Kana, Thai, Lao, Khmer, Burmese ...) give single
   characters and pairs of neighbouring characters.
5. **Emoji and other symbols** beyond ASCII are terms: the run as a whole and, where it has
   several, each symbol with its modifiers.
6. **Stop words** (English, and function words of Spanish, French, German, Portuguese and
   Italian that are no English words) are left out, unless a text holds nothing else.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from rsm_fast.instants import Instant
from rsm_fast.recent import Recent

if TYPE_CHECKING:
    from rsm_fast.types import JSONValue

__all__ = [
    "ANALYSER_VERSION",
    "analyse",
    "chunk_terms",
    "date_terms",
    "pack_terms",
    "speaker_terms",
    "step_label",
    "unpack_terms",
]

ANALYSER_VERSION = 3
"""Stored with every chunk's terms; a store whose terms have another version is analysed anew."""

_LONGEST_WORD = 64
_MOST_WORDS = 1 << 16  # that are kept with their terms, about 16 MB

# Combining marks that `\w` leaves out: Latin, Cyrillic, Hebrew, Arabic, and the Indic blocks.
_MARKS = r"\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
_INDIC = r"\u0900-\u0963\u0971-\u0dff"
_UNSPACED = (
    r"\u0e00-\u0e3a\u0e40-\u0e4e\u0e80-\u0ece\u0f40-\u0fbc\u1000-\u1049\u1780-\u17d3"
    r"\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
_LETTER = rf"(?:(?![{_UNSPACED}])[^\W_]|[{_MARKS}{_INDIC}])"
_PUNCTUATION = r"\u00a0-\u00bf\u2000-\u206f\u3000-\u303f\ufe00-\ufe6f\uff00-\uff0f"
_SYMBOL = rf"[^\w\s\x00-\x7f{_PUNCTUATION}\ud800-\udfff]"
_JOINED = r"[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff]|\u200d"

_TOKEN = re.compile(
    rf"[0-9]++(?:[.,][0-9]++)+"
    rf"|[a-z0-9]++(?:'[a-z]++)?(?![^\x00-\x7f])"  # most words, at twice the speed
    rf"|{_LETTER}+(?:'{_LETTER}+)*"
    rf"|[{_UNSPACED}]+"
    rf"|{_SYMBOL}(?:{_SYMBOL}|{_JOINED})*"
)
_ODD_SPACES = "\x85\u1680\u2028\u2029"  # not ASCII, and left by NFKC: `_TOKEN` looks at them
_LINE_LABEL = re.compile(r"^[\s#*\[(]*step\s*#?\s*([0-9]{1,9})\b", re.IGNORECASE | re.MULTILINE)
_UNSPACED_RUN = re.compile(rf"[{_UNSPACED}]+")
_ONE_SYMBOL = re.compile(rf"{_SYMBOL}(?:[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff]|\u200d.)*")
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_ORDINAL = re.compile(r"([0-9]+)(?:st|nd|rd|th)")
_ACCENT = re.compile(r"[\u0300-\u036f]")

_STOP_WORDS = frozenset(
    # English
    """a about above after again all also am an and any are aren't as at be because been before
    being below between both but by can can't cannot could couldn't did didn't do does doesn't
    doing don't down during each few for from further had hadn't has hasn't have haven't having he
    her here hers herself him himself his how i i'd i'll i'm i've if in into is isn't it its
    itself just let's me more most my myself no nor not of off on once only or other our ours
    ourselves out over own same she should shouldn't so some such than that the their theirs them
    themselves then there these they they're they've this those through to too under until up us
    very was wasn't we we'd we'll we're we've were weren't what when where which while who whom
    why will with won't would wouldn't you you'd you'll you're you've your yours yourself
    yourselves
    """.split()
    # Spanish, Portuguese, French, Italian, German: only what is no English word
    + """de la el los las un una unos unas que y en del al por con para como su sus lo le les se
    es está pero más ya muy ser são não uma um ao à às dos das no na nos nas pelo pela ou
    du et est dans pour qui ne pas sur au aux ce cette ces il elle ils nous vous je tu avec
    di che è gli della delle dei nel nella sono ho ha si
    der und ist von zu den dem ein eine einer eines ich nicht mit auf für sich auch im
    """.split()
)


def analyse(text: str, words: Iterable[str] | None = None) -> list[str]:
    """Index terms of a text, in order, repeated as often as they occur.

    Parameters
    ----------
    text : str
        Any text; lone surrogates and control characters are skipped.
    words : iterable of str, optional
        The text cut at white space, if the caller has it already.

    Returns
    -------
    list of str
        Empty only where the text is empty or white space.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        text = text.replace("’", "'")
        words = [text] if any(map(text.__contains__, _ODD_SPACES)) else None
    # No token crosses white space, so terms are looked up word by word.
    words = text.split() if words is None else words
    terms = list(chain.from_iterable(map(_terms_of.__getitem__, words)))
    if terms:
        return terms
    tokens = _TOKEN.findall(text.casefold())
    unfiltered = [_stem(token)[:_LONGEST_WORD] for token in tokens]
    return unfiltered or [
        piece[:_LONGEST_WORD].encode("utf-8", "replace").decode() for piece in text.split()
    ]


_DAY = 86_400_000_000  # microseconds


def chunk_terms(
    text: str,
    instant: Instant | None,
    roles: Iterable[str] = (),
    words: Iterable[str] | None = None,
) -> list[str]:
    """Index terms of a chunk: those of its text, of who speaks in it, and of its day.

    None stands for a time that nobody gave: the day on which a text happened to be stored is
    no word of it, and would only hide the texts that name that month or weekday. For ``words``
    see `analyse`.
    """
    terms = analyse(text, words)
    for role in dict.fromkeys(roles):
        terms += speaker_terms(role)
    if instant is not None:
        terms += _day_terms((instant.micros + instant.offset_minutes * 60_000_000) // _DAY)
    return terms


@lru_cache(maxsize=4096)
def speaker_terms(role: str) -> tuple[str, ...]:
    """Terms that stand for a speaker: those of the name behind an ``@``, which no text gives."""
    return tuple(dict.fromkeys(f"@{term}" for term in analyse(role)))


@lru_cache(maxsize=4096)
def _day_terms(day: int) -> tuple[str, ...]:
    """`date_terms` of a day counted from 1970-01-01."""
    return tuple(date_terms(Instant(day * _DAY)))


def date_terms(instant: Instant) -> list[str]:
    """Terms of a calendar day at its original offset: year, month's name, day, weekday.

    They are the terms that `analyse` gives for "3 May 2026" and "Sunday", so a question that
    names a date finds the chunks of that day.
    """
    moment = instant.to_datetime()
    return analyse(
        f"{moment.year} {_MONTHS[moment.month - 1]} {moment.day} {_WEEKDAYS[moment.weekday()]}"
    )


def step_label(text: str, metadata: Mapping[str, JSONValue] | None = None) -> int:
    """Step number of a turn: integer ``metadata["step"]``, else a line that starts "step N".

    Returns
    -------
    int
        -1 for a turn without one.
    """
    given = metadata.get("step") if metadata else None
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 2**31:
        return given
    if "step" not in text.casefold():
        return -1
    match = _LINE_LABEL.search(text)
    return int(match[1]) if match and int(match[1]) < 2**31 else -1


def pack_terms(terms: list[str]) -> bytes:
    """Terms as UTF-8 separated by newlines (no term holds white space), for the store."""
    return "\n".join(terms).encode("utf-8")


def unpack_terms(packed: bytes) -> list[str]:
    """Inverse of `pack_terms`."""
    return packed.decode("utf-8").split("\n") if packed else []


_MONTHS = (
    "January February March April May June July August September October November December"
).split()
_WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def _terms_of_word(word: str) -> tuple[str, ...]:
    """Terms of a word, remembered if it is short."""
    terms = tuple(chain.from_iterable(map(_terms_of_token, _TOKEN.findall(word.casefold()))))
    if len(word) <= _LONGEST_WORD:
        _terms_of.put(word, terms)
    return terms


_terms_of = Recent(_terms_of_word, most=_MOST_WORDS)


@lru_cache(maxsize=1 << 14)
def _terms_of_token(token: str) -> tuple[str, ...]:
    """Terms of one token; none for a stop word."""
    if token in _STOP_WORDS:
        return ()
    if token[0].isalnum() or unicodedata.category(token[0])[0] in "LMN":
        if not token.isascii() and _UNSPACED_RUN.fullmatch(token):
            return (*token, *map("".join, zip(token, token[1:], strict=False)))
        return (_stem(token)[:_LONGEST_WORD],)
    symbols = _ONE_SYMBOL.findall(token)
    return (token[:_LONGEST_WORD], *symbols) if len(symbols) > 1 else (token,)


def _stem(word: str) -> str:
    """A word without its accents and its commonest endings; a number in one form."""
    if word[0].isdigit():
        return _number(word)
    word = word.removesuffix("'s")
    if not word.isascii():
        plain = _ACCENT.sub("", unicodedata.normalize("NFD", word))
        word = unicodedata.normalize("NFC", plain) or word  # marks alone stay
    word = _without_plural(word)
    if word.endswith("ing") and len(word) > 5:
        word = _undoubled(word[:-3])
    elif word.endswith("ed") and len(word) > 4:
        word = _undoubled(word[:-2])
    return word.removesuffix("e") if len(word) > 3 else word


def _without_plural(word: str) -> str:
    """Harman's S-stemmer, and ``es`` after a hissing sound."""
    if word.endswith(("ies", "ied")) and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "ches", "shes", "xes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _undoubled(word: str) -> str:
    """``stopp`` to ``stop``; ``fall`` and ``miss`` stay."""
    doubled = len(word) > 3 and word[-1] == word[-2] and word[-1] in "bdgmnprt"
    return word[:-1] if doubled else word


def _number(word: str) -> str:
    """One spelling for equal whole numbers."""
    if word.isdecimal():  # as most are
        return word.lstrip("0") or "0"
    if _THOUSANDS.fullmatch(word):
        word = word.replace(",", "")
    ordinal = _ORDINAL.fullmatch(word)
    if ordinal:
        word = ordinal[1]
    return word.lstrip("0") or "0" if word.isdecimal() else word
