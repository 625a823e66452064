"""The root's byte budget: what leaves it, when, and that a rebase neither loses nor doubles an entry."""

from __future__ import annotations

import os
from itertools import pairwise

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace as replace_struct

import dolmen
from dolmen.base.records import replace
from dolmen.commit.root_budget import MOST_MERGED
from dolmen.commit.statements.catalog import DropTable
from dolmen.commit.statements.row_changes import Write
from dolmen.commit.versions import commits, manifest_at_time, manifest_at_version
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.errors import AppliedIdError, ConflictError
from dolmen.format.manifest import HISTORY_LENGTH, Manifest, Segment
from dolmen.format.segments import encode
from support.commit_world import (
    SCHEMA,
    World,
    Writer,
    append,
    delete,
    delete_positions,
    dependency,
    file,
    land_late,
    lose_the_response,
    meanwhile,
    table,
)

BUDGET = 32 << 10


@pytest.fixture
def world() -> World:
    world = World()
    writer = world.writer()
    writer.create()
    world.shrink_roots(BUDGET)
    return world


def root_bytes(manifest: Manifest) -> int:
    return len(manifest.encode())


def fill(world: World, writer: Writer, count: int, prefix: str = "f") -> None:
    """Appends one file this many times."""
    for number in range(count):
        world.pass_minutes(1)
        writer.head.refresh()  # for the server's time
        writer.commit(append(table(world), f"{prefix}{number}"))


def names_in(writer: Writer, segment: Segment) -> list[str]:
    """Uuids of a segment's files."""
    return [entry.uuid for part in writer.head.segments.files(segment).entries() for entry in part]


def live(world: World, writer: Writer) -> list[str]:
    return [each.uuid for each in LiveFiles.of(table(world), writer.head.segments)]


def test_the_root_stays_within_its_budget_and_no_entry_is_lost_or_doubled(world: World) -> None:
    writer = world.writer()
    largest = 0
    for number in range(400):
        writer.commit(append(table(world), f"f{number}"))
        largest = max(largest, root_bytes(world.newest))
    assert largest <= BUDGET
    assert live(world, writer) == [f"f{number}" for number in range(400)]
    kinds = {segment.kind for segment in (*world.newest.segments, *table(world).segments)}
    assert kinds == {"files", "history"}
    assert len(world.newest.history) >= HISTORY_LENGTH


def test_a_spill_costs_one_put_and_seldom_happens(world: World) -> None:
    writer = world.writer()
    costs = []
    for number in range(200):
        writer.store.puts.clear()
        writer.commit(append(table(world), f"f{number}"))
        costs.append(len(writer.store.puts))
    assert set(costs) == {2, 3}
    assert costs.count(3) < 0.1 * len(costs)


def test_a_spill_takes_only_entries_of_its_base(world: World) -> None:
    writer = world.writer()
    fill(world, writer, 300)
    for before, after in pairwise(world.chain()):
        old, new = before.tables.get("t"), after.tables["t"]
        if old is None or new.segments == old.segments:
            continue
        spilled = names_in(writer, new.segments[-1])
        assert set(spilled) <= {each.uuid for each in LiveFiles.of(old, writer.head.segments)}
        assert new.files[-1].uuid not in spilled


def about_to_spill(world: World, writer: Writer) -> None:
    """Appends until the next one would spill files."""
    while True:
        probe = table(world).segments
        state = dict(world.bucket.objects)
        writer.commit(append(table(world), f"probe{world.newest.version}"))
        if table(world).segments != probe:
            world.bucket.objects.clear()
            world.bucket.objects.update(state)
            return


def test_a_spill_of_a_lost_attempt_is_used_again_if_its_entries_still_stand(world: World) -> None:
    writer, other = world.writer(), world.writer()
    about_to_spill(world, writer)
    before = live(world, other)
    fresh = world.writer()
    fresh.store.script.append(meanwhile(lambda: other.commit(delete(table(world)))))
    # The other's commit may be the one that spills; then ours must not spill the same entries again.
    done = fresh.commit(append(table(world), "mine"))
    assert done.attempts == 2
    assert live(world, other) == [*before, "mine"]
    assert len({segment.object for segment in table(world).segments}) == len(table(world).segments)


