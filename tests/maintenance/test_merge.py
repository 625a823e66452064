"""Merging segments: few of them, no entry lost or doubled, whatever is committed meanwhile."""

from __future__ import annotations

import os
import random

import pytest
from pyroaring import BitMap

from dolmen.commit.head import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import Compact, Group, Resolve
from dolmen.commit.statements.catalog import DropTable
from dolmen.commit.statements.row_changes import Overwrite
from dolmen.commit.versions import commits
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.format.entries import DataFile
from dolmen.maintenance.segment_merging import FAN_IN, Merge, merge_segments, plan_merges, tiers, upload_merge
from support.commit_world import World, Writer, append, delete, delete_positions, file, meanwhile, table

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "4711"))


@pytest.fixture
def world() -> World:
    world = World()
    world.writer().create()
    world.shrink_roots(24 << 10)
    return world


def context(writer: Writer) -> Context:
    return Context(writer.store, writer.runtime, writer.head)


def planned(writer: Writer) -> list[Merge]:
    """What a run would merge in the newest version."""
    manifest = writer.head.refresh().manifest
    return [merge for name in (None, *manifest.tables) for merge in plan_merges(context(writer), manifest, name)]


def files(world: World, writer: Writer) -> list[DataFile]:
    return list(LiveFiles.of(table(world), writer.head.segments))


def fill(world: World, writer: Writer, count: int) -> None:
    start = world.newest.version
    for number in range(count):
        writer.commit(append(table(world), f"f{start + number}"))


@pytest.mark.slow
def test_many_commits_leave_few_segments_and_every_entry(world: World) -> None:
    world.shrink_roots(30 << 10)  # over half of it are the last 64 commits
    writer = world.writer()
    rewritten = 0
    for _ in range(40):
        fill(world, writer, 50)
        merged = merge_segments(context(writer))
        assert merged.finished
        rewritten += merged.inputs
    assert len({each.uuid for each in files(world, writer)}) == len(files(world, writer)) == 2_000
    assert len(table(world).segments) <= 3 * FAN_IN
    assert len(world.newest.segments) <= 3 * FAN_IN
    assert rewritten > 0
    newest = world.newest
    assert [entry.version for entry in commits(writer.head, newest)] == list(range(newest.version, 0, -1))


@pytest.mark.slow
def test_each_entry_is_rewritten_a_logarithmic_number_of_times(world: World) -> None:
    writer = world.writer()
    spilled = rewritten = 0
    known: set[str] = set()
    for _ in range(60):
        fill(world, writer, 50)
        before = {segment.object: segment.count for segment in table(world).segments_of("files")}
        spilled += sum(count for key, count in before.items() if key not in known)
        merge_segments(context(writer))
        after = {segment.object: segment.count for segment in table(world).segments_of("files")}
        rewritten += sum(count for key, count in after.items() if key not in before)
        known = after.keys() | before.keys()
    assert 0 < rewritten <= 4 * spilled


@pytest.mark.slow
def test_merging_folds_overlays_and_removals_into_the_entries(world: World) -> None:
    writer = world.writer()
    fill(world, writer, 400)
    spilled = [each.uuid for each in files(world, writer)][:40]
    for uuid in spilled[:20]:
        writer.commit(delete_positions(table(world), {uuid: [1]}))
    live = {each.uuid: each for each in files(world, writer)}
    gone = tuple(live[uuid] for uuid in spilled[10:40])
    entry = table(world)
    submit(writer.head, "compact", [Compact("t", entry.uuid, entry.epoch, (Group(gone, ()),), entry.schema)])
    before = sorted(files(world, writer), key=lambda each: each.uuid)
    assert table(world).removed
    merge_segments(context(writer))
    assert table(world).removed == ()
    assert table(world).overlays == ()
    assert sorted(files(world, writer), key=lambda each: each.uuid) == before


@pytest.mark.slow
def test_a_removal_and_an_overlay_added_during_a_merge_stay(world: World) -> None:
    writer, other = world.writer(), world.writer()
    fill(world, writer, 400)
    names = [each.uuid for each in files(world, writer)]
    writer.commit(delete_positions(table(world), {names[0]: [1], names[1]: [1], names[2]: [3]}))

    def others() -> None:
        live = {each.uuid: each for each in files(world, other)}
        entry = table(world)
        other.commit(delete_positions(entry, {names[0]: [2], names[5]: [4]}))
        submit(
            other.head,
            "compact",
            [Compact("t", entry.uuid, entry.epoch, (Group((live[names[7]],), ()),), entry.schema)],
        )

    merger = world.writer()
    merger.store.script.append(meanwhile(others))
    assert merge_segments(context(merger)).commits
    found = {each.uuid: each for each in files(world, writer)}
    cardinalities = [found[names[at]].vector.cardinality for at in (0, 1, 2, 5)]  # type: ignore[union-attr]
    assert cardinalities == [2, 1, 1, 1]
    assert names[7] not in found
    assert len(found) == 399


