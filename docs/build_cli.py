"""Write docs/cli.md from the program's own help: ``python docs/build_cli.py``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from rsm_fast.cli.arguments import parser

PAGE = Path(__file__).with_name("cli.md")

_HEAD = """\
# Command line

<!-- Written by docs/build_cli.py from the program's own help; do not edit. -->

"""


def page() -> str:
    """The whole page."""
    sections = [
        f"{'#' * (2 + depth)} {command.prog}\n\n```text\n{command.format_help().rstrip()}\n```\n"
        for depth, command in _commands(parser(), 0)
    ]
    return _HEAD + "\n".join(sections)


def _commands(
    command: argparse.ArgumentParser, depth: int
) -> Iterator[tuple[int, argparse.ArgumentParser]]:
    yield depth, command
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _commands(child, depth + 1)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
