"""Arrow IPC: streams and files (also Feather version 2), told apart by their first bytes; read batch by batch.

A file is read by its footer, so a compressed one is unpacked into a temporary file first. A stream must end with its
end mark: without it, rows may be missing. A record batch of more than 256 MiB is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from typing import BinaryIO, cast

import pyarrow as pa
from pyarrow import ipc

from dolmen.base.units import MIB
from dolmen.errors import InputError
from dolmen.ingest.formats.source_file import ByteStream, OnBadRow, SourceFile, read_up_to
from dolmen.ingest.formats.text_blocks import ARROW_STREAM
from dolmen.ingest.formats.typed_batches import check_schema, conform_file

MAX_MESSAGE_BYTES = 256 * MIB

_MAGIC, _OLD_FEATHER = b"ARROW1", b"FEA1"
_FIRST_MESSAGE = 8
_MOST_PADDING = 72  # bytes between messages: these begin at multiples of up to 64, and the end mark of a stream has 8


def own_schema(source: SourceFile) -> pa.Schema:
    with _open(source) as (schema, _):
        return schema


def read(source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None = None) -> Iterator[pa.RecordBatch]:
    with _open(source) as (own, batches):
        yield from conform_file(_check(batches, source), own, source, schema, on_bad_row)


@contextmanager
def _open(source: SourceFile) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    with ExitStack() as stack:
        stream = stack.enter_context(source.stream())
        start = read_up_to(stream, len(_MAGIC))
        if start.startswith(_OLD_FEATHER):
            raise InputError(
                f"file {source.name!r} is Feather version 1, which is not read: write it as version 2 or Parquet "
                "(pyarrow.feather.write_feather(pyarrow.feather.read_table(FILE), NEW_FILE))"
            )
        if start != _MAGIC:
            yield _open_stream(_Stream(stream, start, source.name), source)
            return
        plain = source.format.compression is None
        yield _open_whole(cast(BinaryIO, stream) if plain else stack.enter_context(source.seekable()), source)


def _open_stream(stream: _Stream, source: SourceFile) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    with _report_damage(source):
        reader = ipc.open_stream(pa.PythonFile(stream, mode="r"))

    def batches() -> Iterator[pa.RecordBatch]:
        yield from reader
        stream.check_end()

    return check_schema(reader.schema, source.name, source.options.max_columns), batches()


def _open_whole(file: BinaryIO, source: SourceFile) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    whole = _ArrowFile(file, source.name)
    with _report_damage(source):
        end_at = file.seek(0, os.SEEK_END) - len(_MAGIC) - 4
        prefix = end = b""
        if end_at >= _FIRST_MESSAGE:
            file.seek(_FIRST_MESSAGE)
            prefix = read_up_to(file, 8)
            file.seek(end_at)
            end = read_up_to(file, len(_MAGIC) + 4)
        if not end.endswith(_MAGIC):
            raise pa.ArrowInvalid("it is truncated: its footer is not whole; upload it again")
        framed = prefix.startswith(ARROW_STREAM)  # Polars does not frame it; its schema is smaller than the footer
        schema = int.from_bytes(prefix[4:], "little") + 8 if framed else int.from_bytes(end[:4], "little")
        reader = ipc.open_file(pa.PythonFile(whole, mode="r"))

    def batches() -> Iterator[pa.RecordBatch]:
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)
        whole.check_all_read(_FIRST_MESSAGE + schema, reader.num_record_batches)

    return check_schema(reader.schema, source.name, source.options.max_columns), batches()


def _report_damage(source: SourceFile) -> AbstractContextManager[None]:
    return source.report_damage("Arrow", MemoryError)


def _check(batches: Iterator[pa.RecordBatch], source: SourceFile) -> Iterator[pa.RecordBatch]:
    for number in count():
        with _report_damage(source):
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate()
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.validate(full=True)  # foreign bytes: offsets may lie outside, text may not be UTF-8
            except pa.ArrowException as error:
                where = f"record batch {number}, column {name!r}"
                raise InputError(f"file {source.name!r} is not a readable Arrow file: {where}: {error}") from error
        yield batch


class _ArrowFile:
    """A file as pyarrow reads it, in pieces that fit into memory.

    pyarrow reads only the record batches in the footer; the ranges that it did not read show if there are others.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        self._read: list[tuple[int, int]] = []
        self.closed = False
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int, /) -> bytes:
        _check_size(size, self._name)
        start = self._file.tell()
        data = read_up_to(self._file, size)
        self._read.append((start, start + len(data)))
        return data

    def check_all_read(self, start: int, batches: int) -> None:
        """Raises InputError if bytes from ``start`` on, after the schema, belong to no message."""
        end = start
        for first, last in sorted(self._read):
            if first - end > _MOST_PADDING and (batches or self._has_batches(end, first)):
                raise InputError(
                    f"file {self._name!r} is damaged: its footer lists {batches:,} record "
                    f"batch{'es' if batches != 1 else ''}, and the bytes from {end:,} to {first:,} belong to none: "
                    "write it again"
                )
            end = max(end, last)

    def _has_batches(self, start: int, end: int) -> bool:
        """Whether the bytes hold more than dictionaries, which are not read for a file without record batches."""
        self._file.seek(start)
        _check_size(end - start, self._name)
        data = read_up_to(self._file, end - start)
        messages = ipc.MessageReader.open_stream(data[max(0, data.find(ARROW_STREAM)) :])
        return any(message.type != "dictionary" for message in messages)


class _Stream:
    """A stream as pyarrow reads it; its first bytes, ``start``, are already read."""

    def __init__(self, stream: ByteStream, start: bytes, name: str) -> None:
        self._stream, self._ahead, self._name = stream, start, name
        self._ended = self.closed = False

    def read(self, size: int, /) -> bytes:
        _check_size(size, self._name)
        ahead, self._ahead = self._ahead[:size], self._ahead[size:]
        data = ahead + read_up_to(self._stream, size - len(ahead))
        self._ended = len(data) < size
        return data

    def check_end(self) -> None:
        """Raises InputError unless the stream ended with its end mark, and nothing follows."""
        if self._ended:
            raise InputError(f"file {self._name!r} is truncated, or its writer was never closed: it has no end mark")
        if self._stream.read(1):
            raise InputError(f"file {self._name!r} is not (only) an Arrow stream: something follows its end mark")


def _check_size(size: int, name: str) -> None:
    if size > MAX_MESSAGE_BYTES:
        raise InputError(
            f"file {name!r} has a record batch of {size:,} bytes, more than {MAX_MESSAGE_BYTES:,}: "
            "write it in smaller ones, such as of 65,536 rows"
        )
