"""Writing a DataFrame into a table: tasks write data files, the driver makes ONE commit of what they report.

A task that is repeated, speculative or killed leaves files that no commit names, and nothing else: which files count
is decided by the rows that Spark hands to the driver, one set for each partition. All of them are named by the job's
intent, so that what a dead job left is found and removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame

from dolmen.commit.statements import Overwrite, Statement, Write
from dolmen.errors import InputError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import TableEntry
from dolmen.intent import BEAT_SECONDS
from dolmen.results import Commit
from dolmen.runtime import shared_runtime
from dolmen.store.url import open_store
from dolmen.table import Table
from dolmen.transaction import Transaction
from dolmen.write.conform import conform, plan_conform
from dolmen.write.data_file import write_data_files

_ENTRIES = "entry BINARY"


@dataclass(frozen=True)
class WriteTask:
    """What each task needs to know.

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

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[DataFile]:
        """Writes one partition's rows, in bounded memory."""
        first = next(batches, None)
        if first is None:
            return []
        runtime = shared_runtime()
        entry = msgspec.json.decode(self.entry, type=TableEntry)
        rows = conform(pa.RecordBatchReader.from_batches(first.schema, _chained(first, batches)), entry.schema)
        store = open_store(self.url, runtime)
        return write_data_files(store, self.table, entry, rows, runtime, name=lambda: f"{self.txid}-{runtime.uuid()}")


def write_files(task: WriteTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: rows become the entries of the data files that hold them."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        entries = [msgspec.json.encode(file) for file in task.write(batches)]
        if entries:
            yield pa.record_batch([pa.array(entries, pa.binary())], ["entry"])

    return write


def append(table: Table, frame: DataFrame, *, request: str | None = None) -> Commit:
    """Adds the rows of a DataFrame, in one commit.

    Args:
        frame: columns by name, in any order; values are cast only where nothing is lost.
        request: an id under which this is applied once, however often it is tried.

    Raises:
        SchemaError: the columns do not match the table's; raised before a task begins.
        ConflictError, ...: as ``Table.append`` does; nothing is visible of the job then.
        PySparkException: a task failed, by a value that does not fit for instance; nothing is visible.
    """

    def statement(transaction: Transaction, entry: TableEntry, files: tuple[DataFile, ...]) -> Statement:
        return Write(table.name, entry.uuid, files, request=request)

    return _commit(table, frame, "append", request, statement)


def overwrite(table: Table, frame: DataFrame, *, force: bool = False, request: str | None = None) -> Commit:
    """Replaces all rows of a table by those of a DataFrame, which may be made from the table itself. See ``append``.

    Args:
        force: replace also what others have added or deleted since the job began.
    """

    def statement(transaction: Transaction, entry: TableEntry, files: tuple[DataFile, ...]) -> Statement:
        base = transaction.base
        epoch = base.tables[table.name].epoch
        return Overwrite(table.name, entry.uuid, epoch, base.commit_ts, files, force, request)

    return _commit(table, frame, "overwrite", request, statement)


def _commit(
    table: Table,
    frame: DataFrame,
    operation: str,
    request: str | None,
    statement: Callable[[Transaction, TableEntry, tuple[DataFile, ...]], Statement],
) -> Commit:
    context = table._context
    transaction = Transaction(context, operation)
    transaction.refresh()
    if request is not None:
        transaction.bind(request, "")
    entry = transaction.entry(table.name)
    _check_columns(frame, entry)
    if not transaction.has_applied(request):
        transaction.begin_upload()
        files = _written(table, frame, entry, transaction)
        if files or operation == "overwrite":
            transaction.add(statement(transaction, entry, files))
    return transaction.commit()


def _check_columns(frame: DataFrame, entry: TableEntry) -> None:
    """Raises SchemaError if no row of the frame could fit."""
    from pyspark.sql.pandas.types import to_arrow_schema

    plan_conform(to_arrow_schema(frame.schema, timestamp_utc=True), entry.schema)


def _written(table: Table, frame: DataFrame, entry: TableEntry, transaction: Transaction) -> tuple[DataFile, ...]:
    context, intent = table._context, transaction.intent()
    if context.store.url.startswith("memory://"):
        raise InputError("Spark's workers can't reach a database in the memory of this process")
    bare = msgspec.structs.replace(entry, files=(), tombstones=(), segments=(), overlays=(), removed=())
    task = WriteTask(context.store.url, table.name, msgspec.json.encode(bare), intent.txid)
    job = frame.mapInArrow(write_files(task), _ENTRIES)
    collect = inheritable_thread_target(frame.sparkSession)(job.collect)
    rows = context.runtime.attend(collect, BEAT_SECONDS / 10, intent.beat)
    return tuple(msgspec.json.decode(row.entry, type=DataFile) for row in rows)


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
