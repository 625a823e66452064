"""History, time travel and snapshots."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import dolmen
from dolmen.database import Database
from dolmen.errors import DatabaseNotFoundError, InputError, UnsettledTimestampError, VersionNotFoundError
from support.people import people


def test_history_is_newest_first_and_complete(db: Database, table: dolmen.Table) -> None:
    for i in range(70):
        table.append(people(i))
    history = db.history()
    assert [commit.version for commit in history] == list(range(71, 0, -1))
    assert history[-1].operation == "create_table"
    assert sum(commit.counts.rows_added for commit in history) == 70
    assert [commit.version for commit in db.history(3)] == [71, 70, 69]


def test_every_version_can_be_read_for_ever(table: dolmen.Table, db: Database) -> None:
    for i in range(70):
        table.append(people(i))
    for version in (1, 2, 5, 40, 71):
        assert table.at(version=version).count() == version - 1
        assert db.at(version=version).table("people").to_arrow().num_rows == version - 1


def test_a_snapshot_stays_what_it_is(table: dolmen.Table, other: Database) -> None:
    table.append(people(1, 2))
    pinned = table.at(version=2)
    scan = table.scan()
    other.table("people").delete("TRUE")
    assert table.count() == 0
    assert pinned.count() == 2
    assert scan.to_arrow().num_rows == 2


def test_a_table_follows_the_newest_version(table: dolmen.Table, other: Database) -> None:
    other.table("people").append(people(1))
    assert table.count() == 1


def test_versions_that_are_not_there(db: Database, other: Database, table: dolmen.Table) -> None:
    for version in (0, -1, 2):
        with pytest.raises(VersionNotFoundError):
            db.at(version=version)
    with pytest.raises(InputError):
        db.at()


def test_nothing_can_be_read_before_the_first_commit(db: Database) -> None:
    with pytest.raises(DatabaseNotFoundError):
        db.at(version=1)


def test_a_time_close_to_now_is_refused_until_a_later_commit_settles_it(table: dolmen.Table) -> None:
    created_at = table.append(people(1)).created_at
    with pytest.raises(UnsettledTimestampError):
        table.at(timestamp=created_at)
    with pytest.raises(UnsettledTimestampError):
        table.at(timestamp=datetime.now(UTC) + timedelta(days=1))
    table.append(people(2))
    assert table.at(timestamp=created_at).count() == 1
    assert table.at(timestamp=created_at.isoformat()).count() == 1
    with pytest.raises(VersionNotFoundError):
        table.at(timestamp="2001-01-01")
