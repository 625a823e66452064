"""The work of Spark's Python workers: dolmen itself reads some files of a table, or writes rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame

from dolmen.api.database import open as open_database
from dolmen.base.cached import cached_property
from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.format.entries import DataFile
from dolmen.format.layout import POINTER
from dolmen.format.manifest import TableEntry
from dolmen.predicate import Predicate
from dolmen.rows.scan.scan import Scan, rows_with_positions, scan_files
from dolmen.rows.write.conform import conform
from dolmen.rows.write.data_file import write_data_files
from dolmen.rows.write.encodings import DEFAULT, WriteOptions
from dolmen.spark.failures import mark_errors
from dolmen.spark.spark_types import carried_schema
from dolmen.spark.write.task_reports import RowSums
from dolmen.store.base import ObjectStore
from dolmen.store.url import open_store

_THREADS = 4
"""Threads for the requests of a task; it computes on one processor, as Spark gives it one."""


def task_runtime() -> Runtime:
    """The runtime of tasks of background work in this process."""
    return _runtime_of(os.getpid())


@cache
def _runtime_of(process: int) -> Runtime:
    """The runtime of this process, as threads don't survive a fork."""
    return replace(shared_runtime(), threads=_THREADS, cores=1)


FILE, ROW = "__file", "__row"
"""Columns with the name of a row's file, and the row's position in it."""


@dataclass(frozen=True)
class ReadTask:
    """A scan that workers share: each gets its own files.

    Args:
        url: of the database.
        columns: names, in order; the hidden ``_commit_ts`` is told by ``with_commit_ts``.
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
        """The part of the scan that reads these files. The manifest is fetched, and planned with, once more."""
        table = open_database(self.url).at(version=self.version).table(self.table)
        return scan_files(table.scan(self.columns, self.where, with_commit_ts=self.with_commit_ts), set(paths))


def read_files(task: ReadTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: batches of one column, paths of data files, become their rows."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        paths = [path for batch in batches for path in batch.column(0).to_pylist()]
        if paths:
            scan = task.scan(paths)
            schema = carried_schema(scan.schema)
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


WRITTEN = "entry BINARY, sums BINARY"
"""The report of tasks that write: entries of their files, and in another row the sums of their rows, encoded."""


def open_to_write(url: str, runtime: Runtime) -> ObjectStore:
    """The store of a database for a task that names objects: names begin with the hour by the server's clock.

    So it is asked for that; else collection would not find there what a dead job has left.
    """
    store = open_store(url, runtime)
    if not store.clock.now_us:
        store.head(POINTER)
    return store


@dataclass(frozen=True)
class WriteTask:
    """The facts that each task needs.

    Args:
        url: of the database.
        table: its name.
        entry: the table without its files and deletes, encoded.
        txid: of the job's intent, which begins the names of all files.
    """

    url: str
    table: str
    entry: bytes
    txid: str

    def name(self) -> str:
        """A name for a new object, by which collection finds what a dead job has left."""
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

    def write(
        self, batches: Iterator[pa.RecordBatch], sums: RowSums | None, *, only_sum: bool = False
    ) -> list[DataFile]:
        """Writes one partition's rows.

        Args:
            sums: takes the rows, for the digest of a request.
            only_sum: write nothing.
        """
        first = next(batches, None)
        if first is None:
            return []
        rows = conform(
            pa.RecordBatchReader.from_batches(first.schema, chain_batches(first, batches)), self.decoded.schema
        )
        if sums is not None:
            rows = sums.passing(rows)
        if only_sum:
            for _ in rows:
                pass
            return []
        return self.put(open_to_write(self.url, shared_runtime()), rows)


def map_in_tasks(
    frame: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """``mapInArrow``, for columns of any names: it takes a dot for that of a field, and a backtick for a quote."""
    names = frame.columns
    if not any(sign in name for name in names for sign in ".`"):
        return frame.mapInArrow(work, schema)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from work(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"_{place}" for place in range(len(names)))).mapInArrow(run, schema)


def write_files(
    task: WriteTask, *, with_sums: bool, only_sum: bool = False
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: rows become the entries of the data files that hold them. See ``WriteTask.write``."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sums = RowSums() if with_sums or only_sum else None
        files = task.write(batches, sums, only_sum=only_sum)
        entries: list[bytes | None] = [msgspec.json.encode(file) for file in files]
        told: list[bytes | None] = [None] * len(entries)
        if sums is not None and sums.rows:
            entries, told = [*entries, None], [*told, sums.encode()]
        if entries:
            yield pa.record_batch([pa.array(entries, pa.binary()), pa.array(told, pa.binary())], ["entry", "sums"])

    return mark_errors(write)


def chain_batches(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Puts back a batch that was taken to see its schema."""
    yield first
    yield from rest
