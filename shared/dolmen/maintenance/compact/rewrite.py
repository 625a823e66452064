"""Rewrites one group of files, in this process or in Spark's tasks: streams live rows, sorts and writes them.

Each batch has a lower bound of its own keys and all later keys. Rows below that bound are written at once. When the
other rows outgrow the memory, they are sorted and written to a temporary directory as a run. In the end the runs are
merged in the same way, with at most one batch of each run in memory.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime, cached_property
from dolmen.base.temporary_files import BatchFile
from dolmen.commit.head import Context
from dolmen.entries.partitions import Partition, PartitionSpec
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.entries.segments.row_bounds import column_bounds
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import clustered_columns
from dolmen.format.schema import Field
from dolmen.maintenance.compact.clustering import ZOrder, sampled
from dolmen.maintenance.compact.compaction_plan import CompactionOptions, is_clustered
from dolmen.maintenance.compact.splice import ReadUnit, Splicing
from dolmen.maintenance.unresolved import UnresolvedDeletes
from dolmen.rows.scan.data_objects import GAP_BYTES
from dolmen.rows.scan.plan_reader import PlanReader, RowGroupColumns
from dolmen.rows.scan.row_groups import FilePlan, OpenFile, RowGroup, column_of, kept_rows, live_mask, row_groups
from dolmen.rows.write.data_file import CopiedGroups, with_commit_ts, write_data_files, write_spliced_files
from dolmen.rows.write.row_order import RowOrder
from dolmen.rows.write.runs import WriteOptions, sort_columns

_REQUESTS_AT_ONCE = 4  # each reads up to 8 MB ahead, which bounds memory

FAN_IN = 64  # the number of runs that are merged at once. One batch of each may be in memory.

Bound: TypeAlias = tuple[pa.Scalar, ...]
"""Values of the first columns of the sort key, at least one. No later row has a smaller key."""


class TableVersion(Struct, frozen=True):
    """A table in one version, with its deletes prepared."""

    name: str
    manifest: Manifest
    entry: TableEntry
    files: LiveFiles
    unresolved: UnresolvedDeletes

    @classmethod
    def of(cls, context: Context, name: str, manifest: Manifest) -> TableVersion:
        entry = context.segments.whole(manifest.table(name))
        unresolved = UnresolvedDeletes(context, entry, tombstones_of(entry, context.segments))
        return cls(name, manifest, entry, LiveFiles.of(entry, context.segments), unresolved)

    @property
    def spec(self) -> PartitionSpec | None:
        """The partitions of the table; None if it has none."""
        return PartitionSpec.of(self.entry)

    def dead_uuids(self) -> set[str]:
        """Uuids of files whose rows are certainly all hidden by tombstones."""
        if not self.unresolved.greatest_ts:
            return set()
        return {file.uuid for file in self.files if self.unresolved.hides_all_rows(file)}

    def select_inputs(self, uuids: tuple[str, ...], options: CompactionOptions) -> tuple[DataFile, ...]:
        """Returns the files of a group that still exist; none if only one does, and rewriting it does not pay."""
        files_by_uuid = self.files.find(uuids)
        inputs = tuple(files_by_uuid[uuid] for uuid in uuids if uuid in files_by_uuid)
        if len(inputs) == 1:
            (file,) = inputs
            is_mostly_deleted = file.rows - file.live_rows > file.rows * options.deleted_share
            is_worth_it = file.erasing or is_mostly_deleted or self.unresolved.hides_all_rows(file)
            is_worth_it |= options.recluster and is_clustered(self.entry)
            return inputs if is_worth_it or (self.spec and self.spec.of_file(file) is None) else ()
        return inputs

    def commit_ts_of(self, inputs: tuple[DataFile, ...]) -> tuple[int | None, TableEntry]:
        """The timestamp that all rows of these files share, or None; and the entry for writing the output.

        If timestamps differ, the entry has a column for each row's own timestamp. It has no checks: the rows meet them.
        """
        timestamps = {file.row_ts for file in inputs}
        row_ts = timestamps.pop() if len(timestamps) == 1 else None
        entry = msgspec.structs.replace(self.entry, schema=msgspec.structs.replace(self.entry.schema, checks=()))
        return row_ts, entry if row_ts is not None else with_commit_ts(entry)

    def complete_entries(self, written: list[DataFile], row_ts: int | None) -> tuple[DataFile, ...]:
        """Completes the entries of new files that hold this version's live rows.

        Their ``applied_through`` is this version's timestamp, never that of the compaction's own commit: rows deleted
        meanwhile would come back.
        """
        through = self.manifest.commit_ts
        return tuple(msgspec.structs.replace(file, row_ts=row_ts, applied_through=through) for file in written)


class Rewritten(Struct, frozen=True):
    """The entries of the files that replace a group's files."""

    files: tuple[DataFile, ...]
    spilled_bytes: int = 0
    copied_bytes: int = 0


