"""Queries read the files that their conditions do not exclude, and see the process's own commits."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dolmen
from dolmen import Database
from dolmen.spark import append, attach, sql
from dolmen.spark.sql.attachment import Attachment

FILES = 10


@pytest.fixture
def attached(spark: SparkSession, db: Database) -> Iterator[Attachment]:
    """A view of a table of ten files, each with ten rows of one day, from two of which rows were deleted."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string()), ("day", pa.date32())])
    table = db.create_table("t", schema, primary_key="id")
    with db.transaction() as tx:
        for day in range(FILES):
            ids = range(day * 10, day * 10 + 10)
            days = pa.array([day] * 10, pa.int32()).cast(pa.date32())
            tx.table("t").append(pa.table({"id": ids, "s": [f"s{id_:02}" for id_ in ids], "day": days}))
    table.delete("id = 55")
    table.delete("s = 's77'")
    made = attach(spark, db)
    try:
        yield made
    finally:
        made.detach()


def read_files(spark: SparkSession, query: str) -> list[int]:
    """The numbers of files of all scans of a query's plan."""
    plan = spark.sql(query)._jdf.queryExecution().executedPlan().toString()
    found = re.findall(rf"/(\d+) of {FILES} files of t", plan)
    assert plan.count("FileScan") == len(found)
    return sorted(map(int, found))


@pytest.mark.slow
def test_files_are_left_out_by_the_conditions_of_a_query(spark: SparkSession, attached: Attachment) -> None:
    ids = ", ".join(map(str, range(95, 130)))
    days = ", ".join(f"DATE'1970-01-{day:02}'" for day in range(9, 31))
    for condition, files, rows in [
        ("id = 33", [1], 1),
        ("id IN (1, 2, 45)", [2], 3),
        (f"id IN ({ids})", [1], 5),
        (f"day IN ({days})", [2], 20),
        ("s IN ('" + "', '".join(f"s{id_:02}" for id_ in range(20)) + "')", [2], 20),
        ("s LIKE 's9%' AND length(s) = 3", [1], 10),
        ("day BETWEEN DATE'1970-01-02' AND DATE'1970-01-03' AND id % 2 = 0", [2], 10),
        ("id BETWEEN 54 AND 56", [1], 2),
        ("s >= 's77' AND s < 's79'", [1], 1),
        ("id < 3 OR day = DATE'1970-01-10'", [2], 13),
        ("id IS NULL", [], 0),
    ]:
        query = f"SELECT s FROM t WHERE {condition}"
        assert (read_files(spark, query), spark.sql(query).count()) == (files, rows), condition
    assert sum(read_files(spark, "SELECT count(*) FROM t")) == FILES
    assert (read_files(spark, "SELECT count(*) FROM t WHERE day < DATE'1970-01-04'"), spark.table("t").count()) == (
        [] if spark.version >= "4.1" else [3],
        98,
    )
    assert read_files(spark, "SELECT a.s FROM t a JOIN t b USING (id) WHERE a.id = 7 AND b.day = DATE'1970-01-01'") == [
        1,
        1,
    ]
    assert spark.sql(
        "SELECT max(s) FROM t WHERE id < (SELECT min(id) FROM t WHERE day > DATE'1970-01-03')"
    ).first() == ("s29",)
    version = attached.database.version
    assert (
        "/1 of 10 files of t "
        in sql(f"SELECT * FROM t VERSION AS OF {version} WHERE id = 3")._jdf.queryExecution().toString()
    )  # type: ignore[union-attr]


@pytest.mark.slow
def test_views_show_the_commits_of_their_own_process(spark: SparkSession, db: Database, attached: Attachment) -> None:
    def count() -> int:
        return spark.table("t").count()

    frame = spark.table("t").where("id >= 0")
    append(db.table("t"), spark.createDataFrame([(100, "a", None)], "id long, s string, day date"))
    db.table("t").delete("id = 1")
    sql("UPDATE t SET s = 'new' WHERE id = 2")
    assert (count(), frame.count()) == (98, 98)
    assert spark.sql("SELECT s FROM t WHERE id = 2").first() == ("new",)
    dolmen.open(db.url).table("t").delete("id < 50")
    assert count() == 98
    assert attached.refresh() == db.version
    assert count() == 49
