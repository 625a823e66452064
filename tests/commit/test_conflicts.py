"""What a rebase checks: which commits of others a change lives with, and which it does not."""

from __future__ import annotations

import pytest

from dolmen.commit.statements.catalog import CreateTable, DropTable
from dolmen.errors import (
    ConflictError,
    CorruptionError,
    StaleWriterError,
    StoreUnavailableError,
    TableExistsError,
    TableNotFoundError,
)
from dolmen.format.del_object import decode_vector
from dolmen.format.layout import Tag, manifest_key
from dolmen.format.manifest import TableEntry
from support.commit_world import (
    SCHEMA,
    Behaviour,
    World,
    Writer,
    append,
    delete,
    delete_positions,
    dependency,
    file,
    lose_the_response,
    meanwhile,
    paths,
    table,
)


@pytest.fixture
def world() -> World:
    world = World()
    writer = world.writer()
    writer.commit(append(writer.create(), "a"))
    return world


def racing(world: World, *statements: object) -> Writer:
    """A writer that another one overtakes with ``statements`` just before its pointer arrives."""
    writer, other = world.writer(), world.writer()
    writer.head.refresh()
    overtake: Behaviour = meanwhile(lambda: other.commit(*statements))  # type: ignore[arg-type]
    writer.store.script.append(overtake)
    return writer


def test_appends_and_blind_deletes_live_with_each_other(world: World) -> None:
    writer = racing(world, append(table(world), "b"), delete(table(world)))
    done = writer.commit(append(table(world), "c"), delete(table(world)))
    assert done.attempts == 2
    assert paths(table(world)) == ["a", "b", "c"]
    b, c = table(world).files[1:]
    first, second = table(world).tombstones
    assert b.applied_through < first.ts < c.applied_through < second.ts


def test_a_delete_does_not_hide_rows_that_a_later_commit_adds(world: World) -> None:
    writer = racing(world, delete(table(world)))
    writer.commit(append(table(world), "b"))
    (tombstone,) = table(world).tombstones
    a, b = table(world).files
    assert a.applied_through < tombstone.ts < b.applied_through


def test_of_two_creators_of_one_name_one_wins_and_the_columns_are_its_own(world: World) -> None:
    entry = TableEntry(uuid="1" * 32, epoch=0, schema=SCHEMA)
    writer = racing(world, CreateTable("new", entry))
    with pytest.raises(TableExistsError):
        writer.commit(CreateTable("new", TableEntry(uuid="2" * 32, epoch=0, schema=SCHEMA)))
    assert world.newest.tables["new"].uuid == "1" * 32


def test_the_winner_of_a_create_is_not_told_that_it_lost_when_its_response_was_lost() -> None:
    world = World()
    writer = world.writer()
    writer.store.script.append(lose_the_response)
    assert writer.commit(CreateTable("new", TableEntry(uuid="1" * 32, epoch=0, schema=SCHEMA))).manifest is not None


def test_an_append_to_a_table_dropped_meanwhile_fails(world: World) -> None:
    writer = racing(world, DropTable("t", table(world).uuid))
    with pytest.raises(TableNotFoundError):
        writer.commit(append(table(world), "b"))


def test_an_append_to_a_table_dropped_and_created_again_is_a_conflict(world: World) -> None:
    old = table(world)
    writer = racing(
        world, DropTable("t", old.uuid), CreateTable("t", TableEntry(uuid="3" * 32, epoch=0, schema=SCHEMA))
    )
    with pytest.raises(ConflictError, match="created"):
        writer.commit(append(old, "b"))
    assert paths(table(world)) == []


def test_a_dropped_table_releases_all_it_reached(world: World) -> None:
    world.writer().commit(DropTable("t", table(world).uuid))
    assert world.newest.released[-1].version == world.newest.version
    assert world.newest.released[-1].objects == ("data/t/a.parquet",)


def test_an_error_on_a_cached_base_is_raised_only_after_a_fresh_look(world: World) -> None:
    """The writer's cached version still has the table; by now it has been dropped and made anew elsewhere."""
    writer, other = world.writer(), world.writer()
    writer.commit(append(table(world), "b"))
    other.commit(DropTable("t", table(world).uuid))
    writer.store.gets.clear()
    writer.commit(CreateTable("t", TableEntry(uuid="4" * 32, epoch=0, schema=SCHEMA)))  # its cache says: exists already
    assert writer.store.gets
    assert table(world).uuid == "4" * 32


def test_an_error_that_a_fresh_look_confirms_is_raised(world: World) -> None:
    writer = world.writer()
    writer.commit(append(table(world), "b"))
    writer.store.gets.clear()
    with pytest.raises(TableExistsError):
        writer.commit(CreateTable("t", TableEntry(uuid="4" * 32, epoch=0, schema=SCHEMA)))
    assert writer.store.gets == ["_latest_manifest"]


