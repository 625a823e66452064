"""Streams from tables and into tables: every row once, whatever happens to files between batches."""

from __future__ import annotations

import os
import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

import dolmen
from dolmen import Database
from dolmen.api.database import Table
from dolmen.commit.head import context_of
from dolmen.errors import ConflictError, InputError, UnsettledTimestampError, VersionExpiredError
from dolmen.format.schema import COMMIT_TS
from dolmen.rows.scan.scan import plan_of
from dolmen.spark.source.source import STREAM_READ, source_table
from dolmen.spark.source.streams import TableStreamReader
from dolmen.spark.source.table_writers import batches_into
from dolmen.spark.tasks import raising_dolmen_errors
from support.fences import move_fence
from support.spark import streams_arrow

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
HISTORIES = 300 if os.environ.get("DOLMEN_LONG") else 12
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())])


def some(first: int, count: int) -> pa.Table:
    return pa.table({"id": range(first, first + count), "s": [f"s{i}" for i in range(first, first + count)]}, SCHEMA)


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", SCHEMA, primary_key="id")


class Stream:
    """The reader as Spark drives it, without Spark: offsets are kept, and a restart begins with the last one."""

    def __init__(self, db: Database, **options: object) -> None:
        self.options = {"path": db.url, "table": "t", **{name: str(value) for name, value in options.items()}}
        self.columns = source_table(self.options, STREAM_READ).columns
        self.offset: dict[str, Any] | None = None
        self.start()

    def start(self) -> None:
        self.reader = TableStreamReader(self.options, source_table(self.options, STREAM_READ).spark_schema())
        if self.offset:
            assert self.reader.partitions(self.offset, self.offset) == []

    def batch(self) -> list[int] | None:
        """Ids of the next batch; None if there is nothing new."""
        end = self.reader.latestOffset()
        start = self.offset or self.reader.initialOffset()
        if start == end:
            return None
        ids = self.read(start, end)
        assert ids == self.read(start, end)  # a batch that is done again is the same
        self.offset = end
        return ids

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        partitions = self.reader.partitions(start, end)
        batches = [batch for partition in partitions for batch in self.reader.read(partition)]
        assert all(batch.schema.names == list(self.columns) for batch in batches)
        return sorted(id_ for batch in batches for id_ in batch.column("id").to_pylist())

    def all(self) -> list[list[int]]:
        found = []
        while (batch := self.batch()) is not None:
            found.append(batch)
        return found


def test_a_batch_is_what_was_appended_since(db: Database, table: Table) -> None:
    stream = Stream(db)
    assert stream.batch() is None  # a table without rows
    table.append(some(0, 3))
    table.append(some(3, 3))
    assert stream.batch() == [0, 1, 2, 3, 4, 5]
    assert stream.batch() is None
    table.append(some(6, 2))
    stream.start()
    assert stream.all() == [[6, 7]]


def test_other_tables_and_upkeep_begin_no_batch(db: Database, table: Table) -> None:
    stream = Stream(db)
    for first in range(0, 30, 3):
        table.append(some(first, 3))
    assert len(stream.all()[0]) == 30
    db.create_table("other", SCHEMA).append(some(0, 5))
    before = len(plan_of(table.scan()).files)
    db.compact()
    assert len(plan_of(table.scan()).files) < before
    assert stream.all() == []
    table.append(some(30, 1))
    db.compact()
    assert stream.all() == [[30]]


def test_rows_within_a_range_are_read_once_although_compaction_has_moved_them(db: Database, table: Table) -> None:
    stream = Stream(db, with_commit_ts=True, columns="s,id")
    table.append(some(0, 5))
    assert stream.all() == [[0, 1, 2, 3, 4]]
    for first in range(5, 25, 2):
        table.append(some(first, 2))
    db.compact()
    assert stream.all() == [list(range(5, 25))]


def test_only_rows_of_the_predicate_are_read(db: Database, table: Table) -> None:
    stream = Stream(db, where="id > 3", columns="id")
    table.append(some(0, 6))
    assert stream.all() == [[4, 5]]


