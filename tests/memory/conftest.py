"""Memories in RAM and on a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from memory_cases import Opener

from rsm_fast import Memory


@pytest.fixture(params=["ram", "file"])
def memory_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens memories in RAM or on one file; closes them at the end."""
    opened: list[Memory] = []

    def open_one(**options: Any) -> Memory:
        options.setdefault("embedder", "hashing")
        if request.param == "ram":
            memory = Memory(**options)
        else:
            memory = Memory.open(tmp_path / "agent.rsm", **options)
        opened.append(memory)
        return memory

    yield open_one
    for memory in opened:
        memory.close()
