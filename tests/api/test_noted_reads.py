"""Transactions commit only if their reads of columns and of names of tables still hold, as those of rows must."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from dolmen import Database, Transaction
from dolmen.errors import ConflictError, TableNotFoundError
from support.people import SCHEMA, people

Read = Callable[[Transaction], object]
ROW_READS: dict[str, Read] = {
    "count": lambda tx: tx.table("people").count("user_id >= 0"),
    "scan": lambda tx: tx.table("people").to_arrow(),
    "get_many": lambda tx: tx.table("people").get_many([1]),
    "sql": lambda tx: tx.sql("SELECT sum(user_id) FROM people").fetchall(),
    "update": lambda tx: tx.table("people").update({"user_id": 5}, "user_id >= 0"),
}


def _swap_columns(rival: Database) -> None:
    with rival.transaction() as tx:
        swapped = tx.table("people")
        for old, new in (("id", "was"), ("user_id", "id"), ("was", "user_id")):
            swapped.rename_column(old, new)


CHANGES: dict[str, Callable[[Database], object]] = {
    "swap": _swap_columns,
    "add": lambda rival: rival.table("people").add_column("more", pa.int64(), 7),
    "drop": lambda rival: rival.table("people").drop_column(SCHEMA.names[-1]),
}


def _look_for(tx: Transaction, name: str) -> None:
    try:
        tx.table(name)
    except TableNotFoundError:
        return


NAME_READS: dict[str, tuple[Read, Callable[[Database], object]]] = {
    "list, create": (lambda tx: tx.tables(), lambda rival: rival.create_table("flag", SCHEMA)),
    "list, drop": (lambda tx: tx.tables(), lambda rival: rival.drop_table("people")),
    "list by SQL, create": (lambda tx: tx.sql("SHOW TABLES").fetchall(), lambda rival: rival.create_table("f", SCHEMA)),
    "missing, create": (lambda tx: _look_for(tx, "flag"), lambda rival: rival.create_table("flag", SCHEMA)),
    "present, drop": (lambda tx: _look_for(tx, "people"), lambda rival: rival.drop_table("people")),
    "present, rename": (lambda tx: _look_for(tx, "people"), lambda rival: rival.rename_table("people", "them")),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("read", ROW_READS)
def test_rows_were_read_by_columns_that_must_not_change(db: Database, other: Database, read: str, change: str) -> None:
    db.create_table("people", SCHEMA, primary_key="id")
    db.create_table("log", SCHEMA)
    db.table("people").append(people(1, 2))
    with pytest.raises(ConflictError, match="column"), db.transaction() as tx:  # noqa: PT012
        ROW_READS[read](tx)
        CHANGES[change](other)
        tx.table("log").append(people(9))
    assert other.table("log").count() == 0


@pytest.mark.parametrize("case", NAME_READS)
def test_the_names_of_tables_that_were_seen_must_still_hold(db: Database, other: Database, case: str) -> None:
    read, change = NAME_READS[case]
    db.create_table("people", SCHEMA, primary_key="id")
    db.create_table("log", SCHEMA)
    with pytest.raises(ConflictError, match="dropped"), db.transaction() as tx:  # noqa: PT012
        read(tx)
        change(other)
        tx.table("log").append(people(9))
    assert other.table("log").count() == 0


def test_tables_that_a_transaction_has_listed_do_not_change_within_it(db: Database, other: Database) -> None:
    db.create_table("log", SCHEMA)
    tx = db.transaction()
    assert tx.tables() == ["log"]
    other.create_table("new", SCHEMA)
    with pytest.raises(TableNotFoundError):
        tx.table("new")
    assert tx.tables() == ["log"]


def test_a_query_that_names_its_tables_does_not_depend_on_others(db: Database, other: Database) -> None:
    db.create_table("people", SCHEMA, primary_key="id")
    db.create_table("log", SCHEMA)
    with db.transaction() as tx:
        assert tx.sql("SELECT count(*) FROM people").fetchall() == [(0,)]
        other.create_table("new", SCHEMA)
        tx.table("log").append(people(9))
    assert other.table("log").count() == 1


def test_what_a_rolled_back_block_has_read_must_still_hold(db: Database, other: Database) -> None:
    db.create_table("people", SCHEMA, primary_key="id")
    db.create_table("log", SCHEMA)
    with pytest.raises(ConflictError, match="rows"), db.transaction() as tx:  # noqa: PT012
        with pytest.raises(KeyError), tx.savepoint():  # noqa: PT012
            tx.table("people").count()
            raise KeyError
        other.table("people").append(people(1))
        tx.table("log").append(people(9))
