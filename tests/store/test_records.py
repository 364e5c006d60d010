"""Turns, chunks, namespaces: what goes in comes out."""

from __future__ import annotations

import numpy as np
import pytest

from rsm_fast.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    StoreClosedError,
    StoreError,
)
from rsm_fast.store import STEP_NONE, Store, TurnRecord, check_namespace_key
from rsm_fast.store.records import namespace_crc, text_crc


def test_turn_comes_back_as_it_was(store, namespace, new_turn):
    ns = namespace(store)
    given = new_turn(
        "id", "a\0b\U0001f600\n\ufeff", role="Zoë", micros=-5, offset_minutes=-330,
        time_given=False, session="", metadata='{"a": [1, "é"]}', expires_at=7,
    )  # fmt: skip
    with store.write() as writer:
        [pk] = writer.insert_turns(ns, [given])
    with store.read() as reader:
        found = reader.turn(ns, "id")
        assert found == given._replace(pk=pk)
        assert found.time_given is False
        assert reader.turns(ns, [pk + 1, pk]) == [found]
        assert reader.turns_by_id(ns, ["id", "other"]) == {"id": found}
        assert reader.turn(ns, "other") is None
        assert reader.turn_id(pk) == "id"
        assert list(reader.all_turns(ns)) == [found]


def test_chunk_comes_back_as_it_was(store, namespace, new_turn, new_chunk):
    ns = namespace(store)
    first, second = new_turn("1", "Hello there."), new_turn("2", "General K.")
    with store.write() as writer:
        pks = writer.insert_turns(ns, [first, second])
        given = new_chunk(
            first, pks[0], spans=((pks[0], 6, 12), (pks[1], 0, 10)), step=4, truncated=True,
            text_hash=-(2**63), line_tokens=b"", terms=b"\0",
        )  # fmt: skip
        bare = new_chunk(second, pks[1], atom=None, vector=None, session="s")
        keys = writer.insert_chunks(ns, [given, bare])
    with store.read() as reader:
        assert reader.chunks(ns, keys[::-1]) == [
            bare._replace(pk=keys[1]),
            given._replace(pk=keys[0]),
        ]
        assert [chunk.pk for chunk in reader.chunks_of_turns(ns, [pks[1]])] == keys
        assert reader.chunk_by_id(ns, "1#0").pk == keys[0]
        assert reader.chunk_by_id(ns, "1#1") is None
        assert reader.chunk_by_id(ns, "1") is None
        assert [chunk.pk for chunk in reader.open_chunks(ns)] == [keys[1]]
        [piece] = reader.pieces(ns, [keys[0]])
        assert [(part.turn_id, part.text) for part in piece.parts] == [
            ("1", "there."),
            ("2", "General K."),
        ]
        assert (piece.step, piece.truncated, piece.atom) == (4, True, 0)
        assert reader.vectors(ns, [keys[0]], 8).tobytes() == given.vector
        with pytest.raises(NotFoundError):
            reader.vectors(ns, keys, 8)


def test_pks_ascend_and_are_never_reused(store, namespace, new_turn, add_turns):
    ns = namespace(store)
    with store.write() as writer:
        first = add_turns(writer, ns, new_turn("1"), new_turn("2"))
    with store.write() as writer:
        writer.delete_chunks(ns, [first[1][1]])
        writer.delete_turns(ns, [first[1][0]])
    with store.write() as writer:
        later = add_turns(writer, ns, new_turn("3"))
    assert later[0] > first[1]


def test_many_rows_at_once(store, namespace, new_turn, add_turns):
    ns = namespace(store)
    turns = [new_turn(f"{number}") for number in range(2500)]
    with store.write() as writer:
        keys = add_turns(writer, ns, *turns)
    asked = [chunk for _, chunk in keys][::-1]
    with store.read() as reader:
        assert reader.counts(ns) == (2500, 2500)
        assert [piece.pk for piece in reader.pieces(ns, asked)] == asked
        assert [piece.parts[0].text for piece in reader.pieces(ns, np.array(asked[:3]))] == [
            "text of 2499", "text of 2498", "text of 2497",
        ]  # fmt: skip
        assert [record.id for record in reader.all_turns(ns)] == [record.id for record in turns]
        assert [chunk.pk for chunk in reader.all_chunks(ns)] == asked[::-1]


