"""What should be in the tables: plain Python rows per version, and what each statement does to them.

It knows nothing of files, tombstones or manifests. A statement of an operation is an ``Effect``; folding the effects
of the commits in the order of their versions gives the rows that every reader of that version must see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from dolmen.format.layout import memory_name
from dolmen_simulator.judge.never import Never, ViolationError


class Row(NamedTuple):
    """A row of every table of the simulation. ``u`` is given out once, so no two writes make equal rows."""

    k: int
    v: int | None
    u: int
    t: int | None = None


SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("u", pa.int64()), ("t", pa.timestamp("us"))])
"""The rows' Arrow form; ``k`` is the primary key, and rows may expire by ``t``."""

MEMORY = memory_name("")
"""What the name of a memory of deleted keys ends in."""

Matches: TypeAlias = Callable[[Row], bool]
Identity: TypeAlias = tuple[int, str]


class TableRows(NamedTuple):
    """A table in one version: which version created it, its rows, how many commits it holds, its settings.

    ``deleted`` is what changes have deleted: by key the sequence. ``shape`` says how its columns are stored.
    ``created_as`` is the name that it was created by, whatever it is called now.
    """

    epoch: int
    rows: tuple[Row, ...]
    writes: int
    settings: dict[str, Any]
    deleted: Mapping[int, int] = MappingProxyType({})
    shape: int = 0
    created_as: str = ""

    @property
    def identity(self) -> Identity:
        """Which table it is, whatever it is called: no commit of a history creates two by one name."""
        return self.epoch, self.created_as


State: TypeAlias = dict[str, TableRows]


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


def user_tables(tables: Iterable[str]) -> list[str]:
    """Those tables that users have made: not the memories of deleted keys."""
    return [name for name in tables if not name.endswith(MEMORY)]


def rows_of(state: State, table: str) -> TableRows:
    """The table's rows; a commit that writes to a table that is not there is a violation."""
    if table not in state:
        raise ViolationError(Never.REVIVED, f"a commit wrote to table {table!r}, which is not there")
    return state[table]


@dataclass(frozen=True)
class AppendEffect:
    """Adds rows."""

    table: str
    rows: tuple[Row, ...]
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        for each in (state, seen):
            _replace(each, self.table, lambda rows: (*rows, *self.rows), seen is each)


@dataclass(frozen=True)
class UpsertEffect:
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
class DeleteEffect:
    """Removes the rows that match, whoever added them meanwhile."""

    table: str
    matches: Matches
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        for each in (state, seen):
            _replace(each, self.table, lambda rows: tuple(row for row in rows if not self.matches(row)), seen is each)


