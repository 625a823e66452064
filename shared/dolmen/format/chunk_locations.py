"""Column chunks of data files: their locations and checksums, encoded for an index, and shifted into other files.

With an encoded ``ChunkLocations``, some row groups are read without the file's footer. The first column chunk begins at
byte 4, and each of the others at the end of the one before it. The part that all files with the same columns share is a
Parquet footer without row groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Self
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from dolmen.base.runtime import cached_property
from dolmen.base.units import KIB
from dolmen.errors import CorruptionError
from dolmen.format.page_locations import (
    ChunkSums,
    PageLocations,
    States,
    chunk_range,
    chunk_ranges,
    from_planes,
    to_planes,
)
from dolmen.format.parquet_footer import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    FooterParts,
    MovedGroup,
    array,
    binary,
    integer,
    struct,
)

PARQUET_MAGIC = b"PAR1"
MOST_GROUP_BYTES = 512 * KIB  # the most bytes of a row group whose whole column chunks may be read for one row
PHYSICAL_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "ZSTD": 6}
_CODEC = "ZSTD"
_LENGTH_END = 1 << 32
Numbers = npt.NDArray[np.int64]


class GroupsMetadata(Struct, frozen=True):
    """Some row groups of a file."""

    metadata: pq.FileMetaData  # a footer that has them alone, without statistics
    firsts: tuple[int, ...]  # position of the first row of each
    states: tuple[States, ...]


class ChunkLocations(Struct, frozen=True):
    """The column chunks of one file."""

    schema: bytes  # the Thrift metadata of a file with the same columns and without rows
    rows: Numbers  # of each row group
    # lengths, repeated, states: a row for each row group, a column for each leaf
    lengths: Numbers
    repeated: Numbers
    states: Numbers

    @classmethod
    def collect(cls, metadata: pq.FileMetaData, sums: ChunkSums | None) -> ChunkLocations | None:
        """The column chunks of a file by its footer; None if the numbers can't say where they are, or need not."""
        groups, leaves = metadata.num_row_groups, metadata.num_columns
        schema = _schema_of(metadata)
        if sums is None or schema is None or not groups:
            return None
        numbers: list[tuple[int, int, int]] = []
        end, state, rows = len(PARQUET_MAGIC), crc32(PARQUET_MAGIC), list[int]()
        for group in range(groups):
            row_group, first = metadata.row_group(group), end
            rows.append(row_group.num_rows)
            for leaf in range(leaves):
                chunk, states = row_group.column(leaf), sums.states[group * leaves + leaf]
                start, length = chunk_range(chunk)
                extra = chunk.num_values - rows[-1]
                if (start, states.start) != (end, state) or not 0 <= extra < _LENGTH_END or chunk.compression != _CODEC:
                    return None
                numbers.append((length, extra, states.end))
                end, state = start + length, states.end
            if end - first > MOST_GROUP_BYTES:
                return None
        lengths, repeated, ends = np.array(numbers, np.int64).reshape(groups, leaves, 3).transpose(2, 0, 1)
        return cls(schema, np.array(rows, np.int64), lengths, repeated, ends)

    def encode(self) -> bytes:
        """The number of row groups, their rows, and the lengths, repeated values and states of all column chunks."""
        count = np.array([len(self.rows)], np.int64)
        return to_planes([count, self.rows, self.lengths.ravel(), self.repeated.ravel(), self.states.ravel()])

    @classmethod
    def decode(cls, schema: bytes, body: bytes) -> ChunkLocations:
        """Reads the numbers. Raises ValueError if they are not of a file with these columns."""
        leaves = len(_template(schema).columns)
        if len(body) % 4:
            raise ValueError(f"{len(body)} bytes are not numbers of 4 bytes")
        numbers = from_planes(body)
        groups = int(numbers[0]) if len(numbers) else 0
        if not groups or len(numbers) != 1 + groups * (1 + 3 * leaves):
            raise ValueError(f"{len(numbers)} numbers for {groups} row groups of {leaves} columns")
        rows, chunks = np.split(numbers[1:], [groups])
        return cls(schema, rows, *chunks.reshape(3, groups, leaves))

    def groups_at(self, positions: Numbers) -> list[int]:
        """The numbers of the row groups with the rows at some positions, ascending; none if one is beyond the file."""
        ends = np.cumsum(self.rows)
        groups: list[int] = np.unique(np.searchsorted(ends, positions, "right")).tolist()
        return groups if not groups or groups[-1] < len(ends) else []

    def pick(self, groups: list[int]) -> GroupsMetadata:
        """Some row groups by their numbers, ascending."""
        template = _template(self.schema)
        ends = len(PARQUET_MAGIC) + np.cumsum(self.lengths.ravel()).reshape(self.lengths.shape)
        before = np.concatenate([[crc32(PARQUET_MAGIC)], self.states.ravel()[:-1]]).reshape(self.states.shape)
        firsts = (np.cumsum(self.rows) - self.rows)[groups].tolist()
        encoded = []
        for group in groups:
            rows, row_starts = int(self.rows[group]), (ends[group] - self.lengths[group]).tolist()
            chunks = zip(
                template.columns, row_starts, self.lengths[group].tolist(), self.repeated[group].tolist(), strict=True
            )
            columns = [encode_chunk(*own, _CODEC, start, length, rows + extra) for own, start, length, extra in chunks]
            encoded.append(encode_group(columns, int(self.lengths[group].sum()), rows))
        footer = template.footer.fill(int(self.rows[groups].sum()), encoded)
        states = map(States, before[groups].ravel().tolist(), self.states[groups].ravel().tolist())
        return GroupsMetadata(_read_metadata(footer), tuple(firsts), tuple(states))


