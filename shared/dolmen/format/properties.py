"""Properties of tables and databases: which there are, what they mean, and what a value may be.

Values are stored as they were given (a duration stays ``"30d"``) and read through ``TableSettings`` and
``DatabaseSettings``, which know the defaults. Pure: nothing here reads or writes anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa

from dolmen.errors import InputError, SchemaError
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import Schema

_UNITS_US = {"w": 604_800_000_000, "d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000}
_MAX_US = 36_525 * _UNITS_US["d"]
_SIZES = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_DURATION = re.compile(r"([1-9]\d{0,9})([wdhms])", re.ASCII)
_SIZE = re.compile(r"([1-9]\d{0,12}) ?([KMG]?B|)", re.IGNORECASE | re.ASCII)


@cache
def parse_duration(text: str) -> int:
    """Microseconds of ``90d``, ``12h``, ``15m``, ``30s`` or ``2w``. Raises InputError, also beyond a century."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    duration_us = int(match[1]) * _UNITS_US[match[2]] if match else 0
    if not 0 < duration_us <= _MAX_US:
        raise InputError(f"{text!r} is no duration: a number and w, d, h, m or s, as in 90d, of at most a century")
    return duration_us


@cache
def parse_size(value: str | int) -> int:
    """Bytes of ``256MB``, ``64KB``, ``1GB`` (powers of 1024) or a plain number. Raises InputError."""
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, (str, int)) else None
    if match is None:
        raise InputError(f"{value!r} is no size: a number of bytes, or one with KB, MB or GB, as in 256MB")
    return int(match[1]) * _SIZES[match[2].upper()]


class TimeToLive(NamedTuple):
    """Rows whose ``column`` is older than ``age_us`` expire."""

    column: str
    age_us: int


def parse_ttl(text: str) -> TimeToLive:
    """``event_time 90d``: a column (as it is spelt in the schema; the last word is the age) and a duration."""
    column, space, age = text.strip().rpartition(" ") if isinstance(text, str) else ("", "", "")
    if not space:
        raise InputError(f"{text!r} is no time to live: a column and a duration, as in 'event_time 90d'")
    return TimeToLive(column.strip(), parse_duration(age))


@dataclass(frozen=True)
class Property:
    """One setting.

    Args:
        default: what holds while it is not set; None = nothing does.
        parse: reads a value. Raises InputError, which says what is allowed.
        help: one line for people.
    """

    name: str
    default: str | int | None
    parse: Callable[[Any], Any]
    help: str


def _sized(least: int, most: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        size = parse_size(value)
        if not least <= size <= most:
            raise InputError(f"{value!r} is out of bounds: from {least:,} to {most:,} bytes")
        return size

    return parse


def _count(value: Any) -> int:
    text = str(value).strip()
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise InputError(f"{value!r} is no number from 1 to 999,999,999")
    return int(text)


TABLE_PROPERTIES = {
    known.name: known
    for known in (
        Property(
            "ttl", None, parse_ttl, "rows whose time is further back expire: a column and an age, 'event_time 90d'"
        ),
        Property(
            "target_file_bytes",
            "256MB",
            _sized(4 << 10, 4 << 30),
            "size of a full data file; smaller ones are compacted",
        ),
    )
}
DATABASE_PROPERTIES = {
    known.name: known
    for known in (
        Property("retention", "30d", parse_duration, "versions younger than this are kept"),
        Property("keep_versions", 1000, _count, "this many of the newest versions are kept, whatever their age"),
        Property("reader_grace", "1h", parse_duration, "a scan under way may go on reading an expired version so long"),
        Property(
            "orphan_age",
            "7d",
            parse_duration,
            "objects that no version names are removed at this age; a job must commit within it. Below a day is for "
            "tests, below 15m (for which S3 takes a signature) it is unsafe",
        ),
        Property(
            "intent_timeout", "1h", parse_duration, "a long job without a heartbeat for so long is taken for dead"
        ),
        Property(
            "applied_retention",
            "35d",
            parse_duration,
            "ids of applied events and requests are remembered so long: longer than a queue and its dead letters",
        ),
        Property(
            "root_bytes", "256KB", _sized(4 << 10, 16 << 20), "budget of a manifest; entries beyond it are spilled"
        ),
    )
}


@dataclass(frozen=True)
class TableSettings:
    """A table's settings, defaults filled in.

    Args:
        ttl: which rows expire; None = none do.
        target_file_bytes: size of a full data file.
    """

    ttl: TimeToLive | None
    target_file_bytes: int

    @classmethod
    def of(cls, entry: TableEntry) -> TableSettings:
        """The settings of a table's entry. Raises InputError when it holds a value that can't be read."""
        return cls(*(_value(known, entry.properties) for known in TABLE_PROPERTIES.values()))


@dataclass(frozen=True)
class DatabaseSettings:
    """A database's settings, defaults filled in. Durations are microseconds."""

    retention_us: int
    keep_versions: int
    reader_grace_us: int
    orphan_age_us: int
    intent_timeout_us: int
    applied_retention_us: int
    root_bytes: int

    @classmethod
    def of(cls, manifest: Manifest) -> DatabaseSettings:
        """The settings of a version. Raises InputError when it holds a value that can't be read."""
        return cls(*(_value(known, manifest.properties) for known in DATABASE_PROPERTIES.values()))


def root_bytes(manifest: Manifest) -> int:
    """How many bytes a manifest of this database may have before entries are spilled."""
    return int(_value(DATABASE_PROPERTIES["root_bytes"], manifest.properties))


def check_table_properties(changes: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Returns ``changes`` if a table of this schema may be set so; None as a value unsets.

    Raises:
        InputError: an unknown name, or a value that is not allowed.
        SchemaError: ``ttl`` names no column with dates or timestamps.
    """
    checked = _check(changes, TABLE_PROPERTIES, "a table")
    if checked.get("ttl") is not None:
        check_ttl_column(parse_ttl(checked["ttl"]), schema)
    return checked


def check_database_properties(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``changes`` if a database may be set so; None as a value unsets. Raises InputError."""
    return _check(changes, DATABASE_PROPERTIES, "a database")


def check_ttl_column(ttl: TimeToLive, schema: Schema) -> pa.DataType:
    """The type of the column that rows expire by. Raises SchemaError if there is none with dates or timestamps."""
    arrow_type = schema.field(ttl.column).arrow_type
    if not (pa.types.is_timestamp(arrow_type) or pa.types.is_date(arrow_type)):
        raise SchemaError(
            f"rows can't expire by column {ttl.column!r} of type {arrow_type}: take a date or a timestamp"
        )
    return arrow_type


def shown(properties: Mapping[str, Any], known: Mapping[str, Property]) -> dict[str, Any]:
    """Every setting with the value that holds, the default where none is set."""
    return {name: properties.get(name, property_.default) for name, property_ in known.items()}


def _check(changes: Mapping[str, Any], known: Mapping[str, Property], what: str) -> dict[str, Any]:
    for name, value in changes.items():
        if name not in known:
            raise InputError(f"{what} has no property {name!r}; there are: {', '.join(known)}")
        if value is not None:
            _read(known[name], value)
    return dict(changes)


def _value(known: Property, properties: Mapping[str, Any]) -> Any:
    value = properties.get(known.name, known.default)
    return None if value is None else _read(known, value)


def _read(known: Property, value: Any) -> Any:
    try:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise InputError(f"{value!r} is neither text nor a whole number")
        return known.parse(value)
    except InputError as error:
        raise InputError(f"property {known.name}: {error}") from None
