"""Units of sizes and durations, and how both are parsed from text and shown to people.

Sizes are in bytes (names end in ``_bytes``). Times and durations are in whole microseconds (``_us``), and in seconds
(``_seconds``) only for functions of Python and AWS that take seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import TypeVar

from dolmen.errors import InputError, short_repr

T = TypeVar("T")

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
SIZE_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")
_DURATION = re.compile(r"([1-9]\d{0,9})([wdhms])", re.ASCII)
_SIZE = re.compile(r"([1-9]\d{0,12}) ?([KMG]?B|)", re.IGNORECASE | re.ASCII)


@cache
def parse_duration(text: str) -> int:
    """Microseconds of ``90d``, ``12h``, ``15m``, ``30s`` or ``2w``. Raises InputError, also beyond a century."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    duration_us = int(match[1]) * _DURATIONS_US[match[2]] if match else 0
    if not 0 < duration_us <= _MAX_DURATION_US:
        raise InputError(
            f"{short_repr(text)} is not a duration from 1s to a century: write a whole number and one of "
            "w, d, h, m and s, as in 90d"
        )
    return duration_us


@cache
def parse_size(value: str | int) -> int:
    """Bytes of ``256MB``, ``64KB``, ``1GB`` (powers of 1024) or a plain number. Raises InputError."""
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, (str, int)) else None
    if match is None:
        raise InputError(f"{short_repr(value)} is not a size: write bytes, or a number with KB, MB or GB, as in 256MB")
    return int(match[1]) * _SIZES_BYTES[match[2].upper()]


def duration_text(duration_us: int) -> str:
    """A duration for people, such as ``3h``: in days or the largest smaller unit that gives at least 1."""
    units = ((name, unit_us) for name, unit_us in _DURATIONS_US.items() if name != "w")
    return next((f"{duration_us // unit_us:,}{name}" for name, unit_us in units if duration_us >= unit_us), "0s")


def count_text(count: int, one: str, more: str = "") -> str:
    """A count with its noun: ``1 file``, ``2,000 files``.

    ``more``: the noun's plural, unless it is ``one`` with an s.
    """
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def named_count_text(count: int, name: str) -> str:
    """A count with the name of a field as its noun: ``1 file added`` for ``files_added``."""
    words = name.replace("_", " ").split()
    if count == 1:
        index = next((index for index, word in enumerate(words) if word.endswith("s")), None)
        if index is not None:
            words[index] = f"{words[index][:-3]}y" if words[index].endswith("ies") else words[index][:-1]
    return f"{count:,} {' '.join(words)}"


def size_text(size_bytes: int) -> str:
    """A size with three digits, in units of 1,024, like settings: ``12.3 MB``."""
    if size_bytes < 1_000:
        return f"{size_bytes:,} bytes"
    size, unit = float(size_bytes), 0
    while size >= 1_000 and unit < len(SIZE_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    digits = f"{size:,.{2 if size < 10 else 1 if size < 100 else 0}f}"
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits} {SIZE_UNITS[unit]}"


def cut_by_size(
    items: Iterable[T], size: Callable[[T], int], most: int, count: int | None = None
) -> Iterator[Sequence[T]]:
    """Cuts items into runs of at most ``count`` items and ``most`` bytes together; a larger item is alone."""
    run: list[T] = []
    total = 0
    for item in items:
        item_bytes = size(item)
        if run and (total + item_bytes > most or len(run) == count):
            yield run
            run, total = [], 0
        run.append(item)
        total += item_bytes
    if run:
        yield run


def utc(time_us: int) -> datetime:
    """The time, in UTC, of a number of microseconds since 1970-01-01."""
    return _EPOCH + timedelta(microseconds=time_us)


def days_since_epoch(day: date) -> int:
    return day.toordinal() - _EPOCH.toordinal()


def since_epoch(time: datetime) -> int:
    """Microseconds from 1970-01-01 in UTC to a time with a zone. Raises ValueError for NaT."""
    return int((time - _EPOCH) // timedelta(microseconds=1))


LAST_US = since_epoch(datetime.max.replace(tzinfo=UTC))  # the last time that can be shown, at the end of the year 9999
