"""Top atoms and top members: exact, filtered before top-k, under deletion and threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import oracles
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rsm_fast.arena import Arena
from rsm_fast.clustering import Clusterer
from rsm_fast.errors import InvalidInputError
from rsm_fast.index import AtomIndex, route_atoms, top_atoms, top_members

ROUTES = ["centroid", "singular-vector", "max-member", "subspace"]


def near(seed, count, dim=64, centres=9, spread=0.6):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((centres, dim))[rng.integers(0, centres, count)]
    rows = rows + spread * rng.standard_normal(rows.shape)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def make(vectors, tau=0.75, rank=2):
    arena = Arena(vectors.shape[1])
    clusterer = Clusterer(arena, gate="nearest-mean", tau=tau, rank=rank)
    for i, x in enumerate(vectors):
        clusterer.assign(arena.append(x, pk=i, tokens=1, micros=i, session=0))
    return arena, clusterer


def atom_score(arena, clusterer, atom, query, route, rows=None):
    members = clusterer.members(atom)
    q = query.astype(np.float64)
    if route == "centroid":
        return float(clusterer.mean(atom) @ q)
    if route == "max-member":
        members = members if rows is None else [r for r in members if rows[r]]
        return max(float(arena.vec[r] @ q) for r in members)
    vectors = np.linalg.svd(arena.vec[members].astype(np.float64), full_matrices=False)[2]
    if route == "subspace":
        return float(np.linalg.norm(vectors[: clusterer.rank] @ q))
    first = vectors[0] * np.sign(vectors[0] @ clusterer.mean(atom))
    return float(first @ q)


@pytest.mark.parametrize("route", ROUTES)
def test_routes_score_atoms_as_defined(route: str) -> None:
    vectors = near(0, 120)
    arena, clusterer = make(vectors)
    eligible = np.random.default_rng(1).random(120) < 0.3
    for query in near(5, 5):
        for rows in (None, eligible):
            atoms, scores = route_atoms(clusterer, query, 6, route, eligible=rows)
            candidates = clusterer.counts()[0].tolist()
            if rows is not None:
                candidates = sorted(set(arena.atom[rows].tolist()))
            wanted = {a: atom_score(arena, clusterer, a, query, route, rows) for a in candidates}
            best = sorted(candidates, key=lambda a: (-wanted[a], a))[:6]
            np.testing.assert_allclose(scores, [wanted[a] for a in best], atol=2e-4)
            assert set(atoms.tolist()) <= set(candidates)
            assert (np.diff(scores) <= 0).all()


def test_faiss_and_our_kernels_agree() -> None:
    vectors = near(2, 300, centres=60)
    arena, clusterer = make(vectors, tau=0.9)
    index = AtomIndex(clusterer)
    for step, query in enumerate(near(8, 20)):
        found, scores = index.top_atoms(query, 7)
        exact, exact_scores = top_atoms(clusterer, query, 7)
        np.testing.assert_allclose(scores, exact_scores, atol=1e-5)
        assert found.tolist() == exact.tolist()
        clusterer.remove(step)  # means move, some atoms vanish
        if step % 2:
            clusterer.assign(arena.append(query, pk=400 + step, tokens=1, micros=0, session=0))
        mask = np.arange(clusterer.n_atoms) % 2 == 0
        found, _ = index.top_atoms(query, 7, eligible_atoms=mask)
        exact, _ = top_atoms(clusterer, query, 7, eligible_atoms=mask)
        assert found.tolist() == exact.tolist()
        assert set(found.tolist()) <= set(clusterer.counts()[0][mask].tolist())
    clusterer.restore(np.arange(100, 200), arena.atom[100:200].copy(), clusterer.next_atom)
    assert (
        index.top_atoms(vectors[150], 3)[0].tolist()
        == top_atoms(clusterer, vectors[150], 3)[0].tolist()
    )
    with pytest.raises(InvalidInputError, match="route"):
        AtomIndex(clusterer, "max-member")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="eligible_atoms"):
        index.top_atoms(vectors[0], 3, eligible_atoms=[True])


def test_f08_two_chunks_or_none_and_k_of_fifty() -> None:
    for count in (0, 2):
        arena, clusterer = make(np.eye(64, dtype=np.float32)[:count])
        if count == 0:
            arena, clusterer = Arena(64), Clusterer(Arena(64), gate="centroid", tau=0.5)
        query = np.eye(64, dtype=np.float32)[1]
        rows, scores = top_members(arena, query, 50)
        assert len(rows) == len(scores) == count
        for index in (None, AtomIndex(clusterer)):
            for route in ROUTES:
                atoms, _ = route_atoms(clusterer, query, 50, route, index=index)
                assert len(atoms) == count
                assert (atoms >= 0).all()
        assert len(top_members(arena, query, 0)[0]) == 0


def test_top_members_filter_before_they_choose() -> None:
    vectors = near(4, 200)
    arena, _ = make(vectors)
    eligible = np.random.default_rng(0).random(200) < 0.1
    for query in near(6, 5):
        rows, scores = top_members(arena, query, 12, eligible=eligible)
        wanted = oracles.top_rows(vectors, query, 12, eligible)
        assert rows.tolist() == [r for r, _ in wanted]
        np.testing.assert_allclose(scores, [s for _, s in wanted], rtol=1e-6)
    with pytest.raises(InvalidInputError, match="eligible"):
        top_members(arena, vectors[0], 3, eligible=[1])
    with pytest.raises(InvalidInputError, match="query"):
        top_members(arena, np.full(64, np.nan, np.float32), 3)


class AddsAndDeletes(RuleBasedStateMachine):
    """F07: a plain dict is the model."""

    @initialize()
    def start(self):
        self.arena = Arena(32)
        self.clusterer = Clusterer(self.arena, gate="nearest-mean", tau=0.8)
        self.index = AtomIndex(self.clusterer)
        self.model = {}

    @rule(seed=st.integers(0, 30))
    def add(self, seed):
        x = near(seed, 1, dim=32)[0]
        row = self.arena.append(x, pk=self.arena.n, tokens=1, micros=0, session=0)
        self.clusterer.assign(row)
        self.model[row] = x

    @rule(data=st.data())
    def delete(self, data):
        if self.model:
            row = data.draw(st.sampled_from(sorted(self.model)))
            self.clusterer.remove(row)
            self.arena.remove(row)
            del self.model[row]

    @invariant()
    def survivors_find_themselves(self):
        for row, x in list(self.model.items())[-3:]:
            rows, scores = top_members(self.arena, x, 50)
            assert sorted(rows.tolist()) == sorted(self.model)[:50] or len(self.model) > 50
            assert scores[0] == pytest.approx(1.0, abs=1e-6)
            assert (self.arena.vec[rows[0]] == x).all() or row in rows
            atoms, _ = self.index.top_atoms(x, 50)
            assert set(atoms.tolist()) <= {int(self.arena.atom[r]) for r in self.model}


AddsAndDeletes.TestCase.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)
test_f07_adds_and_deletes = AddsAndDeletes.TestCase


def test_f07_deleted_letters_are_gone() -> None:
    letters = near(7, 7, centres=7)
    arena, clusterer = make(letters[:5])
    index = AtomIndex(clusterer)
    for row in (1, 3):
        clusterer.remove(row)
        arena.remove(row)
    for x in letters[5:]:
        clusterer.assign(arena.append(x, pk=arena.n, tokens=1, micros=0, session=0))
    for row in (0, 2, 4, 5, 6):
        assert top_members(arena, letters[row], 1)[0].tolist() == [row]
        assert index.top_atoms(letters[row], 1)[0].tolist() == [arena.atom[row]]
    for row in (1, 3):
        assert row not in top_members(arena, letters[row], 50)[0]


SCRIPT = """
import numpy as np
from test_index import near, make
from rsm_fast.index import AtomIndex, top_members
arena, clusterer = make(near(3, 200))
index = AtomIndex(clusterer)
for query in near(9, 10):
    print(index.top_atoms(query, 5)[0].tolist(), top_members(arena, query, 5)[0].tolist())
