"""Instants: microseconds since the epoch in UTC, plus the offset they were written with.

Stored order and comparisons use the UTC value; printing uses the original offset, so the
process's own time zone never matters (naive input means UTC).
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from typing import TypeAlias

from rsm_fast.errors import InvalidInputError

__all__ = ["Instant", "TimestampLike", "parse_duration", "parse_instant"]

TimestampLike: TypeAlias = str | int | float | datetime | date

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|w)\s*", re.ASCII)
_UNIT_MICROS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}


_LONGEST = 3_652_500 * _UNIT_MICROS["d"]


@dataclass(frozen=True, slots=True, order=True)
class Instant:
    """A point in time.

    Attributes
    ----------
    micros : int
        Microseconds since 1970-01-01T00:00:00Z.
    offset_minutes : int
        Offset from UTC that the instant was written with, in minutes east.
    """

    micros: int
    offset_minutes: int = 0

    @classmethod
    def now(cls) -> Instant:
        """The current time, in UTC."""
        return cls(time.time_ns() // 1000, 0)

    def to_datetime(self) -> datetime:
        """An aware `datetime` at the original offset."""
        zone = timezone(timedelta(minutes=self.offset_minutes)) if self.offset_minutes else UTC
        return (_EPOCH + self.micros * _MICROSECOND).astimezone(zone)

    def isoformat(self) -> str:
        """ISO 8601 with offset, as short as the value allows (seconds at least)."""
        text = self.to_datetime().isoformat()
        return text[:-6] + "Z" if self.offset_minutes == 0 else text

    def date(self) -> str:
        """The calendar day at the original offset, ``YYYY-MM-DD``."""
        return self.to_datetime().date().isoformat()


def parse_instant(value: TimestampLike, *, where: str = "timestamp") -> Instant:
    """Read a point in time from what people have at hand.

    Parameters
    ----------
    value : str, int, float, datetime or date
        ISO 8601 text with any offset or none (none means UTC), seconds since the epoch,
        an aware or naive `datetime` (naive means UTC), or a `date` (its midnight, UTC).
    where : str
        What the value is, for the error message.

    Raises
    ------
    InvalidInputError
        If the value is none of these, or lies outside the years 1 to 9999.
    """
    if isinstance(value, bool):
        raise InvalidInputError(f"{where}: expected a time, got {value!r}")
    if isinstance(value, (int, float)):
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidInputError(f"{where}: expected seconds since the epoch, got {value!r}")
        return _checked(round(value * 1_000_000), 0, value, where)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise InvalidInputError(
                f"{where}: expected ISO 8601 like 2026-05-03T10:00:00+02:00, got {value!r}"
            ) from None
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        offset = aware.utcoffset() or timedelta(0)
        micros = (aware - _EPOCH) // _MICROSECOND
        return _checked(micros, int(offset.total_seconds() // 60), value, where)
    if isinstance(value, date):
        midnight = datetime(value.year, value.month, value.day, tzinfo=UTC)
        return Instant((midnight - _EPOCH) // _MICROSECOND, 0)
    raise InvalidInputError(
        f"{where}: expected ISO 8601 text, epoch seconds or a datetime, got {type(value).__name__}"
    )


def parse_duration(value: str | timedelta | int | float, *, where: str = "duration") -> int:
    """Read a length of time as microseconds: ``"90d"``, ``"12h"``, a `timedelta`, or seconds.

    Raises
    ------
    InvalidInputError
        If the value is negative, not a length of time, or longer than 10,000 years.
    """
    micros: int | float = -1
    if isinstance(value, timedelta):
        micros = value // _MICROSECOND
    elif isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match:
            micros = float(match[1]) * _UNIT_MICROS[match[2]]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        micros = value * 1_000_000
    if not 0 <= micros <= _LONGEST:  # neither is true of NaN
        raise InvalidInputError(
            f"{where}: expected a length of time like '90d', '12h', a timedelta or seconds, at "
            f"most 10,000 years, got {_short(value)}"
        )
    return round(micros)


def _short(value: object) -> str:
    """A value for a message; Python refuses to write out numbers of thousands of digits."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a far larger number"
    return f"{value!r:.80}"


def _checked(micros: int, offset_minutes: int, value: object, where: str) -> Instant:
    instant = Instant(micros, offset_minutes)
    try:
        instant.to_datetime()
    except (OverflowError, ValueError):
        raise InvalidInputError(
            f"{where}: {_short(value)} lies outside the years 1 to 9999"
        ) from None
    return instant
