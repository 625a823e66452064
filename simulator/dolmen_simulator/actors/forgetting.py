"""An actor that erases rows and forgets subjects, concurrently with everything that may bring the rows back."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dolmen.errors import InputError
from dolmen.iceberg.publication import publish_erasures
from dolmen.predicate.parse import Where
from dolmen.rows.write.row_digest import content_digest
from dolmen.transactions.transaction import unit_of
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.actors.writers import KEYS, NAMES, Actor, World, named_columns
from dolmen_simulator.judge.erasing import SUBJECT, EraseEffect, ForgetEffect
from dolmen_simulator.judge.ingesting import IngestEffect
from dolmen_simulator.judge.model import Matches, SettingsEffect
from dolmen_simulator.world.landing import DropQueue
from dolmen_simulator.world.process import Process

_SELDOM = 0.3
_REPEATED = 0.25


@dataclass(frozen=True)
class _Request:
    """An erasure that is asked for under an id, often more than once."""

    kind: str
    effect: EraseEffect | ForgetEffect
    call: Callable[[Process], Commit | None]


class Eraser(Actor):
    """Erases rows by key, by predicate and by subject, with a request id or without."""

    label = "forgetter"

    def __init__(self, world: World, rng: random.Random) -> None:
        super().__init__(world, rng)
        self._last: _Request | None = None
        self._erasure: str | None = None
        """The id of the erasure of the last call."""

    def turn(self, process: Process) -> None:
        """Erases once, seldom, or says whom a table's rows are about."""
        if self.random.random() < _SELDOM or not process.ledger.version:
            return
        chance = self.random.random()
        if self._last is not None and chance < _REPEATED:
            self._make(process, self._last)
        elif chance < 0.4:
            self._set_subject(process)
        elif chance < 0.65 and any(SUBJECT in table.settings for table in process.ledger.states[-1].values()):
            self._make(process, self._forget())
        elif chance < 0.85 and (dropped := self._dropped_row(process)) is not None:
            table, k = dropped
            self._make(process, self._erase(table, {"k": k}, lambda row: row.k == k, frozenset("k")))
        elif (name := self.target(process, NAMES)) is not None:
            self._make(process, self._erase(name, *self._rows_named()))

    def _make(self, process: Process, request: _Request) -> None:
        self._last = request if request.effect.request is not None else self._last
        self._erasure = None
        if process.write(request.kind, [request.effect], lambda: request.call(process)) and self._erasure is not None:
            ids = [self._erasure]  # the second half of ``Table.erase`` and ``Database.forget``, a commit of its own
            process.upkeep("publish erased tables", lambda: publish_erasures(process.context, ids), tuple(NAMES))

    def _set_subject(self, process: Process) -> None:
        name = self.target(process, NAMES)
        changes: dict[str, Any] = {SUBJECT: self.random.choice(("k", "k", "v", None))}
        if name is not None:
            effect = SettingsEffect(name, changes)
            process.write(f"set {name} {changes}", [effect], lambda: process.db.table(name).set(**changes))

    def _dropped_row(self, process: Process) -> tuple[str, int] | None:
        """Draws a row of a file that was dropped and is not ingested yet: its table and its key."""
        state = process.ledger.states[-1]
        files = [effect for dropped in self.world.shared(DropQueue).pending for effect in dropped.effects]
        rows = [
            (effect.table, row.k)
            for effect in files
            if isinstance(effect, IngestEffect) and effect.table in state
            for row in effect.rows
        ]
        return self.random.choice(rows) if rows else None

    def _erase(self, name: str, where: Where, matches: Matches, columns: frozenset[str]) -> _Request:
        id_ = None if self.random.random() < 0.6 else f"e{self.world.unique()}"

        def call(process: Process) -> Commit:
            with process.db.transaction("erase") as transaction:
                self._erasure = transaction.table(name).erase(where, request=id_)
                if id_ is not None:
                    assert process.line.operation is not None
                    [process.line.operation.digests[id_]] = unit_of(transaction)._content[id_]
                return transaction.commit()

        return _Request(f"erase {where} from {name}", EraseEffect(name, matches, columns, id_), call)

    def _rows_named(self) -> tuple[Where, Matches, frozenset[str]]:
        """Draws a predicate, with the columns that it names."""
        if self.random.random() < 0.5:
            k = self.random.randrange(KEYS)
            return {"k": k}, lambda row: row.k == k, frozenset("k")
        where, matches = self.predicate()
        return where, matches, named_columns(where)

    def _forget(self) -> _Request:
        id_ = None if self.random.random() < 0.5 else f"e{self.world.unique()}"
        subject = self.random.randrange(KEYS)
        digest = content_digest("forget", [type(subject).__name__, subject])

        def call(process: Process) -> Commit | None:
            operation, run = process.line.operation, process.line.run
            assert operation is not None
            assert run is not None
            operation.digests = {} if id_ is None else {id_: digest}
            try:
                with process.db.transaction("forget") as transaction:
                    self._erasure = transaction.forget(subject, request=id_)
                    return transaction.commit()
            except InputError:
                states = process.ledger.states
                without = [
                    version
                    for version in range(operation.began, process.db.version + 1)  # it may know a newer one by now
                    if not any(SUBJECT in table.settings for table in states[version].values())
                ]
                if not without:
                    raise
                run.base = without[-1]
                operation.digests = {}  # such a value identifies no subject
                process.network.counts["subjects of no table"] += 1
                return None

        return _Request(f"forget {subject}", ForgetEffect(subject, request=id_), call)