def test_so_many_versions_at_a_time(db: Database, table: Table) -> None:
    for first in range(0, 10, 2):  # versions 2 to 6
        table.append(some(first, 2))
    assert Stream(db, maxVersionsPerTrigger=2).all() == [[0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]
    assert Stream(db, maxVersionsPerTrigger=100).all() == [list(range(10))]
    stream = Stream(db, max_versions_per_trigger=1)
    other = db.create_table("other", SCHEMA)
    for _ in range(3):
        other.append(some(0, 1))
    table.append(some(10, 1))
    assert [len(batch) for batch in stream.all()] == [2, 2, 2, 2, 2, 1]


def test_a_stream_begins_where_it_is_told_to(db: Database, table: Table) -> None:
    for first in range(0, 6, 2):  # versions 2, 3, 4
        table.append(some(first, 2))
    created = [commit.created_at for commit in db.history()]
    assert Stream(db, startingVersion=1).all() == [list(range(6))]
    assert Stream(db, startingVersion=3).all() == [[2, 3, 4, 5]]
    assert Stream(db, startingVersion=4).all() == [[4, 5]]
    stream = Stream(db, startingVersion="latest")
    assert stream.all() == []
    table.append(some(6, 1))
    assert stream.all() == [[6]]
    assert Stream(db, startingTimestamp=int(created[1].timestamp() * 1e6)).all()[-1][-1] == 6
    with pytest.raises(UnsettledTimestampError, match="startingVersion=latest"):
        Stream(db, startingTimestamp=datetime.now(UTC).isoformat()).all()
    with pytest.raises(InputError, match="startingVersion and startingTimestamp"):
        Stream(db, startingVersion=1, startingTimestamp="2026-01-01")


def test_a_stream_whose_rows_are_deleted_fails_unless_told_to_go_on(db: Database, table: Table) -> None:
    table.append(some(0, 4))
    table.delete("id = 0")  # before the first batch: nobody has read it
    stream, lenient = Stream(db), Stream(db, ignoreDeletes=True)
    assert stream.all() == lenient.all() == [[1, 2, 3]]
    table.append(some(4, 2))
    table.delete("id = 1 OR id = 4")
    with pytest.raises(ConflictError, match=r"between versions 3 and 5.*ignoreDeletes"):
        stream.batch()
    assert lenient.all() == [[5]]  # of what came and went within a batch nothing is seen
    table.upsert(some(2, 1))
    table.overwrite(some(100, 2))
    assert lenient.all() == [[100, 101]]
    stream.options["ignoreDeletes"] = "true"
    stream.start()
    assert stream.all() == [[100, 101]]


def test_a_table_that_was_created_again_is_another_one(db: Database, table: Table) -> None:
    table.append(some(0, 4))
    stream = Stream(db, ignoreDeletes=True)
    stream.all()
    db.drop_table("t")
    db.create_table("t", SCHEMA).append(some(0, 1))
    with pytest.raises(ConflictError, match="new checkpoint"):
        stream.batch()


def test_only_the_end_of_a_batch_must_be_kept(db: Database, table: Table) -> None:
    for first in range(0, 10, 2):  # versions 2 to 6
        table.append(some(first, 2))
    slow = Stream(db, maxVersionsPerTrigger=2)
    assert slow.batch() == [0, 1]
    begun = slow.reader.latestOffset()
    assert begun["version"] == 4
    move_fence(db, horizon=6)
    assert slow.offset is not None
    with pytest.raises(VersionExpiredError, match="new query"):
        slow.reader.partitions(slow.offset, begun)
    slow.start()  # as if that batch had never been planned
    assert slow.all() == [list(range(2, 10))]
    assert Stream(db, startingVersion=6).all() == [[8, 9]]
    with pytest.raises(VersionExpiredError, match="version 5"):
        Stream(db, startingVersion=5).batch()


@pytest.mark.parametrize("place", range(HISTORIES))
def test_batches_are_what_the_history_says(place: int, tmp_path: Path) -> None:
    seed = SEED + place
    print(f"DOLMEN_TEST_SEED={seed}")
    rng = random.Random(seed)
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", SCHEMA, primary_key="id")
    most = rng.choice([None, 1, 2, 3])
    stream = Stream(db, ignoreDeletes=True, **({"maxVersionsPerTrigger": most} if most else {}))
    came, touched, next_id = Counter[int](), set[int](), 0
    for _ in range(rng.randint(10, 25)):
        step = rng.choice(["append", "append", "append", "upsert", "delete", "compact", "resolve", "read", "restart"])
        if step == "append":
            table.append(some(next_id, 3))
            next_id += 3
        elif step == "upsert" and next_id:
            touched.add(id_ := rng.randrange(next_id))
            table.upsert(some(id_, 1))
        elif step == "delete" and next_id:
            touched.add(id_ := rng.randrange(next_id))
            table.delete(f"id = {id_}", mode=rng.choice(["tombstone", "positions"]))
        elif step == "compact":
            db.compact()
        elif step == "resolve":
            db.resolve()
        elif step == "restart":
            stream.start()
        else:
            start = stream.offset or stream.reader.initialOffset()
            batch = stream.batch()
            if batch is not None:
                assert stream.offset is not None
                end = table.at(version=stream.offset["version"]).scan(["id"], with_commit_ts=True).to_arrow()
                within = [
                    row["id"]
                    for row in end.to_pylist()
                    if start["commit_ts"] < row[COMMIT_TS] <= stream.offset["commit_ts"]
                ]
                assert batch == sorted(within)
                came.update(batch)
    came.update(id_ for batch in stream.all() for id_ in batch)
    assert set(table.scan(["id"]).to_arrow()["id"].to_pylist()) <= came.keys()
    assert {came[id_] for id_ in range(next_id) if id_ not in touched} <= {1}


def run(writer: DataStreamWriter, checkpoint: Path) -> str:
    """Runs a query on what there is now, and gives its id."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    return str(query.id)


def read(spark: SparkSession, db: Database, **options: object) -> DataFrame:
    return spark.readStream.format("dolmen").options(**{"table": "t", **options}).load(db.url)


@pytest.mark.slow
@streams_arrow
def test_spark_streams_from_a_table_into_another_of_the_same_database(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    copy = db.create_table("copy", SCHEMA)
    table.append(some(0, 10))

    def into(frame: DataFrame) -> DataStreamWriter:
        return frame.writeStream.format("dolmen").option("path", db.url).option("table", "copy")

    first = run(into(read(spark, db)), tmp_path / "checkpoint")
    table.append(some(10, 5))
    db.compact()
    version = db.refresh()
    again = run(into(read(spark, db)), tmp_path / "checkpoint")
    assert first == again
    assert sorted(copy.to_arrow()["id"].to_pylist()) == list(range(15))
    assert db.refresh() == version + 1
    applied = [entry.id for entry in context_of(db).head.refresh().manifest.applied]
    assert applied == [f"stream:{first}:0", f"stream:{first}:1"]
    assert all((path / "done").exists() for path in (tmp_path / "db" / "intent").iterdir())
    run(into(read(spark, db)), tmp_path / "checkpoint")  # nothing is new
    assert db.refresh() == version + 1


@pytest.mark.slow
def test_two_queries_into_one_table_do_not_meet(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    table.append(some(0, 10))
    into = db.create_table("both", SCHEMA, primary_key="id")
    appended = run(read(spark, db).writeStream.foreachBatch(batches_into(into)), tmp_path / "one")
    upserted = run(read(spark, db).writeStream.foreachBatch(batches_into(into, "upsert")), tmp_path / "two")
    assert appended != upserted
    assert sorted(into.to_arrow()["id"].to_pylist()) == list(range(10))
    run(read(spark, db).writeStream.foreachBatch(batches_into(into)), tmp_path / "three")
    assert into.count() == 20  # a new checkpoint is a new query


@pytest.mark.slow
def test_a_batch_that_is_applied_again_changes_nothing(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    table.append(some(0, 10))
    into = db.create_table("into", SCHEMA, primary_key="id")
    write = batches_into(into)

    def twice(frame: DataFrame, batch: int) -> None:
        write(frame, batch)
        write(frame, batch)

    run(read(spark, db).writeStream.foreachBatch(twice), tmp_path / "checkpoint")
    assert into.count() == 10


@pytest.mark.slow
@streams_arrow
def test_complete_mode_replaces_the_table(spark: SparkSession, db: Database, table: Table, tmp_path: Path) -> None:
    counts = db.create_table("counts", pa.schema([("s", pa.string()), ("count", pa.int64())]))

    def count() -> None:
        frame = read(spark, db).groupBy("s").count()
        writer = frame.writeStream.format("dolmen").outputMode("complete").option("path", db.url)
        run(writer.option("table", "counts"), tmp_path / "checkpoint")

    table.append(some(0, 3))
    count()
    table.append(some(0, 2))
    count()
    assert sorted(counts.to_arrow()["count"].to_pylist()) == [1, 2, 2]


@pytest.mark.slow
def test_errors_of_a_stream_say_what_to_do(spark: SparkSession, db: Database, table: Table, tmp_path: Path) -> None:
    table.append(some(0, 3))
    into = db.create_table("into", SCHEMA)
    run(read(spark, db).writeStream.foreachBatch(batches_into(into)), tmp_path / "checkpoint")
    table.delete("id = 1")
    with pytest.raises(ConflictError, match="ignoreDeletes"), raising_dolmen_errors():
        run(read(spark, db).writeStream.foreachBatch(batches_into(into)), tmp_path / "checkpoint")
    with pytest.raises(InputError, match="foreachBatch"):
        batches_into(into)(spark.range(1), 0)
