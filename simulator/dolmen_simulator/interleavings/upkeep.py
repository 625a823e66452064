"""Pairs in which one of the two keeps the database small and fast, or applies what comes in files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace as altered
from io import BytesIO
from typing import Any

import pyarrow as pa

from dolmen.commit.statements.rows import Write
from dolmen.database import Database
from dolmen.errors import StaleWriterError, TableNotFoundError, VersionExpiredError
from dolmen.format.ingest_properties import CdcSettings, IngestSettings
from dolmen.format.layout import POINTER
from dolmen.ingest.batch import BatchRequest
from dolmen.ingest.cdc.apply import ingest_changes
from dolmen.ingest.formats.formats import detect
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen.maintenance.expire import expire_rows
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.resolve.resolution import resolve
from dolmen.transaction import Transaction
from dolmen.write.data_file import write_data_files
from dolmen.write.options import WriteOptions
from dolmen_simulator.interleavings.checks import SCHEMA, Pair, Part, Row, Truth, arrow, rows_of
from dolmen_simulator.interleavings.execution import HOUR_US, WAITING, Execution, Peer
from dolmen_simulator.interleavings.pairs import (
    FIRST,
    append,
    applied,
    delete,
    one_table,
    positions,
    rename,
    replace,
    two_files,
    upsert,
)
from dolmen_simulator.interleavings.steps import Outcome
from dolmen_simulator.world.fates import Fate, Verb
from dolmen_simulator.world.scheduler import START_US

_SHORT: dict[str, Any] = {"retention": "1m", "keep_versions": 1, "reader_grace": "1h", "orphan_age": "20m"}
_OPTIONS = CompactionOptions(growth=1)
_CDC = IngestSettings(mode="cdc", cdc=CdcSettings("flat", "v", (), "Op", 10**15))


def upkeep(name: str, task: Callable[[Peer], Any]) -> Part:
    """Background work, which changes no row."""
    return Part(name, task, lambda truth: None, lambda value: None)


def compacting() -> Part:
    """Rewrites the files of a table."""
    return upkeep("compact", lambda peer: compact(peer.context, "t", options=_OPTIONS))


def _the_other_was_done(execution: Execution, outcome: Outcome) -> bool:
    return any(other.kind != "failed" for other in execution.outcomes if other is not outcome)


def resolving() -> Part:
    """Turns tombstones into vectors."""
    return upkeep("resolve", lambda peer: resolve(peer.context, "t"))


def collecting() -> Part:
    """Collects, and once more when readers had their time."""

    def task(peer: Peer) -> None:
        collect(peer.context)
        peer.wait(2)
        collect(peer.context)

    return upkeep("collect, wait, collect", task)


def collecting_once() -> Part:
    """One collection."""
    return upkeep("collect", lambda peer: collect(peer.context))


def slow_append(*rows: Row) -> Part:
    """Adds rows that were uploaded hours before the commit."""

    def effect(truth: Truth) -> None:
        truth.tables["t"].extend(rows)

    def task(peer: Peer) -> Any:
        with peer.db.transaction() as transaction:
            transaction.table("t").append(arrow(rows))
            peer.wait(3)
            return transaction.commit()

    return Part(f"append {list(rows)} with a pause", task, effect, lambda value: None, {StaleWriterError: _collected})


def paused_job(*rows: Row) -> Part:
    """Adds rows under an intent, each in a file of its own, and stands still before it has the last one."""

    def effect(truth: Truth) -> None:
        truth.tables["t"].extend(rows)

    def task(peer: Peer) -> Any:
        context = peer.context

        def batches() -> Any:
            for row in rows[:-1]:
                yield from arrow([row]).to_batches()
            peer.wait(3)
            yield from arrow(rows[-1:]).to_batches()

        with peer.db.transaction("load") as transaction:
            entry = transaction.entry("t")
            transaction.begin_upload()
            intent = transaction.intent()
            files = write_data_files(
                context.store,
                "t",
                entry,
                pa.RecordBatchReader.from_batches(SCHEMA, batches()),
                context.runtime,
                WriteOptions(target_file_bytes=1, run_rows=1),
                name=intent.name,
                beat=intent.beat,
            )
            transaction.add(Write("t", entry.uuid, tuple(files)))
            return transaction.commit()

    return Part(f"load {list(rows)} with a pause", task, effect, lambda value: None, {StaleWriterError: _collected})


def reading(version: int, rows: list[Row]) -> Part:
    """Opens an old version, and reads it."""

    def task(peer: Peer) -> Any:
        return rows_of(peer.db.at(version=version).table("t").to_arrow())

    return Part(f"read version {version}", task, lambda truth: rows, may={VersionExpiredError: _grace_is_over})


def expiring() -> Part:
    """Deletes rows that have outlived their hour."""

    def effect(truth: Truth) -> None:
        before = START_US - HOUR_US
        truth.tables["t"] = [row for row in truth.tables["t"] if row[2] is None or row[2] >= before]

    return Part("expire", lambda peer: expire_rows(peer.context), effect, lambda value: None)


def changing(name: str, *changes: tuple[str, Row]) -> Part:
    """Applies a file of changes: of each key the one with the greatest ``v`` holds."""

    def effect(truth: Truth) -> dict[str, str]:
        for kind, row in changes:
            known = [each[1] for each in truth.tables["t"] if each[0] == row[0]]
            known += [truth.memory[row[0]]] if row[0] in truth.memory else []
            if known and max(known) >= row[1]:
                continue
            if kind == "D":
                truth.tables["t"] = [each for each in truth.tables["t"] if each[0] != row[0]]
                truth.memory[row[0]] = row[1]
            else:
                replace(truth, "t", [row])
        return {name: "applied"}

    body = "".join(json.dumps({"Op": kind, "k": row[0], "v": row[1]}) + "\n" for kind, row in changes).encode()

    def state(transaction: Transaction) -> bool:
        ingest_changes(
            transaction,
            "t",
            lambda: BytesIO(body),
            detect("changes.jsonl"),
            name="changes.jsonl",
            settings=_CDC,
            on_bad_row=None,
            request=name,
        )
        return True

    def task(peer: Peer) -> Any:
        return applied(peer, [BatchRequest(name, name, state)])

    return Part(f"apply changes {list(changes)}", task, effect)


def _collected(execution: Execution, outcome: Outcome) -> bool:
    """Whether a collection has moved the fence: the other has committed something."""
    return bool(swings(execution, by=1))


def _grace_is_over(execution: Execution, outcome: Outcome) -> bool:
    """Whether the version had expired before the reader opened it, or his grace was over."""
    looks = [
        step.at for step in execution.steps if step.who == 0 and step.landed and step.waiting.told.endswith(POINTER)
    ]
    opened = looks[1] if len(looks) > 1 else outcome.last  # the first look opens the database
    waited = [step.at for step in execution.steps if step.waiting.told.startswith(WAITING)]
    return any(at < opened for at in swings(execution, by=1)) or any(at < outcome.last for at in waited)


def swings(execution: Execution, by: int) -> list[int]:
    """The steps at which commits of one of the two landed."""
    found = []
    for step in execution.steps:
        request = step.waiting.request
        if request is not None and request.if_match and request.verb is Verb.PUT and request.who == str(by):
            found += [step.at] if step.landed else []
    return found


def with_deletes(db: Database) -> None:
    """Two files, some rows of which a tombstone hides."""
    two_files(db)
    db.table("t").delete("v IN (20, 50)")


def with_old_versions(db: Database) -> None:
    """Versions that will expire, and files that only they have."""
    two_files(db)
    compact(db.context, "t", options=_OPTIONS)
    db.set(**_SHORT)


def with_short_orphans(db: Database) -> None:
    """Objects that no version names are soon removed, all else is kept for long."""
    one_table(db)
    db.set(orphan_age="20m")


def with_intents(db: Database) -> None:
    """Jobs are soon taken for dead, all else is kept for long."""
    one_table(db)
    db.set(intent_timeout="1h")


def with_times(db: Database) -> None:
    """Rows of which some have lived for too long."""
    old, young = START_US - 2 * HOUR_US, START_US
    db.create_table("t", SCHEMA, primary_key="k").append(arrow([(1, 10, old), (2, 20, young)]))
    db.table("t").set(ttl="t 1h")


OLD: list[Row] = [*FIRST, (4, 40, None), (5, 50, None), (6, 60, None)]
"""Rows of version 3 of a database with old versions."""

UPKEEP: tuple[Pair, ...] = (
    Pair(
        "positions/compact",
        two_files,
        (positions("v BETWEEN 20 AND 50", lambda row: 20 <= row[1] <= 50), compacting()),
    ),
    Pair("resolve/compact", with_deletes, (resolving(), compacting())),
    Pair("compact/delete", with_deletes, (compacting(), delete("v >= 30", lambda row: row[1] >= 30))),
    Pair(
        "compact/rename",
        with_deletes,
        (altered(compacting(), may={TableNotFoundError: _the_other_was_done}), rename("u")),
    ),
    Pair("compact/upsert", with_deletes, (compacting(), upsert((2, 21, None), (4, 41, None)))),
    Pair(
        "commit/GC",
        with_short_orphans,
        (slow_append((7, 70, None)), collecting_once()),
        hours=5,
        stalls=(0,),
        quick=(0,),
        quick_fates=(Fate.LATE,),
    ),
    Pair(
        "paused job/GC",
        with_intents,
        (paused_job((7, 70, None), (8, 80, None), (9, 90, None)), collecting_once()),
        hours=5,
        stalls=(0,),
        quick=(0,),
        quick_fates=(Fate.LATE,),
    ),
    Pair("snapshot reader/GC", with_old_versions, (reading(3, OLD), collecting()), hours=5, stalls=(0,)),
    Pair("expire/append", with_times, (expiring(), append((3, 30, START_US - 3 * HOUR_US)))),
    Pair(
        "changes/changes",
        one_table,
        (
            changing("a", ("U", (1, 100, None)), ("D", (2, 100, None)), ("U", (3, 50, None))),
            changing("b", ("U", (1, 90, None)), ("U", (2, 90, None)), ("D", (3, 60, None))),
        ),
        quick=(0,),
        events=True,
    ),
)
