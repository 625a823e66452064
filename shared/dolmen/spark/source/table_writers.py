"""Writes of ``format("dolmen")``: tasks write data files and send their entries, and one process commits them.

Spark makes a writer in one process, gives tasks copies of it, and lets another process commit their messages. Nothing
lives from the first step to the last, as a ``Transaction`` does; the tasks keep the job's intent alive.

``abort`` does nothing, on purpose: Spark calls it also after a ``commit`` whose outcome is unknown. Collection finds
files that no commit names by the intent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import pyarrow as pa
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql import DataFrame, datasource
from pyspark.sql import types as s
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.utils import is_remote

from dolmen.api.database import open as open_database
from dolmen.api.table import Table
from dolmen.base import arguments
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.commit.change import Change, RowsDependency, find_applied
from dolmen.commit.draft import Statement
from dolmen.commit.head import context_of
from dolmen.commit.loop import commit as commit_change
from dolmen.commit.statements.row_changes import Overwrite, Write
from dolmen.commit.uploads import BEAT_SECONDS, Heartbeat, Intent, PendingUploads, record_predicate
from dolmen.errors import ConflictError, InputError, short_repr
from dolmen.format.entries import DataFile
from dolmen.format.manifest import TableEntry
from dolmen.predicate.ast import Predicate, to_json
from dolmen.predicate.parse import parse
from dolmen.rows.write.row_digest import content_digest
from dolmen.spark.frame_types import origins_of
from dolmen.spark.sessions import check_table
from dolmen.spark.source.source import STREAM_WRITE, WRITE, Options
from dolmen.spark.tasks import mark_dolmen_errors
from dolmen.spark.write.frame_columns import add_new_columns, check_columns
from dolmen.spark.write.from_frame import Mode, apply_batch, entry_in
from dolmen.spark.write.replaced_partitions import partitions_to_replace, predicate_of_files
from dolmen.spark.write.write_tasks import DigestMode, RowsTask, RowSums, decode_entry, encode_entry
from dolmen.store import open_store, portable_url
from dolmen.store.base import ObjectStore
from dolmen.transactions.snapshot import pin

QUERY_ID = "sql.streaming.queryId"  # Spark's own name for the local property with the query's id
_NUMBER_BITS = 60
# Spark 4.0 gives streams' writers rows, not Arrow: ``stream_writer`` refuses it.
_Base = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)


class TaskIntent(Intent):
    """One task's part in the intent of its job.

    Tasks know nothing of each other, so their heartbeats have random numbers instead of 0, 1, 2. Collection goes by the
    age of the newest heartbeat.
    """

    def __init__(self, store: ObjectStore, runtime: Runtime, txid: str, what: str, table: str) -> None:
        super().__init__(store, runtime, what, [table])
        self.txid, self._last_beat = txid, runtime.monotonic()

    def start(self) -> int:
        """Puts the task's first heartbeat; returns the server's clock, by which the fence judges the task's objects."""
        self._put_heartbeat()  # the response brings the server's clock, if it was unknown
        return self._store.clock.now_us

    def _put_heartbeat(self) -> None:
        self._beats = 1 + self._runtime.random.getrandbits(_NUMBER_BITS)
        super()._put_heartbeat()

    def _heartbeat(self) -> Heartbeat:
        self._started_us = self._store.clock.now_us
        return super()._heartbeat()


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):  # type: ignore[misc]
    """The result of one task, with the server's clock before the first file, and the id of a streaming query."""

    job: WriteJob
    files: tuple[DataFile, ...] = ()
    first_upload_us: int = 0
    query: str = ""
    sums: RowSums = field(default_factory=RowSums)


