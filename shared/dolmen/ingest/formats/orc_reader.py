"""ORC files: types as they are, or cast without loss to the declared ones; read a stripe at a time.

A TIMESTAMP is local time, whatever zone it was written in, and has no zone; one WITH LOCAL TIME ZONE is in UTC. Both
have nanoseconds in pyarrow, which holds the years 1678 to 2262; others are refused. A compressed file is unpacked into
a temporary file first, because its footer comes last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dolmen.base.units import GIB
from dolmen.errors import InputError, LimitError
from dolmen.format.parquet_footer import read_varint
from dolmen.format.schema import same_names, same_names_problem
from dolmen.ingest.formats.column_limits import BATCH_ROWS, width
from dolmen.ingest.formats.source_file import OnBadRow, SourceFile
from dolmen.ingest.formats.typed_batches import check_schema, conform_columns

if TYPE_CHECKING:
    from pyarrow.orc import ORCFile

_MAGIC = b"ORC"
MAX_STRIPE_BYTES = 2 * GIB
"""The memory of a stripe's values of fixed size; pyarrow reads a stripe at once, and repeated values take no bytes."""
_VARINT, _WIDE, _BYTES, _NARROW = 0, 1, 2, 5
_FOOTER, _STRIPES, _ROWS = 2, 3, 5
"""Fields of protocol buffers: the footer in the tail, the stripes in the footer, the rows of a stripe."""


def own_schema(source: SourceFile) -> pa.Schema:
    """The columns as the file has them, from its footer alone."""
    with _open(source) as file:
        return _own_schema(file, source)


def read(source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None = None) -> Iterator[pa.RecordBatch]:
    """The rows as batches of ``schema``. Raises as ``formats.read`` does."""
    with _open(source) as file:
        batches = partial(_batches, file, source)
        yield from conform_columns(batches, _own_schema(file, source), source, schema, on_bad_row)


def _own_schema(file: ORCFile, source: SourceFile) -> pa.Schema:
    with source.report_damage("ORC"):
        schema = file.schema
        return check_schema(pa.schema(list(schema)), source.name, source.options.max_columns)


def _batches(file: ORCFile, source: SourceFile, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    """Yields the rows, a stripe at a time, and compares their number with the footer's."""
    name, schema = source.name, file.schema
    with source.report_damage("ORC", IndexError, OverflowError):
        stripes = [dict(_messages(stripe)).get(_ROWS, 0) for stripe in _fields(_footer(file), _STRIPES)]
    if len(stripes) != file.nstripes or sum(stripes) != file.nrows:
        raise InputError(
            f"file {name!r} is damaged: its footer says it has {file.nrows:,} rows, and its stripes have "
            f"{sum(stripes):,}: write it again"
        )
    row_bytes = sum(width(field.type) for field in schema if columns is None or field.name in columns)
    for index, rows in enumerate(stripes):
        if rows * row_bytes > MAX_STRIPE_BYTES:
            raise LimitError(
                f"file {name!r}: stripe {index} has {rows:,} rows, which take more than {MAX_STRIPE_BYTES:,} bytes of "
                "memory: write smaller stripes (orc.stripe.size)"
            )
        with source.report_damage("ORC"):
            stripe = file.read_stripe(index, columns)
            stripe.validate()  # conform_file checks the values, and names their rows
        if stripe.num_rows != rows:
            raise InputError(
                f"file {name!r} is damaged: its footer says {rows:,} rows in stripe {index}, but its columns hold "
                f"{stripe.num_rows:,}: write it again"
            )
        for start in range(0, rows, BATCH_ROWS):
            yield stripe.slice(start, BATCH_ROWS)


@contextmanager
def _open(source: SourceFile) -> Iterator[ORCFile]:
    from pyarrow.orc import ORCFile  # seldom needed: a cold start does without

    with source.seekable() as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            raise InputError(f"file {source.name!r} is not an ORC file: it does not begin like one")
        opened.seek(0)
        with source.report_damage("ORC"):
            file = ORCFile(opened)
            try:
                names = file.schema.names
            except pa.ArrowNotImplementedError as error:
                raise InputError(
                    f"file {source.name!r}: its rows are not records with named columns, or of a type that is not read "
                    f"({error}): write them as a column of a struct"
                ) from None
        if pair := same_names(names, names):
            raise InputError(f"file {source.name!r}: {same_names_problem(pair)}")
        yield file


def _footer(file: ORCFile) -> bytes:
    return next(_fields(file.reader.serialized_file_tail(), _FOOTER))


def _fields(message: bytes, number: int) -> Iterator[bytes]:
    """The fields of this number that hold bytes."""
    return (value for each, value in _messages(message) if each == number)


def _messages(message: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and values of a message's fields (https://protobuf.dev/programming-guides/encoding)."""
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        kind, value = key & 7, 0
        if kind == _VARINT:
            value, at = read_varint(message, at)
            yield key >> 3, value
        elif kind == _BYTES:
            size, at = read_varint(message, at)
            yield key >> 3, message[at : at + size]
            at += size
        elif kind in (_WIDE, _NARROW):
            at += 8 if kind == _WIDE else 4
        else:
            raise OverflowError(f"a field of kind {kind} in its footer")
