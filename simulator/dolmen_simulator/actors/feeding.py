"""An actor that applies files of changes, which are out of order, overlap, and are delivered at least once."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

from dolmen.commit.statements.row_changes import Advance
from dolmen.format.ingest_properties import CdcSettings, IngestSettings
from dolmen.ingest.cdc.apply_changes import ingest_changes
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, detect
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.transaction_table import TransactionTable
from dolmen_simulator.actors.writers import KEYS, Worker, World
from dolmen_simulator.judge import model
from dolmen_simulator.judge.model import Row
from dolmen_simulator.world.process import Process
from dolmen_simulator.world.requests import QueuedRequest

_SETTINGS = IngestSettings(mode="cdc", cdc=CdcSettings("flat", "v", (), "Op", 10**15))
"""Nothing is forgotten within a history."""

_LATE = 200
_TICK = 2
"""Sequence numbers are numbers of the history divided by this, so that some are equal, and soon exceed other values."""

_TIES = 0.15
"""Share of changes with the key and sequence of an earlier one, as from a source with a coarse clock."""

_NAME = "changes.jsonl"


class NewestChanges:
    """Keys and sequences of the newest changes that were sent."""

    def __init__(self) -> None:
        self.newest: list[tuple[int, int]] = []


class Feeder(Worker):
    """A worker whose requests are files of changes, for tables that others write to as well."""

    def __init__(self, world: World, rng: random.Random) -> None:
        super().__init__(world, rng)
        self._counts = Counter[str]()

    def turn(self, process: Process) -> None:
        """Handles one batch."""
        self._counts = process.network.counts
        super().turn(process)

    def _request(self, name: str) -> QueuedRequest:
        """Makes a file of changes, new ones or late ones."""
        id_ = f"r{self.world.unique()}"
        late = 0 if self.random.random() < 0.5 else _LATE
        changes = tuple(self._change(self.random.randint(0, late)) for _ in range(self.random.randint(1, 6)))
        sent = self.world.shared(NewestChanges)
        sent.newest = [*sent.newest, *((row.k, row.v or 0) for row, _ in changes)][-8:]
        body = "".join(json.dumps(_line(row, gone)) + "\n" for row, gone in changes).encode()
        return QueuedRequest(
            model.ChangesEffect(name, changes, id_), lambda tx, table: self._ingest(tx, table, id_, body), repr(changes)
        )

    def _change(self, late: int) -> tuple[Row, bool]:
        k, v = self.random.randrange(KEYS), max(0, self.world.unique() - late) // _TICK
        newest = self.world.shared(NewestChanges).newest
        if newest and self.random.random() < _TIES:
            k, v = self.random.choice(newest)
        time = None if self.random.random() < 0.5 else self.world.now_us
        return Row(k, v, self.world.unique(), time), self.random.random() < 0.4

    def _ingest(self, transaction: Transaction, table: TransactionTable, id_: str, body: bytes) -> None:
        unit = unit_of(transaction)
        before = len(unit._statements)
        done = ingest_changes(
            transaction,
            table.name,
            SourceFile(lambda: BytesIO(body), detect(_NAME), _NAME, ReadOptions.of(_SETTINGS)),
            settings=_SETTINGS,
            on_bad_row=None,
            request=id_,
        )
        self._counts["changes applied"] += done.upserted + done.deleted
        self._counts["changes void"] += done.unchanged
        added = [each for each in unit._statements[before:] if isinstance(each, Advance)]
        self._counts["files applied without a look"] += any(advance.above is not None for advance in added)
        self._counts["files applied after a look"] += any(advance.above is None for advance in added)


def _line(row: Row, gone: bool) -> dict[str, Any]:
    time = None if row.t is None else datetime.fromtimestamp(row.t / 1e6, UTC).replace(tzinfo=None).isoformat()
    return {"Op": "D", "k": row.k, "v": row.v} if gone else {"Op": "U", **row._asdict(), "t": time, "s": row.s}
