"""A table gets another name: its rows go with it, and nobody who knows the old one writes to another table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import dolmen
from dolmen import Database, Transaction
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import (
    ConflictError,
    InputError,
    InvalidNameError,
    TableExistsError,
    TableNotFoundError,
)
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen.maintenance.gc.sweep import hour_prefix
from dolmen.maintenance.resolution import resolve
from dolmen.maintenance.round import maintain
from dolmen.store.memory import MemoryBucket
from dolmen.transactions.readable_table import ReadableTable
from dolmen_simulator.counting import CountingStore
from support.aging import DEFAULTS, Place, rows
from support.aging import SCHEMA as NUMBERS
from support.changes import Change, Feed, File
from support.commit_world import ScriptedStore, meanwhile
from support.people import SCHEMA, people


def ids(table: ReadableTable) -> list[int]:
    return sorted(table.scan(columns=["id"]).to_arrow()["id"].to_pylist())


def test_all_but_the_name_stays_and_it_costs_two_puts(db: Database, table: dolmen.Table, store: CountingStore) -> None:
    table.append(people(1, 2, 3))
    table.delete("id = 2")
    table.set(target_file_bytes="1MB")
    before = context_of(db).head.refresh().manifest.table("people")
    store.reset()
    commit = db.rename_table("people", "folk")
    assert store.puts == 2
    assert (commit.operation, str(commit.did[0])) == ("rename_table", "rename people(folk)")
    assert db.tables() == ["folk"]
    assert context_of(db).head.refresh().manifest.table("folk") == before
    assert ids(db["folk"]) == [1, 3]
    db["folk"].append(people(4))
    assert ids(db["folk"]) == [1, 3, 4]
    assert db.sql("SELECT count(*) AS n FROM folk").to_arrow()["n"].to_pylist() == [3]


def test_the_old_name_stands_for_nothing_until_another_table_has_it(db: Database, table: dolmen.Table) -> None:
    table.append(people(1))
    db.rename_table("people", "folk")
    with pytest.raises(TableNotFoundError, match="people"):
        table.append(people(2))
    with pytest.raises(TableNotFoundError, match="people"):
        table.to_arrow()
    db.create_table("people", SCHEMA).append(people(7, 8))
    assert (ids(db["folk"]), ids(db["people"])) == ([1], [7, 8])
    assert db.verify(deep=True, all_versions=True).ok


def test_older_versions_have_the_old_name(db: Database, table: dolmen.Table) -> None:
    old = table.append(people(1, 2)).version
    new = db.rename_table("people", "folk").version
    assert (db.at(old).tables(), db.at(new).tables()) == (["people"], ["folk"])
    assert ids(db.at(old).table("people")) == [1, 2]
    with pytest.raises(TableNotFoundError):
        db["folk"].at(old)


def test_the_history_tells_both_names(db: Database, table: dolmen.Table) -> None:
    db.rename_table("people", "folk")
    newest = db.history(1)[0]
    assert (newest.operation, newest.done) == ("rename_table", "rename people(folk)")


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("people", "other", TableExistsError),
        ("people", "people", InputError),
        ("people", "People", InvalidNameError),
        ("absent", "folk", TableNotFoundError),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    db: Database, table: dolmen.Table, old: str, new: str, error: type[Exception]
) -> None:
    db.create_table("other", SCHEMA)
    version = db.version
    with pytest.raises(error):
        db.rename_table(old, new)
    assert (db.refresh(), db.tables()) == (version, ["other", "people"])


def test_of_two_who_take_one_name_the_second_is_refused(db: Database, table: dolmen.Table, other: Database) -> None:
    other.create_table("folk", SCHEMA)
    with pytest.raises(TableExistsError, match="folk"):
        db.rename_table("people", "folk")
    other.drop_table("folk")
    db.rename_table("people", "folk")
    with pytest.raises(TableExistsError, match="folk"):
        other.create_table("folk", SCHEMA)


def test_rows_that_others_have_added_meanwhile_go_with_it(db: Database, table: dolmen.Table, other: Database) -> None:
    table.append(people(1))
    other["people"].append(people(2))
    other["people"].delete("id = 1")
    db.rename_table("people", "folk")
    assert ids(db["folk"]) == [2]


def test_in_a_transaction_statements_before_and_after_it_are_about_the_same_table(
    db: Database, table: dolmen.Table
) -> None:
    table.append(people(1, 2))
    with db.transaction() as tx:
        tx.table("people").append(people(3))
        folk = tx.rename_table("people", "folk")
        folk.delete("id = 1")
        folk.upsert(people(2, user_id=9))
        folk.delete("id = 3", mode="positions")
        folk.append(people(4))
        with pytest.raises(TableNotFoundError):
            tx.table("people")
        assert (tx.tables(), ids(folk)) == (["folk"], [2, 4])
    assert (db.tables(), ids(db["folk"])) == (["folk"], [2, 4])
    assert db.verify(deep=True).ok


def test_a_swap_in_one_transaction(db: Database, table: dolmen.Table, other: Database) -> None:
    """Its statements are applied again to what another has committed meanwhile."""
    table.append(people(1))
    db.create_table("b", SCHEMA, primary_key="id").append(people(2))
    with db.transaction() as tx:
        tx.table("people").append(people(3))
        tx.rename_table("people", "tmp")
        tx.rename_table("b", "people")
        tx.rename_table("tmp", "b")
        tx.table("b").delete("id = 1")
        other["b"].append(people(4))
    assert db.tables() == ["b", "people"]
    assert (ids(db["b"]), ids(db["people"])) == ([3], [2, 4])
    assert db.verify(deep=True).ok


def test_what_a_transaction_reads_after_a_rename_must_still_hold(
    db: Database, table: dolmen.Table, other: Database
) -> None:
    table.append(people(1))
    tx = db.transaction()
    folk = tx.rename_table("people", "folk")
    tx.create_table("numbers", SCHEMA).append(people(folk.count()))
    other["people"].append(people(2))
    with pytest.raises(ConflictError, match="rows"):
        tx.commit()
    assert db.tables() == ["people"]


def test_an_overwrite_after_a_rename_sees_what_others_have_added(
    db: Database, table: dolmen.Table, other: Database
) -> None:
    table.append(people(1))
    tx = db.transaction()
    tx.rename_table("people", "folk").overwrite(people(9))
    other["people"].append(people(2))
    with pytest.raises(ConflictError, match="rows"):
        tx.commit()
    assert ids(table) == [1, 2]
    with db.transaction() as tx:
        tx.rename_table("people", "folk").overwrite(people(9), force=True)
        other["people"].append(people(3))
    assert ids(db["folk"]) == [9]


def test_a_look_after_a_rename_and_a_request_that_others_have_applied_is_a_conflict(
    db: Database, table: dolmen.Table, other: Database
) -> None:
    """Without the rows of the request the delete by position would have found others."""
    tx = db.transaction()
    tx.table("people").append(people(1), request="r")
    tx.rename_table("people", "folk").delete("id = 1", mode="positions")
    other["people"].append(people(1), request="r")
    with pytest.raises(ConflictError, match="another writer has applied request"):
        tx.commit()
    assert ids(table) == [1]


@pytest.mark.parametrize(
    "write",
    [
        lambda table: table.append(people(9)),
        lambda table: table.delete("id = 1"),
        lambda table: table.delete(keys=[1]),
        lambda table: table.upsert(people(1, 9)),
        lambda table: table.overwrite(people(9), force=True),
        lambda table: table.set(target_file_bytes="1MB"),
    ],
    ids=["append", "delete", "delete keys", "upsert", "overwrite", "set"],
)
@pytest.mark.parametrize("again", [False, True], ids=["", "and another has its name"])
def test_who_has_not_heard_of_it_gets_a_conflict_that_tells_the_new_name(
    db: Database, table: dolmen.Table, other: Database, write: Callable[[dolmen.Table], object], again: bool
) -> None:
    table.append(people(1, 2))
    other.rename_table("people", "folk")
    if again:
        other.create_table("people", SCHEMA, primary_key="id").append(people(5))
    with pytest.raises(ConflictError, match="'people' was renamed to 'folk'"):
        write(table)
    assert ids(other["folk"]) == [1, 2]
    assert not again or ids(other["people"]) == [5]


def test_deletes_by_position_look_again_and_find_no_table(
    bucket: MemoryBucket, table: dolmen.Table, other: Database
) -> None:
    table.append(people(1, 2))
    store = ScriptedStore(bucket, Runtime())
    late = Database(store, Runtime())
    store.script.append(meanwhile(lambda: other.rename_table("people", "folk")))
    with pytest.raises(TableNotFoundError):
        late["people"].delete("id = 1", mode="positions")
    assert ids(other["folk"]) == [1, 2]


def test_a_function_that_is_run_again_meets_what_is_there_by_then(
    db: Database, table: dolmen.Table, other: Database
) -> None:
    table.append(people(1))
    runs = []

    def move(tx: Transaction) -> None:
        name = "people" if "people" in tx.tables() else "folk"
        runs.append(name)
        if len(runs) == 1:
            other.rename_table("people", "folk")
        tx.table(name).append(people(2))

    db.run(move)
    assert (runs, ids(db["folk"])) == (["people", "folk"], [1, 2])


def test_two_renames_of_one_table(db: Database, table: dolmen.Table, other: Database) -> None:
    other.rename_table("people", "folk")
    with pytest.raises(ConflictError, match="'people' was renamed to 'folk'"):
        db.rename_table("people", "men")
    assert db.tables() == ["folk"]


def test_back_and_forth(db: Database, table: dolmen.Table, other: Database) -> None:
    table.append(people(1))
    other.rename_table("people", "folk")
    other.rename_table("folk", "people")
    table.append(people(2))
    assert ids(table) == [1, 2]


@pytest.mark.parametrize("work", [compact, resolve], ids=["compact", "resolve"])
def test_upkeep_that_was_planned_under_the_old_name_changes_nothing(work: Callable[..., object]) -> None:
    place = Place()
    t = place.db.create_table("t", NUMBERS, primary_key="k")
    for start in range(0, 40, 10):
        t.append(rows(*range(start, start + 10)))
    t.delete("k IN (3, 33)")
    store = ScriptedStore(place.bucket, place.runtime())
    late = place.open(store)
    store.script.append(meanwhile(lambda: place.db.rename_table("t", "u")))
    options = {"options": CompactionOptions(growth=1)} if work is compact else {}
    work(context_of(late), "t", **options)
    assert len(store.pointer_puts) == 1
    assert place.manifest.operation == "rename_table"
    u = place.db.table("u")
    assert sorted(u.to_arrow()["k"].to_pylist()) == [k for k in range(40) if k not in (3, 33)]
    done = maintain(place.context())
    assert not done.failures
    assert sorted(u.to_arrow()["k"].to_pylist()) == [k for k in range(40) if k not in (3, 33)]
    assert place.db.verify(deep=True, all_versions=True).ok


def test_collection_finds_orphans_and_leaves_rows_under_the_old_directory() -> None:
    place = Place()
    t = place.db.create_table("t", NUMBERS, primary_key="k")
    t.append(rows(1, 2, 3))
    t.append(rows(4, 5))
    t.delete("k = 2", mode="positions")
    place.db.rename_table("t", "u")
    place.db.table("u").append(rows(6))
    orphans = {
        place.orphan(f"{hour_prefix('data/t/', place.now_us)}{'0' * 32}.parquet"),
        place.orphan(f"{hour_prefix('tombstone/t/', place.now_us)}{'0' * 32}.del"),
    }
    place.pass_hours(10 * 24)
    place.collect_all(DEFAULTS)
    assert not orphans & place.there()
    assert place.there() == place.needed_keys()
    assert {key.split("/")[1] for key in place.there("data/")} == {"t", "u"}
    assert sorted(place.db.table("u").to_arrow()["k"].to_pylist()) == [1, 3, 4, 5, 6]
    assert place.open().verify(deep=True, all_versions=True).ok
    place.db.drop_table("u")
    place.pass_hours(40 * 24)
    place.collect_all(replace(DEFAULTS, keep_versions=1))
    assert place.there("data/", "tombstone/") == set()


def deliver(feed: Feed, id: str, *changes: Change) -> None:
    feed.deliver(File(id, changes))


@pytest.fixture
def feed() -> Feed:
    feed = Feed()
    feed.create()
    deliver(feed, "a", Change(1, 1, "x"), Change(2, 2, "y"))
    deliver(feed, "b", Change(2, 3, None))
    return feed


def test_the_memory_of_deleted_keys_is_renamed_with_its_table(feed: Feed) -> None:
    db = feed.place.db
    db.rename_table("t", "u")
    assert db.tables() == ["u", "u__deleted"]
    feed.table = "u"
    deliver(feed, "c", Change(2, 2, "late"), Change(1, 4, "z"))
    assert feed.rows() == {1: (4, "z")}
    db.drop_table("u")
    assert db.tables() == []


def test_the_memory_s_new_name_must_be_free_and_fit(feed: Feed) -> None:
    db = feed.place.db
    db.create_table("u__deleted", NUMBERS)
    with db.transaction() as tx:
        with pytest.raises(TableExistsError, match="u__deleted"):
            tx.rename_table("t", "u")
        assert tx.tables() == ["t", "t__deleted", "u__deleted"]
        tx.drop_table("u__deleted")
        tx.rename_table("t", "u")
    assert db.tables() == ["u", "u__deleted"]
    with pytest.raises(InvalidNameError):
        db.rename_table("u", "x" * 60)
    assert db.tables() == ["u", "u__deleted"]


def test_changes_made_under_the_old_name_are_not_applied_to_another_table(feed: Feed) -> None:
    other = feed.place.open()
    store = ScriptedStore(feed.place.bucket, feed.place.runtime())
    late = feed.place.open(store)
    store.script.append(meanwhile(lambda: other.rename_table("t", "u")))
    with pytest.raises(TableNotFoundError):
        feed.deliver(File("c", (Change(1, 9, "z"),)), database=late)
    feed.table = "u"
    assert feed.rows() == {1: (1, "x")}


@pytest.mark.slow
def test_an_idle_table_comes_back_whole() -> None:
    place = Place()
    db = place.db
    db.set(root_bytes=4096)
    for number in range(12):
        db.create_table(f"idle{number}", NUMBERS, primary_key="k").append(rows(number))
    busy = db.create_table("busy", NUMBERS)
    for number in range(90):
        busy.append(rows(number))
    name, entry = next((name, entry) for name, entry in place.manifest.tables.items() if entry.section)
    db.rename_table(name, "woken")
    woken = place.manifest.tables["woken"]
    assert (woken.section, woken.uuid) == (None, entry.uuid)
    assert entry.section is not None
    assert entry.section.object in place.manifest.released[-1].objects
    assert db.table("woken").to_arrow()["k"].to_pylist() == [int(name.removeprefix("idle"))]
    assert db.verify(deep=True, all_versions=True).ok
