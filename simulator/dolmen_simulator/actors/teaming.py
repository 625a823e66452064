"""An actor with several threads in one process: what waits for the pointer at the same time is committed together."""

from __future__ import annotations

from collections.abc import Callable

from dolmen.transactions.transaction import Transaction
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.actors.writers import KEYS, PLAIN, TABLES, Actor, add, arrow
from dolmen_simulator.judge import model
from dolmen_simulator.judge.inserting import InsertEffect
from dolmen_simulator.judge.model import Effect, OperationRun, Row
from dolmen_simulator.world.process import Process

Call = Callable[[Process], object]

_UNTIL_FLUSHED = 365 * 86_400


class Team(Actor):
    """Makes several calls at once, or hands many rows and deletes to a buffered writer."""

    def turn(self, process: Process) -> None:
        """Makes the calls of one turn."""
        if not process.ledger.version:
            return
        if self.random.random() < 0.15:
            self._write_buffered(process)
            return
        calls = [self._call(process) for _ in range(self.random.randint(3, 6))]
        if some := [call for call in calls if call is not None]:
            process.make_at_once(some)

    def _call(self, process: Process) -> Call | None:
        """Draws a call, with a message of its own."""
        message = f"call {self.world.unique()}"
        kind, name = self.random.random(), self.target(process)
        if kind < 0.3:
            return self._change_counter(process, message, once=kind < 0.1)
        if name is None:
            return None
        if kind < 0.5:
            return self._append(name, message)
        if kind < 0.6:
            return self._upsert(name, message)
        if kind < 0.75:
            return self._delete(name, message)
        if kind < 0.88:
            return self._insert(name, message)
        return self._delete_positions(process, message)

    def _append(self, name: str, message: str) -> Call:
        rows = self.rows(4)
        effect = model.AppendEffect(name, rows)
        return lambda thread: thread.write(
            "append", [effect], lambda: thread.db.table(name).append(arrow(rows), message=message), message=message
        )

    def _upsert(self, name: str, message: str) -> Call:
        rows = self.rows(4)
        effect = model.UpsertEffect(name, rows)
        return lambda thread: thread.write(
            "upsert", [effect], lambda: thread.db.table(name).upsert(arrow(rows), message=message), message=message
        )

    def _delete(self, name: str, message: str) -> Call:
        where, matches = self.predicate()
        effect = model.DeleteEffect(name, matches)
        return lambda thread: thread.write(
            f"delete {where}", [effect], lambda: thread.db.table(name).delete(where, message=message), message=message
        )

    def _insert(self, name: str, message: str) -> Call:
        keys = self.random.sample(range(2 * KEYS), self.random.randint(1, 2))
        rows = tuple(Row(k, self.random.randrange(100), self.world.unique()) for k in keys)
        effect = InsertEffect(name, rows)
        return lambda thread: thread.write(
            f"insert {keys}",
            [effect],
            lambda: thread.db.table(name).insert(arrow(rows), message=message),
            message=message,
        )

    def _delete_positions(self, process: Process, message: str) -> Call | None:
        if self.target(process, PLAIN[:1]) is None:
            return None
        low = self.random.randrange(100)
        high = low + 25

        def by_position(transaction: Transaction, run: OperationRun) -> None:
            run.effects.append(
                model.DeletePositionsEffect("left", lambda row: row.v is not None and low <= row.v <= high)
            )
            transaction.table("left").delete(f"v BETWEEN {low} AND {high}", mode="positions")

        kind = f"delete positions from {low} to {high}"
        return lambda thread: thread.run_transaction(kind, by_position, message=message)

    def _change_counter(self, process: Process, message: str, *, once: bool) -> Call | None:
        if self.target(process, TABLES[2:3]) is None:
            return None
        k, amount, kind = self.random.randrange(3), self.random.randint(1, 9), "counter"

        def increase(thread: Process, transaction: Transaction, run: OperationRun) -> None:
            u = self.world.unique()
            run.effects.append(model.AddEffect("counters", k, amount, u))
            add(thread, transaction, "counters", k, amount, u)

        def replayed(thread: Process) -> None:
            thread.run_transaction(
                f"{kind} {k} += {amount}", lambda tx, run: increase(thread, tx, run), message=message
            )

        def block(thread: Process) -> Commit:
            with thread.db.transaction(message=message) as transaction:
                run = thread.begin_run()
                thread.call_with_base(transaction, run, lambda tx, run: increase(thread, tx, run))
                return transaction.commit()

        def tried(thread: Process) -> None:
            thread.write(f"{kind} {k} += {amount} once", [], lambda: block(thread), reads=True, message=message)

        return tried if once else replayed

    def _write_buffered(self, process: Process) -> None:
        """Hands rows and deletes to a writer, which commits all of them in their order."""
        name = self.target(process)
        if name is None:
            return
        parts = [self._part(name) for _ in range(self.random.randint(1, 6))]

        def call() -> Commit:
            writer = process.db.table(name).writer(max_seconds=_UNTIL_FLUSHED)
            acknowledgements = [
                writer.append(arrow(part.rows)) if isinstance(part, model.AppendEffect) else writer.delete(where)
                for part, where in parts
            ]
            writer.flush()
            return acknowledgements[0].result()

        process.write("write", [part for part, _ in parts], call)

    def _part(self, name: str) -> tuple[Effect, str | dict[str, int] | None]:
        if self.random.random() < 0.7:
            return model.AppendEffect(name, self.rows(4)), None
        where, matches = self.predicate()
        return model.DeleteEffect(name, matches), where