@pytest.mark.slow
def test_a_merge_and_a_resolution_of_the_same_segments_keep_both(world: World) -> None:
    writer, other = world.writer(), world.writer()
    fill(world, writer, 400)
    writer.commit(delete(table(world)))
    entry, through = table(world), world.newest.commit_ts
    names = [each.uuid for each in files(world, writer)]
    inline = {each.path: BitMap() for each in entry.files}
    resolve = Resolve(
        "t",
        entry.uuid,
        entry.epoch,
        through,
        {**inline, file(names[0]).path: BitMap([5])},
        tuple(segment.object for segment in entry.segments_of("files")),
    )
    merger = world.writer()
    merger.store.script.append(meanwhile(lambda: submit(other.head, "resolve", [resolve])))
    assert merge_segments(context(merger)).commits
    live = files(world, writer)
    assert min(each.applied_through for each in live) == through
    assert {each.uuid for each in live if each.vector} == {names[0]}
    assert table(world).tombstones == ()


@pytest.mark.slow
def test_a_merged_segment_is_resolved_no_further_than_the_least_of_its_inputs(world: World) -> None:
    writer = world.writer()
    fill(world, writer, 1_000)
    writer.commit(delete(table(world)))
    entry, through = table(world), world.newest.commit_ts
    first = next(tiers(entry.segments_of("files")))[0]
    resolve = Resolve("t", entry.uuid, entry.epoch, through, {}, (first.object,))
    submit(writer.head, "resolve", [resolve])
    before = {each.uuid: each.applied_through for each in files(world, writer)}
    assert list(before.values()).count(through) == first.count
    (merge,) = [
        each for each in planned(writer) if each.statement.name == "t" and first.object in each.statement.inputs
    ]
    assert len(merge.statement.inputs) > 1
    assert merge_segments(context(writer)).commits
    assert {each.uuid: each.applied_through for each in files(world, writer)} == before
    assert len(table(world).tombstones) + sum(s.count for s in table(world).segments_of("tombstones")) == 1


def test_a_merge_of_a_table_overwritten_or_dropped_meanwhile_is_moot(world: World) -> None:
    writer, other = world.writer(), world.writer()
    fill(world, writer, 400)
    entry = table(world)
    overwrite = Overwrite("t", entry.uuid, entry.epoch, world.newest.commit_ts, (file("n"),))
    merger = world.writer()
    (merge,) = [each for each in planned(merger) if each.statement.name == "t"]
    other.commit(overwrite)
    assert submit(merger.head, "merge", [upload_merge(context(merger), merge)]).manifest is None
    assert [each.uuid for each in files(world, writer)] == ["n"]
    other.commit(DropTable("t", entry.uuid))
    assert submit(merger.head, "merge", [upload_merge(context(merger), merge)]).manifest is None
    assert "t" not in world.newest.tables


@pytest.mark.slow
def test_tombstones_are_merged_in_their_order(world: World) -> None:
    writer = world.writer()
    writer.commit(append(table(world), "a"))
    for _ in range(900):
        writer.commit(delete(table(world)))
    before = tombstones_of(table(world), writer.head.segments)
    assert merge_segments(context(writer)).commits
    assert tombstones_of(table(world), writer.head.segments) == before
    assert len(before) == 900


@pytest.mark.slow
def test_it_stops_when_time_is_up_and_goes_on_later(world: World) -> None:
    writer = world.writer()
    fill(world, writer, 600)
    assert not merge_segments(context(writer), deadline=lambda: True).finished
    before = world.newest.version
    assert merge_segments(context(writer)).finished
    assert world.newest.version > before
    settled = world.newest.version
    merge_segments(context(writer))
    assert world.newest.version <= settled + 1
    merge_segments(context(writer))
    final = world.newest.version
    merge_segments(context(writer))
    assert world.newest.version == final, "an idle database reaches a fixed point"


@pytest.mark.slow
def test_random_histories_with_merges_show_the_files_of_those_without() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    dice = random.Random(SEED)
    for _ in range(4):
        world = World()
        writer = world.writer()
        writer.create()
        world.shrink_roots(24 << 10)
        expected: dict[str, set[int]] = {}
        for step in range(500):
            kind = dice.random()
            if kind < 0.6 or not expected:
                expected[f"n{step}"] = set()
                writer.commit(append(table(world), f"n{step}"))
            elif kind < 0.8:
                uuid = dice.choice(sorted(expected))
                position = dice.randrange(10)
                expected[uuid].add(position)
                writer.commit(delete_positions(table(world), {uuid: [position]}))
            elif kind < 0.95:
                uuid = dice.choice(sorted(expected))
                live = LiveFiles.of(table(world), writer.head.segments).find([uuid])[uuid]
                entry = table(world)
                submit(
                    writer.head, "compact", [Compact("t", entry.uuid, entry.epoch, (Group((live,), ()),), entry.schema)]
                )
                del expected[uuid]
            else:
                merge_segments(context(writer))
        found = {
            each.uuid: each.vector.cardinality if each.vector else 0
            for each in LiveFiles.of(table(world), world.writer().head.segments)
        }
        assert found == {uuid: len(positions) for uuid, positions in expected.items()}
        assert table(world).segments


@pytest.mark.slow
def test_runs_of_like_size_are_merged_and_neighbours_stay_neighbours(world: World) -> None:
    writer = world.writer()
    fill(world, writer, 1_000)
    segments = table(world).segments_of("files")
    runs = list(tiers(segments))
    assert runs
    for run in runs:
        at = segments.index(run[0])
        assert segments[at : at + len(run)] == run
        assert len(run) >= FAN_IN
