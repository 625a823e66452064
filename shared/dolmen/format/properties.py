"""Properties of tables and databases: what they mean, and which values they may have.

A property is stored unparsed (a duration stays ``"30d"``). A setting is its parsed value, or its default:
``TableSettings`` and ``DatabaseSettings`` have all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, cast

import pyarrow as pa
from msgspec import Struct

from dolmen.base import arguments
from dolmen.base.units import GIB, KIB, MIB, parse_duration, parse_size
from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.column_terms import (
    PartitionTerm,
    parse_cluster_by,
    parse_partition_by,
    partition_terms,
    with_renamed_term,
)
from dolmen.format.schema import Schema, SortKey
from dolmen.format.types import can_be_key, short_type


class HasProperties(Protocol):
    """A table's entry, or a manifest."""

    @property
    def properties(self) -> Mapping[str, Any]: ...


class Property(Struct, frozen=True):
    """A property: its name, its default, and how its values are parsed."""

    name: str
    default: str | int | None  # its value while it is not set; None = it has none
    parse: Callable[[Any], Any]  # parses a value. Raises InputError, which says what is allowed.
    help: str  # one line for people
    other_type: type | None = None  # a type that a value may have besides text and whole number: ``bool`` or ``list``
    # raises InputError for a parsed value that may be stored already, but cannot be set any more
    check_new: Callable[[Any], object] | None = None
    attribute: str = ""  # the name of the setting, if it is not ``name``


def size_between(least: int, most: int) -> Callable[[Any], int]:
    """Reads a size between these bounds, in bytes."""

    def parse(value: Any) -> int:
        size = parse_size(value)
        if not least <= size <= most:
            raise InputError(f"{short_repr(value)} is out of bounds: from {least:,} to {most:,} bytes")
        return size

    return parse


def parse_count(value: Any, most: int = 999_999_999) -> int:
    text = str(value).strip()
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII) or int(text) > most:
        raise InputError(f"{short_repr(value)} is not a number from 1 to {most:,}")
    return int(text)


