"""Debts: what there is to do, from metadata alone."""

from __future__ import annotations

import json

import msgspec
import pyarrow as pa
import pytest

from dolmen.format.entries import DataFile, Overlay, Vector
from dolmen.format.manifest import Released, Segment, TableEntry
from dolmen.format.segments import encode
from dolmen.maintenance.compact.compaction_plan import CompactionOptions, plan_compaction
from dolmen.maintenance.debt import Debts, debts
from dolmen.maintenance.health.file_figures import FilesSurvey
from dolmen_simulator.counting import CountingStore
from support.damaged import Damaged, copy_of
from support.tables import World

MB = 1 << 20


@pytest.fixture
def world() -> World:
    world = World()
    world.create(pa.table({"k": list(range(60)), "v": ["x"] * 60}), files=3, key=["k"])
    return world


def debts_of(world: World) -> Debts:
    return debts(world.db._context)


def test_files_rows_and_bytes_are_those_of_the_entries(world: World) -> None:
    told = debts_of(world).tables["t"]
    files = world.entry().files
    assert (told.files, told.rows, told.dead_rows, told.live_rows) == (3, 60, 0, 60)
    assert told.bytes == sum(file.size for file in files)
    assert told.exact
    assert not told.idle
    assert told.inline_bytes == {"files": len(msgspec.json.encode(files))}


def test_nothing_is_owed_by_an_empty_database() -> None:
    told = debts(World().db._context)
    assert (told.version, told.tables, told.manifest_bytes, told.versions) == (0, {}, 0, 0)
    assert told.oldest_unresolved_age_us == 0


def test_unresolved_deletes_are_counted_by_kind_and_dated(world: World) -> None:
    table = world.db.table("t")
    first = table.delete("v = 'x' AND k > 50").commit_ts
    table.delete(keys=[1, 2, 3])
    table.append(pa.table({"k": [99], "v": ["y"]}))
    told = debts_of(world).tables["t"]
    tombstones = world.entry().tombstones
    assert (told.tombstones, told.where_tombstones, told.keys_tombstones, told.keys) == (2, 1, 1, 3)
    assert told.tombstone_bytes == sum(tombstone.blob.length for tombstone in tombstones)
    assert told.unresolved_files == 3  # the last file is younger than both
    assert told.oldest_unresolved_ts == first
    assert told.oldest_unresolved_age_us == max(0, world.manifest.created_at - first)


def test_positions_are_dead_rows_and_no_unresolved_delete(world: World) -> None:
    world.db.table("t").delete("k < 25", mode="positions")
    told = debts_of(world).tables["t"]
    assert (told.dead_rows, told.live_rows, told.vector_objects) == (25, 35, 1)
    assert (told.tombstones, told.unresolved_files, told.oldest_unresolved_ts) == (0, 0, None)


def test_small_files_are_those_below_half_the_target(world: World) -> None:
    size = world.entry().files[0].size
    edited = copy_of(world.store._store.bucket)  # type: ignore[attr-defined]
    files = [
        msgspec.structs.replace(world.entry().files[0], path=f"data/t/{name}.parquet", size=bytes_)
        for name, bytes_ in (("a", 127 * MB), ("b", 128 * MB), ("c", 300 * MB), ("d", 100 * MB), ("e", 10 * MB))
    ]
    edited.edit_table(files=tuple(files))
    told = debts(edited.context()).tables["t"]
    assert size < 127 * MB
    assert told.target_file_bytes == 256 * MB
    assert (told.small_files, told.small_bytes, told.files_saved) == (3, 237 * MB, 2)
    edited.edit_table(properties={"target_file_bytes": "20MB"})
    told = debts(edited.context()).tables["t"]
    assert (told.small_files, told.files_saved) == (0, 0)


def test_files_that_are_small_without_their_deleted_rows_are_those_that_compaction_plans(world: World) -> None:
    edited = copy_of(world.store._store.bucket)  # type: ignore[attr-defined]
    entry = edited.table()
    files = [
        msgspec.structs.replace(file, path=f"data/t/{n}.parquet", size=200 * MB, rows=20, vector=vector)
        for n, file in enumerate(entry.files)
        for vector in (Vector("tombstone/x", 4 + 10 * n, 10, 0, 8) if n else None,)
    ]
    plan = plan_compaction("t", entry, files, 256 * MB, CompactionOptions(growth=2))
    assert [group.reason for group in plan.groups] == ["small files"]
    segment, body = encode("files", files, "segment/files/" + "0" * 32, entry.schema)
    edited.put(segment.object, body)
    for places in ({"files": tuple(files)}, {"files": (), "segments": (segment,)}):
        edited.edit_table(**places)
        told = debts(edited.context(), exact=True).tables["t"]
        assert told.small_files == len(plan.groups[0].inputs) == 2
        assert told.small_bytes == plan.groups[0].bytes_out == 240 * MB
        survey = FilesSurvey.of(edited.table(), (), 256 * MB, edited.context().segments)
        assert survey.sums.figures() == {name: getattr(told, name) for name in survey.sums.figures()}


