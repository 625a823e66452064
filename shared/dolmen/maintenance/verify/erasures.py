"""Checks the list of erasures and their receipts: that each still holds, and that its receipt can be read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dolmen.commit.context import Context
from dolmen.entries.segments.erasures import erasures_of, tables_of
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.errors import CorruptionError
from dolmen.format.erasures import ErasedTable, Erasure
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.receipts import PREFIX, Receipt, parse_receipt_key, receipt_key
from dolmen.maintenance.erasures.receipts import load_receipt
from dolmen.maintenance.resolve.erased import ErasureMatches
from dolmen.maintenance.verify.report import FindingLog

_ID = re.compile(r"[0-9a-f]{32}")


def check_erasures(context: Context, newest: Manifest, log: FindingLog, *, deep: bool) -> None:
    """Checks the erasures of the newest version. Makes no request for a database that has none, unless ``deep``.

    Args:
        deep: read all receipts, also of erasures that are gone.
    """
    try:
        listed = erasures_of(newest, context.segments)
        right = []
        for erasure in listed:
            log.count("erasures")
            if reason := _fault(erasure, newest):
                log.add("erasure-entry", newest.key, f"erasure {erasure.id}: {reason}")
            else:
                right.append(erasure)
        _check_hidden(context, newest, right, log)
    except CorruptionError:
        return  # the checks of segments and deletes name the object
    by_id = {erasure.id: erasure for erasure in listed}
    ids = {*by_id, *(id_ for entry in newest.leaving for id_ in entry.ids)}
    if deep:
        ids |= {id_ for info in context.store.list(PREFIX) if (id_ := parse_receipt_key(info.key)) is not None}
    for id_ in sorted(ids):
        try:
            receipt = load_receipt(context.store, id_)
        except CorruptionError as error:
            log.add("receipt-damaged", error.key, error.reason)
            continue
        if receipt is not None and id_ in by_id and (reason := _difference(receipt, by_id[id_])):
            log.add("receipt-differs", receipt_key(id_), reason)


def _fault(erasure: Erasure, newest: Manifest) -> str:
    if not _ID.fullmatch(erasure.id):
        return "its id is not 32 hexadecimal digits"
    if not 0 < erasure.version <= newest.version or not 0 < erasure.ts <= newest.commit_ts:
        return "its version or timestamp is later than the newest version's"
    if erasure.due_at < erasure.requested_at:
        return "it was due before it was asked for"
    if any(table.tombstone.ts != erasure.ts for table in erasure.tables):
        return "a delete has another timestamp than its erasure"
    return ""


def _check_hidden(context: Context, newest: Manifest, listed: Sequence[Erasure], log: FindingLog) -> None:
    """Checks that no table lacks a delete that files of it may still need."""
    if not listed:
        return
    for name, root in newest.tables.items():
        if not any(tables_of(erasure, root) for erasure in listed):
            continue
        entry = context.segments.whole(root)
        there = {tombstone.ts for tombstone in tombstones_of(entry, context.segments)}
        for erasure in listed:
            for erased in tables_of(erasure, entry) if erasure.ts not in there else ():
                if (path := _may_show(context, entry, erased)) is not None:
                    log.add(
                        "erasure-undone",
                        path,
                        f"rows of erasure {erasure.id} may be seen: its delete is gone",
                        table=name,
                    )


def _may_show(context: Context, entry: TableEntry, erased: ErasedTable) -> str | None:
    """A file that may hold rows of a delete which the table does not have; None if there is none."""
    known = entry.schema.by_id
    if any(field.id not in known or known[field.id].added_ts != field.added_ts for field in erased.columns):
        return None  # columns that this table never had, or has no more
    ts = erased.tombstone.ts
    files = LiveFiles.of(entry, context.segments)
    behind = [
        file
        for segment in files.segments
        if segment.applied_through < ts
        for file in files.of_segment(segment.object)
        if file.applied_through < ts
    ]
    behind += [file for file in entry.files if file.applied_through < ts]
    if not behind:
        return None
    matches = ErasureMatches(context, entry, [erased.tombstone])
    return next((file.path for file in behind if matches.suspects(file)), None)


def _difference(receipt: Receipt, erasure: Erasure) -> str:
    if receipt.gone_at:
        return "it says that an erasure is gone which the newest version lists"
    asked = (receipt.ts, receipt.version, receipt.requested_at, receipt.due_at)
    if asked != (erasure.ts, erasure.version, erasure.requested_at, erasure.due_at):
        return "its timestamp, version or times are others than the newest version's"
    return ""
