"""An actor that repeats a write under the same id whatever the answer was, as callers with a time-out do.

Now and then it writes something else under that id, which must be refused.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from dolmen.results import Commit
from dolmen.write.row_digest import content_digest
from dolmen_simulator.actors.writers import PLAIN, SPARE, Actor, World, arrow, digest_of_rows
from dolmen_simulator.judge import model
from dolmen_simulator.judge.model import Row
from dolmen_simulator.world.process import Process

_AGAIN = 0.6
_OTHERWISE = 0.3
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
    """Appends and upserts with ``request=``, again and again."""

    def __init__(self, world: World, rng: random.Random) -> None:
        super().__init__(world, rng)
        self._said: _RepeatedWrite | None = None

    def turn(self, process: Process) -> None:
        """Makes a write, or repeats the last one."""
        said = self._said
        if said is None or self.random.random() > _AGAIN:
            name = self.target(process)
            if name is None:
                return
            said = self._said = _RepeatedWrite(f"i{self.world.unique()}", name, self.rows(), self.random.random() < 0.5)
        elif self.random.random() < _OTHERWISE:
            said = self._otherwise(said)
            process.network.counts["said otherwise"] += 1
        self._say(process, said)

    def _otherwise(self, said: _RepeatedWrite) -> _RepeatedWrite:
        """Changes a write to other rows, another operation, or another table."""
        other = self.random.choice([name for name in (*PLAIN, SPARE) if name != said.table])
        return self.random.choice(
            (replace(said, rows=self.rows()), replace(said, table=other), replace(said, upserts=not said.upserts))
        )

    @staticmethod
    def _say(process: Process, said: _RepeatedWrite) -> None:
        kind = model.UpsertEffect if said.upserts else model.AppendEffect
        data = arrow(said.rows)

        def call() -> Commit:
            table = process.db.table(said.table)
            return table.upsert(data, request=said.id) if said.upserts else table.append(data, request=said.id)

        effect = kind(said.table, said.rows, said.id)
        process.write(f"say {said.id}", [effect], call, digests={said.id: said.digest})
