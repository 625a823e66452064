"""Counting: from metadata where that is exact, otherwise by reading the columns that decide, of just those row groups.

Never by subtracting what tombstones say: they don't count, and may hide rows that are gone already.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dolmen.rows.scan.read.reading import PlanReader, RowGroupColumns
from dolmen.rows.scan.read.row_groups import RowGroup, row_mask

_NOTHING_ELSE: frozenset[int] = frozenset()


def count_rows(reader: PlanReader) -> int:
    """Counts the rows of a plan's files that the scan would give without its limit."""
    plan = reader.plan
    known = plan.counted_rows + sum(file.exact_rows or 0 for file in plan.files)
    unknown = tuple(file for file in plan.files if file.exact_rows is None)
    if not unknown or (plan.limit is not None and known >= plan.limit):
        return known
    rest = replace(reader, plan=replace(plan, files=unknown), cautious=False, tests_only=True)
    return known + sum(rest.read(_count, rest.groups(), _NOTHING_ELSE))


def _count(group: RowGroup, columns: RowGroupColumns) -> int:
    if group.exact_rows is not None:
        return group.exact_rows
    keep = row_mask(group, columns.read(group.tests))
    return group.rows if keep is None else int(np.count_nonzero(keep))
