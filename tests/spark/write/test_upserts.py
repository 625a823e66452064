"""Upserts from Spark: rows and the keys that hide older ones, in one commit, without a look at the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen import Database
from dolmen.api.database import Table
from dolmen.commit.uploads import MAX_KEYS
from dolmen.errors import InputError, RowError, SchemaError
from dolmen.spark.write.from_frame import upsert

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("x", pa.float64())])


@pytest.fixture
def table(db: Database) -> Table:
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append(rows(range(10), "old"))
    return table


def rows(ids: range, name: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [name] * len(ids), "x": [i / 2 for i in ids]})


def frame(spark: SparkSession, ids: range, name: str, partitions: int = 3) -> DataFrame:
    numbers = spark.range(ids.start, ids.stop, ids.step, numPartitions=partitions)
    return numbers.select("id", F.lit(name).alias("name"), (F.col("id") / 2).alias("x"))


def names(table: Table) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for row in table.scan(["id", "name"]).to_arrow().sort_by("name").to_pylist():
        found.setdefault(row["id"], []).append(row["name"])
    return found


def tombstone_objects(directory: Path) -> list[str]:
    return [path.name for path in (directory / "db" / "tombstone").rglob("*.del")]


def test_rows_take_the_place_of_those_with_their_keys_in_one_commit(
    spark: SparkSession, db: Database, table: Table
) -> None:
    version = db.version
    done = upsert(table, frame(spark, range(5, 15), "new"))
    assert (done.version, done.operation, done.rows) == (version + 1, "upsert", 10)
    assert names(table) == {id_: ["old" if id_ < 5 else "new"] for id_ in range(15)}
    assert names(table.at(version=version)) == {id_: ["old"] for id_ in range(10)}  # type: ignore[arg-type]
    assert db.verify(deep=True).ok


def test_few_keys_are_one_tombstone_that_goes_up_with_the_commit(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    done = upsert(table, frame(spark, range(100), "new"))
    assert done.counts.tombstones_added == 1
    (name,) = tombstone_objects(tmp_path)
    assert "-" not in name  # of no intent: it is the driver's


def test_nothing_is_read_of_the_table(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    for path in (tmp_path / "db" / "data").rglob("*.parquet"):
        path.unlink()
    assert upsert(table, frame(spark, range(5), "new")).rows == 5


@pytest.mark.slow
def test_long_lists_of_keys_are_uploaded_by_tasks_in_portions(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    many = MAX_KEYS + 200_000
    done = upsert(table, frame(spark, range(many), "new").coalesce(1))
    assert done.counts.tombstones_added >= 2
    hidden = [t.count for t in db._context.head.refresh().manifest.table("t").tombstones]  # type: ignore[union-attr]
    assert sum(hidden) == many
    assert max(hidden) <= MAX_KEYS
    intents = {path.name for path in (tmp_path / "db" / "intent").iterdir()}
    assert {name.partition("-")[0] for name in tombstone_objects(tmp_path)} <= intents
    assert table.count() == many
    assert table.count("name = 'old'") == 0
    assert db.verify().ok


@pytest.mark.slow
def test_a_key_that_stands_twice_is_an_error_that_names_its_columns(
    spark: SparkSession, db: Database, table: Table
) -> None:
    version = db.version
    twice = frame(spark, range(10), "new").unionAll(frame(spark, range(9, 12), "newer"))
    with pytest.raises(InputError, match=r"same key \(columns 'id'\).*dropDuplicates\(\['id'\]\)"):
        upsert(table, twice)
    assert (db.version, names(table)) == (version, {id_: ["old"] for id_ in range(10)})


def test_null_keys_are_an_error(spark: SparkSession, db: Database, table: Table) -> None:
    version = db.version
    with pytest.raises(RowError, match="column 'id': NULL"):
        upsert(table, frame(spark, range(3), "new").withColumn("id", F.when(F.col("id") != 1, F.col("id"))))
    assert db.version == version


@pytest.mark.slow
def test_rows_go_by_other_columns_than_the_primary_key(spark: SparkSession, table: Table) -> None:
    moved = frame(spark, range(3), "old").withColumn("x", F.lit(-1.0))
    upsert(table, moved.limit(2), on=["name", "id"])
    assert sorted(table.scan(["x"], "id < 3").to_arrow()["x"].to_pylist()) == [-1.0, -1.0, 1.0]
    upsert(table, frame(spark, range(100, 101), "old"), on="name")
    assert names(table) == {100: ["old"]}


def test_what_cannot_be_a_key_is_refused_before_a_task_begins(spark: SparkSession, db: Database, table: Table) -> None:
    with pytest.raises(SchemaError, match="'x'"):
        upsert(table, frame(spark, range(2), "new"), on=["x"])
    with pytest.raises(SchemaError, match="column 'name'"):
        upsert(table, frame(spark, range(2), "new").drop("name"), on=["name"])
    with pytest.raises(SchemaError, match="'id'"):
        upsert(table, frame(spark, range(2), "new").withColumn("id", F.lit("1")))
    keyless = db.create_table("keyless", SCHEMA)
    with pytest.raises(InputError, match="primary key"):
        upsert(keyless, frame(spark, range(2), "new"))


def test_keys_of_narrower_types_meet_those_of_the_table(spark: SparkSession, table: Table) -> None:
    upsert(table, frame(spark, range(3), "new").withColumn("id", F.col("id").cast("int")))
    assert names(table) == {id_: ["new" if id_ < 3 else "old"] for id_ in range(10)}


def test_under_one_id_an_upsert_is_applied_once(spark: SparkSession, db: Database, table: Table) -> None:
    first = upsert(table, frame(spark, range(3), "new"), request="u-1")
    table.delete(keys=[0])
    again = upsert(table, frame(spark, range(3), "new"), request="u-1")
    assert again.already == {"u-1": first.version}
    assert 0 not in names(table)


@pytest.mark.slow
def test_a_task_that_is_tried_again_finds_no_key_twice(spark: SparkSession, db: Database, table: Table) -> None:
    def fails_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt ends after its last row")

    new = frame(spark, range(300), "new")
    upsert(table, new.mapInArrow(fails_at_first, new.schema))
    assert names(table) == {id_: ["new"] for id_ in range(300)}
    assert db.verify(deep=True).ok
