"""``format("dolmen")`` by Spark's Python data source API: its options, and the table that they name.

Spark makes the source in a Python process of its planner, asks it for the schema there, and sends it to others. The
first of these steps decides what is read: ``source_table`` reads one version, and everything later uses that version's
manifest. dolmen itself reads and writes the rows in Python workers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import types as s

from dolmen.api.database import Database
from dolmen.api.database import open as open_database
from dolmen.base.records import replace
from dolmen.commit.head import context_of
from dolmen.entries.segments.segment_reader import erasures_of
from dolmen.errors import DatabaseNotFoundError, InputError, SchemaError
from dolmen.format.manifest import Erasure, Manifest
from dolmen.format.schema import COMMIT_TS, COMMIT_TS_FIELD, Field, Schema
from dolmen.spark.frame_types import Origin, spark_schema
from dolmen.transactions.snapshot import Moment

VERSION_OPTIONS = ("version", "timestamp", "tag", "version_as_of", "timestamp_as_of")  # the options that name a version
READ = ("table", *VERSION_OPTIONS, "columns", "where", "with_commit_ts", "push_filters")
CHANGES_READ = ("table", "changes", "since", "until", "net", "columns", "where")
WRITE = (
    "table", "request", "since", "force", "merge_schema", "operation", "replace_where", "partition_overwrite_mode",
)  # fmt: skip
STREAM_READ = (
    "table", "columns", "where", "with_commit_ts", "starting_version", "starting_timestamp", "max_versions_per_trigger",
    "ignore_deletes",
)  # fmt: skip
CHANGES_STREAM_READ = (
    "table", "changes", "net", "columns", "where", "starting_version", "starting_timestamp",
    "max_versions_per_trigger", "cursor",
)  # fmt: skip
STREAM_WRITE = ("table", "merge_schema", "operation")
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_SPARK_OPTIONS = frozenset({
    "checkpointlocation", "collation", "comment", "external", "ismanagedlocation", "location", "mergeschema",
    "outputmode", "owner", "paths", "provider", "queryname",
})  # fmt: skip
"""Options that Spark itself, or its catalog, adds."""


def reads_changes(raw: Mapping[str, str]) -> bool:
    """Whether the option ``changes`` asks for the change feed. Raises InputError."""
    return Options(raw).flag("changes")


class Options:
    """The options of one read or write, whose names may be written in any case, and without underscores."""

    def __init__(self, raw: Mapping[str, str]) -> None:
        self.values = {name.lower().replace("_", ""): value for name, value in raw.items()}

    @classmethod
    def of(cls, raw: Mapping[str, str], allowed: Collection[str]) -> Options:
        """Checks the names. Raises InputError."""
        options = cls(raw)
        names = {name.replace("_", "") for name in allowed} | {"path", "url"}
        unknown = sorted(name for name in options.values if name not in names | _SPARK_OPTIONS and "." not in name)
        if unknown:
            options_text = ", ".join(sorted({"path", *allowed}))
            raise InputError(f'format("dolmen") has no option {unknown[0]!r} here; there are: {options_text}')
        return options

    @property
    def url(self) -> str:
        """URL of the database. Raises InputError if there is none, or two."""
        path, url = self.values.get("path"), self.values.get("url")
        if path and url and path != url:
            raise InputError(f"the options path and url name two databases, {path!r} and {url!r}: give one")
        if not (path or url):
            raise InputError(
                'format("dolmen") needs the database: .load("s3://bucket/database"), or option "path". Spark passes no '
                "options of CREATE TABLE ... USING dolmen: use CREATE TEMPORARY VIEW ... USING dolmen"
            )
        name = str(path or url)
        # Spark's catalog writes paths as Hadoop does.
        return f"file://{name[5:]}" if name.startswith("file:/") and not name.startswith("file://") else name

    @property
    def table(self) -> str:
        name = self.text("table")
        if not name:
            raise InputError('format("dolmen") needs the table: .option("table", "name")')
        return name

    @property
    def columns(self) -> list[str] | None:
        """The names of the columns to read, from a list with commas; None = all."""
        text = self.text("columns")
        return [name.strip() for name in text.split(",")] if text else None

    def text(self, name: str) -> str | None:
        return self.values.get(name.replace("_", ""))

    def flag(self, name: str) -> bool:
        text = self.text(name) or "false"
        if text.lower() not in _TRUTHS:
            raise InputError(f"option {name!r} is {text!r}: true or false")
        return _TRUTHS[text.lower()]

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            value = 0
        if value < 1:
            raise InputError(f"option {name!r} is {text!r}: a whole number of at least 1")
        return value

    def zoned_moment(self, name: str) -> datetime | None:
        """A time with its offset from UTC. Raises InputError: the zone of the session is not known to a source."""
        text = self.text(name)
        if text is None:
            return None
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise InputError(f"option {name!r} is {text!r}: write it as in '2026-11-21T10:00:00Z'") from None
        if moment.tzinfo is None:
            raise InputError(f"option {name!r} is {text!r}: give its time zone, as in '2026-11-21T10:00:00Z'")
        return moment

    def moment(self, name: str) -> str | int | None:
        """ISO 8601 text, or a number: of a version, or of microseconds since the epoch."""
        text = self.text(name)
        return int(text) if text and text.lstrip("-").isdecimal() else text


@dataclass(frozen=True)
class SourceTable:
    """A table in the version that is read, as processes send it to each other.

    Args:
        manifest: key of the version's manifest, by which workers find all else.
        columns: names of the result's columns, in order; ``_commit_ts`` may be among them.
        erased_through: timestamp of the youngest erasure that is younger than the version; 0 if there is none.
        erasures: all erasures that are younger, whose rows the version no longer shows.
    """

    url: str
    table: str
    uuid: str
    version: int
    manifest: str
    schema: Schema = field(compare=False)  # it follows from the manifest, and nested types have no hash
    columns: tuple[str, ...]
    erased_through: int = 0
    erasures: tuple[Erasure, ...] = field(default=(), compare=False)  # there are all up to that timestamp

    def column(self, name: str) -> Field:
        """A column, or the hidden one. Raises SchemaError."""
        return COMMIT_TS_FIELD if name == COMMIT_TS else self.schema.field(name)

    def spark_schema(self) -> s.StructType:
        """The columns as Spark's types, marked with their origin. Raises SchemaError: Spark lacks a column's type."""
        return Origin(self.uuid, self.version).mark(spark_schema(map(self.column, self.columns)))

    def with_schema(self, schema: s.StructType) -> SourceTable:
        """The same table with the columns of a schema that the user, or Spark, gives. Raises SchemaError."""
        check_types(self.table, schema, spark_schema(map(self.column, schema.names)))
        return replace(self, columns=tuple(schema.names))


def check_types(table: str, requested: s.StructType, actual: s.StructType) -> None:
    """Raises SchemaError if columns are requested in other types than they have."""
    for column, actual_column in zip(requested.fields, actual.fields, strict=True):
        kind, wrong = actual_column.dataType.simpleString(), column.dataType.simpleString()
        if kind != wrong:
            raise SchemaError(
                f"column {column.name!r} of table {table!r} is {kind}, and not {wrong}: read it so, and cast it"
            )


def columns_of(options: Options, schema: Schema) -> list[str]:
    """The columns that the options name, all by default. Raises InputError: one is named twice."""
    names = options.columns or [field.name for field in schema.fields]
    if options.flag("with_commit_ts"):
        names = [*names, COMMIT_TS]
    if len(set(names)) < len(names):
        raise InputError(f"option 'columns' names one twice: {', '.join(names)}")
    return names


def source_table(raw: Mapping[str, str], allowed: Collection[str] = READ) -> SourceTable:
    """The table in the version that the options name, the newest by default. Raises InputError, NotFoundError."""
    options = Options.of(raw, allowed)
    database = open_database(options.url)
    return table_at(database, snapshot(database, options), options)


def table_at(database: Database, manifest: Manifest, options: Options) -> SourceTable:
    """The table that the options name, in one version. Raises TableNotFoundError, SchemaError, InputError."""
    context = context_of(database)
    entry = context.segments.whole(manifest.table(options.table))
    columns = tuple(columns_of(options, entry.schema))
    newest = (context.head.cached or context.head.refresh()).manifest
    with context.reading(newest.version):
        erasures = erasures_of(newest, context.segments, after=manifest.commit_ts)
    version = manifest.version, manifest.key, entry.schema, columns
    erased_through = erasures[-1].ts if erasures else 0
    table = SourceTable(database.url, options.table, entry.uuid, *version, erased_through, erasures)
    for name in columns:
        table.column(name)
    return table


def snapshot(database: Database, options: Options) -> Manifest:
    """The manifest of the version that the options ``VERSION_OPTIONS`` name; the newest by default."""
    if len(named := [name for name in VERSION_OPTIONS if options.text(name) is not None]) > 1:
        raise InputError(f"the options {' and '.join(named)} exclude each other: give one")
    version = options.number("version_as_of" if "version_as_of" in named else "version")
    time = options.zoned_moment("timestamp_as_of") or options.moment("timestamp")
    manifest = Moment(version, time, options.text("tag")).find_or_newest(context_of(database))
    if manifest.version == 0:
        raise DatabaseNotFoundError(f"there is no database at {database.url} yet")
    return manifest
