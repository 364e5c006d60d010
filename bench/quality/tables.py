"""Tables of a run in markdown, and their place in the documents."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bench.notes.peer import NOTES
from bench.quality.results import Results, Row, fair, on
from bench.quality.suite import ABLATIONS, PAPER, PEERS, SEEDED

__all__ = ["TABLES", "fill_document", "render_all"]

_REFERENCE = "hybrid"
_BASE, _DP = "member/atoms", "centroid/cosine"
_NOT_BELOW = ("bm25-rag-n1", "bm25-rag-n5", "rrf-n1")


def render_all(results: Results) -> dict[str, str]:
    """Every table by name."""
    return {name: make(results) for name, make in TABLES.items()}


def fill_document(path: Path, tables: dict[str, str]) -> list[str]:
    """Write tables between ``<!-- table: NAME -->`` and ``<!-- end -->``.

    Returns
    -------
    list of str
        Names of the tables that the document has a place for.
    """
    text = path.read_text("utf-8")
    placed = []

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name not in tables:
            return match[0]
        placed.append(name)
        return f"<!-- table: {name} -->\n\n{tables[name]}\n\n<!-- end -->"

    text = re.sub(r"<!-- table: ([\w-]+) -->.*?<!-- end -->", put, text, flags=re.DOTALL)
    path.write_text(text, "utf-8")
    return placed


def _main(results: Results) -> str:
    judged = "/".join(f"{budget / 1000:g}k" for budget in results.budgets)
    head = [
        "system",
        "J",
        "A official",
        "A spread",
        f"RealMem sess ({judged})",
        "RealMem cov",
        "RealMem src",
        "LoCoMo evidence",
    ]
    rows = []
    for system in _present(results, PEERS):
        rows.append(
            [
                _strong(system),
                *[_number(results.headline(system, name)) for name in HEADLINE_COLUMNS],
                *[
                    _by_budget(results, system, measure, on(dataset))
                    for dataset, measure in (
                        ("realmem", "sess"),
                        ("realmem", "cov"),
                        ("realmem", "src"),
                        ("locomo", "evidence"),
                    )
                ],
            ]
        )
    return _table(head, rows)


HEADLINE_COLUMNS = ("J", "A official", "A spread")


def _gains(results: Results) -> str:
    head = [f"{_REFERENCE} minus", *[f"{name} [95 %], p" for name in HEADLINE_COLUMNS]]
    rows = []
    for peer in _present(results, PEERS):
        if peer == _REFERENCE:
            continue
        cells = [peer]
        for name in HEADLINE_COLUMNS:
            difference = results.difference(_REFERENCE, peer, name)
            cells.append("" if difference is None else f"{difference}, {_p(difference.p)}")
        rows.append(cells)
    return _table(head, rows)


def _not_below(results: Results) -> str:
    """The default against the strongest simple peers, data set by data set."""
    head = ["peer", "data set", *[f"{budget / 1000:g}k" for budget in results.budgets]]
    rows = []
    for peer in _present(results, _NOT_BELOW):
        for name in ("realmem", "locomo", "A official", "A spread"):
            cells = [peer, name]
            for budget in results.budgets:
                difference = results.difference(_REFERENCE, peer, name, [budget])
                cells.append("" if difference is None else str(difference))
            rows.append(cells)
    return _table(head, rows)


def _locomo(results: Results) -> str:
    budget = _middle(results)
    kinds = ("multi-hop", "time", "open-domain", "single-hop")
    head = [f"system, {budget} tokens", *kinds, "answer terms"]
    rows = []
    for system in _present(results, PEERS):
        cells = [system]
        for kind in kinds:
            keep = _both(on("locomo"), _category(kind))
            cells.append(_number(results.mean(system, "evidence", budget, keep)))
        cells.append(_number(results.mean(system, "answer", budget, on("locomo"))))
        rows.append(cells)
    return _table(head, rows)


def _ama_types(results: Results) -> str:
    budget = _middle(results)
    head = [
        f"system, {budget} tokens",
        "A recall",
        "B causes",
        "C state",
        "D summary",
        "8K",
        "16K",
        "32K",
        "64K",
        "with wrong labels",
        "aggregate",
    ]
    rows = []
    for system in _present(results, PEERS):
        cells = [system]
        for kind in "ABCD":
            keep = _both(_any_fair, _category(kind))
            cells.append(_number(results.mean(system, "evidence", budget, keep)))
        for size in ("8K", "16K", "32K", "64K"):
            keep = _both(_any_fair, _size(size))
            cells.append(_number(results.mean(system, "evidence", budget, keep)))
        unfair = _both(on("ama"), lambda row: "aggregate" not in row.tags)
        cells.append(_number(results.mean(system, "evidence", budget, unfair)))
        whole = _both(on("ama"), lambda row: {"aggregate", "label_ok"} <= row.tags)
        cells.append(_number(results.mean(system, "evidence", budget, whole)))
        rows.append(cells)
    return _table(head, rows)


def _ranking(results: Results) -> str:
    names = [f"{kind}@{k}" for kind in ("recall_any", "recall_all", "ndcg") for k in (5, 10, 20)]
    rows = []
    for system in _present(results, PEERS):
        ranked = results.rankings[system]
        if ranked:
            rows.append(
                [system]
                + [_number(100 * sum(row[name] for row in ranked) / len(ranked)) for name in names]
            )
    return _table(["system", *names], rows)


def _costs(results: Results) -> str:
    budget = _middle(results)
    head = [
        "system",
        f"tokens used of {budget}",
        "saved by folding",
        "groups",
        "largest group",
        "write us",
        "read us",
        "bytes a chunk",
    ]
    rows = []
    for system in _present(results, PEERS):
        used = results.mean(system, "tokens", budget, _everything) / 100
        folded = results.mean(system, "folded", budget, _everything) / 100
        size = results.average(system, "bytes") / max(results.average(system, "chunks"), 1)
        rows.append(
            [
                system,
                _number(used, 0),
                f"{100 * folded / (used + folded):.0f} %" if used + folded else "",
                _number(results.average(system, "groups"), 0),
                f"{100 * results.average(system, 'largest_share'):.0f} %",
                _number(results.average(system, "write_us"), 0),
                _number(results.average(system, "read_us"), 0),
                _number(size, 0) if size else "",
            ]
        )
    return _table(head, rows)


def _notes(results: Results) -> str:
    """A-MEM and its ablations, beside what needs no model; figures are a note's, written once."""
    kept = _present(results, NOTES)
    if not kept:
        return "No system that keeps notes was run."
    judged = "/".join(f"{budget / 1000:g}k" for budget in results.budgets)
    head = ["system", f"LoCoMo evidence ({judged})", "links", "rewritings", "calls", "tokens"]
    rows = []
    for system in [*_present(results, ("budget-rag-n1", _REFERENCE)), *kept]:
        cells = [_strong(system), _by_budget(results, system, "evidence", on("locomo"))]
        if system in NOTES:
            notes = max(results.average(system, "chunks"), 1)
            asked, told = (
                _number(results.average(system, f"{part}_tokens_per_operation"), 0)
                for part in ("prompt", "answer")
            )
            cells += [
                _number(results.average(system, "links") / notes),
                _number(results.average(system, "evolutions") / notes),
                _number(results.average(system, "calls_per_operation")),
                f"{asked} + {told}",
            ]
        rows.append([*cells, *[""] * (len(head) - len(cells))])
    return _table(head, rows)


