"""Effects that bring back earlier versions, or give them names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dolmen_simulator.judge.model import State, TableRows, rows_of
from dolmen_simulator.judge.never import Never, ViolationError


class SeenVersions(Protocol):
    """The versions as a reader that knows a later one may see them; see ``chronicle``."""

    def visible_state(self, version: int, known: int) -> State:
        """A version without the rows that were erased since, up to version ``known``."""


@dataclass(frozen=True)
class RestoreEffect:
    """Makes a table what it was in an earlier version, under its current name, without rows that were erased later.

    Args:
        then: number of that version.
        past: all versions.
    """

    table: str
    then: int
    past: SeenVersions
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        for each in (state, seen):
            if each is seen and self.table not in seen:
                continue
            now = rows_of(each, self.table)
            then = self.past.visible_state(self.then, version - 1)
            there = [rows for rows in then.values() if rows.identity == now.identity]
            if not there and each is state:
                raise ViolationError(
                    Never.REVIVED, f"version {version} restored {self.table!r}, which version {self.then} does not have"
                )
            if there:
                each[self.table] = _again(there[0], now.writes)


@dataclass(frozen=True)
class RestoreAllEffect:
    """Makes all tables what they were in an earlier version, without what was erased since."""

    then: int
    past: SeenVersions
    table: str = ""
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        for each in (state, seen):
            writes = max((rows.writes for rows in each.values()), default=0)
            each.clear()
            then = self.past.visible_state(self.then, version - 1)
            each.update({name: _again(rows, writes) for name, rows in then.items()})


@dataclass(frozen=True)
class CloneEffect:
    """Makes a new table of one of an earlier version, without what was erased since.

    Args:
        table: the new name.
        source: name of the table in that version.
    """

    table: str
    source: str
    then: int
    past: SeenVersions
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        if self.table in state:
            raise ViolationError(Never.MISREPORTED, f"table {self.table!r} was created twice")
        then = rows_of(self.past.visible_state(self.then, version - 1), self.source)
        clone = then._replace(epoch=version, created_as=self.table, origins=then.lineage)
        state[self.table] = seen[self.table] = clone


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
