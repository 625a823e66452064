"""What should be in the tables: plain Python rows per version, and what each statement does to them.

It knows nothing of files, tombstones or manifests. A statement of an operation is an ``Effect``; folding the effects
of the commits in the order of their versions gives the rows that every reader of that version must see.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa


class ViolationError(AssertionError):
    """Something happened that must never happen (DESIGN section 14)."""


class Row(NamedTuple):
    """A row of every table of the simulation. ``u`` is given out once, so no two writes make equal rows."""

    k: int
    v: int | None
    u: int


SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("u", pa.int64())])
"""The rows' Arrow form; ``k`` is the primary key."""

Matches: TypeAlias = Callable[[Row], bool]


class Rows(NamedTuple):
    """A table in one version: which creation of its name it is, its rows, and how many commits it holds."""

    epoch: int
    rows: tuple[Row, ...]
    writes: int


State: TypeAlias = dict[str, Rows]


class Effect(Protocol):
    """What one statement does. ``request`` is the applied id it is bound to, if any."""

    @property
    def table(self) -> str:
        """The table it is about."""

    @property
    def request(self) -> str | None:
        """Once this id was applied, the effect is not any more."""

    def apply(self, state: State, seen: State, version: int) -> None:
        """Changes ``state``.

        Args:
            state: all that was committed before, and earlier effects of the same commit.
            seen: the version that the statement was made on, and earlier effects; changes likewise.
            version: the version being made.
        """


def rows_of(state: State, table: str) -> Rows:
    """The table's rows; a commit that writes to a table that is not there is a violation."""
    if table not in state:
        raise ViolationError(f"a commit wrote to table {table!r}, which is not there")
    return state[table]


@dataclass(frozen=True)
class Append:
    """Adds rows."""

    table: str
    rows: tuple[Row, ...]
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        for each in (state, seen):
            _replace(each, self.table, lambda rows: (*rows, *self.rows), seen is each)


@dataclass(frozen=True)
class Upsert:
    """Replaces all rows with the keys of these; of equal keys the last wins."""

    table: str
    rows: tuple[Row, ...]
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        new = {row.k: row for row in self.rows}
        for each in (state, seen):
            _replace(
                each,
                self.table,
                lambda rows: (*(row for row in rows if row.k not in new), *new.values()),
                seen is each,
            )


@dataclass(frozen=True)
class Delete:
    """Removes the rows that match, whoever added them meanwhile."""

    table: str
    matches: Matches
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        for each in (state, seen):
            _replace(each, self.table, lambda rows: tuple(row for row in rows if not self.matches(row)), seen is each)


@dataclass(frozen=True)
class DeletePositions:
    """Removes the rows that matched when it looked, and no others."""

    table: str
    matches: Matches
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        found = {row.u for row in rows_of(seen, self.table).rows if self.matches(row)}
        if not found:
            return  # it left no statement, so it asks for nothing
        for each in (state, seen):
            _replace(each, self.table, lambda rows: tuple(row for row in rows if row.u not in found), seen is each)


@dataclass(frozen=True)
class Add:
    """Read-modify-write: adds ``amount`` to the row with key ``k``; to 0 if there is none."""

    table: str
    k: int
    amount: int
    u: int
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect. The value comes from what was committed, so an update that is lost shows."""
        old = sum(row.v or 0 for row in rows_of(state, self.table).rows if row.k == self.k)
        Upsert(self.table, (Row(self.k, old + self.amount, self.u),)).apply(state, seen, version)


@dataclass(frozen=True)
class AppendIfAbsent:
    """Read-modify-write: adds the row unless there is one with its key."""

    table: str
    row: Row
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        if all(row.k != self.row.k for row in rows_of(state, self.table).rows):
            Append(self.table, (self.row,)).apply(state, seen, version)


@dataclass(frozen=True)
class Create:
    """Creates the table, empty."""

    table: str
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        if self.table in state:
            raise ViolationError(f"table {self.table!r} was created twice")
        state[self.table] = seen[self.table] = Rows(version, (), 0)


@dataclass(frozen=True)
class Drop:
    """Drops the table."""

    table: str
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        rows_of(state, self.table)
        del state[self.table]
        seen.pop(self.table, None)


def _replace(state: State, table: str, change: Callable[[tuple[Row, ...]], tuple[Row, ...]], only_seen: bool) -> None:
    if only_seen and table not in state:
        return
    old = rows_of(state, table)
    state[table] = Rows(old.epoch, change(old.rows), old.writes + 1)


@dataclass(eq=False)
class Operation:
    """One call of one actor, with all its replays: it may become one version at most.

    Args:
        kind: what it is, for people.
        began: the newest version when it began.
        known: the newest version that its process knew then.
        reads: whether its commit depends on what it read.
        replays: whether it is repeated on conflicts, so that none may reach the caller.
        digests: by request id, what it says the request is.
    """

    kind: str
    actor: str
    began: int
    known: int
    reads: bool = False
    replays: bool = False
    digests: dict[str, str] = field(default_factory=dict)
    landed: int | None = None
    failed: BaseException | None = None
    faults: int = 0
    runs: int = 0

    def __str__(self) -> str:
        return f"{self.kind} by {self.actor}, begun at version {self.began}"


@dataclass(eq=False)
class Run:
    """One run of an operation's statements: what one commit id stands for.

    Args:
        base: the version it looked at; None when it did not look.
        first_put: the newest version when its first object went up: its statements were made on that at the latest.
    """

    operation: Operation
    effects: list[Effect] = field(default_factory=list)
    base: int | None = None
    first_put: int | None = None


def fold(states: Sequence[State], run: Run, applied: dict[str, int], version: int) -> State:
    """The state after a run's commit as ``version``.

    Args:
        states: of all versions before, by number.
        applied: versions by the ids that were applied before.
    """
    state = dict(states[-1])
    base = len(states) - 1 if run.base is None else run.base
    seen = dict(states[base])
    for effect in run.effects:
        if effect.request is None or effect.request not in applied:
            effect.apply(state, seen, version)
    return state


def difference(found: Collection[Row], expected: Collection[Row]) -> str:
    """What is wrong with the rows that were found; "" if nothing is."""
    if len(found) == len(expected) and set(found) == set(expected) and len(set(found)) == len(found):
        return ""
    missing, extra = set(expected) - set(found), set(found) - set(expected)
    twice = {row for row in found if list(found).count(row) > 1}
    parts = [("missing", missing), ("should not be there", extra), ("there twice", twice)]
    return "; ".join(f"{name}: {sorted(rows, key=lambda row: row.u)}" for name, rows in parts if rows)
