"""Chooses the row groups that compaction copies without decoding them: those that re-encoding would not change.

docs/maintenance.md has the conditions (Row groups that are copied). They are checked by entries and footers alone, and
row groups that are uncertain are encoded again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.commit.head import Context
from dolmen.entries.segments.row_bounds import column_bounds
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.chunk_locations import SpliceSource
from dolmen.format.entries import Bounds, DataFile
from dolmen.format.layout import is_adopted
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import has_index, key_filter_bits
from dolmen.format.schema import COMMIT_TS_ID, Field, is_nested
from dolmen.format.types import to_scalar
from dolmen.rows.scan.data_objects import DataFileFooter, check_footer, missing_file_error
from dolmen.rows.scan.row_groups import FilePlan, OpenFile, RowGroup
from dolmen.rows.write.data_file import CopiedGroup, CopiedGroups, written_frame, written_metadata
from dolmen.rows.write.encodings import WRITTEN_CODECS, WriteOptions, leaves
from dolmen.rows.write.parquet_object import (
    BLOOM_FALSE_POSITIVES,
    MAX_GROUP_ROWS,
    PAGE_BYTES,
    PAGE_ROWS,
    Extent,
    sorting_columns,
    statistics_columns,
)

_SHARE = 2
"""A row group of a full one's size, divided by this, is large enough."""

_RUN_SHARE = 4
"""The same for a run, whose size in memory is estimated from below."""

_OFFSET_BYTES = 4


