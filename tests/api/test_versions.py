"""History, time travel and snapshots."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dolmen
from dolmen import Database
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


def test_a_time_close_to_now_is_answered_and_said_not_to_be_final(db: Database, table: dolmen.Table) -> None:
    created_at = table.append(people(1)).created_at
    there = db.at(timestamp=created_at)
    assert (there.version, there.settled, there.table("people").count()) == (2, False, 1)
    assert "not settled yet" in repr(there)
    assert not table.at(timestamp=created_at).settled
    with pytest.raises(UnsettledTimestampError, match=r"[0-9] seconds.*version is 2"):
        table.at(timestamp=created_at, settled=True)
    assert db.at(version=2).settled
    table.append(people(2))
    assert db.at(timestamp=created_at, settled=True).settled


@pytest.mark.parametrize("settled", [False, True])
def test_a_time_in_the_future_is_told_for_what_it_is(db: Database, table: dolmen.Table, settled: bool) -> None:
    with pytest.raises(UnsettledTimestampError, match=r"1 day.*0 hours"):
        db.at(timestamp=datetime.now(UTC) + timedelta(days=1, seconds=2), settled=settled)
    with pytest.raises(UnsettledTimestampError, match=r"3,60\d seconds"):
        db.at(timestamp=datetime.now(UTC) + timedelta(hours=1, seconds=2), settled=settled)


@pytest.mark.parametrize(
    "arguments",
    [
        {"version": "18"},
        {"version": True},
        {"version": 1.0},
        {"version": 10**5000},
        {"timestamp": date(2026, 1, 1)},
        {"timestamp": "yesterday"},
        {"timestamp": 1.5},
        {"timestamp": pd.NaT},
        {"timestamp": b"2026"},
        {"version": 1, "settled": 1},
        {},
        {"version": 1, "timestamp": 1},
    ],
)
def test_what_names_no_version_is_refused(db: Database, table: dolmen.Table, arguments: dict[str, Any]) -> None:
    for at in (db.at, table.at):
        with pytest.raises(InputError):
            at(**arguments)


def test_numbers_of_numpy_name_versions(db: Database, table: dolmen.Table) -> None:
    assert db.at(np.int64(1)).version == 1


def test_older_times_are_found(table: dolmen.Table) -> None:
    created_at = table.append(people(1)).created_at
    table.append(people(2))
    assert table.at(timestamp=created_at).count() == 1
    assert table.at(timestamp=created_at.isoformat()).count() == 1
    with pytest.raises(VersionNotFoundError):
        table.at(timestamp="2001-01-01")


@pytest.mark.parametrize("timestamp", [18.0, True, np.datetime64("2026-01-31"), None])
def test_what_is_no_timestamp_is_refused_with_what_is(timestamp: Any) -> None:
    db = dolmen.open("memory://no-timestamp")
    message = (
        "give one of version, timestamp and tag"
        if timestamp is None
        else "give a datetime, ISO 8601 text, or whole micro"
    )
    with pytest.raises(InputError, match=message):
        db.at(timestamp=timestamp)
