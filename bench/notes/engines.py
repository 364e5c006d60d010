"""The engines that the scaling experiment compares, behind three small verbs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rsm_fast.arena import Arena
from rsm_fast.index import top_members

__all__ = ["ENGINES", "ChromaWorker", "Engine"]

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
import numpy as np
import chromadb
from chromadb.config import Settings
base, queries, k = np.load(sys.argv[1]), np.load(sys.argv[2]), int(sys.argv[3])
client = chromadb.EphemeralClient(Settings(anonymized_telemetry=False))
notes = client.create_collection("notes", metadata={"hnsw:space": "ip"})
begin = time.perf_counter()
step = 5000
for start in range(0, len(base), step):
    rows = range(start, min(start + step, len(base)))
    notes.add(ids=[str(row) for row in rows], embeddings=base[start : start + step])
build = time.perf_counter() - begin
asked = [query.tolist() for query in queries]
def run():
    begin = time.perf_counter()
    found = [notes.query(query_embeddings=[q], n_results=k, include=[])["ids"][0] for q in asked]
    return time.perf_counter() - begin, found
run()
seconds, found = min((run() for _ in range(3)), key=lambda pair: pair[0])
print(json.dumps({"build": build, "seconds": seconds / len(asked),
                  "found": [[int(row) for row in rows] for rows in found],
                  "version": chromadb.__version__}))
"""


class ChromaWorker:
    """ChromaDB, in a Python of its own, since it asks for many packages.

    Parameters
    ----------
    python : Path
        An interpreter that can import ``chromadb``.
    """

    def __init__(self, python: Path) -> None:
        self.python = python

    def run(self, vectors: F32, queries: F32, k: int, folder: Path) -> dict[str, Any]:
        """Build and ask, in the child; seconds of building and of a query, rows found."""
        files = []
        for name, array in (("base", vectors), ("queries", queries)):
            files.append(str(folder / f"{name}.npy"))
            np.save(files[-1], array)
        run = subprocess.run(
            [str(self.python), "-c", _CHROMA, *files, str(k)],
            capture_output=True,
            text=True,
            check=True,
        )
        result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        return result
