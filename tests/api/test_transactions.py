"""Transactions: several tables, own writes, conflicts and replays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database, Transaction
from dolmen.errors import AppliedIdError, ConflictError, InputError, SchemaError, TableNotFoundError
from dolmen_simulator.counting import CountingStore
from support.people import SCHEMA, people


def ids(table: object) -> list[int]:
    return sorted(table.scan(columns=["id"]).to_arrow()["id"].to_pylist())  # type: ignore[attr-defined]


def test_several_tables_change_in_one_version(db: Database, table: dolmen.Table, other: Database) -> None:
    db.create_table("log", SCHEMA)
    table.append(people(1, 2))
    with db.transaction() as tx:
        tx.table("people").delete({"id": 1})
        tx.table("log").append(people(1))
        assert other.table("people").count() == 2
    assert db.version == 4
    assert (ids(other.table("people")), ids(other.table("log"))) == ([2], [1])
    assert db.at(version=3).table("log").count() == 0


def test_statements_see_earlier_ones(db: Database, table: dolmen.Table) -> None:
    table.append(people(1, 2, 3))
    with db.transaction() as tx:
        mine = tx.table("people")
        mine.delete(keys=list(range(1, 3)) + list(range(1000, 3000)))  # too many to stand inline
        assert ids(mine) == [3]
        mine.append(people(1))
        assert ids(mine) == [1, 3]
        mine.delete("id = 1", mode="positions")
        assert ids(mine) == [3]
        mine.upsert(people(3, 4, name="new"))
        mine.delete("id = 4", mode="positions")
        mine.append(people(4))
        assert mine.count() == 2
        assert tx.sql("SELECT count(*) AS n FROM people").to_arrow()["n"].to_pylist() == [2]
        made = tx.create_table("fresh", SCHEMA)
        made.append(people(8))
        assert made.count() == 1
    assert (ids(table), ids(db.table("fresh")), db.version) == ([3, 4], [8], 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda tx: tx.table("people").delete("id < 3"),
        lambda tx: tx.table("people").delete("id = 1", mode="positions"),
        lambda tx: tx.table("people").append(people(4)),
        lambda tx: tx.table("people").upsert(people(1, name="new")),
        lambda tx: tx.table("people").overwrite(people(9)),
        lambda tx: tx.table("people").rename_column("id", "number"),
        lambda tx: tx.sql("ALTER TABLE people RENAME TO folk"),
        lambda tx: tx.drop_table("people"),
    ],
    ids=["delete", "positions", "append", "upsert", "overwrite", "rename_column", "rename", "drop"],
)
def test_a_scan_keeps_the_rows_of_the_moment_at_which_it_began(
    db: Database, table: dolmen.Table, change: Callable[[Transaction], object]
) -> None:
    table.append(people(1, 2))
    with db.transaction() as tx:
        mine = tx.table("people")
        mine.append(people(3))
        scan, query = mine.scan(["id"]), tx.sql("SELECT id FROM people UNION ALL SELECT -id FROM people")
        relation, frame = mine.to_duckdb(), mine.scan_polars()
        change(tx)
        assert sorted(scan.to_arrow()["id"].to_pylist()) == [1, 2, 3]
        assert sorted(query.fetchall()) == [(-3,), (-2,), (-1,), (1,), (2,), (3,)]
        assert sorted(relation.project("id").fetchall()) == [(1,), (2,), (3,)]
        assert sorted(frame.collect()["id"].to_list()) == [1, 2, 3]


def test_an_exception_leaves_nothing_behind(db: Database, table: dolmen.Table) -> None:
    with pytest.raises(RuntimeError), db.transaction() as tx:  # noqa: PT012
        tx.table("people").append(people(1))
        raise RuntimeError
    assert (db.refresh(), table.count()) == (1, 0)


def test_a_statement_that_fails_can_be_survived(db: Database, table: dolmen.Table) -> None:
    with db.transaction() as tx:
        tx.table("people").append(people(1))
        with pytest.raises(SchemaError):
            tx.table("people").append(pa.table({"nope": [1]}))
        with pytest.raises(TableNotFoundError):
            tx.table("absent")
        tx.table("people").append(people(2))
    assert ids(table) == [1, 2]


def test_reading_alone_costs_no_put(db: Database, table: dolmen.Table, store: CountingStore) -> None:
    table.append(people(1))
    before = store.puts
    with db.transaction() as tx:
        assert tx.table("people").count() == 1
    assert store.puts == before


def test_an_ended_transaction_takes_nothing_more(db: Database, table: dolmen.Table) -> None:
    with db.transaction() as tx:
        tx.table("people").append(people(1))
    with pytest.raises(InputError, match="ended"):
        tx.table("people").append(people(2))


def test_writes_that_read_nothing_never_conflict(db: Database, table: dolmen.Table, other: Database) -> None:
    with db.transaction() as tx:
        tx.table("people").append(people(1))
        tx.table("people").delete("id = 7")
        other.table("people").append(people(7))
        other.table("people").delete("id = 1")
    assert ids(table) == [1], "the delete is younger than the 7, and older than the 1"


@pytest.mark.parametrize("what", ["append", "delete", "upsert", "positions"])
def test_what_was_read_must_still_hold(db: Database, table: dolmen.Table, other: Database, what: str) -> None:
    table.append(people(1, 2))
    rival = other.table("people")
    with pytest.raises(ConflictError, match="people"), db.transaction() as tx:  # noqa: PT012
        tx.table("people").append(people(tx.table("people").count() + 10))
        {
            "append": lambda: rival.append(people(3)),
            "delete": lambda: rival.delete("id = 1"),
            "upsert": lambda: rival.upsert(people(1)),
            "positions": lambda: rival.delete("id = 1", mode="positions"),
        }[what]()
    assert not {11, 12} & set(ids(table))


def test_what_cannot_have_been_read_does_not_conflict(db: Database, table: dolmen.Table, other: Database) -> None:
    table.append(people(1, 2))
    with db.transaction() as tx:
        assert tx.table("people").count("id < 100") == 2
        other.table("people").append(people(500))
        tx.table("people").append(people(3))
    assert ids(table) == [1, 2, 3, 500]


def test_run_replays_until_nothing_has_changed(db: Database, table: dolmen.Table, other: Database) -> None:
    table.append(people(1, user_id=0))
    runs = []

    def increment(tx: Transaction) -> int:
        runs.append(1)
        row = tx.table("people").scan(where="id = 1").to_arrow().to_pylist()[0]
        if len(runs) <= 2:
            other.table("people").upsert([{**row, "user_id": row["user_id"] + 1}])
        tx.table("people").upsert([{**row, "user_id": row["user_id"] + 1}])
        return int(row["user_id"])

    assert db.run(increment) == 2
    assert (table.to_arrow()["user_id"].to_pylist(), len(runs)) == ([3], 3)


def test_a_table_that_was_replaced_is_not_written_to(db: Database, table: dolmen.Table, other: Database) -> None:
    other.drop_table("people")
    other.create_table("people", pa.schema([("id", pa.string())]))
    with pytest.raises(ConflictError, match="created"):
        table.append(people(1))
    other.drop_table("people")
    db.refresh()
    with pytest.raises(TableNotFoundError):
        table.append(people(1))


def test_a_request_is_applied_once(table: dolmen.Table, other: Database) -> None:
    first = table.append(people(1), request="a")
    again = other.table("people").append(people(1), request="a")
    assert (again.operation, again.version, again.already) == ("nothing", first.version, {"a": first.version})
    table.delete("id = 1", request="b")
    table.append(people(1), request="c")
    table.delete("id = 1", request="b")
    assert ids(table) == [1]


def test_a_request_id_with_another_body_is_an_error(table: dolmen.Table) -> None:
    table.delete("id = 1", request="a")
    with pytest.raises(AppliedIdError, match="'a'"):
        table.delete("id = 2", request="a")


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"keys": {3, 1, 2}}, {"keys": {1, 2}}),
        ({"keys": pa.table({"id": range(5_000)})}, {"keys": pa.table({"id": [*range(4_999), 7_000]})}),
        ({"keys": range(3)}, {"keys": [0, 1]}),
    ],
)
def test_the_digest_tells_all_requests_apart(
    table: dolmen.Table, first: dict[str, object], other: dict[str, object]
) -> None:
    made = table.delete(**first, request="a")
    assert table.delete(**first, request="a").already == {"a": made.version}
    with pytest.raises(AppliedIdError):
        table.delete(**other, request="a")


def test_keys_have_one_digest_however_they_are_given(table: dolmen.Table) -> None:
    made = table.delete(keys=people(3, 1, 2).select(["id"]).to_reader(), request="a")
    for same in ([1, 2, 3], (3, 2, 1, 1), {1, 2, 3}, range(1, 4), pa.table({"id": pa.array([3, 2, 1], pa.int8())})):
        assert table.delete(keys=same, request="a").already == {"a": made.version}
    for same in ("id IN (1, 2, 3)", {"id": [3, 2, 1]}, "id = 1 OR id = 3 OR id = 2"):
        assert table.delete(same, request="a").already == {"a": made.version}


def test_a_message_belongs_to_the_whole_transaction(db: Database, table: dolmen.Table) -> None:
    with db.transaction(message="all") as tx:
        for act in (
            lambda: tx.table("people").append(people(1), message="one"),
            lambda: tx.table("people").erase("id = 1", message="one"),
            lambda: tx.drop_table("people", message="one"),
            lambda: tx.forget(1, message="one"),
        ):
            with pytest.raises(InputError, match=r"db\.transaction\(message=\.\.\.\)"):
                act()
        tx.table("people").append(people(2))
    assert (db.history(1)[0].message, ids(table)) == ("all", [2])


def test_savepoints_in_each_other_go_back_to_their_own_beginnings(db: Database, table: dolmen.Table) -> None:
    def step(transaction: Transaction, number: int) -> None:
        transaction.table("people").append(people(number))
        assert transaction.table("people").count(f"id = {number}") == 1

    with db.transaction() as tx:
        step(tx, 1)
        with suppress(ZeroDivisionError), tx.savepoint():
            step(tx, 2)
            with suppress(ZeroDivisionError), tx.savepoint():
                step(tx, 3)
                raise ZeroDivisionError
            step(tx, 4)
            with tx.savepoint():
                step(tx, 5)
            assert sorted(ids(tx.table("people"))) == [1, 2, 4, 5]
            raise ZeroDivisionError
        assert ids(tx.table("people")) == [1]
        step(tx, 6)
        with tx.savepoint():
            step(tx, 7)
    assert sorted(ids(table)) == [1, 6, 7]
