"""The tasks of Spark's Python workers: dolmen itself reads files of a table, or writes rows and keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from dolmen.api.database import open as open_database
from dolmen.base.runtime import Runtime, cached_property, shared_runtime
from dolmen.commit.context import Context
from dolmen.commit.head import Head
from dolmen.commit.versions import manifest_at_version
from dolmen.format.entries import DataFile
from dolmen.format.layout import POINTER
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import Field, Schema
from dolmen.predicate import Predicate
from dolmen.rows.scan.scan import Scan, rows_with_positions, scan_files
from dolmen.rows.write.casts import FindCast
from dolmen.rows.write.conform import conform
from dolmen.rows.write.data_file import write_data_files
from dolmen.rows.write.encodings import DEFAULT, WriteOptions
from dolmen.spark.failures import mark_errors, raising_dolmen_errors
from dolmen.spark.spark_types import spark_arrow_schema
from dolmen.spark.write.frame_columns import schema_of
from dolmen.spark.write.key_tombstones import KeySink, check_each_once
from dolmen.spark.write.task_reports import DigestMode, Reported
from dolmen.store import open_store
from dolmen.store.base import ObjectStore

_THREADS = 4
"""Threads for the requests of a task; it computes on one processor, the one that Spark gives it."""


def task_runtime() -> Runtime:
    """The runtime of tasks of background work in this process."""
    return _runtime_of(os.getpid())


@cache
def _runtime_of(process: int) -> Runtime:
    """The runtime of this process, because threads don't survive a fork."""
    return replace(shared_runtime(), threads=_THREADS, cores=1)


MapBatches: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for ``mapInArrow``."""
FILE, ROW = "__file", "__row"
"""Columns with the name of a row's file, and the row's position in it."""


@dataclass(frozen=True)
class ReadTask:
    """A scan that workers share: each reads its own files.

    Args:
        columns: names, in order, without the hidden ``_commit_ts``.
        where: bound to the table's schema in this version.
        with_positions: add the columns ``FILE`` and ``ROW``.
    """

    url: str
    version: int
    table: str
    columns: tuple[str, ...]
    where: Predicate | None
    with_commit_ts: bool
    with_positions: bool = False

    def scan(self, paths: Iterable[str]) -> Scan:
        """The part of the scan that reads these files. It is planned again, from the manifest."""
        table = open_database(self.url).at(version=self.version).table(self.table)
        return scan_files(table.scan(self.columns, self.where, with_commit_ts=self.with_commit_ts), set(paths))


def read_files(task: ReadTask) -> MapBatches:
    """For ``mapInArrow``: batches of one column, paths of data files, become their rows."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        paths = [path for batch in batches for path in batch.column(0).to_pylist()]
        if paths:
            scan = task.scan(paths)
            schema = spark_arrow_schema(scan.schema)
            if task.with_positions:
                yield from (
                    _with_positions(batch.cast(schema), path, rows) for batch, path, rows in rows_with_positions(scan)
                )
            else:
                yield from (batch.cast(schema) for batch in scan.to_batches())

    return mark_errors(read)


