"""One data file that is put together of row groups: of other files, and of runs that were encoded by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Self, TypeVar
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.format.chunk_locations import PARQUET_MAGIC, GroupSums, SpliceSource, moved_sums
from dolmen.format.entries import DataFile
from dolmen.format.manifest import TableEntry
from dolmen.format.page_locations import ChunkSums
from dolmen.format.parquet_footer import FooterParts, MovedGroup, move_groups
from dolmen.rows.write.parquet_object import WritePlan, commit_output, encode, file_entry, has_filters
from dolmen.rows.write.runs import Extent, Run
from dolmen.store.base import ObjectOutput, StreamedOutput

Output = TypeVar("Output", bound=StreamedOutput)


@dataclass(frozen=True)
class CopiedGroup:
    """A row group that becomes part of another file.

    Args:
        index: its number in its file.
        rows: how many it has.
        size: bytes of its column chunks.
        extents: of all columns that have statistics in an entry, and of ``_commit_ts`` if that is one.
    """

    index: int
    rows: int
    size: int
    extents: Mapping[int, Extent]


@dataclass(frozen=True)
class CopiedGroups:
    """Consecutive row groups of one file that become part of others.

    Args:
        source: the file; its frame is that of ``written_frame``.
    """

    source: SpliceSource
    groups: tuple[CopiedGroup, ...]


@dataclass(frozen=True)
class EncodedGroups:
    """A run whose row groups become part of a file.

    Args:
        body: the bytes of the column chunks, and the magic before them.
        source: what the footer says of them.
        extents: of all columns.
    """

    body: Sequence[bytes]
    source: SpliceSource
    rows: int
    extents: Mapping[int, Extent]

    @classmethod
    def of(cls, run: Run, entry: TableEntry, plan: WritePlan) -> EncodedGroups:
        """Encodes a run in memory."""
        body: list[bytes] = []
        encoded = encode(body.append, entry, plan, run)
        behind, size = encoded.behind, encoded.size
        source = SpliceSource.parse("", "", behind + encoded.footer, size, size + len(behind))
        if source is None:
            raise AssertionError("the Parquet writer has written a file of another kind")
        return cls(body, source, encoded.rows, encoded.extents)


@lru_cache(64)
def written_metadata(schema: pa.Schema) -> pq.FileMetaData:
    """The footer of a file of these columns without rows, as it is written now."""
    return pq.read_metadata(pa.BufferReader(_file_without_rows(schema)))


@lru_cache(64)
def written_frame(schema: pa.Schema) -> bytes:
    """The footer of a file of these columns as it is written now, encoded, without its rows and row groups.

    Only row groups of files in which it is the same may be put together.
    """
    body = _file_without_rows(schema)
    length = int.from_bytes(body[-8:-4], "little")
    return FooterParts.parse(body[-8 - length : -8]).frame


def _file_without_rows(schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    body: bytes = sink.getvalue().to_pybytes()
    return body


class SplicedObject(Generic[Output]):
    """Puts row groups together as one Parquet object. Used as a context: leaving it uncommitted aborts the upload.

    Column chunks keep their bytes; their places in the file, and their checksums, follow from those that they had.
    So a damaged byte in a source is a damaged byte here, which every reader finds as before.

    Args:
        output: the upload; belongs to this object from here on.
        path: its key.
    """

    def __init__(self, output: Output, path: str, entry: TableEntry) -> None:
        self._output, self._path, self._entry = output, path, entry
        self._position = self._state = 0  # bytes so far, and their CRC-32
        self._groups: list[MovedGroup] = []
        self._sums: list[GroupSums] = []
        self._differences: list[int] = []  # between the CRC-32 before each of them, here and there
        self._extents: dict[int, Extent] = {}
        self._unbounded: set[int] = set()  # columns whose bounds are unknown in some rows
        self._rows = 0
        self._has_filters = False

    @property
    def size(self) -> int:
        """Bytes written so far; the footer and the filters are yet to come."""
        return self._position

    def copy(self: SplicedObject[ObjectOutput], copied: CopiedGroups) -> None:
        """Appends row groups as they are."""
        source = copied.source
        groups = range(copied.groups[0].index, copied.groups[-1].index + 1)
        first, end = source.place(groups)
        if not self._position and first == len(PARQUET_MAGIC):  # its beginning is that of every file
            self._output.copy(source.key, (0, end), source.etag)
            self._position, self._state = first, crc32(PARQUET_MAGIC)
        else:
            self._begin()
            self._output.copy(source.key, (first, end), source.etag)
        self._add(source, groups)
        for group in copied.groups:
            self._add_rows(group.rows, group.extents)

    def write(self, encoded: EncodedGroups) -> None:
        """Appends the rows of a run."""
        self._begin()
        skipped = len(PARQUET_MAGIC)
        for piece in encoded.body:
            self._output.write(piece[skipped:])
            skipped = 0
        self._add(encoded.source, range(encoded.source.metadata.num_row_groups))
        self._add_rows(encoded.rows, encoded.extents)

    def commit(self) -> DataFile:
        """Finishes the file and makes the object visible; returns its entry, not yet stamped."""
        start = self._position
        behind, encoded = move_groups(self._groups, start)
        footer = self._footer(encoded, start + len(behind), crc32(behind, self._state))
        self._output.write(behind + footer)
        size = commit_output(self._output, self._path, start + len(behind) + len(footer))
        filters = start if self._has_filters else 0
        extents = {
            id_: found._replace(least=None, greatest=None) if id_ in self._unbounded else found
            for id_, found in self._extents.items()
        }
        return file_entry(self._path, size, self._rows, footer, extents, filters, self._entry)

    def __enter__(self) -> Self:
        self._output.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._output.__exit__(*exception)

    def _begin(self) -> None:
        if not self._position:
            self._output.write(PARQUET_MAGIC)
            self._position, self._state = len(PARQUET_MAGIC), crc32(PARQUET_MAGIC)

    def _add_rows(self, rows: int, extents: Mapping[int, Extent]) -> None:
        self._rows += rows
        for id_, found in extents.items():
            self._extents[id_] = self._extents[id_].merged(found) if id_ in self._extents else found
        self._unbounded |= {
            id_ for id_, found in extents.items() if found.least is None and found.nulls + found.nans < rows
        }

    def _add(self, source: SpliceSource, groups: range) -> None:
        """Takes over the statistics of row groups that were added at the end of this file."""
        if source.footer.frame != written_frame(self._entry.schema.arrow):
            raise AssertionError(f"{source.key} has other columns than {self._path}, or another writer")
        first, end = source.place(groups)
        self._groups += source.moved_groups(groups, self._position - first)
        self._has_filters |= has_filters(source.metadata)
        sums = source.group_sums(groups)
        difference = self._state ^ sums.start
        self._sums.append(sums)
        self._differences.append(difference)
        self._position, self._state = self._position + end - first, sums.end(difference)

    def _footer(self, groups: Sequence[bytes], start: int, state: int) -> bytes:
        """All that the entry calls so.

        Args:
            groups: the row groups, encoded.
            start: where it begins.
            state: CRC-32 of what is before it.
        """
        states, pages = moved_sums(self._sums, self._differences)
        block = pages.encode() if len(pages.lengths) else b""
        block += ChunkSums(tuple(states), state, start).encode()
        metadata = FooterParts(written_frame(self._entry.schema.arrow), ()).encode(groups, self._rows)
        return block + metadata + len(metadata).to_bytes(4, "little") + PARQUET_MAGIC
