"""Background work: what it drops, leaves out or merges when others were faster; no delete is ever lost by it."""

from __future__ import annotations

import msgspec
import pytest
from pyroaring import BitMap

from dolmen.commit.draft import Statement
from dolmen.commit.loop import Committed, submit
from dolmen.commit.statements.background import CollectionProgress, Compact, Group, MoveFence, Resolve, SetProperties
from dolmen.commit.statements.catalog import DropTable
from dolmen.commit.statements.row_changes import Overwrite
from dolmen.errors import ConflictError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import TableEntry
from support.commit_world import (
    MINUTE_US,
    World,
    append,
    delete,
    delete_positions,
    file,
    meanwhile,
    paths,
    table,
)


@pytest.fixture
def world() -> World:
    world = World()
    writer = world.writer()
    entry = writer.create()
    writer.commit(append(entry, "a", "b"))
    return world


def upkeep(world: World, *statements: Statement, first: tuple[Statement, ...] = ()) -> Committed:
    """Commits background work, just after a commit of others if there is one."""
    writer, other = world.writer(), world.writer()
    if first:
        writer.store.script.append(meanwhile(lambda: other.commit(*first)))
    return submit(writer.head, "upkeep", statements)


def resolve(world: World, positions: dict[str, list[int]], entry: TableEntry | None = None) -> Resolve:
    """Resolution at the newest version."""
    entry = entry or table(world)
    found = {file(name).path: BitMap(values) for name, values in positions.items()}
    return Resolve("t", entry.uuid, entry.epoch, world.newest.commit_ts, found)


def compact(world: World, *groups: tuple[list[str], list[str]]) -> Compact:
    """Compaction of groups of files into others, planned on the newest version."""
    entry, through = table(world), world.newest.commit_ts
    live = {each.uuid: each for each in entry.files}

    def output(name: str) -> DataFile:
        return msgspec.structs.replace(file(name), row_ts=None, row_ts_bounds=(1, through), applied_through=through)

    made = tuple(Group(tuple(live[name] for name in inputs), tuple(map(output, outputs))) for inputs, outputs in groups)
    return Compact("t", entry.uuid, entry.epoch, made, entry.schema)


def vector_of(world: World, name: str) -> int:
    (found,) = [each for each in table(world).files if each.uuid == name]
    return found.vector.cardinality if found.vector else 0


# ---- resolution


def test_resolved_tombstones_are_dropped_and_their_rows_stay_hidden_by_vectors(world: World) -> None:
    world.writer().commit(delete(table(world)))
    through = world.newest.commit_ts
    done = upkeep(world, resolve(world, {"a": [1, 2], "b": []}))
    assert done.manifest is not None
    assert done.manifest.counts.tombstones_removed == 1
    assert done.manifest.counts.files_resolved == 2
    assert not done.manifest.data_change
    entry = table(world)
    assert entry.tombstones == ()
    assert [each.applied_through for each in entry.files] == [through, through]
    assert (vector_of(world, "a"), vector_of(world, "b")) == (2, 0)
    assert entry.unseen_delete_ts == through


def test_a_tombstone_stays_while_one_file_is_not_resolved(world: World) -> None:
    world.writer().commit(delete(table(world)))
    upkeep(world, resolve(world, {"a": [1]}))
    assert len(table(world).tombstones) == 1
    upkeep(world, resolve(world, {"b": []}))
    assert table(world).tombstones == ()


def test_a_tombstone_committed_during_a_resolution_stays(world: World) -> None:
    entry = table(world)
    world.writer().commit(delete(entry))
    upkeep(world, resolve(world, {"a": [], "b": []}), first=(delete(entry),))
    (left,) = table(world).tombstones
    assert all(each.applied_through < left.ts for each in table(world).files)


def test_a_resolution_and_a_delete_by_position_of_one_file_merge(world: World) -> None:
    entry = table(world)
    world.writer().commit(delete(entry))
    done = upkeep(world, resolve(world, {"a": [1, 2], "b": []}), first=(delete_positions(entry, {"a": [2, 7]}),))
    assert done.attempts == 2
    assert vector_of(world, "a") == 3


