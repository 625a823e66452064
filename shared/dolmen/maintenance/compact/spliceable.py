"""Which row groups can stand in a new file as they are: those that would be written alike, as far as readers see."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.format.manifest import TableEntry
from dolmen.format.properties import key_filter_bits
from dolmen.format.schema import COMMIT_TS_ID, Field, is_nested
from dolmen.maintenance.compact.plan import CompactionOptions
from dolmen.rows.scan.footers import DataFileFooter
from dolmen.rows.scan.row_groups import OpenFile, RowGroup
from dolmen.rows.write.encodings import WRITTEN_CODECS, Leaf, leaves
from dolmen.rows.write.extent import Extent
from dolmen.rows.write.options import DEFAULT
from dolmen.rows.write.parquet_object import (
    BLOOM_FALSE_POSITIVES,
    MAX_GROUP_ROWS,
    PAGE_BYTES,
    PAGE_ROWS,
    sorting_columns,
    statistics_columns,
)
from dolmen.rows.write.spliced_object import CopiedGroup, written_metadata

_SHARE = 2
"""A row group of a full one's size, divided by this, is large enough."""
_RUN_SHARE = 4
"""The same for a run, whose size in memory is only known to be at least what is reckoned here."""
_OFFSET_BYTES = 4


class Spliceable:
    """Judges row groups of files of one table.

    Args:
        entry: the table's, with ``_commit_ts`` if the output has it.
    """

    def __init__(self, entry: TableEntry, options: CompactionOptions) -> None:
        self._entry, self._options = entry, options
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
        """A row group as it can be copied; None if it has to be encoded anew."""
        if group.gone or group.tests or not self._file_fits(group.file):
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

    @property
    def _leaves(self) -> tuple[Leaf, ...]:
        return leaves(self._entry.schema.arrow)

    def _is_large(self, row_group: pq.RowGroupMetaData, chunks: list[pq.ColumnChunkMetaData], size: int) -> bool:
        """Whether it is about as large as one that would be written: by its bytes, its rows, or its bytes in memory."""
        rows = row_group.num_rows
        if size * _SHARE >= (self._options.row_group_bytes or DEFAULT.row_group_bytes):
            return True
        if rows * _SHARE >= MAX_GROUP_ROWS:
            return True
        in_memory = sum(
            max(_fixed_bytes(field.type) * rows, sum(chunks[leaf].total_uncompressed_size for leaf in own))
            for field, own in self._leaves_by_column()
        )
        return bool(in_memory * _RUN_SHARE >= self._options.run_bytes)

    def _leaves_by_column(self) -> list[tuple[pa.Field, list[int]]]:
        names = [leaf.column for leaf in self._leaves]
        return [
            (field, [leaf for leaf, name in enumerate(names) if name == field.name])
            for field in self._entry.schema.arrow
        ]

    def _has_filters(self, group: RowGroup, chunks: list[pq.ColumnChunkMetaData]) -> bool:
        """Whether exactly the columns of the primary key have Bloom filters, of at least the present size.

        Filters of columns with few values are smaller. Only where filters have the least size that there is, all are
        certainly large enough.
        """
        least = 0
        if self._filter_bits > min(BLOOM_FALSE_POSITIVES):
            least = (1 << (group.rows - 1).bit_length()) * self._filter_bits // 8
        for leaf, chunk in zip(self._leaves, chunks, strict=True):
            wanted = leaf.column in self._filtered
            if wanted != (chunk.bloom_filter_offset is not None):
                return False
            if wanted and (chunk.bloom_filter_length or 0) < least:
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

    A chunk of floats has statistics only if no value in it is NaN. Of nested columns, only the entry of the file
    counts NULL.
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
