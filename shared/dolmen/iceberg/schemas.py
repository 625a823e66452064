"""Iceberg schemas: the columns of a table as Iceberg's types, by the same field ids.

See "Schemas and Data Types" and appendix C of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from dolmen.errors import SchemaError
from dolmen.format.schema import Field, Schema
from dolmen.format.types import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    FLOAT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_ZONED,
    short_type,
    type_of,
)
from dolmen.format.values import Json, Plain, from_json

FormatVersion: TypeAlias = Literal[2, 3]

WORDS = {
    BOOL.name: "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    FLOAT.name: "float",
    DOUBLE.name: "double",
    STRING.name: "string",
    BINARY.name: "binary",
    DATE.name: "date",
    TIMESTAMP.name: "timestamp",
    TIMESTAMP_ZONED.name: "timestamptz",
}
"""Iceberg's types without parameters, by the name of the column type.

``uint8`` to ``uint64`` and ``time`` are not here. Iceberg has no unsigned integers, and readers fail on files with
them, or return other values. Spark cannot read a table with a column of type ``time``.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class PublishedSchema:
    """The columns of a table that Iceberg readers see.

    Args:
        fields: their fields in Iceberg's JSON.
        columns: the same columns as dolmen has them, by id.
        left_out: for each column that is not published, by name, the reason.
        last_id: the greatest field id that was ever given out.
    """

    fields: tuple[dict[str, Any], ...]
    columns: dict[int, Field]
    left_out: dict[str, str]
    last_id: int

    @classmethod
    def of(cls, schema: Schema, version: FormatVersion) -> PublishedSchema:
        """Maps the columns of a schema, and leaves out those that Iceberg or its readers cannot take.

        Raises:
            SchemaError: none is left. Readers of a table without columns fail, or find no rows in it.
        """
        fields: list[dict[str, Any]] = []
        columns: dict[int, Field] = {}
        left_out: dict[str, str] = {}
        for field in schema.fields:
            try:
                fields.append(_field(field, version))
                columns[field.id] = field
            except _UnpublishedTypeError as reason:
                left_out[field.name] = str(reason)
        if not fields:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
            raise SchemaError(f"readers of Iceberg can read no column of the table, so it is not published ({reasons})")
        return cls(tuple(fields), columns, left_out, schema.next_id - 1)

    def to_json(self, schema_id: int) -> dict[str, Any]:
        """The schema as an element of ``schemas`` in table metadata."""
        return {"type": "struct", "schema-id": schema_id, "fields": list(self.fields)}


class _UnpublishedTypeError(Exception):
    """A type that Iceberg or its readers cannot take. The text is the reason."""


def _field(field: Field, version: FormatVersion) -> dict[str, Any]:
    found = _nested_field(field.id, field.name, field.arrow_type, field.nullable)
    if field.widened_ts and pa.types.is_timestamp(field.arrow_type):
        raise _UnpublishedTypeError("it was a column of days, and no reader turns these into times")
    if field.comment:
        found["doc"] = field.comment
    if field.initial_default is not None:
        if version == 2:
            raise _UnpublishedTypeError("it has a default for older rows, which only Iceberg v3 knows")
        found["initial-default"] = _default(field.initial_default, field.arrow_type)
    if field.write_default is not None and version == 3:
        found["write-default"] = _default(field.write_default, field.arrow_type)
    return found


def _default(value: Json, arrow_type: pa.DataType) -> Any:
    try:
        return default_json(from_json(value, arrow_type), arrow_type)
    except OverflowError:
        raise _UnpublishedTypeError("it has a default outside of the years 1 to 9999") from None


def _nested_field(id_: int, name: str, arrow_type: pa.DataType, nullable: bool) -> dict[str, Any]:
    return {"id": id_, "name": name, "required": not nullable, "type": iceberg_type(arrow_type)}


def iceberg_type(arrow_type: pa.DataType) -> Any:
    """A stored Arrow type in Iceberg's JSON; children have the ids of their Arrow fields.

    Raises:
        _UnpublishedTypeError: there is no such type, or readers fail on it.
    """
    t = pa.types
    if t.is_list(arrow_type):
        element = arrow_type.value_field
        return {
            "type": "list",
            "element-id": _id(element),
            "element": iceberg_type(element.type),
            "element-required": not element.nullable,
        }
    if t.is_struct(arrow_type):
        fields = [_nested_field(_id(field), field.name, field.type, field.nullable) for field in arrow_type]
        return {"type": "struct", "fields": fields}
    if t.is_map(arrow_type):
        key, value = arrow_type.key_field, arrow_type.item_field
        return {
            "type": "map",
            "key-id": _id(key),
            "key": iceberg_type(key.type),
            "value-id": _id(value),
            "value-required": not value.nullable,
            "value": iceberg_type(value.type),
        }
    if t.is_decimal(arrow_type):
        return f"decimal({arrow_type.precision}, {arrow_type.scale})"
    if t.is_fixed_size_binary(arrow_type):
        return f"fixed[{arrow_type.byte_width}]"
    found = type_of(arrow_type)
    if found is None or found.name not in WORDS:
        raise _UnpublishedTypeError(f"Iceberg's readers cannot read type {short_type(arrow_type)}")
    return WORDS[found.name]


def default_json(value: Plain, arrow_type: pa.DataType) -> Any:
    """A value as JSON ("JSON single-value serialization", appendix D)."""
    t = pa.types
    if t.is_date(arrow_type):
        assert isinstance(value, int)
        return (_EPOCH + timedelta(days=value)).date().isoformat()
    if t.is_timestamp(arrow_type):
        assert isinstance(value, int)
        text = (_EPOCH + timedelta(microseconds=value)).replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{text}+00:00" if arrow_type.tz else text
    if t.is_decimal(arrow_type):
        assert isinstance(value, Decimal)
        return format(value, "f")
    return value.hex() if isinstance(value, bytes) else value


def _id(field: pa.Field) -> int:
    return int(field.metadata[b"PARQUET:field_id"])


def keeps_types(before: Iterable[dict[str, Any]], now: Iterable[dict[str, Any]]) -> bool:
    """Whether all columns that are in both schemas have the same types, so that bounds in old manifests can be read.

    Args:
        before, now: ``fields`` of schemas in Iceberg's JSON.
    """
    types = {field["id"]: field["type"] for field in before}
    return all(_same_type(types.get(field["id"], field["type"]), field["type"]) for field in now)


def _same_type(before: Any, now: Any) -> bool:
    """Whether two types are the same, but for names and added fields of structs."""
    if isinstance(before, dict) and isinstance(now, dict) and before["type"] == now["type"]:
        return before["type"] != "struct" or keeps_types(before["fields"], now["fields"])
    return bool(before == now)
