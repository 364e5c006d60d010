"""Pictures of a run, PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.quality.results import Results, Row, on
from bench.quality.suite import PEERS

__all__ = ["draw_all"]

_SHOWN = (
    "hybrid",
    "rrf-n1",
    "budget-rag-n1",
    "bm25-rag-n1",
    "bm25-rag-n5",
    "rsm-paper",
    "rsm-a-p70-n5",
    "rsm-b-p95-n5",
    "dp-means-n5",
    "online-kmeans-n5",
    "streaming-proto-n5",
    "recent-n1",
)
_COLOURS = (
    "#d62728",  # the default, alone in red
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#98df8a"),  # ranked without clusters
    *("#000000", "#9467bd", "#c5b0d5", "#8c564b", "#e377c2", "#17becf"),  # clustered, dashed
    "#7f7f7f",
)
_CLUSTERED = _SHOWN[5:-1]
_TITLES = {
    "realmem": "RealMem (sess + cov) / 2",
    "locomo": "LoCoMo evidence",
    "A spread": "AMA, spread questions",
}


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Draw every picture into a folder, as PNG and SVG.

    Returns
    -------
    list of Path
        The SVG files.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, draw in _PICTURES.items():
        figure = pyplot.figure(figsize=(9, 5), layout="constrained")
        draw(results, figure)
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            figure.savefig(path, dpi=110, metadata={"Date": None} if kind == "svg" else None)
        pyplot.close(figure)
        drawn.append(path)
    return drawn


def _pareto(results: Results, figure: Any) -> None:
    """Quality against the tokens really used, with 95 % intervals."""
    for place, headline in enumerate(("realmem", "locomo", "A spread"), 1):
        axes = figure.add_subplot(1, 3, place)
        for system in _present(results):
            dataset = "ama" if headline.startswith("A ") else headline
            tokens, values, spread = [], [], []
            for budget in results.budgets:
                value = results.headline(system, headline, [budget])
                if value != value:
                    continue
                used = results.mean(system, "tokens", budget, on(dataset)) / 100
                tokens.append(used)
                values.append(value)
                spread.append(_half_width(results, system, headline, budget))
            if tokens:
                axes.errorbar(
                    tokens,
                    values,
                    yerr=spread,
                    marker="o",
                    markersize=3,
                    capsize=2,
                    label=system,
                    **_style(system),
                )
        axes.set_title(_TITLES[headline])
        axes.set_xlabel("tokens used")
        axes.set_ylabel("recall, %")
        axes.grid(alpha=0.3)
    _legend(figure)


def _categories(results: Results, figure: Any) -> None:
    """Recall by LoCoMo category at each budget."""
    kinds = ("multi-hop", "time", "open-domain", "single-hop")
    for place, kind in enumerate(kinds, 1):
        axes = figure.add_subplot(2, 2, place)
        keep: Callable[[Row], bool] = _in_category(kind)
        for system in _present(results):
            values = [results.mean(system, "evidence", b, keep) for b in results.budgets]
            axes.plot(
                results.budgets,
                values,
                marker="o",
                markersize=3,
                label=system,
                **_style(system),
            )
        axes.set_title(f"LoCoMo, {kind}")
        axes.set_ylabel("evidence, %")
        axes.grid(alpha=0.3)
    _legend(figure)


def _groups(results: Results, figure: Any) -> None:
    """Number of groups and share of the largest one as RealMem streams grow."""
    left, right = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    for system in _present(results):
        for unit in results.units[system]:
            trace = [point for point in unit["trace"] if point[1]]
            if unit["dataset"] != "realmem" or not trace:
                continue
            chunks, groups, shares = zip(*trace, strict=True)
            first = unit is next(u for u in results.units[system] if u["dataset"] == "realmem")
            style = {"label": system if first else None, **_style(system)}
            left.plot(chunks, groups, **style)
            right.plot(chunks, [100 * share for share in shares], **style)
    left.set_yscale("log")
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter("")
    left.set_ylabel("groups")
    right.set_ylabel("share of the largest group, %")
    for axes in (left, right):
        axes.set_xlabel("chunks")
        axes.grid(alpha=0.3)
    _legend(figure)


_PICTURES: dict[str, Callable[[Results, Any], None]] = {
    "quality-against-tokens": _pareto,
    "recall-by-category": _categories,
    "groups-over-time": _groups,
}


def _present(results: Results) -> list[str]:
    return [
        name
        for name in _SHOWN
        if name in PEERS and results.rows.get(name) and results.is_complete(name)
    ]


def _legend(figure: Any) -> None:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=7)


def _style(system: str) -> dict[str, Any]:
    style = {
        "color": _COLOURS[_SHOWN.index(system)],
        "linestyle": "--" if system in _CLUSTERED else "-",
        "linewidth": 1,
    }
    return {**style, "linewidth": 2, "zorder": 5} if system == _SHOWN[0] else style


def _in_category(kind: str) -> Callable[[Row], bool]:
    return lambda row: row.dataset == "locomo" and row.category == kind


def _half_width(results: Results, system: str, headline: str, budget: int) -> float:
    """Half of the 95 % interval of a mean, by its standard error."""
    variance = 0.0
    for weight, scores in results.scores(system, headline, [budget]):
        values = list(scores.values())
        mean = sum(values) / len(values)
        spread = sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)
        variance += weight**2 * spread / len(values)
    return float(1.96 * variance**0.5)
