"""Columns with a default in files that are older than the column: readers that filter by it lose no rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from support import spark_iceberg
from support.iceberg_readers import READERS, Condition, IcebergReaders, sql
from support.spark import SparkProcess

CONDITIONS: tuple[Condition, ...] = (
    ["c", "present"],
    ["c", "null"],
    ["c", "=", 7],
    ["c", "=", 8],
    ["c", "<>", 8],
    ["c", ">", 6],
    ["and", ["c", "=", 7], ["id", "<", 3]],
)


@pytest.fixture
def published(tmp_path: Path) -> tuple[dolmen.Table, str]:
    """Three rows from before the column, and two since."""
    table = dolmen.open(tmp_path / "db").create_table("t", pa.schema([("id", pa.int64())]))
    table.append({"id": [1, 2, 3]})
    table.add_column("c", pa.int64(), default=7)
    table.append({"id": [4, 5], "c": [8, None]})
    table.set(iceberg="v3")
    return table, table.publish_iceberg().metadata_location


@pytest.mark.slow
def test_spark_loses_no_rows(published: tuple[dolmen.Table, str], spark_reader: SparkProcess) -> None:
    """Iceberg's Java library did, up to 1.11 (history 31 of seed 20261124 of the long test of Spark)."""
    table, location = published
    folder = location.rpartition("/metadata/")[0]
    for condition in CONDITIONS:
        found = spark_reader.run(spark_iceberg.read, folder, ["id", "c"], sql(condition))
        assert rows_of(found) == expected(table, condition), condition


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_other_readers_lose_none(published: tuple[dolmen.Table, str], readers: IcebergReaders, reader: str) -> None:
    table, location = published
    for condition in CONDITIONS:
        assert rows_of(readers.read(reader, location, condition)) == expected(table, condition), condition


@pytest.mark.slow
def test_spark_finds_a_default_of_negative_zero(tmp_path: Path, spark_reader: SparkProcess) -> None:
    table = dolmen.open(tmp_path / "db").create_table("t", pa.schema([("id", pa.int64())]))
    table.append({"id": [1, 2, 3]})
    table.add_column("c", pa.float64(), default=-0.0)
    table.set(iceberg="v3")
    folder = table.publish_iceberg().metadata_location.rpartition("/metadata/")[0]
    for op in ("=", ">=", "<="):
        found = spark_reader.run(spark_iceberg.read, folder, ["id", "c"], f"c {op} 0.0")
        assert sorted(found["id"].to_pylist()) == [1, 2, 3], op


def expected(table: dolmen.Table, condition: Condition) -> list[tuple[int, int | None]]:
    return rows_of(table.scan(where=sql(condition)).to_arrow())


def rows_of(found: pa.Table) -> list[tuple[int, int | None]]:
    return sorted(zip(found["id"].to_pylist(), found["c"].to_pylist(), strict=True), key=lambda row: row[0])
