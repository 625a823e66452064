"""The exact least and greatest value of a column, merged over the runs of a file."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.format.entries import ColumnStats
from dolmen.format.schema import is_nested
from dolmen.format.statistics import column_stats
from dolmen.format.values import Plain, to_plain

#: Parquet's writer keeps the least and greatest text of a row group if they are not longer than 4096 bytes.
_IN_FOOTER_BYTES = 1024


class Extent(NamedTuple):
    """Exact least and greatest value (None: no value but NULL and NaN, or a nested column), and counts.

    ``in_footer``: these are not known here, but Parquet's writer will find them and keep them in the footer. So it is
    for texts and binaries, whose comparison takes a tenth of the writing: once is enough.
    """

    least: Plain
    greatest: Plain
    nulls: int = 0
    nans: int = 0
    in_footer: bool = False

    def merged(self, other: Extent) -> Extent:
        """The extent of both columns' values together."""
        least = [value for value in (self.least, other.least) if value is not None]
        greatest = [value for value in (self.greatest, other.greatest) if value is not None]
        return Extent(
            _least(least),
            _greatest(greatest),
            self.nulls + other.nulls,
            self.nans + other.nans,
            self.in_footer or other.in_footer,
        )

    def stats(self) -> ColumnStats:
        """The statistics that an entry holds."""
        return column_stats(self.least, self.greatest, self.nulls, self.nans)


def _least(values: list[Any]) -> Plain:
    return min(values, default=None)


def _greatest(values: list[Any]) -> Plain:
    return max(values, default=None)


def extent(column: pa.ChunkedArray) -> Extent:
    """The extent of one column of a stored type."""
    if is_nested(column.type):
        return Extent(None, None, column.null_count)
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        longest = pc.max(pc.binary_length(column)).as_py()
        if longest is not None and longest <= _IN_FOOTER_BYTES:
            return Extent(None, None, column.null_count, in_footer=True)
    nans = 0
    if pa.types.is_floating(column.type):
        nans = pc.sum(pc.is_nan(column), min_count=0).as_py()
    ends = pc.min_max(column)  # passes over NULL, and over NaN where there is anything else
    least, greatest = to_plain(pa.array([ends["min"], ends["max"]], column.type))
    if isinstance(least, float) and math.isnan(least):
        least = greatest = None
    return Extent(least, greatest, column.null_count, nans)
