"""What each command does with a memory; heavy modules are imported by those that need them."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rsm_fast.cli import care, machine, models, moving, noting, picture
from rsm_fast.cli.opening import open_memory
from rsm_fast.cli.output import duration, json_document, line, one_line, remark, table
from rsm_fast.cli.where import join_conditions

if TYPE_CHECKING:
    from rsm_fast import Pack

__all__ = ["COMMANDS"]

_DONE, _PARTIAL = 0, 3
_SHOWN_MALFORMED = 20
_WARM_TURNS = 60  # enough for tau to be calibrated
_DEMO_QUESTION = "Where does the user live now, and what does the flat cost?"


# --- demo, ingest ----------------------------------------------------------------------------


def demo(arguments: Namespace) -> int:
    """Read the sample conversation and show a pack."""
    from rsm_fast import Memory, sample

    question = arguments.question or _DEMO_QUESTION
    turns = sample.turns()
    options = {"embedder": arguments.embedder, "preset": arguments.preset or "hybrid"}
    begin = time.perf_counter()
    with Memory(**options) as memory:  # compiles kernels and loads the model, on texts of no use
        memory.add_many([turn.text[::-1] for turn in turns[:_WARM_TURNS]])
        memory.pack(question[::-1], budget=arguments.budget)
    cold_seconds = time.perf_counter() - begin
    with Memory(**options) as memory:
        begin = time.perf_counter()
        memory.add_many(turns)
        ingest_seconds = time.perf_counter() - begin
        pack = memory.pack(question, budget=arguments.budget, layout=arguments.layout)
        stats = memory.stats()
    if arguments.json:
        json_document(
            {
                "turns": stats.turns,
                "ingest_seconds": ingest_seconds,
                "cold_start_seconds": cold_seconds,
                "stats": stats.to_dict(),
                "pack": pack.to_dict(),
            }
        )
        return _DONE
    sessions = len({turn.session for turn in turns})
    line(
        f"cold start {cold_seconds:.1f} s: kernels compiled or read from their cache, model loaded"
    )
    line(
        f"{stats.turns} turns of {sessions} sessions stored in {ingest_seconds:.1f} s "
        f"as {stats.chunks} chunks in {stats.atoms} atoms"
    )
    line(f"question: {question}")
    line()
    line(pack.text)
    line()
    line(_pack_summary(pack))
    return _DONE


def ingest(arguments: Namespace) -> int:
    """Store conversation files."""
    from rsm_fast.cli.ingesting import check_files, ingest_files

    check_files(arguments.files)
    begin = time.perf_counter()
    with open_memory(
        arguments,
        create=True,
        preset=arguments.preset,
        gate=arguments.gate,
        tau=arguments.tau,
        chunk_turns=arguments.chunk_turns,
    ) as memory:
        before = memory.stats().turns
        report = ingest_files(
            memory, arguments.files, format=arguments.format, session=arguments.session
        )
        memory.flush()
        stats = memory.stats()
    added = stats.turns - before
    seconds = time.perf_counter() - begin
    for bad in report.malformed[:_SHOWN_MALFORMED]:
        remark(str(bad))
    if len(report.malformed) > _SHOWN_MALFORMED:
        remark(f"... and {len(report.malformed) - _SHOWN_MALFORMED:,} more")
    if arguments.json:
        json_document(
            {
                "store": arguments.store,
                "namespace": stats.namespace,
                "turns_added": added,
                "turns_present": report.read - added,
                "records_left_out": len(report.malformed),
                "malformed": [
                    {"file": bad.file, "line": bad.line, "field": bad.field, "reason": bad.reason}
                    for bad in report.malformed
                ],
                "seconds": seconds,
            }
        )
    else:
        line(
            f"{arguments.store}: {added:,} turns added, {report.read - added:,} there already, "
            f"{len(report.malformed):,} records left out ({seconds:.1f} s)"
        )
        for warning in stats.warnings:
            remark(f"rsm-fast: warning: {warning}")
    return _PARTIAL if report.malformed else _DONE


# --- pack, search, stats ---------------------------------------------------------------------


def pack(arguments: Namespace) -> int:
    """Print the prompt text for a question."""
    options: dict[str, Any] = {"template": arguments.template, "preset": arguments.preset}
    with open_memory(arguments) as memory:
        made = memory.pack(
            arguments.query,
            budget=arguments.budget,
            layout=arguments.layout,
            fold=False if arguments.no_fold else None,
            where=join_conditions(arguments.where),
            as_of=arguments.as_of,
            explain=arguments.explain,
            **{key: value for key, value in options.items() if value is not None},
        )
    if arguments.json:
        json_document(made.to_dict())
        return _DONE
    if made.text:
        line(made.text)
        sys.stdout.flush()  # the text before the remarks, also where both go to one terminal
    if arguments.explain:
        remark("\n" + _explanation(made))
    if not arguments.quiet:
        remark(_pack_summary(made))
    return _DONE


def _pack_summary(made: Pack) -> str:
    stats = made.stats
    return (
        f"{made.tokens:,} of {made.budget:,} tokens ({stats.counter}); "
        f"{stats.admitted:,} of {stats.eligible:,} chunks; "
        f"{duration(stats.total_us)}, of which embedding the question {duration(stats.embed_us)}, "
        f"scoring {duration(stats.score_us)}, packing {duration(stats.pack_us)}"
    )


def _explanation(made: Pack) -> str:
    rows: list[tuple[Any, ...]] = [("", "chunk", "tokens", "score", "why")]
    rows += [("in", c.id, c.tokens, c.score, c.reason) for c in made.chunks]
    rows += [("out", c.id, c.tokens, c.score, c.reason) for c in made.omitted]
    return table(rows)


def search(arguments: Namespace) -> int:
    """List the chunks that match best."""
    with open_memory(arguments) as memory:
        hits = memory.search(
            arguments.query,
            k=arguments.k,
            where=join_conditions(arguments.where),
            as_of=arguments.as_of,
            **({"preset": arguments.preset} if arguments.preset else {}),
        )
    if arguments.json:
        json_document([hit.to_dict() for hit in hits])
        return _DONE
    for rank, hit in enumerate(hits, 1):
        line(f"{rank:>3}  {hit.score:7.3f}  {hit.timestamp}  {hit.role}  {hit.id}")
        line(f"     {one_line(hit.text)}")
    return _DONE


def stats(arguments: Namespace) -> int:
    """Describe one namespace."""
    with open_memory(arguments) as memory:
        found = memory.stats()
    if arguments.json:
        json_document(found.to_dict())
        return _DONE
    values = found.to_dict()
    settings = values.pop("settings")
    warnings = values.pop("warnings")
    line(table((key, _shown(value)) for key, value in values.items()))
    line("settings")
    line(table(((key, _shown(value)) for key, value in settings.items()), indent=2))
    for warning in warnings:
        line(f"warning: {warning}")
    return _DONE


def namespaces(arguments: Namespace) -> int:
    """List the namespaces of a store."""
    with open_memory(arguments) as memory:
        keys = memory.namespaces()
    if arguments.json:
        json_document(keys)
        return _DONE
    for key in keys:
        line(key)
    return _DONE


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


COMMANDS: dict[str, Callable[[Namespace], int]] = {
    "demo": demo,
    "ingest": ingest,
    "pack": pack,
    "search": search,
    "stats": stats,
    "namespaces": namespaces,
    "inspect": picture.inspect,
    "delete": care.delete,
    "forget": care.forget,
    "purge": care.purge,
    "compact": care.compact,
    "reembed": care.reembed,
    "export": moving.export,
    "import": moving.import_,
    "backup": moving.backup,
    "salvage": moving.salvage,
    "notes": noting.notes,
    "mcp": machine.serve_mcp,
    "model": models.model,
    "warmup": machine.warmup,
    "doctor": machine.doctor,
}