def _ablations(results: Results) -> str:
    head = [
        "variant",
        *HEADLINE_COLUMNS,
        *[f"{name}, against the default" for name in HEADLINE_COLUMNS],
    ]
    rows = [[_strong(_REFERENCE), *_headlines(results, _REFERENCE), "", "", ""]]
    for system in _present(results, ABLATIONS):
        cells = [system.split("/", 1)[1], *_headlines(results, system)]
        for name in HEADLINE_COLUMNS:
            difference = results.difference(system, _REFERENCE, name)
            cells.append("" if difference is None else str(difference))
        rows.append(cells)
    return _table(head, rows)


def _paper(results: Results) -> str:
    base = _BASE
    head = ["RSM-full, n5, P70", *HEADLINE_COLUMNS, "J against member/atoms [95 %], p"]
    rows = []
    for system in _present(results, PAPER):
        difference = results.difference(system, base, "J") if system != base else None
        said = "" if difference is None else f"{difference}, {_p(difference.p)}"
        rows.append([system, *_headlines(results, system), said])
    return _table(head, rows)


def _seeds(results: Results) -> str:
    """Mean and range over seeds, and the share of the largest group."""
    names = dict.fromkeys(name.split("/")[0] for name in _present(results, SEEDED))
    columns: list[tuple[str, str, list[int] | None]] = [
        *[(f"J at {budget / 1000:g}k", "J", [budget]) for budget in results.judged],
        *[(name, name, None) for name in HEADLINE_COLUMNS[1:]],
    ]
    head = [
        "system",
        "seeds",
        *[f"{title} (least to most)" for title, _, _ in columns],
        "groups",
        "largest group",
    ]
    rows = []
    for name in names:
        runs = [system for system in results.rows if system.startswith(f"{name}/seed")]
        cells = [name, str(len(runs))]
        for _, headline, budgets in columns:
            values = [results.headline(run, headline, budgets) for run in runs]
            mean = sum(values) / len(values)
            cells.append(f"{mean:.1f} ({min(values):.1f} to {max(values):.1f})")
        cells.append(_number(_average(results, runs, "groups"), 0))
        cells.append(f"{100 * _average(results, runs, 'largest_share'):.0f} %")
        rows.append(cells)
    return _table(head, rows)


