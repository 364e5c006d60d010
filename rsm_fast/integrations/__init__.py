"""Faces for agents' frameworks; each module needs an extra and is imported only by its users."""

from __future__ import annotations

from rsm_fast.errors import MissingDependencyError

__all__ = ["missing_extra"]


def missing_extra(extra: str, package: str) -> MissingDependencyError:
    """The error for a module whose library is not installed."""
    return MissingDependencyError(
        f"{package} is not installed, and this part of rsm_fast needs it: "
        f"pip install 'rsm-fast[{extra}]'"
    )
