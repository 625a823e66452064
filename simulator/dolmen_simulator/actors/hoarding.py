"""An actor with a table of many small files that is never dropped, so that many entries leave the root for segments.

Other tables do not live long enough for that. Here segments are merged whose files differ in ``applied_through``, and
overlays of one file are in several places.
"""

from __future__ import annotations

from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen.maintenance.resolution import resolve
from dolmen.maintenance.segment_merging import merge_segments
from dolmen.transactions.transaction import Transaction
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.actors.upkeep import SPLICING, Upkeep
from dolmen_simulator.actors.writers import KEYS, arrow
from dolmen_simulator.judge import model
from dolmen_simulator.judge.model import SCHEMA, Effect, OperationRun, Row
from dolmen_simulator.world.process import Process

HOME = "hoard"
ELSEWHERE = "loft"
"""Its name for a while, after a rename."""

_PLENTY = 160
_WIDTH = 8
_FEW_FILES = CompactionOptions(target_file_bytes=6_000, group_bytes=6_000, deleted_share=0.1, **SPLICING)


class Hoarder(Upkeep):
    """Adds small files, deletes from them, and resolves a part of the deletes before it merges."""

    def turn(self, process: Process) -> None:
        """Makes one call, or a few that belong together."""
        chance, state = self.random.random(), process.ledger.states[-1]
        name = next((name for name in (HOME, ELSEWHERE) if name in state), None)
        if name is None:
            process.write("create", [model.CreateEffect(HOME)], lambda: self._create(process))
        elif chance < 0.45:
            self._add(process, name, len(state[name].rows))
        elif chance < 0.65:
            self._delete(process, name)
        else:
            self._resolve(process, name)
            if self.random.random() < 0.3:
                process.upkeep("compact", lambda: compact(process.context, name, options=_FEW_FILES), (name,))
            process.upkeep("merge", lambda: merge_segments(process.context))

    @staticmethod
    def _create(process: Process) -> None:
        process.db.create_table(HOME, SCHEMA, primary_key="k")

    def _add(self, process: Process, name: str, there: int) -> None:
        """Commits many files, after a delete if there are enough rows."""
        k = self.random.randrange(KEYS)
        crowded = there > _PLENTY
        batches = [self.rows(2) for _ in range(self.count_files((3, 8)))]
        effects: list[Effect] = [model.DeleteEffect(name, lambda row: row.k >= k)] if crowded else []
        effects += [model.AppendEffect(name, rows) for rows in batches]

        def block() -> Commit:
            with process.db.transaction() as transaction:
                table = transaction.table(name)
                if crowded:
                    table.delete(f"k >= {k}")
                for rows in batches:
                    table.append(arrow(rows))
                return transaction.commit()

        process.write("hoard", effects, block)

    def _delete(self, process: Process, name: str) -> None:
        k, v = self.random.randrange(KEYS), self.random.randrange(100)
        if self.random.random() < 0.5:
            self._delete_positions(process, name, v)
        elif self.random.random() < 0.5:
            keys = [k, (k + 5) % KEYS]
            effect = model.DeleteEffect(name, lambda row: row.k in keys and row.v is not None and row.v < v)
            where = f"k IN ({keys[0]}, {keys[1]}) AND v < {v}"
            process.write(f"delete {where}", [effect], lambda: process.db.table(name).delete(where))
        else:
            effect = model.DeleteEffect(name, lambda row: _between(row, v))
            where = f"v BETWEEN {v} AND {v + _WIDTH}"
            process.write(f"delete {where}", [effect], lambda: process.db.table(name).delete(where))

    def _delete_positions(self, process: Process, name: str, v: int) -> None:
        where = f"v BETWEEN {v} AND {v + _WIDTH}"

        def by_position(transaction: Transaction, run: OperationRun) -> None:
            run.effects.append(model.DeletePositionsEffect(name, lambda row: _between(row, v)))
            transaction.table(name).delete(where, mode="positions")

        process.run_transaction(f"delete positions {where}", by_position)

    def _resolve(self, process: Process, name: str) -> None:
        """Resolves a few files per commit, often only in part, so that segments differ in ``resolved_through``."""
        deadline, files = self.deadline(), self.random.choice((4, 8, 16))
        process.upkeep("resolve", lambda: resolve(process.context, name, deadline=deadline, batch_files=files), (name,))


def _between(row: Row, v: int) -> bool:
    return row.v is not None and v <= row.v <= v + _WIDTH
