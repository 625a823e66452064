"""A data file as a source of row groups for another file: all that its footer says of them, to be carried over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.cached import cached_property
from dolmen.errors import CorruptionError
from dolmen.format.chunk_sums import ChunkSums, States, chunk_place
from dolmen.format.crc_shift import Numbers, carried
from dolmen.format.page_places import PagePlaces
from dolmen.format.parquet_footer import FooterParts, MovedGroup

MAGIC = b"PAR1"
_END_BYTES = 8  # the footer's length, and the magic


@dataclass(frozen=True)
class MovedSums:
    """Checksums of row groups that have moved, and the places of their pages.

    Args:
        states: of each column chunk.
        pages: as in ``PagePlaces``.
        end: CRC-32 of all bytes up to the end of the last column chunk.
    """

    states: tuple[States, ...]
    pages: PagePlaces
    end: int


@dataclass(frozen=True)
class SpliceSource:
    """A file whose row groups may become part of another one.

    Args:
        key: of the object.
        etag: of the object whose footer this is.
        metadata: its footer, as pyarrow reads it.
        footer: the same, taken apart.
        sums: of its column chunks.
        pages: of its column chunks.
        start: the first byte behind its column chunks.
        behind: from there to the footer: Bloom filters and page index, as they were written.
    """

    key: str
    etag: str
    metadata: pq.FileMetaData
    footer: FooterParts
    sums: ChunkSums
    pages: PagePlaces
    start: int
    behind: bytes

    @classmethod
    def parse(cls, key: str, etag: str, body: bytes, start: int, footer_start: int) -> Self | None:
        """Reads all that stands behind the column chunks.

        Args:
            body: from ``start`` to the end of the file; the footer in it has been compared with the entry.
            start: the first byte behind the last column chunk.
            footer_start: where that begins which an entry calls ``footer``.

        Returns:
            None if row groups cannot be taken from the file: something stands elsewhere than dolmen writes it, is
            damaged, or is not there.
        """
        end = body[footer_start - start :]
        length = int.from_bytes(end[-_END_BYTES:-4], "little")
        try:
            metadata = pq.read_metadata(pa.BufferReader(end))
            footer = FooterParts.parse(end[-_END_BYTES - length : -_END_BYTES])
            sums = ChunkSums.decode(end, footer_start, metadata, key)
        except (ValueError, OSError, pa.ArrowException, CorruptionError):
            return None
        if sums is None or len(footer.groups) != metadata.num_row_groups:
            return None
        pages = PagePlaces.decode(end[: sums.before], metadata.num_row_groups * metadata.num_columns)
        if pages is None:
            none = np.zeros(0, np.int64)
            pages = PagePlaces(np.zeros(len(sums.states), np.int64), none, none, none)
        source = cls(key, etag, metadata, footer, sums, pages, start, body[: footer_start - start])
        return source if source._is_whole() else None

    def place(self, groups: range) -> tuple[int, int]:
        """The bytes of consecutive row groups: first, and the one behind the last."""
        edges, columns = self._edges, self.metadata.num_columns
        return int(edges[groups.start * columns]), int(edges[groups.stop * columns])

    def moved_groups(self, groups: range, by: int) -> list[MovedGroup]:
        """Row groups as parts of another file, in which their bytes stand ``by`` bytes later."""
        behind = memoryview(self.behind)
        return [MovedGroup(self.footer.groups[group], by, behind, self.start) for group in groups]

    def moved_sums(self, groups: range, state: int) -> MovedSums:
        """The checksums of row groups that stand behind other bytes than here.

        They follow from the checksums here: whether the bytes are as they were written, they tell as before.

        Args:
            state: CRC-32 of the bytes that are before them now.
        """
        columns = self.metadata.num_columns
        first, last = groups.start * columns, groups.stop * columns
        begin = self._edges[first]
        old = np.array(self.sums.states[first:last], np.int64).reshape(-1, 2)
        difference = int(old[0, 0]) ^ state
        distances = np.stack([self._edges[first:last], self._edges[first + 1 : last + 1]], axis=1) - begin
        states = carried(old.reshape(-1), distances.reshape(-1), difference).reshape(-1, 2)
        return MovedSums(
            tuple(States(*pair) for pair in states.tolist()),
            self._moved_pages(first, last, difference),
            int(states[-1, 1]),
        )

    def _moved_pages(self, first: int, last: int, difference: int) -> PagePlaces:
        counts = self.pages.counts[first:last]
        before = int(self.pages.counts[:first].sum())
        own = slice(before, before + int(counts.sum()))
        lengths = self.pages.lengths[own]
        totals = np.concatenate([[0], np.cumsum(lengths)])
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])  # number of the first page of each chunk
        ends = totals[1:] - np.repeat(totals[starts], counts) + np.repeat(self._edges[first:last], counts)
        states = carried(self.pages.states[own], ends - self._edges[first], difference)
        return PagePlaces(counts, lengths, self.pages.rows[own], states)

    @cached_property
    def _edges(self) -> Numbers:
        """Where each column chunk begins, and where the last one ends."""
        places = self._places()
        return np.array([*(place for place, _ in places), sum(places[-1])], np.int64)

    def _places(self) -> list[tuple[int, int]]:
        groups = map(self.metadata.row_group, range(self.metadata.num_row_groups))
        return [chunk_place(group.column(leaf)) for group in groups for leaf in range(self.metadata.num_columns)]

    def _is_whole(self) -> bool:
        """Whether column chunks follow upon each other, and what is behind them is as it was written."""
        place = len(MAGIC)
        for start, length in self._places():
            if start != place:
                return False
            place = start + length
        behind = self.sums.behind_chunks(self.metadata)
        return place == self.start == behind.start and behind.states.fit(self.behind)
