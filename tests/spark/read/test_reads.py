"""Reading into Spark: the same rows as dolmen itself gives, natively and by Python workers."""

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
from dolmen.errors import CorruptionError, Error, PredicateError, SchemaError
from dolmen.rows.scan.scan import plan_of
from dolmen.spark import attach, sql
from dolmen.spark.read import to_frame as reading
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.tasks import raising_dolmen_errors
from support.spark_history import History, rows_of, sorted_rows

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
HISTORIES = 60 if os.environ.get("DOLMEN_LONG") else 3
QUERIES = 4


@pytest.mark.slow
@pytest.mark.parametrize("place", range(HISTORIES))
def test_spark_reads_the_same_rows_as_dolmen(place: int, spark: SparkSession, tmp_path: Path) -> None:
    seed = SEED + place
    print(f"DOLMEN_TEST_SEED={seed}")
    history = History(seed, str(tmp_path / "db"))
    history.grow()
    table = history.table
    for query in range(QUERIES):
        columns = history.rng.sample(history.columns, history.rng.randint(1, len(history.columns)))
        where = history.predicate() if query else None
        with_ts = history.rng.random() < 0.3
        expected = table.scan(columns, where, with_commit_ts=with_ts).to_arrow()
        frame = to_spark(table, columns, where, with_commit_ts=with_ts, native=bool(query))
        assert rows_of(frame, expected.schema) == sorted_rows(expected), (columns, where)


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


def test_files_without_deletes_are_read_as_any_parquet_is(spark: SparkSession, table: Table) -> None:
    frame = to_spark(table, ["id"], "id >= 150")
    plan = frame._jdf.queryExecution().toString()
    assert "PushedFilters: [IsNotNull(id), GreaterThanOrEqual(id,150)]" in plan
    assert "row_index" not in plan
    assert plan.count("FileScan parquet") >= 1
    assert frame.count() == 150
    assert len(frame.inputFiles()) == 2  # statistics prune the first


def test_a_row_that_was_written_again_after_its_delete_is_read(spark: SparkSession, table: Table) -> None:
    table.delete(keys=[5, 105])
    table.append(some(5, 1))
    table.delete("s = 's0' AND id < 100")
    table.upsert(some(6, 1))
    expected = table.to_arrow()
    assert expected.num_rows == 300 - 2 + 1 - 34 + 1
    assert rows_of(to_spark(table), SCHEMA) == sorted_rows(expected)


@pytest.mark.slow
def test_an_older_version_is_read_by_at(spark: SparkSession, db: Database, table: Table) -> None:
    version = db.version
    table.delete("TRUE")
    assert to_spark(table).count() == 0
    assert to_spark(table.at(version=version)).count() == 300
    assert table.to_spark(["s"], "id < 10", version).collect() == [(f"s{i % 3}",) for i in range(10)]
    assert table.to_spark().count() == 0


@pytest.mark.slow
def test_a_frame_stays_what_it_was(spark: SparkSession, db: Database, table: Table) -> None:
    native, workers = to_spark(table), to_spark(table, native=False)
    table.delete("id < 100")
    table.append(some(1000, 5))
    assert (native.count(), workers.count(), to_spark(table).count()) == (300, 300, 205)


