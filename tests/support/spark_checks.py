"""Functions that tests run in a Spark process (``support.spark.SparkProcess``), whose session is the active one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

import dolmen
from dolmen import Commit
from dolmen.commit.head import context_of
from dolmen.spark import to_spark
from dolmen.spark.write.from_frame import append, delete, overwrite, upsert

NATIVE = "FileScan parquet"
BY_WORKERS = "MapInArrow"


@dataclass(frozen=True)
class Answer:
    """The rows of a DataFrame, with Spark's plan and metrics."""

    rows: pa.Table
    plan: str


def read(
    url: str,
    table: str = "t",
    columns: Sequence[str] | None = None,
    where: str | None = None,
    *,
    with_commit_ts: bool = False,
    native: bool = True,
) -> Answer:
    """Opens a database and reads with ``to_spark``."""
    frame = to_spark(dolmen.open(url).table(table), columns, where, with_commit_ts=with_commit_ts, native=native)
    return Answer(frame.toArrow(), frame._jdf.queryExecution().executedPlan().toString())


def read_without(url: str, lost: Sequence[str]) -> str:
    """What a frame says whose files ``lost`` are gone by the time it is run; nothing if it gives rows none the less."""
    db = dolmen.open(url)
    frame = to_spark(db.table("t"))
    context_of(db).store.delete(list(lost))
    try:
        frame.collect()
    except (PySparkException, Py4JJavaError) as error:
        return str(error)
    return ""


def environment(*names: str) -> dict[str, str | None]:
    """Variables of a Python worker."""

    def look(_: int) -> list[tuple[str, str | None]]:
        return [(name, os.environ.get(name)) for name in names]

    context = SparkSession.active().sparkContext
    return dict(context.parallelize([0], 1).flatMap(look).collect())


def rows(first: int, count: int, partitions: int = 4) -> DataFrame:
    """Rows of the table ``t`` of ``create``, ``x`` = half of ``id``."""
    ids = SparkSession.active().range(first, first + count, numPartitions=partitions)
    return ids.select("id", (F.col("id") / 2).alias("x"))


def write(url: str, first: int, count: int) -> list[Commit]:
    """Appends rows, upserts the last half of them and as many new ones, deletes a quarter, replaces all by the even."""
    table = dolmen.open(url).table("t")
    half = count // 2
    return [
        append(table, rows(first, count), request="appended"),
        upsert(table, rows(first + half, count).withColumn("x", F.lit(-1.0))),
        delete(table, rows(first, count // 4).select("id")),
        overwrite(table, to_spark(table, where="x < 0 OR x >= 0").where("id % 2 = 0")),
    ]


def append_while_an_executor_is_killed(url: str, killed: str, count: int) -> Commit:
    """Appends rows of four partitions, the third of which kills the JVM it runs in when it has given its last row.

    Args:
        killed: a file that is made when that is done, so that it is done once.
    """

    def kill_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 2 and not Path(killed).exists():
            executor = psutil.Process().parent().parent()  # this is a fork of the daemon that the JVM has started
            Path(killed).write_text(" ".join(executor.cmdline()))
            executor.kill()
            executor.wait()  # nothing more is done here

    frame = rows(0, count)
    return append(dolmen.open(url).table("t"), frame.mapInArrow(kill_once, frame.schema))


def write_speculatively(url: str, folder: str, count: int) -> None:
    """Appends rows, then upserts some; a task of each job runs twice at once: the first attempt is as slow as need
    be, and ends when the second has given its last row.

    Args:
        folder: there the second attempts leave a file.
    """
    table = dolmen.open(url).table("t")
    append(table, _twice(rows(0, count), Path(folder, "twice-append")))
    upsert(table, _twice(rows(count // 2, count).withColumn("x", F.lit(-1.0)), Path(folder, "twice-upsert")))


def _twice(frame: DataFrame, mark: Path) -> DataFrame:
    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1:
            if context.attemptNumber() > 0:
                mark.touch()
            deadline = time.monotonic() + 300
            while not mark.exists() and time.monotonic() < deadline:
                time.sleep(0.05)

    return frame.mapInArrow(wait, frame.schema)
