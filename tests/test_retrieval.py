from __future__ import annotations

from dataclasses import fields

import numpy as np
import oracles_retrieval as oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsm_fast.analysis import analyse, speaker_terms, step_label
from rsm_fast.arena import Arena
from rsm_fast.errors import InvalidInputError
from rsm_fast.kernels import weights
from rsm_fast.kernels.ordering import newer_first_
from rsm_fast.kernels.read import rank_
from rsm_fast.kernels.scan import near_scores_
from rsm_fast.kernels.scoring import hybrid_scores_, raise_rows_, step_bonus_
from rsm_fast.lexical import LexicalIndex
from rsm_fast.retrieval import (
    AskedSteps,
    HybridSettings,
    admission_order,
    asked_speakers,
    asked_steps,
    labelled_rows,
    paper_order,
    question,
    room_for,
)

PLAIN = HybridSettings()


def hybrid_scores(dense, lexical, prev, following, eligible, chosen):
    """The kernel's scores, and by what a cosine is multiplied in them."""
    scores, base = np.empty(dense.size, np.float32), np.empty(dense.size, np.float32)
    floors = chosen.dense_floor, chosen.lexical_floor
    by = chosen.dense, chosen.lexical, chosen.smoothing, *floors
    columns = dense, lexical, prev, following, eligible
    return scores, hybrid_scores_(*columns, *by, base, scores)


