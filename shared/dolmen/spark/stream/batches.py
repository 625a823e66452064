"""``foreachBatch``: micro-batches into a table, each once, by the driver's own writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from dolmen.api.table import Table
from dolmen.base import arguments
from dolmen.errors import InputError
from dolmen.spark import arguments as given
from dolmen.spark.stream.write import QUERY_ID, request_id
from dolmen.spark.write.frame import Mode, apply_batch


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