@dataclass(frozen=True)
class DeletePositionsEffect:
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
class AddEffect:
    """Read-modify-write: adds ``amount`` to the row with key ``k``; to 0 if there is none."""

    table: str
    k: int
    amount: int
    u: int
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect. The value comes from what was committed, so an update that is lost shows."""
        old = sum(row.v or 0 for row in rows_of(state, self.table).rows if row.k == self.k)
        UpsertEffect(self.table, (Row(self.k, old + self.amount, self.u),)).apply(state, seen, version)


@dataclass(frozen=True)
class AppendIfAbsentEffect:
    """Read-modify-write: adds the row unless there is one with its key."""

    table: str
    row: Row
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        if all(row.k != self.row.k for row in rows_of(state, self.table).rows):
            AppendEffect(self.table, (self.row,)).apply(state, seen, version)


@dataclass(frozen=True)
class OverwriteEffect:
    """Replaces all rows. Unless ``force`` it must have seen all of them."""

    table: str
    rows: tuple[Row, ...]
    force: bool
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        unseen = set(rows_of(state, self.table).rows) ^ set(rows_of(seen, self.table).rows)
        if unseen and not self.force:
            raise ViolationError(
                Never.LOST, f"version {version} overwrote {self.table!r} without having seen {sorted(unseen)}"
            )
        for each in (state, seen):
            _replace(each, self.table, lambda rows: self.rows, seen is each)


@dataclass(frozen=True)
class ExpireEffect:
    """Removes the rows whose time is before ``before``, which the commit itself says."""

    table: str
    before: int
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        DeleteEffect(self.table, lambda row: row.t is not None and row.t < self.before).apply(state, seen, version)


@dataclass(frozen=True)
class ChangesEffect:
    """A file of changes: of each key the one with the greatest sequence holds, ``v``, what is there included.

    Args:
        changes: rows, and whether each is to be deleted.
    """

    table: str
    changes: tuple[tuple[Row, bool], ...]
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        for each in (state, seen):
            if each is state or self.table in each:
                self._apply(each)

    def _apply(self, state: State) -> None:
        table = rows_of(state, self.table)
        newest: dict[int, tuple[Row, bool]] = {}
        for row, gone in self.changes:
            assert row.v is not None
            if row.k not in newest or row.v >= (newest[row.k][0].v or 0):
                newest[row.k] = row, gone
        deleted, kept = dict(table.deleted), list(table.rows)
        for k, (row, gone) in newest.items():
            known = [there.v for there in kept if there.k == k and there.v is not None]
            known += [deleted[k]] if k in deleted else []
            assert row.v is not None
            if known and max(known) >= row.v:
                continue
            kept = [there for there in kept if there.k != k]
            if gone:
                deleted[k] = row.v
            else:
                kept.append(row)
        state[self.table] = table._replace(rows=tuple(kept), deleted=deleted, writes=table.writes + 1)


@dataclass(frozen=True)
class SettingsEffect:
    """Changes settings of a table; with the name "" those of the database, which the ledger keeps."""

    table: str
    changes: dict[str, Any]
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        if self.table:
            old = rows_of(state, self.table)
            state[self.table] = old._replace(settings=self.merged(old.settings))

    def merged(self, old: dict[str, Any]) -> dict[str, Any]:
        """Those settings with these changes; None removes."""
        return {name: value for name, value in (old | self.changes).items() if value is not None}


@dataclass(frozen=True)
class CreateEffect:
    """Creates the table, empty.

    Args:
        shape: index of its columns in ``effects.SHAPES``.
        settings: its settings.
    """

    table: str
    request: str | None = None
    shape: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        if self.table in state:
            raise ViolationError(Never.MISREPORTED, f"table {self.table!r} was created twice")
        rows = TableRows(version, (), 0, dict(self.settings), shape=self.shape, created_as=self.table)
        state[self.table] = seen[self.table] = rows


@dataclass(frozen=True)
class DropEffect:
    """Drops the table."""

    table: str
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        rows_of(state, self.table)
        del state[self.table]
        seen.pop(self.table, None)


@dataclass(frozen=True)
class RenameEffect:
    """Gives the table another name: nothing else of it changes."""

    table: str
    to: str
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        for each in (state, seen):
            if self.to in each:
                raise ViolationError(Never.LOST, f"version {version} gave {self.table!r} the name of {self.to!r}")
            each[self.to] = rows_of(each, self.table)
            del each[self.table]


def _replace(state: State, table: str, change: Callable[[tuple[Row, ...]], tuple[Row, ...]], only_seen: bool) -> None:
    if only_seen and table not in state:
        return
    old = rows_of(state, table)
    state[table] = old._replace(rows=change(old.rows), writes=old.writes + 1)


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
        upkeep: background work: any number of commits, none of which changes a row.
        message: what it says of itself, for the history.
        about: the table it works on, if that is not in its effects.
        reading: the oldest version that it may look at.
        began_us: when it began.
    """

    kind: str
    actor: str
    began: int
    known: int
    reads: bool = False
    replays: bool = False
    digests: dict[str, str] = field(default_factory=dict)
    upkeep: bool = False
    message: str = ""
    about: tuple[str, ...] = ()
    reading: int = 0
    began_us: int = 0
    landed_version: int | None = None
    failed: BaseException | None = None
    faults: int = 0
    runs: int = 0

    def __str__(self) -> str:
        return f"{self.kind} by {self.actor}, begun at version {self.began}"


@dataclass(eq=False)
class OperationRun:
    """One run of an operation's statements: what one commit id stands for.

    Args:
        base: the version it looked at; None when it did not look.
        first_put: the newest version when its first object went up: its statements were made on that at the latest.
        manifests: keys of the manifests it has put, one for each attempt.
        spills: by key of a segment that it has put, how many attempts there had been.
    """

    operation: Operation
    effects: list[Effect] = field(default_factory=list)
    base: int | None = None
    first_put: int | None = None
    manifests: list[str] = field(default_factory=list)
    spills: dict[str, int] = field(default_factory=dict)

    def puts(self, key: str) -> None:
        """Takes note of an object on its way to the store."""
        if key.startswith("manifest/") and key not in self.manifests:
            self.manifests.append(key)
        elif key.startswith("segment/"):
            self.spills.setdefault(key, len(self.manifests))


def fold(states: Sequence[State], run: OperationRun, applied: dict[str, int], version: int) -> State:
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
