"""Actors that read: the newest version, old ones by number and time, and held snapshots slowly."""

from __future__ import annotations

from dolmen.errors import TableNotFoundError, VersionExpiredError, VersionNotFoundError
from dolmen.transactions.transaction import unit_of
from dolmen_simulator.actors.writers import NAMES, Actor
from dolmen_simulator.judge.deeds import requests_of
from dolmen_simulator.judge.model import Row, user_tables
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.judge.seen import check_all, check_one_of, check_rows, rows_from
from dolmen_simulator.judge.stored import StoredCommit
from dolmen_simulator.world.network import MINUTE_US
from dolmen_simulator.world.process import Process


class Reader(Actor):
    """Reads, and checks every answer at once."""

    def turn(self, process: Process) -> None:
        """Makes one read."""
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
        """Draws a version: often one that expires soon, and seldom one that has expired, because that fails at once."""
        newest, horizon = process.ledger.version, max(process.ledger.retention.horizon, 1)
        chance = self.random.random()
        if chance < 0.3:
            return newest
        if chance > 0.8 and (tagged := sorted(process.ledger.retention.tagged)):
            return self.random.choice(tagged)
        if chance < 0.5:
            return min(newest, horizon + self.random.randint(0, 2))
        return self.random.randint(max(1, horizon - (chance > 0.9)), newest)

    def _newest(self, process: Process) -> None:
        name, ledger, began = self.random.choice(NAMES), process.ledger, process.ledger.version
        try:
            found = rows_from(process.db.table(name).scan().to_arrow())
        except TableNotFoundError:
            if all(name in state for state in ledger.states[began:]):
                raise
            return
        process.evidence.add_read(name, (row.u for row in found), fresh=True)
        during = range(began, ledger.version + 1)
        check_one_of(ledger, found, during, name, f"a scan between versions {began} and {ledger.version}")

    def _by_number(self, process: Process, version: int) -> None:
        snapshot = process.db.at(version=version)
        known = process.db.version
        state = process.ledger.visible_state(version, known)
        if user_tables(snapshot.tables()) != sorted(state):
            raise ViolationError(Never.LOST, f"version {version} shows tables {snapshot.tables()}, not {sorted(state)}")
        for name in self.random.sample(sorted(state), min(2, len(state))):
            table = snapshot.table(name)
            data = table.scan(with_commit_ts=True).to_arrow()
            check_all(process.ledger, data, version, name, f"version {version}", known)
            if state is process.ledger.states[version]:  # else no version landed like this
                process.evidence.add_read(name, data["u"].to_pylist())
            if table.count() != len(state[name].rows):
                raise ViolationError(Never.LOST, f"version {version} counts {table.count()} rows of {name!r}")
            k = self.random.randrange(4)
            where, expected = {"k": k}, sum(row.k == k for row in state[name].rows)
            if table.count(where) != expected:
                raise ViolationError(
                    Never.LOST, f"version {version} counts {table.count(where)} rows of {name!r} with {where}"
                )

    def _by_time(self, process: Process) -> None:
        now_us = process.network.scheduler.now_us
        long_us = self.random.choice((MINUTE_US // 60, MINUTE_US // 6, 45 * MINUTE_US))
        timestamp = now_us - self.random.randint(-long_us // 10, long_us)
        try:
            version = process.db.at(timestamp=timestamp, settled=True).version
        except VersionNotFoundError:
            version = 0
        process.ledger.timestamp_answers.append((timestamp, version))
        process.network.counts["reads by time"] += 1

    def _slowly(self, process: Process, version: int) -> None:
        ledger, scheduler = process.ledger, process.network.scheduler
        snapshot = process.db.at(version=version)
        known = process.db.version
        state = ledger.visible_state(version, known)
        pace_us = self.random.choice((MINUTE_US, MINUTE_US, 20 * MINUTE_US))
        scheduler.pause(self.random.randint(0, pace_us))
        try:
            for name in self.random.sample(sorted(state), min(2, len(state))):
                found: list[Row] = []
                for batch in snapshot.table(name).scan().to_reader():
                    found += rows_from(batch)
                    scheduler.pause(self.random.randint(0, pace_us))
                check_rows(ledger, found, version, name, f"version {version}, read slowly,", known)
                if state is ledger.states[version]:
                    process.evidence.add_read(name, (row.u for row in found))
        except VersionExpiredError:
            free_us = ledger.retention.expired_since(version)
            if free_us is None or process.network.server_clock_us() < free_us:
                raise ViolationError(
                    Never.UNREADABLE, f"version {version} expired under a reader before its grace was over"
                ) from None
            process.network.counts["expired under a reader"] += 1
            raise
        process.network.counts["read slowly beyond the horizon"] += version < ledger.retention.horizon

    def _two_tables(self, process: Process) -> None:
        with process.db.transaction() as transaction:
            version = unit_of(transaction).base.version
            state = process.ledger.states[version]
            for name in self.random.sample(sorted(state), min(2, len(state))):
                found = rows_from(transaction.table(name).scan().to_arrow())
                process.evidence.add_read(name, (row.u for row in found))
                check_rows(process.ledger, found, version, name, f"a transaction on version {version}")

    def _history(self, process: Process) -> None:
        began, chain = process.ledger.version, process.ledger.chain
        commits = process.db.history()
        newest = commits[0].version
        oldest = max(process.ledger.horizons[newest], 1)
        if newest < began or [StoredCommit.of(commit) for commit in commits] != [
            chain[index].commit for index in range(newest, oldest - 1, -1)
        ]:
            raise ViolationError(Never.MISREPORTED, f"history() of version {newest} is not the chain of commits")
        for commit in commits:
            own = requests_of(process.ledger.applied, commit.version)
            forgotten = process.network.counts["ids forgotten"]
            if not (set(commit.requests) <= own if forgotten else set(commit.requests) == own):
                raise ViolationError(Never.MISREPORTED, f"history() tells of {commit!r}, which applied {sorted(own)}")


class Dater(Reader):
    """Asks which version was the newest at some time, mostly shortly before: the answer must never change."""

    def turn(self, process: Process) -> None:
        """Asks once."""
        if process.ledger.version:
            process.read(lambda: self._by_time(process), 0)
