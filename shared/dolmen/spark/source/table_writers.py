"""Writes of ``format("dolmen")``: tasks write data files and send their entries, and one process commits them.

Spark gives a writer no life of its own: one process makes it and sends it on, tasks use copies of it, and another
process is handed what they sent, to commit. So all that is known when the job begins goes along in ``WriteJob``, and
the intent is kept alive by the tasks while they run.

``abort`` does nothing, on purpose: Spark calls it also after a ``commit`` whose outcome is unknown. Files that no
commit names are found by the intent.

The intent of a job that no process outlives: its tasks keep the intent alive while they run.

As tasks know nothing of each other, their heartbeats have random numbers instead of 0, 1, 2, which collection does
not mind: it goes by how old the newest one is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, datasource
from pyspark.sql import types as s
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.utils import is_remote

from dolmen.api.database import open as open_database
from dolmen.api.table import Table
from dolmen.base import arguments
from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.commit.change import Change, find_applied
from dolmen.commit.intent import BEAT_SECONDS, PREFIX, Heartbeat
from dolmen.commit.loop import commit as commit_change
from dolmen.commit.statements.row_changes import Overwrite, Write
from dolmen.commit.statements.statement import Statement
from dolmen.commit.uploads import PendingUploads
from dolmen.errors import ConflictError, Error, InputError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import TableEntry
from dolmen.format.pointer import FORMAT_VERSION
from dolmen.format.schema import Schema
from dolmen.rows.write.row_digest import content_digest
from dolmen.spark import checks
from dolmen.spark.checks import worker_url
from dolmen.spark.failures import marking_dolmen_errors
from dolmen.spark.file_tasks import RowsTask
from dolmen.spark.origin import entry_then, origins_of
from dolmen.spark.source.source import STREAM_WRITE, WRITE, Options
from dolmen.spark.write.frame_columns import add_new_columns, check_columns
from dolmen.spark.write.from_frame import Mode, apply_batch, without_files
from dolmen.spark.write.task_reports import DigestMode, RowSums
from dolmen.store.base import ObjectStore, create
from dolmen.store.url import open_store
from dolmen.transactions.snapshot import pin

_NUMBER_BITS = 60


class TaskHeartbeat:
    """One process's part in an intent.

    Args:
        txid: of the job.
        what: the job, for people.
        table: the table it writes for.
    """

    def __init__(self, store: ObjectStore, runtime: Runtime, txid: str, what: str, table: str) -> None:
        self._store, self._runtime, self._txid = store, runtime, txid
        self._what, self._table = what, table
        self._last_beat = runtime.monotonic()

    def start(self) -> int:
        """Puts the process's first heartbeat, before its first object.

        Returns:
            the server's clock before that, by which the fence judges the job's objects.

        Raises:
            StoreUnavailableError, AccessDeniedError: it could not be put.
        """
        self._put()  # whose answer brings the server's clock, if there was none yet
        return self._store.clock.now_us

    def beat(self) -> None:
        """Puts another heartbeat if the last is 10 minutes old. Raises as ``start`` does."""
        if self._runtime.monotonic() - self._last_beat >= BEAT_SECONDS:
            self._put()

    def done(self) -> None:
        """Marks the intent as done. Never raises because of the store, as that would hide the commit."""
        try:
            create(self._store, f"{PREFIX}{self._txid}/done", self._heartbeat(0).encode(), self._runtime)
        except Error:
            return

    def _put(self) -> None:
        n = 1 + self._runtime.random.getrandbits(_NUMBER_BITS)
        create(self._store, f"{PREFIX}{self._txid}/{n}.json", self._heartbeat(n).encode(), self._runtime)
        self._last_beat = self._runtime.monotonic()

    def _heartbeat(self, n: int) -> Heartbeat:
        now_us = self._store.clock.now_us
        return Heartbeat(FORMAT_VERSION, self._txid, n, self._what, (self._table,), now_us, now_us)


@dataclass(frozen=True)
class Written(WriterCommitMessage):  # type: ignore[misc]
    """The result of one task.

    Args:
        entries: of its data files, encoded.
        uuid: of the table whose files they are.
        txid: of the job's intent.
        first_upload_us: the server's clock before the first of these files.
        query: of a stream: its id.
        sums: of the rows, for the digest of a request, encoded; b"" where none is made.
        entry: the table under which the files were written, encoded.
    """

    entries: tuple[bytes, ...]
    uuid: str
    txid: str
    first_upload_us: int
    query: str = ""
    sums: bytes = b""
    entry: bytes = b""


@dataclass(frozen=True)
class WriteJob:
    """The facts that are known when the job begins.

    Args:
        url, table: where it writes.
        version: that the job was made on: of its rows, or else the newest one when it began.
        uuid, epoch, base_ts: of the table in that version.
        entry: the table without its files and deletes, encoded.
        overwrite: replace the rows there are.
        force: those too that others have added since.
        txid: begins the names of all its files.
        digest: whether tasks sum their rows, for the digest of a request.
    """

    url: str
    table: str
    version: int
    uuid: str
    epoch: int
    base_ts: int
    entry: bytes
    overwrite: bool
    force: bool
    txid: str
    digest: DigestMode = DigestMode.NONE

    @property
    def operation(self) -> str:
        """A word for ``history``."""
        return "overwrite" if self.overwrite else "append"

    def write(self, batches: Iterator[pa.RecordBatch], query: str = "") -> Written:
        """Writes one task's rows. Keeps the intent alive meanwhile, as it may take hours until the rows come."""
        runtime = shared_runtime()
        heartbeat = TaskHeartbeat(open_store(self.url, runtime), runtime, self.txid, self.operation, self.table)
        task = RowsTask(self.url, self.table, self.entry, self.txid, digest=self.digest)
        if self.digest is DigestMode.ALONE:
            return replace(self.nothing(query), sums=task.run(batches).sums.encode())

        def work() -> Written:
            first = next(batches, None)
            if first is None:
                return self.nothing(query)
            first_upload_us = heartbeat.start()
            report = task.run(chain([first], batches))
            sums = b"" if self.digest is DigestMode.NONE else report.sums.encode()
            entries = tuple(map(msgspec.json.encode, report.files))
            return Written(entries, self.uuid, self.txid, first_upload_us, query, sums, self.entry)

        return runtime.attend(work, BEAT_SECONDS / 10, heartbeat.beat)

    def nothing(self, query: str = "") -> Written:
        """The result of a task without rows."""
        return Written((), self.uuid, self.txid, 0, query)

    def commit(self, messages: Sequence[Written | None], request: str | None) -> None:
        """Makes ONE commit of the results of the tasks.

        Raises:
            ConflictError, StaleWriterError, UnknownOutcomeError, ...: as ``Transaction.commit`` does.
        """
        written = [message for message in messages if message is not None and message.entries]
        if not written and not self.overwrite and request is None:
            return
        digest = ""
        if self.digest is not DigestMode.NONE:
            sums = RowSums.of(message.sums for message in messages if message is not None and message.sums)
            digest = content_digest(self.operation, self.table, None, sums.content())
        context = open_database(self.url).context
        files = tuple(msgspec.json.decode(entry, type=DataFile) for message in written for entry in message.entries)
        # Of a stream the tasks' copies of the job are others than the one that commits: what they sent is true.
        jobs = {(message.uuid, message.txid, message.entry) for message in written}
        assert len(jobs) <= 1, "files of two jobs in one commit"
        uuid, txid, entry = next(iter(jobs), (self.uuid, None, self.entry))
        schema = msgspec.json.decode(entry, type=TableEntry).schema
        is_said = files or (self.overwrite and self.digest is not DigestMode.ALONE)
        statements = (self._statement(uuid, files, request, schema),) if is_said else ()
        change = Change(
            commit_id=context.runtime.uuid(),
            operation=self.operation,
            statements=statements,
            applied={} if request is None else {request: digest},
            first_upload_us=min((message.first_upload_us for message in written), default=None),
            txid=txid,
        )
        try:
            done = commit_change(context.head, change, PendingUploads(context.store, context.runtime, context.segments))
        except ConflictError as error:
            if not self.overwrite:
                raise
            made = f" (these rows are of version {self.version}, as is the frame or view that they come from)"
            raise ConflictError(f"{error}{made}") from error
        if done.manifest is not None and txid is not None:
            TaskHeartbeat(context.store, context.runtime, txid, self.operation, self.table).done()

    def _statement(self, uuid: str, files: tuple[DataFile, ...], request: str | None, schema: Schema) -> Statement:
        if not self.overwrite:
            return Write(self.table, uuid, files, request=request, schema=schema)
        return Overwrite(self.table, uuid, self.epoch, self.base_ts, files, self.force, request, schema)


class TableWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a DataFrame into a table, in one commit.

    Args:
        request: an id under which that happens once.
        has_ended: it has happened before, without a word on its content: nothing is to be done.
    """

    def __init__(self, job: WriteJob, request: str | None, has_ended: bool) -> None:
        self.job, self.request, self.has_ended = job, request, has_ended

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes one task's rows."""
        with marking_dolmen_errors():
            return self.job.nothing() if self.has_ended else self.job.write(iterator)

    def commit(self, messages: Sequence[Written | None]) -> None:
        """Commits, once all tasks have ended."""
        if not self.has_ended:
            with marking_dolmen_errors():
                self.job.commit(messages, self.request)

    def abort(self, messages: Sequence[Written | None]) -> None:
        """Does nothing: Spark calls it also after a commit whose outcome is unknown."""


def prepare(given: Options, schema: s.StructType, overwrite: bool, *, force: bool) -> WriteJob:
    """Checks the table. Raises SchemaError if no row of the frame could fit, TableNotFoundError, InputError."""
    operation = given.text("operation") or "append"
    if operation != "append":
        raise InputError(
            f'option "operation" is {operation!r}: a data source appends and overwrites (mode "append", "overwrite"); '
            "dolmen.spark has upsert, delete and merge, and batches_into for streams"
        )
    context = open_database(given.url).context
    url = worker_url(context.store)
    if given.flag("merge_schema"):
        add_new_columns(context, given.table, schema, given.text("request"))
    manifest = context.head.refresh().manifest
    entry = context.segments.whole(manifest.table(given.table))
    since = _since(given, schema, entry) if overwrite and not force else None
    seen = manifest if since is None else pin(context, since, None).manifest
    own = entry_then(seen, given.table, entry.uuid)
    check_columns(schema, entry)
    return WriteJob(
        url,
        given.table,
        seen.version,
        entry.uuid,
        own.epoch,
        seen.commit_ts,
        msgspec.json.encode(without_files(entry)),
        overwrite,
        force,
        context.runtime.uuid(),
    )


