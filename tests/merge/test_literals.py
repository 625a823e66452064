"""Literals in updates and merges become values of their column's type, whichever type DuckDB gives them first."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dolmen import Database, Expression, Insert
from dolmen.api.database import Table
from dolmen.base.runtime import Runtime
from dolmen.errors import Error, RowError, SchemaError
from dolmen.store.memory import MemoryBucket, MemoryStore

KINDS: dict[str, pa.DataType] = {
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "n": pa.int64(),
    "big": pa.uint64(),
    "f": pa.float32(),
    "x": pa.float64(),
    "price": pa.decimal128(10, 2),
    "name": pa.string(),
    "raw": pa.binary(),
    "code": pa.binary(3),
    "day": pa.date32(),
    "clock": pa.time64("us"),
    "naive": pa.timestamp("us"),
    "moment": pa.timestamp("us", tz="UTC"),
    "numbers": pa.list_(pa.float64()),
    "days": pa.list_(pa.date32()),
    "place": pa.struct([("name", pa.string()), ("x", pa.float64()), ("day", pa.date32())]),
    "rates": pa.map_(pa.string(), pa.float64()),
}
NEW_YEAR = date(2026, 1, 1)
DOORS = ("update", "matched", "inserted")


@pytest.fixture(scope="module")
def table() -> Table:
    db = Database(MemoryStore(MemoryBucket(), Runtime()), Runtime())
    schema = pa.schema([("id", pa.int64()), ("k", pa.int32()), ("word", pa.string()), *KINDS.items()])
    return db.create_table("t", schema, primary_key="id")


def store(table: Table, column: str, sql: str | None, door: str) -> Any:
    """Stores a value by an update, by the first or by the second half of a merge, and reads it."""
    table.delete("TRUE")
    row = {"id": 1, "k": 5, "word": "x"}
    if door == "inserted":
        kept = {name: f"source.{name}" for name in row}
        values = {**kept, column: sql}
        table.merge([row], "id", None, Insert(values))
    else:
        table.append([row])
        if door == "update":
            table.update({column: None if sql is None else Expression(sql)})
        else:
            table.merge([{"id": 1}], "id", {column: sql}, None)
    [found] = table.scan([column]).to_arrow()[column].to_pylist()
    return found


NULLS = ["NULL", "CASE WHEN k > 9 THEN 1 END", "CASE WHEN k > 0 THEN NULL END", "coalesce(NULL, NULL)", None]


@pytest.mark.slow
@pytest.mark.parametrize("column", KINDS)
def test_null_is_a_value_of_every_type(table: Table, column: str) -> None:
    for place, sql in enumerate(NULLS):
        if sql is None or "1" not in sql or column in ("tiny", "n", "big", "f", "x", "price"):
            assert store(table, column, sql, DOORS[place % 3]) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "sql", "value"),
    [
        ("x", "0.5", 0.5),
        ("x", "CASE WHEN k > 0 THEN 0.3 ELSE 1.5 END", 0.3),
        ("x", "coalesce(NULL, 0.1)", 0.1),
        ("x", "k * 0.1", 0.5),
        ("x", "-0.25", -0.25),
        ("x", "100000000000000000000", 1e20),
        ("x", "0.1000000000000000000000000", 0.1),
        ("x", "'-inf'", -math.inf),
        ("f", "0.5", 0.5),
        ("f", "1e-1", float(pa.scalar(0.1, pa.float32()).as_py())),
        ("price", "1e3", Decimal("1000.00")),
        ("price", "'1.5'", Decimal("1.50")),
        ("price", "7", Decimal("7.00")),
        ("n", "42.0", 42),
        ("n", "1e3", 1000),
        ("big", "18446744073709551615", 2**64 - 1),
        ("flag", "'true'", True),
        ("day", "'2026-01-01'", NEW_YEAR),
        ("day", "CASE WHEN word = 'x' THEN '2026-01-01' ELSE NULL END", NEW_YEAR),
        ("clock", "'10:00'", time(10)),
        ("naive", "'2026-01-01 10:00:00'", datetime(2026, 1, 1, 10)),
        ("naive", "DATE '2026-01-01'", datetime(2026, 1, 1)),
        ("moment", "'2026-01-01'", datetime(2026, 1, 1, tzinfo=UTC)),
        ("moment", "'2026-01-01 01:00:00+01:00'", datetime(2026, 1, 1, tzinfo=UTC)),
        ("raw", "'a\\xFF'", b"a\xff"),
        ("code", "'abc'", b"abc"),
        ("numbers", "[]", []),
        ("numbers", "[NULL]", [None]),
        ("numbers", "[42.0, NULL, 1]", [42.0, None, 1.0]),
        ("days", "['2026-01-01', NULL]", [NEW_YEAR, None]),
        ("place", "{'name': NULL}", {"name": None, "x": None, "day": None}),
        ("place", "{'day': '2026-01-01', 'x': k}", {"name": None, "x": 5.0, "day": NEW_YEAR}),
        ("place", "{'name': NULL, 'x': 0.3}", {"name": None, "x": 0.3, "day": None}),
        ("rates", "MAP {}", []),
        ("rates", "MAP {'a': 0.3, 'b': NULL}", [("a", 0.3), ("b", None)]),
    ],
)  # fmt: skip
def test_a_literal_becomes_a_value_of_its_column(table: Table, column: str, sql: str, value: Any) -> None:
    found = [store(table, column, sql, door) for door in DOORS]
    assert found == [value] * 3
    assert [type(each) for each in found] == [type(value)] * 3


def test_nan_is_a_float(table: Table) -> None:
    assert [math.isnan(store(table, "f", sql, "update")) for sql in ("'nan'", "'NaN'::DOUBLE")] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "sql", "error"),
    [
        ("n", "0.5", RowError),
        ("n", "'0.5'", RowError),
        ("n", "1e-1", RowError),
        ("tiny", "300", RowError),
        ("tiny", "3e2", RowError),
        ("price", "0.005", RowError),
        ("price", "5e-3", RowError),
        ("price", "'NaN'", RowError),
        ("f", "16777217", RowError),
        ("f", "16777217.0", RowError),
        ("f", "'16777217'", RowError),
        ("f", "1e300", RowError),
        ("x", "9007199254740993", RowError),
        ("x", "9007199254740993.0", RowError),
        ("x", "'9007199254740993'", RowError),
        ("x", "'1e400'", RowError),
        ("x", "'x'", RowError),
        ("day", "'2026-01-01 10:00'", RowError),
        ("day", "'2026-02-30'", RowError),
        ("naive", "'2026-01-01 10:00:00Z'", RowError),
        ("code", "'toolong'", RowError),
        ("numbers", "['x']", RowError),
        ("price", "'NaN'::DOUBLE", SchemaError),
        ("price", "k * 1e0", SchemaError),
        ("n", "k / 2", SchemaError),
        ("x", "word", SchemaError),
        ("day", "CASE WHEN k > 9 THEN word ELSE '2026-01-01' END", SchemaError),
        ("day", "concat('2026-01', '-01')", SchemaError),
        ("days", "[word, '2026-01-01']", SchemaError),
        ("name", "5", SchemaError),
        ("flag", "1", SchemaError),
        ("place", "{'nope': NULL}", SchemaError),
    ],
)  # fmt: skip
def test_what_would_become_another_value_is_refused_by_its_column(
    table: Table, column: str, sql: str, error: type[Error]
) -> None:
    for door in DOORS:
        with pytest.raises(error, match=f"column '{column}'"):
            store(table, column, sql, door)
