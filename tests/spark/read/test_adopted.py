"""Adopted files, also those that Spark wrote: Spark reads them as dolmen does, writes beside them, and compacts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import dolmen
from dolmen import Database
from dolmen.errors import AdoptionError
from dolmen.ingest.drops.announce_files import DropSource
from dolmen.maintenance.compact.compaction import CompactionOptions
from dolmen.rows.scan.scan import plan_of
from dolmen.spark import attach, sql
from dolmen.spark.compaction_jobs import compact
from dolmen.spark.load.load import load
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.write.from_frame import append
from support.lake import write_plain
from support.spark import streams_arrow
from support.spark_history import rows_of, sorted_rows

pytestmark = pytest.mark.slow

WRITTEN = """
    SELECT id, CAST(id AS INT) AS i, CAST(id % 100 AS SMALLINT) AS h, CAST(id % 100 AS TINYINT) AS b,
        IF(id % 7 = 0, float('NaN'), CAST(id AS FLOAT)) AS f, IF(id % 5 = 0, NULL, CAST(-id / 4 AS DOUBLE)) AS x,
        even, CAST(id / 4 AS DECIMAL(9, 2)) AS small, CAST(-id / 4 AS DECIMAL(18, 4)) AS mid,
        CAST(id / 8 AS DECIMAL(30, 6)) AS wide, IF(id % 3 = 0, NULL, concat('n', id)) AS s,
        CAST(concat('n', id) AS BINARY) AS raw, date_add(DATE '1999-12-31', CAST(id AS INT)) AS day,
        timestamp_millis(id * 1001 - 100000) AS at,
        CAST(date_add(DATE '2020-02-29', CAST(id AS INT)) AS TIMESTAMP_NTZ) AS local,
        IF(id % 6 = 0, NULL, array(CAST(id AS INT), NULL)) AS numbers,
        map(concat('k', id), CAST(id AS DECIMAL(12, 3))) AS labels,
        named_struct('zip', id, 'city', IF(id % 4 = 0, NULL, 'c'), 'more', array(named_struct('x', even))) AS place
    FROM (SELECT id, id % 2 = 0 AS even FROM range({first}, {end}))
"""
"""Rows with a column of each kind that Spark writes."""

_MICROS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
SETTINGS: dict[str, dict[str, str]] = {
    "plain": _MICROS,
    "legacy": {**_MICROS, "spark.sql.parquet.writeLegacyFormat": "true"},
    "milliseconds": {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"},
    "field ids": {**_MICROS, "spark.sql.parquet.fieldId.write.enabled": "true"},
}
OPTIONS: dict[str, dict[str, str]] = {
    "plain": {},
    "legacy": {"compression": "gzip"},
    "milliseconds": {"parquet.writer.version": "v2", "compression": "zstd", "parquet.block.size": "20000"},
    "field ids": {"parquet.bloom.filter.enabled#id": "true", "parquet.enable.dictionary": "false"},
}


def write_lake(
    spark: SparkSession, lake: Path, frame: DataFrame, how: str = "plain", settings: Mapping[str, str] | None = None
) -> None:
    """Files of Spark's, by settings that it has during this call."""
    wanted = {**SETTINGS[how], **(settings or {})}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        frame.write.options(**OPTIONS[how]).mode("append").parquet(str(lake))
    finally:
        for name in wanted:
            spark.conf.unset(name)


def lake_frame(spark: SparkSession, first: int, end: int) -> DataFrame:
    return spark.sql(WRITTEN.format(first=first, end=end)).repartition(2)


