"""Filters that Spark pushes into the data source: of the same truth in dolmen as in Spark, for every row."""

from __future__ import annotations

import os
import pickle
import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, IsNotNull
from pyspark.sql.types import StructType

import dolmen
from dolmen.commit.head import context_of
from dolmen.format.schema import Schema
from dolmen.predicate.ast import Predicate
from dolmen.predicate.bind import conjunction
from dolmen.rows.scan.scan import plan_of
from dolmen.spark.frame_types import spark_type
from dolmen.spark.source.readers import to_predicate
from pyspark_dolmen import register
from support.random_tables import FLAT, TYPES, random_column

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
ROUNDS = 10 if os.environ.get("DOLMEN_LONG") else 1
ROWS = 60
KINDS = [name for name in FLAT if name != "time"]
SHAPES = ["=", "<>", "<", "<=", ">", ">=", "<=>", "not <=>", "in", "not in", "null", "not null", "truth"]
TEXT_SHAPES = [*SHAPES, "prefix", "suffix", "inside", "like", "not prefix"]


def condition(rng: random.Random, shape: str, column: Column, values: list[Any]) -> Column:
    """A condition of this shape on a column, with values of it."""
    value = rng.choice(values)
    match shape:
        case "=" | "truth":
            return column == value
        case "<>":
            return column != value
        case "<":
            return column < value
        case "<=":
            return column <= value
        case ">":
            return column > value
        case ">=":
            return column >= value
        case "<=>":
            return column.eqNullSafe(value)
        case "not <=>":
            return ~column.eqNullSafe(value)
        case "in":
            return column.isin(rng.choices(values, k=3))
        case "not in":
            return ~column.isin(rng.choices(values, k=3))
        case "null":
            return column.isNull()
        case "not null":
            return column.isNotNull()
        case "prefix":
            return column.startswith(value)
        case "not prefix":
            return ~column.startswith(value)
        case "suffix":
            return column.endswith(value)
        case "inside":
            return column.contains(value)
        case "like":
            plain = value.translate(dict.fromkeys(map(ord, "\\%_")))  # escapes are not pushed as anything
            return column.like(rng.choice([f"{plain}%", f"%{plain}", f"%{plain}%", f"{plain}%{plain}"]))
    raise AssertionError(shape)


def typed(values: list[Any], arrow_type: pa.DataType) -> list[Any]:
    """Values in the column's own type: what lies at the edge of another Spark folds, and all conditions with it."""
    if pa.types.is_binary(arrow_type) or pa.types.is_fixed_size_binary(arrow_type):
        return [F.lit(bytearray(value)) for value in values]
    if pa.types.is_string(arrow_type):
        return values
    if pa.types.is_uint64(arrow_type):
        values = [Decimal(value) for value in values]
    return [F.lit(value).cast(spark_type(arrow_type)) for value in values]


def drawn(rng: random.Random, kind: str, array: pa.Array) -> list[Any]:
    """Values of a column, and others of its type, within Python's years."""
    arrow_type, draw = TYPES[kind]
    values = [draw(rng) for _ in range(3)]
    if pa.types.is_temporal(arrow_type):
        own = array.cast(pa.int32() if arrow_type.bit_width == 32 else pa.int64()).to_pylist()
        values += [value for value in own if value is not None][:3]
        if pa.types.is_date(arrow_type):
            return [date(1970, 1, 1) + timedelta(days=value) for value in values if -700_000 < value < 2_900_000]
        limit = 2_900_000 * 86_400_000_000
        epoch = datetime(1970, 1, 1, tzinfo=UTC if arrow_type.tz else None)
        return [epoch + timedelta(microseconds=value) for value in values if -limit / 5 < value < limit]
    return typed(values + [value for value in array.to_pylist() if value is not None][:3], arrow_type)


