"""Vectors by position, tombstones by time: which rows a scan shows."""

from __future__ import annotations

from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest
from dolmen.format.schema import COMMIT_TS, COMMIT_TS_ID
from dolmen.rows.scan.scan import matching_positions, plan_of
from dolmen.store.cache import ObjectCache
from support.tables import World


def numbers(first: int, end: int) -> pa.Table:
    ids = list(range(first, end))
    return pa.table({"id": ids, "k": [i % 7 for i in ids], "s": [f"s{i % 3}" for i in ids]})


@pytest.fixture
def world() -> World:
    found = World()
    found.create(numbers(0, 100), group_rows=10, files=2, key=["id"])
    return found


def ids(world: World, where: str | None = None) -> list[object]:
    return [row["id"] for row in world.rows(where)]


def test_positions_are_counted_physically_when_row_groups_are_skipped(world: World) -> None:
    world.db.table("t").delete("id IN (3, 14, 15, 47, 93)", mode="positions")
    for where, expected in (
        ("id >= 40 AND id < 50", [i for i in range(40, 50) if i != 47]),
        ("id >= 90", [i for i in range(90, 100) if i != 93]),
        ("k = 1 AND id > 12", [i for i in range(13, 100) if i % 7 == 1 and i not in (15, 93)]),
        ("s = 's2' AND id < 20", [2, 5, 8, 11, 17]),
    ):
        assert ids(world, where) == expected
        assert world.scan(where=where).count() == len(expected)


def test_positions_are_counted_before_an_earlier_delete_and_not_after(world: World) -> None:
    table = world.db.table("t")
    table.delete("id = 20", mode="positions")
    table.delete("id = 21", mode="positions")
    table.delete("id = 22")
    commit = table.delete("id BETWEEN 19 AND 24", mode="positions")
    assert commit.rows == 3
    assert ids(world, "id BETWEEN 15 AND 30") == [15, 16, 17, 18, 25, 26, 27, 28, 29, 30]
    assert world.scan().count() == 94


def test_both_kinds_of_deletes_see_each_other(world: World) -> None:
    table = world.db.table("t")
    table.delete("k = 3")
    table.delete(keys=[1, 2, 50])
    commit = table.delete("id < 12", mode="positions")
    assert commit.rows == len([i for i in range(12) if i % 7 != 3 and i not in (1, 2)])
    assert ids(world) == [i for i in range(12, 100) if i % 7 != 3 and i != 50]
    assert world.scan().count() == len(ids(world))


def test_a_tombstone_says_nothing_of_rows_that_came_later(world: World) -> None:
    table = world.db.table("t")
    table.delete("id < 5")
    table.delete(keys=[7])
    table.append(numbers(3, 8))
    assert ids(world) == [5, 6, *range(8, 100), 3, 4, 5, 6, 7]
    table.delete(keys=[6])
    assert ids(world) == [5, *range(8, 100), 3, 4, 5, 7]
    assert world.scan(where="id < 8").count() == 5


def test_the_greatest_timestamp_of_a_key_decides(world: World) -> None:
    table = world.db.table("t")
    for _ in range(3):
        table.delete(keys=[200, 5])
        table.append(numbers(200, 201))
    assert ids(world, "id = 200") == [200]
    table.delete(keys=[200])
    assert ids(world, "id IN (200, 5)") == []


def test_applied_through_makes_tombstones_silent(world: World) -> None:
    table = world.db.table("t")
    table.delete("id < 5")
    table.delete(keys=[10, 60])
    manifest = world.manifest
    assert [r["id"] for r in scan_rows(world, manifest)][:3] == [5, 6, 7]
    entry = manifest.table("t")
    first, second = entry.files
    resolved = msgspec.structs.replace(first, applied_through=entry.tombstones[0].ts)
    assert [r["id"] for r in scan_rows(world, with_files(manifest, resolved, second))] == [
        i for i in range(100) if i not in (10, 60)
    ]
    resolved = msgspec.structs.replace(first, applied_through=entry.tombstones[1].ts)
    assert [r["id"] for r in scan_rows(world, with_files(manifest, resolved, second))] == [
        i for i in range(100) if i != 60
    ]


def test_a_file_that_a_tombstone_surely_covers_is_not_read(world: World) -> None:
    world.db.table("t").delete("id < 50")
    plan = plan_of(world.scan())
    assert plan.pruned == {"deleted": 1}
    assert plan.files[0].tombstones == ()
    assert world.scan().count() == 50


def test_row_groups_that_a_tombstone_surely_covers_are_not_read(world: World) -> None:
    world.db.table("t").delete("id BETWEEN 10 AND 34")
    found = world.scan().explain()
    assert (found.row_groups, found.row_groups_read, found.row_groups_tested) == (10, 8, 1)
    assert ids(world) == [*range(10), *range(35, 100)]


def test_keys_outside_a_row_group_cost_it_nothing(world: World) -> None:
    world.db.table("t").delete(keys=[12, 78])
    found = world.scan(columns=["s"]).explain()
    assert found.row_groups_tested == 2
    assert found.keys_tombstones == 1


