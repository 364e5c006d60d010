from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles_retrieval import PostingsOracle, bm25_scores, window_lengths, window_of

from rsm_fast import sample
from rsm_fast.analysis import analyse, pack_terms
from rsm_fast.kernels.bm25 import window_lengths_
from rsm_fast.lexical import LexicalIndex

WORDS = st.lists(st.sampled_from("abcdefgh"), max_size=8)


def chain(sessions, alive):
    """prev and next columns as the arena keeps them: living neighbours of the same session."""
    n = len(sessions)
    prev, following = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    last = {}
    for row in range(n):
        if not alive[row]:
            continue
        before = last.get(sessions[row], -1)
        prev[row] = before
        if before >= 0:
            following[before] = row
        last[sessions[row]] = row
    return prev, following


@st.composite
def histories(draw):
    """Documents, sessions, and then rows to remove and to replace."""
    documents = draw(st.lists(WORDS, min_size=1, max_size=25))
    n = len(documents)
    sessions = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    removed = draw(st.sets(st.integers(0, n - 1), max_size=n))
    replaced = draw(st.dictionaries(st.integers(0, n - 1), WORDS, max_size=5))
    return documents, sessions, removed, {r: w for r, w in replaced.items() if r not in removed}


@given(histories(), WORDS, st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_scores_equal_the_definition(history, question, window):
    documents, sessions, removed, replaced = history
    index = LexicalIndex()
    for row, terms in enumerate(documents):
        index.append(row, terms)
    documents = [None if row in removed else d for row, d in enumerate(documents)]
    index.remove(sorted(removed))
    for row, terms in replaced.items():
        index.replace(row, terms)
        documents[row] = terms
    alive = np.array([d is not None for d in documents], np.uint8)
    prev, following = chain(sessions, alive)
    got = index.scores(question, prev=prev, next=following, alive=alive, window=window)
    expected = bm25_scores(documents, question, prev, following, alive, window, index.k1, index.b)
    assert index.living == sum(d is not None for d in documents)
    holding = [row for row, d in enumerate(documents) if d is not None and "a" in d]
    assert index.rows("a").tolist() == holding
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


@given(histories())
@settings(max_examples=100, deadline=None)
def test_postings_equal_a_dict(history):
    documents, _, removed, replaced = history
    index, oracle = LexicalIndex(), PostingsOracle()
    for row, terms in enumerate(documents):
        index.append(row, terms)
        oracle.insert(row, terms)
    for row in removed:
        index.remove(row)
        oracle.remove(row)
    for row, terms in replaced.items():
        index.replace(row, terms)
        oracle.remove(row)
        oracle.insert(row, terms)
    for term in "abcdefgh":
        assert index.document_frequency(term) == len(oracle.postings.get(term, {}))
        number = index._numbers.get(term)
        if number is not None:
            start, size = index._start[number], index._length[number]
            rows = index._pool_rows[start : start + size].tolist()
            counts = index._pool_counts[start : start + size].tolist()
            assert dict(zip(rows, counts, strict=True)) == oracle.postings[term]
            assert rows == sorted(rows)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 4), st.data())
@settings(max_examples=60, deadline=None)
def test_window_lengths_equal_the_definition(lengths, window, data):
    n = len(lengths)
    sessions = data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    alive = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.uint8)
    prev, following = chain(sessions, np.ones(n))  # links may lead over chunks left out
    out, spans = np.empty(n, np.float32), np.empty((n, 2), np.int32)
    sizes = np.array(lengths, np.float32)
    mean = window_lengths_(sizes, prev, following, alive, window, out, spans)
    expected, expected_mean = window_lengths(lengths, prev, following, alive, window)
    np.testing.assert_allclose(out, expected)
    for row, (begin, end) in enumerate(spans.tolist()):
        linked = window_of(row, prev, following, np.ones(n, np.uint8), window)
        whole = alive[linked].all() and sorted(linked) == list(range(min(linked), max(linked) + 1))
        assert (begin, end) == ((min(linked), max(linked) + 1) if whole else (-1, -1))
    assert mean == pytest.approx(expected_mean)


def test_more_chunks_than_the_pool_holds_at_first():
    index = LexicalIndex()
    for row in range(500):
        index.append(row, ["common", f"own{row}", f"pair{row // 2}"] + ["often"] * 300)
    assert index.document_frequency("common") == 500
    assert index.document_frequency("pair7") == 2
    none = np.full(500, -1, np.int32)
    scores = index.scores(["own321"], prev=none, next=none, alive=np.ones(500, np.uint8))
    assert np.flatnonzero(scores).tolist() == [321]


def test_a_chunk_without_terms_is_no_obstacle():
    index = LexicalIndex()
    index.append(0, [])
    index.append(3, ["word"])  # rows 1 and 2 belong to nobody
    none = np.full(4, -1, np.int32)
    alive = np.array([1, 0, 0, 1], np.uint8)
    scores = index.scores(["word"], prev=none, next=none, alive=alive)
    assert np.flatnonzero(scores).tolist() == [3]
    index.remove(0)
    assert index.living == 1


