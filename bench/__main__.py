"""``python -m bench COMMAND``: quality and speed."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "convert": ("bench.convert", "a data set as JSONL turns, for `rsm-fast ingest`"),
    "hot": ("bench.hot", "what adding costs beside the embedder"),
    "quality": ("bench.quality.command", "how much of the truth each design keeps per token"),
    "speed": ("bench.speed", "kernels and whole operations against named peers"),
}


def main(arguments: list[str]) -> int:
    """Hand over to the command's own ``main``."""
    if not arguments or arguments[0] not in COMMANDS:
        asked_for_help = bool(arguments) and arguments[0] in ("-h", "--help")
        lines = [f"  {name:<10}{about}" for name, (_, about) in COMMANDS.items()]
        text = "usage: python -m bench COMMAND [-h] ...\n\n" + "\n".join(lines)
        print(text, file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    module = importlib.import_module(COMMANDS[arguments[0]][0])
    return int(module.main(arguments[1:]) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
