"""Damaged, foreign and read-only files: an error or a right answer, never a wrong one."""

from __future__ import annotations

import os
import pickle
import random
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rsm_fast.errors import CorruptStoreError, InvalidInputError, RSMError, StoreError
from rsm_fast.store import Store, connections, schema
from rsm_fast.store.schema import VERSION
from rsm_fast.store.snapshots import snapshot_folder


def everything(path: Path) -> tuple[list, bytes]:
    """Findings and content, through every way of reading."""
    with Store.open(path) as store:
        findings = store.check()
        content = b"".join(store.export())
        with store.read() as reader:
            for record in reader.namespaces():
                pks = reader.columns(record.id, 8).pk.tolist()
                content += repr(reader.pieces(record.id, pks)).encode()
                content += repr(reader.eligible_chunks(record.id, where={"step": 1})).encode()
                content += repr(reader.superseded(record.id)).encode()
        return findings, content


def place(data: bytes, path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)


@pytest.fixture
def whole(path, namespace, new_turn, add_turns) -> bytes:
    """The bytes of a small store that has a bit of everything."""
    with Store.open(path) as store:
        for key in ("a", "b"):
            ns = namespace(store, key)
            turns = [
                new_turn(
                    f"{n}", f"Moved to Lisbon {n} times", metadata='{"step": 1}' if n else None
                )
                for n in range(12)
            ]
            with store.write() as writer:
                keys = add_turns(writer, ns, *turns)
                writer.supersede(ns, keys[0][0], keys[3][0])
                writer.delete_chunks(ns, [keys[5][1]])
                writer.delete_turns(ns, [keys[5][0]])
                writer.put_array(ns, "centre", np.ones(8, np.float32))
        with store.write() as writer:
            writer.set_atoms(ns, [(keys[1][1], 4)])
    assert not Path(f"{path}-wal").exists()
    return path.read_bytes()


def outcome(damaged: bytes, path: Path, content: bytes) -> str:
    place(damaged, path)
    try:
        findings, read = everything(path)
    except (RSMError, RuntimeWarning):  # warnings are errors here
        return "error"
    if findings:
        return "found"
    return "same" if read == content else "wrong"


def test_f34_a_flipped_bit_is_noticed_or_harmless(whole, path):
    findings, content = everything(path)
    assert findings == []
    chance = random.Random(34)
    outcomes = {"error": 0, "found": 0, "same": 0, "wrong": 0}
    for _ in range(250):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        outcomes[outcome(bytes(damaged), path, content)] += 1
    assert outcomes["wrong"] == 0
    assert outcomes["error"] > 10


@pytest.mark.parametrize("needle", [b"Lisbon 7", b'"step": 1', b"user"])
def test_f34_a_flipped_letter_is_noticed_where_sqlite_does_not(whole, path, needle):
    at = whole.index(needle)
    place(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], path)
    with sqlite3.connect(path) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    plain.close()
    with Store.open(path) as store:
        findings = store.check()
        assert [finding.table for finding in findings] == ["turns"]
        assert findings[0].remedy == ""
        with store.read() as reader:
            ns = findings[0].key >> 40
            with pytest.raises(CorruptStoreError, match="doctor"):
                list(reader.all_turns(ns))


