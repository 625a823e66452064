"""Rows that Spark writes meet the checks of their table, and a load rejects files with rows that do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from dolmen import Database, Expression
from dolmen.api.database import Table
from dolmen.errors import RowError
from dolmen.ingest.drops.announce_files import DropSource
from dolmen.spark.load.load import load
from dolmen.spark.write.from_frame import append, overwrite, upsert
from dolmen.spark.write.merge_frame import merge
from support.landing_files import SCHEMA, put, rows_of

WRITES: dict[str, Callable[[Table, DataFrame], object]] = {
    "append": append,
    "overwrite": lambda table, frame: overwrite(table, frame, force=True),
    "upsert": lambda table, frame: upsert(table, frame, "id"),
    "merge": lambda table, frame: merge(table, frame, "id"),
    "merge of a condition": lambda table, frame: merge(table, frame, "id", {"n": "source.n"}, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_row_that_breaks_a_check_is_not_written(
    spark: SparkSession, db: Database, write: Callable[[Table, DataFrame], object]
) -> None:
    table = db.create_table("t", pa.table({"id": [1, 2], "n": [1, 2]}), primary_key="id")
    table.add_check("positive", "n > 0")
    frame = spark.createDataFrame([(2, -1), (3, 7)], "id BIGINT, n BIGINT")
    with pytest.raises(RowError, match="the check 'positive' is FALSE: n > 0, and n is -1"):
        write(table, frame)
    write(table, frame.where("n > 0"))
    assert table.count("n < 1") == 0


@pytest.mark.slow
@pytest.mark.parametrize("sort_key", [None, "id"])
def test_a_load_rejects_a_file_with_such_a_row(
    spark: SparkSession, db: Database, tmp_path: Path, sort_key: str | None
) -> None:
    table = db.create_table("events", SCHEMA, sort_key=sort_key)
    table.add_check("small", "id < 60")
    landing = tmp_path / "landing"
    put(landing, "events/a.csv", rows_of(0, 50))
    put(landing, "events/b.parquet", rows_of(50, 50))
    done = load(spark, db, DropSource.of(str(landing), database=db.url))
    assert done.outcomes == {"ingested": 1, "rejected": 1}
    assert table.count() == 50


@pytest.mark.slow
def test_computed_defaults_are_one_time_and_a_uuid_for_each_row(spark: SparkSession, db: Database) -> None:
    table = db.create_table("t", pa.table({"id": [1]}), primary_key="id")
    table.add_column("made", pa.timestamp("us", "UTC"), Expression("now()"))
    table.add_column("key", pa.string(), Expression("uuid()"))
    frame = spark.range(10, 14, 1, 3)
    append(table, frame, request="r")
    assert append(table, frame, request="r").operation == "nothing"
    upsert(table, spark.range(20, 22, 1, 2), "id")
    merge(table, spark.range(30, 32, 1, 2), "id", {"id": "source.id"}, {"id": "source.id"})
    frame.write.format("dolmen").mode("append").option("path", db.url).option("table", "t").save()
    rows = table.scan(where="id > 1").to_arrow().to_pylist()
    assert len(rows) == 12
    assert len({row["key"] for row in rows}) == 12
    times = {row["made"] for row in rows}
    assert None not in times
    assert len(times) == 4


def test_files_of_a_load_that_lack_a_column_have_its_computed_default(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    table = db.create_table("events", SCHEMA)
    table.add_column("made", pa.timestamp("us"), Expression("now()"))
    put(tmp_path / "landing", "events/a.csv", rows_of(0, 50))
    put(tmp_path / "landing", "events/b.parquet", rows_of(50, 50))
    assert load(spark, db, DropSource.of(str(tmp_path / "landing"), database=db.url)).outcomes == {"ingested": 2}
    assert len(set(table.to_arrow()["made"].to_pylist())) == 1
