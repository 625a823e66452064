"""Rows that Spark writes meet the checks of their table, and a load rejects files with rows that do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from dolmen import Database
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
