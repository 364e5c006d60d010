"""``python -m bench hot``: what adding costs beside the embedder, on real turns.

A memory is filled to so many chunks, then single adds and batches are timed, each add in turn
with its floor: the same rows put into the same tables by bare SQLite statements. Vectors come
ready-made from a table: MiniLM's of real turns, and noisy copies of them. ``--write
docs/performance.md`` puts the table between that page's markers.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from bench.datasets.realmem import read_realmem
from rsm_fast import Memory, sample
from rsm_fast.analysis import chunk_terms
from rsm_fast.embedding import as_embedder
from rsm_fast.store import Store
from rsm_fast.tokens import TokenCounter, as_token_counter

DATA = Path(os.environ.get("RSM_FAST_DATA", Path(__file__).parents[2] / "shared" / "data"))
SHORT = (
    "We moved from Porto to Lisbon in May, and flat {} has a balcony over the river.",
    "My sister {} works as a nurse in Hamburg and has two cats.",
    "Please remind me, number {}, to book the train to Vienna before Friday evening.",
)
LONG = 100  # words of a long turn; one more chunk begins at some 170
EMBEDDED = 1500  # real turns
NOISE = 0.35  # norm of what is added to a copy of a vector

F32 = npt.NDArray[np.float32]
Kind: TypeAlias = Literal["short", "real", "long"]
_TABLES = {"turns": 13, "chunks": 13, "chunk_turns": 2, "features": 5}


class Ready:
    """An embedder that looks its vectors up; it counts like the packaged model."""

    name = "ready-made"
    dim = 384
    fingerprint = "ready-made d=384"
    max_tokens = 254

    def __init__(self, vectors: F32, counter: TokenCounter) -> None:
        self._vectors = vectors
        self._next = 0
        self.counter = counter
        self.count_tokens: Callable[[str], int] = counter
        self.seconds = 0.0  # that it took itself, not to be counted

    def embed_passages(self, texts: Sequence[str]) -> F32:
        """The next rows of the table."""
        start = time.thread_time()
        rows = np.arange(self._next, self._next + len(texts)) % len(self._vectors)
        self._next += len(texts)
        found: F32 = self._vectors[rows]
        self.seconds += time.thread_time() - start
        return found

    embed_queries = embed_passages

    def close(self) -> None:
        """Nothing is held."""


class Floor:
    """The statements of one add and nothing else, on rows that are there already."""

    def __init__(self, path: Path | None, synchronous: str) -> None:
        self._store = Store.open(path, synchronous=synchronous)  # type: ignore[arg-type]
        with self._store.write() as writer:
            self._ns = writer.create_namespace("floor", {"settings": "x" * 500}).id
        with self._store._connections.writing() as self._connection:
            pass
        marks = {table: ",".join("?" * count) for table, count in _TABLES.items()}
        self._inserts = [f"INSERT INTO {table} VALUES ({marks[table]})" for table in _TABLES]
        self._number = 0

    def add(self, text: str, terms: bytes, vector: bytes) -> float:
        """Seconds of wall time for one transaction."""
        self._number += 1
        pk = (self._ns << 40) + self._number
        name = f"{self._number:08d}"
        rows = (
            (pk, self._ns, name, "user", text, pk, 0, 0, None, None, None, None, 1),
            (pk, f"{name}#0", b"x" * 24, None, pk, 0, 100, b"1234", pk, None, 0, 4, 1),
            (pk, pk),
            (pk, terms, 1, vector, 1),
        )
        execute = self._connection.execute
        start = time.perf_counter(), time.thread_time()
        execute("BEGIN IMMEDIATE")
        execute("SELECT * FROM namespaces WHERE id = ?", (self._ns,)).fetchone()
        for sql, row in zip(self._inserts, rows, strict=True):
            execute(sql, row)
        sql = "UPDATE namespaces SET generation = ?, next_turn = ?, crc = 1 WHERE id = ?"
        execute(sql, (self._number, self._number, self._ns))
        execute("COMMIT")
        self.processor = time.thread_time() - start[1]
        return time.perf_counter() - start[0]

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def real_texts(counter: TokenCounter) -> list[str]:
    """Turns of RealMem, or of the shipped sample, that stay one chunk, as they come."""
    folder = DATA / "realmem"
    streams = [stream.turns for stream in read_realmem(folder).streams] if folder.exists() else []
    turns = [turn for turns in streams for turn in turns] or sample.turns()
    texts = dict.fromkeys(turn.text for turn in turns)
    return [text for text in texts if counter(text) <= Ready.max_tokens - 20]


def table_of_vectors(texts: Sequence[str], count: int) -> F32:
    """Unit vectors of real texts' beginnings, and noisy copies, ``(count, 384)`` float32."""
    with_model = as_embedder(None)
    real = with_model.embed_passages([text[:160] for text in texts[:EMBEDDED]])
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(count, real.shape[1]))
    noise *= NOISE / np.linalg.norm(noise, axis=1, keepdims=True)
    noise[: len(real)] = 0.0
    mixed = real[np.arange(count) % len(real)] + noise
    table: F32 = (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(np.float32)
    return table


class Bench:
    """A memory of so many chunks, and texts to add."""

    def __init__(
        self,
        texts: Sequence[str],
        vectors: F32,
        *,
        chunks: int,
        repeats: int,
        path: Path | None = None,
        synchronous: str = "FULL",
    ) -> None:
        self.counter = as_token_counter()
        self.embedder = Ready(vectors, self.counter)
        self._repeats = repeats
        self._number = 0
        long = [text for text in texts if _words(text) >= LONG] or texts
        self._texts = {"long": cycle(long), "real": cycle(texts), "short": cycle(SHORT)}
        self.memory = (
            Memory(embedder=self.embedder)
            if path is None
            else Memory.open(path, embedder=self.embedder, synchronous=synchronous)  # type: ignore[arg-type]
        )
        for _ in range(0, chunks, 256):
            kinds: list[Kind] = ["short", "long"] * 128
            self.memory.add_many([self.text(kind) for kind in kinds])

    def text(self, kind: Kind) -> str:
        """A text that was not there before."""
        self._number += 1
        text = next(self._texts[kind])
        return text.format(self._number) if kind == "short" else f"{text} ({self._number})"

    def singles(self, floor: Floor, kind: Kind, *, wall: bool) -> tuple[str, list[float]]:
        """Add one by one, each in turn with the floor; a line of the table, and the times."""
        ours, bare, counted, analysed = [], [], [], []
        vector = b"\0" * 1536
        for _ in range(self._repeats):
            text = self.text(kind)
            counted.append(_thread_time(lambda text=text: self.counter.count_lines([text])))
            terms: list[str] = []
            analysed.append(
                _thread_time(lambda text=text, terms=terms: terms.extend(chunk_terms(text, None)))
            )
            took = floor.add(text, "\n".join(terms).encode(), vector)
            bare.append(took if wall else floor.processor)
            fresh = text + "?"  # so that the words are known, but for the last
            self.embedder.seconds = 0.0
            start = time.perf_counter(), time.thread_time()
            self.memory.add(fresh)
            took = time.perf_counter() - start[0] if wall else time.thread_time() - start[1]
            ours.append(took - self.embedder.seconds)
        middle, least = statistics.median(ours), statistics.median(bare)
        line = (
            f"{middle * 1e3:.3f} ms, best tenth {sorted(ours)[len(ours) // 10] * 1e3:.3f}; the "
            f"same rows by bare SQLite {least * 1e3:.3f} ms; {middle / least:.1f}x"
        )
        if not wall:
            words = statistics.median(counted) + statistics.median(analysed)
            line += f"; counting and analysing {words / middle:.0%} of it"
        return line, ours

    def bulk(self, kind: Kind, *, batches: int = 12) -> str:
        """`add_many` of 256 turns at a time."""
        rates, walls = [], []
        for _ in range(batches):
            texts = [self.text(kind) for _ in range(256)]
            self.embedder.seconds = 0.0
            start = time.perf_counter(), time.thread_time()
            self.memory.add_many(texts)
            rates.append(256 / (time.thread_time() - start[1] - self.embedder.seconds))
            walls.append(256 / (time.perf_counter() - start[0] - self.embedder.seconds))
        return (
            f"{statistics.median(rates):,.0f} chunks/s of processor time, "
            f"{statistics.median(walls):,.0f} as elapsed, best {max(walls):,.0f}"
        )


def _thread_time(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def rows(chunks: int, repeats: int, folder: Path) -> Iterator[tuple[str, str]]:
    """The lines of the table."""
    texts = real_texts(as_token_counter())
    vectors = table_of_vectors(texts, chunks + 8192)
    bench = Bench(texts, vectors, chunks=chunks, repeats=repeats)
    floor = Floor(None, "FULL")
    names: dict[Kind, str] = {"short": "a sentence"}
    bench.singles(floor, "long", wall=False)  # warm
    for kind, what in (("real", "a real turn"), ("long", "a long one")):
        middle = statistics.median(_words(bench.text(kind)) for _ in range(1000))
        names[kind] = f"{what} ({middle:.0f} words)"
    for kind, what in names.items():
        line, _ = bench.singles(floor, kind, wall=False)
        yield f"one add in RAM, {what} (processor time)", line
    yield "`add_many` in RAM, sentences", bench.bulk("short")
    yield "`add_many` in RAM, real turns", bench.bulk("real")
    yield "`add_many` in RAM, long ones", bench.bulk("long")
    bench.memory.close()
    floor.close()
    for synchronous in ("FULL", "NORMAL"):
        bench = Bench(
            texts, vectors, chunks=chunks, repeats=repeats,
            path=folder / f"{synchronous}.rsm", synchronous=synchronous,
        )  # fmt: skip
        floor = Floor(folder / f"floor-{synchronous}.rsm", synchronous)
        bench.singles(floor, "short", wall=True)
        line, _ = bench.singles(floor, "long", wall=True)
        yield f"one durable add of a long turn, `{synchronous}` (elapsed)", line
        if synchronous == "FULL":
            yield "`add_many` on disk, long turns", bench.bulk("long")
        bench.memory.close()
        floor.close()


def _words(text: str) -> int:
    return len(text.split())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench hot", description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000, help="stored before measuring")
    parser.add_argument("--repeats", type=int, default=600, help="single adds")
    parser.add_argument("--write", type=Path, help="a page with a <!-- hot --> marker")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rsm-bench-") as folder:
        found = list(rows(options.chunks, options.repeats, Path(folder)))
    lines = ["| what | measured |", "|---|---|", *(f"| {name} | {text} |" for name, text in found)]
    lines += [
        "",
        f"`python -m bench hot --chunks {options.chunks}`, d = {Ready.dim}, at {options.chunks:,} "
        f"stored chunks and more; {platform.machine()}, Python {platform.python_version()}, SQLite "
        f"{sqlite3.sqlite_version}; load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} "
        "cores. Medians.",
    ]
    text = "\n".join(lines)
    print(text)
    if options.write:
        marker = re.compile(r"(<!-- hot -->\n).*?(<!-- end -->)", re.S)
        page = options.write.read_text(encoding="utf-8")
        options.write.write_text(
            marker.sub(lambda match: match[1] + text + "\n" + match[2], page), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    main()
