"""Frames of pandas and Polars hold every value that is stored, or say what does not fit."""

from __future__ import annotations

import os
import random
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dolmen.errors import InputError
from dolmen.rows.scan.engines.dataframes import to_pandas, to_polars
from support.random_tables import random_table
from support.tables import World

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
TABLES = 3_000 if os.environ.get("DOLMEN_LONG") else 100


def texts(rows: pa.Table) -> list[str]:
    columns = []
    for column in rows.columns:
        if pa.types.is_temporal(column.type):
            column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
        columns.append(column.to_pylist())
    return list(map(repr, zip(*columns, strict=True)))


@pytest.mark.slow
def test_random_tables_come_back_from_frames_as_they_were() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng, refused = random.Random(SEED), 0
    for _ in range(TABLES):
        rows = random_table(rng, rng.choice([0, 1, 20]))
        assert texts(to_polars(rows).to_arrow().cast(rows.schema)) == texts(rows)
        try:
            frame = to_pandas(rows)
        except InputError:
            assert any(pa.types.is_date(kind) for kind in rows.schema.types)
            refused += 1
            continue
        assert list(frame.columns) == rows.column_names
        assert len(frame) == rows.num_rows
        back = pa.Table.from_pandas(frame, schema=rows.schema, preserve_index=False)
        assert texts(back) == texts(rows), rows.schema
    assert refused < TABLES / 2


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        (pa.array([1, None, 2**53 + 1]), "Int64"),
        (pa.array([1, None, 2**64 - 1], pa.uint64()), "UInt64"),
        (pa.array([1, None], pa.int8()), "Int8"),
        (pa.array([1, 2]), "int64"),
        (pa.array([1.5, None]), "float64"),
        (pa.array([1.5, None, float("nan")]), "Float64"),
        (pa.array([1.5, float("nan")], pa.float32()), "Float32"),
        (pa.array([True, None]), "object"),
        (pa.array([Decimal("1.5"), None]), "object"),
        (pa.array([[1, None, 2**53 + 1], None]), "object"),
        (pa.array([{"x": 2**53 + 1}, {"x": None}, None]), "object"),
        (pa.array([[{"x": 2**53 + 1}, {"x": None}]]), "object"),
        (pa.array([[(1, 2**53 + 1), (2, None)]], pa.map_(pa.int64(), pa.int64())), "object"),
    ],
)
def test_numbers_beside_nulls_keep_all_their_digits(column: pa.Array, dtype: str) -> None:
    rows = pa.table({"c": column})
    frame = to_pandas(rows)
    assert str(frame["c"].dtype) == dtype
    assert texts(pa.Table.from_pandas(frame, schema=rows.schema, preserve_index=False)) == texts(rows)


def test_nested_numbers_keep_null_apart_from_nan() -> None:
    frame = to_pandas(pa.table({"c": pa.array([[1.5, None, float("nan")], None])}))
    assert repr(frame["c"].tolist()) == "[[1.5, None, nan], None]"


def test_a_time_that_python_does_not_have_is_told_with_its_column() -> None:
    late = pa.array([3_000_000], pa.int32()).cast(pa.date32())
    nested = pa.array([{"x": 2**62}], pa.struct([("x", pa.timestamp("us"))]))
    least = pa.array([-(2**63)]).view(pa.timestamp("us"))
    for column in (late, nested, least):
        with pytest.raises(InputError, match=r"column 'late' .*to_arrow\(\)"):
            to_pandas(pa.table({"id": [1], "late": column}))
    assert str(to_pandas(pa.table({"late": late}), date_as_object=False)["late"][0]) == "10183-09-21 00:00:00"


def test_a_frame_is_written_back_as_it_was_read() -> None:
    world = World()
    rows = pa.table({"n": [1, None, 2**53 + 1], "f": [1.0, None, float("nan")], "l": [[1, None], None, []]})
    table = world.db.create_table("t", rows.schema)
    table.append(rows)
    for frame in (
        table.to_pandas(),
        table.to_polars(),
        world.db.sql("FROM t").to_pandas(),
        world.db.sql("FROM t").to_polars(),
    ):
        assert isinstance(frame, (pd.DataFrame, pl.DataFrame))
        table.overwrite(frame)
        assert texts(table.to_arrow()) == texts(rows)


def test_what_polars_has_no_type_for_is_refused_in_words() -> None:
    with pytest.raises(InputError, match=r"Polars.*x: month_day_nano"):
        World().db.sql("SELECT INTERVAL 3 MONTH AS x").to_polars()
    with pytest.raises(InputError, match=r"column .x.: pandas.*sparse_union"):
        World().db.sql("SELECT union_value(k := 1) AS x").to_pandas()
