"""Places and checksums of the column chunks of a data file, small enough for an index to have those of all its files.

With them some row groups are read without the file's footer. The numbers, each a uint32, of which first the lowest
bytes of all stand, then the second, third and fourth::

    groups                   how many row groups there are
    rows                     of each row group
    lengths                  bytes of each column chunk: row groups in order; in each, the leaf columns in order
    repeated                 of each column chunk: its values less the rows of its row group
    states                   CRC-32 of all bytes of the file up to the end of each column chunk

The first column chunk begins at byte 4, and each of the others where the one before it ends. What all files with the
same columns have in common is a Parquet footer without row groups.

A data file as a source of row groups for another file: all that its footer says of them, to be carried over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.base.runtime import cached_property
from dolmen.base.units import KIB
from dolmen.errors import CorruptionError
from dolmen.format.page_locations import ChunkSums, PagePlaces, States, chunk_place
from dolmen.format.parquet_footer import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    EmptyFooter,
    FooterParts,
    MovedGroup,
    array,
    binary,
    integer,
    struct,
)

MOST_GROUP_BYTES = 512 * KIB
"""The most bytes of a row group whose whole column chunks are worth reading for a row."""
PHYSICAL_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "ZSTD": 6}
_MAGIC = b"PAR1"
_CODEC = "ZSTD"
_END = 1 << 32
ChunkNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PlacedGroups:
    """Some row groups of a file.

    Args:
        metadata: a footer that has them alone, without statistics.
        firsts: position of the first row of each.
        states: of their column chunks.
    """

    metadata: pq.FileMetaData
    firsts: tuple[int, ...]
    states: tuple[States, ...]


@dataclass(frozen=True)
class ChunkPlaces:
    """The column chunks of one file.

    Args:
        schema: the Thrift metadata of a file with the same columns and without rows.
        rows: of each row group.
        lengths, repeated, states: a row for each row group, a column for each leaf.
    """

    schema: bytes
    rows: ChunkNumbers
    lengths: ChunkNumbers
    repeated: ChunkNumbers
    states: ChunkNumbers

    @classmethod
    def collect(cls, metadata: pq.FileMetaData, sums: ChunkSums | None) -> ChunkPlaces | None:
        """The column chunks of a file by its footer; None if the numbers can't say where they are, or need not.

        Args:
            sums: the file's checksums.
        """
        groups, leaves = metadata.num_row_groups, metadata.num_columns
        schema = _schema_of(metadata)
        if sums is None or schema is None or not groups:
            return None
        found: list[tuple[int, int, int]] = []
        end, state, rows = len(_MAGIC), crc32(_MAGIC), list[int]()
        for group in range(groups):
            row_group, first = metadata.row_group(group), end
            rows.append(row_group.num_rows)
            for leaf in range(leaves):
                chunk, states = row_group.column(leaf), sums.states[group * leaves + leaf]
                start, length = chunk_place(chunk)
                extra = chunk.num_values - rows[-1]
                if (start, states.start) != (end, state) or not 0 <= extra < _END or chunk.compression != _CODEC:
                    return None
                found.append((length, extra, states.end))
                end, state = start + length, states.end
            if end - first > MOST_GROUP_BYTES:
                return None
        lengths, repeated, ends = np.array(found, np.int64).reshape(groups, leaves, 3).transpose(2, 0, 1)
        return cls(schema, np.array(rows, np.int64), lengths, repeated, ends)

    def encode(self) -> bytes:
        """The numbers."""
        parts = (self.rows, self.lengths.ravel(), self.repeated.ravel(), self.states.ravel())
        numbers = np.concatenate([[len(self.rows)], *parts]).astype("<u4")
        return numbers.view(np.uint8).reshape(-1, 4).T.tobytes()

    @classmethod
    def decode(cls, schema: bytes, body: bytes) -> ChunkPlaces:
        """Reads the numbers. Raises ValueError if they are not of a file with these columns."""
        leaves = len(_template(schema).columns)
        planes = np.frombuffer(body, np.uint8)
        if not len(planes) or len(planes) % 4:
            raise ValueError(f"{len(planes)} bytes are no numbers")
        numbers = np.ascontiguousarray(planes.reshape(4, -1).T).view("<u4").reshape(-1).astype(np.int64)
        groups = int(numbers[0])
        if not groups or len(numbers) != 1 + groups * (1 + 3 * leaves):
            raise ValueError(f"{len(numbers)} numbers for {groups} row groups of {leaves} columns")
        rows, chunks = np.split(numbers[1:], [groups])
        return cls(schema, rows, *chunks.reshape(3, groups, leaves))

    def groups_at(self, positions: ChunkNumbers) -> list[int]:
        """The numbers of the row groups with the rows at some positions, ascending; none if one is beyond the file."""
        ends = np.cumsum(self.rows)
        found: list[int] = np.unique(np.searchsorted(ends, positions, "right")).tolist()
        return found if not found or found[-1] < len(ends) else []

    def pick(self, groups: list[int]) -> PlacedGroups:
        """Some row groups by their numbers, ascending."""
        template = _template(self.schema)
        ends = len(_MAGIC) + np.cumsum(self.lengths.ravel()).reshape(self.lengths.shape)
        before = np.concatenate([[crc32(_MAGIC)], self.states.ravel()[:-1]]).reshape(self.states.shape)
        firsts = (np.cumsum(self.rows) - self.rows)[groups].tolist()
        encoded = []
        for group in groups:
            rows, row_starts = int(self.rows[group]), (ends[group] - self.lengths[group]).tolist()
            chunks = zip(
                template.columns, row_starts, self.lengths[group].tolist(), self.repeated[group].tolist(), strict=True
            )
            columns = [_chunk(column, start, length, rows + extra) for column, start, length, extra in chunks]
            facts = [
                (1, LIST, array(STRUCT, columns)),
                (2, I64, integer(int(self.lengths[group].sum()))),
                (3, I64, integer(rows)),
            ]
            encoded.append(struct(facts))
        footer = template.footer.filled(int(self.rows[groups].sum()), encoded)
        metadata = pq.read_metadata(pa.BufferReader(footer + len(footer).to_bytes(4, "little") + _MAGIC))
        pairs = zip(before[groups].ravel().tolist(), self.states[groups].ravel().tolist(), strict=True)
        return PlacedGroups(metadata, tuple(firsts), tuple(States(*pair) for pair in pairs))


@dataclass(frozen=True)
class _EmptyFile:
    """A file with some columns and no rows, ready to have row groups put into its footer.

    Args:
        columns: of each leaf, the encoded number of its physical type and its encoded path.
    """

    footer: EmptyFooter
    columns: tuple[tuple[bytes, bytes], ...]


@lru_cache(maxsize=256)
def _template(schema: bytes) -> _EmptyFile:
    """Raises ValueError if the bytes are no Thrift metadata."""
    try:
        footer = EmptyFooter.split(schema)
        body = footer.filled(0, [])
        columns = pq.read_metadata(pa.BufferReader(body + len(body).to_bytes(4, "little") + _MAGIC)).schema
        leaves = [columns.column(leaf) for leaf in range(len(columns))]
        return _EmptyFile(
            footer,
            tuple(
                (integer(PHYSICAL_TYPES.index(leaf.physical_type)), array(BINARY, [binary(leaf.path.encode())]))
                for leaf in leaves
            ),
        )
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"no metadata: {error}") from error


def _chunk(column: tuple[bytes, bytes], start: int, length: int, values: int) -> bytes:
    physical_type, path = column
    facts = [
        (1, I32, physical_type),
        (2, LIST, array(I32, [integer(0)])),
        (3, LIST, path),
        (4, I32, integer(CODECS[_CODEC])),
        (5, I64, integer(values)),
        (6, I64, integer(length)),
        (7, I64, integer(length)),
        (9, I64, integer(start)),  # a dictionary may stand there, which its own header says
    ]
    return struct([(2, I64, integer(start)), (3, STRUCT, struct(facts))])


def _schema_of(metadata: pq.FileMetaData) -> bytes | None:
    """The metadata that pyarrow writes now for a file without rows; None if it differs from this file's in a column."""
    columns = metadata.schema.to_arrow_schema()
    try:
        body = _empty_file(columns.serialize().to_pybytes())
    except pa.ArrowException:  # a schema that only others can write
        return None
    own = pq.read_metadata(pa.BufferReader(body)).schema
    if not own.equals(metadata.schema) or not own.to_arrow_schema().equals(columns, check_metadata=True):
        return None
    return body[-8 - int.from_bytes(body[-8:-4], "little") : -8]