def test_columns_equal_records(store, namespace, new_turn, new_chunk):
    ns = namespace(store)
    turns = [new_turn(f"{n}", session=[None, "x", "y"][n % 3], micros=n - 5) for n in range(7)]
    with store.write() as writer:
        keys = writer.insert_turns(ns, turns)
        chunks = [
            new_chunk(
                turn, key, vector=None if n == 3 else new_chunk(turn, key).vector,
                atom=None if n == 3 else n, step=n if n % 2 else None, truncated=n == 4,
                offset_minutes=-n, text_hash=-n,
            )
            for n, (turn, key) in enumerate(zip(turns, keys, strict=True))
        ]  # fmt: skip
        writer.insert_chunks(ns, chunks)
    with store.read() as reader:
        columns = reader.columns(ns, 8)
        records = list(reader.all_chunks(ns))
    for name in ("pk", "micros", "offset_minutes", "tokens", "analyser", "text_hash", "truncated"):
        assert getattr(columns, name).tolist() == [getattr(r, name) for r in records], name
    assert columns.atom.tolist() == [-1 if r.atom is None else r.atom for r in records]
    assert columns.step.tolist() == [STEP_NONE if r.step is None else r.step for r in records]
    names = [columns.session_names[s] if s >= 0 else None for s in columns.session]
    assert names == [r.session for r in records]
    assert columns.has_vector.tolist() == [r.vector is not None for r in records]
    assert columns.terms == [r.terms for r in records]
    assert columns.vector.flags.c_contiguous and columns.vector.dtype == np.float32
    assert columns.vector[0].tobytes() == records[0].vector
    assert not columns.vector[3].any()


def test_columns_of_nothing(store, namespace):
    ns = namespace(store)
    with store.read() as reader:
        columns = reader.columns(ns, 8)
    assert columns.vector.shape == (0, 8)
    assert columns.session_names == []


def test_ids_are_unique_and_never_reused(store, namespace, new_turn, add_turns):
    ns, other = namespace(store), namespace(store, "b")
    with store.write() as writer:
        [(turn_pk, chunk_pk)] = add_turns(writer, ns, new_turn("1"))
        add_turns(writer, other, new_turn("1"))
    with pytest.raises(ConflictError, match="'1'.*in use"), store.write() as writer:
        add_turns(writer, ns, new_turn("2"), new_turn("1"))
    with pytest.raises(ConflictError, match="'5'.*in use"), store.write() as writer:
        add_turns(writer, ns, new_turn("5"), new_turn("5"))
    with store.write() as writer:
        writer.delete_chunks(ns, [chunk_pk])
        writer.delete_turns(ns, [turn_pk])
    with pytest.raises(ConflictError, match="deleted"), store.write() as writer:
        add_turns(writer, ns, new_turn("1"))
    with store.read() as reader:
        assert reader.tombstoned(ns, ["1", "2"]) == {"1"}
        assert reader.tombstoned(other, ["1"]) == set()
        assert reader.counts(ns) == (0, 0)
        assert reader.counts(other) == (1, 1)


def test_a_failed_write_leaves_nothing(store, namespace, new_turn, add_turns):
    ns = namespace(store)
    with pytest.raises(ZeroDivisionError), store.write() as writer:
        add_turns(writer, ns, new_turn("1"))
        raise ZeroDivisionError
    with store.read() as reader:
        assert reader.counts(ns) == (0, 0)
        assert reader.generation(ns) == 1
    with store.write() as writer:
        add_turns(writer, ns, new_turn("1"))


def test_a_turn_cannot_go_while_its_chunk_stays(store, namespace, new_turn, add_turns):
    ns = namespace(store)
    with store.write() as writer:
        [(turn_pk, _)] = add_turns(writer, ns, new_turn("1"))
    with pytest.raises(StoreError), store.write() as writer:
        writer.delete_turns(ns, [turn_pk])
    with store.read() as reader:
        assert reader.counts(ns) == (1, 1)


def test_replace_chunk(store, namespace, new_turn, add_turns, new_chunk):
    ns = namespace(store)
    with store.write() as writer:
        keys = add_turns(writer, ns, new_turn("1"), new_turn("2"))
    with store.write() as writer:
        second = new_turn("2")
        changed = new_chunk(second, keys[1][0], pk=keys[0][1], vector=None, atom=None)
        writer.replace_chunk(ns, changed)
    with store.read() as reader:
        assert reader.chunks(ns, [keys[0][1]]) == [changed]
        assert reader.chunks_of_turns(ns, [keys[0][0]]) == []
    with pytest.raises(NotFoundError), store.write() as writer:
        writer.replace_chunk(ns, changed._replace(pk=changed.pk + 100))


