"""Places of the pages of column chunks, with a checksum for each, so that single pages can be read.

The block is at the beginning of an entry's ``footer``, before the checksums of column chunks::

    length of the numbers    uint32, little endian: decompressed
    length of the frame      uint32, little endian
    frame                    one Zstandard frame: the numbers, uint32, first the lowest bytes of all, then the next
    "DPGS"                   4 bytes

The numbers: for each column chunk (row groups in order, leaves in order) how many pages it has, or 0 if nothing is said
of them; then for all pages in order their lengths, headers included; their rows, 0 for a dictionary; and the CRC-32 of
all bytes of the file up to the end of each.

Checksums of column chunks, page headers, page index and Bloom filters, for which Parquet has none.

They stand between the page index and the Parquet footer, where readers of Parquet never look::

    start, end              2 x uint32, little endian, for each column chunk: row groups in order, leaves in order
    end of all              uint32
    "DSUM"                  4 bytes

In the footer, places of pages (format/page_places.py) may stand before them.

*State* at a byte = CRC-32 of all the file's bytes before it. A chunk is as it was written if its CRC-32, begun with the
state at its first byte, is the state at its end; so each is checked by itself, and with the "end of all" (the state at
the footer's first byte) all the file's bytes. The entry's ``footer`` holds this block, so that its CRC-32 covers
the checksums, and through them the data: no other file passes for this one.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.base.units import MIB
from dolmen.errors import CorruptionError
from dolmen.format.parquet_footer import page_rows

SUMS_MAGIC = b"DSUM"
_END = struct.Struct("<I4s")
_PAIR = struct.Struct("<II")
_LENGTH = struct.Struct("<I4s")

Place: TypeAlias = tuple[int, int]
"""First byte of a column chunk, and its length."""


class States(NamedTuple):
    """CRC-32 of all bytes of the file before a part of it, and before its end."""

    start: int
    end: int

    def fit(self, body: Any) -> bool:
        """Whether ``body`` is that part."""
        return zlib.crc32(body, self.start) == self.end


class StoredStates(Sequence[States]):
    """States as a file stores them, each of which is made when it is asked for: a table has many files.

    Args:
        stored: 8 bytes for each, start and end.
    """

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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


class PartSums(NamedTuple):
    """Bytes of a file outside its column chunks."""

    start: int
    end: int
    states: States


def chunk_place(chunk: pq.ColumnChunkMetaData) -> Place:
    """The place of a column chunk, its dictionary included."""
    start = chunk.data_page_offset
    if chunk.dictionary_page_offset is not None:
        start = min(start, chunk.dictionary_page_offset)
    return start, chunk.total_compressed_size


@dataclass(frozen=True)
class ChunkSums:
    """The checksums of one file.

    Args:
        states: of all column chunks, row groups in order.
        end: of everything before the footer.
        place: first byte of the footer.
        before: bytes of the footer before the block, which say where pages are.
    """

    states: Sequence[States]
    end: int
    place: int
    before: int = 0

    @classmethod
    def collect(cls, metadata: pq.FileMetaData, states: dict[int, int], place: int) -> ChunkSums | None:
        """The checksums of a file being written.

        Args:
            states: at each byte that the writer began to write at.
            place: how many bytes there are.

        Returns:
            None if the writer does not begin its column chunks with a write of their own.
        """
        found = []
        for start, length in _places(metadata):
            if start not in states or start + length not in states:
                return None
            found.append(States(states[start], states[start + length]))
        return cls(tuple(found), states[place], place)

    def encode(self) -> bytes:
        """The block."""
        return np.array(self.states, "<u4").tobytes() + _END.pack(self.end, SUMS_MAGIC)

    @classmethod
    def decode(cls, footer: bytes, offset: int, metadata: pq.FileMetaData, key: str) -> ChunkSums | None:
        """The block in front of a footer.

        Args:
            footer: what the entry calls so: the block, the Thrift metadata, its length, and the magic.
            offset: of its first byte in the file.
            key: the file's, for the error.

        Returns:
            None if the file was written without.

        Raises:
            CorruptionError: there is something else.
        """
        length, _ = _LENGTH.unpack_from(footer, len(footer) - _LENGTH.size)
        size = len(footer) - _LENGTH.size - length
        if not size:
            return None
        chunks = metadata.num_row_groups * metadata.num_columns
        start = size - chunks * _PAIR.size - _END.size
        if start < 0 or footer[size - len(SUMS_MAGIC) : size] != SUMS_MAGIC:
            raise CorruptionError(key, f"footer: {size} bytes before it are no checksums of {chunks} column chunks")
        end, _ = _END.unpack_from(footer, size - _END.size)
        return cls(StoredStates(footer[start : start + chunks * _PAIR.size]), end, offset, start)

    def of_chunks(self, metadata: pq.FileMetaData, group: int, leaves: Sequence[int]) -> dict[Place, States]:
        """The states of some column chunks of a row group, by where they are."""
        row_group, first = metadata.row_group(group), group * metadata.num_columns
        return {chunk_place(row_group.column(leaf)): self.states[first + leaf] for leaf in leaves}

    def behind_chunks(self, metadata: pq.FileMetaData) -> PartSums:
        """All that is between the last column chunk and the block: Bloom filters and page index."""
        (start, length), states = max(zip(_places(metadata), self.states, strict=True))
        return PartSums(start + length, self.place, States(states.end, self.end))

    def others(self, metadata: pq.FileMetaData) -> Iterator[PartSums]:
        """All that is neither in a column chunk nor in the footer: magic, page index, Bloom filters."""
        place, state = 0, 0
        chunks = sorted(zip(_places(metadata), self.states, strict=True))
        for (start, length), states in chunks:
            if place < start:
                yield PartSums(place, start, States(state, states.start))
            place, state = start + length, states.end
        if place < self.place:
            yield PartSums(place, self.place, States(state, self.end))


def _places(metadata: pq.FileMetaData) -> Iterator[Place]:
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for leaf in range(metadata.num_columns):
            yield chunk_place(row_group.column(leaf))


PAGES_MAGIC = b"DPGS"
_HEAD = struct.Struct("<II")
_MOST_BYTES = 256 * MIB
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ChunkPages:
    """The pages of one column chunk.

    Args:
        starts: first byte of each page in the file, and the end of the last.
        firsts: rows of the row group before each data page, and all its rows; without the dictionary.
        states: of each page.
        has_dictionary: whether the first page is one.
    """

    starts: Numbers
    firsts: Numbers
    states: tuple[States, ...]
    has_dictionary: bool


@dataclass(frozen=True)
class PagePlaces:
    """The pages of one file.

    Args:
        counts: pages of each column chunk, row groups in order.
        lengths, rows, states: of all pages.
    """

    counts: Numbers
    lengths: Numbers
    rows: Numbers
    states: Numbers

    @classmethod
    def collect(
        cls, metadata: pq.FileMetaData, states: dict[int, int], headers: dict[int, bytes], flat: Sequence[bool]
    ) -> PagePlaces | None:
        """The pages of a file being written, whose writer begins each page and its data with a write of their own.

        Args:
            states: by the place at which a write began, the CRC-32 of all bytes before it, ascending.
            headers: by place, the bytes of short writes.
            flat: of each leaf, whether it has one value for each row.

        Returns:
            None if nothing is known of any page.
        """
        writes = list(states)
        counts: list[int] = []
        found: list[tuple[int, int, int]] = []
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            for leaf in range(metadata.num_columns):
                start, length = chunk_place(row_group.column(leaf))
                own = _pages(start, start + length, writes, states, headers) if flat[leaf] else []
                if sum(rows for _, rows, _ in own) != row_group.num_rows:
                    own = []
                counts.append(len(own))
                found += own
        if not found:
            return None
        lengths, rows, ends = np.array(found, np.int64).T
        return cls(np.array(counts, np.int64), lengths, rows, ends)

    def encode(self) -> bytes:
        """The block."""
        numbers = np.concatenate([self.counts, self.lengths, self.rows, self.states]).astype("<u4")
        planes = numbers.view(np.uint8).reshape(-1, 4).T.tobytes()
        frame: bytes = pa.Codec("zstd").compress(planes, asbytes=True)
        return _HEAD.pack(len(planes), len(frame)) + frame + PAGES_MAGIC

    @classmethod
    def decode(cls, block: bytes, chunks: int) -> PagePlaces | None:
        """Reads a block.

        Args:
            block: everything between the beginning of ``footer`` and the checksums of column chunks.
            chunks: how many the file has.

        Returns:
            None if there is none, or something else, which a newer dolmen may have written: only the checksum of the
            footer tells damage.
        """
        if not block:
            return None
        try:
            size, length = _HEAD.unpack_from(block)
            if (
                block[-len(PAGES_MAGIC) :] != PAGES_MAGIC
                or _HEAD.size + length + len(PAGES_MAGIC) != len(block)
                or size > _MOST_BYTES
            ):
                return None
            frame = memoryview(block)[_HEAD.size : _HEAD.size + length]
            planes = np.frombuffer(pa.decompress(frame, size, codec="zstd", asbytes=True), np.uint8)
            numbers = np.ascontiguousarray(planes.reshape(4, -1).T).view("<u4").reshape(-1).astype(np.int64)
            counts = numbers[:chunks]
            if len(counts) != chunks or len(numbers) != chunks + 3 * int(counts.sum()):
                return None
        except (ValueError, struct.error, OSError, pa.ArrowException):
            return None
        lengths, rows, states = numbers[chunks:].reshape(3, -1)
        return cls(counts, lengths, rows, states)

    def of_chunk(self, metadata: pq.FileMetaData, sums: ChunkSums, group: int, leaf: int) -> ChunkPages | None:
        """The pages of a column chunk; None if nothing is said of them, or they do not make up the chunk."""
        at = group * metadata.num_columns + leaf
        count = int(self.counts[at])
        if not count:
            return None
        first = int(self.counts[:at].sum())
        start, length = chunk_place(metadata.row_group(group).column(leaf))
        starts = start + np.concatenate([[0], np.cumsum(self.lengths[first : first + count])])
        rows = self.rows[first : first + count]
        ends = [sums.states[at].start, *self.states[first : first + count].tolist()]
        has_dictionary = count > 1 and not rows[0]
        firsts = np.concatenate([[0], np.cumsum(rows[1:] if has_dictionary else rows)])
        whole = (int(starts[-1]), int(firsts[-1]), ends[-1])
        if whole != (start + length, metadata.row_group(group).num_rows, sums.states[at].end):
            return None
        states = tuple(States(*pair) for pair in pairwise(ends))
        return ChunkPages(starts, firsts, states, has_dictionary)


def _pages(
    start: int, end: int, writes: Sequence[int], states: dict[int, int], headers: dict[int, bytes]
) -> list[tuple[int, int, int]]:
    """Length, rows and state at the end of each page; none if they are not as expected."""
    begin = bisect_left(writes, start)
    own = writes[begin : bisect_left(writes, end)]
    if len(own) % 2:
        return []
    found = []
    for at, header in enumerate(own[::2]):
        after = own[2 * at + 2] if 2 * at + 2 < len(own) else end
        rows = page_rows(headers[header]) if header in headers else None
        if rows is None or after not in states or (rows == 0 and at):
            return []
        found.append((after - header, rows, states[after]))
    return found
