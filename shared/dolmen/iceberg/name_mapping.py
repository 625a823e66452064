"""The property by which Iceberg's readers find columns by name, in files without field ids.

See "Name Mapping Serialization" of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dolmen.format.adopted import MappedColumn

NAME_MAPPING = "schema.name-mapping.default"
"""The table property."""


def encode_mapping(mapping: Sequence[MappedColumn]) -> str:
    """The property's value."""
    return msgspec.json.encode([_to_json(column) for column in mapping]).decode()


def decode_mapping(text: str) -> tuple[MappedColumn, ...]:
    """Reads the property. Names without an id are left out. Raises ValueError for text of another form."""
    try:
        return tuple(_from_json(msgspec.json.decode(text, type=list[_NamedField])))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


class _NamedField(msgspec.Struct, rename="kebab"):
    """An element of the property."""

    names: list[str]
    field_id: int | None = None
    fields: list[_NamedField] | None = None


def _to_json(column: MappedColumn) -> dict[str, Any]:
    found: dict[str, Any] = {"field-id": column.id, "names": list(column.names)}
    return {**found, "fields": [_to_json(field) for field in column.fields]} if column.fields else found


def _from_json(fields: Sequence[_NamedField]) -> Iterator[MappedColumn]:
    for each in fields:
        if each.field_id is not None:
            yield MappedColumn(each.field_id, tuple(each.names), tuple(_from_json(each.fields or ())))
