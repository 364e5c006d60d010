"""The bounded memory of words: true, bounded, and what is in use stays."""

from __future__ import annotations

from rsm_fast.recent import Recent


def lengths(most: int) -> tuple[Recent[int], list[str]]:
    asked: list[str] = []

    def look_up(word: str) -> int:
        asked.append(word)
        known.keep({word: len(word)})
        return len(word)

    known = Recent(look_up, most=most)
    return known, asked


def test_a_word_is_looked_up_once_while_it_is_in_use() -> None:
    known, asked = lengths(20)
    for number in range(200):
        assert known["often"] == 5
        word = f"word {number}"
        assert known[word] == len(word)
        assert known.size <= 20
    assert asked.count("often") == 1
    assert known["word 0"] == 6 and asked.count("word 0") == 2  # forgotten meanwhile


def test_what_is_lacking_is_neither_in_the_younger_nor_in_the_older_generation() -> None:
    known, asked = lengths(8)
    for word in "abcdef":
        assert known[word] == 1
    assert known.lacking(["a", "f", "g", "g"]) == {"g"}
    assert asked == list("abcdef")


def test_many_words_at_once_are_kept_as_far_as_there_is_room() -> None:
    known, _ = lengths(10)
    known.keep({str(number): number for number in range(100)})
    assert known.size <= 10 and known["3"] == 3


def test_one_word_at_a_time_is_kept_within_bounds() -> None:
    known, asked = lengths(10)
    for number in range(100):
        known.put(str(number), number)
        assert known.size <= 10
    assert known["99"] == 99 and known["95"] == 95 and not asked