def test_f34_a_cut_file_is_noticed(whole, path):
    _, content = everything(path)
    for size in (0, 1, 15, 16, 100, 1000, 4096, 5000, len(whole) // 2, len(whole) - 1):
        harmless = () if whole[size:].strip(b"\0") else ("same",)  # SQLite reads zeros there
        assert outcome(whole[:size], path, content) in ("error", "found", *harmless), size


def test_f34_repair_rebuilds_what_can_be_derived(whole, path):
    with Store.open(path) as store:
        with store.read() as reader:
            ns = reader.namespace("a").id
            pks = reader.columns(ns, 8).pk.tolist()
    with sqlite3.connect(path) as plain:
        plain.execute("UPDATE features SET vector = zeroblob(32) WHERE chunk = ?", (pks[0],))
        plain.execute("DELETE FROM features WHERE chunk = ?", (pks[1],))
        plain.execute("UPDATE chunks SET tokens = 999 WHERE pk = ?", (pks[2],))
        plain.execute("DELETE FROM chunk_turns WHERE chunk = ?", (pks[3],))
        plain.execute("INSERT INTO chunk_turns VALUES (?, 77)", ((ns << 40) + 1,))
        plain.execute("UPDATE arrays SET data = zeroblob(32) WHERE namespace = ?", (ns,))
        plain.execute("UPDATE tombstones SET digests = zeroblob(6)")
        plain.execute("INSERT INTO changes VALUES (?, 99999, 5)", (ns,))
        plain.execute("INSERT INTO snapshots VALUES (?, 1, zeroblob(16), 5)", (ns,))
        plain.execute("INSERT INTO staged_vectors VALUES (?, zeroblob(32), 5)", (pks[4],))
    plain.close()
    path.chmod(0o644)
    with Store.open(path) as store:
        tables = {finding.table for finding in store.check()}
        assert tables == {
            "arrays", "changes", "chunk_turns", "chunks", "features", "file", "snapshots",
            "staged_vectors", "tombstones",
        }  # fmt: skip
        assert all(finding.remedy for finding in store.check())
        assert store.repair() == []
        assert store.check() == []
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with store.read() as reader:
            assert [chunk.pk for chunk in reader.open_chunks(ns)] == pks[:2]
            assert [turn.id for turn in reader.unchunked_turns(ns)] == ["2"]
            assert reader.chunks(ns, [pks[0]])[0].analyser == 0
            assert reader.changes_since(ns, 1, pks[-1]).reload
            assert [turn.id for turn in reader.all_turns(ns)] == [
                f"{n}" for n in range(12) if n != 5
            ]


def test_f34_repair_keeps_damaged_texts_unless_told(whole, path):
    at = whole.index(b"Lisbon 7")
    place(whole[:at] + b"l" + whole[at + 1 :], path)
    with Store.open(path) as store:
        assert [finding.table for finding in store.repair()] == ["turns"]
        assert store.repair(drop_damaged=True) == []
        assert b"isbon 7" not in b"".join(store.export(namespace="b")) or (
            b"isbon 7" not in b"".join(store.export(namespace="a"))
        )


def test_f34_a_damaged_index_is_rebuilt(whole, path):
    with sqlite3.connect(path) as plain:
        plain.execute("PRAGMA writable_schema = ON")
        sql = "SELECT rootpage FROM sqlite_schema WHERE name = 'turns_superseded'"
        (page,) = plain.execute(sql).fetchone()
    plain.close()
    data = bytearray(path.read_bytes())
    start = (page - 1) * 4096
    data[start + 3 : start + 5] = b"\0\0"  # the index now has no entries
    place(bytes(data), path)
    with Store.open(path) as store:
        assert "index" in {finding.table for finding in store.check()}
        assert store.repair() == []


@pytest.mark.parametrize("cut", [0.1, 0.35, 0.5, 0.77, 0.999])
def test_a_cut_log_leaves_an_exact_prefix(path, namespace, new_turn, add_turns, cut):
    with Store.open(path, synchronous="NORMAL") as store:
        ns = namespace(store)
        for number in range(40):
            with store.write() as writer:
                add_turns(writer, ns, new_turn(f"{number}"))
        copy = path.with_name("copy.rsm")
        shutil.copy(path, copy)
        log = Path(f"{path}-wal").read_bytes()
    Path(f"{copy}-wal").write_bytes(log[: int(len(log) * cut)])
    with Store.open(copy) as store:
        assert store.check() == []
        with store.read() as reader:
            turns = [] if reader.namespace("a") is None else [t.id for t in reader.all_turns(ns)]
            chunks = list(reader.all_chunks(ns))
    assert turns == [f"{number}" for number in range(len(turns))]
    assert len(chunks) == len(turns)
    assert abs(len(turns) - 40 * cut) < 8


def test_f34_a_flipped_bit_in_the_log_is_noticed(path, namespace, new_turn, add_turns):
    with Store.open(path) as store:
        ns = namespace(store)
        for number in range(30):
            with store.write() as writer:
                add_turns(writer, ns, new_turn(f"{number}"))
        original = path.with_name("original.rsm")
        shutil.copy(path, original)
        log = Path(f"{path}-wal").read_bytes()
    chance = random.Random(1)
    for _ in range(15):
        at = chance.randrange(32, len(log) - 40_000)
        place(original.read_bytes(), path)
        damaged = bytearray(log)
        damaged[at] ^= 1 << chance.randrange(8)
        Path(f"{path}-wal").write_bytes(damaged)
        with pytest.warns(RuntimeWarning, match="log is damaged"):
            store = Store.open(path)
        with store, store.read() as reader:
            if reader.namespace("a") is not None:
                turns = [turn.id for turn in reader.all_turns(ns)]
                assert turns == [f"{number}" for number in range(len(turns))]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Store.open(path).close()


def test_not_a_store(tmp_path, path):
    path.write_text("just a text file that is longer than a header " * 10)
    with pytest.raises(CorruptStoreError, match="not an SQLite database"):
        Store.open(path)
    path.unlink()
    plain = sqlite3.connect(path)
    plain.execute("CREATE TABLE x (y)")
    plain.close()
    with pytest.raises(CorruptStoreError, match="application id"):
        Store.open(path)
    with pytest.raises(StoreError, match="folder"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match="folder"):
        Store.open(tmp_path / "none" / "x.rsm")
    with pytest.raises(StoreError, match="does not exist"):
        Store.open(tmp_path / "none.rsm", read_only=True)


def test_odd_paths(tmp_path, namespace):
    with pytest.raises(InvalidInputError, match="NUL"):
        Store.open("a\0b")
    for name in ("with space ?#%20.rsm", "ü.rsm", "'quote\"", "-dash", "new\nline"):
        with Store.open(tmp_path / name) as store:
            namespace(store)
            assert store.check() == []
        assert (tmp_path / name).is_file()
    link = tmp_path / "link.rsm"
    link.symlink_to(tmp_path / "ü.rsm")
    with Store.open(link) as store:
        assert store.path == tmp_path / "ü.rsm"
        store.save_snapshot(1, 1, {"x": np.zeros(3)})
        assert store.check() == []


def test_an_empty_file_becomes_a_store_and_says_so(path, namespace):
    path.touch(0o644)
    with pytest.raises(StoreError, match="empty file.*open it for writing"):
        Store.open(path, read_only=True)
    assert path.stat().st_size == 0
    with pytest.warns(RuntimeWarning, match="was an empty file"), Store.open(path) as store:
        namespace(store)
        assert store.check() == []  # mode 0600 as well
    with Store.open(path) as store, store.read() as reader:
        assert len(reader.namespaces()) == 1


def test_an_empty_database_becomes_a_store(path, namespace):
    plain = sqlite3.connect(path)  # as somebody leaves it who died before the first table
    plain.execute("PRAGMA journal_mode = WAL")
    plain.close()
    path.chmod(0o600)
    assert path.stat().st_size
    with pytest.raises(StoreError, match="once for writing"):
        Store.open(path, read_only=True)
    with Store.open(path) as one, Store.open(path) as two:
        namespace(one)
        assert two.check() == []


@pytest.mark.parametrize("rest", ["-wal", "-snapshots"])
def test_an_empty_file_beside_the_rest_of_a_store_is_damaged(whole, path, rest):
    path.write_bytes(b"")
    other = Path(f"{path}{rest}")
    other.mkdir() if rest == "-snapshots" else other.write_bytes(b"log")
    with pytest.raises(CorruptStoreError, match="empty file beside"):
        Store.open(path)
    assert other.exists()


def test_an_empty_file_that_many_open_at_once_is_made_one_store(path, namespace):
    path.touch()
    barrier = threading.Barrier(6)

    def write(number: int) -> None:
        barrier.wait()
        with Store.open(path, timeout=30) as store:
            namespace(store, f"n{number}")

    with warnings.catch_warnings(), ThreadPoolExecutor(6) as pool:
        warnings.simplefilter("ignore", RuntimeWarning)
        list(pool.map(write, range(6)))
    with Store.open(path) as store, store.read() as reader:
        assert len(reader.namespaces()) == 6


def test_a_mode_that_two_change_at_once_is_tried_again(path):
    held = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    held.execute("CREATE TABLE t (x)")
    held.execute("BEGIN EXCLUSIVE")
    waiting = threading.Timer(0.3, held.close)
    waiting.start()
    with sqlite3.connect(path, timeout=0) as plain:  # refused at once, as in a deadlock
        connections._use_log(plain, path, 30)
        assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    plain.close()
    waiting.join()
    held = sqlite3.connect(path, isolation_level=None)
    held.execute("PRAGMA journal_mode = DELETE")
    held.execute("BEGIN EXCLUSIVE")
    with sqlite3.connect(path, timeout=0) as plain:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            connections._use_log(plain, path, 0.05)
    plain.close()
    held.close()


def test_a_file_that_becomes_a_store_while_it_is_looked_at(path, namespace, monkeypatch):
    plain = sqlite3.connect(path)
    plain.execute("PRAGMA journal_mode = WAL")
    plain.close()
    looking = schema.user_version

    def meanwhile(connection: sqlite3.Connection) -> int:
        monkeypatch.setattr(schema, "user_version", looking)
        with Store.open(path) as other:
            namespace(other)
        return looking(connection)

    monkeypatch.setattr(schema, "user_version", meanwhile)
    with Store.open(path) as store, store.read() as reader:
        assert len(reader.namespaces()) == 1
    assert schema.user_version is looking


def test_an_empty_file_that_gets_its_log_while_it_is_looked_at(path, namespace, monkeypatch):
    path.touch(0o600)

    def meanwhile(asked: Path) -> Path:
        monkeypatch.setattr(connections, "snapshot_folder", snapshot_folder)
        with pytest.warns(RuntimeWarning, match="was an empty file"), Store.open(path) as other:
            namespace(other)
            other.save_snapshot(1, 1, {"x": np.zeros(3)})
        return snapshot_folder(asked)

    monkeypatch.setattr(connections, "snapshot_folder", meanwhile)
    with Store.open(path) as store, store.read() as reader:
        assert len(reader.namespaces()) == 1
    assert connections.snapshot_folder is snapshot_folder


def test_a_store_without_a_write_ahead_log_gets_one_again(whole, path):
    plain = sqlite3.connect(path)
    assert plain.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    plain.close()
    with Store.open(path, read_only=True) as store:
        assert store.check() == []
    with Store.open(path) as store:
        assert store.check() == []
        assert Path(f"{path}-wal").exists()


def test_a_store_of_a_later_version(whole, path):
    with sqlite3.connect(path) as plain:
        plain.execute(f"PRAGMA user_version = {VERSION + 1}")
    plain.close()
    with pytest.raises(StoreError, match=f"version {VERSION + 1}.*newer rsm_fast"):
        Store.open(path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER evil AFTER INSERT ON turns BEGIN DELETE FROM turns; END",
        "CREATE VIEW evil AS SELECT * FROM turns",
        "ALTER TABLE turns ADD COLUMN evil TEXT",
        "CREATE TABLE evil (x)",
        "DROP INDEX turns_expiring",
    ],
)
def test_f39_a_crafted_schema_is_refused(whole, path, statement):
    with sqlite3.connect(path) as plain:
        plain.execute(statement)
    plain.close()
    with pytest.raises(CorruptStoreError, match="evil|turns"):
        Store.open(path)