def parse_choice(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise InputError(f"{short_repr(value)} is not one of {', '.join(choices)}")
        return str(value)

    return parse


def parse_flag(value: Any) -> bool:
    if value in (True, "true"):
        return True
    if value in (False, "false"):
        return False
    raise InputError(f"{short_repr(value)} is neither true nor false")


def parse_words(value: Any) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError(f"{short_repr(value)} is not a list of texts")
    return tuple(words)


def parse_name(value: Any) -> str:
    """Reads a name: any text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{short_repr(value)} is not a name")
    return value.strip()


def check_properties(changes: Mapping[str, Any], definitions: Mapping[str, Property], owner: str) -> dict[str, Any]:
    """Returns ``changes`` if each is a known property and a value of it; None as a value unsets. Raises InputError.

    A name such as ``user.owner`` is the users' own: its value is text, which dolmen does not use.
    """
    for name, value in changes.items():
        if isinstance(name, str) and name.startswith(USER):
            _check_user_property(name, value)
            continue
        if name not in definitions:
            raise InputError(
                f"{owner} has no property {short_repr(name)}; there are: {', '.join(definitions)}, and names of your "
                "own, such as user.owner"
            )
        if value is not None:
            _parse(definitions[name], value, is_new=True)
    return dict(changes)


USER = "user."  # the prefix of the names of users' own properties


def _check_user_property(name: str, value: Any) -> None:
    if not re.fullmatch(r"user\.[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", name, re.ASCII):
        raise InputError(f"property {short_repr(name)}: after user. come 1 to 64 characters of A-Z, a-z, 0-9 and _.-")
    if value is not None:
        arguments.own_text(f"property {name}", value)


def value_of(property_: Property, properties: Mapping[str, Any]) -> Any:
    """The parsed value of a property, or its default where it is not set. Raises InputError."""
    value = properties.get(property_.name, property_.default)
    return None if value is None else _parse(property_, value)


def read_settings(definitions: Mapping[str, Property], properties: Mapping[str, Any]) -> dict[str, Any]:
    """The parsed values of all properties, by the name of their attribute in a class of settings. Raises InputError."""
    return {each.attribute or each.name: value_of(each, properties) for each in definitions.values()}


def by_name(*properties: Property) -> dict[str, Property]:
    return {each.name: each for each in properties}


def _parse(property_: Property, value: Any, *, is_new: bool = False) -> Any:
    try:
        if type(value) not in (str, int, property_.other_type):
            raise InputError(f"{short_repr(value)} is neither text nor a whole number")
        if isinstance(value, str):
            arguments.text("value", value)
        elif type(value) is int:
            arguments.number("value", value)
        parsed = property_.parse(value)
        if is_new and property_.check_new:
            property_.check_new(parsed)
        return parsed
    except InputError as error:
        raise InputError(f"property {property_.name}: {error}") from None


COMPACTED_FILE_SIZE = "256MB"  # 256 * MIB: units of sizes are powers of 1,024
"""The default size of a full file: compaction writes files of this size, and leaves them alone."""
WRITTEN_FILE_BYTES = 384 * MIB
"""The size at which a write begins the next file: 1.5 times ``COMPACTED_FILE_SIZE``, so that by default compaction
leaves the files of a large write alone."""
ROW_GROUP_BYTES = 4 * MIB
"""The planned size of a compressed row group, in bytes. ``rows/write/runs`` has the limits in rows."""


class TimeToLive(NamedTuple):
    """Rows whose ``column`` is older than ``age_us`` expire."""

    column: str
    age_us: int


def parse_ttl(text: str) -> TimeToLive:
    """Parses ``event_time 90d``: a column, as the schema spells it, and the duration after the last space."""
    column, space, age = text.strip().rpartition(" ") if isinstance(text, str) else ("", "", "")
    if not space:
        raise InputError(f"{text!r} is not a time to live: a column and a duration, as in 'event_time 90d'")
    return TimeToLive(column.strip(), parse_duration(age))


def _parse_filter_bits(value: Any) -> int:
    # Powers of two, because the rows of a row group and the bytes of a filter are, too.
    return int(parse_choice("8", "16", "32", "64")(str(value).strip()))


class Compression(NamedTuple):
    """A codec of Parquet, by pyarrow's name, and its level if it has any."""

    codec: str = "zstd"
    level: int | None = 1

    @property
    def chunk_codecs(self) -> frozenset[str]:
        """The compressions of column chunks that are written with it, as footers name them."""
        return frozenset(("UNCOMPRESSED", *([] if self.codec == "none" else [self.codec.upper()])))


FAST_COMPRESSION = Compression()  # the default

_LEVELS = {"zstd": (1, 22), "gzip": (6, 9)}  # the default and the highest levels


def parse_compression(value: Any) -> Compression:
    """Parses ``zstd(3)``, ``gzip(9)``, or the name of a codec alone."""
    found = re.fullmatch(r"(zstd|gzip|snappy|lz4|none)(?:\s*\(\s*(\d{1,2})\s*\))?", str(value).strip().lower())
    if found is None:
        raise InputError(f"{short_repr(value)} is not zstd(1) to zstd(22), gzip(1) to gzip(9), snappy, lz4 or none")
    codec, level = found.groups()
    default, most = _LEVELS.get(codec, (None, 0))
    if level is not None and not 1 <= int(level) <= most:
        raise InputError(f"{short_repr(value)}: {codec} has {f'levels from 1 to {most}' if most else 'no levels'}")
    return Compression(codec, int(level) if level else default)


MAX_COMMENT = 1_000  # characters of a comment


def check_comment(comment: str) -> None:
    if len(comment) > MAX_COMMENT:
        raise InputError(f"a comment of {len(comment):,} characters: at most {MAX_COMMENT:,} are allowed")


def _parse_comment(value: Any) -> str:
    comment = parse_name(value)
    check_comment(comment)
    return comment


STORAGE_PROPERTIES = by_name(
    Property("comment", None, _parse_comment, "describes the table, for people"),
    Property("ttl", None, parse_ttl, "rows whose time is further back expire: a column and an age, 'event_time 90d'"),
    Property(
        "target_file_bytes",
        COMPACTED_FILE_SIZE,
        size_between(4 * KIB, 4 * GIB),
        "size of a full data file; smaller ones are compacted",
    ),
    Property(
        "iceberg",
        None,
        parse_choice("v2", "v3"),
        "the table is published in this version of Apache Iceberg after each round of maintenance",
    ),
    Property(
        "iceberg_snapshots",
        "newest",
        parse_choice("newest", "kept"),
        "which published versions Iceberg's readers can travel to: the newest, or all that are kept",
    ),
    Property("index", "false", parse_flag, "true: rows are found by their primary key through an index", bool),
    Property("subject", None, parse_name, "the column that says whom a row is about: forget erases by it"),
    Property(
        "leave_out_erased",
        "false",
        parse_flag,
        "true: rows that match an erasure in force are left out when rows are written, and counted",
        bool,
    ),
    Property(
        "key_filter_bits",
        8,
        _parse_filter_bits,
        "bits of the Bloom filters of new data files for each key: 8, 16, 32 or 64; with more bits, a look-up of many "
        "keys reads fewer files that have none of them",
    ),
    Property("compression", "zstd(1)", parse_compression, "of new data files: zstd(3), gzip, snappy, lz4 or none"),
    Property(
        "partition_by",
        None,
        parse_partition_by,
        "columns, or transforms of them, of which a new data file has one value each: 'day(event_time), tenant'",
        list,
    ),
    Property(
        "cluster_by",
        None,
        parse_cluster_by,
        "columns by whose z-order compaction sorts rows: 'tenant, event_time'; instead of a sort key",
        list,
    ),
    Property(
        "partition_files",
        64,
        parse_count,
        "the most partitions for which an append writes files; the rows of all others share files until compaction",
    ),
)

DATABASE_PROPERTIES = by_name(
    Property("retention", "30d", parse_duration, "versions younger than this are kept", attribute="retention_us"),
    Property("keep_versions", 1000, parse_count, "this many of the newest versions are kept, whatever their age"),
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
        "objects that no version names are deleted at this age, so a job must commit within it; less than a day is for "
        "tests, and less than 15m, for which S3 accepts a signature, is unsafe",
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
        "root_bytes", "256KB", size_between(4 * KIB, 16 * MIB), "budget of a manifest; entries beyond it are spilled"
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
        "files that are dropped before an erasure bring no erased row back if they are ingested within this time after "
        "it: more than queues and dead letters keep messages; erase_within ends it earlier",
        attribute="erasure_memory_us",
    ),
)