def test_a_spill_is_an_orphan_when_the_winner_has_spilled_the_same_entries(world: World) -> None:
    writer, other = world.writer(), world.writer()
    about_to_spill(world, writer)
    before = live(world, other)
    fresh = world.writer()
    fresh.store.script.append(meanwhile(lambda: other.commit(append(table(world), "theirs"))))
    fresh.commit(append(table(world), "mine"))
    assert live(world, other) == [*before, "theirs", "mine"]
    written = {key for key in world.bucket.objects if key.startswith("segment/files/")}
    named = {segment.object for segment in table(world).segments}
    assert len(written - named) == 1, "of both writers' segments one is named"


def test_a_spill_is_an_orphan_when_one_of_its_entries_got_a_vector_meanwhile(world: World) -> None:
    writer, other = world.writer(), world.writer()
    about_to_spill(world, writer)
    before = live(world, other)
    first = table(world).files[0].uuid
    fresh = world.writer()
    fresh.store.script.append(meanwhile(lambda: other.commit(delete_positions(table(world), {first: [4]}))))
    fresh.commit(append(table(world), "mine"))
    found = {each.uuid: each for each in LiveFiles.of(table(world), other.head.segments)}
    assert list(found) == [*before, "mine"]
    vector = found[first].vector
    assert vector is not None
    assert vector.cardinality == 1


@pytest.mark.parametrize("behaviour", [lose_the_response, land_late])
def test_a_commit_with_a_spill_lands_once_whatever_becomes_of_its_answer(world: World, behaviour: object) -> None:
    writer = world.writer()
    about_to_spill(world, writer)
    before = live(world, writer)
    fresh = world.writer()
    fresh.store.script.append(behaviour)  # type: ignore[arg-type]
    fresh.commit(append(table(world), "mine"))
    while fresh.store.under_way:
        fresh.store.land()
    assert live(world, writer) == [*before, "mine"]


# ---- spills of a commit's own files ----------------------------------------------------------------------------------

MANY = tuple(f"many{number}" for number in range(400))
"""Files whose entries alone are more than the budget."""


def files_with_ts(world: World, writer: Writer) -> dict[str, tuple[int, int]]:
    """The timestamps that each file's rows and its pair have."""
    files = LiveFiles.of(table(world), writer.head.segments)
    return {each.uuid: (each.greatest_row_ts, each.applied_through) for each in files}


def test_so_many_files_that_they_alone_are_more_than_the_budget_leave_with_their_own_commit(world: World) -> None:
    writer = world.writer()
    writer.commit(append(table(world), "first"))
    writer.store.puts.clear()
    writer.commit(append(table(world), *MANY))
    assert len(writer.store.puts) == 3, "segment, manifest, pointer"
    assert root_bytes(world.newest) < BUDGET // 4
    assert table(world).files == ()
    assert live(world, writer) == ["first", *MANY]
    ts = world.newest.commit_ts
    assert files_with_ts(world, writer)["many7"] == (ts, ts)


def test_new_files_that_the_budget_has_room_for_stay_in_the_manifest(world: World) -> None:
    writer = world.writer()
    one = len(msgspec.json.encode(file("many000").stamp(1 << 50)))
    count = (BUDGET - 2_000) // one
    writer.commit(append(table(world), *MANY[:count]))
    assert len(table(world).files) == count
    assert table(world).segments == ()


def test_own_files_of_a_lost_attempt_get_a_segment_with_the_timestamps_of_the_next(world: World) -> None:
    writer, other = world.writer(), world.writer()
    writer.store.script.append(meanwhile(lambda: other.commit(append(table(world), "theirs"))))
    done = writer.commit(append(table(world), *MANY))
    assert done.attempts == 2
    assert live(world, other) == ["theirs", *MANY]
    ts = world.newest.commit_ts
    assert {files_with_ts(world, other)[each] for each in MANY} == {(ts, ts)}
    written = {key for key in world.bucket.objects if key.startswith("segment/files/")}
    named = {segment.object for segment in table(world).segments}
    assert len(written - named) == 1, "the lost attempt's, which collection finds"


def test_two_commits_of_many_files_at_once_lose_and_double_none(world: World) -> None:
    writer, other = world.writer(), world.writer()
    more = tuple(f"more{number}" for number in range(300))
    writer.store.script.append(meanwhile(lambda: other.commit(append(table(world), *more))))
    writer.commit(append(table(world), *MANY))
    assert live(world, other) == [*more, *MANY]
    assert len(table(world).segments_of("files")) == 2


@pytest.mark.parametrize("behaviour", [lose_the_response, land_late])
def test_many_files_land_once_whatever_becomes_of_the_answer(world: World, behaviour: object) -> None:
    writer = world.writer()
    writer.store.script.append(behaviour)  # type: ignore[arg-type]
    writer.commit(append(table(world), *MANY))
    while writer.store.under_way:
        writer.store.land()
    assert live(world, world.writer()) == list(MANY)


