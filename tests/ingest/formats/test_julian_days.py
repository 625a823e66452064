"""Parquet files whose days Spark counted by the Julian calendar are refused: they would be taken for other days."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen.errors import AdoptionError, InputError
from dolmen.ingest.formats.formats import SourceFile, detect, infer, read

OLD, NEW = date(1582, 10, 4), date(1582, 10, 15)
EARLY, LATE = datetime(1899, 12, 31, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC)
COLUMNS = "org.apache.spark.sql.parquet.row.metadata"
VERSION, LEGACY = "org.apache.spark.version", "org.apache.spark.legacyDateTime"
SPARK_1, SPARK_2 = {COLUMNS: "{}"}, {VERSION: "2.4.8", COLUMNS: "{}"}
SPARK_4, LEGACY_4 = {VERSION: "4.1.4", COLUMNS: "{}"}, {VERSION: "4.1.4", LEGACY: "", COLUMNS: "{}"}
US, MS = pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")


def parquet_file(values: Sequence[Any], arrow_type: pa.DataType, notes: dict[str, str], **options: Any) -> bytes:
    made = io.BytesIO()
    table = pa.table({"d": pa.array(values, arrow_type)}).replace_schema_metadata(notes)
    pq.write_table(table, made, row_group_size=2, **options)
    return made.getvalue()


@pytest.mark.parametrize(
    ("values", "arrow_type", "notes"),
    [
        ([NEW, NEW, OLD], pa.date32(), SPARK_2),
        ([OLD], pa.date32(), SPARK_1),
        ([OLD], pa.date32(), LEGACY_4),
        ([LATE, None, None, EARLY], US, LEGACY_4),
        ([EARLY], MS, SPARK_2),
        ([[OLD]], pa.list_(pa.date32()), SPARK_2),
        ([{"x": {"y": EARLY}}], pa.struct([("x", pa.struct([("y", US)]))]), SPARK_2),
    ],
)
def test_they_are_neither_ingested_nor_adopted(
    values: Sequence[Any], arrow_type: pa.DataType, notes: dict[str, str], tmp_path: Path
) -> None:
    data = parquet_file(values, arrow_type, notes)
    source = SourceFile(lambda: io.BytesIO(data), detect("d.parquet"), "d.parquet")
    said = r"column 'd.*it may hold days that Spark counted by the Julian calendar"
    with pytest.raises(InputError, match=said):
        read(source, pa.schema([("d", arrow_type)])).read_all()
    with pytest.raises(InputError, match=said):
        infer(source)
    (tmp_path / "d.parquet").write_bytes(data)
    with pytest.raises(AdoptionError, match=said):
        dolmen.open(tmp_path / "db").adopt("t", str(tmp_path / "d.parquet"))


@pytest.mark.parametrize(
    ("values", "arrow_type", "notes"),
    [
        ([OLD], pa.date32(), {}),
        ([OLD, None], pa.date32(), SPARK_4),
        ([NEW, None], pa.date32(), SPARK_2),
        ([None, None, None], pa.date32(), SPARK_2),
        ([], pa.date32(), SPARK_2),
        ([LATE], US, LEGACY_4),
        ([datetime(1500, 1, 1)], pa.timestamp("us"), SPARK_2),
        ([-1_000_000], pa.int32(), SPARK_2),
    ],
)
def test_days_that_both_calendars_count_alike_are_read(
    values: Sequence[Any], arrow_type: pa.DataType, notes: dict[str, str]
) -> None:
    data = parquet_file(values, arrow_type, notes)
    source = SourceFile(lambda: io.BytesIO(data), detect("d.parquet"), "d.parquet")
    assert read(source, pa.schema([("d", arrow_type)])).read_all()["d"].to_pylist() == list(values)


def test_without_statistics_nobody_knows() -> None:
    data = parquet_file([NEW], pa.date32(), SPARK_2, write_statistics=False)
    source = SourceFile(lambda: io.BytesIO(data), detect("d.parquet"), "d.parquet")
    with pytest.raises(InputError, match="Julian"):
        infer(source)
