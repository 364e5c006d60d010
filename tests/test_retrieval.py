from __future__ import annotations

import numpy as np
import oracles_retrieval as oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsm_fast.analysis import analyse, speaker_terms, step_label
from rsm_fast.arena import Arena
from rsm_fast.errors import InvalidInputError
from rsm_fast.kernels.ordering import newer_first_
from rsm_fast.kernels.scoring import raise_rows_, step_bonus_
from rsm_fast.lexical import LexicalIndex
from rsm_fast.retrieval import (
    AskedSteps,
    HybridSettings,
    admission_order,
    asked_speakers,
    asked_steps,
    exact_order,
    hybrid_scores,
    labelled_rows,
    newer_first,
    paper_order,
)

PLAIN = HybridSettings()


@st.composite
def columns(draw):
    """Columns of a small namespace, built from a seed."""
    n = draw(st.integers(0, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    session = rng.integers(0, 3, n)
    prev, following = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    for number in range(3):
        rows = np.flatnonzero(session == number)
        prev[rows[1:]], following[rows[:-1]] = rows[:-1], rows[1:]
    return {
        "dense": rng.normal(0.3, 0.1, n).astype(np.float32),
        "lexical": np.maximum(rng.normal(0, 2, n), 0).astype(np.float32),
        "prev": prev,
        "next": following,
        "eligible": rng.integers(0, 2, n).astype(np.uint8),
        "tokens": rng.integers(1, 300, n).astype(np.int32),
        "micros": rng.integers(0, 4, n).astype(np.int64),
    }


@given(columns(), st.sampled_from([(0.0, 0.0), (0.2, 3.0)]))
@settings(max_examples=150, deadline=None)
def test_hybrid_scores_equal_the_definition(c, floors):
    chosen = HybridSettings(dense_floor=floors[0], lexical_floor=floors[1])
    got, _ = hybrid_scores(c["dense"], c["lexical"], c["prev"], c["next"], c["eligible"], chosen)
    expected = oracles.hybrid_scores(
        c["dense"],
        c["lexical"],
        c["prev"],
        c["next"],
        c["eligible"],
        (chosen.dense, chosen.lexical),
        chosen.smoothing,
        floors,
    )
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_equal_values_and_single_chunks_have_z_zero():
    one = np.ones(1, np.uint8)
    none = np.full(1, -1, np.int32)
    alone = np.full(1, 0.7, np.float32)
    assert hybrid_scores(alone, alone, none, none, one, PLAIN)[0].tolist() == [0.0]
    same = np.full(5, 0.7, np.float32)
    none = np.full(5, -1, np.int32)
    assert not hybrid_scores(same, same, none, none, np.ones(5, np.uint8), PLAIN)[0].any()


@given(columns(), st.integers(0, 35))
@settings(max_examples=150, deadline=None)
def test_admission_order_equals_the_definition_and_a_limit_only_cuts(c, limit):
    scores = np.round(c["dense"], 1)  # so that there are ties
    arguments = (scores, c["eligible"], c["tokens"] // 100, c["micros"], PLAIN)
    order = admission_order(*arguments).tolist()
    assert order == oracles.admission_order(*arguments[:4], PLAIN.length_power, PLAIN.length_offset)
    assert admission_order(*arguments, limit=limit).tolist() == order[:limit]


@given(
    st.integers(1, 60),
    st.sampled_from([64, 100]),
    st.sampled_from(["float32", "int8"]),
    st.integers(1, 80),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_scores_of_codes_settle_to_the_order_of_exact_ones(n, dim, dtype, limit, by_score, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, dim)) * rng.choice([0.05, 1.0], (n, dim))
    vectors[rng.integers(0, n, n // 4)] = vectors[0]  # copies
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    arena = Arena(dim, dtype=dtype)
    columns = {"tokens": rng.integers(1, 5000, n), "micros": rng.integers(0, 5, n)}
    arena.append_many(vectors, pk=np.arange(n), session=rng.integers(0, 3, n), **columns)
    for row in rng.permutation(n)[: n // 5]:
        arena.remove(int(row))
    eligible = arena.alive * rng.integers(0, 2, n).astype(np.uint8)
    lexical = np.maximum(rng.normal(0, 2, n), 0).astype(np.float32)
    query = arena.prepare_query((vectors[0] + vectors[-1]) / 2)
    near, error = arena.near_scores(query)
    truth = arena.vec.astype(np.float64) @ query.astype(np.float64)
    assert np.abs(truth - near).max() <= error
    links = arena.prev, arena.next
    scores, gain = hybrid_scores(near, lexical, *links, eligible, PLAIN)
    expected = oracles.exact_scores(near, truth, scores, gain, eligible)
    order = exact_order(
        arena, query, (near, error), gain, scores, eligible, PLAIN, limit=limit, by_score=by_score
    )
    power = 0.0 if by_score else PLAIN.length_power
    facts = scores, eligible, arena.tokens, arena.micros, HybridSettings(length_power=power)
    assert order.tolist() == admission_order(*facts, limit=limit).tolist()
    np.testing.assert_allclose(scores[order], np.array(expected)[order], atol=1e-4, rtol=1e-5)
    least = min((expected[row] for row in np.flatnonzero(eligible)), default=0.0)
    worth = (np.array(expected) - least) / (arena.tokens + PLAIN.length_offset) ** power
    best = np.sort(worth[eligible != 0])[::-1][:limit]
    np.testing.assert_allclose(worth[order], best, atol=1e-4, rtol=1e-5)


@given(
    st.lists(st.integers(-1, 60), max_size=30),
    st.lists(st.integers(0, 60), max_size=4),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=3),
    st.integers(0, 40),
)
@settings(max_examples=150, deadline=None)
def test_step_bonus_equals_the_definition(steps, named, ranges, longest):
    ranges = [(min(r), max(r)) for r in ranges]
    bonus = (4.0, 3.0, 2.0, 1.5)
    scores = np.zeros(len(steps), np.float32)
    step_bonus_(
        np.array(steps, np.int32),
        np.array(named, np.int32),
        np.array(ranges, np.int32).reshape(-1),
        longest,
        np.array(bonus, np.float32),
        scores,
    )
    assert scores.tolist() == oracles.step_bonus(steps, named, ranges, longest, bonus)


@pytest.mark.parametrize(
    ("question", "named", "ranges"),
    [
        ("What did the agent do at step 12?", {12}, set()),
        ("At Step #12: why?", {12}, set()),
        ("What happened between step 1 and step 3?", {1, 3}, {(1, 3)}),
        ("From step 15 to step 22, what changed?", {15, 22}, {(15, 22)}),
        ("Summarise steps 3-7.", {3, 7}, {(3, 7)}),
        ("steps 9 through 4", {4, 9}, {(4, 9)}),
        ("Compare steps 3, 5 and 9", {3, 5, 9}, set()),
        ("Compare step 3 and step 5", {3, 5}, set()),
        ("My stepmother is 40", set(), set()),
        ("Two steps forward, 3 back", set(), set()),
    ],
)
def test_steps_that_questions_name(question, named, ranges):
    asked = asked_steps(question)
    assert (set(asked.named), set(asked.ranges)) == (named, ranges)


@pytest.mark.parametrize(
    ("text", "metadata", "label"),
    [
        ("go north", {"step": 7}, 7),
        ("go north", {"step": True}, -1),
        ("go north", {"step": "7"}, -1),
        ("Step 12: go north", None, 12),
        ("## step 3\nlook", None, 3),
        ("I said step 3 is hard", None, -1),
        ("go north", {"step": -4}, -1),
    ],
)
def test_step_labels(text, metadata, label):
    assert step_label(text, metadata) == label


def test_labels_count_only_where_most_of_a_session_has_them():
    steps = np.array([0, 1, 2, -1, 3, 4, -1, -1, 5], np.int32)
    session = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1], np.int32)
    alive = np.ones(9, np.uint8)
    assert labelled_rows(steps, session, alive).tolist() == [0, 1, 2, -1, 3, -1, -1, -1, -1]
    alive[[6, 7]] = 0
    assert labelled_rows(steps, session, alive)[5:].tolist() == [4, -1, -1, 5]


def test_a_named_step_wins_over_a_similar_one():
    n = 40
    none = np.full(n, -1, np.int32)
    rng = np.random.default_rng(3)
    dense = rng.normal(0.3, 0.02, n).astype(np.float32)
    nothing = np.zeros(n, np.float32)
    steps = np.arange(n, dtype=np.int32)
    all_rows = np.ones(n, np.uint8)
    scores, _ = hybrid_scores(
        dense, nothing, none, none, all_rows, PLAIN, steps=steps, asked=AskedSteps((17,))
    )
    tokens, micros = np.full(n, 20, np.int32), np.arange(n, dtype=np.int64)
    assert admission_order(scores, all_rows, tokens, micros, PLAIN, limit=1).tolist() == [17]
    without = all_rows.copy()
    without[17] = 0
    hidden, _ = hybrid_scores(
        dense, nothing, none, none, without, PLAIN, steps=steps, asked=AskedSteps((17,))
    )
    assert hidden[17] == 0.0


def test_paper_order_takes_the_best_members_of_the_top_atoms():
    dense = np.array([0.1, 0.9, 0.5, 0.8, 0.7, 0.6], np.float32)
    atom = np.array([0, 0, 1, 1, 2, 0], np.int32)
    eligible = np.array([1, 1, 1, 1, 1, 0], np.uint8)
    micros = np.arange(6, dtype=np.int64)
    atoms = np.array([1, 0], np.int32)
    assert paper_order(atoms, dense, eligible, atom, micros, per_atom=1).tolist() == [3, 1]
    assert paper_order(atoms, dense, eligible, atom, micros).tolist() == [3, 2, 1, 0]
    filled = paper_order(atoms, dense, eligible, atom, micros, per_atom=1, fill=True)
    assert filled.tolist() == [3, 1, 4, 2, 0]
    assert paper_order(np.empty(0, np.int32), dense, eligible, atom, micros).size == 0


def test_no_chunks_give_no_rows():
    empty32, empty_f = np.empty(0, np.int32), np.empty(0, np.float32)
    none = np.empty(0, np.uint8)
    scores, _ = hybrid_scores(empty_f, empty_f, empty32, empty32, none, PLAIN)
    assert admission_order(scores, none, empty32, np.empty(0, np.int64), PLAIN).size == 0
    assert labelled_rows(empty32, empty32, none).size == 0


@given(columns(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_bonus_goes_to_eligible_rows_only(c, data):
    n = c["dense"].size
    rows = data.draw(st.lists(st.integers(0, n - 1), unique=True)) if n else []
    expected = oracles.raise_rows(rows, c["eligible"], np.float32(1.5), c["dense"])
    raise_rows_(np.array(rows, np.int32), c["eligible"], np.float32(1.5), c["dense"])
    assert c["dense"].tolist() == [float(value) for value in expected]


@given(st.integers(1, 20), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_newer_first_equals_the_definition(m, seed):
    rng = np.random.default_rng(seed)
    code = rng.integers(-3, 4, (m, 4)).astype(np.int8)
    scores = rng.normal(size=m).astype(np.float32)
    tokens = rng.integers(1, 30, m).astype(np.int32)
    micros = rng.integers(0, 5, m).astype(np.int64)
    order = rng.permutation(m).astype(np.int32)
    products = code.astype(np.float64) @ code.T.astype(np.float64)
    squares = products.diagonal()
    cosine = products / np.maximum(np.sqrt(np.outer(squares, squares)), 1e-12)
    expected = oracles.newer_first(cosine, scores, tokens, micros, 0.4, 2.0, 8, order.tolist())
    newer_first_(code, order, scores, tokens, micros, 0.4, 2.0, np.int64(8))
    assert order.tolist() == expected


def test_of_two_facts_about_one_thing_the_newer_is_tried_first():
    code = np.array([[100, 0], [80, 60], [-100, 20]], np.int8)
    scores = np.array([2.0, 1.6, 1.9], np.float32)
    tokens, micros = np.array([6, 7, 5], np.int32), np.array([1, 2, 3], np.int64)
    order = np.array([0, 2, 1], np.int32)
    assert newer_first(order, scores, tokens, micros, code, PLAIN).tolist() == [1, 0, 2]
    longer = np.array([6, 60, 5], np.int32)
    assert newer_first(order, scores, longer, micros, code, PLAIN).tolist() == [0, 2, 1]
    off = HybridSettings(newer_reach=0)
    assert newer_first(order, scores, tokens, micros, code, off).tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    "bad",
    [{"window": -1}, {"window": 2.0}, {"dense": float("nan")}, {"length_offset": 0.0}],
)
def test_settings_that_cannot_be_used_are_refused(bad):
    with pytest.raises(InvalidInputError, match=next(iter(bad))):
        HybridSettings(**bad)


@pytest.mark.parametrize(
    ("question", "rows"),
    [
        ("What did Caroline paint?", [2]),
        ("Do Caroline and Li Wei get on?", [2, 3]),
        ("Which tool did the assistant use?", [0, 5]),  # no names: what the user said
        ("Where do I live?", [0, 5]),
        ("?", [0, 5]),
    ],
)
def test_a_question_asks_named_speakers_or_the_user(question, rows):
    index = LexicalIndex()
    roles = ("user", "assistant", "Caroline", "Li Wei", "tool", "Human", "Melanie")
    for row, role in enumerate(roles):
        index.append(row, ["painting", *speaker_terms(role)])
    assert asked_speakers(index, analyse(question)).tolist() == rows
    assert not asked_speakers(LexicalIndex(), analyse(question)).size