def test_update_turn_keeps_its_place(store, namespace, new_turn, add_turns):
    ns = namespace(store)
    with store.write() as writer:
        keys = add_turns(writer, ns, new_turn("1"), new_turn("2"))
        writer.update_turn(ns, new_turn("1", "other", pk=keys[0][0]))
    with store.read() as reader:
        assert [turn.text for turn in reader.all_turns(ns)] == ["other", "text of 2"]
    with pytest.raises(NotFoundError), store.write() as writer:
        writer.update_turn(ns, new_turn("9", pk=keys[1][0] + 5))


def test_set_atoms_and_vectors(store, namespace, new_turn, add_turns, new_chunk):
    ns = namespace(store)
    with store.write() as writer:
        keys = add_turns(writer, ns, new_turn("1"), new_turn("2"))
        pks = [chunk for _, chunk in keys]
        writer.set_atoms(ns, [(pks[0], 7), (pks[1], None)])
        writer.set_vectors(ns, [(pks[0], b"\0" * 32)])
    with store.read() as reader:
        assert [chunk.atom for chunk in reader.chunks(ns, pks)] == [7, None]
        assert not reader.vectors(ns, pks[:1], 8).any()
    for call in ("set_atoms", "set_vectors"):
        with pytest.raises(NotFoundError), store.write() as writer:
            getattr(writer, call)(ns, [(pks[1] + 9, b"" if call == "set_vectors" else 1)])


def test_changes_since(store, namespace, new_turn, add_turns):
    ns = namespace(store)
    with store.write() as writer:
        keys = add_turns(writer, ns, *(new_turn(f"{n}") for n in range(5)))
        seen = writer.generation(ns)
    newest = keys[-1][1]
    with store.read() as reader:
        assert reader.changes_since(ns, seen, newest).upserts == []
    with store.write() as writer:
        writer.set_atoms(ns, [(keys[1][1], 9)])
    with store.write() as writer:
        writer.delete_chunks(ns, [keys[2][1]])
        writer.delete_turns(ns, [keys[2][0]])
        [added] = add_turns(writer, ns, new_turn("new"))
    with store.write() as writer:
        [gone] = add_turns(writer, ns, new_turn("short-lived"))
    with store.write() as writer:
        writer.delete_chunks(ns, [gone[1]])
        writer.delete_turns(ns, [gone[0]])
    with store.read() as reader:
        changes = reader.changes_since(ns, seen, newest)
        assert not changes.reload
        assert changes.removed == [keys[2][1]]
        assert [chunk.pk for chunk in changes.upserts] == [keys[1][1], added[1]]
        assert changes.upserts[0].atom == 9
        assert changes.generation == reader.generation(ns) == seen + 4
    store.compact()
    with store.read() as reader:
        assert reader.changes_since(ns, seen, newest).reload
        assert not reader.changes_since(ns, reader.generation(ns), newest).reload


def test_every_write_bumps_the_generation_of_its_namespace_only(
    store, namespace, new_turn, add_turns
):
    a, b = namespace(store), namespace(store, "b")
    with store.write() as writer:
        assert writer.generation(a) == 1
        add_turns(writer, a, new_turn("1"))
        assert writer.generation(a) == 2
        writer.put_settings(a, {"dim": 8, "tau": 0.5})
        assert writer.namespace("a").settings["tau"] == 0.5
    with store.read() as reader:
        assert (reader.generation(a), reader.generation(b)) == (2, 1)
        assert reader.namespace("a").settings == {"dim": 8, "tau": 0.5}


def test_supersede_and_what_comes_after(store, namespace, new_turn, add_turns):
    ns = namespace(store)
    with store.write() as writer:
        old, new = add_turns(writer, ns, new_turn("1", micros=1), new_turn("2", micros=10))
        writer.supersede(ns, old[0], new[0])
    with store.read() as reader:
        assert reader.superseded(ns) == {old[1]: 10}
        assert reader.eligible_chunks(ns).tolist() == [new[1]]
        assert reader.eligible_chunks(ns, superseded=True).tolist() == [old[1], new[1]]
        assert reader.eligible_chunks(ns, as_of=9).tolist() == [old[1]]
        assert reader.eligible_chunks(ns, as_of=10).tolist() == [new[1]]
    with store.write() as writer:
        writer.delete_chunks(ns, [new[1]])
        writer.delete_turns(ns, [new[0]])
    with store.read() as reader:
        assert reader.superseded(ns) == {}
        assert reader.eligible_chunks(ns).tolist() == [old[1]]
    for pair in ((old[0], old[0]), (old[0], old[0] + 77)):
        with pytest.raises(NotFoundError), store.write() as writer:
            writer.supersede(ns, *pair)


