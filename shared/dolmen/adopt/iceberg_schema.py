"""The columns of an Iceberg table as dolmen's columns, with the same ids.

See "Schemas and Data Types", "Schema Evolution", "Column Projection" and appendix C of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import msgspec
import pyarrow as pa

from dolmen.adopt.columns import AdoptedColumns, AdoptionRefusals, FilesOfShape, field_ids
from dolmen.errors import SchemaError
from dolmen.format.column_history import has_same_fields, is_date_to_timestamp, widening_problem
from dolmen.format.layout import ColumnsBy
from dolmen.format.schema import Field, MappedColumn, Schema, TypeJson, check_column_names, field_id, is_nested
from dolmen.format.types import DATE, TIMESTAMP, TIMESTAMP_ZONED, Json, from_json, type_of
from dolmen.iceberg.metadata import NAME_MAPPING, decode_mapping
from dolmen.rows.scan.data_objects import AdoptedColumn, adopted_column, column_named

_TYPES = {
    "boolean": "bool", "int": "int32", "long": "int64", "float": "float", "double": "double", "string": "string",
    "binary": "binary", "uuid": "fixed_size_binary[16]", "date": str(DATE.stored), "time": "time64[us]",
    "timestamp": str(TIMESTAMP.stored), "timestamptz": str(TIMESTAMP_ZONED.stored),
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_FIXED = re.compile(r"fixed\[(\d+)\]")
_EPOCH_DAY = date(1970, 1, 1).toordinal()
NARROWER = 1
"""``widened_ts``, until the commit, of a column that some files have in a narrower type or with other fields."""


class IcebergColumns:
    """The current columns of an Iceberg table.

    Args:
        metadata: the table metadata.
        refusals: reasons are added here.
    """

    def __init__(self, metadata: Mapping[str, Any], refusals: AdoptionRefusals) -> None:
        self._refusals = refusals
        self._fields: list[Field] = []
        for each in _current_schema(metadata)["fields"]:
            try:
                self._fields.append(_field(each))
            except SchemaError as error:
                refusals.add("", str(error), str(each["name"]))
        try:
            check_column_names([field.name for field in self._fields])
        except SchemaError as error:
            refusals.add("", str(error))
        mapping = (metadata.get("properties") or {}).get(NAME_MAPPING)
        self._mapping: tuple[MappedColumn, ...] | None = None
        self._lacks_mapping = "the table has no property"
        if mapping is not None:
            try:
                self._mapping = decode_mapping(mapping)
            except ValueError as error:
                self._lacks_mapping = f"the table has a malformed ({error}) property"
        self._next_id = int(metadata["last-column-id"]) + 1

    def match(self, shapes: Sequence[FilesOfShape]) -> AdoptedColumns:
        """Finds the columns in files, and adds reasons for columns that cannot be read."""
        narrower: set[int] = set()
        columns_by = []
        for each in shapes:
            how, there = self._find(each)
            columns_by.append(how)
            for field in self._fields:
                reason, is_narrower = _compare(there.get(field.id), field)
                if is_narrower:
                    narrower.add(field.id)
                if reason:
                    self._refusals.add(each.first, reason, field.name, each.files)
        fields = tuple(
            msgspec.structs.replace(field, widened_ts=NARROWER) if field.id in narrower else field
            for field in self._fields
        )
        mapping = (self._mapping or ()) if "names" in columns_by else ()
        return AdoptedColumns(Schema(fields, self._next_id, mapping=mapping), tuple(columns_by))

    def _find(self, each: FilesOfShape) -> tuple[ColumnsBy, dict[int, AdoptedColumn]]:
        """How the columns of files are found, and the columns by id."""
        columns = each.shape.columns
        ids = {field.id for field in self._fields}
        by_ids = any(id_ is not None for id_ in field_ids(columns)) or any(
            column.id for column in each.shape.unreadable
        )
        if not by_ids and self._mapping is None:
            reason = f"the file has no field ids, and {self._lacks_mapping} {NAME_MAPPING}"
            self._refusals.add(each.first, reason, files=each.files)
            return "names", {}
        for unreadable in each.shape.unreadable:
            known = column_named(self._mapping or (), unreadable.name)
            own = unreadable.id if by_ids else known.id if known else None
            if own in ids:
                self._refusals.add(each.first, unreadable.reason, unreadable.name, each.files)
        if not by_ids:
            found = (pa.field(column.name, column.type, column.nullable) for column in columns)
            columns = tuple(
                adopted_column(field, column.leaves, self._mapping)
                for field, column in zip(found, columns, strict=True)
            )
        return "ids" if by_ids else "names", {column.id: column for column in columns if column.id is not None}


def _compare(own: AdoptedColumn | None, field: Field) -> tuple[str, bool]:
    """Why a file's column cannot be read as the table's column, and whether it is narrower or has other fields."""
    if own is None:
        lacks = not field.nullable and field.initial_default is None
        return ("the file lacks it, and it cannot be NULL" if lacks else ""), False
    current = field.arrow_type
    reason = next(_mismatches(own.type, current), "")
    if is_nested(current):
        return reason, not has_same_fields(own.type, current)
    return reason, own.type != current


def _mismatches(own: pa.DataType, current: pa.DataType) -> Iterator[str]:
    if not is_nested(own) or not is_nested(current):
        if is_date_to_timestamp(own, current):
            yield "it is a date in the file, and a timestamp in the table"
        elif reason := widening_problem(own, current):
            yield f"it is {own} in the file, and {current} in the table: {reason}"
        return
    if own.id != current.id:
        yield f"it is {own} in the file, and {current} in the table"
        return
    there = {field_id(own.field(index)): own.field(index) for index in range(own.num_fields)}
    for index in range(current.num_fields):
        field = current.field(index)
        same = there.get(field_id(field))
        if same is None and (not pa.types.is_struct(current) or not field.nullable):
            yield f"the file lacks the field {field.name!r} inside it"
        elif same is not None:
            yield from _mismatches(same.type, field.type)


def _current_schema(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    schemas: list[Mapping[str, Any]] = metadata.get("schemas") or [metadata["schema"]]  # one schema in v1
    current = metadata.get("current-schema-id")
    return next((schema for schema in schemas if schema.get("schema-id") == current), schemas[-1])


def _field(json: Mapping[str, Any]) -> Field:
    field = Field(
        id=int(json["id"]),
        name=str(json["name"]),
        type=_type(json["type"]),
        nullable=not json["required"],
        comment=str(json.get("doc") or ""),
    )
    ends = {}
    for ours, theirs in (("initial_default", "initial-default"), ("write_default", "write-default")):
        if (value := json.get(theirs)) is not None:
            ends[ours] = _default(value, field.arrow_type)
    return msgspec.structs.replace(field, **ends)


def _type(json: Any) -> TypeJson:
    """The stored type of an Iceberg type. Raises SchemaError."""
    if isinstance(json, str):
        if json in _TYPES:
            return _TYPES[json]
        if match := _DECIMAL.fullmatch(json):
            return f"decimal128({match[1]}, {match[2]})"
        if match := _FIXED.fullmatch(json):
            return f"fixed_size_binary[{match[1]}]"
        raise SchemaError(f"dolmen has no type for Iceberg's {json}")
    try:
        kind = json["type"]
        if kind == "struct":
            return {"struct": [_child(field) for field in json["fields"]]}
        if kind == "list":
            return {"list": _inner(json, "element", "element")}
        if kind == "map":
            return {"map": [_inner(json, "key", "key"), _inner(json, "value", "value")]}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SchemaError(f"its type is malformed: {type(error).__name__}: {error}") from None
    raise SchemaError(f"dolmen has no type for Iceberg's {kind}")


def _child(json: Mapping[str, Any]) -> dict[str, Any]:
    if json.get("initial-default") is not None or json.get("write-default") is not None:
        raise SchemaError(f"the field {json['name']!r} inside it has a default")
    built: dict[str, Any] = msgspec.to_builtins(_field(json))
    return built


def _inner(json: Mapping[str, Any], what: str, name: str) -> dict[str, Any]:
    required = True if what == "key" else json[f"{what}-required"]
    return _child({"id": json[f"{what}-id"], "name": name, "type": json[what], "required": required})


def _default(value: Any, arrow_type: pa.DataType) -> Json:
    """A default in dolmen's JSON form ("JSON single-value serialization"). Raises SchemaError."""
    kind = type_of(arrow_type)
    try:
        if kind is DATE:
            return date.fromisoformat(value).toordinal() - _EPOCH_DAY
        if not pa.types.is_temporal(arrow_type) and not pa.types.is_binary(arrow_type):
            json: Json = float(value) if pa.types.is_floating(arrow_type) else value
            from_json(json, arrow_type)
            return json
    except (TypeError, ValueError, SchemaError):
        pass
    raise SchemaError("defaults of its type are not supported")


def has_column(columns: Sequence[AdoptedColumn], id_: int, mapping: Sequence[MappedColumn]) -> bool:
    """Whether a file has the column or the field inside a column with this id."""
    if any(id_ in field_ids([column]) for column in columns):
        return True
    known = next((each for each in mapping if each.id == id_), None)
    return known is not None and any(column.name in known.names for column in columns)