def test_adopted_files_and_those_beside_them_give_the_rows_that_dolmen_gives(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    for part in range(3):
        ids = range(part * 100, part * 100 + 100)
        rows = {"id": ids, "name": [f"n{i}" for i in ids], "place": [{"zip": i} for i in ids]}
        write_plain(tmp_path / "lake" / f"p={part}" / "0.parquet", pa.table({**rows, "p": [part] * 100}))
    db.adopt("t", str(tmp_path / "lake"), "id")
    table = db.table("t")
    table.rename_column("name", "title")
    table.add_column("name", pa.string(), "new")
    table.delete("id % 4 = 1")
    table.delete("id < 9", mode="positions")
    table.upsert(table.scan(where="id = 50").to_arrow())
    append(table, spark.createDataFrame([(1_000, "spark", 7)], "id long, title string, p long"))
    for where in (None, "id > 90", "title = 'n12' OR name = 'new'", "p = 2"):
        expected = table.scan(where=where).to_arrow()
        assert rows_of(to_spark(table, where=where), expected.schema) == sorted_rows(expected), where
    before = rows_of(to_spark(table), table.schema)
    db.maintain()
    assert rows_of(to_spark(table), table.schema) == before


@pytest.mark.parametrize("how", SETTINGS)
def test_files_that_spark_wrote_are_adopted_and_mean_to_dolmen_what_they_mean_to_spark(
    spark: SparkSession, db: Database, tmp_path: Path, how: str
) -> None:
    lake = tmp_path / "lake"
    write_lake(spark, lake, lake_frame(spark, 0, 300), how)
    write_lake(spark, lake, lake_frame(spark, 300, 400), how)
    adopted = db.adopt("t", str(lake), "id")
    assert (adopted.rows, adopted.files) == (400, 4)
    table = db.table("t")
    theirs = spark.read.parquet(str(lake))
    ours = sorted_rows(table.to_arrow())
    assert rows_of(theirs, table.schema) == ours
    assert rows_of(to_spark(table), table.schema) == ours
    for where in (
        "id = 17",
        "day < DATE '2000-03-01' AND mid > -40",
        "s = 'n301' OR wide = 2.5",
        "f > 390",
        "x IS NULL",
    ):
        assert table.count(where) == theirs.where(where).count() > 0, where
    assert db.verify(deep=True).ok


@pytest.mark.slow
@streams_arrow
def test_each_way_to_read_shows_adopted_rows_before_and_after_spark_compacts_them(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    write_lake(spark, lake, lake_frame(spark, 0, 120))
    write_lake(spark, lake, lake_frame(spark, 120, 200))
    files = {path: path.read_bytes() for path in sorted(lake.rglob("*")) if path.is_file()}
    db.adopt("t", str(lake), "id")
    table = db.table("t")
    attached = attach(spark, db)
    try:
        sql("DELETE FROM t WHERE id < 10")
        sql("UPDATE t SET s = concat(s, '!') WHERE id BETWEEN 100 AND 110 AND even")
        lake_frame(spark, 199, 200).union(lake_frame(spark, 500, 501)).createOrReplaceTempView("more")
        sql("MERGE INTO t USING more ON t.id = more.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *")
        copy = dolmen.open(str(tmp_path / "copy")).create_table("t", table.schema)
        expected = sorted_rows(table.to_arrow())
        assert len(expected) == 190

        def check() -> None:
            source = spark.read.format("dolmen").option("table", "t").load(db.url)
            for frame in (to_spark(table), source, sql("SELECT * FROM t")):
                assert isinstance(frame, DataFrame)
                assert rows_of(frame, table.schema) == expected
            assert [row[0] for row in sql("SELECT s FROM t WHERE id IN (104, 500) ORDER BY id").collect()] == [
                "n104!",
                "n500",
            ]

        check()
        done = compact(spark, db, options=CompactionOptions(growth=1))["t"]
        assert done.files_in >= 4
        assert not [file for file in plan_of(table.scan()).files if str(lake) in file.file.path]
        check()
    finally:
        attached.detach()
    frame = spark.readStream.format("dolmen").option("table", "t").load(db.url)
    query = frame.writeStream.format("dolmen").option("table", "t").option("path", str(tmp_path / "copy"))
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert sorted_rows(copy.to_arrow()) == expected
    assert db.verify(deep=True).ok
    assert {path: path.read_bytes() for path in sorted(lake.rglob("*")) if path.is_file()} == files


def test_what_of_sparks_files_cannot_be_adopted_is_refused_and_can_be_loaded(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    times = spark.sql("SELECT id, timestamp_micros(id * 1000001) AS at FROM range(20)").coalesce(1)
    int96 = {"spark.sql.parquet.outputTimestampType": "INT96"}
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"  # Spark's default
    write_lake(spark, lake / "int96" / "t", times, settings=int96)
    with pytest.raises(AdoptionError, match=r"column 'at'.*INT96"):
        db.adopt("t", str(lake / "int96" / "t"))
    db.create_table("t", pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))]))  # INT96 names no zone
    done = load(spark, db, DropSource.of(str(lake / "int96"), database=db.url, tables=["t"]))
    assert done.outcomes == {"ingested": 1}, done.problems
    zoned = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    assert rows_of(times, zoned) == sorted_rows(db.table("t").to_arrow().cast(zoned))


