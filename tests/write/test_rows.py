"""Rows are taken from whatever holds rows."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from dolmen.errors import InputError, RowError
from dolmen.rows.write.row_input import as_batches

ROWS = {"id": [1, 2, 3], "name": ["a", None, "ç"]}
TABLE = pa.table(ROWS)


class Capsule:
    """Anything that speaks the Arrow PyCapsule protocol."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return TABLE.__arrow_c_stream__(requested_schema)


class ArrayCapsule:
    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


@pytest.mark.parametrize(
    "data",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_reader(),
        ds.dataset(TABLE),
        ds.dataset(TABLE).scanner(),
        TABLE.to_batches(max_chunksize=1),
        (batch for batch in TABLE.to_batches(max_chunksize=2)),
        [TABLE.slice(0, 1), TABLE.slice(1)],
        pd.DataFrame({"id": [1, 2, 3], "name": ["a", None, "ç"]}),
        pd.DataFrame({"name": ["a", None, "ç"]}, index=pd.Index([1, 2, 3], name="id")),
        pd.DataFrame({"id": [1, 2, 3], "name": ["a", None, "ç"]}).iloc[[0, 1, 2]],
        pl.DataFrame(ROWS),
        duckdb.sql("SELECT * FROM (VALUES (1::BIGINT, 'a'), (2, NULL), (3, 'ç')) t(id, name)"),
        [{"id": 1, "name": "a"}, {"id": 2}, {"name": "ç", "id": 3}],
        ({"id": number, "name": name} for number, name in zip(*ROWS.values(), strict=True)),
        ROWS,
        {"id": np.array([1, 2, 3]), "name": pa.array(ROWS["name"])},
        Capsule(),
        ArrayCapsule(),
    ],
    ids=lambda data: type(data).__name__,
)
def test_rows_are_taken_from(data: Any) -> None:
    table = as_batches(data).read_all()
    assert table.select(["id", "name"]).to_pydict() == ROWS
    assert table.num_columns == 2


def test_a_dataset_on_disk_is_streamed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(100_000)}), tmp_path / "rows.parquet", row_group_size=10_000)
    batches = as_batches(ds.dataset(tmp_path))
    assert next(batches).num_rows <= 100_000
    assert sum(batch.num_rows for batch in batches) < 100_000


def test_an_iterator_of_batches_is_not_run_ahead_of() -> None:
    taken: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(10):
            taken.append(number)
            yield pa.record_batch({"n": [number]})

    reader = as_batches(batches())
    assert len(taken) == 1  # for the schema
    reader.read_next_batch()
    assert len(taken) <= 2


def test_nothing_is_no_rows() -> None:
    for make in (list, tuple, lambda: iter([]), pd.DataFrame, dict):
        assert as_batches(make()).read_all().num_rows == 0
        assert as_batches(make(), TABLE.schema).read_all().equals(TABLE.slice(0, 0))


def test_pandas_nan_means_null_and_polars_nan_does_not() -> None:
    assert as_batches(pd.DataFrame({"v": [1.0, float("nan")]})).read_all()["v"].null_count == 1
    assert as_batches(pl.DataFrame({"v": [1.0, float("nan")]})).read_all()["v"].null_count == 0


def test_keys_of_later_dicts_are_not_lost() -> None:
    rows = as_batches([{"a": 1}, {"b": datetime.date(2024, 2, 29)}]).read_all()
    assert rows.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": datetime.date(2024, 2, 29)}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "int"),
        (None, "NoneType does not hold rows"),
        ("rows.csv", "files are read by"),
        (b"rows", "bytes"),
        ([1, 2], "list of int"),
        ([{"a": 1}, 2], "item 1"),
        ([{"a": 1}, {"a": "x"}], "column 'a'"),
        ([{1: 2}], "1"),
        ({"a": [1, 2], "b": [1]}, "Arrow"),
        ([pa.record_batch({"a": [1]}), {"a": 1}], "item 1"),
        ([pa.record_batch({"a": [1]}), pa.record_batch({"b": [1]})], "item 1"),
        (pd.DataFrame(index=range(3)), "3 rows"),
        (TABLE.select([]), "3 rows"),
        ([{}, {}], "2 rows"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "Arrow"),
        (pd.DataFrame({"a": [1, "x"]}), r"row 2, column 'a': .*str.*int"),
        (type("Lazy", (), {"collect": list})(), r"call \.collect\(\) first"),
        (pl.Series([1]), "Arrow"),
    ],
)
def test_what_holds_no_rows_is_refused_clearly(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_batches(data).read_all()


NOON, EAST = datetime.datetime(2026, 1, 1, 12), datetime.timezone(datetime.timedelta(hours=2))


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([NOON, NOON.replace(tzinfo=EAST)], pa.timestamp("us"), r"row 2.*zone"),
        ([NOON.replace(tzinfo=EAST), NOON], pa.timestamp("us", "UTC"), r"row 2.*zone"),
        ([NOON.date(), NOON.replace(hour=0, tzinfo=EAST)], pa.date32(), r"row 2.*time of day"),
        ([NOON.time(), NOON.time().replace(tzinfo=EAST)], pa.time64("us"), r"row 2.*zone"),
        ([2**63, 1.5], pa.uint64(), r"row 2.*uint64"),
        ([1, Fraction(3, 2)], pa.int64(), r"row 2.*int64"),
    ],
)
def test_no_part_of_a_python_value_is_dropped(values: list[Any], kind: pa.DataType, message: str) -> None:
    for data in (
        {"v": values},
        [{"v": value} for value in values],
        pd.DataFrame({"v": pd.Series(values, dtype=object)}),
    ):
        with pytest.raises(RowError, match=message):
            as_batches(data, pa.schema([("v", kind)]))


def test_times_that_are_missing_have_no_zone() -> None:
    for value, kind in ((NOON.replace(tzinfo=EAST), pa.timestamp("us", "UTC")), (NOON.date(), pa.date32())):
        frame = pd.DataFrame({"v": pd.Series([value, pd.NaT], dtype=object)})
        assert as_batches(frame, pa.schema([("v", kind)])).read_all()["v"].null_count == 1


@pytest.mark.parametrize("value", ["NaN", "sNaN", "-Infinity"])
def test_a_decimal_that_is_no_number_is_refused_in_words(value: str) -> None:
    kind = pa.schema([("v", pa.decimal128(10, 2))])
    for values in ([Decimal(value)], [Decimal(1), Decimal(value)]):
        with pytest.raises(RowError, match=r"decimal.*NaN.*NULL"):
            as_batches({"v": values}, kind)


@pytest.mark.parametrize("value", [2**64, Decimal("1e500"), Decimal("1e-500")])
def test_a_number_of_too_many_digits_is_refused_in_words(value: Any) -> None:
    with pytest.raises(RowError, match="digits"):
        as_batches({"v": [value]}, pa.schema([("v", pa.int64())]))
