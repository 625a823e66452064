"""A data file as a source of row groups for another file: all that its footer says of them, to be carried over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.base.cached import cached_property
from dolmen.errors import CorruptionError
from dolmen.format.chunk_sums import ChunkSums, States, chunk_place
from dolmen.format.crc_shift import Numbers, carried, carried_difference
from dolmen.format.page_places import PagePlaces
from dolmen.format.parquet_footer import FooterParts, MovedGroup

MAGIC = b"PAR1"
_END_BYTES = 8  # the footer's length, and the magic


@dataclass(frozen=True)
class GroupSums:
    """Checksums of consecutive row groups, and the places of their pages.

    Args:
        states: of each column chunk, at its start and at its end.
        distances: of each of these, the bytes of the row groups before it.
        pages: as in ``PagePlaces``.
        page_distances: of each page, the bytes of the row groups before its end.
    """

    states: Numbers
    distances: Numbers
    pages: PagePlaces
    page_distances: Numbers

    @property
    def start(self) -> int:
        """CRC-32 of the bytes before the row groups."""
        return int(self.states[0])

    def end(self, difference: int) -> int:
        """CRC-32 up to their end, if they stood behind other bytes.

        Args:
            difference: of CRC-32 of these and ``start``, by exclusive or.
        """
        return int(self.states[-1]) ^ carried_difference(difference, int(self.distances[-1]))


def moved_sums(parts: Sequence[GroupSums], differences: Sequence[int]) -> tuple[list[States], PagePlaces]:
    """The checksums of row groups that stand behind other bytes than where they were written, and their pages.

    They follow from the checksums there: whether the bytes are as they were written, they tell as before.

    Args:
        differences: of each part, between CRC-32 of the bytes before it here and there, by exclusive or.
    """
    moved = np.array(differences, np.int64)

    def of_each(counts: Iterable[int]) -> Numbers:
        return np.repeat(moved, np.array(list(counts), np.int64))

    states = carried(
        np.concatenate([part.states for part in parts]),
        np.concatenate([part.distances for part in parts]),
        of_each(len(part.states) for part in parts),
    )
    pages = PagePlaces(
        np.concatenate([part.pages.counts for part in parts]),
        np.concatenate([part.pages.lengths for part in parts]),
        np.concatenate([part.pages.rows for part in parts]),
        carried(
            np.concatenate([part.pages.states for part in parts]),
            np.concatenate([part.page_distances for part in parts]),
            of_each(len(part.page_distances) for part in parts),
        ),
    )
    return [States(*pair) for pair in states.reshape(-1, 2).tolist()], pages


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

    def group_sums(self, groups: range) -> GroupSums:
        """The checksums of consecutive row groups, as they are here."""
        columns = self.metadata.num_columns
        first, last = groups.start * columns, groups.stop * columns
        begin = self._edges[first]
        distances = np.stack([self._edges[first:last], self._edges[first + 1 : last + 1]], axis=1) - begin
        counts = self.pages.counts[first:last]
        before = int(self.pages.counts[:first].sum())
        own = slice(before, before + int(counts.sum()))
        lengths = self.pages.lengths[own]
        totals = np.concatenate([[0], np.cumsum(lengths)])
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])  # number of the first page of each chunk
        ends = totals[1:] - np.repeat(totals[starts], counts) + np.repeat(self._edges[first:last], counts)
        return GroupSums(
            np.array(self.sums.states[first:last], np.int64).reshape(-1),
            distances.reshape(-1),
            PagePlaces(counts, lengths, self.pages.rows[own], self.pages.states[own]),
            ends - begin,
        )

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
