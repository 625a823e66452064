"""Streams the live rows of data files, in the table's columns, with their commit timestamps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.format.statistics import Bounds
from dolmen.format.values import to_scalar
from dolmen.maintenance.compact.sort import Bound
from dolmen.maintenance.resolve.unresolved import Unresolved
from dolmen.scan.plan import FilePlan
from dolmen.scan.ranges import GAP_BYTES
from dolmen.scan.read import PlanReader, RowGroupColumns
from dolmen.scan.row_groups import OpenFile, RowGroup, row_groups
from dolmen.scan.row_masks import column_of, live_mask, to_arrow
from dolmen.segments.judging import column_bounds


@dataclass(frozen=True)
class _Unit:
    """A unit of reading: a whole small file, or one row group of a larger file.

    Args:
        rank: orders units by their least key; units with unknown keys come first.
        bound: the least key, or a lower bound of it; None if it is unknown.
        group: the row group; None for the next small file.
    """

    rank: tuple[Any, ...]
    bound: Bound | None
    group: RowGroup | None

    @classmethod
    def of(cls, known: Bounds, key: Field, group: RowGroup | None = None) -> _Unit:
        """Makes a unit from the known bounds of its rows' keys."""
        if known.min is None:
            return cls((0,), None, group)
        return cls((1, known.min), (to_scalar(known.min, key.arrow_type),), group)


class LiveRows:
    """Streams the rows of files that no vector and no tombstone of a snapshot hides.

    Args:
        reader: reads files of the snapshot.
        entry: the table's entry, with the hidden column ``_commit_ts`` if rows need it.
        unresolved: the snapshot's tombstones.
    """

    def __init__(self, reader: PlanReader, entry: TableEntry, unresolved: Unresolved) -> None:
        self._reader, self._entry, self._unresolved = reader, entry, unresolved
        self._fields = entry.schema.fields
        self._ids = frozenset(field.id for field in self._fields)
        self.physical = self.hidden = 0
        """Number of rows in all row groups so far, and the number of deleted rows among them."""

    def in_file_order(self, files: Sequence[FilePlan]) -> Iterator[pa.RecordBatch]:
        """The rows in the order of the files, one file after the other."""
        groups = (group for file in self._reader.open_files(files) for group in self._groups(file))
        for batch in self._reader.read(self._decode, groups, self._ids):
            yield self._count_hidden(batch)

    def in_about_key_order(self, files: Sequence[FilePlan]) -> Iterator[tuple[Bound | None, pa.RecordBatch]]:
        """The rows in the order that statistics show for the sort key's first column.

        Row groups of several files take turns, so that sorted files are merged as they are read. Each batch comes with
        a lower bound of its own keys and of all later keys.
        """
        small = [plan for plan in files if plan.file.size <= GAP_BYTES]
        key = self._entry.schema.by_id[self._entry.sort_key[0]]
        units = [
            _Unit.of(group.file.footer.bounds(group.index, key, None), key, group)
            for file in self._reader.open_files([plan for plan in files if plan.file.size > GAP_BYTES])
            for group in self._groups(file)
        ]
        placed = [(_Unit.of(column_bounds(plan.file, key), key), plan) for plan in small]
        placed.sort(key=lambda item: item[0].rank)
        units = sorted([*units, *(unit for unit, _ in placed)], key=lambda unit: unit.rank)
        bounds_of: deque[Bound | None] = deque()  # bounds of row groups under way

        def groups() -> Iterator[RowGroup]:
            files = self._reader.open_files([plan for _, plan in placed])
            for unit in units:
                for group in self._groups(next(files)) if unit.group is None else (unit.group,):
                    bounds_of.append(unit.bound)
                    yield group

        for batch in self._reader.read(self._decode, groups(), self._ids):
            yield bounds_of.popleft(), self._count_hidden(batch)

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
            kept_rows = to_arrow(keep)
            output = [array.filter(kept_rows) for array in output]
        return pa.RecordBatch.from_arrays(output, schema=self._entry.schema.arrow), group.rows

    def _count_hidden(self, read: tuple[pa.RecordBatch, int]) -> pa.RecordBatch:
        batch, rows = read
        self.hidden += rows - batch.num_rows
        return batch
