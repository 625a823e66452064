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
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.base.units import KIB
from dolmen.format.checksum import crc32
from dolmen.format.chunk_sums import ChunkSums, States, chunk_place
from dolmen.format.thrift import BINARY, I32, I64, LIST, STRUCT, EmptyFooter, array, binary, integer, struct

MOST_GROUP_BYTES = 512 * KIB
"""The most bytes of a row group whose whole column chunks are worth reading for a row."""
PHYSICAL_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "ZSTD": 6}
_MAGIC = b"PAR1"
_CODEC = "ZSTD"
_END = 1 << 32

Numbers = npt.NDArray[np.int64]


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
    rows: Numbers
    lengths: Numbers
    repeated: Numbers
    states: Numbers

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

    def groups_at(self, positions: Numbers) -> list[int]:
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
