"""Properties: names, values, defaults, and what is refused with what to write instead."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from dolmen.base.units import parse_duration, parse_size
from dolmen.errors import InputError, SchemaError
from dolmen.format.ingest_properties import TABLE_PROPERTIES, check_table_properties
from dolmen.format.manifest import EMPTY, TableEntry
from dolmen.format.properties import (
    DATABASE_PROPERTIES,
    Compression,
    DatabaseSettings,
    TableSettings,
    TimeToLive,
    check_database_properties,
    effective_values,
    root_bytes,
)
from dolmen.format.schema import Schema

SCHEMA = Schema.from_arrow(
    pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("local time", pa.timestamp("us")),
            ("day", pa.date32()),
            ("clock", pa.time64("us")),
        ]
    )
)
DAY_US = 86_400_000_000


def table(**properties: Any) -> TableEntry:
    return TableEntry(uuid="u", epoch=1, schema=SCHEMA, properties=properties)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90d", 90 * 86_400), ("2w", 14 * 86_400), ("12h", 43_200), ("15m", 900), ("1s", 1)]
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds * 1_000_000


@pytest.mark.parametrize("text", ["", "d", "90", "0d", "-1d", "1.5d", "90 d", "90D", "1y", "1d2h", "٣d", "99999999w"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(InputError, match="90d"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "size"), [("256MB", 256 << 20), ("64 kb", 64 << 10), ("1GB", 1 << 30), ("4096B", 4096), (4096, 4096)]
)
def test_a_size_is_a_number_with_or_without_a_unit(value: Any, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize("value", ["", "MB", "1.5MB", "256TB", "-1", 0, "1 000"])
def test_anything_else_is_no_size(value: Any) -> None:
    with pytest.raises(InputError, match="256MB"):
        parse_size(value)


def test_without_settings_the_defaults_hold() -> None:
    assert TableSettings.of(table()) == TableSettings(
        None, None, 256 << 20, None, "newest", False, None, False, 8, Compression("zstd", 1), None, None, 64
    )
    assert DatabaseSettings.of(EMPTY) == DatabaseSettings(
        retention_us=30 * DAY_US,
        keep_versions=1000,
        reader_grace_us=DAY_US // 24,
        orphan_age_us=7 * DAY_US,
        intent_timeout_us=DAY_US // 24,
        applied_retention_us=35 * DAY_US,
        root_bytes=256 << 10,
        erase_within_us=30 * DAY_US,
        erasure_memory_us=14 * DAY_US,
    )
    assert root_bytes(EMPTY) == 256 << 10


def test_each_setting_reaches_its_own_field() -> None:
    for name in DATABASE_PROPERTIES:
        value = {"keep_versions": "7", "root_bytes": "64KB"}.get(name, "3d")
        found = DatabaseSettings.of(msgspec.structs.replace(EMPTY, properties={name: value}))
        field = name if name in ("keep_versions", "root_bytes") else f"{name}_us"
        assert getattr(found, field) == {"7": 7, "64KB": 64 << 10, "3d": 3 * DAY_US}[value]
        changed = [
            each
            for each in found.__struct_fields__
            if getattr(found, each) != getattr(DatabaseSettings.of(EMPTY), each)
        ]
        assert changed == [field]
    assert TableSettings.of(table(ttl="local time 90d")).ttl == TimeToLive("local time", 90 * DAY_US)
    assert TableSettings.of(table(target_file_bytes=8192)).target_file_bytes == 8192


def test_values_are_kept_as_they_were_given_and_none_unsets() -> None:
    given = {"ttl": "at 90d", "target_file_bytes": "256MB"}
    assert check_table_properties(given, SCHEMA) == given
    assert check_table_properties({"ttl": None}, SCHEMA) == {"ttl": None}
    assert check_database_properties({"retention": "7d", "root_bytes": None}) == {"retention": "7d", "root_bytes": None}


@pytest.mark.parametrize("column", ["at", "day", "local time"])
def test_rows_expire_by_dates_and_timestamps(column: str) -> None:
    assert check_table_properties({"ttl": f"{column} 90d"}, SCHEMA)


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"ttl": "id 90d"}, "int64"),
        ({"ttl": "clock 90d"}, "time64"),
        ({"ttl": "nowhere 90d"}, "at, local time, day"),
        ({"ttl": "at"}, "event_time 90d"),
        ({"ttl": "at 90"}, "90d"),
        ({"ttl": 90}, "event_time 90d"),
        ({"target_file_bytes": "1KB"}, "4,096"),
        ({"target_file_bytes": True}, "neither"),
        ({"retention": "7d"}, "ttl, target_file_bytes"),
    ],
)
def test_what_a_table_cannot_be_set_to_is_refused_with_what_it_can(changes: dict[str, Any], phrase: str) -> None:
    with pytest.raises((InputError, SchemaError), match=phrase):
        check_table_properties(changes, SCHEMA)


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"retention": "30"}, "retention.*90d"),
        ({"retention": 30}, "90d"),
        ({"retention": ["30d"]}, "neither"),
        ({"keep_versions": 0}, "from 1"),
        ({"keep_versions": "many"}, "from 1"),
        ({"orphan_age": "0d"}, "90d"),
        ({"root_bytes": "1GB"}, "16,777,216"),
        ({"ttl": "at 90d"}, "retention, keep_versions"),
    ],
)
def test_what_a_database_cannot_be_set_to_is_refused_with_what_it_can(changes: dict[str, Any], phrase: str) -> None:
    with pytest.raises(InputError, match=phrase):
        check_database_properties(changes)


def test_a_stored_value_that_nobody_can_read_is_named() -> None:
    with pytest.raises(InputError, match="property ttl"):
        TableSettings.of(table(ttl="whenever"))


def test_what_holds_is_shown_with_defaults() -> None:
    told = effective_values({"ttl": "at 90d"}, TABLE_PROPERTIES)
    assert told["ttl"] == "at 90d"
    assert told["target_file_bytes"] == "256MB"
    assert told["ingest_mode"] == "append"
    assert told.keys() == TABLE_PROPERTIES.keys()
