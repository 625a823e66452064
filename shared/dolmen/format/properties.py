"""Properties of tables and databases: which there are, what they mean, and what a value may be.

Values are stored as they were given (a duration stays ``"30d"``) and read through ``TableSettings``,
``IngestSettings`` and ``DatabaseSettings``, which know the defaults. Pure: nothing here reads or writes anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from dolmen.base.units import GIB, KIB, MIB, parse_duration
from dolmen.errors import InputError, SchemaError
from dolmen.format.ingest_properties import INGEST_PROPERTIES, IngestSettings
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.property import (
    Property,
    check_properties,
    count,
    name,
    one_of,
    read_settings,
    sized,
    truth,
    value_of,
)
from dolmen.format.schema import Schema
from dolmen.format.types import can_be_key, short_type

COMPACTED_FILE_BYTES = "256MB"
"""The default size of a full file: compaction leaves files of this size alone, and writes files of it."""
WRITTEN_FILE_BYTES = 384 * MIB
"""The size at which a write begins the next file. It is half again as large, so that compaction leaves files of a large
write alone by default."""
ROW_GROUP_BYTES = 4 * MIB
"""The planned size of a compressed row group, in bytes. ``rows/write/parquet_object`` has the limits in rows."""


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


def filter_bits(value: Any) -> int:
    """Reads a number of bits by which Bloom filters come."""
    bits = count(value)
    if bits not in FILTER_BITS:
        raise InputError(f"{bits} is none of {', '.join(map(str, FILTER_BITS))}")
    return bits


FILTER_BITS = (8, 16, 32, 64)
"""Row groups have a power of two of rows, and filters of bytes."""

_OWN = {
    known.name: known
    for known in (
        Property(
            "ttl", None, parse_ttl, "rows whose time is further back expire: a column and an age, 'event_time 90d'"
        ),
        Property(
            "target_file_bytes",
            COMPACTED_FILE_BYTES,
            sized(4 * KIB, 4 * GIB),
            "size of a full data file; smaller ones are compacted",
        ),
        Property(
            "iceberg",
            None,
            one_of("v2", "v3"),
            "the table is published in this version of Apache Iceberg after each round of maintenance",
        ),
        Property(
            "iceberg_snapshots",
            "newest",
            one_of("newest", "kept"),
            "which published versions Iceberg's readers can travel to: the newest, or all that are kept",
        ),
        Property(
            "index",
            "false",
            truth,
            "true: rows are found by their primary key through an index",
            bool,
        ),
        Property("subject", None, name, "the column that says whom a row is about: forget erases by it"),
        Property(
            "leave_out_erased",
            "false",
            truth,
            "true: rows that match an erasure in force are left out when rows are written, and counted",
            bool,
        ),
        Property(
            "key_filter_bits",
            8,
            filter_bits,
            "bits of Bloom filter for each key in new data files: 8, 16, 32 or 64; with more of them, more keys can be "
            "looked up at once without reading files that have none",
        ),
    )
}
TABLE_PROPERTIES = {**_OWN, **INGEST_PROPERTIES}
DATABASE_PROPERTIES = {
    known.name: known
    for known in (
        Property("retention", "30d", parse_duration, "versions younger than this are kept", attribute="retention_us"),
        Property("keep_versions", 1000, count, "this many of the newest versions are kept, whatever their age"),
        Property(
            "reader_grace",
            "1h",
            parse_duration,
            "a running scan may read an expired version for this long",
            attribute="reader_grace_us",
        ),
        Property(
            "orphan_age",
            "7d",
            parse_duration,
            "objects that no version names are removed at this age; a job must commit within it. Below a day is for "
            "tests, below 15m (for which S3 takes a signature) it is unsafe",
            attribute="orphan_age_us",
        ),
        Property(
            "intent_timeout",
            "1h",
            parse_duration,
            "a long job without a heartbeat for this long counts as dead",
            attribute="intent_timeout_us",
        ),
        Property(
            "applied_retention",
            "35d",
            parse_duration,
            "ids of applied events and requests are kept for this long: longer than queues keep their dead letters",
            attribute="applied_retention_us",
        ),
        Property(
            "root_bytes", "256KB", sized(4 * KIB, 16 * MIB), "budget of a manifest; entries beyond it are spilled"
        ),
        Property(
            "erase_within",
            "30d",
            parse_duration,
            "rows that are erased leave the disk within this time",
            attribute="erase_within_us",
        ),
        Property(
            "erasure_memory",
            "14d",
            parse_duration,
            "files dropped before an erasure, and ingested up to this time after it, bring no erased row back: longer "
            "than queues and their dead letters keep anything; erase_within ends it earlier",
            attribute="erasure_memory_us",
        ),
    )
}


@dataclass(frozen=True)
class TableSettings:
    """A table's settings, defaults filled in.

    Args:
        ttl: which rows expire; None = none do.
        target_file_bytes: size of a full data file.
        iceberg: the version of Iceberg in which it is published: v2 or v3; None = it is not published.
        iceberg_snapshots: which published versions readers can travel to: newest or kept.
        index: whether rows are found by their primary key through an index.
        subject: name of the column that says whom a row is about; None = rows are about no one.
        leave_out_erased: whether rows that match an erasure in force are left out when rows are written.
        key_filter_bits: bits of the Bloom filters of new data files for each key.
    """

    ttl: TimeToLive | None
    target_file_bytes: int
    iceberg: str | None
    iceberg_snapshots: str
    index: bool
    subject: str | None
    leave_out_erased: bool
    key_filter_bits: int

    @classmethod
    def of(cls, entry: TableEntry) -> TableSettings:
        """The settings of a table's entry. Raises InputError when it holds a value that can't be read."""
        return cls(**read_settings(_OWN, entry.properties))


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
    erase_within_us: int
    erasure_memory_us: int

    @classmethod
    def of(cls, manifest: Manifest) -> DatabaseSettings:
        """The settings of a version. Raises InputError when it holds a value that can't be read."""
        return cls(**read_settings(DATABASE_PROPERTIES, manifest.properties))

    @property
    def listed_us(self) -> int:
        """How long erasures are remembered and applied to late drops: their deadline comes first."""
        return min(self.erasure_memory_us, self.erase_within_us)


