"""Batch reads of ``format("dolmen")``: the planner sorts the files into partitions, each of which a worker reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import types as s
from pyspark.sql.datasource import DataSourceReader, InputPartition

from dolmen.base.runtime import shared_runtime
from dolmen.base.units import MIB
from dolmen.commit.context import Context
from dolmen.commit.head import Head
from dolmen.entries.segments.erasures_in_force import with_erasures
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.schema import COMMIT_TS, Schema
from dolmen.predicate import Predicate, parse
from dolmen.predicate.bind import conjunction
from dolmen.rows.scan.scan import Scan, plan_of, scan_files
from dolmen.spark.failures import marking_dolmen_errors
from dolmen.spark.source.source import SourceTable
from dolmen.spark.source.source_options import READ, Options
from dolmen.spark.spark_types import carried_schema, handed_schema
from dolmen.store.url import open_store
from dolmen.transactions.snapshot import PinnedTable

PARTITION_BYTES = 128 * MIB
"""The most bytes of files that are read together; a larger file is read by itself."""
FILE_BYTES = 4 * MIB
"""The cost of opening a file, in bytes read, so that one task does not get many small files."""
PARTITIONS = 64
"""Partitions are smaller than ``PARTITION_BYTES`` until there are this many tasks."""


@dataclass(frozen=True)
class SharedScan:
    """A scan that the planner and each worker make for themselves: one GET, and the segments, in each process."""

    table: SourceTable
    where: Predicate | None

    def scan(self) -> Scan:
        """The whole scan, planned on first use. Columns are in stored order, ``_commit_ts`` last."""
        return _scan(self)

    def read(self, paths: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of some of its files, in Spark's types."""
        with marking_dolmen_errors():
            scan = scan_files(self.scan(), set(paths))
            schema = carried_schema(scan.schema)
            for batch in scan.to_batches():
                yield batch.cast(schema).select(self.table.columns)


@lru_cache(maxsize=2)  # a worker gets the partitions of a query one after another
def _scan(shared: SharedScan) -> Scan:
    table, runtime = shared.table, shared_runtime()
    store = open_store(table.url, runtime)
    head = Head(store, runtime)
    try:
        manifest = head.read_manifest(table.manifest)
    except ObjectNotFoundError as error:
        head.check_kept(table.version)
        raise CorruptionError(table.manifest, "the manifest is missing") from error
    name, entry = table.table, manifest.table(table.table)
    tables = {**manifest.tables, name: with_erasures(entry, table.erasures, head.segments)}
    manifest = msgspec.structs.replace(manifest, tables=tables)
    stored = [name for name in table.columns if name != COMMIT_TS]
    core = PinnedTable(Context(store, runtime, head), table.table, manifest)
    # Of the hidden column alone the scan needs another beside it, which is not handed on.
    columns = stored or [table.schema.fields[0].name]
    return core.scan(columns, shared.where, with_commit_ts=COMMIT_TS in table.columns)


@dataclass(frozen=True)
class FilesPartition(InputPartition):  # type: ignore[misc]
    """Paths of the data files that one task reads."""

    paths: tuple[str, ...]


class Portion(Protocol):
    """Anything that is read by one task, with its size."""

    @property
    def size(self) -> int:
        """Bytes to read."""


P = TypeVar("P", bound=Portion)


def groups_of(portions: Sequence[P]) -> list[tuple[P, ...]]:
    """Groups files, or other portions, that are read together, in their order."""
    most = min(PARTITION_BYTES, max(FILE_BYTES, sum(each.size + FILE_BYTES for each in portions) // PARTITIONS))
    groups: list[tuple[P, ...]] = []
    some, size = list[P](), 0
    for each in portions:
        if some and size + each.size + FILE_BYTES > most:
            groups.append(tuple(some))
            some, size = [], 0
        some.append(each)
        size += each.size + FILE_BYTES
    return [*groups, tuple(some)] if some else groups


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads one version of a table.

    Args:
        where: only rows for which this is TRUE.
        handed: the Arrow types of the result, NULLs allowed where Spark allows them: from 4.3 on it insists.
    """

    def __init__(self, table: SourceTable, where: Predicate | None, handed: pa.Schema) -> None:
        self.table, self.where, self.handed = table, where, handed

    @property
    def shared(self) -> SharedScan:
        """The scan that goes to the workers."""
        return SharedScan(self.table, self.where)

    def partitions(self) -> Sequence[InputPartition]:
        """A partition for each group of files that statistics do not rule out; there may be none."""
        with marking_dolmen_errors():
            files = [file.file for file in plan_of(self.shared.scan()).files]
        return [FilesPartition(tuple(file.path for file in some)) for some in groups_of(files)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one partition. If there is none, Spark makes an empty one of its own."""
        if not isinstance(partition, FilesPartition):
            return iter(())
        return (batch.cast(self.handed) for batch in self.shared.read(partition.paths))


class PushingReader(BatchReader):
    """The same, with Spark's filters pushed: option ``push_filters``; docs/spark-sql.md says when that is wrong."""

    def pushFilters(self, filters: list[object]) -> Iterable[object]:  # noqa: N802 - Spark's name
        """Takes filters that dolmen evaluates exactly as Spark does, and leaves the others to Spark."""
        from dolmen.spark.source.source_options import to_predicate

        taken, left = [] if self.where is None else [self.where], []
        for each in filters:
            predicate = to_predicate(each, self.table.schema)
            if predicate is None:
                left.append(each)
            else:
                taken.append(predicate)
        if taken:
            self.where = conjunction(taken)
        return left


def reader(table: SourceTable, schema: s.StructType, options: Mapping[str, str]) -> DataSourceReader:
    """Makes the reader of a table. Raises SchemaError, PredicateError."""
    given = Options.of(options, READ)
    kind = PushingReader if given.flag("push_filters") else BatchReader
    return kind(table.with_schema(schema), bound(given, table.schema), handed_schema(schema))


def bound(given: Options, schema: Schema) -> Predicate | None:
    """The option ``where``, bound to a table's columns. Raises PredicateError."""
    text = given.text("where")
    # Which moment "now" is, is settled here, for all workers.
    return None if text is None else parse(text, schema, now_us=shared_runtime().clock_us())
