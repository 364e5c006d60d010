"""The command that draws what a store holds."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from rsm_fast.cli.opening import open_memory
from rsm_fast.cli.output import json_document, line, remark

__all__ = ["inspect"]

_DONE = 0


def inspect(arguments: Namespace) -> int:
    """Write the page that looks inside a namespace."""
    from rsm_fast.inspect import write_report

    with open_memory(arguments, read_only=True) as memory:
        findings = write_report(
            memory,
            arguments.output,
            queries=arguments.query or None,
            budget=arguments.budget,
            preset=arguments.preset,
            layout=arguments.layout,
        )
    size = Path(arguments.output).stat().st_size
    if arguments.json:
        json_document(
            {
                "page": arguments.output,
                "bytes": size,
                "stats": findings.stats.to_dict(),
                "queries": [pack.query for pack in findings.packs],
            }
        )
        return _DONE
    line(
        f"{arguments.output}: {findings.stats.chunks:,} chunks in {findings.stats.atoms:,} atoms, "
        f"{len(findings.packs):,} questions, {size / 1024:,.0f} KiB; open it in a browser"
    )
    for warning in findings.stats.warnings:
        remark(f"rsm-fast: warning: {warning}")
    if findings.note:
        remark(f"rsm-fast: note: {findings.note}")
    return _DONE
