"""The error tree.

Every error that a caller can provoke derives from `RSMError`. A message says what was
expected, what was got, where, and what to do about it.
"""

from __future__ import annotations

__all__ = [
    "BudgetError",
    "CalibrationError",
    "ConflictError",
    "CorruptStoreError",
    "EmbedderError",
    "EmbedderMismatchError",
    "InvalidInputError",
    "LanguageModelError",
    "MissingDependencyError",
    "ModelFileError",
    "NotFoundError",
    "RSMError",
    "StoreClosedError",
    "StoreError",
    "StoreLockedError",
]


class RSMError(Exception):
    """Base of all errors raised on purpose by rsm_fast."""


class InvalidInputError(RSMError, ValueError):
    """A value given by the caller cannot be used; nothing was changed."""


class BudgetError(InvalidInputError):
    """A token budget is negative or not a whole number."""


class ConflictError(InvalidInputError):
    """An id is taken already by other content."""


class NotFoundError(RSMError, KeyError):
    """No such turn, namespace or model."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


class CalibrationError(RSMError):
    """tau cannot be calibrated from what was given."""


class MissingDependencyError(RSMError, ImportError):
    """An optional package is needed; the message holds the install command."""


class EmbedderError(RSMError, ValueError):
    """An embedder gave vectors that cannot be used (shape, dtype, NaN, zero)."""


class EmbedderMismatchError(RSMError):
    """A store was made with another embedder than the one given now."""


class ModelFileError(RSMError):
    """A model file is missing, cut short, or not the file that was expected."""


class LanguageModelError(RSMError):
    """A language model, or the endpoint in front of it, gave no answer that can be used."""


class StoreError(RSMError):
    """The store cannot do what was asked (disk full, read-only, not a store ...)."""


class StoreClosedError(StoreError):
    """The store was closed already."""


class StoreLockedError(StoreError, TimeoutError):
    """Another process held the write lock for longer than the time-out."""


class CorruptStoreError(StoreError):
    """Stored bytes do not match their checksum or schema."""
