"""The columns of an adopted Parquet file: their ids, by field ids or names, and their types as dolmen reads them.

Other writers leave notes in files by which pyarrow returns dictionaries, large strings, views, and times in other
units. dolmen has one type for each of these (``dolmen.format.schema.storable``), to which columns are cast as they are
read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.errors import SchemaError
from dolmen.format.adopted_files import MappedColumn
from dolmen.format.schema import field_id, is_nested, storable

_FIELD_ID = b"PARQUET:field_id"
_NO_ID = -1
"""The id of fields inside columns that the table never had. No column has it."""
_US = {"milliseconds": 1_000, "microseconds": 1}


class AdoptedColumn(NamedTuple):
    """One column of a file.

    Args:
        name: its name there.
        id: its id; None for a column that the table never had.
        type: its type as it is read, whose fields have their ids.
        nullable: whether it may be NULL.
        leaves: the Parquet columns that it is made of.
    """

    name: str
    id: int | None
    type: pa.DataType
    nullable: bool
    leaves: tuple[int, ...]


def adopted_columns(metadata: pq.FileMetaData, mapping: Sequence[MappedColumn] | None) -> Iterator[AdoptedColumn]:
    """The columns of a file, in its order, without those that dolmen has no type for, which no table has.

    Args:
        mapping: ids by names; None to find columns by their field ids.
    """
    leaf = 0
    for field in metadata.schema.to_arrow_schema():
        count = leaf_count(field.type)
        with suppress(SchemaError):
            yield adopted_column(field, tuple(range(leaf, leaf + count)), mapping)
        leaf += count


def adopted_column(
    field: pa.Field, leaves: tuple[int, ...], mapping: Sequence[MappedColumn] | None = None
) -> AdoptedColumn:
    """One column. Raises SchemaError if its type cannot be stored."""
    known = None if mapping is None else column_named(mapping, field.name)
    own = (field_id(field) if mapping is None else None) if known is None else known.id
    kind = _numbered(field.type, None if mapping is None else known.fields if known else ())
    return AdoptedColumn(field.name, own, kind, field.nullable, leaves)


def leaf_count(arrow_type: pa.DataType) -> int:
    """The number of Parquet columns that a column of this type is made of."""
    if not is_nested(arrow_type):
        return 1
    return sum(leaf_count(arrow_type.field(i).type) for i in range(arrow_type.num_fields))


def column_named(mapping: Sequence[MappedColumn], name: str) -> MappedColumn | None:
    """The mapped column that has this name in files."""
    return next((each for each in mapping if name in each.names), None)


def microseconds_per_unit(metadata: pq.FileMetaData, leaf: int) -> int | None:
    """How many microseconds the unit of a column of times is, as statistics count it; None for nanoseconds."""
    logical = json.loads(metadata.schema.column(leaf).logical_type.to_json())
    if logical["Type"] == "Date":
        return 1
    return _US.get(logical.get("timeUnit", ""))


def as_read(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Values as pyarrow returns them, in the type that dolmen has for them."""
    return column if column.type == wanted else column.cast(wanted)


def _numbered(own: pa.DataType, mapped: Sequence[MappedColumn] | None) -> pa.DataType:
    """The type in which values are read, with the ids of its fields.

    Args:
        mapped: the fields' ids by names; None to take those of the file.
    """
    wanted = storable(own)
    if not is_nested(wanted):
        return wanted
    if isinstance(own, pa.BaseExtensionType):
        return _numbered(own.storage_type, mapped)
    children: list[MappedColumn | None]
    if pa.types.is_struct(wanted):
        children = [None if mapped is None else column_named(mapped, own.field(i).name) for i in range(own.num_fields)]
        return pa.struct([_field(own.field(i), children[i], mapped is None) for i in range(own.num_fields)])
    children = [None if mapped is None or i >= len(mapped) else mapped[i] for i in range(2)]
    if pa.types.is_map(wanted):
        key, item = (
            _field(own.key_field, children[0], mapped is None),
            _field(own.item_field, children[1], mapped is None),
        )
        return pa.map_(key, item)
    return pa.list_(_field(own.value_field, children[0], mapped is None))


def _field(field: pa.Field, mapped: MappedColumn | None, by_ids: bool) -> pa.Field:
    own = field_id(field) if by_ids else mapped.id if mapped else None
    kind = _numbered(field.type, None if by_ids else mapped.fields if mapped else ())
    return pa.field(field.name, kind, field.nullable, {_FIELD_ID: str(_NO_ID if own is None else own).encode()})
