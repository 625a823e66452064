"""Writes a DataFrame into a table: tasks write data files, and the driver makes ONE commit of their reports.

A repeated, speculative or killed task leaves files that no commit names, and nothing else: Spark gives the driver one
report for each partition, and only files in these reports count. The job's intent names all files, so collection finds
and removes those of a dead job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from pyspark.sql import DataFrame

from dolmen.api.table import Table
from dolmen.base import arguments
from dolmen.commit.change import RowsDependency, find_applied
from dolmen.commit.draft import Statement
from dolmen.commit.head import commit_of, context_of
from dolmen.commit.statements.row_changes import Overwrite, Write
from dolmen.commit.uploads import MAX_KEYS
from dolmen.errors import ConflictError, InputError, SchemaError
from dolmen.format.del_object import check_not_null
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import Field
from dolmen.predicate.ast import Predicate
from dolmen.predicate.parse import Where
from dolmen.predicate.text import to_sql
from dolmen.rows.write.conform import plan_conform
from dolmen.rows.write.row_digest import content_digest
from dolmen.spark.frame_types import origins_in_plan, worker_schema
from dolmen.spark.sessions import check_table
from dolmen.spark.tasks import raising_dolmen_errors
from dolmen.spark.write.frame_columns import (
    add_new_columns,
    check_columns,
    gather_partitions,
    key_columns,
    match_names,
    uncollated_column,
)
from dolmen.spark.write.replaced_partitions import (
    delete_partitions,
    has_buckets,
    partitions_of_files,
    partitions_to_replace,
)
from dolmen.spark.write.write_tasks import (
    DigestMode,
    RowsTask,
    WriteReport,
    begin_uploads,
    collect_report,
    encode_entry,
    schema_of,
    tombstones,
)
from dolmen.store import portable_url
from dolmen.transactions.keys import key_fields, take_keys
from dolmen.transactions.row_arguments import keys_content, parse_where
from dolmen.transactions.row_statements import TableChange
from dolmen.transactions.snapshot import pin
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.unit_of_work import Commit, UnitOfWork

Mode: TypeAlias = Literal["append", "upsert"]
StatementAndContent: TypeAlias = tuple[Statement | None, list[Any]]
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
    check_table(table)
    if is_remote_frame(frame):
        return write_remotely(table, frame, request, merge_schema=merge_schema)
    check_frame(frame)
    _merge_schema(table, frame, request, merge_schema)
    return _append(table, frame, request, DigestMode.of(request))


def _append(table: Table, frame: DataFrame, request: str | None, digest: DigestMode) -> Commit:
    def statement(transaction: Transaction, entry: TableEntry, digest: DigestMode) -> StatementAndContent:
        written = write_frame(transaction, table.name, frame, digest)
        write = Write(table.name, entry.uuid, tuple(written.files), request=request, schema=entry.schema)
        return write if written.files else None, [None, written.sums.content()]

    return _commit(table, "append", request, statement, digest)


def overwrite(
    table: Table,
    frame: DataFrame,
    *,
    where: Where = None,
    by_partition: bool = False,
    check: bool = True,
    since: int | None = None,
    force: bool = False,
    merge_schema: bool = False,
    request: str | None = None,
) -> Commit:
    """Replaces all rows of a table, or those of a predicate, by those of a DataFrame. See ``append``.

    It conflicts with rows that others have added or deleted after the oldest version that the frame reads of the table
    itself, anywhere in its plan; or, if it reads none, after the newest version that this ``table`` has seen when the
    job begins. A frame of Spark Connect does not show its plan: its columns name the versions, and if all of them were
    computed, ``since`` or ``force`` is needed.

    Args:
        where: replace only rows for which it is TRUE; they are not read.
        by_partition: replace only the partitions of which the DataFrame has rows; they are not read, unless one of
            the terms is ``bucket``.
        check: refuse rows for which ``where`` is not TRUE.
        since: the version that the rows were made from, if Spark's plan does not show it, as with pandas.
        force: also replace rows that others have added since.
        merge_schema: as for ``append``.

    Raises:
        RowError: a row is not one of those that are replaced (``check``).
        ConflictError: others have added or deleted rows; make the frame again, and repeat.
        VersionNotFoundError, VersionExpiredError: the version ``since`` does not exist, or has expired.
    """
    check_table(table)
    unchanged, check = UnchangedSince.of(since, force), arguments.flag("check", check)
    if arguments.flag("by_partition", by_partition) and where is not None:
        raise InputError("where= and by_partition= each say which rows are replaced: give one")
    if is_remote_frame(frame):
        if where is not None or by_partition:
            raise InputError(
                "where= and by_partition= need a session of this process's own JVM: table.overwrite takes where= "
                "without Spark"
            )
        return write_remotely(table, frame, request, overwrites=unchanged, merge_schema=merge_schema)
    check_frame(frame)
    if where is not None or by_partition:
        _merge_schema(table, frame, request, merge_schema)
        return _overwrite_some(table, frame, where, check, unchanged, request)
    base = UnitOfWork(context_of(table), "overwrite").base  # before a commit of columns, which reads newer versions
    _merge_schema(table, frame, request, merge_schema)

    def statement(transaction: Transaction, entry: TableEntry, digest: DigestMode) -> StatementAndContent:
        if digest is DigestMode.ALONE:
            return None, [None, write_frame(transaction, table.name, frame, digest).sums.content()]
        oldest = unchanged.oldest(frame, entry.uuid)
        read = base if oldest is None else pin(context_of(table), oldest, None).manifest
        epoch = entry_in(read, table.name, entry.uuid).epoch
        written = write_frame(transaction, table.name, frame, digest)
        files = tuple(written.files)
        write = Overwrite(table.name, entry.uuid, epoch, read.commit_ts, files, force, request, entry.schema)
        return write, [None, written.sums.content()]

    return _commit(table, "overwrite", request, statement, DigestMode.of(request), refresh=False)


def _overwrite_some(
    table: Table, frame: DataFrame, where: Where, check: bool, unchanged: UnchangedSince, request: str | None
) -> Commit:
    """Replaces the rows of a predicate, or (None) those of the partitions of which the frame has rows."""

    def statement(transaction: Transaction, entry: TableEntry, digest: DigestMode) -> StatementAndContent:
        unit = unit_of(transaction)
        if where is None:
            partitions_to_replace(table.name, entry)
        predicate = None if where is None else parse_where(unit.context, entry, where)
        content: list[Any] = ["partitions" if predicate is None else to_sql(predicate, entry.schema)]
        if digest is DigestMode.ALONE:
            return None, [*content, write_frame(transaction, table.name, frame, digest).sums.content()]
        unchanged.add_to(transaction, table.name, frame)
        only = predicate if check else None
        written = write_frame(transaction, table.name, frame, digest, only=only, divides_all=where is None)
        content.append(written.sums.content())
        if predicate is None:
            if not written.files:
                return None, content
            spec = partitions_to_replace(table.name, entry)
            partitions = partitions_of_files(spec, written.files)
            if has_buckets(spec):
                if deletion := delete_partitions(unit, table.name, entry, spec, partitions, request, unchanged.force):
                    unit.add(deletion)
                files, schema = tuple(written.files), entry.schema
                return Write(table.name, entry.uuid, files, (), request, schema=schema, is_overwrite=True), content
            predicate = spec.predicate(partitions)
        if not unchanged.force:
            unit.depend_on_rows(table.name, predicate)
        change = TableChange(unit, table.name, request, entry)
        return change.replace_matching(predicate, tuple(written.files)), content

    return _commit(table, "overwrite", request, statement, DigestMode.of(request))


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
    check_table(table)
    check_frame(frame)
    unchanged = UnchangedSince.of(since, force)
    _merge_schema(table, frame, request, merge_schema)
    return _upsert(table, frame, on, request, DigestMode.of(request), unchanged)


def _upsert(
    table: Table,
    frame: DataFrame,
    on: str | Sequence[str] | None,
    request: str | None,
    digest: DigestMode,
    unchanged: UnchangedSince,
) -> Commit:
    def statement(transaction: Transaction, entry: TableEntry, digest: DigestMode) -> StatementAndContent:
        fields, rows = key_fields(entry, on), match_names(frame, entry.schema)
        check_columns(rows.schema, entry)
        keys = key_columns(rows, fields)
        if digest is not DigestMode.ALONE:
            unchanged.add_to(transaction, table.name, frame)
            rows = rows.repartition(*keys).sortWithinPartitions(*keys)
        report = write_frame(transaction, table.name, rows, digest, fields)
        content = [sorted(field.name for field in fields), report.sums.content()]
        if not report.files:
            return None, content
        key_tombstones = tombstones(transaction, table.name, entry.uuid, report)
        return Write(table.name, entry.uuid, tuple(report.files), key_tombstones, request, schema=entry.schema), content

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
    number), which is not an error: the request id alone says that it is the same batch."""
    _merge_schema(table, frame, request, merge_schema)
    if mode == "upsert":
        # A query could not go on if changes of the table were conflicts with its batch.
        return _upsert(table, frame, on, request, DigestMode.NONE, UnchangedSince(None, force=True))
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
    check_table(table)
    if not isinstance(what, DataFrame):
        if on is not None:
            raise InputError("on=... goes with a DataFrame of keys: a predicate names its columns itself")
        if since is not None or force is not False:
            raise InputError("since= and force= go with a DataFrame of keys: a predicate is read when it is committed")
        return table.delete(what, request=request)
    frame = what
    check_frame(frame)
    unchanged = UnchangedSince.of(since, force)

    def statement(transaction: Transaction, entry: TableEntry, digest: DigestMode) -> StatementAndContent:
        fields, rows = key_fields(entry, on), match_names(frame, entry.schema)
        plan_conform(worker_schema(rows.schema), schema_of(fields))
        key_columns(rows, fields)  # refuses columns of other kinds
        if digest is not DigestMode.ALONE:
            unchanged.add_to(transaction, table.name, frame)
        key_frame = rows.select(*(uncollated_column(rows, field) for field in fields))
        with raising_dolmen_errors():
            few = key_frame.limit(MAX_KEYS + 1).toArrow()
        if few.num_rows <= MAX_KEYS:  # a job that collects them costs less than one that writes
            check_not_null(few, fields, None)
            keys = take_keys(entry, few, [field.name for field in fields])
            content = keys_content(entry, keys)
            if digest is DigestMode.ALONE:
                return None, content
            write = TableChange(unit_of(transaction), table.name, request, entry).delete_keys(keys)
            return write if write.tombstones else None, content
        report = write_frame(transaction, table.name, key_frame.distinct(), digest, fields, has_rows=False)
        content = ["keys", sorted(field.name for field in fields), report.sums.content()]
        key_tombstones = tombstones(transaction, table.name, entry.uuid, report)
        return Write(table.name, entry.uuid, (), key_tombstones, request, schema=entry.schema), content

    return _commit(table, "delete", request, statement, DigestMode.of(request))


