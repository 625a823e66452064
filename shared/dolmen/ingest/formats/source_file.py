"""A file of rows: how it is opened and read, its limits, and how its bad rows are reported."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Literal, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from dolmen.base.runtime import shared_runtime
from dolmen.base.temporary_files import explaining_full_disk
from dolmen.base.units import GIB, MIB
from dolmen.errors import InputError, RowError
from dolmen.format.dialect import STRICT, Dialect
from dolmen.format.ingest_properties import (
    FORMATS,
    INGEST_PROPERTIES,
    MAX_COLUMNS,
    Compression,
    FileFormat,
    FileKind,
    IngestSettings,
)
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import value_of
from dolmen.format.schema import Default, Schema
from dolmen.ingest.formats.text_blocks import TextStream
from dolmen.ingest.formats.zip_archive import ZipArchive, too_many_bytes
from dolmen.rows.write.conform import RowCheck, row_checks

CLOSED = {b"dolmen": b"closed"}
"""Metadata of a field whose structs must not have extra fields, whatever the options say."""
VALUE_COLUMN = "value"  # the only column of a file whose rows are no objects or records
MAX_BYTES = 64 * GIB
MAX_TEMPORARY_BYTES = 8 * GIB
BLOCK_BYTES = 2 * MIB
"""How much text is parsed at once: small enough for many columns of strings in bounded memory, large enough that a
block's fixed costs (about a millisecond) vanish."""
_MARK = "\ue000"  # begins the name of a field that marks another one; no column is likely to have it
_ROWS_AFTER_BAD = 64
_COPIED_BYTES = MIB


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading a file. A format ignores those that do not concern it."""

    dialect: Dialect = STRICT  # how values are written
    # ``ignore``: columns, keys and struct fields that the table does not have are skipped
    extra: Literal["reject", "ignore"] = "reject"
    # ``skip``: lines of JSON with ``null`` are skipped like blank ones
    null_lines: Literal["reject", "skip"] = "reject"
    max_bytes: int = MAX_BYTES  # the most bytes of one unpacked file: a small file can unpack to terabytes
    # the same for compressed Parquet and Arrow files, which are unpacked into a temporary file, so it depends on the
    # disk
    max_temporary_bytes: int = MAX_TEMPORARY_BYTES
    max_columns: int = MAX_COLUMNS  # the most columns of a file, with the fields in columns
    # JSON values for columns that a file lacks, by name; NULL by default. In JSON lines each row may lack other keys,
    # so a missing key is NULL there.
    defaults: Mapping[str, Default] = field(default_factory=dict, hash=False)
    checks: tuple[RowCheck, ...] = field(default=(), hash=False)  # the table's checks, with which rows are compared
    # texts of CSV and TSV that are not values. Where a column with a mark (``mark_name``) in the schema has one, the
    # column is NULL and its mark is not.
    placeholders: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # names of columns whose values are in the names of the file's folders

    @classmethod
    def of(cls, settings: IngestSettings, schema: Schema | None = None) -> ReadOptions:
        """The options by a table's properties, with the defaults of ``schema`` for columns that a file lacks, and its
        checks."""
        return cls(
            dialect=settings.dialect,
            max_columns=settings.max_columns,
            extra="ignore" if settings.new_columns == "ignore" else "reject",
            defaults={} if schema is None else schema.write_defaults,
            checks=() if schema is None else row_checks(schema),
            folders=settings.hive,
        )

    @classmethod
    def of_table(cls, entry: TableEntry, dialect: Dialect) -> ReadOptions:
        """The options for a file in this dialect whose rows are added to a table, whatever its other settings."""
        most = value_of(INGEST_PROPERTIES["ingest_max_columns"], entry.properties)
        schema = entry.schema.at(shared_runtime().clock_us)  # of a command, which reads one file after the other
        return cls(dialect, defaults=schema.write_defaults, checks=row_checks(schema), max_columns=most)

    @property
    def ignore_extra(self) -> bool:
        """Whether columns and fields that the table does not have are skipped."""
        return self.extra == "ignore"


def mark_name(column: str) -> str:
    """The name of the field that marks where a column has a placeholder."""
    return f"{_MARK}{column}"


def is_mark(name: str) -> bool:
    return name.startswith(_MARK)


def is_closed(field: pa.Field) -> bool:
    return bool(field.metadata) and CLOSED.items() <= field.metadata.items()


class ByteStream(Protocol):
    """A file's uncompressed bytes, from its beginning."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, up to ``size``; empty only at the end."""


