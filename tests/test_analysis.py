from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsm_fast import analysis
from rsm_fast.analysis import (
    analyse,
    chunk_terms,
    date_terms,
    pack_terms,
    speaker_terms,
    unpack_terms,
)
from rsm_fast.instants import parse_instant
from rsm_fast.recent import Recent


def shared(first, second):
    return set(analyse(first)) & set(analyse(second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("12:", "step 12"),
        ("007", "7"),
        ("1,000 EUR", "1000"),
        ("October 15th", "15"),
        ("cafés", "CAFE"),
        ("studies", "study"),
        ("stopped", "stopping"),
        ("makes", "making"),
        ("Lisbon's", "lisbon"),
        ("Zoë’s", "zoe"),
        ("user_id", "user"),
        ("猫を見ました", "黒い猫"),
        ("你好世界", "世界"),
        ("สวัสดีครับ", "สวัสดี"),
        ("नमस्ते दुनिया", "दुनिया"),
        ("😀😀", "😀"),
        ("🤷🏽‍♀️ dunno", "🤷🏽‍♀️"),
        ("１２ｋｍ", "12km"),
    ],
)
def test_what_belongs_together_meets(first, second):
    assert shared(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [("15th", "16th"), ("40 EUR", "400 dollars"), ("3.5", "3.6"), ("😀", "😡"), ("猫", "犬")],
)
def test_what_differs_stays_apart(first, second):
    assert not shared(first, second)


def test_stop_words_go_unless_nothing_else_is_there():
    assert analyse("the cat is on the mat") == ["cat", "mat"]
    assert analyse("to be or not to be") == ["to", "be", "or", "not", "to", "be"]
    assert analyse("?!") == ["?!"]


def test_accents_do_not_cut_words():
    assert analyse("Dónde naïve") == ["dond", "naiv"]


def test_a_date_is_found_by_its_day():
    terms = set(date_terms(parse_instant("2026-05-03T23:30:00+09:00")))
    assert {"2026", "3"} <= terms
    assert set(analyse("on Sunday, 3 May 2026")) <= terms


def test_speakers_have_terms_that_no_text_gives():
    assert chunk_terms("Tea for Ann", None, ["Ann", "Bo Li", "Ann"])[2:] == ["@ann", "@bo", "@li"]
    assert not set(speaker_terms("Ann")) & set(analyse("@ann @Ann: Ann"))


def test_a_very_long_word_is_cut_and_a_huge_text_is_quick_enough():
    (term,) = analyse("x" * 1_800_000)
    assert term == "x" * 64


@given(st.text())
def test_any_text_gives_terms_without_white_space(text):
    terms = analyse(text)
    assert bool(terms) == bool(text.split())
    for term in terms:
        assert term
        assert term.split() == [term]
        term.encode("utf-8")
    assert unpack_terms(pack_terms(terms)) == terms


@given(st.text())
def test_case_does_not_matter(text):
    assert analyse(text.casefold()) == analyse(text)


ODD = "abz's-’.,015st \xa0\u3000\u2028\x85\u1680\n\t\x1c\x0béÉßİ猫見カ😀🏽\u200d\ufe0f\u0301สﬁ#*"


@given(st.one_of(st.text(max_size=40), st.text(st.sampled_from(ODD), max_size=20)))
def test_words_looked_up_one_by_one_give_the_terms_of_the_whole_text(text):
    folded = text if text.isascii() else analysis.unicodedata.normalize("NFKC", text)
    tokens = analysis._TOKEN.findall(folded.replace("’", "'").casefold())
    whole = [term for token in tokens for term in analysis._terms_of_token.__wrapped__(token)]
    if whole:
        assert analyse(text) == whole


def test_the_cache_of_words_is_bounded(monkeypatch):
    monkeypatch.setattr(analysis, "_terms_of", Recent(analysis._terms_of_word, most=10))
    for number in range(100):
        assert analyse(f"word{number} cat") == [f"word{number}", "cat"]
    assert analysis._terms_of.size <= 10


def test_a_step_is_found_whatever_its_letters_look_like():
    assert analysis.step_label("ſTEP 12: open the door") == 12
    assert analysis.step_label("a stepladder") == -1


@given(st.text() | st.text(st.sampled_from("The \t\nthe\x0b\x1cA-b's 12:3.5,'")))
def test_words_that_are_cut_already_give_the_same_terms(text):
    assert analyse(text, text.split()) == analyse(text)
    assert chunk_terms(text, None, ["Bob"], text.split()) == chunk_terms(text, None, ["Bob"])
