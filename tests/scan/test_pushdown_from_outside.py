"""Queries of DuckDB and Polars over a table: the same rows as over the same table in memory, from fewer bytes."""

from __future__ import annotations

import os
import random
from collections import Counter
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from dolmen.base.runtime import Runtime
from dolmen.predicate.ast import Predicate
from dolmen.predicate.text import to_sql
from dolmen.rows.scan.scan import Scan
from support.random_predicates import random_predicate
from support.random_tables import FLAT, STRUCTS, random_table
from support.tables import World
from support.written import events

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
TABLES = 400 if os.environ.get("DOLMEN_LONG") else 20


@pytest.fixture
def world() -> World:
    found = World()
    found.create(events(500), group_rows=50, files=5)
    return found


def in_order(rows: pa.Table) -> list[str]:
    """Rows as texts; times as numbers, as Python's own don't reach as far."""
    columns = []
    for column in rows.columns:
        if pa.types.is_temporal(column.type):
            column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
        columns.append(column.to_pylist())
    return list(map(repr, zip(*columns, strict=True)))


def bag(rows: pa.Table) -> list[str]:
    return sorted(in_order(rows))


@pytest.mark.slow
def test_duckdb_relations_give_the_rows_of_the_same_table_in_memory() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng, seen = random.Random(SEED), Counter[str]()
    for _ in range(TABLES):
        rows = random_table(rng, rng.choice([0, 20, 40]), (*FLAT, *STRUCTS))
        world = World(runtime=Runtime(threads=1))
        world.create(rows, group_rows=5, files=2)
        connection, memory = (duckdb.connect(config={"threads": 1}) for _ in range(2))
        for each in (connection, memory):
            each.execute("SET TimeZone = 'UTC'")
        # On its own tables DuckDB 2.0 keeps rows for which a boolean field of a struct is NULL: WHERE s.flag.
        memory.execute("SET disabled_optimizers = 'filter_pushdown'")
        memory.from_arrow(rows).create("t")
        relation = world.db.table("t").to_duckdb(connection)
        for _ in range(10):
            condition = random_predicate(rng, rows)
            try:  # which part of a condition DuckDB looks at first, and so whether it fails, is its choice
                expected = memory.table("t").filter(condition).to_arrow_table()
                found = relation.filter(condition).to_arrow_table()
            except (duckdb.ConversionException, duckdb.OutOfRangeException):
                continue
            assert bag(found) == bag(expected), condition
            seen["some"] += 0 < expected.num_rows < rows.num_rows
    print(dict(seen))
    assert seen["some"] > TABLES


@pytest.mark.slow
def test_lazy_frames_give_the_rows_of_the_same_table_in_memory() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng, seen = random.Random(SEED), Counter[str]()
    for _ in range(TABLES):
        rows = random_table(rng, rng.choice([1, 20, 40]), FLAT)
        world = World(runtime=Runtime(threads=1))
        world.create(rows, group_rows=5, files=2)
        lazy, whole = world.db.table("t").scan_polars(), pl.from_arrow(rows)
        assert isinstance(whole, pl.DataFrame)
        assert lazy.collect_schema() == whole.schema
        for _ in range(10):
            condition = _expression(rng, whole)
            columns = rng.sample(whole.columns, rng.randint(1, len(whole.columns)))
            try:
                expected = whole.lazy().filter(condition).select(columns).collect()
            except pl.exceptions.PolarsError:
                continue
            found = lazy.filter(condition).select(columns).collect()
            assert found.schema == expected.schema
            assert in_order(found.to_arrow()) == in_order(expected.to_arrow()), condition
            seen["some"] += 0 < expected.height < rows.num_rows
    print(dict(seen))
    assert seen["some"] > TABLES


def _expression(rng: random.Random, frame: pl.DataFrame, depth: int = 2) -> pl.Expr:
    draw = rng.random()
    if depth and draw < 0.4:
        left, right = _expression(rng, frame, depth - 1), _expression(rng, frame, depth - 1)
        return rng.choice([left & right, left | right, ~left])
    name = rng.choice(frame.columns)
    column = pl.col(name)
    forms = [column.is_null(), column.is_not_null()]
    drawn = frame[name].drop_nulls()
    if frame.schema[name] == pl.Boolean:
        forms += [column, ~column]
    if frame.schema[name].is_float():
        forms += [column.is_nan(), column > rng.choice([0.1, float("nan"), float("inf"), 1, 2**53]), column.is_finite()]
    if len(drawn):
        try:
            values = [pl.lit(drawn[rng.randrange(len(drawn))], dtype=frame.schema[name]) for _ in range(2)]
        except (OverflowError, ValueError, pl.exceptions.PolarsError):  # times that Python's own don't reach
            return rng.choice(forms)
        a, b = values
        forms += [column == a, column != a, column < a, column <= a, column > a, a >= column, column.is_between(a, b)]
        forms += [
            column.eq_missing(a),
            column.ne_missing(a),
            column.is_between(a, b, closed=rng.choice(["left", "none"])),
        ]
        if frame.schema[name].is_integer():
            forms += [column > rng.choice([-1, 1.5, 300, 2**63]), column.is_in([1, 2, 3]), column % 2 == 0]
        if frame.schema[name] == pl.String:
            forms += [column.is_in(["a", "b", "ab"]), column.str.starts_with("a"), column.str.len_chars() > 1]
    return rng.choice(forms)


def gets(world: World, read: Any) -> tuple[int, int]:
    """How many requests a query on a table that is opened anew takes, and how many rows it gives."""
    fresh = World(store=world.store).db.table("t")
    fresh.schema  # noqa: B018
    world.store.reset()
    rows = read(fresh)
    return world.store.gets, rows


