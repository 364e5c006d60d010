"""Frameworks stay unimported until they are used, and what is missing is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

FACES = {
    "mcp": ("mcp", "mcp"),
    "langgraph": ("langgraph", "langgraph"),
    "langchain": ("langchain_core", "langchain"),
    "llamaindex": ("llama_index", "llamaindex"),
}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_package_and_the_tools_import_no_framework() -> None:
    packages = {"openai", *(package for package, _ in FACES.values())}
    code = (
        "import sys, rsm_fast, rsm_fast.integrations.tools\n"
        "from rsm_fast import Memory\n"
        f"print(sorted({packages} & set(sys.modules)))"
    )
    assert run(code) == "[]"


@pytest.mark.parametrize("module", FACES)
def test_missing_library_is_named_with_its_extra(module: str) -> None:
    package, extra = FACES[module]
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from rsm_fast.errors import MissingDependencyError\n"
        f"try: import rsm_fast.integrations.{module}\n"
        "except MissingDependencyError as error: print(error)"
    )
    assert f"pip install 'rsm-fast[{extra}]'" in run(code)