def test_file_modes(path, namespace):
    before = os.umask(0)
    try:
        with Store.open(path) as store:
            namespace(store)
            store.save_snapshot(1, 1, {"x": np.zeros(3)})
            store.backup(path.with_name("copy.rsm"))
            for file in path.parent.rglob("*"):
                mode = stat.S_IMODE(file.stat().st_mode)
                assert mode == (0o700 if file.is_dir() else 0o600), file
    finally:
        os.umask(before)


def test_read_only(whole, path, namespace):
    with Store.open(path, read_only=True) as store:
        with store.read() as reader:
            assert len(reader.namespaces()) == 2
        with pytest.raises(StoreError, match="read-only"):
            namespace(store, "c")
    assert path.read_bytes() == whole


UNPRIVILEGED = """
import os, sys
from rsm_fast.store import Store
from rsm_fast.errors import StoreError
os.setuid(65534)
path = sys.argv[1]
try:
    Store.open(path)
except StoreError as error:
    assert "read_only=True" in str(error), error
else:
    sys.exit("opened for writing")
with Store.open(path, read_only=True) as store, store.read() as reader:
    assert len(reader.namespaces()) == 2
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="has to give up root's rights")
def test_a_file_and_folder_without_permission_to_write(whole, path, repo_root, tmp_path):
    folder = Path(f"/tmp/rsm-readonly-{os.getpid()}")
    folder.mkdir()
    try:
        shutil.copy(path, folder / "x.rsm")
        (folder / "x.rsm").chmod(0o444)
        folder.chmod(0o555)
        subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, str(folder / "x.rsm")],
            check=True,
            cwd=repo_root,
            timeout=60,
        )
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


DISK_FULL = """
import resource, sys
from rsm_fast.errors import StoreError
from rsm_fast.store import Store, TurnRecord
store = Store.open(sys.argv[1])
with store.write() as writer:
    ns = writer.create_namespace("a", {}).id