def _embedders(results: Results) -> str:
    """The same systems with other embedders, where those were run."""
    head = ["system", "embedder", *HEADLINE_COLUMNS, f"J of {_REFERENCE} minus it [95 %], p"]
    rows = []
    for name in PEERS:
        others = sorted(label for label in results.rows if label.startswith(f"{name}@"))
        for label in [name, *others] if others else []:
            if not results.rows.get(label):
                continue
            embedder = label.partition("@")[2]
            ours = f"{_REFERENCE}@{embedder}" if embedder else _REFERENCE
            difference = results.difference(ours, label, "J") if label != ours else None
            said = "" if difference is None else f"{difference}, {_p(difference.p)}"
            rows.append([name, embedder or "packaged", *_headlines(results, label), said])
    return _table(head, rows)


def _replicates(results: Results) -> str:
    """What the paper says beside what the run shows; a claim without its systems is left out."""
    budget = _middle(results)

    def minus(system: str, peer: str) -> str:
        found = results.difference(system, peer, "J")
        return "" if found is None else f"J {found}, {_p(found.p)}"

    def share(system: str) -> str:
        return f"{100 * results.average(system, 'largest_share'):.0f} %"

    def used(system: str) -> str:
        return _number(results.mean(system, "tokens", budget, _everything) / 100, 0)

    claims: list[tuple[str, tuple[str, ...], Callable[[], str]]] = [
        (
            "the centroid or the first singular vector as an atom's key: no reliable difference",
            ("route/singular-vector", "member/atoms"),
            lambda: f"singular vector minus centroid: {minus('route/singular-vector', _BASE)}",
        ),
        (
            "grouping members under atom headers helps the reader (+5.02 judged)",
            ("member/atoms", "member/cosine"),
            lambda: (
                "cannot be seen without a judge; evidence under headers minus the same "
                f"members without: {minus(_BASE, 'member/cosine')}"
            ),
        ),
        (
            "merging by any member, and not by the mean alone (DP-means at matched tau)",
            ("member/cosine", "centroid/cosine"),
            lambda: (
                "any member minus mean: with headers "
                f"{minus(_BASE, 'centroid/atoms')}; by cosine {minus('member/cosine', _DP)}"
            ),
        ),
        (
            "tau from the 70th percentile of the pairwise cosines of 50 chunks",
            ("rsm-a-p70-n5", "rsm-b-p95-n5"),
            lambda: (
                f"chains chunks together: the largest atom holds {share('rsm-a-p70-n5')} of "
                f"them on average; centred at the 95th percentile with the default's gate "
                f"{share('rsm-b-p95-n5')}"
            ),
        ),
        (
            f"RSM-full is a good packer at {budget:,} tokens",
            ("rsm-paper", "budget-rag-n5", "budget-rag-n1"),
            lambda: (
                "not at the level of evidence: minus Budget-RAG on the same chunks "
                f"{minus('rsm-paper', 'budget-rag-n5')}, on single turns "
                f"{minus('rsm-paper', 'budget-rag-n1')}; it uses {used('rsm-paper')} of {budget:,} "
                f"tokens, since K = 6 and k = 8 end before the budget does"
            ),
        ),
        (
            "int8 vectors do as well as float32",
            ("int8", "member/atoms"),
            lambda: f"int8 minus float32: {minus('int8', _BASE)}",
        ),
    ]
    rows = [
        [claim, said()]
        for claim, systems, said in claims
        if len(_present(results, systems)) == len(systems)
    ]
    return _table(["the paper", "here"], rows)


