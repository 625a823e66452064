"""Which predicates are deletes by key, and of which keys."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dolmen.format.schema import Schema
from dolmen.predicate.ast import listed_tuples
from dolmen.predicate.parse import parse

SCHEMA = Schema.from_arrow(
    pa.schema(
        [
            ("a", pa.int8()),
            ("b", pa.string()),
            ("c", pa.decimal128(5, 2)),
            ("f", pa.float64()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("flag", pa.bool_()),
            ("raw", pa.binary(2)),
        ]
    )
)


def keys(source: Any) -> Any:
    return listed_tuples(parse(source, SCHEMA, now_us=0))


@pytest.mark.parametrize(
    ("source", "columns", "tuples"),
    [
        ("a = 1", (1,), [(1,)]),
        ({"a": [3, 1]}, (1,), [(1,), (3,)]),
        ("a IN (1, 2, NULL)", (1,), [(1,), (2,)]),
        ("a = 1 OR a = 2 OR a = 1", (1,), [(1,), (2,)]),
        ("a IN (1, 300, 2.5, 2.0)", (1,), [(1,), (2,)]),
        ("a = 300", (1,), []),
        ("a = 1e0", (1,), [(1,)]),
        ("a = 1 AND b IN ('x', 'y')", (1, 2), [(1, "x"), (1, "y")]),
        ("b = 'x' AND a IN (1, 2)", (1, 2), [(1, "x"), (2, "x")]),
        ("(b, a) IN (('x', 1), ('y', 2))", (1, 2), [(1, "x"), (2, "y")]),
        ("a = 1 AND a IS NOT NULL", (1,), [(1,)]),
        ("a IN (1, 2) AND a IN (2, 3)", (1,), [(2,)]),
        ("(a = 1 AND b = 'x') OR (b = 'y' AND a = 2)", (1, 2), [(1, "x"), (2, "y")]),
        ("((a = 1 AND b = 'x') OR (b = 'y' AND a = 2)) AND flag = TRUE", (1, 2, 7), [(1, "x", True), (2, "y", True)]),
        ("c = 1", (3,), [(Decimal("1.00"),)]),
        ("day = '1970-01-02'", (5,), [(1,)]),
        ("day IN (TIMESTAMP '1970-01-02', TIMESTAMP '1970-01-02 01:00')", (5,), [(1,)]),
        ("at = '1970-01-01 00:00:01'", (6,), [(1_000_000,)]),
        ("raw IN ('ab', 'abc')", (8,), [(b"ab",)]),
    ],
)
def test_equalities_over_one_tuple_of_columns_are_keys(
    source: Any, columns: tuple[int, ...], tuples: list[tuple[Any, ...]]
) -> None:
    found = keys(source)
    assert found is not None
    assert found[0] == columns
    assert sorted(found[1]) == tuples


@pytest.mark.parametrize(
    "source",
    [
        "a < 1",
        "a <> 1",
        "NOT a = 1",
        "a NOT IN (1)",
        "f = 1",
        "a = 1 AND f = 1",
        "a = 1 OR b = 'x'",
        "a = 1 AND b > 'x'",
        "a IS NULL",
        "a IS NOT NULL",
        "a IS NOT NULL AND flag IS NOT NULL",
        "a = 1 AND b IS NOT NULL",
        "a = 1 AND NULL",
        "TRUE",
        "FALSE",
        "flag",
        "b LIKE 'x'",
        "((a = 1 AND b = 'x') OR (a = 2 AND b = 'y')) AND a = 1",
        {"a": None},
    ],
)
def test_anything_more_than_equalities_is_not(source: Any) -> None:
    assert keys(source) is None


@pytest.mark.slow
def test_too_many_combinations_are_not_multiplied_out() -> None:
    days = ", ".join(f"DATE '1970-01-01' + {i}" for i in range(1100))
    texts = ", ".join(f"'{i}'" for i in range(1000))
    assert keys(f"day IN ({days}) AND b IN ({texts})") is None