def test_where_columns_of_tombstones_are_not_in_the_result(world: World) -> None:
    world.db.table("t").delete("k = 1 AND s <> 's9'")
    found = world.scan(columns=["id"]).to_arrow()
    assert found.column_names == ["id"]
    assert found["id"].to_pylist() == [i for i in range(100) if i % 7 != 1]


def test_null_is_deleted_by_no_comparison() -> None:
    world = World()
    world.create(pa.table({"a": [1, 2, None, 4], "b": ["x", None, "y", None]}), group_rows=2)
    table = world.db.table("t")
    table.delete("a NOT IN (1, 5) AND b <> 'q'")
    assert [row["a"] for row in world.rows()] == [1, 2, None, 4]
    table.delete(keys=[1], on=["a"])
    assert [row["a"] for row in world.rows()] == [2, None, 4]
    table.delete({"a": None})
    assert [row["a"] for row in world.rows()] == [2, 4]
    assert world.scan().count() == 2


def test_nan_rows_survive_pruning() -> None:
    world = World()
    nan = float("nan")
    world.create(pa.table({"x": [1.0, 2.0, nan, 4.0, 3.0, 3.0, nan, nan]}), group_rows=2, files=2)
    assert world.scan(where="x <> 3").count() == 6
    assert world.scan(where="NOT (x < 3)").count() == 6
    assert world.scan(where="x > 100").count() == 3
    world.db.table("t").delete("x > 100")
    assert [row["x"] for row in world.rows()] == [1.0, 2.0, 4.0, 3.0, 3.0]


def test_columns_without_statistics_are_unknown_and_not_null() -> None:
    world = World()
    world.create(pa.table({"a": [1, None, 3], "b": [None, None, None]}, schema=pa.schema({"a": "int64", "b": "int64"})))
    manifest = world.manifest
    (file,) = manifest.table("t").files
    bare = with_files(manifest, msgspec.structs.replace(file, stats={}))
    assert scan_rows(world, bare, "a IS NULL") == [{"a": None, "b": None}]
    assert len(scan_rows(world, bare, "a = 3")) == 1


def test_positions_are_found_without_reading_whole_row_groups() -> None:
    world = World()
    world.create(numbers(0, 100), group_rows=10, files=1)
    manifest, (file,) = world.manifest, world.entry().files
    cache = ObjectCache()
    world.scan(cache=cache).explain()
    cache.memory._new.clear()  # the footer is left
    whole, cut = world.predicate("id >= 30"), world.predicate("id > 30")
    world.store.reset()
    found = matching_positions(world.view(manifest, cache=cache), whole)
    assert found == {file.path: BitMap(range(30, 100))}
    assert world.store.gets == 0
    found = matching_positions(world.view(manifest, cache=cache), cut)
    assert found == {file.path: BitMap(range(31, 100))}
    assert world.store.gets == 1
    assert world.store.bytes_down < 200


def test_positions_leave_out_what_is_hidden_already(world: World) -> None:
    table = world.db.table("t")
    table.delete("id IN (10, 11)", mode="positions")
    table.delete("id = 12")
    table.delete("id >= 60 AND id < 70 AND k <> 9")
    positions = matching_positions(world.view(), world.predicate("id BETWEEN 5 AND 72"))
    first, second = world.entry().files
    assert positions == {
        first.path: BitMap([*range(5, 10), *range(13, 50)]),
        second.path: BitMap([*range(10), *range(20, 23)]),
    }


def test_a_key_of_several_columns_of_any_type_is_one_lookup() -> None:
    world = World()
    rows = pa.table(
        {
            "a": pa.array([1, 1, 2, 2, None, 1], pa.int32()),
            "b": ["x" * 30, "y", "x" * 30, None, "y", "é"],
            "c": pa.array([1, 2, 3, 4, 5, 6], pa.date32()),
            "n": [0, 1, 2, 3, 4, 5],
        }
    )
    world.create(rows, group_rows=4)
    table = world.db.table("t")
    table.delete(keys=[("x" * 30, 1)], on=["b", "a"])
    table.delete(keys=[(1, "é"), (2, "y"), (7, "é")], on=["a", "b"])
    assert [row["n"] for row in world.rows()] == [1, 2, 3, 4]
    assert world.scan(columns=["n"]).explain().keys_tombstones == 2


def test_rows_of_compacted_files_have_their_own_commit_timestamps() -> None:
    """``row_ts`` is None: the hidden column tells. It is shown when asked for, and never otherwise."""
    world = World()
    world.create(pa.table({"a": [1, 2]}))
    world.append(pa.table({"a": [3]}))
    manifest = world.manifest
    first, second = manifest.table("t").files
    stored = pa.schema(
        [
            *manifest.table("t").schema.arrow,
            pa.field(COMMIT_TS, pa.int64(), False, {b"PARQUET:field_id": str(COMMIT_TS_ID).encode()}),
        ]
    )
    compacted = put_parquet(world, pa.table({"a": [1, 2, 3], COMMIT_TS: [5, 5, 9]}, schema=stored))
    compacted = msgspec.structs.replace(compacted, row_ts=None, row_ts_bounds=(5, 9), applied_through=9)
    known = with_files(manifest, first, second, compacted)
    assert scan_rows(world, known) == [{"a": a} for a in (1, 2, 3, 1, 2, 3)]
    found = world.scan(manifest=known, with_commit_ts=True, columns=["a"]).to_arrow()
    assert found.column_names == ["a", COMMIT_TS]
    assert found[COMMIT_TS].to_pylist() == [first.row_ts, first.row_ts, second.row_ts, 5, 5, 9]


