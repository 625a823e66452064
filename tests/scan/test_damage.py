"""Damaged and missing objects are found, and named; no wrong row comes out."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.errors import CorruptionError
from dolmen.format.entries import DataFile
from dolmen.rows.scan.data_objects import GAP_BYTES
from dolmen.store.cache import ObjectCache
from dolmen.store.local_store import LocalStore
from dolmen.store.memory import MemoryObject, MemoryStore
from dolmen_simulator.counting import CountingStore
from support.tables import World
from support.written import events


@pytest.fixture
def world() -> World:
    found = World(CountingStore(MemoryStore()))
    found.create(events(3000), group_rows=500)
    return found


def change(world: World, key: str, edit: Callable[[bytearray], bytes | bytearray]) -> None:
    """Changes an object behind everybody's back."""
    objects = world.store._store.bucket.objects
    there = objects[key]
    objects[key] = MemoryObject(bytes(edit(bytearray(there.body))), there.etag, there.last_modified_us)


def flip(place: int) -> Callable[[bytearray], bytearray]:
    def edit(body: bytearray) -> bytearray:
        body[place] ^= 0x10
        return body

    return edit


def flip_bit(place: int, bit: int) -> Callable[[bytearray], bytearray]:
    def edit(body: bytearray) -> bytearray:
        body[place] ^= 1 << bit
        return body

    return edit


def the_file(world: World) -> DataFile:
    (file,) = world.entry().files
    return file


def test_any_flipped_bit_in_a_page_is_found(world: World) -> None:
    file, rows = the_file(world), world.scan().to_arrow()
    original = world.store.get(file.path).body
    rng = random.Random(1)
    named: list[str] = []
    for _ in range(60):
        place = rng.randrange(4, file.footer[0])
        change(world, file.path, flip(place))
        try:
            assert world.scan().to_arrow().equals(rows), "wrong rows"  # a bloom filter or an index, which nobody read
        except CorruptionError as error:
            named.append(error.key)
        change(world, file.path, lambda _: original)
    assert set(named) == {file.path}
    assert len(named) > 50


def test_flipped_bits_in_the_data_of_pages_name_file_row_group_and_table(world: World) -> None:
    file = the_file(world)
    found = 0
    original = world.store.get(file.path).body
    for place in range(1000, 100_000, 10_007):
        change(world, file.path, flip(place))
        with pytest.raises(CorruptionError, match=r"row group \d+, table 't'"):
            world.scan().to_arrow()
        change(world, file.path, lambda _: original)
        found += 1
    assert found >= 9


def test_a_damaged_footer_is_found(world: World) -> None:
    file = the_file(world)
    for place in (file.footer[0] + 5, file.size - 6, file.size - 1):
        change(world, file.path, flip(place))
        with pytest.raises(CorruptionError, match="footer"):
            world.scan(["id"]).to_arrow()
        change(world, file.path, flip(place))
    assert world.scan(["id"]).to_arrow().num_rows == 3000


@pytest.mark.parametrize("rows", [1000, 30_000])
def test_a_file_of_another_length_is_found(rows: int) -> None:
    world = World(CountingStore(MemoryStore()))
    world.create(events(rows), group_rows=5000)
    file = the_file(world)
    assert (file.size > GAP_BYTES) == (rows == 30_000)
    for edit in (lambda body: body[:-1], lambda body: body + b"x", lambda body: b""):
        original = world.store.get(file.path).body
        change(world, file.path, edit)
        with pytest.raises(CorruptionError, match=f"{file.size}"):
            world.scan(["id"]).to_arrow()
        change(world, file.path, lambda _, original=original: original)


def test_an_entry_that_tells_another_number_of_rows_is_found(world: World) -> None:
    manifest = world.manifest
    entry = manifest.table("t")
    wrong = msgspec.structs.replace(entry, files=(msgspec.structs.replace(the_file(world), rows=2999),))
    with pytest.raises(CorruptionError, match=r"3000.* 2999"):
        world.scan(manifest=msgspec.structs.replace(manifest, tables={"t": wrong})).to_arrow()


