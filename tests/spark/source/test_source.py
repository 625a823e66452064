"""``spark.read.format("dolmen")``: the same rows as dolmen itself gives, of one version, by Python workers."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dolmen import Database
from dolmen.api.database import Table
from dolmen.format.entries import DataFile
from dolmen.rows.scan.scan import plan_of
from dolmen.spark.source.readers import groups_of
from dolmen.spark.source.source import Options
from support.spark_history import History, rows_of, sorted_rows

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
HISTORIES = 40 if os.environ.get("DOLMEN_LONG") else 3
FAILED = (PySparkException, Py4JJavaError)

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64()), ("s", pa.string())])


def some(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": ids, "x": [float(i) for i in ids], "s": [f"s{i % 3}" for i in ids]}, SCHEMA)


@pytest.fixture
def table(db: Database) -> Table:
    made = db.create_table("t", SCHEMA, primary_key="id")
    for first in range(0, 300, 100):
        made.append(some(first, 100))
    return made


def load(spark: SparkSession, db: Database, **options: object) -> DataFrame:
    return spark.read.format("dolmen").options(**{"table": "t", **options}).load(db.url)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


@pytest.mark.slow
@pytest.mark.parametrize("place", range(HISTORIES))
def test_the_data_source_reads_the_same_rows_as_dolmen(place: int, spark: SparkSession, tmp_path: Path) -> None:
    seed = SEED + place
    print(f"DOLMEN_TEST_SEED={seed}")
    history = History(seed, str(tmp_path / "db"))
    history.grow()
    columns = history.rng.sample(history.columns, history.rng.randint(1, len(history.columns)))
    where = history.predicate()
    with_ts = history.rng.random() < 0.5
    expected = history.table.scan(columns, where, with_commit_ts=with_ts).to_arrow()
    frame = load(spark, history.db, columns=",".join(columns), with_commit_ts=with_ts, where=where)
    assert frame.columns == expected.column_names
    assert rows_of(frame, expected.schema) == sorted_rows(expected), (columns, where)


@pytest.mark.slow
def test_a_frame_shows_one_version_however_often_it_is_used(spark: SparkSession, db: Database, table: Table) -> None:
    frame = load(spark, db)
    table.delete("id < 100")
    table.append(some(1000, 5))
    assert frame.count() == 300
    assert frame.where("id < 10").count() == 10  # of the same frame, with a filter and without
    assert frame.where("id >= 290").count() == 10
    assert frame.count() == 300
    assert load(spark, db).count() == 205
    assert load(spark, db, version=db.version - 2).count() == 300


@pytest.mark.slow
def test_no_version_shows_erased_rows(spark: SparkSession, db: Database, table: Table) -> None:
    version = db.version
    assert load(spark, db, version=version).count() == 300
    table.erase("id < 100")
    assert load(spark, db, version=version).count() == 200
    table.add_column("region", pa.string(), "eu")
    table.erase("region = 'eu' AND id < 150")
    assert ids(load(spark, db, version=version)) == list(range(150, 300))
    assert table.at(version).to_spark(spark=spark).count() == 150


@pytest.mark.slow
def test_a_schema_selects_columns(spark: SparkSession, db: Database, table: Table) -> None:
    reader = spark.read.format("dolmen").option("table", "t").option("path", db.url)
    frame = reader.schema("s string, _commit_ts bigint").load()
    assert frame.where("s = 's1'").count() == 100
    assert frame.select("_commit_ts").distinct().count() == 3
    with pytest.raises(FAILED, match=r"column 'id' of table 't'.*bigint.*int"):
        reader.schema("id int").load().count()


@pytest.mark.slow
def test_rows_that_statistics_rule_out_are_not_read(spark: SparkSession, db: Database, table: Table) -> None:
    frame = load(spark, db, where="id >= 150 AND id < 1000")
    paths = [file.file.path for file in plan_of(table.scan()).files]
    (Path(db.url.removeprefix("file://")) / paths[0]).unlink()
    assert ids(frame) == list(range(150, 300))
    with pytest.raises(FAILED, match="is damaged"):
        load(spark, db).collect()


def test_a_table_without_rows_has_its_columns(spark: SparkSession, db: Database, table: Table) -> None:
    table.delete("TRUE")
    frame = load(spark, db)
    assert (frame.columns, frame.count()) == (["id", "x", "s"], 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tabel": "t"}, "option 'tabel'"),
        ({"table": "nowhere"}, "table 'nowhere' in version 4"),
        ({"version": "0"}, "option 'version' is '0'"),
        ({"version": "17"}, "no version 17"),
        ({"version": "2", "timestamp": "2026-01-01"}, "version and timestamp exclude each other"),
        ({"where": "nowhere = 1"}, "no column 'nowhere'"),
        ({"columns": "id,nowhere"}, "no column 'nowhere'"),
        ({"columns": "id,id"}, "twice"),
        ({"with_commit_ts": "perhaps"}, "true or false"),
    ],
)
def test_options_that_say_nothing_are_refused(
    options: dict[str, str], message: str, spark: SparkSession, db: Database, table: Table
) -> None:
    with pytest.raises(FAILED, match=message):
        load(spark, db, **options).count()


def test_numbers_are_read_as_python_reads_them() -> None:
    texts = ["5", " 5 ", "+5", "1_000"]
    assert [Options({"version": text}).number("version") for text in texts] == [5, 5, 5, 1000]


def test_small_files_are_read_together_and_large_ones_by_themselves() -> None:
    def file(size: int) -> DataFile:
        return DataFile(f"data/t/{size}.parquet", size, 1, (0, 0, 0))

    assert [len(some) for some in groups_of([file(1000)] * 640)] == [10] * 64
    assert [len(some) for some in groups_of([file(1 << 30)] * 3)] == [1, 1, 1]
    assert list(groups_of([])) == []
