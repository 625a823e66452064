"""Keys as callers give them: values that rows of the table may have, and no others."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dolmen
from dolmen import Database, Table
from dolmen.base.runtime import Runtime
from dolmen.errors import Error, InputError, RowError
from dolmen.store import MemoryBucket, MemoryStore

EAST = dt.timezone(dt.timedelta(hours=2))
DAY, NOON = dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, 12)
MOST = pa.decimal128(10, 2)

CUT: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int64(), np.float32(1.5), 1),
    (pa.int64(), np.float64(1.5), 1),
    (pa.int64(), 1.5, 1),
    (pa.int64(), Fraction(3, 2), 1),
    (pa.int64(), Decimal("1.5"), 1),
    (pa.int64(), math.nan, 0),
    (pa.int64(), math.inf, 0),
    (pa.int64(), np.True_, 1),
    (pa.int64(), True, 1),
    (pa.int8(), 257, 1),
    (pa.uint64(), 2**64, 0),
    (pa.bool_(), 1, True),
    (pa.date32(), NOON, DAY),
    (pa.date32(), dt.datetime(2026, 1, 1), DAY),
    (pa.date32(), dt.datetime(2026, 1, 1, tzinfo=EAST), DAY),
    (pa.date32(), pd.Timestamp(NOON), DAY),
    (pa.date32(), 20_454, DAY),
    (pa.timestamp("us"), pd.Timestamp(1999, unit="ns"), dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
    (pa.timestamp("us"), np.datetime64(1999, "ns"), dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
    (pa.timestamp("us"), NOON.replace(tzinfo=EAST), dt.datetime(2026, 1, 1, 10)),
    (pa.timestamp("us"), 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
    (pa.timestamp("us", "UTC"), NOON, NOON.replace(tzinfo=dt.UTC)),
    (pa.timestamp("us", "UTC"), pd.Timestamp(1999, unit="ns", tz="UTC"), dt.datetime.fromtimestamp(1e-6, dt.UTC)),
    (pa.time64("us"), dt.time(12, tzinfo=EAST), dt.time(12)),
    (pa.time64("us"), 1, dt.time(0, 0, 0, 1)),
    (MOST, Decimal("1.505"), Decimal("1.50")),
    (MOST, Decimal("123456789.00"), Decimal("23456789.00")),
    (MOST, 0.125, Decimal("0.12")),
    (MOST, True, Decimal("1.00")),
    (pa.string(), b"a", "a"),
    (pa.binary(), "a", b"a"),
    (pa.binary(4), "abcd", b"abcd"),
]
"""Types, keys that no row can have, and rows that had them where they were cut."""

FIT: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int64(), 1, 1),
    (pa.int64(), np.int8(1), 1),
    (pa.int64(), 1.0, 1),
    (pa.int64(), np.float32(1.0), 1),
    (pa.int64(), Decimal("1.0"), 1),
    (pa.uint64(), 2**64 - 1, 2**64 - 1),
    (pa.bool_(), True, True),
    (pa.date32(), DAY, DAY),
    (pa.timestamp("us"), NOON, NOON),
    (pa.timestamp("us"), DAY, dt.datetime(2026, 1, 1)),
    (pa.timestamp("us"), pd.Timestamp(NOON), NOON),
    (pa.timestamp("us", "UTC"), NOON.replace(tzinfo=EAST), dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC)),
    (pa.time64("us"), dt.time(12), dt.time(12)),
    (MOST, Decimal("1.5"), Decimal("1.50")),
    (MOST, 1, Decimal("1.00")),
    (MOST, 1.5, Decimal("1.50")),
    (MOST, np.float64(0.1), Decimal("0.10")),
    (pa.string(), "a", "a"),
    (pa.binary(), b"a", b"a"),
    (pa.binary(), uuid.UUID(int=7), uuid.UUID(int=7).bytes),
    (pa.binary(16), uuid.UUID(int=7), uuid.UUID(int=7).bytes),
]


def table_with_key(kind: pa.DataType, row: Any) -> Table:
    table = Database(MemoryStore(MemoryBucket()), Runtime(threads=1)).create_table(
        "t", pa.schema([("k", kind), ("n", pa.int64())]), primary_key="k"
    )
    table.append(pa.table({"k": pa.array([row], kind), "n": [0]}))
    return table


def ids(cases: list[tuple[pa.DataType, Any, Any]]) -> list[str]:
    return [f"{kind}-{type(key).__name__}-{place}" for place, (kind, key, _) in enumerate(cases)]


@pytest.mark.parametrize(("kind", "key", "row"), CUT, ids=ids(CUT))
def test_a_key_that_no_row_can_have_is_refused_and_never_cut_to_that_of_another_row(
    kind: pa.DataType, key: Any, row: Any
) -> None:
    table = table_with_key(kind, row)
    for call in (
        lambda: table.delete(keys=[key]),
        lambda: table.erase(keys=[key]),
        lambda: table.get(key),
        lambda: table.get_many([key]),
    ):
        with pytest.raises(InputError, match=r"keys.* k "):
            call()
    with pytest.raises(Error):
        table.append([{"k": key}])
    assert table.count() == 1


@pytest.mark.parametrize(("kind", "key", "row"), FIT, ids=ids(FIT))
def test_a_key_that_a_row_can_have_finds_that_row(kind: pa.DataType, key: Any, row: Any) -> None:
    table = table_with_key(kind, row)
    assert table.get(key) == {"k": row, "n": 0}
    table.delete(keys=[key])
    assert table.count() == 0


@pytest.mark.parametrize("key", [math.nan, math.inf, np.float32("nan")])
def test_a_float_that_is_no_number_is_no_whole_number(key: float) -> None:
    with pytest.raises(InputError, match="whole number"):
        table_with_key(pa.int64(), 1).delete(keys=[key])


def test_zones_are_looked_at_in_each_key() -> None:
    table = table_with_key(pa.timestamp("us"), dt.datetime(2026, 1, 1, 10))
    with pytest.raises(InputError, match="zone"):
        table.delete(keys=[NOON, NOON.replace(tzinfo=EAST)])
    assert table.count() == 1


def test_keys_of_several_columns_are_refused_by_the_same_rules() -> None:
    db = Database(MemoryStore(MemoryBucket()), Runtime(threads=1))
    table = db.create_table("t", pa.schema([("a", pa.int64()), ("b", pa.date32())]), primary_key=["a", "b"])
    table.append([{"a": 1, "b": DAY}])
    for key in ((1.5, DAY), (1, NOON)):
        with pytest.raises(InputError, match=r"keys.* a int64, b date32\[day\]"):
            table.delete(keys=[key])
    assert table.count() == 1
    table.delete(keys=[(1.0, DAY)])
    assert table.count() == 0


def test_a_default_is_no_key() -> None:
    db = Database(MemoryStore(MemoryBucket()), Runtime(threads=1))
    table = db.create_table("t", pa.schema([("a", pa.int64())]))
    table.add_column("b", pa.int64(), default=7)
    table.append([{"a": 1, "b": 7}])
    with pytest.raises(RowError, match="NULL"):
        table.delete(keys=pa.table({"a": [1]}), on=["a", "b"])
    assert table.count() == 1


@pytest.mark.parametrize("on", [[], ()])
def test_an_empty_list_of_columns_is_called_that(on: Any) -> None:
    table = table_with_key(pa.int64(), 1)
    for call in (
        lambda: table.delete(keys=[1], on=on),
        lambda: table.erase(keys=[1], on=on),
        lambda: table.upsert([{"k": 1}], on=on),
        lambda: table.merge([{"k": 1}], on),
    ):
        with pytest.raises(InputError, match=r"\bon\b.*empty"):
            call()


HOLDERS: dict[str, Any] = {
    "array": lambda keys: pa.array(keys),
    "chunked": lambda keys: pa.chunked_array([keys[:1], keys[1:]]),
    "dictionary": lambda keys: pa.array(keys).dictionary_encode(),
    "pandas": pd.Series,
    "index": pd.Index,
    "arrow-backed": lambda keys: pd.Series(keys, dtype=pd.ArrowDtype(pa.array(keys).type)),
    "polars": pl.Series,
    "numpy": lambda keys: np.array(keys),
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize(
    "keys", [[1, 3], ["a", "c"], [DAY, dt.date(2026, 1, 3)], [NOON, dt.datetime(2026, 1, 3)], [b"a", b"c"]]
)
def test_arrays_and_series_are_keys_wherever_lists_are(keys: list[Any], holder: str) -> None:
    held, kind = HOLDERS[holder](keys), pa.array(keys).type
    table = table_with_key(kind, keys[0])
    table.append(pa.table({"k": pa.array(keys[1:], kind), "n": [1]}))
    rows = [table.get_many(held).num_rows, table.count({"k": held}), table.count({"k": {"in": held}})]
    assert [*rows, table.count({"k": {"not in": held}})] == [2, 2, 2, 0]
    table.delete(keys=held[:1])
    with table.writer() as writer:
        writer.delete(keys=held[1:])
    assert table.count() == 0


def test_an_array_is_a_key_of_one_column_of_values_that_rows_can_have() -> None:
    table = table_with_key(pa.int64(), 1)
    for wrong in (np.array([1.5]), pa.array(["1"]), pa.array([None, 1]), pd.Series([1.0, None]), np.array([[1]])):
        with pytest.raises(InputError):
            table.delete(keys=wrong)
    with pytest.raises(InputError, match="array"):
        table.delete(keys=pa.array([1]), on=["k", "n"])
    assert table.count() == 1


def test_keys_are_rows_or_values() -> None:
    table = dolmen.open("memory://rows-as-keys").create_table("t", "id BIGINT NOT NULL", primary_key="id")
    table.append({"id": range(5)})
    for keys in ([{"id": 1}, {"id": 2}], [(1,), (2,)], [[1], [2]], [1, 2], iter([(1,), (2,)])):
        assert table.get_many(keys)["id"].to_pylist() == [1, 2]
    for wrong in (5, "1", b"1", 1.5):
        with pytest.raises(InputError, match=r"keys=.*: give a list of values of id"):
            table.get_many(wrong)
    assert table.delete(keys=[{"id": 1}, {"id": 2}]).mode == "tombstone"
    assert table.count() == 3