def _with_positions(batch: pa.RecordBatch, path: str, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    name = pa.scalar(path.rpartition("/")[2], pa.string())
    return batch.append_column(FILE, pa.repeat(name, batch.num_rows)).append_column(ROW, pa.array(rows))


def open_to_write(url: str, runtime: Runtime) -> ObjectStore:
    """The store of a database, for a task that names objects.

    Names begin with the hour by the server's clock, so the server is asked for it: collection looks there for the
    objects of a dead job.
    """
    store = open_store(url, runtime)
    if not store.clock.now_us:
        store.head(POINTER)
    return store


@dataclass(frozen=True)
class WriteTask:
    """A task that writes files.

    Args:
        entry: the table without its files and deletes, encoded.
        txid: of the job's intent; it begins the names of all files.
    """

    url: str
    table: str
    entry: bytes
    txid: str

    def name(self) -> str:
        """A new object's name, by which collection finds the objects of a dead job."""
        return f"{self.txid}-{shared_runtime().uuid()}"

    @cached_property
    def decoded(self) -> TableEntry:
        """``entry``, decoded."""
        return msgspec.json.decode(self.entry, type=TableEntry)

    def put(
        self, store: ObjectStore, rows: Iterable[pa.RecordBatch], options: WriteOptions = DEFAULT
    ) -> list[DataFile]:
        """Writes rows of the table's own types into as many data files as they need, in bounded memory."""
        return write_data_files(store, self.table, self.decoded, rows, shared_runtime(), options, self.name)


@dataclass(frozen=True)
class KeysTask(WriteTask):
    """A task that may hide rows by their keys.

    Args:
        key: ids of the key's columns.
    """

    key: tuple[int, ...] = ()

    @property
    def fields(self) -> tuple[Field, ...]:
        """The key's columns."""
        return tuple(self.decoded.schema.by_id[id_] for id_ in self.key)

    def sink(self, store: ObjectStore) -> KeySink:
        """Takes the keys of one partition."""
        return KeySink(store, shared_runtime(), self.table, self.decoded.uuid, self.fields, self.txid)


@dataclass(frozen=True)
class RowsTask(KeysTask):
    """A task that writes rows; or rows that replace those with their keys; or keys alone.

    Args:
        has_rows: the batches are rows of the table, in the order of their keys if there is a key; else they are keys.
    """

    has_rows: bool = True
    digest: DigestMode = DigestMode.NONE

    def run(self, batches: Iterator[pa.RecordBatch]) -> Reported:
        """Writes one partition, in bounded memory.

        Raises:
            InputError: two rows have the same key, or one has none.
            RowError: a value does not fit.
        """
        report = Reported()
        given = conform_batches(batches, self.decoded.schema if self.has_rows else schema_of(self.fields))
        if given is None:
            return report
        if self.digest is not DigestMode.NONE:
            given = report.sums.passing(given)
        if self.digest is DigestMode.ALONE:
            for _ in given:
                pass
            return report
        store = open_to_write(self.url, shared_runtime())
        sink = self.sink(store)
        if not self.key:
            report.files += self.put(store, given)
        elif self.has_rows:
            report.files += self.put(store, self._keyed(given, sink))
        else:
            for batch in given:
                sink.add(batch)
        sink.finish(report)
        return report

    def _keyed(self, batches: Iterator[pa.RecordBatch], sink: KeySink) -> Iterator[pa.RecordBatch]:
        for batch in check_each_once(batches, [field.name for field in self.fields]):
            sink.add(batch)
            yield batch


class ReportingTask(Protocol):
    """A task that turns a partition into a report."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Reported:
        """Runs it."""


def report_task(task: ReportingTask) -> MapBatches:
    """For ``mapInArrow``: the rows of a partition become the report on what was made of them (``REPORT``)."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from task.run(batches).to_batches()

    return mark_errors(write)


def conform_batches(
    batches: Iterator[pa.RecordBatch], schema: Schema, finds: Mapping[str, FindCast] | None = None
) -> Iterator[pa.RecordBatch] | None:
    """The rows of batches that have one schema, as ``conform`` gives them; None if there is no batch."""
    first = next(batches, None)
    if first is None:
        return None
    source = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
    return conform(source, schema, finds=finds)


def map_in_tasks(frame: DataFrame, work: MapBatches, schema: str) -> DataFrame:
    """``mapInArrow``, for columns of any names: it takes a dot for that of a field, and a backtick for a quote."""
    names = frame.columns
    if not any(sign in name for name in names for sign in ".`"):
        return frame.mapInArrow(work, schema)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from work(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"_{index}" for index in range(len(names)))).mapInArrow(run, schema)


def run_numbered(spark: SparkSession, count: int, work: Callable[[int], pa.RecordBatch], schema: str) -> list[Row]:
    """Runs a task for each number below ``count``, and returns their rows in order.

    Args:
        work: makes the one row of a number; its first column is that number.

    Raises:
        Error: of dolmen, raised in a task.
        AssertionError: a task's row is missing, or came back twice.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from map(work, batch.column(0).to_pylist())

    with raising_dolmen_errors():
        rows = sorted(spark.range(0, count, 1, count).mapInArrow(mark_errors(run), schema).collect())
    if [row[0] for row in rows] != list(range(count)):
        raise AssertionError(f"{count} tasks were begun, {len(rows)} came back: nothing was committed")
    return rows


@contextmanager
def snapshot_in_task(store: ObjectStore, version: int) -> Iterator[tuple[Context, Manifest]]:
    """Reads one version of a database in a task: the version that the driver planned with.

    Raises:
        VersionExpiredError: the job took so long that the version has expired.
    """
    runtime = task_runtime()
    context = Context(store, runtime, Head(store, runtime))
    manifest = manifest_at_version(context.head, context.head.refresh().manifest, version)
    with context.reading(version):
        yield context, manifest
