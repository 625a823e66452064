"""An actor that sends delete requests, and applies them as the delete function does: several tables, any mode, once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dolmen.api.database import Database
from dolmen.base.records import replace
from dolmen.format.receipts import erasure_id
from dolmen.iceberg.publication import publish_erasures
from dolmen.ingest.batch import Message, isolate
from dolmen.ingest.delete_requests import DeleteRequest, apply_deletes, parse_request
from dolmen.ingest.redaction import MessageError
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.actors.batches import Answer, serve
from dolmen_simulator.actors.writers import KEYS, NAMES, PLAIN, Actor, named_columns
from dolmen_simulator.judge import model
from dolmen_simulator.judge.erasing import EraseEffect, ForgetEffect
from dolmen_simulator.judge.model import Effect, Matches
from dolmen_simulator.world.process import Process
from dolmen_simulator.world.requests import SimulatedQueue

_ERASURES = 0.06


@dataclass(frozen=True)
class DeleteMessage:
    """A message of the delete queue.

    Args:
        id: the applied id.
        body: the message's body.
        effects: its effects; none if it is not a valid request.
    """

    id: str
    body: str
    effects: tuple[Effect, ...]

    @property
    def erases(self) -> bool:
        """Whether it asks for an erasure."""
        return any(isinstance(effect, EraseEffect | ForgetEffect) for effect in self.effects)

    def forge(self) -> DeleteMessage | None:
        """Makes another delete under the same id."""
        other = json.dumps({"table": PLAIN[0], "where": "k = 1", "request_id": self.id})
        effect = model.DeleteEffect(PLAIN[0], lambda row: row.k == 1, self.id)  # it may be the first to be applied
        return replace(self, body=other, effects=(effect,)) if self.effects else None


class DeleteQueue(SimulatedQueue[DeleteMessage]):
    """The delete queue."""


class DeleteRequester(Actor):
    """Sends delete requests, and handles batches of them as the delete function does."""

    label = "eraser"

    def turn(self, process: Process) -> None:
        """Handles one invocation, now and then."""
        if self.random.random() < 0.4:
            return
        queue = self.world.shared(DeleteQueue)
        if queue.wants_more and self.random.random() < 0.8:
            for _ in range(self.random.randint(1, 3)):
                queue.send(self._demand(process))
        batch = queue.receive(self.random)
        by_id = {demand.id: demand for demand in batch}
        messages = [Message(demand.id, demand.body, queue.deliveries(demand)) for demand in batch]
        for group in isolate(messages):
            demands = [by_id[message.id] for message in group if message.id is not None]
            done = self._handle(process, group, demands)
            erased = [erasure_id(demand.id) for demand in demands if demand.id in done and demand.erases]
            if erased:  # the function does so after it has settled its messages
                process.upkeep(
                    "publish erased tables", partial(publish_erasures, process.context, erased), tuple(NAMES)
                )
            queue.settle([demand for demand in demands if demand.id in done], acknowledged=True)
            queue.settle([demand for demand in demands if demand.id not in done], acknowledged=False)

    def _handle(self, process: Process, group: Sequence[Message], demands: Sequence[DeleteMessage]) -> set[str]:
        requests: list[DeleteRequest] = []
        for message in group:
            try:
                requests.append(parse_request(message.body, message.id))
            except MessageError:
                process.network.counts["messages refused"] += 1
        if not requests:
            return set()
        by_id = {demand.id: demand for demand in demands}

        def call(database: Database) -> tuple[list[Answer], Commit | None]:
            deleted = apply_deletes(database, requests)
            process.network.counts["requests deleted"] += sum(o.status == "applied" for o in deleted.outcomes)
            return [
                Answer(request.id, request.digest, outcome.version, outcome.error)
                for request, outcome in zip(requests, deleted.outcomes, strict=True)
            ], deleted.commit

        kind = f"delete requests {' '.join(request.id for request in requests)}"
        process.network.counts["erasures by message"] += sum(request.erases for request in requests)
        tables = {delete.table for request in requests for delete in request.deletes}
        return serve(process, kind, lambda id_: by_id[id_].effects, tables, call)

    def _demand(self, process: Process) -> DeleteMessage:
        id_ = f"d{self.world.unique()}"
        if self.random.random() < 0.04:
            return DeleteMessage(
                id_, self.random.choice(('{"table": "left"', '{"table": "left", "where": ""}', "[]")), ()
            )
        if self.random.random() < _ERASURES:
            return self._erasure(id_, self.target(process, NAMES) or PLAIN[0])
        tables = list(PLAIN) if self.random.random() < 0.4 else [self.target(process) or PLAIN[0]]
        if self.random.random() < 0.25 and len(tables) > 1:  # something else from each
            parts = [self._delete() for _ in tables]
            named = [body | {"table": table} for table, (body, _) in zip(tables, parts, strict=True)]
            body: dict[str, Any] = {"tables": named}
            matching = [matches for _, matches in parts]
        else:
            body, matches = self._delete()
            body |= {"table": tables[0]} if len(tables) == 1 else {"tables": tables}
            matching = [matches] * len(tables)
        modes = [part.get("mode") for part in body.get("tables", ()) if isinstance(part, dict)] or [body.get("mode")]
        modes *= len(tables) // len(modes)
        effects = tuple(
            model.DeletePositionsEffect(table, each, id_) if mode else model.DeleteEffect(table, each, id_)
            for table, each, mode in zip(tables, matching, modes, strict=True)
        )
        return DeleteMessage(id_, json.dumps(body | {"request_id": id_}), effects)

    def _erasure(self, id_: str, table: str) -> DeleteMessage:
        """Draws an erasure of rows of a table, or of who tables with a subject are about."""
        k, kind = self.random.randrange(KEYS), self.random.random()
        effect: Effect
        body: dict[str, Any]
        if kind < 0.4:
            effect, body = ForgetEffect(k, request=id_), {"forget": {"subject": k}}
        elif kind < 0.7:
            keys = [k, self.random.randrange(KEYS)]
            effect = EraseEffect(table, lambda row: row.k in keys, frozenset("k"), id_)
            body = {"erase": {"table": table, "keys": keys}}
        else:
            where, matches = self.predicate()
            effect = EraseEffect(table, matches, named_columns(where), id_)
            body = {"erase": {"table": table, "where": where}}
        return DeleteMessage(id_, json.dumps(body | {"request_id": id_}), (effect,))

    def _delete(self) -> tuple[dict[str, Any], Matches]:
        """Draws a delete, in the form of a message and as a Python predicate."""
        kind = self.random.random()
        if kind < 0.2:
            keys = [self.random.randrange(KEYS) for _ in range(self.random.randint(1, 3))]
            return {"keys": keys}, lambda row: row.k in keys
        if kind < 0.35:
            values = [self.random.randrange(100) for _ in range(self.random.randint(1, 9))]
            return {"keys": values, "on": "v"}, lambda row: row.v in values
        if kind < 0.45:
            pairs = [[self.random.randrange(KEYS), self.random.randrange(100)] for _ in range(9)]
            return {"keys": pairs, "on": ["k", "v"]}, lambda row: [row.k, row.v] in pairs
        where, matches = self.predicate()
        body: dict[str, Any] = {"where": where}
        return body | ({"mode": "positions"} if kind > 0.8 else {}), matches
