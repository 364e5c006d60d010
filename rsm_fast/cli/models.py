"""``rsm-fast model``: list, fetch, verify, path, optimize, distill."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Callable

from rsm_fast.cli.output import json_document, line, remark, table

__all__ = ["model"]

_DONE, _ERROR = 0, 1


def model(arguments: Namespace) -> int:
    """Run one of the verbs."""
    return _VERBS[arguments.verb](arguments)


def _list(arguments: Namespace) -> int:
    from rsm_fast.embedding.commands import list_models

    states = list_models()
    if arguments.json:
        json_document([dataclasses.asdict(state) for state in states])
        return _DONE
    rows: list[tuple[object, ...]] = [("", "name", "dim", "pooling", "licence", "where or how")]
    rows += [
        (
            "*" if state.default else "",
            state.name,
            str(state.dim),
            state.pooling,
            state.licence,
            state.path if state.present else f"not here; {state.source}",
        )
        for state in states
    ]
    line(table(rows))
    line("* is taken where no embedder is named")
    return _DONE


def _fetch(arguments: Namespace) -> int:
    from rsm_fast.embedding.commands import fetch

    pin = fetch(arguments.name, progress=remark)
    if arguments.json:
        json_document(
            {
                "name": pin.name,
                "repository": pin.repository,
                "revision": pin.revision,
                "folder": pin.folder,
                "sha256": dict(pin.sha256),
            }
        )
    else:
        line(pin.folder)
    return _DONE


def _verify(arguments: Namespace) -> int:
    from rsm_fast.embedding.commands import verify

    checks = verify(arguments.name)
    if arguments.json:
        json_document([dataclasses.asdict(check) for check in checks])
    else:
        for check in checks:
            verdict = "ok" if check.ok and check.expected else "unknown" if check.ok else "WRONG"
            line(f"{verdict:7}  {check.sha256 or 'missing':64}  {check.path}")
            if not check.ok:
                line(f"{'':7}  {check.expected:64}  is what was expected")
    return _DONE if all(check.ok for check in checks) else _ERROR


def _path(arguments: Namespace) -> int:
    from rsm_fast.embedding.commands import model_path

    line(str(model_path(arguments.name)))
    return _DONE


def _optimize(arguments: Namespace) -> int:
    from rsm_fast.embedding.commands import optimize

    made = optimize(arguments.name, output=arguments.output, progress=remark)
    if arguments.json:
        json_document({**dataclasses.asdict(made), "folder": str(made.folder)})
    else:
        line(
            f"{made.name}: {made.bytes:,} bytes in {made.folder}; cosine with the original "
            f"{made.cosine_mean:.4f} on average, {made.cosine_min:.4f} at worst "
            f"({made.seconds:.0f} s)"
        )
    return _DONE


def _distill(arguments: Namespace) -> int:
    from rsm_fast.embedding.commands import distill

    made = distill(arguments.name, dim=arguments.dim, output=arguments.output, progress=remark)
    if arguments.json:
        json_document({**dataclasses.asdict(made), "folder": str(made.folder)})
    else:
        line(
            f"{made.name}: {made.entries:,} entries of {made.dim} dimensions, {made.bytes:,} bytes "
            f"in {made.folder}; keeps {made.explained:.0%} of the variance ({made.seconds:.0f} s)"
        )
    return _DONE


_VERBS: dict[str, Callable[[Namespace], int]] = {
    "list": _list,
    "fetch": _fetch,
    "verify": _verify,
    "path": _path,
    "optimize": _optimize,
    "distill": _distill,
}
