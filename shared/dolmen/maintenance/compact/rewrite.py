"""Rewrites one group of files; used by compaction in this process and in Spark's tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pyarrow as pa

from dolmen.base.runtime import cached_property
from dolmen.commit.context import Context
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.entries.segments.row_bounds import column_bounds
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.types import to_boolean_array
from dolmen.maintenance.compact.compaction_plan import CompactionOptions
from dolmen.maintenance.compact.rewrite import Bound, Sorter
from dolmen.maintenance.compact.splice import Splicing, Unit
from dolmen.maintenance.unresolved import Unresolved
from dolmen.rows.scan.data_objects import GAP_BYTES
from dolmen.rows.scan.plan import FilePlan
from dolmen.rows.scan.reading import PlanReader, RowGroupColumns
from dolmen.rows.scan.row_groups import OpenFile, RowGroup, column_of, live_mask, row_groups
from dolmen.rows.write.data_file import CopiedGroups, with_commit_ts, write_data_files, write_spliced_files
from dolmen.rows.write.encodings import DEFAULT, WriteOptions

_REQUESTS_AT_ONCE = 4
"""Each reads up to 8 MB ahead, which bounds memory."""


@dataclass(frozen=True)
class TableVersion:
    """A table in one version, with its deletes prepared."""

    name: str
    manifest: Manifest
    entry: TableEntry
    files: LiveFiles
    unresolved: Unresolved

    @classmethod
    def of(cls, context: Context, name: str, manifest: Manifest) -> TableVersion:
        entry = context.segments.whole(manifest.table(name))
        unresolved = Unresolved(context, entry, tombstones_of(entry, context.segments))
        return cls(name, manifest, entry, LiveFiles.of(entry, context.segments), unresolved)

    def dead(self) -> set[str]:
        """Uuids of files whose rows are certainly all hidden by tombstones."""
        if not self.unresolved.greatest_ts:
            return set()
        return {file.uuid for file in self.files if self.unresolved.hides_all_of(file)}

    def worth_rewriting(self, uuids: tuple[str, ...], options: CompactionOptions) -> tuple[DataFile, ...]:
        """Returns those of a group's files that still exist; none if a single one is left that is not worth it."""
        found = self.files.find(uuids)
        inputs = tuple(found[uuid] for uuid in uuids if uuid in found)
        if len(inputs) == 1:
            (file,) = inputs
            mostly_deleted = file.rows - file.live_rows > file.rows * options.deleted_share
            return inputs if file.erasing or mostly_deleted or self.unresolved.hides_all_of(file) else ()
        return inputs

    def commit_ts_of(self, inputs: tuple[DataFile, ...]) -> tuple[int | None, TableEntry]:
        """The timestamp that all rows of these files share, or None; and the entry for writing the output.

        If timestamps differ, that has a column for each row's own timestamp.
        """
        timestamps = {file.row_ts for file in inputs}
        row_ts = timestamps.pop() if len(timestamps) == 1 else None
        return row_ts, self.entry if row_ts is not None else with_commit_ts(self.entry)

    def complete_entries(self, written: list[DataFile], row_ts: int | None) -> tuple[DataFile, ...]:
        """Completes the entries of new files that hold this version's live rows.

        Tombstones up to this version are applied in them. It is never the compaction's own commit: rows deleted
        meanwhile would come back.
        """
        through = self.manifest.commit_ts
        return tuple(msgspec.structs.replace(file, row_ts=row_ts, applied_through=through) for file in written)


class LiveRows:
    """Streams the rows of files that no vector and no tombstone of a snapshot hides, in the table's columns."""

    def __init__(self, reader: PlanReader, entry: TableEntry, unresolved: Unresolved) -> None:
        self._reader, self._entry, self._unresolved = reader, entry, unresolved
        self._fields = entry.schema.fields
        self._ids = frozenset(field.id for field in self._fields)
        self.physical = self.hidden = 0
        """Number of rows in all row groups so far, and the number of deleted rows among them."""

    def units_in_key_order(self, files: Sequence[FilePlan], opened: Collection[str] = ()) -> list[Unit]:
        """Small files, and row groups of larger or ``opened`` ones, as statistics order them by the sort key."""
        large = [plan for plan in files if plan.file.size > GAP_BYTES or plan.file.path in opened]
        small = [plan for plan in files if plan.file.size <= GAP_BYTES and plan.file.path not in opened]
        key = self._entry.schema.by_id[self._entry.sort_key[0]]
        units = [
            Unit.of(group, group.file.footer.bounds(group.index, key, None), key)
            for file in self._reader.open_files(large)
            for group in self._groups(file)
        ]
        units += [Unit.of(plan, column_bounds(plan.file, key), key) for plan in small]
        return sorted(units, key=lambda unit: unit.rank)

    def units_in_file_order(self, files: Sequence[FilePlan], opened: Collection[str]) -> list[Unit]:
        """Files in their order; those that are ``opened`` in row groups."""
        parts: dict[str, Sequence[FilePlan | RowGroup]] = {
            file.file.path: self._groups(file)
            for file in self._reader.open_files([plan for plan in files if plan.file.path in opened])
        }
        return [Unit((), None, part) for plan in files for part in parts.get(plan.file.path, [plan])]

    def of_units(self, units: Sequence[Unit]) -> Iterator[tuple[Bound | None, pa.RecordBatch]]:
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
        """Row groups with rows that may be live. The rows of others are counted as hidden."""
        groups = list(row_groups(file, None, self._unresolved.deletes, self._entry.schema))
        self.physical += file.file.rows
        self.hidden += file.file.rows - sum(group.rows for group in groups)
        return groups

    def _decode(self, group: RowGroup, columns: RowGroupColumns) -> tuple[pa.RecordBatch, int]:
        """The live rows of a row group, and the number of all its rows."""
        keep = live_mask(group, columns.read(group.tests))
        arrays = columns.read(self._ids)
        output = [column_of(group, field, arrays) for field in self._fields]
        if keep is not None and np.count_nonzero(keep) < len(keep):
            kept_rows = to_boolean_array(keep)
            output = [array.filter(kept_rows) for array in output]
        return pa.RecordBatch.from_arrays(output, schema=self._entry.schema.arrow), group.rows


