"""The machine keeps house: none of this changes a row that anybody sees, but for expiry, which says what it does."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from dolmen import Database
from dolmen.base.records import replace
from dolmen.commit.head import context_of
from machine.base import HANDLES, SELDOM, Ground
from machine.model import Row, Statement, TableState

DAY_US = 86_400_000_000
AGES = {"1h": 3_600_000_000, "1d": DAY_US, "30d": 30 * DAY_US}
WORK: dict[str, Callable[[Database], object]] = {
    "merge": lambda database: database.merge(),
    "maintain": lambda database: database.maintain(steps=("resolve", "compact", "merge")),
    "plan": lambda database: database.compact(dry_run=True),
    "stats": lambda database: database.stats(exact=True),
    "gc dry run": lambda database: database.gc(dry_run=True),
}


class Upkeep(Ground):
    """Resolution, compaction, merging, collection, expiry, settings, and the checks that come with the database."""

    @rule(handle=HANDLES)
    def resolve(self, handle: int) -> None:
        """Deletes become vectors."""
        resolved = self.handles[handle].resolve()
        assert resolved.keys() == self.state.tables.keys()
        self.settle(self.handles[handle])

    @rule(handle=HANDLES)
    def compact(self, handle: int) -> None:
        """Small files become large ones."""
        compacted = self.handles[handle].compact()
        assert compacted.keys() == self.state.tables.keys()
        self.settle(self.handles[handle])

    @rule(handle=HANDLES, work=st.sampled_from(sorted(WORK)))
    def work(self, handle: int, work: str) -> None:
        """Other background work, and what it would do."""
        WORK[work](self.handles[handle])
        self.settle(self.handles[handle])

    @rule(handle=HANDLES, is_full=st.booleans(), seconds=st.sampled_from([0, 2, 4_000]))
    def collect(self, handle: int, is_full: bool, seconds: int) -> None:
        """Lets versions expire: none that is to be kept. What they alone needed is gone after the next time."""
        self.place.pass_time(seconds)
        database = self.handles[handle]
        before = self.horizon
        collected = database.gc(full=is_full)
        assert not collected.errors
        now = context_of(database).store.clock.now_us
        self.settle(database)
        self.collected = self.version
        kept = self.settings["keep_versions"]
        retention = {"1s": 1_000_000, "1h": AGES["1h"]}[self.settings["retention"]]
        newest_then = sum(landed.created_at <= now - retention for landed in self.versions)
        self.horizon = max(1, collected.horizon)
        assert before <= self.horizon <= max(before, min(self.version - kept + 1, newest_then))

    @rule(handle=HANDLES, is_deep=st.booleans(), is_all=st.booleans())
    def verify(self, handle: int, is_deep: bool, is_all: bool) -> None:
        """Finds nothing."""
        report = self.handles[handle].verify(deep=is_deep, all_versions=is_all)
        assert report.ok, report

    @SELDOM
    @precondition(lambda self: self.state.tables)
    @rule(handle=HANDLES, data=st.data(), age=st.sampled_from([None, *AGES]))
    def set(self, handle: int, data: st.DataObject, age: str | None) -> None:
        """Changes a table's settings: small files, a time to live."""
        name, table = self.some_table(data)
        timed = [column.name for column in table.columns if column.kind.name in ("date", "naive", "zoned")]
        ttl = (data.draw(st.sampled_from(timed), label="column"), AGES[age]) if age and timed else None
        said = f"{ttl[0]} {age}" if ttl else None
        size = data.draw(st.sampled_from(["4KB", "256MB", None]), label="target_file_bytes")
        commit = self.unless_new(handle, name, lambda there: there.set(ttl=said, target_file_bytes=size))
        self.landed(commit, self.state.with_table(name, replace(table, ttl=ttl)))
        assert self.observer.table(name).settings()["ttl"] == said

    @rule(handle=HANDLES)
    def expire(self, handle: int) -> None:
        """Rows that have outlived their time go, and no others."""
        database = self.handles[handle]
        expired = database.expire()
        assert not expired.failures
        now = context_of(database).store.clock.now_us
        statements = [(name, _expiry(self.state.tables[name], cutoff)) for name, cutoff in expired.cutoffs.items()]
        for name, cutoff in expired.cutoffs.items():
            ttl = self.state.tables[name].ttl
            assert ttl is not None
            assert cutoff <= now - ttl[1]
        if expired.commit is not None:
            self.did(expired.commit, *statements)
        for table in self.state.tables.values():
            if table.ttl is not None:
                step = DAY_US if table.column(table.ttl[0]).kind.name == "date" else table.ttl[1] // 50
                overdue = now - table.ttl[1] - step
                assert all(moment is None or moment >= overdue for moment in (_time(table, row) for row in table.rows))


def _time(table: TableState, row: Row) -> int | None:
    """The moment that a row expires by; of a date, its midnight."""
    assert table.ttl is not None
    value = table.named(row)[table.ttl[0]]
    if value is None:
        return None
    return int(value) * (DAY_US if table.column(table.ttl[0]).kind.name == "date" else 1)


def _expiry(table: TableState, cutoff: int) -> Statement:
    def apply(now: TableState) -> TableState:
        kept = (row for row in now.rows if (moment := _time(table, row)) is None or moment >= cutoff)
        return replace(now, rows=tuple(kept))

    return apply
