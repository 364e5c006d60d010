"""The LangGraph store, side by side with LangGraph's own in-memory store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph", reason="langgraph is absent: pip install 'rsm-fast[langgraph]'")

from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from rsm_fast import Memory
from rsm_fast.embedding import HashingEmbedder
from rsm_fast.errors import InvalidInputError
from rsm_fast.integrations.langgraph import RSMStore


def embed(texts: list[str]) -> list[list[float]]:
    return HashingEmbedder().embed_passages(texts).tolist()


@pytest.fixture
def ours() -> Iterator[RSMStore]:
    with Memory(embedder="hashing") as memory:
        yield RSMStore(memory)


@pytest.fixture(params=["langgraph", "rsm_fast"])
def store(request: pytest.FixtureRequest) -> BaseStore:
    """Either store: what a test asserts holds for both."""
    if request.param == "langgraph":
        return InMemoryStore(index={"dims": 256, "embed": embed})
    return request.getfixturevalue("ours")  # type: ignore[no-any-return]


ANIMALS: dict[str, dict[str, Any]] = {
    "cat": {"text": "A cat sleeps on the radiator.", "legs": 4, "wild": False, "tags": ["home"]},
    "eagle": {"text": "An eagle circles over the valley.", "legs": 2, "wild": True, "tags": []},
    "otter": {"text": "An otter swims in the cold river.", "legs": 4, "wild": True},
    "snail": {"text": "A snail crosses the wet path.", "legs": 0, "home": {"kind": "shell"}},
}


def fill(store: BaseStore) -> None:
    for key, value in ANIMALS.items():
        store.put(("zoo", "animals"), key, value)
    store.put(("zoo", "plants"), "fern", {"text": "A fern likes shade."})
    store.put(("town",), "mayor", {"text": "The mayor opens the bridge."})


# --- what both stores do ---------------------------------------------------------------------


def test_put_get_replace_delete(store: BaseStore) -> None:
    assert store.get(("a",), "k") is None
    store.put(("a",), "k", {"n": 1, "deep": {"list": [1, None, "x"]}})
    first = store.get(("a",), "k")
    assert first is not None
    assert (first.namespace, first.key) == (("a",), "k")
    assert first.value == {"n": 1, "deep": {"list": [1, None, "x"]}}
    store.put(("a",), "k", {"m": 2})
    second = store.get(("a",), "k")
    assert second is not None and second.value == {"m": 2}
    assert second.updated_at >= first.updated_at
    store.delete(("a",), "k")
    assert store.get(("a",), "k") is None
    store.delete(("a",), "k")
    for number in range(20):
        store.put(("a",), "k", {"n": number})
        again = store.get(("a",), "k")
        assert again is not None and again.value == {"n": number}
        store.delete(("a",), "k")
        assert store.get(("a",), "k") is None


def test_same_key_in_two_namespaces(store: BaseStore) -> None:
    store.put(("a",), "k", {"v": "one"})
    store.put(("a", "b"), "k", {"v": "two"})
    store.delete(("a",), "k")
    item = store.get(("a", "b"), "k")
    assert item is not None and item.value == {"v": "two"}


def keys(found: Any) -> set[str]:
    return {item.key for item in found}


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (None, {"cat", "eagle", "otter", "snail"}),
        ({"legs": 4}, {"cat", "otter"}),
        ({"legs": 4, "wild": True}, {"otter"}),
        ({"wild": False}, {"cat"}),
        ({"text": "A snail crosses the wet path."}, {"snail"}),
        ({"legs": {"$gt": 0}}, {"cat", "eagle", "otter"}),
        ({"legs": {"$gte": 2, "$lt": 4}}, {"eagle"}),
        ({"legs": {"$ne": 4}}, {"eagle", "snail"}),
        ({"legs": {"$eq": 0}}, {"snail"}),
        ({"tags": ["home"]}, {"cat"}),
        ({"home": {"kind": "shell"}}, {"snail"}),
        ({"no such field": 1}, set()),
    ],
)
@pytest.mark.parametrize("query", [None, "an animal in the cold water"])
def test_filters(
    store: BaseStore, filter: dict[str, Any] | None, expected: set[str], query: str | None
) -> None:
    fill(store)
    assert keys(store.search(("zoo", "animals"), query=query, filter=filter)) == expected


def test_namespace_prefix(store: BaseStore) -> None:
    fill(store)
    assert keys(store.search(("zoo",))) == {*ANIMALS, "fern"}
    assert keys(store.search(())) == {*ANIMALS, "fern", "mayor"}
    assert keys(store.search(("zo",))) == set()
    assert keys(store.search(("zoo", "animals", "more"))) == set()


def test_limit_and_offset(store: BaseStore) -> None:
    fill(store)
    place = ("zoo", "animals")
    whole = [item.key for item in store.search(place, limit=4)]
    assert len(whole) == 4
    paged = [item.key for start in range(5) for item in store.search(place, limit=1, offset=start)]
    assert paged == whole
    best = [item.key for item in store.search(place, query="cold river", limit=4)]
    assert [i.key for i in store.search(place, query="cold river", limit=2, offset=1)] == best[1:3]


def test_query_ranks_by_meaning(store: BaseStore) -> None:
    fill(store)
    found = store.search(("zoo",), query="otter in the cold river", limit=3)
    assert found[0].key == "otter"
    scores = [item.score for item in found]
    assert None not in scores and scores == sorted(scores, reverse=True)  # type: ignore[type-var]
    assert all(item.score is None for item in store.search(("zoo",)))


def test_items_without_index_come_after_those_with(store: BaseStore) -> None:
    store.put(("a",), "indexed", {"text": "rain and snow"})
    store.put(("a",), "hidden", {"text": "rain"}, index=False)
    found = store.search(("a",), query="rain")
    assert [(item.key, item.score is None) for item in found] == [
        ("indexed", False),
        ("hidden", True),
    ]


def test_index_of_one_field(store: BaseStore) -> None:
    store.put(("a",), "x", {"title": "about bees", "body": "zzz"}, index=["title"])
    store.put(("a",), "y", {"title": "zzz", "body": "about bees"}, index=["title"])
    assert store.search(("a",), query="about bees")[0].key == "x"


def test_list_namespaces(store: BaseStore) -> None:
    for path in (("a", "b", "c"), ("a", "b", "d"), ("a", "x"), ("z", "c")):
        store.put(path, "k", {"v": 1})
    assert store.list_namespaces() == [("a", "b", "c"), ("a", "b", "d"), ("a", "x"), ("z", "c")]
    assert store.list_namespaces(prefix=("a",), max_depth=2) == [("a", "b"), ("a", "x")]
    assert store.list_namespaces(suffix=("c",)) == [("a", "b", "c"), ("z", "c")]
    assert store.list_namespaces(prefix=("a", "*", "c")) == [("a", "b", "c")]
    assert store.list_namespaces(limit=1, offset=1) == [("a", "b", "d")]


def test_batch_reads_before_it_writes_and_the_last_write_wins(store: BaseStore) -> None:
    store.put(("a",), "k", {"v": 0})
    results = store.batch(
        [
            PutOp(("a",), "k", {"v": 1}),
            GetOp(("a",), "k"),
            PutOp(("a",), "k", {"v": 2}),
            SearchOp(("a",)),
            ListNamespacesOp(),
            PutOp(("b",), "new", {"v": 3}),
        ]
    )
    assert results[0] is None and results[2] is None
    assert results[1].value == {"v": 0}  # type: ignore[union-attr]
    assert [item.value for item in results[3]] == [{"v": 0}]  # type: ignore[union-attr]
    assert results[4] == [("a",)]
    assert store.get(("a",), "k").value == {"v": 2}  # type: ignore[union-attr]
    assert store.get(("b",), "new").value == {"v": 3}  # type: ignore[union-attr]


def test_async_twins(store: BaseStore) -> None:
    async def scenario() -> None:
        await store.aput(("a",), "k", {"text": "bees"})
        item = await store.aget(("a",), "k")
        assert item is not None and item.value == {"text": "bees"}
        assert keys(await store.asearch(("a",), query="bees")) == {"k"}
        assert await store.alist_namespaces() == [("a",)]
        await store.adelete(("a",), "k")
        assert await store.aget(("a",), "k") is None

    asyncio.run(scenario())


def test_bad_namespaces(store: BaseStore) -> None:
    for path in ((), ("",), ("a.b",), ("langgraph",)):
        with pytest.raises(InvalidNamespaceError):
            store.put(path, "k", {"v": 1})


def test_empty_and_odd_values(store: BaseStore) -> None:
    odd: dict[str, Any] = {"": "", "ключ": "☃", "v.x": [], "role": "me", "n": 1.5, "none": None}
    for key, value in (("empty", {}), ("odd", odd), ("blank", {"text": "  "})):
        store.put(("a",), key, value)
        item = store.get(("a",), key)
        assert item is not None and item.value == value
    assert keys(store.search(("a",), filter={"role": "me"})) == {"odd"}


# --- what ours does beyond -------------------------------------------------------------------


def test_items_persist(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as memory:
        fill(RSMStore(memory))
    with Memory.open(path) as memory:
        store = RSMStore(memory)
        assert keys(store.search(("zoo",), query="river", limit=1)) == {"otter"}
        item = store.get(("zoo", "animals"), "cat")
        assert item is not None and item.value == ANIMALS["cat"]


def test_long_item_is_one_result(ours: RSMStore) -> None:
    ours.put(("a",), "long", {"text": "Bees make honey. " * 2000})
    ours.put(("a",), "short", {"text": "Ants dig."})
    found = ours.search(("a",), query="honey bees", limit=10)
    assert [item.key for item in found] == ["long", "short"]


def test_rare_filter_finds_all_of_its_items(ours: RSMStore) -> None:
    ours.batch([PutOp(("a",), str(n), {"text": f"bee {n}", "n": n}) for n in range(300)])
    found = ours.search(("a",), query="bee", filter={"n": {"$ne": 0, "$gte": 297}}, limit=5)
    assert keys(found) == {"297", "298", "299"}


def test_time_to_live(monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory(embedder="hashing") as memory:
        store = RSMStore(memory, ttl={"default_ttl": 1, "refresh_on_read": True})
        store.put(("a",), "short", {"v": "short"})
        store.put(("a",), "read", {"v": "read"})
        store.put(("a",), "long", {"v": "long"}, ttl=1000)
        start = time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda: start + 40 * 10**9)
        assert store.get(("a",), "read") is not None  # renewed
        assert store.get(("a",), "short", refresh_ttl=False) is not None
        monkeypatch.setattr(time, "time_ns", lambda: start + 80 * 10**9)
        assert store.get(("a",), "short") is None
        assert keys(store.search(("a",), query="short", refresh_ttl=False)) == {"read", "long"}
        assert keys(store.search(("a",), refresh_ttl=False)) == {"read", "long"}
        assert store.sweep_ttl() == 1
        assert memory.stats().turns == 2
        store.put(("a",), "short", {"v": "again"})
        assert store.get(("a",), "short") is not None


def test_value_that_is_not_json_changes_nothing(ours: RSMStore) -> None:
    ours.put(("a",), "k", {"v": 1})
    for value in ({"v": object()}, {"v": float("nan")}):
        with pytest.raises(InvalidInputError, match="JSON"):
            ours.put(("a",), "k", value)
    item = ours.get(("a",), "k")
    assert item is not None and item.value == {"v": 1}


def test_unknown_operator_is_an_error(ours: RSMStore) -> None:
    fill(ours)
    with pytest.raises(InvalidInputError, match=r"\$near"):
        ours.search(("zoo",), filter={"legs": {"$near": 4}})


def test_agent_with_a_store(ours: RSMStore) -> None:
    """A graph whose node remembers and recalls through the store it is compiled with."""
    from langgraph.graph import END, START, StateGraph
    from typing_extensions import TypedDict

    class State(TypedDict):
        message: str
        recalled: list[str]

    def node(state: State, *, store: BaseStore) -> dict[str, Any]:
        found = store.search(("user", "1"), query=state["message"], limit=1)
        store.put(("user", "1"), state["message"][:20], {"text": state["message"]})
        return {"recalled": [item.value["text"] for item in found]}

    graph = StateGraph(State)
    graph.add_node("talk", node)
    graph.add_edge(START, "talk")
    graph.add_edge("talk", END)
    agent = graph.compile(store=ours)
    assert agent.invoke({"message": "I keep bees.", "recalled": []})["recalled"] == []
    assert agent.invoke({"message": "What do I keep?", "recalled": []})["recalled"] == [
        "I keep bees."
    ]