def test_a_missing_data_file_is_named_with_its_table(world: World) -> None:
    file = the_file(world)
    cache = ObjectCache()
    cache_warm = world.scan(["id"], cache=cache)
    cache_warm.to_arrow()
    world.store.delete([file.path])
    cache.memory._new.clear()  # the footer is not among the first to go
    for scan in (world.scan(["id"]), cache_warm):
        with pytest.raises(CorruptionError, match=r"missing.*'t'") as caught:
            scan.to_arrow()
        assert caught.value.key == file.path


def test_a_missing_or_short_local_file_is_named(tmp_path: object) -> None:
    store = LocalStore(str(tmp_path))
    world = World(store)
    world.create(events(2000))
    file = the_file(world)
    scan = world.scan(["id"])
    scan.to_arrow()
    path = store.local_path(file.path)
    assert path is not None
    with open(path, "r+b") as opened:
        opened.truncate(1000)
    with pytest.raises(CorruptionError):
        scan.to_arrow()
    store.delete([file.path])
    with pytest.raises(CorruptionError, match="missing"):
        scan.to_arrow()
    with pytest.raises(CorruptionError, match="missing"):
        world.scan(["id"]).to_arrow()


def test_a_damaged_vector_is_found_even_if_it_parses(world: World) -> None:
    world.db.table("t").delete("amount > 70", mode="positions")
    vector = the_file(world).vector
    assert vector is not None
    rng = random.Random(2)
    for _ in range(40):
        edit = flip(vector.offset + rng.randrange(vector.length))
        change(world, vector.object, edit)
        with pytest.raises(CorruptionError) as caught:
            world.scan(["id"]).to_arrow()
        assert caught.value.key == vector.object
        change(world, vector.object, edit)
    assert world.scan().count() == world.scan().to_arrow().num_rows


@pytest.mark.slow
def test_damaged_keys_and_predicates_are_found(world: World) -> None:
    world.db.table("t").delete(keys=list(range(0, 3000, 2)), on=["id"])
    world.db.table("t").delete(" OR ".join(f"(id = {i} AND amount > {i})" for i in range(40)))
    for tombstone in world.entry().tombstones:
        blob = tombstone.blob
        change(world, blob.object, flip(blob.offset + blob.length // 2))
        with pytest.raises(CorruptionError) as caught:
            world.scan(["id"]).to_arrow()
        assert caught.value.key == blob.object
        change(world, blob.object, flip(blob.offset + blob.length // 2))
    assert world.scan().count() == 1500 - len([i for i in range(40) if i % 2]) + shown_of_first_forty(world)
    world.store.delete([world.entry().tombstones[0].blob.object])
    with pytest.raises(CorruptionError, match="missing"):
        world.scan(["id"]).to_arrow()


def shown_of_first_forty(world: World) -> int:
    found: pa.Table = world.scan(["id"], "id < 40").to_arrow()
    return found.num_rows


def test_a_page_whose_header_says_that_it_is_something_else_takes_no_rows_along(world: World) -> None:
    """No checksum of Parquet covers page headers: Parquet's readers pass over pages of kinds that they don't know."""
    file = the_file(world)
    chunk = pq.read_metadata(pa.BufferReader(world.store.get(file.path).body)).row_group(0).column(0)
    change(world, file.path, flip_bit(chunk.data_page_offset + 1, 0))
    with pytest.raises(CorruptionError, match=r"row group 0, table 't'"):
        world.scan(["id"]).to_arrow()
    with pytest.raises(CorruptionError, match=r"row group 0, table 't'"):
        world.scan(where="id >= 0 AND id <> 7").count()


def test_a_manifest_that_lists_a_file_with_a_vector_twice_is_damaged(world: World) -> None:
    world.db.table("t").delete("amount > 70", mode="positions")
    entry = world.entry()
    twice = msgspec.structs.replace(entry, files=entry.files * 2)
    manifest = msgspec.structs.replace(world.manifest, tables={"t": twice})
    with pytest.raises(CorruptionError, match="twice") as caught:
        world.scan(manifest=manifest).to_arrow()
    assert caught.value.key == the_file(world).path
