"""What a database should hold, in plain Python: one state per version, never changed once made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dolmen.base.records import replace
from machine.columns import Column, plain
from machine.conditions import Condition


@dataclass(frozen=True)
class Row:
    """A row. Its number tells it from an equal one, which a delete by positions has to."""

    number: int
    values: tuple[Any, ...]


@dataclass(frozen=True)
class TableState:
    """A table in one version.

    Args:
        uid: another one when the same name is created again.
        touched: version of the last statement that was about its rows, whether it changed any or not.
        ttl: column and microseconds.
    """

    uid: int
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    touched: int = 0
    ttl: tuple[str, int] | None = None

    def named(self, row: Row) -> dict[str, Any]:
        """A row's values by column."""
        return {column.name: value for column, value in zip(self.columns, row.values, strict=True)}

    def key_of(self, row: Row, on: Sequence[str]) -> tuple[Any, ...]:
        """A row's values in the columns of a key."""
        named = self.named(row)
        return tuple(named[name] for name in on)

    def numbers(self) -> set[int]:
        """Which rows there are."""
        return {row.number for row in self.rows}

    def matching(self, condition: Condition | None) -> list[Row]:
        """The rows for which it is TRUE."""
        return [row for row in self.rows if condition is None or condition.holds(self.named(row))]

    def shown(self, rows: Iterable[Row] | None = None, columns: Sequence[str] | None = None) -> Counter[str]:
        """Rows (all by default) as scans should give them."""
        wanted = columns if columns is not None else [column.name for column in self.columns]
        named = map(self.named, self.rows if rows is None else rows)
        return Counter(repr(tuple(row[name] for name in wanted)) for row in named)

    def column(self, name: str) -> Column:
        """One column by name."""
        return next(column for column in self.columns if column.name == name)

    def schema(self) -> pa.Schema:
        """As Arrow has it."""
        return pa.schema([(column.name, column.kind.arrow) for column in self.columns])

    def data(self, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        """Rows to hand over."""
        cells = list(zip(*rows, strict=True)) if rows else [()] * len(self.columns)
        arrays = [column.array(list(values)) for column, values in zip(self.columns, cells, strict=True)]
        return pa.table(arrays, schema=self.schema())


def told(found: pa.Table) -> Counter[str]:
    """What a scan gave, to be compared with ``TableState.shown``."""
    if not found.num_columns:
        return Counter({"()": found.num_rows}) if found.num_rows else Counter()
    return Counter(map(repr, zip(*(plain(column) for column in found.columns), strict=True)))


Statement = Callable[[TableState], TableState]
"""What a statement makes of a table, whatever the table is by then."""


def append(rows: Sequence[Row]) -> Statement:
    """Adds rows."""
    return lambda table: replace(table, rows=(*table.rows, *rows))


def upsert(rows: Sequence[Row], on: Sequence[str]) -> Statement:
    """Adds rows in place of those with their keys; of equal keys the last wins."""

    def apply(table: TableState) -> TableState:
        latest = {table.key_of(row, on): row for row in rows}
        kept = [row for row in table.rows if table.key_of(row, on) not in latest]
        return replace(table, rows=(*kept, *latest.values()))

    return apply


def delete(condition: Condition) -> Statement:
    """Deletes what matches by then."""
    return lambda table: replace(table, rows=tuple(row for row in table.rows if not condition.holds(table.named(row))))


def delete_keys(keys: Iterable[tuple[Any, ...]], on: Sequence[str]) -> Statement:
    """Deletes what has one of the keys by then."""
    gone = set(keys)
    return lambda table: replace(table, rows=tuple(row for row in table.rows if table.key_of(row, on) not in gone))


def delete_rows(rows: Iterable[Row]) -> Statement:
    """Deletes just these rows."""
    gone = {row.number for row in rows}
    return lambda table: replace(table, rows=tuple(row for row in table.rows if row.number not in gone))


def substitute(rows: Iterable[Row], others: Sequence[Row]) -> Statement:
    """Puts other rows in the place of just these."""
    gone = {row.number for row in rows}
    return lambda table: replace(table, rows=(*(row for row in table.rows if row.number not in gone), *others))


def overwrite(rows: Sequence[Row]) -> Statement:
    """Replaces all rows."""
    return lambda table: replace(table, rows=tuple(rows))


@dataclass(frozen=True)
class State:
    """All tables of one version."""

    tables: Mapping[str, TableState] = field(default_factory=dict)

    def name_of(self, uid: int) -> str | None:
        """What a table is called."""
        return next((name for name, table in self.tables.items() if table.uid == uid), None)

    def with_table(self, name: str, table: TableState) -> State:
        """The same but for one table."""
        return State({**self.tables, name: table})

    def without(self, name: str) -> State:
        """The same without a table."""
        return State({other: table for other, table in self.tables.items() if other != name})

    def after(self, statements: Iterable[tuple[str, Statement]], version: int) -> State:
        """What statements over tables make of it, as that version."""
        state = self
        for name, statement in statements:
            state = state.with_table(name, replace(statement(state.tables[name]), touched=version))
        return state


@dataclass(frozen=True)
class Landed:
    """One version as it should be."""

    state: State
    operation: str
    created_at: int
    commit_id: str
