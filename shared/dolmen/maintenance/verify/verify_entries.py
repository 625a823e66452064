"""Checks the entries of a manifest's tables against each other, without reading other objects.

Checks the list of erasures and their receipts: that each still holds, and that its receipt can be read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa

from dolmen.base.runtime import cached_property
from dolmen.commit.context import Context
from dolmen.entries.segments.erasures_in_force import tables_of
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.entries.segments.segment_reader import erasures_of
from dolmen.errors import CorruptionError, SchemaError
from dolmen.format.entries import Bounds, DataFile, Tombstone, bounds
from dolmen.format.manifest import AppliedId, ErasedTable, Erasure, Manifest, TableEntry
from dolmen.format.receipts import RECEIPT_PREFIX, Receipt, parse_receipt_key, receipt_key
from dolmen.format.schema import Field, is_nested
from dolmen.maintenance.erasures.erasure_work import load_receipt
from dolmen.maintenance.resolve.unresolved import ErasureMatches
from dolmen.maintenance.verify.verify_report import FindingLog


def check_manifest(manifest: Manifest, log: FindingLog) -> None:
    """Checks the database's own part: uuids of tables, epochs, and timestamps of deletes."""
    uuids = Counter(entry.uuid for entry in manifest.tables.values())
    for name, entry in manifest.tables.items():
        log.count("tables")
        if uuids[entry.uuid] > 1:
            log.add("table-uuid", manifest.key, f"{uuids[entry.uuid]} tables have uuid {entry.uuid}", table=name)
        if not 1 <= entry.epoch <= manifest.version:
            reason = f"epoch {entry.epoch} in version {manifest.version}"
            log.add("table-epoch", manifest.key, reason, table=name)
        if not 0 <= entry.unseen_delete_ts <= entry.last_delete_ts <= manifest.commit_ts:
            reason = (
                f"unseen_delete_ts {entry.unseen_delete_ts}, last_delete_ts {entry.last_delete_ts}, "
                f"commit_ts {manifest.commit_ts}"
            )
            log.add("delete-timestamps", manifest.key, reason, table=name)


def check_applied(entries: Iterator[AppliedId], manifest: Manifest, log: FindingLog) -> None:
    """Checks that each request id was applied once, by an existing version."""
    seen: set[str] = set()
    for applied in entries:
        log.count("applied ids")
        if applied.id in seen:
            log.add("applied-twice", manifest.key, f"id {applied.id!r} is there twice")
        seen.add(applied.id)
        if not 1 <= applied.version <= manifest.version:
            reason = f"id {applied.id!r} was applied by version {applied.version}, the newest is {manifest.version}"
            log.add("applied-version", manifest.key, reason)


