"""Random histories of upserts, deletes and merges on Spark leave what plain Python makes of the same rows.

``Table.merge`` runs the same merges on a twin of the table, and must leave the same.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import dolmen
from dolmen import Delete, Insert, Update
from dolmen.spark.write.from_frame import delete, upsert
from dolmen.spark.write.merge_frame import merge
from dolmen.transactions.merge.clauses import Clauses

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
HISTORIES, STEPS = (12, 25) if os.environ.get("DOLMEN_LONG") else (1, 7)

Row = dict[str, Any]
SCHEMA = pa.schema([("id", pa.int64()), ("g", pa.string()), ("n", pa.int32())])
SPARK = "id long, g string, n int"

UPDATES: dict[str, Any] = {
    "source.n": lambda target, source: source["n"],
    "target.n + 1": lambda target, source: plus(target["n"], 1),
    "coalesce(target.n, 0) - source.n": lambda target, source: plus(target["n"] or 0, source["n"], -1),
}
CONDITIONS: dict[str | None, Any] = {
    None: lambda target, source: True,
    "target.n > 50": lambda target, source: target["n"] is not None and target["n"] > 50,
    "source.n < 30": lambda target, source: source["n"] is not None and source["n"] < 30,
    "target.g = source.g": lambda target, source: target["g"] is not None and target["g"] == source["g"],
}
INSERTS = {None: CONDITIONS[None], "source.n < 30": CONDITIONS["source.n < 30"]}
LEFT = {None: CONDITIONS[None], "target.n > 50": CONDITIONS["target.n > 50"]}


def plus(a: int | None, b: int | None, sign: int = 1) -> int | None:
    return None if a is None or b is None else a + sign * b


class History:
    """A table and the rows that it should have."""

    def __init__(self, spark: SparkSession, seed: int, directory: Path) -> None:
        self.rng, self.spark = random.Random(seed), spark
        self.db = dolmen.open(str(directory))
        self.table = self.db.create_table("t", SCHEMA, primary_key="id")
        self.twin = self.db.create_table("twin", SCHEMA, primary_key="id")
        self.rows: list[Row] = []
        self.told: list[str] = []

    def row(self, id_: int) -> Row:
        rng = self.rng
        return {
            "id": id_,
            "g": rng.choice(["a", "b", "c", None]),
            "n": rng.choice([None, *rng.choices(range(100), k=6)]),
        }

    def some(self, most: int) -> list[Row]:
        return [self.row(id_) for id_ in self.rng.sample(range(60), self.rng.randint(1, most))]

    def frame(self, rows: list[Row]) -> DataFrame:
        return self.spark.createDataFrame([(r["id"], r["g"], r["n"]) for r in rows], SPARK)

    def step(self) -> None:
        self.rng.choice([self.upsert, self.delete, self.merge, self.merge, self.merge, self.upkeep])()
        for table in (self.table, self.twin):
            found = sorted(map(repr, table.scan().to_arrow().to_pylist()))
            assert found == sorted(map(repr, self.rows)), "\n".join([table.name, *self.told])

    def upsert(self) -> None:
        rows = self.some(20)
        self.told.append(f"upsert {rows}")
        upsert(self.table, self.frame(rows))
        self.twin.upsert(rows)
        self.rows = [row for row in self.rows if row["id"] not in {new["id"] for new in rows}] + rows

    def delete(self) -> None:
        on = self.rng.choice(["id", "g"])
        gone = {row[on] for row in self.some(4)} - {None}
        self.told.append(f"delete {on} {gone}")
        delete(
            self.table,
            self.spark.createDataFrame([(key,) for key in gone], f"{on} {'long' if on == 'id' else 'string'}"),
            on,
        )
        self.twin.delete(keys=sorted(gone), on=[on])
        self.rows = [row for row in self.rows if row[on] not in gone]

    def upkeep(self) -> None:
        self.told.append("upkeep, and rows without a key")
        self.rng.choice([self.db.resolve, self.db.compact])()
        rows = [{**self.row(0), "id": None} for _ in range(2)]
        self.table.append(pa.Table.from_pylist(rows, SCHEMA))
        self.twin.append(pa.Table.from_pylist(rows, SCHEMA))
        self.rows += rows

    def merge(self) -> None:
        rng = self.rng
        on = rng.choice(["id", "id", "g"])
        if on == "id":
            source = self.some(20)
        else:
            source = [{**self.row(rng.randrange(100, 160)), "g": g} for g in rng.sample(["a", "b", "d"], 2)]
        all_of_source = [None] if on == "id" else []  # the primary key, by which rows then do not match, is not set
        matched = [self.matched(all_of_source) for _ in range(rng.randint(0, 2))]
        if matched and rng.random() < 0.5:
            matched.append(Update(rng.choice([*all_of_source, {"n": "target.n + 1"}])))
        inserts = [Insert(when=rng.choice(list(INSERTS)))][: rng.randint(0, 1)]
        left = [rng.choice([Delete(when="target.n > 50"), Update({"n": "target.n + 1"}, when="target.n > 50")])]
        left = left if rng.random() < 0.3 else []
        if not (matched or inserts or left):
            return
        while any(clause.when is None for clause in matched[:-1]):
            matched.pop()
        self.told.append(f"merge {on} {source} {matched} {inserts} {left}")
        merge(self.table, self.frame(source), on, matched, inserts, left)
        self.twin.merge(source, on, matched, inserts, left)
        self.rows = expected(self.rows, source, on, Clauses(tuple(matched), tuple(inserts), tuple(left)))

    def matched(self, all_of_source: list[None]) -> Update | Delete:
        when = self.rng.choice(list(CONDITIONS))
        if self.rng.random() < 0.3:
            return Delete(when)
        return Update(self.rng.choice([*all_of_source, {"n": self.rng.choice(list(UPDATES))}]), when)


def expected(rows: list[Row], source: list[Row], on: str, clauses: Clauses) -> list[Row]:
    """The rows after a merge, each key at most once in the source."""
    by_key = {row[on]: row for row in source if row[on] is not None}
    out, met = [], set()
    for row in rows:
        other = by_key.get(row[on])
        if other is not None:
            met.add(row[on])
        for clause in clauses.by_source if other is None else clauses.matched:
            if not CONDITIONS[clause.when](row, other):
                continue
            if isinstance(clause, Update):
                changed = (
                    other
                    if clause.values is None
                    else {c: UPDATES[text](row, other) for c, text in clause.values.items()}
                )
                out.append({**row, **(changed or {})})
            break
        else:
            out.append(row)
    new = (row for row in source if row[on] not in met)
    return out + [row for row in new if any(CONDITIONS[clause.when](None, row) for clause in clauses.not_matched)]


def changes(clause: Update, row: Row, other: Row | None) -> Row:
    if clause.values is None:
        return other or {}
    return {column: UPDATES[text](row, other) for column, text in clause.values.items()}


@pytest.mark.slow
def test_random_histories_leave_the_rows_that_plain_python_does(spark: SparkSession, tmp_path: Path) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    for number in range(HISTORIES):
        history = History(spark, SEED + number, tmp_path / str(number))
        history.upsert()
        for _ in range(STEPS):
            history.step()
        assert history.db.verify(deep=True).ok
