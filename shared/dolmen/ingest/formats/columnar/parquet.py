"""Parquet files: types as they are, or cast without loss to the declared ones; read a few pages at a time.

INT96 timestamps (Impala, old Spark) are read as microseconds. A compressed file (which Parquet needs not be: its pages
are) is unpacked into a temporary file first, since its footer comes last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import parquet

from dolmen.errors import InputError
from dolmen.ingest.formats.columnar.typed import check_schema, common_schema, conform_file, stored_schema
from dolmen.ingest.formats.compression import Compression, OpenFile, open_seekable
from dolmen.ingest.formats.options import OnBadRow, ReadOptions

BATCH_ROWS = 65_536
_BUFFER_BYTES = 1 << 20


def infer(open_file: OpenFile, compression: Compression | None, name: str, options: ReadOptions) -> pa.Schema:
    """The stored types of the file's columns, from its footer alone.

    Raises:
        SchemaError: a column cannot be stored.
        InputError: the file is damaged or not Parquet.
    """
    with _open(open_file, compression, name, options) as file, _damage(name):
        return stored_schema(check_schema(file.schema_arrow, name), name)


def read(
    open_file: OpenFile,
    compression: Compression | None,
    schema: pa.Schema,
    name: str,
    options: ReadOptions,
    on_bad_row: OnBadRow | None = None,
) -> Iterator[pa.RecordBatch]:
    """The file's rows as batches of ``schema``.

    Args:
        on_bad_row: is told of each row that does not fit, instead of an error.

    Raises:
        SchemaError: the columns do not match, or are of another kind.
        RowError: a value does not fit its column.
        InputError: the file is damaged or not Parquet.
    """
    with _open(open_file, compression, name, options) as file:
        with _damage(name):
            source = check_schema(file.schema_arrow, name)
        columns = None
        if options.ignore_extra:
            columns = common_schema(source, schema, name).names
            source = pa.schema([field for field in source if field.name in columns])
        yield from conform_file(_batches(file, columns, name), source, schema, name, options, on_bad_row)


def _batches(file: parquet.ParquetFile, columns: list[str] | None, name: str) -> Iterator[pa.RecordBatch]:
    batches = file.iter_batches(BATCH_ROWS, columns=columns)
    while True:
        with _damage(name):
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate()  # its values are looked at when they are made to fit, which names their rows
        yield batch


@contextmanager
def _open(
    open_file: OpenFile, compression: Compression | None, name: str, options: ReadOptions
) -> Iterator[parquet.ParquetFile]:
    with open_seekable(open_file, compression, name, options.max_temporary_bytes) as source:
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
