"""Batch reads of ``format("dolmen")``, of rows or of changes: the planner makes partitions, which workers read.

The planner of changes finds the parts of the feed in manifests and segments alone: commits, and files within a commit.
Each worker plans its files or parts again, and reads them in bounded memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import types as s
from pyspark.sql.datasource import DataSourceReader, InputPartition

from dolmen.api.database import Database
from dolmen.api.database import open as open_database
from dolmen.base.records import replace
from dolmen.base.runtime import shared_runtime
from dolmen.base.units import MIB, cut_by_size
from dolmen.commit.head import Context, Head, context_of
from dolmen.entries.segments.erasures_in_force import with_erasures
from dolmen.errors import InputError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import COMMIT_TS, Field, Schema
from dolmen.predicate import bind
from dolmen.predicate.ast import Predicate
from dolmen.predicate.bind import ConditionReader, Connective, UnsupportedConditionError
from dolmen.predicate.constants import NULL, Value, from_python
from dolmen.predicate.domains import Domain, domain_of
from dolmen.predicate.names import Name, find_column
from dolmen.predicate.parse import parse
from dolmen.rows.changes.feed import FEED_FIELDS, ChangeFeed, FeedPart, PartReader, VersionKey, check_names, parts_of
from dolmen.rows.scan.scan import Scan, plan_of, scan_files
from dolmen.spark.frame_types import OPERATORS, Origin, spark_field, worker_schema
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
from dolmen.spark.tasks import mark_dolmen_errors
from dolmen.spark.write.write_tasks import decode_entry, encode_entry
from dolmen.store import open_store
from dolmen.store.cache import DiskCache, ObjectCache
from dolmen.transactions.snapshot import PinnedTable, manifest_at

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # Spark 4.0 has none

PARTITION_BYTES = 128 * MIB  # the most bytes of files that are read together; a larger file is read by itself
FILE_BYTES = MIB  # the cost of opening a file, in bytes read, so that one task does not get many small files
PARTITIONS = 64  # partitions are smaller than ``PARTITION_BYTES`` until there are this many tasks
ADDED = tuple(field.name for field in FEED_FIELDS)  # the columns that the feed adds
Part = TypeVar("Part", DataFile, FeedPart)


def source_of(raw: Mapping[str, str]) -> SourceTable | SourceFeed:
    """The version or feed of a frame, for a batch or stream: Spark does not say which. Raises as ``source_table``."""
    if reads_changes(raw):
        return source_feed(raw, {*CHANGES_READ, *CHANGES_STREAM_READ})
    return source_table(raw, {*READ, *STREAM_READ})


def batch_reader(
    source: SourceTable | SourceFeed | None, schema: s.StructType, raw: Mapping[str, str]
) -> DataSourceReader:
    """Makes the reader of a batch, of a frame's version or feed, or by the options. Raises as ``source_table``."""
    if source is None:
        source = source_feed(raw) if reads_changes(raw) else source_table(raw)
    if isinstance(source, SourceTable):
        options = Options.of(raw, READ)
        scan = SharedScan(source.with_schema(schema), parse_where(options, source.schema))
        return PushingReader(scan, schema) if options.flag("push_filters") else SourceReader(scan, schema)
    Options.of(raw, CHANGES_READ)
    if source.since is None:
        raise InputError(
            'the option changes needs since: the version after which the changes begin, as in option("since", 17), '
            "or a time; 0 is before the first commit"
        )
    return SourceReader(source.with_schema(schema), schema)


def parse_where(options: Options, schema: Schema) -> Predicate | None:
    """The option ``where``, bound to a table's columns. Raises PredicateError."""
    text = options.text("where")
    # "now" is the same moment for all workers.
    return None if text is None else parse(text, schema, now_us=shared_runtime().clock_us())


