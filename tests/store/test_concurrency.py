"""Many threads, many processes, forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rsm_fast.errors import StoreClosedError, StoreError, StoreLockedError
from rsm_fast.store import Store

# newer Pythons warn of what these tests are about
pytestmark = pytest.mark.filterwarnings("ignore:This process .* multi-threaded:DeprecationWarning")

ADDER = """
import sys
from rsm_fast.store import ChunkRecord, Store, TurnRecord
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store.open(path, timeout=60) as store:
    for number in range(count):
        with store.write() as writer:
            record = writer.namespace("a") or writer.create_namespace("a", {"dim": 2})
            ns = record.id
            turn = TurnRecord(0, f"{name}-{number}", "user", "x", 0, 0, True, None, None)
            [pk] = writer.insert_turns(ns, [turn])
            chunk = ChunkRecord(0, turn.id + "#0", ((pk, 0, 1),), None, 0, 0, 1, b"", b"", 1)
            writer.insert_chunks(ns, [chunk])
"""


def start(repo_root: Path, code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=repo_root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def test_f35_five_processes_make_and_fill_one_store(path, repo_root):
    adders = [start(repo_root, ADDER, path, name, 20) for name in "abcde"]
    for adder in adders:
        finish(adder)
    with Store.open(path) as store, store.read() as reader:
        ns = reader.namespace("a").id
        names = [turn.id for turn in reader.all_turns(ns)]
        assert len(reader.columns(ns, 2).pk) == 100
        assert reader.generation(ns) == 100
    assert store.path is not None
    assert sorted(names) == sorted(f"{name}-{n}" for name in "abcde" for n in range(20))
    for name in "abcde":
        mine = [int(id_.split("-")[1]) for id_ in names if id_.startswith(name)]
        assert mine == sorted(mine)
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name]


HOLDER = """
import sys
from rsm_fast.store import Store
with Store.open(sys.argv[1]) as store, store.write():
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_f35_the_error_names_the_process_that_holds_the_lock(path, repo_root):
    with Store.open(path, timeout=0.2) as store:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)],
            cwd=repo_root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(StoreLockedError, match=f"locked by process {holder.pid} "),
            store.write(),
        ):
            pass
        with store.read() as reader:  # readers never wait
            assert reader.namespaces() == []
        holder.communicate("\n", timeout=60)
        with store.write() as writer:
            writer.create_namespace("a", {})


@pytest.mark.parametrize("where", ["ram", "file"])
def test_the_error_tells_of_another_thread(path, where):
    with Store.open(None if where == "ram" else path, timeout=0.1) as store:
        entered, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with store.write():
                entered.set()
                leave.wait(30)

        thread = threading.Thread(target=hold)
        thread.start()
        entered.wait(30)
        with pytest.raises(StoreLockedError, match="another thread"), store.write():
            pass
        leave.set()
        thread.join()


def test_readers_do_not_wait_and_see_whole_commits(file_store, namespace, new_turn, add_turns):
    ns = namespace(file_store)
    with file_store.write() as writer:
        add_turns(writer, ns, new_turn("0"))
        with file_store.read() as reader:
            assert reader.counts(ns) == (0, 0)
    with file_store.read() as before:
        assert before.counts(ns) == (1, 1)
        with file_store.write() as writer:
            add_turns(writer, ns, new_turn("1"))
        assert before.counts(ns) == (1, 1)
        with file_store.read() as after:
            assert after.counts(ns) == (2, 2)


def soak(store: Store, ns: int, new_turn, add_turns, *, writers: int, readers: int, seconds: float):
    """Writers add and delete pairs; readers check that each snapshot is one state."""
    stop = time.monotonic() + seconds
    failures: list[BaseException] = []
    reads = [0] * readers

    def write(name: int) -> None:
        number = 0
        while time.monotonic() < stop:
            with store.write() as writer:
                pair = [new_turn(f"{name}-{number}-{side}") for side in "ab"]
                keys = add_turns(writer, ns, *pair)
            if number % 3 == 0:
                with store.write() as writer:
                    writer.delete_chunks(ns, [chunk for _, chunk in keys])
                    writer.delete_turns(ns, [turn for turn, _ in keys])
            number += 1

    def read(name: int) -> None:
        seen, newest, held = 0, 0, {}
        while time.monotonic() < stop:
            with store.read() as reader:
                changes = reader.changes_since(ns, seen, newest)
                for pk in changes.removed:
                    held.pop(pk, None)
                for chunk in changes.upserts:
                    held[chunk.pk] = chunk.id
                    newest = max(newest, chunk.pk)
                seen = changes.generation
                turns, chunks = reader.counts(ns)
                assert turns == chunks == len(held)
                assert turns % 2 == 0
                some = sorted(held)[-20:]
                assert [piece.id for piece in reader.pieces(ns, some)] == [held[k] for k in some]
            reads[name] += 1

    def guarded(target, name: int) -> None:
        try:
            target(name)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=guarded, args=(target, name))
        for target, count in ((write, writers), (read, readers))
        for name in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert min(reads) > 3
    assert store.check() == []