kept = 0
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
for number in range(2000):
    try:
        with store.write() as writer:
            turn = TurnRecord(0, f"{number}", "user", "x" * 3000, 0, 0, True, None, None)
            writer.insert_turns(ns, [turn])
        kept = number + 1
    except StoreError as error:
        assert "no room" in str(error), error
        break
else:
    sys.exit("the limit was never met")
with store.read() as reader:
    assert reader.counts(ns)[0] == kept, (reader.counts(ns), kept)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
with store.write() as writer:
    turn = TurnRecord(0, "later", "user", "y", 0, 0, True, None, None)
    writer.insert_turns(ns, [turn])
assert store.check() == []
print(kept)
"""


def test_a_full_disk_keeps_what_was_acknowledged(path, repo_root):
    result = subprocess.run(
        [sys.executable, "-c", DISK_FULL, str(path)],
        check=True,
        capture_output=True,
        text=True,
        cwd=repo_root,
        timeout=120,
    )
    kept = int(result.stdout)
    assert kept > 10
    with Store.open(path) as store, store.read() as reader:
        assert [turn.id for turn in reader.all_turns(1)] == [f"{n}" for n in range(kept)] + [
            "later"
        ]


class Payload:
    """What a crafted pickle would do."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.mark,))


def test_f39_crafted_files_beside_the_store_never_run(whole, path, tmp_path):
    mark = tmp_path / "ran"
    pickled = pickle.dumps(Payload(mark))
    folder = path.with_name(path.name + "-snapshots")
    folder.mkdir()
    for target in (folder / "1.snap", folder / "2.snap", path.with_name("1.pkl")):
        target.write_bytes(pickled)
    np.save(folder / "1.npy", np.array([Payload(mark)], object), allow_pickle=True)
    with sqlite3.connect(path) as plain:  # so that the store names the crafted file
        plain.execute("INSERT INTO snapshots VALUES (1, 1, zeroblob(16), 0)")
        plain.execute("INSERT INTO arrays VALUES (1, 'x', '|O', '[1]', ?, 0)", (pickled,))
    plain.close()
    with Store.open(path) as store:
        with pytest.raises(CorruptStoreError):
            store.load_snapshot(1)
        with store.read() as reader, pytest.raises(CorruptStoreError):
            reader.array(1, "x")
        assert {finding.table for finding in store.check()} == {"arrays", "snapshots"}
        assert store.repair() == []
        store.compact()
    assert not mark.exists()


def test_f39_nothing_is_unpickled_or_evaluated(repo_root):
    words = re.compile(
        r"\b(import pickle|from pickle|import marshal|import shelve|import dill|import joblib"
        r"|allow_pickle=True|np\.load\((?![^)]*allow_pickle=False)|load_extension)"
    )
    sources = [*repo_root.glob("rsm_fast/**/*.py"), *repo_root.glob("kernels/**/*.py")]
    assert len(sources) > 20
    assert [str(file) for file in sources if words.search(file.read_text("utf-8"))] == []