def test_a_resolution_leaves_out_files_that_were_compacted_meanwhile(world: World) -> None:
    entry = table(world)
    world.writer().commit(delete(entry))
    late = resolve(world, {"a": [1], "b": [2]})
    upkeep(world, late, first=(compact(world, (["a"], ["c"])),))
    assert sorted(paths(table(world))) == ["b", "c"]
    assert vector_of(world, "b") == 1


def test_a_resolution_that_finds_its_work_done_makes_no_version(world: World) -> None:
    world.writer().commit(delete(table(world)))
    work = resolve(world, {"a": [1], "b": []})
    assert upkeep(world, work).manifest is not None
    version = world.newest.version
    assert upkeep(world, work).manifest is None
    assert world.newest.version == version


def test_a_resolution_of_a_table_overwritten_meanwhile_is_moot(world: World) -> None:
    entry, base = table(world), world.newest
    world.writer().commit(delete(entry))
    work = resolve(world, {"a": [1], "b": []})
    overwrite = Overwrite("t", entry.uuid, entry.epoch, base.commit_ts, (file("n"),), force=True)
    assert upkeep(world, work, first=(overwrite,)).manifest is None
    assert paths(table(world)) == ["n"]


def test_an_older_resolution_never_takes_a_newer_one_back(world: World) -> None:
    entry = table(world)
    world.writer().commit(delete(entry))
    old = resolve(world, {"a": [1], "b": []})
    world.writer().commit(delete(entry))
    upkeep(world, resolve(world, {"a": [1, 5], "b": []}))
    through = world.newest.commit_ts
    upkeep(world, old)
    assert vector_of(world, "a") == 2
    assert min(each.applied_through for each in table(world).files) < through
    assert table(world).tombstones == ()


# ---- compaction


def test_a_compaction_output_never_has_its_own_timestamp_so_a_later_delete_still_hides_its_rows(world: World) -> None:
    entry = table(world)
    upkeep(world, compact(world, (["a", "b"], ["c"])), first=(delete(entry),))
    (output,), (tombstone,) = table(world).files, table(world).tombstones
    assert output.applied_through < tombstone.ts


def test_a_compaction_whose_input_got_a_vector_meanwhile_is_dropped_and_the_rest_commits(world: World) -> None:
    entry = table(world)
    work = compact(world, (["a"], ["c"]), (["b"], ["d"]))
    done = upkeep(world, work, first=(delete_positions(entry, {"a": [3]}),))
    assert sorted(paths(table(world))) == ["a", "d"]
    assert done.manifest is not None
    assert done.manifest.counts.groups_dropped == 1
    assert vector_of(world, "a") == 1


def test_a_compaction_whose_input_was_resolved_meanwhile_is_dropped(world: World) -> None:
    """The tombstone that the resolution dropped would be missing for the output."""
    world.writer().commit(delete(table(world)))
    work = compact(world, (["a", "b"], ["c"]))
    assert upkeep(world, work, first=(resolve(world, {"a": [1], "b": []}),)).manifest is None
    assert paths(table(world)) == ["a", "b"]


def test_of_two_compactions_of_one_file_one_wins(world: World) -> None:
    first, second = compact(world, (["a", "b"], ["c"])), compact(world, (["b"], ["d"]))
    assert upkeep(world, second, first=(first,)).manifest is None
    assert paths(table(world)) == ["c"]


def test_a_compaction_of_a_dropped_and_recreated_table_is_moot(world: World) -> None:
    entry, work = table(world), compact(world, (["a", "b"], ["c"]))
    world.writer().commit(DropTable("t", entry.uuid))
    world.writer().create()
    assert upkeep(world, work).manifest is None
    assert paths(table(world)) == []


def test_a_compaction_releases_what_it_replaced_and_drops_tombstones_nobody_needs(world: World) -> None:
    entry = table(world)
    world.writer().commit(delete_positions(entry, {"a": [3]}))
    world.writer().commit(delete(entry))
    vector = table(world).files[0].vector
    assert vector is not None
    upkeep(world, compact(world, (["a", "b"], ["c"])))
    assert set(world.newest.released[-1].objects) == {
        file("a").path,
        file("b").path,
        vector.object,
        "tombstone/t/x.del",
    }
    assert table(world).tombstones == ()


