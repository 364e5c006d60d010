"""Commands that change what a store holds, beside `ingest`."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from rsm_fast.cli.opening import DEFAULT_NAMESPACE, open_memory, require_store
from rsm_fast.cli.output import Progress, json_document, line
from rsm_fast.cli.where import join_conditions
from rsm_fast.errors import InvalidInputError

__all__ = ["compact", "delete", "forget", "purge", "reembed"]

_DONE, _ERROR = 0, 1


def delete(arguments: Namespace) -> int:
    """Delete turns by id."""
    with open_memory(arguments) as memory:
        count = memory.delete(arguments.ids)
    return _report_deleted(arguments, count)


def forget(arguments: Namespace) -> int:
    """Delete turns by age, condition or end of life."""
    with open_memory(arguments) as memory:
        count = memory.forget(
            older_than=arguments.older_than,
            before=arguments.before,
            where=join_conditions(arguments.where),
            expired=arguments.expired,
        )
    return _report_deleted(arguments, count)


def purge(arguments: Namespace) -> int:
    """Delete a namespace, after a question unless told not to ask."""
    with open_memory(arguments) as memory:
        if arguments.namespace not in memory.namespaces():
            raise InvalidInputError(
                f"{arguments.store}: no namespace {arguments.namespace!r}; "
                f"`rsm-fast namespaces {arguments.store}` lists those that there are"
            )
        count = memory.stats().turns
        if not arguments.yes and not _confirmed(arguments.namespace, count):
            line("nothing deleted")
            return _ERROR
        memory.purge()
    return _report_deleted(arguments, count)


def _confirmed(namespace: str, turns: int) -> bool:
    if not sys.stdin.isatty():
        raise InvalidInputError("purge: give --yes where nobody can be asked")
    sys.stderr.write(f"delete all {turns:,} turns of namespace {namespace!r}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _report_deleted(arguments: Namespace, count: int) -> int:
    if arguments.json:
        json_document({"store": arguments.store, "turns_deleted": count})
    else:
        line(f"{arguments.store}: {count:,} turns deleted")
    return _DONE


def reembed(arguments: Namespace) -> int:
    """Move a namespace to another embedder."""
    from rsm_fast import Memory

    require_store(arguments.store)
    key = arguments.namespace or DEFAULT_NAMESPACE
    with Memory.open(arguments.store, namespace=key) as memory, Progress("reembed", 1) as bar:
        memory.reembed(
            arguments.embedder,
            progress=lambda done, total: bar.update(done / max(total, 1), done, "chunks"),
        )
        found = memory.stats()
    model = found.settings.get("embedder_name")
    if arguments.json:
        json_document(
            {"store": arguments.store, "namespace": key, "embedder": model, "chunks": found.chunks}
        )
    else:
        line(f"{arguments.store}: {found.chunks:,} chunks of {key} are embedded with {model}")
    return _DONE


def compact(arguments: Namespace) -> int:
    """Write the file anew."""
    before = Path(arguments.store).stat().st_size if Path(arguments.store).is_file() else 0
    with open_memory(arguments) as memory:
        memory.compact()
    after = Path(arguments.store).stat().st_size
    if arguments.json:
        json_document({"store": arguments.store, "bytes_before": before, "bytes_after": after})
    else:
        line(f"{arguments.store}: {before:,} bytes before, {after:,} after")
    return _DONE
