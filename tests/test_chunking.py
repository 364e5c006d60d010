"""Splitting of over-long texts: nothing is lost, every part fits, sentences stay whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rsm_fast.chunking import split_text


def count_words(text: str) -> int:
    return len(text.split())


def test_a_text_that_fits_is_one_part() -> None:
    assert split_text("One. Two.", window=2, count_tokens=count_words) == ["One. Two."]


def test_splits_at_sentence_ends() -> None:
    text = "We met on Monday. It rained! Did you see it? Nobody did.\nThe end."
    parts = split_text(text, window=5, count_tokens=count_words)
    assert "".join(parts) == text
    assert parts == [
        "We met on Monday. ",
        "It rained! ",
        "Did you see it? ",
        "Nobody did.\nThe end.",
    ]
    assert all(count_words(part) <= 5 for part in parts)


def test_f20_a_sentence_longer_than_the_window_is_split_at_white_space() -> None:
    text = " ".join(f"w{i}" for i in range(100))
    parts = split_text(text, window=7, count_tokens=count_words)
    assert "".join(parts) == text
    assert all(count_words(part) <= 7 for part in parts)


def test_a_word_longer_than_the_window_is_split_between_characters() -> None:
    parts = split_text("x" * 100, window=8, count_tokens=len)
    assert "".join(parts) == "x" * 100
    assert all(len(part) <= 8 for part in parts)


@given(st.text(max_size=400), st.integers(1, 50))
def test_nothing_is_lost_and_no_part_is_blank(text: str, window: int) -> None:
    parts = split_text(text, window=window, count_tokens=count_words)
    assert "".join(parts) == text
    assert len(parts) == 1 or all(part.strip() for part in parts)


@given(st.text(alphabet="ab .!?\n", max_size=300), st.integers(1, 20))
def test_every_part_fits_the_window(text: str, window: int) -> None:
    parts = split_text(text, window=window, count_tokens=count_words)
    assert all(count_words(part) <= window for part in parts)
