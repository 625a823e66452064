"""The reports that writing tasks send to the driver: rows of a kind, a name and a body.

Among them is a digest of rows in any order, by which the content of a request differs from another's
(docs/protocol.md). Each row has a hash of 64 bits (``dolmen.rows.write.row_digest``) of its values in the table's
types. A task sums the hashes of its rows, and a second function of them; the total does not depend on partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyroaring import BitMap
from pyspark.sql import Row

from dolmen.format.entries import DataFile, KeysTombstone
from dolmen.rows.write.row_digest import mix, row_hashes

_MASK = (1 << 64) - 1
_SECOND = 0xD6E8FEB86659FD93


class DigestMode(Enum):
    """Whether a write sums its rows, for the digest by which a request differs from another with the same id."""

    NONE = "no digest"
    WITH_FILES = "a digest, and files"
    ALONE = "a digest and no file: the request was applied before"

    @classmethod
    def of(cls, request: str | None) -> DigestMode:
        """The mode in which a request is first applied."""
        return cls.NONE if request is None else cls.WITH_FILES


@dataclass
class RowSums:
    """The number of some rows, and two sums of their hashes, modulo 2^64."""

    rows: int = 0
    first: int = 0
    second: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the rows of a batch."""
        each = row_hashes(batch)
        self.rows += batch.num_rows
        self.first = (self.first + int(each.sum(dtype=np.uint64))) & _MASK
        self.second = (self.second + int(mix(each ^ np.uint64(_SECOND)).sum(dtype=np.uint64))) & _MASK

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, each of which is added when it is read."""
        for batch in batches:
            self.add(batch)
            yield batch

    def content(self) -> list[Any]:
        """For a request's digest (``content_digest``)."""
        return ["rows in any order", self.rows, f"{self.first:016x}", f"{self.second:016x}"]

    def encode(self) -> bytes:
        """As bytes, for reports of tasks."""
        return b"%d %d %d" % (self.rows, self.first, self.second)

    @classmethod
    def of(cls, encoded: Iterable[bytes]) -> RowSums:
        """The total of the sums that tasks have reported."""
        found = cls()
        for body in encoded:
            rows, first, second = map(int, bytes(body).split())
            found.rows += rows
            found.first = (found.first + first) & _MASK
            found.second = (found.second + second) & _MASK
        return found


REPORT = "kind STRING, name STRING, body BINARY"
_SCHEMA = pa.schema([("kind", pa.string()), ("name", pa.string()), ("body", pa.binary())])


@dataclass
class Reported:
    """The report of a task, or of all tasks of a job.

    Args:
        files: entries of the data files that were written.
        tombstones: entries of the keys that were uploaded.
        keys: lists of keys that are too short to upload.
        positions: deleted rows by the name of their data file.
        inserted: primary keys of rows that must be new to the table.
        again: a row is among the positions more than once.
        sums: of the rows, for the digest of a request.
    """

    files: list[DataFile] = field(default_factory=list)
    tombstones: list[KeysTombstone] = field(default_factory=list)
    keys: list[pa.Table] = field(default_factory=list)
    positions: dict[str, BitMap] = field(default_factory=dict)
    inserted: list[pa.Table] = field(default_factory=list)
    again: bool = False
    sums: RowSums = field(default_factory=RowSums)

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Reported:
        """Reads the report in these rows."""
        found = cls(sums=RowSums.of(row.body for row in rows if row.kind == "sums"))
        for row in rows:
            if row.kind == "file":
                found.files.append(msgspec.json.decode(row.body, type=DataFile))
            elif row.kind == "tombstone":
                found.tombstones.append(msgspec.json.decode(row.body, type=KeysTombstone))
            elif row.kind == "keys":
                found.keys.append(pa.ipc.open_stream(bytes(row.body)).read_all())
            elif row.kind == "inserted":
                found.inserted.append(pa.ipc.open_stream(bytes(row.body)).read_all())
            elif row.kind == "positions":
                found.add_positions(row.name, BitMap.deserialize(bytes(row.body)))
        return found

    def add_positions(self, name: str, positions: BitMap) -> None:
        """Adds deleted rows of a file, and records whether one of them is a duplicate."""
        deleted = self.positions.setdefault(name, BitMap())
        self.again |= deleted.intersect(positions)
        deleted |= positions

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of a task's report, one batch each."""
        if self.sums.rows:
            yield from _batches("sums", [(self.sums.encode(), "")])
        yield from _batches("file", ((msgspec.json.encode(file), "") for file in self.files))
        yield from _batches("tombstone", ((msgspec.json.encode(each), "") for each in self.tombstones))
        yield from _batches("keys", ((ipc_bytes(keys), "") for keys in self.keys))
        yield from _batches("inserted", ((ipc_bytes(keys), "") for keys in self.inserted))
        yield from _batches("positions", ((bits.serialize(), name) for name, bits in self.positions.items()))


def _batches(kind: str, bodies: Iterable[tuple[bytes, str]]) -> Iterator[pa.RecordBatch]:
    for body, name in bodies:
        yield pa.record_batch([[kind], [name], pa.array([body], pa.binary())], schema=_SCHEMA)


def ipc_bytes(rows: pa.Table, compression: str | None = None) -> bytes:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