def test_two_read_modify_writes_never_both_commit(world: World) -> None:
    first, second = world.writer(), world.writer()
    read = first.head.refresh().manifest
    second.head.refresh()
    entry = table(world)
    first.commit(append(entry, "b"), dependencies=(dependency(entry, read),))
    with pytest.raises(ConflictError, match="rows"):
        second.commit(append(entry, "c"), dependencies=(dependency(entry, read),))
    assert paths(table(world)) == ["a", "b"]


def test_what_was_read_may_not_be_deleted_meanwhile(world: World) -> None:
    read = world.newest
    entry = table(world)
    writer = racing(world, delete(entry))
    with pytest.raises(ConflictError, match="deleted rows"):
        writer.commit(append(entry, "b"), dependencies=(dependency(entry, read, may_match=False),))


def test_what_was_read_may_not_be_deleted_by_position_either(world: World) -> None:
    read = world.newest
    entry = table(world)
    writer = racing(world, delete_positions(entry, {"a": [1]}))
    with pytest.raises(ConflictError, match="deleted rows"):
        writer.commit(append(entry, "b"), dependencies=(dependency(entry, read),))


def test_rows_that_cannot_be_what_was_read_are_no_conflict(world: World) -> None:
    read = world.newest
    entry = table(world)
    writer = racing(world, append(entry, "b"))
    writer.commit(append(entry, "c"), dependencies=(dependency(entry, read, may_match=False),))
    assert paths(table(world)) == ["a", "b", "c"]


def test_conflicts_are_judged_by_the_manifests_and_not_by_a_trimmed_history(world: World) -> None:
    read = world.newest
    entry = table(world)
    other = world.writer()
    other.commit(delete(entry))
    world.shrink_roots()
    for number in range(200):
        other.commit(append(entry, f"f{number}"))
    assert not any(each.counts.tombstones_added for each in world.newest.history)
    with pytest.raises(ConflictError):
        world.writer().commit(append(entry, "b"), dependencies=(dependency(entry, read, may_match=False),))


def bitmap(world: World, name: str) -> list[int]:
    (entry,) = [each for each in table(world).files if each.uuid == name]
    if entry.vector is None:
        return []
    body = world.bucket.objects[entry.vector.object].body
    return list(decode_vector(body[entry.vector.offset :][: entry.vector.length], entry.vector, entry.rows))


def test_concurrent_deletes_by_position_of_one_file_merge(world: World) -> None:
    entry = table(world)
    writer = racing(world, delete_positions(entry, {"a": [1, 2]}))
    done = writer.commit(delete_positions(entry, {"a": [2, 7]}))
    assert done.attempts == 2
    assert bitmap(world, "a") == [1, 2, 7]
    assert done.manifest is not None
    assert done.manifest.counts.rows_deleted == 1


def test_merged_vectors_release_the_ones_they_replace(world: World) -> None:
    entry = table(world)
    world.writer().commit(delete_positions(entry, {"a": [1]}))
    replaced = table(world).files[0].vector
    assert replaced is not None
    world.writer().commit(delete_positions(entry, {"a": [2]}))
    assert world.newest.released[-1].objects == (replaced.object,)
    assert bitmap(world, "a") == [1, 2]


def test_a_merge_of_vectors_uploads_nothing_for_files_that_nobody_touched(world: World) -> None:
    world.writer().commit(append(table(world), "b"))
    entry = table(world)
    writer = racing(world, delete_positions(entry, {"a": [1]}))
    writer.commit(delete_positions(entry, {"a": [2], "b": [3]}))
    assert (bitmap(world, "a"), bitmap(world, "b")) == ([1, 2], [3])
    a, b = table(world).files
    assert a.vector is not None
    assert b.vector is not None
    assert a.vector.object != b.vector.object


def test_two_deletes_by_position_in_one_commit_merge(world: World) -> None:
    entry = table(world)
    world.writer().commit(delete_positions(entry, {"a": [1]}), delete_positions(entry, {"a": [3]}))
    assert bitmap(world, "a") == [1, 3]


def test_deletes_by_position_and_by_predicate_live_with_each_other(world: World) -> None:
    entry = table(world)
    writer = racing(world, delete(entry), append(entry, "b"))
    writer.commit(delete_positions(entry, {"a": [0]}))
    assert bitmap(world, "a") == [0]
    assert len(table(world).tombstones) == 1
    assert paths(table(world)) == ["a", "b"]


def test_a_delete_by_position_in_a_file_that_is_gone_is_a_conflict(world: World) -> None:
    entry = table(world)
    with pytest.raises(ConflictError, match="replaced since"):
        world.writer().commit(delete_positions(entry, {"b": [0]}))


def test_a_damaged_vector_is_not_merged_into(world: World) -> None:
    entry = table(world)
    world.writer().commit(delete_positions(entry, {"a": [1]}))
    vector = table(world).files[0].vector
    assert vector is not None
    there = world.bucket.objects[vector.object]
    body = bytearray(there.body)
    body[vector.offset] ^= 1
    world.bucket.objects[vector.object] = type(there)(bytes(body), there.etag, there.last_modified_us)
    with pytest.raises(CorruptionError, match="checksum"):
        world.writer().commit(delete_positions(entry, {"a": [2]}))