class TableCheck:
    """Checks the entries of one table of one version.

    Args:
        name: the table's name.
        entry: the table's entry with a schema, read from the table's section if it is idle.
        manifest: the version.
        holder: the key of the object that holds the entry, for findings that are not about one file.
    """

    def __init__(self, name: str, entry: TableEntry, manifest: Manifest, holder: str, log: FindingLog) -> None:
        self.name, self.entry, self.manifest, self._holder, self._log = name, entry, manifest, holder, log

    @cached_property
    def types(self) -> dict[int, pa.DataType]:
        """Type of each present and former column."""
        return {id_: field.arrow_type for id_, field in self.entry.schema.by_id.items()}

    def check_schema(self) -> None:
        """Checks that column ids are given out once and below ``next_id``, and that keys name existing columns."""
        schema = self.entry.schema
        try:
            ids = [id_ for field in (*schema.dropped, *schema.fields) for id_ in _ids(field)]
            _ = self.types
        except SchemaError as error:
            self._add_finding("schema-ids", str(error))
            return
        twice = sorted(id_ for id_, count in Counter(ids).items() if count > 1)
        late = sorted(id_ for id_ in ids if not 1 <= id_ < schema.next_id)
        there = {field.id for field in schema.fields}
        gone = sorted({*self.entry.primary_key, *self.entry.sort_key} - there)
        if twice or late:
            self._add_finding(
                "schema-ids", f"ids {twice or late} {'twice' if twice else f'with next_id {schema.next_id}'}"
            )
        if gone:
            self._add_finding("schema-ids", f"the primary or sort key names columns {gone}, which there are not")

    def check_tombstones(self, tombstones: Sequence[Tombstone]) -> None:
        """Checks that tombstones name existing columns, and that their timestamps are in order."""
        before = 1
        seen: set[tuple[str, int, int]] = set()
        for tombstone in tombstones:
            self._log.count("tombstones")
            place = f"tombstone of {tombstone.blob.object} at byte {tombstone.blob.offset}, T {tombstone.ts}"
            if missing := sorted(set(tombstone.columns) - self.types.keys()):
                self._add_finding("tombstone-column", f"{place}, names columns {missing}")
            if not before <= tombstone.ts <= self.manifest.commit_ts:
                self._add_finding("tombstone-order", f"{place}, between {before} and {self.manifest.commit_ts}?")
            elif tombstone.ts > self.entry.last_delete_ts:
                self._add_finding("delete-timestamps", f"{place}, is after last_delete_ts {self.entry.last_delete_ts}")
            key = (tombstone.blob.object, tombstone.blob.offset, tombstone.ts)
            if key in seen:
                self._add_finding("tombstone-twice", place)
            seen.add(key)
            before = max(before, tombstone.ts)

    def check_file(self, file: DataFile) -> None:
        """Checks a data file's entry with its effective pair."""
        self._check_timestamps(file)
        self._check_sizes(file)
        vector = file.vector
        if vector and not 1 <= vector.cardinality <= file.rows:
            self._file("vector-entry", file, f"a vector of {vector.cardinality:,} positions for {file.rows:,} rows")
        try:
            for id_ in file.stats:
                self._check_stats(file, id_)
        except SchemaError as error:
            self._file("stats-entry", file, str(error))

    def _check_timestamps(self, file: DataFile) -> None:
        newest = self.manifest.commit_ts
        least, greatest = file.row_ts_bounds or (0, 0)
        if file.row_ts is not None:
            least = greatest = file.row_ts
        if not 1 <= least <= greatest <= file.applied_through <= newest:
            rows = f"row_ts {least}" if least == greatest else f"row_ts {least} to {greatest}"
            self._file("file-timestamps", file, f"{rows}, applied_through {file.applied_through}, commit_ts {newest}")

    def _check_sizes(self, file: DataFile) -> None:
        offset, length, _ = file.footer
        if file.rows < 1 or file.size < 12:
            self._file("file-entry", file, f"{file.rows:,} rows in {file.size:,} bytes")
        elif offset < 4 or length < 8 or offset + length != file.size:
            self._file("file-entry", file, f"a footer of {length:,} bytes at {offset:,} in {file.size:,}")

    def _check_stats(self, file: DataFile, id_: int) -> None:
        arrow_type, raw = self.types.get(id_), file.stats[id_]
        if arrow_type is None:
            self._file("stats-entry", file, f"of column {id_}, which there is not")
            return
        name = self.entry.schema.by_id[id_].name
        if is_nested(arrow_type):
            known = Bounds(nulls=raw.nulls, nans=raw.nans)
            if raw.min is not None or raw.max is not None:
                self._file("stats-entry", file, f"bounds of the nested column {name!r}")
        else:
            known = bounds(raw, arrow_type)
        counts = (known.nulls or 0, known.nans or 0)
        if min(counts) < 0 or sum(counts) > file.rows:
            self._file("stats-entry", file, f"column {name!r}: {counts[0]:,} NULL, {counts[1]:,} NaN of {file.rows:,}")
        if known.min is not None and known.max is not None and not known.min <= known.max:  # type: ignore[operator]
            self._file("stats-entry", file, f"column {name!r}: least {known.min!r}, greatest {known.max!r}")

    def _file(self, kind: str, file: DataFile, reason: str) -> None:
        self._log.add(kind, file.path, reason, table=self.name, rows=file.rows)

    def _add_finding(self, kind: str, reason: str) -> None:
        self._log.add(kind, self._holder, reason, table=self.name)


def _ids(field: Field) -> Iterator[int]:
    """The ids of a column and of everything nested in it."""
    yield field.id
    if isinstance(field.type, dict):
        for inner in field.type.values():
            for child in inner if isinstance(inner, list) else [inner]:
                yield from _ids(child if isinstance(child, Field) else Field(**child))


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
        ids |= {id_ for info in context.store.list(RECEIPT_PREFIX) if (id_ := parse_receipt_key(info.key)) is not None}
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
    return next((file.path for file in behind if matches.tombstones_for(file)), None)


def _difference(receipt: Receipt, erasure: Erasure) -> str:
    if receipt.gone_at:
        return "it says that an erasure is gone which the newest version lists"
    asked = (receipt.ts, receipt.version, receipt.requested_at, receipt.due_at)
    if asked != (erasure.ts, erasure.version, erasure.requested_at, erasure.due_at):
        return "its timestamp, version or times are others than the newest version's"
    return ""
