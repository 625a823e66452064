"""Dates and times as text and as integers, over the whole stored range (Python's datetime ends at year 9999).

The calendar is the proleptic Gregorian one with a year 0, as in ISO 8601 and DuckDB. The day arithmetic is Howard
Hinnant's, https://howardhinnant.github.io/date_algorithms.html.
"""

from __future__ import annotations

import re
from calendar import monthrange
from typing import Any, NamedTuple

from dolmen.base.arguments import short_repr
from dolmen.base.units import DAY_US, HOUR_US, MINUTE_US, SECOND_US
from dolmen.errors import PredicateError
from dolmen.predicate.limits import check_number

_DATE = r"(?P<year>[+-]?\d{1,7})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
_TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{0,18}))?)?"
_ZONE = r"(?P<zone>[Zz]|(?i:UTC)|[+-]\d{2}(?::?\d{2})?)"
_TIME_TEXT = re.compile(_TIME, re.ASCII)
_TIMESTAMP_TEXT = re.compile(rf"{_DATE}(?:[ Tt]\s*{_TIME}\s*{_ZONE}?)?", re.ASCII)
_INTERVAL_TEXT = re.compile(r"\s*([+-]?\d{1,18})\s*([A-Za-z]+)", re.ASCII)


class Interval(NamedTuple):
    """An interval of SQL: its months, days and microseconds are added in this order."""

    months: int = 0
    days: int = 0
    us: int = 0

    def times(self, factor: int) -> Interval:
        """Each part multiplied. Raises PredicateError."""
        return _bounded(Interval(self.months * factor, self.days * factor, self.us * factor))


_MOST = 2**63
"""The greatest value of any part of an interval: more than the time between the first and the last timestamp."""


def _bounded(span: Interval) -> Interval:
    if any(abs(part) > _MOST for part in span):
        raise PredicateError("the interval is longer than the range of timestamps")
    return span


_UNITS = {
    "year": Interval(months=12), "yr": Interval(months=12), "y": Interval(months=12),
    "quarter": Interval(months=3), "month": Interval(months=1), "mon": Interval(months=1),
    "week": Interval(days=7), "w": Interval(days=7), "day": Interval(days=1), "d": Interval(days=1),
    "hour": Interval(us=HOUR_US), "hr": Interval(us=HOUR_US), "h": Interval(us=HOUR_US),
    "minute": Interval(us=MINUTE_US), "min": Interval(us=MINUTE_US), "m": Interval(us=MINUTE_US),
    "second": Interval(us=SECOND_US), "sec": Interval(us=SECOND_US), "s": Interval(us=SECOND_US),
    "millisecond": Interval(us=1000), "ms": Interval(us=1000),
    "microsecond": Interval(us=1), "us": Interval(us=1),
}  # fmt: skip


def days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def civil_from_days(days: Any) -> tuple[Any, Any, Any]:
    """Year, month and day of a number of days since 1970-01-01: an int, or a NumPy array of int64."""
    era, of_era = divmod(days + 719_468, 146_097)
    years = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * years + years // 4 - years // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 - 12 * (shifted >= 10)
    return years + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


def parse_date(text: str) -> int:
    """Days since the epoch of ``YYYY-MM-DD``. Raises PredicateError, also for a time of day other than midnight."""
    us, _ = parse_timestamp(text)
    if us % DAY_US:
        raise PredicateError(f"{text!r} has a time of day and is compared with dates; write TIMESTAMP {text!r}")
    return us // DAY_US


def parse_time(text: str) -> int:
    """Microseconds since midnight of ``HH:MM[:SS[.ffffff]]``. Raises PredicateError."""
    text = check_number(text)
    match = _TIME_TEXT.fullmatch(text)
    if match is None:
        raise PredicateError(f"{short_repr(text)} is not a time; write HH:MM:SS, with up to 6 digits of fraction")
    return _time_of(match, text)


