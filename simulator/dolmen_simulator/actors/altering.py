"""Actors that change the columns and the checks of tables while others read and write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.transaction_table import TransactionTable
from dolmen_simulator.actors.writers import TABLES, Actor, arrow
from dolmen_simulator.judge import model
from dolmen_simulator.judge.altering import (
    CHECK,
    CONDITION,
    LEAST_BAD,
    AddStep,
    AlterEffect,
    ChangeStep,
    CheckEffect,
    DropStep,
    OrderStep,
    Step,
    has_bad,
)
from dolmen_simulator.judge.columns import ModelColumn, added_columns
from dolmen_simulator.judge.model import OperationRun
from dolmen_simulator.world.process import Process

_MOST = 3
_NAMES = ("a", "b", "c", "d")
"""The names of columns, few, so that a dropped name is soon given to another column."""

_FIELDS = ("x", "y")
"""The names of fields that the struct gets."""

Made: TypeAlias = tuple[Step, Callable[[TransactionTable], None]]
"""A step in the model, and production code for it."""


class Alterer(Actor):
    """Adds, drops, renames and reorders columns, changes their defaults, and allows NULL in them."""

    def turn(self, process: Process) -> None:
        """Makes one commit with one change or more, sometimes with rows beside it."""
        if self.random.random() < 0.6:
            return
        name = self.target(process) if self.random.random() < 0.6 else self.target(process, TABLES[2:])
        if name is None:
            return
        changes, rows = self.random.choice((1, 1, 2, 3)), self.rows() if self.random.random() < 0.2 else ()

        def alter(transaction: Transaction, run: OperationRun) -> None:
            run.operation.about = (name,)
            table = transaction.table(name)
            columns = process.ledger.states[unit_of(transaction).base.version][name].columns
            for _ in range(changes):
                step, apply = self._draw(name, columns)
                columns = step.apply(columns)
                run.effects.append(AlterEffect(name, (step,)))
                is_inside = isinstance(step, ChangeStep) and step.after.name == "s"
                process.network.counts["changes of fields"] += is_inside
                apply(table)
            if rows:
                run.effects.append(model.AppendEffect(name, rows))
                table.append(arrow(rows))

        process.network.counts["changes of columns"] += 1
        process.run_transaction(f"alter {name}", alter)

    def _draw(self, name: str, columns: tuple[ModelColumn, ...]) -> Made:
        if self.random.random() < 0.25:
            return self._change_field(columns)
        added, chance = added_columns(columns), self.random.random()
        if not added or (len(added) < _MOST and chance < 0.35):
            return self._add(name, columns)
        column = self.random.choice(added)
        if chance < 0.55:
            return DropStep(column.name), lambda table: table.drop_column(column.name)
        if chance < 0.7:
            to = self._free_name(columns)
            return ChangeStep(column, column._replace(name=to)), lambda table: table.rename_column(column.name, to)
        if chance < 0.85:
            default = self._value() if column.nullable else self.random.randrange(100)
            changed = column._replace(default=default)
            return ChangeStep(column, changed), lambda table: table.set_default(column.name, default)
        if not column.nullable and chance < 0.95:
            changed = column._replace(nullable=True)
            return ChangeStep(column, changed), lambda table: table.make_nullable(column.name)
        names = [each.name for each in columns]
        self.random.shuffle(names)
        first = tuple(names[: self.random.randint(1, len(names))])
        return OrderStep(first), lambda table: table.reorder(first)

    def _add(self, name: str, columns: tuple[ModelColumn, ...]) -> Made:
        """Adds a column. One that is not nullable is not for tables with dropped files: JSON files have NULL in it."""
        required = name in TABLES[2:] and self.random.random() < 0.4
        default = self.random.randrange(100) if required else self._value()
        column = ModelColumn(self.world.unique(), self._free_name(columns), default, default, not required)
        return AddStep(column), lambda table: table.add_column(
            column.name, pa.int64(), default, nullable=column.nullable
        )

    def _change_field(self, columns: tuple[ModelColumn, ...]) -> Made:
        """Adds a field to the struct, or renames or drops the one that was added."""
        (struct,) = (column for column in columns if column.name == "s")
        (new,) = self.random.sample([name for name in _FIELDS if name not in struct.new_fields], 1)
        if not struct.new_fields:
            changed = struct._replace(new_fields=(new,))
            return ChangeStep(struct, changed), lambda table: table.add_column(f"s.{new}", pa.int64())
        (old,) = struct.new_fields
        if self.random.random() < 0.5:
            changed = struct._replace(new_fields=())
            return ChangeStep(struct, changed), lambda table: table.drop_column(f"s.{old}")
        changed = struct._replace(new_fields=(new,))
        return ChangeStep(struct, changed), lambda table: table.rename_column(f"s.{old}", new)

    def _free_name(self, columns: tuple[ModelColumn, ...]) -> str:
        taken = {column.name for column in columns}
        return self.random.choice([name for name in _NAMES if name not in taken])

    def _value(self) -> int | None:
        return None if self.random.random() < 0.3 else self.random.randrange(100)


class Checker(Actor):
    """Adds a check to tables and drops it, and appends and deletes rows that it forbids."""

    def turn(self, process: Process) -> None:
        """Makes one call."""
        name = self.target(process)
        if name is None:
            return
        table, chance = process.ledger.states[-1].get(name), self.random.random()
        is_checked = table is not None and table.is_checked
        if chance < 0.35:
            self._append(process, name)
        elif chance < 0.6 and table is not None and has_bad(table.rows):
            gone = model.DeleteEffect(name, lambda row: row.k >= LEAST_BAD)
            process.write("delete bad rows", [gone], lambda: process.db.table(name).delete(f"k >= {LEAST_BAD}"))
        elif chance < 0.9 or not is_checked:
            self._change(process, name, adds=not is_checked)

    def _append(self, process: Process, name: str) -> None:
        bad = model.Row(LEAST_BAD + self.random.randrange(3), self.random.randrange(100), self.world.unique())
        rows = (bad,) if self.random.random() < 0.5 else (*self.rows(2), bad)
        effect = model.AppendEffect(name, rows)
        if self.random.random() < 0.5:
            process.write("append a bad row", [effect], lambda: process.db.table(name).append(arrow(rows)))
            return

        def append(transaction: Transaction, run: OperationRun) -> None:
            run.effects.append(effect)
            transaction.table(name).append(arrow(rows))

        process.run_transaction("append a bad row", append)

    def _change(self, process: Process, name: str, *, adds: bool) -> None:
        def change(transaction: Transaction, run: OperationRun) -> None:
            run.effects.append(CheckEffect(name, adds))
            table = transaction.table(name)
            if adds:
                table.add_check(CHECK, CONDITION)
            else:
                table.drop_check(CHECK)

        process.network.counts["changes of checks"] += 1
        process.run_transaction(f"{'add' if adds else 'drop'} check of {name}", change)
