"""The bytes of a data file, and the Parquet readers over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.scan.adopted_columns import as_read
from dolmen.scan.footers import DataFileFooter
from dolmen.scan.page_file import read_pages
from dolmen.scan.picked_pages import Rows, picked_pages
from dolmen.scan.ranges import CheckedFile, FetchedFile, LocalFile


class FileBytes:
    """Bytes of one data file, on this machine or fetched, that several threads decode row groups from at once.

    Args:
        open_bytes: opens them as a new file.
        footer: the file's.
    """

    def __init__(self, open_bytes: Callable[[], CheckedFile], footer: DataFileFooter) -> None:
        self._open_bytes, self._footer = open_bytes, footer
        self._idle: list[tuple[CheckedFile, pq.ParquetFile]] = []

    @classmethod
    def from_path(cls, path: str, footer: DataFileFooter) -> FileBytes:
        """Opens a file of this machine."""
        return cls(lambda: LocalFile(path), footer)

    @classmethod
    def from_ranges(cls, parts: Sequence[tuple[int, bytes]], size: int, footer: DataFileFooter) -> FileBytes:
        """Takes ranges of a file of ``size`` bytes that were fetched."""
        return cls(lambda: FetchedFile(parts, size), footer)

    def read(self, row_group: int, leaves: list[int]) -> pa.Table:
        """Decodes Parquet columns of one row group, and verifies their checksums: before anything is decoded.

        Of files without checksums of column chunks those of pages are verified, which don't cover page headers.

        Raises:
            OSError, pyarrow.ArrowException: there is no such file, or it holds something else.
        """
        metadata, sums = self._footer.metadata, self._footer.sums
        try:
            file, parquet = self._idle.pop()  # one reader is used by one thread at a time; opening one takes a while
        except IndexError:
            file = self._open_bytes()
            parquet = pq.ParquetFile(
                file.open(), metadata=metadata, page_checksum_verification=sums is None, pre_buffer=False
            )
        if sums:
            file.expected = sums.of_chunks(metadata, row_group, leaves)
        table = parquet.reader.read_row_group(row_group, column_indices=leaves, use_threads=False)
        if file.expected:
            raise AssertionError(f"column chunks at {sorted(file.expected)} were read unchecked")
        rows = metadata.row_group(row_group).num_rows
        if table.num_rows != rows:  # a page whose damaged header no longer says that it is one is passed over
            raise pa.ArrowInvalid(f"{table.num_rows} rows were decoded, not {rows}")
        self._idle.append((file, parquet))
        if self._footer.is_adopted:
            wanted = [column.type for column in self._footer.columns.values() if column.leaves[0] in leaves]
            columns = [as_read(own, kind) for own, kind in zip(table.columns, wanted, strict=True)]
            return pa.Table.from_arrays(columns, names=table.column_names)
        return table

    def pick(self, row_group: int, id_: int, rows: Rows) -> pa.Array:
        """Decodes some rows of a column that the file has: pages with these rows if their places are known.

        Args:
            rows: numbers of rows in the row group, ascending.

        Raises:
            OSError, pyarrow.ArrowException: there is no such file, or it holds something else.
        """
        column, metadata = self._footer.columns[id_], self._footer.metadata
        picked = picked_pages(self._footer, row_group, column, rows)
        if picked is None:
            return _one_array(self.read(row_group, list(column.leaves)).column(0).take(pa.array(rows)))
        file = self._open_bytes()
        chunk, bodies = picked.chunk, []
        for page, wanted in zip(picked.numbers, picked.ranges(), strict=True):
            file.seek(wanted.start)
            body = file.read_buffer(wanted.length)
            if not chunk.states[page].fit(body):
                raise OSError(f"the checksum of the page at byte {wanted.start} differs")
            bodies.append(body)
        leaf = column.leaves[0]
        found = read_pages(
            bodies,
            picked.rows,
            metadata.row_group(row_group).column(leaf),
            metadata.schema.column(leaf),
            column.type,
            has_dictionary=chunk.has_dictionary,
        )
        return _one_array(found.take(picked.at))


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
