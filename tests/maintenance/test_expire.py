"""Expiry: by the store's clock, once, never what has no time, and not more often than it is of use."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from dolmen import Database, Table, Transaction
from dolmen.base.runtime import Runtime
from dolmen.commit.statements.background import SetProperties
from dolmen.format.properties import TimeToLive
from dolmen.maintenance.ttl import Expired, cutoff_of, expire_rows
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen.transactions.transaction import unit_of

NOW = datetime(2026, 11, 21, 13, 45, 30, tzinfo=UTC)
DAY_US = 86_400_000_000
ZONED, NAIVE, DAYS = pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.date32()


class World:
    """A database whose store's clock stands at ``now``, while this machine's is an hour behind."""

    def __init__(self) -> None:
        self.now = NOW
        self.bucket = MemoryBucket(clock_us=lambda: round(self.now.timestamp() * 1e6))
        runtime = Runtime(clock_us=lambda: round((self.now - timedelta(hours=1)).timestamp() * 1e6))
        self.db = Database(MemoryStore(self.bucket, runtime), runtime)

    def table(self, name: str = "events", arrow_type: pa.DataType = ZONED, ttl: str = "at 90d") -> Table:
        schema = pa.schema([("id", pa.int64()), ("at", arrow_type)])
        return self.db.create_table(name, schema, properties={"ttl": ttl})

    def rows(self, *ages_in_days: float | None, arrow_type: pa.DataType = ZONED) -> list[dict[str, Any]]:
        """Rows with their age as id; None is NULL, as id -1."""
        return [self._row(age, arrow_type) for age in ages_in_days]

    def _row(self, age: float | None, arrow_type: pa.DataType) -> dict[str, Any]:
        if age is None:
            return {"id": -1, "at": None}
        at: Any = self.now - timedelta(days=age)
        at = at.date() if arrow_type == DAYS else at if arrow_type == ZONED else at.replace(tzinfo=None)
        return {"id": int(age), "at": at}

    def expire(self) -> Expired:
        return expire_rows(self.db._context)


@pytest.fixture
def world() -> World:
    return World()


def ids(table: Table) -> list[int]:
    return sorted(table.to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("arrow_type", [ZONED, NAIVE, DAYS], ids=str)
def test_rows_older_than_their_time_go_and_those_without_one_stay(world: World, arrow_type: pa.DataType) -> None:
    table = world.table(arrow_type=arrow_type)
    table.append(world.rows(0, 89, 92, 400, None, arrow_type=arrow_type))
    done = world.expire()
    assert done.failures == {}
    assert done.commit is not None
    assert done.commit.operation == "expire"
    assert done.cutoffs == {"events": cutoff_of(TimeToLive("at", 90 * DAY_US), world.bucket.clock_us(), arrow_type)}
    assert ids(table) == [-1, 0, 89]


@pytest.mark.parametrize(("machine_hours", "left"), [(-24 * 365, 1), (24 * 365, 1)])
def test_time_is_the_stores_not_this_machines(machine_hours: int, left: int) -> None:
    bucket = MemoryBucket(clock_us=lambda: round(NOW.timestamp() * 1e6))
    runtime = Runtime(clock_us=lambda: round((NOW + timedelta(hours=machine_hours)).timestamp() * 1e6))
    db = Database(MemoryStore(bucket, runtime), runtime, trust_clock=True)
    table = db.create_table("t", pa.schema([("at", ZONED)]), properties={"ttl": "at 90d"})
    table.append([{"at": NOW - timedelta(days=80)}, {"at": NOW - timedelta(days=100)}])
    expire_rows(db._context)
    assert table.count() == left


def test_a_date_expires_when_its_whole_day_has(world: World) -> None:
    table = world.table(arrow_type=DAYS, ttl="at 2d")
    today = NOW.date()
    table.append([{"id": n, "at": today - timedelta(days=n)} for n in range(5)])
    world.expire()
    assert ids(table) == [0, 1, 2]


def test_all_tables_are_one_commit_and_those_without_a_time_to_live_are_left_alone(world: World) -> None:
    tables = [world.table(name) for name in ("a", "b", "c")]
    plain = world.db.create_table("plain", pa.schema([("id", pa.int64()), ("at", ZONED)]))
    for table in [*tables, plain]:
        table.append(world.rows(1, 100))
    before = world.db.version
    done = world.expire()
    assert set(done.cutoffs) == {"a", "b", "c"}
    assert world.db.version == before + 1
    assert [ids(table) for table in [*tables, plain]] == [[1], [1], [1], [1, 100]]


def test_an_idle_table_gains_no_tombstones_however_often_this_runs(world: World) -> None:
    """Its one file holds old and new rows: by its statistics alone it would look as if there was something to do."""
    table = world.table()
    table.append(world.rows(1, 100, 200))
    world.expire()
    before = world.db.version
    for _ in range(20):
        world.now += timedelta(minutes=15)
        assert world.expire().commit is None
    assert world.db.version == before
    assert len(table.describe()["unresolved_deletes"]) == 1


def test_nothing_is_written_where_nothing_can_have_expired(world: World) -> None:
    world.table().append(world.rows(1, 50, None))
    before = world.db.version
    for _ in range(3):
        assert world.expire() == Expired()
        world.now += timedelta(days=10)
    assert world.db.version == before


@pytest.mark.slow
def test_rows_expire_as_time_goes_by_in_steps_of_a_part_of_their_age(world: World) -> None:
    table = world.table(ttl="at 10d")
    table.append(world.rows(*range(10)))
    commits = 0
    for _ in range(5 * 24 * 4):  # a run every 15 minutes, for 5 days
        world.now += timedelta(minutes=15)
        done = world.expire()
        commits += done.commit is not None
        assert done.failures == {}
    assert ids(table) == [0, 1, 2, 3, 4, 5]  # the last one is 10 days old to the microsecond
    # What there is is one file over the whole span: it may hold a row in any hour, and is looked at once in each.
    assert commits <= 5 * 24 + 1


def test_late_rows_expire_too_at_the_next_run(world: World) -> None:
    table = world.table()
    table.append(world.rows(1, 100))
    world.expire()
    table.append(world.rows(2, 101))
    assert ids(table) == [1, 2, 101]
    assert world.expire().commit is not None
    assert ids(table) == [1, 2]


def test_a_file_of_which_only_its_newest_rows_are_left_is_not_asked_again_after_resolution(world: World) -> None:
    table = world.table()
    table.append(world.rows(1, 100, 200))
    world.expire()
    world.db.resolve("events")
    assert table.describe()["unresolved_deletes"] == []
    assert world.expire().commit is None
    assert ids(table) == [1]


def test_a_longer_life_revives_nothing_and_a_shorter_one_takes_more(world: World) -> None:
    table = world.table()
    table.append(world.rows(1, 50, 100))
    world.expire()
    table.set(ttl="at 365d")
    assert world.expire().commit is None
    assert ids(table) == [1, 50]
    table.set(ttl="at 30d")
    world.expire()
    assert ids(table) == [1]


def test_another_column_starts_anew(world: World) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", ZONED), ("seen", ZONED)])
    table = world.db.create_table("t", schema, properties={"ttl": "at 90d"})
    old, new = NOW - timedelta(days=200), NOW
    table.append(
        [{"id": 1, "at": old, "seen": new}, {"id": 2, "at": new, "seen": old}, {"id": 3, "at": new, "seen": new}]
    )
    world.expire()
    assert ids(table) == [2, 3]
    table.set(ttl="seen 90d")
    world.expire()
    assert ids(table) == [3]


def test_rows_that_replaced_an_expired_table_expire_as_well(world: World) -> None:
    table = world.table()
    table.append(world.rows(1, 100))
    world.expire()
    table.overwrite(world.rows(2, 102))
    world.expire()
    assert ids(table) == [2]


def test_a_table_that_cannot_be_read_does_not_keep_the_others(world: World) -> None:
    good, bad = world.table("good"), world.table("bad")
    for table in (good, bad):
        table.append(world.rows(1, 100))
    with world.db.transaction() as tx:
        entry = unit_of(tx).entry("bad")
        unit_of(tx).add(SetProperties("bad", entry.uuid, {"ttl": "whenever"}))  # as a newer dolmen might say it
    done = world.expire()
    assert list(done.failures) == ["bad"]
    assert "ttl" in str(done.failures["bad"])
    assert ids(good) == [1]


def test_a_table_that_is_dropped_meanwhile_does_not_keep_the_others(world: World, monkeypatch: Any) -> None:
    kept, dropped = world.table("kept"), world.table("dropped")
    for table in (kept, dropped):
        table.append(world.rows(1, 100))
    commit, left = Transaction.commit, ["dropped"]

    def commit_later(self: Transaction) -> Any:
        if left:
            elsewhere = Database(MemoryStore(world.bucket, Runtime()), world.db._context.runtime)
            elsewhere.drop_table(left.pop())
        return commit(self)

    monkeypatch.setattr(Transaction, "commit", commit_later)
    world.expire()
    assert ids(kept) == [1]


@pytest.mark.parametrize("ttl", [None, "at 200d"])
def test_rows_live_on_whose_time_to_live_is_prolonged_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, ttl: str | None
) -> None:
    """History 20261140: an expiry that others kept from committing did so long after its ``ttl`` had been unset."""
    kept, prolonged = world.table("kept"), world.table("prolonged")
    for table in (kept, prolonged):
        table.append(world.rows(1, 100))
    commit, left = Transaction.commit, [1]

    def commit_later(self: Transaction) -> Any:
        if left:
            left.pop()
            elsewhere = Database(MemoryStore(world.bucket, Runtime()), world.db._context.runtime)
            elsewhere.table("prolonged").set(ttl=ttl, target_file_bytes="64MB")
            elsewhere.table("kept").set(target_file_bytes="64MB")
        return commit(self)

    monkeypatch.setattr(Transaction, "commit", commit_later)
    world.expire()
    assert (ids(kept), ids(prolonged)) == ([1], [1, 100])


def test_only_the_tables_asked_for(world: World) -> None:
    a, b = world.table("a"), world.table("b")
    for table in (a, b):
        table.append(world.rows(1, 100))
    expire_rows(world.db._context, tables=["a", "absent"])
    assert (ids(a), ids(b)) == ([1], [1, 100])


@pytest.mark.parametrize("column", ["at time", 'a"t', "AT"])
def test_a_column_may_have_any_name(world: World, column: str) -> None:
    schema = pa.schema([("id", pa.int64()), (column, ZONED)])
    table = world.db.create_table("t", schema, properties={"ttl": f"{column} 90d"})
    table.append([{"id": n, column: NOW - timedelta(days=n)} for n in (1, 100)])
    assert world.expire().failures == {}
    assert ids(table) == [1]


def test_cut_offs_never_move_back_and_no_row_outlives_its_age_by_much() -> None:
    for age_us in (60_000_000, 3_600_000_000, 7 * DAY_US, 90 * DAY_US, 3650 * DAY_US):
        ttl, last = TimeToLive("at", age_us), -(2**62)
        for step in range(200):
            now = round(NOW.timestamp() * 1e6) + step * age_us // 97
            cutoff = cutoff_of(ttl, now, ZONED)
            assert last <= cutoff <= now - age_us
            assert now - age_us - cutoff <= age_us // 50
            last = cutoff


def test_dates_before_1970_and_far_away_are_said_right(world: World) -> None:
    world.now = datetime(1975, 1, 1, tzinfo=UTC)
    table = world.table(arrow_type=DAYS, ttl="at 3650d")
    table.append(
        [{"id": 1, "at": date(1900, 1, 1)}, {"id": 2, "at": date(1970, 1, 1)}, {"id": 3, "at": date(9999, 1, 1)}]
    )
    assert world.expire().failures == {}
    assert ids(table) == [2, 3]
