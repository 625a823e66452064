"""Reads the rows of a change: those that are visible in a version, and those that it took away.

Rows that wait in temporary files, in parts by a number of each row, so that equal rows are in the same part.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from dolmen.base.units import MIB
from dolmen.errors import LimitError
from dolmen.format.entries import Tombstone
from dolmen.format.schema import COMMIT_TS_FIELD, COMMIT_TS_ID
from dolmen.format.types import Mask, to_boolean_array, to_mask
from dolmen.predicate import matches
from dolmen.rows.changes.affected_files import AffectedFile
from dolmen.rows.changes.table_state import FeedColumns, TableState
from dolmen.rows.scan.plan import FilePlan
from dolmen.rows.scan.read.byte_ranges import cut_by_size
from dolmen.rows.scan.read.reading import PlanReader, RowGroupColumns
from dolmen.rows.scan.read.row_groups import OpenFile, RowGroup, column_of, live_mask, row_groups, row_mask
from dolmen.rows.scan.scan_deletes import VECTOR_BYTES, vector_bytes
from dolmen.rows.write.row_digest import Hashes

PARTS_BITS = 5
PARTS = 1 << PARTS_BITS

_BUFFERED = 4 * MIB
"""Rows of all parts are collected up to so many bytes before they are written."""


@dataclass(frozen=True)
class AffectedRowGroup(RowGroup):
    """A row group that may have lost rows.

    Args:
        after: the same row group with the deletes that may have taken rows of it; None if all are gone.
    """

    after: RowGroup | None

    @classmethod
    def of(cls, group: RowGroup, after: RowGroup | None) -> AffectedRowGroup:
        """A row group of the version before, with what it has become."""
        return cls(
            file=group.file,
            index=group.index,
            first=group.first,
            rows=group.rows,
            gone=group.gone,
            filter=group.filter,
            predicates=group.predicates,
            lookups=group.lookups,
            after=after,
        )


def visible_rows(
    state: TableState,
    columns: FeedColumns,
    files: Iterable[FilePlan],
    unresolved: tuple[Tombstone, ...],
    *,
    since: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Streams the requested rows of some files that no delete hides.

    Args:
        unresolved: the deletes among which the files' tombstones are.
        since: leaves out rows of commits up to this timestamp.
    """
    plans = tuple(files)
    reader = state.reader(columns, plans, unresolved)
    is_mixed = any(plan.file.least_row_ts <= since for plan in plans)
    ids = columns.ids | _tested_late(state, columns) | ({COMMIT_TS_ID} if is_mixed else frozenset())
    schema = read_schema(columns)

    def decode(group: RowGroup, read: RowGroupColumns) -> pa.RecordBatch | None:
        keep = row_mask(group, read.read(group.tests))
        if group.file.file.least_row_ts <= since:
            ts = column_of(group, COMMIT_TS_FIELD, read.read(frozenset((COMMIT_TS_ID,)))).to_numpy()
            keep = ts > since if keep is None else keep & (ts > since)
        return _take(state, group, read, keep, columns, schema)

    for batch in reader.read(decode, reader.groups(), ids):
        if batch is not None:
            yield batch


def taken_rows(
    before: TableState,
    after: TableState,
    columns: FeedColumns,
    affected: Iterable[AffectedFile],
    deletes: tuple[Tombstone, ...],
) -> Iterator[pa.RecordBatch]:
    """Streams the requested rows that were visible in ``before`` and are hidden in ``after``.

    Args:
        affected: the files that may have lost rows.
        deletes: those among which the tombstones of ``affected`` are.
    """
    by_path = {each.before.file.path: each for each in affected}
    if not by_path:
        return
    older = before.reader(columns, tuple(each.before for each in by_path.values()), before.tombstones)
    newer = after.reader(
        columns,
        tuple(FilePlan(each.after, False, each.tombstones) for each in by_path.values() if each.tombstones),
        deletes,
    )
    tested = frozenset(id_ for tombstone in newer.plan.tombstones for id_ in tombstone.columns)
    schema = read_schema(columns)

    def decode(group: RowGroup, read: RowGroupColumns) -> pa.RecordBatch | None:
        assert isinstance(group, AffectedRowGroup)
        keep = row_mask(group, read.read(group.tests))
        if group.after is not None:
            there = live_mask(group.after, read.read(group.after.tests))
            if there is None:
                return None
            keep = ~there if keep is None else keep & ~there
        return _take(before, group, read, keep, columns, schema)

    ids = columns.ids | tested | _tested_late(before, columns)
    for batch in older.read(decode, _affected_groups(older, newer, by_path), ids):
        if batch is not None:
            yield batch


