"""Pairs with background work, or with files of changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import pyarrow as pa

from dolmen.api.database import Database
from dolmen.base.records import replace as altered
from dolmen.commit.head import context_of
from dolmen.commit.statements.row_changes import Write
from dolmen.errors import Error, StaleWriterError, TableNotFoundError, VersionExpiredError
from dolmen.format.ingest_properties import UNAVAILABLE_VALUE, CdcSettings, IngestSettings
from dolmen.format.layout import POINTER
from dolmen.ingest.batch import BatchRequest, Decision
from dolmen.ingest.cdc.apply_changes import ingest_changes
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, detect
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.resolution import resolve
from dolmen.maintenance.ttl import expire_rows
from dolmen.rows.write.data_file import write_data_files
from dolmen.rows.write.runs import WriteOptions
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen_simulator.interleavings.checks import SCHEMA, ExpectedTables, Pair, PairedCall, Row, arrow, rows_of
from dolmen_simulator.interleavings.execution import HOUR_US, WAITING, Execution, Peer
from dolmen_simulator.interleavings.pairs import (
    FIRST,
    append,
    apply_requests,
    delete,
    one_table,
    positions,
    rename,
    replace,
    two_files,
    update,
    upsert,
)
from dolmen_simulator.interleavings.steps import TaskOutcome
from dolmen_simulator.world.fates import Fate, Verb
from dolmen_simulator.world.scheduler import START_US

EXPIRING_SOON: dict[str, Any] = {"retention": "1m", "keep_versions": 1, "reader_grace": "1h", "orphan_age": "20m"}
"""Settings by which versions expire within hours."""

COMPACTION_OPTIONS = CompactionOptions(growth=1)
"""Options by which two small files are worth a compaction."""

SPLICE_OPTIONS = altered(COMPACTION_OPTIONS, deleted_share=0.1, run_bytes=80, row_group_bytes=1, splice_bytes=1)
"""Options by which files have row groups of two rows, one deleted row makes them worth a compaction, and row groups
without deleted rows are copied."""

LEFT_OUT = UNAVAILABLE_VALUE
"""A time that a change omits because it did not change."""
_CDC = IngestSettings(mode="cdc", cdc=CdcSettings("flat", "v", (), "Op", 10**15))


def upkeep(name: str, task: Callable[[Peer], Any]) -> PairedCall:
    """A call that changes no row."""
    return PairedCall(name, task, lambda model: None, lambda value: None)


def compaction() -> PairedCall:
    """Compacts a table."""
    return upkeep("compact", lambda peer: compact(peer.context, "t", options=COMPACTION_OPTIONS))


def splicing() -> PairedCall:
    """Compacts a table, and copies row groups without deleted rows, by parts of an upload."""
    return upkeep("splice", lambda peer: compact(peer.context, "t", options=SPLICE_OPTIONS))


def _other_call_finished(execution: Execution, outcome: TaskOutcome) -> bool:
    return any(other.kind != "failed" for other in execution.outcomes if other is not outcome)


def resolution() -> PairedCall:
    """Resolves the tombstones of a table."""
    return upkeep("resolve", lambda peer: resolve(peer.context, "t"))


def two_collections() -> PairedCall:
    """Collects, and collects again after the grace of readers."""

    def task(peer: Peer) -> None:
        collect(peer.context)
        peer.wait(2)
        collect(peer.context)

    return upkeep("collect, wait, collect", task)


def one_collection() -> PairedCall:
    """Collects once."""
    return upkeep("collect", lambda peer: collect(peer.context))


def slow_append(*rows: Row) -> PairedCall:
    """Appends rows that were uploaded hours before the commit."""

    def effect(model: ExpectedTables) -> None:
        model.tables["t"].extend(rows)

    def task(peer: Peer) -> Any:
        with peer.db.transaction() as transaction:
            transaction.table("t").append(arrow(rows))
            peer.wait(3)
            return transaction.commit()

    return PairedCall(
        f"append {list(rows)} with a pause", task, effect, lambda value: None, {StaleWriterError: _fence_moved}
    )


def paused_load(*rows: Row) -> PairedCall:
    """Loads rows under an intent, each in a file of its own, and stalls before the last one."""

    def effect(model: ExpectedTables) -> None:
        model.tables["t"].extend(rows)

    def task(peer: Peer) -> Any:
        context = peer.context

        def batches() -> Any:
            for row in rows[:-1]:
                yield from arrow([row]).to_batches()
            peer.wait(3)
            yield from arrow(rows[-1:]).to_batches()

        with peer.db.transaction("load") as transaction:
            unit = unit_of(transaction)
            entry = unit.entry("t")
            unit.begin_upload()
            intent = unit.intent()
            files = write_data_files(
                context.store,
                "t",
                entry,
                pa.RecordBatchReader.from_batches(SCHEMA, batches()),
                context.runtime,
                WriteOptions(file_bytes=1, run_rows=1),
                name=intent.name,
                beat=intent.beat,
            )
            unit.add(Write("t", entry.uuid, tuple(files)))
            return transaction.commit()

    return PairedCall(
        f"load {list(rows)} with a pause", task, effect, lambda value: None, {StaleWriterError: _fence_moved}
    )


def read_version(version: int, rows: list[Row]) -> PairedCall:
    """Opens and reads an old version."""

    def task(peer: Peer) -> Any:
        return rows_of(peer.db.at(version=version).table("t").to_arrow())

    return PairedCall(
        f"read version {version}",
        task,
        lambda model: rows,
        allowed_errors=VERSION_EXPIRED,
    )


def row_expiry() -> PairedCall:
    """Expires the rows that are older than the table's time to live."""

    def effect(model: ExpectedTables) -> None:
        before = START_US - model.ttl_hours * HOUR_US
        model.tables["t"] = [row for row in model.tables["t"] if row[2] is None or row[2] >= before]

    return PairedCall("expire", lambda peer: expire_rows(peer.context), effect, lambda value: None)


