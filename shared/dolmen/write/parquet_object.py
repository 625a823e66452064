"""One data file under way: a Parquet file streamed into an object, and the entry that describes it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dolmen.format.checksum import crc32
from dolmen.format.chunk_sums import ChunkSums
from dolmen.format.entries import ColumnStats, DataFile
from dolmen.format.manifest import TableEntry
from dolmen.format.page_places import PagePlaces
from dolmen.format.properties import has_index, key_filter_bits
from dolmen.format.schema import COMMIT_TS_ID
from dolmen.store.base import Buffer, StreamedOutput
from dolmen.units import KIB, MIB
from dolmen.write.encodings import Encodings, choose, leaves
from dolmen.write.extent import Extent
from dolmen.write.options import WriteOptions
from dolmen.write.runs import Run

STATISTICS_COLUMNS = 64
"""The number of columns with statistics in the entry: the key columns, then others in the schema's order."""

#: With such a rate 2^n rows take this many bits of filter each: it is a little greater than that of a filter of this
#: size, since sizes are powers of two.
BLOOM_FALSE_POSITIVES = {8: 0.03, 16: 7e-4, 32: 7e-6, 64: 4.6e-8}
#: A column with few values in the first row group may have more in others; all their filters are of one size.
_BLOOM_HEADROOM = 2

MIN_GROUP_ROWS = 1 << 14
MAX_GROUP_ROWS = 1 << 18
"""Rows of a full row group: enough for a column chunk to be worth a request, few enough to decode many at once."""

LOOKED_UP_GROUP_BYTES = 128 * KIB
"""A row group of a table with an index has about so many bytes, as a look-up reads one with one request."""
LOOKED_UP_CHUNK_BYTES = 8 * KIB
"""But so many for each column, since a footer has about 120 bytes for each column chunk."""
MIN_LOOKED_UP_ROWS, MAX_LOOKED_UP_ROWS = 1 << 8, 1 << 13

PAGE_BYTES = 16 * KIB
"""A page of a table with an index is finished when it has so many bytes before compression: a look-up reads one
of each column. Files are 4 % larger than with pages of up to 1 MB, and take a third more time to decode."""
PAGE_ROWS = 4096
"""And when it has so many rows: the writer does not know how many bytes packed integers have."""
_LEAST_BATCH_ROWS, _MOST_BATCH_ROWS = 16, 1024
"""The writer asks after so many rows whether a page is full."""
_UNKNOWN_ROW_BYTES = 64


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The settings that all files of one write have in common.

    Args:
        group_rows: rows of a row group at most.
        no_statistics: ids of columns that get no Parquet statistics, whether a file's first run has NaN or not.
    """

    encodings: Encodings
    group_rows: int
    compression_level: int
    no_statistics: frozenset[int] = frozenset()

    @classmethod
    def of(cls, first: Run, options: WriteOptions, *, looked_up: bool = False) -> WritePlan:
        """The settings that suit the first run.

        Args:
            looked_up: rows will be looked up one by one.
        """
        encodings = choose(first.table, options.compression_level)
        most_bytes, least, most = options.row_group_bytes, MIN_GROUP_ROWS, MAX_GROUP_ROWS
        if looked_up:
            together = max(LOOKED_UP_GROUP_BYTES, LOOKED_UP_CHUNK_BYTES * len(leaves(first.table.schema)))
            most_bytes, least, most = min(most_bytes, together), MIN_LOOKED_UP_ROWS, MAX_LOOKED_UP_ROWS
            encodings = replace(encodings, uncompressed=frozenset())  # the index knows compressed column chunks only
        rows = most_bytes / encodings.row_bytes if encodings.row_bytes else most
        # A power of two, because bloom filters come in such sizes.
        group_rows = 1 << int(math.log2(min(most, max(least, rows))))
        return cls(encodings, group_rows, options.compression_level)

    def small_pages(self) -> dict[str, int]:
        """The arguments of pyarrow's writer for files whose rows are looked up one by one."""
        rows = PAGE_BYTES / (self.encodings.row_bytes or _UNKNOWN_ROW_BYTES)
        batch = 1 << int(math.log2(min(_MOST_BATCH_ROWS, max(_LEAST_BATCH_ROWS, rows))))
        return {"data_page_size": PAGE_BYTES, "max_rows_per_page": PAGE_ROWS, "write_batch_size": batch}

    def without_float_statistics(self, entry: TableEntry) -> WritePlan:
        """The same for files in which no float column has Parquet statistics."""
        floats = (field.id for field in entry.schema.fields if pa.types.is_floating(field.arrow_type))
        return replace(self, no_statistics=frozenset(floats))


