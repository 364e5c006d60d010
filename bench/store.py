"""What the store costs: single and bulk writes, opening, growth, beside plain SQLite.

``python -m bench.store [--chunks 100000] [--write docs/file-format.md]`` prints the table of that
page, or writes it between its markers. Stores are made in a temporary folder (``TMPDIR``).
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from rsm_fast.store import ChunkRecord, Store, TurnRecord

DIM = 384
TEXT = "We moved from Porto to Lisbon in May, and the flat has a balcony over the river. " * 3
TERMS = b"move\0porto\0lisbon\0may\0flat\0balcon\0river\0" * 3


def turn(number: int) -> TurnRecord:
    """A turn of 250 characters with metadata."""
    return TurnRecord(
        0, f"{number:012d}", "user", TEXT, number, 60, True, "s1", '{"step": 3, "tool": "mail"}'
    )


def chunk(turn_record: TurnRecord, turn_pk: int, vector: bytes) -> ChunkRecord:
    """Its chunk."""
    return ChunkRecord(
        0, turn_record.id + "#0", ((turn_pk, 0, len(TEXT)),), "s1", turn_record.micros, 60, 66,
        b"\x42", TERMS, 1, text_hash=turn_record.micros, atom=turn_record.micros % 500,
        vector=vector,
    )  # fmt: skip


class OurStore:
    """One turn and its chunk in a transaction of the store."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self.store = Store.open(path, synchronous=synchronous)  # type: ignore[arg-type]
        with self.store.write() as writer:
            self.ns = writer.create_namespace("bench", {"dim": DIM}).id

    def add(self, number: int, vector: bytes) -> None:
        """Insert and commit."""
        record = turn(number)
        with self.store.write() as writer:
            [pk] = writer.insert_turns(self.ns, [record])
            writer.insert_chunks(self.ns, [chunk(record, pk, vector)])

    def add_many(self, first: int, vectors: np.ndarray) -> None:
        """Insert all in one transaction."""
        records = [turn(first + n) for n in range(len(vectors))]
        with self.store.write() as writer:
            pks = writer.insert_turns(self.ns, records)
            rows = zip(records, pks, vectors, strict=True)
            writer.insert_chunks(self.ns, [chunk(r, pk, v.tobytes()) for r, pk, v in rows])