def test_what_was_read_is_checked_against_many_files_that_came_meanwhile(world: World) -> None:
    writer, read, entry = world.writer(), world.newest, table(world)
    writer.commit(append(entry, *MANY))
    assert table(world).files == ()
    with pytest.raises(ConflictError, match="rows"):
        world.writer().commit(append(entry, "mine"), dependencies=(dependency(entry, read),))


def test_positions_in_files_that_left_with_their_own_commit_are_deleted(world: World) -> None:
    writer = world.writer()
    writer.commit(append(table(world), *MANY))
    writer.commit(delete_positions(table(world), {"many3": [1, 2]}))
    vector = LiveFiles.of(table(world), writer.head.segments).find(["many3"])["many3"].vector
    assert vector is not None
    assert vector.cardinality == 2


# ---- what leaves, and is still found ---------------------------------------------------------------------------------


def test_positions_of_a_spilled_file_are_deleted_by_an_overlay_and_merge(world: World) -> None:
    writer = world.writer()
    fill(world, writer, 200)
    spilled = names_in(writer, table(world).segments_of("files")[0])[0]
    writer.commit(delete_positions(table(world), {spilled: [1, 2]}))
    racing = world.writer()
    racing.store.script.append(meanwhile(lambda: writer.commit(delete_positions(table(world), {spilled: [5]}))))
    racing.commit(delete_positions(table(world), {spilled: [2, 9]}))
    found = LiveFiles.of(table(world), writer.head.segments).find([spilled])[spilled]
    assert found.vector is not None
    assert found.vector.cardinality == 4


def test_what_was_read_is_checked_against_files_that_were_spilled_meanwhile(world: World) -> None:
    writer = world.writer()
    read = world.newest
    entry = table(world)
    fill(world, writer, 200)
    assert all(each.greatest_row_ts > read.commit_ts for each in table(world).files)
    with pytest.raises(ConflictError, match="rows"):
        world.writer().commit(append(entry, "mine"), dependencies=(dependency(entry, read),))


def test_tombstones_spill_and_still_hide(world: World) -> None:
    writer = world.writer()
    for _ in range(150):
        writer.commit(delete(table(world)))
    found = tombstones_of(table(world), writer.head.segments)
    assert len(found) == 150
    assert [each.ts for each in found] == sorted(each.ts for each in found)
    assert table(world).segments_of("tombstones")


def test_an_id_that_was_spilled_is_still_applied_once_and_a_new_one_costs_the_bloom_filter_alone(world: World) -> None:
    writer = world.writer()
    for number in range(300):
        id_ = f"bucket/some/long/key/{number:08d}"
        writer.commit(append(table(world), f"f{number}", request=id_), applied={id_: f"{number:064x}"})
    assert world.newest.segments_of("applied")
    fresh = world.writer()
    old = "bucket/some/long/key/00000000"
    done = fresh.commit(append(table(world), "again", request=old), applied={old: f"{0:064x}"})
    assert done.manifest is None
    assert list(done.already) == [old]
    with pytest.raises(AppliedIdError):
        fresh.commit(append(table(world), "again", request=old), applied={old: "another"})
    assert "again" not in live(world, fresh)


@pytest.mark.slow
def test_history_reaches_back_to_the_first_version_in_one_get_more(world: World) -> None:
    writer = world.writer()
    fill(world, writer, 300)
    newest = world.newest
    assert newest.segments_of("history")
    fresh = world.writer()
    base = fresh.head.refresh()
    fresh.store.gets.clear()
    old = manifest_at_version(fresh.head, base.manifest, 5)
    assert old.version == 5
    assert len(fresh.store.gets) == 2
    assert [entry.version for entry in commits(fresh.head, newest)] == list(range(newest.version, 0, -1))
    for manifest in world.chain()[2::17]:
        fresh.head.refresh()
        assert manifest_at_time(fresh.head, base, manifest.created_at + 1).version == manifest.version


def test_a_lost_response_followed_by_more_commits_than_stand_inline_is_still_found(world: World) -> None:
    writer, other = world.writer(), world.writer()

    def many() -> None:
        for number in range(200):
            other.commit(append(table(world), f"o{number}"))

    writer.store.script.append(lose_the_response)
    original = writer.store.get
    seen = []

    def get(key: str, *rest: object, **named: object) -> object:
        if key == "_latest_manifest" and writer.store.pointer_puts and not seen:
            seen.append(key)
            many()
        return original(key, *rest, **named)  # type: ignore[arg-type]

    writer.store.get = get  # type: ignore[method-assign,assignment]
    done = writer.commit(append(table(world), "mine"))
    assert done.manifest is not None
    assert done.attempts == 1
    assert live(world, other).count("mine") == 1
    assert world.newest.segments_of("history")


