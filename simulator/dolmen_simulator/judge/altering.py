"""The effects of statements that change columns and checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dolmen_simulator.judge.columns import ModelColumn, fill
from dolmen_simulator.judge.effects import SHAPES
from dolmen_simulator.judge.model import AppendEffect, Effect, Row, State, rows_of
from dolmen_simulator.judge.never import Never, ViolationError


class AddStep(NamedTuple):
    """Adds a column at the end."""

    column: ModelColumn

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the deed."""
        return (self.column.name,)

    def apply(self, columns: tuple[ModelColumn, ...]) -> tuple[ModelColumn, ...]:
        """The columns after it."""
        return (*columns, self.column)


class DropStep(NamedTuple):
    """Drops a column."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the deed."""
        return (self.name,)

    def apply(self, columns: tuple[ModelColumn, ...]) -> tuple[ModelColumn, ...]:
        """The columns after it."""
        return tuple(column for column in columns if column.name != self.name)


class ChangeStep(NamedTuple):
    """Puts a column in the place of one with its number: with another name, default or field, or NULL allowed."""

    before: ModelColumn
    after: ModelColumn

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the deed."""
        parts = (name for each in (self.before, self.after) for name in each.new_fields)
        paths = (path for name in parts for path in (name, f"{self.before.name}.{name}"))
        return tuple(dict.fromkeys((self.before.name, self.after.name, *paths)))

    def apply(self, columns: tuple[ModelColumn, ...]) -> tuple[ModelColumn, ...]:
        """The columns after it."""
        return tuple(self.after if column.number == self.after.number else column for column in columns)


class OrderStep(NamedTuple):
    """Puts columns first, in this order."""

    names: tuple[str, ...]

    def apply(self, columns: tuple[ModelColumn, ...]) -> tuple[ModelColumn, ...]:
        """The columns after it."""
        by_name = {column.name: column for column in columns}
        first = tuple(by_name[name] for name in self.names)
        return (*first, *(column for column in columns if column not in first))


Step = AddStep | DropStep | ChangeStep | OrderStep


@dataclass(frozen=True)
class AlterEffect:
    """Changes the columns of a table. Its author must have seen those that it changes.

    Args:
        shape: index of its stored types and sort key in ``effects.SHAPES`` from then on; None: as before.
    """

    table: str
    steps: tuple[Step, ...] = ()
    shape: int | None = None
    request: str | None = None

    @property
    def names(self) -> set[str]:
        """The names that its deed may hold."""
        own = set[str]() if self.shape is None else {*Row._fields, *SHAPES[self.shape].sort_key}
        return own.union(*(step.names for step in self.steps))

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        if self.table in seen and rows_of(seen, self.table).columns != rows_of(state, self.table).columns:
            raise ViolationError(
                Never.LOST, f"version {version} changed the columns of {self.table!r} without having seen them"
            )
        for each in (state, seen):
            if each is seen and self.table not in seen:
                continue
            old = rows_of(each, self.table)
            columns, added = old.columns, old.added
            for step in self.steps:
                columns = step.apply(columns)
                if isinstance(step, AddStep):
                    value = frozenset({step.column.initial})
                    added = fill(added, (row.u for row in old.rows), {step.column.number: value})
            shape = old.shape if self.shape is None else self.shape
            widened = old.widened if self.shape is None else frozenset[str]()
            each[self.table] = old._replace(columns=columns, added=added, shape=shape, widened=widened)


CHECK, CONDITION, LEAST_BAD = "small keys", "k < 100", 100
"""The name of the check that tables may have, its condition, and the least key that it forbids."""


@dataclass(frozen=True)
class CheckEffect:
    """Adds the check of keys to a table, or drops it."""

    table: str
    is_added: bool
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect."""
        if rows_of(state, self.table).is_checked == self.is_added:
            raise ViolationError(Never.LOST, f"version {version} adds a check that is there, or drops one that is not")
        for each in (state, seen):
            if each is state or self.table in each:
                each[self.table] = rows_of(each, self.table)._replace(is_checked=self.is_added)


def may_be_refused(effects: Iterable[Effect], states: Iterable[State], *, for_rows: bool) -> bool:
    """Whether a constraint of one of these versions explains why a call was refused.

    Args:
        effects: those of the call.
        states: the versions on which it may have been tried.
        for_rows: whether its own rows were refused; otherwise a statement about a check was.
    """
    effects, states = list(effects), list(states)
    tables = {effect.table: [state[effect.table] for state in states if effect.table in state] for effect in effects}
    if not for_rows:
        return any(
            isinstance(effect, CheckEffect)
            and any(table.is_checked == effect.is_added or has_bad(table.rows) for table in tables[effect.table])
            for effect in effects
        )
    return any(
        isinstance(effect, AppendEffect)
        and has_bad(effect.rows)
        and any(table.is_checked for table in tables[effect.table])
        for effect in effects
    )


def has_bad(rows: Iterable[Row]) -> bool:
    """Whether the check forbids one of these rows."""
    return any(row.k >= LEAST_BAD for row in rows)
