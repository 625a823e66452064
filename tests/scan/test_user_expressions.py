"""Expressions of pyarrow and Polars as conditions: the rows are those that the engine's own filter keeps."""

from __future__ import annotations

import functools
import operator
import os
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dolmen
from dolmen import Table
from dolmen.errors import InputError, PredicateError

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
ROUNDS = 3_000 if os.environ.get("DOLMEN_LONG") else 400
NAN, INF = float("nan"), float("inf")
NOON = datetime(2026, 1, 1, 12)

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [None, -128, 0, 3, 127]),
    "n": (pa.int64(), [None, -3, 0, 3, 2**40]),
    "m": (pa.int64(), [None, 3, 4]),
    "big": (pa.uint64(), [None, 0, 3, 2**64 - 1]),
    "x": (pa.float64(), [None, NAN, -0.0, 0.0, 0.1, 3.0, INF, -INF]),
    "f": (pa.float32(), [None, NAN, -0.0, 0.1, 3.0]),
    "d": (pa.decimal128(10, 2), [None, Decimal("3.00"), Decimal("-0.50")]),
    "s": (pa.string(), [None, "", "a", "ab", "a%b", "ä"]),
    "t": (pa.string(), [None, "a", "b"]),
    "raw": (pa.binary(), [None, b"", b"a"]),
    "b": (pa.bool_(), [None, True, False]),
    "c": (pa.bool_(), [None, True, False]),
    "day": (pa.date32(), [None, date(2026, 1, 1), date(1969, 12, 31)]),
    "naive": (pa.timestamp("us"), [None, NOON, datetime(2000, 1, 1)]),
    "moment": (pa.timestamp("us", "UTC"), [None, NOON.replace(tzinfo=UTC)]),
}
NUMBERS: list[Any] = [-3, 0, 3, 127, 300, 2**40, 2.5, 3.0, 0.1, -0.0, INF]
LITERALS: dict[str, list[Any]] = {
    **dict.fromkeys(("tiny", "n", "m", "big", "x", "f"), NUMBERS),
    "d": [3, 0, Decimal("3.00"), Decimal("-0.50")],
    "s": ["", "a", "ab", "%"], "t": ["a", "c"], "raw": [b"", b"a"], "b": [True, False], "c": [True],
    "day": [date(2026, 1, 1), date(2000, 1, 1)], "naive": [NOON], "moment": [NOON.replace(tzinfo=UTC)],
}  # fmt: skip
OPERATORS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a == b, lambda a, b: a != b, lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b,
    lambda a, b: a >= b,
]  # fmt: skip
PAIRS = [("n", "m"), ("s", "t"), ("b", "c"), ("x", "f"), ("tiny", "n")]


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    rng = random.Random(SEED)
    columns = {
        name: pa.array([rng.choice(values) for _ in range(300)], kind) for name, (kind, values) in COLUMNS.items()
    }
    return pa.table({"id": pa.array(range(300), pa.int64()), **columns})


@pytest.fixture(scope="module")
def table(rows: pa.Table) -> Table:
    table = dolmen.open(f"memory:///{uuid4()}").create_table("t", rows.schema, sort_key="n")
    for start in range(0, 300, 60):
        table.append(rows.slice(start, 60))
    return table


def random_arrow(rng: random.Random, depth: int) -> pc.Expression:
    if depth:
        one, other = random_arrow(rng, rng.randrange(depth)), random_arrow(rng, rng.randrange(depth))
        return rng.choice([one & other, one | other, ~one])
    name = rng.choice(list(LITERALS))
    column, literal = pc.field(name), rng.choice(LITERALS[name])
    if rng.random() < 0.2:
        left, right = map(pc.field, rng.choice(PAIRS))
        return rng.choice(OPERATORS)(left, right)
    forms: list[Callable[[], pc.Expression]] = [
        lambda: rng.choice(OPERATORS)(column, literal),
        lambda: rng.choice(OPERATORS)(pc.scalar(literal), column),
        column.is_null,
        column.is_valid,
        lambda: column.isin(rng.sample(LITERALS[name], 1)),
        lambda: column.isin([*rng.sample(LITERALS[name], 1), None]),
        lambda: rng.choice(OPERATORS)(column, pa.scalar(None, COLUMNS[name][0])),
        lambda: pc.starts_with(pc.field("s"), rng.choice(["", "a", "%"])),
        lambda: pc.ends_with(pc.field("s"), "b"),
        lambda: pc.field("x").is_nan(),
        lambda: pc.field("b"),
    ]
    return rng.choice(forms)()


def random_polars(rng: random.Random, depth: int) -> pl.Expr:
    if depth:
        one, other = random_polars(rng, rng.randrange(depth)), random_polars(rng, rng.randrange(depth))
        return rng.choice([one & other, one | other, ~one])
    name = rng.choice(list(LITERALS))
    column, literal = pl.col(name), rng.choice(LITERALS[name])
    if rng.random() < 0.2:
        left, right = map(pl.col, rng.choice(PAIRS))
        return rng.choice(OPERATORS)(left, right)
    forms: list[Callable[[], pl.Expr]] = [
        lambda: rng.choice(OPERATORS)(column, literal),
        lambda: rng.choice(OPERATORS)(pl.lit(literal), column),
        column.is_null,
        column.is_not_null,
        lambda: column.is_in(rng.sample(LITERALS[name], 1)),
        lambda: column.is_between(literal, rng.choice(LITERALS[name]), rng.choice(["both", "left", "right", "none"])),
        lambda: column.eq_missing(rng.choice([literal, None])),
        lambda: column.ne_missing(literal),
        lambda: pl.col("s").str.starts_with(rng.choice(["", "a", "%"])),
        lambda: pl.col("s").str.ends_with("b"),
        lambda: pl.col("x").is_nan(),
        lambda: pl.col("b"),
    ]
    return rng.choice(forms)()