def _read_metadata(footer: bytes) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(footer + len(footer).to_bytes(4, "little") + PARQUET_MAGIC))


class _EmptyFile(Struct, frozen=True):
    """A file with some columns and no rows, into whose footer row groups can be put.

    ``columns``: of each leaf, the encoded number of its physical type and its encoded path.
    """

    footer: FooterParts
    columns: tuple[tuple[bytes, bytes], ...]


@lru_cache(maxsize=256)
def _template(schema: bytes) -> _EmptyFile:
    """Raises ValueError if the bytes are not Thrift metadata."""
    try:
        footer = FooterParts.parse(schema)
        columns = _read_metadata(footer.fill(0, [])).schema
        leaves = [columns.column(leaf) for leaf in range(len(columns))]
        types = [integer(PHYSICAL_TYPES.index(leaf.physical_type)) for leaf in leaves]
        paths = [array(BINARY, [binary(leaf.path.encode())]) for leaf in leaves]
        return _EmptyFile(footer, tuple(zip(types, paths, strict=True)))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"no metadata: {error}") from error


def encode_chunk(
    physical_type: bytes, path: bytes, codec: str, start: int, length: int, values: int, *, data_page: int | None = None
) -> bytes:
    """The metadata of a column chunk that begins at byte ``start``, without statistics.

    ``data_page`` is the first byte after its dictionary page; None if that is not known, as the page's header says.
    """
    fields = [
        (1, I32, physical_type),
        (2, LIST, array(I32, [integer(0)])),
        (3, LIST, path),
        (4, I32, integer(CODECS[codec])),
        (5, I64, integer(values)),
        (6, I64, integer(length)),
        (7, I64, integer(length)),
        (9, I64, integer(start if data_page is None else data_page)),
        *([] if data_page is None else [(11, I64, integer(start))]),
    ]
    return struct([(2, I64, integer(start)), (3, STRUCT, struct(fields))])


def encode_group(chunks: Iterable[bytes], length: int, rows: int) -> bytes:
    """The metadata of a row group with these encoded column chunks, which have this length together."""
    return struct([(1, LIST, array(STRUCT, chunks)), (2, I64, integer(length)), (3, I64, integer(rows))])