class TableSettings(Struct, frozen=True):
    """The parsed values of ``STORAGE_PROPERTIES``, with defaults; None where a property has none."""

    comment: str | None
    ttl: TimeToLive | None
    target_file_bytes: int
    iceberg: str | None
    iceberg_snapshots: str
    index: bool
    subject: str | None
    leave_out_erased: bool
    key_filter_bits: int
    compression: Compression
    partition_by: tuple[PartitionTerm, ...] | None
    cluster_by: tuple[str, ...] | None
    partition_files: int

    @classmethod
    def of(cls, entry: HasProperties) -> TableSettings:
        """The settings of a table's entry. Raises InputError when it holds a value that can't be read."""
        return cls(**read_settings(STORAGE_PROPERTIES, entry.properties))


class DatabaseSettings(Struct, frozen=True):
    """The parsed values of ``DATABASE_PROPERTIES``, with defaults. Durations are microseconds."""

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
    def of(cls, manifest: HasProperties) -> DatabaseSettings:
        """The settings of a version. Raises InputError when it holds a value that can't be read."""
        return cls(**read_settings(DATABASE_PROPERTIES, manifest.properties))

    @property
    def late_drops_us(self) -> int:
        """How long erasures are remembered and applied to late drops: at most until their deadline."""
        return min(self.erasure_memory_us, self.erase_within_us)


def root_bytes(manifest: HasProperties) -> int:
    """The size that a manifest of this database may reach before entries are spilled, in bytes."""
    return int(value_of(DATABASE_PROPERTIES["root_bytes"], manifest.properties))


def erase_within_us(properties: Mapping[str, Any]) -> int:
    """The time within which erased rows leave the disk, by the settings of a database."""
    return int(value_of(DATABASE_PROPERTIES["erase_within"], properties))


def has_index(entry: HasProperties) -> bool:
    """Whether a table should have an index of its primary key. Raises InputError when the property can't be read."""
    return bool(value_of(STORAGE_PROPERTIES["index"], entry.properties))