def write_frame(
    transaction: Transaction,
    name: str,
    frame: DataFrame,
    digest: DigestMode,
    key: tuple[Field, ...] = (),
    *,
    has_rows: bool = True,
    only: Predicate | None = None,
    divides_all: bool = False,
) -> WriteReport:
    """Writes rows into data files, and keys into tombstones, under the transaction's intent; commits nothing.

    Args:
        frame: rows of the table; with a ``key`` all rows of a key are in one partition, in order.
        key: the columns by whose values older rows are hidden.
        has_rows: False = the frame has keys alone.
        only: it is an error if it is not TRUE for a row.
        divides_all: no file has rows of several partitions, however many there are.
    """
    unit = unit_of(transaction)
    entry = unit.entry(name)
    if not key:
        check_columns(frame.schema, entry)
        if digest is not DigestMode.ALONE:
            frame = gather_partitions(frame, entry)
    uploads = begin_uploads(transaction, name) if digest is not DigestMode.ALONE else None
    schema = entry.schema.at(lambda: unit.context.store.clock.current_us)
    base = uploads or (portable_url(unit.context.store), name, encode_entry(entry, schema), "")
    task = RowsTask(*base, tuple(field.id for field in key), has_rows, digest, only, divides_all)
    return collect_report(transaction if uploads else None, frame, task.run)


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


