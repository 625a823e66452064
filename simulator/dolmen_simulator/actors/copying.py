"""An actor that keeps a copy of a table by its change feed, from version to version."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from dolmen.errors import SchemaError, TableNotFoundError
from dolmen_simulator.actors.writers import Actor, World
from dolmen_simulator.judge.model import SCHEMA
from dolmen_simulator.judge.replica import TableCopy, fed_rows, follow_feed, name_in
from dolmen_simulator.judge.seen import check_rows, rows_from
from dolmen_simulator.world.network import MINUTE_US
from dolmen_simulator.world.process import Process


class Copyist(Actor):
    """Copies a table at some version, then follows the feed. Starts again if it has missed too much."""

    def __init__(self, world: World, rng: random.Random) -> None:
        super().__init__(world, rng)
        self._copy: TableCopy | None = None

    def turn(self, process: Process) -> None:
        """Reads a table, or the changes since the last turn."""
        if not process.ledger.version:
            return
        copy = self._copy
        if copy is None or self.random.random() < 0.03:
            self._copy = process.read(lambda: self._begin(process))
            return
        now = process.read(lambda: self._go_on(process, copy), copy.version)
        expired = copy.version < process.ledger.retention.horizon
        self._copy = now or (None if expired else copy)

    def _begin(self, process: Process) -> TableCopy | None:
        version = process.db.refresh()
        state = process.ledger.states[version]
        if not state:
            return None
        name = self.random.choice(sorted(state))
        snapshot = process.db.at(version=version)
        known = process.db.version
        found = rows_from(snapshot.table(name).scan().to_arrow())
        check_rows(process.ledger, found, version, name, f"version {version}, before a copy of it is kept,", known)
        return TableCopy(state[name].identity, version, tuple(found))

    def _go_on(self, process: Process, copy: TableCopy) -> TableCopy | None:
        """The copy at a later version; None if the table no longer exists."""
        ledger, counts = process.ledger, process.network.counts
        newest = process.db.refresh()
        until = newest if self.random.random() < 0.7 else self.random.randint(copy.version, newest)
        name = name_in(ledger.states[until], copy.table)
        if name is None:
            return None if until == newest else copy
        net, slowly = self.random.random() < 0.3, self.random.random() < 0.2
        where: dict[str, Any] = {"columns": SCHEMA.names} if self.random.random() < 0.3 else {}
        try:
            table = process.db.table(name)
        except TableNotFoundError:
            return copy  # renamed in the meantime
        batches = []
        try:
            feed = table.changes(copy.version, until, net=net, **where)
            known = process.db.version
            for batch in feed:
                batches.append(batch)
                if slowly:
                    process.network.scheduler.pause(self.random.randint(0, MINUTE_US))
        except SchemaError:
            if not _is_narrowed(process, copy, until):
                raise
            counts["feeds up to narrower types"] += 1
            return self._begin(process)
        fed = fed_rows(batches)
        counts["changes fed"] += len(fed)
        counts["net changes fed" if net else "feeds"] += 1
        return follow_feed(ledger, copy, until, fed, net=net, known=known)


def _is_narrowed(process: Process, copy: TableCopy, until: int) -> bool:
    """Whether a restore gave a column back the narrower type that it has in a version: its feed is refused then."""

    def types(version: int) -> dict[str, pa.DataType]:
        name = name_in(process.ledger.states[version], copy.table)
        if name is None:
            return {}
        schema = process.db.at(version=version).table(name).schema
        return dict(zip(schema.names, schema.types, strict=True))

    last = types(until)
    return any(
        last.get(name, own) == pa.int32() != own
        for version in range(copy.version, until)
        for name, own in types(version).items()
    )
