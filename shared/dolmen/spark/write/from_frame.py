"""Writes a DataFrame into a table: tasks write data files, and the driver makes ONE commit of their reports.

A repeated, speculative or killed task leaves files that no commit names, and nothing else: Spark hands the driver one
report for each partition, and only files in these reports count. The job's intent names all files, so collection finds
and removes those of a dead job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, Row

from dolmen.api.table import Table
from dolmen.base import arguments
from dolmen.commit.change import Statement
from dolmen.commit.context import context_of
from dolmen.commit.statements.row_changes import Overwrite, Write
from dolmen.commit.uploads import BEAT_SECONDS, MAX_KEYS
from dolmen.errors import InputError, SchemaError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.predicate import Where
from dolmen.rows.write.conform import plan_conform
from dolmen.rows.write.row_digest import content_digest
from dolmen.spark import checks
from dolmen.spark.checks import worker_url
from dolmen.spark.failures import FAILURES, dolmen_error, raising_dolmen_errors
from dolmen.spark.file_tasks import RowsTask, map_in_tasks, report_task
from dolmen.spark.origin import Reliance, entry_then
from dolmen.spark.sessions import is_remote_frame, write_remotely
from dolmen.spark.spark_types import worker_schema
from dolmen.spark.write.frame_columns import (
    add_new_columns,
    check_columns,
    key_columns,
    match_names,
    schema_of,
    uncollated_column,
)
from dolmen.spark.write.key_tombstones import check_not_null, tombstones
from dolmen.spark.write.task_reports import REPORT, DigestMode, Reported
from dolmen.transactions.reading import key_fields, take_keys
from dolmen.transactions.row_statements import delete_keys, keys_content
from dolmen.transactions.snapshot import pin
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.unit_of_work import Commit, UnitOfWork

Mode: TypeAlias = Literal["append", "upsert"]
Made: TypeAlias = tuple[Statement | None, list[Any]]
"""A statement, if there is anything to do, and its content, for the digest of its request."""


def append(table: Table, frame: DataFrame, *, merge_schema: bool = False, request: str | None = None) -> Commit:
    """Adds the rows of a DataFrame, in one commit.

    Args:
        frame: columns by name, in any order; values are cast only where nothing is lost.
        merge_schema: first add columns that the table does not have, in a commit of their own.
        request: an id under which this is applied once, however often it is tried.

    Raises:
        SchemaError: the columns do not match the table's; raised before a task begins.
        RowError: a value does not fit. Nothing is visible after any of these errors.
        ConflictError, ...: as ``Table.append`` does.
        PySparkException: a task failed for a reason outside dolmen, such as the frame's own expressions.
    """
    checks.table(table)
    if is_remote_frame(frame):
        merge_schema = arguments.flag("merge_schema", merge_schema)
        return write_remotely(
            context_of(table), table.name, frame, request, overwrites=False, merge_schema=merge_schema
        )
    check_frame(frame)
    _merge_schema(table, frame, request, merge_schema)
    return _append(table, frame, request, DigestMode.of(request))


def _append(table: Table, frame: DataFrame, request: str | None, digest: DigestMode) -> Commit:
    def statement(transaction: Transaction, entry: TableEntry, digest: DigestMode) -> Made:
        written = write_frame(transaction, table.name, frame, digest)
        files = tuple(written.files)
        made = Write(table.name, entry.uuid, files, request=request, schema=entry.schema) if files else None
        return made, [None, written.sums.content()]

    return _commit(table, "append", request, statement, digest)


def overwrite(
    table: Table,
    frame: DataFrame,
    *,
    since: int | None = None,
    force: bool = False,
    merge_schema: bool = False,
    request: str | None = None,
) -> Commit:
    """Replaces all rows of a table by those of a DataFrame. See ``append``.

    It conflicts with rows that others have added or deleted after the oldest version that the frame reads of the table
    itself, anywhere in its plan; or, if it reads none, after the newest version that this ``table`` has seen when the
    job begins. A frame of Spark Connect does not show its plan: its columns name the versions, and if all of them were
    computed, ``since`` or ``force`` is needed.

    Args:
        since: the version that the rows were made from, if Spark's plan does not show it, as with pandas.
        force: also replace rows that others have added since.
        merge_schema: as for ``append``.

    Raises:
        ConflictError: others have added or deleted rows; make the frame again, and repeat.
        VersionNotFoundError, VersionExpiredError: the version ``since`` does not exist, or has expired.
    """
    checks.table(table)
    reliance = Reliance.of(since, force)
    if is_remote_frame(frame):
        merge_schema = arguments.flag("merge_schema", merge_schema)
        since, force = reliance.since, reliance.force
        return write_remotely(
            context_of(table),
            table.name,
            frame,
            request,
            overwrites=True,
            since=since,
            force=force,
            merge_schema=merge_schema,
        )
    check_frame(frame)
    seen = UnitOfWork(context_of(table), "overwrite").base  # before a commit of columns, which reads newer versions
    _merge_schema(table, frame, request, merge_schema)

    def statement(transaction: Transaction, entry: TableEntry, digest: DigestMode) -> Made:
        if digest is DigestMode.ALONE:
            return None, [None, write_frame(transaction, table.name, frame, digest).sums.content()]
        oldest = reliance.oldest(frame, entry.uuid)
        base = seen if oldest is None else pin(context_of(table), oldest, None).manifest
        own = entry_then(base, table.name, entry.uuid)
        written = write_frame(transaction, table.name, frame, digest)
        files = tuple(written.files)
        made = Overwrite(table.name, entry.uuid, own.epoch, base.commit_ts, files, force, request, entry.schema)
        return made, [None, written.sums.content()]

    return _commit(table, "overwrite", request, statement, DigestMode.of(request), refresh=False)


def upsert(
    table: Table,
    frame: DataFrame,
    on: str | Sequence[str] | None = None,
    *,
    since: int | None = None,
    force: bool = False,
    merge_schema: bool = False,
    request: str | None = None,
) -> Commit:
    """Adds the rows of a DataFrame in place of all older rows with their keys, in one commit.

    It reads nothing of the table, so it conflicts with nothing, unless the frame itself was read from this table and
    others have changed that since. There may be any number of keys.

    Args:
        frame: as for ``append``; each key at most once, because a DataFrame has no order by which the last could win.
        on: the key's columns; the primary key by default.
        since, merge_schema, request: as for ``overwrite`` and ``append``.
        force: also replace rows that others have changed after the frame was read.

    Raises:
        InputError: a key occurs twice; or there is no key.
        RowError: a NULL in a key, or a value that does not fit.
        SchemaError: the columns do not match the table's, or can't be a key; raised before a task begins.
        ConflictError, VersionNotFoundError, VersionExpiredError, ...: as for ``overwrite``.
    """
    checks.table(table)
    check_frame(frame)
    reliance = Reliance.of(since, force)
    _merge_schema(table, frame, request, merge_schema)
    return _upsert(table, frame, on, request, DigestMode.of(request), reliance)


def _upsert(
    table: Table,
    frame: DataFrame,
    on: str | Sequence[str] | None,
    request: str | None,
    digest: DigestMode,
    reliance: Reliance,
) -> Commit:
    def statement(transaction: Transaction, entry: TableEntry, digest: DigestMode) -> Made:
        fields, named = key_fields(entry, on), match_names(frame, entry.schema)
        check_columns(named.schema, entry)
        if digest is not DigestMode.ALONE:
            reliance.add_to(transaction, table.name, frame)
        keys = key_columns(named, fields)
        together = named if digest is DigestMode.ALONE else named.repartition(*keys).sortWithinPartitions(*keys)
        reported = write_frame(transaction, table.name, together, digest, fields)
        content = [sorted(field.name for field in fields), reported.sums.content()]
        if not reported.files:
            return None, content
        hidden = tombstones(unit_of(transaction).uploads, table.name, entry.uuid, reported, fields)
        made = Write(table.name, entry.uuid, tuple(reported.files), hidden, request, schema=entry.schema)
        return made, content

    return _commit(table, "upsert", request, statement, digest)


def apply_batch(
    table: Table,
    mode: Mode,
    frame: DataFrame,
    on: str | Sequence[str] | None,
    request: str,
    *,
    merge_schema: bool = False,
) -> Commit:
    """Writes a batch of a stream once. When a query repeats its last batch, the rows may differ (a time, a random
    number), and that is no error: the request id alone says that it is the same batch."""
    _merge_schema(table, frame, request, merge_schema)
    if mode == "upsert":
        # A query could not go on if changes of the table were conflicts with its batch.
        return _upsert(table, frame, on, request, DigestMode.NONE, Reliance.of(None, force=True))
    return _append(table, frame, request, DigestMode.NONE)


def delete(
    table: Table,
    what: Where | DataFrame,
    on: str | Sequence[str] | None = None,
    *,
    since: int | None = None,
    force: bool = False,
    request: str | None = None,
) -> Commit:
    """Deletes rows: those for which a predicate is TRUE, or those with one of the keys in a DataFrame.

    It conflicts as ``upsert`` does. A predicate runs no job: it is ``Table.delete``.

    Args:
        what: SQL text or a mapping; or a DataFrame with the columns of the key and no others, of any number of rows.
        on: names of the key's columns; the primary key by default.
        since, force: with a DataFrame, as for ``upsert``.
        request: an id under which this is applied once, however often it is tried.

    Raises:
        PredicateError: the text can't be read.
        ConflictError: as for ``upsert``.
        InputError, SchemaError: the columns are not those of the key, or can't be one.
        RowError: a NULL in a key.
        PySparkException: as for ``append``.
    """
    checks.table(table)
    if not isinstance(what, DataFrame):
        if on is not None:
            raise InputError("on=... goes with a DataFrame of keys: a predicate names its columns itself")
        if since is not None or force is not False:
            raise InputError("since= and force= go with a DataFrame of keys: a predicate is read when it is committed")
        return table.delete(what, request=request)
    frame = what
    check_frame(frame)
    reliance = Reliance.of(since, force)

    def statement(transaction: Transaction, entry: TableEntry, digest: DigestMode) -> Made:
        fields, named = key_fields(entry, on), match_names(frame, entry.schema)
        plan_conform(worker_schema(named.schema), schema_of(fields))
        key_columns(named, fields)  # refuses columns of other kinds
        if digest is not DigestMode.ALONE:
            reliance.add_to(transaction, table.name, frame)
        keyed = named.select(*(uncollated_column(named, field) for field in fields))
        with raising_dolmen_errors():
            few = keyed.limit(MAX_KEYS + 1).toArrow()
        if few.num_rows <= MAX_KEYS:  # a job that collects them costs less than one that writes
            check_not_null(few, fields)
            keys = take_keys(entry, few, [field.name for field in fields])
            content = keys_content(entry, keys)
            if digest is DigestMode.ALONE:
                return None, content
            made = delete_keys(unit_of(transaction).uploads, table.name, entry, keys, request)
            return made if made.tombstones else None, content
        reported = write_frame(transaction, table.name, keyed.distinct(), digest, fields, has_rows=False)
        content = ["keys", sorted(field.name for field in fields), reported.sums.content()]
        if digest is DigestMode.ALONE:
            return None, content
        hidden = tombstones(unit_of(transaction).uploads, table.name, entry.uuid, reported, fields)
        return Write(table.name, entry.uuid, (), hidden, request, schema=entry.schema), content

    return _commit(table, "delete", request, statement, DigestMode.of(request))


def write_frame(
    transaction: Transaction,
    name: str,
    frame: DataFrame,
    digest: DigestMode,
    key: tuple[Field, ...] = (),
    *,
    has_rows: bool = True,
) -> Reported:
    """Writes rows into data files, and keys into tombstones, under the transaction's intent; commits nothing.

    Args:
        frame: rows of the table; with a ``key`` all rows of a key are in one partition, in order.
        key: the columns by whose values older rows are hidden.
        has_rows: False = the frame has keys alone.

    Raises:
        SchemaError: the columns do not match the table's; raised before a task begins.
        PySparkException: a task failed.
    """
    entry = unit_of(transaction).entry(name)
    if not key:
        check_columns(frame.schema, entry)
    is_alone = digest is DigestMode.ALONE
    url, txid = (worker_url(unit_of(transaction).context.store), "") if is_alone else begin_uploads(transaction)
    ids = tuple(field.id for field in key)
    task = RowsTask(url, name, msgspec.json.encode(without_files(entry)), txid, ids, has_rows, digest)
    job = map_in_tasks(frame, report_task(task), REPORT)
    return Reported.of(collect_rows(job) if is_alone else collect_keeping_alive(transaction, job))


def collect_rows(job: DataFrame) -> list[Row]:
    """Runs a job that uploads nothing, and collects its rows. Raises as ``collect_keeping_alive`` does."""
    with raising_dolmen_errors():
        rows: list[Row] = job.collect()
    return rows


def begin_uploads(transaction: Transaction) -> tuple[str, str]:
    """Begins the uploads of workers. Returns the database's URL for them, and the txid of their names.

    Raises:
        InputError: they can't reach the database.
    """
    unit = unit_of(transaction)
    url = worker_url(unit.context.store)
    unit.begin_upload()
    return url, unit.intent().txid


def collect_keeping_alive(transaction: Transaction, job: DataFrame) -> list[Row]:
    """Runs a job of tasks that upload objects, and collects their reports, while it keeps the intent alive.

    Raises:
        Error: of dolmen, raised in a task (``failures.mark_errors``).
        PySparkException, Py4JJavaError: a task failed for another reason.
    """
    unit = unit_of(transaction)
    spark, intent = job.sparkSession.sparkContext, unit.intent()
    tag = f"dolmen-{intent.txid}"

    def collect() -> Any:
        spark.addJobTag(tag)
        try:
            return job.collect()
        finally:
            spark.removeJobTag(tag)

    try:
        run = inheritable_thread_target(job.sparkSession)(collect)
        rows: list[Row] = unit.context.runtime.attend(run, BEAT_SECONDS / 10, intent.beat)
    except FAILURES as failure:
        if error := dolmen_error(failure):
            raise error from failure
        raise
    except BaseException:  # interrupted, or without a heartbeat: nothing will commit what the job still writes
        spark.cancelJobsWithTag(tag)
        raise
    return rows


def without_files(entry: TableEntry) -> TableEntry:
    """A table's entry without its files and deletes, which may be many: tasks that write need no more."""
    return msgspec.structs.replace(entry, files=(), tombstones=(), segments=(), overlays=(), removed=())


