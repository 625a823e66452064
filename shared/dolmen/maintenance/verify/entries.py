"""Checks the entries of a version, in its manifest and in segments, against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from dolmen.base.runtime import cached_property
from dolmen.commit.head import Context
from dolmen.entries.index.table_index import IndexReader
from dolmen.entries.partitions import recorded_values
from dolmen.entries.segments.live import newest_pairs
from dolmen.entries.segments.segment_reader import FileTable, with_newest_pair
from dolmen.errors import (
    AccessDeniedError,
    CorruptionError,
    Error,
    InputError,
    ObjectNotFoundError,
    RetryableError,
    SchemaError,
    UnsupportedFormatError,
)
from dolmen.format.column_history import fields_inside
from dolmen.format.column_terms import sort_ids
from dolmen.format.entries import Bounds, ColumnStats, DataFile, Overlay, Tombstone, Vector, bounds
from dolmen.format.manifest import AppliedId, Manifest, Segment, SegmentKind, TableEntry
from dolmen.format.schema import is_nested
from dolmen.maintenance.verify.findings import FindingLog

T = TypeVar("T")


def read_segment(context: Context, segment: Segment, log: FindingLog, table: str = "") -> Any:
    """The contents of a segment; None, with a finding, if it cannot be read, or without one if it is missing."""
    if segment.kind == "index":
        read = IndexReader(context.store, context.runtime, context.cache).open
    else:
        read = getattr(context.segments, "tables" if segment.kind == "table" else segment.kind)
    return try_read(context, segment, lambda: read(segment), log, table)


def try_read(context: Context, segment: Segment, read: Callable[[], T], log: FindingLog, table: str) -> T | None:
    """Calls ``read``, and returns its result; None if that fails because this segment is missing or damaged."""
    try:
        return read()
    except UnsupportedFormatError as error:
        log.add("newer-format", segment.object, str(error), table=table, rows=segment.rows)
        return None
    except (RetryableError, AccessDeniedError):  # says nothing about the segment
        raise
    except Error as error:
        reason = error.reason if isinstance(error, CorruptionError) else str(error)
    try:
        context.store.head(segment.object)
    except ObjectNotFoundError:
        return None
    log.add("segment-damaged", segment.object, reason, table=table, rows=segment.rows)
    return None


def check_segment_bounds(segment: Segment, stamps: Sequence[int], log: FindingLog, table: str = "") -> None:
    """Checks the bounds of the versions or timestamps of a segment's entries."""
    if stamps and not (segment.least <= min(stamps) and max(stamps) <= segment.greatest):
        reason = f"entries of {min(stamps)} to {max(stamps)}, in the manifest {segment.least} to {segment.greatest}"
        log.add("segment-bounds", segment.object, reason, table=table)


