"""Collection never deletes an adopted file, and no receipt says "gone" while one may hold the rows."""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.format.layout import is_adopted
from dolmen.maintenance.gc.deletion import ObjectDeleter
from dolmen.maintenance.gc.mark import needed_keys
from dolmen.store.memory import MemoryBucket, MemoryStore, shared_bucket
from support.aging import Place
from support.erased import collect_own, days, maintain, people

MARKER = "marker-anna"


def put_people(bucket: MemoryBucket, key: str, *names: str) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(people(*names), sink)
    MemoryStore(bucket).put(key, sink.getvalue().to_pybytes())


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def lake() -> MemoryBucket:
    return shared_bucket(f"lake-{uuid4().hex}")


@pytest.mark.parametrize("own", [False, True])
def test_whatever_is_collected_adopted_files_stay_byte_for_byte(place: Place, lake: MemoryBucket, own: bool) -> None:
    bucket = place.bucket if own else lake
    for number in range(4):
        put_people(bucket, f"old/{number}.parquet", "anna", "bert", f"number {number}")
    before = {key: found.body for key, found in bucket.objects.items() if key.startswith("old/")}
    source = "old" if own else f"memory://{lake.name}/old"
    db = place.db
    db.set(retention="1d", keep_versions=1, root_bytes="64KB")
    db.adopt("t", source)
    db.adopt("dropped", source)
    db.tag("first")
    db.clone("t", "copy")
    table = db.table("t")
    table.append(people("carl"))
    table.delete("who = 'anna'")
    table.delete("n < 13", mode="positions")
    left = table.count()
    db.drop_table("dropped")
    days(place, 4)
    context = place.context()
    manifest = context.head.refresh().manifest
    assert manifest.freed >= 7
    assert not any(is_adopted(file.path) for file in manifest.tables["t"].files)  # compaction has rewritten them
    db = place.open()
    assert db.table("t").count() == left
    assert db.table("copy").count() == db.at(tag="first").table("t").count() == 120
    db.table("copy").overwrite(people("dora"))
    db.drop_tag("first")
    days(place, 4)
    context = place.context()
    manifest = context.head.refresh().manifest
    assert not any(map(is_adopted, needed_keys(manifest, context.segments)))
    assert {key: found.body for key, found in bucket.objects.items() if key.startswith("old/")} == before
    assert collect_own(place).errors == {}
    assert place.open().verify(deep=True).ok


def test_the_one_place_that_deletes_refuses_adopted_files() -> None:
    bucket = MemoryBucket()
    path = f"adopted/ids/own/a/{'0' * 32}.parquet"
    for key in (path, "a", "b"):
        bucket.objects[key] = bucket.objects.get("") or (MemoryStore(bucket).put(key, b"x") and bucket.objects[key])
    deleter = ObjectDeleter(MemoryStore(bucket))
    assert deleter.delete("released", [path, "b"]) == set()
    assert bucket.objects.keys() == {path, "a"}
    assert deleter.deleted["released"].objects == 1


def test_a_receipt_says_gone_only_when_adopted_files_with_the_rows_are_deleted(
    place: Place, lake: MemoryBucket
) -> None:
    put_people(lake, "old/1.parquet", MARKER, "bert")
    put_people(lake, "old/2.parquet", "carl")
    db = place.db
    db.set(erase_within="2d", erasure_memory="1s", orphan_age="1d", retention="1d", keep_versions=1)
    db.adopt("t", f"memory://{lake.name}/old")
    erased = db.table("t").erase(f"who = '{MARKER}'")
    assert db.table("t").count() == 20
    assert db.at(db.version - 1).table("t").count() == 20
    days(place, 8)
    receipt = place.open().receipt(erased.id)
    assert receipt.state == "rewritten"
    errors = collect_own(place).errors
    (label,) = errors
    assert label == f"memory://{lake.name}/old/1.parquet"
    assert "adopted" in errors[label]
    assert MARKER not in errors[label]
    assert "old/1.parquet" in lake.objects
    del lake.objects["old/1.parquet"]  # by whoever owns it
    maintain(place)
    place.pass_hours(6)
    collect_own(place)
    db = place.open()
    assert db.receipt(erased.id).state == "gone"
    assert db.table("t").count() == 20
    put_people(lake, "old/1.parquet", MARKER)
    assert not db.verify_receipt(erased.id).ok
