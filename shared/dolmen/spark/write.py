"""Writing a DataFrame into a table: tasks write data files, the driver makes ONE commit of what they report.

A task that is repeated, speculative or killed leaves files that no commit names, and nothing else: which files count
is decided by the rows that Spark hands to the driver, one set for each partition. All of them are named by the job's
intent, so that what a dead job left is found and removed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, Row

from dolmen.commit.statements import Overwrite, Statement, Write
from dolmen.errors import InputError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import TableEntry
from dolmen.intent import BEAT_SECONDS
from dolmen.results import Commit
from dolmen.spark.tasks import WRITTEN, WriteTask, write_files
from dolmen.table import Table
from dolmen.transaction import Transaction
from dolmen.write.conform import plan_conform


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


def write_frame(transaction: Transaction, name: str, frame: DataFrame) -> tuple[DataFile, ...]:
    """Writes the rows of a DataFrame into data files of a table, under the transaction's intent; commits nothing.

    Raises:
        SchemaError: the columns do not match the table's; raised before a task begins.
        PySparkException: a task failed.
    """
    entry = transaction.entry(name)
    check_columns(frame, entry)
    transaction.begin_upload()
    task = WriteTask(reachable_url(transaction), name, msgspec.json.encode(bare(entry)), transaction.intent().txid)
    rows = attended(transaction, frame.mapInArrow(write_files(task), WRITTEN))
    return tuple(msgspec.json.decode(row.entry, type=DataFile) for row in rows)


def attended(transaction: Transaction, job: DataFrame) -> list[Row]:
    """Runs a job of tasks that upload objects, and collects what they report, while the intent is kept alive."""
    collect = inheritable_thread_target(job.sparkSession)(job.collect)
    rows: list[Row] = transaction.context.runtime.attend(collect, BEAT_SECONDS / 10, transaction.intent().beat)
    return rows


def reachable_url(transaction: Transaction) -> str:
    """The database's URL, for workers. Raises InputError if they can't reach it."""
    url = transaction.context.store.url
    if url.startswith("memory://"):
        raise InputError("Spark's workers can't reach a database in the memory of this process")
    return url


def bare(entry: TableEntry) -> TableEntry:
    """The table without its files and deletes, of which there may be many: what tasks that write must know."""
    return msgspec.structs.replace(entry, files=(), tombstones=(), segments=(), overlays=(), removed=())


def check_columns(frame: DataFrame, entry: TableEntry) -> None:
    """Raises SchemaError if no row of the frame could fit."""
    from pyspark.sql.pandas.types import to_arrow_schema

    plan_conform(to_arrow_schema(frame.schema, timestamp_utc=True), entry.schema)


def _commit(
    table: Table,
    frame: DataFrame,
    operation: str,
    request: str | None,
    statement: Callable[[Transaction, TableEntry, tuple[DataFile, ...]], Statement],
) -> Commit:
    transaction = Transaction(table.context, operation)
    transaction.refresh()
    if request is not None:
        transaction.bind(request, "")
    entry = transaction.entry(table.name)
    check_columns(frame, entry)
    if not transaction.has_applied(request):
        files = write_frame(transaction, table.name, frame)
        if files or operation == "overwrite":
            transaction.add(statement(transaction, entry, files))
    return transaction.commit()