def set_longer_ttl() -> PairedCall:
    """Gives rows a longer time to live, which no row has exceeded: rows that are read after it stay."""

    def effect(model: ExpectedTables) -> list[Row]:
        model.ttl_hours = 3
        return model.rows["t"]

    def task(peer: Peer) -> Any:
        peer.db.table("t").set(ttl="t 3h")
        return rows_of(peer.db.table("t").to_arrow())

    return PairedCall("set ttl and read", task, effect)


def change_file(name: str, *changes: tuple[str, Row], table: str = "t") -> PairedCall:
    """Applies a file of changes. For each key, the change with the greatest ``v`` wins. No two tables get one key.

    A time that is ``LEFT_OUT`` is that of the change before, in the order of ``v``. No key begins with such a row.
    """

    def effect(model: ExpectedTables) -> dict[str, str]:
        for kind, row in changes:
            key, sequence, time = row
            own = [each for each in model.tables[table] if each[0] == key]
            known = [each[1] for each in own] + ([model.memory[key]] if key in model.memory else [])
            since = model.memory.get(("time of", key))
            if known and max(known) >= sequence:
                if kind != "D" and time != LEFT_OUT and own and since is not None and since < sequence < own[0][1]:
                    replace(model, table, [(key, own[0][1], time)])
                    model.memory["time of", key] = sequence
                continue
            model.memory.pop(("time of", key), None)
            if kind == "D":
                model.tables[table] = [each for each in model.tables[table] if each[0] != key]
                model.memory[key] = sequence
            elif time == LEFT_OUT:
                replace(model, table, [(key, sequence, own[0][2])])
                model.memory["time of", key] = own[0][1] if since is None else since
            else:
                replace(model, table, [row])
        return {name: "applied"}

    body = "".join(json.dumps(_line(kind, row)) + "\n" for kind, row in changes).encode()

    def add_to(transaction: Transaction) -> Decision:
        ingest_changes(
            transaction,
            table,
            SourceFile(lambda: BytesIO(body), detect("changes.jsonl"), "changes.jsonl", ReadOptions.of(_CDC)),
            settings=_CDC,
            on_bad_row=None,
            request=name,
        )
        return "apply"

    def task(peer: Peer) -> Any:
        return apply_requests(peer, [BatchRequest(name, name, add_to)])

    return PairedCall(f"apply changes {list(changes)} to {table}", task, effect)


def _line(kind: str, row: Row) -> dict[str, Any]:
    key, sequence, time = row
    if isinstance(time, int):
        time = datetime.fromtimestamp(time / 1e6, UTC).replace(tzinfo=None).isoformat()
    return {"Op": kind, "k": key, "v": sequence, "t": time}


def _fence_moved(execution: Execution, outcome: TaskOutcome) -> bool:
    """Whether the collection moved the fence, that is, committed anything."""
    return bool(pointer_commits(execution, by=1))


def _version_expired_or_grace_over(execution: Execution, outcome: TaskOutcome) -> bool:
    """Whether the version had expired before the reader opened it, or the reader's grace was over."""
    looks = [
        step.at
        for step in execution.steps
        if step.who == 0 and step.landed and step.waiting.description.endswith(POINTER)
    ]
    opened = looks[1] if len(looks) > 1 else outcome.last  # the first look opens the database
    waited = [step.at for step in execution.steps if step.waiting.description.startswith(WAITING)]
    return any(at < opened for at in pointer_commits(execution, by=1)) or any(at < outcome.last for at in waited)