"""


@pytest.mark.timeout(1200)  # compiles for another target
def test_f10_generic_faiss_and_kernels_agree_with_the_full_cpu(repo_root) -> None:
    def run(**environment):
        path = os.pathsep.join([str(repo_root), str(repo_root / "tests")])
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )
        return done.stdout

    assert run(FAISS_OPT_LEVEL="generic", NUMBA_CPU_NAME="generic") == run()


def process_threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs /proc")
def test_f06_sixteen_readers_add_no_threads_and_keep_faiss_settings() -> None:
    if "RSM_FAST_ALONE" not in os.environ:
        # In a process of its own: earlier tests fork, and libraries then bring their pools back
        # at some later call, which would be counted here.
        test = f"{__file__}::test_f06_sixteen_readers_add_no_threads_and_keep_faiss_settings"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
            env={**os.environ, "RSM_FAST_ALONE": "1"},
            cwd=os.path.dirname(os.path.dirname(__file__)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:]
        return
    import faiss

    arena, clusterer = make(near(1, 300))
    index = AtomIndex(clusterer)
    queries = near(2, 32)
    index.top_atoms(queries[0], 5)
    setting = faiss.omp_get_max_threads()
    before = process_threads()
    stop = time.monotonic() + 3.0
    peak = []

    def read(query):
        while time.monotonic() < stop:
            index.top_atoms(query, 5)
            top_members(arena, query, 5)
            peak.append(process_threads())

    readers = [threading.Thread(target=read, args=(queries[k],)) for k in range(16)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert max(peak) <= before + 16
    assert faiss.omp_get_max_threads() == setting


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.isfile("/proc/self/statm"), reason="needs /proc")
def test_f09_twenty_thousand_reads_take_no_memory() -> None:
    arena, clusterer = make(near(1, 300))
    index = AtomIndex(clusterer)
    queries = near(2, 50)

    def read(times):
        for k in range(times):
            index.top_atoms(queries[k % 50], 5)
            top_members(arena, queries[k % 50], 5)

    def run(times):
        threads = [threading.Thread(target=read, args=(times,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run(250)
    before = resident()
    run(2500)
    assert resident() < 1.05 * before