class TableContents:
    """One table of one version with all its entries, inline or in segments; ``log`` receives the findings."""

    def __init__(self, context: Context, name: str, root: TableEntry, manifest: Manifest, log: FindingLog) -> None:
        self._context, self.name, self._root, self.manifest, self._log = context, name, root, manifest, log
        self._unreadable: set[str] = set()

    @property
    def versions(self) -> tuple[int, int]:
        return self.manifest.version, self.manifest.version

    @property
    def holder(self) -> str:
        return self._root.section.object if self._root.section else self.manifest.key

    @cached_property
    def entry(self) -> TableEntry | None:
        """The whole entry, read from its section if the table is idle; None if that cannot be read."""
        section = self._root.section
        if section is None:
            return self._root
        context, root = self._context, self._root
        return try_read(context, section, lambda: context.segments.whole(root), self._log, self.name)

    @property
    def segments(self) -> tuple[Segment, ...]:
        own = (self._root.section,) if self._root.section else ()
        return (*own, *(self.entry.segments if self.entry else ()))

    @cached_property
    def tombstones(self) -> tuple[Tombstone, ...]:
        return (*self._spilled_entries("tombstones"), *self._own_entry.tombstones)

    @cached_property
    def overlays(self) -> dict[str, Overlay]:
        return newest_pairs((*self._spilled_entries("overlays"), *self._own_entry.overlays))

    @cached_property
    def removed(self) -> frozenset[str]:
        return frozenset((*self._spilled_entries("removed"), *self._own_entry.removed))

    def files(self, segments: Collection[str] | None = None) -> Iterator[DataFile]:
        """Live data files with effective pairs, oldest first: inline ones, and those in these segments (None: all)."""
        for segment in self._own_entry.segments_of("files"):
            if segments is not None and segment.object not in segments:
                continue
            for file in self._files(segment):
                if file.uuid not in self.removed:
                    yield with_newest_pair(file, self.overlays.get(file.uuid), segment.resolved_through)
        yield from self._own_entry.files

    def overlay_vectors(self) -> Iterator[tuple[str, Vector]]:
        """Vectors of effective overlays, with the uuids of their files."""
        for uuid, overlay in self.overlays.items():
            if overlay.vector and uuid not in self.removed:
                yield uuid, overlay.vector

    def count(self) -> int:
        return len(self._own_entry.files) + sum(segment.count for segment in self._own_entry.segments_of("files"))

    def check_files(self) -> Iterator[DataFile]:
        """Yields all ``files``, and checks every segment against its entry in the manifest."""
        spilled_uuids: set[str] = set()
        changed_uuids = self.removed | self.overlays.keys()
        for segment in self._own_entry.segments_of("files"):
            check = _SegmentClaims(segment, self._own_entry)
            for file in self._files(segment):
                check.add(file)
                uuid = file.uuid
                if uuid in changed_uuids:
                    spilled_uuids.add(uuid)
                if uuid not in self.removed:
                    live_file = with_newest_pair(file, self.overlays.get(uuid), segment.resolved_through)
                    check.add_erasing(live_file)
                    yield live_file
            if segment.object not in self._unreadable:
                for kind, reason in check.find_untrue(self.manifest):
                    self._log.add(kind, segment.object, reason, table=self.name, rows=segment.rows)
        yield from self._own_entry.files
        for uuid in sorted(changed_uuids - spilled_uuids):
            self._log.add("overlay-stray", self.holder, f"file {uuid} is in no segment", table=self.name)
        for kind, stamp in (("tombstones", "ts"), ("overlays", "applied_through")):
            for segment in self._own_entry.segments:
                if segment.kind == kind:
                    stamps = [getattr(each, stamp) for each in self._read(segment) or ()]
                    check_segment_bounds(segment, stamps, self._log, self.name)
        self._log.count("segments", len(self.segments))

    def check_index(self, *, deep: bool) -> None:
        """Reads the parts of the table's index: all their pages if ``deep``, otherwise their root blocks."""
        for part in self._own_entry.segments_of("index"):
            try_read(self._context, part, partial(self._walk_index, part, deep=deep), self._log, self.name)

    def _walk_index(self, part: Segment, *, deep: bool) -> None:
        opened = IndexReader(self._context.store, self._context.runtime, self._context.cache).open(part)
        if not deep:
            return
        entries = sum(len(leaf.keys) for leaf in opened.tree.leaves())
        if entries != part.count:
            raise CorruptionError(part.object, f"{entries} entries, not the {part.count} of its reference")

    @property
    def _own_entry(self) -> TableEntry:
        return self.entry or TableEntry(self._root.uuid, self._root.epoch, self._root.schema)

    def _files(self, segment: Segment) -> Iterator[DataFile]:
        table: FileTable | None = self._read(segment)
        try:
            for some in table.entries(types=self._own_entry.schema.widened_types) if table else ():
                yield from some
        except CorruptionError as error:  # its bytes do not decode to entries
            self._unreadable.add(segment.object)
            self._log.add("segment-damaged", segment.object, error.reason, table=self.name, rows=segment.rows)

    def _spilled_entries(self, kind: SegmentKind) -> Iterator[Any]:
        return (each for segment in self._own_entry.segments_of(kind) for each in self._read(segment) or ())

    def _read(self, segment: Segment) -> Any:
        """The contents of a segment; None, with a finding the first time, if it cannot be read."""
        if segment.object in self._unreadable:
            return None
        contents = read_segment(self._context, segment, self._log, self.name)
        if contents is None:
            self._unreadable.add(segment.object)
        return contents


