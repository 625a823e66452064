"""A look at a database: exact figures, from metadata alone, with as many requests as it says."""

from __future__ import annotations

import random
import re
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.errors import CorruptionError, InputError
from dolmen.format.entries import WhereTombstone
from dolmen.format.layout import POINTER, Pointer
from dolmen.format.manifest import Manifest
from dolmen.maintenance.health.health import Health
from dolmen.maintenance.health.look import MOST_COMMITS, MOST_NAMES, look
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore
from support.aging import DAY_US, HOUR_US, Place, rows
from support.damaged import copy_of
from support.erased import days
from support.many_files import many_files
from support.spilled import spill_entries
from support.tables import World


def fresh(store: Any) -> Database:
    """The database as a new process opens it, which has read nothing; the store counts from zero."""
    store.reset()
    return Database(store, Runtime(threads=1))


def requests(store: Any) -> tuple[int, int, int, int]:
    return store.gets, store.lists, store.heads, store.puts


def committed(store: CountingStore, manifest: Manifest) -> None:
    """Makes a version that was built by hand the newest."""
    named = msgspec.structs.replace(manifest, version=1, attempt="0" * 8, commit_id="0" * 32, created_at=10**6)
    store.put(named.key, named.encode())
    store.put(POINTER, Pointer(1, named.key, named.commit_id).encode())


@pytest.fixture
def world() -> World:
    world = World()
    world.create(pa.table({"k": list(range(60)), "v": ["x"] * 60}), files=6, key=["k"])
    return world


def test_a_look_reads_pointer_and_manifest_and_nothing_else(world: World) -> None:
    world.db.table("t").delete("k > 50")
    world.db.table("t").delete(keys=[1, 2, 3])
    world.db.tag("first", 2)
    db = fresh(world.store)
    found = db.health()
    assert requests(world.store) == (2, 0, 0, 0)
    assert (found.versions.newest, found.tables[0].debt.files, found.tables[0].debt.rows) == (db.version, 6, 60)
    world.store.reset()  # type: ignore[attr-defined]
    assert db.health().versions == found.versions
    assert requests(world.store) == (1, 0, 0, 0)  # the pointer, which has not moved


def test_a_database_without_commits_is_looked_at_too() -> None:
    found = World().db.health()
    assert (found.versions.newest, found.tables, found.past, found.planned, found.concerns) == (0, (), (), (), ())
    assert found.worst is None