def parse_timestamp(text: str) -> tuple[int, bool]:
    """Microseconds since the epoch of ``YYYY-MM-DD[ HH:MM[:SS[.ffffff]][zone]]``, and whether there was a zone.

    Raises:
        PredicateError: not a timestamp, or one with digits beyond microseconds.
    """
    text = check_number(text)
    match = _TIMESTAMP_TEXT.fullmatch(text)
    if match is None:
        raise PredicateError(
            f"{short_repr(text)} is not a timestamp; write YYYY-MM-DD HH:MM:SS, optionally with a fraction of up to 6 "
            "digits and an offset such as Z or +02:00"
        )
    year, month, day = int(match["year"]), int(match["month"]), int(match["day"])
    if not (1 <= month <= 12 and 1 <= day <= _month_length(year, month)):
        raise PredicateError(f"{text!r}: there is no such day")
    us = days_from_civil(year, month, day) * DAY_US
    if match["hour"] is not None:
        us += _time_of(match, text)
    zone = match["zone"]
    if zone is not None and zone[0] in "+-":
        offset = int(zone[1:3]) * HOUR_US + int(zone[3:].lstrip(":") or 0) * MINUTE_US
        us -= -offset if zone[0] == "-" else offset
    return us, zone is not None


def _time_of(match: re.Match[str], text: str) -> int:
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise PredicateError(f"{text!r}: there is no such time of day")
    fraction = (match["fraction"] or "").rstrip("0")
    if len(fraction) > 6:
        raise PredicateError(f"{text!r} has digits beyond microseconds: write at most 6 of them")
    return hour * HOUR_US + minute * MINUTE_US + second * SECOND_US + int(fraction.ljust(6, "0"))


def parse_interval(text: str) -> Interval:
    """A span such as ``3 months 2 days``. Raises PredicateError."""
    text = check_number(text)
    total, end = Interval(), 0
    for match in _INTERVAL_TEXT.finditer(text):
        if match.start() != end:
            break
        total = plus(total, unit(match[2]).times(int(match[1])))
        end = match.end()
    if not end or text[end:].strip():
        raise PredicateError(f"{short_repr(text)} is not an interval: write whole numbers and units, '3 days 2 hours'")
    return total


def unit(name: str) -> Interval:
    """The interval of one unit of time. Raises PredicateError."""
    name = name.lower()
    span = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))
    if span is None:
        raise PredicateError(f"unknown unit {short_repr(name)}; units are year, month, week, day, hour, minute, ...")
    return span


def plus(a: Interval, b: Interval) -> Interval:
    """The sum of two intervals. Raises PredicateError."""
    return _bounded(Interval(a.months + b.months, a.days + b.days, a.us + b.us))


def shift(us: int, by: Interval) -> int:
    """Adds an interval to a timestamp: months first (capped at the month's last day), then days, then the time."""
    days, time = divmod(us, DAY_US)
    if by.months:
        year, month, day = civil_from_days(days)
        years, month0 = divmod(month - 1 + by.months, 12)
        year, month = year + years, month0 + 1
        days = days_from_civil(year, month, min(day, _month_length(year, month)))
    return (days + by.days) * DAY_US + time + by.us


def truncate(us: int, name: str) -> int:
    """The start of a timestamp's year, quarter, month, week (from Monday), day, hour, ..."""
    span = unit(name)
    days = us // DAY_US
    if span.months:
        year, month, _ = civil_from_days(days)
        return days_from_civil(year, (month - 1) // span.months * span.months + 1, 1) * DAY_US
    if span.days == 7:
        return (days - (days + 3) % 7) * DAY_US  # 1970-01-01 was a Thursday
    step = span.days * DAY_US + span.us
    return us // step * step


def format_date(days: int) -> str:
    """``YYYY-MM-DD``."""
    year, month, day = civil_from_days(days)
    return f"{'-' if year < 0 else ''}{abs(year):04}-{month:02}-{day:02}"


def format_time(us: int) -> str:
    """``HH:MM:SS[.ffffff]``."""
    seconds, fraction = divmod(us, SECOND_US)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}" if fraction else text


def format_timestamp(us: int) -> str:
    """``YYYY-MM-DD HH:MM:SS[.ffffff]``."""
    days, time = divmod(us, DAY_US)
    return f"{format_date(days)} {format_time(time)}"


def _month_length(year: int, month: int) -> int:
    return monthrange(year % 400 + 2000, month)[1]  # the calendar repeats every 400 years
