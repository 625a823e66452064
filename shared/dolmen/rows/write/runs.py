"""Cuts a stream of batches into pieces of bounded size, sorts each into a run, and encodes the runs as Parquet.

Sorting is stable. NaN is the greatest value, NULLs come last unless the key says otherwise; -0.0 equals 0.0.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, takewhile
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyarrow import types as t

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.base.units import KIB, MIB
from dolmen.format.chunk_locations import PARQUET_MAGIC
from dolmen.format.column_terms import partition_terms, sort_ids, sort_terms
from dolmen.format.entries import ColumnStats, DataFile, column_stats
from dolmen.format.manifest import TableEntry
from dolmen.format.page_locations import ChunkSums, PageLocations
from dolmen.format.properties import (
    FAST_COMPRESSION,
    ROW_GROUP_BYTES,
    WRITTEN_FILE_BYTES,
    clustered_columns,
    compression,
    has_index,
    key_filter_bits,
)
from dolmen.format.schema import COMMIT_TS_ID, is_nested
from dolmen.format.transforms import Transform
from dolmen.format.types import Plain, null_mask, to_plain
from dolmen.rows.write.encodings import Encodings, choose, leaves
from dolmen.rows.write.row_order import KeyArray, RowOrder
from dolmen.store.base import Buffer, StreamedOutput

_IN_FOOTER_BYTES = 1024
"""Parquet's writer keeps the bounds of a row group's texts if they are not longer than 4096 bytes."""

_SLICES = 8  # batches are cut into slices of at most this part of a run, so that runs come out full


class Extent(NamedTuple):
    """Exact least and greatest value (None: only NULL and NaN, or a nested column), and counts.

    With ``in_footer`` Parquet's writer finds the bounds: comparing texts a second time would take a tenth of the write.
    """

    least: Plain
    greatest: Plain
    nulls: int = 0
    nans: int = 0
    in_footer: bool = False

    def merge(self, other: Extent) -> Extent:
        least: list[Any] = [value for value in (self.least, other.least) if value is not None]
        greatest: list[Any] = [value for value in (self.greatest, other.greatest) if value is not None]
        nulls, nans = self.nulls + other.nulls, self.nans + other.nans
        in_footer = self.in_footer or other.in_footer
        return Extent(min(least, default=None), max(greatest, default=None), nulls, nans, in_footer)


def extent(column: pa.ChunkedArray) -> Extent:
    if is_nested(column.type):
        return Extent(None, None, column.null_count)
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        longest = pc.max(pc.binary_length(column)).as_py()
        if longest is not None and longest <= _IN_FOOTER_BYTES:
            return Extent(None, None, column.null_count, in_footer=True)
    nans = 0
    if pa.types.is_floating(column.type):
        nans = pc.sum(pc.is_nan(column), min_count=0).as_py()
    ends = pc.min_max(column)  # passes over NULL, and over NaN where there is anything else
    least, greatest = to_plain(pa.array([ends["min"], ends["max"]], column.type))
    if isinstance(least, float) and math.isnan(least):
        least = greatest = None
    return Extent(least, greatest, column.null_count, nans)


class Run(Struct, frozen=True):
    """Rows that are written together, and the extents of their columns by id."""

    table: pa.Table
    extents: dict[int, Extent]


def cut(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, max_bytes: int, max_rows: int
) -> Iterator[list[pa.ChunkedArray]]:
    """Cuts rows into pieces, as columns, in their order: within both limits unless a single row is larger.

    Each list belongs to the caller alone, so memory is freed as columns are taken out of it.
    """
    piece: list[pa.RecordBatch] = []
    size = rows = 0
    for part in chain.from_iterable(_slices(batch, max_bytes // _SLICES, max_rows) for batch in batches):
        part_bytes = part.nbytes
        if piece and (size + part_bytes > max_bytes or rows + part.num_rows > max_rows):
            columns = pa.Table.from_batches(piece, schema).columns
            piece, size, rows = [], 0, 0
            yield columns
            del columns
        piece.append(part)
        size += part_bytes
        rows += part.num_rows
    if piece:
        yield pa.Table.from_batches(piece, schema).columns


def _slices(batch: pa.RecordBatch, max_bytes: int, max_rows: int) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    if rows == 0:
        return
    count = min(rows, max(-(-batch.nbytes // max_bytes), -(-rows // max_rows)))
    if count <= 1:
        yield batch
        return
    step = -(-rows // count)
    for start in range(0, rows, step):
        yield from _slices(batch.slice(start, step), max_bytes, max_rows)  # again: rows are not of one size


def make_run(columns: list[pa.ChunkedArray], entry: TableEntry) -> Run:
    """Sorts a piece by the table's sort key, and measures each column. Empties the list, which frees memory."""
    schema = entry.schema.arrow
    sort_columns(columns, RowOrder(entry).keys(columns))
    table = pa.table([fill_hidden(column) for column in columns], schema)
    columns.clear()
    extents = {field.id: extent(column) for field, column in zip(entry.schema.fields, table.columns, strict=True)}
    return Run(table, extents)


