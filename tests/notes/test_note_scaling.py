"""The scaling experiment runs, measures exactly, and writes its page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from bench.notes.engines import ENGINES
from bench.notes.scaling import Floor, Row, kth_best, measure, tables, write_page


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    drawn = np.random.default_rng(3).standard_normal((400, 32)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.mark.parametrize("name", ["rsm_fast, exact", "NumPy, exact", "FAISS flat, exact"])
def test_exact_engines_find_all(vectors, name) -> None:
    queries = vectors[:5]
    row = measure(name, ENGINES[name](), vectors, queries, kth_best(vectors, queries))
    assert (row.n, row.recall, row.effort) == (400, 1.0, 0)
    assert row.micros > 0 and row.bytes >= 400 * 32 * 4


@pytest.mark.parametrize("name", ["FAISS HNSW", "usearch HNSW", "hnswlib HNSW"])
def test_graphs_reach_the_wanted_recall(vectors, name) -> None:
    pytest.importorskip({"u": "usearch", "h": "hnswlib"}.get(name[0], "faiss"))
    queries = vectors[:5]
    row = measure(name, ENGINES[name](), vectors, queries, kth_best(vectors, queries))
    assert row.recall >= 0.99 and row.effort >= 16


def test_the_page_says_what_was_measured(tmp_path: Path) -> None:
    rows = [
        Row("rsm_fast, exact", 1000, 18.5, 1.0, 1_974_000, 0.05, 0),
        Row("FAISS HNSW", 1000, 1500.0, 0.993, 0, 1.5, 32),
        Row("rsm_fast, exact", 10_000, 100.0, 1.0, 19_740_000, 0.5, 0),
    ]
    result = {
        "machine": "a machine", "versions": "numpy 2", "dim": 384, "queries": 100, "real": 31_107,
        "bytes_per_us": 10_000.0, "floors": [asdict(Floor("a call", 0.03))], "notes": ["A remark."],
        "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    text = tables(result)
    assert "| **reported in the paper** | 0.31 us | (between) |" in text
    assert "| rsm_fast, exact | 18.5 us, exact | 100.0 us, exact |" in text
    assert "| FAISS HNSW | 1.50 ms, recall 0.993 | not run |" in text
    assert "(10 GB/s)* | 38.4 us | 384.0 us |" in text
    assert "| rsm_fast, exact | 1,974, 0.05 s | 1,974, 0.50 s |" in text
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- scaling: begin -->\nold\n<!-- scaling: end -->\nafter\n", "utf-8")
    write_page(result, page)
    written = page.read_text("utf-8")
    assert text in written and "old" not in written and written.endswith("after\n")
    page.write_text("no markers", "utf-8")
    with pytest.raises(SystemExit, match="markers"):
        write_page(result, page)


def test_the_picture_is_drawn(tmp_path: Path, standin, turns) -> None:
    pytest.importorskip("matplotlib")
    from bench.datasets import Stream
    from bench.notes.picture import closeness, draw, moved, note_vectors
    from rsm_fast.embedding import as_embedder
    from rsm_fast.types import as_turn

    stream = Stream("trip", tuple(as_turn(turn) for turn in turns), ())
    embedder = as_embedder("hashing")
    panels = {
        "with": note_vectors(stream, embedder, standin),
        "without": note_vectors(stream, embedder, standin, links=False),
    }
    assert panels["with"].shape == panels["without"].shape == (6, embedder.dim)
    assert closeness(panels["with"]) != closeness(panels["without"])
    assert 0 < moved(panels["with"], panels["without"]).sum() < 6
    files = draw(panels, [0, 0, 0, 1, 1, 1], "A trip", tmp_path / "pictures")
    assert [file.suffix for file in files] == [".png", ".svg"]
    assert all(file.stat().st_size > 5000 for file in files)
