"""Who reads in a history: the newest version, old ones by number and time, and held snapshots slowly."""

from __future__ import annotations

import pyarrow as pa

from dolmen.errors import TableNotFoundError, VersionExpiredError, VersionNotFoundError
from dolmen.testing.actors import TABLES, Actor
from dolmen.testing.faulty_store import MINUTE_US
from dolmen.testing.ledger import Ledger
from dolmen.testing.model import Row, Rows, State, ViolationError, difference, users_own
from dolmen.testing.process import Process


def rows_from(data: pa.Table | pa.RecordBatch) -> list[Row]:
    """Rows as production code gives them."""
    columns = (data[name] for name in Row._fields[:-1])
    times = data["t"].cast(pa.int64()).to_pylist()
    return [Row(*values) for values in zip(*(column.to_pylist() for column in columns), times, strict=True)]


def check_all(ledger: Ledger, data: pa.Table, state: State, name: str, what: str) -> None:
    """Checks rows that come with their commit timestamps, and these too."""
    check_rows(rows_from(data), state, name, what)
    ledger.check_timestamps(name, dict(zip(data["u"].to_pylist(), data["_commit_ts"].to_pylist(), strict=True)))


def check_rows(found: list[Row], expected: State, name: str, what: str) -> None:
    """Raises ViolationError unless these are the table's rows in that version."""
    if wrong := difference(found, expected[name].rows):
        raise ViolationError(f"{what} of {name!r}: {wrong}")


def check_memory(data: pa.Table | None, expected: Rows, what: str) -> None:
    """Raises ViolationError unless a memory tells of each key that changes have deleted the greatest sequence."""
    found: dict[int, int] = {}
    for row in data.to_pylist() if data is not None else ():
        found[row["k"]] = max(row["v"], found.get(row["k"], row["v"]))
    if found != expected.deleted:
        raise ViolationError(f"{what} remembers deletes {found}, not {dict(expected.deleted)}")


class Reader(Actor):
    """Checks at once all that it is told."""

    def turn(self, process: Process) -> None:
        """One read."""
        if not process.ledger.version:
            return
        process.network.counts["reads"] += 1
        kind = self.random.random()
        version = self._version(process)
        if kind < 0.3:
            process.read(lambda: self._newest(process))
        elif kind < 0.5:
            process.read(lambda: self._by_number(process, version), version)
        elif kind < 0.65:
            process.read(lambda: self._by_time(process), 0)
        elif kind < 0.85:
            process.read(lambda: self._slowly(process, version), version)
        elif kind < 0.95:
            process.read(lambda: self._two_tables(process))
        else:
            process.read(lambda: self._history(process))

    def _version(self, process: Process) -> int:
        """Seldom one that has expired: that fails too soon to be of interest. Often one that will soon."""
        newest, horizon = process.ledger.version, max(process.ledger.retention.horizon, 1)
        chance = self.random.random()
        if chance < 0.3:
            return newest
        if chance < 0.5:
            return min(newest, horizon + self.random.randint(0, 2))
        return self.random.randint(max(1, horizon - (chance > 0.9)), newest)

    def _newest(self, process: Process) -> None:
        name, ledger, began = self.random.choice(TABLES), process.ledger, process.ledger.version
        try:
            found = rows_from(process.db.table(name).scan().to_arrow())
        except TableNotFoundError:
            if all(name in state for state in ledger.states[began:]):
                raise
            return
        candidates = [state[name].rows for state in ledger.states[began:] if name in state]
        if all(difference(found, rows) for rows in candidates):
            check_rows(found, ledger.states[-1], name, f"a scan between versions {began} and {ledger.version}")

    def _by_number(self, process: Process, version: int) -> None:
        state = process.ledger.states[version]
        snapshot = process.db.at(version=version)
        if users_own(snapshot.tables()) != sorted(state):
            raise ViolationError(f"version {version} shows tables {snapshot.tables()}, not {sorted(state)}")
        for name in sorted(state)[:2]:
            table = snapshot.table(name)
            data = table.scan(with_commit_ts=True).to_arrow()
            check_all(process.ledger, data, state, name, f"version {version}")
            if table.count() != len(state[name].rows):
                raise ViolationError(f"version {version} counts {table.count()} rows of {name!r}")
            k = self.random.randrange(4)
            where, expected = {"k": k}, sum(row.k == k for row in state[name].rows)
            if table.count(where) != expected:
                raise ViolationError(f"version {version} counts {table.count(where)} rows of {name!r} with {where}")

    def _by_time(self, process: Process) -> None:
        now_us = process.network.scheduler.now_us
        long_us = MINUTE_US // 6 if self.random.random() < 0.5 else 45 * MINUTE_US
        timestamp = now_us - self.random.randint(-long_us // 10, long_us)
        try:
            version = process.db.at(timestamp=timestamp).version
        except VersionNotFoundError:
            version = 0
        process.ledger.dated.append((timestamp, version))
        process.network.counts["reads by time"] += 1

    def _slowly(self, process: Process, version: int) -> None:
        ledger, scheduler = process.ledger, process.network.scheduler
        state = ledger.states[version]
        snapshot = process.db.at(version=version)
        pace_us = self.random.choice((MINUTE_US, MINUTE_US, 20 * MINUTE_US))
        scheduler.pause(self.random.randint(0, pace_us))
        try:
            for name in sorted(state)[:2]:
                found: list[Row] = []
                for batch in snapshot.table(name).scan().to_reader():
                    found += rows_from(batch)
                    scheduler.pause(self.random.randint(0, pace_us))
                check_rows(found, state, name, f"version {version}, read slowly,")
        except VersionExpiredError:
            free_us = ledger.retention.expired_since(version)
            if free_us is None or process.network.server_clock_us() < free_us:
                raise ViolationError(f"version {version} expired under a reader before its grace was over") from None
            process.network.counts["expired under a reader"] += 1
            raise
        process.network.counts["read slowly beyond the horizon"] += version < ledger.retention.horizon

    def _two_tables(self, process: Process) -> None:
        with process.db.transaction() as transaction:
            version = transaction.base.version
            state = process.ledger.states[version]
            for name in sorted(state)[-2:]:
                found = rows_from(transaction.table(name).scan().to_arrow())
                check_rows(found, state, name, f"a transaction on version {version}")

    def _history(self, process: Process) -> None:
        began, chain = process.ledger.version, process.ledger.chain
        told = [(commit.version, commit.commit_id) for commit in process.db.history()]
        newest = told[0][0]
        oldest = max(process.ledger.horizons[newest], 1)
        if newest < began or told != [(index, chain[index].commit_id) for index in range(newest, oldest - 1, -1)]:
            raise ViolationError(f"history() of version {newest} is not the chain of commits")
