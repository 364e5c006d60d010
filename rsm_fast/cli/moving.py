"""Commands that copy a store out and in: `export`, `import`, `backup`."""

from __future__ import annotations

import dataclasses
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rsm_fast.cli.opening import require_store
from rsm_fast.cli.output import json_document, line, remark
from rsm_fast.errors import InvalidInputError
from rsm_fast.instants import Instant, parse_instant
from rsm_fast.types import Turn

if TYPE_CHECKING:
    from rsm_fast.store.transfer import Section

__all__ = ["backup", "export", "import_", "salvage"]

_DONE, _PARTIAL = 0, 3


def export(arguments: Namespace) -> int:
    """Write a store, or one namespace of it, as JSON Lines."""
    from rsm_fast.store import Store

    require_store(arguments.store)
    with (
        Store.open(arguments.store, read_only=True) as store,
        _target(arguments.output) as target,
    ):
        for exported in store.export(namespace=arguments.namespace, vectors=not arguments.light):
            target.write(exported)
        target.flush()
    return _DONE


@contextmanager
def _target(output: str) -> Iterator[BinaryIO]:
    if output == "-":
        yield sys.stdout.buffer
        return
    with open(output, "xb") as file:
        yield file


def import_(arguments: Namespace) -> int:
    """Read an export: new namespaces exactly as they were, known ones turn by turn."""
    from rsm_fast.cli.ingesting import check_files
    from rsm_fast.store.transfer import read_sections

    check_files([arguments.file])
    done: list[dict[str, Any]] = []
    with sys.stdin.buffer if arguments.file == "-" else open(arguments.file, "rb") as source:
        for section in read_sections(source):
            if arguments.namespace is not None and done:
                raise InvalidInputError(
                    "import: the file holds several namespaces; leave -n out, or export one"
                )
            done.append(_import_section(arguments, section))
    if arguments.json:
        json_document({"store": arguments.store, "namespaces": done})
    else:
        for one in done:
            line(
                f"{arguments.store}: {one['namespace']}: {one['turns_added']:,} turns added, "
                f"{one['turns_present']:,} there already"
            )
    return _DONE


def _import_section(arguments: Namespace, section: Section) -> dict[str, Any]:
    from rsm_fast import Memory
    from rsm_fast.store import Store

    key = arguments.namespace or section.key
    with Store.open(arguments.store) as store:
        with store.read() as reader:
            known = reader.namespace(key)
        if known is None and section.header.get("vectors") and arguments.embedder is None:
            record = store.restore(section, namespace=key)
            with store.read() as reader:
                return _counted(key, reader.counts(record.id)[0], 0)
        lines = [exported for _, exported in section.turns()]
        if known is not None:
            with store.read() as reader:
                deleted = reader.tombstoned(known.id, [exported["id"] for exported in lines])
            lines = [exported for exported in lines if exported["id"] not in deleted]
    options = {} if known is not None else _write_options(section.header.get("settings", {}))
    with Memory.open(
        arguments.store, namespace=key, embedder=arguments.embedder, **options
    ) as memory:
        before = memory.stats().turns
        memory.add_many([_turn(exported) for exported in lines])
        for exported in lines:
            if "superseded_by" in exported:
                memory.supersede(exported["id"], exported["superseded_by"])
        memory.flush()
        added = memory.stats().turns - before
    return _counted(key, added, len(lines) - added)


def _counted(key: str, added: int, present: int) -> dict[str, Any]:
    return {"namespace": key, "turns_added": added, "turns_present": present}


def _write_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The write path that the exported namespace had."""
    names = ("preset", "gate", "rank", "chunk_turns", "dtype", "percentile")
    options = {name: settings[name] for name in names if name in settings}
    if settings.get("tau_source") == "given":
        options["tau"] = settings["tau"]
    elif "centre" in settings:
        options["centre"] = settings["centre"]
    return options


def _turn(exported: Mapping[str, Any]) -> Turn:
    ttl = None
    if exported.get("expires_at") is not None:
        lived = exported["expires_at"] - parse_instant(exported["timestamp"]).micros
        ttl = max(lived, 0) / 1_000_000
    return Turn(
        exported["text"],
        role=exported["role"],
        timestamp=exported["timestamp"],
        session=exported["session"],
        id=exported["id"],
        metadata=exported["metadata"],
        ttl=ttl,
    )


def backup(arguments: Namespace) -> int:
    """Copy a store while it is in use."""
    from rsm_fast.store import Store

    require_store(arguments.store)
    with Store.open(arguments.store, read_only=True) as store:
        store.backup(arguments.target)
    size = Path(arguments.target).stat().st_size
    if arguments.json:
        json_document({"store": arguments.store, "target": arguments.target, "bytes": size})
    else:
        line(f"{arguments.target}: {size:,} bytes, as of {Instant.now().isoformat()}")
    return _DONE


def salvage(arguments: Namespace) -> int:
    """Carry what can be read of a broken file into a new store."""
    from rsm_fast import Memory
    from rsm_fast.store import Store

    require_store(arguments.store)
    with Store.open(arguments.store, read_only=True) as store:
        lost = store.salvage(arguments.target)
    with Store.open(arguments.target, read_only=True) as store, store.read() as reader:
        kept = {record.key: reader.counts(record.id)[0] for record in reader.namespaces()}
    for key in kept:  # chunks and vectors that were lost follow from the texts
        with Memory.open(arguments.target, namespace=key) as memory:
            memory.repair()
    if arguments.json:
        json_document(
            {
                "target": arguments.target,
                "turns_kept": kept,
                "lost": [dataclasses.asdict(finding) for finding in lost],
            }
        )
    else:
        for finding in lost:
            remark(f"lost: {finding.table} {finding.key}: {finding.message}")
        for key, turns in kept.items():
            line(f"{arguments.target}: {key}: {turns:,} turns")
    return _PARTIAL if lost else _DONE
