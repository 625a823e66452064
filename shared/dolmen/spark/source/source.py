"""``format("dolmen")``: tables for Spark's own readers and writers, SQL and streams, by its Python data source API.

Spark makes the source in a Python process of its planner, asks it for the schema there, and sends it on to others.
What is read is settled at the first of these steps: ``pin`` looks at one version, and everything later goes by that
version's manifest. Rows are read and written by dolmen itself in Python workers, so that S3 needs no ``hadoop-aws``;
where that is there, ``to_spark`` reads natively and faster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import types as s

from dolmen.api.database import Database
from dolmen.api.database import open as open_database
from dolmen.commit.context import context_of
from dolmen.commit.versions import manifest_at_tag, manifest_at_time, manifest_at_version
from dolmen.entries.segments.erasures_in_force import erasures_of
from dolmen.errors import DatabaseNotFoundError, InputError, SchemaError
from dolmen.format.erasures import Erasure
from dolmen.format.manifest import Manifest
from dolmen.format.schema import COMMIT_TS, COMMIT_TS_FIELD, Field, Schema
from dolmen.spark.origin import Origin
from dolmen.spark.source.source_options import PINS, READ, Options
from dolmen.spark.spark_types import spark_schema
from dolmen.transactions.snapshot import microseconds


@dataclass(frozen=True)
class SourceTable:
    """A table in the version that is read, as processes send it to each other.

    Args:
        url: of the database.
        table: its name.
        uuid: which it has, whatever tables of that name there were or will be.
        version: the version.
        manifest: key of its manifest, by which workers find all else.
        schema: of the table in that version.
        columns: names of the result's columns, in order; ``_commit_ts`` may be among them.
        erased_through: timestamp of the youngest erasure that is younger than the version; 0 if none is.
        erasures: all of these, whose rows the version does not show any more.
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
        """The columns as Spark's types, marked with their origin.

        Raises:
            SchemaError: Spark does not have a column's type.
        """
        return Origin(self.uuid, self.version).mark(spark_schema(self.column(name) for name in self.columns))

    def with_schema(self, schema: s.StructType) -> SourceTable:
        """The same table with the columns of a schema that the user, or Spark, asks for.

        Raises:
            SchemaError: a column that the table does not have, or has in another type.
        """
        check_types(self.table, schema, spark_schema(self.column(wanted.name) for wanted in schema.fields))
        return replace(self, columns=tuple(field.name for field in schema.fields))


def check_types(table: str, wanted: s.StructType, own: s.StructType) -> None:
    """Raises SchemaError if columns are wanted in other types than they have."""
    for asked, there in zip(wanted.fields, own.fields, strict=True):
        if there.dataType.simpleString() != asked.dataType.simpleString():
            raise SchemaError(
                f"column {asked.name!r} of table {table!r} is {there.dataType.simpleString()}, "
                f"and not {asked.dataType.simpleString()}: read it so, and cast it"
            )


def pin(options: Mapping[str, str], known: Collection[str] = READ) -> SourceTable:
    """Pins the version that the options name, the newest by default.

    Raises:
        InputError: options that are not there, or contradict each other.
        NotFoundError: no such database, table or version.
    """
    given = Options.of(options, known)
    database = open_database(given.url)
    return pin_table(database, snapshot(database, given), given)


def pin_table(database: Database, manifest: Manifest, given: Options) -> SourceTable:
    """The table that the options name, in one version. Raises TableNotFoundError, SchemaError, InputError."""
    entry = context_of(database).segments.whole(manifest.table(given.table))
    schema = entry.schema
    columns = given.columns or [field.name for field in schema.fields]
    if given.flag("with_commit_ts"):
        columns = [*columns, COMMIT_TS]
    if len(set(columns)) < len(columns):
        raise InputError(f"option 'columns' names one twice: {', '.join(columns)}")
    head = context_of(database).head
    newest = (head.cached or head.refresh()).manifest
    with context_of(database).reading(newest.version):
        erasures = erasures_of(newest, context_of(database).segments, after=manifest.commit_ts)
    table = SourceTable(
        database.url,
        given.table,
        entry.uuid,
        manifest.version,
        manifest.key,
        schema,
        tuple(columns),
        erasures[-1].ts if erasures else 0,
        erasures,
    )
    for name in columns:
        table.column(name)
    return table


def snapshot(database: Database, given: Options) -> Manifest:
    """The manifest of the version that the options ``PINS`` name; the newest by default."""
    if len(pins := [name for name in PINS if given.text(name) is not None]) > 1:
        raise InputError(f"the options {' and '.join(pins)} say two things: give one")
    version = given.number("version_as_of" if "version_as_of" in pins else "version")
    moment = given.zoned_moment("timestamp_as_of") or given.moment("timestamp")
    tag = given.text("tag")
    head = context_of(database).head
    base = head.refresh()
    with context_of(database).reading(base.manifest.version):
        if version is not None:
            return manifest_at_version(head, base.manifest, version)
        if moment is not None:
            return manifest_at_time(head, base, microseconds(moment), settled=False)
        if tag is not None:
            return manifest_at_tag(head, base.manifest, tag)
    if base.manifest.version == 0:
        raise DatabaseNotFoundError(f"there is no database at {database.url} yet")
    return base.manifest
