"""Arrow IPC: streams, and files (Feather version 2 too), read batch by batch from beginning to end.

A file is a stream with a magic number before it and a footer behind it, so neither needs to be seeked in. Both must
be whole: a stream that stops without its end mark, as a writer leaves it that was never closed, is refused, for it
may lack rows. So is a record batch of more than 256 MiB: smaller ones are read in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import ipc

from dolmen.errors import InputError
from dolmen.ingest.columnar import checked_schema, conformed, stored_schema
from dolmen.ingest.compression import ByteStream, Compression, OpenFile, open_stream
from dolmen.ingest.options import OnBadRow, ReadOptions

MAX_MESSAGE_BYTES = 256 << 20

_MAGIC, _PADDED_MAGIC_BYTES = b"ARROW1", 8
_OLD_FEATHER = b"FEA1"


def infer(open_file: OpenFile, compression: Compression | None, name: str, options: ReadOptions) -> pa.Schema:
    """The stored types of the columns, from the beginning of the file alone.

    Raises:
        SchemaError: a column cannot be stored.
        InputError: the file is damaged or not Arrow IPC.
    """
    with _open(open_file, compression, name, options) as (reader, _):
        return stored_schema(reader.schema, name)


def read(
    open_file: OpenFile,
    compression: Compression | None,
    schema: pa.Schema,
    name: str,
    options: ReadOptions,
    on_bad_row: OnBadRow | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows as batches of ``schema``.

    Args:
        on_bad_row: is told of each row that does not fit, instead of an error.

    Raises:
        SchemaError: the columns do not match, or are of another kind.
        RowError: a value does not fit its column.
        InputError: the file is damaged, not whole, or not Arrow IPC.
    """
    with _open(open_file, compression, name, options) as (reader, source):
        yield from conformed(_batches(reader, source, name), reader.schema, schema, name, options, on_bad_row)


def _batches(reader: pa.RecordBatchReader, source: _Source, name: str) -> Iterator[pa.RecordBatch]:
    while True:
        with _damage(name):
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                break
            batch.validate(full=True)  # foreign bytes: offsets may lie outside, text may not be UTF-8
        yield batch
    source.check_end()


class _Source:
    """The bytes of a stream, or of a file as a stream."""

    def __init__(self, stream: ByteStream, name: str) -> None:
        self._stream, self._name = stream, name
        self._ended = False
        start = self._exactly(_PADDED_MAGIC_BYTES)
        self._is_file = start.startswith(_MAGIC)
        if start.startswith(_OLD_FEATHER):
            raise InputError(f"file {name!r} is Feather version 1: write it as version 2, or as Parquet")
        self._ahead = b"" if self._is_file else start
        self.closed = False

    def read(self, size: int, /) -> bytes:
        """The next bytes, as many as asked for unless the file ends."""
        if size > MAX_MESSAGE_BYTES:
            raise InputError(
                f"file {self._name!r} has a record batch of {size:,} bytes, more than {MAX_MESSAGE_BYTES:,}: "
                "write it in smaller ones, such as of 65,536 rows"
            )
        ahead, self._ahead = self._ahead[:size], self._ahead[size:]
        data = ahead + self._exactly(size - len(ahead))
        self._ended = len(data) < size
        return data

    def check_end(self) -> None:
        """Raises InputError unless the stream ended by its mark, and a file by its footer."""
        if self._ended:
            raise InputError(f"file {self._name!r} is truncated, or its writer was never closed: it has no end mark")
        if not self._is_file:
            return
        tail = b""
        while data := self._stream.read(1 << 20):
            tail = (tail + data)[-len(_MAGIC) :]
        if tail != _MAGIC:
            raise InputError(f"file {self._name!r} is truncated: its footer is not whole; upload it again")

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size and (data := self._stream.read(size)):
            parts.append(data)
            size -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def _open(
    open_file: OpenFile, compression: Compression | None, name: str, options: ReadOptions
) -> Iterator[tuple[pa.RecordBatchReader, _Source]]:
    with open_stream(open_file, compression, name, options.max_bytes) as stream:
        source = _Source(stream, name)
        with _damage(name):
            reader = ipc.open_stream(pa.PythonFile(source, mode="r"))
            checked_schema(reader.schema, name)
        yield reader, source


@contextmanager
def _damage(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the file could not be read: nothing is known of its content
        raise InputError(f"file {name!r} is not a readable Arrow file: {error}") from error
