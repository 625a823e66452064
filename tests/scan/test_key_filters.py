"""Bloom filters of keys: they spare files, never a row, and cost nothing where they can't help."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dolmen.commit.statements.row_changes import Write
from dolmen.entries.segments.live import LiveFiles
from dolmen.format.bloom_filters import decode, false_positives, hashes_in_file, may_contain_mask, xxhash64
from dolmen.format.entries import DataFile
from dolmen.rows.scan.scan import Scan, reader_of
from dolmen.store.cache import ObjectCache
from dolmen.transactions.transaction import unit_of
from support.tables import World, write_file


def uuids(rows: int, random_: random.Random) -> list[str]:
    """Random keys as text."""
    return [f"{random_.getrandbits(128):032x}" for _ in range(rows)]


def overlapping(
    files: int, rows: int, *, bits: int | None = None, seed: int = 7, width: int = 80, group_rows: int = 4096
) -> World:
    """A table of files that all have keys from end to end."""
    world, random_ = World(), random.Random(seed)
    properties = {} if bits is None else {"key_filter_bits": bits}
    schema = pa.schema({"id": pa.string(), "file": pa.int64(), "text": pa.string()})
    world.db.create_table("t", schema, primary_key=["id"], properties=properties)
    with world.db.transaction() as tx:
        entry = unit_of(tx).entry("t")
        unit_of(tx).begin_upload()
        written = []
        for file in range(files):
            texts = [random_.randbytes(width // 2).hex() for _ in range(rows)]
            data = pa.table([uuids(rows, random_), [file] * rows, texts], schema=schema)
            written.append(write_file(world.store, "t", entry, data, group_rows))
        unit_of(tx).add(Write("t", entry.uuid, files=tuple(written)))
    return world


def files_of(world: World) -> list[DataFile]:
    return list(LiveFiles.of(world.entry(), world.db._context.segments))


def keys_of(world: World, file: int) -> list[str]:
    found: list[str] = world.scan(["id"], f"file = {file}").to_arrow()["id"].to_pylist()
    return found


def fetched(world: World, scan: Scan) -> tuple[int, int]:
    """GETs and bytes of running a scan."""
    world.store.reset()
    scan.to_arrow()
    return world.store.gets, world.store.bytes_down


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_hashes_are_those_of_the_specification(text: bytes, expected: int) -> None:
    assert xxhash64(np.frombuffer(text, np.uint8).reshape(1, -1)).tolist() == [expected]


KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-128, -1, 0, 1, 127]),
    "int16": (pa.int16(), [-32768, -1, 0, 7, 32767]),
    "int32": (pa.int32(), [-(2**31), -1, 0, 7, 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), -1, 0, 7, 2**63 - 1]),
    "uint8": (pa.uint8(), [0, 7, 200, 255]),
    "uint16": (pa.uint16(), [0, 7, 60_000]),
    "uint32": (pa.uint32(), [0, 7, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, 7, 2**64 - 1]),
    "string": (pa.string(), ["", "a", "äöü", "x" * 31, "x" * 32, "x" * 33, "y" * 63, "z" * 1000]),
    "binary": (pa.binary(), [b"", b"\0", b"1234567", b"12345678", b"x" * 44, b"y" * 4000]),
    "fixed": (pa.binary(16), [bytes(range(16)), bytes(16)]),
    "date": (pa.date32(), [date(1960, 1, 1), date(2026, 11, 23)]),
    "time": (pa.time64("us"), [time(0, 0), time(23, 59, 59, 999_999)]),
    "timestamp": (pa.timestamp("us"), [datetime(1960, 1, 1), datetime(2026, 11, 23, 1, 2, 3, 4)]),
    "zoned": (pa.timestamp("us", "UTC"), [datetime(1960, 1, 1, tzinfo=UTC), datetime(2026, 11, 23, tzinfo=UTC)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_is_found_in_the_filter_that_parquet_s_writer_made(kind: str) -> None:
    arrow_type, values = KINDS[kind]
    array = pa.array(values, arrow_type)
    world = World()
    world.create(pa.table({"k": array}), key=["k"], group_rows=100)
    file = world.entry().files[0]
    footer = reader_of(Scan(world.view()))
    (opened,) = footer.open_files(footer.plan.files)
    chunk = opened.footer.metadata.row_group(0).column(0)
    body = world.store.get(file.path).body
    assert file.filters == chunk.bloom_filter_offset
    start = chunk.bloom_filter_offset
    blocks = decode(body[start : start + chunk.bloom_filter_length])
    assert blocks is not None
    hashed = hashes_in_file(array, arrow_type)
    part = hashes_in_file(array.slice(1), arrow_type)  # an offset into the buffers
    assert hashed is not None
    assert part is not None
    assert part[0].tolist() == hashed[0].tolist()[1:]
    assert may_contain_mask(blocks, hashed[0]).all()
    assert hashed[1].all()


def test_filters_are_wrong_as_seldom_as_their_size_says() -> None:
    assert false_positives(8) == pytest.approx(0.033, rel=0.02)
    assert false_positives(64) < 2e-6
    for bits in (8, 16):
        world = overlapping(1, 4096, bits=bits)
        reader = reader_of(world.scan())
        (opened,) = reader.open_files(reader.plan.files)
        chunk = opened.footer.metadata.row_group(0).column(0)
        body = world.store.get(opened.file.path).body
        blocks = decode(body[chunk.bloom_filter_offset : chunk.bloom_filter_offset + chunk.bloom_filter_length])
        assert blocks is not None
        assert blocks.nbytes == 4096 * bits // 8
        hashed = hashes_in_file(pa.array(uuids(40_000, random.Random(1))), pa.string())
        assert hashed is not None
        assert may_contain_mask(blocks, hashed[0]).mean() < 1.5 * false_positives(bits)


@pytest.mark.slow
def test_a_key_among_files_that_all_may_hold_it_is_looked_up_in_few() -> None:
    world = overlapping(100, 200)
    key = keys_of(world, 41)[17]
    where = f"id = '{key}'"
    explanation = world.scan(where=where).explain()
    whole = sum(file.size for file in files_of(world))
    assert explanation.filtered_files == 100
    assert 90 <= explanation.excluded_files <= 99
    assert explanation.filter_fetch.requests == 100
    assert explanation.footer_fetch.requests == 0
    assert explanation.data_fetch.requests == 100 - explanation.excluded_files
    assert explanation.fetch.bytes * 3 < whole
    assert fetched(world, world.scan(where=where)) == (explanation.fetch.requests, explanation.fetch.bytes)
    assert world.scan(["file"], where).to_arrow()["file"].to_pylist() == [41]
    assert "bloom filters" in repr(explanation)


def test_filters_are_fetched_once() -> None:
    world = overlapping(40, 300)
    cache = ObjectCache()
    world.scan(where=f"id = '{keys_of(world, 3)[0]}'", cache=cache).to_arrow()
    again = world.scan(where=f"id = '{keys_of(world, 9)[0]}'", cache=cache)
    explanation = again.explain()
    assert (explanation.filter_fetch.requests, explanation.footer_fetch.requests) == (0, 0)
    assert explanation.excluded_files >= 30
    assert fetched(world, again)[0] == explanation.data_fetch.requests < 10


def test_each_row_group_has_a_filter_of_its_own() -> None:
    world = overlapping(6, 2000, group_rows=300)
    for file, row in ((0, 0), (2, 301), (5, 1999), (3, 1000)):
        scan = world.scan(["file"], f"id = '{keys_of(world, file)[row]}'")
        assert scan.to_arrow()["file"].to_pylist() == [file]
        explanation = scan.explain()
        assert (explanation.filtered_files, explanation.row_groups) == (6, 42)
        assert explanation.row_groups_read < 8


def test_filters_are_fetched_alone_where_footers_are_known() -> None:
    world = overlapping(40, 1000, width=200)
    cache = ObjectCache()
    key = keys_of(world, 7)[3]
    world.scan(["file"], "text <> ''", cache=cache).to_arrow()  # it opens all files
    cache.memory._new.clear()  # of which the footers are left
    before = world.scan(where=f"id = '{key}'", cache=cache)
    explanation = before.explain()
    assert (explanation.footer_fetch.requests, explanation.filter_fetch.requests) == (0, 40)
    assert explanation.filter_fetch.bytes == sum(file.footer[0] - file.filters for file in files_of(world))
    assert explanation.excluded_files > 33
    assert before.to_arrow()["file"].to_pylist() == [7]


def test_an_update_and_a_merge_by_key_read_few_files() -> None:
    world = overlapping(40, 600, width=200)
    whole = sum(file.size for file in files_of(world))
    table, keys = world.db.table("t"), [keys_of(world, file)[3] for file in (4, 9, 30)]
    fresh = World(world.store).db.table("t")
    world.store.reset()
    fresh.update({"file": 1000}, where=f"id = '{keys[0]}'")
    assert world.store.bytes_down * 4 < whole
    fresh = World(world.store).db.table("t")
    world.store.reset()
    source = pa.table({"id": [*keys[1:], "new"], "file": [2000, 2000, 2000]})
    fresh.merge(source, "id")
    assert world.store.bytes_down * 4 < whole
    assert table.count("file = 1000") == 1
    assert table.count("file = 2000") == 3
    assert table.count() == 40 * 600 + 1


def test_lists_and_conditions_beside_the_key_are_looked_up_too() -> None:
    world = overlapping(30, 400)
    keys = [keys_of(world, file)[file] for file in (2, 5)]
    listed = ", ".join(f"'{key}'" for key in [*keys, "not there"])
    for where in (f"id IN ({listed})", f"id = '{keys[0]}' OR id = '{keys[1]}'", f"id IN ({listed}) AND file < 100"):
        scan = world.scan(["id"], where)
        assert sorted(scan.to_arrow()["id"].to_pylist()) == sorted(keys)
        assert world.scan(["id"], where).explain().excluded_files > 15
    for where in (f"NOT id = '{keys[0]}'", f"id = '{keys[0]}' OR file = 3", "id > '8' AND file = 3", "id IS NULL"):
        assert world.scan(where=where).explain().filtered_files == 0


def test_what_filters_cannot_help_reads_as_before() -> None:
    world = overlapping(1, 3000)
    key = keys_of(world, 0)[5]
    assert world.scan(where=f"id = '{key}'").explain().filtered_files == 0  # the only file that may have it
    assert world.scan().explain().filtered_files == 0
    plain = World()
    plain.create(pa.table({"id": list(range(1000)), "v": [7] * 1000}), files=20)
    assert all(file.filters == 0 for file in plain.entry().files)
    assert plain.scan(where="v = 7").explain().filtered_files == 0
    many = overlapping(20, 300)
    listed = ", ".join(f"'{key}'" for key in uuids(500, random.Random(3)))
    assert many.scan(where=f"id IN ({listed})").explain().filtered_files == 0  # some would seem to be in each file


def test_no_damaged_block_of_a_filter_loses_a_row() -> None:
    world = overlapping(8, 500, width=400)
    victim = files_of(world)[3]
    where = f"id = '{keys_of(world, 3)[0]}'"
    assert world.scan(["file"], where).explain().filtered_files == 8
    sound = world.store.get(victim.path).body
    first = victim.filters + 17  # bytes of the filter's header
    for start in range(first, first + 512, 32):
        body = bytearray(sound)
        body[start : start + 32] = bytes(32)
        world.store.put(victim.path, bytes(body), if_match=world.store.get(victim.path).etag)
        assert world.scan(["file"], where).explain().filtered_files == 7
        assert world.scan(["file"], where).to_arrow()["file"].to_pylist() == [3]
    assert {each.kind for each in world.db.verify(deep=True).findings} == {"index-damaged"}


def test_an_integer_is_looked_up_in_the_width_that_each_file_has() -> None:
    world = World()
    random_ = random.Random(11)
    world.db.create_table("t", pa.schema({"id": pa.int32(), "v": pa.string(), "text": pa.binary()}), primary_key=["id"])
    ids = random_.sample(range(-(2**31), 2**31), 12_000)
    for start in range(0, 6_000, 500):
        world.append(_numbered(ids[start : start + 500], pa.int32()), group_rows=500)
    world.db.table("t").widen_column("id", pa.int64())
    for start in range(6_000, 12_000, 500):
        world.append(_numbered([*ids[start : start + 499], 2**40 + start], pa.int64()), group_rows=500)
    for key in (ids[3], ids[777], ids[6_001], 2**40 + 6_500, 2**40 + 1, 2**32 + ids[3]):
        expected = [f"v{key}"] if key in set(ids) or key in range(2**40 + 6_000, 2**40 + 12_000, 500) else []
        scan = world.scan(["v"], f"id = {key}")
        assert scan.to_arrow()["v"].to_pylist() == expected
        assert world.scan(["v"], f"id = {key}").explain().excluded_files > 5
    gone = [ids[4], ids[6_002], 2**40 + 6_500]
    world.db.table("t").delete(keys=gone, on=["id"])
    resolved = world.db.resolve("t")["t"]
    assert (resolved.rows, resolved.changed) == (3, 3)
    assert resolved.excluded > 10
    assert world.db.table("t").scan().count() == 12_000 - 3


def _numbered(ids: list[int], kind: pa.DataType) -> pa.Table:
    random_ = random.Random(ids[0])
    texts = [random_.randbytes(60) for _ in ids]
    return pa.table({"id": pa.array(ids, kind), "v": [f"v{id_}" for id_ in ids], "text": texts})


@pytest.mark.slow
def test_ten_thousand_keys_are_resolved_by_a_tenth_of_the_bytes() -> None:
    """Keys that are in few of the files, with 64 bits of filter for each; what is read without filters is all."""
    world = overlapping(1000, 400, bits=64, width=400)
    random_ = random.Random(2)
    keys = [key for file in (11, 500, 903) for key in keys_of(world, file)] + uuids(8_800, random_)
    assert len(keys) == 10_000
    whole = sum(file.size for file in files_of(world))
    world.db.table("t").delete(keys=keys, on=["id"])
    fresh = World(world.store)
    world.store.reset()
    resolved = fresh.db.resolve("t")["t"]
    assert (resolved.rows, resolved.changed) == (1_200, 3)
    assert resolved.excluded > 950
    assert resolved.bytes_read * 10 < whole
    assert world.store.gets < 1_100
