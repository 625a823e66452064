"""Tables whose columns have changed: Spark reads and writes the same rows as dolmen, natively and by Python workers."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dolmen
from dolmen.spark import append, upsert
from dolmen.spark.read.to_frame import to_spark
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


NARROW = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("small", pa.int8()),
        ("byte", pa.uint8()),
        ("f", pa.float32()),
        ("n", pa.decimal128(5, 2)),
        ("day", pa.date32()),
        ("s", pa.struct([("zip", pa.int32()), ("name", pa.string())])),
        ("l", pa.list_(pa.struct([("x", pa.int16())]))),
        ("old", pa.string()),
    ]
)


def narrow_rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "small": pa.array([n - 50 for n in ids], pa.int8()),
            "byte": pa.array(ids, pa.uint8()),
            "f": pa.array([None if n % 5 == 0 else n / 10 for n in ids], pa.float32()),
            "n": pa.array([Decimal(f"{n}.25") for n in ids], pa.decimal128(5, 2)),
            "day": pa.array([date(1969, 12, 1) + timedelta(n) for n in ids]),
            "s": pa.array([{"zip": n, "name": f"s{n}"} for n in ids], NARROW.field("s").type),
            "l": pa.array([[{"x": n}, None] for n in ids], NARROW.field("l").type),
            "old": pa.array([f"o{n}" for n in ids]),
        }
    )


@pytest.fixture
def changed(tmp_path: Path) -> dolmen.Table:
    """With files of before and after all kinds of changes, those inside columns included, and deletes of each time."""
    db = dolmen.open(str(tmp_path / "changed"))
    table = db.create_table("c", NARROW, primary_key="id", sort_key="day")
    table.append(narrow_rows(0, 20))
    table.append(narrow_rows(20, 20))
    table.delete("small = -49 OR f = 0.2 OR day = DATE '1969-12-04'")
    table.upsert(narrow_rows(4, 1))
    for name, kind in (
        *(("id", pa.int64()), ("small", pa.int64()), ("byte", pa.uint32()), ("f", pa.float64())),
        *(("n", pa.decimal128(20, 2)), ("day", pa.timestamp("us")), ("s.zip", pa.int64()), ("l.element.x", pa.int32())),
    ):
        table.widen_column(name, kind)
    table.rename_column("s.name", "title")
    table.add_column("s.name", pa.string())
    table.add_column("l.element.y", pa.string())
    row = {"id": 2**40, "small": 2**40, "byte": 2**20, "f": 0.1, "n": Decimal("123456789.25"), "old": "o"}
    nested = {"s": {"zip": 2**40, "title": "t", "name": "n"}, "l": [{"x": 70_000, "y": "y"}]}
    table.append([{**row, **nested, "day": datetime(2026, 1, 1, 12)}])
    table.delete("old = 'o7'")
    table.drop_column("old")
    table.rename_column("small", "large")
    table.add_column("small", pa.int8(), 5)
    table.add_column("empty", pa.string())
    table.append(
        [{"id": 100 + n, "large": n, "small": n, "day": datetime(2026, 1, 2), "empty": f"e{n}"} for n in range(10)]
    )
    table.delete("large = 3 OR small = 4")
    table.delete(keys=[5, 101])
    return table


CONDITIONS = (
    *(None, "f = 0.1 OR f < 0.5", "n >= 30 AND small = 5", "empty IS NULL", "day <= TIMESTAMP '1970-01-01 00:00:00'"),
    *("id = 1099511627776 OR byte > 30", "empty IS NOT NULL AND large > 1"),
)


@pytest.mark.slow
@pytest.mark.parametrize("native", [True, False])
def test_rows_of_all_changes_are_read_alike(spark: SparkSession, changed: dolmen.Table, native: bool) -> None:
    for where in CONDITIONS if native else CONDITIONS[:2]:
        expected = changed.scan(where=where).to_arrow()
        assert expected.num_rows, where
        assert rows_of(to_spark(changed, None, where, native=native), expected.schema) == sorted_rows(expected)
    expected = changed.scan(["id", "large", "empty"]).to_arrow()
    assert rows_of(to_spark(changed, expected.schema.names, native=native), expected.schema) == sorted_rows(expected)


@pytest.mark.slow
def test_files_from_before_a_change_are_read_by_field_ids(spark: SparkSession, tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    table = dolmen.open(str(tmp_path / "ids")).create_table("i", columns)
    table.append(pa.table({name: pa.array(range(place, place + 9)) for place, name in enumerate(columns.names)}))
    table.delete("b = 5")
    table.drop_column("b")
    table.rename_column("a", "b")  # the file has another column of this name
    table.add_column("a", pa.int64())
    table.append(pa.table({name: pa.array([50]) for name in ("id", "b", "a")}))
    table.delete("id = 7")
    for where in (None, "b = 2", "a IS NULL", "a = 50", "b > 6 AND a IS NULL", "a IS NULL AND b IS NOT NULL"):
        expected = table.scan(where=where, with_commit_ts=True).to_arrow()
        frame = to_spark(table, None, where, with_commit_ts=True)
        assert "InArrow" not in frame._jdf.queryExecution().toString()
        assert rows_of(frame, expected.schema) == sorted_rows(expected), where
    plain = to_spark(table)
    assert plain.where("a IS NULL").count() == table.count("a IS NULL")  # which Spark pushes down by itself
    assert plain.where("b = 7").count() == table.count("b = 7") == 1
    assert [set(field.metadata) for field in plain.schema.fields] == [{"dolmen"}] * 3


def test_a_delete_by_a_column_that_is_gone_still_counts(spark: SparkSession, tmp_path: Path) -> None:
    table = dolmen.open(str(tmp_path / "gone")).create_table("g", pa.schema([("id", pa.int64()), ("old", pa.int64())]))
    table.append(pa.table({"id": pa.array(range(10)), "old": pa.array(range(10))}))
    table.delete("old > 3")
    table.drop_column("old")
    assert sorted(row.id for row in to_spark(table).collect()) == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("where", [None, "a = 7", "b = 'new' AND a > 24", "name = 'a4' OR a IS NULL", "a <> 7"])
def test_the_same_rows_are_read(spark: SparkSession, table: dolmen.Table, where: str | None, native: bool) -> None:
    expected = table.scan(where=where).to_arrow()
    assert expected.num_rows
    frame = to_spark(table, None, where, native=native)
    assert rows_of(frame, expected.schema) == sorted_rows(expected)


@pytest.mark.slow
def test_sources_see_the_columns_of_their_version(spark: SparkSession, table: dolmen.Table, tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "db"), "table": "t"}
    dolmen.spark.register(spark)
    frame = spark.read.format("dolmen").options(**options).load()
    assert frame.columns == table.schema.names
    assert frame.count() == table.count()
    assert spark.read.format("dolmen").options(**options, version="2").load().columns == ["id", "a", "b"]


@pytest.mark.slow
def test_what_spark_writes_has_defaults_where_a_column_is_missing(spark: SparkSession, table: dolmen.Table) -> None:
    append(table, spark.createDataFrame([(100, "w")], "id long, name string"))
    upsert(table, spark.createDataFrame([(0, "u")], "id long, name string"))
    found = table.scan(where="id IN (0, 100)").to_arrow().sort_by("id").to_pylist()
    assert [(row["name"], row["a"], row["b"]) for row in found] == [("u", 7, "new"), ("w", 7, "new")]


@pytest.mark.slow
def test_a_field_of_a_struct_is_read_from_files_of_an_older_schema(spark: SparkSession, tmp_path: Path) -> None:
    db = dolmen.open(str(tmp_path / "db"))
    kind = pa.struct([("a", pa.int32()), ("s", pa.string())])
    table = db.create_table(
        "t", pa.schema([("id", pa.int64()), ("f", pa.float32()), ("n", kind), ("l", pa.list_(kind))])
    )
    rows = [{"id": n, "f": 1.0, "n": {"a": n, "s": "x"} if n else None, "l": [{"a": n, "s": "y"}]} for n in range(3)]
    table.append(rows)
    table.widen_column("f", pa.float64())
    for _ in range(2):
        frame = table.to_spark(spark=spark)
        for condition in "n.a IS NULL", "n.a >= 1", "n.s = 'x' AND f = 1":
            found = sorted(row["id"] for row in table.to_spark(["id"], condition, spark=spark).collect())
            assert found == sorted(table.scan(["id"], condition).to_arrow()["id"].to_pylist()), condition
            assert sorted(row["id"] for row in frame.where(condition).select("id").collect()) == found, condition
        shown = frame.selectExpr("n.a AS a", "l[0].s AS s", "l.a AS all").collect()
        assert sorted(map(repr, shown)) == sorted(
            repr(type(shown[0])(a=row["n"] and row["n"]["a"], s="y", all=[row["id"]])) for row in rows
        )
        rows = [*rows, {"id": 7, "f": 1.0, "n": {"a": 7, "s": "x"}, "l": [{"a": 7, "s": "y"}]}]
        table.append(rows[-1:])
