"""Chooses the row groups that compaction copies without decoding them, because encoding them again changes nothing.

docs/maintenance.md has the conditions (Row groups that are copied). They are checked by entries and footers alone; an
uncertain row group is encoded again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from dolmen.commit.head import Context
from dolmen.entries.segments.row_bounds import column_bounds
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.chunk_locations import SpliceSource
from dolmen.format.column_terms import sort_ids
from dolmen.format.entries import Bounds, DataFile
from dolmen.format.layout import is_adopted
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import compression, has_index, key_filter_bits
from dolmen.format.schema import COMMIT_TS_ID, Field, is_nested
from dolmen.format.types import to_plain
from dolmen.rows.scan.data_objects import DataFileFooter, check_footer, missing_file_error
from dolmen.rows.scan.row_groups import FilePlan, OpenFile, RowGroup
from dolmen.rows.write.data_file import CopiedGroup, CopiedGroups, written_footer, written_metadata
from dolmen.rows.write.encodings import leaves
from dolmen.rows.write.row_order import RowOrder
from dolmen.rows.write.runs import (
    BLOOM_FALSE_POSITIVES,
    MAX_GROUP_ROWS,
    PAGE_BYTES,
    PAGE_ROWS,
    Extent,
    WriteOptions,
    sorting_columns,
    statistics_columns,
)

_LEAST_GROUP_SHARE, _LEAST_RUN_SHARE = 1 / 2, 1 / 4
"""A row group, or a run, is large enough with this share of a full one's size. The size of a run is a low estimate."""

_OFFSET_BYTES = 4


class SpliceJudge:
    """Judges row groups of files of one table. The entry has ``_commit_ts`` if the output has it."""

    def __init__(self, entry: TableEntry, options: WriteOptions) -> None:
        self._entry, self._options = entry, options
        self._leaves = leaves(entry.schema.arrow)
        self._columns = [entry.schema.by_id[id_] for id_ in statistics_columns(entry)]
        self._columns += [field for field in entry.schema.fields if field.id == COMMIT_TS_ID]
        self._filter_bits, self._codecs = key_filter_bits(entry), compression(entry).chunk_codecs
        self._filtered = {
            entry.schema.by_id[id_].name
            for id_ in entry.primary_key
            if not pa.types.is_boolean(entry.schema.by_id[id_].arrow_type)
        }
        self._order = tuple(sorting_columns(entry) or ())
        self._files: dict[str, bool] = {}

    def group(self, group: RowGroup) -> CopiedGroup | None:
        """A row group to copy; None if it has to be encoded again."""
        if group.deleted or group.tested_ids or not self._file_fits(group.file):
            return None
        footer = group.file.footer
        row_group = footer.metadata.row_group(group.index)
        chunks = [row_group.column(leaf) for leaf in range(row_group.num_columns)]
        size = sum(chunk.total_compressed_size for chunk in chunks)
        if (
            tuple(row_group.sorting_columns) != self._order
            or any(chunk.compression not in self._codecs for chunk in chunks)
            or not self._is_large(row_group, chunks, size)
            or not self._has_filters(group, chunks)
        ):
            return None
        extents: dict[int, Extent] = {}
        for field in self._columns:
            extent = _extent(group, field)
            if extent is None:
                return None
            extents[field.id] = extent
        return CopiedGroup(group.index, group.rows, size, extents)

    def _file_fits(self, file: OpenFile) -> bool:
        path = file.file.path
        if path not in self._files:
            self._files[path] = self._has_same_columns(file.footer) and self._has_same_pages(file.footer)
        return self._files[path]

    def _has_same_columns(self, footer: DataFileFooter) -> bool:
        """Whether a file written now would have the same columns, with their names, types and ids, and writer."""
        written, metadata = written_metadata(self._entry.schema.arrow), footer.metadata
        return bool(
            not footer.is_adopted
            and metadata.schema.equals(written.schema)
            and metadata.metadata == written.metadata
            and metadata.created_by == written.created_by
        )

    def _has_same_pages(self, footer: DataFileFooter) -> bool:
        """Whether the positions of all pages are known, and pages are larger than in a table with an index."""
        flat = [not leaf.is_nested for leaf in self._leaves]
        if footer.sums is None:
            return False
        if not any(flat):
            return True
        pages = footer.pages
        if pages is None or not pages.counts.reshape(-1, len(flat))[:, flat].all():
            return False
        small = bool(pages.rows.max() <= PAGE_ROWS and pages.lengths.mean() <= 2 * PAGE_BYTES)
        one_each = np.count_nonzero(pages.rows) == np.count_nonzero(pages.counts)
        return not small or bool(one_each)

    def _is_large(self, row_group: pq.RowGroupMetaData, chunks: list[pq.ColumnChunkMetaData], size: int) -> bool:
        """Whether it is about as large as a newly written one: by its bytes, its rows, or its bytes in memory."""
        rows = row_group.num_rows
        if size >= _LEAST_GROUP_SHARE * self._options.row_group_bytes or rows >= _LEAST_GROUP_SHARE * MAX_GROUP_ROWS:
            return True
        uncompressed = Counter[str]()
        for leaf, chunk in zip(self._leaves, chunks, strict=True):
            uncompressed[leaf.column] += chunk.total_uncompressed_size
        in_memory = sum(
            max(_fixed_bytes(field.type) * rows, uncompressed[field.name]) for field in self._entry.schema.arrow
        )
        return bool(in_memory >= _LEAST_RUN_SHARE * self._options.run_bytes)

    def _has_filters(self, group: RowGroup, chunks: list[pq.ColumnChunkMetaData]) -> bool:
        """Whether exactly the columns of the primary key have Bloom filters, of at least the present size.

        Filters of columns with few values are smaller, so only filters of the least size are certainly large enough.
        """
        least = 0
        if self._filter_bits > min(BLOOM_FALSE_POSITIVES):
            least = (1 << (group.rows - 1).bit_length()) * self._filter_bits // 8
        for leaf, chunk in zip(self._leaves, chunks, strict=True):
            is_filtered = leaf.column in self._filtered
            if is_filtered != (chunk.bloom_filter_offset is not None):
                return False
            if is_filtered and (chunk.bloom_filter_length or 0) < least:
                return False
        return True