def sort_columns(columns: list[pa.ChunkedArray], keys: list[KeyArray]) -> None:
    """Sorts rows by keys in place: replaces one column after the other, to save memory. Empties ``keys``."""
    if not keys or _is_sorted(keys):
        return
    names = [str(number) for number in range(len(keys))]
    order = pc.sort_indices(pa.table(keys, names), [(name, "ascending") for name in names])
    keys.clear()
    for index in range(len(columns)):
        columns[index] = pa.chunked_array([columns[index].combine_chunks()])  # ``take`` would keep the chunks
        columns[index] = columns[index].take(order)


def _is_sorted(keys: list[KeyArray]) -> bool:
    """True if the rows are certainly in order, which NULL and NaN make uncertain: sorting then only costs time."""
    ordered = None  # whether each row and the next are in order by the remaining key columns
    for column in reversed(keys):
        if column.null_count:
            return False
        row, following = column.slice(0, len(column) - 1), column.slice(1)
        if ordered is None:
            ordered = pc.less_equal(row, following)
        else:
            ordered = pc.or_(pc.less(row, following), pc.and_(pc.equal(row, following), ordered))
    return bool(pc.all(ordered, min_count=0).as_py())


def _needs_values(kind: pa.DataType) -> bool:
    """True if the type has a field that is not nullable, in a struct at any depth."""
    if t.is_struct(kind):
        return any(not field.nullable or _needs_values(field.type) for field in kind)
    if t.is_map(kind):
        return _needs_values(kind.key_type) or _needs_values(kind.item_type)
    return bool(t.is_list(kind)) and _needs_values(kind.value_type)


def fill_hidden_of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_fill_hidden(column) for column in batch.columns], schema=batch.schema)


