"""Types of Arrow that tables lack, made others that hold the same values, at any depth.

- Views of lists become lists. They may share values, so a few bytes can be many lists: such lists are copied only if
  that takes little memory.
- A union becomes a struct of ``member0``, ``member1``, ..., as for Avro: one for each type but null; the member of the
  value's type has the value, the others are NULL. A union of null and one type becomes that type.
- A struct without fields becomes text: ``{}``, or NULL.
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


def ordinary_type(kind: pa.DataType) -> pa.DataType:
    """The same type with lists, structs and text; the type itself if it has nothing that becomes one of these."""
    if t.is_union(kind):
        members = [(code, child) for code, child in _children(kind) if not t.is_null(child.type)]
        kinds = [ordinary_type(child.type) for _, child in members]
        return kinds[0] if len(kinds) == 1 else pa.struct([(f"member{n}", each) for n, each in enumerate(kinds)])
    if t.is_struct(kind):
        fields = [_ordinary_field(field) for field in kind]
        return pa.string() if not fields else kind if fields == list(kind) else pa.struct(fields)
    if t.is_map(kind):
        item = _ordinary_field(kind.item_field)
        return kind if item == kind.item_field else pa.map_(kind.key_field, item)
    if not (_is_list_view(kind) or t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind)):
        return kind
    field = _ordinary_field(kind.value_field)
    return pa.list_(field) if _is_list_view(kind) or field != kind.value_field else kind


def replace_unusual_types(
    own: pa.Schema, batches: Iterator[pa.RecordBatch], name: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A file's columns and rows with ordinary types. The batches are valid. Raises LimitError while they are read."""
    plain = pa.schema([_ordinary_field(field) for field in own])
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


def _ordinary_field(field: pa.Field) -> pa.Field:
    kind = ordinary_type(field.type)
    return field if kind is field.type else pa.field(field.name, kind, field.nullable or t.is_union(field.type))


def _children(union: pa.DataType) -> list[tuple[int, pa.Field]]:
    """The fields of a union, and the code of each."""
    return [(code, union.field(index)) for index, code in enumerate(union.type_codes)]


def _replace(array: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    if array.type == kind:
        return array
    if t.is_union(array.type):
        return _replace_union(array, kind, what)
    mask = array.is_null() if array.null_count else None
    if t.is_string(kind):
        return pc.if_else(array.is_valid(), pa.scalar("{}"), pa.scalar(None, pa.string()))
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


def _replace_union(array: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    buffers, start = array.buffers(), array.offset  # its own type_codes and offsets are those of the first rows
    codes = pa.Array.from_buffers(pa.int8(), len(array), [None, buffers[1]], offset=start)
    if array.type.mode == "dense":
        offsets = pa.Array.from_buffers(pa.int32(), len(array), [None, buffers[2]], offset=start)
    else:
        offsets = pa.array(np.arange(len(array), dtype=np.int32))
    members, is_null = [], pa.array(np.zeros(len(array), bool))
    for index, (code, child) in enumerate(_children(array.type)):
        is_here = pc.equal(codes, pa.scalar(code, pa.int8()))
        if t.is_null(child.type):
            is_null = pc.or_(is_null, is_here)
            continue
        values = array.field(index).take(pc.if_else(is_here, offsets, pa.scalar(None, pa.int32())))
        members.append(_replace(values, ordinary_type(child.type), what))
    return members[0] if len(members) == 1 else pa.StructArray.from_arrays(members, fields=list(kind), mask=is_null)


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