def _since(given: Options, schema: s.StructType, entry: TableEntry) -> int | None:
    """The oldest version of this table that an overwrite is made from; None if it is made from none.

    Raises:
        InputError: that can't be known.
    """
    origins, since = origins_of(schema), given.number("since")
    if not origins and since is None:
        raise InputError(
            f"what these rows were made from can't be seen, as each of their columns was computed. If from table "
            f"{given.table!r} itself, rows that others have added to it meanwhile would be lost: say "
            'option("since", version), the version that they were made from or the newest one, or option("force", True)'
        )
    versions = {origin.version for origin in origins if origin.table == entry.uuid}
    return min(versions if since is None else {*versions, since}, default=None)


def writer(options: Mapping[str, str], schema: s.StructType, overwrite: bool) -> DataSourceWriter:
    """Makes the writer of a DataFrame. Raises as ``prepare`` does."""
    given = Options.of(options, WRITE)
    job = prepare(given, schema, overwrite, force=given.flag("force"))
    request = given.text("request")
    if request is None:
        return TableWriter(job, None, False)
    context = open_database(job.url).context
    found = find_applied(context.head.refresh().manifest, [request], context.segments).get(request)
    job = replace(job, digest=DigestMode.WITH_FILES if found is None else DigestMode.ALONE)
    return TableWriter(job, request, found is not None and not found.digest)


QUERY_ID = "sql.streaming.queryId"
"""Spark's own name for the local property that holds the query's id."""


# Spark 4.0 hands rows to streams' writers, not Arrow: there it is refused, in ``stream_writer``.
_Base = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)


def request_id(query: str, batch: int) -> str:
    """The request id of one micro-batch of one query."""
    return f"stream:{query}:{batch}"


class TableStreamWriter(_Base):  # type: ignore[misc, valid-type]
    """Writes micro-batches. Spark makes one writer for each batch, and another to commit it."""

    def __init__(self, job: WriteJob) -> None:
        self.job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes one task's rows of one batch. The result has the query's id, which only tasks know."""
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context else None
        with marking_dolmen_errors():
            if not query:
                raise InputError("the query of these rows has no id: is this a stream?")
            return self.job.write(iterator, query)

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commits, once all tasks of the batch have ended. A batch without tasks has nothing to commit."""
        queries = {message.query for message in messages if message is not None}
        assert len(queries) <= 1, "rows of two queries in one batch"
        if any(message is not None and message.entries for message in messages) or (queries and self.job.overwrite):
            with marking_dolmen_errors():
                self.job.commit(messages, request_id(queries.pop(), batchId))

    def abort(self, messages: Sequence[Written | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: see ``dolmen.spark.source.table_writers``."""


def stream_writer(
    options: Mapping[str, str], schema: s.StructType, overwrite: bool
) -> datasource.DataSourceStreamWriter:
    """Makes the writer of a stream; ``overwrite`` is output mode "complete". Raises InputError, SchemaError."""
    if _Base is datasource.DataSourceStreamWriter:
        raise InputError(
            "this Spark hands rows of streams to Python one by one: use Spark 4.1, or foreachBatch(batches_into(table))"
        )
    return TableStreamWriter(prepare(Options.of(options, STREAM_WRITE), schema, overwrite, force=True))


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
    checks.table(table)
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
