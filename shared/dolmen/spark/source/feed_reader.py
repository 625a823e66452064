"""``option("changes", True)``: the change feed of a table, read in parts by Python workers.

The planner finds the parts in manifests and segments alone: commits, and files within a commit. Each worker plans its
parts again, and reads them in bounded memory. The options decide whether a frame reads rows or changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec
import pyarrow as pa
from pyspark.sql import types as s
from pyspark.sql.datasource import DataSourceReader, InputPartition

from dolmen.api.database import Database
from dolmen.api.database import open as open_database
from dolmen.base.runtime import shared_runtime
from dolmen.commit.context import Context, context_of
from dolmen.commit.head import Head
from dolmen.errors import InputError
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.predicate import Predicate
from dolmen.rows.changes.feed import FEED_FIELDS, ChangeFeed, FeedPart, PartReader, VersionKey, check_names, parts_of
from dolmen.spark.failures import mark_dolmen_errors
from dolmen.spark.origin import Origin
from dolmen.spark.source.batch_reader import groups_of, parse_where, reader
from dolmen.spark.source.source import (
    CHANGES_READ,
    CHANGES_STREAM_READ,
    READ,
    STREAM_READ,
    Options,
    SourceTable,
    check_types,
    columns_of,
    reads_changes,
    source_table,
)
from dolmen.spark.spark_types import spark_arrow_schema, spark_schema, worker_schema
from dolmen.spark.write.from_frame import without_files
from dolmen.store import open_store
from dolmen.transactions.snapshot import manifest_at

ADDED = tuple(field.name for field in FEED_FIELDS)
_ADDED_TYPES = s.StructType(
    [
        s.StructField(name, kind(), False)
        for name, kind in zip(ADDED, (s.StringType, s.LongType, s.LongType), strict=True)
    ]
)


@dataclass(frozen=True)
class SourceFeed:
    """The feed of a table, as processes send it to each other.

    Args:
        entry: the table without its files, in the version whose columns the feed has, encoded.
        version: that version.
        columns: names of the result's columns, in order; those that the feed adds may be among them.
        where: bound to the columns of ``entry``: the feed of the rows for which it is TRUE.
        net: the difference of two versions, in place of each commit's changes.
        since, until: the versions between which a batch reads; None if the options name none, as for a stream.
    """

    url: str
    table: str
    entry: bytes
    version: int
    columns: tuple[str, ...]
    where: Predicate | None
    net: bool
    since: VersionKey | None = None
    until: VersionKey | None = None

    @classmethod
    def of(cls, database: Database, manifest: Manifest, given: Options) -> SourceFeed:
        """The feed that the options name, with the columns of one version.

        Raises:
            TableNotFoundError, SchemaError, PredicateError, InputError: the options do not fit that version.
        """
        entry = without_files(context_of(database).segments.whole(manifest.table(given.table)))
        schema = entry.schema
        own = columns_of(given, schema)
        check_names(given.table, [schema.field(name) for name in own])
        encoded, where = msgspec.json.encode(entry), parse_where(given, schema)
        columns, net = (*own, *ADDED), given.flag("net")
        return cls(database.url, given.table, encoded, manifest.version, columns, where, net)

    @property
    def decoded(self) -> TableEntry:
        """``entry``, decoded."""
        return msgspec.json.decode(self.entry, type=TableEntry)

    @property
    def stored(self) -> tuple[str, ...]:
        """The names of the table's columns that are read: one at least."""
        own = tuple(name for name in self.columns if name not in ADDED)
        return own or (self.decoded.schema.fields[0].name,)

    def spark_schema(self) -> s.StructType:
        """The columns as Spark's types, marked with their origin. Raises SchemaError: Spark lacks a column's type."""
        entry = self.decoded
        own = spark_schema(
            msgspec.structs.replace(entry.schema.field(name), nullable=True)  # an erased row has only its key
            for name in self.columns
            if name not in ADDED
        )
        fields = {field.name: field for field in (*own.fields, *_ADDED_TYPES.fields)}
        return Origin(entry.uuid, self.version).mark(s.StructType([fields[name] for name in self.columns]))

    def with_schema(self, schema: s.StructType) -> SourceFeed:
        """The same feed with the columns of a schema that the user, or Spark, gives. Raises SchemaError."""
        entry = self.decoded
        own = s.StructType([field for field in schema.fields if field.name not in ADDED])
        check_types(self.table, own, spark_schema(entry.schema.field(field.name) for field in own.fields))
        added = s.StructType([field for field in schema.fields if field.name in ADDED])
        check_types(self.table, added, s.StructType([_ADDED_TYPES[field.name] for field in added.fields]))
        return replace(self, columns=tuple(field.name for field in schema.fields))

    def parts(self, context: Context, since: Manifest, until: Manifest) -> list[FeedPart]:
        """The smallest parts of the feed between two versions. Reads manifests and segments, and no data.

        Raises:
            VersionExpiredError: a version that is needed has expired.
        """
        newest = context.head.refresh().manifest
        columns = self.decoded, self.stored, self.where
        feed = ChangeFeed(context, newest, since, until, self.table, *columns, net=self.net)
        with context.reading(max(since.version, 1), until.version):
            return list(parts_of(feed))

    def read(self, parts: Sequence[FeedPart]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of some parts, in Spark's types."""
        with mark_dolmen_errors():
            context = _context(self.url)
            newest = context.head.refresh().manifest  # rows may have been erased since the feed was planned
            reader = PartReader(context, newest, self.table, self.decoded, self.stored, self.where, net=self.net)
            schema = spark_arrow_schema(reader.schema)
            for part in parts:
                for batch in reader.read(part):
                    yield batch.cast(schema).select(self.columns)


@lru_cache(maxsize=2)  # a worker gets the partitions of a query one after another
def _context(url: str) -> Context:
    runtime = shared_runtime()
    store = open_store(url, runtime)
    return Context(store, runtime, Head(store, runtime))


@dataclass(frozen=True)
class FeedPartition(InputPartition):  # type: ignore[misc]
    """The parts of a feed that one task reads."""

    feed: SourceFeed
    parts: tuple[FeedPart, ...]

    def read(self, arrow_schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yields their rows in the types that Spark takes."""
        return (batch.cast(arrow_schema) for batch in self.feed.read(self.parts))


def feed_partitions(feed: SourceFeed, parts: Sequence[FeedPart]) -> list[FeedPartition]:
    """Groups parts that are read together, in their order; files of one commit become one part."""
    return [FeedPartition(feed, tuple(_merged(some))) for some in groups_of(parts)]


def _merged(parts: Sequence[FeedPart]) -> Iterator[FeedPart]:
    whole: FeedPart | None = None
    for part in parts:
        if whole is not None and whole.is_same_change(part):
            whole += part
            continue
        if whole is not None:
            yield whole
        whole = part
    if whole is not None:
        yield whole


def source_feed(options: Mapping[str, str], known: Collection[str] = CHANGES_READ) -> SourceFeed:
    """The feed between the versions that the options ``since`` and ``until`` name.

    Raises:
        InputError: unknown options, or options that contradict each other.
        NotFoundError: no such database, table or version.
    """
    given = Options.of(options, known)
    database = open_database(given.url)
    context = context_of(database)
    base = context.head.refresh()
    first, last = given.version_or_time("since"), given.version_or_time("until")
    until = base.manifest if last is None else manifest_at(context, base, last)
    since = None if first is None else manifest_at(context, base, first)
    if since is not None and since.version > until.version:
        raise InputError(f"since={since.version} is after until={until.version}: exchange them")
    with context.reading(until.version):
        feed = SourceFeed.of(database, until, given)
    return replace(feed, since=None if since is None else VersionKey.of(since), until=VersionKey.of(until))


class FeedReader(DataSourceReader):  # type: ignore[misc]
    """Reads the changes of a table between two versions.

    Args:
        arrow_schema: the Arrow types of the result.
    """

    def __init__(self, feed: SourceFeed, arrow_schema: pa.Schema) -> None:
        self.feed, self.arrow_schema = feed, arrow_schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plans the parts of the feed; there may be none."""
        first, last = self.feed.since, self.feed.until
        assert first is not None
        assert last is not None
        with mark_dolmen_errors():
            context = context_of(open_database(self.feed.url))
            parts = self.feed.parts(context, first.read(context), last.read(context))
            return feed_partitions(self.feed, parts)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one partition. If there is none, Spark makes an empty one of its own."""
        return partition.read(self.arrow_schema) if isinstance(partition, FeedPartition) else iter(())


def feed_reader(feed: SourceFeed, schema: s.StructType, options: Mapping[str, str]) -> DataSourceReader:
    """Makes the reader of a feed. Raises InputError, SchemaError."""
    Options.of(options, CHANGES_READ)
    if feed.since is None:
        raise InputError(
            'the option changes needs since: the version after which the changes begin, as in option("since", 17), '
            "or a time; 0 is before the first commit"
        )
    return FeedReader(feed.with_schema(schema), worker_schema(schema))


def source_of(options: Mapping[str, str]) -> SourceTable | SourceFeed:
    """The version or feed of a frame, for a batch or stream: Spark does not say which. Raises as ``source_table``."""
    if reads_changes(options):
        return source_feed(options, {*CHANGES_READ, *CHANGES_STREAM_READ})
    return source_table(options, {*READ, *STREAM_READ})


def batch_reader(
    source: SourceTable | SourceFeed | None, schema: s.StructType, options: Mapping[str, str]
) -> DataSourceReader:
    """Makes the reader of a batch.

    Args:
        source: the version or feed of the frame; None if the user has given its schema.

    Raises:
        InputError, SchemaError, PredicateError: the options or the schema do not fit the table.
        NotFoundError: no such database, table or version.
    """
    if source is None:
        source = source_feed(options) if reads_changes(options) else source_table(options)
    if isinstance(source, SourceTable):
        return reader(source, schema, options)
    return feed_reader(source, schema, options)