def fill_hidden(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replaces NULLs under NULL structs in fields that are not nullable: Parquet's writer refuses them.

    The caller has checked that no such field is NULL where its struct is not. Little is copied.
    """
    if not _needs_values(column.type):
        return column
    return pa.chunked_array([_fill_hidden(chunk) for chunk in column.chunks], column.type)


def _fill_hidden(array: pa.Array) -> pa.Array:
    kind = array.type
    if not _needs_values(kind):
        return array
    if t.is_struct(kind):
        children = [_fill_hidden(array.field(index)) for index in range(kind.num_fields)]
        filled = [
            child if field.nullable or not child.null_count else _drop_validity(child)
            for child, field in zip(children, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(filled, fields=list(kind), mask=null_mask(array))
    validity, offsets = array.buffers()[:2]
    if t.is_map(kind):
        entries = pa.StructArray.from_arrays(
            [_fill_hidden(array.keys), _fill_hidden(array.items)], fields=[kind.key_field, kind.item_field]
        )
    else:
        entries = _fill_hidden(array.values)
    return pa.Array.from_buffers(kind, len(array), [validity, offsets], array.null_count, array.offset, [entries])


def _drop_validity(array: pa.Array) -> pa.Array:
    """The array without its validity bitmap: in place of each NULL, the value under it."""
    kind = array.type
    if t.is_struct(kind):  # its children do not have the array's offset
        return pa.StructArray.from_arrays([array.field(index) for index in range(kind.num_fields)], fields=list(kind))
    children = []
    if t.is_map(kind):
        children = [pa.StructArray.from_arrays([array.keys, array.items], fields=[kind.key_field, kind.item_field])]
    elif t.is_list(kind):
        children = [array.values]
    buffers = array.buffers()[1 : kind.num_buffers]
    return pa.Array.from_buffers(kind, len(array), [None, *buffers], 0, array.offset, children)


STATISTICS_COLUMNS = 64
"""The most columns with statistics in the entry: key columns first, then others in the schema's order."""

BLOOM_FALSE_POSITIVES = {8: 0.03, 16: 7e-4, 32: 7e-6, 64: 4.6e-8}
"""By filter bits per row: a little above the rate of a filter of this size, because sizes are powers of two."""
_BLOOM_HEADROOM = 2
"""A column with few values in the first row group may have more in others; all their filters have one size."""
MIN_GROUP_ROWS, MAX_GROUP_ROWS = 1 << 14, 1 << 18
"""Rows of a full row group: enough for a column chunk to be worth a request, few enough to decode many at once."""

LOOKED_UP_GROUP_BYTES = 128 * KIB
"""The size of a row group of a table with an index: a look-up reads one with one request."""
LOOKED_UP_CHUNK_BYTES = 8 * KIB
"""The least bytes of each column in a row group: a footer has about 120 bytes for each column chunk."""
MIN_LOOKED_UP_ROWS, MAX_LOOKED_UP_ROWS = 1 << 8, 1 << 13

PAGE_BYTES, PAGE_ROWS = 16 * KIB, 4096
"""Pages of a table with an index end at either limit: a look-up reads one page of each column. Rows count too, because
the writer does not know how many bytes packed integers take."""
_LEAST_BATCH_ROWS, _MOST_BATCH_ROWS = 16, 1024  # the writer asks after this many rows whether a page is full
_UNKNOWN_ROW_BYTES = 64

_BUFFER_BYTES = MIB  # page headers and small pages are collected up to this size before they go to the store

_MOST_HEADER_BYTES = 128  # headers of pages are shorter: statistics of pages are in the page index


class WriteOptions(Struct, frozen=True):
    """Sizes of data files and their parts."""

    file_bytes: int = WRITTEN_FILE_BYTES  # a file ends with the run that brings it to this size (compressed)
    # the most Arrow memory of a run of rows that is sorted and encoded. One run for each processor (eight at most) and
    # one more are in memory, each of them twice while it is sorted.
    run_bytes: int = 16 * MIB
    run_rows: int = 1 << 20  # the most rows of a run
    # the size (compressed) planned for row groups, unless they would have too few rows
    row_group_bytes: int = ROW_GROUP_BYTES
    partition_files: int | None = None  # the most partitions that get files of their own; None for the table's property


DEFAULT = WriteOptions()


class WritePlan(Struct, frozen=True):
    """The settings that all files of one write have in common."""

    encodings: Encodings
    group_rows: int

    @classmethod
    def of(cls, first: Run, options: WriteOptions, table: TableEntry | None = None) -> WritePlan:
        """The settings that suit the first run, and the table's properties."""
        encodings = choose(first.table, compression(table) if table else FAST_COMPRESSION)
        most_bytes, least, most = options.row_group_bytes, MIN_GROUP_ROWS, MAX_GROUP_ROWS
        if table and has_index(table):
            together = max(LOOKED_UP_GROUP_BYTES, LOOKED_UP_CHUNK_BYTES * len(leaves(first.table.schema)))
            most_bytes, least, most = min(most_bytes, together), MIN_LOOKED_UP_ROWS, MAX_LOOKED_UP_ROWS
            encodings = replace(encodings, uncompressed=frozenset())  # the index knows compressed column chunks only
        rows = most_bytes / encodings.row_bytes if encodings.row_bytes else most
        # A power of two, because bloom filters come in such sizes.
        group_rows = 1 << int(math.log2(min(most, max(least, rows))))
        return cls(encodings, group_rows)

    def page_sizes(self) -> dict[str, int]:
        """The arguments of pyarrow's writer for files whose rows are looked up one by one."""
        rows = PAGE_BYTES / (self.encodings.row_bytes or _UNKNOWN_ROW_BYTES)
        batch = 1 << int(math.log2(min(_MOST_BATCH_ROWS, max(_LEAST_BATCH_ROWS, rows))))
        return {"data_page_size": PAGE_BYTES, "max_rows_per_page": PAGE_ROWS, "write_batch_size": batch}


class EncodedRun(Struct, frozen=True):
    """The parts of a run's Parquet file after its column chunks, which ``encode`` has passed to ``write``."""

    rows: int
    size: int  # bytes of the column chunks, and of the magic before them
    tail: bytes  # Bloom filters and page index, which follow them
    footer: bytes  # as an entry has it: locations of pages and checksums belong to it
    metadata: pq.FileMetaData  # the footer as pyarrow has it
    extents: Mapping[int, Extent]


def encode(write: Callable[[bytes], object], entry: TableEntry, plan: WritePlan, run: Run) -> EncodedRun:
    """Encodes a run as a Parquet file with row groups of about equal size, and writes its column chunks.

    A float column with NaN gets no Parquet statistics: their min and max pass over NaN, so that engines which order
    NaN as a value, as Spark and DuckDB do, would prune rows away by them. Float leaves of nested columns never get any.
    """
    sink, schema = _Sink(write), entry.schema.arrow
    with_nan = {entry.schema.by_id[id_].name for id_, extent in run.extents.items() if extent.nans}
    unmeasured = {
        leaf.path
        for leaf in leaves(schema)
        if leaf.column in with_nan or (leaf.is_nested and leaf.physical_type in ("FLOAT", "DOUBLE"))
    }  # by path, which two leaves may share
    writer = pq.ParquetWriter(
        pa.PythonFile(sink, "w"),
        schema,
        data_page_version="1.0",  # what every reader knows
        write_page_index=True,
        write_page_checksum=True,
        write_statistics=[leaf.path for leaf in leaves(schema) if leaf.path not in unmeasured],
        sorting_columns=sorting_columns(entry),
        bloom_filter_options=_bloom_filters(entry, run.table, plan.group_rows) or None,
        **(plan.page_sizes() if has_index(entry) else {}),
        **plan.encodings.options(schema),
    )
    try:
        rows = run.table.num_rows
        writer.write_table(run.table, row_group_size=-(-rows // -(-rows // plan.group_rows)))
        sink.keep_tail()
        writer.close()
    except BaseException:
        sink.closed = True
        writer.is_open = False  # else its destructor would write a footer
        raise
    metadata = writer.writer.metadata
    tail, footer = sink.finish(metadata, [not leaf.is_nested for leaf in leaves(schema)])
    return EncodedRun(rows, sink.size, tail, footer, metadata, _complete_extents(run.extents, entry, metadata))


def _complete_extents(extents: Mapping[int, Extent], entry: TableEntry, metadata: pq.FileMetaData) -> dict[int, Extent]:
    """The extents, with the bounds that only the footer has."""
    columns = [leaf.column for leaf in leaves(entry.schema.arrow)]
    complete = dict(extents)
    for id_, total in extents.items():
        if not total.in_footer:
            continue
        leaf = columns.index(entry.schema.by_id[id_].name)
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(leaf).statistics
            if statistics is not None and statistics.has_min_max:
                total = total.merge(Extent(statistics.min, statistics.max))
            elif statistics is None or statistics.num_values:  # it has values, whose bounds are unknown
                total = Extent(None, None, total.nulls, total.nans)
                break
        complete[id_] = total
    return complete


def _bloom_filters(entry: TableEntry, rows: pa.Table, group_rows: int) -> dict[str, dict[str, Any]]:
    """Filters for the primary key, which all row groups have in the size that the values in the first need."""
    filters, bits = {}, key_filter_bits(entry)
    for id_ in entry.primary_key:
        field = entry.schema.by_id[id_]
        if not pa.types.is_boolean(field.arrow_type):  # Parquet has none for them
            values = rows[field.name].slice(0, group_rows)
            distinct = len(values) if _is_increasing(values) else pc.count_distinct(values).as_py()
            ndv = max(1, min(group_rows, _BLOOM_HEADROOM * distinct))
            filters[field.name] = {"ndv": ndv, "fpp": BLOOM_FALSE_POSITIVES[bits]}
    return filters


def _is_increasing(values: pa.ChunkedArray) -> bool:
    """True if each value is certainly greater than the one before, so that all are distinct: counting takes longer."""
    pairs = pc.less(values.slice(0, len(values) - 1), values.slice(1)) if len(values) else pa.array([], pa.bool_())
    return not values.null_count and bool(pc.all(pairs, min_count=0).as_py())


def write_object(output: StreamedOutput, path: str, entry: TableEntry, plan: WritePlan, run: Run) -> DataFile:
    """Writes a run as one Parquet object and returns its entry without timestamps. An error aborts the upload."""
    with output:
        return finish_object(output, path, entry, encode(output.write, entry, plan, run))


def finish_object(output: StreamedOutput, path: str, entry: TableEntry, encoded: EncodedRun) -> DataFile:
    """Writes what follows the column chunks, makes the object visible, and returns its entry."""
    output.write(encoded.tail + encoded.footer)
    size = commit_output(output, path, encoded.size + len(encoded.tail) + len(encoded.footer))
    filters = encoded.size if has_filters(encoded.metadata) else 0
    return file_entry(path, size, encoded.rows, encoded.footer, encoded.extents, filters, entry)


def commit_output(output: StreamedOutput, path: str, size: int) -> int:
    """Makes an object visible and returns its size, which must be ``size``."""
    stored = output.commit()
    if stored != size:
        raise AssertionError(f"{path}: {size} bytes were written, {stored} were stored")
    return size


def statistics_columns(entry: TableEntry) -> list[int]:
    """Ids of the columns that have statistics in an entry. Bounds of ``_commit_ts`` are in another field."""
    parts = (entry.schema.field(term.column).id for term in partition_terms(entry.properties))
    clustered = (entry.schema.field(name).id for name in clustered_columns(entry.properties))
    keys = {*entry.primary_key, *sort_ids(entry.sort_key), *parts, *clustered}
    columns = [field.id for field in entry.schema.fields if field.id != COMMIT_TS_ID]
    return sorted(sorted(columns, key=lambda id_: id_ not in keys)[:STATISTICS_COLUMNS])


def sorting_columns(entry: TableEntry) -> list[pq.SortingColumn] | None:
    """The order of rows as row groups have it: by columns up to the first transform; None if there are none."""
    columns = [leaf.column for leaf in leaves(entry.schema.arrow)]
    terms = takewhile(lambda term: term.transform == Transform(), sort_terms(entry.sort_key))
    return [
        pq.SortingColumn(columns.index(entry.schema.by_id[term.id].name), term.descending, term.nulls_first)
        for term in terms
    ] or None


def has_filters(metadata: pq.FileMetaData) -> bool:
    group = metadata.row_group(0)
    return any(group.column(leaf).bloom_filter_offset is not None for leaf in range(group.num_columns))


def file_entry(
    path: str, size: int, rows: int, footer: bytes, extents: Mapping[int, Extent], filters: int, entry: TableEntry
) -> DataFile:
    """The entry of a file, without commit timestamps; ``filters`` is the first byte of its Bloom filters, or 0."""
    stats: dict[int, ColumnStats] = {}
    for id_ in statistics_columns(entry):
        found = extents[id_]
        stats[id_] = column_stats(found.least, found.greatest, found.nulls, found.nans)
    location = (size - len(footer), len(footer), crc32(footer))
    written = DataFile(path, size, rows, location, stats=stats, filters=filters)
    hidden = extents.get(COMMIT_TS_ID)
    if hidden is None:
        return written
    return msgspec.structs.replace(written, row_ts=None, row_ts_bounds=(hidden.least, hidden.greatest))


class _Sink:
    """A file for pyarrow's writer: passes bytes on in larger parts, and at the end keeps them."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write, self.size, self.closed = write, 0, False
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0
        self._most = _BUFFER_BYTES
        self._state = 0  # CRC-32 of all bytes so far
        self._states: dict[int, int] = {}
        self._headers: dict[int, bytes] = {}

    def write(self, data: Buffer, /) -> int:
        if self.closed:  # the destructor of an aborted writer still writes
            return len(data)
        self._states[self.size] = self._state
        if len(data) <= _MOST_HEADER_BYTES:
            self._headers[self.size] = bytes(data)
        self._state = crc32(data, self._state)
        self.size += len(data)
        self._buffered.append(bytes(data))
        self._buffered_bytes += len(data)
        if self._buffered_bytes > self._most:
            self._pass_on()
        return len(data)

    def _pass_on(self) -> None:
        body, self._buffered, self._buffered_bytes = b"".join(self._buffered), [], 0
        if body:
            self._write(body)

    def flush(self) -> None:
        """Does nothing: few bytes are buffered."""

    def close(self) -> None:
        """Does nothing: ``finish`` ends the file."""

    def keep_tail(self) -> None:
        """Keeps all bytes written from here on: page index, Bloom filters and footer."""
        self._pass_on()
        self._most = sys.maxsize

    def finish(self, metadata: pq.FileMetaData, flat: Sequence[bool]) -> tuple[bytes, bytes]:
        """Splits the tail before the footer, and prepends locations of pages and checksums of chunks to the footer."""
        tail = b"".join(self._buffered)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if tail[-4:] != PARQUET_MAGIC or length > len(tail):
            raise AssertionError("the Parquet writer did not end with a footer")
        sums = ChunkSums.collect(metadata, self._states, self.size - length)
        pages = PageLocations.collect(metadata, self._states, self._headers, flat) if sums else None
        block = (pages.encode() if pages else b"") + (sums.encode() if sums else b"")
        self.size -= len(tail)
        return tail[:-length], block + tail[-length:]