def read_up_to(stream: ByteStream, size: int) -> bytes:
    """Reads ``size`` bytes, or fewer at the end."""
    parts = list[bytes]()
    while size > 0 and (data := stream.read(size)):
        parts.append(data)
        size -= len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def _unpacked(file: BinaryIO, compression: Compression, name: str, max_bytes: int) -> Iterator[ByteStream]:
    """The bytes that a compressed file unpacks to, or those of the only member of a zip archive."""
    if compression != "zip":
        yield UnpackedFile(file, compression, name, max_bytes)
        return
    archive = ZipArchive(file, name, max_bytes)
    with archive.open(archive.only_member()) as member:
        yield member


class UnpackedFile:
    """The bytes that a compressed file unpacks to, at most ``max_bytes``."""

    def __init__(self, file: BinaryIO, compression: Compression, name: str, max_bytes: int) -> None:
        self._compression, self._name = compression, name
        self._max_bytes, self._remaining = max_bytes, max_bytes
        self._stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression)

    def read(self, size: int, /) -> bytes:
        """The next bytes. Raises InputError for damaged data, or too much of it."""
        try:
            data: bytes = self._stream.read(size)
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the file itself could not be read
            problem = f"is damaged, or not (only) {self._compression} data: {error}"
            if "Truncated" in str(error):
                problem = f"is truncated: its {self._compression} data ends early; upload it again"
            raise InputError(f"file {self._name!r} {problem}") from error
        self._remaining -= len(data)
        if self._remaining < 0:
            raise too_many_bytes(self._name, self._max_bytes)
        return data


def _unpack(stream: ByteStream, target: BinaryIO, name: str) -> None:
    """Copies a stream to a temporary file, and rewinds it."""
    with explaining_full_disk(f"file {name!r} unpacks to more", "drop it uncompressed, or in parts"):
        while data := stream.read(_COPIED_BYTES):
            target.write(data)
        target.seek(0)


class Format(Struct, frozen=True):
    """The format of a file's content. ``compression`` is None for a plain file."""

    kind: FileKind
    compression: Compression | None = None

    @property
    def traits(self) -> FileFormat:
        """The traits of all files of this kind."""
        return FORMATS[self.kind]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that rows are read from."""

    # opens the file from its beginning, each time it is called; the caller closes the result
    open: Callable[[], BinaryIO]
    format: Format
    name: str  # what errors call the file
    options: ReadOptions = field(default_factory=ReadOptions)
    block_bytes: int = BLOCK_BYTES  # how much text is parsed at once; rows and errors do not depend on it

    @property
    def delimiter(self) -> str:
        """The delimiter of the options, or else of the format."""
        delimiter = self.options.dialect.delimiter or self.format.traits.delimiter
        assert delimiter is not None, self.format
        return delimiter

    @contextmanager
    def stream(self) -> Iterator[ByteStream]:
        """Opens the file for reading its uncompressed bytes from the beginning.

        Consecutive gzip members, Zstandard frames or bzip2 streams are one file, as for their command-line tools; of a
        zip archive, its only member is.
        Raises InputError, also from ``read``, for damaged data or more than ``options.max_bytes``.
        """
        with self.open() as file:
            if self.format.compression is None:
                yield file
                return
            with _unpacked(file, self.format.compression, self.name, self.options.max_bytes) as stream:
                yield stream

    @contextmanager
    def text(self) -> Iterator[ByteStream]:
        """Opens the file as ``stream`` does; its text is UTF-8, whatever its encoding (see ``text_blocks``).

        Raises InputError also if the content is plainly not text, or not of the encoding.
        """
        with self.stream() as stream:
            yield TextStream(stream.read, self.name, self.options.dialect.encoding)

    @contextmanager
    def seekable(self) -> Iterator[BinaryIO]:
        """Opens the file for reads anywhere in it; a compressed one is unpacked into a temporary file."""
        with self.open() as file:
            compression = self.format.compression
            if compression is None:
                yield file
                return
            with TemporaryFile() as plain:
                with _unpacked(file, compression, self.name, self.options.max_temporary_bytes) as stream:
                    _unpack(stream, plain, self.name)
                yield plain

    @contextmanager
    def report_damage(self, kind: str, *more: type[Exception]) -> Iterator[None]:
        """Turns pyarrow's exceptions for damaged bytes, and the exceptions ``more``, into an InputError."""
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError, *more) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the file itself could not be read
            raise InputError(f"file {self.name!r} is not a readable {kind} file: {error}") from error