def check_frame(frame: object) -> None:
    """Raises InputError, SchemaError unless this is a frame whose rows can be written."""
    if not isinstance(frame, DataFrame):
        raise InputError(
            f"a Spark DataFrame is written here, not {type(frame).__name__}: Table.append takes other rows"
        )
    if is_remote_frame(frame):
        raise InputError(
            "a frame of Spark Connect can be appended, and can overwrite: for all else use table.upsert, table.delete "
            "or table.merge with its rows (frame.toArrow()), or a session of this process's own JVM"
        )
    if frame.isStreaming:
        raise InputError(
            'a stream goes by writeStream.format("dolmen") or foreachBatch(batches_into(table)): docs/spark-sql.md'
        )
    if repeated := [name for name, count in Counter(frame.columns).items() if count > 1]:
        raise SchemaError(f"the DataFrame has the column {repeated[0]!r} more than once: rename or drop one of them")


def _merge_schema(table: Table, frame: DataFrame, request: str | None, merge_schema: bool) -> None:
    """Adds columns that the table does not have, if ``merge_schema`` says so."""
    if arguments.flag("merge_schema", merge_schema):
        add_new_columns(context_of(table), table.name, frame.schema, request)


def _commit(
    table: Table,
    operation: str,
    request: str | None,
    statement: Callable[[Transaction, TableEntry, DigestMode], Made],
    digest: DigestMode,
    *,
    refresh: bool = True,
) -> Commit:
    """Commits one statement.

    Args:
        statement: makes it, and returns the request's content.
        refresh: make it on the newest version; else on the newest that the table has seen.
    """
    transaction = Transaction(context_of(table), operation)
    unit = unit_of(transaction)
    if refresh:
        unit.refresh()
    entry = unit.entry(table.name)
    content: list[Any] | None = None
    if not transaction.has_applied(request):
        made, content = statement(transaction, entry, digest)
        if made is not None:
            unit_of(transaction).add(made)
    elif digest is DigestMode.WITH_FILES and is_compared(transaction, request):
        _, content = statement(transaction, entry, DigestMode.ALONE)
    if request is not None:
        has_digest = content is not None and digest is not DigestMode.NONE
        transaction.bind(request, content_digest(operation, table.name, *(content or ())) if has_digest else "")
    return transaction.commit()


def is_compared(transaction: Transaction, request: str | None) -> bool:
    """Whether a request that was applied before stored a digest of its content."""
    return request is not None and bool(unit_of(transaction).find_applied([request])[request].digest)


def bind_request(transaction: Transaction, request: str | None, digest: Callable[[], str]) -> bool:
    """Makes the commit carry a request id. Returns whether a version contains it already, so nothing is left to do.

    Args:
        digest: of the request's content; not called where it would be compared with nothing.
    """
    if request is None:
        return False
    is_applied = transaction.has_applied(request)
    transaction.bind(request, digest() if not is_applied or is_compared(transaction, request) else "")
    return is_applied
