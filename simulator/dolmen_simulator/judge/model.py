"""The model of the tables: plain Python rows per version, and the effect of each statement on them.

It knows nothing of files, tombstones or manifests. A statement of an operation is an ``Effect``; folding the effects
of the commits in the order of their versions gives the rows that every reader of a version must see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from dolmen.format.layout import memory_name
from dolmen_simulator.judge.columns import (
    BASE,
    GENERATION,
    NOTHING_ADDED,
    ModelColumn,
    Possible,
    added_columns,
    fill,
    possible_values,
)
from dolmen_simulator.judge.never import Never, ViolationError


class Row(NamedTuple):
    """A row of every table of the simulation. ``u`` is unique, so that no two writes make equal rows.

    Its struct ``s`` follows from ``u``, so that a row shows whether it has its own, also after an update.
    """

    k: int
    v: int | None
    u: int
    t: int | None = None

    @property
    def s(self) -> dict[str, int | None] | None:
        """Its struct: NULL for two in eight numbers, with NULL in a field or in both for three others."""
        number = self.u % GENERATION
        rest, value = number % 8, number // 8
        if rest in NULL_STRUCT:
            return None
        return {"a": None if rest in (1, 3) else value % 10, "b": None if rest in (2, 3) else value % 37}

    def field(self, name: str) -> int | None:
        """A field of its struct, which is NULL where the struct is."""
        return None if self.s is None else self.s[name]


def struct_of(stored: dict[str, int | None] | None) -> dict[str, int | None] | None:
    """The struct that a row had when it was written, by one that is stored or read: fields that came later are NULL."""
    if stored is None:
        return None
    return {name: value for name, value in stored.items() if name in ("a", "b") or value is not None}


NULL_STRUCT, FULL_STRUCT = (0, 4), (5, 6, 7)
"""What numbers of rows modulo 8 are whose struct is NULL, or has no NULL in it."""

_STRUCT = pa.struct([("a", pa.int64()), ("b", pa.int64())])
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("u", pa.int64()), ("t", pa.timestamp("us")), ("s", _STRUCT)])
"""The rows' Arrow form; ``k`` is the primary key, and rows may expire by ``t``."""

MEMORY = memory_name("")
"""The suffix of the name of a memory of deleted keys."""

Matches: TypeAlias = Callable[[Row], bool]
Identity: TypeAlias = tuple[int, str]


class TableRows(NamedTuple):
    """A table in one version.

    Args:
        epoch: version that created it.
        rows: its rows.
        writes: number of commits that wrote to it.
        settings: its settings.
        deleted: keys that changes have deleted, with their sequences.
        shape: index of its stored columns in ``effects.SHAPES``.
        created_as: the name under which it was created.
        columns: its columns, in their order.
        added: what its rows may have in columns that were added.
        origins: the tables that it was cloned from, directly or not.
        widened: columns that have a wider type than its shape says, as rows were erased by that.
        is_checked: whether it has the check of keys (``altering.CheckEffect``).
    """

    epoch: int
    rows: tuple[Row, ...]
    writes: int
    settings: dict[str, Any]
    deleted: Mapping[int, int] = MappingProxyType({})
    shape: int = 0
    created_as: str = ""
    columns: tuple[ModelColumn, ...] = BASE
    added: Possible = NOTHING_ADDED
    origins: tuple[Identity, ...] = ()
    widened: frozenset[str] = frozenset()
    is_checked: bool = False

    @property
    def identity(self) -> Identity:
        """The table's identity, whatever its name: no commit of a history creates two tables under one name."""
        return self.epoch, self.created_as

    @property
    def lineage(self) -> tuple[Identity, ...]:
        """The table, and those that it was cloned from."""
        return self.identity, *self.origins


State: TypeAlias = dict[str, TableRows]


class Effect(Protocol):
    """The effect of one statement. ``request`` is the applied id it is bound to, if any."""

    @property
    def table(self) -> str:
        """Name of the table."""

    @property
    def request(self) -> str | None:
        """The applied id: the effect is applied only once under it."""

    def apply(self, state: State, seen: State, version: int) -> None:
        """Changes ``state``.

        Args:
            state: the state before, with earlier effects of the same commit.
            seen: the state of the base version, with earlier effects; changed likewise.
            version: number of the new version.
        """


def user_tables(tables: Iterable[str]) -> list[str]:
    """The tables that users made, without the memories of deleted keys."""
    return [name for name in tables if not name.endswith(MEMORY)]


def rows_of(state: State, table: str) -> TableRows:
    """The table's rows. Raises ViolationError if there is no such table, because a commit wrote to it."""
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
    """Replaces all rows that have the keys of these rows; the last of several rows with one key wins."""

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
    """Removes the rows that match at the commit."""

    table: str
    matches: Matches
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        for each in (state, seen):
            _replace(each, self.table, lambda rows: tuple(row for row in rows if not self.matches(row)), seen is each)


@dataclass(frozen=True)
class DeletePositionsEffect:
    """Removes the rows that matched in the base version, and no others."""

    table: str
    matches: Matches
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        found = {row.u for row in rows_of(seen, self.table).rows if self.matches(row)}
        if not found:
            return  # it added no statement, so it requires nothing
        for each in (state, seen):
            _replace(each, self.table, lambda rows: tuple(row for row in rows if row.u not in found), seen is each)


@dataclass(frozen=True)
class DeleteConditionEffect(DeletePositionsEffect):
    """Removes the rows that match a condition, which was read: at the commit the same rows must match."""

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        found, now = ({row for row in rows_of(each, self.table).rows if self.matches(row)} for each in (seen, state))
        if found and found != now:
            raise ViolationError(Never.HALF, f"version {version} deleted {sorted(found)} where {sorted(now)} matched")
        super().apply(state, seen, version)