def test_time_to_live(store, namespace, new_turn, add_turns):
    ns = namespace(store)
    with store.write() as writer:
        keys = add_turns(writer, ns, new_turn("1", expires_at=100), new_turn("2"))
    with store.read() as reader:
        assert reader.expiring(ns) == {keys[0][1]: 100}
        assert reader.expired_turns(ns, 99) == []
        assert reader.expired_turns(ns, 100) == [keys[0][0]]
        assert reader.eligible_chunks(ns, now=99).tolist() == [keys[0][1], keys[1][1]]
        assert reader.eligible_chunks(ns, now=100).tolist() == [keys[1][1]]
        assert reader.eligible_chunks(ns).tolist() == [keys[1][1]]


def test_purge_leaves_other_namespaces_alone(store, namespace, new_turn, add_turns):
    a, b = namespace(store), namespace(store, "b")
    for ns in (a, b):
        with store.write() as writer:
            old, new, gone = add_turns(writer, ns, new_turn("1"), new_turn("2"), new_turn("3"))
            writer.supersede(ns, old[0], new[0])
            writer.put_array(ns, "centre", np.zeros(8, np.float32))
            writer.stage_vectors(ns, [(new[1], b"\0" * 32)])
            writer.delete_chunks(ns, [gone[1]])
            writer.delete_turns(ns, [gone[0]])
    with store.write() as writer:
        writer.purge(a)
    assert store.check() == []
    with store.read() as reader:
        assert [record.key for record in reader.namespaces()] == ["b"]
        assert reader.namespace("a") is None
        with pytest.raises(NotFoundError):
            reader.generation(a)
        assert reader.counts(b) == (2, 2)
    again = namespace(store)
    assert again not in (a, b)
    with store.read() as reader:
        assert reader.tombstoned(again, ["3"]) == set()


def test_arrays(store, namespace):
    ns = namespace(store)
    big = np.arange(6, dtype=">f8").reshape(2, 3)
    with store.write() as writer:
        writer.put_array(ns, "a", big)
        writer.put_array(ns, "b", np.array(3, np.int32))
        writer.put_array(ns, "a", big + 1)
        writer.put_array(ns, "b", None)
        with pytest.raises(InvalidInputError):
            writer.put_array(ns, "c", np.array([object()]))
    with store.read() as reader:
        assert np.array_equal(reader.array(ns, "a"), big + 1)
        assert reader.array(ns, "b") is None
        assert reader.array_names(ns) == ["a"]


def test_staged_vectors(store, namespace, new_turn, add_turns):
    ns = namespace(store)
    with store.write() as writer:
        keys = [chunk for _, chunk in add_turns(writer, ns, new_turn("1"), new_turn("2"))]
    with store.read() as reader:
        before = reader.vectors(ns, keys, 8)
        assert reader.unstaged_chunks(ns, 10) == keys
        assert reader.unstaged_chunks(ns, 1) == keys[:1]
    with store.write() as writer:
        writer.stage_vectors(ns, [(keys[0], b"\1" * 16)])
    with pytest.raises(InvalidInputError), store.write() as writer:
        writer.adopt_staged(ns)
    with pytest.raises(NotFoundError), store.write() as writer:
        writer.stage_vectors(ns, [(keys[1] + 5, b"\1" * 16)])
    with store.read() as reader:
        assert np.array_equal(reader.vectors(ns, keys, 8), before)
    with store.write() as writer:
        writer.stage_vectors(ns, [(keys[1], b"\2" * 16)])
        writer.adopt_staged(ns)
    with store.read() as reader:
        assert reader.vectors(ns, keys, 4).tobytes() == b"\1" * 16 + b"\2" * 16
        assert reader.unstaged_chunks(ns, 10) == keys
    assert store.check() == []


def test_session_turns(store, namespace, new_turn, add_turns):
    ns = namespace(store)
    with store.write() as writer:
        add_turns(writer, ns, *(new_turn(f"{n}", session="ab"[n % 2]) for n in range(6)))
        add_turns(writer, ns, new_turn("x"))
    with store.read() as reader:
        assert [turn.id for turn in reader.session_turns(ns, "a")] == ["0", "2", "4"]
        assert [turn.id for turn in reader.session_turns(ns, "b", last=2)] == ["3", "5"]
        assert [turn.id for turn in reader.session_turns(ns, None)] == ["x"]