class _SegmentClaims:
    """Compares a segment of data files with the claims in its manifest entry."""

    def __init__(self, segment: Segment, entry: TableEntry) -> None:
        self._segment = segment
        self._types = {id_: field.arrow_type for id_, field in entry.schema.by_id.items()}
        self._rows = self._bytes = self._deleted = 0
        self._file_by_claim: dict[str, str] = {}
        self._nulls: dict[int, int | None] = dict.fromkeys(segment.stats, 0)
        self._nans = self._nulls.copy()

    def add(self, file: DataFile) -> None:
        segment = self._segment
        self._rows += file.rows
        self._bytes += file.size
        self._deleted += file.vector.cardinality if file.vector else 0
        least = file.row_ts if file.row_ts is not None else (file.row_ts_bounds or (0, 0))[0]
        if least < segment.least or file.greatest_row_ts > segment.greatest:
            self._file_by_claim["least, greatest"] = file.uuid
        if file.applied_through < segment.least_applied_through:
            self._file_by_claim["least_applied_through"] = file.uuid
        for id_, claimed in segment.stats.items():
            if not self._is_true_of(id_, claimed, file):
                self._file_by_claim[f"statistics of column {id_}"] = file.uuid

    def add_erasing(self, file: DataFile) -> None:
        """Compares the newest ``erasing`` of a live file with the segment's."""
        if file.erasing and not 0 < self._segment.erasing <= file.erasing:
            self._file_by_claim["erasing"] = file.uuid

    def _is_true_of(self, id_: int, claimed: ColumnStats, file: DataFile) -> bool:
        """Whether the segment's bounds of a column cover a file's bounds. Also counts NULL and NaN."""
        arrow_type, raw = self._types.get(id_), file.stats.get(id_)
        if arrow_type is None or is_nested(arrow_type):
            return True
        try:
            own, claim = bounds(raw, arrow_type), bounds(claimed, arrow_type)
        except SchemaError:
            return False
        self._nulls[id_] = _add_counts(self._nulls[id_], own.nulls)
        self._nans[id_] = _add_counts(self._nans[id_], own.nans)
        if own.nulls is not None and own.nans is not None and own.nulls + own.nans >= file.rows:
            return True  # the file has no value
        low: Any = claim.min
        high: Any = claim.max
        least: Any = own.min
        greatest: Any = own.max
        return (low is None or (least is not None and low <= least)) and (
            high is None or (greatest is not None and greatest <= high)
        )

    def find_untrue(self, manifest: Manifest) -> Iterator[tuple[str, str]]:
        """Yields kinds and reasons of claims that are not true."""
        segment = self._segment
        for claim, uuid in self._file_by_claim.items():
            yield "segment-bounds", f"{claim} in the manifest: not true of file {uuid}"
        figures, claims = (self._rows, self._bytes, self._deleted), (segment.rows, segment.bytes, segment.deleted)
        if figures != claims:
            yield "segment-bounds", f"rows, bytes and deleted rows are {figures}, in the manifest {claims}"
        for id_, claimed in segment.stats.items():
            counts, actual = (claimed.nulls, claimed.nans), (self._nulls[id_], self._nans[id_])
            if any(count not in (None, exact) for count, exact in zip(counts, actual, strict=True)):
                yield "segment-bounds", f"NULL and NaN of column {id_}: {actual}, in the manifest {counts}"
        if segment.resolved_through > manifest.commit_ts:
            yield "segment-bounds", f"resolved through {segment.resolved_through}, newest is {manifest.commit_ts}"


