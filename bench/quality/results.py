"""Finished runs as tables of numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.quality.run import read_results
from bench.quality.stats import Difference, compare

__all__ = ["HEADLINES", "Results", "Row"]

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Row:
    """One question at one budget."""

    dataset: str
    stream: str
    group: str
    question: str
    category: str
    tags: frozenset[str]
    budget: int
    measures: dict[str, float]


Filter = Callable[[Row], bool]

HEADLINES = ("J", "A official", "A spread")
"""J = mean over the budgets above 1k of 0.5 (sess + cov) / 2 on RealMem + 0.5 evidence on LoCoMo.
A = mean over both AMA domains and the same budgets of evidence, wrong labels and aggregate
questions left out."""


@dataclass
class Results:
    """All rows of a run's folder, by system."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    rankings: dict[str, list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))
    units: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    made_with: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Results:
        """Read what a run has finished."""
        results = cls()
        for unit in read_results(folder):
            system = unit["system"]
            if "@" not in system or not results.made_with:
                results.made_with = unit["made_with"]
            results.units[system].append(
                {key: unit[key] for key in ("dataset", "stream", "group", "stats", "trace")}
            )
            results.rankings[system] += unit["rankings"]
            for row in unit["rows"]:
                measures = {
                    key: value
                    for key, value in row.items()
                    if key not in ("id", "category", "tags", "budget")
                }
                results.rows[system].append(
                    Row(
                        unit["dataset"],
                        unit["stream"],
                        unit["group"],
                        row["id"],
                        row["category"],
                        frozenset(row["tags"]),
                        row["budget"],
                        measures,
                    )
                )
        return results

    @property
    def budgets(self) -> list[int]:
        """Budgets of the run, ascending."""
        return sorted({row.budget for rows in self.rows.values() for row in rows})

    @property
    def judged(self) -> list[int]:
        """Budgets that the headlines average: all above 1,000 tokens, or all there are."""
        return [budget for budget in self.budgets if budget > 1000] or self.budgets

    def is_complete(self, system: str) -> bool:
        """Whether the system was run on every stream that any system was run on."""

        def streams(name: str) -> set[tuple[str, str]]:
            return {(unit["dataset"], unit["stream"]) for unit in self.units[name]}

        return streams(system) == set().union(*map(streams, list(self.units)))

    def mean(self, system: str, measure: str, budget: int, keep: Filter) -> float:
        """Mean of a measure in percent; NaN without any question."""
        values = [
            row.measures[measure]
            for row in self.rows[system]
            if row.budget == budget and measure in row.measures and keep(row)
        ]
        return 100.0 * float(np.mean(values)) if values else float("nan")

    def scores(
        self, system: str, headline: str, budgets: Sequence[int] | None = None
    ) -> list[tuple[float, dict[str, float]]]:
        """Per-question scores in percent behind a headline: (weight, {question: score})."""
        chosen = set(self.judged if budgets is None else budgets)
        if headline == "J":
            parts = [(0.5, on("realmem"), ("sess", "cov")), (0.5, on("locomo"), ("evidence",))]
        elif headline in ("realmem", "locomo"):
            measures = ("sess", "cov") if headline == "realmem" else ("evidence",)
            parts = [(1.0, on(headline), measures)]
        else:
            selection = headline.split()[-1]
            domains = sorted(
                {row.group.split("/")[0] for row in self.rows[system] if row.dataset == "ama"}
            )
            parts = [
                (1.0 / len(domains), fair(selection, domain), ("evidence",)) for domain in domains
            ]
        return [
            (weight, self._by_question(system, keep, measures, chosen))
            for weight, keep, measures in parts
        ]

    def headline(self, system: str, name: str, budgets: Sequence[int] | None = None) -> float:
        """A headline figure in percent; NaN where a data set was not run."""
        parts = self.scores(system, name, budgets)
        if not parts or not all(scores for _, scores in parts):
            return float("nan")
        return float(sum(weight * np.mean(list(scores.values())) for weight, scores in parts))

    def difference(
        self, system: str, peer: str, name: str, budgets: Sequence[int] | None = None
    ) -> Difference | None:
        """Headline of ``system`` minus that of ``peer``, paired by question."""
        ours = self.scores(system, name, budgets)
        theirs = self.scores(peer, name, budgets)
        if not ours or not all(a and b for (_, a), (_, b) in zip(ours, theirs, strict=True)):
            return None
        values = [
            np.array([a[question] - b[question] for question in a if question in b])
            for (_, a), (_, b) in zip(ours, theirs, strict=True)
        ]
        return compare(values, [weight for weight, _ in ours])

    def average(self, system: str, key: str, dataset: str | None = None) -> float:
        """Mean over streams of a figure in their stats."""
        values = [
            unit["stats"][key]
            for unit in self.units[system]
            if dataset is None or unit["dataset"] == dataset
        ]
        return float(np.mean(values)) if values else float("nan")

    def _by_question(
        self, system: str, keep: Filter, measures: Sequence[str], budgets: set[int]
    ) -> dict[str, float]:
        collected: dict[str, list[float]] = defaultdict(list)
        for row in self.rows[system]:
            if row.budget in budgets and keep(row) and measures[0] in row.measures:
                values = [row.measures[measure] for measure in measures]
                collected[row.question].append(100.0 * sum(values) / len(values))
        return {question: float(np.mean(values)) for question, values in collected.items()}


def on(dataset: str) -> Filter:
    """Rows of one data set."""
    return lambda row: row.dataset == dataset


def fair(selection: str, domain: str | None = None) -> Filter:
    """AMA rows of one selection whose label is right and whose evidence fits a budget."""

    def keep(row: Row) -> bool:
        return (
            row.dataset == "ama"
            and (domain is None or row.group.startswith(f"{domain}/"))
            and {selection, "label_ok"} <= row.tags
            and "aggregate" not in row.tags
        )

    return keep
