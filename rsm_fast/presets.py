"""Presets: named, frozen sets of choices for the write path and the read path.

`paper` reproduces RSM-full as published (arXiv 2609.04915). `hybrid`, the default, is the best
read path that the project's own harness could prove; see ``docs/presets.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import index
from typing import Any, Literal, TypeAlias, get_args

from rsm_fast.errors import InvalidInputError

__all__ = [
    "PRESETS",
    "Gate",
    "Layout",
    "Preset",
    "Route",
    "VectorType",
    "changed_preset",
    "checked_choice",
    "checked_count",
    "get_preset",
]

Gate: TypeAlias = Literal["max-member", "nearest-mean", "centroid"]
Route: TypeAlias = Literal["centroid", "singular-vector", "max-member", "subspace"]
Layout: TypeAlias = Literal["atoms", "sessions", "flat"]
VectorType: TypeAlias = Literal["float32", "int8"]


@dataclass(frozen=True, slots=True)
class Preset:
    """One way of writing and reading.

    Attributes
    ----------
    name : str
        What it is called.
    chunk_turns : int
        Turns to a chunk.
    split_long : bool
        Split what exceeds the embedder's window at sentence ends; else the embedder truncates.
    gate : str
        Which atoms a chunk is compared with before it joins one or opens one.
    percentile : float
        Percentile of the pairwise cosines that becomes tau.
    centre : bool
        Subtract the calibration mean and renormalise before comparing.
    rank : int
        Rows of each atom's basis; 1 keeps the first singular vector alone.
    ranking : {"hybrid", "atoms"}
        Score every chunk (hybrid), or only the members of the top atoms (atoms).
    route : str
        How atoms are scored against a query where ``ranking="atoms"``.
    retrieve_atoms, per_atom : int
        Atoms looked at, and members packed of each, where ``ranking="atoms"``.
    layout : str
        How the admitted chunks are grouped in the text.
    fold : bool
        Write repeated lines once and refer to them afterwards.
    """

    name: str
    chunk_turns: int
    split_long: bool
    gate: Gate
    percentile: float
    centre: bool
    rank: int
    ranking: Literal["hybrid", "atoms"]
    route: Route
    retrieve_atoms: int
    per_atom: int
    layout: Layout
    fold: bool


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="hybrid",
            chunk_turns=1,
            split_long=True,
            gate="nearest-mean",
            percentile=95.0,
            centre=True,
            rank=1,
            ranking="hybrid",
            route="centroid",
            retrieve_atoms=6,
            per_atom=8,
            layout="sessions",
            fold=True,
        ),
        Preset(
            name="paper",
            chunk_turns=5,
            split_long=False,
            gate="max-member",
            percentile=70.0,
            centre=False,
            rank=1,
            ranking="atoms",
            route="centroid",
            retrieve_atoms=6,
            per_atom=8,
            layout="atoms",
            fold=False,
        ),
    )
}


def get_preset(preset: str | Preset) -> Preset:
    """The preset of that name, or the preset itself.

    Raises
    ------
    InvalidInputError
        If there is no preset of that name.
    """
    if isinstance(preset, Preset):
        return preset
    if not isinstance(preset, str) or preset not in PRESETS:
        raise InvalidInputError(f"preset: expected one of {sorted(PRESETS)}, got {preset!r}")
    return PRESETS[preset]


def changed_preset(
    preset: Preset,
    *,
    route: Route | None = None,
    layout: Layout | None = None,
    fold: bool | None = None,
) -> Preset:
    """The preset with other choices for reading; None leaves one as it is.

    Raises
    ------
    InvalidInputError
        If a choice is not one of those that there are.
    """
    if route is not None:
        checked_choice(route, Route, where="route")
    if layout is not None:
        checked_choice(layout, Layout, where="layout")
    if fold is not None and not isinstance(fold, bool):
        raise InvalidInputError(f"fold: expected True or False, got {fold!r}")
    return replace(
        preset,
        route=preset.route if route is None else route,
        layout=preset.layout if layout is None else layout,
        fold=preset.fold if fold is None else fold,
    )


def checked_choice(value: str, choices: object, *, where: str) -> str:
    """``value`` if it is one of a `Literal` type's values.

    Raises
    ------
    InvalidInputError
        If it is not.
    """
    allowed = get_args(choices)
    if value not in allowed:
        raise InvalidInputError(f"{where}: expected one of {list(allowed)}, got {value!r}")
    return value


def checked_count(name: str, value: Any, *, low: int) -> int:
    """A whole number of ``low`` or more, also one of NumPy's.

    Raises
    ------
    InvalidInputError
        If it is something else.
    """
    try:
        number = low - 1 if isinstance(value, bool) else index(value)
    except TypeError:
        number = low - 1
    if number < low:
        raise InvalidInputError(
            f"{name}: expected a whole number, {low} or more, got {value!r:.80}"
        )
    return int(number)
