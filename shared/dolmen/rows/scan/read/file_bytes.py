"""The bytes of a data file, and the Parquet readers over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.format.arrow_arrays import one_array
from dolmen.rows.scan.read.adopted_columns import as_read
from dolmen.rows.scan.read.byte_ranges import CheckedFile, FetchedFile, LocalFile, verify
from dolmen.rows.scan.read.footers import DataFileFooter, FetchedFooter
from dolmen.rows.scan.read.single_pages import Rows, picked_pages, read_pages


@dataclass
class _Reader:
    """A Parquet reader, which one thread uses at a time.

    Args:
        parquet: the reader.
        file: what it reads, if that verifies what is read.
    """

    parquet: pq.ParquetFile
    file: CheckedFile | None = None


class FileBytes:
    """Bytes of one data file, on this machine or fetched, that several threads decode row groups from at once.

    Args:
        open_bytes: opens them as a new file.
        footer: the file's.
        body: the whole file if it is in memory.
        parquet: a reader of ``body``.
    """

    def __init__(
        self,
        open_bytes: Callable[[], CheckedFile],
        footer: DataFileFooter,
        body: bytes | None = None,
        parquet: pq.ParquetFile | None = None,
    ) -> None:
        self._open_bytes, self._footer, self._body = open_bytes, footer, body
        self._idle = [] if parquet is None else [_Reader(parquet)]  # opening one takes a while

    @classmethod
    def from_path(cls, path: str, footer: DataFileFooter) -> FileBytes:
        """Opens a file of this machine."""
        return cls(lambda: LocalFile(path), footer)

    @classmethod
    def from_ranges(cls, parts: Sequence[tuple[int, bytes]], size: int, footer: DataFileFooter) -> FileBytes:
        """Takes ranges of a file of ``size`` bytes that were fetched."""
        return cls(lambda: FetchedFile(parts, size), footer)

    @classmethod
    def from_body(cls, found: FetchedFooter) -> FileBytes:
        """Takes a whole file that was fetched with its footer."""
        body = found.body
        assert body is not None
        return cls(lambda: FetchedFile([(0, body)], len(body)), found.footer, body, found.parquet)

    def read(self, row_group: int, leaves: list[int]) -> pa.Table:
        """Decodes Parquet columns of one row group, and verifies their checksums: before anything is decoded.

        Of files without checksums of column chunks those of pages are verified, which don't cover page headers.

        Raises:
            OSError, pyarrow.ArrowException: there is no such file, or it holds something else.
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
        table = reader.parquet.reader.read_row_group(row_group, column_indices=leaves, use_threads=False)
        if reader.file and reader.file.expected:
            raise AssertionError(f"column chunks at {sorted(reader.file.expected)} were read unchecked")
        rows = metadata.row_group(row_group).num_rows
        if table.num_rows != rows:  # a page whose damaged header no longer says that it is one is passed over
            raise pa.ArrowInvalid(f"{table.num_rows} rows were decoded, not {rows}")
        self._idle.append(reader)
        if self._footer.columns_by:
            wanted = [column.type for column in self._footer.columns.values() if column.leaves[0] in leaves]
            columns = [as_read(own, kind) for own, kind in zip(table.columns, wanted, strict=True)]
            return pa.Table.from_arrays(columns, names=table.column_names)
        return table

    def _open(self) -> _Reader:
        file = None if self._body is not None else self._open_bytes()
        parquet = pq.ParquetFile(
            file.open() if file else pa.BufferReader(self._body),
            metadata=self._footer.metadata,
            page_checksum_verification=self._footer.sums is None,
            pre_buffer=False,
        )
        return _Reader(parquet, file)

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
            return one_array(self.read(row_group, list(column.leaves)).column(0).take(pa.array(rows)))
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
        return one_array(found.take(picked.at))