def test_a_column_that_a_file_is_too_old_for_is_null_in_it() -> None:
    world = World()
    world.create(pa.table({"a": [1, 2, 3], "b": [4, 5, 6]}))
    manifest = world.manifest
    arrow = manifest.table("t").schema.arrow
    old = put_parquet(world, pa.table({"a": [7]}, schema=pa.schema([arrow.field("a")])))
    known = with_files(manifest, replace_stats(old), *manifest.table("t").files)
    assert scan_rows(world, known) == [{"a": 7, "b": None}, {"a": 1, "b": 4}, {"a": 2, "b": 5}, {"a": 3, "b": 6}]
    assert scan_rows(world, known, "b IS NULL") == [{"a": 7, "b": None}]
    assert scan_rows(world, known, "b > 4") == [{"a": 2, "b": 5}, {"a": 3, "b": 6}]
    assert world.scan(manifest=known, where="b IS NULL").count() == 1


def test_a_column_that_is_added_again_does_not_revive_its_old_values() -> None:
    world = World()
    world.create(pa.table({"a": [1, 2], "b": [3, 4]}))
    manifest = world.manifest
    entry = manifest.table("t")
    a, b = entry.schema.fields
    again = msgspec.structs.replace(b, id=3)
    schema = msgspec.structs.replace(entry.schema, fields=(a, again), next_id=4, dropped=(b,))
    known = msgspec.structs.replace(manifest, tables={"t": msgspec.structs.replace(entry, schema=schema)})
    assert scan_rows(world, known) == [{"a": 1, "b": None}, {"a": 2, "b": None}]
    renamed = msgspec.structs.replace(entry.schema, fields=(a, msgspec.structs.replace(b, name="c")))
    known = msgspec.structs.replace(manifest, tables={"t": msgspec.structs.replace(entry, schema=renamed)})
    assert scan_rows(world, known) == [{"a": 1, "c": 3}, {"a": 2, "c": 4}]


def test_a_file_of_a_narrower_type_is_widened_and_nothing_wraps() -> None:
    world = World()
    world.create(pa.table({"a": pa.array([1, 2**32 + 5], pa.int64())}))
    table = world.db.table("t")
    field = world.entry().schema.arrow.field("a").with_type(pa.int32())
    old = put_parquet(world, pa.table({"a": pa.array([5, 6], pa.int32())}, schema=pa.schema([field])))
    table.delete(keys=[2**32 + 5], on=["a"])
    manifest = world.manifest
    known = with_files(manifest, replace_stats(old), *manifest.table("t").files)
    assert scan_rows(world, known) == [{"a": 5}, {"a": 6}, {"a": 1}]
    table.delete("a = 4294967302 OR a > 4294967300")
    known = replace_tombstones(known, world.manifest)
    assert scan_rows(world, known) == [{"a": 5}, {"a": 6}, {"a": 1}]
    table.delete(keys=[6], on=["a"])
    known = replace_tombstones(known, world.manifest)
    assert scan_rows(world, known) == [{"a": 5}, {"a": 1}]
    assert world.scan(manifest=known).to_arrow().schema.field("a").type == pa.int64()


def scan_rows(world: World, manifest: Manifest, where: str | None = None) -> list[dict[str, object]]:
    found: list[dict[str, object]] = world.scan(where=where, manifest=manifest).to_arrow().to_pylist()
    return found


def with_files(manifest: Manifest, *files: DataFile) -> Manifest:
    entry = msgspec.structs.replace(manifest.table("t"), files=files)
    return msgspec.structs.replace(manifest, tables={"t": entry})


def replace_tombstones(manifest: Manifest, newer: Manifest) -> Manifest:
    entry = msgspec.structs.replace(manifest.table("t"), tombstones=newer.table("t").tombstones)
    return msgspec.structs.replace(manifest, tables={"t": entry})


def replace_stats(file: DataFile) -> DataFile:
    return msgspec.structs.replace(file, stats={})


def put_parquet(world: World, data: pa.Table) -> DataFile:
    """A file as pyarrow alone writes it, without statistics in its entry."""
    sink = pa.BufferOutputStream()
    pq.write_table(data, sink, write_page_checksum=True)
    body = sink.getvalue().to_pybytes()
    path = f"data/t/2026/01/01/00/{world.runtime.uuid()}.parquet"
    world.store.put(path, body)
    length = int.from_bytes(body[-8:-4], "little") + 8
    return DataFile(
        path=path, size=len(body), rows=data.num_rows, footer=(len(body) - length, length, crc32(body[-length:]))
    )
