"""Rows that replace or remove others by their keys, read of the same table: what others did since is not lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

import dolmen
from dolmen import Commit, Database
from dolmen.api.database import Table
from dolmen.errors import ConflictError, InputError, VersionNotFoundError
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.write.from_frame import apply_batch, delete, upsert
from dolmen.spark.write.merge_frame import merge

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])

Write = Callable[..., Commit]


@pytest.fixture
def table(db: Database) -> Table:
    made = db.create_table("t", SCHEMA, primary_key="id")
    made.append(pa.table({"id": range(10), "n": [0] * 10}, SCHEMA))
    return made


def values(table: Table) -> dict[int, int]:
    return {row["id"]: row["n"] for row in table.to_arrow().to_pylist()}


def more(frame: DataFrame) -> DataFrame:
    return frame.where("id < 5").withColumn("n", F.col("n") + 1)


WRITES: dict[str, Write] = {
    "upsert": lambda table, frame, **how: upsert(table, more(frame), **how),
    "upsert of what was cached": lambda table, frame, **how: upsert(table, more(frame.cache()), **how),
    "delete": lambda table, frame, **how: delete(table, frame.where("n = 0 AND id < 5").select("id"), **how),
    "merge": lambda table, frame, **how: merge(table, more(frame), "id", when_matched={"n": "source.n"}, **how),
    "merge that is an upsert": lambda table, frame, **how: merge(table, more(frame), "id", **how),
    "merge that deletes": lambda table, frame, **how: merge(
        table, frame.where("n = 0 AND id < 5"), "id", when_matched="delete", when_not_matched=None, **how
    ),
    "merge by an expression": lambda table, frame, **how: merge(
        table, frame.groupBy((F.col("id") % 5).alias("id")).agg(F.sum("n").alias("n")), "id", "update", None, **how
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITES)
def test_what_others_have_changed_since_the_frame_was_read_is_a_conflict(
    write: str, spark: SparkSession, db: Database, table: Table
) -> None:
    frame = to_spark(table)
    if "cached" in write:
        frame.cache().count()
    dolmen.open(db.url).table("t").upsert(pa.table({"id": [3], "n": [100]}, SCHEMA))
    assert table.count() == 10  # this handle has seen it: that changes nothing
    version = db.version
    with pytest.raises(ConflictError, match=r"version 2.*force=True"):
        WRITES[write](table, frame)
    assert values(table)[3] == 100
    assert db.refresh() == version
    WRITES[write](table, to_spark(table))
    assert values(table).get(3, 100) >= 1
    WRITES[write](table, frame, force=True)


@pytest.mark.slow
def test_a_change_that_comes_while_the_tasks_run_is_a_conflict_too(
    spark: SparkSession, db: Database, table: Table
) -> None:
    url = db.url

    def slow(batches: Any) -> Any:
        """Another process changes a row when the tasks have read what they work on."""
        for batch in batches:
            other = dolmen.open(url).table("t")
            if batch.num_rows and other.count("n = 100") == 0:
                other.upsert(pa.table({"id": [3], "n": [100]}, SCHEMA))
            yield batch

    frame = more(to_spark(table)).mapInArrow(slow, "id long, n long")
    with pytest.raises(ConflictError, match="made from version 2"):
        upsert(table, frame)
    assert values(table)[3] == 100


@pytest.mark.slow
def test_nobody_has_changed_the_table(spark: SparkSession, db: Database, table: Table) -> None:
    for write in ("upsert", "merge"):
        frame = to_spark(table)
        db.create_table(write, SCHEMA).append(pa.table({"id": [1], "n": [1]}, SCHEMA))
        db.resolve()
        db.compact()
        WRITES[write](table, frame)
    assert values(table) == {id_: 2 if id_ < 5 else 0 for id_ in range(10)}


def test_frames_of_other_tables_rely_on_nothing(spark: SparkSession, db: Database, table: Table) -> None:
    source = db.create_table("source", SCHEMA)
    source.append(pa.table({"id": [3], "n": [7]}, SCHEMA))
    frame = to_spark(source)
    for each in (source, table):
        each.append(pa.table({"id": [30], "n": [0]}, SCHEMA))
    upsert(table, frame)
    assert values(table)[3] == 7


@pytest.mark.slow
def test_rows_that_went_through_something_else_say_their_version(
    spark: SparkSession, db: Database, table: Table
) -> None:
    seen = db.version
    rows = spark.createDataFrame(more(to_spark(table)).toPandas())
    table.upsert(pa.table({"id": [3], "n": [100]}, SCHEMA))
    for write in ("upsert", "merge", "delete"):
        with pytest.raises(ConflictError, match=f"version {seen}"):
            WRITES[write](table, rows, since=seen)
        with pytest.raises(VersionNotFoundError):
            WRITES[write](table, rows, since=99)
        for wrong in ({"since": "2"}, {"since": True}, {"force": 1}, {"force": None}):
            with pytest.raises(InputError):
                WRITES[write](table, rows, **wrong)
    assert values(table)[3] == 100
    for wrong in ({"since": seen}, {"force": True}):
        with pytest.raises(InputError, match="go with a DataFrame"):
            delete(table, "id = 3", **wrong)  # type: ignore[arg-type]
    upsert(table, rows, since=db.version)
    assert values(table)[3] == 1


@pytest.mark.slow
@pytest.mark.parametrize("write", ["upsert", "merge", "delete"])
def test_a_request_that_was_applied_is_tried_again_without_a_conflict(
    write: str, spark: SparkSession, table: Table
) -> None:
    frame = to_spark(table)
    WRITES[write](table, frame, request="r")
    there = values(table)
    assert not WRITES[write](table, frame, request="r").requests
    assert values(table) == there


def test_a_batch_of_a_stream_relies_on_nothing(spark: SparkSession, table: Table) -> None:
    """A query could not go on otherwise: what it joins its batches with is read once."""
    frame = more(to_spark(table))
    table.append(pa.table({"id": [50], "n": [0]}, SCHEMA))
    apply_batch(table, "upsert", frame, None, "stream:q:1")
    assert values(table)[3] == 1
