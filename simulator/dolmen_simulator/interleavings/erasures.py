"""Pairs with erasures, beside writers, late drops, changes of columns, the past, and background work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any

import pyarrow as pa

from dolmen.api.database import Database
from dolmen.base.records import replace as altered
from dolmen.errors import PredicateError, TableExistsError
from dolmen.format.ingest_properties import IngestSettings
from dolmen.ingest.batch import BatchRequest, Decision
from dolmen.ingest.cdc.change_columns import find_columns
from dolmen.ingest.formats.formats import SourceFile, detect, read
from dolmen.ingest.formats.source_file import RowNumbers
from dolmen.ingest.late import ErasedRows, expect_erasures
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen_simulator.interleavings.checks import SCHEMA, ExpectedTables, Pair, PairedCall, Row, arrow, rows_of
from dolmen_simulator.interleavings.columns import MOVED, add_column, drop_column
from dolmen_simulator.interleavings.execution import Peer
from dolmen_simulator.interleavings.pairs import (
    FIRST,
    append,
    apply_requests,
    delete,
    increment,
    merge,
    one_table,
    two_files,
    update,
    upsert,
)
from dolmen_simulator.interleavings.past import EXPIRED
from dolmen_simulator.interleavings.upkeep import (
    OLD,
    compaction,
    one_collection,
    resolution,
    table_with_old_versions,
    table_with_tombstone,
)

_LATE_ROWS: tuple[Row, ...] = ((7, 20, None), (8, 80, None))
_LATE_FILE = SourceFile(
    lambda: BytesIO("".join(f"{line}\n" for line in ["k,v", *(f"{row[0]},{row[1]}" for row in _LATE_ROWS)]).encode()),
    detect("late.csv"),
    "late.csv",
)


def _old(row: Row) -> bool:
    return bool(20 <= row[1] <= 30)


def erase(where: str = "v BETWEEN 20 AND 30", gone: Callable[[Row], bool] = _old) -> PairedCall:
    """Erases the rows that match, of the table and its clone."""

    def effect(model: ExpectedTables) -> None:
        if "v" in model.taken:
            raise PredicateError("v")
        model.erased.append(gone)
        model.tables = {name: [row for row in rows if not gone(row)] for name, rows in model.tables.items()}

    def task(peer: Peer) -> Any:
        return peer.db.table("t").erase(where)

    return PairedCall(f"erase {where}", task, effect, lambda value: None, MOVED, is_erasure=True)


def forget(subject: int) -> PairedCall:
    """Erases the rows with a value in all tables with a subject."""
    call = erase(gone=lambda row: row[1] == subject)
    return altered(call, name=f"forget {subject}", task=lambda peer: peer.db.forget(subject))


def restore(rows: tuple[Row, ...] | list[Row], version: int) -> PairedCall:
    """Restores the table to a version that had these rows."""

    def effect(model: ExpectedTables) -> None:
        model.tables["t"] = model.without_erased(rows)

    def task(peer: Peer) -> Any:
        return peer.db.table("t").restore(version)

    return PairedCall(f"restore version {version}", task, effect, lambda value: None, EXPIRED)


def clone(rows: tuple[Row, ...] | list[Row], version: int) -> PairedCall:
    """Clones the table of a version that had these rows."""

    def effect(model: ExpectedTables) -> None:
        if "copy" in model.tables:
            raise TableExistsError("copy")
        model.tables["copy"] = model.without_erased(rows)

    def task(peer: Peer) -> Any:
        return peer.db.clone("t", "copy", version)

    return PairedCall(f"clone version {version}", task, effect, lambda value: None, EXPIRED)


def ingest_late() -> PairedCall:
    """Ingests rows that were dropped before any erasure."""

    def effect(model: ExpectedTables) -> dict[str, str]:
        model.tables["t"] += model.without_erased(_LATE_ROWS)
        return {"late": "applied"}

    def add_to(transaction: Transaction) -> Decision:
        expect_erasures(transaction, "t", 0, "late")
        erased = ErasedRows.of(transaction, "t", 0)
        rows = pa.RecordBatchReader.from_batches(SCHEMA, arrow(_LATE_ROWS).to_batches())
        table = (rows if erased is None else erased.leave_out(rows, RowNumbers(None), "late", None)).read_all()
        transaction.table("t").append(table, request="late")
        return "apply"

    def task(peer: Peer) -> Any:
        return apply_requests(peer, [BatchRequest("late", "digest of late rows", add_to)])

    return PairedCall(f"ingest {list(_LATE_ROWS)}, dropped before", task, effect)


def table_with_renamed_column(db: Database) -> None:
    """Makes a table with a column that has another name since, and with another column of its former name."""
    one_table(db)
    db.table("t").rename_column("v", "former")
    db.table("t").add_column("v", pa.int64())


def erase_renamed() -> PairedCall:
    """Erases rows by a column under the name that it has now."""
    return erase("former BETWEEN 20 AND 30", lambda row: row[1] is not None and _old(row))


def ingest_late_file() -> PairedCall:
    """Ingests a file that was dropped before the columns changed, and before any erasure."""

    def effect(model: ExpectedTables) -> dict[str, str]:
        model.tables["t"] += [(row[0], None, None, row[1]) for row in model.without_erased(_LATE_ROWS)]
        return {"late": "applied"}

    def add_to(transaction: Transaction) -> Decision:
        expect_erasures(transaction, "t", 0, "late")
        erased, table, numbers = ErasedRows.of(transaction, "t", 0), transaction.table("t"), RowNumbers(None)
        rows = read(_LATE_FILE, table.schema)
        if erased is not None:
            settings = IngestSettings.of(unit_of(transaction).entry("t"))
            erased.read_names(_LATE_FILE, partial(find_columns, _LATE_FILE, settings))
            rows = erased.leave_out(rows, numbers, _LATE_FILE.name, None)
        table.append(rows.read_all(), request="late")
        return "apply"

    def task(peer: Peer) -> Any:
        return apply_requests(peer, [BatchRequest("late", "digest of a late file", add_to)])

    return PairedCall("ingest a file, dropped before its columns were renamed", task, effect)


def read_past(rows: tuple[Row, ...] | list[Row], version: int) -> PairedCall:
    """Reads a version that had these rows."""

    def effect(model: ExpectedTables) -> list[Row]:
        return sorted(model.without_erased(rows), key=repr)

    def task(peer: Peer) -> Any:
        return rows_of(peer.db.at(version).table("t").to_arrow())

    return PairedCall(f"read version {version}", task, effect)


def table_with_subject(db: Database) -> None:
    """Makes a table with a subject and its clone, and one more version."""
    db.create_table("t", SCHEMA, primary_key="k", properties={"subject": "v"}).append(arrow(FIRST))
    db.clone("t", "copy")
    db.table("t").append(arrow([(4, 20, None)]))


def drop_subject() -> PairedCall:
    """Drops the table with the subject."""

    def effect(model: ExpectedTables) -> None:
        del model.tables["t"]

    return PairedCall("drop t", lambda peer: peer.db.drop_table("t"), effect, lambda value: None)


ERASURES: tuple[Pair, ...] = (
    Pair("erase/append", one_table, (erase(), append((4, 20, None)))),
    Pair("erase/upsert", one_table, (erase(), upsert((2, 25, None), (4, 40, None)))),
    Pair("erase/delete", one_table, (erase(), delete("v >= 30", lambda row: row[1] >= 30)), quick=(0,)),
    Pair("erase/update", one_table, (erase(), update(10, 25))),
    Pair("erase/merge", one_table, (erase(), merge((2, 22), (4, 41))), quick=(0,)),
    Pair("erase/read-modify-write", one_table, (erase("k = 9", lambda row: row[0] == 9), increment(1)), quick=(0,)),
    Pair("erase/late drop", one_table, (erase(), ingest_late())),
    Pair("erase/late drop, renamed", table_with_renamed_column, (erase_renamed(), ingest_late_file())),
    Pair("erase/restore", table_with_tombstone, (erase(), restore(OLD, 3))),
    Pair("erase/clone", two_files, (erase(), clone(FIRST, 2))),
    Pair("erase/reader of the past", two_files, (erase(), read_past(FIRST, 2)), quick=(0,)),
    Pair("erase/resolve", table_with_tombstone, (erase(), resolution())),
    Pair("erase/compact", table_with_tombstone, (erase(), compaction())),
    Pair("erase/GC", table_with_old_versions, (erase(), one_collection()), hours=5, quick=(0,), quick_fates=()),
    Pair("erase/add column", one_table, (erase(), add_column())),
    Pair("erase/drop column", one_table, (erase(), drop_column(1, "v"))),
    Pair(
        "erase/erase",
        one_table,
        (erase(), erase("v >= 30", lambda row: row[1] >= 30)),
        quick=(0,),
    ),
    Pair("forget/append", table_with_subject, (forget(20), append((5, 20, None))), quick=(0,)),
    Pair("forget/drop", table_with_subject, (forget(20), drop_subject()), quick=(0,)),
)
