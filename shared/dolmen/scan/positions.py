"""Finding rows for a delete by position."""

from __future__ import annotations

from pyroaring import BitMap

from dolmen.format.vectors import from_mask
from dolmen.predicate import Predicate
from dolmen.scan.plan import plan
from dolmen.scan.read import RowGroupColumns, TableReader
from dolmen.scan.row_groups import RowGroup
from dolmen.scan.surviving import surviving
from dolmen.scan.view import View


def matching_positions(view: View, where: Predicate) -> dict[str, BitMap]:
    """The live rows for which a predicate is TRUE, as positions by the path of their file.

    Rows that a vector or a tombstone hides already are not among them, so the counts are exact. Reads only the columns
    of the predicate and of tombstones, and nothing of row groups that statistics prove whole.
    """
    reader = TableReader(view.context, plan(view, columns=(), where=where), view.pending)
    found: dict[str, BitMap] = {}
    for path, positions in reader.read(_positions, reader.groups(), frozenset()):
        if positions:
            found.setdefault(path, BitMap()).update(positions)
    return found


def _positions(group: RowGroup, columns: RowGroupColumns) -> tuple[str, BitMap]:
    path = group.file.file.path
    everything = BitMap(range(group.first, group.first + group.rows))
    if group.tests:
        keep = surviving(group, columns.read(group.tests))
        return path, everything if keep is None else from_mask(keep, group.first)
    return path, everything - group.file.vector if group.file.vector else everything
