"""Random rows of the types that Spark and dolmen share, and random conditions of Spark's SQL over them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("i", pa.int32()),
        ("b", pa.int8()),
        ("d", pa.decimal128(10, 2)),
        ("f", pa.float32()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("t", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("loc", pa.timestamp("us")),
    ]
)
NUMBERS = [
    "0",
    "1",
    "-1",
    "2.5",
    "127",
    "128",
    "3e0",
    "0.1",
    "'1'",
    "' 1 '",
    "'x'",
    "NULL",
    "1.50BD",
    "9007199254740993",
]
TEXTS = ["'a'", "'A'", "'a%'", "'1'", "''", "'ä'", "r'\\'", "'a\\\\_'", "1", "NULL", "concat('a', 'b')"]
IN_A_GAP = "TIMESTAMP '2026-03-08 02:30:00'"
"""It names 03:30. Beside a wall-clock time of 02:30 Spark finds it equal in rows at hand, and not in rows of files."""
TIMES = [
    "'2026-11-01 01:30:00'", IN_A_GAP, "DATE '2026-03-08'", "'2026-03-08T06:30:00Z'", "NULL",
    "TIMESTAMP_NTZ '2026-03-08 02:30:00'", "CAST('2026-11-01' AS DATE)", "to_timestamp('2026-11-01 06:00:00')",
]  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "i": [None, 0, 1, -1, 127, 2**31 - 1],
    "b": [None, 0, 1, -1, 127],
    "d": [None, Decimal("0.10"), Decimal("1.50"), Decimal("-1.00"), Decimal("2.50")],
    "f": [None, 0.0, -0.0, 0.1, float("nan"), 2.5],
    "x": [None, 0.0, -0.0, 0.1, float("nan"), 1.0, float("inf")],
    "s": [None, "", "a", "A", "ab", "a_", "a\\", "1", " 1 ", "1.5", "ä", "x"],
    "t": [None, True, False],
    "day": [None, date(2026, 3, 8), date(2026, 11, 1)],
    "at": [None, datetime(2026, 3, 8, 6, 30, tzinfo=UTC), datetime(2026, 11, 1, 5, 30, tzinfo=UTC),
           datetime(2026, 11, 1, 6, 30, tzinfo=UTC)],
    "loc": [None, datetime(2026, 3, 8, 2, 30), datetime(2026, 11, 1, 1, 30)],
}  # fmt: skip


def random_rows(rng: random.Random, first: int, count: int) -> pa.Table:
    made = [{"id": id_, **{name: rng.choice(of) for name, of in VALUES.items()}} for id_ in range(first, first + count)]
    return pa.Table.from_pylist(made, SCHEMA)


class Conditions:
    """Random conditions of SQL.

    Args:
        gaps: whether a condition may compare a wall-clock time with ``IN_A_GAP``.
        columns: the names of columns, each with the name in ``SCHEMA`` of a column with its type.
    """

    def __init__(self, rng: random.Random, gaps: bool = True, columns: Mapping[str, str] | None = None) -> None:
        self.rng, self.gaps = rng, gaps
        self.columns = {name: name for name in SCHEMA.names} if columns is None else columns

    def literal(self, kind: str) -> str:
        if kind == "loc" and not self.gaps:
            return self.rng.choice([time for time in TIMES if time != IN_A_GAP])
        return self.rng.choice(TEXTS if kind == "s" else TIMES if kind in ("day", "at", "loc") else NUMBERS)

    def simple(self) -> str:
        rng = self.rng
        name = rng.choice(list(self.columns))
        of, number = self.columns[name], rng.randrange(10)
        if of == "t":
            text = rng.choice(["{}", "{} = TRUE", "{} <=> NULL", "{} IN (TRUE, NULL)", "{} = 'true'", "{} IS NOT TRUE"])
            return text.format(name)
        if number == 0:
            return f"{name} IS {rng.choice(['', 'NOT '])}NULL"
        if number == 1:
            listed = ", ".join(self.literal(of) for _ in range(rng.randint(1, 3)))
            return f"{name} {rng.choice(['', 'NOT '])}IN ({listed})"
        if number == 2:
            return f"{name} BETWEEN {self.literal(of)} AND {self.literal(of)}"
        if number == 3 and of == "s":
            text = rng.choice(["LIKE 'a%'", "LIKE 'a\\\\_'", "LIKE '_'", "LIKE 'a/_' ESCAPE '/'", "ILIKE 'A%'"])
            return f"{name} {text}"
        if number == 4 and of in ("id", "i", "b", "d", "x"):
            return f"{name} {rng.choice(['/', 'div', '%', '+'])} 2 {rng.choice(['=', '>'])} 1"
        if number == 5:
            other = rng.choice([each for each in self.columns if self.columns[each] != "t"])
            return f"{name} {rng.choice(['=', '<', '<=>'])} {other}"
        sides = [name, self.literal(of)]
        rng.shuffle(sides)
        return f"{sides[0]} {rng.choice(['=', '<', '<=', '>', '>=', '<>', '<=>', '!='])} {sides[1]}"

    def any(self, depth: int = 2) -> str:
        if depth == 0 or self.rng.random() < 0.4:
            return self.simple()
        if self.rng.random() < 0.2:
            return f"NOT ({self.any(depth - 1)})"
        return f"({self.any(depth - 1)}) {self.rng.choice(['AND', 'OR'])} ({self.any(depth - 1)})"