class PlainSQLite:
    """The same bytes in one row of one table, with the same settings."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute(f"PRAGMA synchronous = {synchronous}")
        self.connection.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, name, text, meta, terms, vector)"
        )

    def add(self, number: int, vector: bytes) -> None:
        """Insert and commit."""
        record = turn(number)
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute(
            "INSERT INTO t (name, text, meta, terms, vector) VALUES (?,?,?,?,?)",
            (record.id, record.text, record.metadata, TERMS, vector),
        )
        self.connection.execute("COMMIT")


def single_adds(folder: Path) -> Iterator[tuple[str, str]]:
    """One add at a time, taken in turns with plain SQLite so that both meet the same disk."""
    medians: dict[tuple[str, str], float] = {}
    tenths: dict[tuple[str, str], float] = {}
    times: dict[tuple[str, str], list[float]] = {}
    vectors = np.random.default_rng(0).normal(size=(2000, DIM)).astype(np.float32)
    for synchronous in ("FULL", "NORMAL"):
        peers = {
            "store": OurStore(folder / f"s-{synchronous}", synchronous),
            "SQLite": PlainSQLite(folder / f"p-{synchronous}", synchronous),
        }
        order = list(peers)
        shuffle = random.Random(0).shuffle
        for number, vector in enumerate(vectors):
            data = vector.tobytes()
            shuffle(order)  # who comes second finds the disk busy with the first
            for name in order:
                start = time.perf_counter()
                peers[name].add(number, data)
                times.setdefault((name, synchronous), []).append(time.perf_counter() - start)
    for name, taken in times.items():
        medians[name] = statistics.median(taken) * 1e3
        tenths[name] = sorted(taken)[len(taken) // 10] * 1e3
    for synchronous in ("FULL", "NORMAL"):
        ours, theirs = medians["store", synchronous], medians["SQLite", synchronous]
        yield (
            f"one add, `synchronous={synchronous}`",
            f"{ours:.3f} ms; plain SQLite, same bytes in one row: {theirs:.3f} ms; "
            f"{ours - theirs:+.3f} ms; best tenth {tenths['store', synchronous]:.3f} and "
            f"{tenths['SQLite', synchronous]:.3f} ms",
        )
    ratio = medians["store", "FULL"] / medians["store", "NORMAL"]
    yield "FULL against NORMAL", f"{ratio:.1f}x"


def bulk(folder: Path, chunks: int) -> Iterator[tuple[str, str]]:
    """Transactions of 500 up to the full size, then opening it."""
    path = folder / "bulk.rsm"
    ours = OurStore(path, "FULL")
    block = np.random.default_rng(1).normal(size=(500, DIM)).astype(np.float32)
    block /= np.linalg.norm(block, axis=1, keepdims=True)
    rates, singles, processor = [], {}, 0.0
    for first in range(0, chunks, len(block)):
        if first in (1000, chunks // 10, chunks - len(block)):
            singles[first] = _single(ours, chunks + first, block[0].tobytes())
        start, busy = time.perf_counter(), time.process_time()
        ours.add_many(first, block)
        rates.append(len(block) / (time.perf_counter() - start))
        processor += time.process_time() - busy
    yield (
        "bulk, 500 a transaction",
        f"{statistics.median(rates):,.0f} chunks/s; first tenth "
        f"{statistics.median(rates[: len(rates) // 10]):,.0f}, last tenth "
        f"{statistics.median(rates[-len(rates) // 10 :]):,.0f}; "
        f"processor time alone: {chunks / processor:,.0f} chunks/s",
    )
    first, *_, last = singles.values()
    sizes = ", ".join(f"{size:,}: {took * 1e3:.3f} ms" for size, took in singles.items())
    yield "one add by size of the store (FULL)", f"{sizes}; {last / first:.2f}x"
    yield "file", f"{path.stat().st_size / chunks:,.0f} bytes a chunk, texts and vectors included"
    ns = ours.ns
    ours.store.close()

    start, busy = time.perf_counter(), time.process_time()
    with Store.open(path) as store, store.read() as reader:
        columns = reader.columns(ns, DIM)
        took, busy = time.perf_counter() - start, time.process_time() - busy
        yield (
            f"open {chunks:,} chunks without a snapshot",
            f"{took:.2f} s, every row verified; processor time alone: {busy:.2f} s",
        )
        generation = reader.generation(ns)
        arrays = {
            "vector": columns.vector,
            "code": np.zeros(columns.vector.shape, np.int8),
            "pk": columns.pk,
            "atom": columns.atom,
        }
        store.save_snapshot(ns, generation, arrays)
        pks = columns.pk[:: chunks // 100][:100].tolist()
        took = _best(lambda: reader.pieces(ns, pks), 50)
        yield "texts of 100 chunks for a pack", f"{took * 1e3:.2f} ms"
        took = _best(lambda: reader.eligible_chunks(ns, where={"role": "user"}), 3)
        yield f"filter by role over {chunks:,} chunks", f"{took * 1e3:.0f} ms"
    with Store.open(path) as store:
        took = _best(lambda: store.load_snapshot(ns), 3)
        mega = sum(array.nbytes for array in arrays.values()) / 1e6
        yield f"load a snapshot of {chunks:,} chunks ({mega:.0f} MB)", f"{took:.2f} s, verified"


def _single(ours: OurStore, number: int, vector: bytes) -> float:
    taken = []
    for attempt in range(300):
        start = time.perf_counter()
        ours.add(number + attempt, vector)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _best(run: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--write", type=Path, help="a page with a <!-- store --> marker")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rsm-bench-"))
    try:
        rows = [*single_adds(folder), *bulk(folder, options.chunks)]
    finally:
        shutil.rmtree(folder)
    lines = ["| what | measured |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)]
    lines += [
        "",
        f"`python -m bench.store --chunks {options.chunks}`, d = {DIM}, {len(TEXT)} characters a "
        f"turn; {platform.machine()}, Python {platform.python_version()}, SQLite "
        f"{sqlite3.sqlite_version}; load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} "
        "cores. Medians; opening and packing: best.",
    ]
    text = "\n".join(lines)
    print(text)
    if options.write:
        marker = re.compile(r"(<!-- store -->\n).*?(<!-- end -->)", re.S)
        page = options.write.read_text(encoding="utf-8")
        options.write.write_text(
            marker.sub(lambda match: match[1] + text + "\n" + match[2], page), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
