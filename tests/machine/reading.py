"""The machine reads: the newest version and old ones, whole and in part, at once and slowly."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import consumes, precondition, rule

from dolmen.commit.head import context_of
from dolmen.errors import UnsettledTimestampError, VersionExpiredError, VersionNotFoundError
from machine.base import HANDLES, Ground, readers
from machine.conditions import conditions, texts
from machine.model import plain, told

SETTLED_US = 20 * 60 * 1_000_000


@dataclass(frozen=True)
class Held:
    """A stream that somebody has begun to read."""

    reader: pa.RecordBatchReader
    version: int
    expected: Counter[str]


class Reading(Ground):
    """Scans, counts, SQL, time travel, history."""

    @precondition(lambda self: self.state.tables)
    @rule(handle=HANDLES, data=st.data(), limit=st.none() | st.integers(0, 4))
    def scan(self, handle: int, data: st.DataObject, limit: int | None) -> None:
        """Some columns of some rows, counted too."""
        name, table = self.some_table(data)
        condition = data.draw(st.none() | conditions(table.columns), label="where")
        wanted = data.draw(
            st.none() | st.lists(st.sampled_from([c.name for c in table.columns]), min_size=1, unique=True),
            label="columns",
        )
        expected = table.shown(table.matching(condition), wanted)
        reader = self.handles[handle].table(name)
        where = condition.where if condition else None
        found = told(reader.scan(wanted, where, limit).to_arrow())
        if limit is None:
            assert found == expected
        else:
            assert found.total() == min(limit, expected.total())
            assert found <= expected
        assert reader.count(where) == expected.total()

    @precondition(lambda self: self.state.tables)
    @rule(handle=HANDLES, data=st.data(), is_descending=st.booleans())
    def ordered(self, handle: int, data: st.DataObject, is_descending: bool) -> None:
        """Rows in order are the same rows, in order: NaN after all others and NULL after NaN, descending too."""
        name, table = self.some_table(data)
        column = data.draw(st.sampled_from(table.columns), label="by")
        order = f"{'-' if is_descending else ''}{column.name}"
        found = self.handles[handle].table(name).scan(order_by=order).to_arrow()
        assert told(found) == table.shown()
        shown = plain(found[column.name])
        places = [2 if value is None else int(value != value) for value in shown]  # so is NaN alone
        assert places == sorted(places)
        values = [column.kind.order(value) for value, place in zip(shown, places, strict=True) if place == 0]
        assert values == sorted(values, reverse=is_descending)

    @precondition(lambda self: self.state.tables)
    @rule(handle=HANDLES, data=st.data())
    def timestamps(self, handle: int, data: st.DataObject) -> None:
        """Every row tells the commit that added it, however often it has been rewritten since."""
        name, table = self.some_table(data)
        found = self.handles[handle].table(name).scan(with_commit_ts=True).to_arrow()
        stamps = found["_commit_ts"].to_pylist()
        shown = zip(*(plain(column) for column in found.drop_columns("_commit_ts").columns), strict=True)
        told_of = sorted(zip(map(repr, shown), stamps, strict=True))
        expected = sorted((repr(row.values), *self.stamps[row.number]) for row in table.rows)
        assert len(told_of) == len(expected)
        for (row, stamp), (same, least, most) in zip(told_of, expected, strict=True):
            assert row == same
            assert least <= stamp <= most

    @precondition(lambda self: self.state.tables)
    @rule(handle=HANDLES, data=st.data())
    def sql(self, handle: int, data: st.DataObject) -> None:
        """DuckDB over the scans sees the same."""
        name, table = self.some_table(data)
        condition = data.draw(texts(table.columns), label="where")
        query = f"SELECT * FROM {name} WHERE {condition.where}"
        assert told(self.handles[handle].sql(query).to_arrow()) == table.shown(table.matching(condition))

    @precondition(lambda self: self.versions)
    @rule(handle=HANDLES, data=st.data(), offset=st.sampled_from([0, -1, 1, 500_000, 1_500_000_000]))
    def at_time(self, handle: int, data: st.DataObject, offset: int) -> None:
        """The version that was the newest then, if that is settled and kept."""
        version = data.draw(st.integers(1, self.version), label="near version")
        moment = self.versions[version - 1].created_at + offset
        database = self.handles[handle]
        database.refresh()
        now, newest = context_of(database).store.clock.now_us, self.versions[-1]
        expected = sum(landed.created_at <= moment for landed in self.versions)
        if newest.created_at <= moment and moment > now - SETTLED_US:
            with pytest.raises(UnsettledTimestampError):
                database.at(timestamp=moment, settled=True)
            if moment <= now:
                there = database.at(timestamp=moment)
                assert (there.version, there.settled) == (len(self.versions), False)
        elif expected < self.horizon:
            error = VersionExpiredError if self.horizon > 1 else VersionNotFoundError
            with pytest.raises(error):
                database.at(timestamp=moment)
        else:
            assert database.at(timestamp=moment).version == expected

    @rule(handle=HANDLES)
    def history(self, handle: int) -> None:
        """Who did what."""
        self.check_history(self.handles[handle])

    @precondition(lambda self: self.state.tables)
    @rule(target=readers, handle=HANDLES, data=st.data())
    def hold(self, handle: int, data: st.DataObject) -> Held:
        """Begins to read, and gets no further for now."""
        version = data.draw(st.integers(self.horizon, self.version), label="version")
        state = self.at(version)
        if not state.tables:
            version, state = self.version, self.state
        name = data.draw(st.sampled_from(sorted(state.tables)), label="table")
        table = state.tables[name]
        condition = data.draw(st.none() | conditions(table.columns), label="where")
        scan = self.handles[handle].at(version).table(name).scan(where=condition.where if condition else None)
        return Held(scan.to_reader(), version, table.shown(table.matching(condition)))

    @rule(held=consumes(readers))
    def read_on(self, held: Held) -> None:
        """The version that it began on, whatever has happened since; unless that has expired, and is said to have."""
        try:
            found = held.reader.read_all()
        except VersionExpiredError:
            assert held.version < self.horizon
            return
        assert told(found) == held.expected
