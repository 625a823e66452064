"""Avro object container files: rows are records, types are those that the file's schema says (``avro_types``).

Records are decoded by fastavro, some thousands at a time. What no column can hold (a union of several types, a record
that holds itself) is refused before any row is read; a map goes into a map column.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from dolmen.errors import InputError, SchemaError
from dolmen.ingest.formats.avro.blocks import MAGIC, AvroBlock, Container
from dolmen.ingest.formats.avro.types import (
    AvroTypes,
    FindTime,
    decoded_type,
    to_column_type,
    wide_type,
    with_named_times,
)
from dolmen.ingest.formats.columnar.typed import conform_file, stored_schema, surveyed_schema
from dolmen.ingest.formats.options import OnBadRow
from dolmen.ingest.formats.source import SourceFile
from dolmen.ingest.formats.text.cells import text_cast
from dolmen.units import MIB
from dolmen.write.lossless import Cast, lossless

BATCH_ROWS = 8192
_BATCH_BYTES = 8 * MIB
_SYNC = bytes(16)


def infer(source: SourceFile) -> pa.Schema:
    """The stored types of the columns, from the file's header alone.

    Raises:
        SchemaError: a column cannot be stored.
        InputError: the file is damaged or not Avro.
    """
    with _open(source) as (_, types):
        return stored_schema(types.arrow, source.name)


def survey(source: SourceFile, *, skip_bad_rows: bool = False) -> pa.Schema:
    """The file's columns as its schema says, all of which may be NULL. Raises as ``infer`` does."""
    with _open(source) as (_, types):
        return surveyed_schema(types.arrow, source.name)


def survey_with_times(source: SourceFile, find: FindTime) -> pa.Schema:
    """As ``survey``, with the types of times that ``connect.name`` says, where these are found."""
    with _open(source) as (container, types):
        named = with_named_times(types.arrow, AvroTypes(container.schema, connect=True).arrow, find)
        return surveyed_schema(named, source.name)


def read(source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None = None) -> Iterator[pa.RecordBatch]:
    """The rows as batches of ``schema``.

    Args:
        on_bad_row: called with each row that does not fit; None raises an error for the first.

    Raises:
        SchemaError: the columns do not match, or are of another kind.
        RowError: a value does not fit its column.
        InputError: the file is damaged, ends early, or is not Avro.
    """
    with _open(source) as (container, types):
        connect = AvroTypes(container.schema, connect=True).arrow
        own = with_named_times(types.arrow, connect, _wanted_time, schema)
        own = pa.schema([field.with_type(wide_type(field.type)) for field in own])
        find = lossless if connect == types.arrow else _lossless_or_zoned
        yield from conform_file(_batches(container, types, own, source.name), own, source, schema, on_bad_row, find)


def _wanted_time(named: pa.DataType, wanted: pa.DataType | None) -> pa.DataType | None:
    """Takes a number for the time that its name says where it goes to a column of dates or timestamps.

    Text is left as it is: that it is no time is the fault of its row alone.
    """
    if wanted is None or not (t.is_timestamp(wanted) or t.is_date(wanted)) or getattr(named, "tz", None):
        return None
    return pa.timestamp(named.unit, wanted.tz) if t.is_timestamp(named) and t.is_timestamp(wanted) else named


def _lossless_or_zoned(source: pa.DataType, target: pa.DataType) -> Cast | None:
    """``lossless``, and for files with times as Kafka Connect writes them: text as a timestamp with a zone."""
    if t.is_string(source) and t.is_timestamp(target) and target.tz:
        return text_cast(target, empty_is_null=False)
    return lossless(source, target)


@contextmanager
def _open(source: SourceFile) -> Iterator[tuple[Container, AvroTypes]]:
    with source.stream() as stream:
        container = Container(stream, source.name)
        try:
            types = AvroTypes(container.schema)
        except InputError as error:
            raise type(error)(f"file {source.name!r}: {error}") from None
        yield container, types


def _batches(container: Container, types: AvroTypes, own: pa.Schema, name: str) -> Iterator[pa.RecordBatch]:
    decoded = [(field.name, decoded_type(field.type)) for field in own]
    rows: list[dict[str, Any]] = []
    taken = 0
    with _damage(name):
        blocks = _decoded_blocks(container, types.plain)
    while True:
        with _damage(name):
            block = next(blocks, None)
            records = iter(block) if block is not None else iter(())
        while True:
            with _damage(name):
                before = len(rows)
                rows += islice(records, BATCH_ROWS - before)
                ended = block is None or len(rows) < BATCH_ROWS
            if block is not None and ended:
                taken += len(block.bytes_.getbuffer())
            if rows and (len(rows) == BATCH_ROWS or taken > _BATCH_BYTES or block is None):
                with _damage(name):
                    columns = [pa.array([row[column] for row in rows], kind) for column, kind in decoded]
                    arrays = [to_column_type(column, field.type) for column, field in zip(columns, own, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=own)
                rows, taken = [], 0
            if ended:
                break
        if block is None:
            return
        if block.bytes_.read(1):
            raise InputError(f"file {name!r} is damaged: a block is longer than its records")


class _Reframed:
    """A container as fastavro is to see it: unpacked already, and with a schema without logical types."""

    def __init__(self, header: bytes, blocks: Iterator[AvroBlock]) -> None:
        self._blocks, self._ahead, self._place = blocks, memoryview(header), 0

    def read(self, size: int, /) -> bytes:
        """The next bytes; a call never needs the bytes of two blocks."""
        if not self._ahead and (block := next(self._blocks, None)) is not None:
            numbers = _number(block.records) + _number(len(block.data))
            self._ahead = memoryview(b"".join((numbers, block.data, _SYNC)))
        data = bytes(self._ahead[:size])
        self._ahead = self._ahead[size:]
        self._place += len(data)
        return data

    def tell(self) -> int:
        """The number of bytes that have been read."""
        return self._place


def _decoded_blocks(container: Container, plain: Any) -> Iterator[Any]:
    import fastavro  # takes a while, and most files are not Avro

    schema = json.dumps(plain).encode()
    header = b"".join((MAGIC, _number(1), _text(b"avro.schema"), _text(schema), _number(0), _SYNC))
    return iter(fastavro.block_reader(_Reframed(header, container.blocks())))


def _text(data: bytes) -> bytes:
    return _number(len(data)) + data


def _number(value: int) -> bytes:
    """A number that is not negative, as Avro writes it."""
    value, made = value << 1, bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


@contextmanager
def _damage(name: str) -> Iterator[None]:
    try:
        yield
    except (InputError, SchemaError):
        raise
    except (EOFError, ValueError, LookupError, TypeError, OverflowError, struct.error, pa.ArrowException) as error:
        raise InputError(f"file {name!r} is damaged, or not Avro: {error!r}") from error
