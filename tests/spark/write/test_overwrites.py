"""A table is overwritten by what was read of it only while nobody has added or deleted rows since it was read."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

import dolmen
from dolmen import Database
from dolmen.api.database import Table
from dolmen.commit.head import context_of
from dolmen.errors import ConflictError, InputError, TableNotFoundError
from dolmen.spark.frame_types import Origin, origins_in_plan, origins_of
from dolmen.spark.read.to_frame import native_frames, to_spark
from dolmen.spark.tasks import raising_dolmen_errors
from dolmen.spark.write.from_frame import overwrite
from dolmen.transactions.transaction import unit_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])

Make = Callable[[SparkSession, Table], DataFrame]


def some(first: int, count: int) -> pa.Table:
    return pa.table({"id": range(first, first + count), "n": [1] * count}, SCHEMA)


@pytest.fixture
def table(db: Database) -> Table:
    made = db.create_table("t", SCHEMA, primary_key="id")
    made.append(some(0, 20))
    made.delete("id = 19")
    return made


def ids(table: Table) -> list[int]:
    return sorted(table.scan(["id"]).to_arrow()["id"].to_pylist())


def load(spark: SparkSession, table: Table) -> DataFrame:
    return spark.read.format("dolmen").option("table", table.name).load(context_of(table).store.url)


def save(frame: DataFrame, db: Database, **options: object) -> None:
    with raising_dolmen_errors():
        frame.write.format("dolmen").mode("overwrite").options(**{"table": "t", **options}).save(db.url)


def cached(spark: SparkSession, table: Table) -> DataFrame:
    frame = to_spark(table).cache()
    frame.count()
    return frame.where("id < 10")


def computed(spark: SparkSession, table: Table) -> DataFrame:
    return to_spark(table).groupBy((F.col("id") % 7).alias("id")).agg(F.count("*").alias("n"))


def subquery(spark: SparkSession, table: Table) -> DataFrame:
    to_spark(table).createOrReplaceTempView("seen_by_subquery")
    return spark.sql("SELECT id, 2 AS n FROM range(30) WHERE id IN (SELECT id + 1 FROM seen_by_subquery)")


def view_over_view(spark: SparkSession, table: Table) -> DataFrame:
    load(spark, table).createOrReplaceTempView("inner_view")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW outer_view AS SELECT id + 1 AS id, n * 2 AS n FROM inner_view")
    return spark.sql("WITH c AS (SELECT * FROM outer_view) SELECT a.* FROM c a JOIN c b USING (id)")


MAKERS: dict[str, Make] = {
    "native": lambda spark, table: to_spark(table, where="id < 10"),
    "by workers": lambda spark, table: to_spark(table, where="id < 10", native=False),
    "nothing left": lambda spark, table: to_spark(table, where="id > 1000"),
    "one column": lambda spark, table: to_spark(table, ["id"]).withColumn("n", F.lit(5)),
    "an old version": lambda spark, table: table.to_spark(version=2),
    "computed": computed,
    "subquery": subquery,
    "source": lambda spark, table: load(spark, table).where("id < 10"),
    "source, computed": lambda spark, table: load(spark, table).selectExpr("id + 1 AS id", "n + 1 AS n"),
    "views": view_over_view,
    "cached": cached,
    "checkpoint": lambda spark, table: to_spark(table).localCheckpoint(),
    "rdd": lambda spark, table: spark.createDataFrame(to_spark(table).rdd, to_spark(table).schema),
    "union": lambda spark, table: spark.range(5).selectExpr("id", "id AS n").unionAll(to_spark(table)),
    "by python": lambda spark, table: to_spark(table).mapInArrow(lambda batches: batches, "id long, n long"),
    "join": lambda spark, table: spark.range(30).join(to_spark(table), "id", "left_semi").selectExpr("id", "0L AS n"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("maker", "change"), [("native", "deleted"), *((maker, "added") for maker in MAKERS)])
def test_a_frame_knows_what_version_of_the_table_it_reads(
    maker: str, change: str, spark: SparkSession, db: Database, table: Table
) -> None:
    frame = MAKERS[maker](spark, table)
    other = dolmen.open(db.url).table("t")
    if change == "added":
        other.append(some(99, 1))
    else:
        other.delete("id = 7")
    there = ids(other)
    assert table.count() == len(there)  # by then this handle has seen the other's rows: that changes nothing
    with pytest.raises(ConflictError, match=f"{change} rows"):
        overwrite(table, frame)
    assert ids(other) == there
    expected = sorted(frame.toArrow()["id"].to_pylist())
    overwrite(table, frame, force=True)
    assert ids(other) == expected


def test_nobody_has_changed_the_table(spark: SparkSession, db: Database, table: Table) -> None:
    frame = to_spark(table, where="id < 10")
    db.create_table("other", SCHEMA).append(some(0, 5))
    db.resolve()
    overwrite(table, frame)
    assert ids(table) == list(range(10))


def test_another_table_may_change(spark: SparkSession, db: Database, table: Table) -> None:
    other = db.create_table("other", SCHEMA)
    other.append(some(50, 5))
    frame = to_spark(other)
    other.append(some(60, 5))
    table.append(some(70, 1))
    overwrite(table, frame)
    assert ids(table) == list(range(50, 55))


@pytest.mark.slow
def test_a_view_that_was_inserted_into_shows_what_it_did_before_and_replaces_nothing_newer(
    spark: SparkSession, db: Database, table: Table
) -> None:
    for name in ("old_view", "v"):
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING dolmen OPTIONS (path '{db.url}', table 't')")
        spark.sql(f"INSERT INTO {name} SELECT id + 100, n FROM {name} WHERE id = 1")
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW fresh USING dolmen OPTIONS (path '{db.url}', table 't')")
    there = ids(table)
    assert there == [*range(19), 101, 101]
    for query in (
        "INSERT OVERWRITE v SELECT * FROM v WHERE id > 5",
        "INSERT OVERWRITE v SELECT id + 1, n + 1 FROM v",
        "INSERT OVERWRITE v SELECT 1L, 1L",
        "INSERT OVERWRITE fresh SELECT * FROM v WHERE id > 5",
        "INSERT OVERWRITE v SELECT * FROM old_view",
    ):
        with pytest.raises(ConflictError, match=r"added rows.*version"), raising_dolmen_errors():
            spark.sql(query)
        assert ids(table) == there, query
    spark.sql("INSERT OVERWRITE fresh SELECT * FROM fresh WHERE id > 5")
    assert ids(table) == [*range(6, 19), 101, 101]


@pytest.mark.slow
@pytest.mark.parametrize("made", ["load", "to_spark", "half computed", "of another session"])
def test_a_source_that_overwrites_is_told_by_the_columns(
    made: str, spark: SparkSession, db: Database, table: Table
) -> None:
    session = spark.newSession() if made == "of another session" else spark
    frame = to_spark(table, spark=session) if made == "to_spark" else load(session, table)
    if made == "half computed":
        frame = frame.select("id", (F.col("n") + 1).alias("n"))
    table.append(some(99, 1))
    with pytest.raises(ConflictError, match="rows"):
        save(frame, db)
    with pytest.raises(ConflictError, match="rows"):
        save(frame, db, since=db.version)
    assert ids(table) == [*range(19), 99]
    save(frame, db, force=True)
    assert ids(table) == list(range(19))


@pytest.mark.slow
def test_a_source_refuses_to_overwrite_by_what_may_come_from_anywhere(
    spark: SparkSession, db: Database, table: Table
) -> None:
    frame = load(spark, table).selectExpr("id + 1 AS id", "n + 1 AS n")
    with pytest.raises(InputError, match=r'option\("since"'):
        save(frame, db)
    seen = db.version
    table.append(some(99, 1))
    with pytest.raises(ConflictError, match="rows"):
        save(frame, db, since=seen)
    assert ids(table) == [*range(19), 99]
    save(spark.range(3).selectExpr("id", "id AS n"), db, since=db.refresh())
    assert ids(table) == [0, 1, 2]


def test_columns_say_where_they_come_from(spark: SparkSession, db: Database, table: Table) -> None:
    uuid = unit_of(db.transaction()).entry("t").uuid
    frame = to_spark(table)
    assert origins_of(frame.schema) == origins_in_plan(frame) == {Origin(uuid, db.version)}
    both = table.to_spark(version=2).unionAll(frame)
    assert origins_in_plan(both) == {Origin(uuid, 2), Origin(uuid, db.version)}
    scan = table.scan()
    frames, _ = native_frames(spark, scan, db.url)
    assert {origin for frame in frames for origin in origins_in_plan(frame)} == {Origin(uuid, db.version)}


@pytest.mark.slow
def test_a_table_that_was_renamed_is_overwritten_by_what_was_read_under_its_old_name(
    spark: SparkSession, db: Database, table: Table
) -> None:
    """Frames know it by its uuid, handles by its name."""
    frame, before = to_spark(table, where="id < 10"), ids(table)
    new = dolmen.open(db.url)
    new.rename_table("t", "u")
    assert sorted(row.id for row in frame.collect()) == [id_ for id_ in before if id_ < 10]
    with pytest.raises(TableNotFoundError, match="'t'"):
        to_spark(table)
    new["u"].append(some(99, 1))
    with pytest.raises(ConflictError, match="rows"):
        overwrite(new["u"], frame)
    with pytest.raises(ConflictError, match="rows"):
        save(frame, new, table="u")
    new["u"].delete("id = 99", mode="positions")
    frame = to_spark(new["u"], where="id < 10")
    new.rename_table("u", "v")
    overwrite(new["v"], frame)
    assert ids(new["v"]) == [id_ for id_ in before if id_ < 10]
    frame = to_spark(new["v"], where="id < 5")
    new.rename_table("v", "w")
    save(frame, new, table="w")
    assert ids(new["w"]) == [id_ for id_ in before if id_ < 5]