def _affected_groups(
    older: PlanReader, newer: PlanReader, by_path: dict[str, AffectedFile]
) -> Iterator[AffectedRowGroup]:
    """The row groups that had visible rows and may have lost some."""
    hidden, taken = older.deletes(), newer.deletes()
    schema = older.plan.entry.schema
    for some in cut_by_size(older.plan.files, vector_bytes, VECTOR_BYTES):
        affected = [by_path[plan.file.path] for plan in some]
        bitmaps = newer.vectors([FilePlan(each.after, False, ()) for each in affected if each.has_other_vector])
        for file in older.open_files(some):
            each = by_path[file.file.path]
            there: dict[int, RowGroup] = {}
            if each.tombstones is not None:
                now = OpenFile(
                    FilePlan(each.after, False, each.tombstones), file.footer, bitmaps.get(each.after.path), file.source
                )
                there = {group.index: group for group in row_groups(now, None, taken, schema)}
            for group in row_groups(file, older.plan.where, hidden, schema):
                after = there.get(group.index)
                if after is None or after.tests or after.gone:
                    yield AffectedRowGroup.of(group, after)


def _tested_late(state: TableState, columns: FeedColumns) -> frozenset[int]:
    """Ids of the columns of a predicate by which files can't be judged: see ``TableState.where``."""
    return frozenset() if state.where(columns) is columns.where else columns.filtered


def _take(
    state: TableState,
    group: RowGroup,
    read: RowGroupColumns,
    keep: Mask | None,
    columns: FeedColumns,
    schema: pa.Schema,
) -> pa.RecordBatch | None:
    if keep is not None and not keep.any():
        return None
    tested = _tested_late(state, columns)
    arrays = read.read(columns.ids | tested)
    if tested and columns.where is not None:
        shown = {field.id: state.column(group, field, arrays) for field in columns.needed if field.id in tested}
        requested = to_mask(matches(columns.where, shown, group.rows))
        keep = requested if keep is None else keep & requested
        if not keep.any():
            return None
    output = [state.column(group, field, arrays) for field in columns.read]
    if keep is not None and np.count_nonzero(keep) < len(keep):
        kept = to_boolean_array(keep)
        output = [array.filter(kept) for array in output]
    return pa.record_batch(output, schema)


def read_schema(columns: FeedColumns) -> pa.Schema:
    """The Arrow schema of the rows that are read. In versions that do not show a column, it is NULL."""
    return pa.schema([pa.field(field.name, field.arrow_type) for field in columns.read])


class SpilledRows:
    """Rows in files, one for each part. Use it as a context: the files go at its end.

    Args:
        schema: the rows' columns.
        level: which bits of a row's number choose its part; rows of one part are divided further on the next level.
    """

    def __init__(self, schema: pa.Schema, level: int) -> None:
        self._schema, self._shift = schema, np.uint64(64 - PARTS_BITS * (level + 1))
        self._stack = ExitStack()
        self._buffers: list[list[pa.RecordBatch]] = [[] for _ in range(PARTS)]
        self._writers: list[Any] = [None] * PARTS
        self._bytes = 0

    def __enter__(self) -> SpilledRows:
        self._directory = Path(self._stack.enter_context(TemporaryDirectory(prefix="dolmen-")))
        return self

    def __exit__(self, *_: object) -> None:
        self._buffers = []
        self._stack.close()

    def add(self, batch: pa.RecordBatch, hashes: Hashes) -> None:
        """Adds rows with the number of each. Raises LimitError if the disk is full."""
        part_of = (hashes >> self._shift) & np.uint64(PARTS - 1)
        order = np.argsort(part_of, kind="stable")
        sorted_rows = batch.take(pa.array(order))
        ends = np.searchsorted(part_of[order], np.arange(PARTS + 1, dtype=np.uint64))
        for part in np.flatnonzero(np.diff(ends)).tolist():
            self._buffers[part].append(sorted_rows.slice(ends[part], ends[part + 1] - ends[part]))
        self._bytes += batch.nbytes
        if self._bytes > _BUFFERED:
            self._write()

    def finish(self) -> None:
        """Ends the files. Raises LimitError if the disk is full."""
        self._write()
        with _explaining_full_disks():
            for writer in self._writers:
                if writer is not None:
                    writer.close()

    def read(self, part: int) -> Iterator[pa.RecordBatch]:
        """Streams the rows of one part."""
        if self._writers[part] is None:
            return
        with pa.memory_map(str(self._path(part))) as file, pa.ipc.open_stream(file) as rows:
            yield from rows

    def _path(self, part: int) -> Path:
        return self._directory / f"{part}.arrow"

    def _write(self) -> None:
        with _explaining_full_disks():
            for part, batches in enumerate(self._buffers):
                if not batches:
                    continue
                if self._writers[part] is None:
                    target = self._stack.enter_context(pa.OSFile(str(self._path(part)), "wb"))
                    self._writers[part] = self._stack.enter_context(pa.ipc.new_stream(target, self._schema))
                for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
                    self._writers[part].write_batch(batch)
                batches.clear()
        self._bytes = 0


@contextmanager
def _explaining_full_disks() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise LimitError(
            "the temporary directory is full of changed rows that don't fit into memory: make room, or ask for fewer "
            "versions"
        ) from error
