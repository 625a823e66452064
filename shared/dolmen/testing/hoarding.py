"""Who keeps a table that nobody drops, of many small files, so that much of what is said of them leaves the root.

Elsewhere tables live too short for that: here segments of files are merged, some of whose files know more deletes than
others, and overlays of the same file stand in several places.
"""

from __future__ import annotations

from dolmen.maintenance.compaction import CompactionOptions, compact
from dolmen.maintenance.merging import merge_segments
from dolmen.maintenance.resolution import resolve
from dolmen.results import Commit
from dolmen.testing import model
from dolmen.testing.actors import KEYS, arrow
from dolmen.testing.model import SCHEMA, Effect, Row, Run
from dolmen.testing.process import Process
from dolmen.testing.upkeep import Upkeep
from dolmen.transaction import Transaction

_TABLE = "hoard"
_PLENTY = 160
_WIDTH = 8
_FEW_FILES = CompactionOptions(target_file_bytes=6_000, group_bytes=6_000, deleted_share=0.1)


class Hoarder(Upkeep):
    """Adds small files, deletes from them, and has a part of the deletes resolved before it merges."""

    def turn(self, process: Process) -> None:
        """One thing, or a few that belong together."""
        chance, state = self.random.random(), process.ledger.states[-1]
        if _TABLE not in state:
            process.write("create", [model.Create(_TABLE)], lambda: self._create(process))
        elif chance < 0.45:
            self._add(process, len(state[_TABLE].rows))
        elif chance < 0.65:
            self._delete(process)
        else:
            self._resolve(process)
            if self.random.random() < 0.3:
                process.upkeep("compact", lambda: compact(process.context, _TABLE, options=_FEW_FILES), (_TABLE,))
            process.upkeep("merge", lambda: merge_segments(process.context))

    @staticmethod
    def _create(process: Process) -> None:
        process.db.create_table(_TABLE, SCHEMA, primary_key="k")

    def _add(self, process: Process, there: int) -> None:
        """A commit of many files; first of a delete, if there are rows enough."""
        k = self.random.randrange(KEYS)
        crowded = there > _PLENTY
        batches = [self.rows(2) for _ in range(self.random.randint(3, 8))]
        effects: list[Effect] = [model.Delete(_TABLE, lambda row: row.k >= k)] if crowded else []
        effects += [model.Append(_TABLE, rows) for rows in batches]

        def block() -> Commit:
            with process.db.transaction() as transaction:
                table = transaction.table(_TABLE)
                if crowded:
                    table.delete(f"k >= {k}")
                for rows in batches:
                    table.append(arrow(rows))
                return transaction.commit()

        process.write("hoard", effects, block)

    def _delete(self, process: Process) -> None:
        k, v = self.random.randrange(KEYS), self.random.randrange(100)
        if self.random.random() < 0.5:
            self._delete_positions(process, v)
        elif self.random.random() < 0.5:
            keys = [k, (k + 5) % KEYS]
            effect = model.Delete(_TABLE, lambda row: row.k in keys and row.v is not None and row.v < v)
            where = f"k IN ({keys[0]}, {keys[1]}) AND v < {v}"
            process.write(f"delete {where}", [effect], lambda: process.db.table(_TABLE).delete(where))
        else:
            effect = model.Delete(_TABLE, lambda row: _between(row, v))
            where = f"v BETWEEN {v} AND {v + _WIDTH}"
            process.write(f"delete {where}", [effect], lambda: process.db.table(_TABLE).delete(where))

    def _delete_positions(self, process: Process, v: int) -> None:
        where = f"v BETWEEN {v} AND {v + _WIDTH}"

        def by_position(transaction: Transaction, run: Run) -> None:
            run.effects.append(model.DeletePositions(_TABLE, lambda row: _between(row, v)))
            transaction.table(_TABLE).delete(where, mode="positions")

        process.replayed(f"delete positions {where}", by_position)

    def _resolve(self, process: Process) -> None:
        """A few files with each commit, and often in part: segments come to know of different deletes."""
        deadline, files = self.deadline(), self.random.choice((4, 8, 16))
        process.upkeep(
            "resolve", lambda: resolve(process.context, _TABLE, deadline=deadline, batch_files=files), (_TABLE,)
        )


def _between(row: Row, v: int) -> bool:
    return row.v is not None and v <= row.v <= v + _WIDTH
