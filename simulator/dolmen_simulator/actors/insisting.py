"""An actor that repeats a write under the same id whatever the response was, as callers with a time-out do.

Now and then it writes something else under that id, which must be refused.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from dolmen.base.records import replace
from dolmen.rows.write.row_digest import content_digest
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.actors.writers import PLAIN, SPARE, Actor, World, arrow, digest_of_rows
from dolmen_simulator.judge import model
from dolmen_simulator.judge.model import Row
from dolmen_simulator.world.process import Process

_REPEATED = 0.6
_CHANGED = 0.3
"""Share of repeated writes with other rows, or for another table."""


@dataclass(frozen=True)
class _RepeatedWrite:
    """Rows for a table, under an id."""

    id: str
    table: str
    rows: tuple[Row, ...]
    upserts: bool

    @property
    def digest(self) -> str:
        """The digest that production code computes for its content."""
        rows = digest_of_rows(self.rows)
        if self.upserts:
            return content_digest("upsert", self.table, ["k"], rows)
        return content_digest("append", self.table, None, rows)


class Insister(Actor):
    """Appends and upserts repeatedly with the same ``request=``."""

    def __init__(self, world: World, rng: random.Random) -> None:
        super().__init__(world, rng)
        self._last: _RepeatedWrite | None = None

    def turn(self, process: Process) -> None:
        """Makes a write, or repeats the last one."""
        write = self._last
        if write is None or self.random.random() > _REPEATED:
            name = self.target(process)
            if name is None:
                return
            write = self._last = _RepeatedWrite(
                f"i{self.world.unique()}", name, self.rows(), self.random.random() < 0.5
            )
        elif self.random.random() < _CHANGED:
            write = self._change(write)
            process.network.counts["said otherwise"] += 1
        self._write(process, write)

    def _change(self, write: _RepeatedWrite) -> _RepeatedWrite:
        """Changes a write to other rows, another operation, or another table."""
        other = self.random.choice([name for name in (*PLAIN, SPARE) if name != write.table])
        return self.random.choice(
            (replace(write, rows=self.rows()), replace(write, table=other), replace(write, upserts=not write.upserts))
        )

    @staticmethod
    def _write(process: Process, write: _RepeatedWrite) -> None:
        kind = model.UpsertEffect if write.upserts else model.AppendEffect
        data = arrow(write.rows)

        def call() -> Commit:
            table = process.db.table(write.table)
            commit = table.upsert(data, request=write.id) if write.upserts else table.append(data, request=write.id)
            if version := commit.already.get(write.id):
                # The request may have been applied when the table had other columns, and also another name.
                assert process.line.operation is not None
                states = process.ledger.states
                now = [state[write.table].identity for state in states[version:] if write.table in state]
                names = [name for name, rows in states[version].items() if rows.identity in now]
                digests = [replace(write, table=name).digest for name in names]
                if process.ledger.digests[write.id] in digests:
                    process.line.operation.digests[write.id] = process.ledger.digests[write.id]
            return commit

        effect = kind(write.table, write.rows, write.id)
        process.write(f"say {write.id}", [effect], call, digests={write.id: write.digest})
