"""A request is applied once, in every way to write, and other content under its id is refused."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, TypeAlias

import pandas as pd
import pyarrow as pa
import pytest

import dolmen
from dolmen import Commit, Database
from dolmen.commit.change import digest_of
from dolmen.errors import AppliedIdError, ConflictError, InputError, TableNotFoundError
from dolmen_simulator.counting import CountingStore
from support.people import SCHEMA, people

Way: TypeAlias = Callable[[Database, Callable[[Any], object]], object]


def by_table(db: Database, write: Callable[[Any], object]) -> object:
    return write(db.table("people"))


def by_transaction(db: Database, write: Callable[[Any], object]) -> object:
    with db.transaction() as tx:
        write(tx.table("people"))
        return tx.commit()


def by_run(db: Database, write: Callable[[Any], object]) -> object:
    return db.run(lambda tx: write(tx.table("people")))


WRITES: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
    "append": (
        lambda table, **more: table.append(people(1, 2), **more),
        lambda table, **more: table.append(people(1, 3), **more),
    ),
    "upsert": (
        lambda table, **more: table.upsert(people(1, 2), **more),
        lambda table, **more: table.upsert(people(1, 2), on=["user_id"], **more),
    ),
    "overwrite": (
        lambda table, **more: table.overwrite(people(1, 2), **more),
        lambda table, **more: table.overwrite(people(1), **more),
    ),
    "delete by predicate": (
        lambda table, **more: table.delete("user_id > 0 AND id < 9", **more),
        lambda table, **more: table.delete("user_id > 0 AND id < 8", **more),
    ),
    "delete by keys": (
        lambda table, **more: table.delete(keys=[7, 8], **more),
        lambda table, **more: table.delete(keys=[7, 9], **more),
    ),
    "delete by position": (
        lambda table, **more: table.delete("id > 6", mode="positions", **more),
        lambda table, **more: table.delete("id > 7", mode="positions", **more),
    ),
}
REPLACE = (
    lambda table, **more: table.replace(people(1, 2), [7, 8], **more),
    lambda table, **more: table.replace(people(1, 2), [7], **more),
)


def rows(db: Database) -> list[int]:
    return sorted(db.table("people").to_arrow()["id"].to_pylist())


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, way) for name in WRITES for way in (by_table, by_transaction, by_run)),
        *(("replace", way) for way in (by_transaction, by_run)),  # a transaction's alone
    ],
)
def test_a_request_that_is_tried_three_times_is_applied_once(
    db: Database, table: dolmen.Table, other: Database, store: CountingStore, name: str, way: Way
) -> None:
    write, different = WRITES.get(name, REPLACE)
    table.append(people(7, 8, 9))
    way(db, lambda target: write(target, request="r"))
    after, version = rows(db), db.version
    way(other, lambda target: write(target, request="r"))
    puts = store.puts
    way(db, lambda target: write(target, request="r"))
    with pytest.raises(AppliedIdError, match=r"'r'.*version 3"):
        way(db, lambda target: different(target, request="r"))
    assert (store.puts, db.refresh(), rows(db)) == (puts, version, after)
    table.append(people(20))
    way(db, lambda target: write(target, request="s"))
    assert db.version == version + 2


@pytest.mark.parametrize("name", WRITES)
def test_a_request_applied_by_somebody_else_meanwhile_is_applied_once(
    db: Database, table: dolmen.Table, other: Database, name: str
) -> None:
    write, different = WRITES[name]
    table.append(people(7, 8, 9))
    other.refresh()
    third = other.transaction()  # of version 2, so it has not seen the request
    write(table, request="r")
    after = rows(db)
    mine = other.table("people")
    commit = write(mine, request="r")
    assert isinstance(commit, Commit)
    assert (commit.operation, commit.already) == ("nothing", {"r": 3})
    with pytest.raises((AppliedIdError, ConflictError)):  # noqa: PT012 - some calls look at the newest version at once
        different(third.table("people"), request="r")
        third.commit()
    assert (db.refresh(), rows(db)) == (3, after)


def test_what_says_the_same_is_the_same(table: dolmen.Table) -> None:
    given = people(3, 1, 2)
    made = table.append(given, request="r")
    for same in (
        given.to_pylist(),
        given.to_pandas(),
        given.to_pydict(),
        given.to_reader(max_chunksize=1),
        given.select(list(reversed(given.column_names))),
        pa.concat_tables([people(3), people(1), people(2)]),
        pa.concat_tables([people(9), given, people(9)]).slice(1, 3),
        given.set_column(given.column_names.index("name"), "name", given["name"].dictionary_encode()),
        pd.DataFrame(given.to_pylist()),
    ):
        assert table.append(same, request="r").already == {"r": made.version}
    for different in (people(1, 2, 3), people(3, 1), people(3, 1, 2, name="other"), given.slice(0, 0)):
        with pytest.raises(AppliedIdError):
            table.append(different, request="r")
    with pytest.raises(AppliedIdError):
        table.upsert(given, request="r")
    assert table.count() == 3


def test_predicates_that_are_read_alike_are_the_same(db: Database) -> None:
    table = db.create_table("events", pa.schema([("id", pa.int64()), ("event_time", pa.timestamp("us", "UTC"))]))
    made = table.delete("id > 8 and event_time < now() - INTERVAL 9 DAY", request="r")
    for same in ("ID>8 AND event_time<now()-INTERVAL 9 DAY", "id > 8 AND (event_time < now() - INTERVAL 9 DAY)"):
        assert table.delete(same, request="r").already == {"r": made.version}
    with pytest.raises(AppliedIdError):
        table.delete("id > 8 and event_time < now() - INTERVAL 8 DAY", request="r")


def test_all_statements_under_an_id_are_its_content(db: Database, table: dolmen.Table) -> None:
    def apply(*counts: int) -> Commit:
        with db.transaction() as tx:
            for count in counts:
                tx.table("people").append(people(*range(count)), request="r")
            tx.table("people").append(people(99))
            return tx.commit()

    assert apply(1, 2).rows == 4
    again = apply(1, 2)
    assert (again.rows, again.already) == (1, {"r": 2})
    for other in ((2, 1), (1,), (1, 2, 0)):
        with pytest.raises(AppliedIdError):
            apply(*other)
    assert rows(db) == [0, 0, 1, 99, 99]


def test_a_statement_that_fails_leaves_nothing_in_the_content(db: Database, table: dolmen.Table) -> None:
    for _ in range(2):
        with db.transaction() as tx:
            with pytest.raises(InputError):
                tx.table("people").append(pa.table({"nope": [1]}), request="r")
            with pytest.raises(RuntimeError), tx.savepoint():  # noqa: PT012
                tx.table("people").append(people(5), request="r")
                raise RuntimeError
            tx.table("people").append(people(1), request="r")
    assert table.append(people(1), request="r").already == {"r": 2}
    assert rows(db) == [1]


def test_a_request_is_applied_once_though_its_function_is_replayed(db: Database, other: Database) -> None:
    db.create_table("people", SCHEMA, primary_key="id")
    runs: list[int] = []

    def apply(tx: dolmen.transactions.transaction.Transaction) -> None:
        target = tx.table("people")
        runs.append(target.count())
        if len(runs) == 1:
            other.table("people").append(people(50))
        target.append(people(1), request="r")

    db.run(apply)
    db.run(apply)
    assert (runs, rows(db)) == ([0, 1, 2], [1, 50])


def test_a_table_is_created_once(db: Database) -> None:
    for _ in range(3):
        with db.transaction() as tx:
            tx.create_table("people", SCHEMA, "id", request="r").append(people(1), request="r")
    assert rows(db) == [1]
    with pytest.raises(AppliedIdError), db.transaction() as tx:
        tx.create_table("other", SCHEMA, request="r")


def test_content_that_an_older_dolmen_did_not_tell_or_told_otherwise_is_taken_for_the_same(
    db: Database, table: dolmen.Table
) -> None:
    with db.transaction() as tx:
        tx.bind("untold", "")
        tx.bind("raw", digest_of({"table": "people", "where": "id = 3", "keys": None, "on": None}))
    assert table.append(people(1), request="untold").already == {"untold": 2}
    assert table.delete("id = 3", request="raw").already == {"raw": 2}
    with pytest.raises(AppliedIdError):
        table.delete("id = 4", request="raw")
    assert db.refresh() == 2


@pytest.mark.parametrize("wrong", [4711, True, 1.5, ("a",), b"a", uuid.uuid4(), "", "\ud800", "x" * 4097])
@pytest.mark.parametrize("name", WRITES)
def test_what_can_be_no_id_is_refused(db: Database, table: dolmen.Table, name: str, wrong: Any) -> None:
    with pytest.raises(InputError, match="request"):
        WRITES[name][0](table, request=wrong)
    with pytest.raises(InputError, match="request"), db.transaction() as tx:
        WRITES[name][0](tx.table("people"), request=wrong)
    assert db.refresh() == 1


OF_TABLES: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
    "create": (
        lambda db, **more: db.create_table("new", SCHEMA, "id", **more),
        lambda db, **more: db.create_table("new", SCHEMA, **more),
    ),
    "drop": (lambda db, **more: db.drop_table("people", **more), lambda db, **more: db.drop_table("other", **more)),
    "rename": (
        lambda db, **more: db.rename_table("people", "folk", **more),
        lambda db, **more: db.rename_table("people", "folks", **more),
    ),
    "set a database": (lambda db, **more: db.set(retention="7d", **more), lambda db, **more: db.set(**more)),
    "set a table": (
        lambda db, **more: db.table("other").set(target_file_bytes="1MB", **more),
        lambda db, **more: db.table("other").set(target_file_bytes="2MB", **more),
    ),
}


def alone(db: Database, change: Callable[[Any], object]) -> object:
    return change(db)


def in_transaction(db: Database, change: Callable[[Any], object]) -> object:
    with db.transaction() as tx:
        return change(tx)


def in_run(db: Database, change: Callable[[Any], object]) -> object:
    return db.run(change)


def undo(db: Database) -> None:
    """Makes room for the same change: it would happen again, if its request did not say that it was applied."""
    with db.transaction() as tx:
        if "people" not in tx.tables():
            tx.create_table("people", SCHEMA)
        for name in {"new", "folk"} & set(tx.tables()):
            tx.drop_table(name)
        tx.set(retention=None)
        tx.table("other").set(target_file_bytes=None)


@pytest.mark.parametrize("way", [alone, in_transaction, in_run])
@pytest.mark.parametrize("name", OF_TABLES)
def test_a_request_about_tables_is_applied_once_and_what_came_after_it_stays(
    db: Database, table: dolmen.Table, other: Database, name: str, way: Way
) -> None:
    change, different = OF_TABLES[name]
    db.create_table("other", SCHEMA)
    way(db, lambda target: change(target, request="r"))
    undo(db)
    version, tables, settings = db.refresh(), db.tables(), (db.settings(), db["other"].settings())
    for each in (other, db, dolmen.open(db.url) if not db.url.startswith("memory") else db):
        way(each, lambda target: change(target, request="r"))
        with pytest.raises(AppliedIdError, match=r"'r'.*version 3"):
            way(each, lambda target: different(target, request="r"))
    assert (db.refresh(), db.tables(), (db.settings(), db["other"].settings())) == (version, tables, settings)


@pytest.mark.parametrize("name", OF_TABLES)
def test_a_request_about_tables_applied_by_somebody_else_meanwhile_is_applied_once(
    db: Database, table: dolmen.Table, other: Database, name: str
) -> None:
    change, _ = OF_TABLES[name]
    db.create_table("other", SCHEMA)
    other.refresh()
    third = other.transaction()
    change(third, request="r")
    change(db, request="r")
    version = db.refresh()
    assert third.commit().already == {"r": version}
    change(other, request="r")
    assert db.refresh() == version


def test_a_table_that_a_request_dropped_before_anybody_here_knew_it_is_no_error(db: Database, other: Database) -> None:
    db.create_table("people", SCHEMA)
    dropped = db.drop_table("people", request="r")
    assert other.drop_table("people", request="r").already == {"r": dropped.version}
    with pytest.raises(TableNotFoundError):
        other.drop_table("people", request="s")
    with pytest.raises(AppliedIdError):
        other.rename_table("people", "folk", request="r")


def test_settings_that_contradict_what_was_set_under_an_id_do_not_hinder_its_repetition(
    db: Database, table: dolmen.Table
) -> None:
    made = table.set(ingest_mode="upsert", request="r")
    table.set(ingest_mode=None)
    assert table.set(ingest_mode="upsert", request="r").already == {"r": made.version}
    assert table.settings()["ingest_mode"] == "append"


@pytest.mark.parametrize("name", OF_TABLES)
def test_changes_of_tables_and_settings_have_messages_and_ids_in_the_history(
    db: Database, table: dolmen.Table, name: str
) -> None:
    db.create_table("other", SCHEMA)
    OF_TABLES[name][0](db, request="r", message="ticket 17")
    newest = db.history(1)[0]
    assert (newest.message, newest.requests) == ("ticket 17", ("r",))
    for wrong in ("", "x" * 4097, 7):
        with pytest.raises(InputError, match="request"):
            OF_TABLES[name][1](db, request=wrong)
    with pytest.raises(InputError, match="message"):
        OF_TABLES[name][1](db, message="x" * 257)