def _add_counts(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def check_manifest(manifest: Manifest, log: FindingLog) -> None:
    """Checks the manifest's tables: their uuids, epochs, and timestamps of deletes."""
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
    """Checks the entries of one table of one version; ``holder`` is the key of the object that has its whole entry."""

    def __init__(self, name: str, entry: TableEntry, manifest: Manifest, holder: str, log: FindingLog) -> None:
        self.name, self.entry, self.manifest, self._holder, self._log = name, entry, manifest, holder, log

    @cached_property
    def types(self) -> dict[int, pa.DataType]:
        return {id_: field.arrow_type for id_, field in self.entry.schema.by_id.items()}

    def check_schema(self) -> None:
        """Checks that column ids are unique and below ``next_id``, and that keys name existing columns."""
        schema = self.entry.schema
        try:
            ids = [f.id for own in (*schema.dropped, *schema.fields) for f in (own, *fields_inside(own.type))]
            _ = self.types
        except SchemaError as error:
            self._add_finding("schema-ids", str(error))
            return
        repeated = sorted(id_ for id_, count in Counter(ids).items() if count > 1)
        out_of_range = sorted(id_ for id_ in ids if not 1 <= id_ < schema.next_id)
        column_ids = {field.id for field in schema.fields}
        try:
            unknown = sorted({*self.entry.primary_key, *sort_ids(self.entry.sort_key)} - column_ids)
        except InputError as error:
            self._add_finding("schema-ids", f"sort key: {error}")
            return
        if repeated or out_of_range:
            reason = "twice" if repeated else f"with next_id {schema.next_id}"
            self._add_finding("schema-ids", f"ids {repeated or out_of_range} {reason}")
        if unknown:
            self._add_finding("schema-ids", f"the primary or sort key names columns {unknown}, which do not exist")

    def check_tombstones(self, tombstones: Sequence[Tombstone]) -> None:
        """Checks that tombstones name existing columns, and that their timestamps are in order."""
        last_ts = 1
        seen: set[tuple[str, int, int]] = set()
        for tombstone in tombstones:
            self._log.count("tombstones")
            label = f"tombstone of {tombstone.blob.object} at byte {tombstone.blob.offset}, T {tombstone.ts}"
            if missing := sorted(set(tombstone.columns) - self.types.keys()):
                self._add_finding("tombstone-column", f"{label}, names columns {missing}")
            if not last_ts <= tombstone.ts <= self.manifest.commit_ts:
                self._add_finding("tombstone-order", f"{label}, between {last_ts} and {self.manifest.commit_ts}?")
            elif tombstone.ts > self.entry.last_delete_ts:
                self._add_finding("delete-timestamps", f"{label}, is after last_delete_ts {self.entry.last_delete_ts}")
            key = (tombstone.blob.object, tombstone.blob.offset, tombstone.ts)
            if key in seen:
                self._add_finding("tombstone-twice", label)
            seen.add(key)
            last_ts = max(last_ts, tombstone.ts)

    def check_file(self, file: DataFile) -> None:
        newest = self.manifest.commit_ts
        least, greatest = file.row_ts_bounds or (0, 0)
        if file.row_ts is not None:
            least = greatest = file.row_ts
        if not 1 <= least <= greatest <= file.applied_through <= newest:
            rows = f"row_ts {least}" if least == greatest else f"row_ts {least} to {greatest}"
            self._add("file-timestamps", file, f"{rows}, applied_through {file.applied_through}, commit_ts {newest}")
        offset, length, _ = file.footer
        if file.rows < 1 or file.size < 12:
            self._add("file-entry", file, f"{file.rows:,} rows in {file.size:,} bytes")
        elif offset < 4 or length < 8 or offset + length != file.size:
            self._add("file-entry", file, f"a footer of {length:,} bytes at {offset:,} in {file.size:,}")
        if unknown := [id_ for id_ in file.constants if id_ >= self.entry.schema.next_id]:
            self._add("file-entry", file, f"constants of columns {unknown}, which do not exist")
        try:
            if unknown := [id_ for _, id_, _ in recorded_values(file) if id_ >= self.entry.schema.next_id]:
                self._add("file-entry", file, f"partitions by columns {unknown}, which do not exist")
        except InputError as error:
            self._add("file-entry", file, f"partitions: {error}")
        vector = file.vector
        if vector and not 1 <= vector.cardinality <= file.rows:
            self._add("vector-entry", file, f"a vector of {vector.cardinality:,} positions for {file.rows:,} rows")
        try:
            for id_ in file.stats:
                self._check_stats(file, id_)
        except SchemaError as error:
            self._add("stats-entry", file, str(error))

    def _check_stats(self, file: DataFile, id_: int) -> None:
        arrow_type, raw = self.types.get(id_), file.stats[id_]
        if arrow_type is None:
            self._add("stats-entry", file, f"of column {id_}, which does not exist")
            return
        name = self.entry.schema.by_id[id_].name
        if is_nested(arrow_type):
            own = Bounds(nulls=raw.nulls, nans=raw.nans)
            if raw.min is not None or raw.max is not None:
                self._add("stats-entry", file, f"bounds of the nested column {name!r}")
        else:
            own = bounds(raw, arrow_type)
        counts = (own.nulls or 0, own.nans or 0)
        if min(counts) < 0 or sum(counts) > file.rows:
            self._add("stats-entry", file, f"column {name!r}: {counts[0]:,} NULL, {counts[1]:,} NaN of {file.rows:,}")
        if own.min is not None and own.max is not None and not own.min <= own.max:  # type: ignore[operator]
            self._add("stats-entry", file, f"column {name!r}: least {own.min!r}, greatest {own.max!r}")

    def _add(self, kind: str, file: DataFile, reason: str) -> None:
        self._log.add(kind, file.path, reason, table=self.name, rows=file.rows)

    def _add_finding(self, kind: str, reason: str) -> None:
        self._log.add(kind, self._holder, reason, table=self.name)