def check(table: Table, where: Any, kept: Callable[[], list[int]]) -> str:
    """Compares with the engine's rows, and says what came of the expression."""
    try:
        found = sorted(table.scan(["id"], where).to_arrow()["id"].to_pylist())
    except PredicateError:
        return "refused"
    try:
        expected = kept()
    except (pa.ArrowException, pl.exceptions.PolarsError):
        return "only read"
    assert found == expected, f"seed {SEED}: {where}"
    return "some" if 0 < len(found) < 300 else "read"


def check_outcomes(outcomes: list[str]) -> None:
    assert outcomes.count("some") > ROUNDS / 4
    assert 0 < outcomes.count("refused") < ROUNDS / 3
    assert outcomes.count("only read") < ROUNDS / 10


@pytest.mark.slow
def test_random_expressions_of_pyarrow(table: Table, rows: pa.Table) -> None:
    rng = random.Random(SEED)
    expressions = [random_arrow(rng, rng.choice([0, 0, 1, 2, 3])) for _ in range(ROUNDS)]
    check_outcomes([check(table, each, lambda each=each: rows.filter(each)["id"].to_pylist()) for each in expressions])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Comparisons with None")
def test_random_expressions_of_polars(table: Table, rows: pa.Table) -> None:
    rng, frame = random.Random(SEED), pl.DataFrame(pl.from_arrow(rows))
    expressions = [random_polars(rng, rng.choice([0, 0, 1, 2, 3])) for _ in range(ROUNDS)]
    check_outcomes([check(table, each, lambda each=each: frame.filter(each)["id"].to_list()) for each in expressions])


@pytest.mark.parametrize("column", [pc.field, pl.col])
def test_every_call_takes_expressions(column: Callable[[str], Any]) -> None:
    db = dolmen.open(f"memory:///{uuid4()}")
    table = db.create_table("t", {"id": [1, 2, 3, 4], "n": [1, 2, 3, None]})
    where = column("n") > 1
    assert table.count(where) == 2
    assert table.scan().filter(where).filter(column("id") == 2).count() == 1
    assert table.update({"n": 5}, where).rows == 2
    assert table.overwrite({"id": [2, 3], "n": [5, 5]}, where=column("n") == 5).rows == 2
    assert table.delete(column("id") == 2, request="r").mode == "tombstone"
    assert table.delete("id = 2", request="r").already
    assert table.delete(column("id") == 3, mode="positions").mode == "positions"
    with db.transaction() as tx:
        tx.table("t").delete(column("id") == 1)
    assert table.changes(since=0, where=column("id") == 3).read_all()["id"].unique().to_pylist() == [3]
    assert table.erase(column("n").is_null()).commit.operation == "erase"
    assert table.count() == 0


@pytest.mark.parametrize(
    ("where", "part"),
    [
        ((pc.field("n") > 3) & (pc.field("n") + 1 > 3), "add_checked"),
        (pc.field("home", "city") == "a", "home.city"),
        (pc.field("x") == NAN, "nan"),
        (pc.field("n") == "3", "3"),
        (pc.field("nn") == 3, "nn"),
        (pc.field(0) == 3, "pc.field"),
        ((pl.col("n") > 3) & (pl.col("n").abs() > 3), "abs"),
        (pl.col("n").sum() > 3, "sum"),
        (pl.col("home").struct.field("city") == "a", "city"),
        (pl.all() > 3, "all"),
        (pl.col("n").map_batches(lambda n: n > 1, return_dtype=pl.Boolean), "python"),
        (pl.col("nn") == 3, "nn"),
    ],
)
def test_what_no_predicate_says_is_named(table: Table, where: Any, part: str) -> None:
    with pytest.raises(PredicateError, match=part):
        table.delete(where)


@pytest.mark.parametrize("column", [pc.field("id"), pl.col("id")], ids=["pyarrow", "polars"])
def test_chains_may_be_long_and_nesting_is_refused_kindly(table: Table, column: Any) -> None:
    either = functools.reduce(operator.or_, (column == number for number in range(200, 1700)))
    both = functools.reduce(operator.and_, (column != number for number in range(200, 1700)))
    assert (table.count(where=either), table.count(where=both)) == (100, 200)

    def nest(deepen: Callable[[Any], Any]) -> Any:
        return functools.reduce(lambda inner, _: deepen(inner), range(1200), column == 1)

    for deep in (nest(operator.invert), nest(lambda inner: (inner & (column > 1)) | (column == 9))):
        with pytest.raises(PredicateError, match="nested too deeply"):
            table.count(where=deep)
    added = functools.reduce(lambda inner, _: inner + 1, range(1200), column) == 1
    with pytest.raises(PredicateError, match=r"nested too deeply|can't be a predicate"):
        table.count(where=added)


def test_a_deep_filter_of_a_lazy_frame_is_left_to_polars(table: Table) -> None:
    deep = functools.reduce(lambda inner, _: ~inner, range(600), pl.col("id") == 1)
    assert table.scan_polars().filter(deep).collect().height == 1


def test_deep_sql_is_refused_kindly() -> None:
    db = dolmen.open(f"memory:///{uuid4()}")
    db.sql("CREATE TABLE t (b BOOLEAN)")
    deep = "NOT " * 1200 + "b"
    for text in (
        f"FROM t WHERE {deep}",
        f"DELETE FROM t WHERE {deep}",
        f"UPDATE t SET b = {deep}",
        f"DESCRIBE SELECT {deep} FROM t",
    ):
        with pytest.raises(InputError, match="nested deeper than 1000 levels: write it with fewer"):
            db.sql(text)
