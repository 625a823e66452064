"""Actors with complex transactions: three tables in one commit, temporary tables, and rewrites of whole tables."""

from __future__ import annotations

from collections.abc import Sequence

from dolmen.commit.statements.row_changes import Overwrite
from dolmen.errors import ConflictError, TableNotFoundError
from dolmen.transactions.row_arguments import rows_of
from dolmen.transactions.row_statements import TableChange
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.actors.declaring import create_table_in
from dolmen_simulator.actors.writers import PLAIN, TABLES, Actor, add, arrow
from dolmen_simulator.judge import model
from dolmen_simulator.judge.effects import SHAPES, RewriteEffect, UpsertOnEffect
from dolmen_simulator.judge.model import Effect, OperationRun, Row
from dolmen_simulator.judge.seen import rows_from
from dolmen_simulator.world.process import Process

_PASSING = "passing"
"""A table that one transaction creates and drops, so that no version shows it."""


class Juggler(Actor):
    """Makes transactions over three tables: upserts by other columns, deletes by position, and temporary tables."""

    def turn(self, process: Process) -> None:
        """Makes one transaction."""
        names = [name for name in TABLES[:3] if name in process.ledger.states[-1]]
        if len(names) < 3:
            return
        chance = self.random.random()
        if chance < 0.35:
            self._all_three(process)
        elif chance < 0.55:
            self._on_other_columns(process)
        elif chance < 0.75:
            self._through_another(process)
        elif chance < 0.85:
            self._anew(process)

    def _all_three(self, process: Process) -> None:
        """Deletes by position from and upserts into one table, appends to another, and adds to a row of a third."""
        first, second = self.random.sample(PLAIN, 2)
        where, matches = self.predicate()
        upserted, appended, amount, k = self.rows(), self.rows(), self.random.randint(1, 9), self.random.randrange(3)
        before = self.random.random() < 0.5

        def juggle(transaction: Transaction, run: OperationRun) -> None:
            steps = ["upsert", "positions"] if before else ["positions", "upsert"]
            for step in steps:
                if step == "upsert":
                    run.effects.append(model.UpsertEffect(first, upserted))
                    transaction.table(first).upsert(arrow(upserted))
                else:
                    run.effects.append(model.DeletePositionsEffect(first, matches))
                    transaction.table(first).delete(where, mode="positions")
            run.effects.append(model.AppendEffect(second, appended))
            transaction.table(second).append(arrow(appended))
            u = self.world.unique()
            run.effects.append(model.AddEffect(TABLES[2], k, amount, u))
            add(process, transaction, TABLES[2], k, amount, u)

        process.run_transaction("transaction over three tables", juggle)

    def _on_other_columns(self, process: Process) -> None:
        """Upserts by columns that are not the key."""
        name, on = self.random.choice(PLAIN), self.random.choice((("v",), ("k", "v"), ("u",)))
        rows = tuple(row for row in self.rows() if row.v is not None)
        if rows:
            effect = UpsertOnEffect(name, rows, on)
            process.write(f"upsert on {on}", [effect], lambda: process.db.table(name).upsert(arrow(rows), on=on))

    def _through_another(self, process: Process) -> None:
        """Appends rows to a temporary table, deletes some there, and appends the rest to another table."""
        name, rows = self.random.choice(PLAIN), self.rows()
        where, matches = self.predicate()
        left = tuple(row for row in rows if not matches(row))

        def call() -> Commit:
            run = process.begin_run(*([model.AppendEffect(name, left)] if left else []))  # no rows make no statement
            run.operation.about = (name,)
            with process.db.transaction() as transaction:
                table = create_table_in(transaction, _PASSING, self.random.randrange(len(SHAPES)))
                table.append(arrow(rows))
                table.delete(where, mode=self.random.choice(("positions", "tombstone")))
                transaction.table(name).append(table.to_arrow())
                transaction.drop_table(_PASSING)
                return transaction.commit()

        process.write("transaction with a table of its own", [], call)

    def _anew(self, process: Process) -> None:
        """Drops a table, creates it again with rows, and writes to another one, in one commit."""
        name, other = self.random.sample(PLAIN, 2)
        shape, rows, others = self.random.randrange(len(SHAPES)), self.rows(), self.rows()
        effects: list[Effect] = [
            model.DropEffect(name),
            model.CreateEffect(name, shape=shape),
            model.AppendEffect(name, rows),
            model.UpsertEffect(other, others),
        ]

        def call() -> Commit:
            with process.db.transaction() as transaction:
                transaction.drop_table(name)
                create_table_in(transaction, name, shape).append(arrow(rows))
                transaction.table(other).upsert(arrow(others))
                return transaction.commit()

        if self.random.random() < 0.2:
            process.write("drop and create with rows", effects, call)


class TableRewriter(Actor):
    """Reads whole tables and overwrites them; concurrent changes must not be lost."""

    label = "rewriter"

    def turn(self, process: Process) -> None:
        """Makes one rewrite, seldom."""
        name = self.target(process)
        if name is None or self.random.random() < 0.7:
            return
        if self.random.random() < 0.5:
            process.run_transaction(
                f"rewrite {name}", lambda transaction, run: self._rewrite(process, transaction, run, name)
            )
        else:
            process.write(f"overwrite {name} since", [], lambda: self._since(process, name), reads=True)

    def _rewrite(self, process: Process, transaction: Transaction, run: OperationRun, name: str) -> None:
        run.operation.about = (name,)
        read = rows_from(transaction.table(name).scan().to_arrow())
        process.evidence.add_read(name, [row.u for row in read])
        rows = self._changed(read)
        run.effects.append(RewriteEffect(name, rows, force=False, read=tuple(read)))
        transaction.table(name).overwrite(arrow(rows))

    def _since(self, process: Process, name: str) -> Commit:
        """Overwrites with a stated base version, as Spark does: later changes are conflicts."""
        run = process.begin_run()
        run.operation.about = (name,)
        known = process.db.version
        version = known if name in process.ledger.states[known] else process.db.refresh()
        if not version:
            raise TableNotFoundError(f"no table {name!r}: there is no database yet")
        seen = process.db.at(version=version)
        read = rows_from(seen.table(name).scan().to_arrow())
        rows = self._changed(read)
        run.effects.append(RewriteEffect(name, rows, force=False, read=tuple(read)))
        run.base = seen.version
        process.network.scheduler.pause(self.random.choice((0, 0, 2_000_000)))
        with process.db.transaction("overwrite") as transaction:
            unit = unit_of(transaction)
            own, entry = seen.manifest.table(name), unit.entry(name)
            if own.uuid != entry.uuid:
                raise ConflictError(f"table {name!r} was dropped and created again after version {seen.version}")
            unit.begin_upload()
            files = TableChange(unit, name).write_rows(rows_of(entry.schema, arrow(rows)))
            unit.add(Overwrite(name, entry.uuid, own.epoch, seen.manifest.commit_ts, files, schema=entry.schema))
            return transaction.commit()

    def _changed(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """Changes each row a little, and seldom leaves one out."""
        kept = [row for row in rows if self.random.random() < 0.95]
        return tuple(Row(row.k, None if row.v is None else row.v + 1, self.world.unique(), row.t) for row in kept)