def root_bytes(manifest: Manifest) -> int:
    """The size that a manifest of this database may reach before entries are spilled, in bytes."""
    return int(value_of(DATABASE_PROPERTIES["root_bytes"], manifest.properties))


def has_own_root_bytes(manifest: Manifest) -> bool:
    """Whether the database has set ``root_bytes``, so that its manifests are to be filled up to it."""
    return "root_bytes" in manifest.properties


def has_index(entry: TableEntry) -> bool:
    """Whether a table is to have an index of its primary key. Raises InputError when its setting can't be read."""
    return bool(value_of(_OWN["index"], entry.properties))


def key_filter_bits(entry: TableEntry) -> int:
    """Bits of the Bloom filters of a table's new data files for each key."""
    return int(value_of(_OWN["key_filter_bits"], entry.properties))


def check_table_properties(
    changes: Mapping[str, Any],
    schema: Schema,
    primary_key: Sequence[int] = (),
    current: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns ``changes`` if a table of this schema may be set so; None as a value unsets.

    Args:
        primary_key: ids of its columns.
        current: what is set already.

    Raises:
        InputError: an unknown name, a value that is not allowed, or some that do not go together.
        SchemaError: a column that is not there, or can't be what it is named for.
    """
    checked = check_properties(changes, TABLE_PROPERTIES, "a table")
    if checked.get("ttl") is not None:
        check_ttl_column(parse_ttl(checked["ttl"]), schema)
    if checked.get("index") is not None and truth(checked["index"]) and not primary_key:
        raise SchemaError("property index: rows are found by their primary key, and the table has none")
    if checked.get("subject") is not None:
        check_subject_column(name(checked["subject"]), schema)
    if checked.keys() & INGEST_PROPERTIES.keys():
        merged = {name: value for name, value in {**(current or {}), **checked}.items() if value is not None}
        IngestSettings.read(merged).check(schema, primary_key)
    for column in columns_named(checked):
        checked = with_renamed_column(checked, column, schema.field(column).name)
    return checked


def check_database_properties(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``changes`` if a database may be set so; None as a value unsets. Raises InputError."""
    return check_properties(changes, DATABASE_PROPERTIES, "a database")


def check_ttl_column(ttl: TimeToLive, schema: Schema) -> pa.DataType:
    """The type of the column that rows expire by. Raises SchemaError if there is none with dates or timestamps."""
    arrow_type = schema.field(ttl.column).arrow_type
    if not (pa.types.is_timestamp(arrow_type) or pa.types.is_date(arrow_type)):
        raise SchemaError(
            f"rows can't expire by column {ttl.column!r} of type {short_type(arrow_type)}: take a date or a timestamp"
        )
    return arrow_type


def erase_within_us(properties: Mapping[str, Any]) -> int:
    """The time within which erased rows leave the disk, by the settings of a database."""
    return int(value_of(DATABASE_PROPERTIES["erase_within"], properties))


def check_subject_column(column: str, schema: Schema) -> pa.DataType:
    """The type of the column that says whom rows are about. Raises SchemaError if rows can't be found by it."""
    arrow_type = schema.field(column).arrow_type
    if not can_be_key(arrow_type):
        raise SchemaError(
            f"column {column!r} of type {short_type(arrow_type)} can't be the subject: rows are not found by it"
        )
    return arrow_type


def sequence_column(properties: Mapping[str, Any]) -> str | None:
    """The column that orders a table's changes (CDC); None if no setting names one."""
    column = properties.get("cdc_sequence")
    return None if column is None else name(column)


def columns_named(properties: Mapping[str, Any]) -> dict[str, str]:
    """The columns that settings name, each with the name of one such setting."""
    found: dict[str, str] = {}
    if (sequence := sequence_column(properties)) is not None:
        found[sequence] = "cdc_sequence"
    if properties.get("ttl") is not None:
        found[parse_ttl(properties["ttl"]).column] = "ttl"
    if properties.get("subject") is not None:
        found[name(properties["subject"])] = "subject"
    return found


def with_renamed_column(properties: dict[str, Any], column: str, to: str) -> dict[str, Any]:
    """The settings of a table whose column is called ``to`` from now on.

    Raises:
        SchemaError: a setting names the column, and can't name it so.
    """
    used = columns_named(properties).get(column)
    if used is not None and to != to.strip():
        raise SchemaError(
            f"column {column!r} can't be called {to!r}: the setting {used} names it, and takes no spaces at the ends "
            "of a name; leave these away, or change the setting first"
        )
    changed = dict(properties)
    ttl = properties.get("ttl")
    if ttl is not None and parse_ttl(ttl).column == column:
        changed["ttl"] = f"{to} {ttl.strip().rpartition(' ')[2]}"
    for setting in ("cdc_sequence", "subject"):
        if str(properties.get(setting, "")).strip() == column:
            changed[setting] = to
    return changed


def shown(properties: Mapping[str, Any], known: Mapping[str, Property]) -> dict[str, Any]:
    """All settings with their values, or defaults where none is set."""
    return {each: properties.get(each, property_.default) for each, property_ in known.items()}
