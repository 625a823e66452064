"""A feed reads in proportion to the change: requests and bytes are counted."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dolmen import Database, Table
from dolmen.base.records import replace
from dolmen.commit.head import context_of
from dolmen.commit.statements.row_changes import Write
from dolmen.commit.versions import manifest_at_version
from dolmen.rows.changes.feed import ChangeFeed, FeedPart, PartReader, parts_of
from dolmen.transactions.transaction import unit_of
from support.tables import World, write_file

FILES, ROWS = 1_000, 40
USERS_PER_FILE = 8


def user_rows(file: int) -> pa.Table:
    """40 rows of 8 users of its own, but file 500 has the rows of the user before too."""
    first = file * USERS_PER_FILE
    users = [first + place % USERS_PER_FILE for place in range(ROWS)]
    if file == 500:
        users[0] = first - 1
    return pa.table({"id": range(file * ROWS, file * ROWS + ROWS), "user": pa.array(users, pa.int64())})


@pytest.fixture(scope="module", params=["inline", "in segments"])
def world(request: pytest.FixtureRequest) -> World:
    world = World()
    world.db.set(root_bytes="32KB" if request.param == "in segments" else "1MB")
    world.db.create_table("t", user_rows(0).schema)
    with world.db.transaction() as tx:
        entry = unit_of(tx).entry("t")
        unit_of(tx).begin_upload()
        files = tuple(write_file(world.store, "t", entry, user_rows(file), ROWS) for file in range(FILES))
        unit_of(tx).add(Write("t", entry.uuid, files=files))
    world.db.create_table("another", user_rows(0).schema)
    assert bool(world.entry().segments) == (request.param == "in segments")
    return world


def cold(world: World) -> Table:
    """The table with empty caches, after its database was opened."""
    db = Database(world.store, replace(world.runtime))
    db.refresh()
    world.store.reset()
    return db.table("t")


def gets(world: World) -> int:
    assert (world.store.puts, world.store.lists, world.store.heads) == (0, 0, 0)
    return world.store.gets


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tombstone", "positions"])
def test_a_delete_is_fed_from_the_files_that_may_hold_its_rows(world: World, mode: Any) -> None:
    user = 500 * USERS_PER_FILE + (-1 if mode == "tombstone" else 3)
    expected = world.db.table("t").count(f"user = {user}")
    version = world.db.table("t").delete(f"user = {user}", mode=mode).version
    segments = len(world.entry().segments_of("files"))
    table = cold(world)
    found = table.changes(version - 1).read_all()
    assert (found.num_rows, set(found["_change"].to_pylist())) == (expected, {"delete"})
    holding = 2 if mode == "tombstone" else 1
    vectors = 0 if mode == "tombstone" else 1
    # the pointer, the manifest before, the segments of files, what holds the rows
    assert gets(world) == 1 + 1 + segments + holding + vectors


@pytest.mark.slow
def test_an_append_is_fed_from_its_own_files_alone(world: World) -> None:
    version = world.db.table("t").append(user_rows(FILES)).version
    table = cold(world)
    assert table.changes(version - 1).read_all().num_rows == ROWS
    assert gets(world) == 3  # the pointer, the manifest before, the file


def test_no_change_reads_no_data(world: World) -> None:
    version = world.db.version
    world.db.create_table("idle", user_rows(0).schema)
    for _ in range(30):
        world.db.table("idle").append(user_rows(0))
    table = cold(world)
    assert table.changes(version).read_all().num_rows == 0
    assert gets(world) == 2  # the pointer and the manifest of `since`: the others are not of this table
    for net in (False, True):
        table = cold(world)
        assert table.changes(world.db.version, net=net).read_all().num_rows == 0
        assert gets(world) == 1


def test_compaction_in_between_costs_the_net_change_nothing_without_deletes() -> None:
    world = World()
    world.create(user_rows(0), files=10)
    since = world.db.version
    world.db.compact()
    version = world.db.table("t").append(user_rows(1)).version
    assert version > since + 1
    table = cold(world)
    assert table.changes(since, net=True).read_all().num_rows == ROWS
    assert gets(world) == 3  # the pointer, the manifest of `since`, the appended file


@pytest.mark.slow
def test_a_long_chain_is_read_a_few_manifests_at_a_time(world: World) -> None:
    """Of 30 commits to two tables, only those of the one that is fed are read, and the versions before them."""
    world.db.create_table("busy", user_rows(0).schema)
    since = world.db.version
    for number in range(30):
        world.db.table("busy").append(user_rows(0))
        if number % 10 == 5:
            world.db.table("t").append(user_rows(number))
    history = [s for s in world.manifest.segments_of("history") if s.greatest > since]
    table = cold(world)
    assert table.changes(since).read_all().num_rows == 3 * ROWS
    # the pointer, `since`, the segments of history between, three commits with those before them, and three files
    assert gets(world) == 1 + 1 + len(history) + 3 * 2 + 3


def test_history_that_says_nothing_is_read_in_full(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other writers may leave out what a commit did: the entries show that the table changed."""
    since = world.db.version
    for number in range(3):
        world.db.table("t").append(user_rows(number))
    monkeypatch.setattr("dolmen.rows.changes.table_state._may_change_rows", lambda entry, names: False)
    assert world.db.table("t").changes(since).read_all().num_rows == 3 * ROWS


def parts(world: World, since: int, *, net: bool) -> list[FeedPart]:
    """The parts of a feed, planned with empty caches."""
    table = cold(world)
    context = context_of(table)
    newest = context.head.refresh().manifest
    first = manifest_at_version(context.head, newest, since)
    entry = context.segments.whole(newest.table("t"))
    return list(parts_of(ChangeFeed(context, newest, first, newest, "t", entry, net=net)))


@pytest.mark.parametrize("net", [False, True])
def test_parts_of_a_feed_are_planned_from_metadata_and_each_reads_its_own_file(world: World, net: bool) -> None:
    since = world.db.version
    with world.db.transaction() as tx:
        for file in range(5):
            tx.table("t").append(user_rows(file))
    commits = 1
    if not net:
        world.db.table("t").delete(f"user = {500 * USERS_PER_FILE + 5}")
        commits = 2
    segments = len(world.entry().segments_of("files"))
    found = parts(world, since, net=net)
    # the pointer, the manifest of `since`, those of commits before the newest; segments where rows were deleted
    assert gets(world) == 2 + (commits - 1) + (segments if commits == 2 else 0)
    assert [len(part.new or ()) for part in found] == [1] * 5 + [0] * (commits - 1)
    table = cold(world)
    entry = context_of(table).segments.whole(context_of(table).head.refresh().manifest.table("t"))
    reader = PartReader(
        context_of(table),
        context_of(table).head.cached.manifest,
        "t",
        entry,
        tuple(entry.schema.arrow.names),
        None,
        net=net,
    )
    world.store.reset()
    assert sum(batch.num_rows for batch in reader.read(found[2])) == ROWS
    assert gets(world) == 3  # two manifests and the file
    world.store.reset()
    assert sum(batch.num_rows for batch in reader.read(found[3])) == ROWS
    assert gets(world) == 1  # of the same commit: the file