@pytest.mark.slow
def test_an_idle_table_leaves_the_root_and_comes_back_when_it_is_written_to(world: World) -> None:
    writer = world.writer()
    for number in range(60):
        writer.create(f"idle{number}")
    fill(world, writer, 300)
    idle = [name for name, entry in world.newest.tables.items() if entry.section]
    assert idle
    entry = world.newest.tables[idle[0]]
    whole = writer.head.segments.whole(entry)
    assert whole.uuid == entry.uuid
    assert whole.section is None
    fresh = world.writer()
    fresh.commit(Write(idle[0], entry.uuid, files=(file("back"),)))
    again = world.newest.tables[idle[0]]
    assert again.section is None
    assert again.schema == whole.schema
    assert [each.uuid for each in again.files] == [*(each.uuid for each in whole.files), "back"]
    assert entry.section is not None
    assert entry.section.object in world.newest.released[-1].objects


def test_a_dropped_table_releases_its_segments_with_all_that_they_name(world: World) -> None:
    writer = world.writer()
    fill(world, writer, 200)
    segments = table(world).segments
    inline = {each.path for each in table(world).files}
    writer.commit(DropTable("t", table(world).uuid))
    released = world.newest.released[-1]
    assert released.trees == segments
    assert set(released.objects) == inline
    assert world.newest.counts.files_removed == 200


def test_an_entry_is_equal_to_what_a_manifest_gives_back(world: World) -> None:
    """Else a spill would never be used again once another writer's manifest was read."""
    schema = pa.schema([("k", pa.int64()), ("s", pa.string())])
    db = dolmen.open(f"memory://{os.urandom(8).hex()}")
    events = db.create_table("events", schema, primary_key="k", properties={"target_file_bytes": "1MB"})
    events.append(pa.table({"k": [1, 2, 3], "s": ["a", "b", None]}, schema=schema))
    events.delete("s IN ('a', 'x') AND k BETWEEN 1 AND 5 OR s LIKE 'q%' OR k IS NULL")
    events.delete(keys=[7, 8])
    events.delete("k = 2", mode="positions")
    made = db._context.head.cached
    assert made is not None
    assert Manifest.decode(made.manifest.encode(), made.manifest.key) == made.manifest


# ---- spills that take in the segment before them ---------------------------------------------------------------------


@pytest.fixture
def free() -> World:
    """A world whose database has no budget of its own."""
    world = World()
    world.writer().create()
    return world


def about_to_join(world: World, writer: Writer) -> Segment:
    """Appends until the next append would spill files beside a segment; returns this."""
    while not table(world).segments_of("files"):
        writer.commit(append(table(world), f"early{world.newest.version}"))
    about_to_spill(world, writer)
    return table(world).segments_of("files")[-1]


def test_a_spill_takes_in_the_segment_before_it_and_releases_it(free: World) -> None:
    writer = free.writer()
    last = about_to_join(free, writer)
    before = live(free, writer)
    fresh = free.writer()
    fresh.commit(append(table(free), "mine"))
    (only,) = table(free).segments_of("files")
    assert names_in(fresh, only) == before[: only.count]
    assert only.count > last.count
    assert (only.least, only.rows) == (last.least, 10 * only.count)
    assert live(free, fresh) == [*before, "mine"]
    assert last.object in free.newest.released[-1].objects
    assert free.newest.released[-1].version == free.newest.version
    assert fresh.store.gets.count(last.object) == 1
    assert only.object not in fresh.store.gets, "the process knows what it has written"


@pytest.mark.slow
def test_segments_stay_few_without_any_merge_and_full_ones_are_left_alone(free: World) -> None:
    writer = free.writer()
    for number in range(2 * MOST_MERGED):
        writer.commit(append(table(free), f"f{number}"))
    files = table(free).segments_of("files")
    assert len(files) == 2
    assert all(MOST_MERGED * 0.8 < segment.count <= MOST_MERGED for segment in files[:-1])
    assert live(free, writer) == [f"f{number}" for number in range(2 * MOST_MERGED)]
    history = free.newest.segments_of("history")
    assert len(history) <= 3
    assert [entry.version for entry in commits(writer.head, free.newest)] == [*range(free.newest.version, 0, -1)]


