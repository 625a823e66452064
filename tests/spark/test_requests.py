"""A request is applied once, however often it is tried; other content under its id is refused."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen import Database, Delete, Update
from dolmen.api.database import Table
from dolmen.commit.head import context_of
from dolmen.errors import AppliedIdError
from dolmen.spark.tasks import raising_dolmen_errors
from dolmen.spark.write import from_frame as writing
from dolmen.spark.write.from_frame import append, delete, overwrite, upsert
from dolmen.spark.write.merge_frame import merge

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64()), ("s", pa.string())])


@pytest.fixture
def table(db: Database) -> Table:
    made = db.create_table("t", SCHEMA, primary_key="id", sort_key="x")
    made.append(pa.table({"id": range(50), "x": [1.0] * 50}))
    return made


def rows(spark: SparkSession, first: int, count: int, partitions: int = 3) -> DataFrame:
    ids = spark.range(first, first + count, numPartitions=partitions)
    return ids.select((F.col("id") / 2).alias("x"), "id", F.concat(F.lit("s"), "id").alias("s"))


def save(mode: str) -> Callable[[Table, DataFrame, str], None]:
    def run(table: Table, frame: DataFrame, request: str) -> None:
        options = {"table": "t", "request": request, "force": "true"}
        with raising_dolmen_errors():
            frame.write.format("dolmen").mode(mode).options(**options).save(context_of(table).store.url)

    return run


WAYS: dict[str, Callable[[Table, DataFrame, str], object]] = {
    "append": lambda table, frame, request: append(table, frame, request=request),
    "overwrite": lambda table, frame, request: overwrite(table, frame, request=request),
    "upsert": lambda table, frame, request: upsert(table, frame, request=request),
    "upsert on": lambda table, frame, request: upsert(table, frame, "s", request=request),
    "delete": lambda table, frame, request: delete(table, frame.select("id"), request=request),
    "merge": lambda table, frame, request: merge(
        table, frame, "id", {"x": "target.x + source.x"}, "insert", request=request
    ),
    "merge by conditions": lambda table, frame, request: merge(
        table, frame, "id", [Delete("source.x > 3"), Update({"s": "source.s"})], None, request=request
    ),
    "source": save("append"),
    "source overwrites": save("overwrite"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_other_rows_under_an_id_are_refused_and_the_same_ones_applied_once(
    way: str, spark: SparkSession, db: Database, table: Table
) -> None:
    run = WAYS[way]
    run(table, rows(spark, 40, 30), "load-1")
    version, there = db.refresh(), table.to_arrow()
    run(table, rows(spark, 40, 30, 7).orderBy(F.desc("id")).select("s", "id", "x"), "load-1")
    assert db.refresh() == version
    other = rows(spark, 40, 30).withColumn("x", F.col("x") + F.when(F.col("id") == 69, 1).otherwise(0))
    if way == "delete":
        other = rows(spark, 41, 30)
    for frame in (other, rows(spark, 0, 0)):
        with pytest.raises(AppliedIdError, match="load-1"):
            run(table, frame, "load-1")
    assert (db.refresh(), table.to_arrow()) == (version, there)


@pytest.mark.slow
def test_an_id_stands_for_one_way_of_writing(spark: SparkSession, db: Database, table: Table) -> None:
    frame = rows(spark, 100, 5)
    append(table, frame, request="one")
    save("append")(table, frame, "one")  # which says the same
    with pytest.raises(AppliedIdError):
        upsert(table, frame, request="one")
    with pytest.raises(AppliedIdError):
        overwrite(table, frame, request="one")
    merge(table, frame, "id", {"x": "source.x"}, None, request="two")
    with pytest.raises(AppliedIdError):
        merge(table, frame, "id", {"x": "source.x + 1"}, None, request="two")
    delete(table, frame.select("id"), request="three")
    table.delete(keys=[104, 103, 102, 101, 100], request="three")  # the core's own says the same
    with pytest.raises(AppliedIdError):
        table.delete(keys=[104], request="three")


@pytest.mark.slow
def test_many_keys_are_told_apart_too(spark: SparkSession, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_KEYS", 10)
    keys = rows(spark, 0, 30).select("id")
    delete(table, keys, request="many")
    assert delete(table, keys.unionAll(keys), request="many").already
    with pytest.raises(AppliedIdError):
        delete(table, rows(spark, 1, 30).select("id"), request="many")
    assert table.count() == 20


@pytest.mark.slow
def test_an_id_from_before_contents_were_told_is_not_compared(spark: SparkSession, db: Database, table: Table) -> None:
    with db.transaction() as transaction:
        transaction.bind("old", "")
    version = db.refresh()
    for run in WAYS.values():
        run(table, rows(spark, 0, 3), "old")
    assert db.refresh() == version
