"""Positions of the rows that tombstones hide in an opened file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from pyroaring import BitMap

from dolmen.format.vectors import from_mask
from dolmen.rows.scan.read import RowGroupColumns
from dolmen.rows.scan.row_groups import OpenFile, RowGroup
from dolmen.rows.scan.row_masks import live_mask


def hidden_rows(group: RowGroup, columns: RowGroupColumns) -> tuple[str, BitMap]:
    """The file of a row group, and the positions of the rows that its vector or a tombstone hides."""
    path = group.file.file.path
    if not group.tests:
        return path, BitMap()
    keep = live_mask(group, columns.read(group.tests))
    return path, BitMap() if keep is None else from_mask(~keep, group.first)


def whole_groups(file: OpenFile, some: Sequence[RowGroup]) -> BitMap:
    """Positions of row groups that need not be read, as all their rows are hidden.

    Args:
        some: the row groups that have to be read.
    """
    there = {group.index for group in some}
    footer = file.footer
    gone = [(first, footer.rows(index)) for index, first in enumerate(footer.firsts) if index not in there]
    return BitMap(chain.from_iterable(range(first, first + rows) for first, rows in gone))