def test_a_spill_of_a_lost_attempt_is_made_anew_if_the_winner_merged_what_it_had_taken_in(free: World) -> None:
    writer, other = free.writer(), free.writer()
    last = about_to_join(free, writer)
    before = live(free, other)

    def merge() -> None:
        entries = [entry for part in other.head.segments.files(last).entries() for entry in part]
        merged, body = encode("files", entries, "segment/files/" + "a" * 32, SCHEMA)
        other.store.put(merged.object, body)
        entry = table(free)
        segments = tuple(merged if each == last else each for each in entry.segments)
        free.put_by_hand(tables={"t": replace_struct(entry, segments=segments)})

    fresh = free.writer()
    fresh.store.script.append(meanwhile(merge))
    assert fresh.commit(append(table(free), "mine")).attempts == 2
    (only,) = table(free).segments_of("files")
    assert names_in(fresh, only) == before[: only.count]
    assert live(free, other) == [*before, "mine"]
    spilled = [key for key in fresh.store.puts if key.startswith("segment/files/")]
    assert len(spilled) == 2, "the first is an orphan"
    assert only.object == spilled[1]


def test_a_spill_of_a_lost_attempt_is_used_again_if_what_it_had_taken_in_still_stands(free: World) -> None:
    writer, other = free.writer(), free.writer()
    last = about_to_join(free, writer)
    before = live(free, other)
    fresh = free.writer()
    fresh.store.script.append(meanwhile(free.put_by_hand))
    assert fresh.commit(append(table(free), "mine")).attempts == 2
    (spilled,) = [key for key in fresh.store.puts if key.startswith("segment/files/")]
    (only,) = table(free).segments_of("files")
    assert only.object == spilled != last.object
    assert live(free, other) == [*before, "mine"]
    assert last.object in free.newest.released[-1].objects
    assert free.newest.released[-1].version == free.newest.version


@pytest.mark.slow
@pytest.mark.parametrize("what", ["missing", "damaged"])
def test_a_segment_that_cannot_be_read_is_left_alone_and_stops_no_commit(free: World, what: str) -> None:
    writer = free.writer()
    last = about_to_join(free, writer)
    inline = [each.uuid for each in table(free).files]
    if what == "missing":
        del free.bucket.objects[last.object]
    else:
        body = bytearray(free.bucket.objects[last.object].body)
        body[len(body) // 2] ^= 1
        free.bucket.objects[last.object] = replace(free.bucket.objects[last.object], body=bytes(body))
    fresh = free.writer()
    fresh.commit(append(table(free), "mine"))
    kept, added = table(free).segments_of("files")
    assert kept == last
    assert names_in(fresh, added) == inline[: added.count]


@pytest.mark.slow
def test_background_work_moves_nothing_early(free: World) -> None:
    writer = free.writer()
    last = about_to_join(free, writer)
    free.writer().commit(append(table(free), "mine"), is_background=True)
    assert table(free).segments_of("files") == (last,)
    free.writer().commit(append(table(free), "yours"))
    assert last not in table(free).segments


def test_a_segment_that_background_work_has_marked_is_left_alone(free: World) -> None:
    writer = free.writer()
    last = about_to_join(free, writer)
    entry = table(free)
    marked = tuple(replace_struct(each, resolved_through=1) if each == last else each for each in entry.segments)
    free.put_by_hand(tables={"t": replace_struct(entry, segments=marked)})
    free.writer().commit(append(table(free), "mine"))
    kept, _ = table(free).segments_of("files")
    assert kept.object == last.object


def test_overlays_and_removals_of_a_segment_that_was_taken_in_still_hold(free: World) -> None:
    writer = free.writer()
    last = about_to_join(free, writer)
    first, second = names_in(writer, last)[:2]
    writer = free.writer()
    writer.commit(delete_positions(table(free), {first: [1, 2]}))
    free.put_by_hand(tables={"t": replace_struct(table(free), removed=(second,))})
    before = live(free, writer)
    while last in table(free).segments:
        writer.commit(append(table(free), f"late{free.newest.version}"))
    (only,) = table(free).segments_of("files")
    assert {first, second} <= set(names_in(writer, only))
    found = {each.uuid: each for each in LiveFiles.of(table(free), writer.head.segments)}
    assert list(found)[: len(before)] == before
    assert second not in found
    vector = found[first].vector
    assert vector is not None
    assert vector.cardinality == 2
