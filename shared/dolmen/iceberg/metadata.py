"""Table metadata: the JSON object that names a publication's schemas and snapshots.

See "Table Metadata", "Schemas and Data Types" and appendix C of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeAlias
from uuid import UUID
from zlib import crc32

import msgspec
import pyarrow as pa

from dolmen.base.records import replace
from dolmen.base.units import DAY_US, utc
from dolmen.errors import SchemaError
from dolmen.format.column_terms import sort_terms
from dolmen.format.layout import build_decoders
from dolmen.format.schema import Field, MappedColumn, Schema, SortKey, field_id
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
from dolmen.iceberg.partition_specs import NO_PARTITIONS, PartitionSpecs, Spec

FormatVersion: TypeAlias = Literal[2, 3]

MAIN = "main"

VERSION, COMMIT_ID, STATE = "dolmen.version", "dolmen.commit-id", "dolmen.state"
"""Keys in the summary of a snapshot: the version that it shows, its commit, and a digest of the table's entry."""

_CHECKSUM = "dolmen.checksum"

_HINT = "dolmen.hint"

_LOG_LENGTH = 100

_PROPERTIES = {
    "gc.enabled": "false",
    "write.location-provider.impl": "dolmen.ThisTableIsReadOnly",
    "write.py-location-provider.impl": "dolmen.ThisTableIsReadOnly",
    "dolmen.read-only": "published by dolmen: what others commit here is replaced by the next publication",
}
"""Properties that keep other writers away: the first forbids deleting files, the next two name no existing class."""

NAME_MAPPING = "schema.name-mapping.default"
"""The table property that maps names of columns to their ids, for files without ids."""


@dataclass(frozen=True)
class PublishedSnapshot:
    """A version of a table as an Iceberg snapshot: the version is its id, and ``commit_ts`` its sequence number."""

    version: int
    commit_id: str
    commit_ts: int
    created_at: int
    state: str  # digest of the table's entry in that version
    epoch: int
    manifest_list: str  # absolute path
    schema_id: int
    files: int
    rows: int
    delete_files: int
    positions: int
    # first_row_id, added_rows: v3: row lineage
    first_row_id: int = 0
    added_rows: int = 0

    @property
    def timestamp_ms(self) -> int:
        return self.created_at // 1_000

    def to_json(self, format_version: FormatVersion) -> dict[str, Any]:
        snapshot: dict[str, Any] = {
            "snapshot-id": self.version,
            "sequence-number": self.commit_ts,
            "timestamp-ms": self.timestamp_ms,
            "manifest-list": self.manifest_list,
            "schema-id": self.schema_id,
            "summary": {
                "operation": "overwrite",
                "total-data-files": str(self.files),
                "total-records": str(self.rows),
                "total-delete-files": str(self.delete_files),
                "total-position-deletes": str(self.positions),
                "total-equality-deletes": "0",
                VERSION: str(self.version),
                COMMIT_ID: self.commit_id,
                STATE: self.state,
                "dolmen.epoch": str(self.epoch),
                "dolmen.created-at": str(self.created_at),
            },
        }
        if format_version == 3:
            snapshot |= {"first-row-id": self.first_row_id, "added-rows": self.added_rows}
        return snapshot

    @classmethod
    def from_json(cls, snapshot: dict[str, Any]) -> PublishedSnapshot:
        """Reads the result of ``to_json``. Raises KeyError, ValueError for other JSON."""
        summary = snapshot["summary"]
        return cls(
            snapshot["snapshot-id"],
            summary[COMMIT_ID],
            snapshot["sequence-number"],
            int(summary["dolmen.created-at"]),
            summary[STATE],
            int(summary["dolmen.epoch"]),
            snapshot["manifest-list"],
            snapshot["schema-id"],
            int(summary["total-data-files"]),
            int(summary["total-records"]),
            int(summary["total-delete-files"]),
            int(summary["total-position-deletes"]),
            snapshot.get("first-row-id", 0),
            snapshot.get("added-rows", 0),
        )


