"""Checks that the erasures of a version and their receipts are true."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dolmen.commit.head import Context
from dolmen.entries.segments.erasures_in_force import tables_of
from dolmen.entries.segments.live import tombstones_of
from dolmen.entries.segments.segment_reader import erasures_of
from dolmen.errors import CorruptionError
from dolmen.format.manifest import ErasedTable, Erasure, Manifest, TableEntry
from dolmen.format.receipts import RECEIPT_PREFIX, parse_receipt_key, receipt_key
from dolmen.maintenance.erasures.erasure_receipts import load_receipt, receipt_problem
from dolmen.maintenance.unresolved import ErasureCounter, files_behind
from dolmen.maintenance.verify.findings import FindingLog


def check_erasures(context: Context, newest: Manifest, log: FindingLog, *, deep: bool) -> None:
    """Checks the erasures of the newest version; with ``deep`` also the receipts of completed erasures."""
    try:
        erasures = erasures_of(newest, context.segments)
        valid = []
        for erasure in erasures:
            log.count("erasures")
            if reason := _entry_problem(erasure, newest):
                log.add("erasure-entry", newest.key, f"erasure {erasure.id}: {reason}")
            else:
                valid.append(erasure)
        _check_deletes(context, newest, valid, log)
    except CorruptionError:
        return  # the checks of segments and deletes name the object
    by_id = {erasure.id: erasure for erasure in erasures}
    ids = {*by_id, *(id_ for entry in newest.leaving for id_ in entry.ids)}
    if deep:
        ids |= {id_ for info in context.store.list(RECEIPT_PREFIX) if (id_ := parse_receipt_key(info.key)) is not None}
    for id_ in sorted(ids):
        try:
            receipt = load_receipt(context.store, id_)
        except CorruptionError as error:
            log.add("receipt-damaged", error.key, error.reason)
            continue
        if receipt is not None and id_ in by_id and (reason := receipt_problem(receipt, by_id[id_])):
            log.add("receipt-differs", receipt_key(id_), reason)


def _entry_problem(erasure: Erasure, newest: Manifest) -> str:
    if not re.fullmatch(r"[0-9a-f]{32}", erasure.id):
        return "its id is not 32 hexadecimal digits"
    if not 0 < erasure.version <= newest.version or not 0 < erasure.ts <= newest.commit_ts:
        return "its version or timestamp is later than the newest version's"
    if erasure.due_at < erasure.requested_at:
        return "its deadline is before its request"
    if any(table.tombstone.ts != erasure.ts for table in erasure.tables):
        return "the timestamp of a delete differs from its erasure's"
    return ""


def _check_deletes(context: Context, newest: Manifest, erasures: Sequence[Erasure], log: FindingLog) -> None:
    if not erasures:
        return
    for name, root in newest.tables.items():
        if not any(tables_of(erasure, root) for erasure in erasures):
            continue
        entry = context.segments.whole(root)
        tombstone_ts = {tombstone.ts for tombstone in tombstones_of(entry, context.segments)}
        for erasure in erasures:
            for erased in tables_of(erasure, entry) if erasure.ts not in tombstone_ts else ():
                if (path := _find_undone(context, entry, erased)) is not None:
                    reason = f"rows of erasure {erasure.id} may be seen: its delete is gone"
                    log.add("erasure-undone", path, reason, table=name)


def _find_undone(context: Context, entry: TableEntry, erased: ErasedTable) -> str | None:
    """Finds a file that may show rows of a delete that the table has lost; None if there is none."""
    columns = entry.schema.by_id
    if any(field.id not in columns or columns[field.id].added_ts != field.added_ts for field in erased.columns):
        return None  # the table has no such columns, or has dropped them
    ts = erased.tombstone.ts
    files = [file for file, _ in files_behind(entry, context.segments, ts) if file.applied_through < ts]
    if not files:
        return None
    counter = ErasureCounter(context, entry, [erased.tombstone])
    return next((file.path for file in files if counter.tombstones_for(file)), None)
