"""The command line's grammar and help. Nothing heavy is imported here: `--help` is quick."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, get_args

from rsm_fast._version import __version__
from rsm_fast.cli.readers import FORMATS
from rsm_fast.cli.where import parse_condition
from rsm_fast.errors import InvalidInputError
from rsm_fast.presets import PRESETS, Gate, Layout

__all__ = ["HELP_WIDTH", "parser"]

HELP_WIDTH = 96

_DESCRIPTION = """\
A memory for LLM agents: put conversations into a store (one file), get back a prompt that
holds what matters for a question, within a budget of tokens.
"""

_EPILOG = """\
a first look:
  rsm-fast demo
  rsm-fast ingest agent.rsm chat.jsonl
  rsm-fast pack agent.rsm "Where does the user live?" --budget 2000

exit codes:
  0  done
  1  an error; the message on standard error says what was expected and what to do
  2  wrong usage
  3  part of the input was left out: each record is named on standard error, the rest is in

Results go to standard output, remarks and progress to standard error.
"""

_INGEST_DETAIL = """\
The store is made if it is not there. Reading the same file again changes nothing, so an
interrupted run is simply started once more. A turn without id gets one made from its content
and all that stands before it in the file; a turn without session belongs to one named after
the file.

formats:
  jsonl   one turn a line: text (or content), and optionally role, timestamp, session, id,
          metadata; other fields go to the metadata. A line {"messages": [...]} is one
          conversation.
  openai  chat messages: a JSON list, or {"messages": [...]}; content as text or as parts;
          tool calls are kept as text.
  text    "Name: text" lines (with "[2026-01-12 19:04]" before them if you like), or else
          one turn a paragraph."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help of a fixed width, the same on every Python version."""

    def __init__(self, prog: str, **_: Any) -> None:
        super().__init__(prog, max_help_position=30, width=HELP_WIDTH)
        # Help texts begin in one column: what is derived from the longest name instead differs
        # between Python 3.12 and 3.13.
        self._action_max_length = HELP_WIDTH

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = ", ".join(action.option_strings)
        if not names or action.nargs == 0:
            return names or super()._format_action_invocation(action)
        return f"{names} {self._format_args(action, action.dest.upper())}"


Add = Callable[[argparse.ArgumentParser], None]


def parser() -> argparse.ArgumentParser:
    """The parser of ``rsm-fast``. A parsed command has its name in ``command``."""
    top = argparse.ArgumentParser(
        prog="rsm-fast", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=_Formatter
    )
    top.add_argument("--version", action="version", version=f"rsm-fast {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    def command(
        name: str, help_text: str, detail: str, example: str, *parts: Add, parent: Any = commands
    ) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = parent.add_parser(
            name,
            help=help_text,
            description=f"{help_text[0].upper()}{help_text[1:]}.\n\n{detail}".strip(),
            epilog=f"example:\n{_indented(example)}",
            formatter_class=_Formatter,
        )
        for part in parts:
            part(made)
        return made

    command(
        "demo",
        "read the sample conversation and print a pack for a question",
        "Everything stays in RAM: no file is written, beside the cache of compiled kernels.",
        'rsm-fast demo --question "What is Biscuit\'s weight?" --budget 600',
        _option(
            "-q", "--question", metavar="TEXT", help="what to ask (default: where the user lives)"
        ),
        _budget(1000),
        _preset,
        _layout,
        _embedder,
        _json,
    )
    command(
        "ingest",
        "put conversations into a store",
        _INGEST_DETAIL,
        "rsm-fast ingest agent.rsm monday.jsonl tuesday.json -n acme/user-7\n"
        "cat notes.txt | rsm-fast ingest agent.rsm - --session notes",
        _store,
        _argument("files", nargs="+", metavar="FILE", help="file to read; - is standard input"),
        _option("--format", choices=FORMATS, default="auto", help="what the files hold"),
        _option("--session", metavar="NAME", help="session of the turns that name none"),
        _namespace,
        _embedder,
        _group(
            "for a new store",
            _preset,
            _option("--gate", choices=get_args(Gate), help="rule that sends a chunk to an atom"),
            _option("--tau", type=float, metavar="COSINE", help="fix the gate's threshold"),
            _option("--chunk-turns", type=int, metavar="N", help="turns of one chunk"),
        ),
        _json,
    )
    command(
        "pack",
        "print the prompt text for a question",
        "Standard output holds the text and nothing else, so that it can be piped into a prompt.\n"
        "Counts and timings go to standard error.",
        'rsm-fast pack agent.rsm "What did we decide on Thursday?" --budget 2000\n'
        'rsm-fast pack agent.rsm "open bugs" --where role=user --where "step>=10" --explain',
        _store,
        _query,
        _budget(4000),
        _preset,
        _layout,
        _option("--template", metavar="NAME", help="how chunks are written: markdown, xml, plain"),
        _flag("--explain", help="say for each chunk why it is in or out, on standard error"),
        _flag("--no-fold", help="write repeated lines out each time"),
        _where,
        _as_of,
        _namespace,
        _embedder,
        _quiet,
        _json,
    )
    command(
        "search",
        "list the chunks that match a query best",
        "",
        'rsm-fast search agent.rsm "rent" -k 5 --where role=user',
        _store,
        _query,
        _option("-k", type=int, default=10, metavar="N", help="how many (default: 10)"),
        _preset,
        _where,
        _as_of,
        _namespace,
        _embedder,
        _json,
    )
    command(
        "stats",
        "show what a store holds",
        "",
        "rsm-fast stats agent.rsm\nrsm-fast stats agent.rsm -n acme/user-7 --json",
        _store,
        _namespace,
        _json,
    )
    command(
        "namespaces",
        "list the namespaces of a store",
        "",
        "rsm-fast namespaces agent.rsm",
        _store,
        _json,
    )
    command(
        "inspect",
        "write one HTML page that shows what is inside",
        "A map of the atoms, a timeline, sizes, words and newest members of each atom, and for\n"
        "questions what went into the pack, what was left out and why. Without --query the newest\n"
        "questions that stand in the memory are asked. The page loads nothing, sends nothing, and\n"
        "holds stored text in the clear.",
        "rsm-fast inspect agent.rsm -o report.html\n"
        'rsm-fast inspect agent.rsm -o report.html -q "Where does the user live?" --budget 500',
        _store,
        _option("-o", "--output", metavar="FILE", required=True, help="page to write"),
        _option(
            "-q",
            "--query",
            action="append",
            default=[],
            metavar="TEXT",
            help="question to explain the pack of; can be given several times",
        ),
        _budget(1000),
        _preset,
        _layout,
        _namespace,
        _embedder,
        _json,
    )
    _add_care(command)
    _add_moving(command)
    _add_notes(command)
    _add_machine(command)
    return top