def _short(results: Results) -> str:
    """A few systems for readers who want one figure each."""
    names = {
        "recent-n1": "recent turns only",
        "rsm-paper": "RSM-full as published",
        "rsm-a-p70-n5": "RSM-full, leftover budget filled by cosine",
        "budget-rag-n5": "plain dense retrieval, five turns a chunk",
        "budget-rag-n1": "plain dense retrieval, one turn a chunk",
        "bm25-rag-n1": "BM25, one turn a chunk",
        "rrf-n1": "dense and BM25 by reciprocal rank",
        "hybrid": "**hybrid**",
    }
    rows = [
        [names[system], *_headlines(results, system)] for system in _present(results, tuple(names))
    ]
    return _table(["configuration", *HEADLINE_COLUMNS], rows)


def _made_with(results: Results) -> str:
    made = results.made_with
    return (
        f"rsm_fast {made['rsm_fast']} (source {made['source']}), Python {made['python']}, "
        f"NumPy {made['numpy']}, Numba {made['numba']}, embedder: {made['embedder']}; "
        f"budgets {', '.join(map(str, made['budgets']))}."
    )


TABLES: dict[str, Callable[[Results], str]] = {
    "made-with": _made_with,
    "main": _main,
    "gains": _gains,
    "not-below": _not_below,
    "locomo": _locomo,
    "ama-types": _ama_types,
    "ranking": _ranking,
    "costs": _costs,
    "notes": _notes,
    "ablations": _ablations,
    "paper": _paper,
    "seeds": _seeds,
    "embedders": _embedders,
    "replicates": _replicates,
    "short": _short,
}


def _present(results: Results, names: Iterable[str]) -> list[str]:
    """Those of the systems that were run on everything."""
    return [name for name in names if results.rows.get(name) and results.is_complete(name)]


def _headlines(results: Results, system: str) -> list[str]:
    return [_number(results.headline(system, name)) for name in HEADLINE_COLUMNS]


def _by_budget(results: Results, system: str, measure: str, keep: Callable[[Row], bool]) -> str:
    values = [results.mean(system, measure, budget, keep) for budget in results.budgets]
    return "" if all(map(math.isnan, values)) else "/".join(f"{value:.1f}" for value in values)


def _middle(results: Results) -> int:
    return 4000 if 4000 in results.budgets else results.budgets[-1]


def _average(results: Results, systems: Sequence[str], key: str) -> float:
    return sum(results.average(system, key) for system in systems) / len(systems)


def _both(first: Callable[[Row], bool], second: Callable[[Row], bool]) -> Callable[[Row], bool]:
    return lambda row: first(row) and second(row)


def _category(start: str) -> Callable[[Row], bool]:
    return lambda row: row.category.startswith(start)


def _size(name: str) -> Callable[[Row], bool]:
    return lambda row: row.group.endswith(f"/{name}")


def _any_fair(row: Row) -> bool:
    return fair("official")(row) or fair("spread")(row)


def _everything(row: Row) -> bool:
    return True


def _strong(system: str) -> str:
    return f"**{system}**" if system == _REFERENCE else system


def _number(value: float, digits: int = 1) -> str:
    return "" if math.isnan(value) else f"{value:,.{digits}f}"


def _p(value: float) -> str:
    return f"p {value:.3f}" if value >= 0.001 else "p < 0.001"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])
