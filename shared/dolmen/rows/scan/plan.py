"""The plan of a scan of a view: the files to read, found from the manifest and its segments alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct

from dolmen.base.records import FactSheet
from dolmen.base.runtime import cached_property
from dolmen.commit.head import Context
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.entries.segments.row_bounds import RowBounds, always_mask, greatest_ts, may_match_mask
from dolmen.entries.segments.segment_reader import LiveSegment
from dolmen.entries.segments.tombstone_judge import FileTombstones, TombstoneJudge
from dolmen.errors import InputError, SchemaError
from dolmen.format.entries import DataFile, Tombstone
from dolmen.format.manifest import Manifest, Segment, TableEntry
from dolmen.format.schema import COMMIT_TS_FIELD, Field, Schema
from dolmen.predicate.ast import Predicate, columns
from dolmen.predicate.prune import StatsVerdict
from dolmen.predicate.text import to_sql
from dolmen.rows.scan.conditions import Condition, SqlCondition, implied_by
from dolmen.rows.scan.data_objects import Pending
from dolmen.rows.scan.row_groups import FilePlan

Reason: TypeAlias = Literal["filter", "deleted", "limit"]
_WORDS: dict[Reason, str] = {"filter": "statistics", "deleted": "deletes of all rows", "limit": "the limit"}


class SchemaSource(Protocol):
    """A table of one version in the public API."""

    @property
    def _stored_schema(self) -> Schema: ...


def stored_schema_of(table: SchemaSource) -> Schema:
    """The columns of a table with their ids and stored types."""
    return table._stored_schema


class View(Struct, frozen=True):
    """One table as one version shows it. Another process reads the same rows from a pickled view.

    ``pending`` reads objects that a transaction has not uploaded yet.
    """

    context: Context
    manifest: Manifest
    table: str
    pending: Pending | None = None

    def entry(self) -> TableEntry:
        """The table's whole entry. Raises TableNotFoundError."""
        return self.context.segments.whole(self.manifest.table(self.table))

    def reading(self) -> AbstractContextManager[None]:
        """Wraps work that reads the version: a missing object raises VersionExpiredError if it has expired."""
        return self.context.reading(self.manifest.version)


class SegmentUse(Struct, frozen=True):
    """The segments of data files that planning read or left out, and what it fetched for that."""

    read: int = 0
    pruned: int = 0
    requests: int = 0
    bytes: int = 0


@dataclass(frozen=True, repr=False)
class ScanPlan(FactSheet):
    """The files and columns that a scan reads, and the deletes that it applies.

    Args:
        output: the columns of the result, in order.
        where: the predicate, bound to the table's columns; None for all rows.
        condition: SQL that DuckDB evaluates on the rows for which ``where`` is TRUE; None if there is none.
        limit: the most rows of the result; None for all.
        files: to read, oldest first.
        pruned: number of files left out, by reason.
        all_tombstones: those of the table, oldest first, whether or not a file to read needs them.
        segments: what planning has cost.
        counted_files, counted_rows: files that are not listed, and the rows that the scan gets from them, by
            metadata; only in plans for counting.
    """

    table: str
    version: int
    entry: TableEntry
    output: tuple[Field, ...]
    where: Predicate | None
    limit: int | None
    files: tuple[FilePlan, ...]
    pruned: Mapping[Reason, int]
    all_tombstones: tuple[Tombstone, ...] = ()
    segments: SegmentUse = SegmentUse()  # noqa: RUF009 (it is frozen)
    counted_files: int = 0
    counted_rows: int = 0
    condition: SqlCondition | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(field.name, field.arrow_type, field.nullable) for field in self.output])

    @cached_property
    def output_ids(self) -> frozenset[int]:
        return frozenset(field.id for field in self.output)

    def facts(self) -> list[tuple[str, str]]:
        """The lines of ``repr``, from the manifest and its segments alone."""
        reasons = ", ".join(f"{count:,} by {_WORDS[reason]}" for reason, count in sorted(self.pruned.items()))
        files = len(self.files) + self.counted_files + sum(self.pruned.values())
        use = self.segments
        facts = [
            ("scan", f"{self.table}, version {self.version}"),
            ("columns", ", ".join(field.name for field in self.output) or "none"),
            ("where", to_sql(self.where, self.entry.schema) if self.where is not None else ""),
            ("row by row", self.condition.text if self.condition else ""),
            ("limit", "" if self.limit is None else f"{self.limit:,}"),
            (
                "files",
                f"{len(self.files):,} of {files:,}, "
                f"{sum(file.file.size for file in self.files):,} bytes{f'; pruned {reasons}' if reasons else ''}",
            ),
            (
                "segments",
                f"{use.read:,} of {use.read + use.pruned:,} looked into, fetched with {use.requests:,} requests, "
                f"{use.bytes:,} bytes"
                if use.read + use.pruned + use.requests
                else "",
            ),
            ("rows in them", f"{sum(file.file.live_rows for file in self.files):,}"),
            ("tombstones", f"{len(self.tombstones):,} of {len(self.all_tombstones):,} to be checked"),
        ]
        return [(name, value) for name, value in facts if value]

    @cached_property
    def tombstones(self) -> tuple[Tombstone, ...]:
        """The tombstones that may hide rows of the files to read, oldest first."""
        is_needed = np.zeros(len(self.all_tombstones), np.bool_)
        for file in self.files:
            if isinstance(file.tombstones, FileTombstones):  # others are not from ``all_tombstones``
                is_needed[file.tombstones.indexes()] = True
        return tuple(self.all_tombstones[index] for index in np.flatnonzero(is_needed).tolist())


