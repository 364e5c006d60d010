"""The engines that the scaling experiment compares, behind three small verbs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rsm_fast.arena import Arena
from rsm_fast.index import top_members

__all__ = ["ENGINES", "ChromaWorker", "Engine", "Graph"]

F32 = npt.NDArray[np.float32]

_EFFORTS = (16, 32, 64, 128, 256, 512, 1024)


class Engine(Protocol):
    """One way to find the k nearest of n vectors.

    Attributes
    ----------
    efforts : sequence of int
        Settings of the search, least effort first; one entry where there is no choice.
    """

    efforts: Sequence[int]

    def build(self, vectors: F32) -> None:
        """Index unit rows, in one thread."""

    def search(self, query: F32, k: int, effort: int) -> npt.NDArray[np.int64]:
        """Rows of the k nearest, best first."""

    def nbytes(self) -> int:
        """What the index holds, vectors included."""


@runtime_checkable
class Graph(Engine, Protocol):
    """An engine whose building takes so long that what was built can be kept."""

    def save(self, path: Path) -> None:
        """Write what was built."""

    def load(self, path: Path, dim: int) -> None:
        """Read it back, in place of building."""


class Ours:
    """Exact top-k of `rsm_fast`: int8 cascade with proven bounds, float64 for what is left."""

    efforts = (0,)

    def build(self, vectors: F32) -> None:
        n = len(vectors)
        self.arena = Arena(vectors.shape[1], reserve=n)
        zeros = np.zeros(n, np.int64)
        self.arena.append_many(vectors, pk=np.arange(n), tokens=zeros, micros=zeros, session=zeros)

    def search(self, query: F32, k: int, effort: int) -> npt.NDArray[np.int64]:
        return top_members(self.arena, query, k)[0].astype(np.int64)

    def nbytes(self) -> int:
        return self.arena.nbytes


class NumPy:
    """Exact: one matrix product and a partial sort."""

    efforts = (0,)

    def build(self, vectors: F32) -> None:
        self.vectors = vectors

    def search(self, query: F32, k: int, effort: int) -> npt.NDArray[np.int64]:
        scores = self.vectors @ query
        best = np.argpartition(scores, -k)[-k:]
        return best[np.argsort(-scores[best])]

    def nbytes(self) -> int:
        return self.vectors.nbytes


class FaissFlat:
    """Exact: `IndexFlatIP`."""

    efforts = (0,)

    def build(self, vectors: F32) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        self.faiss = faiss
        self.index: Any = self.make(vectors.shape[1])
        self.index.add(vectors)

    def make(self, dim: int) -> Any:
        return self.faiss.IndexFlatIP(dim)

    def search(self, query: F32, k: int, effort: int) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = self.index.search(query[None], k)[1][0]
        return found

    def nbytes(self) -> int:
        return int(self.faiss.serialize_index(self.index).nbytes)


class FaissHnsw(FaissFlat):
    """`IndexHNSWFlat` with M = 32, efConstruction = 40."""

    efforts = _EFFORTS

    def make(self, dim: int) -> Any:
        return self.faiss.IndexHNSWFlat(dim, 32, self.faiss.METRIC_INNER_PRODUCT)

    def search(self, query: F32, k: int, effort: int) -> npt.NDArray[np.int64]:
        self.index.hnsw.efSearch = effort
        return super().search(query, k, effort)

    def save(self, path: Path) -> None:
        self.faiss.write_index(self.index, str(path))

    def load(self, path: Path, dim: int) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        self.faiss = faiss
        self.index = faiss.read_index(str(path))


class Usearch:
    """usearch, float32, its own defaults for the graph."""

    efforts = _EFFORTS

    def build(self, vectors: F32) -> None:
        from usearch.index import Index

        self.index = Index(ndim=vectors.shape[1], metric="ip", dtype="f32")
        self.index.add(np.arange(len(vectors)), vectors, threads=1)

    def search(self, query: F32, k: int, effort: int) -> npt.NDArray[np.int64]:
        if self.index.expansion_search != effort:
            self.index.expansion_search = effort
        return np.asarray(self.index.search(query, k, threads=1).keys, np.int64)

    def nbytes(self) -> int:
        return int(self.index.serialized_length)

    def save(self, path: Path) -> None:
        self.index.save(str(path))

    def load(self, path: Path, dim: int) -> None:
        from usearch.index import Index

        self.index = Index.restore(str(path))


class Hnswlib:
    """hnswlib, the engine inside ChromaDB, with Chroma's defaults: M = 16, construction 100."""

    efforts = _EFFORTS

    def build(self, vectors: F32) -> None:
        import hnswlib

        self.index = hnswlib.Index(space="ip", dim=vectors.shape[1])
        self.index.init_index(max_elements=len(vectors), M=16, ef_construction=100)
        self.index.set_num_threads(1)
        self.index.add_items(vectors, num_threads=1)

    def search(self, query: F32, k: int, effort: int) -> npt.NDArray[np.int64]:
        self.index.set_ef(effort)
        return self.index.knn_query(query, k, num_threads=1)[0][0].astype(np.int64)

    def nbytes(self) -> int:
        return int(self.index.index_file_size())

    def save(self, path: Path) -> None:
        self.index.save_index(str(path))

    def load(self, path: Path, dim: int) -> None:
        import hnswlib

        self.index = hnswlib.Index(space="ip", dim=dim)
        self.index.load_index(str(path))
        self.index.set_num_threads(1)


