"""Random statements leave the rows that plain Spark SQL makes of the same rows, or are refused and leave all.

A condition that dolmen takes over must choose the rows that Spark chooses: in both kinds of ANSI settings, with NULLs,
casts, comparisons of texts with numbers, decimals, times in the session's zone, NaN and LIKE.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import dolmen
from dolmen import Database
from dolmen.errors import InputError
from dolmen.rows.scan.plan import stored_schema_of
from dolmen.spark import attach, sql
from dolmen.spark.frame_types import to_frame
from dolmen.spark.sql.catalyst import read_condition
from support.spark_conditions import SCHEMA, Conditions, random_rows

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
LONG = bool(os.environ.get("DOLMEN_LONG"))
CONDITIONS, HISTORIES, STEPS = (1500, 20, 15) if LONG else (60, 1, 7)


@pytest.fixture(params=["true", "false"])
def ansi(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    spark.conf.set("spark.sql.ansi.enabled", request.param)
    yield request.param
    spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.slow
def test_a_condition_that_dolmen_takes_over_chooses_sparks_rows(spark: SparkSession, db: Database, ansi: str) -> None:
    rng = random.Random(SEED)
    print(f"DOLMEN_TEST_SEED={SEED}")
    table = db.create_table("t", SCHEMA)
    table.append(random_rows(rng, 0, 400))
    frame = table.to_spark(spark=spark).coalesce(1).cache()
    fields = dict(enumerate(stored_schema_of(table).fields))
    conditions, agreed, wider = [], [], []
    try:
        while len(conditions) < CONDITIONS:
            condition = Conditions(rng).any()
            try:
                filtered = frame.where(condition).select("id")
            except PySparkException:  # Spark compares no such types
                continue
            conditions.append(condition)
            read = read_condition(filtered, fields)
            agreed.append(read.predicate if read.is_exact else None)
            wider.append(read.predicate)
        assert sum(each is not None for each in agreed) > CONDITIONS / 5
        if ansi == "true":  # a cast that fails would fail the query of all
            conditions, wider = [c for c, p in zip(conditions, agreed, strict=True) if p], [p for p in agreed if p]
            agreed = list(wider)
        chosen = frame.selectExpr("id", *(f"({each}) IS TRUE AS c{n}" for n, each in enumerate(conditions))).toArrow()
    finally:
        frame.unpersist()
    for number, condition in enumerate(conditions):
        expected = set(chosen["id"].filter(chosen[f"c{number}"]).to_pylist())
        if (exact := agreed[number]) is not None:
            assert set(table.scan(["id"], exact).to_arrow()["id"].to_pylist()) == expected, condition
        if (more := wider[number]) is not None:
            assert expected <= set(table.scan(["id"], more).to_arrow()["id"].to_pylist()), condition


class History:
    """A table, and the rows that plain Spark makes of the same statements."""

    def __init__(self, spark: SparkSession, seed: int, directory: Path) -> None:
        self.rng, self.spark = random.Random(seed), spark
        self.db = dolmen.open(str(directory))
        self.table = self.db.create_table("t", SCHEMA)
        self.rows = random_rows(self.rng, 0, 40)
        self.table.append(self.rows.slice(0, 25))
        self.table.append(self.rows.slice(25))
        self.conditions = Conditions(self.rng, gaps=False)
        self.told: list[str] = []
        self.accepted = 0

    def step(self) -> None:
        statement, expected = self.rng.choice([self.delete, self.update, self.update, self.merge])()
        self.told.append(statement)
        to_frame(self.spark, self.rows).createOrReplaceTempView("mirror")
        version = self.db.refresh()
        try:
            sql(statement, spark=self.spark)
        except (InputError, PySparkException, Py4JError):
            assert self.db.refresh() == version, self.told
            return
        self.accepted += 1
        found = self.table.to_arrow()
        try:
            wanted = self.spark.sql(expected).toArrow().cast(SCHEMA)
        except (PySparkException, Py4JError):  # it evaluates more rows than the statement, and one of them failed
            wanted = found
        assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted.to_pylist())), "\n".join(self.told)
        self.rows = found

    def delete(self) -> tuple[str, str]:
        condition = self.conditions.any()
        return f"DELETE FROM t WHERE {condition}", f"SELECT * FROM mirror WHERE ({condition}) IS NOT TRUE"

    def update(self) -> tuple[str, str]:
        name, value = self.rng.choice(
            [("i", "id + 1"), ("i", "x"), ("d", "x / 3"), ("s", "i"), ("s", "d * 2"), ("x", "i / 0.5"), ("f", "d"),
             ("day", "at"), ("at", "day"), ("b", "id % 100"), ("loc", "at"), ("t", "x > 1"), ("at", "NULL")]
        )  # fmt: skip
        condition = self.conditions.any(1)
        new = f"CASE WHEN ({condition}) IS TRUE THEN CAST(({value}) AS {self.type(name)}) ELSE {name} END AS {name}"
        shown = ", ".join(new if each == name else each for each in SCHEMA.names)
        return f"UPDATE t SET {name} = {value} WHERE {condition}", f"SELECT {shown} FROM mirror"

    def type(self, name: str) -> str:
        kind: str = self.table.to_spark([name], spark=self.spark).schema[name].dataType.simpleString()
        return kind

    def merge(self) -> tuple[str, str]:
        first = self.rng.randrange(30)
        source = f"(SELECT id + {first} AS k, id % 7 AS v FROM range(20))"
        on = self.rng.choice(["t.id = n.k", "n.k = t.id AND t.i > 0", "t.id = n.k AND t.s <=> 'a'"])
        when = self.conditions.any(1)
        statement = (
            f"MERGE INTO t USING {source} n ON {on} WHEN MATCHED AND n.v > 4 THEN DELETE WHEN MATCHED AND {when} THEN "
            f"UPDATE SET i = n.v, s = 'm' WHEN NOT MATCHED THEN INSERT (id, i) VALUES (n.k + 1000, n.v)"
        )
        news = {"i": "CAST(v AS INT)", "s": "'m'"}
        kept = [
            f"CASE WHEN k IS NOT NULL AND ({when}) IS TRUE THEN {news[name]} ELSE {name} END AS {name}"
            if name in news
            else name
            for name in SCHEMA.names
        ]
        added = ["k + 1000", "CAST(v AS INT)", *("NULL" for _ in SCHEMA.names[2:])]
        return statement, (
            f"SELECT {', '.join(kept)} FROM mirror t LEFT JOIN {source} n ON {on} WHERE NOT coalesce(v > 4, FALSE) "
            f"UNION ALL SELECT {', '.join(added)} FROM {source} n LEFT ANTI JOIN mirror t ON {on}"
        )


@pytest.mark.slow
def test_random_statements_leave_what_plain_spark_makes(spark: SparkSession, tmp_path: Path, ansi: str) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    for number in range(HISTORIES):
        history = History(spark, SEED + number, tmp_path / str(number))
        attached = attach(spark, history.db)
        try:
            for _ in range(STEPS):
                history.step()
        finally:
            attached.detach()
            spark.catalog.dropTempView("mirror")
        assert history.db.verify(deep=True).ok
        assert history.accepted > 0, history.told