def plan(
    view: View,
    *,
    columns: Sequence[str] | None = None,
    where: Condition | None = None,
    limit: int | None = None,
    with_commit_ts: bool = False,
    counting: bool = False,
    newer_than: int = -1,
) -> ScanPlan:
    """Plans a scan of one table in one version. Reads segments if there are any, and nothing else.

    Args:
        counting: leaves out files whose rows metadata can count, and adds these rows up.
        newer_than: leaves out files without rows after this commit timestamp.

    Raises TableNotFoundError, SchemaError, InputError (a negative limit), CorruptionError.
    """
    reader = view.context.segments.with_tally()
    entry = reader.whole(view.manifest.table(view.table))
    check_limit(limit)
    live, tombstones = LiveFiles.of(entry, reader), tombstones_of(entry, reader)
    predicate, condition = implied_by(where), where if isinstance(where, SqlCondition) else None
    counts, is_tested = counting and condition is None, condition is not None
    planner = _ScanPlanner(live, tombstones, predicate, limit, counts, newer_than, is_tested=is_tested)
    planner.run()
    return ScanPlan(
        table=view.table,
        version=view.manifest.version,
        entry=entry,
        output=output_fields(entry, columns, with_commit_ts),
        where=predicate,
        limit=limit,
        files=tuple(planner.files),
        pruned={reason: count for reason, count in planner.pruned.items() if count},
        all_tombstones=planner.tombstones,
        segments=SegmentUse(
            planner.read, len(planner.live.segments) - planner.read, reader.tally.requests, reader.tally.bytes
        ),
        counted_files=planner.counted_files,
        counted_rows=planner.counted_rows,
        condition=condition,
    )


def check_limit(limit: int | None) -> None:
    if limit is not None and limit < 0:
        raise InputError(f"limit {limit}: it can't be negative")


def output_fields(entry: TableEntry, names: Sequence[str] | None, with_commit_ts: bool) -> tuple[Field, ...]:
    """The columns of a result. Raises SchemaError, InputError."""
    if names is None:
        fields = entry.schema.shown
    else:
        if isinstance(names, str):
            raise InputError(f"columns={names!r}: give a list of names")
        shown = {field.id: field for field in entry.schema.shown}
        fields = tuple(shown[entry.schema.field(name).id] for name in names)
        if len({field.id for field in fields}) < len(fields):
            raise SchemaError(f"{list(names)} names a column twice")
    return (*fields, COMMIT_TS_FIELD) if with_commit_ts else fields