def is_remote_frame(frame: object) -> bool:
    return isinstance(frame, DataFrame) and not hasattr(frame, "_jdf")


def _merge_schema(table: Table, frame: DataFrame, request: str | None, merge_schema: bool) -> None:
    """Adds columns that the table does not have, if ``merge_schema`` says so."""
    if arguments.flag("merge_schema", merge_schema):
        add_new_columns(context_of(table), table.name, frame.schema, request)


def _commit(
    table: Table,
    operation: str,
    request: str | None,
    statement: Callable[[Transaction, TableEntry, DigestMode], StatementAndContent],
    digest: DigestMode,
    *,
    refresh: bool = True,
) -> Commit:
    """Commits one statement, on the newest version, or (``refresh=False``) on the newest that the table has seen."""
    transaction = Transaction(UnitOfWork(context_of(table), operation))
    unit = unit_of(transaction)
    if refresh:
        unit.refresh()
    entry = unit.entry(table.name)
    content: list[Any] | None = None
    if not transaction.has_applied(request):
        write, content = statement(transaction, entry, digest)
        if write is not None:
            unit.add(write)
    elif digest is DigestMode.WITH_FILES and _has_digest(transaction, request):
        _, content = statement(transaction, entry, DigestMode.ALONE)
    if request is not None:
        is_compared = content is not None and digest is not DigestMode.NONE
        transaction.bind(request, content_digest(operation, table.name, *(content or ())) if is_compared else "")
    return transaction.commit()


