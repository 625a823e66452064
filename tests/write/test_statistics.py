"""Statistics are right or absent, in the entry and in the Parquet file alike."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from dolmen.format.entries import Bounds, DataFile, bounds
from dolmen.format.types import to_plain
from dolmen.rows.write.runs import WriteOptions
from support.random_tables import ALL, TYPES, random_column
from support.written import SMALL_RUNS, Written, write

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
NAN, INF = math.nan, math.inf


def stored_bounds(values: pa.Array, options: WriteOptions | None = None) -> Bounds:
    """The bounds that the entry of a file with one column has, after a way through JSON."""
    written = write(pa.table({"v": values}), options=options)
    (file,) = written.files
    entry = msgspec.json.decode(msgspec.json.encode(file), type=DataFile)
    return bounds(entry.stats.get(1), written.entry.schema.fields[0].arrow_type)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
def test_bounds_of_random_columns_are_exact(kind: str) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(f"{SEED} {kind}")
    for _ in range(200 if os.environ.get("DOLMEN_LONG") else 6):
        column = random_column(rng, kind, rng.randint(1, 400))
        check_bounds(kind, column, stored_bounds(column, WriteOptions(run_rows=rng.choice([7, 50, 1000]))))


def check_bounds(kind: str, values: pa.Array, found: Bounds) -> None:
    assert found.nulls == values.null_count
    if kind in ("list", "struct"):
        assert found[:2] == (None, None)
        return
    plain = [value for value in to_plain(values) if value is not None]
    numbers = [value for value in plain if not (isinstance(value, float) and math.isnan(value))]
    assert found.nans == len(plain) - len(numbers)
    if not numbers:
        assert found[:2] == (None, None)
        return
    least, greatest = min(numbers), max(numbers)
    if isinstance(least, (str, bytes)) and max(map(len, numbers)) > 16:
        assert found.min is not None
        assert found.min <= least
        assert found.max is None or found.max >= greatest
    else:
        assert found[:2] == (least, greatest)


def test_bounds_of_large_random_numbers_are_numpys() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = np.random.default_rng(SEED)
    floats = rng.normal(size=20_000) * 10.0 ** rng.integers(-300, 300, 20_000)
    assert stored_bounds(pa.array(floats), SMALL_RUNS)[:2] == (floats.min(), floats.max())
    integers = rng.integers(0, 2**64 - 1, 20_000, dtype=np.uint64, endpoint=True)
    assert stored_bounds(pa.array(integers), SMALL_RUNS)[:2] == (int(integers.min()), int(integers.max()))


def test_nan_is_outside_the_bounds_and_counted_apart() -> None:
    assert stored_bounds(pa.array([NAN, 3.0, None, NAN, -1.0])) == Bounds(-1.0, 3.0, 1, 2)


def test_a_column_of_nan_alone_has_no_bounds() -> None:
    assert stored_bounds(pa.array([NAN, NAN])) == Bounds(None, None, 0, 2)
    assert stored_bounds(pa.array([NAN, None], pa.float32())) == Bounds(None, None, 1, 1)


def test_a_run_of_nan_alone_leaves_the_other_runs_bounds() -> None:
    values = pa.array([NAN] * 5 + [1.0] * 5 + [None] * 5 + [NAN] * 5 + [-2.0] * 5)
    assert stored_bounds(values, WriteOptions(run_rows=5)) == Bounds(-2.0, 1.0, 5, 10)


def test_infinities_are_bounds_and_valid_json() -> None:
    written = write(pa.table({"v": [INF, 1.0, -INF]}))
    document = msgspec.json.encode(written.files[0])

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(document, parse_constant=refuse)
    assert stored_bounds(pa.array([INF, 1.0, -INF])) == Bounds(-INF, INF, 0, 0)


def test_negative_zero_is_zero() -> None:
    written = write(pa.table({"v": [-0.0, -0.0]}))
    assert msgspec.json.encode(written.files[0].stats[1]).startswith(b"[0.0,0.0")
    statistics = written.parquet().metadata.row_group(0).column(0).statistics
    assert (str(statistics.min), str(statistics.max)) == ("-0.0", "0.0")  # as Parquet wants it: both are inside


def test_absent_is_not_all_null() -> None:
    assert stored_bounds(pa.array([None, None], pa.int64())) == Bounds(None, None, 2, 0)
    nothing = bounds(None, pa.int64())
    assert nothing.nulls is None


def test_one_huge_string_does_not_drop_the_bounds() -> None:
    found = stored_bounds(pa.array(["b", "a", "z" * 100_000]))
    assert (found.min, found.max) == ("a", "z" * 15 + "{")


@pytest.mark.parametrize("long", [1025, 5000])
def test_long_strings_in_some_runs_leave_the_bounds_exact(long: int) -> None:
    values = pa.array(["m"] * 5 + ["k" * long] * 5 + [None] * 5 + ["p"] * 5 + ["z" * long, "a"])
    found = stored_bounds(values, WriteOptions(run_rows=5))
    assert (found.min, found.max, found.nulls) == ("a", "z" * 15 + "{", 5)


def test_texts_without_statistics_in_the_footer_have_unknown_bounds() -> None:
    rows = pa.table({"a": [{"b": 1.5}, {"b": NAN}], "a.b": ["x", "y"]})  # two columns of one Parquet path
    written = write(rows)
    assert bounds(written.files[0].stats[3], pa.string()) == Bounds(None, None, 0, 0)


def test_a_cut_maximum_is_rounded_up() -> None:
    assert stored_bounds(pa.array(["é" * 40])).max == "é" * 15 + "ê"
    assert stored_bounds(pa.array([b"\xff" * 40])).max is None
    assert stored_bounds(pa.array([b"a" + b"\xff" * 40])).max == b"b"


def test_extremes_of_every_type_survive() -> None:
    for kind, (arrow_type, _) in TYPES.items():
        if pa.types.is_integer(arrow_type):
            bits, signed = arrow_type.bit_width, kind[0] == "i"
            low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
            assert stored_bounds(pa.array([high, low], arrow_type))[:2] == (low, high)
    ends = pa.array([-(2**63), 2**63 - 1]).view(pa.timestamp("us", tz="UTC"))
    assert stored_bounds(ends)[:2] == (-(2**63), 2**63 - 1)


def test_a_table_of_many_columns_keeps_the_keys_statistics_and_a_bounded_entry() -> None:
    rows = pa.table({f"c{place}": [place] for place in range(500)})
    (file,) = write(rows, primary_key=["c499"], sort_key=["c300"]).files
    assert len(file.stats) == 64
    assert {1, 301, 500} <= set(file.stats)


# Parquet's own statistics, by which other engines prune


def has_statistics(written: Written, place: int = 0, column: int = 0) -> set[bool]:
    metadata = written.parquet(place).metadata
    chunks = [metadata.row_group(group).column(column) for group in range(metadata.num_row_groups)]
    assert all(chunk.has_column_index == chunk.is_stats_set for chunk in chunks)
    return {chunk.is_stats_set for chunk in chunks}


def test_a_float_column_with_nan_has_no_parquet_statistics() -> None:
    written = write(pa.table({"v": [1.0, NAN], "w": [1.0, 2.0], "n": [1, 2]}))
    assert [has_statistics(written, column=place) for place in range(3)] == [{False}, {True}, {True}]


def test_only_columns_with_nan() -> None:
    assert has_statistics(write(pa.table({"v": [NAN]}))) == {False}


def test_floats_inside_nested_columns_have_no_parquet_statistics() -> None:
    rows = pa.table({"s": [{"x": NAN, "y": 1}], "l": [[1.0, NAN]]})
    written = write(rows)
    assert [has_statistics(written, column=place) for place in range(3)] == [{False}, {True}, {False}]


@pytest.mark.parametrize("engine", ["duckdb", "polars"])
def test_no_engine_loses_nan_rows_to_pruning(engine: str, tmp_path: Path) -> None:
    written = write(pa.table({"v": [1.0, NAN, 2.0, 3.0] * 100}))
    path = tmp_path / "rows.parquet"
    path.write_bytes(written.body())
    if engine == "duckdb":
        ((found,),) = duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE v > 5").fetchall()
    else:  # NaN is the greatest in Polars too
        found = pl.scan_parquet(path).filter(pl.col("v") > 5).collect().height
    assert found == 100


LATE_NAN = [float(number) for number in range(1000)] + [NAN] + [1.0] * 999


def test_only_the_row_groups_of_runs_with_nan_have_no_parquet_statistics() -> None:
    rows = pa.table({"v": LATE_NAN, "w": [0.5] * 2000, "n": range(2000)})
    written = write(rows, options=WriteOptions(run_rows=500), batch_rows=100)
    (file,) = written.files
    metadata = written.parquet().metadata
    with_statistics = [
        [metadata.row_group(group).column(column).is_stats_set for column in range(3)]
        for group in range(metadata.num_row_groups)
    ]
    assert with_statistics == [[True, True, True], [True, True, True], [False, True, True], [True, True, True]]
    assert (file.stats[1].nans, bounds(file.stats[1], pa.float64())[:2]) == (1, (0.0, 999.0))
    assert written.rows()["n"].to_pylist() == list(range(2000))


@pytest.mark.parametrize("engine", ["duckdb", "polars", "pyarrow"])
def test_no_engine_loses_nan_rows_of_a_late_run(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(write(pa.table({"v": LATE_NAN}), options=WriteOptions(run_rows=500), batch_rows=100).body())
    if engine == "duckdb":
        ((found,),) = duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE v > 5000").fetchall()
    elif engine == "polars":
        found = pl.scan_parquet(path).filter(pl.col("v") > 5000).collect().height
    else:
        found = ds.dataset(path).to_table(filter=pc.is_nan(pc.field("v"))).num_rows
    assert found == 1
