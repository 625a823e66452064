"""Streams of changes: what a query reads, replayed, is the table; whatever is restarted, expired or altered between."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import dolmen
from dolmen import Database
from dolmen.api.database import Table
from dolmen.errors import ConflictError, InputError, SchemaError, VersionExpiredError
from dolmen.spark.frame_types import origins_of
from dolmen.spark.source.readers import source_feed
from dolmen.spark.source.source import CHANGES_READ, CHANGES_STREAM_READ
from dolmen.spark.source.streams import stream_reader
from dolmen.spark.tasks import raising_dolmen_errors
from support.feed_history import FED, KINDS, History, counted
from support.fences import move_fence

SEED = os.environ["DOLMEN_TEST_SEED"]
PAGE = (Path(__file__).parents[3] / "docs" / "spark-sql.md").read_text()
HISTORIES = 300 if os.environ.get("DOLMEN_LONG") else 4
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())])


def some(first: int, count: int, s: str = "a") -> pa.Table:
    return pa.table({"id": range(first, first + count), "s": [s] * count}, SCHEMA)


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", SCHEMA, primary_key="id")


class Stream:
    """The reader as Spark drives it, without Spark: offsets are kept, and a restart begins with the last one."""

    def __init__(self, db: Database, **options: object) -> None:
        self.options = {"path": db.url, "table": "t", "changes": "true"}
        self.options |= {name: str(value) for name, value in options.items()}
        self.offset: dict[str, Any] | None = None
        self.start()

    def start(self, *, anew: bool = True) -> None:
        """Starts the query, with its frame made again, or not."""
        if anew:
            self.schema = source_feed(self.options, {*CHANGES_READ, *CHANGES_STREAM_READ}).spark_schema()
        self.reader = stream_reader(self.options, self.schema)
        if self.offset:
            assert self.reader.partitions(self.offset, self.offset) == []

    def batch(self, *, is_killed: bool = False) -> list[dict[str, Any]] | None:
        """Rows of the next batch; None if there is nothing new.

        Args:
            is_killed: the query dies after the batch is planned and read, and does it again.
        """
        start = self.offset or self.reader.initialOffset()
        end = self.reader.latestOffset(start)
        if start == end:
            return None
        found = self.read(start, end)
        if is_killed:
            self.start(anew=False)
            assert as_said(self.read(start, end)) == as_said(found)
        self.offset = end
        self.reader.commit(end)
        return found

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        batches = [batch for part in self.reader.partitions(start, end) for batch in self.reader.read(part)]
        assert all(batch.schema.names == self.schema.names for batch in batches)
        found = [row for batch in batches for row in batch.to_pylist()]
        return sorted(found, key=lambda row: row["_version"])

    def all(self) -> list[list[tuple[str, int]]]:
        """The changes and their ids, sorted, as a list for each batch."""
        found = []
        while (batch := self.batch()) is not None:
            found.append(sorted((row["_change"], row["id"]) for row in batch))
        return found


def inserts(*ids: int) -> list[tuple[str, int]]:
    return [("insert", id_) for id_ in ids]


def test_a_query_begins_with_all_rows_and_goes_on_with_changes(db: Database, table: Table) -> None:
    stream = Stream(db)
    assert stream.all() == []
    table.append(some(0, 3))
    table.delete("id = 2")
    assert stream.all() == [inserts(0, 1)]
    table.upsert(some(1, 1, "b"))
    table.delete("id = 0")
    table.append(some(5, 1))
    db.create_table("other", SCHEMA).append(some(0, 5))
    db.maintain()
    assert stream.all() == [[("delete", 0), *inserts(5), ("update_after", 1), ("update_before", 1)]]
    stream.start()
    assert stream.all() == []
    assert Stream(db, net=True, columns="id").all() == [inserts(1, 5)]


def test_where_a_query_begins(db: Database, table: Table) -> None:
    for first in range(0, 6, 2):  # versions 2, 3, 4
        table.append(some(first, 2))
    table.delete("id = 0")
    created = {commit.version: commit.created_at for commit in db.history()}
    everything = [("delete", 0), *inserts(*range(6))]
    assert Stream(db, startingVersion=1).all() == [everything]
    assert Stream(db, startingVersion=2).all() == [everything]
    assert Stream(db, startingVersion=4).all() == [[("delete", 0), *inserts(4, 5)]]
    assert Stream(db, startingTimestamp=created[3].isoformat()).all() == [[("delete", 0), *inserts(4, 5)]]
    stream = Stream(db, startingVersion="latest")
    assert stream.all() == []
    table.delete("id = 1")
    assert stream.all() == [[("delete", 1)]]
    with pytest.raises(InputError, match="startingVersion and startingTimestamp"):
        Stream(db, startingVersion=1, startingTimestamp="2026-01-01")
    with pytest.raises(InputError, match=r"'since'.*changes"):
        stream_reader({**stream.options, "since": "1"}, stream.schema)


def test_so_many_versions_at_a_time(db: Database, table: Table) -> None:
    for first in range(0, 10, 2):  # versions 2 to 6
        table.append(some(first, 2))
    stream = Stream(db, startingVersion=1, maxVersionsPerTrigger=2)
    assert stream.all() == [inserts(0, 1), inserts(2, 3, 4, 5), inserts(6, 7, 8, 9)]
    assert Stream(db, maxVersionsPerTrigger=1).all() == [inserts(*range(10))]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(HISTORIES))
def test_batches_are_the_feed_between_their_versions(number: int, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} stream {number}")
    print(f"DOLMEN_TEST_SEED={SEED} history {number}")
    history = History(rng, str(tmp_path / "db"), [kind for kind in KINDS if kind != "time"], restores=number % 2 == 1)
    net = rng.random() < 0.3
    given = rng.choice([{}, {"startingVersion": 1}, {"cursor": "c"}]) | rng.choice([{}, {"maxVersionsPerTrigger": 3}])
    stream = Stream(history.db, net=net, **given)
    for _ in range(16):
        for _ in range(rng.randint(1, 3)):
            history.step()
        while follow(rng, history, stream, net):
            pass
        if rng.random() < 0.3:
            stream.start(anew=rng.random() < 0.5)
    assert stream.all() == []


def follow(rng: random.Random, history: History, stream: Stream, net: bool) -> bool:
    """Reads a batch, and compares it with what ``Table.changes`` says; False if there is none."""
    start, is_killed = stream.offset or stream.reader.initialOffset(), rng.random() < 0.3
    try:
        batch = stream.batch(is_killed=is_killed)
    except SchemaError:
        stream.start()
        batch = stream.batch()
    history.note()
    if batch is None or stream.offset is None:
        return False
    until, since, is_whole = stream.offset["version"], start["version"], not start["table"]
    expected = history.table.changes(0 if is_whole else since, until, net=net or is_whole).read_all().to_pylist()
    shown = history.columns[max(origin.version for origin in origins_of(stream.schema))]
    names = {name for name, id_ in history.columns[until].items() if shown.get(name) == id_}
    assert as_said(batch, names) == as_said(expected, names)
    return True


def as_said(rows: list[dict[str, Any]], names: set[str] | None = None) -> Counter[Any]:
    return counted(
        {
            **{name: row[name] for name in sorted(row.keys() if names is None else names) if name not in FED},
            "what": row["_change"],
            "version": row["_version"],
        }
        for row in rows
    )


def test_changed_columns_end_the_query_which_goes_on_when_its_frame_is_made_again(db: Database, table: Table) -> None:
    table.append(some(0, 1))
    stream, chosen = Stream(db, maxVersionsPerTrigger=1), Stream(db, columns="id", where="s <> 'x'")
    assert stream.all() == chosen.all() == [inserts(0)]
    table.append(some(1, 1))
    table.add_column("n", pa.int64(), 7)
    table.append([{"id": 2, "s": "a", "n": 1}])
    assert stream.batch() is not None  # the version before the change
    with pytest.raises(SchemaError, match=r"version 2.*version 5"):
        stream.batch()
    assert chosen.all() == [inserts(1, 2)]
    table.rename_column("s", "t")
    table.delete("id = 0")
    table.reorder(["n", "id"])
    stream.start()
    assert [row["n"] for row in stream.batch() or []] == [1]
    assert [(row["t"], row["n"]) for row in stream.batch() or []] == [("a", 7)]
    with pytest.raises(SchemaError, match="frame"):
        chosen.batch()


def test_a_table_that_was_created_again_is_another_one(db: Database, table: Table) -> None:
    table.append(some(0, 4))
    stream = Stream(db)
    stream.all()
    db.drop_table("t")
    db.create_table("t", SCHEMA).append(some(0, 1))
    for anew in (False, True):
        with pytest.raises(ConflictError, match="new checkpoint"):
            stream.batch()
        stream.start(anew=anew)
    early = Stream(db)
    db.drop_table("t")
    db.create_table("t", SCHEMA).append(some(0, 1))
    with pytest.raises(ConflictError, match="created"):
        early.batch()


def test_versions_that_have_expired_end_a_query_only_if_the_table_has_changed(db: Database, table: Table) -> None:
    table.append(some(0, 2))
    stream, slow = Stream(db), Stream(db)
    assert stream.all() == slow.all() == [inserts(0, 1)]
    other = db.create_table("other", SCHEMA)
    for first in range(5):
        other.append(some(first, 1))
    move_fence(db, horizon=6)
    table.append(some(2, 1))
    assert stream.all() == [inserts(2)]
    move_fence(db, horizon=db.version)
    with pytest.raises(VersionExpiredError, match=r"version 2.*option\(.cursor"):
        slow.batch()


def test_a_cursor_is_where_a_query_has_come_to(db: Database, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(some(0, 2))
    stream = Stream(db, cursor="spark")
    assert stream.all() == [inserts(0, 1)]
    assert db.cursor("spark").version == 3  # where it was made
    for first in range(2, 6):
        table.append(some(first, 1))
    stream.start()
    assert stream.all() == [inserts(2, 3, 4, 5)]
    assert stream.offset is not None
    assert db.cursor("spark").version == stream.offset["version"]
    db.create_table("other", SCHEMA)
    assert stream.all() == []
    assert db.cursor("spark").version == stream.offset["version"]
    monkeypatch.setattr("dolmen.spark.source.streams._IDLE", timedelta(0))
    newest = db.refresh()
    assert stream.all() == []
    assert db.cursor("spark").version == newest  # or else it would keep all versions that others make
    table.delete("id = 3")
    assert stream.all() == [[("delete", 3)]]


def test_two_queries_with_one_cursor_are_told(db: Database, table: Table) -> None:
    table.append(some(0, 2))
    one, two = Stream(db, cursor="c"), Stream(db, cursor="c")
    one.reader.latestOffset(one.reader.initialOffset())
    assert two.all() == [inserts(0, 1)]
    with pytest.raises(ConflictError, match="reader"):
        one.batch()
    one.start()
    table.append(some(2, 1))
    two.all()
    with pytest.raises(ConflictError, match="cursor"):
        one.batch()


@pytest.mark.slow
def test_the_replica_of_the_docs_is_the_table(spark: SparkSession, tmp_path: Path) -> None:
    (example,) = re.findall(r"<!-- example: replica -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    db, other = dolmen.open(str(tmp_path / "db")), dolmen.open(str(tmp_path / "other"))
    orders = db.create_table("orders", SCHEMA, primary_key="id")
    replica = other.create_table("orders", SCHEMA, primary_key="id")
    known = {"spark": spark, "url": db.url, "replica": replica, "checkpoint": str(tmp_path / "checkpoint")}

    def follow() -> None:
        exec(example, known)
        query: Any = known["query"]
        try:
            with raising_dolmen_errors():
                assert query.awaitTermination(300)
        finally:
            query.stop()
        assert sorted(map(str, replica.to_arrow().to_pylist())) == sorted(map(str, orders.to_arrow().to_pylist()))

    orders.append(some(0, 20))
    orders.delete("id = 5")
    follow()
    orders.upsert(some(3, 9, "b"))
    orders.delete("id IN (3, 17)")
    orders.append(some(50, 2))
    orders.delete("id = 50")
    db.compact()
    follow()
    assert replica.count() == 19
    assert db.cursors() == ["replica"]


@pytest.mark.slow
def test_errors_of_a_stream_reach_the_driver(spark: SparkSession, db: Database, table: Table, tmp_path: Path) -> None:
    table.append(some(0, 3))
    frame = spark.readStream.format("dolmen").options(table="t", changes=True).load(db.url)
    table.add_column("n", pa.int64())

    def run(frame: DataFrame) -> list[str]:
        seen: list[str] = []
        writer = frame.writeStream.foreachBatch(lambda batch, _: seen.extend(batch.columns))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()
        return seen

    with pytest.raises(SchemaError, match="frame"), raising_dolmen_errors():
        run(frame)
    again = spark.readStream.format("dolmen").options(table="t", changes=True).load(db.url)
    assert run(again) == ["id", "s", "n", "_change", "_version", "_commit_ts"]
