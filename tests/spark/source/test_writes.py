"""``df.write.format("dolmen")``: one commit a job, as with ``dolmen.spark.append``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql.types import LongType, StructField, StructType

import dolmen
from dolmen import Database
from dolmen.api.database import Table
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.commit.uploads import parse_intent_key
from dolmen.errors import ConflictError, RowError, SchemaError, StaleWriterError
from dolmen.maintenance.gc.sweep import dead_jobs, list_intents
from dolmen.spark.source.source import WRITE, Options
from dolmen.spark.source.table_writers import TaskIntent, WriteJob, prepare
from dolmen.spark.tasks import raising_dolmen_errors
from dolmen.store.memory import MemoryStore
from support.fences import move_fence

FAILED = (PySparkException, Py4JJavaError)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64())])


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", SCHEMA, primary_key="id", sort_key="id")


def rows(spark: SparkSession, first: int, count: int, partitions: int = 3) -> DataFrame:
    ids = spark.range(first, first + count, numPartitions=partitions)
    return ids.select((F.col("id") / 2).alias("x"), "id")


def save(frame: DataFrame, db: Database, mode: str = "append", **options: object) -> None:
    frame.write.format("dolmen").mode(mode).options(**{"table": "t", **options}).save(db.url)


def ids(table: Table) -> list[int]:
    return sorted(table.scan(["id"]).to_arrow()["id"].to_pylist())


def data_files(directory: Path) -> set[str]:
    return {path.name for path in (directory / "db" / "data").rglob("*.parquet")}


def test_a_job_is_one_commit_under_an_intent_that_ends_with_it(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    save(rows(spark, 0, 1000, 4).where("id >= 250"), db)  # a partition is empty
    newest = db.history()[0]
    assert (newest.version, newest.operation, newest.rows, newest.counts.files_added) == (2, "append", 750, 3)
    assert ids(table) == list(range(250, 1000))
    (intent,) = (tmp_path / "db" / "intent").iterdir()
    beats = {path.name for path in intent.iterdir()}
    assert "done" in beats
    assert all(parse_intent_key(f"intent/{intent.name}/{name}") for name in beats)
    assert len(beats) == 4  # one of each task that has rows
    assert all(name.startswith(intent.name + "-") for name in data_files(tmp_path))
    assert db.verify(deep=True).ok


@pytest.mark.slow
def test_under_one_id_a_job_is_applied_once(spark: SparkSession, db: Database, table: Table, tmp_path: Path) -> None:
    save(rows(spark, 0, 10), db, request="batch-7")
    written = data_files(tmp_path)
    save(rows(spark, 0, 10), db, request="batch-7")
    assert (db.refresh(), ids(table), data_files(tmp_path)) == (2, list(range(10)), written)


@pytest.mark.slow
def test_a_task_that_is_tried_again_adds_its_rows_once(spark: SparkSession, db: Database, table: Table) -> None:
    def fails_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt ends after its last row")

    frame = rows(spark, 0, 300)
    save(frame.mapInArrow(fails_at_first, frame.schema), db)
    assert ids(table) == list(range(300))


@pytest.mark.slow
def test_an_overwrite_meets_who_wrote_meanwhile_and_leaves_its_files_to_collection(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    save(rows(spark, 0, 10), db)
    url = db.url

    def meanwhile(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        theirs = dolmen.open(url).table("t")
        if theirs.count() == 10:
            theirs.append(pa.table({"id": [99]}))
        yield from batches

    frame = rows(spark, 0, 5, partitions=1)
    before = data_files(tmp_path)
    with pytest.raises(ConflictError, match="rows"), raising_dolmen_errors():
        save(frame.mapInArrow(meanwhile, frame.schema), db, "overwrite", since=db.version)
    assert ids(table) == [*range(10), 99]
    assert len(data_files(tmp_path) - before) == 2  # theirs, and ours that abort() has not deleted
    with pytest.raises(ConflictError, match="rows"), raising_dolmen_errors():
        save(frame, db, "overwrite", since=db.version - 1)
    save(frame, db, "overwrite", force=True)
    assert ids(table) == list(range(5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operation": "upsert"}, "upsert"),
        ({"columns": "id"}, "no option 'columns' here"),
        ({"table": "nowhere"}, "no table 'nowhere'"),
    ],
)
def test_what_a_source_cannot_write_is_said_before_a_task_begins(
    options: dict[str, str], message: str, spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    with pytest.raises(FAILED, match=message):
        save(rows(spark, 0, 10), db, **options)
    assert not (tmp_path / "db" / "data").exists()


@pytest.mark.slow
def test_values_and_columns_that_do_not_fit_fail_the_job(spark: SparkSession, db: Database, table: Table) -> None:
    with pytest.raises(SchemaError, match="column 'y'"), raising_dolmen_errors():
        save(rows(spark, 0, 10).withColumn("y", F.lit(1)), db)
    narrow = db.create_table("narrow", pa.schema([("n", pa.int8())]))
    with pytest.raises(RowError, match="row 29, column 'n'"), raising_dolmen_errors():
        save(spark.range(0, 200, numPartitions=2).select(F.col("id").alias("n")), db, table="narrow")
    assert (narrow.count(), db.refresh()) == (0, 2)


class Clock:
    """Moments that only a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds


def test_tasks_keep_the_intent_alive_each_by_heartbeats_of_its_own() -> None:
    clock, store = Clock(), MemoryStore()
    runtime = Runtime(monotonic=clock.now, threads=1)
    heartbeats = [TaskIntent(store, runtime, "0" * 31 + "1", "append", "t") for _ in range(2)]
    for heartbeat in heartbeats:
        heartbeat.start()
    for _ in range(4):
        clock.seconds += 301
        for heartbeat in heartbeats:
            heartbeat.beat()
    (intent,) = list_intents(store).values()
    assert len(intent.objects) == 2 + 2 * 2
    heartbeats[0].finish()
    assert list_intents(store)[intent.txid].is_done


def job_of(db: Database) -> WriteJob:
    schema = StructType([StructField("id", LongType())])
    return prepare(Options.of({"path": db.url, "table": "t"}, WRITE), schema, False, force=False)


def test_a_job_whose_tasks_went_silent_is_refused(db: Database, table: Table) -> None:
    job = job_of(db)
    written = job.write(iter(pa.table({"id": [1, 2]}).to_batches()))
    context = context_of(db)
    manifest = context.head.refresh().manifest
    (last,) = (intent.last_us for intent in list_intents(context.store).values())
    assert dead_jobs(list_intents(context.store), manifest, last) == ()
    assert dead_jobs(list_intents(context.store), manifest, last + 1) == (job.txid,)
    move_fence(db, revoke=[job.txid])
    with pytest.raises(StaleWriterError, match=job.txid):
        job.commit([written, None], None)
    assert table.count() == 0


def test_a_table_that_was_created_again_does_not_get_the_rows_of_the_old_one(db: Database, table: Table) -> None:
    job = job_of(db)
    written = job.write(iter(pa.table({"id": [1, 2]}).to_batches()))
    db.drop_table("t")
    again = db.create_table("t", SCHEMA)
    with pytest.raises(ConflictError, match="created"):
        job_of(db).commit([written], None)
    assert again.count() == 0