#: Page headers and small pages are collected to this much before they go to the store.
_BUFFER_BYTES = MIB
_MOST_HEADER_BYTES = 128
"""Headers of pages are shorter, as statistics of pages are in the page index."""


class ParquetStream:
    """Encodes runs as row groups of one Parquet file, which goes to its caller piece by piece.

    A float column has Parquet statistics only if the first run has no NaN in it, and the caller must not ``write``
    a run that has (``accepts`` tells): Parquet's min and max pass over NaN, so that engines which order NaN as a
    value, as Spark and DuckDB do, would prune rows away by them. Leaves of nested columns that are floats never have
    any. The choice can't be changed once the file is open.

    Args:
        write: takes the bytes.
        first: the first run that will be written.

    Attributes:
        rows: rows written so far.
        extents: of the columns of all runs, by column id; complete once it is finished.
    """

    def __init__(self, write: Callable[[bytes], object], entry: TableEntry, plan: WritePlan, first: Run) -> None:
        self._entry, self._group_rows = entry, plan.group_rows
        self._without = plan.no_statistics | first.columns_with_nan()
        self.extents: dict[int, Extent] = {}
        self.rows = self._groups = 0
        self._in_footer: dict[int, list[int]] = {}  # by column: row groups whose ends are only there
        self._sink = _Sink(write)
        schema = entry.schema.arrow
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, "w"),
            schema,
            data_page_version="1.0",  # what every reader knows
            write_page_index=True,
            write_page_checksum=True,
            write_statistics=self._statistics_paths(),
            sorting_columns=sorting_columns(entry),
            bloom_filter_options=self._bloom_filters(first.table) or None,
            **(plan.small_pages() if has_index(entry) else {}),
            **plan.encodings.options(schema, plan.compression_level),
        )

    @property
    def size(self) -> int:
        """Bytes written so far; the footer and the filters are yet to come."""
        return self._sink.size

    def accepts(self, run: Run) -> bool:
        """Whether the run may go into this file: no NaN in a column that has Parquet statistics."""
        return run.columns_with_nan() <= self._without

    def write(self, run: Run) -> None:
        """Appends the rows, in row groups of about equal size."""
        rows = run.table.num_rows
        group_rows = -(-rows // -(-rows // self._group_rows))
        self._writer.write_table(run.table, row_group_size=group_rows)
        groups = range(self._groups, self._groups + -(-rows // group_rows))
        self.rows, self._groups = self.rows + rows, groups.stop
        for id_, found in run.extents.items():
            if found.in_footer:
                self._in_footer.setdefault(id_, []).extend(groups)
        merge_extents(self.extents, run.extents)

    def finish(self) -> tuple[bytes, bytes, pq.FileMetaData]:
        """Ends the file, and keeps back what stands behind the column chunks.

        Returns:
            filters and page index; what an entry calls ``footer``; the footer as pyarrow has it.
        """
        self._sink.keep_tail()
        self._writer.close()
        metadata = self._writer.writer.metadata
        self._take_ends_from_footer(metadata)
        return (*self._sink.finish(metadata, [not leaf.nested for leaf in leaves(self._entry.schema.arrow)]), metadata)

    def abandon(self) -> None:
        """Writes nothing more."""
        self._sink.closed = True
        self._writer.is_open = False  # else its destructor would write a footer

    def _take_ends_from_footer(self, metadata: pq.FileMetaData) -> None:
        columns = [leaf.column for leaf in leaves(self._entry.schema.arrow)]
        for id_, groups in self._in_footer.items():
            place = columns.index(self._entry.schema.by_id[id_].name)
            total = self.extents[id_]
            for group in groups:
                found = metadata.row_group(group).column(place).statistics
                if found is not None and found.has_min_max:
                    total = total.merged(Extent(found.min, found.max))
                elif found is None or found.num_values:  # values, but nobody knows which
                    total = Extent(None, None, total.nulls, total.nans)
                    break
            self.extents[id_] = total

    def _statistics_paths(self) -> list[str]:
        without = {self._entry.schema.by_id[id_].name for id_ in self._without}
        there = leaves(self._entry.schema.arrow)
        bad = {
            leaf.path
            for leaf in there
            if leaf.column in without or (leaf.nested and leaf.physical_type in ("FLOAT", "DOUBLE"))
        }
        return [leaf.path for leaf in there if leaf.path not in bad]

    def _bloom_filters(self, rows: pa.Table) -> dict[str, dict[str, Any]]:
        """For the primary key, sized by the values in the first row group, as it is for each row group alike."""
        filters, bits = {}, key_filter_bits(self._entry)
        for id_ in self._entry.primary_key:
            field = self._entry.schema.by_id[id_]
            if not pa.types.is_boolean(field.arrow_type):  # Parquet has none for them
                distinct = pc.count_distinct(rows[field.name].slice(0, self._group_rows)).as_py()
                ndv = max(1, min(self._group_rows, _BLOOM_HEADROOM * distinct))
                filters[field.name] = {"ndv": ndv, "fpp": BLOOM_FALSE_POSITIVES[bits]}
        return filters


class ParquetObject:
    """Writes runs as row groups of one Parquet object. Used as a context: leaving it uncommitted aborts the upload.

    Args:
        output: the upload; belongs to this object from here on.
        path: its key.
        first: the first run that will be written, see ``ParquetStream``.
    """

    def __init__(self, output: StreamedOutput, path: str, entry: TableEntry, plan: WritePlan, first: Run) -> None:
        self._output, self._path, self._entry = output, path, entry
        self._stream = ParquetStream(output.write, entry, plan, first)

    @property
    def size(self) -> int:
        """Bytes written so far; the footer and the filters are yet to come."""
        return self._stream.size

    def accepts(self, run: Run) -> bool:
        """Whether the run may go into this file: see ``ParquetStream``."""
        return self._stream.accepts(run)

    def write(self, run: Run) -> None:
        """Appends the rows, in row groups of about equal size."""
        self._stream.write(run)

    def commit(self) -> DataFile:
        """Finishes the file and makes the object visible; returns its entry, not yet stamped."""
        tail, footer, metadata = self._stream.finish()
        self._output.write(tail + footer)
        expected = self._stream.size + len(tail) + len(footer)
        size = self._output.commit()
        if size != expected:
            raise AssertionError(f"{self._path}: {expected} bytes were written, {size} were stored")
        filters = self._stream.size if has_filters(metadata) else 0
        return file_entry(self._path, size, self._stream.rows, footer, self._stream.extents, filters, self._entry)

    def __enter__(self) -> Self:
        self._output.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.abandon()
        self._output.__exit__(*exception)


def merge_extents(total: dict[int, Extent], more: Mapping[int, Extent]) -> None:
    """Adds the extents of more rows of the same columns."""
    for id_, found in more.items():
        total[id_] = total[id_].merged(found) if id_ in total else found


def statistics_columns(entry: TableEntry) -> list[int]:
    """Ids of the columns that have statistics in an entry. The bounds of ``_commit_ts`` have a place of their own."""
    keys = {*entry.primary_key, *entry.sort_key}
    columns = [field.id for field in entry.schema.fields if field.id != COMMIT_TS_ID]
    return sorted(sorted(columns, key=lambda id_: id_ not in keys)[:STATISTICS_COLUMNS])


def sorting_columns(entry: TableEntry) -> list[pq.SortingColumn] | None:
    """The order of rows, as a row group says it: ascending, NULLs last; None if there is none."""
    columns = [leaf.column for leaf in leaves(entry.schema.arrow)]
    names = [entry.schema.by_id[id_].name for id_ in entry.sort_key]
    return [pq.SortingColumn(columns.index(name)) for name in names] or None


def has_filters(metadata: pq.FileMetaData) -> bool:
    """Whether a file has Bloom filters."""
    group = metadata.row_group(0)
    return any(group.column(leaf).bloom_filter_offset is not None for leaf in range(group.num_columns))


def file_entry(
    path: str, size: int, rows: int, footer: bytes, extents: Mapping[int, Extent], filters: int, entry: TableEntry
) -> DataFile:
    """The entry of a file, not yet stamped.

    Args:
        footer: all that the entry calls so.
        extents: of all columns.
        filters: the first byte of its Bloom filters; 0 without any.
    """
    place = (size - len(footer), len(footer), crc32(footer))
    stats: dict[int, ColumnStats] = {id_: extents[id_].stats() for id_ in statistics_columns(entry)}
    written = DataFile(path, size, rows, place, stats=stats, filters=filters)
    hidden = extents.get(COMMIT_TS_ID)
    if hidden is None:
        return written
    return msgspec.structs.replace(written, row_ts=None, row_ts_bounds=(hidden.least, hidden.greatest))


class _Sink:
    """A file as pyarrow's writer sees it: passes bytes on in larger pieces, and at the end keeps them.

    Args:
        write: takes the bytes.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write, self.size, self.closed = write, 0, False
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._most = _BUFFER_BYTES
        self._state = 0  # CRC-32 of all bytes so far
        self._states: dict[int, int] = {}
        self._headers: dict[int, bytes] = {}

    def write(self, data: Buffer, /) -> int:
        if self.closed:  # given up: what the writer's destructor still writes goes nowhere
            return len(data)
        self._states[self.size] = self._state
        if len(data) <= _MOST_HEADER_BYTES:
            self._headers[self.size] = bytes(data)
        self._state = crc32(data, self._state)
        self.size += len(data)
        self._held.append(bytes(data))
        self._held_bytes += len(data)
        if self._held_bytes > self._most:
            self._pass_on()
        return len(data)

    def _pass_on(self) -> None:
        body, self._held, self._held_bytes = b"".join(self._held), [], 0
        if body:
            self._write(body)

    def flush(self) -> None:
        """Does nothing: the bytes held back are few."""

    def close(self) -> None:
        """The file is ended by its owner."""

    def keep_tail(self) -> None:
        """Keeps all bytes written from here on: page index, Bloom filters and footer."""
        self._pass_on()
        self._most = sys.maxsize

    def finish(self, metadata: pq.FileMetaData, flat: Sequence[bool]) -> tuple[bytes, bytes]:
        """Returns what was kept, with places of pages and checksums of column chunks in front of the footer.

        Args:
            flat: of each leaf, whether it has one value for each row.

        Returns:
            what stands before the places; the places, the checksums and the Parquet footer that was written last, its
            8 bytes of length and magic included.
        """
        tail = b"".join(self._held)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if tail[-4:] != b"PAR1" or length > len(tail):
            raise AssertionError("the Parquet writer did not end with a footer")
        sums = ChunkSums.collect(metadata, self._states, self.size - length)
        pages = PagePlaces.collect(metadata, self._states, self._headers, flat) if sums else None
        block = (pages.encode() if pages else b"") + (sums.encode() if sums else b"")
        self.size -= len(tail)
        return tail[:-length], block + tail[-length:]
