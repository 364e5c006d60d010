"""Helpers to fill and read stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rsm_fast.store import ChunkRecord, Store, TurnRecord, Writer

DIM = 8


def unit(seed: int, dim: int = DIM) -> bytes:
    vector = np.random.default_rng(seed).normal(size=dim).astype(np.float32)
    return (vector / np.linalg.norm(vector)).astype(np.float32).tobytes()


def turn(name: str, text: str = "", **fields: object) -> TurnRecord:
    record = TurnRecord(0, name, "user", text or f"text of {name}", 0, 0, True, None, None)
    return record._replace(**fields)


def chunk_of(turn: TurnRecord, turn_pk: int, **fields: object) -> ChunkRecord:
    record = ChunkRecord(
        pk=0,
        id=f"{turn.id}#0",
        spans=((turn_pk, 0, len(turn.text)),),
        session=turn.session,
        micros=turn.micros,
        offset_minutes=turn.offset_minutes,
        tokens=len(turn.text.split()),
        line_tokens=b"\x03",
        terms=turn.text.encode(),
        analyser=1,
        text_hash=hash(turn.text),
        atom=0,
        vector=unit(turn_pk),
    )
    return record._replace(**fields)


def add(writer: Writer, ns: int, *turns: TurnRecord) -> list[tuple[int, int]]:
    """One chunk a turn; pks of turn and chunk."""
    turn_pks = writer.insert_turns(ns, turns)
    chunks = [chunk_of(record, pk) for record, pk in zip(turns, turn_pks, strict=True)]
    return list(zip(turn_pks, writer.insert_chunks(ns, chunks), strict=True))


def make_namespace(store: Store, key: str = "a", **settings: object) -> int:
    with store.write() as writer:
        return writer.create_namespace(key, {"dim": DIM, **settings}).id


@pytest.fixture
def new_turn() -> Callable[..., TurnRecord]:
    return turn


@pytest.fixture
def new_chunk() -> Callable[..., ChunkRecord]:
    return chunk_of


@pytest.fixture
def add_turns() -> Callable[..., list[tuple[int, int]]]:
    return add


@pytest.fixture
def namespace() -> Callable[..., int]:
    return make_namespace


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.rsm"


@pytest.fixture(params=["ram", "file"])
def store(request: pytest.FixtureRequest, path: Path) -> Iterator[Store]:
    with Store.open(None if request.param == "ram" else path, synchronous="NORMAL") as opened:
        yield opened


@pytest.fixture
def file_store(path: Path) -> Iterator[Store]:
    with Store.open(path, synchronous="NORMAL") as opened:
        yield opened
