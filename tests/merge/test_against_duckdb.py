"""Random updates and merges leave the rows that DuckDB's own UPDATE and MERGE leave."""

from __future__ import annotations

import os
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dolmen import Database, Delete, Expression, Insert, Update
from dolmen.base.runtime import Runtime
from dolmen.store.memory import MemoryBucket, MemoryStore
from support.oracle import connect_oracle

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
HISTORIES, STEPS = (150, 20) if os.environ.get("DOLMEN_LONG") else (4, 12)

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "n": (pa.int32(), [None, -3, 0, 1, 7, 99_999]),
    "big": (pa.uint64(), [None, 0, 5, 2**64 - 1]),
    "x": (pa.float64(), [None, float("nan"), -0.0, 0.0, 1.5, float("inf")]),
    "f": (pa.float32(), [None, float("nan"), 0.5, -2.0]),
    "d": (pa.decimal128(10, 2), [None, "0.01", "-3.50", "99999999.99"]),
    "s": (pa.string(), [None, "", "a", "ä'\"", "\U0001f642"]),
    "moment": (pa.timestamp("us", tz="UTC"), [None, 0, 1_760_000_000_000_001, -1]),
    "naive": (pa.timestamp("us"), [None, 0, 86_400_000_000]),
    "day": (pa.date32(), [None, 0, 20_000]),
    "b": (pa.bool_(), [None, True, False]),
    "raw": (pa.binary(), [None, b"", b"\x00\xff"]),
}
SCHEMA = pa.schema([("id", pa.int64()), ("g", pa.string()), *((name, kind) for name, (kind, _) in TYPES.items())])
SIDE = "{side}"
VALUES = {
    "n": ["NULL", "1", "{side}.n % 5", "-{side}.n", "CASE WHEN {side}.x > 1 THEN 2 END", "coalesce({side}.n, 3)"],
    "big": ["{side}.big", "7", "greatest({side}.big, 1::UBIGINT)"],
    "x": ["{side}.x * 2", "'nan'::DOUBLE", "-{side}.x", "{side}.n / 3", "{side}.f"],
    "f": ["{side}.f / 2::FLOAT", "NULL"],
    "d": ["round({side}.d / 3, 2)::DECIMAL(10, 2)", "{side}.n", "0"],
    "s": ["concat({side}.s, {side}.g)", "upper({side}.s)", "{side}.id::VARCHAR", "'it''s'"],
    "moment": ["{side}.moment + INTERVAL 1 DAY", "{side}.naive::TIMESTAMPTZ", "NULL"],
    "naive": ["{side}.day", "{side}.naive - INTERVAL 1 MONTH"],
    "day": ["{side}.naive::DATE", "DATE '2024-02-29'"],
    "b": ["{side}.n > 0", "NOT {side}.b", "{side}.s IS NULL"],
    "raw": ["{side}.raw || 'a'::BLOB", "'\\xAA'::BLOB", "NULL"],
    "g": ["'z'", "{side}.g"],
}
CONDITIONS = [
    "{side}.n > 0",
    "{side}.x > 1",
    "{side}.b",
    "{side}.s = 'a' OR {side}.d < 0",
    "{side}.moment IS NULL",
    "NOT {side}.b",
]


