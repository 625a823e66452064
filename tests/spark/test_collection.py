"""Collection with its mark on Spark deletes what the core's would, and never anything that a kept version needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import dolmen
from dolmen import Database
from dolmen.base.records import replace
from dolmen.commit.head import context_of
from dolmen.errors import CorruptionError, InputError, VersionExpiredError
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.gc.mark import mark, split_mark, stable_code
from dolmen.spark import gc_and_index, tasks
from dolmen.spark.gc_and_index import SparkMarker, gc
from support.aging import DEFAULTS
from support.life import Life, copy_to_directory

FIXED = 7
SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or FIXED
LIVES = 12 if os.environ.get("DOLMEN_LONG") else 1
AT_ONCE = replace(DEFAULTS, keep_versions=5, retention_us=0, reader_grace_us=0, orphan_age_us=3_600_000_000)


def directory(life: Life, tmp_path: Path, name: str = "db") -> Database:
    copy_to_directory(life.place, tmp_path / name)
    return dolmen.open(str(tmp_path / name))


def there(tmp_path: Path, name: str = "db") -> set[str]:
    """Data, tombstones and segments."""
    root = tmp_path / name
    found = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return {key for key in found if key.startswith(("data/", "tombstone/", "segment/"))}


def grown(seed: int, steps: int = 60) -> Life:
    life = Life(seed)
    for _ in range(steps):
        life.step()
    for number in range(5):
        life.place.orphan(f"data/a/2025/10/09/0{number}/{number:032x}.parquet")
    return life


@pytest.fixture(scope="module")
def life() -> Life:
    """To be copied, not to be gone on with."""
    return grown(FIXED)


def versions(db: Database) -> dict[int, dict[str, list[int]]]:
    """What every version that can be read shows."""
    found: dict[int, dict[str, list[int]]] = {}
    for version in range(1, db.refresh() + 1):
        try:
            at = db.at(version)
        except VersionExpiredError:
            continue
        found[version] = {name: sorted(at.table(name).to_arrow()["k"].to_pylist()) for name in at.tables()}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("place", range(LIVES))
def test_spark_marks_what_the_core_marks_and_the_same_objects_go(
    place: int, life: Life, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = SEED + place
    print(f"DOLMEN_TEST_SEED={seed}")
    monkeypatch.setattr("dolmen.maintenance.gc.mark.PART_ENTRIES", 20)
    life = life if seed == FIXED else grown(seed)
    db, other = directory(life, tmp_path), directory(life, tmp_path, "other")
    manifest, segments = context_of(db).head.refresh().manifest, context_of(db).segments
    keys = sorted(there(tmp_path))
    for after in (0, manifest.version - 3):
        marker = SparkMarker(spark, db.url, context_of(db))
        ours = marker(manifest, segments, after).member_mask(keys).tolist()
        assert ours == mark(manifest, segments, after).member_mask(keys).tolist(), (seed, after)
        assert not all(ours)  # there are orphans
    before = versions(db)
    for _ in range(3):
        done, expected = (
            gc(spark, db, settings=AT_ONCE, full=True),
            collect(context_of(other), settings=AT_ONCE, full=True),
        )
        assert done.deleted.keys() == expected.deleted.keys()
        assert done.errors == {}
    assert {key for key in there(tmp_path) if not key.startswith("segment/")} == {
        key for key in there(tmp_path, "other") if not key.startswith("segment/")
    }
    kept = versions(dolmen.open(db.url))
    assert len(kept) >= 5
    assert all(kept[version] == before[version] for version in kept.keys() & before.keys())
    assert db.verify(deep=True, all_versions=True).findings == ()


@pytest.mark.slow
def test_a_dry_run_deletes_nothing_and_says_what_would_go(life: Life, spark: SparkSession, tmp_path: Path) -> None:
    db = directory(life, tmp_path)
    before = there(tmp_path)
    done = gc(spark, db, settings=AT_ONCE, full=True, dry_run=True)
    assert done.deleted["orphans"].objects >= 5
    assert there(tmp_path) == before


def test_what_a_killed_compaction_left_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    """Objects that a job's intent names and no commit does."""
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", pa.schema([("k", pa.int64())]))
    for k in range(3):
        table.append({"k": [k]})
    txid = "ab" * 16
    left = [f"data/t/2026/01/01/0{n}/{txid}-{n:032x}.parquet" for n in range(3)]
    for key in left:
        context_of(db).store.put(key, b"half a job")
        os.utime(tmp_path / "db" / key, (1_767_200_000, 1_767_200_000))
    gc(spark, db, settings=AT_ONCE)
    assert not there(tmp_path) & set(left)
    assert sorted(table.to_arrow()["k"].to_pylist()) == [0, 1, 2]
    assert db.verify(deep=True).findings == ()


@pytest.mark.slow
def test_nothing_is_deleted_when_a_segment_cannot_be_read(life: Life, spark: SparkSession, tmp_path: Path) -> None:
    db = directory(life, tmp_path)
    manifest = context_of(db).head.refresh().manifest
    _, parts = split_mark(manifest, context_of(db).segments, manifest.version)
    lost = next(part.segments[0].object for part in parts if part.kind == "files")
    (tmp_path / "db" / lost).unlink()
    fresh, before = dolmen.open(db.url), there(tmp_path)
    with pytest.raises(CorruptionError, match=lost):
        gc(spark, fresh, settings=AT_ONCE, full=True)
    assert there(tmp_path) >= before


@pytest.mark.parametrize("broken", [lambda found: found[1:], lambda found: [*found, found[0]]], ids=["lost", "twice"])
def test_nothing_is_deleted_unless_each_share_of_the_mark_comes_back_once(
    broken: Callable[[list[Any]], list[Any]],
    life: Life,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db = directory(life, tmp_path)
    before = there(tmp_path)
    collect_objects = tasks.collect_objects
    monkeypatch.setattr(tasks, "collect_objects", lambda *args: broken(collect_objects(*args)))
    with pytest.raises(AssertionError, match="came back"):
        gc(spark, db, settings=AT_ONCE, full=True)
    assert there(tmp_path) >= before


def test_nothing_is_deleted_when_tasks_make_other_codes_than_the_driver(
    life: Life, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = directory(life, tmp_path)
    before = there(tmp_path)
    monkeypatch.setattr(gc_and_index, "stable_code", lambda key: stable_code(key) + 1)  # tasks import their own
    with pytest.raises(AssertionError, match="different versions"):
        gc(spark, db, settings=AT_ONCE, full=True)
    assert there(tmp_path) >= before


@pytest.mark.slow
def test_a_task_that_finds_another_manifest_under_the_number_stops_the_mark(
    life: Life, spark: SparkSession, tmp_path: Path
) -> None:
    db = directory(life, tmp_path)
    manifest = msgspec.structs.replace(context_of(db).head.refresh().manifest, commit_id="f" * 32)
    with pytest.raises((PySparkException, Py4JJavaError), match="driver"):
        SparkMarker(spark, db.url, context_of(db))(manifest, context_of(db).segments, 0)


def test_a_database_in_memory_is_told_that_workers_cannot_reach_it(spark: SparkSession) -> None:
    with pytest.raises(InputError, match="memory"):
        gc(spark, dolmen.open("memory://collection"))
