"""Tables whose columns have changed: Spark reads and writes the same rows as dolmen, natively and by Python workers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dolmen
from dolmen.spark import append, upsert
from dolmen.spark.read.frame import to_spark
from support.spark_history import rows_of, sorted_rows


@pytest.fixture
def table(tmp_path: Path) -> dolmen.Table:
    """With files of four schemas, one of them compacted under a later one, and deletes that name older columns."""
    db = dolmen.open(str(tmp_path / "db"))
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.string()), ("b", pa.float64())])
    table = db.create_table("t", columns, primary_key="id")
    table.append([{"id": n, "a": f"a{n}", "b": n / 2} for n in range(20)])
    table.delete("a = 'a3'")
    table.add_column("n", pa.int32(), 7)
    table.append([{"id": n, "a": "x", "n": n} for n in range(20, 30)])
    table.rename_column("a", "name")
    table.drop_column("b")
    table.add_column("b", pa.string(), "new")
    table.append([{"id": n, "name": "y", "n": n} for n in range(30, 40)])
    table.delete("n = 7 AND name = 'a5'")
    db.maintain()
    table.reorder(["b", "n"])
    table.rename_column("n", "a")
    table.append([{"id": n, "name": "z", "a": n} for n in range(40, 50)])
    table.delete("a = 45")
    return table


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("where", [None, "a = 7", "b = 'new' AND a > 24", "name = 'a4' OR a IS NULL", "a <> 7"])
def test_the_same_rows_are_read(spark: SparkSession, table: dolmen.Table, where: str | None, native: bool) -> None:
    expected = table.scan(where=where).to_arrow()
    assert expected.num_rows
    frame = to_spark(table, None, where, native=native)
    assert rows_of(frame, expected.schema) == sorted_rows(expected)


def test_sources_see_the_columns_of_their_version(spark: SparkSession, table: dolmen.Table, tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "db"), "table": "t"}
    dolmen.spark.register(spark)
    frame = spark.read.format("dolmen").options(**options).load()
    assert frame.columns == table.schema.names
    assert frame.count() == table.count()
    assert spark.read.format("dolmen").options(**options, version="2").load().columns == ["id", "a", "b"]


def test_what_spark_writes_has_defaults_where_a_column_is_missing(spark: SparkSession, table: dolmen.Table) -> None:
    append(table, spark.createDataFrame([(100, "w")], "id long, name string"))
    upsert(table, spark.createDataFrame([(0, "u")], "id long, name string"))
    found = table.scan(where="id IN (0, 100)").to_arrow().sort_by("id").to_pylist()
    assert [(row["name"], row["a"], row["b"]) for row in found] == [("u", 7, "new"), ("w", 7, "new")]
