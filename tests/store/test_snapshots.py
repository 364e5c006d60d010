"""Sidecar snapshots: right, or not used."""

from __future__ import annotations

import fcntl
import json
import random
import shutil
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsm_fast.errors import InvalidInputError
from rsm_fast.store import Store
from rsm_fast.store.snapshots import read_snapshot, snapshot_path, write_snapshot

ARRAYS = {
    "vector": np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32),
    "code": np.arange(400, dtype=np.int8).reshape(50, 8),
    "none": np.empty((0, 4), np.int32),
    "one": np.array(5.5),
    "flags": np.array([True, False]),
    "strided": np.arange(20)[::2],
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


def test_arrays_come_back_writable(file_store, namespace):
    ns = namespace(file_store)
    assert file_store.load_snapshot(ns) is None
    assert file_store.save_snapshot(ns, 1, ARRAYS)
    for _ in range(2):
        snapshot = file_store.load_snapshot(ns)
        assert snapshot.generation == 1
        assert list(snapshot.arrays) == list(ARRAYS)
        for name, array in ARRAYS.items():
            found = snapshot.arrays[name]
            assert found.dtype == array.dtype
            assert found.flags.c_contiguous
            assert np.array_equal(found, array), name
        snapshot.arrays["vector"][:] = 0  # copy-on-write: the file stays as it is
        assert snapshot.arrays["vector"].ctypes.data % 64 == 0


def test_in_ram_there_is_nothing_to_save(namespace):
    with Store.open(None) as store:
        ns = namespace(store)
        assert store.save_snapshot(ns, 1, ARRAYS) is False
        assert store.load_snapshot(ns) is None


def test_a_later_one_replaces_it_and_files_stay_few(file_store, namespace, path):
    ns = namespace(file_store)
    for generation in range(1, 6):
        file_store.save_snapshot(ns, generation, {"x": np.full(3, generation)})
        with file_store.write() as writer:
            writer.put_settings(ns, {})
    snapshot = file_store.load_snapshot(ns)
    assert (snapshot.generation, snapshot.arrays["x"].tolist()) == (5, [5, 5, 5])
    assert [file.name for file in snapshot_path(path, ns).parent.iterdir()] == [f"{ns}.snap"]


def test_f34_swapped_sidecars_do_not_count(file_store, namespace, path):
    a, b = namespace(file_store), namespace(file_store, "b")
    file_store.save_snapshot(a, 1, {"x": np.zeros(3)})
    file_store.save_snapshot(b, 1, {"x": np.ones(3)})
    first, second = snapshot_path(path, a), snapshot_path(path, b)
    shutil.move(first, first.with_suffix(".tmp"))
    shutil.move(second, first)
    shutil.move(first.with_suffix(".tmp"), second)
    assert file_store.load_snapshot(a) is None
    assert file_store.load_snapshot(b) is None
    assert {finding.table for finding in file_store.check()} == {"snapshots"}
    assert file_store.repair() == []
    assert not first.exists()


def test_a_restored_backup_does_not_use_the_sidecar_of_its_future(
    path, namespace, new_turn, add_turns
):
    with Store.open(path) as store:
        ns = namespace(store)
        store.save_snapshot(ns, 1, {"x": np.zeros(1)})
    old = path.read_bytes()
    with Store.open(path) as store:
        with store.write() as writer:
            add_turns(writer, ns, new_turn("1"))
        store.save_snapshot(ns, 2, {"x": np.ones(1)})
    path.write_bytes(old)
    with Store.open(path) as store:
        with store.write() as writer:
            add_turns(writer, ns, new_turn("other"))
        assert store.load_snapshot(ns) is None


def test_compact_and_purge_leave_no_snapshot_that_counts(file_store, namespace, path):
    ns = namespace(file_store)
    file_store.save_snapshot(ns, 1, ARRAYS)
    file_store.compact()
    assert file_store.load_snapshot(ns) is None
    assert not snapshot_path(path, ns).parent.exists()
    file_store.save_snapshot(ns, 2, ARRAYS)
    with file_store.write() as writer:
        writer.purge(ns)
    assert file_store.load_snapshot(ns) is None


def test_a_deleted_sidecar_is_only_slower(file_store, namespace, path):
    ns = namespace(file_store)
    file_store.save_snapshot(ns, 1, ARRAYS)
    shutil.rmtree(snapshot_path(path, ns).parent)
    assert file_store.load_snapshot(ns) is None
    file_store.save_snapshot(ns, 1, ARRAYS)
    assert file_store.load_snapshot(ns) is not None