def test_folders_that_spark_wrote_are_columns_for_dolmen_and_for_spark(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    frame = spark.sql(
        "SELECT id, CAST(id % 3 AS INT) AS n, date_add(DATE '2026-11-01', CAST(id % 4 AS INT)) AS day, "
        "element_at(array('a/b', 'x=y', NULL, 'ü 50%'), CAST(id % 4 + 1 AS INT)) AS text FROM range(40)"
    )
    frame.write.partitionBy("n", "day", "text").parquet(str(tmp_path / "lake"))
    theirs = spark.read.parquet(str(tmp_path / "lake"))
    adopted = db.adopt("t", str(tmp_path / "lake"))
    assert (adopted.rows, adopted.from_folders) == (40, ("n", "day", "text"))
    table = db.table("t")
    assert rows_of(theirs, table.schema) == sorted_rows(table.to_arrow())
    table.delete("n = 1 AND day = '2026-11-02'")
    append(table, spark.createDataFrame([(1_000, 7, "spark")], "id long, n long, text string"))
    frame.where("id < 5").write.partitionBy("n", "day", "text").parquet(str(tmp_path / "lake" / "more"))
    assert db.adopt("t", str(tmp_path / "lake"), into=True).skipped == adopted.files

    def check() -> None:
        for where in (None, "n = 2", "day > DATE '2026-11-02' AND text = 'ü 50%'", "text IS NULL"):
            expected = table.scan(where=where).to_arrow()
            assert rows_of(to_spark(table, where=where), expected.schema) == sorted_rows(expected), where

    check()
    compact(spark, db, options=CompactionOptions(growth=1))
    assert not [file for file in plan_of(table.scan()).files if file.file.constants]
    check()
    assert db.verify(deep=True, all_versions=True).ok


@pytest.mark.parametrize(
    ("value", "is_refused"),
    [
        ("DATE '1582-10-04'", True),
        ("DATE '1582-10-15'", False),
        ("TIMESTAMP '1899-12-31 00:00:00Z'", True),
        ("TIMESTAMP '1900-01-01 00:00:00Z'", False),
        ("TIMESTAMP_NTZ '1500-01-01 00:00:00'", False),
        ("named_struct('x', array(DATE '1400-02-28'))", True),
        ("CAST(NULL AS DATE)", False),
    ],
)
def test_days_that_spark_counted_by_the_julian_calendar_are_refused(
    spark: SparkSession, db: Database, tmp_path: Path, value: str, is_refused: bool
) -> None:
    frame = spark.sql(f"SELECT 1 AS id, {value} AS d")
    write_lake(spark, tmp_path / "lake", frame, settings={"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"})
    if is_refused:
        with pytest.raises(AdoptionError, match="column 'd'"):
            db.adopt("t", str(tmp_path / "lake"))
    else:
        db.adopt("t", str(tmp_path / "lake"))
        assert rows_of(frame, db.table("t").schema) == sorted_rows(db.table("t").to_arrow())
