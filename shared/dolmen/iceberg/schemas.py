"""Iceberg schemas: the columns of a table as Iceberg's types, by the same field ids.

See "Schemas and Data Types" and appendix C of https://iceberg.apache.org/spec/.

The Avro schemas of manifests and manifest lists, with Iceberg's field ids.

See "Manifests", "Manifest Lists" and appendix A of https://iceberg.apache.org/spec/.

The property by which Iceberg's readers find columns by name, in files without field ids.

See "Name Mapping Serialization" of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from dolmen.errors import SchemaError
from dolmen.format.schema import Field, MappedColumn, Schema
from dolmen.format.types import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    FLOAT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_ZONED,
    Json,
    Plain,
    from_json,
    short_type,
    type_of,
)

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


Avro = dict[str, Any]


def manifest_entry_schema() -> Avro:
    """The schema of the entries of a manifest, for an unpartitioned table; the same for v2 and v3."""
    data_file = [
        _required("content", "int", 134),
        _required("file_path", "string", 100),
        _required("file_format", "string", 101),
        _required("partition", {"type": "record", "name": "r102", "fields": []}, 102),
        _required("record_count", "long", 103),
        _required("file_size_in_bytes", "long", 104),
        _optional("value_counts", _map(119, "int", 120, "long"), 109),
        _optional("null_value_counts", _map(121, "int", 122, "long"), 110),
        _optional("nan_value_counts", _map(138, "int", 139, "long"), 137),
        _optional("lower_bounds", _map(126, "int", 127, "bytes"), 125),
        _optional("upper_bounds", _map(129, "int", 130, "bytes"), 128),
        _optional("first_row_id", "long", 142),
        _optional("referenced_data_file", "string", 143),
        _optional("content_offset", "long", 144),
        _optional("content_size_in_bytes", "long", 145),
    ]
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _required("status", "int", 0),
            _optional("snapshot_id", "long", 1),
            _optional("sequence_number", "long", 3),
            _optional("file_sequence_number", "long", 4),
            _required("data_file", {"type": "record", "name": "r2", "fields": data_file}, 2),
        ],
    }


def manifest_list_schema() -> Avro:
    """The schema of a manifest list; the same for v2 and v3.

    ``partitions`` is always a list: some readers fail if it is NULL.
    """
    summary = [
        _required("contains_null", "boolean", 509),
        _optional("contains_nan", "boolean", 518),
        _optional("lower_bound", "bytes", 510),
        _optional("upper_bound", "bytes", 511),
    ]
    partitions = {
        "type": "array",
        "items": {"type": "record", "name": "r508", "fields": summary},
        "element-id": 508,
    }
    return {
        "type": "record",
        "name": "manifest_file",
        "fields": [
            _required("manifest_path", "string", 500),
            _required("manifest_length", "long", 501),
            _required("partition_spec_id", "int", 502),
            _required("content", "int", 517),
            _required("sequence_number", "long", 515),
            _required("min_sequence_number", "long", 516),
            _required("added_snapshot_id", "long", 503),
            _required("added_files_count", "int", 504),
            _required("existing_files_count", "int", 505),
            _required("deleted_files_count", "int", 506),
            _required("added_rows_count", "long", 512),
            _required("existing_rows_count", "long", 513),
            _required("deleted_rows_count", "long", 514),
            _optional("partitions", partitions, 507),
            _optional("key_metadata", "bytes", 519),
            _optional("first_row_id", "long", 520),
        ],
    }


def _required(name: str, type_: Any, id_: int) -> Avro:
    return {"name": name, "type": type_, "field-id": id_}


def _optional(name: str, type_: Any, id_: int) -> Avro:
    return {"name": name, "type": ["null", type_], "default": None, "field-id": id_}


def _map(key_id: int, key: str, value_id: int, value: str) -> Avro:
    """A map whose keys are not strings, as an array of records (appendix A)."""
    fields = [_required("key", key, key_id), _required("value", value, value_id)]
    record = {"type": "record", "name": f"k{key_id}_v{value_id}", "fields": fields}
    return {"type": "array", "items": record, "logicalType": "map"}


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