def spilled(world: World) -> tuple[Damaged, Segment]:
    """The table's first two files in a segment, one of them gone, the other with an overlay."""
    edited = copy_of(world.store._store.bucket)  # type: ignore[attr-defined]
    entry = edited.table()
    segment, body = encode("files", entry.files[:2], "segment/files/" + "0" * 32, entry.schema)
    edited.put(segment.object, body)
    one, other, _ = entry.files
    overlay = Overlay(other.uuid, other.applied_through + 1)
    edited.edit_table(files=entry.files[2:], segments=(segment,), removed=(one.uuid,), overlays=(overlay,))
    return edited, segment


def test_spilled_files_are_told_by_their_segments_without_reading_them(world: World) -> None:
    edited, segment = spilled(world)
    context = edited.context()
    context.head.refresh()
    edited.store.reset()
    told = debts(context).tables["t"]
    assert (edited.store.gets, edited.store.lists, edited.store.heads) == (1, 0, 0)  # the pointer
    assert (told.files, told.rows, told.exact) == (2, 60, False)
    assert (told.segments["files"].segments, told.segments["files"].entries) == (1, 2)
    assert told.segments["files"].bytes == segment.size


def test_exact_figures_read_the_segments(world: World) -> None:
    edited, _ = spilled(world)
    told = debts(edited.context(), exact=True).tables["t"]
    live = world.entry().files[1:]
    assert (told.files, told.rows, told.exact) == (2, 40, True)
    assert told.bytes == sum(file.size for file in live)
    assert told.small_files == 2


def test_an_idle_table_is_told_of_from_its_own_segment(world: World) -> None:
    edited = copy_of(world.store._store.bucket)  # type: ignore[attr-defined]
    entry = edited.table()
    segment, body = encode("table", [entry], "segment/table/" + "0" * 32)
    edited.put(segment.object, body)
    stub = TableEntry(entry.uuid, entry.epoch, msgspec.structs.replace(entry.schema, fields=()), section=segment)
    manifest = edited.manifest
    edited.edit(tables={**manifest.tables, "t": stub})
    told = debts(edited.context()).tables["t"]
    assert (told.idle, told.files, told.rows, told.inline_bytes) == (True, 3, 60, {})
    assert told.segments["table"].bytes == segment.size


def test_the_database_tells_of_its_manifest_its_versions_and_what_is_to_be_freed(world: World) -> None:
    world.db.table("t").append(pa.table({"k": [1], "v": [""]}), request="one")
    edited = copy_of(world.store._store.bucket)  # type: ignore[attr-defined]
    base = edited.manifest
    tree = Segment("files", "segment/files/" + "1" * 32, 1_000, 0, 5, bytes=70_000)
    edited.edit(
        horizon=3,
        horizon_at=base.created_at - 5,
        orphan_cutoff=base.created_at - 7,
        freed=2,
        released=(
            Released(2, ("data/t/freed.parquet",)),
            Released(4, ("data/t/a.parquet", "data/t/b.parquet"), (tree,)),
        ),
        revoked_intents={"job": 1},
    )
    told = debts(edited.context())
    assert told.manifest_bytes == len(edited.body(base.key))
    assert told.manifest_budget == 256 << 10
    assert told.versions == base.version - 2
    assert told.applied_ids == 1
    assert (told.released_objects, told.released_trees, told.released_bytes) == (2, 1, 71_000)
    assert (told.horizon_age_us, told.orphan_cutoff_age_us, told.revoked_intents) == (5, 7, 1)
    assert set(told.inline_bytes) == {"history", "applied", "released"}


def test_debts_cost_one_request_when_the_newest_version_is_known(world: World) -> None:
    debts_of(world)
    store = world.store
    assert isinstance(store, CountingStore)
    store.reset()
    debts_of(world)
    assert (store.gets, store.lists, store.heads, store.puts) == (1, 0, 0, 0)


def test_debts_are_plain_data(world: World) -> None:
    world.db.table("t").delete("k = 3")
    told = debts_of(world)
    document = json.loads(json.dumps(told.to_dict()))
    assert document["tables"]["t"]["tombstones"] == 1 == told.total("tombstones")
    assert document["tables"]["t"]["files_saved"] == told.total("files_saved") == 2
    assert document["manifest_bytes"] == told.manifest_bytes


def test_files_in_segments_count_as_small_when_their_mean_size_is(world: World) -> None:
    edited = copy_of(world.store._store.bucket)  # type: ignore[attr-defined]
    entry = edited.table()

    def segment(name: str, size: int) -> Segment:
        files = [
            DataFile(f"data/t/{name}{n}.parquet", size, 1, (size - 10, 10, 0), 1, applied_through=1) for n in range(4)
        ]
        return encode("files", files, f"segment/files/{name * 32}", entry.schema)[0]

    edited.edit_table(files=(), segments=(segment("a", 10 * MB), segment("b", 200 * MB)))
    told = debts(edited.context()).tables["t"]
    assert (told.files, told.small_files, told.small_bytes, told.files_saved) == (8, 4, 40 * MB, 3)
