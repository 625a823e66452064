"""Keys as users give them, and the columns that can be a key, or that rows can be sorted by."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Sequence, ValuesView
from decimal import Decimal
from numbers import Number
from typing import Any

import numpy as np
import pyarrow as pa

from dolmen.base import arguments
from dolmen.errors import InputError, RowError, SchemaError, short_repr
from dolmen.format.del_object import Keys, keys_from_arrow
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.format.types import check_key_type, short_type
from dolmen.rows.write.casts import lossless_cast
from dolmen.rows.write.conform import conform
from dolmen.rows.write.row_input import array_of, as_batches, frame_cast, values_of


def take_keys(entry: TableEntry, keys: Any, on: str | Sequence[str] | None = None) -> Keys:
    """Reads keys as users give them (``ReadableTable.get_many``), by the columns ``on`` or the primary key."""
    fields = key_fields(entry, on)
    return keys_from_arrow(_key_rows(keys, fields), fields)


def key_fields(entry: TableEntry, on: str | Sequence[str] | None) -> tuple[Field, ...]:
    """The key columns. Raises InputError when ``on`` is empty, or None and there is no primary key."""
    if on is None:
        fields = tuple(entry.schema.by_id[id_] for id_ in entry.primary_key)
    else:
        fields = tuple(entry.schema.field(name) for name in arguments.names("on", on))
    if not fields:
        problem = (
            "the table has no primary key: name the columns" if on is None else "on is empty: name the key's columns"
        )
        raise InputError(f"{problem}, on=[...]")
    return check_key(fields)


def check_key(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Returns ``fields`` if they can be a key. Raises SchemaError for floats, nested columns and repeated columns."""
    if len({field.id for field in fields}) < len(fields):
        raise SchemaError("a column is named twice in the key")
    for field in fields:
        check_key_type(field.arrow_type, field.name)
    return fields


def _key_rows(keys: Any, fields: tuple[Field, ...]) -> pa.Table:
    """Key columns with their names and stored types. Refuses the same values as for rows: a cast never cuts a key."""
    names = [field.name for field in fields]
    if isinstance(keys, (Iterator, KeysView, ValuesView)) and not hasattr(keys, "__arrow_c_stream__"):
        values = list(keys)
        keys = iter(values) if values and isinstance(values[0], (pa.RecordBatch, pa.Table)) else values
    if isinstance(keys, (str, bytes, Number)):
        raise InputError(f"keys={short_repr(keys)}: give a list of values of {', '.join(names)}")
    is_list = isinstance(keys, (list, tuple, set, frozenset, range))
    if is_list and not (keys and all(isinstance(key, dict) for key in keys)):
        schema = pa.schema([(field.name, field.arrow_type) for field in fields])
        columns = _key_columns(list(keys), fields)
        try:
            pairs = zip(columns, fields, strict=True)
            rows = pa.table(
                [array_of(_exact_numbers(*pair), pair[1].name, pair[1].arrow_type) for pair in pairs], names
            )
            if rows.schema.types == schema.types:  # pyarrow made them, so they need no checks
                return rows
            return pa.Table.from_batches(conform(as_batches(rows, schema), schema, lossless_cast), schema)
        except (SchemaError, RowError, ValueError) as error:
            types = ", ".join(f"{field.name} {short_type(field.arrow_type)}" for field in fields)
            reason = error.reason if isinstance(error, RowError) else error
            raise InputError(f"keys do not fit {types}: {reason}") from error
    schema = pa.schema([(field.name, field.arrow_type, field.nullable) for field in fields])  # defaults are no keys
    cast = frame_cast(keys) or lossless_cast
    if (found := values_of(keys, fields[0].name, fields[0].arrow_type)) is not None:
        if len(fields) > 1:
            raise InputError(f"an array has no columns, and this key has several: give rows of {', '.join(names)}")
        keys, cast = pa.table([found[0]], [fields[0].name]), found[1]
        return pa.Table.from_batches(conform(as_batches(keys), schema, cast), schema)
    return pa.Table.from_batches(conform(as_batches(keys, schema), schema, cast), schema)


def _key_columns(keys: list[Any], fields: tuple[Field, ...]) -> list[list[Any]]:
    """The values of each key column."""
    if len(fields) == 1:
        are_rows = all(isinstance(key, (list, tuple)) and len(key) == 1 for key in keys)
        return [[key[0] for key in keys] if are_rows else keys]
    if wrong := [key for key in keys if not isinstance(key, (list, tuple)) or len(key) != len(fields)]:
        raise InputError(f"key {wrong[0]!r} is not a tuple of {', '.join(field.name for field in fields)}")
    return [list(column) for column in zip(*keys, strict=True)] or [[] for _ in fields]


def _exact_numbers(values: list[Any], field: Field) -> list[Any]:
    """A key column with floats as the integers or decimals that they equal. Raises ValueError for a fraction."""
    if pa.types.is_decimal(field.arrow_type):
        return [Decimal(repr(float(value))) if isinstance(value, float) else value for value in values]
    if not pa.types.is_integer(field.arrow_type):
        return values
    floats = float, np.floating
    if wrong := [value for value in values if isinstance(value, floats) and not value.is_integer()]:
        raise ValueError(f"{short_repr(wrong[0])} is no whole number")
    return [int(value) if isinstance(value, floats) else value for value in values]
