"""Footers of data files: fetched with one request, checked against the entry, and asked about row groups."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.checksum import crc32
from dolmen.format.chunk_sums import ChunkSums, chunk_place
from dolmen.format.entries import DataFile
from dolmen.format.schema import Field, is_nested
from dolmen.format.statistics import UNKNOWN, Bounds, constant_bounds
from dolmen.format.values import Plain
from dolmen.format.widening import widened
from dolmen.scan.ranges import GAP_BYTES, Range
from dolmen.store.base import ObjectStore
from dolmen.store.cache import ObjectCache

_FIELD_ID = b"PARQUET:field_id"
_PARSED_FACTOR = 4
"""A parsed footer takes about so many times the bytes it was parsed from."""


@dataclass(frozen=True)
class FileColumn:
    """A column as one file has it: its type there, and the Parquet columns it is made of."""

    type: pa.DataType
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class DataFileFooter:
    """A data file's footer.

    Args:
        metadata: as pyarrow reads it.
        columns: by field id, in the file's order.
        firsts: position of each row group's first row.
        sums: checksums of the column chunks; None for files that were written without.
    """

    metadata: pq.FileMetaData
    columns: dict[int, FileColumn]
    firsts: tuple[int, ...]
    sums: ChunkSums | None

    @classmethod
    def parse(cls, body: bytes, file: DataFile) -> DataFileFooter:
        """Reads the Thrift metadata with the 8 bytes behind it, and the checksums of column chunks before it.

        Raises:
            CorruptionError: it is not what the entry says.
        """
        check_footer(body, file)
        try:
            metadata = pq.read_metadata(pa.BufferReader(body))
        except (pa.ArrowException, OSError) as error:
            raise CorruptionError(file.path, f"footer: {error}") from error
        if metadata.num_rows != file.rows:
            raise CorruptionError(file.path, f"{metadata.num_rows} rows, not the {file.rows} of its entry")
        columns: dict[int, FileColumn] = {}
        leaf = 0
        for field in metadata.schema.to_arrow_schema():
            count = _leaves(field.type)
            if field.metadata and _FIELD_ID in field.metadata:
                columns[int(field.metadata[_FIELD_ID])] = FileColumn(field.type, tuple(range(leaf, leaf + count)))
            leaf += count
        rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        sums = ChunkSums.decode(body, file.footer[0], metadata, file.path)
        return cls(metadata, columns, tuple(accumulate(rows, initial=0))[:-1], sums)

    def rows(self, group: int) -> int:
        """Rows of a row group."""
        count: int = self.metadata.row_group(group).num_rows
        return count

    def leaves(self, ids: frozenset[int]) -> list[int]:
        """Parquet columns of these columns, as far as the file has them, ascending."""
        return [leaf for id_, column in self.columns.items() if id_ in ids for leaf in column.leaves]

    def ranges(self, group: int, ids: frozenset[int]) -> list[Range]:
        """Where a row group's chunks of these columns are."""
        row_group = self.metadata.row_group(group)
        found = []
        for leaf in self.leaves(ids):
            start, length = chunk_place(row_group.column(leaf))
            found.append(Range(start, start + length))
        return found

    def bounds(self, group: int, field: Field, nans: int | None) -> Bounds:
        """The bounds of a column in one row group, by Parquet's statistics, as of the column's type now.

        Args:
            nans: NaN values of the column in the whole file; None = unknown.
        """
        row_group = self.metadata.row_group(group)
        column = self.columns.get(field.id)
        if column is None:  # it was written before the column was added
            return constant_bounds(field.initial_default, field.arrow_type, row_group.num_rows)
        if is_nested(column.type):
            return UNKNOWN
        statistics = row_group.column(column.leaves[0]).statistics
        if statistics is None:
            return UNKNOWN
        nulls = statistics.null_count if statistics.has_null_count else None
        if nans != 0 and pa.types.is_floating(column.type):  # noqa: SIM108
            nans = 0 if nulls == row_group.num_rows else None
        else:
            nans = 0
        least: Plain = None
        greatest: Plain = None
        if statistics.has_min_max:
            raw = pa.types.is_temporal(column.type)  # plain values of times are Parquet's own integers
            least = statistics.min_raw if raw else statistics.min
            greatest = statistics.max_raw if raw else statistics.max
            if column.type != field.arrow_type:
                least, greatest = (widened(end, column.type, field.arrow_type) for end in (least, greatest))
        return Bounds(least, greatest, nulls, nans)


def _leaves(arrow_type: pa.DataType) -> int:
    if not is_nested(arrow_type):
        return 1
    return sum(_leaves(arrow_type.field(i).type) for i in range(arrow_type.num_fields))


def check_footer(body: bytes, file: DataFile) -> None:
    """Compares a footer with the file's entry. Raises CorruptionError."""
    if len(body) != file.footer[1] or crc32(body) != file.footer[2]:
        raise CorruptionError(file.path, "the footer's length or checksum differs from its entry")


def first_request(file: DataFile) -> Range:
    """The range to fetch to open a file: its footer, or all of a small file.

    One byte more is asked for than there should be, which costs nothing and shows a file of another length.
    """
    return Range(0 if file.size <= GAP_BYTES else file.footer[0], file.size + 1)


@dataclass(frozen=True)
class FetchedFooter:
    """The footer of a file, and what came with it.

    Args:
        body: the whole file if it was fetched with the footer.
        filters: the bytes from ``DataFile.filters`` to the footer if they were.
        requested: bytes that were fetched; None if the footer was in the cache.
    """

    footer: DataFileFooter
    body: bytes | None = None
    filters: bytes | None = None
    requested: int | None = None


def open_file(
    store: ObjectStore, cache: ObjectCache, file: DataFile, table: str, *, with_filters: bool = False
) -> FetchedFooter:
    """Gets a file's footer from the cache, or with one request.

    Args:
        table: for messages.
        with_filters: fetch its Bloom filters with the footer, but not the rest of a small file.

    Raises:
        CorruptionError: the file is missing, or not the one its entry describes.
    """
    key = ("footer", file.path, 0)
    footer: DataFileFooter | None = cache.get(key)
    if footer is not None:
        return FetchedFooter(footer)
    kept = cache.peek(key, lambda body: check_footer(body, file))
    if kept is not None:
        footer = DataFileFooter.parse(kept, file)
        cache.put(key, footer, file.footer[1] * _PARSED_FACTOR)
        return FetchedFooter(footer)
    wanted = Range(file.filters, file.size + 1) if with_filters else first_request(file)
    try:
        body = store.get(file.path, wanted).body
    except ObjectNotFoundError as error:
        raise CorruptionError(file.path, f"it is missing, and is a data file of table {table!r}") from error
    if len(body) != file.size - wanted.start:
        missing = f"{len(body) + wanted.start}{' or more' if len(body) == wanted.length else ''} bytes"
        raise CorruptionError(file.path, f"it has {missing}, not the {file.size} of its entry in table {table!r}")
    end = body[file.footer[0] - wanted.start :]
    footer = DataFileFooter.parse(end, file)
    cache.put(key, footer, file.footer[1] * _PARSED_FACTOR)
    cache.keep(key, end)
    filters = body[: file.footer[0] - wanted.start] if with_filters else None
    return FetchedFooter(footer, body if wanted.start == 0 else None, filters, len(body))
