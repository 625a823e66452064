"""The bytes of a data file, and the Parquet readers over them: of row groups, and of single pages.

pyarrow reads whole column chunks only. So single pages become a Parquet file of their own, with the schema as pyarrow
writes it for the column's type, and one row group of one chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from dolmen.format.chunk_locations import (
    CODECS,
    PARQUET_MAGIC,
    PHYSICAL_TYPES,
    encode_chunk,
    encode_group,
    file_without_rows,
    thrift_metadata,
)
from dolmen.format.column_history import with_field_ids
from dolmen.format.page_locations import ChunkPages, ChunkRange, States
from dolmen.format.parquet_footer import BINARY, FooterParts, array, binary, integer
from dolmen.format.types import one_array
from dolmen.rows.scan.data_objects import (
    DataFileFooter,
    FetchedFooter,
    FileColumn,
    ParquetReader,
    Range,
    parquet_reader,
)


def is_readable(chunk: pq.ColumnChunkMetaData, column: pq.ColumnSchema, arrow_type: pa.DataType) -> bool:
    """True if pages of a chunk can be read like pages that pyarrow writes now."""
    if column.max_definition_level > 1 or column.max_repetition_level:
        return False
    template = _template(((arrow_type, bool(column.max_definition_level)),)).columns[0]
    is_same = (template.physical_type, template.length) == (column.physical_type, column.length)
    return is_same and chunk.compression in CODECS


class PagesOfColumn(Struct, frozen=True):
    """Verified pages of a column chunk with their headers, in its order, the dictionary page first if there is one."""

    pages: Sequence[pa.Buffer]
    codec: str
    arrow_type: pa.DataType
    nullable: bool
    has_dictionary: bool


def read_pages(columns: Sequence[PagesOfColumn], rows: int) -> list[pa.ChunkedArray]:
    """Decodes pages of columns that have the same count of ``rows``, as one row group: opening a file takes a while."""
    template = _template(tuple((column.arrow_type, column.nullable) for column in columns))
    start, chunks, parts = len(PARQUET_MAGIC), list[bytes](), list[Any]([PARQUET_MAGIC])
    for column, leaf in zip(columns, template.leaves, strict=True):
        first = start + column.pages[0].size if column.has_dictionary else None
        length = sum(page.size for page in column.pages)
        chunks.append(encode_chunk(*leaf, column.codec, start, length, rows, data_page=first))
        parts += column.pages
        start += length
    footer = template.footer.fill(rows, [encode_group(chunks, start - len(PARQUET_MAGIC), rows)])
    parts += [footer, len(footer).to_bytes(4, "little"), PARQUET_MAGIC]
    file = pq.ParquetFile(pa.BufferReader(b"".join(parts)), pre_buffer=False)
    values: list[pa.ChunkedArray] = file.reader.read_row_group(0, use_threads=False).columns
    if wrong := [len(each) for each in values if len(each) != rows]:
        raise pa.ArrowInvalid(f"{wrong[0]} rows were decoded, not {rows}")
    return values


class _Template(Struct, frozen=True):
    """A file without row groups: its footer, columns, and for each the encoded physical type and path."""

    footer: FooterParts
    columns: tuple[pq.ColumnSchema, ...]
    leaves: tuple[tuple[bytes, bytes], ...]


@lru_cache(maxsize=256)
def _template(types: tuple[tuple[pa.DataType, bool], ...]) -> _Template:
    """A file with columns of some types, nullable or not."""
    fields = [pa.field(f"c{number}", arrow_type, nullable) for number, (arrow_type, nullable) in enumerate(types)]
    body = file_without_rows(pa.schema(fields))
    schema = pq.read_metadata(pa.BufferReader(body)).schema
    columns = tuple(schema.column(leaf) for leaf in range(len(types)))
    leaves = tuple(
        (integer(PHYSICAL_TYPES.index(column.physical_type)), array(BINARY, [binary(field.name.encode())]))
        for column, field in zip(columns, fields, strict=True)
    )
    return _Template(FooterParts.parse(thrift_metadata(body)), columns, leaves)


Rows = npt.NDArray[np.int64]


class PickedPages(Struct, frozen=True):
    """Some data pages of a column chunk, by index, and the indexes (``at``) of the requested rows in these pages."""

    chunk: ChunkPages
    pages: Rows
    at: pa.Array

    @property
    def rows(self) -> int:
        firsts = self.chunk.firsts
        return int((firsts[self.pages + 1] - firsts[self.pages]).sum())

    @property
    def indexes(self) -> list[int]:
        """The indexes in the chunk of the dictionary page, if there is one, and of the picked pages."""
        indexes: list[int] = (self.pages + self.chunk.has_dictionary).tolist()
        return [0, *indexes] if self.chunk.has_dictionary else indexes

    def ranges(self) -> list[Range]:
        starts = self.chunk.starts
        return [Range(int(starts[page]), int(starts[page + 1])) for page in self.indexes]


def picked_pages(footer: DataFileFooter, group: int, column: FileColumn, rows: Rows) -> PickedPages | None:
    """The pages of a column with some ascending rows of a row group; None if the whole chunks have to be read."""
    if footer.pages is None or footer.sums is None or len(column.leaves) != 1:
        return None
    leaf, metadata = column.leaves[0], footer.metadata
    chunk = footer.pages.of_chunk(metadata, footer.sums, group, leaf)
    if chunk is None or not is_readable(
        metadata.row_group(group).column(leaf), metadata.schema.column(leaf), column.type
    ):
        return None
    page_of_row = np.searchsorted(chunk.firsts, rows, "right") - 1
    is_first = np.ones(len(rows), np.bool_)
    np.not_equal(page_of_row[1:], page_of_row[:-1], out=is_first[1:])
    pages = page_of_row[is_first]
    lengths = chunk.firsts[pages + 1] - chunk.firsts[pages]
    first_rows = (np.cumsum(lengths) - lengths)[np.cumsum(is_first) - 1]
    return PickedPages(chunk, pages, pa.array(first_rows + rows - chunk.firsts[page_of_row]))


def verify(expected: Mapping[ChunkRange, States], body: bytes) -> None:
    """Compares column chunks of a whole file with their checksums. Raises OSError."""
    view = memoryview(body)
    for (start, length), states in expected.items():
        _verify(states, view[start : start + length], start)


def _verify(states: States, body: Any, start: int) -> None:
    if not states.match(body):
        raise OSError(f"the checksum of the column chunk at byte {start} differs")


class CheckedFile:
    """A file for one reader of pyarrow at a time, which verifies the ``expected`` column chunks."""

    closed = False
    mode = "rb"

    def __init__(self, size: int) -> None:
        self.expected: dict[ChunkRange, States] = {}
        self._size, self._position = size, 0

    def _take(self, start: int, length: int) -> pa.Buffer:
        raise NotImplementedError

    def read_buffer(self, length: int) -> pa.Buffer:
        """The next ``length`` bytes, uncopied. Raises OSError for a column chunk with another checksum."""
        start = self._position
        body = self._take(start, length)
        states = self.expected.pop((start, length), None)
        if states:
            _verify(states, body, start)
        self._position += body.size
        return body

    def read(self, length: int = -1) -> bytes:
        """The next ``length`` bytes, copied."""
        if length < 0:
            length = self._size - self._position
        body: bytes = self.read_buffer(length).to_pybytes()
        return body

    def seek(self, offset: int, whence: int = 0) -> int:
        """Moves to ``offset`` from the start (0), from here (1) or from the end (2)."""
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        """Does nothing: the file is closed with the last reference to it."""


class FetchedFile(CheckedFile):
    """The fetched ranges of an object, ascending, as a file. Reading other bytes raises AssertionError."""

    def __init__(self, parts: Sequence[tuple[int, bytes]], size: int) -> None:
        super().__init__(size)
        self._starts = [start for start, _ in parts]
        self._bodies = [body for _, body in parts]

    def _take(self, start: int, length: int) -> pa.Buffer:
        for part in range(bisect_right(self._starts, start) - 1, -1, -1):  # a part may be inside of the one before it
            offset = start - self._starts[part]
            if offset + length <= len(self._bodies[part]):
                return pa.py_buffer(self._bodies[part]).slice(offset, length)
        raise AssertionError(f"bytes {start} to {start + length} were not fetched")


class LocalFile(CheckedFile):
    """A file of this machine. Raises FileNotFoundError."""

    def __init__(self, path: str) -> None:
        self._file = pa.OSFile(path)
        super().__init__(self._file.size())

    def _take(self, start: int, length: int) -> pa.Buffer:
        self._file.seek(start)
        return self._file.read_buffer(length)


@dataclass
class _Reader:
    """A Parquet reader for one thread at a time, and its file if that file verifies checksums."""

    parquet: ParquetReader
    file: CheckedFile | None = None


class FileBytes:
    """Bytes of one data file, on this machine or fetched, from which several threads decode row groups at once."""

    def __init__(
        self,
        open_bytes: Callable[[], CheckedFile],
        footer: DataFileFooter,
        body: bytes | None = None,
        parquet: ParquetReader | None = None,
    ) -> None:
        self._open_bytes, self._footer, self._body = open_bytes, footer, body
        self._idle = [] if parquet is None else [_Reader(parquet)]  # opening one takes a while

    @classmethod
    def from_path(cls, path: str, footer: DataFileFooter) -> FileBytes:
        return cls(lambda: LocalFile(path), footer)

    @classmethod
    def from_ranges(cls, parts: Sequence[tuple[int, bytes]], size: int, footer: DataFileFooter) -> FileBytes:
        return cls(lambda: FetchedFile(parts, size), footer)

    @classmethod
    def from_body(cls, fetched: FetchedFooter) -> FileBytes:
        body = fetched.body
        assert body is not None
        return cls(lambda: FetchedFile([(0, body)], len(body)), fetched.footer, body, fetched.parquet)

    def read(self, row_group: int, leaves: list[int]) -> pa.Table:
        """Decodes Parquet columns of one row group, after verifying their checksums.

        In files without checksums of column chunks, the pages' are verified, which don't cover page headers. Raises
        OSError or ArrowException if there is no such file, or it has other contents.
        """
        metadata, sums = self._footer.metadata, self._footer.sums
        expected = sums.of_chunks(metadata, row_group, leaves) if sums else {}
        if self._body is not None:
            verify(expected, self._body)
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = self._open()
        if reader.file:
            reader.file.expected = expected
        table = reader.parquet.read_row_group(row_group, column_indices=leaves, use_threads=False)
        if reader.file and reader.file.expected:
            raise AssertionError(f"column chunks at {sorted(reader.file.expected)} were read unchecked")
        rows = metadata.row_group(row_group).num_rows
        if table.num_rows != rows:  # a page with a damaged header may have been skipped
            raise pa.ArrowInvalid(f"{table.num_rows} rows were decoded, not {rows}")
        self._idle.append(reader)
        if self._footer.columns_by:
            some = frozenset(leaves)
            kinds = [each.type_of(some) for each in self._footer.columns.values() if not some.isdisjoint(each.leaves)]
            if all(each.type == kind and kind.num_fields == 0 for each, kind in zip(table.columns, kinds, strict=True)):
                return table
            typed = [
                each if each.type == kind else each.cast(kind) for each, kind in zip(table.columns, kinds, strict=True)
            ]
            columns = [
                pa.chunked_array([with_field_ids(chunk, kind) for chunk in each.chunks], kind)
                for each, kind in zip(typed, kinds, strict=True)
            ]
            return pa.Table.from_arrays(columns, names=table.column_names)
        return table

    def _open(self) -> _Reader:
        file = None if self._body is not None else self._open_bytes()
        parquet = parquet_reader(
            pa.PythonFile(file, mode="r") if file else pa.BufferReader(self._body),
            metadata=self._footer.metadata,
            verify_pages=self._footer.sums is None,
        )
        return _Reader(parquet, file)

    def pick(self, row_group: int, ids: Sequence[int], rows: Rows) -> dict[int, pa.Array]:
        """Decodes some ascending rows of columns, by id. It reads only their pages where the locations are known.

        ``ids`` are in the order of the file. See ``read`` for errors.
        """
        columns = self._footer.columns
        found = {id_: picked_pages(self._footer, row_group, columns[id_], rows) for id_ in ids}
        picked: dict[int, pa.Array] = {}
        alike: dict[int, list[tuple[int, PickedPages]]] = {}  # by the count of rows in the pages
        for id_, pages in found.items():
            if pages is not None:
                alike.setdefault(pages.rows, []).append((id_, pages))
        file = self._open_bytes()
        for count, members in alike.items():
            read = read_pages([self._pages(file, row_group, id_, pages) for id_, pages in members], count)
            picked |= {id_: one_array(array).take(pages.at) for (id_, pages), array in zip(members, read, strict=True)}
        if whole := [id_ for id_, pages in found.items() if pages is None]:
            table = self.read(row_group, [leaf for id_ in whole for leaf in columns[id_].leaves]).take(pa.array(rows))
            picked |= {id_: one_array(column) for id_, column in zip(whole, table.columns, strict=True)}
        return picked

    def _pages(self, file: CheckedFile, row_group: int, id_: int, picked: PickedPages) -> PagesOfColumn:
        """The bytes of pages, verified. Raises OSError."""
        column, metadata = self._footer.columns[id_], self._footer.metadata
        bodies = []
        for page, range_ in zip(picked.indexes, picked.ranges(), strict=True):
            file.seek(range_.start)
            body = file.read_buffer(range_.length)
            if not picked.chunk.states[page].match(body):
                raise OSError(f"the checksum of the page at byte {range_.start} differs")
            bodies.append(body)
        leaf = column.leaves[0]
        codec = metadata.row_group(row_group).column(leaf).compression
        nullable = bool(metadata.schema.column(leaf).max_definition_level)
        return PagesOfColumn(bodies, codec, column.type, nullable, picked.chunk.has_dictionary)
