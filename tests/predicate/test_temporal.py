"""The calendar beyond Python's, checked against Python's where that reaches."""

from __future__ import annotations

import os
import random
from datetime import date, datetime, timedelta

import pytest

from dolmen.predicate.constants import (
    Interval,
    civil_from_days,
    days_from_civil,
    format_date,
    format_time,
    format_timestamp,
    parse_date,
    parse_interval,
    parse_time,
    parse_timestamp,
    shift,
    truncate,
)

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
EPOCH = datetime(1970, 1, 1)


def test_days_agree_with_pythons_calendar_and_go_both_ways_beyond_it() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    first, last = date.min.toordinal() - 719_163, date.max.toordinal() - 719_163
    for days in [first, last, 0, -1, *(rng.randint(first, last) for _ in range(2000))]:
        there = date.fromordinal(days + 719_163)
        assert civil_from_days(days) == (there.year, there.month, there.day)
    for days in [-(2**31), 2**31 - 1, *(rng.randint(-(2**31), 2**31 - 1) for _ in range(2000))]:
        assert days_from_civil(*civil_from_days(days)) == days
        assert parse_date(format_date(days)) == days


def test_text_of_timestamps_and_times_goes_both_ways() -> None:
    rng = random.Random(SEED)
    for us in [-(2**63), 2**63 - 1, 0, -1, *(rng.randint(-(2**63), 2**63 - 1) for _ in range(1000))]:
        assert parse_timestamp(format_timestamp(us)) == (us, False)
        assert parse_timestamp(format_timestamp(us) + "+00:00") == (us, True)
    for us in [0, 86_399_999_999, *(rng.randrange(86_400_000_000) for _ in range(1000))]:
        assert parse_time(format_time(us)) == us


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01", 0),
        ("1970-01-01 00:00", 0),
        (" 1970-01-01T00:00:01.5Z ", 1_500_000),
        ("1970-01-01 02:00:00+02", 0),
        ("1970-01-01 02:30:00+0230", 0),
        ("1969-12-31 22:00:00 -02:00", 0),
        ("1970-01-01 00:00:00 UTC", 0),
        ("1970-01-01 00:00:00.000001000", 1),
    ],
)
def test_offsets_and_fractions(text: str, us: int) -> None:
    assert parse_timestamp(text)[0] == us


def test_months_end_where_the_month_does_and_days_come_after() -> None:
    def moved(text: str, by: Interval) -> str:
        return format_timestamp(shift(parse_timestamp(text)[0], by))

    assert moved("2024-01-31 10:00", Interval(months=1)) == "2024-02-29 10:00:00"
    assert moved("2024-03-31 10:00", Interval(months=-13)) == "2023-02-28 10:00:00"
    assert moved("2024-01-31", Interval(months=1, days=1, us=-1)) == "2024-02-29 23:59:59.999999"
    assert moved("1900-01-31", Interval(months=1)) == "1900-02-28 00:00:00"


def test_intervals_add_their_parts() -> None:
    assert parse_interval("1 year 2 months 3 weeks -4 days 5 hours 6 ms") == Interval(14, 17, 18_000_006_000)
    assert parse_interval("90 DAYS") == Interval(days=90)


def test_truncation_goes_down_to_the_unit() -> None:
    rng = random.Random(SEED)
    for _ in range(500):
        moment = EPOCH + timedelta(microseconds=rng.randrange(-(10**16), 10**16))
        us = (moment - EPOCH) // timedelta(microseconds=1)
        expected = {
            "year": datetime(moment.year, 1, 1),
            "quarter": datetime(moment.year, (moment.month - 1) // 3 * 3 + 1, 1),
            "month": datetime(moment.year, moment.month, 1),
            "week": datetime(moment.year, moment.month, moment.day) - timedelta(moment.weekday()),
            "day": datetime(moment.year, moment.month, moment.day),
            "hour": moment.replace(minute=0, second=0, microsecond=0),
            "second": moment.replace(microsecond=0),
        }
        for unit, start in expected.items():
            assert truncate(us, unit) == (start - EPOCH) // timedelta(microseconds=1), (moment, unit)
