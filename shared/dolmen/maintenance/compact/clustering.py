"""Z-order: rows with near values in several columns get near keys.

A sample of the rows divides each column into parts with about as many rows. The numbers of a row's parts, bit by bit
in turn from the highest, are its key: https://en.wikipedia.org/wiki/Z-order_curve
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.base import pc

_PARTS = 1 << 12  # the most parts of a column, one of them for NULL: keys of four columns have 48 bits
_SAMPLE_ROWS = 1 << 16
_Numbers: TypeAlias = npt.NDArray[np.int64]


class ZOrder:
    """The order of rows by some of their columns."""

    def __init__(self, sample: pa.Table) -> None:
        self.names = ["\0z"]
        self._cuts = {name: _cuts(sample[name]) for name in sample.schema.names}

    def extend(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with their keys as a last column."""
        numbers = [_part_numbers(cuts, batch[name]) for name, cuts in self._cuts.items()]
        widths = [(len(cuts) + 1).bit_length() for cuts in self._cuts.values()]
        keys = np.zeros(batch.num_rows, np.int64)
        for level in range(max(widths)):
            for number, width in zip(numbers, widths, strict=True):
                if level < width:
                    keys = keys << 1 | number >> (width - 1 - level) & 1
        return batch.append_column(self.names[0], pa.array(keys))


def sampled(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """A sample, at equal distances, of batches that have this number of rows together."""
    step, skipped = max(1, -(-rows // _SAMPLE_ROWS)), 0
    for batch in batches:
        yield batch.take(pa.array(np.arange(skipped, batch.num_rows, step)))
        skipped = (skipped - batch.num_rows) % step


def _cuts(column: pa.ChunkedArray) -> pa.Array:
    """Values at which a column is cut into parts, ascending."""
    values = pa.concat_arrays(column.drop_null().chunks or [pa.array([], column.type)])
    ordered = values.take(pc.sort_indices(values))
    most = _PARTS - 3
    return pc.unique(ordered.take(pa.array(np.arange(most) * len(ordered) // most)) if len(ordered) > most else ordered)


def _part_numbers(cuts: pa.Array, column: pa.Array) -> _Numbers:
    """The number of each row's part: the number of cuts up to its value; for NULL, one more than the greatest."""
    order = pc.sort_indices(pa.concat_arrays([cuts, column])).to_numpy().astype(np.int64)  # stable, NULLs last
    before: _Numbers = np.empty(len(order), np.int64)
    before[order] = np.cumsum(order < len(cuts))
    nulls: _Numbers = column.is_null().to_numpy(zero_copy_only=False).astype(np.int64)
    return before[len(cuts) :] + nulls
