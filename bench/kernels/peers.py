"""The peers that the kernels are measured against: each makes a search over vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SEARCHERS", "Search"]

F32 = npt.NDArray[np.float32]
Search = Callable[[F32, int], Any]


def _numpy(vectors: F32) -> Search:
    def search(query: F32, k: int) -> Any:
        scores = vectors @ query
        if k == 1:
            return int(scores.argmax())
        best = np.argpartition(scores, -k)[-k:]
        return best[np.argsort(-scores[best])]

    return search


def _faiss(kind: str) -> Callable[[F32], Search]:
    def make(vectors: F32) -> Search:
        import faiss

        faiss.omp_set_num_threads(1)
        d = vectors.shape[1]
        if kind == "flat":
            index = faiss.IndexFlatIP(d)
        elif kind == "sq8":
            index = faiss.IndexScalarQuantizer(
                d, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
            )
            index.train(vectors)
        else:
            index = faiss.IndexHNSWFlat(d, 32, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efSearch = 64
        index.add(vectors)

        def search(query: F32, k: int) -> Any:
            return index.search(query[None], k)[1][0]

        return search

    return make


def _usearch(exact: bool) -> Callable[[F32], Search]:
    def make(vectors: F32) -> Search:
        from usearch.index import Index
        from usearch.index import search as exact_search

        if exact:

            def search(query: F32, k: int) -> Any:
                return exact_search(vectors, query, k, metric="ip", exact=True, threads=1).keys

            return search
        index = Index(ndim=vectors.shape[1], metric="ip", dtype="f32")
        index.add(np.arange(len(vectors)), vectors, threads=1)

        def search_graph(query: F32, k: int) -> Any:
            return index.search(query, k, threads=1).keys

        return search_graph

    return make


def _hnswlib(vectors: F32) -> Search:
    import hnswlib

    index = hnswlib.Index(space="ip", dim=vectors.shape[1])
    index.init_index(max_elements=len(vectors), ef_construction=100, M=32)
    index.set_num_threads(1)
    index.add_items(vectors)

    def search(query: F32, k: int) -> Any:
        index.set_ef(max(64, k))
        return index.knn_query(query, k)[0][0]

    return search


SEARCHERS: dict[str, tuple[Callable[[F32], Search], int]] = {
    "FAISS IndexFlatIP": (_faiss("flat"), 10**9),
    "FAISS SQ8": (_faiss("sq8"), 10**9),
    "FAISS HNSW32": (_faiss("hnsw"), 10_000),
    "NumPy matvec": (_numpy, 10**9),
    "usearch exact": (_usearch(True), 100_000),
    "usearch HNSW": (_usearch(False), 10_000),
    "hnswlib": (_hnswlib, 10_000),
}
"""Name: what makes ``search(query, k)`` over vectors, and up to which size a short run builds
it (graphs take minutes beyond that)."""
