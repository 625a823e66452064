"""Random histories, each step once in SQL and once by methods: the two databases are equal after every step."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Delete, Expression, Insert, Update
from dolmen.errors import Error

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
HISTORIES, STEPS = (5_000, 12) if os.environ.get("DOLMEN_LONG") else (6, 12)
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("s", pa.string()), ("x", pa.float64()), ("n", pa.int32())]
)


@dataclass
class Step:
    """The text of a statement with its parameters, and the same by methods."""

    sql: str
    call: Callable[[Any], Any]
    parameters: list[Any] | None = None


def literal(value: Any) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


class History:
    def __init__(self, rng: random.Random, name: str) -> None:
        self.rng, self.seen = rng, Counter[str]()
        self.sql, self.methods = (dolmen.open(f"memory://{name}-{each}") for each in ("sql", "methods"))
        for db in (self.sql, self.methods):
            db.create_table("t", SCHEMA, primary_key="id")
            db.create_table("u", SCHEMA)

    def row(self) -> dict[str, Any]:
        rng = self.rng
        texts = ["a", "it's", "; DROP", "é\n", "", None]
        x = rng.choice([0.5, -3.0, 1e300, None])
        return {"id": rng.randrange(12), "s": rng.choice(texts), "x": x, "n": rng.choice([0, -7, None])}

    def rows(self) -> list[dict[str, Any]]:
        found = {row["id"]: row for row in (self.row() for _ in range(self.rng.randrange(1, 4)))}
        return list(found.values())

    def values(self, rows: list[dict[str, Any]]) -> tuple[str, list[Any] | None]:
        if self.rng.random() < 0.4:
            return ", ".join("(?, ?, ?, ?)" for _ in rows), [value for row in rows for value in row.values()]
        return ", ".join(f"({', '.join(map(literal, row.values()))})" for row in rows), None

    def where(self) -> str:
        numbers = ["id < 5", "x IS NULL OR n = -7", "id IN (1, 2, 3)", "NOT (n = 0)", "x > 1e5"]
        return self.rng.choice([*numbers, "s = 'it''s'", "s LIKE 'a%'", "NULL", "TRUE"])

    def step(self, table: str) -> Step:
        rows, where = self.rows(), self.where()
        values, parameters = self.values(rows)
        write = "insert" if table == "t" else "append"
        listed = f"(id, s, x, n) VALUES {values}"
        new = {"x": Expression("id * 0.5e0"), "s": Expression("upper(s)"), "n": Expression("NULL")}
        clauses = [Delete("source.x IS NULL"), Update({"s": "source.s", "n": "target.n"})]
        insert, source = Insert({"id": "source.id", "x": "source.x"}), pa.Table.from_pylist(rows, SCHEMA)
        both = {"s": "source.s", "n": "target.n + 1"}

        def on(name: str, verb: str, *arguments: Any) -> Callable[[Any], Any]:
            return lambda db: getattr(db.table(name), verb)(*arguments)

        steps = {
            "insert": Step(f"INSERT INTO {table} {listed}", on(table, write, rows), parameters),
            "names": Step(
                f"INSERT INTO {table} (n, id) VALUES (1, {rows[0]['id']})",
                on(table, write, [{"n": 1, "id": rows[0]["id"]}]),
            ),
            "delete": Step(f"DELETE FROM {table} AS q WHERE {where}", on(table, "delete", where)),
            "truncate": Step(f"TRUNCATE {table}", on(table, "delete", "TRUE")),
            "update": Step(
                f"UPDATE {table} SET x = id * 0.5e0, s = upper(s), n = NULL WHERE {where}",
                on(table, "update", new, where),
            ),
            "bad update": Step(
                f"UPDATE {table} SET n = x WHERE {where}", on(table, "update", {"n": Expression("x")}, where)
            ),
            "replace": Step(f"INSERT OR REPLACE INTO t {listed}", on("t", "upsert", rows), parameters),
            "ignore": Step(
                f"INSERT INTO t {listed} ON CONFLICT DO NOTHING",
                on("t", "merge", source, "id", None, "insert"),
                parameters,
            ),
            "set": Step(
                f"INSERT INTO t {listed} ON CONFLICT (id) DO UPDATE SET s = excluded.s, n = t.n + 1",
                on("t", "merge", source, "id", both, "insert"),
                parameters,
            ),
            "merge": Step(
                "MERGE INTO t USING (SELECT id, s, x, n FROM u) AS o ON t.id = o.id WHEN MATCHED AND o.x IS NULL THEN "
                "DELETE WHEN MATCHED THEN UPDATE SET s = o.s, n = t.n "
                "WHEN NOT MATCHED THEN INSERT (id, x) VALUES (o.id, o.x)",
                lambda db: db.table("t").merge(db.table("u").scan(SCHEMA.names).to_arrow(), "id", clauses, insert),
            ),
            "two": Step(
                f"BEGIN; DELETE FROM u WHERE {where}; INSERT INTO u {listed}; COMMIT",
                lambda db: self.together(db, where, rows),
                parameters,
            ),
            "alter": self.alter(table),
            "make": self.make(),
        }
        kind = self.rng.choice(list(steps))
        self.seen[kind] += 1
        return steps[kind]

    @staticmethod
    def together(db: dolmen.Database, where: str, rows: list[dict[str, Any]]) -> dolmen.Commit | None:
        with db.transaction() as tx:
            tx.table("u").delete(where)
            tx.table("u").append(rows)
        return tx.result

    def alter(self, table: str) -> Step:
        name, alter = self.rng.choice(["c", "d"]), f"ALTER TABLE {table}"
        steps: list[tuple[str, Callable[[Any], Any]]] = [
            (f"{alter} ADD {name} INTEGER DEFAULT 5", lambda t: t.add_column(name, pa.int32(), 5)),
            (f"{alter} DROP COLUMN {name}", lambda t: t.drop_column(name)),
            (f"{alter} ALTER {name} TYPE BIGINT", lambda t: t.widen_column(name, pa.int64())),
            (f"{alter} ALTER x SET DEFAULT 0.25", lambda t: t.set_default("x", 0.25)),
            (f"{alter} SET SORTED BY (id)", lambda t: t.set_sort_key("id")),
            (f"COMMENT ON COLUMN {table}.x IS 'é'", lambda t: t.comment("x", "é")),
        ]
        text, call = self.rng.choice(steps)
        return Step(text, lambda db: call(db.table(table)))

    def make(self) -> Step:
        key = self.rng.choice([None, "a"])
        schema = pa.schema([pa.field("a", pa.int64(), nullable=not key), ("b", pa.list_(pa.string()))])
        create = f"CREATE TABLE v (a BIGINT {'PRIMARY KEY' if key else ''}, b VARCHAR[])"
        return self.rng.choice(
            [
                Step(create, lambda db: db.create_table("v", schema, key)),
                Step("DROP TABLE v", lambda db: db.drop_table("v")),
                Step("ALTER TABLE v RENAME TO w", lambda db: db.rename_table("v", "w")),
                Step("DROP TABLE IF EXISTS w", lambda db: db.drop_table("w") if "w" in db else None),
            ]
        )


def run(step: Callable[[], Any]) -> type[Error] | None:
    try:
        step()
    except Error as error:
        return type(error)
    return None


def entry_of(table: Any) -> dict[str, Any]:
    shown = table.describe()
    deletes = [each["rows"] for each in shown.pop("unresolved_deletes")]
    shown.pop("bytes")
    files = table.files().select(["rows", "deleted_rows"]).to_pylist()
    return {**shown, "deletes": deletes, "files": files, "rows": sorted(map(repr, table.to_arrow().to_pylist()))}


def state(db: dolmen.Database) -> dict[str, Any]:
    history = [(each.version, each.operation, each.counts, each.did, each.message) for each in db.history()]
    return {"history": history, **{name: entry_of(db.table(name)) for name in db.tables()}}


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(2))
def test_sql_does_what_the_methods_do(shard: int) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}, shard {shard}")
    seen, done = Counter[str](), Counter[str]()
    for number in range(HISTORIES // 2):
        seed = (1 if shard == 0 else SEED) + number
        _compare(History(random.Random(seed), f"same-{seed}-{shard}"), seed, done, seen)
    print(dict(seen), dict(done))
    assert done["done"] > done["refused"] > 0


def _compare(history: History, seed: int, done: Counter[str], seen: Counter[str]) -> None:
    for index in range(STEPS):
        step = history.step(history.rng.choice("tu"))
        by_sql = run(lambda: history.sql.sql(step.sql, step.parameters))  # noqa: B023 - called at once
        by_method = run(lambda: step.call(history.methods))  # noqa: B023 - called at once
        assert by_sql == by_method, (seed, index, step.sql, step.parameters)
        assert state(history.sql) == state(history.methods), (seed, index, step.sql, step.parameters)
        done["refused" if by_sql else "done"] += 1
    seen += history.seen
