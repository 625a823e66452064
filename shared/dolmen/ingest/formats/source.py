"""A file that rows are read from, as one value: how it is opened, what it holds, and what it may hold at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import BinaryIO, TypeAlias

import pyarrow as pa

from dolmen.base.units import MIB
from dolmen.errors import InputError
from dolmen.format.file_formats import FORMATS, Compression, FileFormat, FileKind
from dolmen.ingest.formats.compression import ByteStream, Decompressed, TextStream, unpack
from dolmen.ingest.formats.options import ReadOptions

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
        open: opens the file from its beginning, each time it is called; whoever calls closes what it returns.
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