def _add_care(command: Any) -> None:
    """Commands that change, move and copy what a store holds."""
    command(
        "delete",
        "delete turns by id",
        "Their text is overwritten in the file by `compact`.",
        "rsm-fast delete agent.rsm s03-07 s03-08",
        _store,
        _argument("ids", nargs="+", metavar="ID", help="id of a turn"),
        _namespace,
        _embedder,
        _json,
    )
    command(
        "forget",
        "delete turns by age, by condition, or at the end of their life",
        "With an age and conditions, a turn must meet all of them.",
        "rsm-fast forget agent.rsm --older-than 90d\n"
        "rsm-fast forget agent.rsm --where session=trial",
        _store,
        _option("--older-than", metavar="AGE", help="age like 90d, 12h, 2w"),
        _option("--before", metavar="TIME", help="keep what is from this time on or newer"),
        _flag("--expired", help="what has outlived its time to live"),
        _where,
        _namespace,
        _embedder,
        _json,
    )
    command(
        "purge",
        "delete a whole namespace",
        "Nothing of it can be brought back after `compact`.",
        "rsm-fast purge agent.rsm -n acme/user-7 --yes",
        _store,
        _required_namespace,
        _flag("--yes", help="do it without asking"),
        _json,
    )
    command(
        "reembed",
        "move a namespace to another embedder",
        "Texts, ids and times stay, vectors and atoms are made anew. The old state serves until\n"
        "that is done; an interrupted run is started once more and goes on where it was.",
        "rsm-fast reembed agent.rsm --embedder ./bge-small-en-v1.5",
        _store,
        _namespace,
        _option(
            "-e", "--embedder", metavar="MODEL", help="the new one (default: the packaged one)"
        ),
        _json,
    )
    command(
        "compact",
        "give free space back and wipe what was deleted",
        "After it, deleted text is nowhere in the store's files.",
        "rsm-fast compact agent.rsm",
        _store,
        _json,
    )


