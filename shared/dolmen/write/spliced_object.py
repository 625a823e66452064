"""One data file that is made of row groups of other files, as they are, and of rows that are encoded anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.format.checksum import crc32
from dolmen.format.chunk_sums import ChunkSums, States
from dolmen.format.entries import DataFile
from dolmen.format.manifest import TableEntry
from dolmen.format.page_places import PagePlaces
from dolmen.format.parquet_footer import FooterParts, MovedGroup, move_groups
from dolmen.format.splice_source import MAGIC, SpliceSource
from dolmen.store.base import ObjectOutput
from dolmen.write.extent import Extent
from dolmen.write.parquet_object import ParquetStream, WritePlan, file_entry, has_filters, merge_extents
from dolmen.write.runs import Run


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


class SplicedObject:
    """Puts row groups together as one Parquet object. Used as a context: leaving it uncommitted aborts the upload.

    Column chunks keep their bytes; their places in the file, and their checksums, follow from those that they had.
    So a damaged byte in a source is a damaged byte here, which every reader finds as before.

    Args:
        output: the upload; belongs to this object from here on.
        path: its key.
    """

    def __init__(self, output: ObjectOutput, path: str, entry: TableEntry) -> None:
        self._output, self._path, self._entry = output, path, entry
        self._position = self._state = 0  # bytes so far, and their CRC-32
        self._stream: ParquetStream | None = None
        self._stream_start = self._stream_state = self._skip = 0
        self._groups: list[MovedGroup] = []
        self._states: list[States] = []
        self._pages: list[PagePlaces] = []
        self._extents: dict[int, Extent] = {}
        self._unbounded: set[int] = set()  # columns of which nobody knows the bounds in some rows
        self._rows = 0
        self._has_filters = False

    @property
    def size(self) -> int:
        """Bytes written so far; the footer and the filters are yet to come."""
        return self._position if self._stream is None else self._stream_start + self._stream.size - len(MAGIC)

    def copy(self, copied: CopiedGroups) -> None:
        """Appends row groups as they are."""
        self._end_stream()
        source = copied.source
        groups = range(copied.groups[0].index, copied.groups[-1].index + 1)
        first, end = source.place(groups)
        if not self._position and first == len(MAGIC):  # its beginning is that of every file
            self._output.copy(source.key, (0, end), source.etag)
            self._position, self._state = first, crc32(MAGIC)
        else:
            self._begin()
            self._output.copy(source.key, (first, end), source.etag)
        self._state = self._add(source, groups, self._position, self._state)
        self._position += end - first
        for group in copied.groups:
            self._add_rows(group.rows, group.extents)

    def write(self, run: Run, plan: WritePlan) -> None:
        """Appends rows, in row groups of about equal size.

        Args:
            plan: counts where the rows follow upon copied row groups; they are written like those before, else.
        """
        if self._stream is not None and not self._stream.accepts(run):
            self._end_stream()
        if self._stream is None:
            self._begin()
            self._stream_start, self._stream_state, self._skip = self._position, self._state, len(MAGIC)
            self._stream = ParquetStream(self._take, self._entry, plan, run)
        self._stream.write(run)

    def commit(self) -> DataFile:
        """Finishes the file and makes the object visible; returns its entry, not yet stamped."""
        self._end_stream()
        start = self._position
        behind, encoded = move_groups(self._groups, start)
        footer = self._footer(encoded, start + len(behind), crc32(behind, self._state))
        self._output.write(behind + footer)
        expected = start + len(behind) + len(footer)
        size = self._output.commit()
        if size != expected:
            raise AssertionError(f"{self._path}: {expected} bytes were written, {size} were stored")
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
        if self._stream is not None:
            self._stream.abandon()
        self._output.__exit__(*exception)

    def _begin(self) -> None:
        if not self._position:
            self._append(MAGIC)

    def _append(self, body: bytes) -> None:
        self._output.write(body)
        self._state = crc32(body, self._state)
        self._position += len(body)

    def _take(self, body: bytes) -> None:
        """Appends bytes of the stream, without its beginning, which is that of a file of its own."""
        skipped = min(self._skip, len(body))
        self._skip -= skipped
        if len(body) > skipped:
            self._append(body[skipped:])

    def _end_stream(self) -> None:
        """Takes the row groups of the stream, as if they were copied from a file of their own."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        behind, footer, _ = stream.finish()
        source = SpliceSource.parse(self._path, "", behind + footer, stream.size, stream.size + len(behind))
        if source is None:
            raise AssertionError(f"{self._path}: the Parquet writer has written a file of another kind")
        before = source.sums.states[0].start ^ crc32(MAGIC)
        if before or self._position - self._stream_start != stream.size - len(MAGIC):
            raise AssertionError(f"{self._path}: the Parquet writer has written something before its row groups")
        groups = range(source.metadata.num_row_groups)
        state = self._add(source, groups, self._stream_start, self._stream_state)
        if state != self._state:
            raise AssertionError(f"{self._path}: the checksum of what was written is {self._state}, not {state}")
        self._add_rows(stream.rows, stream.extents)

    def _add_rows(self, rows: int, extents: Mapping[int, Extent]) -> None:
        self._rows += rows
        merge_extents(self._extents, extents)
        self._unbounded |= {
            id_ for id_, found in extents.items() if found.least is None and found.nulls + found.nans < rows
        }

    def _add(self, source: SpliceSource, groups: range, position: int, state: int) -> int:
        """Takes over what is known of row groups, and returns the CRC-32 at their end.

        Args:
            position: where they begin here.
            state: CRC-32 of what is before them.
        """
        if source.footer.frame != written_frame(self._entry.schema.arrow):
            raise AssertionError(f"{source.key} has other columns than {self._path}, or another writer")
        sums = source.moved_sums(groups, state)
        self._groups += source.moved_groups(groups, position - source.place(groups)[0])
        self._states += sums.states
        self._pages.append(sums.pages)
        self._has_filters |= has_filters(source.metadata)
        return sums.end

    def _footer(self, groups: Sequence[bytes], start: int, state: int) -> bytes:
        """All that the entry calls so.

        Args:
            groups: the row groups, encoded.
            start: where it begins.
            state: CRC-32 of what is before it.
        """
        pages = PagePlaces(
            *(
                np.concatenate(parts)
                for parts in zip(*((p.counts, p.lengths, p.rows, p.states) for p in self._pages), strict=True)
            )
        )
        block = pages.encode() if len(pages.lengths) else b""
        block += ChunkSums(tuple(self._states), state, start).encode()
        metadata = FooterParts(written_frame(self._entry.schema.arrow), ()).encode(groups, self._rows)
        return block + metadata + len(metadata).to_bytes(4, "little") + MAGIC
