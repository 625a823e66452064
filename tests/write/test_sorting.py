"""Rows are sorted by the sort key within bounded runs."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.rows.write import runs
from support.random_tables import FLAT, random_column
from support.written import SMALL_RUNS, events, write


def _key(value: object) -> tuple[int, object]:
    """How one value of a sort key is ordered: NaN after everything, NULL after NaN."""
    if value is None:
        return (2, 0)
    if isinstance(value, float) and math.isnan(value):
        return (1, 0)
    return (0, value)


def test_each_run_is_sorted_and_says_so() -> None:
    written = write(events(10_000), sort_key=["user_id"], options=SMALL_RUNS)
    parquet = written.parquet()
    assert parquet.metadata.num_row_groups > 10
    for group in range(parquet.metadata.num_row_groups):
        assert parquet.metadata.row_group(group).sorting_columns == (pq.SortingColumn(1),)
        users = parquet.read_row_group(group)["user_id"].to_numpy()
        assert (np.diff(users) >= 0).all()
    assert sorted(written.rows()["id"].to_pylist()) == list(range(10_000))


def test_a_table_without_sort_key_keeps_the_order_and_claims_none() -> None:
    rows = events(3000).select(["user_id", "id"])
    written = write(rows)
    assert written.rows().equals(rows.cast(written.entry.schema.arrow))
    assert written.parquet().metadata.row_group(0).sorting_columns == ()


def test_sorted_input_is_not_sorted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("it was sorted already")

    rows = events(10_000)
    monkeypatch.setattr(runs.pc, "sort_indices", fail)
    written = write(rows, sort_key=["event_time", "user_id"], options=SMALL_RUNS)
    assert written.rows().equals(rows.cast(written.entry.schema.arrow))
    with pytest.raises(AssertionError, match="already"):
        write(rows, sort_key=["country", "id"])


def test_rows_of_equal_keys_keep_their_order() -> None:
    rows = events(5000).select(["country", "id"])
    back = write(rows, sort_key=["country"]).rows().to_pylist()
    assert [(row["country"], row["id"]) for row in back] == sorted((row["country"], row["id"]) for row in back)


@pytest.mark.parametrize("kind", [*FLAT])
def test_nulls_come_last_and_nan_before_them(kind: str) -> None:
    rng = random.Random(3)
    rows = pa.table({"v": random_column(rng, kind, 300), "w": random_column(rng, "int8", 300)})
    back = write(rows, sort_key=["v", "w"]).rows()
    values = back["v"].cast(pa.int64()) if kind in ("naive", "zoned", "time") else back["v"]
    values = values.cast(pa.int32()) if kind == "date" else values
    keys = [(_key(v), _key(w)) for v, w in zip(values.to_pylist(), back["w"].to_pylist(), strict=True)]
    assert keys == sorted(keys)


def test_a_decimal_key_sorts_by_value() -> None:
    rows = pa.table({"v": pa.array([Decimal("10.00"), Decimal("9.50"), Decimal("-1.00")], pa.decimal128(9, 2))})
    assert write(rows, sort_key=["v"]).rows()["v"].to_pylist() == [Decimal("-1.00"), Decimal("9.50"), Decimal("10.00")]