class Spliceable:
    """Judges row groups of files of one table. The entry has ``_commit_ts`` if the output has it."""

    def __init__(self, entry: TableEntry, options: WriteOptions) -> None:
        self._entry, self._options = entry, options
        self._leaves = leaves(entry.schema.arrow)
        self._columns = [entry.schema.by_id[id_] for id_ in statistics_columns(entry)]
        self._columns += [field for field in entry.schema.fields if field.id == COMMIT_TS_ID]
        self._filter_bits = key_filter_bits(entry)
        self._filtered = {
            entry.schema.by_id[id_].name
            for id_ in entry.primary_key
            if not pa.types.is_boolean(entry.schema.by_id[id_].arrow_type)
        }
        self._order = tuple(sorting_columns(entry) or ())
        self._files: dict[str, bool] = {}

    def group(self, group: RowGroup) -> CopiedGroup | None:
        """A row group as it can be copied; None if it has to be encoded again."""
        if group.deleted or group.tests or not self._file_fits(group.file):
            return None
        footer = group.file.footer
        row_group = footer.metadata.row_group(group.index)
        chunks = [row_group.column(leaf) for leaf in range(row_group.num_columns)]
        size = sum(chunk.total_compressed_size for chunk in chunks)
        if (
            tuple(row_group.sorting_columns) != self._order
            or any(chunk.compression not in WRITTEN_CODECS for chunk in chunks)
            or not self._is_large(row_group, chunks, size)
            or not self._has_filters(group, chunks)
        ):
            return None
        extents: dict[int, Extent] = {}
        for field in self._columns:
            found = _extent(group, field)
            if found is None:
                return None
            extents[field.id] = found
        return CopiedGroup(group.index, group.rows, size, extents)

    def _file_fits(self, file: OpenFile) -> bool:
        path = file.file.path
        if path not in self._files:
            self._files[path] = self._has_same_columns(file.footer) and self._has_same_pages(file.footer)
        return self._files[path]

    def _has_same_columns(self, footer: DataFileFooter) -> bool:
        """Whether columns, their names, types and ids, and the writer are those of a file that is written now."""
        now, there = written_metadata(self._entry.schema.arrow), footer.metadata
        return bool(
            not footer.is_adopted
            and there.schema.equals(now.schema)
            and there.metadata == now.metadata
            and there.created_by == now.created_by
        )

    def _has_same_pages(self, footer: DataFileFooter) -> bool:
        """Whether the places of all pages are known, and pages are not as small as those of a table with an index."""
        flat = [not leaf.nested for leaf in self._leaves]
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
        """Whether it is about as large as one that would be written: by its bytes, its rows, or its bytes in memory."""
        rows = row_group.num_rows
        if size * _SHARE >= self._options.row_group_bytes or rows * _SHARE >= MAX_GROUP_ROWS:
            return True
        uncompressed = Counter[str]()
        for leaf, chunk in zip(self._leaves, chunks, strict=True):
            uncompressed[leaf.column] += chunk.total_uncompressed_size
        in_memory = sum(
            max(_fixed_bytes(field.type) * rows, uncompressed[field.name]) for field in self._entry.schema.arrow
        )
        return bool(in_memory * _RUN_SHARE >= self._options.run_bytes)

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
    """Bytes of a value in memory, at least."""
    try:
        return -(-int(arrow_type.bit_width) // 8)
    except ValueError:
        return _OFFSET_BYTES


def _extent(group: RowGroup, field: Field) -> Extent | None:
    """The extent of a column of a row group whose rows are all live; None if its footer does not tell.

    A chunk of floats has statistics only without NaN. NULLs of nested columns are counted in the file's entry alone.
    """
    if is_nested(field.arrow_type):
        stats = group.file.file.stats.get(field.id)
        known = {0: 0, group.file.file.rows: group.rows}
        nulls = None if stats is None or stats.nulls is None else known.get(stats.nulls)
        return None if nulls is None else Extent(None, None, nulls)
    found = group.file.footer.bounds(group.index, field, 0)
    if found.nulls is None or ((found.min is None or found.max is None) and found.nulls != group.rows):
        return None
    return Extent(found.min, found.max, found.nulls, 0)


@dataclass(frozen=True)
class Unit:
    """A unit of reading: a whole file, which is opened when its turn comes, or one row group of an open one.

    ``rank`` orders units by their least key, unknown ones first. ``bound`` is that key or less; None if it is unknown.
    """

    rank: tuple[Any, ...]
    bound: tuple[pa.Scalar, ...] | None
    part: FilePlan | RowGroup

    @classmethod
    def of(cls, part: FilePlan | RowGroup, known: Bounds, key: Field) -> Unit:
        if known.min is None:
            return cls((0,), None, part)
        return cls((1, known.min), (to_scalar(known.min, key.arrow_type),), part)


Segments: TypeAlias = list[CopiedGroups | list[Unit]]
"""The parts of an output in order: row groups that are copied, and units that are encoded again."""

_Key: TypeAlias = tuple[tuple[Any, ...], ...]

_BEFORE, _VALUE, _LAST, _BEHIND = (-1,), 0, (1,), (2,)
"""Parts of keys: less than all values, the kind of a value, NaN or NULL, greater than all."""


@dataclass(frozen=True)
class _Piece:
    """A unit with its approximate live bytes, and its row group if that can be copied."""

    unit: Unit
    copied: CopiedGroup | None
    size: int

    @property
    def file(self) -> OpenFile | None:
        return self.unit.part.file if isinstance(self.unit.part, RowGroup) else None

    def follows(self, other: _Piece) -> bool:
        """Whether it is copied together with the one before it."""
        if self.copied is None or other.copied is None:
            return self.copied is other.copied
        return self.file is other.file and self.copied.index == other.copied.index + 1


class Splicing:
    """Divides the units of one group of files into row groups that are copied, and others."""

    def __init__(
        self, context: Context, name: str, entry: TableEntry, options: WriteOptions, splice_bytes: int
    ) -> None:
        self._context, self._name, self._entry = context, name, entry
        self._splice_bytes, self._small_bytes = splice_bytes, options.row_group_bytes // 2
        self._spliceable = Spliceable(entry, options)
        self._sources: dict[str, SpliceSource | None] = {}

    def candidates(self, files: Sequence[DataFile]) -> set[str]:
        """Paths of files of which some row groups may be copied, as far as their entries show.

        Tables with an index have none, because their row groups are small.
        """
        least = 0 if has_index(self._entry) else self._splice_bytes
        stored = COMMIT_TS_ID in self._entry.schema.by_id
        return {
            file.path
            for file in files
            if least and file.size >= least and not is_adopted(file.path) and (file.row_ts is None) == stored
        }

    def segments(self, units: Sequence[Unit]) -> Segments | None:
        """The segments of an output, by its units in the order of their rows; None if nothing is to be copied."""
        while True:
            segments, lacking = self._segments(units)
            if not lacking:
                return segments if any(isinstance(segment, CopiedGroups) for segment in segments) else None
            for file, source in self._context.runtime.map(self._fetch, lacking):
                self._sources[file.file.path] = source

    def _segments(self, units: Sequence[Unit]) -> tuple[Segments, list[OpenFile]]:
        """The segments, and files whose footers are needed for them; without these they are not yet right."""
        pieces = self._pieces(units)
        if pieces is None:
            return [list(units)], []
        lacking: dict[str, OpenFile] = {}
        segments: Segments = []
        for run in _runs(self._chosen(pieces)):
            file = run[0].file
            if run[0].copied is None or file is None:
                segments.append([piece.unit for piece in run])
                continue
            source = self._sources.get(file.file.path)
            if source is None:
                lacking[file.file.path] = file
            else:
                segments.append(CopiedGroups(source, tuple(piece.copied for piece in run if piece.copied)))
        return segments, list(lacking.values())

    def _pieces(self, units: Sequence[Unit]) -> list[_Piece] | None:
        """The units in the order of the output, with those that may be copied; None if none may."""
        alone = [True] * len(units)
        if self._entry.sort_key:
            ranges = [self._range(unit) for unit in units]
            known = [(range_, unit) for range_, unit in zip(ranges, units, strict=True) if range_ is not None]
            order = sorted(known, key=lambda item: item[0][0])
            if len(order) < len(units):  # a unit with unknown keys may have any
                return None
            units = [unit for _, unit in order]
            alone = _alone([range_ for range_, _ in order])
        return [self._piece(unit, apart) for unit, apart in zip(units, alone, strict=True)]

    def _piece(self, unit: Unit, alone: bool) -> _Piece:
        part = unit.part
        if not isinstance(part, RowGroup):
            return _Piece(unit, None, part.file.live_bytes)
        path = part.file.file.path
        usable = path not in self._sources or self._sources[path] is not None
        copied = self._spliceable.group(part) if alone and usable else None
        size = sum(found.length for found in part.ranges(frozenset(part.file.footer.columns)))
        return _Piece(unit, copied, size * (part.rows - part.deleted) // max(1, part.rows))

    def _chosen(self, pieces: list[_Piece]) -> list[_Piece]:
        """The same pieces, of which those are copied where that pays, and leaves no small row group between them."""
        pieces = list(pieces)
        while True:
            given_up: set[int] = set()
            first = 0
            for run in _runs(pieces):
                end = first + len(run)
                size = sum(piece.size for piece in run)
                if run[0].copied is not None:
                    if size < self._splice_bytes:
                        given_up.update(range(first, end))
                elif size < self._small_bytes and len(run) < len(pieces):
                    given_up.add(end if end < len(pieces) else first - 1)
                first = end
            if not given_up:
                return pieces
            for index in given_up:
                pieces[index] = _Piece(pieces[index].unit, None, pieces[index].size)

    def _range(self, unit: Unit) -> tuple[_Key, _Key] | None:
        part, by_id = unit.part, self._entry.schema.by_id
        if isinstance(part, RowGroup):
            known = [part.file.footer.bounds(part.index, by_id[id_], 0) for id_ in self._entry.sort_key]
            return _key_range(known, part.rows)
        return _key_range([column_bounds(part.file, by_id[id_]) for id_ in self._entry.sort_key], part.file.rows)

    def _fetch(self, file: OpenFile) -> tuple[OpenFile, SpliceSource | None]:
        """Fetches the bytes behind the column chunks of a file. None if its row groups cannot be copied."""
        entry, footer = file.file, file.footer
        assert footer.sums is not None
        start = footer.sums.behind_chunks(footer.metadata).start
        try:
            found = self._context.store.get(entry.path, (start, entry.size + 1))
        except ObjectNotFoundError as error:
            raise missing_file_error(self._context.store, entry, self._name) from error
        if len(found.body) != entry.size - start:
            return file, None  # reading its rows reports the damage
        try:
            check_footer(found.body[entry.footer[0] - start :], entry)
        except CorruptionError:
            return file, None
        source = SpliceSource.parse(entry.path, found.etag, found.body, start, entry.footer[0])
        fits = source is not None and source.footer.frame == written_frame(self._entry.schema.arrow)
        return file, source if fits else None


def _runs(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """Groups adjacent pieces: copied ones of one file, or ones that are not copied."""
    run: list[_Piece] = []
    for piece in pieces:
        if run and not piece.follows(run[-1]):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def _key_range(known: Sequence[Bounds], rows: int) -> tuple[_Key, _Key] | None:
    """The least and the greatest key that rows may have; None if nothing is known of the first column.

    It ends with the first column that has more than one value: later columns say nothing about the order. A bound
    that does not cover all columns means all keys that begin with it, so units which only touch there overlap.
    """
    low: list[tuple[Any, ...]] = []
    high: list[tuple[Any, ...]] = []
    for bounds in known:
        if bounds.nulls is None or bounds.min is None or bounds.max is None or bounds.nulls == rows:
            break
        low.append((_VALUE, bounds.min))
        last = bounds.nulls or bounds.nans != 0
        high.append(_LAST if last else (_VALUE, bounds.max))
        if last or bounds.min != bounds.max:
            break
    if not low:
        return None
    if len(low) == len(known):
        return tuple(low), tuple(high)
    return (*low, _BEFORE), (*high, _BEHIND)


def _alone(ranges: Sequence[tuple[_Key, _Key]]) -> list[bool]:
    """Tells of each range whether no key of another lies within it; they come in the order of their least keys."""
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
