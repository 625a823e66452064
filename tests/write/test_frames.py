"""What is read into pandas or Polars is written back equal; what loses nothing is cast, the rest is refused with the
call that helps, or cast where that is asked for."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dolmen
from dolmen.errors import InputError, RowError, SchemaError

NAN, INF, UTC = math.nan, math.inf, dt.UTC
COLUMNS: dict[str, tuple[list[Any], pa.DataType]] = {
    "bool": ([True, False, None], pa.bool_()),
    "int8": ([-128, 127, None], pa.int8()),
    "int16": ([-(2**15), None], pa.int16()),
    "int32": ([2**31 - 1, None], pa.int32()),
    "int64": ([-(2**53), 2**53, None], pa.int64()),
    "whole int64": ([-(2**63), 2**63 - 1], pa.int64()),
    "uint8": ([255, None], pa.uint8()),
    "uint32": ([2**32 - 1, None], pa.uint32()),
    "uint64": ([0, 2**53, None], pa.uint64()),
    "whole uint64": ([0, 2**64 - 1], pa.uint64()),
    "float32": ([0.1, -0.0, INF, -INF, None], pa.float32()),
    "float64": ([5e-324, -0.0, INF, -INF, None], pa.float64()),
    "decimal": ([Decimal("12345678901234567890123456789012345.678"), Decimal("-0.001"), None], pa.decimal128(38, 3)),
    "string": (["", "NaN", "é☃\0", None], pa.string()),
    "binary": ([b"", b"\0\xff", None], pa.binary()),
    "fixed": ([b"abcd", None], pa.binary(4)),
    "date": ([dt.date(1, 1, 1), dt.date(9999, 12, 31), None], pa.date32()),
    "time": ([dt.time(0), dt.time(23, 59, 59, 999999), None], pa.time64("us")),
    "naive": ([dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None], pa.timestamp("us")),
    "zoned": ([dt.datetime(1, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    "integers": ([[1, None, 2], [], None], pa.list_(pa.int64())),
    "strings": ([["", None], [], None], pa.list_(pa.string())),
    "struct": ([{"a": 1, "b": None}, None, {"a": None, "b": "x"}], pa.struct([("a", pa.int32()), ("b", pa.string())])),
    "structs": ([[{"a": 1}, None], [], None], pa.list_(pa.struct([("a", pa.int64())]))),
    "map": ([[("a", 1), ("b", None)], [], None], pa.map_(pa.string(), pa.int64())),
}  # fmt: skip


def table_of(tmp_path: Path, kind: pa.DataType, name: str = "v") -> dolmen.Table:
    return dolmen.open(tmp_path / "db").create_table("t", pa.schema([("id", pa.int64()), (name, kind)]))


def stored(table: dolmen.Table, name: str = "v") -> list[Any]:
    return table.scan([name], order_by="id").to_arrow()[name].to_pylist()


@pytest.mark.parametrize("shape", ["as it is", "all NULL", "empty"])
@pytest.mark.parametrize("way", ["pandas", "pandas with Arrow's types", "polars"])
@pytest.mark.parametrize("column", COLUMNS)
def test_what_is_read_into_a_frame_is_written_back_equal(tmp_path: Path, column: str, way: str, shape: str) -> None:
    values, kind = COLUMNS[column]
    values = {"as it is": values, "all NULL": [None] * 3, "empty": []}[shape]
    table = table_of(tmp_path, kind)
    rows = pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, kind)})
    table.append(rows)
    if way == "polars":
        frame: Any = table.scan().to_polars()
    else:
        frame = table.scan().to_pandas(**{} if way == "pandas" else {"types_mapper": pd.ArrowDtype})
    table.overwrite(frame)
    assert table.scan(order_by="id").to_arrow().equals(rows)
    with pytest.raises(InputError):
        table.append(frame.rename(columns={"v": "w"}) if way != "polars" else frame.rename({"v": "w"}))


def test_nan_of_pandas_is_null_and_that_of_others_is_nan(tmp_path: Path) -> None:
    table = table_of(tmp_path, pa.float64())
    rows = pa.table({"id": [0, 1, 2], "v": [1.5, NAN, None]})
    for frame, expected in (
        (rows.to_pandas(), [1.5, None, None]),
        (rows.to_pandas(types_mapper=pd.ArrowDtype), [1.5, NAN, None]),
        (pl.from_arrow(rows), [1.5, NAN, None]),
        (pd.DataFrame({"id": [0, 1], "v": pd.Series([1.0, pd.NA], dtype="Float64")}), [1.0, None]),
        (pd.DataFrame({"id": [0, 1, 2], "v": pd.Series([1, NAN, None], dtype=object)}), [1.0, None, None]),
    ):
        table.overwrite(frame)
        assert str(stored(table)) == str(expected)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (pd.Series([1.0, NAN, -3.0]), pa.int32(), [1, None, -3]),
        (pd.Series([1.0, NAN], dtype="Float64"), pa.uint8(), [1, None]),
        (pd.Series([1, None], dtype="Int64"), pa.int8(), [1, None]),
        (pd.Series([2**63, None], dtype=object), pa.uint64(), [2**63, None]),
        (pd.Series([2**100, None], dtype=object), pa.decimal128(38, 0), [Decimal(2**100), None]),
        (pd.Series([True, None], dtype=object), pa.bool_(), [True, None]),
        (pd.Series([True, None], dtype="boolean"), pa.bool_(), [True, None]),
        (pd.Series(["a", None, "a"], dtype="category"), pa.string(), ["a", None, "a"]),
        (pd.Series([1.0, None], dtype="category"), pa.int64(), [1, None]),
        (pd.Series(["a", None], dtype="string"), pa.string(), ["a", None]),
        (pd.Series([NAN, NAN]), pa.string(), [None, None]),
        (pd.Series([None, None], dtype=object), pa.timestamp("us", "UTC"), [None, None]),
        (pd.Series([pd.NaT, pd.NaT]), pa.int64(), [None, None]),
        (pd.Series(pd.to_datetime(["2024-02-29", None])), pa.date32(), [dt.date(2024, 2, 29), None]),
        (pd.Series([dt.datetime(2024, 2, 29), dt.date(1, 1, 1)], dtype=object)[::-1], pa.date32(),
         [dt.date(1, 1, 1), dt.date(2024, 2, 29)]),
        (pd.Series([pd.Timestamp("2024-01-01", tz="Europe/Berlin"), None]), pa.timestamp("us", "UTC"),
         [dt.datetime(2023, 12, 31, 23, tzinfo=UTC), None]),
        (pd.Series([Decimal("1.5"), 2, None], dtype=object), pa.decimal128(5, 2), [Decimal("1.50"), Decimal(2), None]),
        (pd.Series([uuid.UUID(int=1), None], dtype=object), pa.binary(16), [b"\0" * 15 + b"\1", None]),
        (pd.Series([b"ab", None], dtype=object), pa.binary(2), [b"ab", None]),
        (pd.Series([np.array([1.0, NAN]), None], dtype=object), pa.list_(pa.int32()), [[1, None], None]),
        (pd.Series([1.0, 0.0, 0.0], dtype=pd.SparseDtype(float)), pa.int64(), [1, 0, 0]),
        (pd.Series([[[("k", 1)]]], dtype=object), pa.list_(pa.map_(pa.string(), pa.int8())), [[[("k", 1)]]]),
    ],
)  # fmt: skip
def test_casts_that_lose_nothing_are_made(tmp_path: Path, values: pd.Series, kind: pa.DataType, expected: Any) -> None:
    table = table_of(tmp_path, kind)
    table.append(pd.DataFrame({"id": range(len(values)), "v": values.reset_index(drop=True)}))
    assert stored(table) == expected
    table.overwrite(pd.DataFrame({"id": range(len(values)), "v": values.reset_index(drop=True)}).iloc[:0])
    assert stored(table) == []


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (
            pd.Series([1.0, 1.5]),
            pa.int64(),
            r"row 2, column 'v': 1.5.*\.round\(\).*cast=True",
        ),
        (pd.Series([1.0, 2.0**60]), pa.int64(), "row 2, column 'v'"),
        (pd.Series([1.0, 300.0]), pa.int8(), "row 2, column 'v'"),
        (pd.Series([-1.0]), pa.uint8(), "row 1, column 'v'"),
        (
            pd.Series([1.0, INF]),
            pa.int64(),
            r"row 2, column 'v': inf .*int64",
        ),
        (pd.Series([3e9]), pa.int32(), r"row 1, column 'v': 3000000000.0 .*int32"),
        (
            pd.Series([2.0**60]),
            pa.int64(),
            r"row 1, column 'v': 1.15.*digits.*cast=True",
        ),
        (pd.Series([1.5]), pa.decimal128(5, 2), r"decimal128\(5, 2\).*cast=True"),
        (pd.Series(pd.period_range("2024-01", periods=2, freq="M")), pa.int64(), r"periods .*\.dt\.to_timestamp\(\)"),
        (
            pd.Series(["a", 1], dtype=object),
            pa.string(),
            r"int.*str.*.astype\('string'",
        ),
        (pd.Series([1.5]), pa.string(), r"column 'v'.*\.astype\('string'\)"),
        (pd.Series(["5"]), pa.int64(), r"column 'v'.*pandas\.to_numeric"),
        (pd.Series(["2024-01-01"]), pa.timestamp("us", "UTC"), r"column 'v'.*pandas\.to_datetime\(column, utc=True\)"),
        (pd.Series(["2024-01-01"]), pa.date32(), r"column 'v'.*\.dt\.date"),
        (pd.Series(pd.to_datetime(["2024-01-01"])), pa.timestamp("us", "UTC"), r"column 'v'.*tz_localize\('UTC'\)"),
        (pd.Series(pd.to_datetime(["2024-01-01"], utc=True)), pa.timestamp("us"), r"column 'v'.*tz_convert"),
        (
            pd.Series(pd.to_datetime(["2024-01-01 00:00", "2024-01-01 05:00"])),
            pa.date32(),
            r"row 2, column 'v'.*\.dt\.date",
        ),
        (pd.Series([dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 5)], dtype=object), pa.date32(), "row 2, column 'v'"),
        (pd.Series([pd.Timestamp(0), pd.Timestamp(1)], dtype=object), pa.timestamp("us"), "row 2, column 'v'.*nanosec"),
        (pd.Series([pd.Timestamp(0), pd.Timestamp(1)]), pa.timestamp("us"), r"row 2, column 'v'.*\.dt\.floor\('us'\)"),
        (pd.Series([b"x", "y"], dtype=object), pa.binary(), r"row 2, column 'v': .*bytes"),
        (pd.Series([1, 2, "a", 4], dtype=object), pa.int64(), "row 3, column 'v'"),
        (pd.Series([pd.Timedelta("1s")]), pa.int64(), r"column 'v'.*total_seconds"),
        (pd.Series([1 + 2j]), pa.float64(), "column 'v': complex"),
        (pd.Series([1, 0]), pa.bool_(), r"column 'v'.*\.astype\('boolean'\)"),
    ],
)
def test_what_would_lose_something_is_refused_with_what_helps(
    tmp_path: Path, values: pd.Series, kind: pa.DataType, message: str
) -> None:
    table = table_of(tmp_path, kind)
    with pytest.raises((RowError, SchemaError), match=message):
        table.append(pd.DataFrame({"id": range(len(values)), "v": values}))
    assert table.count() == 0


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (pl.Series([1.0, 1.5]), pa.int64(), r"row 2, column 'v': 1.5.*\.round\(\)"),
        (pl.Series([1.0, NAN]), pa.int64(), "row 2, column 'v': nan"),
        (pl.Series([1, 2**40 + 1]).cast(pl.Datetime("ns")), pa.timestamp("us"), r"row 1, .*\.dt\.truncate\('1us'\)"),
        (pl.Series(["5"]), pa.int64(), r"column 'v'.*\.cast\(polars\.Int64\)"),
        (pl.Series([dt.datetime(2024, 1, 1)]), pa.timestamp("us", "UTC"), r"replace_time_zone\('UTC'\)"),
        (pl.Series([dt.timedelta(1)]), pa.int64(), r"total_seconds"),
    ],
)
def test_polars_is_told_what_helps_polars(tmp_path: Path, values: pl.Series, kind: pa.DataType, message: str) -> None:
    table = table_of(tmp_path, kind)
    with pytest.raises((RowError, SchemaError), match=message):
        table.append(pl.DataFrame({"id": range(len(values)), "v": values}))


def test_polars_frames_lose_nothing_either(tmp_path: Path) -> None:
    for number, (values, kind, expected) in enumerate(
        [
            (pl.Series([1.0, None, 3.0]), pa.int64(), [1, None, 3]),
            (pl.Series([dt.datetime(2024, 1, 1), None, None]), pa.date32(), [dt.date(2024, 1, 1), None, None]),
            (pl.Series(["a", None, "a"], dtype=pl.Categorical), pa.string(), ["a", None, "a"]),
            (pl.Series(["a", None, "b"], dtype=pl.Enum(["a", "b"])), pa.string(), ["a", None, "b"]),
            (
                pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int8, 2)),
                pa.list_(pa.int64()),
                [[1, 2], None, [3, 4]],
            ),
            (pl.Series([None, None, None]), pa.string(), [None] * 3),
        ]
    ):
        table = table_of(tmp_path / str(number), kind)
        table.append(pl.DataFrame({"id": range(3), "v": values}))
        assert stored(table) == expected


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1.5, 2.5, -0.5, NAN], pa.int64(), [2, 2, 0, None]),
        ([1e300], pa.int64(), r"row 1, column 'v': 1e[+]300.*int64"),
        ([2.0**63], pa.int64(), "row 1"),
        ([-1.0], pa.uint8(), "row 1"),
        ([0.1], pa.float32(), [float(np.float32(0.1))]),
        ([1e300], pa.float32(), "row 1"),
        ([Decimal("1.005"), Decimal("1.015")], pa.decimal128(5, 2), [Decimal("1.00"), Decimal("1.02")]),
        ([Decimal("1000.5")], pa.decimal128(5, 2), "row 1"),
        ([Decimal("2.5")], pa.int8(), [2]),
        ([19.9], pa.decimal128(5, 2), [Decimal("19.90")]),
        ([" 5 ", "7"], pa.int64(), [5, 7]),
        (["5", "x"], pa.int64(), r"row 2, column 'v': 'x'.*int64"),
        (["1.5"], pa.float64(), [1.5]),
        (["true"], pa.bool_(), [True]),
        (["2024-01-01"], pa.date32(), [dt.date(2024, 1, 1)]),
        ([5], pa.string(), ["5"]),
        ([300], pa.int8(), "row 1"),
        ([dt.datetime(2024, 1, 1, 5)], pa.date32(), [dt.date(2024, 1, 1)]),
        ([dt.datetime(2024, 1, 1, 5)], pa.timestamp("us", "UTC"), [dt.datetime(2024, 1, 1, 5, tzinfo=UTC)]),
        ([dt.datetime(2024, 1, 1, 5, tzinfo=UTC)], pa.timestamp("us"), [dt.datetime(2024, 1, 1, 5)]),
        ([[1.5], None], pa.list_(pa.int64()), [[2], None]),
        ([dt.timedelta(1)], pa.date32(), "cast"),
        ([b"\xff"], pa.string(), "row 1"),
        ([[1]], pa.int64(), "cast"),
    ],
)
@pytest.mark.parametrize("write", ["append", "upsert", "overwrite"])
def test_casts_that_are_asked_for_are_made(
    tmp_path: Path, values: list[Any], kind: pa.DataType, expected: Any, write: str
) -> None:
    table = table_of(tmp_path, kind)
    rows = pd.DataFrame({"id": range(len(values)), "v": values})
    how = {"on": ["id"]} if write == "upsert" else {}
    if isinstance(expected, list):
        getattr(table, write)(rows, cast=True, **how)
        assert stored(table) == expected
    else:
        with pytest.raises((RowError, SchemaError), match=expected):
            getattr(table, write)(rows, cast=True, **how)
        assert table.count() == 0


def test_a_cast_is_asked_for_of_anything_that_holds_rows(tmp_path: Path) -> None:
    table = table_of(tmp_path, pa.int64())
    rows = {"id": [1], "v": ["5"]}
    for data in (rows, [{"id": 1, "v": "5"}], pa.table(rows), pl.DataFrame(rows)):
        with pytest.raises(SchemaError):
            table.overwrite(data)
        table.overwrite(data, cast=True, request=f"cast {type(data).__name__}")
        assert stored(table) == [5]
    with pytest.raises(InputError, match="cast"):
        table.append(rows, cast="yes")  # type: ignore[arg-type]


def test_rows_as_python_objects_are_whole_too(tmp_path: Path) -> None:
    table = table_of(tmp_path, pa.map_(pa.string(), pa.int64()))
    table.append([{"id": 1, "v": [("a", 1)]}, {"id": 2, "v": None}])
    table.append(table.scan().to_arrow().to_pylist())
    assert table.count() == 4
    dates = table_of(tmp_path / "dates", pa.date32())
    with pytest.raises(RowError, match="row 2, column 'v'"):
        dates.append({"id": [1, 2], "v": [dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 5)]})


def test_an_index_is_a_column_if_it_has_a_name(tmp_path: Path) -> None:
    table = table_of(tmp_path, pa.int64())
    table.append(pd.DataFrame({"v": [1.0, NAN]}, index=pd.Index([0, 1], name="id")))
    assert stored(table) == [1, None]
    with pytest.raises(InputError, match="Arrow"):
        table.append(pd.DataFrame({"id": [1], "v": [1]}, index=pd.Index([0], name="id")))
    with pytest.raises(InputError, match=r"'id'.*twice"):
        table.append(pd.DataFrame([[1, 2]], columns=["id", "id"]))
