"""What stays small, flat or gone: files, times, forgotten texts."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rsm_fast.errors import StoreLockedError
from rsm_fast.store import ChunkRecord, Store, TurnRecord


def rows(first: int, count: int) -> list[TurnRecord]:
    return [
        TurnRecord(0, f"{n:06d}", "user", f"turn {n} " + "words " * 40, n, 0, True, None, None)
        for n in range(first, first + count)
    ]


def fill(store: Store, ns: int, turns: list[TurnRecord]) -> list[tuple[int, int]]:
    vectors = np.random.default_rng(0).normal(size=(len(turns), 384)).astype(np.float32)
    with store.write() as writer:
        pks = writer.insert_turns(ns, turns)
        chunks = writer.insert_chunks(
            ns,
            [
                ChunkRecord(
                    0, f"{turn.id}#0", ((pk, 0, len(turn.text)),), None, 0, 0, 50, b"\x32",
                    turn.text.encode(), 1, atom=0, vector=vector.tobytes(),
                )
                for turn, pk, vector in zip(turns, pks, vectors, strict=True)
            ],
        )  # fmt: skip
    return list(zip(pks, chunks, strict=True))


def test_f37_a_compacted_store_is_as_small_as_a_fresh_one(path, namespace):
    fresh_path = path.with_name("fresh.rsm")
    with Store.open(fresh_path) as fresh:
        fill(fresh, namespace(fresh), rows(0, 100))
    with Store.open(path, synchronous="NORMAL") as store:
        ns = namespace(store)
        keys = fill(store, ns, rows(0, 10_000))
        with store.write() as writer:
            writer.delete_chunks(ns, [chunk for _, chunk in keys[100:]])
            writer.delete_turns(ns, [turn for turn, _ in keys[100:]])
        assert store.file_bytes() > 10_000_000
        store.compact()
        size = path.stat().st_size
        assert Path(f"{path}-wal").stat().st_size == 0
        with store.read() as reader:
            assert reader.counts(ns) == (100, 100)
            digests = [digest for part in reader.tombstones(ns) for digest in part]
            assert digests == sorted(digests)
            assert reader.tombstoned(ns, [f"{n:06d}" for n in range(99, 10_001)]) == {
                f"{n:06d}" for n in range(100, 10_000)
            }
    assert len(digests) == 9900
    assert size <= 1.3 * fresh_path.stat().st_size


@pytest.mark.timing
def test_f38_single_durable_adds_stay_flat_and_files_few(path, namespace):
    def once(folder: Path) -> float:
        folder.mkdir()
        with Store.open(folder / "x.rsm", synchronous="NORMAL") as store:
            ns = namespace(store)
            took = []
            for number in range(5000):
                [turn] = rows(number, 1)
                start = time.perf_counter()
                with store.write() as writer:
                    [pk] = writer.insert_turns(ns, [turn])
                    chunk = ChunkRecord(
                        0, f"{turn.id}#0", ((pk, 0, 5),), None, 0, 0, 50, b"", b"", 1,
                        vector=b"\0" * 1536,
                    )  # fmt: skip
                    writer.insert_chunks(ns, [chunk])
                took.append(time.perf_counter() - start)
            assert len(list(folder.iterdir())) == 3
        return statistics.median(took[-500:]) / statistics.median(took[:500])

    assert any(once(path.with_name(f"{n}")) <= 1.5 * 2 for n in range(5))


SECRET = "Xylophon-7413"


def traces(path: Path, needle: bytes) -> list[str]:
    files = [path, *path.parent.glob(path.name + "*"), *path.parent.rglob("*.snap")]
    return sorted({file.name for file in files if file.is_file() and needle in file.read_bytes()})


@pytest.mark.parametrize("how", ["delete", "update", "purge"])
def test_forgotten_text_is_nowhere_in_any_file(path, namespace, how):
    name = "id-of-" + SECRET
    with Store.open(path) as store:
        ns, other = namespace(store), namespace(store, "other")
        fill(store, other, rows(0, 50))
        secret = TurnRecord(
            0, name, SECRET, SECRET * 2000, 0, 0, True, SECRET, f'{{"k": "{SECRET}"}}'
        )
        for number in range(20):
            fill(store, ns, rows(number * 10, 10))
            if number == 7:
                [(turn_pk, chunk_pk)] = fill(store, ns, [secret])
        assert traces(path, SECRET.encode())
        with store.write() as writer:
            if how == "purge":
                writer.purge(ns)
            elif how == "delete":
                writer.delete_chunks(ns, [chunk_pk])
                writer.delete_turns(ns, [turn_pk])
            else:
                turn = TurnRecord(turn_pk, "new name", "user", "-", 0, 0, True, None, None)
                writer.update_turn(ns, turn)
                [chunk] = writer.chunks(ns, [chunk_pk])
                writer.replace_chunk(
                    ns,
                    chunk._replace(
                        id="new name#0", spans=((turn_pk, 0, 1),), terms=b"-", session=None
                    ),
                )
        store.compact()
        assert traces(path, SECRET.encode()) == []
        assert traces(path, SECRET[:9].encode()) == []
        assert traces(path, b"words ") == [path.name]
        assert store.check() == []
        if how == "delete":
            with store.read() as reader:
                assert reader.tombstoned(ns, [name]) == {name}


def test_compact_says_when_a_reader_keeps_the_log_in_use(path, namespace):
    with Store.open(path, timeout=0.1) as store:
        fill(store, namespace(store), rows(0, 10))
        with store.read() as reader:
            reader.namespaces()
            with pytest.raises(StoreLockedError, match="compact again"):
                store.compact()
        store.compact()
        assert Path(f"{path}-wal").stat().st_size == 0


def test_a_long_reader_does_not_block_writers(path, namespace):
    with Store.open(path, timeout=1) as store:
        ns = namespace(store)
        with store.read() as reader:
            assert reader.counts(ns) == (0, 0)
            done = threading.Thread(target=fill, args=(store, ns, rows(0, 3000)))
            done.start()
            done.join(timeout=60)
            assert not done.is_alive()
            assert reader.counts(ns) == (0, 0)


def test_opening_and_closing_leaves_one_file(path, namespace):
    for number in range(5):
        with Store.open(path) as store:
            namespace(store, f"{number}")
        assert [file.name for file in path.parent.iterdir()] == [path.name]