ENGINES: dict[str, Callable[[], Engine]] = {
    "rsm_fast, exact": Ours,
    "NumPy, exact": NumPy,
    "FAISS flat, exact": FaissFlat,
    "FAISS HNSW": FaissHnsw,
    "usearch HNSW": Usearch,
    "hnswlib HNSW": Hnswlib,
}

_CHROMA = """
import json, sys, time
from pathlib import Path
import numpy as np
import chromadb
from chromadb.config import Settings
folder, k, build_only = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "build"
client = chromadb.PersistentClient(str(folder / "store"), Settings(anonymized_telemetry=False))
notes = client.get_or_create_collection("notes", metadata={"hnsw:space": "ip"})
base, queries = np.load(folder / "base.npy", mmap_mode="r"), np.load(folder / "queries.npy")
spent = folder / "seconds"
begun, before = notes.count(), float(spent.read_text()) if spent.exists() else 0.0
begin = time.process_time()
for start in range(begun, len(base), 5000):
    rows = range(start, min(start + 5000, len(base)))
    notes.add(ids=[str(row) for row in rows], embeddings=base[rows.start : rows.stop])
    spent.write_text(str(before + time.process_time() - begin))
given = {"build": float(spent.read_text()), "version": chromadb.__version__}
if not build_only:
    asked = [query.tolist() for query in queries]
    best, found = [float("inf")] * len(asked), []
    for _ in range(ROUNDS):
        found = []
        for number, query in enumerate(asked):
            begin = time.process_time()
            got = notes.query(query_embeddings=[query], n_results=k, include=[])
            best[number] = min(best[number], time.process_time() - begin)
            found.append([int(row) for row in got["ids"][0]])
    given |= {"seconds": sum(best) / len(best), "found": found}
    given["bytes"] = sum(f.stat().st_size for f in (folder / "store").rglob("*") if f.is_file())
print(json.dumps(given))
"""


class ChromaWorker:
    """ChromaDB on disk, in a Python of its own, since it asks for many packages.

    Parameters
    ----------
    python : Path
        An interpreter that can import ``chromadb``.
    """

    def __init__(self, python: Path) -> None:
        self.python = python

    def run(
        self, vectors: F32, queries: F32, k: int, folder: Path, *, rounds: int, build_only: bool
    ) -> dict[str, Any]:
        """Build what the folder lacks, then ask, in the child.

        Gives processor seconds of building and of a query, all threads together, the rows
        found, and the bytes of the files.
        """
        for name, array in (("base", vectors), ("queries", queries)):
            np.save(folder / f"{name}.npy", array)
        script = _CHROMA.replace("ROUNDS", str(rounds))
        mode = "build" if build_only else "ask"
        run = subprocess.run(
            [str(self.python), "-c", script, str(folder), str(k), mode],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        return result
