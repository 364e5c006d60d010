"""The first rows by NumPy: equal to the kernels, bit for bit, and without loading them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rsm_fast.kernels as kernels
from rsm_fast.arena import Arena
from rsm_fast.clustering import Clusterer
from rsm_fast.kernels.layout import FEW_ROWS
from rsm_fast.lexical import LexicalIndex

GATES = ["max-member", "nearest-mean", "centroid"]


def some_vectors(count: int, dim: int, seed: int) -> np.ndarray:
    """Around a few centres, with exact copies and an antipode among them."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((5, dim))
    rows = centres[rng.integers(0, 5, count)] + 0.7 * rng.standard_normal((count, dim))
    copies = rng.integers(0, count, count // 4)
    rows[rng.integers(0, count, count // 4)] = rows[copies]
    rows[count // 2] = -rows[0]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def clustered(
    vectors: np.ndarray, gate: str, tau: float, *, centre: bool = False, backwards: bool = False
) -> Clusterer:
    arena = Arena(vectors.shape[1])
    if centre:
        arena.set_centre(vectors[:9].mean(axis=0), [], vectors[:0])
    clusterer = Clusterer(arena, gate=gate, tau=tau, rank=2)  # type: ignore[arg-type]
    held: list[int] = []
    for place, vector in enumerate(vectors):
        row = arena.append(vector, pk=place + 1, tokens=place, micros=9 * place, session=place % 3)
        held.append(row)
        if not backwards:
            clusterer.assign(held.pop())
        elif len(held) == 4:
            clusterer.assign_many(held[::-1])
            held.clear()
    return clusterer


def everything(clusterer: Clusterer) -> list[bytes]:
    """All that is known of the rows and the atoms, as bytes."""
    clusterer.settle()
    arena, slots = clusterer.arena, clusterer.slots
    assert clusterer.atoms is not None
    atoms = clusterer.atoms
    # the limit of the means covers every mean there ever was, or those of today
    columns = [arena.table.columns, clusterer.means.columns[:-1]]
    return [
        arena.atom.tobytes(),
        *(getattr(arena, name).tobytes() for name in ("prev", "next", "micros", "tokens", "pk")),
        *(getattr(arena, name).tobytes() for name in ("session", "alive")),
        arena.links[: arena.n].tobytes(),
        arena.gated[: arena.n].tobytes(),
        *(array.tobytes() for table in columns for array in table),
        *(part[:slots].tobytes() for part in (atoms.total, atoms.links, atoms.alive)),
        *(part[:slots].tobytes() for part in (atoms.basis, atoms.strength)),
        clusterer.numbers.tobytes(),
    ]


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "loaded", lambda: False)


@given(
    seed=st.integers(0, 10_000),
    count=st.sampled_from([1, 2, 7, FEW_ROWS - 1, FEW_ROWS, FEW_ROWS + 1, FEW_ROWS + 20]),
    dim=st.sampled_from([1, 30, 64, 100]),
    gate=st.sampled_from(GATES),
    tau=st.sampled_from([-1.0, 0.2, 0.5, 0.8, 1.0]),
    centre=st.booleans(),
    backwards=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_first_rows_are_as_the_kernels_make_them(
    seed: int, count: int, dim: int, gate: str, tau: float, centre: bool, backwards: bool
) -> None:
    vectors = some_vectors(count, dim, seed)
    options = {"centre": centre and count > 9, "backwards": backwards}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "loaded", lambda: False)
        small = clustered(vectors, gate, tau, **options)
    if count <= FEW_ROWS and not backwards:
        assert small._rough  # no kernel has been at it
    assert everything(small) == everything(clustered(vectors, gate, tau, **options))


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("gate", GATES)
def test_rows_that_leave_or_change_among_the_first(gate: str, monkeypatch) -> None:
    vectors = some_vectors(40, 64, 1)

    def made() -> Clusterer:
        clusterer = clustered(vectors[:20], gate, 0.5)
        for row in (3, 0, 11):
            clusterer.remove(row)
        clusterer.arena.remove(0)
        clusterer.arena.replace(11, vectors[25], tokens=5)
        clusterer.assign(11)
        for vector in vectors[20:]:
            arena = clusterer.arena
            row = arena.append(vector, pk=arena.n + 1, tokens=1, micros=1, session=1)
            clusterer.assign(row)
        return clusterer

    small = everything(made())
    monkeypatch.setattr(kernels, "loaded", lambda: True)
    assert small == everything(made())


@pytest.mark.usefixtures("unloaded")
def test_a_vector_that_is_not_finite_is_refused_among_the_first() -> None:
    arena = Arena(8)
    with pytest.raises(Exception, match="finite"):
        arena.append(np.full(8, np.nan, np.float32), pk=1, tokens=1, micros=1, session=0)
    assert arena.n == 0
    assert arena.append(np.ones(8, np.float32), pk=1, tokens=1, micros=1, session=0) == 0


@pytest.mark.parametrize("count", [5, FEW_ROWS, FEW_ROWS + 30])
def test_the_first_postings_wait_and_are_the_same(count: int, monkeypatch) -> None:
    texts = [[f"w{k % 7}", f"w{k % 3}", f"only{k}"] for k in range(count)]

    def made() -> LexicalIndex:
        index = LexicalIndex()
        for row, terms in enumerate(texts):
            index.append(row, terms)
        index.remove(2)
        index.replace(3, ["w1", "new"])
        return index

    direct = made()
    monkeypatch.setattr(kernels, "loaded", lambda: False)
    waited = made()
    assert waited.living == direct.living
    for name, array in direct.arrays().items():
        assert waited.arrays()[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize(
    "what",
    [
        "arena = Arena(16); c = Clusterer(arena, gate='nearest-mean', tau=0.5);"
        "[c.assign(arena.append(np.eye(16, dtype=np.float32)[k % 16], pk=k, tokens=1, micros=k,"
        " session=0)) for k in range(20)]; assert c.n_atoms == 16",
        "m = Memory(embedder='hashing'); [m.add(f'turn {k}') for k in range(20)]; m.close()",
    ],
)
def test_the_first_adds_load_no_kernels(what: str) -> None:
    code = (
        "import sys\nimport numpy as np\nfrom rsm_fast import Memory\n"
        "from rsm_fast.arena import Arena\nfrom rsm_fast.clustering import Clusterer\n"
        f"{what}\n"
        "print(sorted({'numba', 'llvmlite', 'faiss', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
