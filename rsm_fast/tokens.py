"""Token counters: what a budget is measured in.

The default is the WordPiece tokenizer of the packaged MiniLM where it is installed, else
UTF-8 bytes divided by three. Any callable ``str -> int`` will do as well.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from string import punctuation
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from rsm_fast.errors import InvalidInputError, MissingDependencyError, ModelFileError
from rsm_fast.modelfiles import PACKAGED_TOKENIZER, check_file, packaged_file
from rsm_fast.recent import Recent

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = [
    "ByteCounter",
    "CallableCounter",
    "PlainTokenizerCounter",
    "TokenCounter",
    "WordPieceCounter",
    "as_token_counter",
    "load_tokenizer",
    "packaged_counter",
    "shared_counter",
    "shared_tokenizer",
    "without_surrogates",
]

_T = TypeVar("_T")


class TokenCounter(Protocol):
    r"""Counts the tokens of a text.

    Attributes
    ----------
    name : str
        Unit of the counts, shown in results.
    additive : bool
        True if ``count(a + "\n" + b) <= count(a) + count(b)`` for any texts, so that
        stored counts of lines bound the count of their join.
    """

    name: str
    additive: bool

    def __call__(self, text: str) -> int:
        """Tokens of ``text``, 0 or more."""

    def count_lines(self, lines: Sequence[str]) -> list[int]:
        """Tokens of each line, as `__call__` would count them."""


def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 consumer accepts, by ``?``."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


class ByteCounter:
    """UTF-8 bytes divided by three, rounded up: no model needed.

    English prose has four to five bytes to a token, so this errs on the safe side for it,
    as for most scripts (a Chinese character has three bytes and mostly one token). Not
    additive: two roundings may be less than one.
    """

    name = "utf8-bytes/3"
    additive = False

    def __call__(self, text: str) -> int:
        """ceil(bytes / 3)."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        return (size + 2) // 3

    def count_lines(self, lines: Sequence[str]) -> list[int]:
        """ceil(bytes / 3) of each line."""
        return [self(line) for line in lines]


class CallableCounter:
    """A caller's function ``str -> int`` as a `TokenCounter`; its results are checked.

    Parameters
    ----------
    function : callable
        Counts the tokens of one text.
    name : str, optional
        Unit shown in results. Default: the function's own name.
    additive : bool
        Whether the promise of `TokenCounter.additive` holds. Without it a pack is counted
        as a whole, which is always right.
    """

    def __init__(
        self, function: Callable[[str], int], *, name: str | None = None, additive: bool = False
    ) -> None:
        self._function = function
        self.name = name or str(getattr(function, "__qualname__", type(function).__name__))
        self.additive = additive

    def __call__(self, text: str) -> int:
        """Tokens of ``text``; `InvalidInputError` where the function gives no count."""
        count = self._function(text)
        try:
            whole = int(count)
        except (TypeError, ValueError):
            whole = -1
        if whole < 0 or whole != count:
            raise InvalidInputError(
                f"count_tokens ({self.name}): expected a whole number of tokens >= 0, "
                f"got {count!r} for a text of {len(text)} characters"
            )
        return whole

    def count_lines(self, lines: Sequence[str]) -> list[int]:
        """Tokens of each line."""
        return [self(line) for line in lines]


class PlainTokenizerCounter:
    """Counts with any `tokenizers.Tokenizer`, special tokens of the template left out."""

    additive = False

    def __init__(self, tokenizer: Tokenizer, *, name: str) -> None:
        self._tokenizer = tokenizer
        self.name = name

    def __call__(self, text: str) -> int:
        """Tokens of ``text``."""
        return len(self._tokenizer.encode(without_surrogates(text), add_special_tokens=False))

    def count_lines(self, lines: Sequence[str]) -> list[int]:
        """Tokens of each line."""
        return [self(line) for line in lines]


