"""Places of the pages of column chunks, with a checksum for each, so that single pages can be read.

The block stands at the beginning of what an entry calls ``footer``, before the checksums of column chunks::

    length of the numbers    uint32, little endian: decompressed
    length of the frame      uint32, little endian
    frame                    one Zstandard frame: the numbers, uint32, first the lowest bytes of all, then the next
    "DPGS"                   4 bytes

The numbers: for each column chunk (row groups in order, leaves in order) how many pages it has, or 0 if nothing is said
of them; then for all pages in order their lengths, headers included; their rows, 0 for a dictionary; and the CRC-32 of
all bytes of the file up to the end of each.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.base.units import MIB
from dolmen.format.chunk_sums import ChunkSums, States, chunk_place
from dolmen.format.thrift import page_rows

MAGIC = b"DPGS"
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
        return _HEAD.pack(len(planes), len(frame)) + frame + MAGIC

    @classmethod
    def decode(cls, block: bytes, chunks: int) -> PagePlaces | None:
        """Reads a block.

        Args:
            block: all that stands between the beginning of ``footer`` and the checksums of column chunks.
            chunks: how many the file has.

        Returns:
            None if there is none, or something else, which a newer dolmen may have written: only the checksum of the
            footer tells damage.
        """
        if not block:
            return None
        try:
            size, length = _HEAD.unpack_from(block)
            if block[-len(MAGIC) :] != MAGIC or _HEAD.size + length + len(MAGIC) != len(block) or size > _MOST_BYTES:
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
