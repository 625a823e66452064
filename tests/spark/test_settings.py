"""What a session is set to changes neither what is read of a table nor what is written to it."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dolmen import Database
from dolmen.errors import CorruptionError
from dolmen.ingest.drops.announce_files import DropSource
from dolmen.rows.scan.scan import plan_of
from dolmen.spark.compaction_jobs import compact
from dolmen.spark.file_export import export
from dolmen.spark.load.load import load
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.write.from_frame import append, delete, overwrite, upsert
from dolmen.spark.write.merge_frame import merge
from support.spark_history import History, rows_of, sorted_rows
from support.spark_settings import HOSTILE, ZONES, settings

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
LONG = bool(os.environ.get("DOLMEN_LONG"))
HISTORIES = 10 if LONG else 1
QUERIES = 2


def hostile(group: str, rng: random.Random) -> dict[str, str]:
    return {"spark.sql.session.timeZone": rng.choice(ZONES), **HOSTILE[group]}


@pytest.mark.slow
@pytest.mark.parametrize("group", HOSTILE)
def test_random_histories_are_read_alike_whatever_a_session_is_set_to(
    group: str, spark: SparkSession, tmp_path: Path
) -> None:
    for place in range(HISTORIES):
        seed = SEED + place
        print(f"DOLMEN_TEST_SEED={seed}")
        history = History(seed, str(tmp_path / str(place)))
        history.grow()
        table, values = history.table, hostile(group, history.rng)
        for query in range(QUERIES):
            columns = history.rng.sample(history.columns, history.rng.randint(1, len(history.columns)))
            where = history.predicate() if query else None
            expected = table.scan(columns, where, with_commit_ts=not query).to_arrow()
            for native in (True, False):
                with settings(spark, values):
                    frame = to_spark(table, columns, where, with_commit_ts=not query, native=native)
                    found = rows_of(frame, expected.schema)
                assert found == sorted_rows(expected), (columns, where, native, values)


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("x", pa.float64()),
        ("d", pa.decimal128(20, 4)),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("l", pa.list_(pa.timestamp("us"))),
    ]
)


def old(first: int, count: int) -> pa.Table:
    """Rows with dates from before 1582 on."""
    rows: list[dict[str, Any]] = []
    for place in range(first, first + count):
        micros = (place - 420) * 13 * 86_400_000_000 * 12 + place * 3_600_000_000
        rows.append(
            {
                "id": place, "day": (place - 420) * 156, "at": micros, "local": micros, "x": float(place), "d": None,
                "s": f"s{place % 5}", "b": bytes([place % 250, 255]), "l": [micros, None],
            }
        )  # fmt: skip
    return pa.Table.from_pylist(rows, SCHEMA)


def write_all(spark: SparkSession, db: Database, name: str, directory: Path) -> list[str]:
    """Writes to a table in all ways; its rows."""
    source = db.table("source")
    table = db.create_table(name, SCHEMA, primary_key="id", sort_key="at")
    append(table, to_spark(source, where="id < 200"))
    overwrite(table, to_spark(source, where="id < 100"))
    upsert(table, to_spark(source, where="id >= 90 AND id < 150").drop("x").withColumnRenamed("d", "x").drop("x"))
    delete(table, to_spark(source, ["id"], "id < 20"))
    delete(table, to_spark(source, ["local"], "id = 30"), on="local")
    delete(table, "day < '1000-01-01' AND s = 's1'")
    merge(
        table,
        to_spark(source, where="id >= 140 AND id < 160"),
        "at",
        when_matched={"s": "concat(target.s, '`\"', source.s)", "local": "source.local"},
        when_not_matched="insert",
    )
    frame = to_spark(source, where="id >= 200 AND id < 220")
    frame.write.format("dolmen").mode("append").option("table", name).save(db.url)
    landing = directory / "landing" / name
    landing.mkdir(parents=True)
    (landing / "rows.csv").write_text("id,day,s\n1000,1500-02-28,a\n1001,1582-10-04,\n")
    load(spark, db, DropSource.of(str(directory / "landing"), database=db.url))
    compact(spark, db, name, recluster=True)
    return sorted_rows(table.to_arrow())


@pytest.fixture
def expected(spark: SparkSession, db: Database, tmp_path: Path) -> list[str]:
    db.create_table("source", SCHEMA, primary_key="id").append(old(0, 220))
    return write_all(spark, db, "expected", tmp_path / "expected")


@pytest.mark.slow
def test_what_is_written_does_not_depend_on_what_a_session_is_set_to(
    expected: list[str], spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    assert len(expected) > 100
    for group in HOSTILE if LONG else rng.sample(list(HOSTILE), 1):
        with settings(spark, hostile(group, rng)):
            assert write_all(spark, db, group, tmp_path / group) == expected, group
    assert db.verify(deep=True).ok


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["missing", "damaged", "shorter"])
def test_no_setting_makes_rows_of_a_bad_file_vanish(
    harm: str, spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    table = db.create_table("t", SCHEMA)
    table.append(old(0, 50))
    table.append(old(50, 50))
    victim = tmp_path / "db" / next(iter(plan_of(table.scan()).files)).file.path
    body = victim.read_bytes()
    values = HOSTILE["files"] | {"spark.sql.session.timeZone": "UTC"}
    with settings(spark, values):
        frames = [to_spark(table), to_spark(table, native=False)]
        if harm == "missing":
            victim.unlink()
        elif harm == "damaged":
            victim.write_bytes(body[:100] + bytes(255 - byte for byte in body[100:-400]) + body[-400:])
        else:
            victim.write_bytes(body[:-20])
        for frame in frames:
            with pytest.raises((PySparkException, Py4JJavaError)):
                frame.toArrow()
        for native in (True, False):  # whoever makes a frame of a directory looks at the sizes of its files
            with pytest.raises((PySparkException, Py4JJavaError, CorruptionError)):
                to_spark(table, native=native).toArrow()


@pytest.mark.slow
def test_an_export_does_not_depend_on_settings_of_the_cluster(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    table = db.create_table("t", SCHEMA)
    table.append(old(0, 100))
    with settings(spark, HOSTILE["legacy"] | HOSTILE["readers"]):
        done = export(table, str(tmp_path / "export"), spark=spark)
    found = pa.parquet.read_table(tmp_path / "export")
    assert done.rows == 100
    assert sorted_rows(found.cast(SCHEMA)) == sorted_rows(table.to_arrow())


@pytest.mark.slow
def test_a_frame_of_a_thousand_files_takes_no_job_to_make(spark: SparkSession, db: Database) -> None:
    table = db.create_table("t", SCHEMA)
    with db.transaction() as transaction:
        for place in range(100):
            transaction.table("t").append(old(place, 1))
    tracker, group = spark.sparkContext.statusTracker(), "making a frame"
    spark.sparkContext.setJobGroup(group, "")
    try:
        frame = to_spark(table)
        assert list(tracker.getJobIdsForGroup(group)) == []
        assert frame.count() == 100
        assert len(tracker.getJobIdsForGroup(group)) > 0
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert len(frame.inputFiles()) == 100