def test_automatic_ids(store, namespace):
    ns = namespace(store)
    with store.write() as writer:
        assert writer.take_ids(ns, 3) == 1
        assert writer.take_ids(ns, 1) == 4
        writer.put_next_atom(ns, 9)
    with store.read() as reader:
        record = reader.namespace("a")
    assert (record.next_auto, record.next_atom) == (5, 9)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_f25_lone_surrogates_are_refused(store, namespace, new_turn, add_turns, text):
    ns = namespace(store)
    with pytest.raises(InvalidInputError, match="surrogate"), store.write() as writer:
        add_turns(writer, ns, new_turn("1", text))
    with pytest.raises(InvalidInputError), store.write() as writer:
        add_turns(writer, ns, new_turn(text))
    with store.read() as reader:
        assert reader.counts(ns) == (0, 0)


@pytest.mark.parametrize("key", ["a", "acme/user-7", "..a/b..", "/x", "ü" * 256, "a\\b", " "])
def test_namespace_keys_that_are_fine(key, store, namespace):
    check_namespace_key(key)
    ns = namespace(store, key)
    with store.read() as reader:
        assert reader.namespace(key).id == ns


@pytest.mark.parametrize(
    "key", ["", "ü" * 257, "a\0", "\ud800", "..", ".", "a/../b", "../a", "a/.", "a\\..\\b", 5, None]
)
def test_f39_namespace_keys_that_are_refused(key, store, namespace):
    with pytest.raises(InvalidInputError, match="namespace"):
        namespace(store, key)


def test_a_namespace_is_made_once(store, namespace):
    namespace(store)
    with pytest.raises(ConflictError, match="'a'"):
        namespace(store)


def test_closed_stores_say_so(store, namespace):
    namespace(store)
    store.close()
    store.close()
    with pytest.raises(StoreClosedError, match="open it again"), store.read():
        pass
    with pytest.raises(StoreClosedError), store.write():
        pass


def test_write_inside_write_is_refused(store):
    with store.write(), pytest.raises(StoreError, match="write\\(\\) inside"), store.write():
        pass
    with store.write() as writer:
        writer.create_namespace("still usable", {})


def test_read_inside_write(store, namespace, new_turn, add_turns):
    ns = namespace(store)
    with store.write() as writer:
        add_turns(writer, ns, new_turn("1"))
        with store.read() as reader:
            assert reader.counts(ns)[0] in (0, 1)
    with store.read() as reader:
        assert reader.counts(ns) == (1, 1)


@pytest.mark.parametrize(
    "options",
    [{"synchronous": "OFF"}, {"synchronous": None}, {"timeout": -1}, {"timeout": float("nan")}],
)
def test_bad_options(options):
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        Store.open(None, **options)


def test_the_checksum_of_a_namespace_is_that_of_its_fields_as_text():
    row = (1, "käse", b"salt\0", '{"a": null}', 2, 3, 4, 5, 6, 7)
    assert namespace_crc(row) == text_crc(*row)


def test_a_turn_is_named_without_another_change():
    turn = TurnRecord(3, "", "user", "x", 5, 60, True, "s", "{}", 7, 2)
    assert turn.named("a") == turn._replace(id="a")


@pytest.mark.parametrize("in_ram", [True, False])
def test_counters_follow_every_write_that_was_kept(in_ram, tmp_path):
    with Store.open(None if in_ram else tmp_path / "store.rsm") as store:
        with store.write() as writer:
            ns = writer.create_namespace("a", {"x": 1}).id
            other = writer.create_namespace("b", {}).id
        for number in range(1, 4):
            with store.write() as writer:
                assert writer.take_ids(ns, 1) == number
        with pytest.raises(RuntimeError), store.write() as writer:
            writer.take_ids(ns, 5)
            raise RuntimeError
        store.compact()
        with store.write() as writer:
            assert writer.take_ids(ns, 1) == 4
            writer.put_settings(ns, {"x": 2})
            [pk] = writer.insert_turns(
                ns, [TurnRecord(0, "t", "user", "x", 0, 0, True, None, None)]
            )
        with store.write() as writer:
            writer.delete_turns(ns, [pk])
        with store.write() as writer:
            assert writer.tombstoned(ns, ["t", "u"]) == {"t"}
            assert writer.take_ids(other, 1) == 1
        assert not store.repair()
        with store.write() as writer:
            assert writer.take_ids(ns, 1) == 5 and writer.take_ids(other, 1) == 2
            generation = writer.generation(ns)
        with store.read() as reader:
            record = reader.namespace_by_id(ns)
            assert record.generation == generation and record.settings == {"x": 2}
            assert reader.namespace_by_id(other).next_auto == 3
        with store.write() as writer:
            writer.purge(ns)
        with pytest.raises(NotFoundError), store.write() as writer:
            writer.take_ids(ns, 1)
