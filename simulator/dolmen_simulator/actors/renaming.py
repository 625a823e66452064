"""An actor that renames tables while others know them by their old names.

It renames a table away and back, swaps two names, and replaces one table by another, with statements before and after
the rename in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from dolmen.transactions.transaction import Transaction
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.actors.declaring import create_table_in
from dolmen_simulator.actors.hoarding import ELSEWHERE, HOME
from dolmen_simulator.actors.writers import NAMES, PLAIN, SPARE, TABLES, Blind, add, arrow
from dolmen_simulator.judge import model
from dolmen_simulator.judge.effects import SHAPES
from dolmen_simulator.judge.model import Effect, OperationRun
from dolmen_simulator.world.process import Process

_BETWEEN = "between"
"""The temporary name of one of two tables that swap names; no version shows it."""

Step: TypeAlias = tuple[Effect, Callable[[Transaction], object]]
"""A statement: its effect in the model, and production code for it."""


class Renamer(Blind):
    """Renames tables."""

    def turn(self, process: Process) -> None:
        """Makes one commit with one rename or more."""
        state, chance = process.ledger.states[-1], self.random.random()
        if not state:
            process.read(process.db.refresh)  # so that it does not wait alone without end
        elif HOME in state or ELSEWHERE in state:
            self._move(process, *((HOME, ELSEWHERE) if HOME in state else (ELSEWHERE, HOME)))
        elif chance < 0.25:
            there = [name for name in (*PLAIN, SPARE) if name in state]
            free = [name for name in (*PLAIN, SPARE) if name not in state]
            if there:
                anywhere = [name for name in NAMES if name != there[0]]
                self._move(process, there[0], self.random.choice(free or anywhere))
        elif chance < 0.5:
            pairs = [
                (one, other) for one, other in ((*PLAIN,), TABLES[2:], (PLAIN[0], SPARE)) if {one, other} <= {*state}
            ]
            if pairs:
                self._swap(process, *self.random.choice(pairs))
        elif chance < 0.6:
            self._rotate(process)
        elif chance < 0.7:
            self._promote(process)
        elif chance < 0.8:
            self._add_to_renamed(process)

    def _move(self, process: Process, name: str, to: str) -> None:
        """Renames a table; or renames it away and back in one commit, which others do not see."""
        if self.random.random() < 0.8:
            process.write(
                f"rename {name} to {to}", [model.RenameEffect(name, to)], lambda: process.db.rename_table(name, to)
            )
        elif to not in process.ledger.states[-1]:
            steps = [_rename_step(name, to), *self._statements(to), _rename_step(to, name)]
            self._make(process, f"rename {name} to {to} and back", steps)

    def _swap(self, process: Process, one: str, other: str) -> None:
        """Swaps the names of two tables, with statements before and after that use one name for both tables."""
        steps = [
            *self._statements(one),
            _rename_step(one, _BETWEEN),
            _rename_step(other, one),
            *self._statements(one),
            _rename_step(_BETWEEN, other),
            *self._statements(other),
        ]
        self._make(process, f"swap {one} and {other}", steps)

    def _rotate(self, process: Process) -> None:
        """Renames a table, and creates a new one under the old name."""
        name, shape, state = self.random.choice(PLAIN), self.random.randrange(len(SHAPES)), process.ledger.states[-1]
        if name not in state or SPARE in state:
            return
        steps = [
            _rename_step(name, SPARE),
            *self._statements(SPARE),
            (model.CreateEffect(name, shape=shape), lambda transaction: create_table_in(transaction, name, shape)),
            *self._statements(name),
        ]
        self._make(process, f"rotate {name}", steps)

    def _promote(self, process: Process) -> None:
        """Drops a table, and renames another one to its name."""
        name, state = self.random.choice(PLAIN), process.ledger.states[-1]
        if name not in state or SPARE not in state:
            return
        steps: list[Step] = [
            (model.DropEffect(name), lambda transaction: transaction.drop_table(name)),
            _rename_step(SPARE, name),
            *self._statements(name),
        ]
        self._make(process, f"promote {SPARE} to {name}", steps)

    def _add_to_renamed(self, process: Process) -> None:
        """Renames a table, and adds to a row that is read under the new name."""
        state = process.ledger.states[-1]
        if SPARE in state or PLAIN[0] not in state:
            return
        k, amount, back = self.random.randrange(3), self.random.randint(1, 9), self.random.random() < 0.5

        def rename_and_add(transaction: Transaction, run: OperationRun) -> None:
            run.effects.append(model.RenameEffect(PLAIN[0], SPARE))
            transaction.rename_table(PLAIN[0], SPARE)
            u = self.world.unique()
            run.effects.append(model.AddEffect(SPARE, k, amount, u))
            add(process, transaction, SPARE, k, amount, u, before=PLAIN[0])
            if back:
                run.effects.append(model.RenameEffect(SPARE, PLAIN[0]))
                transaction.rename_table(SPARE, PLAIN[0])

        process.run_transaction(f"rename {PLAIN[0]} and add", rename_and_add)

    def _statements(self, name: str) -> list[Step]:
        """Draws statements for a table; often none."""
        if self.random.random() < 0.5:
            return []
        if self.random.random() < 0.3:
            where, matches = self.predicate()
            return [
                (
                    model.DeletePositionsEffect(name, matches),
                    lambda transaction: transaction.table(name).delete(where, mode="positions"),
                )
            ]
        if self.random.random() < 0.2:
            rows = self.rows()
            return [
                (
                    model.OverwriteEffect(name, rows, force=False),
                    lambda transaction: transaction.table(name).overwrite(arrow(rows)),
                )
            ]
        effect, apply = self.statement(name)
        return [(effect, lambda transaction: apply(transaction.table(name)))]

    @staticmethod
    def _make(process: Process, kind: str, steps: Sequence[Step]) -> None:
        """Makes all steps in one transaction."""

        def make(transaction: Transaction, run: OperationRun) -> None:
            for effect, apply in steps:
                run.effects.append(effect)
                apply(transaction)

        def block() -> Commit:
            with process.db.transaction() as transaction:
                process.call_with_base(transaction, process.begin_run(), make)
                return transaction.commit()

        process.network.counts["transactions with a rename"] += 1
        looks = any(isinstance(effect, (model.DeletePositionsEffect, model.OverwriteEffect)) for effect, _ in steps)
        process.write(kind, [], block, reads=looks)


def _rename_step(name: str, to: str) -> Step:
    return model.RenameEffect(name, to), lambda transaction: transaction.rename_table(name, to)
