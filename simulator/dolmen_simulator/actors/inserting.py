"""Actors that insert rows by their primary key, and one that builds indexes."""

from __future__ import annotations

from typing import Any

from dolmen.maintenance.indexing import index_table
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.actors.upkeep import Upkeep
from dolmen_simulator.actors.writers import KEYS, NAMES, Actor, arrow
from dolmen_simulator.judge.inserting import InsertEffect
from dolmen_simulator.judge.model import DeleteEffect, Row, SettingsEffect
from dolmen_simulator.world.process import Process


class KeyInserter(Actor):
    """Inserts rows, sometimes after a delete of their keys in the same transaction."""

    def turn(self, process: Process) -> None:
        """Makes one insert."""
        name = self.target(process)
        if name is None:
            return
        keys = self.random.sample(range(2 * KEYS), self.random.randint(1, 3))
        if self.random.random() < 0.05:
            keys.append(keys[0])
        rows = tuple(Row(k, self.random.randrange(100), self.world.unique()) for k in keys)
        effect = InsertEffect(name, rows)
        if self.random.random() < 0.75:
            process.write(f"insert {keys}", [effect], lambda: process.db.table(name).insert(arrow(rows)))
            return
        gone = keys[:1]

        def call() -> Commit:
            with process.db.transaction() as transaction:
                table = transaction.table(name)
                table.delete(keys=gone)
                table.insert(arrow(rows))
                return transaction.commit()

        first = DeleteEffect(name, lambda row: row.k in gone)
        process.write(f"delete {gone} and insert {keys}", [first, effect], call)


class Indexer(Upkeep):
    """Builds and merges indexes, and now and then gives a table one, or takes it away."""

    def turn(self, process: Process) -> None:
        """Handles one table."""
        name = self.target(process, NAMES)
        if name is None or not process.ledger.version:
            return
        table = process.ledger.states[-1].get(name)
        has_index = table is not None and bool(table.settings.get("index"))
        if self.random.random() < (0.1 if has_index else 0.7):
            changes: dict[str, Any] = {"index": None if has_index else True}
            effect = SettingsEffect(name, changes)
            process.write(f"set {name} {changes}", [effect], lambda: process.db.table(name).set(**changes))
            return
        process.upkeep("index", lambda: index_table(process.context, name, deadline=self.deadline()), (name,))
