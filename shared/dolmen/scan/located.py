"""Rows with their places: which file each stands in, and at which position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.scan.read import RowGroupColumns
from dolmen.scan.row_groups import RowGroup
from dolmen.scan.scan import Scan
from dolmen.scan.surviving import column_of, surviving, to_arrow

Located: TypeAlias = tuple[pa.RecordBatch, str, npt.NDArray[np.int64]]
"""Rows of one file, its path, and their positions in it: deleted rows count."""


def located(scan: Scan) -> Iterator[Located]:
    """The rows of a scan without order and limit, in batches of one file each."""
    plan, reader = scan.plan, scan.reader()

    def work(group: RowGroup, columns: RowGroupColumns) -> Located | None:
        keep = surviving(group, columns.read(group.tests))
        positions = np.arange(group.first, group.first + group.rows)
        arrays = columns.read(plan.output_ids)
        output = [column_of(group, field, arrays) for field in plan.output]
        if keep is not None:
            positions = positions[keep]
            output = [array.filter(to_arrow(keep)) for array in output]
        if len(positions) == 0:
            return None
        return pa.record_batch(output, plan.schema), group.file.file.path, positions

    with scan.guarded():
        for found in reader.read(work, reader.groups(), plan.output_ids):
            if found is not None:
                yield found
