"""Values of nested columns in the fields that the column has now: by ids, whatever the fields were called before."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dolmen.format.schema import field_id


def nested_values(array: pa.Array, own: pa.DataType, wanted: pa.DataType) -> pa.Array:
    """The values with the fields of another version: older ones that are gone are left out, new ones are NULL.

    Args:
        own: the array's type, whose fields have ids.
        wanted: the type of now, whose fields have ids; what is in both is as wide or wider there.
    """
    if pa.types.is_struct(wanted):
        return _struct_values(array, own, wanted)
    if pa.types.is_list(wanted):
        children = nested_values(array.values, own.value_type, wanted.value_type)
    elif pa.types.is_map(wanted):
        keys = nested_values(array.keys, own.key_type, wanted.key_type)
        items = nested_values(array.items, own.item_type, wanted.item_type)
        children = pa.StructArray.from_arrays([keys, items], fields=[wanted.key_field, wanted.item_field])
    else:
        return array if array.type == wanted else array.cast(wanted)
    buffers: list[Any] = array.buffers()[:2]
    return pa.Array.from_buffers(wanted, len(array), buffers, array.null_count, array.offset, [children])


def has_same_fields(own: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two nested types have fields of the same ids, names and types in the same order.

    Fields of a file that have no ids go by their names.
    """
    if not pa.types.is_nested(own) or own.num_fields != wanted.num_fields:
        return bool(own == wanted)
    return own == wanted and all(
        field_id(own.field(place)) in (None, field_id(wanted.field(place)))
        and has_same_fields(own.field(place).type, wanted.field(place).type)
        for place in range(own.num_fields)
    )


def _struct_values(array: pa.Array, own: pa.DataType, wanted: pa.DataType) -> pa.Array:
    places = {field_id(own.field(place)): place for place in range(own.num_fields)}
    children = []
    for field in wanted:
        place = places.get(field_id(field))
        if place is None:
            children.append(pa.nulls(len(array), field.type))
        else:
            children.append(nested_values(array.field(place), own.field(place).type, field.type))
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
