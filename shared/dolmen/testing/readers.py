"""Who reads in a history: the newest version, old ones by number and time, and held snapshots slowly."""

from __future__ import annotations

import pyarrow as pa

from dolmen.errors import TableNotFoundError, VersionNotFoundError
from dolmen.testing.actors import TABLES, Actor
from dolmen.testing.faulty_store import MINUTE_US
from dolmen.testing.model import Row, State, ViolationError, difference
from dolmen.testing.process import Process


def rows_from(data: pa.Table | pa.RecordBatch) -> list[Row]:
    """Rows as production code gives them."""
    return [Row(*values) for values in zip(*(data[name].to_pylist() for name in Row._fields), strict=True)]


def check_rows(found: list[Row], expected: State, name: str, what: str) -> None:
    """Raises ViolationError unless these are the table's rows in that version."""
    if wrong := difference(found, expected[name].rows):
        raise ViolationError(f"{what} of {name!r}: {wrong}")


class Reader(Actor):
    """Checks at once all that it is told."""

    def turn(self, process: Process) -> None:
        """One read."""
        if not process.ledger.version:
            return
        process.network.counts["reads"] += 1
        kind = self.random.random()
        if kind < 0.3:
            process.read(lambda: self._newest(process))
        elif kind < 0.5:
            process.read(lambda: self._by_number(process))
        elif kind < 0.7:
            process.read(lambda: self._by_time(process))
        elif kind < 0.85:
            process.read(lambda: self._slowly(process))
        elif kind < 0.95:
            process.read(lambda: self._two_tables(process))
        else:
            process.read(lambda: self._history(process))

    def _version(self, process: Process) -> int:
        newest = process.ledger.version
        return newest if self.random.random() < 0.3 else self.random.randint(max(1, newest - 80), newest)

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

    def _by_number(self, process: Process) -> None:
        version = self._version(process)
        state = process.ledger.states[version]
        snapshot = process.db.at(version=version)
        if snapshot.tables() != sorted(state):
            raise ViolationError(f"version {version} shows tables {snapshot.tables()}, not {sorted(state)}")
        for name in sorted(state)[:2]:
            table = snapshot.table(name)
            check_rows(rows_from(table.scan().to_arrow()), state, name, f"version {version}")
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

    def _slowly(self, process: Process) -> None:
        version = self._version(process)
        state = process.ledger.states[version]
        snapshot = process.db.at(version=version)
        process.network.scheduler.pause(self.random.randint(0, MINUTE_US))
        for name in sorted(state)[:2]:
            found: list[Row] = []
            for batch in snapshot.table(name).scan().to_reader():
                found += rows_from(batch)
                process.network.scheduler.pause(self.random.randint(0, MINUTE_US))
            check_rows(found, state, name, f"version {version}, read slowly,")

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
        if newest < began or told != [(index, chain[index].commit_id) for index in range(newest, 0, -1)]:
            raise ViolationError(f"history() of version {newest} is not the chain of commits")
