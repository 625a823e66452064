"""Spark reads adopted files as dolmen does, and writes beside them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from dolmen.database import Database
from dolmen.spark.read.frame import to_spark
from dolmen.spark.write.frame import append
from support.lake import write_plain
from support.spark_history import rows_of, sorted_rows


def test_adopted_files_and_those_beside_them_give_the_rows_that_dolmen_gives(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    for part in range(3):
        ids = range(part * 100, part * 100 + 100)
        rows = {"id": ids, "name": [f"n{i}" for i in ids], "place": [{"zip": i} for i in ids]}
        write_plain(tmp_path / "lake" / f"p={part}" / "0.parquet", pa.table({**rows, "p": [part] * 100}))
    db.adopt("t", str(tmp_path / "lake"), "id")
    table = db.table("t")
    table.rename_column("name", "title")
    table.add_column("name", pa.string(), "new")
    table.delete("id % 4 = 1")
    table.delete("id < 9", mode="positions")
    table.upsert(table.scan(where="id = 50").to_arrow())
    append(table, spark.createDataFrame([(1_000, "spark", 7)], "id long, title string, p long"))
    for where in (None, "id > 90", "title = 'n12' OR name = 'new'", "p = 2"):
        expected = table.scan(where=where).to_arrow()
        assert rows_of(to_spark(table, where=where), expected.schema) == sorted_rows(expected), where
    before = rows_of(to_spark(table), table.schema)
    db.maintain()
    assert rows_of(to_spark(table), table.schema) == before
