"""``verify`` finds nothing after any job of maintenance, and finds what is wrong with what they have written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.maintenance.segment_merging import merge_segments
from dolmen.store.memory import MemoryBucket, MemoryStore
from support.damaged import Damaged, copy_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.float64())])
DAY_US = 86_400_000_000


class Days:
    """A store's clock that the test sets, and a local one that goes with it."""

    def __init__(self) -> None:
        self.now_us = 1_760_000_000_000_000
        self.bucket = MemoryBucket(lambda: self.now_us)
        self.runtime = Runtime(clock_us=lambda: self.now_us, monotonic=lambda: self.now_us / 1e6)

    def database(self) -> Database:
        return Database(MemoryStore(self.bucket, self.runtime), self.runtime)


def history(days: Days, root_bytes: str) -> Database:
    """Many small files in any order of the sort key, tombstones and vectors."""
    db = days.database()
    db.set(root_bytes=root_bytes, keep_versions=3, retention="1d")
    table = db.create_table("t", SCHEMA, primary_key="k", sort_key="k")
    for number in range(40):
        ids = [(number * 10 + i) * 7 % 401 for i in range(10)]
        table.append(pa.table({"k": ids, "v": [None if i % 3 else i / 2 for i in ids]}, SCHEMA))
        if number % 4 == 0:
            table.delete(f"k < {number} AND v > 3")
        if number % 5 == 0:
            table.delete(keys=[number, number + 1])
        if number % 6 == 0:
            table.delete(f"k BETWEEN {number * 3} AND {number * 3 + 9}", mode="positions")
    return db


@pytest.mark.slow
@pytest.mark.parametrize("root_bytes", ["8KB", "1MB"])
def test_nothing_is_found_after_any_job(root_bytes: str) -> None:
    days = Days()
    db = history(days, root_bytes)
    expected = sorted(map(str, db.table("t").to_arrow().to_pylist()))
    jobs = {
        "nothing": lambda: None,
        "resolve": db.resolve,
        "compact": db.compact,
        "merge": lambda: merge_segments(db._context),
        "gc moves the fence": db.gc,
    }
    for name, job in jobs.items():
        job()
        assert copy_of(days.bucket).verify(deep=True, all_versions=True).findings == (), name
    for later in range(1, 4):  # versions expire, orphans are swept
        days.now_us += 9 * DAY_US
        db.refresh()
        db.table("t").append(pa.table({"k": [1_000 + later], "v": [None]}, SCHEMA))
        db.gc()
        report = copy_of(days.bucket).verify(deep=True, all_versions=True)
        assert report.findings == (), later
    assert report.checked["data files"] < 40
    assert report.orphaned.objects == 0
    assert db._context.head.refresh().manifest.freed > 40
    assert sorted(map(str, rows(db))) == expected


def rows(db: Database) -> list[object]:
    found: list[object] = db.table("t").scan(where="k < 1000").to_arrow().to_pylist()
    return found


@pytest.fixture(scope="module")
def compacted() -> MemoryBucket:
    days = Days()
    db = history(days, "1MB")
    db.resolve()
    db.compact()
    return days.bucket


def with_commit_ts(db: Damaged) -> int:
    return next(place for place, file in enumerate(db.table().files) if file.row_ts is None)


def test_rows_outside_the_bounds_of_their_timestamps_are_found(compacted: MemoryBucket) -> None:
    db = copy_of(compacted)
    place = with_commit_ts(db)
    least, greatest = db.file(place).row_ts_bounds or (0, 0)
    key = db.edit_file(place, row_ts_bounds=(least + 1, greatest))
    assert db.found() == set()
    assert db.found(deep=True) == {("row-timestamps", key)}


def test_a_file_whose_rows_are_said_to_be_of_one_time_and_that_tells_each_rows_is_found(
    compacted: MemoryBucket,
) -> None:
    db = copy_of(compacted)
    place = with_commit_ts(db)
    file = db.file(place)
    key = db.edit_file(place, row_ts=file.applied_through, row_ts_bounds=None)
    assert db.found() == {("file-columns", key)}


def test_row_timestamps_beyond_the_commit_are_found(compacted: MemoryBucket) -> None:
    db = copy_of(compacted)
    place = with_commit_ts(db)
    least, _ = db.file(place).row_ts_bounds or (0, 0)
    key = db.edit_file(place, row_ts_bounds=(least, db.manifest.commit_ts + 1))
    assert db.found() == {("file-timestamps", key)}


def test_an_orphan_that_a_sweep_has_left_is_a_warning(compacted: MemoryBucket) -> None:
    db = copy_of(compacted)
    now = db.manifest.created_at
    key = db.put("data/t/2020/01/01/00/stray.parquet", b"x")
    there = db.bucket.objects[key]
    db.bucket.objects[key] = type(there)(there.body, there.etag, now - 100)
    db.edit(orphan_cutoff=now - 10, swept=now - 50)
    report = db.verify()
    assert report.ok
    assert ("orphan-left", key) in {(found.kind, found.object) for found in report.findings}
