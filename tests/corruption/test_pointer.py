"""The one object that changes: a pointer that was put back, or is somebody else's, is told of as soon as it can be."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from corruption.acts import all_rows, healthy, opened, rows_of
from corruption.damages import by_kind
from corruption.worlds import World, kept, kinds, spilled
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import CorruptionError, DatabaseNotFoundError
from dolmen.format.layout import POINTER, Pointer, parse_manifest_key
from dolmen.format.manifest import Manifest
from dolmen.maintenance.verify.verification import verify
from dolmen.store.memory import MemoryBucket, MemoryObject, MemoryStore
from dolmen_simulator.counting import CountingStore
from support.aging import Place, rows


def put(bucket: MemoryBucket, key: str, body: bytes) -> None:
    bucket.objects[key] = MemoryObject(body, f'"{hash(body)}"', bucket.objects[key].last_modified_us)


def earlier(world: World) -> list[bytes]:
    """Pointers that the database had and whose version is still kept, oldest first."""
    return [
        body for body in world.earlier[POINTER] if Pointer.decode(body, POINTER).version >= world.horizon
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("build", [kinds, spilled])
def test_a_pointer_that_was_put_back_is_found_by_whoever_saw_it_further_on(build: object) -> None:
    world = build()  # type: ignore[operator]
    for body in earlier(world):
        bucket = world.bucket()
        db = opened(bucket, world)
        db.refresh()
        put(bucket, POINTER, body)
        t = db.table("t")
        for act in (db.refresh, t.to_arrow, t.count, partial(t.delete, "TRUE", mode="positions"), db.gc):
            with pytest.raises(CorruptionError, match=r"_latest_manifest.*version \d+"):
                act()
        put(bucket, POINTER, world.objects[POINTER].body)
        assert all_rows(db) == rows_of(world)


def test_whoever_never_saw_it_further_on_reads_the_old_version_whole() -> None:
    world = kinds()
    for body in earlier(world):
        bucket = world.bucket()
        version = Pointer.decode(body, POINTER).version
        snapshot = opened(bucket, world).at(version)
        wanted = {name: snapshot.table(name).count() for name in snapshot.tables()}
        put(bucket, POINTER, body)
        db = opened(bucket, world)
        assert db.version == version
        assert {name: db.table(name).count() for name in db.tables()} == wanted


def test_a_pointer_of_another_commit_than_its_manifest_is_damage() -> None:
    world = kinds()
    pointer = Pointer.decode(world.objects[POINTER].body, POINTER)
    bucket = world.bucket()
    put(bucket, POINTER, msgspec.structs.replace(pointer, commit_id="0" * 32).encode())
    with pytest.raises(CorruptionError, match=r"_latest_manifest.* 000"):
        opened(bucket, world).refresh()


def test_an_older_manifest_that_is_not_the_one_history_tells_of_is_damage() -> None:
    world = kinds()
    key = next(key for key in world.objects if (parsed := parse_manifest_key(key)) and parsed[0] == 5)
    other = msgspec.structs.replace(Manifest.decode(world.objects[key].body, key), commit_id="0" * 32)
    bucket = world.bucket()
    put(bucket, key, other.encode())
    db = opened(bucket, world)
    with pytest.raises(CorruptionError, match=f"{key}.* 000"):
        db.at(5)
    assert all_rows(db) == rows_of(world)


def test_two_processes_that_commit_in_turn_never_take_the_pointer_for_put_back() -> None:
    place = Place()
    first, second = place.db, place.open()
    first.create_table("t", rows(0).schema)
    for turn in range(10):
        (first, second)[turn % 2].table("t").append(rows(turn))
        assert first.refresh() == second.refresh() == turn + 2


def test_verification_tells_that_a_pointer_was_put_back_by_two_versions_or_more() -> None:
    """One version back looks like a commit that crashed before it landed: nobody could tell them apart."""
    world = kinds()
    for body in earlier(world):
        bucket = world.bucket()
        put(bucket, POINTER, body)
        report = verify(context_of(opened(bucket, world)))
        assert Pointer.decode(body, POINTER).version < world.newest - 1
        assert [(found.kind, found.object) for found in report.errors] == [("pointer-back", POINTER)]
    assert verify(context_of(opened(world.bucket(), world))).findings == ()


def test_a_lost_pointer_is_no_empty_database_to_anybody() -> None:
    world = kinds()
    bucket = world.bucket()
    known = opened(bucket, world)
    del bucket.objects[POINTER]
    with pytest.raises(CorruptionError, match="_latest_manifest"):
        known.table("t").to_arrow()
    with pytest.raises(CorruptionError, match="_latest_manifest"):
        opened(bucket, world).refresh()
    found = verify(context_of(known)).findings
    assert [(each.kind, each.object) for each in found] == [("pointer-damaged", POINTER)]
    assert "gone" in found[0].reason


def test_one_listing_tells_a_new_place_from_a_lost_pointer() -> None:
    runtime = Runtime()
    bucket = MemoryBucket()
    store = CountingStore(MemoryStore(bucket, runtime))
    db = Database(store, runtime)
    for _ in range(3):
        assert db.tables() == []
    assert (store.lists, store.gets) == (1, 3)
    with pytest.raises(DatabaseNotFoundError):
        verify(context_of(db))
    db.create_table("t", rows(0).schema)
    there = CountingStore(MemoryStore(bucket, runtime))
    assert Database(there, runtime).tables() == ["t"]
    assert there.lists == 0


@pytest.mark.slow
def test_verification_tells_of_heartbeats_that_can_not_be_read() -> None:
    world = spilled()
    for key in by_kind(world)["heartbeat"]:
        bucket = world.bucket()
        put(bucket, key, world.objects[key].body[:-3])
        report = verify(context_of(opened(bucket, world)), deep=True)
        assert [(found.kind, found.object) for found in report.findings] == [("intent-damaged", key)]


def test_deep_verification_of_all_versions_reads_what_older_ones_alone_need() -> None:
    world = kept()
    newest = set(healthy(world, "scan t").read) | set(healthy(world, "scan over").read)
    older = [key for key in by_kind(world)["data"] if key not in newest and key in healthy(world, "verify deep").read]
    assert older
    for key in older[:4]:
        bucket = world.bucket()
        body = bytearray(world.objects[key].body)
        body[60] ^= 4
        put(bucket, key, bytes(body))
        context = context_of(opened(bucket, world))
        assert [found.object for found in verify(context, deep=True, all_versions=True).errors] == [key]
        assert verify(context, deep=True).ok, "the newest version does not need it"