def _add_moving(command: Any) -> None:
    """Commands that copy a store out and in."""
    command(
        "export",
        "write a store as JSON Lines",
        "Everything is in it, ordered and as UTF-8: two exports of equal content are equal byte\n"
        "by byte. Without -n all namespaces are written.",
        "rsm-fast export agent.rsm -o agent.jsonl\n"
        "rsm-fast export agent.rsm -n acme/user-7 --light | gzip > user-7.jsonl.gz",
        _store,
        _option("-o", "--output", metavar="FILE", default="-", help="new file (default: stdout)"),
        _flag("--light", help="without vectors: smaller, and import has to embed"),
        _option("-n", "--namespace", metavar="NAME", help="only this one"),
    )
    command(
        "import",
        "read what `export` wrote",
        "A namespace that is not there yet becomes exactly what it was; into one that is there,\n"
        "the turns with new ids are added. So a second import changes nothing, and what was\n"
        "deleted meanwhile stays deleted.",
        "rsm-fast import new.rsm agent.jsonl\nrsm-fast import new.rsm user-7.jsonl -n user-8",
        _store,
        _argument("file", metavar="FILE", help="file to read; - is standard input"),
        _option("-n", "--namespace", metavar="NAME", help="name it so (default: as it was)"),
        _option("-e", "--embedder", metavar="MODEL", help="embed anew with this model"),
        _json,
    )
    command(
        "backup",
        "copy a store while it is in use",
        "The copy is a store of its own, as the first one was at one instant.",
        "rsm-fast backup agent.rsm agent-copy.rsm",
        _store,
        _argument("target", metavar="TARGET", help="file to write; it must not exist"),
        _json,
    )
    command(
        "salvage",
        "carry what can be read of a broken file into a new store",
        "For a file that `doctor --repair` cannot mend. What could not be read is named on\n"
        "standard error, and the exit code is 3.",
        "rsm-fast salvage broken.rsm saved.rsm",
        _store,
        _argument("target", metavar="TARGET", help="file to write; it must not exist"),
        _json,
    )


def _add_notes(command: Any) -> None:
    """Notes that a language model keeps."""
    notes = command(
        "notes",
        "have a language model describe, link and rewrite what is stored",
        "See docs/notes.md for when that is worth what it costs. The texts never change.",
        "rsm-fast notes complete agent.rsm --dry-run\n"
        "rsm-fast notes complete agent.rsm --base-url http://127.0.0.1:8080/v1 --model qwen3\n"
        'rsm-fast notes pack agent.rsm "What was the plan?" --budget 2000',
    )
    verbs = notes.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)
    where = (_store, _namespace, _embedder, _json)
    k = _option("-k", type=int, default=10, metavar="N", help="notes looked at (default: 10)")
    one = _argument("id", metavar="ID", help="id of a turn")
    no_links = _flag("--no-links", help="leave out what is linked with the nearest notes")
    details = {
        "complete": (
            "make the notes that are missing",
            "Each note is kept at once: a run that was stopped is simply started once more.\n"
            "What the model could not do stays pending. Exit code 3 if anything does.",
            (
                _group(
                    "language model",
                    _option("--base-url", metavar="URL", help="OpenAI-compatible, ends in /v1"),
                    _option("--model", metavar="NAME", help="name of the model there"),
                    _option(
                        "--api-key-variable",
                        metavar="NAME",
                        default="OPENAI_API_KEY",
                        help="variable that holds the key (default: OPENAI_API_KEY)",
                    ),
                    _option("--timeout", type=float, default=120.0, metavar="SECONDS",
                            help="for one answer (default: 120)"),
                    _option("--workers", type=int, default=4, metavar="N",
                            help="questions at a time (default: 4)"),
                    _option("--cache", metavar="FILE", help="keep answers in this file"),
                ),
                _flag("--dry-run", help="only say how many calls and tokens it would take"),
                _option("--limit", type=int, metavar="N", help="at most so many turns"),
                k,
                _flag("--no-evolution", help="link, but rewrite nothing"),
                _flag("--no-links", help="describe only"),
            ),
        ),
        "search": ("list the notes nearest to a query, and what is linked", "",
                   (_query, k, no_links, _where, _as_of)),
        "pack": ("print the prompt text of the notes for a question", "",
                 (_query, _budget(4000), k, no_links,
                  _flag("--bare", help="texts only, without their descriptions"),
                  _layout, _where, _as_of)),
        "show": ("show one note and how it was rewritten", "", (one,)),
        "undo": ("take back the last rewriting of a note", "", (one,)),
        "stats": ("count notes, links and rewritings", "", ()),
    }  # fmt: skip
    for verb, (help_text, detail, parts) in details.items():
        tail = {"search": ' "rent"', "pack": ' "rent"', "show": " 00000007", "undo": " 00000007"}
        example = f"rsm-fast notes {verb} agent.rsm{tail.get(verb, '')}"
        store, *rest = where
        command(verb, help_text, detail, example, store, *parts, *rest, parent=verbs)


