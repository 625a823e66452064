"""Streams the live rows of data files, in the table's columns, with their commit timestamps."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dolmen.entries.segments.judging import column_bounds
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.format.statistics import Bounds
from dolmen.format.values import to_scalar
from dolmen.maintenance.compact.sort import Bound
from dolmen.maintenance.resolve.unresolved import Unresolved
from dolmen.rows.scan.plan import FilePlan
from dolmen.rows.scan.ranges import GAP_BYTES
from dolmen.rows.scan.read import PlanReader, RowGroupColumns
from dolmen.rows.scan.row_groups import OpenFile, RowGroup, row_groups
from dolmen.rows.scan.row_masks import column_of, live_mask, to_arrow


@dataclass(frozen=True)
class Unit:
    """A unit of reading: a whole file, which is opened when its turn comes, or one row group of an open one.

    Args:
        rank: orders units by their least key; units with unknown keys come first.
        bound: the least key, or a lower bound of it; None if it is unknown.
        part: what is read.
    """

    rank: tuple[Any, ...]
    bound: Bound | None
    part: FilePlan | RowGroup

    @classmethod
    def of(cls, part: FilePlan | RowGroup, known: Bounds, key: Field) -> Unit:
        """Makes a unit from the known bounds of its rows' keys."""
        if known.min is None:
            return cls((0,), None, part)
        return cls((1, known.min), (to_scalar(known.min, key.arrow_type),), part)


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
        yield from self.of_units(self.units_in_key_order(files))

    def units_in_key_order(self, files: Sequence[FilePlan], opened: Collection[str] = ()) -> list[Unit]:
        """Small files, and row groups of larger ones, in the order that statistics show for the sort key.

        Args:
            opened: paths of files that are opened now, however small they are.
        """
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
        """Files in their order, some of them in row groups.

        Args:
            opened: paths of those that are opened now.
        """
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
