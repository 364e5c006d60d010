"""Instants: every way of writing a time, one order, printed as it was written."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsm_fast.errors import InvalidInputError
from rsm_fast.instants import Instant, parse_duration, parse_instant


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("2026-05-03T10:00:00Z", "2026-05-03T10:00:00Z"),
        ("2026-05-03T10:00:00+02:00", "2026-05-03T10:00:00+02:00"),
        ("2026-05-03 10:00", "2026-05-03T10:00:00Z"),
        ("2026-05-03", "2026-05-03T00:00:00Z"),
        (0, "1970-01-01T00:00:00Z"),
        (1.5, "1970-01-01T00:00:01.500000Z"),
        (datetime(2026, 5, 3, 10), "2026-05-03T10:00:00Z"),
        (datetime(2026, 5, 3, 10, tzinfo=UTC), "2026-05-03T10:00:00Z"),
        (date(2026, 5, 3), "2026-05-03T00:00:00Z"),
        (-1, "1969-12-31T23:59:59Z"),
    ],
)
def test_reads_what_people_have(value: object, printed: str) -> None:
    assert parse_instant(value).isoformat() == printed  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", ["yesterday", "", float("nan"), float("inf"), True, None, [], 1e30, "2026-13-01"]
)
def test_refuses_what_is_no_time(value: object) -> None:
    with pytest.raises(InvalidInputError, match="timestamp"):
        parse_instant(value)  # type: ignore[arg-type]


@given(
    st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)),
    st.integers(-14 * 60, 14 * 60),
)
def test_round_trip_keeps_the_instant_and_the_offset(moment: datetime, offset: int) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=offset)))
    instant = parse_instant(aware)
    assert instant.to_datetime() == aware
    assert parse_instant(instant.isoformat()) == instant
    assert instant.offset_minutes == offset


def test_f42_naive_and_aware_times_are_ordered_together() -> None:
    times = ["2026-05-03T12:00:00+02:00", datetime(2026, 5, 3, 9), "2026-05-03T11:00:00Z"]
    assert [parse_instant(t).micros // 3_600_000_000 % 24 for t in times] == [10, 9, 11]
    assert sorted(map(parse_instant, times))[0] == parse_instant(datetime(2026, 5, 3, 9))


def test_f41_the_process_time_zone_does_not_matter() -> None:
    code = (
        "from datetime import datetime; from rsm_fast.instants import parse_instant as p;"
        "print(p(datetime(2026, 5, 3, 10)), p('2026-05-03T10:00:00'), p(1e9).isoformat())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "TZ": zone},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for zone in ("Asia/Tokyo", "America/Los_Angeles", "UTC")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("90d", 7_776_000), ("12h", 43_200), ("1.5m", 90), (30, 30), (timedelta(hours=1), 3600)],
)
def test_reads_durations(value: object, seconds: int) -> None:
    assert parse_duration(value) == seconds * 1_000_000  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["soon", "-1d", -1, "", "d", timedelta(seconds=-1), True])
def test_refuses_what_is_no_duration(value: object) -> None:
    with pytest.raises(InvalidInputError, match="duration"):
        parse_duration(value)  # type: ignore[arg-type]


def test_now_is_utc() -> None:
    assert abs(Instant.now().micros / 1e6 - datetime.now(UTC).timestamp()) < 60