@lru_cache(maxsize=64)
def _empty_file(schema: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, pa.ipc.read_schema(pa.py_buffer(schema))).close()
    body: bytes = sink.getvalue().to_pybytes()
    return body


PARQUET_MAGIC = b"PAR1"
_END_BYTES = 8  # the footer's length, and the magic
_POLYNOMIAL = 0xEDB88320
_ONE_BIT = 1 << 31  # x^0
_BYTE_BITS = 3  # 8 = 2^3
Numbers = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint32]


def carried(states: Numbers, distances: Numbers, differences: Numbers) -> Numbers:
    """The states at some places of pieces of bytes, when these stand behind others than before.

    Args:
        states: CRC-32 of all bytes up to each place, where its piece stood.
        distances: of each place, how many bytes of its piece are before it.
        differences: of the states at the beginning of its piece, there and here, by exclusive or.
    """
    shifted = differences.astype(np.uint32)
    for bit in range(int(distances.max(initial=0)).bit_length()):
        chosen = (distances >> bit & 1).astype(np.bool_)
        if chosen.any():
            shifted[chosen] = _times(_power(bit + _BYTE_BITS), shifted[chosen])
    return states ^ shifted.astype(np.int64)


def carried_difference(difference: int, distance: int) -> int:
    """The difference of two states, by exclusive or, when both have gone on over the same bytes.

    Args:
        distance: how many bytes.
    """
    for bit in range(distance.bit_length()):
        if distance >> bit & 1:
            difference = _times_one(_power(bit + _BYTE_BITS), difference)
    return difference


@lru_cache(maxsize=64)
def _power(bit: int) -> int:
    """x^(2^bit)."""
    if not bit:
        return _ONE_BIT >> 1
    half = _power(bit - 1)
    return _times_one(half, half)


def _times(factor: int, values: _Words) -> _Words:
    """The products of a polynomial and others."""
    product = np.zeros_like(values)
    mask = _ONE_BIT
    while True:
        if factor & mask:
            product ^= values
            if not factor & (mask - 1):
                return product
        mask >>= 1
        values = (values >> np.uint32(1)) ^ (values & np.uint32(1)) * np.uint32(_POLYNOMIAL)


def _times_one(factor: int, value: int) -> int:
    """The same of one other: for few, numpy's calls take longer than this."""
    product = 0
    for place in reversed(range(_ONE_BIT.bit_length())):
        if factor >> place & 1:
            product ^= value
        value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    return product


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
        """Reads everything behind the column chunks.

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
        place = len(PARQUET_MAGIC)
        for start, length in self._places():
            if start != place:
                return False
            place = start + length
        behind = self.sums.behind_chunks(self.metadata)
        return place == self.start == behind.start and behind.states.fit(self.behind)