def _has_digest(transaction: Transaction, request: str | None) -> bool:
    return request is not None and bool(unit_of(transaction).find_applied([request])[request].digest)


def bind_request(transaction: Transaction, request: str | None, digest: Callable[[], str]) -> bool:
    """Makes the commit carry a request id. Returns whether a version contains it already, so nothing is left to do.

    Computes the digest of the request's content only where it is compared.
    """
    if request is None:
        return False
    is_applied = transaction.has_applied(request)
    transaction.bind(request, digest() if not is_applied or _has_digest(transaction, request) else "")
    return is_applied


class UnchangedSince(Struct, frozen=True):
    """The condition of a write, unless ``force``: the table has not changed since the frame was read from it.

    Otherwise the write would undo changes that others write to the same rows. Which rows the frame has read is unknown,
    so any change counts. A frame that reads nothing of the table has no condition. ``since`` is a version that its rows
    were made from, if Spark's plan does not show it.
    """

    since: int | None
    force: bool

    @classmethod
    def of(cls, since: int | None, force: bool) -> UnchangedSince:
        return cls(None if since is None else arguments.number("since", since), arguments.flag("force", force))

    def oldest(self, frame: DataFrame, table: str) -> int | None:
        """The oldest version that a frame reads of a table (its uuid), or was made from; None if there is none."""
        read = {origin.version for origin in origins_in_plan(frame) if origin.table == table}
        return min(read if self.since is None else {*read, self.since}, default=None)

    def add_to(self, transaction: Transaction, name: str, frame: DataFrame) -> None:
        """Makes the commit depend on it. Raises ConflictError, VersionNotFoundError, VersionExpiredError."""
        unit = unit_of(transaction)
        uuid = unit.entry(name).uuid
        oldest = None if self.force else self.oldest(frame, uuid)
        if oldest is None:
            return
        base = unit.base if oldest == unit.base.version else pin(unit.context, oldest, None).manifest
        epoch = entry_in(base, name, uuid).epoch
        advice = f"these rows were made from version {oldest}: make the frame again and repeat, or give force=True"
        unit.depend_on(RowsDependency(name, uuid, epoch, base.commit_ts, advice=advice))


def entry_in(manifest: Manifest, name: str, uuid: str) -> TableEntry:
    """A table's entry in an older version, where it may have another name. Raises ConflictError, TableNotFoundError."""
    old_name = manifest.name_of(uuid)
    if old_name is None:
        manifest.table(name)
        raise ConflictError(f"table {name!r} was dropped and created again after version {manifest.version}")
    return manifest.tables[old_name]


def write_remotely(
    table: Table,
    frame: DataFrame,
    request: str | None,
    *,
    overwrites: UnchangedSince | None = None,
    merge_schema: bool = False,
) -> Commit:
    """Appends or replaces rows of a frame of Spark Connect by ``format("dolmen")``, because this process has no JVM.

    The commit is found by its request id, which is a new one by default. ``overwrites`` is the condition on which rows
    are replaced.
    """
    context = context_of(table)
    request_id = context.runtime.uuid() if request is None else request
    options = {"table": table.name, "request": request_id}
    if overwrites is not None and overwrites.since is not None:
        options["since"] = str(overwrites.since)
    if overwrites is not None and overwrites.force:
        options["force"] = "true"
    if arguments.flag("merge_schema", merge_schema):
        options["merge_schema"] = "true"
    before = context.head.refresh().manifest
    applied_before = {} if request is None else find_applied(before, [request_id], context.segments)
    mode = "append" if overwrites is None else "overwrite"
    with raising_dolmen_errors():
        frame.write.format("dolmen").options(**options).mode(mode).save(portable_url(context.store))
    newest = context.head.refresh().manifest
    if applied_before:
        return Commit.nothing(newest.as_history(), {request_id: applied_before[request_id].version})
    applied = find_applied(newest, [request_id], context.segments)
    entry = commit_of(context.head, newest, applied[request_id].version) if applied else None
    assert entry is not None, "the history lacks the commit of this write"
    return Commit.of(entry, [request_id])
