"""Parquet files: types as they are, or cast without loss to the declared ones; read a few pages at a time.

INT96 timestamps (Impala, old Spark) are read as microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import parquet

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.schema import storable
from dolmen.ingest.compression import Compression, OpenFile, open_seekable
from dolmen.write.conform import conform

BATCH_ROWS = 65_536
_BUFFER_BYTES = 1 << 20


def infer(open_file: OpenFile, compression: Compression | None, name: str) -> pa.Schema:
    """The stored types of the file's columns, from its footer alone.

    Raises:
        SchemaError: a column cannot be stored.
        InputError: the file is damaged or not Parquet.
    """
    with _open(open_file, compression, name) as file, _damage(name):
        fields = []
        for field in file.schema_arrow:
            extends = isinstance(field.type, pa.BaseExtensionType)
            try:
                stored = storable(field.type.storage_type if extends else field.type)
                fields.append(pa.field(field.name, stored, field.nullable))
            except SchemaError as error:
                raise SchemaError(f"file {name!r}, column {field.name!r}: {error}") from None
        return pa.schema(fields)


def read(
    open_file: OpenFile, compression: Compression | None, schema: pa.Schema, name: str
) -> Iterator[pa.RecordBatch]:
    """The file's rows as batches of ``schema``.

    Raises:
        SchemaError: the columns do not match, or are of another kind.
        RowError: a value does not fit its column.
        InputError: the file is damaged or not Parquet.
    """
    with _open(open_file, compression, name) as file:
        try:
            with _damage(name):
                source = pa.RecordBatchReader.from_batches(file.schema_arrow, _batches(file, name))
                conformed = conform(source, schema)
            yield from conformed
        except RowError as error:
            raise RowError(error.reason, file=name, row=error.row, column=error.column) from None
        except SchemaError as error:
            raise SchemaError(f"file {name!r}: {error}") from None


def _batches(file: parquet.ParquetFile, name: str) -> Iterator[pa.RecordBatch]:
    batches = file.iter_batches(BATCH_ROWS)
    while True:
        with _damage(name):
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)  # foreign bytes: text may not be UTF-8
        yield batch


@contextmanager
def _open(open_file: OpenFile, compression: Compression | None, name: str) -> Iterator[parquet.ParquetFile]:
    with open_seekable(open_file, compression, name) as source:
        with _damage(name):
            file = parquet.ParquetFile(
                source,
                pre_buffer=False,
                buffer_size=_BUFFER_BYTES,
                page_checksum_verification=True,
                coerce_int96_timestamp_unit="us",
            )
        yield file


@contextmanager
def _damage(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the file could not be read: nothing is known of its content
        raise InputError(f"file {name!r} is not a readable Parquet file: {error}") from error
