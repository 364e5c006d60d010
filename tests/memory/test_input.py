"""What a memory refuses, and that nothing has changed then."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_cases import Opener, fingerprint, sentences

from rsm_fast import Limits, Memory, Turn
from rsm_fast.errors import (
    BudgetError,
    EmbedderError,
    EmbedderMismatchError,
    InvalidInputError,
    RSMError,
    StoreClosedError,
)


@pytest.mark.parametrize(
    "turn",
    [
        "",
        " \n\t",
        3,
        None,
        {"role": "user"},
        Turn("x", role=""),
        Turn("x", role="r" * 300),
        Turn("x", id=""),
        Turn("x", id="a\0b"),
        Turn("x", session="\ud800"),
        Turn("x", timestamp="soon"),
        Turn("x", metadata={"a": float("nan")}),
        Turn("x", metadata={1: "a"}),  # type: ignore[dict-item]
        Turn("x", metadata={"a": object()}),  # type: ignore[dict-item]
        Turn("x", metadata={"a": "b" * 70_000}),
        Turn("x", ttl="soon"),
    ],
)
def test_a_turn_that_cannot_be_stored_is_refused_whole(memory_of: Opener, turn: Any) -> None:
    memory = memory_of()
    memory.add("kept", id="k")
    with pytest.raises(InvalidInputError, match=r"turns\[1\]"):
        memory.add_many(["fine", turn])
    assert memory.stats().turns == 1
    assert memory.add("fine") == "00000001"


def test_options_out_of_range_are_refused() -> None:
    for options in (
        {"preset": "best"},
        {"gate": "mean"},
        {"tau": 2},
        {"tau": "high"},
        {"rank": 0},
        {"chunk_turns": 1.5},
        {"percentile": 101},
        {"dtype": "float16"},
        {"tau": 0.8, "centre": True},
        {"vectors": "cloud"},
        {"namespace": ""},
        {"namespace": "../x"},
        {"namespace": "n" * 257},
        {"count_tokens": 3},
        {"embedder": 3},
    ):
        with pytest.raises(RSMError):
            Memory(**{"embedder": "hashing", **options}).add("x")  # type: ignore[arg-type]


def test_options_that_contradict_the_store_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing", gate="centroid") as memory:
        memory.add("x")
    with pytest.raises(InvalidInputError, match="gate"):
        Memory.open(path, gate="max-member")
    with Memory.open(path, gate="centroid") as memory:
        assert memory.stats().settings["gate"] == "centroid"


@pytest.mark.parametrize("budget", [-1, -5, 1.5, "many", True])
def test_f46_budgets_that_are_none_are_refused(memory_of: Opener, budget: Any) -> None:
    memory = memory_of()
    memory.add("x")
    with pytest.raises(BudgetError, match="budget"):
        memory.pack("x", budget=budget)


def test_f46_budgets_at_the_ends(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add_many(sentences(60))
    assert memory.pack("harbour", budget=0).text == ""
    assert memory.pack("harbour", budget=1).tokens <= 1
    assert memory.pack("harbour", budget=None).budget == 4000
    everything = memory.pack("harbour", budget=10**9)
    assert len(everything.chunks) == 60


def test_bad_questions_are_refused(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add("x")
    for call in (
        lambda: memory.pack(""),
        lambda: memory.pack(3),  # type: ignore[arg-type]
        lambda: memory.search("x", k=-1),
        lambda: memory.search("x", where={"a": {"like": 1}}),
        lambda: memory.search("x", where="role"),  # type: ignore[arg-type]
        lambda: memory.search("x", as_of="soon"),
        lambda: memory.pack("x", layout="columns"),  # type: ignore[arg-type]
        lambda: memory.pack("x", template="latex"),
        lambda: memory.add_many("one text"),
        lambda: memory.add(Turn("x"), role="assistant"),
    ):
        with pytest.raises(InvalidInputError):
            call()


@pytest.mark.parametrize(
    "vectors",
    [
        lambda n: np.full((n, 8), np.nan),
        lambda n: np.full((n, 8), np.inf),
        lambda n: np.zeros((n, 8)),
        lambda n: np.ones((n, 7)),
        lambda n: np.ones((n + 1, 8)),
        lambda n: np.ones(8),
        lambda n: "vectors",
        lambda n: None,
    ],
)
def test_f26_bad_vectors_are_refused_and_change_nothing(tmp_path: Path, vectors: Any) -> None:
    broken = False

    def embed(texts: list[str]) -> Any:
        good = np.arange(1, 8 * len(texts) + 1, dtype=np.float64).reshape(-1, 8)
        return vectors(len(texts)) if broken else good.tolist()

    with Memory.open(tmp_path / "agent.rsm", embedder=embed) as memory:
        memory.add_many(["one", "two"])
        before = fingerprint(memory)
        broken = True
        with pytest.raises((EmbedderError, InvalidInputError)):
            memory.add("three")
        with pytest.raises((EmbedderError, InvalidInputError)):
            memory.pack("three")
        broken = False
        assert fingerprint(memory) == before
        assert memory.stats().turns == 2


def test_f26_other_array_types_are_accepted() -> None:
    def embed(texts: list[str]) -> Any:
        array = np.ones((len(texts), 4), np.float64)
        array.setflags(write=False)
        return array

    memory = Memory(embedder=embed)
    memory.add("one")
    assert memory.search("one", k=1)[0].text == "one"


def test_f27_another_embedder_is_refused_and_texts_stay(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as memory:
        memory.add("The tram leaves at 7:40.")
    with pytest.raises(EmbedderMismatchError, match=r"3 dimensions.*reembed"):
        Memory.open(path, embedder=lambda texts: np.ones((len(texts), 3)))
    with Memory.open(path, embedder="hashing") as memory:
        assert memory.search("tram", k=1)[0].text == "The tram leaves at 7:40."


def test_a_closed_memory_says_so(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add("x")
    memory.close()
    memory.close()
    for call in (lambda: memory.add("y"), lambda: memory.pack("y"), lambda: memory.stats()):
        with pytest.raises(StoreClosedError):
            call()


# -- hostile input: always an error of our own that says where, or an answer ----


def nested(levels: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return dict(value)


@pytest.mark.parametrize(
    "metadata",
    [
        nested(65),
        nested(5000),
        {"a": [[]] * 3 + [nested(64)]},
        {"a": "\0"},
        {"a\0": 1},
        {"a": "\ud800"},
        {"a": 10**5000},
        {"a": math.inf},
        "text",
    ],
    ids="deep deeper mixed nul nul-key surrogate huge inf text".split(),
)
def test_metadata_that_could_not_be_found_again_is_refused(
    memory_of: Opener, metadata: Any
) -> None:
    memory = memory_of()
    with pytest.raises(InvalidInputError, match=r"turns\[0\]\.metadata"):
        memory.add("x", metadata=metadata)
    assert memory.stats().turns == 0


def test_odd_metadata_is_found_again(memory_of: Opener) -> None:
    memory = memory_of()
    for number, metadata in enumerate(
        ({"a": "\\u0000"}, nested(64), {"": 1, '"': 2, "$.x": 3}, {"a": 10**300}, {"a": [1] * 99})
    ):
        memory.add(f"turn {number}", id=str(number), metadata=metadata)
        stored = memory.get(str(number))
        assert stored is not None and stored.metadata == metadata
    for where, found in (
        ({"a": "\\u0000"}, "0"),
        ({"": 1, '"': 2, "$.x": 3}, "2"),
        ({"a": {"gt": 10**299}}, "3"),
        ({"a": 1}, "4"),
    ):
        assert [turn.id for turn in memory.turns(where=where)] == [found]


@pytest.mark.parametrize("number", [10**400, math.nan, math.inf, 10**18, "9" * 400 + "d"])
def test_lengths_and_times_out_of_range_are_refused(memory_of: Opener, number: Any) -> None:
    memory = memory_of()
    for call in (
        lambda: memory.add("x", timestamp=number),
        lambda: memory.add("x", ttl=number),
        lambda: memory.forget(older_than=number),
    ):
        with pytest.raises(InvalidInputError, match="timestamp|ttl|older_than"):
            call()
    assert memory.stats().turns == 0


@pytest.mark.parametrize("wrong", [3, None, ["a"], ("a",), b"a"])
def test_ids_that_are_no_text_are_refused(memory_of: Opener, wrong: Any) -> None:
    memory = memory_of()
    memory.add("x", id="a")
    for call in (
        lambda: memory.get(wrong),
        lambda: memory.delete([wrong]),
        lambda: memory.update(wrong, "y"),
        lambda: memory.supersede("a", wrong),
    ):
        with pytest.raises(InvalidInputError, match="id: expected text"):
            call()
    for call in (lambda: memory.delete(3), lambda: memory.add_many(3)):  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="got 3"):
            call()
    assert memory.stats().turns == 1


def test_an_empty_filter_forgets_nothing(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add("x")
    with pytest.raises(InvalidInputError, match="purge"):
        memory.forget(where={})
    assert memory.forget(where={}, before="2001-01-01") == 0
    assert memory.stats().turns == 1


def test_filters_with_numbers_beyond_all_bounds(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add("x", metadata={"a": 1})
    for value in (10**400, {"gt": 10**400}, {"gte": math.nan}, [math.inf]):
        with pytest.raises(InvalidInputError, match="where"):
            memory.search("x", where={"a": value})


@pytest.mark.parametrize("count", [np.int64(2), np.uint8(2)])
def test_counts_may_be_numpys(memory_of: Opener, count: Any) -> None:
    memory = memory_of()
    memory.add_many(["a", "b", "c"])
    assert len(memory.search("a", k=count)) == len(memory.turns(last=count)) == 2
    for wrong in (np.float64(2), np.array([1, 2]), "2", True):
        with pytest.raises(InvalidInputError, match="whole number"):
            memory.search("a", k=wrong)  # type: ignore[arg-type]


def test_the_limits_can_be_chosen(memory_of: Opener) -> None:
    limits = Limits(text_chars=5, metadata_bytes=10, name_chars=4, call_turns=2, batch_turns=1)
    memory = memory_of(limits=limits)
    for turn in (
        Turn("123456"),
        Turn("1", metadata={"a": "123"}),
        Turn("1", id="12345"),
        Turn("1", role="12345"),
        Turn("1", session="12345"),
    ):
        with pytest.raises(InvalidInputError, match="expected"):
            memory.add(turn)
    with pytest.raises(InvalidInputError, match=r"at most 2 in one call.*call_turns"):
        memory.add_many(str(number) for number in itertools.count())
    assert memory.stats().turns == 0
    memory.add_many([Turn("12345", metadata={"a": "1"}, id="1234"), "2"])
    for wrong in (0, -1, 1.5, True, "many"):
        with pytest.raises(InvalidInputError, match="Limits.call_turns"):
            Limits(call_turns=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="limits"):
        Memory(limits={"text_chars": 5})  # type: ignore[arg-type]


def test_a_store_takes_so_many_namespaces(tmp_path: Path) -> None:
    def add_to(namespace: str) -> None:
        with Memory.open(
            tmp_path / "agent.rsm",
            namespace=namespace,
            embedder="hashing",
            limits=Limits(namespaces=2),
        ) as memory:
            memory.add("x")

    add_to("a")
    add_to("b")
    with pytest.raises(InvalidInputError, match=r"'c'.*holds 2 namespaces.*Limits\.namespaces"):
        add_to("c")
    add_to("b")
    with Memory.open(tmp_path / "agent.rsm") as memory:
        assert memory.namespaces() == ["a", "b"]


@pytest.mark.parametrize("path", [None, ":memory:", 3, b"x", "a\0b", "\ud800.rsm", "x" * 5000])
def test_paths_that_no_file_can_have_are_refused(path: Any) -> None:
    with pytest.raises(RSMError):
        Memory.open(path, embedder="hashing")


@pytest.mark.parametrize("namespace", ["", "../x", "a/..", "n" * 257, "a\0", "\ud800", 3, None])
def test_f39_a_namespace_that_cannot_be_is_refused_at_once(
    memory_of: Opener, namespace: Any
) -> None:
    with pytest.raises(InvalidInputError, match="namespace: expected"):
        memory_of(namespace=namespace)


@pytest.mark.parametrize("timeout", [-1, math.nan, "5", None])
def test_timeouts_that_are_none_are_refused(tmp_path: Path, timeout: Any) -> None:
    with pytest.raises(InvalidInputError, match="timeout"):
        Memory.open(tmp_path / "agent.rsm", embedder="hashing", timeout=timeout)


@pytest.mark.parametrize("timeout", [0, 10**30, math.inf])
def test_one_may_wait_for_ever(tmp_path: Path, timeout: Any) -> None:
    with Memory.open(tmp_path / "agent.rsm", embedder="hashing", timeout=timeout) as memory:
        memory.add("x")
