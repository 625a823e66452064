"""Where pages and column chunks of a data file are, with a checksum for each, so that parts can be read alone.

docs/format.md specifies both blocks ("Checksums of column chunks", "Places of pages"). The *state* at a byte is the
CRC-32 of all the file's bytes before it: a part is as it was written if its CRC-32, begun with the state at its first
byte, is the state at its end.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise, starmap
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from dolmen.base.runtime import cached_property
from dolmen.base.units import MIB
from dolmen.errors import CorruptionError
from dolmen.format.parquet_footer import page_rows

SUMS_MAGIC = b"DSUM"
_END = struct.Struct("<I4s")
_PAIR = struct.Struct("<II")

ChunkRange: TypeAlias = tuple[int, int]  # first byte of a column chunk, and its number of bytes


class States(NamedTuple):
    """CRC-32 of all bytes of the file before a part of it, and before its end."""

    start: int
    end: int

    def match(self, body: Any) -> bool:
        """Whether ``body`` is that part."""
        return zlib.crc32(body, self.start) == self.end


class StoredStates(Sequence[States]):
    """States as a file stores them, 8 bytes each, decoded on access, because a table has many files."""

    __slots__ = ("_stored",)

    def __init__(self, stored: bytes) -> None:
        self._stored = stored

    def __len__(self) -> int:
        return len(self._stored) // _PAIR.size

    @overload
    def __getitem__(self, index: int) -> States: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[States, ...]: ...

    def __getitem__(self, index: int | slice) -> States | tuple[States, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if not 0 <= index < len(self):
            raise IndexError(index)
        return States(*_PAIR.unpack_from(self._stored, index * _PAIR.size))

    def __iter__(self) -> Iterator[States]:
        return starmap(States, _PAIR.iter_unpack(self._stored))


class PartSums(NamedTuple):
    """Bytes of a file outside its column chunks."""

    start: int
    end: int
    states: States


def chunk_range(chunk: pq.ColumnChunkMetaData) -> ChunkRange:
    """The bytes of a column chunk, its dictionary included."""
    start = chunk.data_page_offset
    if chunk.dictionary_page_offset is not None:
        start = min(start, chunk.dictionary_page_offset)
    return start, chunk.total_compressed_size


class ChunkSums(Struct, frozen=True):
    """The checksums of one file."""

    states: Sequence[States]  # of all column chunks, row groups in order
    end: int  # of everything before the footer
    footer: int  # first byte of the footer
    before: int = 0  # bytes of the footer before the block, which have the locations of pages

    @classmethod
    def collect(cls, metadata: pq.FileMetaData, states: dict[int, int], size: int) -> ChunkSums | None:
        """The checksums of a file being written; None if its writer does not begin column chunks with a write.

        ``states``: by the offset at which a write began.
        """
        ends = [(start, start + length) for start, length in chunk_ranges(metadata)]
        if any(end not in states for pair in ends for end in pair):
            return None
        return cls(tuple(States(states[start], states[end]) for start, end in ends), states[size], size)

    def encode(self) -> bytes:
        return np.array(self.states, "<u4").tobytes() + _END.pack(self.end, SUMS_MAGIC)

    @classmethod
    def decode(cls, footer: bytes, offset: int, metadata: pq.FileMetaData, key: str) -> ChunkSums | None:
        """The block in front of a footer; None if the file was written without. Raises CorruptionError.

        Args:
            footer: the entry's ``footer``: the block, the Thrift metadata, its length, and the magic.
            offset: of its first byte in the file.
        """
        length, _ = _END.unpack_from(footer, len(footer) - _END.size)
        size = len(footer) - _END.size - length
        if not size:
            return None
        chunks = metadata.num_row_groups * metadata.num_columns
        start = size - chunks * _PAIR.size - _END.size
        if start < 0 or footer[size - len(SUMS_MAGIC) : size] != SUMS_MAGIC:
            raise CorruptionError(key, f"footer: {size} bytes before it are no checksums of {chunks} column chunks")
        end, _ = _END.unpack_from(footer, size - _END.size)
        return cls(StoredStates(footer[start : start + chunks * _PAIR.size]), end, offset, start)

    def of_chunks(self, metadata: pq.FileMetaData, group: int, leaves: Sequence[int]) -> dict[ChunkRange, States]:
        """The states of some column chunks of a row group, by their bytes."""
        row_group, first = metadata.row_group(group), group * metadata.num_columns
        return {chunk_range(row_group.column(leaf)): self.states[first + leaf] for leaf in leaves}

    def behind_chunks(self, metadata: pq.FileMetaData) -> PartSums:
        """The bytes between the last column chunk and the block: Bloom filters and page index."""
        (start, length), states = max(zip(chunk_ranges(metadata), self.states, strict=True))
        return PartSums(start + length, self.footer, States(states.end, self.end))

    def other_bytes(self, metadata: pq.FileMetaData) -> Iterator[PartSums]:
        """The bytes that are neither in a column chunk nor in the footer: magic, page index, Bloom filters."""
        end, state = 0, 0
        for (start, length), states in sorted(zip(chunk_ranges(metadata), self.states, strict=True)):
            if end < start:
                yield PartSums(end, start, States(state, states.start))
            end, state = start + length, states.end
        if end < self.footer:
            yield PartSums(end, self.footer, States(state, self.end))


def chunk_ranges(metadata: pq.FileMetaData) -> Iterator[ChunkRange]:
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for leaf in range(metadata.num_columns):
            yield chunk_range(row_group.column(leaf))


PAGES_MAGIC = b"DPGS"
_MOST_BYTES = 256 * MIB
Numbers = npt.NDArray[np.int64]


def to_planes(numbers: Sequence[Numbers]) -> bytes:
    """Numbers as uint32: first the lowest bytes of all, then the second, third and fourth."""
    return np.concatenate(numbers).astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes()


def from_planes(planes: bytes) -> Numbers:
    """The numbers in ``to_planes``. Raises ValueError for a number of bytes that is not a multiple of 4."""
    columns = np.frombuffer(planes, np.uint8).reshape(4, -1)
    return np.ascontiguousarray(columns.T).view("<u4").reshape(-1).astype(np.int64)


class ChunkPages(Struct, frozen=True):
    """The pages of one column chunk."""

    starts: Numbers  # first byte of each page in the file, and the end of the last
    firsts: Numbers  # rows of the row group before each data page, and all its rows; without the dictionary
    states: tuple[States, ...]  # of each page
    has_dictionary: bool  # whether the first page is one


_MOST_CHUNKS = 1_024  # the most chunks of a file whose pages are kept


class PageLocations(Struct, frozen=True, dict=True):
    """The pages of one file."""

    counts: Numbers  # pages of each column chunk, row groups in order
    # lengths, rows, states: of all pages
    lengths: Numbers
    rows: Numbers
    states: Numbers

    @classmethod
    def collect(
        cls, metadata: pq.FileMetaData, states: dict[int, int], headers: dict[int, bytes], flat: Sequence[bool]
    ) -> PageLocations | None:
        """The pages of a file whose writer begins each page, and its data, with a write of its own; None without any.

        Args:
            states: by the offset at which a write began, the CRC-32 of all bytes before it, ascending.
            headers: by offset, the bytes of short writes.
            flat: of each leaf, whether it has one value for each row.
        """
        writes = list(states)
        counts: list[int] = []
        pages: list[tuple[int, int, int]] = []
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            for leaf in range(metadata.num_columns):
                start, length = chunk_range(row_group.column(leaf))
                own = _pages(start, start + length, writes, states, headers) if flat[leaf] else []
                if sum(rows for _, rows, _ in own) != row_group.num_rows:
                    own = []
                counts.append(len(own))
                pages += own
        if not pages:
            return None
        lengths, rows, ends = np.array(pages, np.int64).T
        return cls(np.array(counts, np.int64), lengths, rows, ends)

    def encode(self) -> bytes:
        planes = to_planes([self.counts, self.lengths, self.rows, self.states])
        frame: bytes = pa.Codec("zstd").compress(planes, asbytes=True)
        return _PAIR.pack(len(planes), len(frame)) + frame + PAGES_MAGIC

    @classmethod
    def decode(cls, block: bytes, chunks: int) -> PageLocations | None:
        """Reads the bytes before the checksums of column chunks; None if there is no block, or a newer dolmen's."""
        if not block:
            return None
        try:
            size, length = _PAIR.unpack_from(block)
            if (
                block[-len(PAGES_MAGIC) :] != PAGES_MAGIC
                or _PAIR.size + length + len(PAGES_MAGIC) != len(block)
                or size > _MOST_BYTES
            ):
                return None
            frame = memoryview(block)[_PAIR.size : _PAIR.size + length]
            numbers = from_planes(pa.decompress(frame, size, codec="zstd", asbytes=True))
            counts = numbers[:chunks]
            if len(counts) != chunks or len(numbers) != chunks + 3 * int(counts.sum()):
                return None
        except (ValueError, struct.error, OSError, pa.ArrowException):
            return None
        lengths, rows, states = numbers[chunks:].reshape(3, -1)
        return cls(counts, lengths, rows, states)

    def of_chunk(self, metadata: pq.FileMetaData, sums: ChunkSums, group: int, leaf: int) -> ChunkPages | None:
        """The pages of a column chunk; None if they are not known, or do not make up the chunk."""
        at = group * metadata.num_columns + leaf
        found = self._chunks.get(at)
        if found is None:
            found = self._find_chunk(metadata, sums, group, leaf)
            if found is not None:
                if len(self._chunks) >= _MOST_CHUNKS:
                    self._chunks.clear()
                self._chunks[at] = found
        return found

    @cached_property
    def _chunks(self) -> dict[int, ChunkPages]:
        return {}

    def _find_chunk(self, metadata: pq.FileMetaData, sums: ChunkSums, group: int, leaf: int) -> ChunkPages | None:
        at = group * metadata.num_columns + leaf
        count = int(self.counts[at])
        if not count:
            return None
        first = int(self.counts[:at].sum())
        start, length = chunk_range(metadata.row_group(group).column(leaf))
        starts = start + np.concatenate([[0], np.cumsum(self.lengths[first : first + count])])
        rows = self.rows[first : first + count]
        ends = [sums.states[at].start, *self.states[first : first + count].tolist()]
        has_dictionary = count > 1 and not rows[0]
        firsts = np.concatenate([[0], np.cumsum(rows[1:] if has_dictionary else rows)])
        end = (int(starts[-1]), int(firsts[-1]), ends[-1])
        if end != (start + length, metadata.row_group(group).num_rows, sums.states[at].end):
            return None
        return ChunkPages(starts, firsts, tuple(starmap(States, pairwise(ends))), has_dictionary)


def _pages(
    start: int, end: int, writes: Sequence[int], states: dict[int, int], headers: dict[int, bytes]
) -> list[tuple[int, int, int]]:
    """Length, rows and state at the end of each page; none if they are not as expected."""
    begin = bisect_left(writes, start)
    own = writes[begin : bisect_left(writes, end)]
    if len(own) % 2:
        return []
    pages = []
    for index, (header, after) in enumerate(pairwise([*own[::2], end])):
        rows = page_rows(headers[header]) if header in headers else None
        if rows is None or after not in states or (rows == 0 and index):
            return []
        pages.append((after - header, rows, states[after]))
    return pages
