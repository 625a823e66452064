"""Writing from Spark: one commit a job, whatever becomes of its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

import dolmen
from dolmen import Database
from dolmen.api.database import Table
from dolmen.errors import ConflictError, InputError, RowError, SchemaError
from dolmen.spark.file_export import export
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.write.from_frame import append, overwrite, upsert
from dolmen.spark.write.merge_frame import merge

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("x", pa.float64()), ("at", pa.timestamp("us", tz="UTC"))]
)


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", SCHEMA, primary_key="id", sort_key="id")


def rows(spark: SparkSession, first: int, count: int, partitions: int = 3) -> DataFrame:
    ids = spark.range(first, first + count, numPartitions=partitions)
    return ids.select((F.col("id") / 2).alias("x"), "id", F.timestamp_micros(F.col("id")).alias("at"))


def ids(table: Table) -> list[int]:
    return sorted(table.scan(["id"]).to_arrow()["id"].to_pylist())


def data_files(directory: Path) -> set[str]:
    return {path.name for path in (directory / "db" / "data").rglob("*.parquet")}


def test_a_job_is_one_commit(spark: SparkSession, db: Database, table: Table, tmp_path: Path) -> None:
    done = append(table, rows(spark, 0, 1000))
    assert (done.version, done.rows, done.counts.files_added) == (2, 1000, 3)
    assert ids(table) == list(range(1000))
    assert table.scan(["x", "at"], "id = 7").to_arrow().to_pylist()[0]["x"] == 3.5
    assert len(data_files(tmp_path)) == 3
    assert db.verify(deep=True).ok


def test_what_the_job_wrote_is_named_by_an_intent_that_ends_with_it(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    append(table, rows(spark, 0, 10))
    (intent,) = (tmp_path / "db" / "intent").iterdir()
    assert {path.name for path in intent.iterdir()} == {"0.json", "done"}
    assert all(name.startswith(intent.name + "-") for name in data_files(tmp_path))


@pytest.mark.slow
def test_text_that_is_not_utf_8_is_refused(spark: SparkSession, db: Database) -> None:
    texts = db.create_table("texts", pa.schema([("s", pa.string()), ("l", pa.list_(pa.string()))]))
    for columns in ("CAST(X'61FF' AS STRING) AS s", "ARRAY('a', CAST(X'61FF' AS STRING)) AS l"):
        with pytest.raises(RowError, match="not UTF-8"):
            append(texts, spark.sql(f"SELECT {columns}"))
    assert texts.count() == 0


def test_under_one_id_a_job_is_applied_once(spark: SparkSession, db: Database, table: Table, tmp_path: Path) -> None:
    first = append(table, rows(spark, 0, 10), request="batch-7")
    written = data_files(tmp_path)
    again = append(table, rows(spark, 0, 10), request="batch-7")
    assert again.already == {"batch-7": first.version}
    assert (db.version, ids(table), data_files(tmp_path)) == (first.version, list(range(10)), written)


def test_a_frame_without_rows_is_no_commit(spark: SparkSession, db: Database, table: Table) -> None:
    before = db.history()
    append(table, rows(spark, 0, 0))
    assert db.history() == before


@pytest.mark.slow
def test_a_task_that_is_tried_again_adds_its_rows_once(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    def fails_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt ends after its last row")

    frame = rows(spark, 0, 300)
    append(table, frame.mapInArrow(fails_at_first, frame.schema))
    assert ids(table) == list(range(300))
    assert db.verify(deep=True).ok


def test_a_value_that_does_not_fit_fails_the_job_and_nothing_is_visible(
    spark: SparkSession, db: Database, table: Table
) -> None:
    narrow = db.create_table("narrow", pa.schema([("n", pa.int8())]))
    version = db.version
    frame = spark.range(0, 200, numPartitions=2).select(F.col("id").alias("n"))
    with pytest.raises(RowError, match=r"row 29, column 'n'.*partition 1") as failure:
        append(narrow, frame)
    assert (failure.value.row, failure.value.column) == (29, "n")
    assert (narrow.count(), db.version) == (0, version)


def test_columns_that_do_not_match_are_refused_before_a_task_begins(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    with pytest.raises(SchemaError, match="column 'y'"):
        append(table, rows(spark, 0, 10).withColumn("y", F.lit(1)))
    with pytest.raises(SchemaError, match="column 'x'"):
        append(table, rows(spark, 0, 10).withColumn("x", F.lit("text")))
    assert not data_files(tmp_path)


@pytest.mark.slow
def test_a_table_is_overwritten_by_what_is_made_from_it(spark: SparkSession, db: Database, table: Table) -> None:
    append(table, rows(spark, 0, 100))
    table.delete("id < 10")
    before = db.version
    overwrite(table, to_spark(table, where="id < 50"))
    assert ids(table) == list(range(10, 50))
    assert table.at(version=before).count() == 90


@pytest.mark.slow
def test_an_overwrite_meets_who_wrote_meanwhile(spark: SparkSession, db: Database, table: Table) -> None:
    append(table, rows(spark, 0, 10))
    other = dolmen.open(db.url).table("t")

    def meanwhile(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        theirs = dolmen.open(url).table("t")
        if theirs.count() == 10:
            theirs.append(pa.table({"id": [99]}))
        yield from batches

    url = db.url
    frame = rows(spark, 0, 5, partitions=1)
    with pytest.raises(ConflictError, match="rows"):
        overwrite(table, frame.mapInArrow(meanwhile, frame.schema))
    assert ids(other) == [*range(10), 99]
    overwrite(table, frame, force=True)
    assert ids(other) == list(range(5))


@pytest.mark.slow
@pytest.mark.parametrize("change", ["added", "deleted"])
def test_an_overwrite_meets_who_wrote_since_its_frame_was_made(
    spark: SparkSession, db: Database, table: Table, change: str
) -> None:
    """What others had done between the frame and the job was in neither, and gone."""
    append(table, rows(spark, 0, 20))
    seen = db.version
    frame = table.to_spark(where="id >= 5", version=seen)
    other = dolmen.open(db.url).table("t")
    if change == "added":
        other.append(pa.table({"id": [99]}))
    else:
        other.delete("id = 7")
    there = ids(other)
    with pytest.raises(ConflictError, match=f"{change} rows"):  # unless told, what this table has seen last
        overwrite(table, frame)
    assert ids(table) == there
    with pytest.raises(ConflictError, match=f"{change} rows"):
        overwrite(table, frame, since=seen)
    assert ids(table) == there
    seen = db.version
    overwrite(table, table.to_spark(where="id >= 5", version=seen), since=seen)
    assert ids(other) == [id_ for id_ in there if id_ >= 5]


def test_a_database_in_memory_is_refused(spark: SparkSession) -> None:
    table = dolmen.open("memory://spark").create_table("t", SCHEMA)
    with pytest.raises(InputError, match="memory"):
        append(table, rows(spark, 0, 1))


def test_what_is_no_frame_to_be_written_is_refused_in_words(spark: SparkSession, db: Database, table: Table) -> None:
    double = rows(spark, 0, 1).select("id", "x", F.col("x").alias("x"))
    stream = spark.readStream.format("rate").load().selectExpr("value AS id")
    for write in (append, overwrite, upsert, partial(merge, on="id")):
        with pytest.raises(InputError, match=r"Table\.append"):
            write(table, pa.table({"id": [1]}))  # type: ignore[arg-type]
        with pytest.raises(SchemaError, match="'x'"):
            write(table, double)
        with pytest.raises(InputError, match="writeStream"):
            write(table, stream)
    with pytest.raises(InputError, match=r"'source\.x \+'"):
        merge(table, rows(spark, 0, 1), "id", {"x": "source.x +"}, None)
    with pytest.raises(InputError, match="Spark"):
        export(table, "nowhere://bucket/prefix", spark=spark)
    assert (db.version, table.count()) == (1, 0)
