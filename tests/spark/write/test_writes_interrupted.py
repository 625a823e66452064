"""Jobs that are killed, cancelled or interrupted while they write: what is left is named by their intent, and goes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

import dolmen
from dolmen import Database, Transaction
from dolmen.api.database import Table
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.commit.statements.row_changes import Write
from dolmen.commit.uploads import MAX_KEYS, Intent
from dolmen.errors import StoreUnavailableError
from dolmen.spark.tasks import FAILURES, OBJECTS, decode_object, map_in_tasks, return_objects
from dolmen.spark.write import write_tasks as writing
from dolmen.spark.write.from_frame import append
from dolmen.spark.write.write_tasks import (
    RowsTask,
    WriteReport,
    begin_uploads,
    collect_with_heartbeats,
    tombstones,
)
from dolmen.transactions.transaction import unit_of
from dolmen.transactions.unit_of_work import UnitOfWork

HOUR_US = 3_600_000_000
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64())])
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@pytest.fixture
def table(db: Database) -> Table:
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append({"id": [-1, 0], "x": [0.0, 0.0]})
    return table


def rows(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, numPartitions=partitions).select("id", (F.col("id") / 2).alias("x"))


def objects(directory: Path, kind: str) -> set[str]:
    return {path.name for path in (directory / "db" / kind).rglob("*-*")}


def held_back(frame: DataFrame, gate: Path) -> DataFrame:
    """The frame, whose second partition waits until there is a file."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        while context is not None and context.partitionId() == 1 and not gate.exists():
            time.sleep(0.05)
        yield from batches

    return frame.mapInArrow(wait, frame.schema)


def until(condition: Callable[[], object]) -> None:
    for _ in range(4_000):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it never came to that")


def later(db: Database, hours: int) -> Database:
    """The same database some hours on."""
    ahead = Runtime(clock_us=lambda: Runtime().clock_us() + hours * HOUR_US)
    return dolmen.open(db.url, runtime=ahead)


def dying(work: Work) -> Work:
    """Kills the worker process of a task's first attempt when it has written all."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        done = list(work(batches))
        if context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from done

    return run


def run(spark: SparkSession, transaction: Transaction, how: Callable[[Work], Work]) -> WriteReport:
    """The job of an upsert of 5,000 rows in two tasks."""
    entry = unit_of(transaction).entry("t")
    task = RowsTask(*begin_uploads(transaction, "t"), entry.primary_key)
    frame = rows(spark, 5_000).repartition(2, "id").sortWithinPartitions("id")
    job = map_in_tasks(frame, how(return_objects(lambda batches: [task.run(batches)])), OBJECTS)
    return WriteReport.of(decode_object(row.body, WriteReport) for row in collect_with_heartbeats(transaction, job))


@pytest.mark.slow
def test_workers_that_are_killed_leave_files_and_keys_that_nothing_names(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    transaction = Transaction(UnitOfWork(context_of(table), "upsert"))
    reported = run(spark, transaction, dying)
    entry = unit_of(transaction).entry("t")
    hidden = tombstones(transaction, "t", entry.uuid, reported)
    unit_of(transaction).add(Write("t", entry.uuid, tuple(reported.files), hidden))
    transaction.commit()
    txid = unit_of(transaction).intent().txid
    assert sorted(table.scan(["id"]).to_arrow()["id"].to_pylist()) == list(range(-1, 5_000))
    assert (len(reported.files), len(reported.tombstones)) == (2, 2)
    assert (len(objects(tmp_path, "data")), len(objects(tmp_path, "tombstone"))) == (4, 4)
    assert {name.partition("-")[0] for kind in ("data", "tombstone") for name in objects(tmp_path, kind)} == {txid}
    assert db.verify(deep=True).ok


def test_a_job_that_is_cancelled_leaves_what_collection_finds_by_its_intent(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    version, group = db.version, "to be cancelled"
    frame = held_back(rows(spark, 2 * MAX_KEYS // 100), tmp_path / "gate")

    def job() -> None:
        spark.sparkContext.setJobGroup(group, group, interruptOnCancel=True)
        append(table, frame)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(job)
        until(lambda: objects(tmp_path, "data"))
        spark.sparkContext.cancelJobGroup(group)
        with pytest.raises(FAILURES, match="cancelled"):
            running.result()
    assert (db.version, table.count()) == (version, 2)
    (intent,) = (tmp_path / "db" / "intent").iterdir()
    assert {path.name for path in intent.iterdir()} == {"0.json"}
    assert all(name.startswith(intent.name) for name in objects(tmp_path, "data"))
    later(db, 3).gc()
    assert (objects(tmp_path, "data"), [*(tmp_path / "db" / "intent").rglob("*.json")]) == (set(), [])
    assert table.count() == 2


def test_what_a_driver_left_that_died_before_its_commit_is_collected(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    run(spark, Transaction(UnitOfWork(context_of(table), "upsert")), lambda work: work)
    assert (len(objects(tmp_path, "data")), len(objects(tmp_path, "tombstone"))) == (2, 2)
    later(db, 3).gc()
    assert (objects(tmp_path, "data"), objects(tmp_path, "tombstone")) == (set(), set())
    assert table.count() == 2


def test_a_driver_that_is_interrupted_cancels_its_job(
    spark: SparkSession, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(intent: Intent) -> None:
        if objects(tmp_path, "data"):
            raise StoreUnavailableError("no heartbeat can be put")

    monkeypatch.setattr(Intent, "beat", fails)
    monkeypatch.setattr(writing, "BEAT_SECONDS", 1.0)
    with pytest.raises(StoreUnavailableError, match="no heartbeat"):
        append(table, held_back(rows(spark, 100), tmp_path / "gate"))
    until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())
    assert not (tmp_path / "gate").exists()
    assert table.count() == 2
