"""A file that rows are read from, as one value: how it is opened, what it holds, and what it may hold at most.

Files as streams of plain bytes, whatever they are compressed with.

The reader of a compressed file limits the bytes that it may unpack to: a megabyte of gzip can hold a gigabyte,
and of bzip2 a terabyte. What is read as a stream takes no room for that, but time; what is unpacked into a temporary
file takes room on its disk.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryFile, gettempdir
from typing import BinaryIO, Protocol, TypeAlias

import pyarrow as pa

from dolmen.base.units import MIB
from dolmen.errors import InputError, LimitError
from dolmen.format.ingest_properties import FORMATS, Compression, FileFormat, FileKind
from dolmen.ingest.formats.reader_options import ReadOptions

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh91AY&SY": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"Obj\x01": "Avro",
}


_MAGIC_BYTES = max(map(len, _MAGIC))


_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


_COPIED_BYTES = MIB


class ByteStream(Protocol):
    """A file's uncompressed bytes, from its beginning."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, up to ``size``; empty only at the end."""


def unpack(stream: Decompressed, target: BinaryIO, name: str) -> None:
    """Writes all of a stream to a temporary file, and goes to its beginning.

    Raises:
        InputError: the compressed data is damaged, ends early, is followed by something else, or unpacks to more than
            it may, or than there is room for.
    """
    with _no_room(name):
        while data := stream.read(_COPIED_BYTES):
            target.write(data)
        target.seek(0)


@contextmanager
def _no_room(name: str) -> Iterator[None]:
    """A file that the disk for temporary files cannot hold would not fit the next time either."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        raise LimitError(
            f"file {name!r} unpacks to more than there is room for in {gettempdir()}: drop it uncompressed, or in parts"
        ) from error


class Decompressed:
    """The bytes that a compressed file unpacks to.

    Args:
        name: what errors call the file.
        max_bytes: the most bytes that it may unpack to.
    """

    def __init__(self, file: BinaryIO, compression: Compression, name: str, max_bytes: int) -> None:
        self._compression, self._name = compression, name
        self._max_bytes, self._left = max_bytes, max_bytes
        self._stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression)

    def read(self, size: int, /) -> bytes:
        """The next bytes. Raises InputError for damaged data, or too much of it."""
        try:
            data: bytes = self._stream.read(size)
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the file itself could not be read: nothing is known of its content
            raise InputError(self._damage(error)) from error
        self._left -= len(data)
        if self._left < 0:
            raise LimitError(
                f"file {self._name!r} unpacks to more than the {self._max_bytes:,} bytes that one file may hold: "
                "split it into smaller files"
            )
        return data

    def _damage(self, error: Exception) -> str:
        if "Truncated" in str(error):
            return f"file {self._name!r} is truncated: its {self._compression} data ends early; upload it again"
        return f"file {self._name!r} is damaged, or not (only) {self._compression} data: {error}"


class TextStream:
    """The bytes of a text file; the first of them are checked to be text."""

    def __init__(self, stream: ByteStream, name: str) -> None:
        self._stream, self._name = stream, name
        self._ahead: bytes | None = None

    def read(self, size: int, /) -> bytes:
        """The next bytes. Raises InputError if the content is plainly of another kind."""
        if self._ahead is None:
            self._ahead = self._start(size)
        if not self._ahead:
            return self._stream.read(size)
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data

    def _start(self, size: int) -> bytes:
        data = b""
        while len(data) < _MAGIC_BYTES and (more := self._stream.read(max(size, _MAGIC_BYTES))):
            data += more
        self._check_kind(data)
        return data

    def _check_kind(self, start: bytes) -> None:
        for magic, kind in _MAGIC.items():
            if start.startswith(magic):
                raise InputError(f"file {self._name!r} holds {kind} data, not what its name says: rename it")
        if start.startswith(_UTF16_MARKS):
            raise InputError(f"file {self._name!r} is encoded in UTF-16: save it as UTF-8")


OpenFile: TypeAlias = Callable[[], BinaryIO]


BLOCK_BYTES = 2 * MIB
"""How much text is parsed at once: small enough for many columns of strings in bounded memory, large enough that a
block's fixed costs (about a millisecond) vanish."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a file's content is to be understood. ``compression`` is None for a plain file."""

    kind: FileKind
    compression: Compression | None = None

    @property
    def known(self) -> FileFormat:
        """The entry of its kind in the table of formats."""
        return FORMATS[self.kind]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that rows are read from.

    Args:
        open: opens the file from its beginning, each time it is called; the caller closes the result.
        format: what its content is, and how it is compressed.
        name: what errors call the file.
        options: how to read it, and the limits of what it may unpack to.
        block_bytes: how much text is parsed at once; rows and errors do not depend on it.
    """

    open: OpenFile
    format: Format
    name: str
    options: ReadOptions = field(default_factory=ReadOptions)
    block_bytes: int = BLOCK_BYTES

    @property
    def delimiter(self) -> str:
        """The delimiter of the options, or else that of the format."""
        found = self.options.delimiter or self.format.known.delimiter
        assert found is not None, self.format
        return found

    @contextmanager
    def stream(self) -> Iterator[ByteStream]:
        """Opens the file for reading its uncompressed bytes from the beginning; closes it in the end.

        Several gzip members, Zstandard frames or bzip2 streams one after the other are one file, as their
        command-line tools see it.

        Raises:
            InputError: (also from ``read``) the compressed data is damaged, ends early, is followed by something
                else, or unpacks to more than ``options.max_bytes``.
        """
        with self.open() as file:
            compression = self.format.compression
            yield Decompressed(file, compression, self.name, self.options.max_bytes) if compression else file

    @contextmanager
    def text(self) -> Iterator[ByteStream]:
        """Opens the file as ``stream`` does. Raises InputError also if the content is plainly not text."""
        with self.stream() as stream:
            yield TextStream(stream, self.name)

    @contextmanager
    def seekable(self) -> Iterator[BinaryIO]:
        """Opens the file for reads anywhere in it; a compressed one is unpacked into a temporary file.

        Raises:
            InputError: the compressed data is damaged, ends early, is followed by something else, or unpacks to more
                than ``options.max_temporary_bytes``.
        """
        with self.open() as file:
            compression = self.format.compression
            if compression is None:
                yield file
                return
            with TemporaryFile() as plain:
                unpack(Decompressed(file, compression, self.name, self.options.max_temporary_bytes), plain, self.name)
                yield plain

    @contextmanager
    def raising_damage(self, what: str, *more: type[Exception]) -> Iterator[None]:
        """Turns what pyarrow raises for damaged bytes into an InputError.

        Args:
            what: the kind of file that it was read as.
            more: other exceptions that damaged bytes can bring about.
        """
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError, *more) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the file could not be read: nothing is known of its content
            raise InputError(f"file {self.name!r} is not a readable {what} file: {error}") from error