def test_rows_must_ascend():
    index = LexicalIndex()
    index.append(4, ["word"])
    with pytest.raises(ValueError, match="expected 5 or more"):
        index.append(4, ["word"])


def test_only_what_was_appended_can_be_removed():
    index = LexicalIndex()
    index.append(1, ["word"])
    with pytest.raises(ValueError, match=r"got \[0\]"):
        index.remove([0, 1])
    assert index.document_frequency("word") == 1


def test_an_empty_index_and_unknown_terms_score_zero():
    nothing = np.empty(0, np.int32)
    index = LexicalIndex()
    scores = index.scores(["word"], prev=nothing, next=nothing, alive=np.empty(0, np.uint8))
    assert scores.size == 0
    index.append(0, ["word"])
    none = np.full(1, -1, np.int32)
    unknown = index.scores(["other"], prev=none, next=none, alive=np.ones(1, np.uint8))
    assert unknown.tolist() == [0.0]


def test_chunks_that_are_left_out_give_nothing_to_their_neighbours():
    index = LexicalIndex()
    for row, terms in enumerate((["a"], ["b"], ["a", "c"])):
        index.append(row, terms)
    prev, following = chain([0, 0, 0], np.ones(3))
    alive = np.array([0, 1, 1], np.uint8)
    scores = index.scores(["a"], prev=prev, next=following, alive=alive, window=1)
    assert scores[0] == 0.0
    assert scores[1] > 0.0  # from row 2 alone
    alone = index.scores(
        ["a"], prev=prev, next=following, alive=np.array([0, 1, 0], np.uint8), window=1
    )
    assert alone.tolist() == [0.0, 0.0, 0.0]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=12), max_size=20),
    st.lists(st.lists(st.sampled_from("abcxyz"), max_size=6), max_size=6),
)
def test_loading_gives_what_appending_gives(stored, later):
    one, other = LexicalIndex(), LexicalIndex()
    one.load([pack_terms(terms) for terms in stored])
    for row, terms in enumerate(stored):
        other.append(row, terms)
    for row, terms in enumerate(later, len(stored)):
        one.append(row, terms)
        other.append(row, terms)
    gone = list(range(0, len(stored), 3))
    one.remove(gone)
    other.remove(gone)
    n = len(stored) + len(later)
    alive = np.ones(n, np.uint8)
    alive[gone] = 0
    links = np.arange(-1, n - 1, dtype=np.int32), np.r_[np.arange(1, n), -1].astype(np.int32)[:n]
    assert one.n == other.n and one.living == other.living
    for term in "abcxyz":
        assert one.document_frequency(term) == other.document_frequency(term)
    scores = [
        index.scores(["a", "x"], prev=links[0], next=links[1], alive=alive)
        for index in (one, other)
    ]
    np.testing.assert_array_equal(*scores)


def test_only_an_empty_index_is_loaded():
    index = LexicalIndex()
    index.append(0, ["a"])
    with pytest.raises(ValueError, match="empty"):
        index.load([b"a"])


@pytest.mark.parametrize("count", [1, 7, 8, 9, 80])
def test_postings_that_wait_are_there_when_asked_for(count):
    def filled():
        index = LexicalIndex()
        for row in range(count):
            index.append(row, ["word", f"own{row}", "word"])
        return index

    assert filled().rows("word").tolist() == list(range(count))
    assert filled().document_frequency("word") == count
    index = filled()
    index.remove(count - 1)
    assert index.rows("word").tolist() == list(range(count - 1))
    none, alive = np.full(count, -1, np.int32), np.ones(count, np.uint8)
    assert filled().scores(["word"], prev=none, next=none, alive=alive).all()
    assert filled().arrays()["length"].sum() == 2 * count


def test_a_count_stops_at_255():
    index = LexicalIndex()
    index.append(0, ["a", "b"] * 300)
    index.append(1, ["a"])
    assert index.arrays()["pool_counts"].max() == 255
    assert index.rows("a").tolist() == [0, 1]


def test_scores_are_those_of_bm25s_on_a_corpus_that_stands_still() -> None:
    bm25s = pytest.importorskip("bm25s")
    documents = [analyse(turn.text) for turn in sample.turns()]
    index, theirs = LexicalIndex(), bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    for row, terms in enumerate(documents):
        index.append(row, terms)
    theirs.index(documents, show_progress=False)
    n = len(documents)
    none = np.full(n, -1, np.int32)
    links = {"prev": none, "next": none, "alive": np.ones(n, np.uint8)}
    for question in sample.questions():
        terms = list(dict.fromkeys(analyse(question.question)))
        got = index.scores(terms, **links, window=0)
        # Lucene leaves out the factor that is the same for all
        expected = theirs.get_scores(terms) * np.float32(index.k1 + 1)
        assert got.any()
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