def test_a_writer_whose_first_upload_is_not_after_the_fence_is_stale(world: World) -> None:
    cutoff = world.now_us
    writer = racing(world)
    writer.store.script.clear()
    world.put_by_hand(orphan_cutoff=cutoff)
    with pytest.raises(StaleWriterError):
        writer.commit(append(table(world), "b"), first_upload_us=cutoff)
    writer.commit(append(table(world), "c"), first_upload_us=cutoff + 1)
    assert paths(table(world)) == ["a", "c"]


def test_a_fence_that_moves_between_two_attempts_stops_the_second(world: World) -> None:
    began = world.now_us
    writer = world.writer()
    writer.head.refresh()
    writer.store.script.append(meanwhile(lambda: world.put_by_hand(orphan_cutoff=began + 1)))
    with pytest.raises(StaleWriterError):
        writer.commit(append(table(world), "b"), first_upload_us=began)
    assert paths(table(world)) == ["a"]


def test_a_paused_job_whose_intent_was_revoked_cannot_commit(world: World) -> None:
    world.put_by_hand(revoked_intents={"job-1": world.now_us})
    with pytest.raises(StaleWriterError, match="job-1"):
        world.writer().commit(append(table(world), "b"), txid="job-1")
    world.writer().commit(append(table(world), "c"), txid="job-2")
    assert paths(table(world)) == ["a", "c"]


def test_a_commit_that_uploads_its_first_object_now_is_dated_by_the_last_answer_before(world: World) -> None:
    writer = world.writer()
    writer.head.refresh()
    world.put_by_hand(orphan_cutoff=world.now_us)
    with pytest.raises(StaleWriterError):
        writer.commit(delete_positions(table(world), {"a": [1]}))  # its last answer came at the fence's very time
    world.now_us += 1
    writer.head.refresh()
    writer.commit(delete_positions(table(world), {"a": [1]}))
    assert bitmap(world, "a") == [1]


def test_fields_that_a_statement_does_not_know_are_carried_over(world: World) -> None:
    golden = Tag(2, manifest_key(2, "00000002"), 5)
    world.put_by_hand(orphan_cutoff=7, revoked_intents={"job-1": 5}, horizon=1, tags={"golden": golden})
    world.writer().commit(append(table(world), "b"))
    newest = world.newest
    assert (newest.orphan_cutoff, newest.revoked_intents, newest.horizon, newest.tags) == (
        7,
        {"job-1": 5},
        1,
        {"golden": golden},
    )


def test_many_writers_all_commit_each_once(world: World) -> None:
    """Every writer is overtaken by all those after it: each attempt loses until the others are done."""
    writers = [world.writer() for _ in range(12)]
    entry = table(world)
    for writer in writers:
        writer.head.refresh()
    for index, writer in enumerate(writers[:-1]):
        following = writers[index + 1]
        writer.store.script.append(
            meanwhile(lambda following=following, index=index: following.commit(append(entry, f"w{index + 1}")))
        )
    writers[0].commit(append(entry, "w0"))
    assert sorted(paths(table(world))[1:]) == sorted(f"w{index}" for index in range(12))


def test_back_off_grows_with_what_an_attempt_costs(world: World) -> None:
    def total_sleep(minutes_per_attempt: float) -> float:
        writer, other = world.writer(), world.writer()
        writer.head.refresh()

        def overtake() -> None:
            world.pass_minutes(minutes_per_attempt)
            other.commit(append(table(world), f"x{len(paths(table(world)))}"))

        writer.store.script.append(meanwhile(overtake))
        began = world.now_us
        assert writer.commit(append(table(world), f"y{world.newest.version}")).attempts == 2
        return world.now_us / 1e6 - began / 1e6 - 60 * minutes_per_attempt

    assert total_sleep(0.001) < total_sleep(0.02)


def test_an_unavailable_store_is_reported_as_such_and_nothing_is_committed(world: World) -> None:
    writer = world.writer()
    writer.store.unreadable = lambda key: True
    with pytest.raises(StoreUnavailableError):
        writer.commit(append(table(world), "b"))
    assert world.newest.version == 2


def test_a_vanished_pointer_is_corruption_and_not_an_empty_database(world: World) -> None:
    writer = world.writer()
    writer.head.refresh()
    del world.bucket.objects["_latest_manifest"]
    with pytest.raises(CorruptionError, match="gone"):
        writer.commit(append(TableEntry(uuid="0" * 32, epoch=0, schema=SCHEMA), "b"))


def test_positions_of_a_file_with_no_rows_left_to_delete_change_no_pair(world: World) -> None:
    entry = table(world)
    world.writer().commit(delete_positions(entry, {"a": [1, 2]}))
    before = table(world).files[0]
    world.writer().commit(delete_positions(entry, {"a": [1]}))
    assert table(world).files[0].vector is not None
    assert bitmap(world, "a") == [1, 2]
    assert (
        table(world).files[0].applied_through
        == before.applied_through
        == file("a").stamp(before.row_ts or 0).applied_through
    )
