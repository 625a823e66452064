"""An actor that drops files, and ingests them as the function does: each once, or rejected with a reason."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.api.database import Database
from dolmen.base.records import replace
from dolmen.ingest.announcements import Drop, read_drops
from dolmen.ingest.batch import Message, isolate
from dolmen.ingest.drops.drop_outcomes import DropOutcome
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.ingest.landing import PREFIX, REJECTED
from dolmen.ingest.rejects import ERROR_SUFFIX, reject_key
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.actors.batches import Answer, serve
from dolmen_simulator.actors.writers import PLAIN, Actor, arrow
from dolmen_simulator.judge.ingesting import DroppedColumn, IngestEffect
from dolmen_simulator.judge.model import FULL_STRUCT, NULL_STRUCT, Effect, Row, SettingsEffect, TableRows
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.world.landing import BUCKET, DroppedFile, DropQueue
from dolmen_simulator.world.process import Process

_UNFOUNDED = "unfounded"
"""A table that no other actor creates: the first file that is dropped for it defines its columns."""

_EXTRA = ("a", "b", "c", "d")
"""The names of columns that files have beside those of all tables; others give tables columns of these names, too."""

_BAD_ROW = {"k": 1, "v": "not a number", "u": 0, "t": None}


class Ingester(Actor):
    """Drops files for tables that others write to, and handles batches of their events."""

    def turn(self, process: Process) -> None:
        """One invocation, now and then."""
        if self.random.random() < 0.3:
            return
        drops = self.world.shared(DropQueue)
        if drops.wants_more and self.random.random() < 0.7:
            for _ in range(self.random.randint(1, 3)):
                self._drop(process, drops)
        batch = drops.receive(self.random)
        by_id = {dropped.id: dropped for dropped in batch}
        messages = [Message(dropped.id, dropped.message, drops.deliveries(dropped)) for dropped in batch]
        for group in isolate(messages):
            for unfounded in (False, True):  # the others find no table, or one with a key
                here = [by_id[str(message.id)] for message in group]
                here = [dropped for dropped in here if (dropped.table == _UNFOUNDED) is unfounded]
                done = self._handle(process, drops, here, create=unfounded) if here else set()
                drops.settle([dropped for dropped in here if dropped.id in done], acknowledged=True)
                drops.settle([dropped for dropped in here if dropped.id not in done], acknowledged=False)

    def _handle(self, process: Process, drops: DropQueue, batch: Sequence[DroppedFile], *, create: bool) -> set[str]:
        messages = [Message(dropped.id, dropped.message, drops.deliveries(dropped)) for dropped in batch]
        announced = [(drop, message.may_wait) for message in messages for drop in read_drops(message.body)[0]]
        by_id = {dropped.id: dropped for dropped in batch}

        def effects(id_: str) -> Iterable[Effect]:
            return by_id[id_].effects if id_ in by_id else ()  # else the id of a rejection

        def call(database: Database) -> tuple[list[Answer], Commit | None]:
            done = ingest_drops(
                database,
                drops.landing(process),
                [drop for drop, _ in announced],
                auto_create=create,
                may_wait=[drop for drop, may_wait in announced if may_wait],
            )
            answers = []
            for outcome in done.outcomes:
                process.network.counts[f"files {outcome.status}"] += 1
                process.network.counts["columns added for files"] += outcome.columns_added
                self._check(process, drops, by_id[outcome.drop.id], outcome)
                answer = Answer(outcome.drop.id, outcome.drop.etag)
                if outcome.status in ("ingested", "duplicate", "waiting", "failed"):
                    answer = replace(answer, version=outcome.version, error=outcome.error)
                answers.append(answer)
            return answers, done.commit

        tables = {dropped.table for dropped in batch}
        ended = serve(process, f"ingest of {len(batch)} files", effects, tables, call)
        for id_ in sorted(ended):
            self._check_report(process, drops, by_id[id_].drop)
        return ended

    def _check(self, process: Process, drops: DropQueue, dropped: DroppedFile, outcome: DropOutcome) -> None:
        """Compares the report about a file with its rows and with the errors that occurred."""
        ledger, drop = process.ledger, dropped.drop
        match outcome.status:
            case "ingested":
                [effect] = dropped.effects
                assert isinstance(effect, IngestEffect)
                rows, counts = len(effect.rows), outcome.counts
                found = (counts.ingested + counts.erased, counts.quarantined)
                if found != (rows, dropped.bad) and not (effect.extra and effect.extra.in_rows and found == (0, rows)):
                    raise ViolationError(Never.MISREPORTED, f"{drop.source} is told to be {counts}")
                process.network.counts["late rows told"] += counts.erased
            case "rejected":
                assert outcome.reject is not None
                since = ledger.states[dropped.since :]  # its first rejecter may have died before it reported this
                may_be = dropped.bad or any(_lacks_column(state.get(dropped.table), dropped) for state in since)
                if not may_be and all(dropped.table in state for state in since):
                    raise ViolationError(Never.LOST, f"{drop.source} was rejected: {outcome.error!r}")
                kept = drops.body(process.network, f"{REJECTED}/{outcome.reject.key}")
                report = drops.body(process.network, f"{REJECTED}/{outcome.reject.key}{ERROR_SUFFIX}")
                if kept != dropped.body or report is None:
                    raise ViolationError(Never.LOST, f"{drop.source} was rejected, and is not among the rejects")
            case "superseded":
                if drops.body(process.network, drop.key) == dropped.body:
                    raise ViolationError(Never.LOST, f"{drop.source} was taken for overwritten")
            case "ignored":
                raise ViolationError(Never.LOST, f"{drop.source} was ignored")

    def _check_report(self, process: Process, drops: DropQueue, drop: Drop) -> None:
        """No file is both ingested and rejected by one event."""
        place = drops.landing(process).path_of(drop)
        if place is None or drop.sequencer is None or drop.id not in process.ledger.applied:
            return
        if drops.body(process.network, f"{REJECTED}/{reject_key(drop, place)}{ERROR_SUFFIX}") is not None:
            raise ViolationError(Never.MISREPORTED, f"{drop.source} is ingested, and a report says it was rejected")

    def _drop(self, process: Process, drops: DropQueue) -> None:
        """A file is dropped, and its event is on its way. Now and then it is overwritten before anybody looks."""
        table = self.target(process, PLAIN) or PLAIN[0]
        number, rows = self.world.unique(), self.rows()
        kind, chance = self.random.choice(("jsonl", "csv", "parquet")), self.random.random()
        bad = chance < 0.12
        if chance < 0.04:  # nothing of it can be read
            kind, body, rows = "parquet", b"PAR1 and then nothing", ()
        elif bad:
            kind, body = "jsonl", _lines(rows, bad=True)
        else:
            rows = self.renumbered(rows, NULL_STRUCT) if kind == "csv" else rows
            body = {"jsonl": _lines, "csv": _csv, "parquet": _parquet}[kind](rows)
        if not bad and self.random.random() < 0.15:
            table = _UNFOUNDED
            rows = tuple(Row(row.k, row.v or 0, row.u, row.t or process.network.scheduler.now_us) for row in rows)
            rows, kind = self.renumbered(rows, FULL_STRUCT), "parquet" if kind == "parquet" else "jsonl"
            body = _parquet(rows) if kind == "parquet" else _lines(rows)
        extra: DroppedColumn | None = None
        if not bad and table != _UNFOUNDED and self.random.random() < 0.3:
            values = tuple(self.random.randrange(100) for _ in rows)
            extra = DroppedColumn(self.world.unique(), self.random.choice(_EXTRA), values, kind == "jsonl")
            body = {"jsonl": _lines, "csv": _csv, "parquet": _parquet}[kind](rows, extra)
        takes_late = self.random.random() < 0.5  # when others may have found that the file does not fit
        if extra is not None and not takes_late:
            self._take_columns(process, table)
        key = f"{PREFIX}{table}/{number}.{kind}"
        self._send(process, drops, key, body, rows, bad, extra)
        if extra is not None and takes_late:
            self._take_columns(process, table)
        if self.random.random() < 0.05 and kind == "jsonl" and extra is None and table != _UNFOUNDED:
            rows = self.rows()
            self._send(process, drops, key, _lines(rows), rows, bad=False)

    def _take_columns(self, process: Process, table: str) -> None:
        """Makes a table take new columns, mostly, if it does not yet."""
        there = process.ledger.states[-1].get(table)
        if there is None or there.settings.get("ingest_new_columns") == "add" or self.random.random() < 0.3:
            return
        changes: dict[str, Any] = {"ingest_new_columns": "add"}
        effect = SettingsEffect(table, changes)
        process.write(f"set {table} {changes}", [effect], lambda: process.db.table(table).set(**changes))

    def _send(
        self,
        process: Process,
        drops: DropQueue,
        key: str,
        body: bytes,
        rows: tuple[Row, ...],
        bad: bool,
        extra: DroppedColumn | None = None,
    ) -> None:
        etag = drops.put(process.network, key, body)
        sequencer = f"{self.world.unique():016X}" if self.random.random() < 0.8 else None
        drop = Drop(BUCKET, key, len(body), etag, None, sequencer)
        now_us = None if self.random.random() < 0.1 or sequencer is None else process.network.server_clock_us()
        table = key.split("/")[1]
        erasures, creates = process.ledger.erasures, table == _UNFOUNDED
        effect = IngestEffect(table, rows, drop.id, extra, now_us, erasures, creates)
        drops.send(DroppedFile(drop, body, (effect,) if rows else (), bad, process.ledger.version, now_us))


def _time(us: int | None) -> str | None:
    return None if us is None else datetime.fromtimestamp(us / 1e6, UTC).replace(tzinfo=None).isoformat()


def _lacks_column(table: TableRows | None, dropped: DroppedFile) -> bool:
    """Whether a version of the table lacks the file's column, and does not ask for it."""
    [extra] = [effect.extra for effect in dropped.effects if isinstance(effect, IngestEffect)] or [None]
    if extra is None or table is None or table.settings.get("ingest_new_columns") in ("add", "ignore"):
        return False
    return all(column.name != extra.name for column in table.columns)


def _lines(rows: tuple[Row, ...], extra: DroppedColumn | None = None, *, bad: bool = False) -> bytes:
    more = [{}] * len(rows) if extra is None else [{extra.name: value} for value in extra.values]
    said = [
        json.dumps({**row._asdict(), "t": _time(row.t), "s": row.s, **own}) for row, own in zip(rows, more, strict=True)
    ]
    if bad:
        said.insert(len(said) // 2, json.dumps(_BAD_ROW))
    return "".join(line + "\n" for line in said).encode()


def _csv(rows: tuple[Row, ...], extra: DroppedColumn | None = None) -> bytes:
    """A file without structs."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*Row._fields, *([extra.name] if extra else [])])
    more = [(value,) for value in extra.values] if extra else [()] * len(rows)
    writer.writerows((row.k, row.v, row.u, _time(row.t), *own) for row, own in zip(rows, more, strict=True))
    return text.getvalue().encode()


def _parquet(rows: tuple[Row, ...], extra: DroppedColumn | None = None) -> bytes:
    target, table = io.BytesIO(), arrow(rows)
    if extra is not None:
        table = table.append_column(extra.name, pa.array(extra.values, pa.int64()))
    pq.write_table(table, target)
    return target.getvalue()
