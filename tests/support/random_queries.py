"""Random queries: selects in selects, over small tables whose columns have the same names and hostile types.

What a query's columns are is asked of the database that will answer it; so anything may stand in anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from support.random_tables import FLAT, random_column

NAMES = ("k", "v", "w", "Order", "x y")
_KINDS = (
    *("int64", "string", "float32", "float64", "date") * 4,
    *("naive", "zoned", "decimal_18_4", "int8", "uint64", "bool"),
)
_LITERALS = {
    "number": ["0", "1", "2", "-1", "1.5", "'1'", "'0'", "-4", "300", "1e0", "2.0::DOUBLE", "0.1::FLOAT", "NULL",
               "9007199254740993"],
    "text": ["''", "'a'", "'1'", "'5'", "'5'", "'10'", "'10'", "'2'", "'1970-01-02'", "'nan'", "'ä'", "NULL"],
    "float": ["'nan'", "'nan'::FLOAT", "0", "1.5", "'inf'::DOUBLE", "-0.25", "0.1", "0.1", "1e300", "NULL"],
    "moment": ["'1970-01-02'", "DATE '1970-01-02'", "TIMESTAMP '2023-12-09 00:00:00'", "'1969-12-31 23:59:59.999999'",
               "DATE '1200-01-01'", "NULL"],
    "boolean": ["TRUE", "FALSE", "NULL"],
    "other": ["'a'", "NULL"],
}  # fmt: skip
_CASTS = ("VARCHAR", "BIGINT", "DOUBLE", "DATE", "TIMESTAMP", "DECIMAL(12,2)", "BOOLEAN", "BLOB", "SMALLINT", "FLOAT")


@dataclass(frozen=True)
class Column:
    """A column of a relation: its name, and its type in DuckDB."""

    name: str
    type: str

    @property
    def kind(self) -> str:
        """The family of types that it compares with."""
        if self.type in ("DOUBLE", "FLOAT"):
            return "float"
        if "INT" in self.type or self.type.startswith("DECIMAL"):
            return "number"
        if self.type.startswith(("TIMESTAMP", "DATE")):
            return "moment"
        return {"VARCHAR": "text", "BOOLEAN": "boolean"}.get(self.type, "other")


def hostile_table(rng: random.Random, rows: int) -> pa.Table:
    """A table with columns NAMES of random types: a column may be a number in one table and a text in another."""
    columns = {}
    for name in NAMES:
        kind = rng.choice(_KINDS) if rng.random() < 0.8 else rng.choice(FLAT)
        column = random_column(rng, kind, rows)
        if pa.types.is_floating(column.type):  # which of 0.0 and -0.0 a group shows is not said
            column = pc.add(column, pa.scalar(0.0, column.type))
        if column.type in (pa.string(), pa.int64(), pa.int8()) and rng.random() < 0.6:  # numbers, also as texts
            numbers = [
                rng.choice([0, 1, 2, 5, 9, 10, 50]) if valid else None for valid in column.is_valid().to_pylist()
            ]
            column = pa.array(numbers, pa.int8()).cast(column.type)
        columns[name] = column
    return pa.table(columns)


class Queries:
    """Makes queries over tables.

    Args:
        oracle: a DuckDB with the tables, which binds the queries.
        tables: their names.
    """

    def __init__(self, rng: random.Random, oracle: duckdb.DuckDBPyConnection, tables: Iterable[str]) -> None:
        self._rng, self._oracle, self._tables = rng, oracle, list(tables)
        self._shapes: list[Callable[[int], str]] = [
            self._filter, self._filter, self._project, self._set, self._set, self._set, self._set,
            self._join, self._join, self._group, self._distinct, self._window, self._limit,
            self._common, self._subquery, self._values, self._lateral,
        ]  # fmt: skip

    def query(self, depth: int) -> str:
        """Makes a SELECT of one to five columns. Raises duckdb.Error if it cannot be bound."""
        if depth == 0:
            return self._base()
        return self._rng.choice(self._shapes)(depth - 1)

    def _columns(self, query: str) -> list[Column]:
        relation = self._oracle.sql(query)
        return [Column(name, str(type_)) for name, type_ in zip(relation.columns, relation.types, strict=True)]

    def _inner(self, depth: int) -> tuple[str, list[Column]]:
        query = self.query(self._rng.randint(0, depth))
        return query, self._columns(query)

    def _name(self, column: Column, prefix: str = "") -> str:
        name = column.name if self._rng.random() < 0.95 else column.name.swapcase()
        return prefix + '"' + name.replace('"', '""') + '"'

    def _base(self) -> str:
        table = self._rng.choice(self._tables)
        name = self._rng.choice([table, f'"{table}"', table.upper()])
        where = f" WHERE {self._condition(self._columns(f'FROM {table}'))}" if self._rng.random() < 0.3 else ""
        return f"SELECT * FROM {name}{where}"

    def _filter(self, depth: int) -> str:
        inner, columns = self._inner(depth)
        return f"SELECT * FROM ({inner}) q WHERE {self._condition(columns)}"

    def _project(self, depth: int) -> str:
        inner, columns = self._inner(depth)
        names = self._rng.sample(NAMES, min(len(NAMES), self._rng.randint(1, 4)))
        outputs = [f'{self._expression(columns)} AS "{name}"' for name in names]
        where = f" WHERE {self._condition(columns)}" if self._rng.random() < 0.4 else ""
        return f"SELECT {', '.join(outputs)} FROM ({inner}) q{where}"

    def _set(self, depth: int) -> str:
        word = self._rng.choice(
            ["UNION", "UNION ALL", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL", "INTERSECT ALL"]
        )
        if self._rng.random() < 0.15:
            first, second = self._inner(depth)[0], self._inner(depth)[0]
            return f"({first}) {self._rng.choice(['UNION', 'UNION ALL'])} BY NAME ({second})"
        sides = []
        width = self._rng.choice([1, 1, 2])
        for _ in range(2):
            inner, columns = self._inner(depth)
            if self._rng.random() < 0.6:
                inner = self._rng.choice(self._tables)
                columns = self._columns(f"FROM {inner}")
            chosen = [self._rng.choice(columns) for _ in range(width)]
            outputs = [f'{self._name(column)} AS "{name}"' for column, name in zip(chosen, NAMES, strict=False)]
            sides.append(f"SELECT {', '.join(outputs)} FROM {inner if inner in self._tables else f'({inner}) s'}")
        both = f"({sides[0]}) {word} ({sides[1]})"
        return f"SELECT * FROM ({both}) u WHERE {self._condition(self._columns(both))}"

    def _join(self, depth: int) -> str:
        (first, left), (second, right) = self._inner(depth), self._inner(depth)
        kind = self._rng.choice(
            ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN", ",", "CROSS JOIN"]
        )
        shared = sorted({c.name for c in left} & {c.name for c in right})
        if shared and kind.endswith("JOIN") and kind != "CROSS JOIN" and self._rng.random() < 0.4:
            using = self._rng.choice(shared)
            kept = "l.*" if kind in ("SEMI JOIN", "ANTI JOIN") else f'"{using}"'
            joined = f'SELECT {kept} FROM ({first}) l {kind} ({second}) r USING ("{using}")'
            return f"SELECT * FROM ({joined}) j WHERE {self._condition(self._columns(joined))}"
        a, b = self._rng.choice(left), self._rng.choice(right)
        on = [f"{self._name(a, 'l.')} = {self._name(b, 'r.')}"]
        if self._rng.random() < 0.5:
            on.append(self._condition(left, "l.") if self._rng.random() < 0.5 else self._condition(right, "r."))
        alone = kind in ("SEMI JOIN", "ANTI JOIN")
        outputs = f'{self._name(self._rng.choice(left), "l.")} AS "k"'
        if not alone:
            outputs += f', {self._name(self._rng.choice(right), "r.")} AS "v"'
        where = [self._condition(left, "l.")] + ([] if alone else [self._condition(right, "r.")])
        wanted = " AND ".join(self._rng.sample(where, self._rng.randint(0, len(where))))
        condition = f" ON {' AND '.join(on)}" if kind not in (",", "CROSS JOIN") else ""
        query = f"SELECT {outputs} FROM ({first}) l {kind} ({second}) r{condition}"
        return f"{query} WHERE {wanted}" if wanted else query

    def _group(self, depth: int) -> str:
        inner, columns = self._inner(depth)
        key, value = self._rng.choice(columns), self._rng.choice(columns)
        by = self._name(key)
        groups = self._rng.choice([by, by, f"ROLLUP ({by})", f"GROUPING SETS (({by}), ())"])
        aggregate = self._rng.choice(["count(*)", f"min({self._name(value)})", f"max({self._name(value)})"])
        grouped = f'SELECT {by} AS "k", {aggregate} AS "v" FROM ({inner}) g GROUP BY {groups}'
        if self._rng.random() < 0.3:
            grouped += f" HAVING count(*) {self._rng.choice(['>', '='])} 1"
        return f"SELECT * FROM ({grouped}) h WHERE {self._condition(self._columns(grouped))}"

    def _distinct(self, depth: int) -> str:
        inner, columns = self._inner(depth)
        if self._rng.random() < 0.4:
            key = self._name(self._rng.choice(columns))
            order = ", ".join(str(place) for place in range(1, len(columns) + 1))
            chosen = f"SELECT DISTINCT ON ({key}) * FROM ({inner}) d ORDER BY {key}, {order}"
        else:
            names = [
                self._name(self._rng.choice(columns)) + f' AS "{name}"' for name in NAMES[: self._rng.randint(1, 2)]
            ]
            chosen = f"SELECT DISTINCT {', '.join(names)} FROM ({inner}) d"
        return f"SELECT * FROM ({chosen}) e WHERE {self._condition(self._columns(chosen))}"

    def _window(self, depth: int) -> str:
        inner, columns = self._inner(depth)
        part, order = self._name(self._rng.choice(columns)), self._name(self._rng.choice(columns))
        call = self._rng.choice(
            [f"count(*) OVER (PARTITION BY {part})", f"rank() OVER (ORDER BY {order})",
             f"dense_rank() OVER (PARTITION BY {part} ORDER BY {order})", f"max({order}) OVER (PARTITION BY {part})"]
        )  # fmt: skip
        kept = self._rng.choice(columns)
        if self._rng.random() < 0.3:
            return (
                f"SELECT * FROM ({inner}) w WHERE {self._condition(columns)} QUALIFY rank() OVER (ORDER BY {order}) < 4"
            )
        numbered = f'SELECT {self._name(kept)} AS "k", {call} AS "v" FROM ({inner}) w'
        return f"SELECT * FROM ({numbered}) n WHERE {self._condition(self._columns(numbered))}"

    def _limit(self, depth: int) -> str:
        inner, columns = self._inner(depth)
        offset = f" OFFSET {self._rng.randint(0, 2)}" if self._rng.random() < 0.3 else ""
        return (
            f"SELECT * FROM (SELECT * FROM ({inner}) m ORDER BY ALL LIMIT {self._rng.randint(0, 8)}{offset}) o "
            f"WHERE {self._condition(columns)}"
        )

    def _common(self, depth: int) -> str:
        inner, columns = self._inner(depth)
        name = self._rng.choice(["q", "c", self._tables[0]])
        if any(f" {name} " in f" {inner} " or f'"{name}"' in inner or name.upper() in inner for name in [name]):
            name = "q"
        once = self._rng.choice(["", "", "MATERIALIZED ", "NOT MATERIALIZED "])
        key = self._name(self._rng.choice(columns))
        if self._rng.random() < 0.3:
            return f"WITH {name} AS {once}({inner}) SELECT * FROM {name} WHERE {self._condition(columns)}"
        if self._rng.random() < 0.2:
            steps = "WITH RECURSIVE r AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3)"
            return f"{steps} SELECT q.* FROM ({inner}) q, r WHERE r.n < 2 AND {self._condition(columns, 'q.')}"
        return (
            f'WITH {name} AS {once}({inner}) SELECT x.{key} AS "k", y.{key} AS "v" FROM {name} x '
            f"{self._rng.choice(['JOIN', 'LEFT JOIN'])} {name} y ON x.{key} = y.{key} "
            f"WHERE {self._condition(columns, 'x.')} AND {self._condition(columns, 'y.')}"
        )

    def _subquery(self, depth: int) -> str:
        (inner, columns), (other, others) = self._inner(depth), self._inner(depth)
        mine, theirs = self._name(self._rng.choice(columns), "a1."), self._name(self._rng.choice(others), "b1.")
        negated, more = self._rng.choice(["", "NOT "]), self._condition(others, "b1.")
        test = self._rng.choice(
            [
                f"{negated}EXISTS (SELECT 1 FROM ({other}) b1 WHERE {theirs} = {mine} AND {more})",
                f"{mine} {negated}IN (SELECT {theirs} FROM ({other}) b1 WHERE {more})",
                f"{mine} = (SELECT max({theirs}) FROM ({other}) b1)",
                f"(SELECT count(*) FROM ({other}) b1 WHERE {theirs} = {mine}) = 0",
            ]
        )
        return f"SELECT * FROM ({inner}) a1 WHERE {test} AND {self._condition(columns, 'a1.')}"

    def _values(self, depth: int) -> str:
        inner, columns = self._inner(depth)
        column = self._rng.choice(columns)
        rows = ", ".join(f"({self._literal(column)})" for _ in range(2))
        both = f'SELECT {self._name(column)} AS "k" FROM ({inner}) t1 UNION ALL SELECT * FROM (VALUES {rows}) t2("k")'
        return f"SELECT * FROM ({both}) t3 WHERE {self._condition(self._columns(both))}"

    def _lateral(self, depth: int) -> str:
        (inner, columns), (other, others) = self._inner(depth), self._inner(depth)
        mine, theirs = self._name(self._rng.choice(columns), "a2."), self._name(self._rng.choice(others), "b2.")
        lateral = f"LATERAL (SELECT count(*) AS n FROM ({other}) b2 WHERE {theirs} = {mine}) z"
        return f'SELECT {mine} AS "k", z.n AS "v" FROM ({inner}) a2, {lateral} WHERE {self._condition(columns, "a2.")}'

    def _literal(self, column: Column) -> str:
        return self._rng.choice(_LITERALS[column.kind if self._rng.random() < 0.9 else "text"])

    def _expression(self, columns: list[Column]) -> str:
        column, other = self._rng.choice(columns), self._rng.choice(columns)
        name = self._name(column)
        forms = [
            name, name, name,
            f"TRY_CAST({name} AS {self._rng.choice(_CASTS)})",
            f"CAST({name} AS VARCHAR)",
            f"CASE WHEN {self._condition(columns)} THEN {name} END",
            f"coalesce({name}, {self._literal(column)})",
            f"nullif({name}, {self._literal(column)})",
            f"({name} = {self._literal(column)})",
            f"({name} IS NULL)",
        ]  # fmt: skip
        if column.type == other.type:
            forms.append(f"greatest({name}, {self._name(other)})")
        return self._rng.choice(forms)

    def _condition(self, columns: list[Column], prefix: str = "", depth: int = 1) -> str:
        draw = self._rng.random()
        if depth and draw < 0.3:
            parts = [self._condition(columns, prefix, depth - 1) for _ in range(2)]
            return f"({self._rng.choice([' AND ', ' OR ']).join(parts)})"
        if depth and draw < 0.4:
            return f"(NOT ({self._condition(columns, prefix, depth - 1)}))"
        column = self._rng.choice(columns)
        name, operator = self._name(column, prefix), self._rng.choice(["=", "<>", "<", "<=", ">", ">="])
        literals = [self._literal(column) for _ in range(3)]
        forms = [
            f"{name} {operator} {literals[0]}",
            f"{name} {operator} {literals[0]}",
            f"{literals[0]} {operator} {name}",
            f"{name} IS {self._rng.choice(['', 'NOT '])}NULL",
            f"{name} {self._rng.choice(['', 'NOT '])}IN ({', '.join(literals)})",
            f"{name} BETWEEN {literals[0]} AND {literals[1]}",
            f"{name} IS {self._rng.choice(['', 'NOT '])}DISTINCT FROM {literals[0]}",
            f"TRY_CAST({name} AS {self._rng.choice(_CASTS)}) IS NOT NULL",
            f"CAST({name} AS VARCHAR) {operator} '1'",
            f"coalesce({name}, {literals[0]}) {operator} {literals[1]}",
            f"{name} {operator} {self._name(self._rng.choice(columns), prefix)}",
        ]
        if depth and self._rng.random() < 0.3:  # or else a query of some depth finds nothing
            return f"({self._rng.choice(forms)} OR {self._name(self._rng.choice(columns), prefix)} IS NOT NULL)"
        if column.kind == "text":
            forms += [f"{name} LIKE '%1%'", f"{name} ILIKE 'A%'", f"length({name}) > 1"]
        if column.kind == "boolean":
            forms += [name, f"NOT {name}", f"{name} IS TRUE"]
        return f"({self._rng.choice(forms)})"
