"""Deletes from Spark: by a predicate, which runs no job, or by the keys in a DataFrame."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen import Database
from dolmen.api.database import Table
from dolmen.commit.uploads import MAX_KEYS
from dolmen.errors import InputError, PredicateError, RowError, SchemaError
from dolmen.spark.write.from_frame import delete

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("name", pa.string())])


@pytest.fixture
def table(db: Database) -> Table:
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append(pa.table({"id": range(20), "name": [f"n{i % 4}" for i in range(20)]}))
    return table


def ids(table: Table) -> list[int]:
    return sorted(table.scan(["id"]).to_arrow()["id"].to_pylist())


def jobs(spark: SparkSession, group: str) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_a_predicate_costs_what_a_delete_costs_without_spark(spark: SparkSession, table: Table) -> None:
    spark.sparkContext.setJobGroup("by-predicate", "none")
    try:
        done = delete(table, "id < 15")
        delete(table, {"id": 17}, request="r")
        assert delete(table, {"id": 17}, request="r").already
    finally:
        spark.sparkContext._jsc.clearJobGroup()
    assert done.counts.tombstones_added == 1
    assert ids(table) == [15, 16, 18, 19]
    assert jobs(spark, "by-predicate") == 0


def test_keys_of_a_frame_are_deleted_in_one_commit_that_reads_nothing(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    version = db.version
    files = list((tmp_path / "db" / "data").rglob("*.parquet"))
    hidden = [(path, path.read_bytes()) for path in files]
    for path in files:
        path.unlink()
    keys = spark.range(0, 30, 2, numPartitions=3)
    done = delete(table, keys.unionAll(keys))
    for path, body in hidden:
        path.write_bytes(body)
    assert (done.version, done.operation, done.counts.tombstones_added) == (version + 1, "delete", 1)
    assert ids(table) == list(range(1, 20, 2))
    assert db.verify(deep=True).ok


@pytest.mark.slow
def test_more_keys_than_one_request_may_have_are_deleted(spark: SparkSession, db: Database, table: Table) -> None:
    many = MAX_KEYS + 10
    done = delete(table, spark.range(5, 5 + many).withColumn("id", F.col("id").cast("int")))
    assert done.counts.tombstones_added >= 2
    hidden = [t.count for t in db._context.head.refresh().manifest.table("t").tombstones]  # type: ignore[union-attr]
    assert (sum(hidden), max(hidden) <= MAX_KEYS) == (many, True)
    assert ids(table) == list(range(5))
    assert db.verify().ok


def test_keys_of_other_columns_and_of_several(spark: SparkSession, table: Table) -> None:
    delete(table, spark.createDataFrame([("n1",), ("n7",)], "name string"), on="name")
    assert ids(table) == [i for i in range(20) if i % 4 != 1]
    delete(table, spark.createDataFrame([("n0", 0), ("n0", 2), ("n2", 2)], "name string, id long"), on=["id", "name"])
    assert ids(table) == [i for i in range(20) if i % 4 != 1 and i not in (0, 2)]


def test_a_frame_without_keys_is_no_commit_and_one_id_is_applied_once(
    spark: SparkSession, db: Database, table: Table
) -> None:
    version = db.version
    assert delete(table, spark.range(0)).operation == "nothing"
    assert db.version == version
    done = delete(table, spark.range(1), request="d")
    table.append(pa.table({"id": [0]}))
    assert delete(table, spark.range(1), request="d").already == {"d": done.version}
    assert 0 in ids(table)


def test_what_is_no_key_is_refused(spark: SparkSession, db: Database, table: Table) -> None:
    version = db.version
    with pytest.raises(PredicateError):
        delete(table, "id <")
    with pytest.raises(InputError, match=r"on=\.\.\."):
        delete(table, "id < 3", on=["id"])
    with pytest.raises(SchemaError, match="column 'extra'"):
        delete(table, spark.range(1).withColumn("extra", F.lit(1)))
    with pytest.raises(SchemaError, match="column 'name' in"):
        delete(table, spark.createDataFrame([("n1",)], "name string"))
    with pytest.raises(SchemaError, match="int64"):
        delete(table, spark.range(1).select(F.col("id").cast("double").alias("id")))
    narrow = db.create_table("narrow", pa.schema([("id", pa.int8())]), primary_key="id")
    with pytest.raises(RowError, match=r"column 'id'.*'300'.*int8"):
        delete(narrow, spark.range(300, 301))
    version = db.version
    with pytest.raises(RowError, match="column 'id': NULL"):
        delete(table, spark.createDataFrame([(1,), (None,)], "id long"))
    assert db.version == version