VERSION_EXPIRED: dict[type[Error], Callable[[Execution, TaskOutcome], bool]] = {
    VersionExpiredError: _version_expired_or_grace_over
}
"""A call that reads an old version is refused if it has expired."""


def pointer_commits(execution: Execution, by: int) -> list[int]:
    """The steps at which commits of one call landed."""
    found = []
    for step in execution.steps:
        request = step.waiting.request
        if request is not None and request.if_match and request.verb is Verb.PUT and request.who == str(by):
            found += [step.at] if step.landed else []
    return found


def table_with_tombstone(db: Database) -> None:
    """Makes a table of two files, with a tombstone that hides some rows."""
    two_files(db)
    db.table("t").delete("v IN (20, 50)")


def table_to_splice(db: Database) -> None:
    """Makes a table of one file with three row groups, of which one has a deleted row."""
    two_files(db)
    compact(context_of(db), "t", options=SPLICE_OPTIONS)
    db.table("t").delete("v = 30", mode="positions")


def table_with_old_versions(db: Database) -> None:
    """Makes versions that will expire, with files that no later version has."""
    two_files(db)
    compact(context_of(db), "t", options=COMPACTION_OPTIONS)
    db.set(**EXPIRING_SOON)


def table_with_short_orphan_age(db: Database) -> None:
    """Makes a database with a short orphan age and long retention."""
    one_table(db)
    db.set(orphan_age="20m")


def table_with_short_intents(db: Database) -> None:
    """Makes a database with a short timeout of intents and long retention."""
    one_table(db)
    db.set(intent_timeout="1h")


def table_with_expired_rows(db: Database) -> None:
    """Makes a table in which one row has outlived its time to live."""
    old, young = START_US - 2 * HOUR_US, START_US
    db.create_table("t", SCHEMA, primary_key="k").append(arrow([(1, 10, old), (2, 20, young)]))
    db.table("t").set(ttl="t 1h")


OLD: list[Row] = [*FIRST, (4, 40, None), (5, 50, None), (6, 60, None)]
"""Rows of version 3 in ``table_with_old_versions``."""

UPKEEP: tuple[Pair, ...] = (
    Pair(
        "positions/compact",
        two_files,
        (positions("v BETWEEN 20 AND 50", lambda row: 20 <= row[1] <= 50), compaction()),
    ),
    Pair(
        "positions/splice",
        table_to_splice,
        (positions("v BETWEEN 40 AND 50", lambda row: 40 <= row[1] <= 50), splicing()),
        quick=(1,),
    ),
    Pair("splice/delete", table_to_splice, (splicing(), delete("v = 60", lambda row: row[1] == 60)), quick=(0,)),
    Pair("update/compact", two_files, (update(40, 41), compaction())),
    Pair("resolve/compact", table_with_tombstone, (resolution(), compaction())),
    Pair("compact/delete", table_with_tombstone, (compaction(), delete("v >= 30", lambda row: row[1] >= 30))),
    Pair(
        "compact/rename",
        table_with_tombstone,
        (altered(compaction(), allowed_errors={TableNotFoundError: _other_call_finished}), rename("u")),
    ),
    Pair("compact/upsert", table_with_tombstone, (compaction(), upsert((2, 21, None), (4, 41, None)))),
    Pair(
        "commit/GC",
        table_with_short_orphan_age,
        (slow_append((7, 70, None)), one_collection()),
        hours=5,
        stalls=(0,),
        quick=(0,),
        quick_fates=(Fate.LATE,),
    ),
    Pair(
        "paused job/GC",
        table_with_short_intents,
        (paused_load((6, 60, None), (7, 70, None), (8, 80, None), (9, 90, None)), one_collection()),
        hours=5,
        stalls=(0,),
        quick=(0,),
        quick_fates=(Fate.LATE,),
    ),
    Pair(
        "snapshot reader/GC", table_with_old_versions, (read_version(3, OLD), two_collections()), hours=5, stalls=(0,)
    ),
    Pair("expire/set ttl", table_with_expired_rows, (row_expiry(), set_longer_ttl())),
    Pair("expire/append", table_with_expired_rows, (row_expiry(), append((3, 30, START_US - 3 * HOUR_US)))),
    Pair(
        "changes/changes",
        one_table,
        (
            change_file("a", ("U", (1, 100, None)), ("D", (2, 100, None)), ("U", (3, 50, None))),
            change_file("b", ("U", (1, 90, None)), ("U", (2, 90, None)), ("D", (3, 60, None))),
        ),
        quick=(0,),
        events=True,
    ),
)
