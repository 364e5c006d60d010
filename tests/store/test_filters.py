"""``where`` filters against an obvious twin in Python."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsm_fast.errors import InvalidInputError
from rsm_fast.store import ChunkRecord, Store, TurnRecord, compile_where

KEYS = ["a", "step", 'quo"te', "back\\slash", "ü", "", "$", "a.b", "[0]", "new\nline", "role "]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.1 + 0.2, 1.0, 2.5, 1e300]),
    st.sampled_from(["", "x", "y", "1", "true", "null", "ü", '["x"]', "a\\0b"]),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.just({"x": 1}))
METADATA = st.none() | st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)
RANGES = st.one_of(
    st.dictionaries(st.sampled_from(["gte", "gt", "lte", "lt"]), st.integers(-3, 3), min_size=1),
    st.dictionaries(
        st.sampled_from(["gte", "gt", "lte", "lt"]), st.sampled_from(["", "x", "y"]), min_size=1
    ),
)
WHERE = st.dictionaries(
    st.sampled_from(KEYS), st.one_of(SCALARS, st.lists(SCALARS, max_size=3), RANGES), max_size=2
)


def same(stored: object, wanted: object) -> bool:
    if isinstance(stored, bool) or isinstance(wanted, bool):
        return stored is wanted
    number = (int, float)
    if isinstance(stored, number) and isinstance(wanted, number):
        return stored == wanted
    return type(stored) is type(wanted) and stored == wanted


def within(stored: object, bounds: dict) -> bool:
    kinds = (str,) if isinstance(next(iter(bounds.values())), str) else (int, float)
    if not isinstance(stored, kinds) or isinstance(stored, bool):
        return False
    tests = {
        "gte": lambda bound: stored >= bound,
        "gt": lambda bound: stored > bound,
        "lte": lambda bound: stored <= bound,
        "lt": lambda bound: stored < bound,
    }
    return all(tests[name](bound) for name, bound in bounds.items())


def matches(metadata: dict | None, where: dict) -> bool:
    for key, wanted in where.items():
        if metadata is None or key not in metadata:
            return False
        stored = metadata[key]
        items = stored if isinstance(stored, list) else [stored]
        if isinstance(wanted, dict):
            good = any(within(item, wanted) for item in items)
        else:
            options = wanted if isinstance(wanted, list) else [wanted]
            good = any(same(item, option) for item in items for option in options)
        if not good:
            return False
    return True


def fill(store: Store, metadata: list[dict | None]) -> tuple[int, list[int]]:
    with store.write() as writer:
        ns = writer.create_namespace("n", {}).id
        turns = writer.insert_turns(
            ns,
            [
                TurnRecord(
                    0, str(n), "user", "x", n, 0, True, None,
                    None if item is None else json.dumps(item, ensure_ascii=False),
                )
                for n, item in enumerate(metadata)
            ],
        )  # fmt: skip
        chunks = writer.insert_chunks(
            ns,
            [
                ChunkRecord(0, f"{n}#0", ((turn, 0, 1),), None, n, 0, 1, b"", b"", 1)
                for n, turn in enumerate(turns)
            ],
        )
    return ns, chunks


@settings(max_examples=150, deadline=None)
@given(metadata=st.lists(METADATA, min_size=1, max_size=5), where=WHERE)
def test_metadata_filters_match_their_twin(metadata, where):
    with Store.open(None) as store:
        ns, chunks = fill(store, metadata)
        with store.read() as reader:
            found = reader.eligible_chunks(ns, where=where).tolist()
            turns = reader.matching_turns(ns, where=where)
    expected = [n for n, item in enumerate(metadata) if matches(item, where)]
    assert found == [chunks[n] for n in expected]
    assert len(turns) == len(expected)


@pytest.fixture
def filled(store, namespace, new_turn, add_turns):
    ns = namespace(store)
    with store.write() as writer:
        keys = add_turns(
            writer,
            ns,
            new_turn("1", role="user", session="s1", micros=0),
            new_turn("2", role="assistant", session="s1", micros=1_000_000),
            new_turn("3", role="user", micros=2_000_000),
        )

    def find(where, **options):
        with store.read() as reader:
            pks = reader.eligible_chunks(ns, where=where, **options).tolist()
        return [str(n + 1) for n, (_, pk) in enumerate(keys) if pk in pks]

    return find


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, "123"),
        ({}, "123"),
        ({"role": "user"}, "13"),
        ({"role": ["user", "tool"]}, "13"),
        ({"role": {"gte": "b"}}, "13"),
        ({"role": []}, ""),
        ({"session": "s1"}, "12"),
        ({"session": None}, "3"),
        ({"session": ["s1", None]}, "123"),
        ({"id": ("1", "3")}, "13"),
        ({"timestamp": 1}, "2"),
        ({"timestamp": "1970-01-01T01:00:01+01:00"}, "2"),
        ({"timestamp": {"gte": "1970-01-01T00:00:01Z"}}, "23"),
        ({"timestamp": {"gt": 0, "lt": 2}}, "2"),
        ({"timestamp": [0, 2]}, "13"),
        ({"role": "user", "session": "s1"}, "1"),
        ({"absent": None}, ""),
        ({"text": "x"}, ""),
    ],
)
def test_own_fields(filled, where, expected):
    assert "".join(filled(where)) == expected


def test_as_of(filled):
    assert filled(None, as_of=1_000_000) == ["1", "2"]
    assert filled({"role": "user"}, as_of=1_000_000) == ["1"]


def test_a_chunk_is_eligible_if_all_its_turns_match(store, namespace, new_turn, new_chunk):
    ns = namespace(store)
    turns = [new_turn("1", role="user"), new_turn("2", role="assistant"), new_turn("3")]
    with store.write() as writer:
        a, b, c = writer.insert_turns(ns, turns)
        mixed = new_chunk(turns[0], a, spans=((a, 0, 4), (b, 0, 4)))
        pure = new_chunk(turns[2], c, spans=((a, 4, 8), (c, 0, 4)))
        keys = writer.insert_chunks(ns, [mixed, pure])
    with store.read() as reader:
        assert reader.eligible_chunks(ns, where={"role": "user"}).tolist() == keys[1:]
        assert reader.eligible_chunks(ns).tolist() == keys


def test_filters_see_their_own_namespace_only(store, namespace, new_turn, add_turns):
    a, b = namespace(store), namespace(store, "b")
    with store.write() as writer:
        [(_, mine)] = add_turns(writer, a, new_turn("1", session="s"))
        add_turns(writer, b, new_turn("1", session="s"))
    with store.read() as reader:
        assert reader.eligible_chunks(a, where={"session": "s"}).tolist() == [mine]
        assert len(reader.matching_turns(a, before=1)) == 1
        assert reader.matching_turns(a, before=0) == []


def test_long_lists(filled):
    assert filled({"id": [str(n) for n in range(100_000)]}) == ["1", "2", "3"]
    assert filled({"id": ["' OR 1 --"]}) == []


@pytest.mark.parametrize(
    "where",
    [
        "role = 'user'", ["role"], 5, {5: "x"}, {"role": 5}, {"role": None}, {"role": {}},
        {"role": {"like": "x"}}, {"a": {"gte": 1, "lt": "x"}}, {"a": {"gte": True}},
        {"a": float("nan")}, {"a": {"gte": float("inf")}}, {"a": object()}, {"a": [[1]]},
        {"timestamp": "yesterday"}, {"timestamp": {"gte": None}}, {"timestamp": None},
        {"session": "\ud800"}, {"a": "\ud800"}, {"a": {"lt": "\ud800"}}, {"\ud800": 1},
        {"a": "\0"}, {"a": ["b", "c\0"]}, {"a\0": 1}, {"role": "user\0"}, {"a": {"lt": "\0"}},
        {"a": 10**400}, {"a": {"gt": -(10**400)}},
        {"session": {"gte": None}}, {str(n): 1 for n in range(65)},
    ],
)  # fmt: skip
def test_malformed_filters_are_refused(where):
    with pytest.raises(InvalidInputError, match="where"):
        compile_where(where)
