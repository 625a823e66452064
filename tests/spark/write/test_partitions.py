"""Partitioned tables from Spark: files of one partition each, and overwrites that replace whole partitions."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dolmen import Database, Table
from dolmen.commit.head import context_of
from dolmen.entries.partitions import PartitionSpec
from dolmen.errors import ConflictError, InputError, RowError
from dolmen.spark import append, attach, compact, overwrite, raising_dolmen_errors

pytestmark = pytest.mark.slow
DAYS = [date(2026, 11, 27) + timedelta(days) for days in range(3)]


@pytest.fixture
def visits(db: Database) -> Table:
    """A table by day and tenant, with a file for each of six partitions."""
    table = db.create_table("visits", "id BIGINT, at TIMESTAMPTZ, tenant VARCHAR", partition_by="day(at), tenant")
    table.append([row(day * 2 + n, DAYS[day], tenant) for day in range(3) for n, tenant in enumerate(("a", "b"))])
    return table


@pytest.fixture
def catalog(spark: SparkSession, db: Database) -> Iterator[None]:
    attached = attach(spark, db, catalog="lake")
    yield
    attached.detach()


def row(id_: int, day: date, tenant: str | None) -> dict[str, Any]:
    return {"id": id_, "at": datetime(day.year, day.month, day.day, 23, tzinfo=UTC), "tenant": tenant}


def frame_of(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return spark.createDataFrame([tuple(each.values()) for each in rows], "id long, at timestamp, tenant string")


def ids(table: Table) -> list[int]:
    return sorted(table.to_arrow()["id"].to_pylist())


def test_each_partition_is_written_by_one_task(spark: SparkSession, visits: Table) -> None:
    rows = spark.range(1000).select(
        "id",
        F.expr("timestamp_micros(1796000000000000 + (id % 5) * 86400000000)").alias("at"),
        F.concat(F.lit("t"), F.col("id") % 2).alias("tenant"),
    )
    before = visits.files().num_rows
    append(visits, rows.repartition(7))
    assert (visits.files().num_rows, visits.count()) == (before + 10, 1006)
    assert None not in visits.files()["partition"].to_pylist()


def test_an_overwrite_replaces_the_partitions_of_its_rows(spark: SparkSession, visits: Table) -> None:
    new = frame_of(spark, row(10, DAYS[0], "a"), row(11, DAYS[2], "b"), row(12, DAYS[2], None))
    commit = overwrite(visits, new, by_partition=True, request="r")
    assert (commit.operation, ids(visits)) == ("overwrite", [1, 2, 3, 4, 10, 11, 12])
    assert overwrite(visits, new, by_partition=True, request="r").operation == "nothing"
    assert overwrite(visits, new.where("id < 0"), by_partition=True).operation == "nothing"
    again = frame_of(spark, row(13, DAYS[2], None))
    overwrite(visits, again, by_partition=True)
    assert ids(visits) == [1, 2, 3, 4, 10, 11, 13]
    stale = visits.to_spark().where("id = 1")
    visits.append([row(20, DAYS[0], "b")])
    with pytest.raises(ConflictError):
        overwrite(visits, stale, by_partition=True)
    with pytest.raises(InputError, match="by_partition"):
        overwrite(visits, new, where="id = 1", by_partition=True)


@pytest.mark.parametrize(
    ("terms", "kept"),
    [
        ("n", [2, 3, 4, 5, 6]), ("truncate[10](n)", [3, 4, 5, 6]), ("truncate[2](s)", [4, 5]), ("year(d)", [5]),
        ("month(d)", [4, 5]), ("hour(at)", [2, 3, 4, 5, 6]), ("truncate[10](x)", [3, 4, 5, 6]),
        ("day(d), n", [2, 3, 4, 5, 6]),
    ],
)  # fmt: skip
def test_each_transform_says_which_rows_are_replaced(
    spark: SparkSession, db: Database, terms: str, kept: list[int]
) -> None:
    columns = "id BIGINT, n INTEGER, s VARCHAR, d DATE, at TIMESTAMP, x DECIMAL(10, 1)"
    table = db.create_table("t", columns, partition_by=terms)
    values = [
        (1, 5, "ab%", date(2026, 11, 30)),
        (2, 9, "ab", date(2026, 11, 1)),
        (3, -1, "abc", date(2026, 11, 30)),
        (4, 10, "a", date(2026, 12, 1)),
        (5, 25, "b", date(2027, 1, 1)),
        (6, 14, "abd", date(2026, 11, 2)),
    ]
    hours = [0, 1, 2, 3, 4, 5]
    rows = [
        (*value, datetime(2026, 11, 30, hour), Decimal(value[1]) / 10)
        for value, hour in zip(values, hours, strict=True)
    ]
    names = ["id", "n", "s", "d", "at", "x"]
    table.append([dict(zip(names, each, strict=True)) for each in rows])
    frame = spark.createDataFrame(
        [(100, *rows[0][1:])], "id long, n int, s string, d date, at timestamp_ntz, x decimal(10,1)"
    )
    overwrite(table, frame, by_partition=True)
    assert ids(table) == [*kept, 100]


def test_an_overwrite_replaces_the_buckets_of_its_rows(spark: SparkSession, db: Database) -> None:
    table = db.create_table("t", "id BIGINT, s VARCHAR, n INTEGER", partition_by="bucket[4](id), truncate[1](s)")
    rows = spark.range(100).select("id", F.expr("IF(id % 3 = 0, NULL, chr(97 + id % 3))").alias("s"), F.lit(1))
    append(table, rows.toDF("id", "s", "n"))
    assert None not in table.files()["partition"].to_pylist()
    table.set(partition_by="bucket[4](id)")
    append(table, rows.where("id < 50").toDF("id", "s", "n"))
    table.append([{"id": id_, "s": "x", "n": 2} for id_ in range(100, 140)])  # in memory: perhaps in one file
    table.set(partition_by="bucket[4](id), truncate[1](s)")
    table.delete("id = 7")
    new = spark.createDataFrame([(7, "b2", 3), (9, None, 3)], "id long, s string, n int")
    spec = PartitionSpec.of(context_of(table).head.refresh().manifest.table("t"))
    assert spec is not None
    before = table.to_arrow()
    wanted = set(zip(*(each.to_pylist() for each in spec.values(new.toArrow())), strict=True))
    partitions = list(zip(*(each.to_pylist() for each in spec.values(before)), strict=True))
    kept = [row for row, of in zip(before.to_pylist(), partitions, strict=True) if of not in wanted]
    assert 0 < len(kept) < before.num_rows
    for _ in range(2):
        assert overwrite(table, new, by_partition=True, request="r").operation in ("overwrite", "nothing")
    by_id = operator.itemgetter("id")
    added = [{"id": 7, "s": "b2", "n": 3}, {"id": 9, "s": None, "n": 3}]
    assert sorted(table.to_arrow().to_pylist(), key=by_id) == sorted([*kept, *added], key=by_id)
    stale = table.to_spark().where("id = 7")
    table.append([{"id": 7, "s": "b", "n": 4}])
    with pytest.raises(ConflictError):
        overwrite(table, stale, by_partition=True)
    attached = attach(spark, db, catalog="lake")
    try:
        spark.createDataFrame([(7, "b", 5)], "id long, s string, n int").writeTo("lake.t").overwritePartitions()
    finally:
        attached.detach()
    assert (table.count("id = 7"), table.count("n = 5"), table.count("id = 9")) == (1, 1, 1)
    assert db.verify(deep=True).ok


def test_partitions_of_a_data_source_have_no_buckets(spark: SparkSession, db: Database) -> None:
    table = db.create_table("t", "id BIGINT", partition_by="bucket[4](id)")
    append(table, spark.range(100))
    write = spark.range(3).write.format("dolmen").mode("overwrite").options(table="t", force="true")
    with pytest.raises(InputError, match="bucket"), raising_dolmen_errors():
        write.option("partitionOverwriteMode", "dynamic").save(db.url)
    with pytest.raises(InputError, match="partition_by"):
        overwrite(db.create_table("plain", "id BIGINT"), spark.range(3), by_partition=True)
    assert table.count() == 100


def test_a_data_source_replaces_some_rows(spark: SparkSession, db: Database, visits: Table) -> None:
    def save(frame: DataFrame, mode: str = "overwrite", **options: str) -> None:
        with raising_dolmen_errors():
            frame.write.format("dolmen").mode(mode).options(table="visits", **options).save(db.url)

    new = frame_of(spark, row(10, DAYS[0], "a"))
    save(new, partitionOverwriteMode="dynamic", request="r")
    save(new, partitionOverwriteMode="dynamic", request="r")
    assert ids(visits) == [1, 2, 3, 4, 5, 10]
    save(frame_of(spark, row(11, DAYS[1], "b")), replaceWhere="tenant = 'b' AND id > 2")
    assert ids(visits) == [1, 2, 4, 10, 11]
    for error, frame, mode, options in [
        (RowError, new, "overwrite", {"replaceWhere": "tenant = 'b'"}),
        (InputError, new, "append", {"replaceWhere": "tenant = 'a'"}),
        (InputError, new, "overwrite", {"partitionOverwriteMode": "some"}),
    ]:
        with pytest.raises(error):
            save(frame, mode, **options)
    assert ids(visits) == [1, 2, 4, 10, 11]


@pytest.mark.usefixtures("catalog")
def test_a_catalog_creates_partitioned_tables_and_replaces_partitions(spark: SparkSession, db: Database) -> None:
    spark.sql("CREATE TABLE lake.t (id BIGINT, day DATE, at TIMESTAMP, s STRING) PARTITIONED BY (day, bucket(4, id))")
    assert db.table("t").settings()["partition_by"] == "day, bucket[4](id)"
    rows = frame_of(spark, *(row(n, DAYS[n % 3], "a") for n in range(6)))
    rows.writeTo("lake.hourly").partitionedBy(F.hours("at"), F.bucket(2, "id")).create()
    assert db.table("hourly").settings()["partition_by"] == "hour(at), bucket[2](id)"
    days = rows.withColumn("day", F.expr("date_add(DATE'2026-11-27', CAST(id % 3 AS INT))")).select(
        "id", "tenant", "day"
    )
    days.write.partitionBy("day").saveAsTable("lake.days")
    table = db.table("days")
    assert (table.settings()["partition_by"], table.files().num_rows) == ("day", 3)
    assert ("# Partition Information", "", "") in [tuple(each) for each in spark.sql("DESCRIBE lake.days").collect()]
    new = days.where("id = 0").withColumn("id", F.lit(10).cast("long"))
    new.writeTo("lake.days").overwritePartitions()
    assert ids(table) == [1, 2, 4, 5, 10]
    new.withColumn("id", F.lit(11).cast("long")).write.mode("overwrite").option(
        "partitionOverwriteMode", "dynamic"
    ).insertInto("lake.days")
    assert ids(table) == [1, 2, 4, 5, 11]
    spark.sql("INSERT OVERWRITE lake.days PARTITION (day = DATE'2026-11-28') SELECT 12L, 'x'")
    assert ids(table) == [2, 5, 11, 12]
    new.write.mode("overwrite").option("replaceWhere", "day = DATE '2026-11-27'").saveAsTable("lake.days")
    assert ids(table) == [2, 5, 10, 12]
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        spark.sql("INSERT OVERWRITE lake.days SELECT 13L, 'x', DATE'2026-11-28' FROM lake.days LIMIT 1")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert ids(table) == [2, 5, 10, 13]
    with pytest.raises((RowError, PySparkException), match="where"):
        new.write.mode("overwrite").option("replaceWhere", "id = 5").saveAsTable("lake.days")
    assert ids(table) == [2, 5, 10, 13]


def test_clustering_stays_within_partitions(spark: SparkSession, db: Database) -> None:
    table = db.create_table("t", "id BIGINT, day DATE", sort_key="id", partition_by="day")
    with db.transaction() as tx:
        for n in range(4):
            tx.table("t").append([{"id": n * 100 + m, "day": DAYS[m % 3]} for m in range(30)])
    compact(spark, db, "t", recluster=True)
    assert sorted(map(str, table.files()["partition"].to_pylist())) == [f"day={day}" for day in DAYS]
    assert table.count() == 120
