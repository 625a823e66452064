"""An actor that goes back: it tags versions, restores tables and the whole database, and clones older tables."""

from __future__ import annotations

from contextlib import suppress

from dolmen.errors import VersionExpiredError
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.actors.readers import Reader
from dolmen_simulator.actors.writers import NAMES, PLAIN, SPARE
from dolmen_simulator.judge.model import Effect
from dolmen_simulator.judge.past import CloneEffect, CursorEffect, RestoreAllEffect, RestoreEffect, TagEffect
from dolmen_simulator.world.process import Process

TAGS = ("golden", "silver", "v1.0")
CURSORS = ("warehouse", "lake")


class Traveller(Reader):
    """Makes commits that are about earlier versions."""

    def turn(self, process: Process) -> None:
        """Makes one such commit, often none."""
        if not process.ledger.version:
            return
        chance = self.random.random()
        if chance < 0.3:
            self._tag(process)
        elif chance < 0.4:
            self._drop_tag(process)
        elif chance < 0.5:
            self._restore(process)
        elif chance < 0.53:
            self._restore_all(process)
        elif chance < 0.6:
            self._clone(process)
        elif chance < 0.75:
            self._follow(process)

    def _tag(self, process: Process) -> None:
        version, name, move = self._version(process), self.random.choice(TAGS), self.random.random() < 0.8
        until = self.random.choice((None, None, "2m", "20m", "1h"))

        def call() -> Commit:
            return process.db.tag(name, version, until=until, move=move)

        process.write(f"tag {name} at {version}", [TagEffect(name, version, move)], call, reading=version)

    def _drop_tag(self, process: Process) -> None:
        there = sorted(process.ledger.tags[-1])
        name = self.random.choice(there) if there and self.random.random() < 0.9 else self.random.choice(TAGS)
        process.write(f"drop tag {name}", [TagEffect(name, None)], lambda: process.db.drop_tag(name))

    def _restore(self, process: Process) -> None:
        """Restores one table that was there then; sometimes with rows after it in the same commit."""
        version, states = self._version(process), process.ledger.states
        then = {rows.identity for rows in states[version].values()}
        names = [name for name, rows in states[-1].items() if rows.identity in then and name in NAMES]
        if not names:
            return
        name = self.random.choice(names)
        effects: list[Effect] = [RestoreEffect(name, version, process.ledger)]
        kind = f"restore {name} to {version}"
        if self.random.random() < 0.7:
            process.write(kind, effects, lambda: process.db.table(name).restore(version), reading=version)

    def _restore_all(self, process: Process) -> None:
        version, states = self._version(process), process.ledger.states
        if states[version]:
            effects: list[Effect] = [RestoreAllEffect(version, process.ledger)]
            process.write(f"restore all to {version}", effects, lambda: process.db.restore(version), reading=version)

    def _clone(self, process: Process) -> None:
        """Clones a table of some version under a name that is free, seldom one that is not."""
        version, states = self._version(process), process.ledger.states
        tables = states[version]
        sources = [name for name in tables if name in NAMES and all(column.nullable for column in tables[name].columns)]
        free = [name for name in (*PLAIN, SPARE) if name not in states[-1]]
        if not sources or not (free or self.random.random() < 0.1):
            return
        source, name = self.random.choice(sources), self.random.choice(free or PLAIN)

        def call() -> None:
            process.db.clone(source, name, version)

        process.write(
            f"clone {source} of {version} as {name}",
            [CloneEffect(name, source, version, process.ledger)],
            call,
            reading=version,
        )

    def _follow(self, process: Process) -> None:
        """Makes a cursor, or moves one, or removes it now and then, so that versions may expire again."""
        name, version, chance = self.random.choice(CURSORS), self._version(process), self.random.random()
        age, there = self.random.choice(("2m", "20m", "1h")), name in process.ledger.cursors[-1]

        def call() -> Commit | None:
            cursor = process.db.cursor(name, start=version, age=age, create=not there)
            if there:
                if chance < 0.2:
                    return cursor.remove()
                if chance < 0.8:
                    with suppress(VersionExpiredError):  # it has ended: its reader reads the tables as a whole
                        return cursor.acknowledge()
                return cursor.reset(version)
            assert process.line.run is not None
            process.line.run.base = process.db.version  # another one may have made it
            return None

        what = "move" if there else "make"
        process.write(f"{what} cursor {name}", [CursorEffect(name)], call, reads=True, reading=version)
