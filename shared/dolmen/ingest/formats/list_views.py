"""Arrow's views of lists made ordinary lists, at any depth.

Views may share values, so a few bytes can be many lists. Such lists are copied only if that takes little memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.errors import LimitError
from dolmen.ingest.formats.column_limits import BYTES_AT_ONCE, width
from dolmen.rows.write.casts import flattened_offsets

_MOST_ITEMS = 2**31 - 1


def without_list_views(kind: pa.DataType) -> pa.DataType:
    """The same type with ordinary lists; the type itself if it has no views of lists."""
    if t.is_struct(kind):
        fields = [_without_list_views(field) for field in kind]
        return kind if fields == list(kind) else pa.struct(fields)
    if t.is_map(kind):
        item = _without_list_views(kind.item_field)
        return kind if item == kind.item_field else pa.map_(kind.key_field, item)
    if not (_is_list_view(kind) or t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind)):
        return kind
    field = _without_list_views(kind.value_field)
    return pa.list_(field) if _is_list_view(kind) or field != kind.value_field else kind


def replace_list_views(
    own: pa.Schema, batches: Iterator[pa.RecordBatch], name: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A file's columns and rows with ordinary lists. The batches are valid. Raises LimitError while they are read."""
    plain = pa.schema([_without_list_views(field) for field in own])
    if plain.types == own.types:
        return own, batches

    def replaced() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            arrays = [
                _replace(array, field.type, f"file {name!r}, column {field.name!r}")
                for array, field in zip(batch.columns, plain, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=plain)

    return plain, replaced()


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(t.is_list_view(kind) or t.is_large_list_view(kind))


def _without_list_views(field: pa.Field) -> pa.Field:
    return field.with_type(without_list_views(field.type))


def _replace(array: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    if array.type == kind:
        return array
    mask = array.is_null() if array.null_count else None
    if t.is_struct(kind):
        children = [_replace(child, field.type, what) for child, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if t.is_map(kind):
        entries = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
        keys, items = entries.flatten().flatten()
        items = _replace(items, kind.item_type, what)
        return pa.MapArray.from_arrays(flattened_offsets(entries), keys, items, type=kind, mask=mask)
    if _is_list_view(array.type):
        _check_copy(array, what)
    values = _replace(array.flatten(), kind.value_type, what)
    return pa.ListArray.from_arrays(flattened_offsets(array), values, type=kind, mask=mask)


def _check_copy(array: pa.Array, what: str) -> None:
    """Raises LimitError if the lists share values and together take much memory."""
    sizes = pc.fill_null(pc.list_value_length(array), 0).to_numpy().astype(np.int64)
    total = int(sizes.sum())
    filled = sizes > 0
    starts = array.offsets.to_numpy()[: len(array)].astype(np.int64)[filled]
    order = np.argsort(starts, kind="stable")
    ends = (starts + sizes[filled])[order]
    if (ends[:-1] > starts[order][1:]).any():
        values = array.values
        is_plain = t.is_primitive(values.type)
        size = total * (width(values.type) if is_plain else max(1, values.nbytes))  # one value may have all the bytes
        if size > BYTES_AT_ONCE:
            raise LimitError(f"{what}: its lists are views of {total:,} items that they share: write ordinary lists")
    if total > _MOST_ITEMS:
        raise LimitError(f"{what}: {len(array):,} lists have {total:,} items: write fewer rows at a time")
