"""Files as streams of plain bytes, whatever they are compressed with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import BinaryIO, Literal, Protocol, TypeAlias

import pyarrow as pa

from dolmen.errors import InputError

Compression = Literal["gzip", "zstd"]
OpenFile: TypeAlias = Callable[[], BinaryIO]

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PAR1": "Parquet", b"PK\x03\x04": "zip"}
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_COPIED_BYTES = 1 << 20


class ByteStream(Protocol):
    """What the text formats read: a file's plain bytes, from its beginning."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, up to ``size``; empty only at the end."""


@contextmanager
def open_text(open_file: OpenFile, compression: Compression | None, name: str) -> Iterator[ByteStream]:
    """Opens a text file for reading from its beginning; closes it in the end.

    Several gzip members or Zstandard frames one after the other are one file, as their command-line tools see it.

    Raises:
        InputError: (also from ``read``) the compressed data is damaged, ends early or is followed by something
            else; or the content is plainly of another kind than the name says.
    """
    with open_file() as file:
        yield _Text(_Decompressed(file, compression, name) if compression else file, name)


@contextmanager
def open_seekable(open_file: OpenFile, compression: Compression | None, name: str) -> Iterator[BinaryIO]:
    """Opens a file for reads anywhere in it; a compressed one is unpacked into a temporary file.

    Raises:
        InputError: the compressed data is damaged, ends early or is followed by something else.
    """
    with open_file() as file:
        if compression is None:
            yield file
            return
        with TemporaryFile() as plain:
            stream = _Decompressed(file, compression, name)
            while data := stream.read(_COPIED_BYTES):
                plain.write(data)
            plain.seek(0)
            yield plain


class _Decompressed:
    def __init__(self, file: BinaryIO, compression: Compression, name: str) -> None:
        self._compression, self._name = compression, name
        self._stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression)

    def read(self, size: int, /) -> bytes:
        try:
            data: bytes = self._stream.read(size)
        except OSError as error:
            if error.errno is not None:
                raise  # the file itself could not be read: nothing is known of its content
            raise InputError(self._damage(error)) from error
        return data

    def _damage(self, error: OSError) -> str:
        if "Truncated" in str(error):
            return f"file {self._name!r} is truncated: its {self._compression} data ends early; upload it again"
        return f"file {self._name!r} is damaged, or not (only) {self._compression} data: {error}"


class _Text:
    def __init__(self, stream: ByteStream, name: str) -> None:
        self._stream, self._name, self._at_start = stream, name, True

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        if self._at_start:
            self._at_start = False
            self._check_kind(data)
        return data

    def _check_kind(self, start: bytes) -> None:
        for magic, kind in _MAGIC.items():
            if start.startswith(magic):
                raise InputError(f"file {self._name!r} holds {kind} data, not what its name says: rename it")
        if start.startswith(_UTF16_MARKS):
            raise InputError(f"file {self._name!r} is encoded in UTF-16: save it as UTF-8")
