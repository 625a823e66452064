"""Fills the values in a struct's fields where the struct itself is NULL.

Nobody sees it, and Arrow may hold anything there: NULL, as readers put it there, or a value. Parquet's writer though
refuses NULL in a field that is not nullable wherever it stands. So it is made to hold some value there.
"""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types as t


def _needs_values(kind: pa.DataType) -> bool:
    """Whether the type has a field that is not nullable, in a struct at any depth."""
    if t.is_struct(kind):
        return any(not field.nullable or _needs_values(field.type) for field in kind)
    if t.is_map(kind):
        return _needs_values(kind.key_type) or _needs_values(kind.item_type)
    return bool(t.is_list(kind)) and _needs_values(kind.value_type)


def fill_hidden_of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``fill_hidden`` of every column."""
    return pa.RecordBatch.from_arrays([_with_values(column) for column in batch.columns], schema=batch.schema)


def fill_hidden(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values, of a column of a stored type, with some value in each field that is not nullable.

    The caller has seen that no such field is NULL where its struct is not. Little is copied.
    """
    if not _needs_values(column.type):
        return column
    return pa.chunked_array([_with_values(chunk) for chunk in column.chunks], column.type)


def _with_values(array: pa.Array) -> pa.Array:
    """Applies ``fill_hidden`` to one array."""
    kind = array.type
    if not _needs_values(kind):
        return array
    if t.is_struct(kind):
        children = [_with_values(array.field(place)) for place in range(kind.num_fields)]
        filled = [
            child if field.nullable or not child.null_count else _without_nulls(child)
            for child, field in zip(children, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(filled, fields=list(kind), mask=array.is_null() if array.null_count else None)
    validity, offsets = array.buffers()[:2]
    if t.is_map(kind):
        entries = pa.StructArray.from_arrays(
            [_with_values(array.keys), _with_values(array.items)], fields=[kind.key_field, kind.item_field]
        )
    else:
        entries = _with_values(array.values)
    return pa.Array.from_buffers(kind, len(array), [validity, offsets], array.null_count, array.offset, [entries])


def _without_nulls(array: pa.Array) -> pa.Array:
    """The array with whatever stands under its NULLs in their place."""
    kind = array.type
    if t.is_struct(kind):  # whose children know nothing of the array's own offset
        return pa.StructArray.from_arrays([array.field(place) for place in range(kind.num_fields)], fields=list(kind))
    children = []
    if t.is_map(kind):
        children = [pa.StructArray.from_arrays([array.keys, array.items], fields=[kind.key_field, kind.item_field])]
    elif t.is_list(kind):
        children = [array.values]
    buffers = array.buffers()[1 : kind.num_buffers]
    return pa.Array.from_buffers(kind, len(array), [None, *buffers], 0, array.offset, children)