@dataclass(frozen=True)
class TableMetadata:
    """The metadata of a publication."""

    format_version: FormatVersion
    table_uuid: str
    location: str  # absolute path of the publication's directory
    updated_ms: int  # when it was published, by the store's clock
    last_column_id: int
    schemas: tuple[dict[str, Any], ...]  # in Iceberg's JSON, by their id
    current_schema: int
    snapshots: tuple[PublishedSnapshot, ...]  # oldest first; the last one is the current one
    log: tuple[tuple[int, str], ...] = ()  # earlier metadata files, oldest first: time of publication, and path
    next_row_id: int = 0  # v3: the first unused row id
    mapping: tuple[MappedColumn, ...] = ()  # ids of columns by their names in adopted files without field ids
    # the N in the hint when this was published, 0 if there was no hint; None for the N before this one
    hint: int | None = None
    partitioning: PartitionSpecs = NO_PARTITIONS  # the partition specs of all snapshots
    # the fields of the order in which new rows are written, in Iceberg's JSON
    sort_order: tuple[dict[str, Any], ...] = ()

    @property
    def current(self) -> PublishedSnapshot:
        return self.snapshots[-1]

    def schema_id(self, schema: PublishedSchema) -> int | None:
        """The id of a schema with exactly these columns; None if there is none."""
        fields = list(schema.fields)
        return next((each["schema-id"] for each in self.schemas if each["fields"] == fields), None)

    def encode(self) -> bytes:
        document = self._to_json()
        document["properties"][_CHECKSUM] = _digest(document)
        return msgspec.json.encode(document)

    @classmethod
    def decode(cls, body: bytes) -> TableMetadata | None:
        """Reads metadata; None if another writer made or changed it."""
        try:
            document = msgspec.json.decode(body)
            checksum = document["properties"].pop(_CHECKSUM)
            if checksum != _digest(document):
                return None
            return cls(
                document["format-version"],
                UUID(document["table-uuid"]).hex,
                document["location"],
                document["last-updated-ms"],
                document["last-column-id"],
                tuple(document["schemas"]),
                document["current-schema-id"],
                tuple(map(PublishedSnapshot.from_json, document["snapshots"])),
                tuple((each["timestamp-ms"], each["metadata-file"]) for each in document["metadata-log"]),
                document.get("next-row-id", 0),
                decode_mapping(document["properties"].get(NAME_MAPPING, "[]")),
                int(document["properties"][_HINT]) if _HINT in document["properties"] else None,
                PartitionSpecs(
                    msgspec.convert(document["partition-specs"], tuple[Spec, ...]),
                    document["default-spec-id"],
                    document["last-partition-id"],
                ),
                tuple(document["sort-orders"][-1]["fields"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, msgspec.DecodeError):
            return None

    def continue_log(self, previous: TableMetadata, path: str) -> TableMetadata:
        return replace(self, log=(*previous.log, (previous.updated_ms, path))[-_LOG_LENGTH:])

    def _to_json(self) -> dict[str, Any]:
        current = self.current
        orders: list[dict[str, Any]] = [{"order-id": 0, "fields": []}]
        if self.sort_order:  # a checksum as its id, so that another order has another id
            id_ = max(1, crc32(msgspec.json.encode(self.sort_order)) >> 1)
            orders.append({"order-id": id_, "fields": list(self.sort_order)})
        document: dict[str, Any] = {
            "format-version": self.format_version,
            "table-uuid": str(UUID(self.table_uuid)),
            "location": self.location,
            "last-sequence-number": current.commit_ts,
            "last-updated-ms": self.updated_ms,
            "last-column-id": self.last_column_id,
            "schemas": list(self.schemas),
            "current-schema-id": self.current_schema,
            "partition-specs": msgspec.to_builtins(self.partitioning.specs),
            "default-spec-id": self.partitioning.default,
            "last-partition-id": self.partitioning.last_id,
            "sort-orders": orders,
            "default-sort-order-id": orders[-1]["order-id"],
            "properties": dict(_PROPERTIES),
            "current-snapshot-id": current.version,
            "refs": {MAIN: {"snapshot-id": current.version, "type": "branch"}},
            "snapshots": [snapshot.to_json(self.format_version) for snapshot in self.snapshots],
            "snapshot-log": [
                {"timestamp-ms": each.timestamp_ms, "snapshot-id": each.version} for each in self.snapshots
            ],
            "metadata-log": [{"timestamp-ms": at, "metadata-file": path} for at, path in self.log],
            "statistics": [],
            "partition-statistics": [],
        }
        if self.mapping:
            document["properties"][NAME_MAPPING] = msgspec.json.encode(list(map(_to_json, self.mapping))).decode()
        if self.hint is not None:
            document["properties"][_HINT] = str(self.hint)
        if self.format_version == 3:
            document["next-row-id"] = self.next_row_id
        return document


def sort_order_of(key: SortKey) -> tuple[dict[str, Any], ...]:
    """A sort key as the fields of a sort order: https://iceberg.apache.org/spec/#sort-orders"""
    return tuple(
        {
            "transform": str(term.transform),
            "source-id": term.id,
            "direction": "desc" if term.descending else "asc",
            "null-order": "nulls-first" if term.nulls_first else "nulls-last",
        }
        for term in sort_terms(key)
    )


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(document)).hexdigest()


ICEBERG_TYPES = {
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
"""Iceberg's types without parameters, by the name of the column type. docs/iceberg.md lists types without one."""


@dataclass(frozen=True)
class PublishedSchema:
    """The published columns of a table, in Iceberg's JSON and as dolmen's fields."""

    fields: tuple[dict[str, Any], ...]
    columns: dict[int, Field]
    left_out: dict[str, str]  # the reason for each column that is not published, by name
    last_id: int  # the greatest field id that was ever used

    @classmethod
    def of(cls, schema: Schema, version: FormatVersion) -> PublishedSchema:
        """Maps the columns of a schema, and leaves out those that Iceberg or its readers cannot take.

        Raises SchemaError if none remains: readers of a table without columns fail, or find no rows in it.
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
        return {"type": "struct", "schema-id": schema_id, "fields": list(self.fields)}


class _UnpublishedTypeError(Exception):
    """A type that Iceberg or its readers cannot take. The text is the reason."""


def _field(field: Field, version: FormatVersion) -> dict[str, Any]:
    json_field = _nested_field(field.id, field.name, field.arrow_type, field.nullable)
    if field.widened_ts and pa.types.is_timestamp(field.arrow_type):
        raise _UnpublishedTypeError("it was a column of days, and no reader turns these into times")
    if field.comment:
        json_field["doc"] = field.comment
    if field.initial_default is not None:
        if version == 2:
            raise _UnpublishedTypeError("it has a default for older rows, which only Iceberg v3 knows")
        json_field["initial-default"] = _default(field.initial_default, field.arrow_type)
    if field.write_default is not None and version == 3:
        json_field["write-default"] = _default(field.write_default, field.arrow_type)
    return json_field


def _default(value: Json, arrow_type: pa.DataType) -> Any:
    try:
        default = default_json(from_json(value, arrow_type), arrow_type)
        # -0.0 is published as 0.0: Iceberg for Java, for which it is less, would leave its rows out of conditions.
        return 0.0 if pa.types.is_floating(arrow_type) and default == 0 else default
    except OverflowError:
        raise _UnpublishedTypeError("it has a default outside of the years 1 to 9999") from None


def _nested_field(id_: int | None, name: str, arrow_type: pa.DataType, nullable: bool) -> dict[str, Any]:
    return {"id": id_, "name": name, "required": not nullable, "type": iceberg_type(arrow_type)}


def iceberg_type(arrow_type: pa.DataType) -> Any:
    """A stored Arrow type in Iceberg's JSON; children have the ids of their Arrow fields."""
    t = pa.types
    if t.is_list(arrow_type):
        element = arrow_type.value_field
        return {
            "type": "list",
            "element-id": field_id(element),
            "element": iceberg_type(element.type),
            "element-required": not element.nullable,
        }
    if t.is_struct(arrow_type):
        fields = [_nested_field(field_id(field), field.name, field.type, field.nullable) for field in arrow_type]
        return {"type": "struct", "fields": fields}
    if t.is_map(arrow_type):
        key, value = arrow_type.key_field, arrow_type.item_field
        return {
            "type": "map",
            "key-id": field_id(key),
            "key": iceberg_type(key.type),
            "value-id": field_id(value),
            "value-required": not value.nullable,
            "value": iceberg_type(value.type),
        }
    if t.is_decimal(arrow_type):
        return f"decimal({arrow_type.precision}, {arrow_type.scale})"
    if t.is_fixed_size_binary(arrow_type):
        return f"fixed[{arrow_type.byte_width}]"
    column_type = type_of(arrow_type)
    if column_type is None or column_type.name not in ICEBERG_TYPES:
        raise _UnpublishedTypeError(f"Iceberg's readers cannot read type {short_type(arrow_type)}")
    return ICEBERG_TYPES[column_type.name]


def default_json(value: Plain, arrow_type: pa.DataType) -> Any:
    """A value as JSON ("JSON single-value serialization", appendix D)."""
    t = pa.types
    if t.is_date(arrow_type):
        assert isinstance(value, int)
        return utc(value * DAY_US).date().isoformat()
    if t.is_timestamp(arrow_type):
        assert isinstance(value, int)
        text = utc(value).replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{text}+00:00" if arrow_type.tz else text
    if t.is_decimal(arrow_type):
        assert isinstance(value, Decimal)
        return format(value, "f")
    return value.hex() if isinstance(value, bytes) else value


def keeps_types(before: Iterable[dict[str, Any]], now: Iterable[dict[str, Any]]) -> bool:
    """Whether all columns in both schemas have the same types, so that bounds in old manifests stay valid."""
    types = {field["id"]: field["type"] for field in before}
    return all(_same_type(types.get(field["id"], field["type"]), field["type"]) for field in now)


def _same_type(before: Any, now: Any) -> bool:
    """Whether two types are the same, but for names and added fields of structs."""
    if isinstance(before, dict) and isinstance(now, dict) and before["type"] == now["type"]:
        return before["type"] != "struct" or keeps_types(before["fields"], now["fields"])
    return bool(before == now)


def decode_mapping(text: str) -> tuple[MappedColumn, ...]:
    """Reads the property. Names without an id are left out. Raises ValueError for text of another form."""
    try:
        return tuple(_from_json(msgspec.json.decode(text, type=list[_NamedField])))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


class _NamedField(msgspec.Struct, rename="kebab"):
    names: list[str]
    field_id: int | None = None
    fields: list[_NamedField] | None = None


build_decoders(_NamedField)


def _to_json(column: MappedColumn) -> dict[str, Any]:
    document: dict[str, Any] = {"field-id": column.id, "names": list(column.names)}
    return {**document, "fields": [_to_json(field) for field in column.fields]} if column.fields else document


def _from_json(fields: Sequence[_NamedField]) -> Iterator[MappedColumn]:
    for each in fields:
        if each.field_id is not None:
            yield MappedColumn(each.field_id, tuple(each.names), tuple(_from_json(each.fields or ())))