def test_a_snapshot_from_before_a_compaction_is_not_kept(file_store, namespace, path):
    ns = namespace(file_store)
    with file_store.write() as writer:
        writer.put_settings(ns, {})
    file_store.compact()
    assert file_store.save_snapshot(ns, 1, ARRAYS) is False
    assert not snapshot_path(path, ns).exists()
    assert file_store.save_snapshot(ns, 99, ARRAYS) is False
    assert file_store.save_snapshot(ns, 3, ARRAYS) is True


def test_one_process_at_a_time_writes_a_snapshot(file_store, namespace, path):
    ns = namespace(file_store)
    fresh = snapshot_path(path, ns).with_name(f"{ns}.snap.new")
    fresh.parent.mkdir()
    fresh.write_bytes(b"left by a killed process" * 1000)
    with open(fresh, "r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert file_store.save_snapshot(ns, 1, ARRAYS) is False
    assert file_store.save_snapshot(ns, 1, ARRAYS) is True
    assert file_store.load_snapshot(ns) is not None
    assert [file.name for file in fresh.parent.iterdir()] == [f"{ns}.snap"]


def test_only_numbers(file_store, namespace):
    ns = namespace(file_store)
    for array in (np.array([object()]), np.array(["text"]), np.zeros(2, "V8")):
        with pytest.raises(InvalidInputError, match="numbers"):
            file_store.save_snapshot(ns, 1, {"x": array})


def test_f34_flipped_and_cut_sidecars_do_not_count(tmp_path):
    path, token = tmp_path / "x.snap", b"t" * 16
    write_snapshot(path, token, ARRAYS)
    whole = path.read_bytes()
    chance = random.Random(5)
    padding = 0
    for _ in range(500):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        found = read_snapshot(path, token)
        if found is not None:  # the flipped bit lies between two arrays
            padding += 1
            assert all(np.array_equal(found[name], array) for name, array in ARRAYS.items())
    assert padding < 100
    for size in [*range(0, 80, 7), len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert read_snapshot(path, token) is None
    path.write_bytes(whole)
    assert read_snapshot(path, b"u" * 16) is None


def crafted(header: object, data: bytes = b"\0" * 64) -> bytes:
    encoded = json.dumps(header).encode()
    head = b"RSMSNAP1" + struct.pack("<II", len(encoded), zlib.crc32(encoded)) + encoded
    return head + b"\0" * (-len(head) % 64) + data


ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "b", 5, None, {}]),
        "dtype": st.sampled_from(
            ["<f4", "|O", "O", "<U4", "i4,f4", "V8", "", 3, None, ">i8", "|b1"]
        ),
        "shape": st.lists(st.integers(-2, 70) | st.just(2**62) | st.text(max_size=1), max_size=3)
        | st.none(),
        "offset": st.integers(-200, 200) | st.just(2**70) | st.just("x"),
        "crc": st.integers(0, 2**32) | st.just(zlib.crc32(b"\0" * 64)) | st.none(),
    },
)


@settings(max_examples=300, deadline=None)
@given(entries=st.lists(ENTRY, max_size=2) | st.none() | st.integers(), size=st.integers(0, 130))
def test_f39_crafted_headers_never_do_harm(tmp_path_factory, entries, size):
    path = tmp_path_factory.mktemp("snap") / "x.snap"
    path.write_bytes(crafted({"token": "74" * 16, "bytes": size, "arrays": entries}, b"\0" * size))
    found = read_snapshot(path, b"t" * 16)
    for array in (found or {}).values():
        assert array.dtype.kind in "biuf"
        assert not array.any()


@pytest.mark.parametrize("dtype", ["\x10f4,i4", "(2,f4", "|O", "<U4", "V8", "M8[s]", "", 4, None])
def test_f39_a_dtype_that_is_no_number_is_passed_over(tmp_path, dtype):
    entry = {"name": "a", "dtype": dtype, "shape": [2], "offset": 0, "crc": zlib.crc32(bytes(8))}
    path = tmp_path / "x.snap"
    path.write_bytes(crafted({"token": "74" * 16, "bytes": 64, "arrays": [entry]}))
    assert read_snapshot(path, b"t" * 16) is None


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_no_snapshot(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("snap") / "x.snap"
    for prefix in (b"", b"RSMSNAP1"):
        path.write_bytes(prefix + data)
        assert read_snapshot(path, b"t" * 16) is None
