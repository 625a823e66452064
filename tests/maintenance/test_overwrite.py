"""Overwriting a table: all its rows are replaced in one commit, or nobody's are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dolmen import Database, Table
from dolmen.errors import ConflictError


def ids(table: Table) -> list[int]:
    return sorted(table.to_arrow()["id"].to_pylist())


def rows(*wanted: int) -> pa.Table:
    return pa.table({"id": pa.array(wanted, pa.int64())})


@pytest.fixture
def table(db: Database) -> Table:
    made = db.create_table("events", pa.schema([("id", pa.int64())]), primary_key="id")
    made.append(rows(1, 2, 3))
    return made


def test_an_overwrite_replaces_all_rows_in_one_commit(db: Database, table: Table) -> None:
    table.delete(keys=[1])
    before = db.version
    commit = table.overwrite(rows(1, 9))
    assert (commit.version, commit.operation) == (before + 1, "overwrite")
    assert (commit.counts.rows_added, commit.counts.files_removed) == (2, 1)
    assert ids(table) == [1, 9]
    assert ids(table.at(version=before)) == [2, 3]  # type: ignore[arg-type]


def test_an_overwrite_with_nothing_empties_the_table(table: Table) -> None:
    table.overwrite(rows())
    assert ids(table) == []
    table.append(rows(4))
    assert ids(table) == [4]


def test_deletes_from_before_do_not_touch_the_new_rows_and_later_ones_do(table: Table) -> None:
    table.delete("id > 0")
    table.overwrite(rows(1, 2))
    assert ids(table) == [1, 2]
    table.delete(keys=[2])
    assert ids(table) == [1]


def test_settings_and_keys_stay(table: Table) -> None:
    table.set(target_file_bytes="1MB")
    table.overwrite(rows(1))
    assert table.settings()["target_file_bytes"] == "1MB"
    table.upsert(rows(1))
    assert ids(table) == [1]


@pytest.mark.parametrize("change", ["append", "delete", "positions"])
def test_rows_that_others_changed_meanwhile_are_not_lost_silently(table: Table, db: Database, change: str) -> None:
    base = db.history(1)[0]
    tx = db.transaction()
    tx.table("events").overwrite(rows(9))
    _change(table, change)
    with pytest.raises(ConflictError, match="force=True") as raised:
        tx.commit()
    theirs = db.history(1)[0]
    for said in (base.commit_ts, theirs.commit_ts, f"version {theirs.version} "):
        assert str(said) in str(raised.value)
    assert 9 not in ids(table)


@pytest.mark.parametrize("change", ["append", "delete", "positions"])
def test_by_force_they_are_replaced_too(table: Table, db: Database, change: str) -> None:
    with db.transaction() as tx:
        tx.table("events").overwrite(rows(9), force=True)
        _change(table, change)
    assert ids(table) == [9]


def test_two_overwrites_of_one_version_conflict_even_by_force(table: Table, db: Database) -> None:
    tx = db.transaction()
    tx.table("events").overwrite(rows(9), force=True)
    table.overwrite(rows(8))
    with pytest.raises(ConflictError, match="repeat"):
        tx.commit()
    assert ids(table) == [8]


def test_a_table_that_was_dropped_and_created_again_is_not_overwritten(table: Table, db: Database) -> None:
    tx = db.transaction()
    tx.table("events").overwrite(rows(9), force=True)
    db.drop_table("events")
    db.create_table("events", pa.schema([("id", pa.int64())]))
    with pytest.raises(ConflictError, match="created"):
        tx.commit()
    assert ids(table) == []


def test_a_transaction_sees_its_overwrite_and_goes_on_from_it(table: Table, db: Database) -> None:
    with db.transaction() as tx:
        inner = tx.table("events")
        inner.append(rows(7))
        inner.overwrite(rows(9, 10))
        assert inner.count() == 2
        inner.append(rows(11))
        inner.delete(keys=[10])
        assert sorted(inner.to_arrow()["id"].to_pylist()) == [9, 11]
    assert ids(table) == [9, 11]


def test_a_table_made_in_the_same_transaction_is_overwritten_whatever_others_commit(table: Table, db: Database) -> None:
    with db.transaction() as tx:
        made = tx.create_table("new", pa.schema([("id", pa.int64())]))
        made.append(rows(1))
        made.overwrite(rows(2))
        table.append(rows(4))
    assert ids(db.table("new")) == [2]


def test_an_append_under_way_lands_after_an_overwrite(table: Table, db: Database) -> None:
    with db.transaction() as tx:
        tx.table("events").append(rows(4))
        table.overwrite(rows(9))
    assert ids(table) == [4, 9]


def test_a_request_overwrites_once(table: Table) -> None:
    first = table.overwrite(rows(9), request="r")
    table.append(rows(10))
    again = table.overwrite(rows(9), request="r")
    assert again.already == {"r": first.version}
    assert ids(table) == [9, 10]


def _change(table: Table, change: str) -> None:
    if change == "append":
        table.append(rows(4))
    elif change == "delete":
        table.delete(keys=[1])
    else:
        table.delete("id = 1", mode="positions")
