"""Units of sizes and durations, and how both are read from text and shown to people.

Sizes are bytes, and named so (``_bytes``). Times and durations are whole microseconds (``_us``); where a machine asks
for seconds, a name ends in ``_seconds``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import cache

from dolmen.base import arguments
from dolmen.errors import InputError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
WEEK_US = 7 * DAY_US

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DURATIONS_US = {"w": WEEK_US, "d": DAY_US, "h": HOUR_US, "m": MINUTE_US, "s": SECOND_US}
_MAX_DURATION_US = 36_525 * DAY_US
_SIZES_BYTES = {"": 1, "B": 1, "KB": KIB, "MB": MIB, "GB": GIB}
_DURATION = re.compile(r"([1-9]\d{0,9})([wdhms])", re.ASCII)
_SIZE = re.compile(r"([1-9]\d{0,12}) ?([KMG]?B|)", re.IGNORECASE | re.ASCII)


@cache
def parse_duration(text: str) -> int:
    """Microseconds of ``90d``, ``12h``, ``15m``, ``30s`` or ``2w``. Raises InputError, also beyond a century."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    duration_us = int(match[1]) * _DURATIONS_US[match[2]] if match else 0
    if not 0 < duration_us <= _MAX_DURATION_US:
        raise InputError(
            f"{arguments.short_repr(text)} is not a duration from 1s to a century: give a whole number and one of w, "
            "d, h, m and s, as in 90d"
        )
    return duration_us


@cache
def parse_size(value: str | int) -> int:
    """Bytes of ``256MB``, ``64KB``, ``1GB`` (powers of 1024) or a plain number. Raises InputError."""
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, (str, int)) else None
    if match is None:
        raise InputError(
            f"{arguments.short_repr(value)} is no size: a number of bytes, or one with KB, MB or GB, as in 256MB"
        )
    return int(match[1]) * _SIZES_BYTES[match[2].upper()]


def duration_text(duration_us: int) -> str:
    """A duration as people say it: ``3h``, in the largest unit but weeks that gives at least 1."""
    units = ((name, unit_us) for name, unit_us in _DURATIONS_US.items() if name != "w")
    return next((f"{duration_us // unit_us:,}{name}" for name, unit_us in units if duration_us >= unit_us), "0s")


def count_text(count: int, one: str, more: str = "") -> str:
    """A number of things: ``1 file``, ``2 files``."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def megabytes_text(size_bytes: int) -> str:
    """A size as progress shows it: ``1,234.5 MB``, of a million bytes each."""
    return f"{size_bytes / 1e6:,.1f} MB"


def utc(time_us: int) -> datetime:
    """The time so many microseconds after 1970-01-01, in UTC."""
    return _EPOCH + timedelta(microseconds=time_us)


def since_epoch(time: datetime) -> int:
    """Microseconds from 1970-01-01 in UTC to a time with a zone; those of NaT raise ValueError."""
    return int((time - _EPOCH) // timedelta(microseconds=1))


LAST_US = since_epoch(datetime.max.replace(tzinfo=UTC))
"""The last time that can be shown, at the end of the year 9999."""
