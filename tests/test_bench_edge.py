"""The script that measures small machines, on a small case."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.edge import installed_bytes, needed, replace_table, texts

PAGE = "before\n<!-- memory -->\n<!-- end -->\nafter\n"


def test_tables_are_written_between_their_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    replace_table(page, "memory", "| what | a |\n|---|---|\n| x | 1 |\n\nfoot")
    replace_table(page, "memory", "| what | a |\n|---|---|\n| y | 2 |\n\nfoot two")
    replace_table(page, "memory", "| what | a |\n|---|---|\n| y | 3 |\n\nfoot three")
    assert page.read_text(encoding="utf-8") == (
        "before\n<!-- memory -->\n| what | a |\n|---|---|\n| y | 3 |\n| x | 1 |\n\nfoot three\n"
        "<!-- end -->\nafter\n"
    )
    with pytest.raises(SystemExit, match="no marker"):
        replace_table(page, "sizes", "| x |\n|---|\n\n")


def test_texts_are_all_different() -> None:
    made = list(texts(500))
    assert len({turn["text"] for turn in made}) == 500


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_a_case_reports_what_it_took(repo_root: Path, tmp_path: Path) -> None:
    words = [str(tmp_path / "edge.rsm"), "edge", "hashing", "120"]
    results = []
    for verb in ("ingest", "ask"):
        run = subprocess.run(
            [sys.executable, "-m", "bench.edge", "--child", verb, *words],
            cwd=repo_root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        results.append(json.loads(run.stdout))
    filled, asked = results
    assert filled["peak"] >= filled["now"] > 1 << 20
    assert asked["derived"] > 256 and asked["file"] > 256
    assert 0.0 <= asked["idle"] < 1.0


def test_an_extra_that_needs_nothing_new_adds_nothing() -> None:
    core = needed(["numpy", "onnxruntime"])
    assert "numpy" in core and needed(["numpy>=1"]) <= core
    assert installed_bytes(core) > installed_bytes(["numpy"]) > 1 << 20
    assert "pytest" not in needed(['pytest; python_version < "3"'])
