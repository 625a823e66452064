"""``option("changes", True)``: Spark reads the change feed that ``Table.changes`` gives, in parts by many tasks."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import dolmen
from dolmen import Database
from dolmen.api.database import Table
from dolmen.spark.source.readers import SourcePartition, SourceReader, batch_reader, source_feed
from support.feed_history import KINDS, History, said
from support.fences import move_fence

SEED = os.environ["DOLMEN_TEST_SEED"]
HISTORIES = 300 if os.environ.get("DOLMEN_LONG") else 4
FAILED = (PySparkException, Py4JJavaError)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())])


def some(first: int, count: int, s: str = "a") -> pa.Table:
    return pa.table({"id": range(first, first + count), "s": [s] * count}, SCHEMA)


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", SCHEMA, primary_key="id")


def options(db: Database, **given: object) -> dict[str, str]:
    return {"path": db.url, "table": "t", "changes": "true", **{name: str(value) for name, value in given.items()}}


def feed(spark: SparkSession, db: Database, **given: object) -> DataFrame:
    return spark.read.format("dolmen").options(**options(db, **given)).load()


def reader(db: Database, **given: object) -> SourceReader:
    """The reader as Spark makes it, without Spark."""
    feed = source_feed(options(db, **given))
    made = batch_reader(feed, feed.spark_schema(), options(db, **given))
    assert isinstance(made, SourceReader)
    return made


def rows(batches: Any) -> Counter[Any]:
    return Counter(
        tuple((name, said(value)) for name, value in row.items()) for batch in batches for row in batch.to_pylist()
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", range(HISTORIES))
def test_the_parts_of_a_feed_are_the_feed(number: int, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} {number}")
    print(f"DOLMEN_TEST_SEED={SEED} history {number}")
    history = History(rng, str(tmp_path / "db"), [kind for kind in KINDS if kind != "time"], restores=number % 2 == 1)
    for _ in range(16):
        history.step()
    newest = history.db.version
    for _ in range(6):
        since, until = sorted((rng.randint(0, newest), rng.randint(2, newest)))
        if until < 3:  # the table was made by version 3 at the latest
            continue
        net, where = rng.random() < 0.5, rng.choice([None, None, "id < 6", "id > 3 AND id <> 7"])
        own = reader(history.db, since=since, until=until, net=net, **({"where": where} if where else {}))
        expected = history.table.changes(since, until, where=where, net=net).read_all()
        found = [batch for part in own.partitions() for batch in own.read(part)]
        kinds = pa.Table.from_batches(found, own.arrow_schema).cast(expected.schema).to_batches()
        assert rows(kinds) == rows(expected.to_batches()), (since, until, net, where)


@pytest.mark.slow
def test_spark_reads_the_feed(spark: SparkSession, db: Database, table: Table) -> None:
    table.append(some(0, 50))
    table.upsert(some(10, 5, "b"))
    table.delete("id < 3")
    expected = table.changes(0).read_all()
    frame = feed(spark, db, since=0)
    assert frame.columns == ["id", "s", "_change", "_version", "_commit_ts"]
    # the table's columns are nullable: of an erased row the feed tells the key alone
    assert [field.nullable for field in frame.schema] == [True, True, False, False, False]
    assert rows(frame.toArrow().to_batches()) == rows(expected.to_batches())
    kinds = {row["_change"]: row["count"] for row in frame.groupBy("_change").count().collect()}
    assert kinds == {"insert": 50, "update_before": 5, "update_after": 5, "delete": 3}
    table.append(some(50, 1))
    assert frame.count() == 63  # a frame shows the versions up to the one that was the newest when it was made
    net = feed(spark, db, since=2, net=True, columns="s,id", where="id < 12")
    assert Counter((row["_change"], row["id"]) for row in net.collect()) == Counter(
        [("delete", id_) for id_ in range(3)]
        + [(what, id_) for what in ("update_before", "update_after") for id_ in (10, 11)]
    )
    told = f"path '{db.url}', table 't', changes 'true', since '2', until '4'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW fed USING dolmen OPTIONS ({told})")
    counts = spark.sql("SELECT _version, count(*) FROM fed GROUP BY 1").collect()
    assert {tuple(row) for row in counts} == {(3, 10), (4, 3)}
    picked = (
        spark.read.format("dolmen").options(**options(db, since=2, until=3)).schema("_version long, s string").load()
    )
    assert {(row["_version"], row["s"]) for row in picked.collect()} == {(3, "a"), (3, "b")}


def test_files_of_a_commit_without_updates_are_read_by_many_tasks_and_each_once(db: Database, table: Table) -> None:
    with db.transaction() as tx:
        for first in range(0, 400, 10):
            tx.table("t").append(some(first, 10))
    table.delete("id < 200")
    own = reader(db, since=1)
    partitions = own.partitions()
    assert len(partitions) >= 30
    read = [part for each in partitions if isinstance(each, SourcePartition) for part in each.parts]
    lost = [path for part in read for path in part.lost or ()]
    new = [path for part in read for path in part.new or ()]
    assert (len(lost), len(set(lost)), len(new), len(set(new))) == (20, 20, 40, 40)


def test_an_upsert_is_read_by_one_task_as_rows_are_paired(db: Database, table: Table) -> None:
    table.append(some(0, 10))
    table.append(some(10, 10))
    table.upsert(some(5, 10, "b"))
    own = reader(db, since=3)
    (partition,) = own.partitions()
    assert isinstance(partition, SourcePartition)
    (part,) = partition.parts
    assert (part.lost, part.new) == (None, None)
    assert sum(batch.num_rows for batch in own.read(partition)) == 20


@pytest.mark.slow
def test_the_columns_are_those_of_the_last_version(spark: SparkSession, db: Database, table: Table) -> None:
    table.append(some(0, 2))
    table.rename_column("s", "name")
    table.add_column("n", pa.uint32(), 7)
    table.delete("id = 0")
    found = feed(spark, db, since=1).where("_change = 'delete'").drop("_version", "_commit_ts").collect()
    assert [tuple(row) for row in found] == [(0, "a", 7, "delete")]
    assert feed(spark, db, since=1, until=2).columns[:2] == ["id", "s"]


def test_a_feed_between_two_times(db: Database, table: Table) -> None:
    table.append(some(0, 2))
    table.append(some(2, 3))
    first = next(commit for commit in db.history() if commit.version == 2)
    own = reader(db, since=first.created_at.isoformat())
    assert sum(batch.num_rows for part in own.partitions() for batch in own.read(part)) == 3
    assert reader(db, since=db.version).partitions() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "since"),
        ({"since": 3, "until": 2}, "since=3 is after until=2"),
        ({"since": 9}, "no version 9"),
        ({"since": 1, "version": 2}, "option 'version'"),
        ({"since": 1, "columns": "id,id"}, "twice"),
        ({"since": 1, "columns": "nowhere"}, "no column 'nowhere'"),
        ({"since": 1, "where": "nowhere = 1"}, "no column 'nowhere'"),
        ({"since": "yesterday"}, "not ISO 8601"),
        ({"since": 1, "net": "perhaps"}, "true or false"),
    ],
)
def test_options_that_say_nothing_are_refused(
    given: dict[str, object], message: str, db: Database, table: Table
) -> None:
    table.append(some(0, 1))
    table.append(some(1, 1))
    with pytest.raises(dolmen.errors.Error, match=message):
        reader(db, **given)


def test_errors_reach_the_driver(spark: SparkSession, db: Database, table: Table) -> None:
    for first in range(4):
        table.append(some(first, 1))
    move_fence(db, horizon=4)
    with pytest.raises(FAILED, match=r"version 2.* 4"):
        feed(spark, db, since=2).count()
    table.add_column("_change", pa.string())
    with pytest.raises(FAILED, match="column"):
        feed(spark, db, since=5).count()


@pytest.mark.slow
def test_a_frame_of_a_tag_shows_its_version(spark: SparkSession, db: Database, table: Table) -> None:
    table.append(some(0, 3))
    db.tag("before")
    table.overwrite(some(10, 1))
    assert sorted(row["id"] for row in table.at(tag="before").to_spark(spark=spark).collect()) == [0, 1, 2]
    plain = spark.read.format("dolmen").option("table", "t")
    assert sorted(row["id"] for row in plain.option("tag", "before").load(db.url).collect()) == [0, 1, 2]
    with pytest.raises(FAILED, match="tag 'after'"):
        plain.option("tag", "after").load(db.url)
    with pytest.raises(FAILED, match=r"(tag|version) and (tag|version)"):
        plain.option("tag", "before").option("version", 1).load(db.url)
