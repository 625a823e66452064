"""How many round trips of a scan wait for each other: counted exactly, on a timeline that only requests move."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from bench.round_trips import TimedRuntime, Timeline, TimelineStore

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.rows.scan.data_objects import GAP_BYTES
from dolmen.rows.scan.scan import plan_of
from dolmen.store.memory import MemoryBucket, MemoryStore
from support.tables import World
from support.written import events

COLUMNS = ["user_id", "amount"]


def distant(bucket: MemoryBucket, threads: int = 32) -> tuple[Database, TimelineStore]:
    """The same database, opened anew by a process far away. A request takes 1, whatever its size."""
    timeline = Timeline()
    runtime = TimedRuntime(threads=threads, cores=2, timeline=timeline)
    store = TimelineStore(MemoryStore(bucket, runtime), timeline)
    return Database(store, runtime), store


def depth(bucket: MemoryBucket, work: Callable[[Database], object], threads: int = 32) -> float:
    """The round trips that wait for each other, from opening the database on."""
    db, store = distant(bucket, threads)
    work(db)
    return store.timeline.now


def scan(db: Database) -> object:
    return db.table("t").scan(COLUMNS).to_arrow()


def plan(db: Database) -> object:
    return plan_of(db.table("t").scan(COLUMNS))


def explain(db: Database) -> object:
    return db.table("t").scan(COLUMNS).explain()


def world(files: int = 1, rows: int = 60_000, group_rows: int = 4096) -> tuple[World, MemoryBucket]:
    bucket = MemoryBucket()
    runtime = Runtime()
    there = World(MemoryStore(bucket, runtime), runtime)
    there.db.set(root_bytes="1MB")  # so that no entry of a file leaves the manifest
    there.create(events(rows), files=files, group_rows=group_rows)
    return there, bucket


def test_opening_sends_no_request() -> None:
    _, bucket = world(rows=10)
    assert depth(bucket, lambda db: db.table("t")) == 0


@pytest.mark.parametrize(("work", "trips"), [(plan, 2), (explain, 3), (scan, 4)])
def test_a_large_file_is_planned_after_two_opened_after_three_and_read_after_four(
    work: Callable[[Database], object], trips: int
) -> None:
    there, bucket = world()
    assert there.entry().files[0].size > GAP_BYTES
    assert depth(bucket, work) == trips


def test_small_files_come_whole_after_the_manifest() -> None:
    _, bucket = world(files=20)
    assert depth(bucket, scan) == 3


@pytest.mark.parametrize(("files", "trips"), [(32, 3), (33, 4), (64, 4), (65, 5)])
def test_what_does_not_fit_the_requests_in_flight_waits_for_the_first_of_them(files: int, trips: int) -> None:
    _, bucket = world(files=files, rows=files * 10)
    assert depth(bucket, scan) == trips


def test_entries_that_have_left_the_manifest_come_in_one_more() -> None:
    there, bucket = world(rows=10)
    there.db.set(root_bytes="4KB")
    for number in range(30):
        there.append(events(10, start=10 * number))
    assert len(there.entry().segments_of("files")) > 4
    assert depth(bucket, plan) == 3


def test_large_and_small_files_in_turns_are_read_at_once() -> None:
    there, bucket = world()
    for number in range(3):
        there.append(events(50, start=100_000 + number))
        there.append(events(60_000, start=200_000 * number), group_rows=4096)
    assert depth(bucket, scan) == 4


def test_vectors_come_beside_footers() -> None:
    there, bucket = world()
    there.append(events(60_000, start=60_000), group_rows=4096)
    for number in range(3):
        there.db.table("t").delete(f"user_id = {number}", mode="positions")
    assert depth(bucket, scan) == 4


def test_a_commit_that_ends_before_a_scan_begins_is_seen_though_the_database_was_opened_earlier() -> None:
    there, bucket = world(rows=10)
    db, _ = distant(bucket)
    table = db.table("t")
    there.append(events(5, start=10))
    assert table.count() == 15


def test_one_thread_reads_the_same_one_request_after_the_other() -> None:
    _, bucket = world(files=5)
    db, store = distant(bucket, threads=1)
    assert db.table("t").scan(COLUMNS).to_arrow().num_rows == 60_000
    assert store.timeline.now == store.gets == 7


def keyed(parts: int) -> tuple[MemoryBucket, list[int]]:
    """A table whose random keys are in files that overlap, each in a part of the index of its own."""
    bucket = MemoryBucket()
    db = Database(MemoryStore(bucket, Runtime()), Runtime())
    schema = pa.schema([pa.field("id", pa.int64(), False), ("amount", pa.float64()), ("note", pa.string())])
    table = db.create_table("t", schema, primary_key=["id"], properties={"index": True})
    source = np.random.default_rng(5)
    ids = source.permutation(parts * 30_000) * np.int64(1_000_003)
    for some in np.split(ids, parts):
        table.append(pa.table([some, source.random(len(some)), some.astype(str)], schema=schema))
        db.maintain(steps=["index"])
    assert len(context_of(db).head.refresh().manifest.tables["t"].segments_of("index")) == parts
    return bucket, ids.tolist()


@pytest.mark.parametrize("parts", [1, 3])
def test_a_look_up_goes_three_steps_after_the_manifest_however_many_keys_and_parts(parts: int) -> None:
    bucket, ids = keyed(parts)
    assert depth(bucket, lambda db: db.table("t").get(ids[7])) == 2 + 3, "root blocks, leaves, the row group"
    assert depth(bucket, lambda db: db.table("t").get_many(ids[::9_000])) == 2 + 3
    assert depth(bucket, lambda db: db.table("t").get(-1)) == 2, "it is beyond all bounds"
    db, store = distant(bucket)
    table = db.table("t")
    assert table.get(ids[7]) is not None
    before = store.timeline.now
    assert table.get(ids[7]) is not None
    assert store.timeline.now - before == 1, "the pointer"
