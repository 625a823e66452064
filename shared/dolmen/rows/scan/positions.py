"""Rows by their position in a data file: those that a delete removes, and those of a scan with their places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from dolmen.format.delete_object import vector_of_mask
from dolmen.predicate import Predicate
from dolmen.rows.scan.hide.row_masks import column_of, row_mask, to_arrow
from dolmen.rows.scan.plan import plan
from dolmen.rows.scan.read.reading import PlanReader, RowGroupColumns
from dolmen.rows.scan.read.row_groups import RowGroup
from dolmen.rows.scan.scan import Scan
from dolmen.rows.scan.view import View

PositionedRows: TypeAlias = tuple[pa.RecordBatch, str, npt.NDArray[np.int64]]
"""Rows of one file, its path, and their positions in it: deleted rows count."""


def matching_positions(view: View, where: Predicate) -> dict[str, BitMap]:
    """Finds the live rows for which a predicate is TRUE; returns their positions by the path of their file.

    Rows that a vector or a tombstone hides already are not among them, so the counts are exact. Reads only the columns
    of the predicate and of tombstones, and nothing of row groups that statistics prove whole.
    """
    reader = PlanReader(view.context, plan(view, columns=(), where=where), view.pending, by_index=True)
    found: dict[str, BitMap] = {}
    for path, positions in reader.read(_positions, reader.groups(), frozenset()):
        if positions:
            found.setdefault(path, BitMap()).update(positions)
    return found


def _positions(group: RowGroup, columns: RowGroupColumns) -> tuple[str, BitMap]:
    path = group.file.file.path
    if group.picked is not None:
        keep = row_mask(group, columns.read(group.tests))
        return path, BitMap((group.positions if keep is None else group.positions[keep]).astype(np.uint32))
    everything = BitMap(range(group.first, group.first + group.rows))
    if group.tests:
        keep = row_mask(group, columns.read(group.tests))
        return path, everything if keep is None else vector_of_mask(keep, group.first)
    return path, everything - group.file.vector if group.file.vector else everything


def rows_with_positions(scan: Scan) -> Iterator[PositionedRows]:
    """Reads a scan without order and limit, in batches of one file each."""
    scan_plan, reader = scan.plan, scan.reader()

    def work(group: RowGroup, columns: RowGroupColumns) -> PositionedRows | None:
        keep = row_mask(group, columns.read(group.tests))
        positions = group.positions
        if keep is not None and not keep.any():
            return None
        arrays = columns.read(scan_plan.output_ids)
        output = [column_of(group, field, arrays) for field in scan_plan.output]
        if keep is not None:
            positions = positions[keep]
            output = [array.filter(to_arrow(keep)) for array in output]
        return pa.record_batch(output, scan_plan.schema), group.file.file.path, positions

    with scan.reading():
        for found in reader.read(work, reader.groups(), scan_plan.output_ids):
            if found is not None:
                yield found
