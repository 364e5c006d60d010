"""``rsm-fast notes``: complete, search, pack, show, undo, stats."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rsm_fast.cli.opening import open_memory
from rsm_fast.cli.output import Progress, json_document, line, one_line, remark, table
from rsm_fast.cli.where import join_conditions
from rsm_fast.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from rsm_fast.llm import ChatEndpoint
    from rsm_fast.notes import CompletionReport, Note, NoteMemory

__all__ = ["notes"]

_DONE, _PARTIAL = 0, 3
_SHOWN_PROBLEMS = 20


def notes(arguments: Namespace) -> int:
    """Run one of the verbs."""
    return _VERBS[arguments.verb](arguments)


def _complete(arguments: Namespace) -> int:
    from rsm_fast.notes import NoteMemory

    with ExitStack() as open_until_done:
        model = None
        if not arguments.dry_run:
            model = _endpoint(arguments)
            open_until_done.callback(model.close)
        memory = open_until_done.enter_context(open_memory(arguments))
        kept = NoteMemory(
            memory,
            model,
            k=arguments.k,
            links=not arguments.no_links,
            evolution=not arguments.no_evolution,
        )
        if arguments.dry_run:
            return _estimate(arguments, kept)
        waiting = len(kept.pending()) if arguments.limit is None else arguments.limit
        with Progress("notes", waiting) as progress:
            report = kept.complete(
                limit=arguments.limit,
                workers=arguments.workers,
                progress=lambda count: progress.update(count, count, "turns"),
            )
        left = kept.stats().pending
    _report(arguments, report, left)
    return _PARTIAL if report.problems else _DONE


def _endpoint(arguments: Namespace) -> ChatEndpoint:
    from rsm_fast.llm import AnswerCache, ChatEndpoint

    if not arguments.base_url or not arguments.model:
        raise InvalidInputError(
            "notes complete: give --base-url and --model of an OpenAI-compatible endpoint, or "
            "--dry-run to see what it would cost"
        )
    return ChatEndpoint(
        arguments.base_url,
        arguments.model,
        api_key=os.environ.get(arguments.api_key_variable) or None,
        timeout=arguments.timeout,
        concurrency=arguments.workers,
        cache=AnswerCache(arguments.cache) if arguments.cache else None,
    )


def _estimate(arguments: Namespace, kept: NoteMemory) -> int:
    estimate = kept.estimate(limit=arguments.limit)
    if arguments.json:
        json_document(estimate.to_dict())
        return _DONE
    line(
        f"{estimate.notes:,} turns without a finished note: about {estimate.calls:,} calls, "
        f"{estimate.prompt_tokens:,} tokens of prompts, {estimate.completion_tokens:,} of answers "
        f"(counted by {estimate.counter}; nothing was asked)"
    )
    return _DONE


def _report(arguments: Namespace, report: CompletionReport, left: int) -> None:
    if arguments.json:
        json_document({**report.to_dict(), "pending": left})
        return
    usage = report.usage
    line(
        f"{report.finished:,} of {report.asked:,} notes finished, {report.links:,} links, "
        f"{report.evolutions:,} rewritings; {usage.calls:,} calls, {usage.cached:,} from the "
        f"cache, {usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens"
    )
    for id_, problem in list(report.problems.items())[:_SHOWN_PROBLEMS]:
        remark(f"{id_}: {one_line(problem, 200)}")
    if len(report.problems) > _SHOWN_PROBLEMS:
        remark(f"... and {len(report.problems) - _SHOWN_PROBLEMS:,} more")
    if report.stopped:
        remark(f"stopped: {report.stopped}")
    if left:
        remark(f"{left:,} notes are pending; run the command once more to go on")


def _search(arguments: Namespace) -> int:
    with _opened(arguments) as kept:
        hits = kept.search(
            arguments.query,
            links=not arguments.no_links,
            where=join_conditions(arguments.where),
            as_of=arguments.as_of,
        )
    if arguments.json:
        json_document([hit.to_dict() for hit in hits])
        return _DONE
    rows: list[tuple[object, ...]] = [("score", "id", "via", "context")]
    rows += [
        (hit.score, hit.note.id, hit.via or "", one_line(hit.note.context or hit.note.text, 60))
        for hit in hits
    ]
    line(table(rows) if hits else "nothing found")
    return _DONE


def _pack(arguments: Namespace) -> int:
    options = {} if arguments.layout is None else {"layout": arguments.layout}
    with _opened(arguments) as kept:
        pack = kept.pack(
            arguments.query,
            budget=arguments.budget,
            links=not arguments.no_links,
            details=not arguments.bare,
            where=join_conditions(arguments.where),
            as_of=arguments.as_of,
            **options,
        )
    if arguments.json:
        json_document(pack.to_dict())
        return _DONE
    line(pack.text)
    remark(f"{pack.tokens:,} of {pack.budget:,} tokens ({pack.stats.counter})")
    return _DONE


def _show(arguments: Namespace) -> int:
    with _opened(arguments) as kept:
        note = kept.get(arguments.id)
        history = kept.history(arguments.id)
    if note is None:
        raise NotFoundError(f"{arguments.store}: no turn {arguments.id!r}")
    if arguments.json:
        steps = [step.to_dict() for step in history]
        json_document({"note": note.to_dict(), "history": steps})
        return _DONE
    for text in _note_lines(note):
        line(text)
    for step in history:
        undone = ", undone" if step.undone else ""
        line(f"rewritten by {step.cause} at {step.timestamp}{undone}; before:")
        line(f"  {step.before['context']}")
    return _DONE


def _note_lines(note: Note) -> list[str]:
    state = f"pending: {note.problem or 'not described yet'}" if note.pending else "finished"
    return [
        f"{note.id} {note.timestamp} {note.role}: {note.text}",
        f"context: {note.context}",
        f"keywords: {', '.join(note.keywords)}",
        f"tags: {', '.join(note.tags)}",
        f"links: {', '.join(note.links)}",
        state,
    ]


def _undo(arguments: Namespace) -> int:
    with _opened(arguments, read_only=False) as kept:
        step = kept.undo(arguments.id)
    if arguments.json:
        json_document(step.to_dict())
    else:
        line(f"{step.id}: as before {step.cause}: {step.before['context']}")
    return _DONE


def _stats(arguments: Namespace) -> int:
    with _opened(arguments) as kept:
        stats = kept.stats()
    if arguments.json:
        json_document(stats.to_dict())
        return _DONE
    line(
        f"{stats.notes:,} notes, {stats.pending:,} turns pending, {stats.links:,} links, "
        f"{stats.evolutions:,} rewritings"
    )
    return _DONE


def _opened(arguments: Namespace, *, read_only: bool = True) -> NoteMemory:
    from rsm_fast.notes import NoteMemory

    memory = open_memory(arguments, read_only=read_only)
    return NoteMemory(memory, k=max(getattr(arguments, "k", 10), 1))


_VERBS: dict[str, Callable[[Namespace], int]] = {
    "complete": _complete,
    "search": _search,
    "pack": _pack,
    "show": _show,
    "undo": _undo,
    "stats": _stats,
}
