"""Finds the columns that the rows of a file of changes have, with their types, for a table that may get them.

Debezium's events in JSON may bring their schema (Kafka Connect's JsonConverter with ``schemas.enable``)::

    {"schema": {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": [
        {"field": "id", "type": "int32", "optional": false}, ...]}, ...]}, "payload": {"after": {"id": 1, ...}, ...}}

Then types are those that it names. Without it they are inferred from all of the file. Avro's are those of its own
schema, in which Kafka Connect names its types of times, too (``connect.name``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from dolmen.errors import SchemaError
from dolmen.format.ingest_properties import CdcSettings
from dolmen.ingest.formats.avro_reader import survey_with_times
from dolmen.ingest.formats.avro_types import CONNECT_TIMES
from dolmen.ingest.formats.formats import SourceFile, survey
from dolmen.ingest.formats.text_blocks import line_blocks

_PLAIN: dict[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
"""Kafka Connect's types."""
_TIMES = {name: named for (_, name), named in CONNECT_TIMES.items()}
_FORMATS = {"ms": "epoch_ms", "us": "epoch_us"}
"""By the unit of times that are numbers: the ``ingest_timestamp_format`` that reads them."""
_DECIMALS = frozenset({"org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"})
_SCHEMA = b'"schema"'
_SCHEMA_FIRST = re.compile(r'\s*\{\s*"schema"\s*:\s*')
_DECODER = json.JSONDecoder()
_HEADS = 16
"""Files have few different schemas: those seen last are known again without being parsed."""


def image_columns(source: SourceFile, settings: CdcSettings, *, skip_bad_rows: bool) -> list[pa.Field]:
    """The columns of a file's rows, without those about the change. They have type null where nothing tells their type.

    Raises:
        InputError: the file can't be read.
        SchemaError: the schema in its events names a type that can't be read.
    """
    if settings.envelope != "debezium":
        outside = {name.lower() for name in (settings.operation, *settings.sequence_from)}
        return [field for field in survey(source, skip_bad_rows=skip_bad_rows) if field.name.lower() not in outside]
    source = replace(source, options=replace(source.options, extra="ignore", null_lines="skip"))
    if source.format.kind == "avro":
        found = survey_with_times(source, lambda named, _: _time_type(named, source.options.timestamp_format))
    else:
        found = survey(source, skip_bad_rows=skip_bad_rows)
    whole = pa.struct(list(found))
    columns = {**_members(whole, "after"), **_members(whole, "payload", "after")}
    if source.format.kind == "jsonl" and whole.get_field_index("schema") >= 0:
        declared = _declared_columns(source)
        columns = {name: declared.get(name, kind) for name, kind in columns.items()}
    return [pa.field(name, kind) for name, kind in columns.items()]


def _members(kind: pa.DataType, *path: str) -> dict[str, pa.DataType]:
    """The fields of the struct at a path; none if there is no such struct."""
    for name in path:
        place = kind.get_field_index(name) if t.is_struct(kind) else -1
        if place < 0:
            return {}
        kind = kind.field(place).type
    return {field.name: field.type for field in kind} if t.is_struct(kind) else {}


def _declared_columns(source: SourceFile) -> dict[str, pa.DataType]:
    """The types of columns that schemas in a file of events name. Raises SchemaError for one that can't be read."""
    columns: dict[str, pa.DataType] = {}
    for schema in _schemas(source):
        try:
            fields = next(one["fields"] for one in schema["fields"] if one["field"] == "after")
        except (KeyError, TypeError, StopIteration):
            continue  # no schema, or none of an event
        try:
            for field in fields:
                name, kind = field["field"], _declared_type(field, source)
                columns[name] = _wider(columns.get(name, kind), kind)
        except (KeyError, TypeError, RecursionError) as error:
            raise SchemaError(
                f"file {source.name!r}: the schema in an event is none of Kafka Connect: {error!r}"
            ) from None
    return columns


def _schemas(source: SourceFile) -> Iterator[Any]:
    """Yields the schemas in a file's lines, but not that of a line that begins as one before it, schema included."""
    heads: tuple[bytes, ...] = ()
    with source.text() as stream:
        for block in line_blocks(stream.read, source.name, source.block_bytes):
            for line in block.data.split(b"\n"):
                if line.startswith(heads) or _SCHEMA not in line:
                    continue
                try:
                    head, schema = _split_schema(line.decode())
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue  # a bad row, or one without a schema
                if head:
                    heads = (head.encode(), *heads[: _HEADS - 1])
                yield schema


def _split_schema(line: str) -> tuple[str, Any]:
    """A line up to the end of its schema, and the schema. The former is empty if the line does not begin with it.

    Raises:
        ValueError, KeyError, TypeError, RecursionError: there is none.
    """
    if begin := _SCHEMA_FIRST.match(line):
        schema, end = _DECODER.raw_decode(line, begin.end())
        return line[:end], schema
    return "", json.loads(line)["schema"]


def _declared_type(field: dict[str, Any], source: SourceFile) -> pa.DataType:
    """The type of a column by its field in Kafka Connect's schema.

    Times that are numbers stay numbers unless ``ingest_timestamp_format`` is the one that reads them.

    Raises:
        SchemaError: decimals in bytes, or a type that is not known.
    """
    logical, unit = field.get("name"), source.options.timestamp_format
    if logical in _DECIMALS:
        raise SchemaError(
            f"file {source.name!r}, new column {field.get('field')!r}: decimals are written as bytes; set "
            "decimal.handling.mode to string or double at the connector"
        )
    if isinstance(logical, str) and logical in _TIMES and (found := _time_type(_TIMES[logical], unit)) is not None:
        return found
    match field.get("type"):
        case "array":
            return pa.list_(_declared_type(field["items"], source))
        case "struct":
            return pa.struct([(inner["field"], _declared_type(inner, source)) for inner in field["fields"]])
        case "map":
            return pa.string()
    plain = _PLAIN.get(str(field.get("type")))
    if plain is None:
        raise SchemaError(f"file {source.name!r}, new column {field.get('field')!r}: type {field.get('type')!r}")
    return plain


def _time_type(named: pa.DataType, timestamp_format: str | None) -> pa.DataType | None:
    """The type of a column of times that Kafka Connect names; None if they stay numbers.

    Args:
        timestamp_format: the table's ``ingest_timestamp_format``.
    """
    if t.is_date(named):
        return None if timestamp_format is None else named
    return pa.timestamp("us", named.tz) if named.tz or _FORMATS[named.unit] == timestamp_format else None


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds the values of both: schemas in one file may differ."""
    if one == other:
        return one
    for same in (t.is_integer, t.is_floating):
        if same(one) and same(other):
            return one if one.bit_width >= other.bit_width else other
    return pa.string()