@pytest.mark.parametrize("seed", range(8))
def test_figures_are_those_of_the_live_files_wherever_their_entries_are(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    world.db.create_table("t", pa.schema([("k", pa.int64()), ("v", pa.string())]), ["k"], ["k"])
    for start in range(0, 120, 10):
        world.append(pa.table({"k": list(range(start, start + 10)), "v": pa.nulls(10, pa.string())}))
    table = world.db.table("t")
    table.delete(f"k % 7 = {rng.randint(0, 6)}", mode="positions")
    table.delete(f"k BETWEEN {rng.randint(0, 60)} AND 70")
    table.delete(keys=[rng.randint(0, 119) for _ in range(3)])
    edited = copy_of(world.store._store.bucket)  # type: ignore[attr-defined]
    manifest = spill_entries(edited.store, rng, edited.manifest)
    edited.edit(tables=manifest.tables)
    context = edited.context()
    found = look(context).tables[0]
    entry = context.segments.whole(edited.table())
    live = list(LiveFiles.of(entry, context.segments))
    assert found.debt.exact
    assert found.debt.files == len(live) == sum(found.sizes.counts.values())
    assert found.debt.rows == sum(file.rows for file in live)
    assert found.debt.dead_rows == sum(file.rows - file.live_rows for file in live)
    assert found.debt.bytes == sum(file.size for file in live)
    for exponent, count in found.sizes.counts.items():
        assert count == sum(2**exponent <= file.size < 2 ** (exponent + 1) for file in live)
    assert found.overlap is not None
    assert (found.overlap.files, found.overlap.unknown) == (len(live), 0)
    assert found.deletes is not None
    assert found.deletes.deletes == 2
    hidden = [file for file in live if any(_may_hide(file, t) for t in _bounds(context, entry))]
    assert found.deletes.files == len(hidden)
    assert found.deletes.rows == sum(file.rows for file in hidden)


@pytest.mark.slow
def test_the_slowdown_goes_by_files_deletes_and_their_kind() -> None:
    def slowdown(files: int, deletes: list[str]) -> float:
        world = World()
        world.create(pa.table({"k": list(range(2_000)), "v": ["x", "y"] * 1_000}), files=files, group_rows=2_000)
        for text in deletes:
            world.db.table("t").delete(text, mode="tombstone")
        cost = world.db.health().tables[0].deletes
        return cost.slowdown if cost else 1.0

    def many(form: str, count: int = 20) -> list[str]:
        return [form.format(n=n) for n in range(count)]

    assert slowdown(20, []) == 1.0
    equal, compared = slowdown(20, many("k = {n} AND v = 'x'")), slowdown(20, many("k > {n} AND v <> 'y' OR k < -1"))
    called = slowdown(20, many("lower(v) > '{n}'"))
    assert 1.0 < equal < compared < called
    assert slowdown(20, many("k > {n} AND v <> 'y'", 40)) > slowdown(20, many("k > {n} AND v <> 'y'")) > 1.1
    assert slowdown(2, many("lower(v) > '{n}'")) > called, "rows in few files: the deletes weigh more"
    assert slowdown(20, many("k > 5000 AND v = '{n}'")) < 1.01, "bounds exclude all files"


def _bounds(context: Any, entry: Any) -> list[tuple[int, int, int]]:
    """The timestamp and the least and greatest key of each unresolved delete, as the test made them."""
    found = []
    for tombstone in tombstones_of(entry, context.segments):
        if isinstance(tombstone, WhereTombstone):
            text = msgspec.json.encode(tombstone.predicate).decode()
            numbers = sorted(int(n) for n in re.findall(r'"value":\s*(\d+)', text))
            found.append((tombstone.ts, numbers[0], numbers[-1]))
        else:
            ((least, greatest),) = tombstone.bounds
            found.append((tombstone.ts, least, greatest))
    return found


def _may_hide(file: Any, delete: tuple[int, int, int]) -> bool:
    ts, least, greatest = delete
    stats = file.stats[1]
    return file.applied_through < ts and stats.min <= greatest and stats.max >= least


def test_each_segment_is_one_request_and_no_data_file_is_read() -> None:
    store = CountingStore(MemoryStore())
    manifest = many_files(store, 7, 50)
    entry = msgspec.structs.replace(manifest.table("t"), sort_key=(2,))
    committed(store, msgspec.structs.replace(manifest, tables={"t": entry}))
    found = fresh(store).health()
    assert requests(store) == (2 + 7, 0, 0, 0)
    assert (found.tables[0].debt.files, found.tables[0].debt.rows) == (350, 350_000)


def test_receipts_are_read_of_the_erasures_that_are_told_of_alone() -> None:
    place = Place()
    place.db.create_table("t", rows().schema, ["k"])
    table = place.db.table("t")
    table.append(rows(*range(100)))
    for key in range(25):
        table.erase(f"k = {key}", request=f"erase-{key}")
        place.now_us += HOUR_US
    store = CountingStore(MemoryStore(place.bucket))
    found = fresh(store).health()
    assert (len(found.erasures), found.erasures_left_out, found.erasures_in_danger) == (20, 5, 0)
    assert [each.due_at for each in found.erasures] == sorted(each.due_at for each in found.erasures)
    assert {each.state for each in found.erasures} == {"hidden"}
    assert found.erasures[0].tables == ("t",)
    assert store.gets == 2 + 20
    place.now_us = max(each.due_at for each in found.erasures) + 1
    late = Database(MemoryStore(place.bucket, place.runtime()), place.runtime()).health()
    assert late.erasures_in_danger == 25
    assert (late.worst, late.concerns[0].commands[0]) == ("danger", "dolmen erasures")
    assert "20 erasures are past the deadline" in late.concerns[0].title


def test_erasures_that_are_gone_are_told_of_no_more() -> None:
    place = Place()
    place.db.set(erase_within="40d")
    place.db.create_table("t", rows().schema, ["k"])
    place.db.table("t").append(rows(*range(100)))
    place.db.table("t").erase("k = 7")
    assert len(place.db.health().erasures) == 1
    days(place, 40)
    found = place.open().health()
    assert (found.erasures, found.erasures_in_danger) == ((), 0)
    assert not [each for each in found.concerns if each.level == "danger"]


def test_tags_cursors_and_commits_are_told_and_bounded() -> None:
    place = Place()
    place.db.create_table("t", rows().schema, ["k"])
    table = place.db.table("t")
    for number in range(MOST_COMMITS + 20):
        table.append(rows(number), request=f"r{number}", message=f"m{number}")
    for number in range(MOST_NAMES + 3):
        place.db.tag(f"tag-{number}", version=number % 50 + 1)
    place.db.cursor("reader", start=3, age="8d")
    found = place.open().health()
    assert (len(found.versions.tags), found.versions.tags_left_out) == (MOST_NAMES, 3)
    [cursor] = found.versions.cursors
    assert (cursor.name, cursor.version, cursor.ends_at - cursor.moved_at) == ("reader", 3, 8 * DAY_US)
    assert len(found.past) == MOST_COMMITS
    assert [work.version for work in found.past] == list(range(found.versions.newest, 0, -1))[:MOST_COMMITS]
    place.now_us += 7 * DAY_US + 2 * HOUR_US
    table.append(rows(1), request="last", message="said")
    found = place.open().health()
    assert (found.past[0].message, found.past[0].requests) == ("said", ("last",))
    assert [c.title for c in found.concerns if "reader" in c.title] == ["Cursor 'reader' ends in 22h"]
    place.now_us += 2 * DAY_US
    table.append(rows(2))
    titles = [concern.title for concern in place.open().health().concerns]
    assert "Cursor 'reader' has ended" in titles


def test_what_maintenance_will_do_is_planned_and_gone_once_it_is_done() -> None:
    place = Place()
    place.db.create_table("t", rows().schema, ["k"], properties={"index": True, "iceberg": "v2"})
    table = place.db.table("t")
    for number in range(20):
        table.append(rows(number))
    table.delete("k = 3")
    planned = [(work.step, work.table) for work in place.open().health().planned]
    assert planned == [("resolve", "t"), ("compact", "t"), ("index", "t"), ("publish", "t")]
    place.db.maintain()
    found = place.open().health()
    assert [work for work in found.planned if work.step != "gc"] == []
    assert {work.operation for work in found.past if work.is_background} >= {"resolve", "compact", "index"}
    [after] = found.tables
    assert (after.deletes, after.debt.files, after.debt.publication_lag_us) == (None, 1, 0)
    place.now_us += 60 * DAY_US
    table.append(rows(50))
    place.db.set(keep_versions=1)
    steps = [work.what for work in place.open().health().planned if work.step == "gc"]
    assert any("versions expire" in what for what in steps)
    place.db.gc()
    place.now_us += 2 * HOUR_US
    table.append(rows(51))
    assert any("no kept version needs" in work.what for work in place.open().health().planned if work.step == "gc")


def test_a_plan_of_very_many_files_is_by_their_sums(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr("dolmen.maintenance.health.look.MOST_PLANNED_FILES", 5)
    [work] = world.db.health().planned
    assert (work.step, work.command) == ("compact", "dolmen compact t")
    assert "5 fewer" in work.what


def test_a_damaged_segment_is_named() -> None:
    store = CountingStore(MemoryStore())
    manifest = many_files(store, 2, 50)
    committed(store, manifest)
    key = manifest.table("t").segments[1].object
    store.delete([key])
    with pytest.raises(CorruptionError, match=key):
        fresh(store).health()


@pytest.mark.parametrize("pipeline", [5, "rejected", {}, ()])
def test_a_pipeline_is_one(world: World, pipeline: Any) -> None:
    for ask in (world.db.health, world.db.report):
        with pytest.raises(InputError, match="look_at_pipeline"):
            ask(pipeline)


def test_the_figures_for_json_are_whole(world: World) -> None:
    found: Health = world.db.health()
    document = msgspec.json.decode(msgspec.json.encode(found.to_dict()))
    assert document["versions"]["newest"] == world.db.version
    assert document["tables"][0]["debt"]["live_rows"] == 60
    assert document["worst"] is None
    assert set(document) >= {"concerns", "planned", "past", "erasures", "pipeline", "debts", "tables"}
