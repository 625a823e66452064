"""Runs: bounded pieces of a stream of batches, each sorted by the table's sort key and measured.

Ascending; NULLs come last, NaN after every other value and before NULL, -0.0 equals 0.0; rows of equal keys keep
their order.

The exact least and greatest value of a column, merged over the runs of a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.format.entries import ColumnStats, column_stats
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import is_nested
from dolmen.format.types import Plain, to_plain
from dolmen.rows.write.validity import fill_hidden

#: Parquet's writer keeps the least and greatest text of a row group if they are not longer than 4096 bytes.
_IN_FOOTER_BYTES = 1024


#: Batches are cut into pieces of at most this part of a run, so that runs come out full.
_PIECES = 8


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


@dataclass(frozen=True, slots=True)
class Run:
    """Rows that are written together, and what was found in each of their columns."""

    table: pa.Table
    extents: dict[int, Extent]

    def columns_with_nan(self) -> set[int]:
        """Ids of the columns that hold at least one NaN."""
        return {id_ for id_, found in self.extents.items() if found.nans}


def cut(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, max_bytes: int, max_rows: int
) -> Iterator[list[pa.ChunkedArray]]:
    """The columns of the batches' rows, in their order, within both limits (but for single rows that are larger).

    Each list belongs to the caller alone: what is taken out of it is freed.
    """
    run: list[pa.RecordBatch] = []
    size = rows = 0
    for piece in chain.from_iterable(_pieces(batch, max_bytes // _PIECES, max_rows) for batch in batches):
        piece_bytes = piece.nbytes
        if run and (size + piece_bytes > max_bytes or rows + piece.num_rows > max_rows):
            columns = pa.Table.from_batches(run, schema).columns
            run, size, rows = [], 0, 0
            yield columns
            del columns
        run.append(piece)
        size += piece_bytes
        rows += piece.num_rows
    if run:
        yield pa.Table.from_batches(run, schema).columns


def _pieces(batch: pa.RecordBatch, max_bytes: int, max_rows: int) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    if rows == 0:
        return
    count = min(rows, max(-(-batch.nbytes // max_bytes), -(-rows // max_rows)))
    if count <= 1:
        yield batch
        return
    step = -(-rows // count)
    for start in range(0, rows, step):
        yield from _pieces(batch.slice(start, step), max_bytes, max_rows)  # again: rows are not of one size


def prepare(columns: list[pa.ChunkedArray], entry: TableEntry) -> Run:
    """The rows of these columns sorted by the table's sort key, and the extent of each column.

    Args:
        columns: of the table's schema; left empty, so that no row is held twice for long.
    """
    schema = entry.schema.arrow
    sort_columns(columns, schema, [entry.schema.by_id[id_].name for id_ in entry.sort_key])
    table = pa.table([fill_hidden(column) for column in columns], schema)
    columns.clear()
    extents = {field.id: extent(column) for field, column in zip(entry.schema.fields, table.columns, strict=True)}
    return Run(table, extents)


def sort_columns(columns: list[pa.ChunkedArray], schema: pa.Schema, names: Sequence[str]) -> None:
    """Sorts rows, in place: each column is replaced in the list, so that no more than one is there twice.

    Args:
        columns: of ``schema``.
        names: of the columns to sort by; with none the rows stay as they are.
    """
    keys = [columns[schema.get_field_index(name)] for name in names]
    if not keys or _is_sorted(keys):
        return
    order = pc.sort_indices(pa.table(keys, names), [(name, "ascending") for name in names])
    keys.clear()
    for index in range(len(columns)):
        columns[index] = pa.chunked_array([columns[index].combine_chunks()])  # here, as ``take`` keeps the pieces
        columns[index] = columns[index].take(order)


def _is_sorted(keys: list[pa.ChunkedArray]) -> bool:
    """Whether the rows are certainly in order. NULL and NaN make it uncertain: then sorting costs time, no more."""
    ordered = None  # whether each row and the next are in order by the key columns from here on
    for column in reversed(keys):
        if column.null_count:
            return False
        row, following = column.slice(0, len(column) - 1), column.slice(1)
        if ordered is None:
            ordered = pc.less_equal(row, following)
        else:
            ordered = pc.or_(pc.less(row, following), pc.and_(pc.equal(row, following), ordered))
    return bool(pc.all(ordered, min_count=0).as_py())
