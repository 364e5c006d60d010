"""What a namespace was made with: fixed at its first write, kept in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from rsm_fast.errors import CorruptStoreError, EmbedderMismatchError, InvalidInputError
from rsm_fast.presets import Gate, Preset, VectorType, checked_choice

__all__ = ["NamespaceSettings", "WriteOptions"]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Write-path choices that a caller made; None where none was made."""

    gate: Gate | None = None
    rank: int | None = None
    chunk_turns: int | None = None
    dtype: VectorType | None = None
    percentile: float | None = None
    centre: bool | None = None
    tau: float | None = None

    def __post_init__(self) -> None:
        if self.gate is not None:
            checked_choice(self.gate, Gate, where="gate")
        if self.dtype is not None:
            checked_choice(self.dtype, VectorType, where="dtype")
        _check_whole("rank", self.rank, 1, 64)
        _check_whole("chunk_turns", self.chunk_turns, 1, 1000)
        _check_number("percentile", self.percentile, 0.0, 100.0)
        _check_number("tau", self.tau, -1.0, 1.0)
        if self.centre is not None and not isinstance(self.centre, bool):
            raise InvalidInputError(f"centre: expected True or False, got {self.centre!r}")
        if self.tau is not None and self.centre:
            raise InvalidInputError(
                "tau and centre: a given tau applies to raw cosines; leave centre out, or leave "
                "tau out to have it calibrated in the centred space"
            )


@dataclass(frozen=True, slots=True)
class NamespaceSettings:
    """The write path of one namespace, as its store keeps it.

    Attributes
    ----------
    embedder, embedder_name, dim : str, str, int
        Fingerprint, name and dimension of the embedder that made the vectors.
    counter : str
        Token counter that the stored counts were made with.
    preset : str
        Preset that filled in what the caller left open.
    gate, rank, chunk_turns, split_long, dtype, percentile, centre
        As in `rsm_fast.presets.Preset`.
    tau : float or None
        The gate's threshold; None until it is calibrated.
    tau_source : {"given", "calibrated", "none"}
        Where tau came from.
    """

    embedder: str
    embedder_name: str
    dim: int
    counter: str
    preset: str
    gate: Gate
    rank: int
    chunk_turns: int
    split_long: bool
    dtype: VectorType
    percentile: float
    centre: bool
    tau: float | None = None
    tau_source: str = "none"

    @classmethod
    def create(
        cls,
        preset: Preset,
        options: WriteOptions,
        *,
        embedder: str,
        embedder_name: str,
        dim: int,
        counter: str,
    ) -> NamespaceSettings:
        """Settings of a new namespace: the caller's options, else the preset's."""

        def chosen(name: str) -> Any:
            value = getattr(options, name)
            return getattr(preset, name) if value is None else value

        given = options.tau is not None
        return cls(
            embedder=embedder,
            embedder_name=embedder_name,
            dim=dim,
            counter=counter,
            preset=preset.name,
            gate=chosen("gate"),
            rank=chosen("rank"),
            chunk_turns=chosen("chunk_turns"),
            split_long=preset.split_long,
            dtype=options.dtype or "float32",
            percentile=chosen("percentile"),
            centre=False if given else chosen("centre"),
            tau=options.tau,
            tau_source="given" if given else "none",
        )

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> NamespaceSettings:
        """Settings read from a store; keys of later versions are left alone."""
        known = {field.name for field in fields(cls)}
        try:
            return cls(**{key: value for key, value in stored.items() if key in known})
        except TypeError as error:
            raise CorruptStoreError(
                f"namespace settings: {error}; run `rsm-fast doctor STORE` to check the store"
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """Settings as JSON values."""
        return asdict(self)

    def with_tau(self, tau: float, source: str, *, centre: bool) -> NamespaceSettings:
        """The same with a known tau."""
        return replace(self, tau=tau, tau_source=source, centre=centre)

    def check_options(self, options: WriteOptions, *, namespace: str) -> None:
        """Refuse options that contradict what the namespace was made with.

        Raises
        ------
        InvalidInputError
            If an option differs from the stored setting.
        """
        for field in fields(options):
            asked, stored = getattr(options, field.name), getattr(self, field.name)
            if asked is None or asked == stored:
                continue
            raise InvalidInputError(
                f"{field.name}: namespace {namespace!r} was made with {stored!r}, got {asked!r}; "
                f"open it without {field.name}=, or write to a new namespace"
            )

    def check_embedder(self, fingerprint: str, dim: int, *, namespace: str, where: str) -> None:
        """Refuse an embedder whose vectors do not belong into the namespace.

        Raises
        ------
        EmbedderMismatchError
            If the fingerprint or the dimension differs.
        """
        if self.embedder == fingerprint and self.dim == dim:
            return
        raise EmbedderMismatchError(
            f"namespace {namespace!r} of {where} was embedded with {self.embedder} "
            f"({self.dim} dimensions), got {fingerprint} ({dim} dimensions); open it with the "
            "first embedder, or move it to the new one with `rsm-fast reembed STORE` "
            "(the texts are kept either way)"
        )


def _check_whole(name: str, value: int | None, low: int, high: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInputError(
            f"{name}: expected a whole number from {low} to {high}, got {value!r}"
        )


def _check_number(name: str, value: float | None, low: float, high: float) -> None:
    if value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInputError(f"{name}: expected a number from {low} to {high}, got {value!r}")
