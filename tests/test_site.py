"""The documentation site: every page has its place, and it builds without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


def navigation(root: Path) -> list[str]:
    """Pages in the order of the site's navigation."""
    text = (root / "mkdocs.yml").read_text(encoding="utf-8")
    nav = re.search(r"^nav:\n(.*?)^\S", text, re.MULTILINE | re.DOTALL)
    assert nav is not None
    return re.findall(r"([\w./-]+\.md)$", nav[1], re.MULTILINE)


def test_every_page_stands_in_the_navigation_once(repo_root: Path) -> None:
    docs = repo_root / "docs"
    pages = sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))
    assert sorted(navigation(repo_root)) == pages, "mkdocs.yml: its nav lists what docs/ holds"


@pytest.mark.slow
def test_site_builds_strictly_and_fetches_nothing(repo_root: Path, tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is absent: pip install --group docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    run = subprocess.run(
        command,
        cwd=repo_root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    fetched = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?:[^\">\s]+)", home)
    assert not [address for address in fetched if "canonical" not in address]
    api = (tmp_path / "api.html").read_text(encoding="utf-8")
    for name in ("Memory.pack", "types.Pack", "write_report", "errors.BudgetError"):
        assert f'{name}"' in api, f"the API page lacks {name}"
