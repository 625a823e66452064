"""Effects that bring back earlier versions, or give them names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dolmen_simulator.judge.model import State, TableRows, rows_of
from dolmen_simulator.judge.never import Never, ViolationError


@dataclass(frozen=True)
class RestoreEffect:
    """Makes a table what it was in an earlier version, under its name of now.

    Args:
        then: number of that version.
        states: the states of all versions.
    """

    table: str
    then: int
    states: Sequence[State]
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        for each in (state, seen):
            if each is seen and self.table not in seen:
                continue
            now = rows_of(each, self.table)
            there = [rows for rows in self.states[self.then].values() if rows.identity == now.identity]
            if not there and each is state:
                raise ViolationError(
                    Never.REVIVED, f"version {version} restored {self.table!r}, which version {self.then} does not have"
                )
            if there:
                each[self.table] = _again(there[0], now.writes)


@dataclass(frozen=True)
class RestoreAllEffect:
    """Makes all tables what they were in an earlier version."""

    then: int
    states: Sequence[State]
    table: str = ""
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        for each in (state, seen):
            writes = max((rows.writes for rows in each.values()), default=0)
            each.clear()
            each.update({name: _again(rows, writes) for name, rows in self.states[self.then].items()})


@dataclass(frozen=True)
class CloneEffect:
    """Makes a new table of one of an earlier version.

    Args:
        table: the new name.
        source: name of the table in that version.
    """

    table: str
    source: str
    then: int
    states: Sequence[State]
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        if self.table in state:
            raise ViolationError(Never.MISREPORTED, f"table {self.table!r} was created twice")
        then = rows_of(self.states[self.then], self.source)
        state[self.table] = seen[self.table] = then._replace(epoch=version, created_as=self.table)


@dataclass(frozen=True)
class TagEffect:
    """Gives a name to a version; with None frees the name. Changes no table.

    Args:
        moves: whether the name may have named another version.
    """

    tag: str
    then: int | None
    moves: bool = True
    table: str = ""
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""

    def merged(self, tags: dict[str, int]) -> dict[str, int]:
        """The tags after it."""
        others = {name: tagged for name, tagged in tags.items() if name != self.tag}
        return others if self.then is None else {**others, self.tag: self.then}


@dataclass(frozen=True)
class CursorEffect:
    """Makes, moves or removes a cursor. Changes no table."""

    cursor: str
    table: str = ""
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""


def _again(then: TableRows, writes: int) -> TableRows:
    return then._replace(writes=writes + 1)