def _schema_of(metadata: pq.FileMetaData) -> bytes | None:
    """The metadata that pyarrow writes for a file without rows; None if it differs from this file's in a column."""
    columns = metadata.schema.to_arrow_schema()
    try:
        body = file_without_rows(columns)
    except pa.ArrowException:  # a schema that pyarrow cannot write
        return None
    own = pq.read_metadata(pa.BufferReader(body)).schema
    if not own.equals(metadata.schema) or not own.to_arrow_schema().equals(columns, check_metadata=True):
        return None
    return thrift_metadata(body)


def file_without_rows(schema: pa.Schema) -> bytes:
    """The Parquet file of these columns without rows, as pyarrow writes it now."""
    return _file_without_rows(schema.serialize().to_pybytes())  # schemas are equal whatever their field ids


@lru_cache(maxsize=64)
def _file_without_rows(schema: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, pa.ipc.read_schema(pa.py_buffer(schema))).close()
    body: bytes = sink.getvalue().to_pybytes()
    return body


def thrift_metadata(body: bytes) -> bytes:
    """The Thrift metadata at the end of a Parquet file."""
    return body[-_END_BYTES - int.from_bytes(body[-_END_BYTES:-4], "little") : -_END_BYTES]


_END_BYTES = 8  # the footer's length, and the magic
_POLYNOMIAL = 0xEDB88320
_ONE_BIT = 1 << 31  # x^0
_BYTE_BITS = 3  # 8 = 2^3


def shift_states(states: Numbers, distances: Numbers, differences: Numbers) -> Numbers:
    """CRC-32 at some offsets of pieces of bytes that will follow other bytes.

    CRC-32 is linear: of two states, each continued over the same ``n`` bytes, the difference (by exclusive or) is the
    difference before times x^8n, modulo the polynomial, bits reflected. Source: ``crc32_combine`` of zlib
    (https://github.com/madler/zlib/blob/master/crc32.c).

    Args:
        states: CRC-32 of all bytes up to each offset, at the old position of its piece.
        distances: of each offset, from the beginning of its piece.
        differences: of the states at the beginning of its piece, old and new, by exclusive or.
    """
    shifted = differences.astype(np.uint32)
    for bit in range(int(distances.max(initial=0)).bit_length()):
        chosen = (distances >> bit & 1).astype(np.bool_)
        if chosen.any():
            shifted[chosen] = _times(_power(bit + _BYTE_BITS), shifted[chosen])
    return states ^ shifted.astype(np.int64)


def shift_difference(difference: int, distance: int) -> int:
    """The difference of two states, by exclusive or, after both continue over ``distance`` equal bytes."""
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