# What str.split() takes for white space but BERT's normaliser deletes, joining its sides.
_CONTROL_SPACES: Final = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"
_SPACES: Final = re.compile(rf"[^\S{_CONTROL_SPACES}]+")
# Characters that BERT's pre-tokeniser always cuts off as words of their own: ASCII and
# common general punctuation, and ideographs. The rest of a long word comes in runs.
_ALONE: Final = (
    "!-/:-@\\[-`{-~"
    "\u2010-\u2027\u2030-\u2043\u2045-\u2051\u2053-\u205e\u3001-\u3003\u3008-\u3011"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df"
)
_LONGEST_CACHED_WORD: Final = 48
_MOST_CACHED_WORDS: Final = 64_000  # about 13 MB
_WORDS_PER_CALL: Final = 2_000
_MANY_LINES: Final = 256


class WordPieceCounter:
    """Counts and ids of a BERT-type WordPiece tokenizer, by a cache of words.

    BERT's normaliser works character by character, its pre-tokeniser always cuts at white
    space, and WordPiece looks at one word at a time. So the tokens of a text are those of
    its words in turn, and texts repeat their words: on real conversations this is an order
    of magnitude faster than tokenising (``bench/embedding_tokens.py``), with equal results
    (``tests/test_tokens.py``). For the same reason the count is additive over newlines,
    exactly. A special token written out in a text (``[CLS]``) counts as one, as it does for
    the tokenizer; the template's own are not counted.

    One thing counts more than the tokenizer would say. To WordPiece a word over 100 letters,
    such as a file in base64, or one in a script that its vocabulary lacks is a single
    ``[UNK]``, and control characters are nothing, whatever their number. No budget could be
    kept that way: a word with an unknown part, or of which nothing is left, counts at least
    a third of its UTF-8 bytes.

    Safe to use from several threads. The cache is bounded.

    Parameters
    ----------
    load : callable
        Gives the tokenizer, truncation and padding off; called at the first use.
    name : str
        Unit shown in results.
    """

    additive = True

    def __init__(self, load: Callable[[], Tokenizer], *, name: str) -> None:
        self.name = name
        self._load = load
        self._ids_of = Recent(self._looked_up, most=_MOST_CACHED_WORDS)
        self._size_of = Recent(self._sized, most=_MOST_CACHED_WORDS)
        self._tokenizer: Tokenizer | None = None
        self._unknown: int | None = None
        self._cuts: re.Pattern[str] = re.compile("")
        self._specials: frozenset[str] = frozenset()
        self._cut_alike = False
        self._lowercase = True
        self._model: Any = None

    def __call__(self, text: str) -> int:
        """Tokens of ``text``."""
        return sum(map(self._size_of.__getitem__, _words(text)))

    def count_lines(self, lines: Sequence[str]) -> list[int]:
        """Tokens of each line."""
        return self.count_words(self.split(lines))

    def split(self, lines: Sequence[str]) -> list[list[str]]:
        """Words of each line, cut at white space only."""
        if _has_control_space("".join(lines)):
            return [_words(line) for line in lines]
        return [line.split() for line in lines]

    def count_words(self, lines: Sequence[Sequence[str]]) -> list[int]:
        """Tokens of lines that `split` gave."""
        size_of = self._size_of.__getitem__
        if len(lines) >= _MANY_LINES:  # their new words are tokenised in one go
            new = self._ids_of.lacking(chain.from_iterable(lines))
            self._tokenised([word for word in new if len(word) <= _LONGEST_CACHED_WORD])
        return [sum(map(size_of, words)) for words in lines]

    def ids(self, text: str) -> list[int]:
        """Ids of the tokens of ``text``, in order."""
        return list(chain.from_iterable(map(self._ids_of.__getitem__, _words(text))))

    def __getstate__(self) -> object:
        raise TypeError(f"{type(self).__name__} cannot be pickled; make one in each process")

    def _looked_up(self, word: str) -> tuple[int, ...]:
        """Ids of a word that the cache lacks."""
        if len(word) > _LONGEST_CACHED_WORD:
            pieces, found = self._cut_up(word)
            return tuple(chain.from_iterable(map(found.__getitem__, pieces)))
        ids = self._encoded(word)
        self._ids_of.put(word, ids)
        return ids

    def _sized(self, word: str) -> int:
        """Count of a word that the cache lacks."""
        if len(word) > _LONGEST_CACHED_WORD:
            pieces, found = self._cut_up(word)
            sizes = {piece: self._size(piece, ids) for piece, ids in found.items()}
            return sum(map(sizes.__getitem__, pieces))
        size = self._size(word, self._ids_of[word])
        self._size_of.put(word, size)
        return size

    def _size(self, word: str, ids: tuple[int, ...]) -> int:
        """What a word of these ids counts; see the class."""
        if ids and self._unknown not in ids:
            return len(ids)
        visible = word.strip(_CONTROL_SPACES)
        return max(len(ids), (len(visible.encode("utf-8", "replace")) + 2) // 3)

    def _encoded(self, text: str) -> tuple[int, ...]:
        tokenizer = self._tokenizer or self._open()
        if self._cut_alike and text.isascii() and text.isprintable():
            # what normaliser and pre-tokeniser would make of it, at a fraction of their time
            pieces = self._cuts.findall(text)
            if self._specials.isdisjoint(pieces):
                if self._lowercase:
                    pieces = [piece.lower() for piece in pieces]
                ids: list[int] = []
                for piece in pieces:
                    known = self._ids_of.get(piece)
                    ids += known or [token.id for token in self._model.tokenize(piece)]
                return tuple(ids)
        clean = without_surrogates(text)
        return tuple(tokenizer.encode(clean, add_special_tokens=False).ids)

    def _cut_up(self, word: str) -> tuple[list[str], dict[str, tuple[int, ...]]]:
        """Pieces of a long word, cut where the tokenizer would, so that they repeat; their ids."""
        if self._tokenizer is None:
            self._open()
        pieces = self._cuts.findall(word)
        distinct = dict.fromkeys(pieces)
        known = self._ids_of
        found = {piece: known[piece] for piece in distinct if piece in known}
        short = (piece for piece in distinct if len(piece) <= _LONGEST_CACHED_WORD)
        found.update(self._tokenised([p for p in short if p not in found]))
        for piece in distinct:
            if piece not in found:
                found[piece] = self._encoded(piece)
        return pieces, found

    def _tokenised(self, words: list[str]) -> dict[str, tuple[int, ...]]:
        """Ids of short words, kept in the cache."""
        tokenizer = self._tokenizer or self._open()
        found: dict[str, tuple[int, ...]] = {}
        for start in range(0, len(words), _WORDS_PER_CALL):
            block = words[start : start + _WORDS_PER_CALL]
            # One call for all words, and no thread pool as encode_batch would start (a fork
            # after that warns).
            encoding = tokenizer.encode(
                [without_surrogates(word) for word in block],
                is_pretokenized=True,
                add_special_tokens=False,
            )
            lists: list[list[int]] = [[] for _ in block]
            for index, token in zip(encoding.word_ids, encoding.ids, strict=True):
                if index is not None:
                    lists[index].append(token)
            found.update(zip(block, map(tuple, lists), strict=True))
        self._ids_of.keep(found)
        return found

    def _open(self) -> Tokenizer:
        # Two threads may both do it: no lock that a fork could leave held.
        tokenizer = self._load()
        specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        choices = [re.escape(text) for text in sorted(specials, key=len, reverse=True)]
        choices += [f"[{_ALONE}]", f"[^{_ALONE}]+"]
        self._cuts = re.compile("|".join(choices))
        self._specials = frozenset(specials)
        # no special token can hide in a piece that begins with something else
        self._cut_alike = all(special[0] in punctuation for special in specials)
        self._lowercase = tokenizer.normalizer.lowercase
        self._model = tokenizer.model
        unknown = getattr(tokenizer.model, "unk_token", None)
        self._unknown = None if unknown is None else tokenizer.token_to_id(unknown)
        self._tokenizer = tokenizer
        return tokenizer


def _words(text: str) -> list[str]:
    """Cut at white space as BERT does; see `_CONTROL_SPACES`."""
    return _SPACES.split(text) if _has_control_space(text) else text.split()


def _has_control_space(text: str) -> bool:
    return any(map(text.__contains__, _CONTROL_SPACES))


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Open a ``tokenizer.json`` with the truncation and padding that it carries taken out.

    Shipped files often truncate at 128 or pad to a fixed length; whoever wants either sets
    it explicitly on the result.

    Raises
    ------
    MissingDependencyError
        If the package tokenizers cannot be imported.
    ModelFileError
        If the file is missing or no tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingDependencyError(
            f"counting tokens and local models need the package tokenizers ({error}); "
            "run: pip install tokenizers"
        ) from error
    try:
        # The library raises bare Exception for whatever is wrong with the file.
        tokenizer = Tokenizer.from_file(os.fspath(path))
    except Exception as error:
        raise ModelFileError(
            f"{path}: expected a tokenizer.json, got {error}; fetch the file again"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _is_bert(path: str | os.PathLike[str]) -> bool:
    """Whether a tokenizer.json has BERT's normaliser, pre-tokeniser and WordPiece."""
    with open(path, encoding="utf-8") as file:
        parts = json.load(file)
    added = parts.get("added_tokens") or []
    return (
        (parts.get("normalizer") or {}).get("type") == "BertNormalizer"
        and (parts["normalizer"]).get("clean_text") is True
        and (parts["normalizer"]).get("handle_chinese_chars") is True
        and (parts.get("pre_tokenizer") or {}).get("type") == "BertPreTokenizer"
        and (parts.get("model") or {}).get("type") == "WordPiece"
        and not any(
            token.get("single_word")
            or token.get("lstrip")
            or token.get("rstrip")
            or token.get("normalized")
            or " " in token.get("content", "")
            for token in added
        )
    )


@functools.lru_cache(maxsize=8)
def shared_tokenizer(path: Path, sha256: str) -> Tokenizer:
    """One tokenizer for a file in a process (see `load_tokenizer`).

    ``sha256`` is the file's hash: part of the key, so that a file that changed is read anew.
    """
    return load_tokenizer(path)


@functools.lru_cache(maxsize=8)
def shared_counter(path: Path, sha256: str) -> WordPieceCounter | PlainTokenizerCounter:
    """One counter for a ``tokenizer.json``: the fast exact one where it is BERT's WordPiece.

    Raises
    ------
    MissingDependencyError, ModelFileError
        See `load_tokenizer`.
    """
    known = sha256 == PACKAGED_TOKENIZER.sha256
    name = f"wordpiece/{'all-MiniLM-L6-v2' if known else sha256[:12]}"
    if known or _is_bert(path):
        return WordPieceCounter(lambda: shared_tokenizer(path, sha256), name=name)
    return PlainTokenizerCounter(
        shared_tokenizer(path, sha256), name=name.replace("wordpiece", "tokenizer")
    )


def packaged_counter() -> TokenCounter | None:
    """Counter of the packaged MiniLM, one for the process; None where it is not installed.

    Raises
    ------
    ModelFileError
        If the installed file is not the known one.
    """
    path = packaged_file(PACKAGED_TOKENIZER)
    if path is None:
        return None
    check_file(
        path,
        size=PACKAGED_TOKENIZER.size,
        sha256=PACKAGED_TOKENIZER.sha256,
        mend=f"run: {PACKAGED_TOKENIZER.install}",
    )
    return shared_counter(path, PACKAGED_TOKENIZER.sha256)


def as_token_counter(value: Callable[[str], int] | TokenCounter | None = None) -> TokenCounter:
    """Make a `TokenCounter` of what a caller gave.

    Parameters
    ----------
    value : TokenCounter, callable or None
        None takes the packaged WordPiece, or `ByteCounter` where that is not installed. A
        bare callable is wrapped and its results are checked.

    Raises
    ------
    InvalidInputError
        If the value is not callable.
    """
    if value is None:
        return packaged_counter() or ByteCounter()
    if not callable(value):
        raise InvalidInputError(
            "count_tokens: expected a callable str -> int (or None for the default), "
            f"got {type(value).__name__}"
        )
    if all(hasattr(value, part) for part in ("count_lines", "additive", "name")):
        return cast(TokenCounter, value)
    return CallableCounter(value)
