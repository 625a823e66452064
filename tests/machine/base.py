"""The machine's ground: a database with two handles, the model of every version, and what always holds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from dolmen import Commit, Database, Table, Transaction
from dolmen.errors import ConflictError, TableExistsError, TableNotFoundError, VersionExpiredError
from machine import columns
from machine.model import Landed, Row, State, Statement, TableState, told
from machine.places import LocalPlace, Place

T = TypeVar("T")
HANDLES = st.sampled_from([0, 1])
NAMES = ("a", "b")

SELDOM = precondition(lambda self: self.steps % 4 == 3)
"""For what ends so much that the rest would have nothing to do."""

readers = Bundle("readers")
transactions = Bundle("transactions")
requests = Bundle("requests")


def microseconds(moment: datetime) -> int:
    """Since the epoch."""
    return round(moment.timestamp() * 1e6)


def _is_failure(error: BaseException | None) -> bool:
    """Whether an example failed, rather than was given up by Hypothesis itself or interrupted."""
    return isinstance(error, (Exception, pytest.fail.Exception)) and not isinstance(error, HypothesisException)


class Ground(RuleBasedStateMachine):
    """Two handles of one database, used in turn, so that each is often behind; and what every version should hold."""

    new_place: ClassVar[Callable[[], Place]] = LocalPlace
    readers, transactions, requests = readers, transactions, requests

    @staticmethod
    def failed(failure: BaseException) -> None:
        """Hears of each example that fails, before Hypothesis looks for a shorter one."""

    def __init__(self) -> None:
        super().__init__()
        self.place = type(self).new_place()
        self.handles = [self.place.open(), self.place.open()]
        self.observer = self.place.open()  # so that looking does not bring a handle up to date
        self.versions: list[Landed] = []
        self.horizon = 1
        self.commit_ts = 0
        self.stamps: dict[int, tuple[int, int]] = {}
        self.numbers = 0
        self.collected = 0
        self.steps = 0

    def teardown(self) -> None:
        """What must hold in the end: every kept version, and the history, as the model says.

        After a step that failed nothing is looked at: what is told is that step's failure, not what follows from it.
        """
        failure = sys.exc_info()[1]
        try:
            if self.versions and not _is_failure(failure):
                self._check_all()
        except BaseException as error:
            failure = error
            raise
        finally:
            self.place.close()
            if failure is not None and _is_failure(failure):
                type(self).failed(failure)

    @initialize(
        settings=st.fixed_dictionaries(
            {
                "root_bytes": st.sampled_from(["4KB", "256KB"]),
                "retention": st.sampled_from(["1s", "1s", "1h"]),
                "keep_versions": st.sampled_from([1, 3, 1000]),
                "reader_grace": st.sampled_from(["1s", "30m"]),
                "orphan_age": st.sampled_from(["1h", "2d"]),
            }
        ),
        shape=columns.tables(),
    )
    def begin(self, settings: dict[str, Any], shape: tuple[tuple[columns.Column, ...], tuple[str, ...]]) -> None:
        """Settings that keep little, and a first table."""
        self.settings = settings
        self.landed(self.handles[0].set(**settings), State())
        self.create(0, "a", shape, False)

    # ---- what the model knows ----------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The newest version."""
        return len(self.versions)

    @property
    def state(self) -> State:
        """What it should hold."""
        return self.versions[-1].state if self.versions else State()

    def at(self, version: int) -> State:
        """What a version should hold."""
        return self.versions[version - 1].state

    def landed(self, commit: Commit, state: State) -> None:
        """Notes a commit: the next version, or none if nothing was to be done."""
        if commit.operation == "nothing":
            assert commit.version <= self.version
            same = {name: (table.uid, table.shown()) for name, table in self.state.tables.items()}
            assert same == {name: (table.uid, table.shown()) for name, table in state.tables.items()}, "it did nothing"
            return
        assert commit.version == self.version + 1, commit
        assert commit.commit_ts > self.commit_ts
        stamp = self.commit_ts + 1, commit.commit_ts  # its statements lie within
        for row in (row for table in state.tables.values() for row in table.rows):
            self.stamps.setdefault(row.number, stamp)
        self.commit_ts = commit.commit_ts
        created_at = microseconds(commit.created_at)
        self.versions.append(Landed(state, commit.operation, created_at, commit.commit_id))
        self.place.pass_time(1)

    def did(self, commit: Commit, *statements: tuple[str, Statement]) -> None:
        """Notes a commit by what its statements were."""
        self.landed(commit, self.state.after(statements, self.version + 1))

    def settle(self, database: Database) -> None:
        """Notes whatever was committed since, as versions that change no row."""
        for commit in reversed(database.history(database.refresh() - self.version)):
            self.landed(commit, self.state)

    def knows(self, handle: int, name: str) -> bool:
        """Whether a handle has not last seen another table of this name, or one that has another name by now."""
        version = self.handles[handle].version
        seen = self.at(version).tables.get(name) if version else None
        now = self.state.tables.get(name)
        if seen is None or (now is None and self.state.name_of(seen.uid) is None):
            return True
        return now is not None and seen.uid == now.uid

    def unless_new(self, handle: int, name: str, write: Callable[[Table], T]) -> T:
        """What writing to a table gives; a handle that knew another one is told so once, and then knows better."""
        is_known = self.knows(handle, name)
        try:
            return write(self.handles[handle].table(name))
        except ConflictError:
            if is_known:
                raise
        return write(self.handles[handle].table(name))

    def new_rows(self, rows: Iterable[tuple[Any, ...]]) -> list[Row]:
        """Rows with numbers of their own."""
        made = [Row(self.numbers + place, values) for place, values in enumerate(rows)]
        self.numbers += len(made)
        return made

    # ---- tables, handles, time ---------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.state.tables) < len(NAMES))
    @rule(handle=HANDLES, name=st.sampled_from(NAMES), shape=columns.tables(), is_sorted=st.booleans())
    def create(
        self, handle: int, name: str, shape: tuple[tuple[columns.Column, ...], tuple[str, ...]], is_sorted: bool
    ) -> None:
        """Creates a table, or finds the name taken."""
        described, key = shape
        table = TableState(self.version + 1, described, key)
        database = self.handles[handle]
        order = [described[-1].name] if is_sorted else None
        try:
            database.create_table(name, table.schema(), primary_key=key or None, sort_key=order)
        except TableExistsError:
            assert name in self.state.tables
            return
        assert name not in self.state.tables
        (commit,) = database.history(1)
        self.landed(commit, self.state.with_table(name, table))

    @SELDOM
    @precondition(lambda self: self.state.tables)
    @rule(handle=HANDLES, name=st.sampled_from(NAMES))
    def drop(self, handle: int, name: str) -> None:
        """Drops a table, or finds none."""
        is_known = self.knows(handle, name)
        try:
            commit = self.handles[handle].drop_table(name)
        except TableNotFoundError:
            assert name not in self.state.tables
            return
        except ConflictError:
            assert not is_known
            return
        self.landed(commit, self.state.without(name))

    @precondition(lambda self: self.state.tables)
    @rule(handle=HANDLES, names=st.permutations((*NAMES, "c")))
    def rename(self, handle: int, names: Sequence[str]) -> None:
        """Gives a table another name, or finds none, or the name taken."""
        name, to = names[:2]
        is_known = self.knows(handle, name)
        try:
            commit = self.handles[handle].rename_table(name, to)
        except TableNotFoundError:
            assert name not in self.state.tables
            return
        except TableExistsError:
            assert to in self.state.tables
            return
        except ConflictError:
            assert not is_known
            return
        self.landed(commit, self.state.without(name).with_table(to, self.state.tables[name]))

    @precondition(lambda self: len(self.state.tables) > 1)
    @rule(handle=HANDLES)
    def swap(self, handle: int) -> None:
        """Two tables take each other's names."""
        one, other = sorted(self.state.tables)[:2]

        def swapped(tx: Transaction) -> None:
            tx.rename_table(one, "between")
            tx.rename_table(other, one)
            tx.rename_table("between", other)

        self.handles[handle].run(swapped)
        (commit,) = self.handles[handle].history(1)
        tables = self.state.tables
        self.landed(commit, self.state.with_table(one, tables[other]).with_table(other, tables[one]))

    @SELDOM
    @rule(handle=HANDLES, name=st.sampled_from(NAMES), shape=columns.tables())
    def create_again(self, handle: int, name: str, shape: tuple[tuple[columns.Column, ...], tuple[str, ...]]) -> None:
        """Another table takes a name, and only one handle knows it so far."""
        if name in self.state.tables:
            self.drop(handle, name)
        if name not in self.state.tables:
            self.create(handle, name, shape, False)

    @rule(handle=HANDLES)
    def reopen(self, handle: int) -> None:
        """Another process takes this one's place."""
        self.handles[handle] = self.place.open()
        assert self.handles[handle].version == self.version

    @rule(seconds=st.sampled_from([1, 60, 1_300, 3_600, 90_000, 3 * 86_400]))
    def pass_time(self, seconds: int) -> None:
        """Versions grow old, handles stale, orphans ripe."""
        self.place.pass_time(seconds)

    # ---- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def a_kept_version_is_what_it_was(self) -> None:
        """One of them after every step, another one each time."""
        if not self.versions:
            return
        self.steps += 1
        kept = range(self.horizon, self.version + 1)
        self.check_version(self.observer, kept[-1 - self.steps * 7 % len(kept)] if self.steps % 3 else self.version)

    def check_version(self, database: Database, version: int) -> None:
        """A version holds what the model says, row by row."""
        snapshot, state = database.at(version), self.at(version)
        assert snapshot.tables() == sorted(state.tables)
        for name, table in state.tables.items():
            shown = snapshot.table(name)
            assert shown.schema == table.schema()
            assert shown.primary_key == table.key
            found = told(shown.scan().to_arrow())
            assert found == table.shown(), f"version {version}, table {name}"
            assert shown.count() == len(table.rows), f"version {version}, table {name}"

    def _check_all(self) -> None:
        database = self.place.open()
        assert database.version == self.version
        for version in range(1, self.version + 1):
            if version >= self.horizon:
                self.check_version(database, version)
                continue
            try:
                database.at(version)
            except VersionExpiredError:
                continue
            raise AssertionError(f"version {version} is before the horizon, {self.horizon}")
        self.check_history(database)
        report = database.verify(deep=True, all_versions=True)
        assert report.ok, report

    def check_history(self, database: Database) -> None:
        """All kept commits are told of, newest first."""
        told_of = [(c.version, c.operation, microseconds(c.created_at), c.commit_id) for c in database.history()]
        expected = [
            (version, landed.operation, landed.created_at, landed.commit_id)
            for version, landed in enumerate(self.versions, 1)
            if version >= self.horizon
        ]
        assert told_of == expected[::-1]

    def some_table(self, data: st.DataObject) -> tuple[str, TableState]:
        """One of the tables that there are."""
        name = data.draw(st.sampled_from(sorted(self.state.tables)), label="table")
        return name, self.state.tables[name]

    def some_rows(self, data: st.DataObject, table: TableState, not_null: Sequence[str] = ()) -> list[Row]:
        """Fresh rows for a table."""
        return self.new_rows(data.draw(columns.rows(table.columns, not_null), label="rows"))