def pushed(spark: SparkSession, frame: DataFrame, conditions: Iterable[Column], to: Path) -> list[Filter]:
    """The filters that Spark pushes for these conditions, as its planner hands them to Python."""

    class Recorder(DataSource):  # defined here, it is sent to the planner as it stands
        @classmethod
        def name(cls) -> str:
            return "recorder"

        def reader(self, schema: StructType) -> DataSourceReader:
            path = self.options["path"]

            class Reader(DataSourceReader):
                def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
                    with open(path, "wb") as file:
                        pickle.dump(filters, file)
                    return filters

                def read(self, partition: object) -> Iterable[Any]:
                    return iter(())

            return Reader()

    spark.dataSource.register(Recorder)
    recorded = spark.read.format("recorder").schema(frame.schema).load(str(to))
    for each in conditions:
        recorded = recorded.where(each)
    plan = recorded._jdf.queryExecution().executedPlan().toString()
    assert to.exists(), plan  # else a condition was folded to FALSE, and nothing is read
    with to.open("rb") as file:
        filters: list[Filter] = pickle.load(file)
    return filters


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_a_pushed_filter_is_true_for_the_same_rows_in_spark_and_in_dolmen(
    round_: int, spark: SparkSession, tmp_path: Path
) -> None:
    seed = SEED + round_
    print(f"DOLMEN_TEST_SEED={seed}")
    rng = random.Random(seed)
    register(spark)
    arrays: dict[str, pa.Array] = {"rid": pa.array(range(ROWS), pa.int64())}
    shapes: dict[str, tuple[str, str]] = {}
    for kind in KINDS:  # a condition to a column: two of one column would be folded into each other
        for shape in TEXT_SHAPES if kind == "string" else SHAPES:
            if shape == "truth" and kind != "bool":
                continue
            name = f"c{len(shapes)}"
            arrays[name], shapes[name] = random_column(rng, kind, ROWS), (kind, shape)
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", pa.table(arrays).schema)
    table.append(pa.table(arrays))
    frame = spark.read.format("dolmen").option("table", "t").load(db.url)
    conditions: dict[str, Column] = {}
    for name, (kind, shape) in shapes.items():
        if values := drawn(rng, kind, arrays[name]):
            conditions[name] = F.col(name) if shape == "truth" else condition(rng, shape, F.col(name), values)

    truths = frame.select("rid", *(each.alias(name) for name, each in conditions.items())).toArrow()
    schema = context_of(db).segments.whole(context_of(db).head.refresh().manifest.table("t")).schema
    taken = defaultdict[str, list[Predicate]](list)
    left, told = set[str](), set[str]()
    for each in pushed(spark, frame, conditions.values(), tmp_path / "filters"):
        name = (each.child if hasattr(each, "child") else each).attribute[0]
        predicate = to_predicate(each, schema)
        if predicate is None:
            left.add(name)
        else:
            taken[name].append(predicate)
            if not isinstance(each, IsNotNull) or shapes[name][1] == "not null":
                told.add(name)  # Spark adds NOT NULL to all else, and pushes it also where that stays with it

    for name, predicates in taken.items():
        rids = set(truths["rid"].filter(truths[name]).to_pylist())
        found = set(table.scan(["rid"], conjunction(predicates)).to_arrow()["rid"].to_pylist())
        assert rids <= found, (shapes[name], conditions[name], predicates)
        if shapes[name][1] != "like":  # of 'a%b' Spark pushes how it begins and how it ends, and keeps how long it is
            assert rids == found or name in left or name not in told, (shapes[name], conditions[name], predicates)
    assert {shapes[name][0] for name in told - left} == set(KINDS)
    assert len(told) > 0.9 * len(conditions)
    floats_in = {name for name, of in shapes.items() if of[0].startswith("float") and of[1].endswith("in")}
    assert left <= floats_in  # all else that Spark pushes is taken


def test_what_is_not_known_is_left_to_spark() -> None:
    schema = Schema.from_arrow(pa.schema([("n", pa.int64()), ("p", pa.struct([("x", pa.int64())]))]))
    assert to_predicate(EqualTo(("nowhere",), 1), schema) is None
    assert to_predicate(EqualTo(("p", "y"), 1), schema) is None
    assert to_predicate(EqualTo(("p", "x"), "1"), schema) is None
    assert to_predicate(EqualTo(("n",), "1"), schema) is None
    assert to_predicate(EqualTo(("n",), 1.5), schema) is None
    assert to_predicate(EqualTo(("n",), 1), schema) is not None
    assert to_predicate(EqualTo(("p", "x"), 1), schema) is not None


@pytest.mark.slow
def test_pushed_filters_prune_files(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", pa.schema([("n", pa.int64()), ("s", pa.string())]))
    for first in (0, 100):
        table.append(pa.table({"n": range(first, first + 100), "s": [f"s{i}" for i in range(100)]}))
    (tmp_path / "db" / plan_of(table.scan()).files[0].file.path).unlink()
    reader = spark.read.format("dolmen").option("table", "t").option("push_filters", True)
    frame = reader.load(db.url).where("n >= 150 AND s LIKE 's9%' AND n % 2 = 0")
    assert sorted(row.n for row in frame.collect()) == [190, 192, 194, 196, 198]
