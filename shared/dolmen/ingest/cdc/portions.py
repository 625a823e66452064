"""Cuts the changes of a file into portions, each of which is applied at once and held in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.units import MIB
from dolmen.ingest.cdc.changes import CREATED, DELETED, ROW

PORTION_ROWS = 500_000
PORTION_BYTES = 128 * MIB
"""The most bytes that are applied at once; they are held in memory, twice for a moment."""


def cut_portions(tables: Iterator[pa.Table], sequence: str, max_rows: int, max_bytes: int) -> Iterator[pa.Table]:
    """Cuts changes into portions, but not within a change of a key, even if it is two rows of the file."""
    held: list[pa.Table] = []
    rows = size = 0
    for changes in tables:
        for part in _parts(changes, sequence, max_rows):
            if held and (rows + part.num_rows > max_rows or size + part.nbytes > max_bytes):
                *whole, last = held
                border = pa.concat_tables([last.slice(last.num_rows - 1), part.slice(0, 1)], promote_options="default")
                held, rows, size = [], 0, 0
                if _joins(border, sequence)[0]:
                    held, last = [border.slice(0, 1)], last.slice(0, last.num_rows - 1)
                if whole or last.num_rows:
                    yield pa.concat_tables([*whole, last], promote_options="default")
            held.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
    if held:
        yield pa.concat_tables(held, promote_options="default")


def _parts(changes: pa.Table, sequence: str, max_rows: int) -> Iterator[pa.Table]:
    if changes.num_rows <= max_rows:
        yield changes
        return
    start, joins = 0, _joins(changes, sequence)
    while start < changes.num_rows:
        stop = start + max_rows
        while stop < changes.num_rows and joins[stop - 1]:
            stop += 1
        yield changes.slice(start, stop - start)
        start = stop


def _joins(changes: pa.Table, sequence: str) -> npt.NDArray[np.bool_]:
    """The changes, all but the last, that may delete the old key of a row that the next one gives another key."""
    rows, deletes = changes[ROW].to_numpy(), changes[DELETED].to_numpy()
    same: npt.NDArray[np.bool_] = np.diff(rows) == 0
    if CREATED in changes.column_names:
        created = pc.fill_null(changes[CREATED], False).to_numpy()
        equal = pc.equal(changes[sequence][1:], changes[sequence][:-1])
        same |= deletes[:-1] & created[1:] & equal.to_numpy()
    return same
