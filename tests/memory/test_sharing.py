"""Threads, event loops, processes and namespaces that share a store."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from pathlib import Path

from memory_cases import Opener, fingerprint, sentences

from rsm_fast import Memory


def test_a_second_memory_on_the_file_sees_each_commit(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as one, Memory.open(path) as two:
        turns = sentences(120)
        one.add_many(turns[:30])
        assert two.search("harbour", k=1)
        two.add_many(turns[30:60])
        one.add_many(turns[60:90])
        two.delete("t0010")
        one.update("t0020", "A bakery opened.")
        two.add_many(turns[90:])
        assert fingerprint(one) == fingerprint(two)
        with Memory.open(path) as three:
            assert fingerprint(three) == fingerprint(one)


def test_ids_that_another_memory_took_meanwhile_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as one, Memory.open(path) as two:
        assert one.add("a") == "00000001"
        two.add("mine", id="00000002")
        assert one.add("b") == "00000003"
        assert two.add("c") == "00000004"


def test_f29_namespaces_do_not_touch(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with (
        Memory.open(path, embedder="hashing", namespace="A") as a,
        Memory.open(path, embedder="hashing", namespace="B") as b,
    ):
        a.add("the same text", id="x")
        b.add("the same text", id="x")
        a.delete("x")
        assert a.search("the same text") == []
        assert b.search("the same text", k=1)[0].text == "the same text"
        assert a.namespaces() == ["A", "B"]


def test_threads_may_share_a_memory(memory_of: Opener) -> None:
    memory = memory_of()
    memory.add_many(sentences(60))
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for i in range(15):
                memory.add(f"writer {number} wrote line {i}")
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    def read() -> None:
        try:
            for _ in range(20):
                pack = memory.pack("harbour writer line", budget=400)
                assert pack.tokens <= 400
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    threads += [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert memory.stats().turns == 105


def test_async_twins_do_the_same() -> None:
    async def run() -> None:
        memory = Memory(embedder="hashing")
        await memory.aadd("The tram leaves at 7:40.", id="tram")
        await memory.aadd_many(sentences(20))
        assert (await memory.asearch("tram", k=1))[0].turn_ids == ("tram",)
        assert "7:40" in (await memory.apack("When does the tram leave?", budget=200)).text

    asyncio.run(run())


def test_a_fork_goes_on_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "agent.rsm"
    with Memory.open(path, embedder="hashing") as memory:
        memory.add_many(sentences(60))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of the suite's runner
            child = os.fork()
        if child == 0:
            try:
                memory.add("written by the child", id="child")
                os._exit(0 if memory.search("written by the child", k=1) else 1)
            except BaseException:  # noqa: BLE001
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert memory.search("written by the child", k=1)[0].turn_ids == ("child",)