def key_filter_bits(entry: HasProperties) -> int:
    """Bits of the Bloom filters of a table's new data files for each key."""
    return int(value_of(STORAGE_PROPERTIES["key_filter_bits"], entry.properties))


def compression(entry: HasProperties) -> Compression:
    """How new data files of a table are compressed."""
    return cast(Compression, value_of(STORAGE_PROPERTIES["compression"], entry.properties))


def clustered_columns(properties: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns by whose z-order compaction sorts the rows of a table with these properties."""
    value = properties.get("cluster_by")
    return () if value is None else parse_cluster_by(value)


def check_one_order(sort_key: SortKey, properties: Mapping[str, Any]) -> None:
    """Raises SchemaError for a sort key beside ``cluster_by``."""
    if sort_key and properties.get("cluster_by") is not None:
        raise SchemaError("a table has a sort key or cluster_by, not both: remove the other one first")


def partition_files(entry: HasProperties) -> int:
    """The most partitions for which an append writes files of their own."""
    return int(value_of(STORAGE_PROPERTIES["partition_files"], entry.properties))


def check_database_properties(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``changes`` if a database may have these settings; the value None unsets one. Raises InputError."""
    return check_properties(changes, DATABASE_PROPERTIES, "a database")


def check_ttl_column(ttl: TimeToLive, schema: Schema) -> pa.DataType:
    """The type of the column that rows expire by. Raises SchemaError if there is none with dates or timestamps."""
    arrow_type = schema.field(ttl.column).arrow_type
    if not (pa.types.is_timestamp(arrow_type) or pa.types.is_date(arrow_type)):
        raise SchemaError(
            f"rows can't expire by column {ttl.column!r} of type {short_type(arrow_type)}: name a date or a timestamp"
        )
    return arrow_type


def check_subject_column(column: str, schema: Schema) -> pa.DataType:
    """The type of the column that says whom rows are about. Raises SchemaError if rows can't be found by it."""
    arrow_type = schema.field(column).arrow_type
    if not can_be_key(arrow_type):
        raise SchemaError(
            f"column {column!r} of type {short_type(arrow_type)} can't be the subject: rows can't be found by this type"
        )
    return arrow_type


def sequence_column(properties: Mapping[str, Any]) -> str | None:
    """The column that orders a table's changes (CDC); None if no property names one."""
    column = properties.get("cdc_sequence")
    return None if column is None else parse_name(column)


def named_columns(properties: Mapping[str, Any]) -> dict[str, str]:
    """The columns that properties name, each with the name of one such property."""
    columns: dict[str, str] = {}
    if (sequence := sequence_column(properties)) is not None:
        columns[sequence] = "cdc_sequence"
    if properties.get("ttl") is not None:
        columns[parse_ttl(properties["ttl"]).column] = "ttl"
    if properties.get("subject") is not None:
        columns[parse_name(properties["subject"])] = "subject"
    for term in partition_terms(properties):
        columns[term.column] = "partition_by"
    columns |= dict.fromkeys(clustered_columns(properties), "cluster_by")
    return columns


def with_renamed_column(properties: dict[str, Any], column: str, to: str) -> dict[str, Any]:
    """The properties of a table once its column is called ``to``. Raises SchemaError if a property can't name it so."""
    used = named_columns(properties).get(column)
    if used is not None and to != to.strip():
        raise SchemaError(
            f"column {column!r} can't be called {to!r}: the setting {used} names it, and takes no spaces at the "
            "ends of a name; leave them out, or change the setting first"
        )
    changed = dict(properties)
    ttl = properties.get("ttl")
    if ttl is not None and parse_ttl(ttl).column == column:
        changed["ttl"] = f"{to} {ttl.strip().rpartition(' ')[2]}"
    for name in ("cdc_sequence", "subject"):
        if str(properties.get(name, "")).strip() == column:
            changed[name] = to
    for name in ("partition_by", "cluster_by"):
        if properties.get(name) is not None:
            changed[name] = with_renamed_term(properties[name], column, to)
    return changed


def effective_values(properties: Mapping[str, Any], definitions: Mapping[str, Property]) -> dict[str, Any]:
    """All properties with their values, and users' own; a property that is not set has its default."""
    own = {name: value for name, value in properties.items() if name.startswith(USER)}
    return {each: properties.get(each, property_.default) for each, property_ in definitions.items()} | own
