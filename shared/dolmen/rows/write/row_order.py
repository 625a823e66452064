"""The keys by which rows are sorted: arrays whose ascending order, with NULLs last, is the order of the rows.

A plain term is its column. For any other order its values are inverted, so that all sorting and merging is ascending.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from dolmen.base import pc
from dolmen.format.column_terms import SortTerm, sort_terms
from dolmen.format.entries import Bounds
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.format.types import integer_form, to_array

KeyArray: TypeAlias = pa.Array | pa.ChunkedArray


class RowOrder:
    """The order of a table's rows by its sort key; without one it is empty."""

    def __init__(self, entry: TableEntry) -> None:
        self.terms = sort_terms(entry.sort_key)
        self.is_plain = all(term.is_plain for term in self.terms)
        self._schema = entry.schema
        self._places = [entry.schema.arrow.get_field_index(entry.schema.by_id[term.id].name) for term in self.terms]

    def __bool__(self) -> bool:
        return bool(self.terms)

    def keys(self, columns: Sequence[KeyArray]) -> list[KeyArray]:
        """The keys of rows, given as the table's columns."""
        parts = zip(self.terms, self._places, strict=True)
        return [key for term, place in parts for key in term_keys(term, columns[place])]

    def least(self, bounds: Bounds) -> tuple[pa.Scalar, ...] | None:
        """The first keys of rows with these bounds of the first column, or less; None if they are unknown."""
        term = self.terms[0]
        first = self._schema.by_id[term.id]
        if term.nulls_first and bounds.nulls != 0:
            return (pa.scalar(0, pa.int8()),)
        end = bounds.max if term.descending else bounds.min
        has_nan_first = term.descending and t.is_floating(first.arrow_type) and bounds.nans != 0
        if end is None or has_nan_first or not term.transform.keeps_order:
            return None
        return tuple(key[0] for key in term_keys(term, to_array([end], first.arrow_type)))

    @property
    def first(self) -> Field:
        """The first column."""
        return self._schema.by_id[self.terms[0].id]

    @property
    def names(self) -> list[str]:
        """Names of the keys, as ``extend`` adds them."""
        return [f"\0{number}" for number in range(sum(1 + term.nulls_first for term in self.terms))]

    def extend(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with their keys as further columns."""
        keys = self.keys(batch.columns)
        return pa.RecordBatch.from_arrays([*batch.columns, *keys], [*batch.schema.names, *self.names])


def term_keys(term: SortTerm, column: KeyArray) -> Iterator[KeyArray]:
    """The keys of one term; ``nulls_first`` has one in front, which is 0 for NULL."""
    if term.is_plain:
        yield column
        return
    if isinstance(column, pa.ChunkedArray):
        whole = column.combine_chunks()
        column = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    values = term.transform.array(column)
    if term.nulls_first:
        yield values.is_valid().cast(pa.int8())
    yield _turned(values) if term.descending else values


def _turned(values: pa.Array) -> pa.Array:
    """Values in the opposite order; NULL stays NULL."""
    kind = values.type
    if t.is_string(kind) or t.is_binary(kind) or t.is_fixed_size_binary(kind):
        return _turned_bytes(values)
    if t.is_floating(kind):
        return _turned_floats(values)
    if t.is_boolean(kind):
        return pc.invert(values)
    if t.is_decimal(kind):
        return pc.negate(values)
    integers = integer_form(kind)
    return pc.bit_wise_not(values.view(integers) if integers else values)


def _turned_floats(values: pa.Array) -> pa.Array:
    """Floats as integers in the opposite order; NaN becomes the least."""
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    numbers = values.cast(pa.float64()).fill_null(0).to_numpy() + 0.0  # of two zeros one
    bits = numbers.view(np.int64)
    ordered = np.where(np.isnan(numbers), np.iinfo(np.int64).max, bits ^ (bits >> 63 & np.iinfo(np.int64).max))
    return pa.array(~ordered, mask=nulls)


def _turned_bytes(values: pa.Array) -> pa.Array:
    """The complement of each byte, with a mark at the end, after which no other value continues."""
    escaped = pc.replace_substring(values.cast(pa.binary()), pattern=b"\0", replacement=b"\0\xff")
    ended = pc.binary_join_element_wise(escaped, b"\0\0", b"")
    validity, offsets, data = ended.buffers()
    turned = pa.py_buffer(~np.frombuffer(data or b"", np.uint8))
    return pa.Array.from_buffers(ended.type, len(ended), [validity, offsets, turned], ended.null_count, ended.offset)