@pytest.mark.parametrize("where", ["ram", "file"])
def test_f36_writers_and_readers_in_threads(path, namespace, new_turn, add_turns, where):
    with Store.open(None if where == "ram" else path, synchronous="NORMAL", timeout=30) as store:
        soak(store, namespace(store), new_turn, add_turns, writers=4, readers=4, seconds=3)


@pytest.mark.slow
def test_soak_of_four_writers_and_eight_readers(path, namespace, new_turn, add_turns):
    with Store.open(path, timeout=60) as store:
        soak(store, namespace(store), new_turn, add_turns, writers=4, readers=8, seconds=60)


def test_close_while_threads_read(path, namespace):
    store = Store.open(path)
    namespace(store)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while True:
                with store.read() as reader:
                    reader.namespaces()
        except StoreClosedError:
            pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    store.close()
    for thread in threads:
        thread.join(timeout=30)
    assert errors == []
    assert not Path(f"{path}-wal").exists()  # the last connection is gone


def in_child(work) -> None:
    """Run ``work`` in a forked child and fail if it fails."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_fork_parent_and_child_go_on(path, namespace, new_turn, add_turns):
    store = Store.open(path)
    ns = namespace(store)

    def work() -> None:
        for number in range(20):
            with store.write() as writer:
                add_turns(writer, ns, new_turn(f"child-{number}"))
        store.close()

    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    for number in range(20):
        with store.write() as writer:
            add_turns(writer, ns, new_turn(f"parent-{number}"))
    assert os.waitpid(pid, 0)[1] == 0
    with store.read() as reader:
        assert reader.counts(ns) == (40, 40)
    assert store.check() == []
    store.close()


def test_fork_while_other_threads_work(path, namespace, new_turn, add_turns):
    store = Store.open(path, synchronous="NORMAL", timeout=30)
    ns = namespace(store)
    stop = threading.Event()
    errors: list[BaseException] = []

    def work(name: int) -> None:
        try:
            number = 0
            while not stop.is_set():
                with store.write() as writer:
                    add_turns(writer, ns, new_turn(f"{name}-{number}"))
                with store.read() as reader:
                    reader.counts(ns)
                number += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()

    def child(number: int) -> None:
        with store.write() as writer:
            add_turns(writer, ns, new_turn(f"child-{number}"))

    for number in range(8):
        in_child(lambda number=number: child(number))
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    with store.read() as reader:
        assert reader.turns_by_id(ns, [f"child-{n}" for n in range(8)]).keys() == {
            f"child-{n}" for n in range(8)
        }
    assert store.check() == []
    store.close()


def test_two_threads_fork_at_once(path, namespace, new_turn, add_turns):
    with Store.open(path, synchronous="NORMAL", timeout=30) as store:
        ns = namespace(store)
        failures: list[BaseException] = []

        def child(name: str) -> None:
            with store.write() as writer:
                add_turns(writer, ns, new_turn(name))

        def fork(thread: int) -> None:
            try:
                for number in range(6):
                    in_child(lambda number=number: child(f"{thread}-{number}"))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=fork, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        with store.read() as reader:
            assert reader.counts(ns) == (18, 18)


def test_fork_inside_a_transaction_is_refused_in_the_child(path, namespace, new_turn, add_turns):
    store = Store.open(path)
    ns = namespace(store)

    def child() -> None:
        with pytest.raises(StoreError, match="forked"), store.read():
            pass
        with pytest.raises(StoreError, match="forked"):
            Store.open(path)

    with store.write() as writer:
        add_turns(writer, ns, new_turn("1"))
        in_child(child)
    with store.read() as reader:
        assert reader.counts(ns) == (1, 1)
    store.close()


def test_fork_in_ram_copies(namespace, new_turn, add_turns):
    store = Store.open(None)
    ns = namespace(store)

    def child() -> None:
        with store.write() as writer:
            add_turns(writer, ns, new_turn("1"))
        with store.read() as reader:
            assert reader.counts(ns) == (1, 1)

    in_child(child)
    with store.read() as reader:
        assert reader.counts(ns) == (0, 0)
    store.close()
