"""Effects of erasures, which take rows from a table, from its clones, and from all versions before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dolmen_simulator.judge.effects import narrow_columns
from dolmen_simulator.judge.model import Identity, Matches, Row, State, TableRows, rows_of

SUBJECT = "subject"
"""The property of a table that names the column which says whom a row is about."""

_KEY = frozenset(Row._fields[:1])

_STEP_US = 1_000_000
"""Servers tell the time in seconds: what was dropped that much after a request may have been before it."""


class NamedRows(NamedTuple):
    """The rows that an erasure names in a table, and in all that were cloned from it.

    Args:
        columns: names of the columns by which it names them. With no others than the primary key, it also takes deleted
            keys that the table remembers.
        wide: those of them that are not narrow: where they were, they are wider from then on.
    """

    table: Identity
    matches: Matches
    columns: frozenset[str]
    wide: frozenset[str]

    @classmethod
    def of(cls, table: TableRows, matches: Matches, columns: frozenset[str]) -> NamedRows:
        """The rows of a table as it is when they are erased."""
        return cls(table.identity, matches, columns, columns - narrow_columns(table))


@dataclass(frozen=True)
class ErasureReach:
    """The rows that an erasure takes away, wherever they are.

    Args:
        rows: those of the tables that it names.
        subject: who is forgotten, also in older versions of other tables that have a subject; None for rows alone.
    """

    rows: tuple[NamedRows, ...]
    subject: int | None = None

    def concerns(self, table: TableRows) -> bool:
        """True if it may take rows of a table."""
        return bool(self._in(table))

    def left(self, table: TableRows, rows: Iterable[Row]) -> tuple[Row, ...]:
        """Those of some rows of a table that it leaves."""
        named = self._in(table)
        return tuple(row for row in rows if not any(each.matches(row) for each in named))

    def take_from(self, table: TableRows) -> TableRows:
        """The table without the rows, and without the memory of their keys."""
        named = self._in(table)
        if not named:
            return table
        rows, deleted = self.left(table, table.rows), self._remembered(table)
        widened = narrow_columns(table) & frozenset[str]().union(*(each.wide for each in named))
        if len(rows) == len(table.rows) and len(deleted) == len(table.deleted) and not widened:
            return table
        return table._replace(rows=rows, deleted=deleted, widened=table.widened | widened)

    def _remembered(self, table: TableRows) -> Mapping[int, int]:
        tests = [each.matches for each in self._in(table) if each.columns <= _KEY]
        return {k: v for k, v in table.deleted.items() if not any(test(Row(k, None, 0)) for test in tests)}

    def _in(self, table: TableRows) -> list[NamedRows]:
        named = [each for each in self.rows if each.table in table.lineage]
        if named or self.subject is None or SUBJECT not in table.settings:
            return named
        return [_rows_about(table, self.subject)]


@dataclass(frozen=True)
class EraseEffect:
    """Erases the rows that match from one table and its clones.

    Args:
        columns: names of the columns by which the rows are named.
    """

    table: str
    matches: Matches
    columns: frozenset[str]
    request: str | None = None

    def reach(self, state: State) -> ErasureReach:
        """The rows that it takes, if it lands on this version."""
        return ErasureReach((NamedRows.of(rows_of(state, self.table), self.matches, self.columns),))

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect. What earlier versions show from then on is the ledger's."""
        for each in (state, seen):
            if each is state or self.table in each:
                _erase(each, self.reach(each))


@dataclass(frozen=True)
class ForgetEffect:
    """Erases the rows about a subject from all tables that have a subject column, and from their clones."""

    subject: int
    table: str = ""
    request: str | None = None

    def reach(self, state: State) -> ErasureReach:
        """The rows that it takes, if it lands on this version."""
        about = (table for table in state.values() if SUBJECT in table.settings)
        return ErasureReach(tuple(_rows_about(table, self.subject) for table in about), self.subject)

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect. What earlier versions show from then on is the ledger's."""
        for each in (state, seen):
            _erase(each, self.reach(each))


@dataclass(frozen=True)
class LandedErasure:
    """An erasure that a version made, as that version lists it.

    Args:
        id: its id.
        version: the version.
        requested_at: when it was asked for, by the server's clock.
        reach: the rows that it takes.
    """

    id: str
    version: int
    requested_at: int
    reach: ErasureReach

    def is_later_than(self, dropped_us: int | None) -> bool:
        """True if it applies to rows that were dropped at this server time; None if the time is not known."""
        return dropped_us is None or dropped_us <= self.requested_at + _STEP_US


def _rows_about(table: TableRows, subject: int) -> NamedRows:
    column: str = table.settings[SUBJECT]
    return NamedRows.of(table, lambda row: getattr(row, column) == subject, frozenset({column}))


def _erase(state: State, reach: ErasureReach) -> None:
    for name, table in list(state.items()):
        left = reach.take_from(table)
        if left is not table:
            state[name] = left._replace(writes=table.writes + 1)