def _add_machine(command: Any) -> None:
    """Commands about this machine: kernels, models, health, servers."""
    command(
        "mcp",
        "serve a store to agents over MCP",
        "Tools: remember, recall, search, forget, stats. It speaks over standard input and output\n"
        "or, with --http, at http://127.0.0.1:PORT/mcp. Needs the extra `mcp`. With -n that\n"
        "namespace is served and no other can be read.",
        "rsm-fast mcp --store agent.rsm\nrsm-fast mcp --store agent.rsm -n acme/user-7 --http",
        _option("--store", metavar="STORE", required=True, help="file of the store"),
        _flag("--http", help="streamable HTTP on the loopback address instead"),
        _option("--port", type=_port, default=8765, metavar="N", help="where (default: 8765)"),
        _namespace,
        _embedder,
    )
    command(
        "warmup",
        "compile the kernels and keep them",
        "Worth a line in a Dockerfile: the first call of each process is fast afterwards.",
        "rsm-fast warmup",
        _json,
    )
    command(
        "doctor",
        "check the installation and, if given, a store",
        "Versions, CPU instructions in use, models, the kernel cache; of a store: its structure,\n"
        "the checksum of every row, links and snapshots. Exit code 1 if anything is wrong.",
        "rsm-fast doctor\nrsm-fast doctor agent.rsm --repair",
        _argument("store", nargs="?", metavar="STORE", help="store to check"),
        _flag("--repair", help="rebuild first what follows from the stored texts"),
        _flag("--drop-damaged", help="with --repair: delete turns whose text is damaged"),
        _embedder,
        _json,
    )
    model = command(
        "model",
        "list, fetch and check embedding models",
        "",
        "rsm-fast model list\nrsm-fast model path minilm",
    )
    verbs = model.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)
    name = _argument("name", metavar="NAME", help="a name that `model list` shows, or a folder")
    output = _option("-o", "--output", metavar="FOLDER", help="new folder")
    for verb, help_text, detail, parts in (
        ("list", "list the known models", "", (_json,)),
        (
            "fetch",
            "download a model",
            "Revision and hashes are recorded at the first time and held from then on. Needs the\n"
            "extra `hub`.",
            (name, _json),
        ),
        ("verify", "check the files of a model against their sha256", "", (name, _json)),
        ("path", "print where the files of a model are", "", (name,)),
        (
            "optimize",
            "make the true-int8 version of a model",
            "Faster, and nearly the same vectors; it is the default afterwards. Needs the extra\n"
            "`convert`.",
            (name, output, _json),
        ),
        (
            "distill",
            "make a table of a model for very small machines",
            "Embeds in microseconds, and worse: see docs/embedders.md.",
            (
                name,
                _option("--dim", type=int, default=256, metavar="N", help="length of a vector"),
                output,
                _json,
            ),
        ),
    ):
        example = f"rsm-fast model {verb}" + ("" if verb == "list" else " minilm")
        command(verb, help_text, detail, example, *parts, parent=verbs)


# --- parts that commands share ---------------------------------------------------------------


def _argument(name: str, **options: Any) -> Add:
    return lambda target: _ignore(target.add_argument(name, **options))


def _option(*names: str, **options: Any) -> Add:
    return lambda target: _ignore(target.add_argument(*names, **options))


def _flag(name: str, *, help: str) -> Add:
    return _option(name, action="store_true", help=help)


def _group(title: str, *parts: Add) -> Add:
    def add(target: argparse.ArgumentParser) -> None:
        group: Any = target.add_argument_group(title)
        for part in parts:
            part(group)

    return add


def _ignore(_: object) -> None:
    return None


def _budget(default: int) -> Add:
    return _option(
        "-b",
        "--budget",
        type=int,
        default=default,
        metavar="N",
        help=f"most tokens that the text may have (default: {default})",
    )


def _port(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a number from 1 to 65535, got {text!r}")


def _condition(text: str) -> tuple[str, Any]:
    try:
        return parse_condition(text)
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_store = _argument("store", metavar="STORE", help="file of the store")
_query = _argument("query", metavar="QUERY", help="question or key words")
_json = _flag("--json", help="print one JSON document")
_quiet = _flag("--quiet", help="no counts and timings on standard error")
_namespace = _option("-n", "--namespace", metavar="NAME", help="whose memory (default: default)")
_required_namespace = _option(
    "-n", "--namespace", metavar="NAME", required=True, help="whose memory"
)
_embedder = _option(
    "-e",
    "--embedder",
    metavar="MODEL",
    help="name of a model, or its folder (default: the packaged MiniLM)",
)
_preset = _option("--preset", choices=tuple(PRESETS), help="way of writing and reading")
_layout = _option("--layout", choices=get_args(Layout), help="grouping (default: the preset's)")
_as_of = _option("--as-of", metavar="TIME", help="as it was known then, like 2026-05-01")
_where = _option(
    "-w",
    "--where",
    action="append",
    default=[],
    type=_condition,
    metavar="K=V",
    help="only turns with this role, session, or metadata; also K>=V, K<V; repeat a key for any of",
)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