def test_a_file_that_is_gone_is_an_error_and_not_fewer_rows(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    table.delete("x < 10", mode="positions")
    frame = to_spark(table)
    for file in plan_of(table.scan()).files:
        (tmp_path / "db" / file.file.path).unlink()
    with pytest.raises((PySparkException, Py4JJavaError), match="does not exist"):
        frame.collect()


@pytest.mark.slow
@pytest.mark.parametrize("deleted", [False, True])
def test_another_file_in_the_place_of_one_is_an_error_and_not_other_rows(
    deleted: bool, spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    if deleted:
        table.delete("x < 10", mode="positions")
    table.append(some(1000, 5))
    first, *_, last = (tmp_path / "db" / file.file.path for file in plan_of(table.scan()).files)
    first.unlink()
    first.write_bytes(last.read_bytes())
    for native in (True, False):
        with (
            pytest.raises(CorruptionError, match=r"\d+ bytes, not.* \d+"),
            raising_dolmen_errors(),
        ):
            to_spark(table, native=native).collect()


@pytest.mark.slow
def test_too_much_for_one_filter_is_read_by_workers(
    spark: SparkSession, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in range(5):
        table.delete(f"x > {value} AND x < {value + 0.5} OR s = 'none {value}'")
    table.delete(keys=[1, 2, 3])
    expected = sorted_rows(table.to_arrow())
    monkeypatch.setattr(reading, "MOST_PREDICATES", 4)
    frame = to_spark(table)
    assert "MapInArrow" in frame._jdf.queryExecution().toString()
    assert rows_of(frame, SCHEMA) == expected
    monkeypatch.setattr(reading, "MOST_PREDICATES", 64)
    monkeypatch.setattr(reading, "MOST_KEYS", 2)
    assert rows_of(to_spark(table), SCHEMA) == expected


def test_many_files_with_deletes_are_read_some_at_a_time(
    spark: SparkSession, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.delete("s = 's1'", mode="positions")
    monkeypatch.setattr(reading, "FILES_TOGETHER", 2)
    frame = to_spark(table)
    assert frame._jdf.queryExecution().executedPlan().toString().count("FileScan parquet") == 2
    assert rows_of(frame, SCHEMA) == sorted_rows(table.to_arrow())


@pytest.mark.parametrize("pruning", ["true", "false"])
def test_files_of_equal_size_are_told_apart(spark: SparkSession, db: Database, pruning: str) -> None:
    table = db.create_table("alike", SCHEMA, primary_key="id")
    for value in (3, 7, 11):  # the same rows thrice
        table.append(some(0, 50))
        table.delete(f"id = {value} OR id = {value + 5}", mode="positions")
    table.append(some(50, 20))
    assert len({file.file.size for file in plan_of(table.scan()).files}) == 2
    table.delete("x = 12.0 OR x = 61.0")
    expected = table.scan(with_commit_ts=True).to_arrow()
    assert expected.num_rows == 3 * 50 + 20 - (3 + 2 + 1) * 2 - 2  # two rows of x = 12 are gone before
    before = spark.conf.get("spark.sql.optimizer.nestedSchemaPruning.enabled")
    spark.conf.set("spark.sql.optimizer.nestedSchemaPruning.enabled", pruning)
    try:
        frame = to_spark(table, with_commit_ts=True)
        assert rows_of(frame, expected.schema) == sorted_rows(expected)
    finally:
        spark.conf.set("spark.sql.optimizer.nestedSchemaPruning.enabled", before)


def test_an_empty_table_has_its_columns(spark: SparkSession, db: Database) -> None:
    frame = to_spark(db.create_table("empty", SCHEMA), ["s", "id"])
    assert (frame.columns, frame.count()) == (["s", "id"], 0)


def test_a_type_that_spark_does_not_have_is_named(spark: SparkSession, db: Database) -> None:
    clock = db.create_table("clock", pa.schema([("id", pa.int64()), ("at", pa.time64("us"))]))
    clock.append(pa.table({"id": [1], "at": pa.array([1], pa.time64("us"))}))
    with pytest.raises(SchemaError, match=r"column 'at'.*columns="):
        to_spark(clock)
    assert to_spark(clock, ["id"]).count() == 1


def test_a_key_or_a_condition_of_a_type_that_spark_does_not_have_hides_rows(spark: SparkSession, db: Database) -> None:
    clock = db.create_table(
        "clock", pa.schema([pa.field("at", pa.time64("us"), nullable=False), ("n", pa.int64())]), primary_key="at"
    )
    clock.append(pa.table({"at": pa.array(range(6), pa.time64("us")), "n": range(6)}))
    clock.delete(keys=pa.table({"at": pa.array([1], pa.time64("us"))}))
    clock.delete("at = '00:00:00.000002'")
    for where, expected in [(None, [0, 3, 4, 5]), ("at < '00:00:00.000005'", [0, 3, 4])]:
        assert sorted(row.n for row in to_spark(clock, ["n"], where, spark=spark).collect()) == expected


def test_what_cannot_be_asked_is_said_before_spark_is(spark: SparkSession, table: Table) -> None:
    with pytest.raises(Error, match="nowhere"):
        to_spark(table, ["nowhere"])
    with pytest.raises(PredicateError):
        to_spark(table, where="id =")


LIKES = ["a%", "%a%b", "%_a%", "a_%b", "%" + "a%" * 60 + "b", "_%_%_", "%.a", "a%_a%a", "%%", "", "%a" * 3_000]


@pytest.mark.slow
def test_like_means_the_same_and_ends_whatever_the_pattern(spark: SparkSession, db: Database) -> None:
    table = db.create_table("likes", pa.schema([("s", pa.string())]))
    table.append({"s": ["a" * 2_000 + "b", "a" * 2_000, "axb", "x.a", "", None]})
    for pattern in LIKES:
        where = f"s LIKE '{pattern}'"
        found = {row["s"] for row in to_spark(table, where=where).collect()}
        assert found == set(table.scan(where=where).to_arrow()["s"].to_pylist()), pattern[:20]


def test_deletes_that_compute_hide_the_same_rows(spark: SparkSession, db: Database) -> None:
    table = db.create_table("computed", pa.schema([("s", pa.string()), ("n", pa.int64())]))
    table.append({"s": ["A", "ß", None, "İ", "b"] * 40, "n": list(range(200))})
    table.delete("lower(s) = 'a' OR n % 7 = 3 OR upper(s) IS NULL AND n + 1 > 100")
    for where in (None, "n * 2 < 150", "CAST(n AS VARCHAR) LIKE '1%'"):
        expected = sorted(table.scan(["n"], where).to_arrow()["n"].to_pylist())
        assert 0 < len(expected) < 200
        assert sorted(row["n"] for row in to_spark(table, ["n"], where).collect()) == expected


@pytest.mark.slow
def test_many_small_files_are_read_together(
    spark: SparkSession, db: Database, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.delete("id = 7")
    assert "FileScan" in plan_text(table.to_spark())
    monkeypatch.setattr(reading, "MOST_SMALL_FILES", 1)
    frame = to_spark(table, ["id"], "x < 150", with_positions=True)
    assert "FileScan" not in plan_text(frame)
    assert sorted(row.id for row in frame.collect()) == [id_ for id_ in range(150) if id_ != 7]
    attached = attach(spark, db)
    try:
        assert sql("DELETE FROM t WHERE id % 100 = 8").operation == "delete"  # type: ignore[union-attr]
        assert table.count() == 296
    finally:
        attached.detach()


def plan_text(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())