def _times(factor: int, values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
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
    """The product of two polynomials. It avoids numpy, whose calls take longer."""
    product = 0
    for bit in reversed(range(_ONE_BIT.bit_length())):
        if factor >> bit & 1:
            product ^= value
        value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    return product


class GroupSums(Struct, frozen=True):
    """Checksums of consecutive row groups, and the locations of their pages."""

    states: Numbers  # of each column chunk, at its start and at its end
    distances: Numbers  # of each of these, the bytes of the row groups before it
    pages: PageLocations
    page_distances: Numbers  # of each page, the bytes of the row groups before its end

    @property
    def start(self) -> int:
        """CRC-32 of the bytes before the row groups."""
        return int(self.states[0])

    def end(self, difference: int) -> int:
        """CRC-32 up to their end, after bytes whose CRC-32 has this difference (by exclusive or) to ``start``."""
        return int(self.states[-1]) ^ shift_difference(difference, int(self.distances[-1]))


def move_sums(parts: Sequence[GroupSums], differences: Sequence[int]) -> tuple[list[States], PageLocations]:
    """The checksums of row groups that will follow other bytes, and their pages.

    They follow from the old checksums, so damaged bytes still differ from them. ``differences``: of each part, between
    CRC-32 of the bytes before it, old and new, by exclusive or.
    """
    moved = np.array(differences, np.int64)

    def of_each(counts: Iterable[int]) -> Numbers:
        return np.repeat(moved, np.array(list(counts), np.int64))

    states = shift_states(
        np.concatenate([part.states for part in parts]),
        np.concatenate([part.distances for part in parts]),
        of_each(len(part.states) for part in parts),
    )
    pages = PageLocations(
        np.concatenate([part.pages.counts for part in parts]),
        np.concatenate([part.pages.lengths for part in parts]),
        np.concatenate([part.pages.rows for part in parts]),
        shift_states(
            np.concatenate([part.pages.states for part in parts]),
            np.concatenate([part.page_distances for part in parts]),
            of_each(len(part.page_distances) for part in parts),
        ),
    )
    return [States(*pair) for pair in states.reshape(-1, 2).tolist()], pages


class SpliceSource(Struct, frozen=True, dict=True):
    """A file whose row groups may become part of another one."""

    key: str
    etag: str
    metadata: pq.FileMetaData
    footer: FooterParts  # the parts of ``metadata``
    sums: ChunkSums
    pages: PageLocations
    start: int  # the first byte after its column chunks
    behind: bytes  # from there to the footer: Bloom filters and page index, as they were written

    @classmethod
    def parse(cls, key: str, etag: str, body: bytes, start: int, footer_start: int) -> Self | None:
        """Reads the bytes after the column chunks; None if a part is damaged, missing, or not where dolmen writes it.

        Args:
            body: from ``start`` to the end of the file; the footer in it has been compared with the entry.
            footer_start: first byte of the entry's ``footer``.
        """
        end = body[footer_start - start :]
        try:
            metadata = pq.read_metadata(pa.BufferReader(end))
            footer = FooterParts.parse(thrift_metadata(end))
            sums = ChunkSums.decode(end, footer_start, metadata, key)
        except (ValueError, OSError, pa.ArrowException, CorruptionError):
            return None
        if sums is None or len(footer.groups) != metadata.num_row_groups:
            return None
        pages = PageLocations.decode(end[: sums.before], metadata.num_row_groups * metadata.num_columns)
        if pages is None:
            none = np.zeros(0, np.int64)
            pages = PageLocations(np.zeros(len(sums.states), np.int64), none, none, none)
        source = cls(key, etag, metadata, footer, sums, pages, start, body[: footer_start - start])
        return source if source._is_complete() else None

    def byte_range(self, groups: range) -> tuple[int, int]:
        """The bytes of consecutive row groups: first, and the one after the last."""
        edges, columns = self._edges, self.metadata.num_columns
        return int(edges[groups.start * columns]), int(edges[groups.stop * columns])

    def moved_groups(self, groups: range, by: int) -> list[MovedGroup]:
        """Row groups as parts of another file, in which their bytes are ``by`` bytes later."""
        behind = memoryview(self.behind)
        return [MovedGroup(self.footer.groups[group], by, behind, self.start) for group in groups]

    def group_sums(self, groups: range) -> GroupSums:
        """The checksums of consecutive row groups in this file."""
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
            PageLocations(counts, lengths, self.pages.rows[own], self.pages.states[own]),
            ends - begin,
        )

    @cached_property
    def _edges(self) -> Numbers:
        """The first byte of each column chunk, and the end of the last one."""
        ranges = list(chunk_ranges(self.metadata))
        return np.array([*(start for start, _ in ranges), sum(ranges[-1])], np.int64)

    def _is_complete(self) -> bool:
        """Whether column chunks are adjacent, and the bytes after them are as they were written."""
        end = len(PARQUET_MAGIC)
        for start, length in chunk_ranges(self.metadata):
            if start != end:
                return False
            end = start + length
        behind = self.sums.behind_chunks(self.metadata)
        return end == self.start == behind.start and behind.states.match(self.behind)
