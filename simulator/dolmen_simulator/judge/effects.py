"""Effects that combine or choose among those of ``model``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from dolmen_simulator.judge.columns import GENERATION
from dolmen_simulator.judge.model import (
    SCHEMA,
    Matches,
    OverwriteEffect,
    Row,
    State,
    TableRows,
    rows_of,
)
from dolmen_simulator.judge.never import Never, ViolationError


class Shape(NamedTuple):
    """The stored types and the sort key of a table. All tables have the same columns."""

    schema: pa.Schema
    sort_key: tuple[str, ...] = ()


def _narrow(*names: str) -> pa.Schema:
    return pa.schema([field.with_type(pa.int32()) if field.name in names else field for field in SCHEMA])


SHAPES = (
    Shape(SCHEMA),
    Shape(_narrow("v"), ("v",)),
    Shape(_narrow("k"), ("k DESC NULLS FIRST", "v")),
    Shape(_narrow("k", "v"), ("day(t) DESC", "v NULLS FIRST")),
)
"""The shapes of tables. A table that is created again may get another shape."""


def narrow_columns(table: TableRows) -> frozenset[str]:
    """Names of a table's columns of 32 bits."""
    fields = SHAPES[table.shape].schema
    return frozenset(field.name for field in fields if field.type == pa.int32()) - table.widened


@dataclass(frozen=True)
class UpsertOnEffect:
    """Upserts by other columns than the primary key."""

    table: str
    rows: tuple[Row, ...]
    on: tuple[str, ...]
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        new = {self._key(row): row for row in self.rows}
        for each in (state, seen):
            if each is state or self.table in each:
                old = rows_of(each, self.table)
                kept = tuple(row for row in old.rows if self._key(row) not in new)
                each[self.table] = old._replace(rows=(*kept, *new.values()), writes=old.writes + 1)

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(getattr(row, name) for name in self.on)


@dataclass(frozen=True)
class RewriteEffect(OverwriteEffect):
    """Read-modify-write of a whole table: replaces the rows that it ``read`` with ``rows``."""

    read: tuple[Row, ...] = ()

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        if wrong := set(self.read) ^ set(rows_of(seen, self.table).rows):
            raise ViolationError(Never.HALF, f"version {version} was made of {self.table!r} with {sorted(wrong)} wrong")
        super().apply(state, seen, version)


def numbered(u: str, number: int | str) -> str:
    """The SQL expression of the number of an updated row."""
    return f"{u} % {GENERATION} + {GENERATION}::BIGINT * {number}"


def _renumbered(row: Row, amount: int, number: int) -> Row:
    v = None if row.v is None else row.v + amount
    return row._replace(v=v, u=row.u % GENERATION + GENERATION * number)


@dataclass(frozen=True)
class UpdateEffect:
    """Read-modify-write: adds to ``v`` of the rows that match.

    The rows are the committed ones, so that a lost update is found.
    """

    table: str
    matches: Matches
    amount: int
    number: int
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        if not any(self.matches(row) for row in rows_of(state, self.table).rows):
            return  # it added no statement
        for each in (state, seen):
            if each is state or self.table in each:
                old = rows_of(each, self.table)
                new = (_renumbered(row, self.amount, self.number) if self.matches(row) else row for row in old.rows)
                each[self.table] = old._replace(rows=tuple(new), writes=old.writes + 1)


@dataclass(frozen=True)
class MergeEffect:
    """Read-modify-write: adds ``v`` of each source row to the row that has its key, or adds the source row.

    If several rows have the key, one of them counts, and the others go.

    Args:
        counted: for each key, the number of the row that counted, by which it is known in every generation.
    """

    table: str
    rows: tuple[Row, ...]
    number: int
    counted: Mapping[int, int]
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect. As for an update, the rows are the committed ones."""
        amounts = {row.k: row.v or 0 for row in self.rows}
        for each in (state, seen):
            if each is state or self.table in each:
                old = rows_of(each, self.table)
                by_key: dict[int, list[Row]] = {row.k: [] for row in self.rows}
                new = [row for row in old.rows if row.k not in by_key]
                for row in old.rows:
                    if row.k in by_key:
                        by_key[row.k].append(row)
                for row in self.rows:
                    there = by_key[row.k]
                    own = [one for one in there if one.u % GENERATION == self.counted.get(row.k)] or there
                    new.append(_renumbered(own[0], amounts[row.k], self.number) if there else row)
                each[self.table] = old._replace(rows=tuple(new), writes=old.writes + 1)
