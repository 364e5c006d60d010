"""The documents are true: code runs and prints what they say, links lead somewhere."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import runpy
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rsm_fast.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")],
    key=lambda page: str(page.relative_to(ROOT)),
)
BLOCK = re.compile(r"^```(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^```$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
OPTIONAL_OF = {
    "rsm_fast.integrations.mcp": "mcp",
    "rsm_fast.integrations.langgraph": "langgraph",
    "rsm_fast.integrations.langchain": "langchain_core",
    "rsm_fast.integrations.llamaindex": "llama_index",
}
OPTIONAL = set(OPTIONAL_OF.values())
SKIPPED_COMMANDS = ("pip ", "python -m pip", "make ", "git ", "cd ")


@dataclass(frozen=True)
class Block:
    language: str
    body: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match["language"], match["body"], text.count("\n", 0, match.start()) + 1)
        for match in BLOCK.finditer(text)
    ]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def imported(page: Path) -> set[str]:
    """Top-level packages that the Python blocks of a page import, by name or through ours."""
    code = "\n".join(block.body for block in blocks(page) if block.language == "python")
    words = re.findall(r"^(?:import|from) ([\w.]+)", code, re.M)
    return {OPTIONAL_OF.get(word, word.split(".")[0]) for word in words}


def check_output(want: str, got: str, where: str) -> None:
    """Equal, but for ``...`` in the document, which stands for anything."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    got = "\n".join(line.rstrip() for line in got.splitlines()) + "\n"
    assert doctest.OutputChecker().check_output(want, got, options), (
        f"{where}: the document says\n{want}\nbut it prints\n{got}"
    )


PAGES_WITH_PYTHON = [p for p in PAGES if any(b.language == "python" for b in blocks(p))]
PAGES_WITH_COMMANDS = [
    p for p in PAGES if any(b.language == "console" and "$ rsm-fast" in b.body for b in blocks(p))
]


@pytest.mark.usefixtures("packaged_minilm")
@pytest.mark.parametrize("page", PAGES_WITH_PYTHON, ids=name)
def test_python_blocks_run_and_print_what_follows_them(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks of a page share their names, and run in an empty folder, in their order."""
    for package in OPTIONAL & imported(page):
        pytest.importorskip(package, reason=f"{package} is absent: install the extras of this page")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__docs__"}
    found = blocks(page)
    for block, following in zip(found, [*found[1:], Block("", "", 0)], strict=True):
        if block.language != "python":
            continue
        where = f"{name(page)}:{block.line}"
        printed = io.StringIO()
        code = compile("\n" * block.line + block.body, name(page), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        if following.language == "text":
            check_output(following.body, printed.getvalue(), where)


@pytest.mark.usefixtures("packaged_minilm")
@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=name)
def test_commands_run_and_print_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In ``console`` blocks, lines behind ``$`` are commands, all others their output."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        if block.language == "console":
            for command, want in commands(block.body):
                run(command, want, f"{name(page)}:{block.line}: {command}", tmp_path)


def commands(body: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        yield command.strip(), output


def run(command: str, want: str, where: str, folder: Path) -> None:
    if command.startswith(SKIPPED_COMMANDS):
        return
    words = shlex.split(command, comments=True)
    if words[0] == "cat":  # shows a file that the next command reads
        folder.joinpath(words[1]).write_text(want, encoding="utf-8")
        return
    assert words[0] == "rsm-fast", f"{where}: the suite cannot run this command"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(words[1:])
    assert code == 0, f"{where}: exit code {code}\n{printed.getvalue()}"
    if want.strip():
        check_output(want, printed.getvalue(), where)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for match in LINK.finditer(page.read_text(encoding="utf-8")):
        target = match["target"]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name(page)}: no {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{name(page)}: no heading {target}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


def test_command_line_page_is_what_the_program_says() -> None:
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "docs" / "build_cli.py"))["page"]()
    assert written == made, "docs/cli.md is stale: run `python docs/build_cli.py`"


def test_picture_of_the_flow_is_what_its_script_draws() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "build_flow.py"))["picture"]()
    written = (ROOT / "docs" / "flow.svg").read_text(encoding="utf-8")
    assert written == made, "docs/flow.svg is stale: run `python docs/build_flow.py`"


def test_benchmarks_are_those_of_the_pages_that_measured() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "build_benchmarks.py"))["page"]()
    written = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert written == made, "docs/benchmarks.md is stale: run `python docs/build_benchmarks.py`"


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
