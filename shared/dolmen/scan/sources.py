"""Sources: where the bytes of row groups are read from, and the Parquet readers over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.scan.ranges import FetchedFile


class Source:
    """Bytes of one data file, on this machine or fetched, that several threads decode row groups from at once.

    Args:
        open_bytes: opens them as a new pyarrow file.
        metadata: the file's footer.
    """

    def __init__(self, open_bytes: Callable[[], Any], metadata: pq.FileMetaData) -> None:
        self._open_bytes, self._metadata = open_bytes, metadata
        self._idle: list[pq.ParquetFile] = []

    @classmethod
    def local(cls, path: str, metadata: pq.FileMetaData) -> Source:
        """A file of this machine."""
        return cls(lambda: pa.OSFile(path), metadata)

    @classmethod
    def fetched(cls, parts: Sequence[tuple[int, bytes]], size: int, metadata: pq.FileMetaData) -> Source:
        """Fetched ranges of a file of ``size`` bytes."""
        return cls(lambda: FetchedFile(parts, size).open(), metadata)

    def read(self, row_group: int, leaves: list[int]) -> pa.Table:
        """Decodes Parquet columns of one row group, and verifies the checksums of their pages.

        Raises:
            OSError, pyarrow.ArrowException: there is no such file, or it holds something else.
        """
        try:
            parquet = self._idle.pop()  # one reader is used by one thread at a time, and opening one takes a while
        except IndexError:
            parquet = pq.ParquetFile(
                self._open_bytes(), metadata=self._metadata, page_checksum_verification=True, pre_buffer=False
            )
        table = parquet.reader.read_row_group(row_group, column_indices=leaves, use_threads=False)
        rows = self._metadata.row_group(row_group).num_rows
        if table.num_rows != rows:  # a page whose damaged header no longer says that it is one is passed over
            raise pa.ArrowInvalid(f"{table.num_rows} rows were decoded, not {rows}")
        self._idle.append(parquet)
        return table
