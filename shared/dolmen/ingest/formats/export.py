"""Rows written as files and streams that ``formats.read`` reads back equal: each value of each type, or a refusal.

A column that a format cannot hold is refused before anything is written; a value that it cannot (a time of the year
12000 in text) when it comes, and then no file is left behind: a file gets its name when it is whole. Rows stream
through in bounded memory.

==========  ==========================================================================================================
kind        refused
==========  ==========================================================================================================
parquet     -
arrow       -
csv, tsv    maps; times outside of the years 1 to 9999
jsonl       maps; times outside of the years 1 to 9999
avro        all: it is read only
==========  ==========================================================================================================
"""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.errors import InputError, SchemaError
from dolmen.format.ingest_properties import WRITTEN, format_names
from dolmen.ingest.formats.columnar.typed_batches import stored_schema
from dolmen.ingest.formats.source_file import Format
from dolmen.ingest.formats.text.text_export import Unsayable, csv_header, csv_lines, has_text, json_lines
from dolmen.rows.write.conform import conform
from dolmen.rows.write.parquet_object import fill_hidden_of_batch

_HOLDS_ALL = "parquet and arrow hold it"


def export_file(rows: pa.RecordBatchReader, file: Path, format: Format) -> int:
    """Writes rows to a file, which gets its name when it is whole; whatever had the name is replaced.

    Args:
        format: of its content, and how it is compressed as a whole.

    Returns:
        How many rows there were.

    Raises:
        SchemaError: the format does not hold a column; nothing was written.
        InputError: it does not hold a value; no file is left behind.
        OSError: the file cannot be written.
    """
    rows = to_exportable(rows, format)
    with open_whole(file) as target:
        return _write(rows, target, format)


@contextmanager
def open_whole(file: Path) -> Iterator[BinaryIO]:
    """Opens a file to be written, which gets its name when the block ends without an error. A device keeps its own.

    Raises:
        InputError: it is a directory, or there is none to write it into.
        OSError: the file cannot be written.
    """
    check_target(file)
    if file.exists() and not file.is_file():  # a device or a pipe: it keeps its name
        with file.open("wb") as target:
            yield target
        return
    file = Path(os.path.realpath(file))
    partial = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}.partial")  # a name that no pipeline takes for a drop
    try:
        with partial.open("xb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        partial.replace(file)
    except OSError as error:
        if error.filename == str(partial):
            error.filename = str(file)  # the name that people know
        raise
    finally:
        partial.unlink(missing_ok=True)


def check_target(file: Path) -> None:
    """Raises InputError if a file that is to be written is a directory, or if there is none to write it into."""
    if file.is_dir():
        raise InputError(f"{str(file)!r} is a directory: name a file in it")
    file = file if file.exists() else Path(os.path.realpath(file))
    if not file.parent.is_dir():
        raise InputError(f"there is no directory {str(file.parent)!r} to write {file.name!r} into")


def export_stream(rows: pa.RecordBatchReader, target: BinaryIO, format: Format) -> int:
    """Writes rows to a stream; Arrow as an IPC stream. What was written before an error stays there."""
    return _write(to_exportable(rows, format), target, format, pa.ipc.new_stream)


def to_exportable(rows: pa.RecordBatchReader, format: Format) -> pa.RecordBatchReader:
    """The rows, of stored types.

    Raises:
        SchemaError: the format does not hold a column.
    """
    kind, known, names = format.kind, format.known, rows.schema.names
    if not known.is_written:
        raise InputError(f"{kind.capitalize()} is read, but not written: write {format_names(WRITTEN)}")
    if not known.is_text and format.compression is not None:
        raise InputError(f"{kind} compresses its own pages: leave the ending for {format.compression} away")
    for name in names:
        if not name or names.count(name) > 1:
            raise SchemaError(f"{names.count(name)} columns have the name {name!r}: give each one of its own (AS name)")
    schema = stored_schema(rows.schema, f"the {kind} to write")
    if known.is_text:
        for field in schema:
            if not has_text(field.type):
                raise SchemaError(f"column {field.name!r} holds maps, which {kind} does not: {_HOLDS_ALL}")
    return pa.RecordBatchReader.from_batches(schema, conform(rows, schema))


def _write(
    rows: pa.RecordBatchReader, target: BinaryIO, format: Format, new_arrow: Callable[..., Any] = pa.ipc.new_file
) -> int:
    if format.kind == "parquet":
        filled = pa.RecordBatchReader.from_batches(rows.schema, map(fill_hidden_of_batch, rows))
        return _count(filled, pq.ParquetWriter(target, rows.schema, compression="zstd"))
    if format.kind == "arrow":
        return _count(rows, new_arrow(target, rows.schema))
    with _compress(target, format) as stream:
        delimiter = format.known.delimiter
        if delimiter is None:
            return _write_text(rows, stream, json_lines, format)
        stream.write(csv_header(rows.schema.names, delimiter))
        return _write_text(rows, stream, lambda batch: csv_lines(batch, delimiter), format)


def _count(rows: pa.RecordBatchReader, writer: Any) -> int:
    count = 0
    with writer:
        for batch in rows:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _write_text(
    rows: pa.RecordBatchReader, stream: BinaryIO, say: Callable[[pa.RecordBatch], pa.Buffer], format: Format
) -> int:
    count = 0
    for batch in rows:
        try:
            stream.write(say(batch))
        except Unsayable as unsayable:
            row = count + unsayable.place + 1
            raise InputError(
                f"row {row}, {unsayable.reason}: {format.kind} has no words for it, {_HOLDS_ALL}"
            ) from None
        except pa.ArrowInvalid as error:
            raise InputError(
                f"rows from {count + 1} on cannot be written as {format.kind}, {_HOLDS_ALL}: {error}"
            ) from error
        count += batch.num_rows
    return count


@contextmanager
def _compress(target: BinaryIO, format: Format) -> Iterator[Any]:
    if format.compression is None:
        yield target
        return
    with pa.CompressedOutputStream(pa.PythonFile(_LeftOpen(target), "w"), format.compression) as stream:
        yield stream


class _LeftOpen(io.RawIOBase):
    """A stream that stays open when what writes to it is closed."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return self._stream.write(data)
