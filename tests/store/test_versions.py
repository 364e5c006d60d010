"""Stores of released format versions open for ever."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from rsm_fast import Memory
from rsm_fast.store import Store
from rsm_fast.store.schema import VERSION

FIXTURES = Path(__file__).parent / "fixtures"
VERSIONS = range(1, VERSION + 1)


@pytest.fixture(params=VERSIONS)
def released(request: pytest.FixtureRequest, path: Path) -> tuple[Path, bytes]:
    """A copy of a released store, and its export."""
    source = FIXTURES / f"version_{request.param}.rsm"
    shutil.copy(source, path)
    path.chmod(0o600)
    return path, source.with_suffix(".jsonl").read_bytes()


def test_there_is_one_of_each_version():
    for version in VERSIONS:
        connection = sqlite3.connect(f"file:{FIXTURES}/version_{version}.rsm?immutable=1", uri=True)
        assert connection.execute("PRAGMA user_version").fetchone() == (version,)
        connection.close()


def test_a_released_store_holds_what_it_held(released):
    path, export = released
    with Store.open(path) as store:
        assert store.check() == []
        assert b"".join(store.export()) == export
        with store.read() as reader:
            ns = reader.namespace("agent").id
            assert reader.counts(ns) == (20, 20)
            assert reader.tombstoned(ns, ["turn-9", "turn-10"]) == {"turn-9"}
            assert len(reader.superseded(ns)) == len(reader.expiring(ns)) == 1


def test_a_memory_works_on_a_released_store(released):
    path, _ = released
    with Memory.open(path, namespace="agent", embedder="hashing-32") as memory:
        assert memory.stats().turns == 20
        [hit] = memory.search("train to Évora platform 11", k=1, where={"step": 11})
        assert hit.turn_ids == ("turn-11",)
        assert "Two lines." in memory.pack("the train was late", budget=500).text
        memory.add("A new turn in an old store.", id="new")
        assert memory.search("new turn in an old store", k=1)[0].turn_ids == ("new",)
    with Store.open(path) as store:
        assert store.check() == []