def test_files_that_a_condition_leaves_out_are_not_read(world: World) -> None:
    connection = duckdb.connect()
    everything, rows = gets(world, lambda table: table.to_duckdb(connection).to_arrow_table().num_rows)
    assert rows == 500
    for read in (
        lambda table: table.to_duckdb(connection).filter("id BETWEEN 210 AND 219").to_arrow_table().num_rows,
        lambda table: table.scan_polars().filter(pl.col("id").is_between(210, 219)).collect().height,
        lambda table: table.scan_polars().filter((pl.col("id") >= 210) & (pl.col("id") < 220)).collect().height,
    ):
        some, rows = gets(world, read)
        assert rows == 10
        assert some <= everything - 4  # of five files


def test_only_the_columns_asked_for_are_read(world: World) -> None:
    scan = world.db.table("t").scan()
    seen = []
    only = scan._only
    scan._only = lambda columns, *rest: seen.append(sorted(columns)) or only(columns, *rest)  # type: ignore[method-assign]
    assert scan.to_polars_lazy().filter(pl.col("amount") > 20).select("kind").collect().height > 100
    assert scan.to_duckdb().filter("id > 3").project("kind").to_arrow_table().num_rows == 496
    assert seen == [["amount", "kind"], ["kind"]]


def test_limits_come_before_the_conditions_of_whoever_asks(world: World) -> None:
    scan = world.db.table("t").scan(limit=20, order_by="id")
    assert scan.to_duckdb().filter("id >= 15").count("*").fetchall() == [(5,)]
    assert scan.to_polars_lazy().filter(pl.col("id") >= 15).collect().height == 5
    lazy = world.db.table("t").scan(order_by="-id").to_polars_lazy()
    assert lazy.head(20).filter(pl.col("id") > 490).collect()["id"].to_list() == list(range(499, 490, -1))
    assert lazy.filter(pl.col("id") < 100).head(2).collect()["id"].to_list() == [99, 98]
    world.store.reset()
    assert world.db.table("t").scan_polars().head(3).collect().height == 3
    assert world.store.gets <= 3


def test_frames_and_relations_keep_showing_the_version_they_were_made_of(world: World) -> None:
    table = world.db.table("t")
    lazy, relation = table.scan_polars(), table.to_duckdb()
    table.delete("id >= 100")
    assert lazy.collect().height == 500
    assert relation.count("*").fetchall() == [(500,)]
    assert table.scan_polars().collect().height == 100


def test_commit_timestamps_can_be_asked_for(world: World) -> None:
    world.append(events(3))
    scan = world.db.table("t").scan(columns=["id"], with_commit_ts=True)
    newest = max(scan.to_arrow()["_commit_ts"].to_pylist())
    assert scan.to_duckdb().filter(f"_commit_ts = {newest}").count("*").fetchall() == [(3,)]
    assert scan.to_duckdb().project("_commit_ts").aggregate("max(_commit_ts)").fetchall() == [(newest,)]
    assert scan.to_polars_lazy().filter(pl.col("_commit_ts") == newest).select("id").collect().height == 3
    assert scan.to_polars_lazy().select(pl.col("_commit_ts").max()).collect().item() == newest


LITERALS = pa.table(
    {
        "i": pa.array([1, 2], pa.int16()),
        "f": pa.array([0.1, 2], pa.float32()),
        "s": ["a", "b"],
        "b": [b"a", b"b"],
        "d": pa.array([1, 2], pa.int32()).cast(pa.date32()),
        "n": pa.array([1, 2], pa.timestamp("us")),
        "z": pa.array([1, 2], pa.timestamp("us", tz="UTC")),
        "m": pa.array([Decimal("1.50"), Decimal(2)], pa.decimal128(9, 2)),
        "t": pa.array([1, 2], pa.time64("us")),
        "o": [True, False],
    }
)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (pl.col("i") == pl.lit(1, pl.Int16), "i = 1"),
        (pl.col("i") > 70_000, None),
        (pl.col("f") > 0.1, "f > 0.1"),
        (pl.col("s").is_in(["a", "c"]) & (pl.col("s") + "x" == "ax"), "s IN ('a', 'c')"),
        (pl.col("s").str.starts_with("a") | (pl.col("i") == 1), None),
        (pl.col("d") == date(1970, 1, 2), "d = DATE '1970-01-02'"),
        (pl.col("n") < datetime(1970, 1, 1), "n < TIMESTAMP '1970-01-01 00:00:00'"),
        (pl.col("z") < datetime(1970, 1, 1, tzinfo=UTC), "z < TIMESTAMPTZ '1970-01-01 00:00:00+00:00'"),
        (pl.col("m") == pl.lit(Decimal("1.50"), pl.Decimal(38, 2)), "m = 1.50"),
        (pl.col("t") >= time(0, 0, 1), "t >= TIME '00:00:01'"),
        (pl.col("o"), "o"),
        (~pl.col("o") & pl.col("b").is_not_null(), "b IS NOT NULL AND NOT o"),
        (pl.col("b") == b"a", "b = 'a'"),
    ],
)
def test_conditions_of_polars_on_all_types_reach_the_plan(condition: pl.Expr, text: str | None) -> None:
    world = World()
    world.create(LITERALS, group_rows=1)
    scan, asked = world.db.table("t").scan(), list[Predicate | None]()
    only = scan._only

    def note(columns: list[str], where: Predicate | None, limit: int | None) -> Scan:
        asked.append(where)
        return only(columns, where, limit)

    scan._only = note  # type: ignore[assignment,method-assign]
    found = scan.to_polars_lazy().filter(condition).collect()
    assert found.equals(pl.from_arrow(LITERALS).filter(condition))  # type: ignore[union-attr]
    (where,) = asked
    assert (where and to_sql(where, world.entry().schema)) == text