def _fixed_bytes(arrow_type: pa.DataType) -> int:
    """The least number of bytes of a value in memory."""
    try:
        return -(-int(arrow_type.bit_width) // 8)
    except ValueError:
        return _OFFSET_BYTES


def _extent(group: RowGroup, field: Field) -> Extent | None:
    """The extent of a column of a row group whose rows are all live; None if its footer does not have it.

    A chunk of floats has statistics only without NaN. NULLs of nested columns are counted in the file's entry alone.
    """
    if is_nested(field.arrow_type):
        stats = group.file.file.stats.get(field.id)
        nulls_by_count = {0: 0, group.file.file.rows: group.rows}
        nulls = None if stats is None or stats.nulls is None else nulls_by_count.get(stats.nulls)
        return None if nulls is None else Extent(None, None, nulls)
    bounds = group.file.footer.bounds(group.index, field, 0)
    if bounds.nulls is None or ((bounds.min is None or bounds.max is None) and bounds.nulls != group.rows):
        return None
    return Extent(bounds.min, bounds.max, bounds.nulls, 0)


class ReadUnit(Struct, frozen=True):
    """A unit of reading: a whole file, which is opened when its turn comes, or one row group of an open file.

    ``rank`` orders units by their least key, unknown ones first. ``bound`` is at most that key; None if unknown.
    """

    rank: tuple[Any, ...]
    bound: tuple[pa.Scalar, ...] | None
    part: FilePlan | RowGroup

    @classmethod
    def of(cls, part: FilePlan | RowGroup, bounds: Bounds, order: RowOrder) -> ReadUnit:
        least = order.least(bounds)
        if least is None:
            return cls((0,), None, part)
        return cls((1, *(to_plain(pa.array([key], key.type))[0] for key in least)), least, part)


OutputParts: TypeAlias = list[CopiedGroups | list[ReadUnit]]
"""The parts of an output in order: row groups to copy, and units to encode again."""

_Key: TypeAlias = tuple[tuple[Any, ...], ...]

_BEFORE, _VALUE, _LAST, _AFTER = (-1,), 0, (1,), (2,)
"""Parts of keys: less than all values, the kind of a value, NaN or NULL, greater than all."""


class _Piece(Struct, frozen=True):
    """A unit with its approximate live bytes, and its row group if it can be copied."""

    unit: ReadUnit
    copied: CopiedGroup | None
    size: int

    @property
    def file(self) -> OpenFile | None:
        return self.unit.part.file if isinstance(self.unit.part, RowGroup) else None

    def follows(self, other: _Piece) -> bool:
        """Whether it belongs to the same run as ``other``, which is before it."""
        if self.copied is None or other.copied is None:
            return self.copied is other.copied
        return self.file is other.file and self.copied.index == other.copied.index + 1


class Splicing:
    """Divides the units of one group of files into row groups to copy, and others."""

    def __init__(
        self, context: Context, name: str, entry: TableEntry, options: WriteOptions, splice_bytes: int
    ) -> None:
        self._context, self._name, self._entry = context, name, entry
        self._splice_bytes, self._small_bytes = splice_bytes, options.row_group_bytes // 2
        self._judge = SpliceJudge(entry, options)
        self._sources: dict[str, SpliceSource | None] = {}

    def candidates(self, files: Sequence[DataFile]) -> set[str]:
        """Paths of the files whose row groups may be copied, as far as their entries show.

        Tables with an index have none, because their row groups are small; nor have those with a sort key of other
        terms than columns in ascending order.
        """
        least = 0 if has_index(self._entry) or not RowOrder(self._entry).is_plain else self._splice_bytes
        stored = COMMIT_TS_ID in self._entry.schema.by_id
        return {
            file.path
            for file in files
            if least and file.size >= least and not is_adopted(file.path) and (file.row_ts is None) == stored
        }

    def parts(self, units: Sequence[ReadUnit]) -> OutputParts | None:
        """The parts of an output, from its units in the order of their rows; None if none can be copied."""
        while True:
            parts, files = self._parts(units)
            if not files:
                return parts if any(isinstance(part, CopiedGroups) for part in parts) else None
            for file, source in self._context.runtime.map(self._fetch, files):
                self._sources[file.file.path] = source

    def _parts(self, units: Sequence[ReadUnit]) -> tuple[OutputParts, list[OpenFile]]:
        """The parts, and the files whose footers must be fetched first: if there are any, parts are missing."""
        pieces = self._pieces(units)
        if pieces is None:
            return [list(units)], []
        files_without_source: dict[str, OpenFile] = {}
        parts: OutputParts = []
        for run in _group_adjacent(self._choose(pieces)):
            file = run[0].file
            if run[0].copied is None or file is None:
                parts.append([piece.unit for piece in run])
                continue
            source = self._sources.get(file.file.path)
            if source is None:
                files_without_source[file.file.path] = file
            else:
                parts.append(CopiedGroups(source, tuple(piece.copied for piece in run if piece.copied)))
        return parts, list(files_without_source.values())

    def _pieces(self, units: Sequence[ReadUnit]) -> list[_Piece] | None:
        """The units in the order of the output, with their row groups to copy; None if none may be copied."""
        is_separate = [True] * len(units)
        if self._entry.sort_key:
            ranges = [self._range(unit) for unit in units]
            items = [(range_, unit) for range_, unit in zip(ranges, units, strict=True) if range_ is not None]
            order = sorted(items, key=lambda item: item[0][0])
            if len(order) < len(units):  # a unit with unknown keys may overlap all others
                return None
            units = [unit for _, unit in order]
            is_separate = _find_separate([range_ for range_, _ in order])
        return [self._piece(unit, separate) for unit, separate in zip(units, is_separate, strict=True)]

    def _piece(self, unit: ReadUnit, is_separate: bool) -> _Piece:
        part = unit.part
        if not isinstance(part, RowGroup):
            return _Piece(unit, None, part.file.live_bytes)
        path = part.file.file.path
        is_usable = path not in self._sources or self._sources[path] is not None
        copied = self._judge.group(part) if is_separate and is_usable else None
        size = sum(range_.length for range_ in part.ranges(frozenset(part.file.footer.columns)))
        return _Piece(unit, copied, size * (part.rows - part.deleted) // max(1, part.rows))

    def _choose(self, pieces: list[_Piece]) -> list[_Piece]:
        """The pieces with fewer copies: only where copying pays, and leaves no small row group between copies."""
        pieces = list(pieces)
        while True:
            rejected: set[int] = set()
            first = 0
            for run in _group_adjacent(pieces):
                end = first + len(run)
                size = sum(piece.size for piece in run)
                if run[0].copied is not None:
                    if size < self._splice_bytes:
                        rejected.update(range(first, end))
                elif size < self._small_bytes and len(run) < len(pieces):
                    rejected.add(end if end < len(pieces) else first - 1)
                first = end
            if not rejected:
                return pieces
            for index in rejected:
                pieces[index] = _Piece(pieces[index].unit, None, pieces[index].size)

    def _range(self, unit: ReadUnit) -> tuple[_Key, _Key] | None:
        part, by_id, key = unit.part, self._entry.schema.by_id, sort_ids(self._entry.sort_key)
        if isinstance(part, RowGroup):
            bounds = [part.file.footer.bounds(part.index, by_id[id_], 0) for id_ in key]
            return _key_range(bounds, part.rows)
        return _key_range([column_bounds(part.file, by_id[id_]) for id_ in key], part.file.rows)

    def _fetch(self, file: OpenFile) -> tuple[OpenFile, SpliceSource | None]:
        """Fetches the bytes after a file's column chunks. None if its row groups cannot be copied."""
        entry, footer = file.file, file.footer
        assert footer.sums is not None
        tail_start = footer.sums.behind_chunks(footer.metadata).start
        try:
            response = self._context.store.get(entry.path, (tail_start, entry.size + 1))
        except ObjectNotFoundError as error:
            raise missing_file_error(self._context.store, entry, self._name) from error
        if len(response.body) != entry.size - tail_start:
            return file, None  # reading its rows reports the damage
        try:
            check_footer(response.body[entry.footer[0] - tail_start :], entry)
        except CorruptionError:
            return file, None
        source = SpliceSource.parse(entry.path, response.etag, response.body, tail_start, entry.footer[0])
        has_same_frame = source is not None and source.footer.frame == written_footer(self._entry.schema.arrow).frame
        return file, source if has_same_frame else None


def _group_adjacent(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """Groups adjacent pieces: pieces of one file to copy, or pieces to encode again."""
    run: list[_Piece] = []
    for piece in pieces:
        if run and not piece.follows(run[-1]):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def _key_range(columns: Sequence[Bounds], rows: int) -> tuple[_Key, _Key] | None:
    """The least and the greatest key that rows may have; None if the first column's bounds are unknown.

    A key ends with the first column that has more than one value: later columns say nothing about the order. A bound
    without all columns bounds all keys that begin with it, so units that only touch there overlap.
    """
    low: list[tuple[Any, ...]] = []
    high: list[tuple[Any, ...]] = []
    for bounds in columns:
        if bounds.nulls is None or bounds.min is None or bounds.max is None or bounds.nulls == rows:
            break
        low.append((_VALUE, bounds.min))
        ends_last = bounds.nulls or bounds.nans != 0
        high.append(_LAST if ends_last else (_VALUE, bounds.max))
        if ends_last or bounds.min != bounds.max:
            break
    if not low:
        return None
    if len(low) == len(columns):
        return tuple(low), tuple(high)
    return (*low, _BEFORE), (*high, _AFTER)


def _find_separate(ranges: Sequence[tuple[_Key, _Key]]) -> list[bool]:
    """For each range, whether no key of another lies within it. Ranges are in the order of their least keys."""
    if not ranges:
        return []
    greatest = list(accumulate((high for _, high in ranges), max))
    least = list(accumulate((low for low, _ in reversed(ranges)), min))[::-1]
    last = len(ranges) - 1
    return [
        (index == 0 or greatest[index - 1] <= ranges[index][0])
        and (index == last or ranges[index][1] <= least[index + 1])
        for index in range(len(ranges))
    ]
