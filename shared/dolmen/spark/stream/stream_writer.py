"""``writeStream.format("dolmen")``: each micro-batch is one commit, and is applied once.

A batch is known by the query's id and its number; both are the same when a query that died does its last batch again,
and no other query's. They make the request id ``stream:<query>:<batch>``, by which a commit tells that it has been made
before. A query that is begun with a new checkpoint is a new query, with a new id.

``foreachBatch``: micro-batches into a table, each once, by the driver's own writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, datasource
from pyspark.sql import types as s
from pyspark.sql.utils import is_remote

from dolmen.api.table import Table
from dolmen.base import arguments
from dolmen.errors import InputError
from dolmen.spark import checks as given
from dolmen.spark.failures import marking_dolmen_errors
from dolmen.spark.source.batch_writer import WriteJob, Written, prepare
from dolmen.spark.source.source_options import STREAM_WRITE, Options
from dolmen.spark.write.from_frame import Mode, apply_batch

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
        """Does nothing: see ``dolmen.spark.source.batch_writer``."""


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
    given.table(table)
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