class History:
    """A table, and the same rows in DuckDB."""

    def __init__(self, seed: int) -> None:
        self.rng, self.told = random.Random(seed), list[str]()
        self.db = Database(MemoryStore(MemoryBucket(), Runtime()), Runtime())
        key = self.rng.choice([None, "id"])
        self.table = self.db.create_table("t", SCHEMA, primary_key=key, sort_key=self.rng.choice([None, "n", "s"]))
        self.columns = list(SCHEMA.names)
        self.oracle = connect_oracle()
        self.oracle.execute("SET threads = 1")
        self.ids = 0

    def rows(self, ids: list[int | None]) -> pa.Table:
        rng = self.rng
        columns: dict[str, pa.Array] = {"id": pa.array(ids, pa.int64())}
        columns["g"] = pa.array([rng.choice(["a", "b", "c", None]) for _ in ids], pa.string())
        for name, (kind, pool) in TYPES.items():
            drawn = [rng.choice(pool) for _ in ids]
            if pa.types.is_decimal(kind):
                columns[name] = pa.array(drawn, pa.string()).cast(kind)
            elif pa.types.is_temporal(kind):
                whole = pa.int32() if kind.bit_width == 32 else pa.int64()
                columns[name] = pa.array(drawn, whole).view(kind)
            else:
                columns[name] = pa.array(drawn, kind)
        return pa.table(columns)

    def append(self) -> None:
        count = self.rng.randint(1, 12)
        rows = self.rows(list(range(self.ids, self.ids + count)))
        self.ids += count
        self.told.append(f"append {rows.to_pylist()}")
        self.table.append(rows)
        self._insert(rows)

    def _insert(self, rows: pa.Table) -> None:
        self.oracle.register("new", rows)
        if not self.oracle.sql("SELECT 1 FROM information_schema.tables WHERE table_name = 'target'").fetchall():
            self.oracle.execute("CREATE TABLE target AS SELECT * FROM new")
        else:
            self.oracle.execute("INSERT INTO target BY NAME SELECT * FROM new")

    def value(self, column: str, sides: list[str]) -> str:
        return self.rng.choice(VALUES[column]).replace(SIDE, self.rng.choice(sides))

    def condition(self, sides: list[str]) -> str:
        return self.rng.choice(CONDITIONS).replace(SIDE, self.rng.choice(sides))

    def some(self, sides: list[str]) -> dict[str, str]:
        names = self.rng.sample([name for name in VALUES if name in self.columns], self.rng.randint(1, 4))
        return {name: self.value(name, sides) for name in names}

    def update(self) -> None:
        where = self.rng.choice([None, "n > 0", "g = 'a'", "id % 3 = 1", "x > 1 OR s IS NULL", "d < 0", "NOT b"])
        values = self.some(["target"])
        self.told.append(f"update {values} where {where}")
        self.table.update({name: Expression(text) for name, text in values.items()}, where)
        listed = ", ".join(f"{name} = {text}" for name, text in values.items())
        self.oracle.execute(f"UPDATE target SET {listed} WHERE {where or 'TRUE'}")

    def merge(self) -> None:
        rng = self.rng
        on = rng.choice(["id", "id", "g", "id" if self.table.primary_key else ["id", "g"]])  # no key is inserted twice
        if on == "g":
            source = self.rows(list(range(self.ids, self.ids + 2)))
            source = source.set_column(1, "g", pa.array(rng.sample(["a", "b", "d", None], 2), pa.string()))
        else:
            known = rng.sample(range(self.ids + 5), min(self.ids + 5, rng.randint(1, 20)))
            source = self.rows([*known, *([None] if self.table.primary_key == () and rng.random() < 0.3 else [])])
        self.ids += 6
        both, there = ["target", "source"], ["target"]
        matched: list[Update | Delete] = []
        for _ in range(rng.randint(0, 2)):
            when = self.condition(both)
            matched.append(rng.choice([Delete(when), Update(self.some(both), when)]))
        if rng.random() < 0.5:
            matched.append(rng.choice([Update(self.some(both)), Delete()]))
        inserts = [Insert(when=self.condition(["source"]))] if rng.random() < 0.4 else [Insert()]
        if rng.random() < 0.4:
            inserts = [Insert({"id": "source.id", **self.some(["source"])}, self.condition(["source"])), *inserts]
        left: list[Update | Delete] = []
        if rng.random() < 0.3:
            left = [rng.choice([Delete(self.condition(there)), Update(self.some(there), self.condition(there))])]
        self.told.append(f"merge {on} {source.to_pylist()} {matched} {inserts} {left}")
        self.table.merge(source, on, matched, inserts, left)
        self._merge_there(source, [on] if isinstance(on, str) else on, matched, inserts, left)

    def _merge_there(self, source: pa.Table, on: list[str], matched: Any, inserts: Any, left: Any) -> None:
        self.oracle.register("given", source)
        self.oracle.execute("CREATE OR REPLACE TEMP TABLE source AS SELECT * FROM given")
        columns = [name for name in self.columns if name in source.column_names]
        clauses = []
        for kind, each in (("MATCHED", matched), ("NOT MATCHED BY TARGET", inserts), ("NOT MATCHED BY SOURCE", left)):
            for clause in each:
                condition = f" AND ({clause.when})" if clause.when else ""
                if isinstance(clause, Delete):
                    act = "DELETE"
                elif isinstance(clause, Insert):
                    values = clause.values or {name: f"source.{name}" for name in columns}
                    act = f"INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"
                else:
                    act = "UPDATE SET " + ", ".join(f"{name} = {text}" for name, text in clause.values.items())
                clauses.append(f"WHEN {kind}{condition} THEN {act}")
        equal = " AND ".join(f"target.{name} = source.{name}" for name in on)
        self.oracle.execute(f"MERGE INTO target USING source ON ({equal}) {' '.join(clauses)}")

    def upkeep(self) -> None:
        self.told.append("upkeep")
        self.rng.choice([self.db.resolve, self.db.compact])()
        if self.rng.random() < 0.3:
            self.table.delete("id % 7 = 3")
            self.oracle.execute("DELETE FROM target WHERE id % 7 = 3")
        if self.rng.random() < 0.3 and "extra" not in self.columns:
            self.table.add_column("extra", pa.int64(), 5)
            self.oracle.execute("ALTER TABLE target ADD COLUMN extra BIGINT DEFAULT 5")
            self.columns.append("extra")

    def check(self) -> None:
        there = self.oracle.sql(f"SELECT {', '.join(self.columns)} FROM target").to_arrow_table()
        found = self.table.scan(self.columns).to_arrow()
        assert _shown(found) == _shown(there.cast(found.schema)), "\n".join(self.told)


def _shown(rows: pa.Table) -> list[str]:
    for place, field in enumerate(rows.schema):
        if pa.types.is_floating(field.type):  # DuckDB's storage takes -0.0 for 0.0 where all values are equal
            rows = rows.set_column(place, field.name, pc.add(rows.column(place), pa.scalar(0.0, field.type)))
        if pa.types.is_temporal(field.type):
            whole = pa.int32() if field.type.bit_width == 32 else pa.int64()
            rows = rows.set_column(place, field.name, rows.column(place).combine_chunks().view(whole))
    return sorted(map(repr, rows.to_pylist()))


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(4))
def test_random_histories_leave_the_rows_that_duckdb_does(shard: int) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}, shard {shard}")
    for number in range(shard, HISTORIES, 4):
        history = History(SEED + number)
        history.append()
        for _ in range(STEPS):
            steps = [history.append, history.update, history.update, history.merge, history.merge, history.upkeep]
            history.rng.choice(steps)()
            history.check()
        assert history.db.verify(deep=True).ok