def groups_of(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Groups files, or other parts, that are read together, in their order."""
    most = min(PARTITION_BYTES, max(FILE_BYTES, sum(part.size + FILE_BYTES for part in parts) // PARTITIONS))
    return cut_by_size(parts, lambda part: part.size + FILE_BYTES, most)


class SharedScan(Struct, frozen=True):
    """A scan, planned once in each process, of the planner or a worker: one GET, and the segments."""

    table: SourceTable
    where: Predicate | None

    def scan(self) -> Scan:
        """The whole scan, planned on first use. Columns are in stored order, ``_commit_ts`` last."""
        return _scan(self)

    def partitions(self) -> list[SourcePartition]:
        """A partition for each group of files that statistics do not rule out; there may be none."""
        files = [file.file for file in plan_of(self.scan()).files]
        return [SourcePartition(self, tuple(file.path for file in some)) for some in groups_of(files)]

    def read(self, paths: Iterable[str]) -> Iterator[pa.RecordBatch]:
        with mark_dolmen_errors():
            for batch in scan_files(self.scan(), set(paths)).to_batches():
                yield batch.select(self.table.columns)


@lru_cache(maxsize=2)  # a worker gets the partitions of a query one after another
def _scan(shared: SharedScan) -> Scan:
    table, context = shared.table, _context(shared.table.url)
    manifest = context.head.read_kept(table.manifest, table.version)
    entry = with_erasures(manifest.table(table.table), table.erasures, context.segments)
    manifest = msgspec.structs.replace(manifest, tables={**manifest.tables, table.table: entry})
    # The scan can not read the hidden column alone: it reads another one, which is not returned.
    columns = [name for name in table.columns if name != COMMIT_TS] or [table.schema.fields[0].name]
    pinned = PinnedTable(context, table.table, manifest)
    return pinned.scan(columns, shared.where, with_commit_ts=COMMIT_TS in table.columns)


_WORKER_CACHE_BYTES = 64 * MIB  # the cache of a worker, of which a machine has many


@lru_cache(maxsize=2)
def _context(url: str) -> Context:
    runtime = shared_runtime()
    store = open_store(url, runtime)
    cache = ObjectCache(_WORKER_CACHE_BYTES, DiskCache.from_environment(store, runtime))
    return Context(store, runtime, Head(store, runtime, cache=cache))


@dataclass(frozen=True)
class SourcePartition(InputPartition):  # type: ignore[misc]
    """The paths of the data files, or the parts of a feed, that one task reads."""

    source: SharedScan | SourceFeed
    parts: tuple[Any, ...]

    def read(self, arrow_schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return (batch.cast(arrow_schema) for batch in self.source.read(self.parts))


class SourceReader(DataSourceReader):  # type: ignore[misc]
    """Reads rows of one version, or a feed, in the Arrow types of a schema, with NULLs where Spark allows them."""

    def __init__(self, source: SharedScan | SourceFeed, schema: s.StructType) -> None:
        self.source, self.arrow_schema = source, worker_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        with mark_dolmen_errors():
            return self.source.partitions()

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return partition.read(self.arrow_schema) if isinstance(partition, SourcePartition) else iter(())


class PushingReader(SourceReader):
    """Takes filters from Spark (option ``push_filters``); docs/spark-sql.md says when that is wrong."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Takes filters that dolmen evaluates exactly as Spark does, and leaves the others to Spark."""
        scan = self.source
        assert isinstance(scan, SharedScan)
        predicates = [(each, to_predicate(each, scan.table.schema)) for each in filters]
        if exact := [each for each in (scan.where, *(predicate for _, predicate in predicates)) if each is not None]:
            self.source = replace(scan, where=bind.conjunction(exact))
        return [each for each, predicate in predicates if predicate is None]


class _PushedFilterReader(ConditionReader[Any]):
    """Reads the filters that Spark pushes, whose values Spark has cast to their columns' own types.

    Filters that Spark and dolmen understand differently are left to Spark: IN over floats, which Spark compares by
    their bits, and everything about nested columns but fields of structs.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def connective(self, node: Any) -> tuple[Connective, Sequence[Any]] | None:
        """See ``ConditionReader``. Spark pushes each conjunct by itself, and no OR."""
        return ("not", [node.child]) if type(node).__name__ == "Not" else None

    def atom(self, node: Any) -> Predicate:
        if not hasattr(node, "attribute"):
            raise UnsupportedConditionError
        field = find_column([Name(part, quoted=True) for part in node.attribute], self._schema)
        match type(node).__name__:
            case "IsNull":
                return bind.is_null(field)
            case "IsNotNull":
                return bind.negation(bind.is_null(field))
            case "StringStartsWith" | "StringEndsWith" | "StringContains" as name:
                return bind.text_match(name.removeprefix("String").lower(), field, Value(Domain.TEXT, node.value))
            case "In" if not pa.types.is_floating(field.arrow_type):
                return bind.one_of(field, [_value(each, field) for each in node.value])
            case "EqualNullSafe":
                return bind.negation(bind.distinct_from(field, _value(node.value, field)))
            case name if name in OPERATORS:
                return bind.compare(OPERATORS[name], field, _value(node.value, field))
        raise UnsupportedConditionError


def _value(value: Any, field: Field) -> Value:
    if value is None:
        return NULL
    domain = domain_of(field.arrow_type)
    if isinstance(value, float) and domain is not None and domain.is_float:  # a float32 comes as the double it equals
        return Value(Domain.FLOAT64, value)
    if isinstance(value, float):
        raise UnsupportedConditionError
    plain = from_python(bytes(value) if isinstance(value, bytearray) else value)
    if plain.kind is not domain:
        raise UnsupportedConditionError
    return plain


def to_predicate(pushed: Filter, schema: Schema) -> Predicate | None:
    """The predicate of a filter that Spark pushes; None if Spark must evaluate it."""
    return _PushedFilterReader(schema).find(pushed)


@dataclass(frozen=True)
class SourceFeed:
    """The change feed of a table, as processes send it to each other."""

    url: str
    table: str
    # entry, version: the table in the version whose columns the feed has, by ``encode_entry``
    entry: bytes
    version: int
    columns: tuple[str, ...]  # names of the result's columns, in order; those of ``ADDED`` may be among them
    where: Predicate | None  # bound to the columns of ``entry``: the feed of the rows for which it is TRUE
    net: bool  # the difference of two versions, in place of each commit's changes
    # since, until: the versions between which a batch reads; None if the options name none, as for a stream
    since: VersionKey | None = None
    until: VersionKey | None = None

    @classmethod
    def of(cls, database: Database, manifest: Manifest, options: Options) -> SourceFeed:
        """The feed that the options name, in one version. Raises NotFoundError, SchemaError, InputError."""
        entry = context_of(database).segments.whole(manifest.table(options.table))
        schema = entry.schema
        names = columns_of(options, schema)
        check_names(options.table, [schema.field(name) for name in names])
        where, columns = parse_where(options, schema), (*names, *ADDED)
        return cls(
            database.url, options.table, encode_entry(entry), manifest.version, columns, where, options.flag("net")
        )

    @property
    def table_entry(self) -> TableEntry:
        return decode_entry(self.entry)

    @property
    def table_names(self) -> tuple[str, ...]:
        """The names of the table's columns that are read: one at least."""
        names = tuple(name for name in self.columns if name not in ADDED)
        return names or (self.table_entry.schema.fields[0].name,)

    def spark_schema(self) -> s.StructType:
        """The columns as Spark's types, marked with their origin. Raises SchemaError: Spark lacks a column's type."""
        entry = self.table_entry
        own = [entry.schema.field(name).to_arrow() for name in self.columns if name not in ADDED]
        nullable = [field.with_nullable(True) for field in own]  # an erased row has only its key
        fields = {field.name: spark_field(field) for field in (*nullable, *FEED_FIELDS)}
        return Origin(entry.uuid, self.version).mark(s.StructType([fields[name] for name in self.columns]))

    def with_schema(self, schema: s.StructType) -> SourceFeed:
        """The same feed with the columns of a schema that the user, or Spark, gives. Raises SchemaError."""
        feed = replace(self, columns=tuple(schema.names))
        check_types(self.table, schema, feed.spark_schema())
        return feed

    def partitions(self) -> list[SourcePartition]:
        """Plans the feed of a batch. Raises VersionExpiredError."""
        context = context_of(open_database(self.url))
        assert self.since is not None
        assert self.until is not None
        return self.partitions_between(context, self.since.read(context), self.until.read(context))

    def partitions_between(self, context: Context, since: Manifest, until: Manifest) -> list[SourcePartition]:
        """Plans the feed between two versions from manifests and segments. Raises VersionExpiredError."""
        newest = context.head.refresh().manifest
        names, where = self.table_names, self.where
        feed = ChangeFeed(context, newest, since, until, self.table, self.table_entry, names, where, net=self.net)
        with context.reading(max(since.version, 1), until.version):
            parts = list(parts_of(feed))
        return [SourcePartition(self, tuple(_merge_parts(some))) for some in groups_of(parts)]

    def read(self, parts: Sequence[FeedPart]) -> Iterator[pa.RecordBatch]:
        with mark_dolmen_errors():
            context = _context(self.url)
            newest = context.head.refresh().manifest  # rows may have been erased since the feed was planned
            entry, names = self.table_entry, self.table_names
            reader = PartReader(context, newest, self.table, entry, names, self.where, net=self.net)
            for part in parts:
                for batch in reader.read(part):
                    yield batch.select(self.columns)


def _merge_parts(parts: Sequence[FeedPart]) -> Iterator[FeedPart]:
    """The parts, with files of one commit merged into one part."""
    whole = parts[0]
    for part in parts[1:]:
        if whole.is_same_change(part):
            whole += part
        else:
            yield whole
            whole = part
    yield whole


def source_feed(raw: Mapping[str, str], allowed: Collection[str] = CHANGES_READ) -> SourceFeed:
    """The feed between the versions that the options ``since`` and ``until`` name. Raises InputError, NotFoundError."""
    options = Options.of(raw, allowed)
    database = open_database(options.url)
    context = context_of(database)
    base = context.head.refresh()
    first, last = options.moment("since"), options.moment("until")
    until = base.manifest if last is None else manifest_at(context, base, last)
    since = None if first is None else manifest_at(context, base, first)
    if since is not None and since.version > until.version:
        raise InputError(f"since={since.version} is after until={until.version}: swap them")
    with context.reading(until.version):
        feed = SourceFeed.of(database, until, options)
    return replace(feed, since=None if since is None else VersionKey.of(since), until=VersionKey.of(until))