class WriteJob(Struct, frozen=True):
    """The values that are known when the job begins."""

    url: str
    table: str
    version: int  # the version that the rows were made from, or else the newest one when the job began
    # uuid, epoch, base_ts: of the table in that version
    uuid: str
    epoch: int
    base_ts: int
    entry: bytes  # the table, by ``encode_entry``
    overwrite: bool
    force: bool  # an overwrite also replaces rows that others have added since
    txid: str  # begins the names of all its files
    now_us: int  # the time that ``now()`` is in its rows
    # where, by_partition: the rows that it replaces, if not all
    where: Predicate | None = None
    by_partition: bool = False
    digest: DigestMode = DigestMode.NONE

    @property
    def operation(self) -> str:
        return "overwrite" if self.overwrite else "append"

    def write(self, batches: Iterator[pa.RecordBatch], query: str = "") -> TaskResult:
        """Writes one task's rows. Keeps the intent alive, because rows may take hours to come."""
        runtime = shared_runtime()
        intent = TaskIntent(open_store(self.url, runtime), runtime, self.txid, self.operation, self.table)
        entry = decode_entry(self.entry)
        encoded = encode_entry(entry, entry.schema.at(lambda: self.now_us))
        task = RowsTask(
            self.url, self.table, encoded, self.txid, digest=self.digest, only=self.where, divides_all=self.by_partition
        )
        if self.digest is DigestMode.ALONE:
            return TaskResult(self, query=query, sums=task.run(batches).sums)

        def work() -> TaskResult:
            first = next(batches, None)
            if first is None:
                return TaskResult(self, query=query)
            first_upload_us = intent.start()
            report = task.run(chain([first], batches))
            return TaskResult(self, tuple(report.files), first_upload_us, query, report.sums)

        return runtime.attend(work, BEAT_SECONDS / 10, intent.beat)

    def commit(self, messages: Sequence[TaskResult | None], request: str | None) -> None:
        """Makes ONE commit of the results of the tasks. Raises as ``Transaction.commit`` does."""
        results = [message for message in messages if message is not None]
        written = [result for result in results if result.files]
        if not written and not self.overwrite and request is None:
            return
        context = context_of(open_database(self.url))
        files = tuple(file for result in written for file in result.files)
        # A stream makes another job for the commit than for the tasks: the files are those of the tasks' job.
        jobs = {(result.job.uuid, result.job.txid, result.job.entry) for result in written}
        assert len(jobs) <= 1, "files of two jobs in one commit"
        uuid, txid, entry = next(iter(jobs), (self.uuid, None, self.entry))
        uploads = PendingUploads(context.store, context.runtime, context.segments)
        statement, dependency = self._statement(files, uuid, decode_entry(entry), uploads, request)
        change = Change(
            commit_id=context.runtime.uuid(),
            operation=self.operation,
            statements=() if statement is None else (statement,),
            applied={} if request is None else {request: self._content_digest(results)},
            dependencies=() if dependency is None else (dependency,),
            first_upload_us=min((result.first_upload_us for result in written), default=None),
            txid=txid,
        )
        try:
            done = commit_change(context.head, change, uploads)
        except ConflictError as error:
            if not self.overwrite:
                raise
            raise ConflictError(
                f"{error} (these rows are of version {self.version}, as is the frame or view that they come from)"
            ) from error
        if done.manifest is not None and txid is not None:
            TaskIntent(context.store, context.runtime, txid, self.operation, self.table).finish()

    def _content_digest(self, results: Sequence[TaskResult]) -> str:
        if self.digest is DigestMode.NONE:
            return ""
        sums = RowSums()
        for result in results:
            sums.add_sums(result.sums)
        replaced = "partitions" if self.by_partition else None if self.where is None else to_json(self.where).decode()
        return content_digest(self.operation, self.table, replaced, sums.content())

    def _statement(
        self, files: tuple[DataFile, ...], uuid: str, entry: TableEntry, uploads: PendingUploads, request: str | None
    ) -> tuple[Statement | None, RowsDependency | None]:
        """The statement that the files are for, if it does anything, and the read of the rows that it replaces."""
        if self.digest is DigestMode.ALONE:
            return None, None
        where, schema = self.where, entry.schema
        if self.by_partition and files:
            where = predicate_of_files(partitions_to_replace(self.table, entry), files)
        if where is not None:
            tombstone = record_predicate(partial(uploads.tombstone_object, self.table, uuid), schema, where)
            tombstones = (tombstone,) if tombstone else ()
            advice = "make the rows again and repeat, or give the option force"
            read = RowsDependency(self.table, uuid, self.epoch, self.base_ts, where, advice, schema)
            write = Write(self.table, uuid, files, tombstones, request, schema=schema, is_overwrite=True)
            return write, None if self.force else read
        if self.overwrite and not self.by_partition:
            return Overwrite(self.table, uuid, self.epoch, self.base_ts, files, self.force, request, schema), None
        return (Write(self.table, uuid, files, request=request, schema=schema) if files else None), None


class TableWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a DataFrame into a table, in one commit.

    ``is_skipped``: the request was applied before, without a digest, so the rows can't be compared.
    """

    def __init__(self, job: WriteJob, request: str | None, is_skipped: bool) -> None:
        self.job, self.request, self.is_skipped = job, request, is_skipped

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        with mark_dolmen_errors():
            return TaskResult(self.job) if self.is_skipped else self.job.write(iterator)

    def commit(self, messages: Sequence[TaskResult | None]) -> None:
        if not self.is_skipped:
            with mark_dolmen_errors():
                self.job.commit(messages, self.request)

    def abort(self, messages: Sequence[TaskResult | None]) -> None:
        """Does nothing: see the module."""


def prepare(options: Options, schema: s.StructType, overwrite: bool, *, force: bool) -> WriteJob:
    """Checks the table. Raises SchemaError if no row of the frame could fit, TableNotFoundError, InputError."""
    operation = options.text("operation") or "append"
    if operation != "append":
        raise InputError(
            f'option "operation" is {operation!r}: a data source appends and overwrites (mode "append", "overwrite"); '
            "dolmen.spark has upsert, delete and merge, and batches_into for streams"
        )
    context = context_of(open_database(options.url))
    url = portable_url(context.store)
    if options.flag("merge_schema"):
        add_new_columns(context, options.table, schema, options.text("request"))
    manifest = context.head.refresh().manifest
    entry = context.segments.whole(manifest.table(options.table))
    where, by_partition = _replaced_rows(options, entry, overwrite)
    is_whole = where is None and not by_partition
    since = _since(options, schema, entry, is_whole) if overwrite and not force else None
    base = manifest if since is None else pin(context, since, None).manifest
    epoch = entry_in(base, options.table, entry.uuid).epoch
    check_columns(schema, entry)
    state = base.version, entry.uuid, epoch, base.commit_ts, encode_entry(entry)
    return WriteJob(
        url,
        options.table,
        *state,
        overwrite,
        force,
        context.runtime.uuid(),
        context.store.clock.current_us,
        where,
        by_partition,
    )


def _replaced_rows(options: Options, entry: TableEntry, overwrite: bool) -> tuple[Predicate | None, bool]:
    """The rows that an overwrite replaces, or whether it replaces those of its partitions. Raises InputError."""
    mode = (options.text("partition_overwrite_mode") or "static").lower()
    if mode not in ("static", "dynamic"):
        raise InputError(f"option 'partitionOverwriteMode' is {short_repr(mode)}: static or dynamic")
    text = options.text("replace_where")
    if text is not None and not overwrite:
        raise InputError('the option replaceWhere says which rows are replaced: write with mode("overwrite")')
    if text is not None:
        return parse(text, entry.schema, now_us=shared_runtime().clock_us()), False
    if overwrite and mode == "dynamic":
        partitions_to_replace(options.table, entry)
        return None, True
    return None, False


def _since(options: Options, schema: s.StructType, entry: TableEntry, is_whole: bool) -> int | None:
    """The oldest version of this table that the rows come from; None if they come from none. Raises InputError."""
    origins, since = origins_of(schema), options.number("since")
    if is_whole and not origins and since is None:
        raise InputError(
            f"the origin of these rows can't be seen, because each of their columns was computed. If from table "
            f"{options.table!r} itself, rows that others have added to it since would be lost: give "
            'option("since", version), the version that they were made from or the newest one, or option("force", True)'
        )
    versions = {origin.version for origin in origins if origin.table == entry.uuid}
    return min(versions if since is None else {*versions, since}, default=None)


def writer(raw: Mapping[str, str], schema: s.StructType, overwrite: bool) -> DataSourceWriter:
    options = Options.of(raw, WRITE)
    job = prepare(options, schema, overwrite, force=options.flag("force"))
    request = options.text("request")
    if request is None:
        return TableWriter(job, None, False)
    context = context_of(open_database(job.url))
    applied = find_applied(context.head.refresh().manifest, [request], context.segments).get(request)
    job = replace(job, digest=DigestMode.WITH_FILES if applied is None else DigestMode.ALONE)
    return TableWriter(job, request, applied is not None and not applied.digest)


def request_id(query: str, batch: int) -> str:
    return f"stream:{query}:{batch}"


class TableStreamWriter(_Base):  # type: ignore[misc, valid-type]
    """Writes micro-batches. Spark makes one writer for each batch, and another to commit it."""

    def __init__(self, job: WriteJob) -> None:
        self.job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Writes one task's rows of one batch. The result has the query's id, which only tasks know."""
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context else None
        with mark_dolmen_errors():
            if not query:
                raise InputError("the query of these rows has no id: is this a stream?")
            return self.job.write(iterator, query)

    def commit(self, messages: Sequence[TaskResult | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commits, once all tasks of the batch have ended. A batch without tasks has nothing to commit."""
        queries = {message.query for message in messages if message is not None}
        assert len(queries) <= 1, "rows of two queries in one batch"
        if any(message is not None and message.files for message in messages) or (queries and self.job.overwrite):
            with mark_dolmen_errors():
                self.job.commit(messages, request_id(queries.pop(), batchId))

    def abort(self, messages: Sequence[TaskResult | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: see the module."""


def stream_writer(raw: Mapping[str, str], schema: s.StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:
    """Makes the writer of a stream; ``overwrite`` is output mode "complete". Raises InputError, SchemaError."""
    if _Base is datasource.DataSourceStreamWriter:
        raise InputError(
            "this Spark gives rows of streams to Python one by one: use Spark 4.1, or foreachBatch(batches_into(table))"
        )
    return TableStreamWriter(prepare(Options.of(raw, STREAM_WRITE), schema, overwrite, force=True))


def batches_into(
    table: Table, mode: Mode = "append", on: Sequence[str] | None = None, *, merge_schema: bool = False
) -> Callable[[DataFrame, int], None]:
    """Makes a function for ``foreachBatch`` that writes each micro-batch in one commit, exactly once.

    ::

        frame.writeStream.foreachBatch(batches_into(table, "upsert")).option("checkpointLocation", ...).start()

    Each batch is applied under the request id ``stream:<query id>:<batch id>``; a query that is begun with a new
    checkpoint is a new query.

    In Spark Connect, ``writeStream.format("dolmen")`` appends a stream instead.

    Args:
        mode: "upsert" replaces rows of the same key.
        on: the key's columns; the primary key by default.
        merge_schema: add columns that the table does not have, before, in a commit of their own.
    """
    check_table(table)
    if is_remote():
        raise InputError(
            "batches_into needs a session of this process's own JVM, and this process uses Spark Connect: append by "
            'writeStream.format("dolmen")'
        )
    arguments.one_of("mode", mode, ("append", "upsert"))
    on = None if on is None else arguments.names("on", on)
    arguments.flag("merge_schema", merge_schema)

    def write(frame: DataFrame, batch: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if not query:
            raise InputError("batches_into is for foreachBatch: outside of a streaming query there is no query id")
        apply_batch(table, mode, frame, on, request_id(query, batch), merge_schema=merge_schema)

    return write