def write_options(options: CompactionOptions, target_file_bytes: int) -> WriteOptions:
    return replace(
        DEFAULT,
        target_file_bytes=target_file_bytes,
        run_bytes=options.run_bytes,
        row_group_bytes=options.row_group_bytes,
    )


@dataclass(frozen=True)
class Rewritten:
    """The complete entries of the files that replace a group's files."""

    files: tuple[DataFile, ...]
    spilled_bytes: int = 0
    copied_bytes: int = 0


@dataclass
class GroupRewriter:
    """Writes the live rows of groups of files into new ones, in bounded memory.

    Args:
        object_name: gives each new object a name.
        beat: called from time to time, to show that the job is alive.
    """

    context: Context
    options: CompactionOptions
    target_file_bytes: int
    object_name: Callable[[], str]
    beat: Callable[[], None] = lambda: None

    @cached_property
    def reading(self) -> Context:
        """The context with few requests at once: as whole files are read, each request fetches as much as it may."""
        runtime = self.context.runtime
        return replace(self.context, runtime=replace(runtime, threads=min(runtime.threads, _REQUESTS_AT_ONCE)))

    def rewrite(self, version: TableVersion, inputs: tuple[DataFile, ...]) -> Rewritten:
        """Writes the new files, commits nothing. Raises AssertionError if it wrote more or fewer rows than are live."""
        return _Rewriting(self, version, inputs).run()


class _Rewriting:
    """One run of ``GroupRewriter.rewrite``."""

    def __init__(self, rewriter: GroupRewriter, version: TableVersion, inputs: tuple[DataFile, ...]) -> None:
        self._rewriter, self._version, self._inputs = rewriter, version, inputs
        self._row_ts, self._entry = version.commit_ts_of(inputs)
        self._options = write_options(rewriter.options, rewriter.target_file_bytes)
        self._spilled_bytes = self._copied_bytes = 0

    def run(self) -> Rewritten:
        rewriter, version, options = self._rewriter, self._version, self._options
        plans = [plan for file in self._inputs if (plan := version.unresolved.plan(file)) is not None]
        reader = PlanReader.of_table(
            rewriter.reading, version.name, version.manifest, version.entry, self._entry.schema.fields
        )
        rows = LiveRows(reader, self._entry, version.unresolved)
        splicing = Splicing(rewriter.reading, version.name, self._entry, options, rewriter.options.splice_bytes)
        candidates = splicing.candidates([plan.file for plan in plans])
        units = (rows.units_in_key_order if self._entry.sort_key else rows.units_in_file_order)(plans, candidates)
        segments = splicing.segments(units) if candidates else None
        store, runtime = rewriter.context.store, rewriter.context.runtime
        if segments is None:
            batches = self._encode(rows, units)
            written = write_data_files(
                store, version.name, self._entry, batches, runtime, options, rewriter.object_name
            )
        else:
            copied = [segment for segment in segments if isinstance(segment, CopiedGroups)]
            self._copied_bytes = sum(group.size for segment in copied for group in segment.groups)
            parts = (part if isinstance(part, CopiedGroups) else self._encode(rows, part) for part in segments)
            written = write_spliced_files(
                store, version.name, self._entry, parts, runtime, options, rewriter.object_name, rewriter.beat
            )
        self._check(rows, plans, sum(file.rows for file in written))
        files = version.complete_entries(written, self._row_ts)
        return Rewritten(files, self._spilled_bytes, self._copied_bytes)

    def _encode(self, rows: LiveRows, units: Sequence[Unit]) -> Iterator[pa.RecordBatch]:
        """The rows of units that are encoded again, in the order of the output."""
        read = rows.of_units(units)
        for batch in self._sorted(read) if self._entry.sort_key else (batch for _, batch in read):
            self._rewriter.beat()
            yield batch

    def _sorted(self, batches: Iterator[tuple[Bound | None, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        rewriter, options, schema = self._rewriter, self._rewriter.options, self._entry.schema
        key = [schema.by_id[id_].name for id_ in self._entry.sort_key]
        sorter = Sorter(rewriter.context.runtime, schema.arrow, key, options.memory_bytes, options.directory)
        yield from sorter.sort(self._beating(batches))
        self._spilled_bytes += sorter.spilled_bytes

    def _beating(
        self, batches: Iterator[tuple[Bound | None, pa.RecordBatch]]
    ) -> Iterator[tuple[Bound | None, pa.RecordBatch]]:
        for item in batches:
            self._rewriter.beat()
            yield item

    def _check(self, rows: LiveRows, plans: list[FilePlan], written: int) -> None:
        """Checks that rows out are rows in less deleted rows: by the entries, the rows read, and the rows written."""
        physical = sum(plan.file.rows for plan in plans)
        by_vector = sum(plan.file.rows - plan.file.live_rows for plan in plans)
        certain = not any(plan.tombstones for plan in plans)
        if (
            rows.physical != physical
            or written != physical - rows.hidden
            or rows.hidden < by_vector
            or (certain and rows.hidden != by_vector)
        ):
            raise AssertionError(
                f"compaction of table {self._version.name!r} read {rows.physical} of {physical} rows, found "
                f"{rows.hidden} deleted ({by_vector} by vectors) and wrote {written}: nothing was committed"
            )