@dataclass
class GroupRewriter:
    """Writes the live rows of groups of files into new ones, in bounded memory.

    ``beat`` is called from time to time, to show that the job is alive.
    """

    context: Context
    options: CompactionOptions
    target_file_bytes: int
    object_name: Callable[[], str]
    beat: Callable[[], None] = lambda: None

    @cached_property
    def reading_context(self) -> Context:
        """The context with few requests at once: whole files are read, so each request is as large as it may be."""
        runtime = self.context.runtime
        return replace(self.context, runtime=replace(runtime, threads=min(runtime.threads, _REQUESTS_AT_ONCE)))

    def rewrite(self, version: TableVersion, inputs: tuple[DataFile, ...]) -> Rewritten:
        """Writes the new files, without a commit. Raises AssertionError if they don't have all live rows."""
        parts = version.spec.divide(inputs) if version.spec else {None: inputs}
        done = [_Rewriting(self, version, tuple(files), partition).run() for partition, files in parts.items()]
        return Rewritten(
            tuple(file for each in done for file in each.files),
            sum(each.spilled_bytes for each in done),
            sum(each.copied_bytes for each in done),
        )


class _Rewriting:
    """One run of ``GroupRewriter.rewrite``, for files of one partition; or without partitions, or of several (None)."""

    def __init__(
        self,
        rewriter: GroupRewriter,
        version: TableVersion,
        inputs: tuple[DataFile, ...],
        partition: Partition | None = None,
    ) -> None:
        self._rewriter, self._version, self._inputs, self._partition = rewriter, version, inputs, partition
        self._row_ts, self._entry = version.commit_ts_of(inputs)
        self._options = write_options(rewriter.options, rewriter.target_file_bytes)
        self._spilled_bytes = self._copied_bytes = 0
        names = clustered_columns(self._entry.properties) if is_clustered(self._entry) else ()
        self._clustered = tuple(map(self._entry.schema.field, names))
        self._z_order: ZOrder | None = None

    def run(self) -> Rewritten:
        rewriter, version, options = self._rewriter, self._version, self._options
        plans = [plan for file in self._inputs if (plan := version.unresolved.plan(file)) is not None]
        reader = PlanReader.of_table(
            rewriter.reading_context, version.name, version.manifest, version.entry, self._entry.schema.fields
        )
        rows = LiveRows(reader, self._entry, version.unresolved)
        splicing = Splicing(rewriter.reading_context, version.name, self._entry, options, rewriter.options.splice_bytes)
        spec, partition = version.spec, self._partition
        copyable = () if spec and partition is None else [plan.file for plan in plans]  # a copy is not divided
        candidates = set() if self._clustered else splicing.candidates(copyable)
        units = (rows.units_in_key_order if self._entry.sort_key else rows.units_in_file_order)(plans, candidates)
        output = splicing.parts(units) if candidates else None
        self._z_order = self._sample(reader, units) if self._clustered else None
        store, runtime = rewriter.context.store, rewriter.context.runtime
        if output is None:
            batches = self._encode(rows, units)
            written = write_data_files(
                store, version.name, self._entry, batches, runtime, options, rewriter.object_name
            )
        else:
            copied = [part for part in output if isinstance(part, CopiedGroups)]
            self._copied_bytes = sum(group.size for part in copied for group in part.groups)
            parts = (part if isinstance(part, CopiedGroups) else self._encode(rows, part) for part in output)
            written = write_spliced_files(
                store, version.name, self._entry, parts, runtime, options, rewriter.object_name, rewriter.beat
            )
        self._check(rows, plans, sum(file.rows for file in written))
        if spec and partition is not None:
            written = [spec.record(file, partition) for file in written]
        files = version.complete_entries(written, self._row_ts)
        return Rewritten(files, self._spilled_bytes, self._copied_bytes)

    def _encode(self, rows: LiveRows, units: Sequence[ReadUnit]) -> Iterator[pa.RecordBatch]:
        """The rows of the units to encode again, in the order of the output."""
        read = rows.read_units(units)
        is_ordered = self._entry.sort_key or self._z_order
        for batch in self._sort_batches(read) if is_ordered else (batch for _, batch in read):
            self._rewriter.beat()
            yield batch

    def _sample(self, reader: PlanReader, units: Sequence[ReadUnit]) -> ZOrder:
        """Reads the columns of the z-order, which a sample of their rows divides into parts."""
        rows = LiveRows(reader, self._entry, self._version.unresolved, self._clustered)
        batches = (batch for _, batch in self._send_heartbeats(rows.read_units(units)))
        count = sum(file.rows for file in self._inputs)
        return ZOrder(pa.Table.from_batches(sampled(batches, count), rows.schema))

    def _sort_batches(self, batches: Iterator[tuple[Bound | None, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        options, schema = self._rewriter.options, self._entry.schema.arrow
        order = self._z_order or RowOrder(self._entry)
        extended = schema
        if isinstance(order, RowOrder) and order.is_plain:
            names = [self._entry.schema.by_id[term.id].name for term in order.terms]
        else:
            batches = ((bound, order.extend(batch)) for bound, batch in batches)
            names, extended = order.names, order.extend(pa.RecordBatch.from_pylist([], schema)).schema
        sorter = Sorter(self._rewriter.context.runtime, extended, names, options.memory_bytes, options.directory)
        for batch in sorter.sort(self._send_heartbeats(batches)):
            yield pa.RecordBatch.from_arrays(batch.columns[: len(schema)], schema=schema)
        self._spilled_bytes += sorter.spilled_bytes

    def _send_heartbeats(
        self, batches: Iterator[tuple[Bound | None, pa.RecordBatch]]
    ) -> Iterator[tuple[Bound | None, pa.RecordBatch]]:
        for item in batches:
            self._rewriter.beat()
            yield item

    def _check(self, rows: LiveRows, plans: list[FilePlan], written: int) -> None:
        """Checks, from entries, rows read and rows written, that the output lacks no rows except deleted ones."""
        physical = sum(plan.file.rows for plan in plans)
        by_vector = sum(plan.file.rows - plan.file.live_rows for plan in plans)
        is_exact = not any(plan.tombstones for plan in plans)
        if (
            rows.physical != physical
            or written != physical - rows.hidden
            or rows.hidden < by_vector
            or (is_exact and rows.hidden != by_vector)
        ):
            raise AssertionError(
                f"compaction of table {self._version.name!r} read {rows.physical} of {physical} rows, found "
                f"{rows.hidden} deleted ({by_vector} by vectors) and wrote {written}: nothing was committed"
            )


def write_options(options: CompactionOptions, target_file_bytes: int) -> WriteOptions:
    return WriteOptions(
        target_file_bytes,
        run_bytes=options.run_bytes,
        row_group_bytes=options.row_group_bytes,
        partition_files=sys.maxsize,
    )


class LiveRows:
    """Streams the rows of files that no vector and no tombstone of a snapshot hides, in some columns or all."""

    def __init__(
        self, reader: PlanReader, entry: TableEntry, unresolved: UnresolvedDeletes, fields: tuple[Field, ...] = ()
    ) -> None:
        self._reader, self._entry, self._unresolved = reader, entry, unresolved
        self._fields = fields or entry.schema.fields
        self.schema = msgspec.structs.replace(entry.schema, fields=self._fields).arrow
        self._ids = frozenset(field.id for field in self._fields)
        self.physical = self.hidden = 0
        """Number of rows in all row groups so far, and the number of deleted rows among them."""

    def units_in_key_order(self, files: Sequence[FilePlan], opened_paths: Collection[str] = ()) -> list[ReadUnit]:
        """Small files, and row groups of larger or opened ones, in the order of the sort key by statistics."""
        large = [plan for plan in files if plan.file.size > GAP_BYTES or plan.file.path in opened_paths]
        small = [plan for plan in files if plan.file.size <= GAP_BYTES and plan.file.path not in opened_paths]
        order = RowOrder(self._entry)
        key = order.first
        units = [
            ReadUnit.of(group, group.file.footer.bounds(group.index, key, None), order)
            for file in self._reader.open_files(large)
            for group in self._groups(file)
        ]
        units += [ReadUnit.of(plan, column_bounds(plan.file, key), order) for plan in small]
        return sorted(units, key=lambda unit: unit.rank)

    def units_in_file_order(self, files: Sequence[FilePlan], opened_paths: Collection[str]) -> list[ReadUnit]:
        """Files in their order; instead of an opened file, its row groups."""
        parts: dict[str, Sequence[FilePlan | RowGroup]] = {
            file.file.path: self._groups(file)
            for file in self._reader.open_files([plan for plan in files if plan.file.path in opened_paths])
        }
        return [ReadUnit((), None, part) for plan in files for part in parts.get(plan.file.path, [plan])]

    def read_units(self, units: Sequence[ReadUnit]) -> Iterator[tuple[Bound | None, pa.RecordBatch]]:
        """The rows of units in their order, each batch with the bound of its unit."""
        bounds_of: deque[Bound | None] = deque()  # bounds of row groups under way

        def groups() -> Iterator[RowGroup]:
            files = self._reader.open_files([unit.part for unit in units if isinstance(unit.part, FilePlan)])
            for unit in units:
                for group in (unit.part,) if isinstance(unit.part, RowGroup) else self._groups(next(files)):
                    bounds_of.append(unit.bound)
                    yield group

        for batch, rows in self._reader.read(self._decode, groups(), self._ids):
            self.hidden += rows - batch.num_rows
            yield bounds_of.popleft(), batch

    def _groups(self, file: OpenFile) -> list[RowGroup]:
        """Row groups that may have live rows. Counts the rows of the others as hidden."""
        groups = list(row_groups(file, None, self._unresolved.deletes, self._entry.schema))
        self.physical += file.file.rows
        self.hidden += file.file.rows - sum(group.rows for group in groups)
        return groups

    def _decode(self, group: RowGroup, columns: RowGroupColumns) -> tuple[pa.RecordBatch, int]:
        """The live rows of a row group, and the number of its physical rows."""
        keep = live_mask(group, columns.read(group.tested_ids))
        arrays = columns.read(self._ids)
        output = [column_of(group, field, arrays) for field in self._fields]
        return kept_rows(output, keep, self.schema), group.rows


class Sorter:
    """Sorts rows by key columns: ascending, NaN after other values, NULLs last.

    Args:
        most_bytes: Arrow size of the rows that are sorted at once; about three times as much is in memory.
        directory: where runs are written; the system's temporary directory by default.
    """

    def __init__(
        self, runtime: Runtime, schema: pa.Schema, key: Sequence[str], most_bytes: int, directory: str | None = None
    ) -> None:
        self._runtime, self._schema, self._key = runtime, schema, key
        self._most_bytes, self._directory = most_bytes, directory
        self.spilled_bytes = 0

    def sort(self, items: Iterable[tuple[Bound | None, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Yields the rows in order. Each item is a batch with a lower bound of its own and all later keys, or None."""
        runs: list[_SortedRun] = []
        buffered: list[pa.RecordBatch] = []
        size = 0
        for bound, batch in items:
            if buffered and size + batch.nbytes > self._most_bytes:
                rows = self._sort(buffered)
                if not runs and bound is not None:  # otherwise rows of the runs come first
                    count = self._count_ready(rows, bound)
                    yield from rows.slice(0, count).to_batches()
                    rows = _copy_rest(rows, count)
                if rows.nbytes > self._most_bytes // 2:
                    self._spill(rows.to_batches(), runs)
                    rows = rows.slice(0, 0)
                buffered, size = rows.to_batches(), rows.nbytes
                del rows
            buffered.append(batch)
            size += batch.nbytes
        if buffered and not runs:
            yield from self._sort(buffered).to_batches()
        elif runs:
            self._spill(self._sort(buffered).to_batches(), runs)
            buffered.clear()
            yield from self._merge(runs)

    def _spill(self, batches: Iterable[pa.RecordBatch], runs: list[_SortedRun]) -> None:
        """Adds a run. Merges them into one first if one more would be too many to merge at once."""
        if len(runs) == FAN_IN:
            runs[:] = [self._write(self._merge(runs))]
        runs.append(self._write(batches))

    def _write(self, batches: Iterable[pa.RecordBatch]) -> _SortedRun:
        file = BatchFile(self._schema, "there are more rows to sort", compression="lz4", directory=self._directory)
        batch_bytes, firsts = self._most_bytes // (2 * FAN_IN), list[pa.RecordBatch]()
        for batch in batches:
            step = max(1, batch.num_rows * batch_bytes // max(1, batch.nbytes))
            for start in range(0, batch.num_rows, step):
                piece = batch.slice(start, step)
                file.write(piece)
                # A copy, which does not keep the batch in memory.
                firsts.append(piece.select(self._key).slice(0, 1).take(pa.array([0])))
        self.spilled_bytes += file.finish().size_bytes
        key_schema = pa.schema([self._schema.field(name) for name in self._key])
        return _SortedRun(file, pa.Table.from_batches(firsts, key_schema))

    def _merge(self, runs: Sequence[_SortedRun]) -> Iterator[pa.RecordBatch]:
        """Merges sorted runs. Sorts a part while the previous one is written."""
        for rows in self._runtime.map(self._sort, self._parts(runs), ahead=2):
            yield from rows.to_batches()

    def _parts(self, runs: Sequence[_SortedRun]) -> Iterator[list[pa.RecordBatch]]:
        """Divides the rows of sorted runs into consecutive parts; rows within a part are not sorted."""
        firsts = pa.concat_tables(run.firsts for run in runs)
        sources = [(run, index) for run in runs for index in range(run.firsts.num_rows)]
        buffered: list[pa.RecordBatch] = []
        size = 0
        for position in pc.sort_indices(firsts, [(name, "ascending") for name in self._key]).to_pylist():
            run, index = sources[position]
            batch = run.file.read(index)
            if buffered and size + batch.nbytes > self._most_bytes // 2:  # several parts are under way at once
                bound = tuple(column[position] for column in firsts.columns)
                ready = [self._count_ready(each, bound) for each in buffered]
                yield [each.slice(0, count) for each, count in zip(buffered, ready, strict=True)]
                buffered = [each.slice(n) for each, n in zip(buffered, ready, strict=True) if n < each.num_rows]
                size = sum(each.nbytes for each in buffered)
            buffered.append(batch)
            size += batch.nbytes
        yield buffered

    def _sort(self, batches: list[pa.RecordBatch]) -> pa.Table:
        """Sorts the rows of all batches. Empties the list, so that memory is freed while sorting."""
        columns = pa.Table.from_batches(batches, self._schema).columns
        batches.clear()
        sort_columns(columns, [columns[self._schema.get_field_index(name)] for name in self._key])
        return pa.table(columns, self._schema)

    def _count_ready(self, rows: pa.Table | pa.RecordBatch, bound: Bound) -> int:
        """Counts the sorted rows that can be written because no later row is less than ``bound``."""
        start, end = 0, rows.num_rows
        for name, value in zip(self._key, bound, strict=False):
            less, equal = _count_less_and_equal(rows[name].slice(start, end - start), value)
            start, end = start + less, start + less + equal
        # Rows with equal keys may have any order, but with a bound of fewer columns others may come between them.
        return end if len(bound) == len(self._key) else start


class _SortedRun(NamedTuple):
    """Sorted rows in a file, and the key of the first row of each of its batches."""

    file: BatchFile
    firsts: pa.Table


def _copy_rest(rows: pa.Table, start: int) -> pa.Table:
    """The rows from ``start`` on, as a copy if that frees enough memory."""
    rest = rows.slice(start)
    if start and rest.num_rows and rows.column(0).num_chunks == 1:
        return rest.take(pa.array(np.arange(rest.num_rows)))
    return rest


def _count_less_and_equal(column: pa.ChunkedArray | pa.Array, value: pa.Scalar) -> tuple[int, int]:
    """Counts the values of a sorted column before ``value``, and the values equal to it."""
    floating = pa.types.is_floating(column.type)
    nans = pc.sum(pc.is_nan(column), min_count=0).as_py() if floating else 0
    values = len(column) - column.null_count - nans
    if not value.is_valid:
        return values + nans, column.null_count
    if floating and np.isnan(value.as_py()):
        return values, nans
    return (pc.sum(pc.less(column, value), min_count=0).as_py(), pc.sum(pc.equal(column, value), min_count=0).as_py())
