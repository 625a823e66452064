"""Surveys a file of changes: the columns of its rows, for a table that may add them, and the form of its positions.

Debezium's events in JSON may bring their schema (Kafka Connect's JsonConverter with ``schemas.enable``)::

    {"schema": {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": [
        {"field": "id", "type": "int32", "optional": false}, ...]}, ...]}, "payload": {"after": {"id": 1, ...}, ...}}

Then the schema names the types. Without it they are inferred from all of the file. In Avro the file's schema has the
types; there, too, Kafka Connect names its types of times (``connect.name``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from dolmen.base.records import replace
from dolmen.base.units import MIB
from dolmen.errors import InputError, SchemaError
from dolmen.format.ingest_properties import CdcSettings, IngestSettings
from dolmen.ingest.formats.avro.avro_reader import survey_with_times
from dolmen.ingest.formats.avro.avro_types import CONNECT_TIMES
from dolmen.ingest.formats.formats import SourceFile, infer, survey
from dolmen.ingest.formats.json.json_rows import json_blocks

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
_FORMATS = {"ms": "epoch_ms", "us": "epoch_us"}  # by unit: the ``ingest_timestamp_format`` that reads times as numbers
_DECIMALS = frozenset({"org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"})
_SCHEMA = b'"schema"'
_SCHEMA_FIRST = re.compile(r'\s*\{\s*"schema"\s*:\s*')
_DECODER = json.JSONDecoder()
_SEARCHED_BYTES = MIB
_PIECE_BYTES = 1 << 16
_HEADS = 16  # a file has few different schemas: the last ones are recognized without parsing


def find_columns(source: SourceFile, settings: IngestSettings) -> list[pa.Field]:
    """Finds the columns of a file's rows, in every mode of its table, with types that hold all values."""
    skip_bad_rows = settings.on_bad_row == "quarantine"
    if settings.cdc is not None:
        return image_columns(source, settings.cdc, skip_bad_rows=skip_bad_rows)
    return list(survey(source, skip_bad_rows=skip_bad_rows))


def image_columns(source: SourceFile, settings: CdcSettings, *, skip_bad_rows: bool) -> list[pa.Field]:
    """The columns of a file's rows, without those about the change; type null if the file does not show the type."""
    if settings.envelope != "debezium":
        outside = {name.lower() for name in (settings.operation, *settings.sequence_from)}
        return [field for field in survey(source, skip_bad_rows=skip_bad_rows) if field.name.lower() not in outside]
    source = replace(source, options=replace(source.options, extra="ignore", null_lines="skip"))
    if source.format.kind == "avro":
        surveyed = survey_with_times(
            source, lambda named, _: _time_type(named, source.options.dialect.timestamp_formats)
        )
    else:
        surveyed = survey(source, skip_bad_rows=skip_bad_rows)
    whole = pa.struct(list(surveyed))
    images = (_type_at(whole, path) for path in (["after"], ["payload", "after"]))
    columns = {
        field.name: field.type for image in images if image is not None and t.is_struct(image) for field in image
    }
    if source.format.kind == "jsonl" and whole.get_field_index("schema") >= 0:
        declared = _declared_columns(source)
        columns = {name: declared.get(name, kind) for name, kind in columns.items()}
    return [pa.field(name, kind) for name, kind in columns.items()]


def _type_at(kind: pa.DataType, path: Iterable[str]) -> pa.DataType | None:
    for name in path:
        index = kind.get_field_index(name) if t.is_struct(kind) else -1
        if index < 0:
            return None
        kind = kind.field(index).type
    return kind


def _declared_columns(source: SourceFile) -> dict[str, pa.DataType]:
    """The types of columns, from the schemas in a file of events. Raises SchemaError for an unreadable schema."""
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
                f"file {source.name!r}: the schema in an event is not one of Kafka Connect: {error!r}"
            ) from None
    return columns


def _schemas(source: SourceFile) -> Iterator[Any]:
    """Yields the schemas in a file's lines. Skips lines that begin with a recent schema."""
    heads: tuple[bytes, ...] = ()
    for block in json_blocks(source):
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
    """A line up to the end of its schema ("" if it does not begin with it), and the schema. Raises if there is none."""
    if begin := _SCHEMA_FIRST.match(line):
        schema, end = _DECODER.raw_decode(line, begin.end())
        return line[:end], schema
    return "", json.loads(line)["schema"]


def _declared_type(field: dict[str, Any], source: SourceFile) -> pa.DataType:
    """The type of a column, from its field in Kafka Connect's schema. Raises SchemaError.

    Times as numbers stay numbers, unless ``ingest_timestamp_format`` reads them.
    """
    logical, unit = field.get("name"), source.options.dialect.timestamp_formats
    if logical in _DECIMALS:
        raise SchemaError(
            f"file {source.name!r}, new column {field.get('field')!r}: decimals are written as bytes; set "
            "decimal.handling.mode to string or double at the connector"
        )
    if isinstance(logical, str) and logical in _TIMES and (time_type := _time_type(_TIMES[logical], unit)) is not None:
        return time_type
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


def _time_type(named: pa.DataType, timestamp_formats: tuple[str, ...]) -> pa.DataType | None:
    """The type of a column of times by Kafka Connect's name; None if they stay numbers."""
    if t.is_date(named):
        return named if timestamp_formats else None
    return pa.timestamp("us", named.tz) if named.tz or _FORMATS[named.unit] in timestamp_formats else None


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds the values of both: schemas in one file may differ."""
    if one == other:
        return one
    for same in (t.is_integer, t.is_floating):
        if same(one) and same(other):
            return one if one.bit_width >= other.bit_width else other
    return pa.string()


def find_text_positions(source: SourceFile, settings: CdcSettings) -> dict[str, bool]:
    """Finds whether the sequence's paths in a file of events hold text or numbers, from its first event or schema.

    Leaves out paths that are not in the first megabyte, and all paths of an unreadable file, which the reader reports.
    """
    if settings.envelope != "debezium":
        return {}
    paths = {path: path.split(".") for path in settings.sequence_from}
    try:
        if source.format.kind == "jsonl":
            return _text_positions_in_json(source, paths)
        whole = pa.struct(list(infer(source)))
    except InputError:
        return {}
    is_text: dict[str, bool] = {}
    for path, names in paths.items():
        for kind in (_type_at(whole, names), _type_at(whole, ["payload", *names])):
            if kind is not None and (t.is_string(kind) or t.is_integer(kind)):
                is_text[path] = t.is_string(kind)
    return is_text


def _text_positions_in_json(source: SourceFile, paths: dict[str, list[str]]) -> dict[str, bool]:
    is_text: dict[str, bool] = {}
    with source.text() as stream:
        rest, size = b"", 0
        while size < _SEARCHED_BYTES and (data := stream.read(_PIECE_BYTES)):
            size += len(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _note_positions(line, paths, is_text)
            if len(is_text) == len(paths):
                return is_text
        _note_positions(rest, paths, is_text)
    return is_text


def _note_positions(line: bytes, paths: dict[str, list[str]], is_text: dict[str, bool]) -> None:
    try:
        event = json.loads(line, parse_int=float, parse_float=float)
    except (ValueError, RecursionError):  # incomplete, or a bad row, which the reader reports
        return
    if isinstance(event, dict) and isinstance(event.get("payload"), dict):
        event = event["payload"]
    for path, names in paths.items():
        value: Any = event
        for each in names:
            value = value.get(each) if isinstance(value, dict) else None
        if path not in is_text and isinstance(value, str | float):
            is_text[path] = isinstance(value, str)
