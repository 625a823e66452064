"""Avro object container files: rows are records, and the file's schema declares their types (``avro_types``).

fastavro decodes some thousands of records at a time. Types that no column can hold (a record that contains itself) are
refused before any row is read. A union of several types goes into a struct column, a map into a map column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from dolmen.base.units import MIB
from dolmen.errors import InputError, SchemaError
from dolmen.format.schema import own_names, same_names, same_names_problem
from dolmen.format.types import short_type
from dolmen.ingest.formats.avro.avro_records import Container, Record, decode_records
from dolmen.ingest.formats.avro.avro_types import (
    AvroTypes,
    FindTime,
    apply_named_times,
    decoded_type,
    is_union,
    to_column_type,
    wide_type,
)
from dolmen.ingest.formats.cells import text_cast
from dolmen.ingest.formats.column_limits import BYTES_AT_ONCE, check_lists, rows_at_once, width
from dolmen.ingest.formats.source_file import VALUE_COLUMN, OnBadRow, SourceFile
from dolmen.ingest.formats.typed_batches import conform_file, surveyed_schema
from dolmen.rows.write.casts import Cast, lossless_cast

BATCH_ROWS = 8192
_BATCH_BYTES = 8 * MIB


def own_schema(source: SourceFile) -> pa.Schema:
    with _open(source) as (_, types):
        return types.arrow


def survey_with_times(source: SourceFile, find: FindTime) -> pa.Schema:
    """The columns for a table that may add them; ``find`` accepts the types of times that ``connect.name`` names."""
    with _open(source) as (container, types):
        named = apply_named_times(types.arrow, _connect_types(container, source), find)
        return surveyed_schema(named, source.name)


def read(source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None = None) -> Iterator[pa.RecordBatch]:
    with _open(source) as (container, types):
        if not types.has_records and own_names([VALUE_COLUMN], schema)[0] not in schema.names:
            raise SchemaError(
                f"file {source.name!r}: its rows are not records, so they need a column {VALUE_COLUMN!r}; there are: "
                f"{', '.join(schema.names)}"
            )
        if pair := same_names(types.arrow.names, types.arrow.names):  # the decoder returns the last one only
            raise SchemaError(f"file {source.name!r}: {same_names_problem(pair, 'field')}")
        connect = _connect_types(container, source)
        own = apply_named_times(types.arrow, connect, _time_of_column, schema)
        own = pa.schema([field.with_type(wide_type(field.type)) for field in own])
        find = _lossless if connect == types.arrow else _lossless_or_zoned
        yield from conform_file(_batches(container, types, own, source.name), own, source, schema, on_bad_row, find)


def _time_of_column(named: pa.DataType, column: pa.DataType | None) -> pa.DataType | None:
    """Reads a number as the time that its name says, if its column holds dates or timestamps.

    Text stays text: if it is not a time, only its row is bad.
    """
    if column is None or not (t.is_timestamp(column) or t.is_date(column)) or getattr(named, "tz", None):
        return None
    return pa.timestamp(named.unit, column.tz) if t.is_timestamp(named) and t.is_timestamp(column) else named


def _lossless(source: pa.DataType, target: pa.DataType) -> Cast | None:
    """``lossless_cast``, whose error says where a struct comes from."""
    if is_union(source):
        raise SchemaError(
            f"values of a union of several types are never stored as {short_type(target)}, only in a struct: "
            f"{short_type(source)}"
        )
    return lossless_cast(source, target)


def _lossless_or_zoned(source: pa.DataType, target: pa.DataType) -> Cast | None:
    """``_lossless``, and also text to a timestamp with a zone, as Kafka Connect writes it."""
    if t.is_string(source) and t.is_timestamp(target) and target.tz:
        return text_cast(target, empty_is_null=False)
    return _lossless(source, target)


def _connect_types(container: Container, source: SourceFile) -> pa.Schema:
    """The columns, with the types of times that ``connect.name`` names."""
    return AvroTypes(container.schema, connect=True, max_columns=source.options.max_columns).arrow


@contextmanager
def _open(source: SourceFile) -> Iterator[tuple[Container, AvroTypes]]:
    with source.stream() as stream:
        container = Container(stream, source.name)
        try:
            types = AvroTypes(container.schema, max_columns=source.options.max_columns)
        except InputError as error:
            raise type(error)(f"file {source.name!r}: {error}") from None
        yield container, types


def _batches(container: Container, types: AvroTypes, own: pa.Schema, name: str) -> Iterator[pa.RecordBatch]:
    decoded = [(field.name, decoded_type(field.type)) for field in own]
    most = rows_at_once(own, name, BATCH_ROWS)
    widest = max((widest_item(field.type) for field in own), default=0)
    rows: list[Record] = []
    yielded = read_bytes = 0

    def parts(rows: list[Record]) -> Iterator[list[Record]]:
        """Splits rows whose lists take much memory; an item takes at least a byte of the file."""
        if read_bytes * widest > BYTES_AT_ONCE:
            sizes = {column: item_bytes([row[column] for row in rows], kind) for column, kind in decoded}
            if (size := sum(sizes.values())) > BYTES_AT_ONCE and len(rows) > 1:
                yield from parts(rows[: len(rows) // 2])
                yield from parts(rows[len(rows) // 2 :])
                return
            column = max(sizes, key=sizes.__getitem__)
            check_lists(size, read_bytes, 1, f"file {name!r}, record {yielded + 1:,} of the file, field {column!r}")
        yield rows

    def batch(rows: list[Record]) -> pa.RecordBatch:
        arrays = []
        for (column, kind), field in zip(decoded, own, strict=True):
            values = [row[column] for row in rows]
            try:
                arrays.append(to_column_type(pa.array(values, kind), field.type))
            except _MISFITS:
                index = next((n for n, value in enumerate(values) if not _fits(value, kind, field.type)), 0)
                raise InputError(
                    f"file {name!r} is damaged: record {yielded + index + 1:,} of the file, field {column!r}: "
                    "its value does not match its type"
                ) from None
        return pa.RecordBatch.from_arrays(arrays, schema=own)

    for records, size in decode_records(container, types.plain, name, most):
        if rows and (len(rows) + len(records) > most or read_bytes + size > _BATCH_BYTES):
            for part in parts(rows):
                yield batch(part)
                yielded += len(part)
            rows, read_bytes = [], 0
        rows += records
        read_bytes += size
    for part in parts(rows):
        if part:
            yield batch(part)
            yielded += len(part)


_MISFITS = (ValueError, TypeError, OverflowError, pa.ArrowException)


def _fits(value: object, kind: pa.DataType, target: pa.DataType) -> bool:
    try:
        to_column_type(pa.array([value], kind), target)
    except _MISFITS:
        return False
    return True


def widest_item(kind: pa.DataType) -> int:
    """The most bytes that an item in a list or map of this type takes; 0 if the type has no list or map."""
    if t.is_struct(kind):
        return max((widest_item(field.type) for field in kind), default=0)
    item = _item(kind)
    return 0 if item is None else max(width(item), widest_item(item))


def item_bytes(values: Sequence[Any], kind: pa.DataType) -> int:
    if widest_item(kind) == 0:
        return 0
    present = [value for value in values if value is not None]
    if t.is_struct(kind):
        return sum(item_bytes([value.get(field.name) for value in present], field.type) for field in kind)
    item = _item(kind)
    size = sum(map(len, present)) * width(item)
    if widest_item(item):
        inner = (value.values() if t.is_map(kind) else value for value in present)
        size += item_bytes(list(chain.from_iterable(inner)), item)
    return size


def _item(kind: pa.DataType) -> pa.DataType | None:
    return kind.value_type if t.is_list(kind) else kind.item_type if t.is_map(kind) else None
