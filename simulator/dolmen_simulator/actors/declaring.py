"""Actors that create and drop tables, one by one or by applying declarations, beside others that do the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dolmen.declaration import Declaration, DeclaredChange, DeclaredTable, plan
from dolmen.declaration.declaration_plan import ROUNDS
from dolmen.errors import ConflictError, SchemaError
from dolmen.transactions.transaction import Transaction
from dolmen.transactions.transaction_table import TransactionTable
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.actors.writers import PLAIN, TABLES, Actor
from dolmen_simulator.judge import model
from dolmen_simulator.judge.altering import AlterEffect, OrderStep
from dolmen_simulator.judge.effects import SHAPES
from dolmen_simulator.judge.model import Effect
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.world.process import Process

_CROWDED = 18


class Founder(Actor):
    """Creates and drops tables, all under the same few names."""

    def turn(self, process: Process) -> None:
        """Makes one create, one drop, or both."""
        state = process.ledger.states[-1]
        absent = [name for name in TABLES if name not in state]
        crowded = [name for name, rows in state.items() if rows.writes > _CROWDED]
        name, shape = self.random.choice(absent or crowded or TABLES), self.random.randrange(len(SHAPES))
        if absent:
            process.write("create", [model.CreateEffect(name, shape=shape)], lambda: self._create(process, name, shape))
        elif crowded or self.random.random() < 0.02:
            if self.random.random() < 0.3:
                process.write("drop", [model.DropEffect(name)], lambda: process.db.drop_table(name))
                return
            effects: list[Effect] = [model.DropEffect(name), model.CreateEffect(name, shape=shape)]
            process.write("drop and create", effects, lambda: self._renew(process, name, shape))

    @staticmethod
    def _create(process: Process, name: str, shape: int) -> None:
        process.db.create_table(name, SHAPES[shape].schema, primary_key="k", sort_key=SHAPES[shape].sort_key)

    @staticmethod
    def _renew(process: Process, name: str, shape: int) -> Commit:
        with process.db.transaction() as transaction:
            transaction.drop_table(name)
            create_table_in(transaction, name, shape)
            return transaction.commit()


class Declarer(Actor):
    """Applies declarations, as people and pipelines do. Some of them conflict with changes of others."""

    def turn(self, process: Process) -> None:
        """Applies one declaration, seldom."""
        if self.random.random() < 0.75:
            return
        names = self.random.sample(PLAIN, self.random.randint(1, len(PLAIN)))
        there, shapes = process.ledger.states[-1], dict[str, int]()
        for name in names:
            known = name in there and self.random.random() < 0.9
            shapes[name] = there[name].shape if known else self.random.randrange(len(SHAPES))
        tables = {name: self._table(name, shape) for name, shape in shapes.items()}
        declaration = Declaration(tables, self._database(process), "a declaration")
        process.write(f"apply {' and '.join(names)}", [], lambda: self._apply(process, declaration, shapes), reads=True)

    def _table(self, name: str, shape: int) -> DeclaredTable:
        choices: Sequence[dict[str, Any]] = (
            {},
            {"ttl": "t 3h"},
            {"target_file_bytes": 4_096},
            {"ingest_mode": "upsert", "ingest_on_bad_row": "quarantine"},
        )
        return DeclaredTable(name, SHAPES[shape].schema, ("k",), SHAPES[shape].sort_key, self.random.choice(choices))

    def _database(self, process: Process) -> dict[str, Any] | None:
        """Settings of the database, seldom any; they include all current ones, because others are unset."""
        settings = process.ledger.settings[-1]
        if not settings or self.random.random() < 0.8:
            return None
        name = self.random.choice(sorted(self.world.choices))
        return {**settings, name: self.random.choice(self.world.choices[name])}

    def _apply(self, process: Process, declaration: Declaration, shapes: dict[str, int]) -> Commit | None:
        """Applies a declaration as ``dolmen apply`` does, with a pause after the plan."""
        began, counts = process.ledger.version, process.network.counts
        for left in reversed(range(ROUNDS)):
            try:
                wanted = plan(process.db, declaration)
            except SchemaError as error:
                return self._take_refusal(process, shapes, began, error)
            counts["declarations planned"] += 1
            if self.random.random() < 0.3:
                process.network.scheduler.pause(self.random.randint(0, 3_000_000))
            run = process.begin_run(*_effects(wanted.changes, shapes))
            run.base = wanted.version
            run.operation.about = tuple(shapes)
            try:
                commit = wanted.commit()
            except ConflictError:
                counts["declarations planned in vain"] += 1
                if not left:
                    raise
                continue
            except SchemaError as error:  # seed 20260136: the key of a table that has taken changes can't be widened
                return self._take_refusal(process, shapes, began, error)
            counts["declarations applied"] += bool(wanted.changes)
            return commit
        raise AssertionError("the last round returns or raises")

    @staticmethod
    def _take_refusal(process: Process, shapes: dict[str, int], began: int, error: SchemaError) -> None:
        """Ends the call as one without effects.

        Raises:
            ViolationError: no table has another shape, which can't change, or a field that is not declared.
        """
        during = process.ledger.states[min(began, process.db.version) :]
        tables = [(state[name], shape) for state in during for name, shape in shapes.items() if name in state]
        has_field = any(column.new_fields for table, _ in tables for column in table.columns)
        if not has_field and not any(table.shape != shape or table.widened for table, shape in tables):
            raise ViolationError(Never.MISREPORTED, f"a declaration that fits was refused: {error}") from error
        process.network.counts["declarations refused"] += 1
        run = process.begin_run()
        run.base = run.operation.known


def create_table_in(transaction: Transaction, name: str, shape: int) -> TransactionTable:
    """Creates a table in a transaction."""
    return transaction.create_table(name, SHAPES[shape].schema, primary_key="k", sort_key=SHAPES[shape].sort_key)


def _effects(changes: Sequence[DeclaredChange], shapes: dict[str, int]) -> list[Effect]:
    """The effects of a plan's changes."""
    effects: list[Effect] = []
    tables = list(dict.fromkeys(change.table for change in changes))
    for table in tables:
        own = [change for change in changes if change.table == table]
        settings = {change.name: change.after for change in own if change.what == "property"}
        if table is not None and any(change.what == "table" for change in own):
            effects.append(model.CreateEffect(table, shape=shapes[table], settings=settings))
            continue
        orders = [OrderStep(tuple(change.after)) for change in own if change.what == "order"]
        reshaped = any(change.what in ("column", "sort_key") for change in own)
        if table is not None and (orders or reshaped):
            effects.append(AlterEffect(table, tuple(orders), shapes[table] if reshaped else None))
        if settings:
            effects.append(model.SettingsEffect(table or "", settings))
    return effects