class _ScanPlanner:
    """Goes through a table's files, oldest first, segment by segment and then those in the manifest."""

    def __init__(
        self,
        live: LiveFiles,
        tombstones: tuple[Tombstone, ...],
        where: Predicate | None,
        limit: int | None,
        counting: bool,
        newer_than: int,
        *,
        is_tested: bool,
    ) -> None:
        self.live, self.tombstones, self._is_tested = live, tombstones, is_tested
        self._where, self._limit, self._counting, self._newer_than = where, limit, counting, newer_than
        self._schema = live.entry.schema
        self._deletes = TombstoneJudge(tombstones, self._schema)
        self._filtered: frozenset[int] = columns(where) if where is not None else frozenset()
        self.files: list[FilePlan] = []
        self.pruned: Counter[Reason] = Counter()
        self.read = self.counted_files = self.counted_rows = 0
        self._known_rows = 0  # rows that the scan gets from ``files``, where metadata has their exact number

    def run(self) -> None:
        requested: list[Segment] = []
        for segment in self.live.segments:
            verdict = self._verdict(segment)
            if verdict is StatsVerdict.NEVER:
                self.pruned["filter"] += segment.count
            elif verdict is StatsVerdict.ALWAYS and self._is_counted_by_manifest(segment):
                self.counted_files += segment.count
                self.counted_rows += segment.rows - segment.deleted
            else:
                requested.append(segment)
        remaining = len(requested)
        live_segments = self.live.live_segments(requested, ahead=1 if self._limit is not None else None)
        while remaining and not self._has_enough():
            self.read += 1
            remaining -= 1
            self._add_segment(next(live_segments))
        self.pruned["limit"] += sum(segment.count for segment in requested[len(requested) - remaining :])
        inline = self.live.entry.files
        for index, file in enumerate(inline):
            if self._has_enough():
                self.pruned["limit"] += len(inline) - index
                break
            self._add(file, partial(self._deletes.of_file, file))
        # Segments that were not read are counted with all their files. Take out those that have left the table since.
        file_count = len(self.files) + self.counted_files + sum(self.pruned.values())
        for reason in ("filter", "limit"):
            over = min(self.pruned[reason], max(0, file_count - self.live.count))
            self.pruned[reason] -= over
            file_count -= over

    def _is_counted_by_manifest(self, segment: Segment) -> bool:
        """True if the manifest has the number of live rows of a segment whose rows all match."""
        return self._counting and not len(self.live.changes.uuids) and not self._deletes.of_segment(segment)

    def _has_enough(self) -> bool:
        return self._limit is not None and self._known_rows + self.counted_rows >= self._limit

    def _add_segment(self, segment: LiveSegment) -> None:
        where, table = self._where, segment.table
        positions = segment.positions(None if where is None else may_match_mask(where, table))
        self.pruned["filter"] += segment.files - len(positions)
        tombstones = self._deletes.of_segment(segment.segment)
        if self._counting and len(positions):
            is_countable = ~tombstones.file_mask(segment)
            if where is not None:
                is_countable &= always_mask(where, table)
            counted = positions[is_countable[positions]]
            totals = segment.totals(counted)
            self.counted_files += totals.files
            self.counted_rows += totals.rows - totals.deleted
            positions = positions[~is_countable[positions]]
        ids = self._filtered | tombstones.ids
        files = tombstones.of_files(segment, positions, segment.entries(positions, ids))
        for remaining in range(len(positions), 0, -1):
            if self._has_enough():
                self.pruned["limit"] += remaining
                return
            self._add(*next(files))

    def _verdict(self, file: DataFile | Segment) -> StatsVerdict:
        if greatest_ts(file) <= self._newer_than:
            return StatsVerdict.NEVER
        if self._where is None:
            return StatsVerdict.ALWAYS
        return RowBounds.of(file, self._schema, self._filtered).judge(self._where)

    def _add(self, file: DataFile, find: Callable[[], FileTombstones | None]) -> None:
        if not file.live_rows:
            self.pruned["deleted"] += 1
            return
        verdict = self._verdict(file)
        if verdict is StatsVerdict.NEVER:
            self.pruned["filter"] += 1
            return
        tombstones = find()
        if tombstones is None:
            self.pruned["deleted"] += 1
            return
        plan = FilePlan(file, verdict is StatsVerdict.MAYBE or self._is_tested, tombstones)
        self.files.append(plan)
        self._known_rows += plan.exact_rows or 0