@dataclass(frozen=True)
class AddEffect:
    """Read-modify-write: adds ``amount`` to the row with key ``k``; to 0 if there is none."""

    table: str
    k: int
    amount: int
    u: int
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect. The old value is the committed one, so that a lost update is found."""
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
    """Replaces all rows. Without ``force`` its base version must have had all of them."""

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
    """Removes the rows whose time is before ``before``, a value that the commit records."""

    table: str
    before: int
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        DeleteEffect(self.table, lambda row: row.t is not None and row.t < self.before).apply(state, seen, version)


@dataclass(frozen=True)
class ChangesEffect:
    """Applies a file of changes. For each key the greatest sequence, ``v``, wins, including that of the present row.

    Args:
        table: name of the table.
        changes: rows, each with whether it is deleted.
        request: the applied id.
    """

    table: str
    changes: tuple[tuple[Row, bool], ...]
    request: str | None = None
    says_null: ClassVar[bool] = True

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
    """Changes the settings of a table, or with the name "" those of the database, which the ledger keeps."""

    table: str
    changes: dict[str, Any]
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        if self.table:
            old = rows_of(state, self.table)
            state[self.table] = old._replace(settings=self.merged(old.settings))

    def merged(self, old: dict[str, Any]) -> dict[str, Any]:
        """The settings after these changes; None removes a setting."""
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
    """Renames the table, and changes nothing else."""

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
    """One call of one actor, with all its replays, which may become one version at most.

    Args:
        kind: description for people.
        actor: name of the actor.
        began: the newest version when it began.
        known: the newest version that its process knew then.
        reads: whether its commit depends on its reads.
        replays: whether it is replayed on conflicts, so that no conflict may reach the caller.
        digests: content digests by request id.
        upkeep: whether it is background work: any number of commits, none of which changes a row.
        message: its message for the history.
        about: the tables it works on, if they are not in its effects.
        reading: the oldest version that it may read.
        began_us: when it began.
        landed_version: the version that it became.
        failed: the error that was reported to its caller.
        faults: number of faults that struck its requests.
        runs: number of its runs.
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
    """One run of an operation's statements, under one commit id.

    Args:
        operation: the operation.
        effects: effects of its statements.
        base: the version that it read; None if it read none.
        first_put: the newest version when its first object was put, which is an upper bound of its base.
        manifests: keys of the manifests it has put, one for each attempt.
        spills: number of attempts before each put of a segment, by key.
        members: the runs of which it consists, in order, if the version has the changes of several calls.
    """

    operation: Operation
    effects: list[Effect] = field(default_factory=list)
    base: int | None = None
    first_put: int | None = None
    manifests: list[str] = field(default_factory=list)
    spills: dict[str, int] = field(default_factory=dict)
    members: tuple[OperationRun, ...] = ()

    @classmethod
    def of_group(cls, members: Sequence[OperationRun], leader: OperationRun) -> OperationRun:
        """The run of a version that has the changes of several calls of one process, one of which leads."""
        calls = [member.operation for member in members]
        digests = {id_: digest for call in calls for id_, digest in call.digests.items()}
        group = Operation(
            f"group of {', '.join(call.kind for call in calls)}",
            calls[0].actor,
            min(call.began for call in calls),
            min(call.known for call in calls),
            digests=digests,
            message="; ".join(call.message for call in calls),
        )
        effects = [effect for member in members for effect in member.effects]
        return cls(
            group,
            effects,
            first_put=leader.first_put,
            manifests=leader.manifests,
            spills=leader.spills,
            members=tuple(members),
        )

    @property
    def parts(self) -> tuple[OperationRun, ...]:
        """The runs of single calls."""
        return self.members or (self,)

    def puts(self, key: str) -> None:
        """Records an object that is sent to the store."""
        if key.startswith("manifest/") and key not in self.manifests:
            self.manifests.append(key)
        elif key.startswith("segment/"):
            self.spills.setdefault(key, len(self.manifests))


def fold(states: Sequence[State], run: OperationRun, applied: dict[str, int], version: int) -> State:
    """The state after a run's commit as ``version``.

    Args:
        states: states of all earlier versions, by number.
        run: the run.
        applied: versions by ids that were applied before.
        version: number of the new version.
    """
    state = dict(states[-1])
    before = set[str]()  # applied by an earlier call of the same version
    for part in run.parts:
        seen = dict(states[-1 if part.base is None else part.base])
        for effect in part.effects:
            if effect.request is None or not (effect.request in applied or effect.request in before):
                effect.apply(state, seen, version)
        before.update(effect.request for effect in part.effects if effect.request is not None)
    since = min(part.operation.known if part.base is None else part.base for part in run.parts)
    or_null = any(getattr(effect, "says_null", False) for effect in run.effects)
    for name, table in state.items():
        if table.columns is not BASE and table is not states[-1].get(name):
            state[name] = _fill(states[since:], table, or_null)
    return state


def _fill(states: Sequence[State], table: TableRows, or_null: bool) -> TableRows:
    """The table with possible values for new rows, which were written on one of these versions."""
    by_identity = [{rows.identity: rows.columns for rows in state.values()} for state in states]
    earlier = [columns.get(table.identity) for columns in by_identity]
    values = {
        column.number: possible_values(column, earlier, or_null=or_null) for column in added_columns(table.columns)
    }
    return table._replace(added=fill(table.added, (row.u for row in table.rows), values))