def test_weights_stand_where_kernels_look_for_them():
    names = [field.name.upper() for field in fields(HybridSettings)]
    assert [getattr(weights, name) for name in names] == list(range(len(names)))
    assert sorted(names) == sorted(weights.__all__)


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
    st.lists(st.integers(0, 12), max_size=2),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_a_question_ranks_chunks_as_the_definition_says(
    n, dim, dtype, limit, by_score, named, seed
):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, dim)) * rng.choice([0.05, 1.0], (n, dim))
    vectors[rng.integers(0, n, n // 4)] = vectors[0]  # copies
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    arena, words = Arena(dim, dtype=dtype), LexicalIndex()
    facts = {"tokens": rng.integers(1, 5000, n), "micros": rng.integers(0, 5, n)}
    arena.append_many(vectors, pk=np.arange(n), session=rng.integers(0, 3, n), **facts)
    documents = [rng.choice(list("abcdefgh"), rng.integers(0, 9)).tolist() for _ in range(n)]
    for row, terms in enumerate(documents):
        words.append(row, terms)
    for row in map(int, rng.permutation(n)[: n // 5]):
        arena.remove(row)
        words.remove(row)
        documents[row] = None
    eligible = arena.alive * rng.integers(0, 2, n).astype(np.uint8)
    steps = rng.integers(-1, 14, n).astype(np.int32)
    asked = AskedSteps(tuple(named), ((min(named), max(named)),) if named else ())
    raised = np.flatnonzero(rng.random(n) < 0.3).astype(np.int32)
    equal = rng.permutation(np.flatnonzero(eligible))[: rng.integers(0, 3)].astype(np.int32)
    query = arena.prepare_query((vectors[0] + vectors[-1]) / 2)
    terms = rng.choice(list("abcxy"), 4).tolist()
    columns = {"prev": arena.prev, "next": arena.next, "alive": arena.alive}
    told = words.asked(terms, **columns, window=PLAIN.window)
    more = {"asked": asked, "steps": steps, "raised": raised, "equal": equal}
    put = question(arena, told, query, eligible, PLAIN, by_score=by_score, **more)
    scores, order = room_for(arena, equal, limit)
    order = order[: rank_(*put, scores, order)]

    near = np.empty(n + 3, np.float32)
    error = near_scores_(*arena.table.columns, n, arena.padded_query(query), near)
    near = near[:n]
    truth = arena.vec.astype(np.float64) @ query.astype(np.float64)
    assert np.abs(truth - near).max() <= error
    expected, reach = oracles.rank_scores(
        near, truth, documents, terms, *columns.values(), eligible, PLAIN, words,
        steps, asked, raised, scores,
    )  # fmt: skip
    np.testing.assert_allclose(scores, reach, atol=1e-4, rtol=1e-5)  # of codes, or exact
    chosen = HybridSettings(length_power=0.0, newer_reach=0) if by_score else PLAIN
    columns = scores, eligible, arena.tokens, arena.micros
    best = admission_order(*columns, chosen, limit=limit)
    np.testing.assert_allclose(scores[best], expected[best], atol=1e-4, rtol=1e-5)
    least = min(expected[eligible != 0], default=0.0)
    worth = (expected - least) / (arena.tokens + chosen.length_offset) ** chosen.length_power
    np.testing.assert_allclose(
        worth[best], np.sort(worth[eligible != 0])[::-1][:limit], atol=1e-4, rtol=1e-5
    )
    codes = arena.table.columns.code[:n].astype(np.float64)
    norms = np.maximum(np.sqrt((codes**2).sum(1)), 1e-12)
    moved = oracles.newer_first(
        codes @ codes.T / np.outer(norms, norms), scores, arena.tokens, arena.micros,
        chosen.newer_cosine, chosen.newer_slope, chosen.newer_slack,
        best[: chosen.newer_reach].tolist(),
    ) + best[chosen.newer_reach :].tolist()  # fmt: skip
    assert order.tolist() == [*equal, *[row for row in moved if row not in equal]]


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


def asked_of(arena, eligible, chosen=PLAIN, **more):
    """Scores and order of a question of no words, the vector of the first row."""
    links = {"prev": arena.prev, "next": arena.next, "alive": arena.alive}
    query = arena.prepare_query(arena.vec[0])
    put = question(arena, LexicalIndex().asked([], **links), query, eligible, chosen, **more)
    scores, order = room_for(arena, np.empty(0, np.int32), arena.n)
    return scores, order[: rank_(*put, scores, order)]


def test_a_named_step_wins_over_a_similar_one():
    n = 40
    rng = np.random.default_rng(3)
    arena = Arena(64)
    vectors = rng.normal(1.0, 0.5, (n, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    facts = {"pk": np.arange(n), "tokens": np.full(n, 20), "micros": np.arange(n)}
    arena.append_many(vectors, session=np.arange(n), **facts)
    asked = {"steps": np.arange(n, dtype=np.int32), "asked": AskedSteps((17,))}
    every = np.ones(n, np.uint8)
    chosen = HybridSettings(newer_reach=0)
    assert asked_of(arena, every, chosen)[1][0] == 0
    assert asked_of(arena, every, chosen, **asked)[1][0] == 17
    without = every.copy()
    without[17] = 0
    scores, order = asked_of(arena, without, **asked)
    assert scores[17] == 0.0 and 17 not in order


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
    empty32, none = np.empty(0, np.int32), np.empty(0, np.uint8)
    arena = Arena(64)
    arena.append_many(np.eye(1, 64, dtype=np.float32), pk=[0], tokens=[1], micros=[0], session=[0])
    scores, order = asked_of(arena, np.zeros(1, np.uint8))
    assert scores.tolist() == [0.0] and order.size == 0
    scores = np.empty(0, np.float32)
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
    vectors = np.zeros((3, 64), np.float32)
    vectors[:, :2] = [[1, 0], [0.8, 0.6], [-0.96, 0.28]]

    def order(tokens, chosen=PLAIN):
        arena = Arena(64)
        arena.append_many(vectors, pk=[0, 1, 2], tokens=tokens, micros=[1, 2, 3], session=[0, 1, 2])
        return asked_of(arena, np.ones(3, np.uint8), chosen)[1].tolist()

    assert order([6, 7, 5]) == [1, 0, 2]
    assert order([6, 60, 5]) == [0, 1, 2]
    assert order([6, 7, 5], HybridSettings(newer_reach=0)) == [0, 1, 2]


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