class BadRow(Struct, frozen=True):
    """A row that cannot be read, or does not fit the table."""

    reason: str  # what is wrong, without the position
    row: int | None  # its 1-based number among the rows of the file, bad ones included
    line: int | None  # the 1-based line of the file with the problem; None if the format has no lines
    column: str | None  # the column with the problem, if it is one column
    # the row's bytes in the file, without its line end, as UTF-8 if the file has another encoding; for a file that is
    # not text, the row as a JSON object, or None if JSON cannot hold it
    text: bytes | None


OnBadRow: TypeAlias = Callable[[BadRow], None]
"""Called with each bad row, in the order of the file. If it raises, reading ends with its exception."""


def good_rows(
    count: int,
    first_row: int,
    convert: Callable[[int, int], pa.RecordBatch],
    text: Callable[[int], bytes | None],
    on_bad_row: OnBadRow,
) -> list[pa.RecordBatch]:
    """Returns the good rows of a block in order, and reports the bad ones. Each row is converted a few times at most.

    Args:
        convert: converts the rows from one index up to another. Raises RowError for the first bad row, with its
            number in the file.
        text: returns one row, for ``BadRow.text``.
    """
    good: list[pa.RecordBatch] = []
    start, step = 0, count
    while start < count:
        stop = min(start + step, count)
        try:
            good.append(convert(start, stop))
            start, step = stop, 2 * step
            continue
        except RowError as error:
            problem = error
        while True:
            assert problem.row is not None
            index = problem.row - first_row
            assert start <= index < stop, (start, index, stop)
            try:
                if index > start:
                    good.append(convert(start, index))
                break
            except RowError as error:  # a problem of another kind, in a row above
                problem = error
        on_bad_row(BadRow(problem.reason, problem.row, problem.line, problem.column, text(index)))
        start, step = index + 1, _ROWS_AFTER_BAD
    return good


class RowNumbers:
    """Numbers the good rows of a file, from 1, and passes each bad row to ``on_bad_row``; bad rows count, too."""

    def __init__(self, on_bad_row: OnBadRow | None) -> None:
        self._on_bad_row = on_bad_row
        self._next = 1
        self._skipped: set[int] = set()

    @property
    def for_reader(self) -> OnBadRow | None:
        """The function that the reader calls with each bad row."""
        return None if self._on_bad_row is None else self.add

    def add(self, bad: BadRow) -> None:
        """Adds a row that could not be read."""
        assert self._on_bad_row is not None
        if bad.row is not None:
            self._skipped.add(bad.row)
        self._on_bad_row(bad)

    def next(self, count: int) -> npt.NDArray[np.int64]:
        """The numbers in the file of the next ``count`` rows that could be read."""
        numbers = np.arange(self._next, self._next + count + len(self._skipped))
        if self._skipped:
            numbers = numbers[~np.isin(numbers, list(self._skipped))]
        numbers = numbers[:count]
        if count:
            self._next = int(numbers[-1]) + 1
            self._skipped = {row for row in self._skipped if row >= self._next}
        return numbers


class RewindableFile:
    """An open file that is read from where it is now each time that ``reopen`` is called, and stays open: so nothing is
    fetched twice that is still in its buffers."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._start = file, file.tell()

    def reopen(self) -> BinaryIO:
        self._file.seek(self._start)
        return cast("BinaryIO", _KeptOpen(self._file))  # all that readers use


class _KeptOpen(io.RawIOBase):
    """A file that is not closed with its reader."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