# ---- overwrite, settings, fence


def test_an_overwrite_conflicts_with_rows_and_deletes_it_has_not_seen_unless_forced(world: World) -> None:
    for other in (append(table(world), "x"), delete(table(world)), delete_positions(table(world), {"a": [1]})):
        entry, base = table(world), world.newest
        world.writer().commit(other)
        with pytest.raises(ConflictError, match="force=True"):
            world.writer().commit(Overwrite("t", entry.uuid, entry.epoch, base.commit_ts, (file("n"),)))
    entry, base = table(world), world.newest
    world.writer().commit(append(entry, "y"))
    world.writer().commit(Overwrite("t", entry.uuid, entry.epoch, base.commit_ts, (file("n"),), force=True))
    assert paths(table(world)) == ["n"]
    assert table(world).tombstones == ()
    assert table(world).epoch == world.newest.version


def test_of_two_overwrites_one_wins_even_if_forced(world: World) -> None:
    entry, base = table(world), world.newest
    world.writer().commit(Overwrite("t", entry.uuid, entry.epoch, base.commit_ts, (file("n"),)))
    with pytest.raises(ConflictError, match="overwritten"):
        world.writer().commit(Overwrite("t", entry.uuid, entry.epoch, base.commit_ts, (file("m"),), force=True))


def test_an_overwrite_sees_its_own_transaction_as_no_conflict(world: World) -> None:
    entry, base = table(world), world.newest
    world.writer().commit(
        append(entry, "x"), Overwrite("t", entry.uuid, entry.epoch, base.commit_ts, (file("n"),)), append(entry, "y")
    )
    assert paths(table(world)) == ["n", "y"]


def test_settings_of_two_writers_merge(world: World) -> None:
    uuid = table(world).uuid
    upkeep(world, SetProperties("t", uuid, {"a": 1, "b": 2}), first=(SetProperties("t", uuid, {"c": 3, "b": 9}),))
    assert table(world).properties == {"c": 3, "b": 2, "a": 1}
    upkeep(world, SetProperties("t", uuid, {"b": None}), SetProperties(None, "", {"retention": "7d"}))
    assert table(world).properties == {"c": 3, "a": 1}
    assert world.newest.properties == {"retention": "7d"}


def test_a_fence_never_rebases_over_another_fence_and_never_moves_back(world: World) -> None:
    upkeep(world, MoveFence((0, 0), 2, 500))
    with pytest.raises(ConflictError):
        upkeep(world, MoveFence((0, 0), 3, 400))
    upkeep(world, MoveFence((2, 500), 1, 400, revoke=("f" * 32,)))
    newest = world.newest
    assert (newest.horizon, newest.orphan_cutoff) == (2, 500)
    assert newest.horizon_at == world.chain()[-2].created_at


def test_a_revocation_is_forgotten_once_the_fence_has_passed_it(world: World) -> None:
    upkeep(world, MoveFence((0, 0), 0, 1, revoke=("f" * 32,)))
    revoked_at = world.newest.revoked_intents["f" * 32]
    world.pass_minutes(1)
    upkeep(world, MoveFence((0, 1), 0, revoked_at))
    assert "f" * 32 in world.newest.revoked_intents
    upkeep(world, MoveFence((0, revoked_at), 0, revoked_at + MINUTE_US))
    assert world.newest.revoked_intents == {}


def test_what_was_freed_is_not_listed_any_more(world: World) -> None:
    upkeep(world, compact(world, (["a"], ["c"])))
    first = world.newest.version
    upkeep(world, compact(world, (["b"], ["d"])))
    upkeep(world, CollectionProgress(first, 77))
    assert [entry.version for entry in world.newest.released] == [first + 1]
    assert (world.newest.freed, world.newest.swept) == (first, 77)
    assert upkeep(world, CollectionProgress(first, 77)).manifest is None
