"""An actor that updates and merges rows: what it computes from the rows that it read must still hold at the commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from dolmen.transactions.merge.clauses import Expression, Insert
from dolmen.transactions.transaction import Transaction
from dolmen.transactions.transaction_table import TransactionTable
from dolmen_simulator.actors.writers import KEYS, Actor, arrow
from dolmen_simulator.judge.columns import GENERATION
from dolmen_simulator.judge.effects import MergeEffect, UpdateEffect, numbered
from dolmen_simulator.judge.model import Effect, OperationRun, Row
from dolmen_simulator.world.process import Process

_Step: TypeAlias = tuple[Effect, Callable[[TransactionTable], None]]


class Updater(Actor):
    """Adds to ``v`` of rows, by updates and by merges, beside others that change the same rows."""

    def turn(self, process: Process) -> None:
        """Makes one update or one merge, sometimes both in one transaction."""
        name = self.target(process)
        if name is None or self.random.random() < 0.2:
            return
        kind = self.random.random()
        steps = [self._merge(name)] if kind > 0.3 else []
        steps += [self._update(name)] if kind < 0.6 else []

        def change(transaction: Transaction, run: OperationRun) -> None:
            for effect, apply in steps:
                run.effects.append(effect)
                apply(transaction.table(name))

        process.network.counts["updates and merges"] += 1
        process.run_transaction(f"update {name}", change)

    def _update(self, name: str) -> _Step:
        where, matches = self.predicate() if self.random.random() < 0.7 else self.condition()
        amount, number = self.random.randint(1, 9), self.world.unique()
        values = {"v": Expression(f"v + {amount}"), "u": Expression(numbered("u", number))}
        return UpdateEffect(name, matches, amount, number), lambda table: table.update(values, where)

    def _merge(self, name: str) -> _Step:
        number, keys = self.world.unique(), self.random.sample(range(KEYS), self.random.randint(1, 4))
        rows = tuple(Row(k, self.random.randint(1, 9), self.world.unique()) for k in keys)
        source = arrow(rows).append_column("new", pa.array([number] * len(rows)))
        matched = {"v": "target.v + source.v", "u": numbered("target.u", "source.new")}
        absent = Insert({"k": "source.k", "v": "source.v", "u": "source.u", "s": "source.s"})
        counted: dict[int, int] = {}

        def merge(table: TransactionTable) -> None:
            table.merge(source, "k", matched, absent)
            merged = table.scan(["k", "u"], where={"k": keys}).to_arrow().to_pylist()
            counted.update((row["k"], row["u"] % GENERATION) for row in merged)

        return MergeEffect(name, rows, number, counted), merge
