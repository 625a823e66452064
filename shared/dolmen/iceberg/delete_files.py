"""Delete files of a snapshot: position deletes for Iceberg v2, deletion vectors for v3.

Hidden rows of a data file only become more, so its path and their number say which they are. What an earlier
publication wrote for the same number is carried over.

Puffin files with one deletion vector each (https://iceberg.apache.org/puffin-spec/, "deletion-vector-v1" blob).

There is one vector to a file, because DuckDB 1.5 returns wrong rows, without an error, for a file with several. The
footer names the data file by its absolute path, because pyiceberg and Polars find it there, not in the manifest.

Position-delete files of Iceberg v2: Parquet with pairs of a data file and a position.

See "Position Delete Files" of https://iceberg.apache.org/spec/. One file may serve any number of data files.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from dolmen.base.runtime import Runtime
from dolmen.format.delete_object import encode_vector
from dolmen.format.entries import DataFile
from dolmen.iceberg.file_groups import FileGroup, FileGroups
from dolmen.iceberg.manifests import POSITION_DELETES, FileEntry, ManifestFile, Metrics
from dolmen.iceberg.publication_directory import BaseManifests, ManifestWriter, PublicationDirectory

MOST_DELETE_FILES = 8
"""Position-delete files are rewritten as one when there would be more of them than this."""
_POSITIONS_PER_FILE = 1 << 24


@dataclass
class DeletesWriter:
    """Writes the manifests of delete files.

    Args:
        epoch: of the table.
        added: uuids of data files that no earlier snapshot has.
    """

    directory: PublicationDirectory
    runtime: Runtime
    base: BaseManifests
    writer: ManifestWriter
    groups: FileGroups
    epoch: int
    added: Collection[str]

    def position_deletes(self) -> Iterator[ManifestFile]:
        """Writes the one manifest of a v2 snapshot's position deletes; none if no rows are hidden."""
        deleted = {uuid: count for group in self.groups.groups for uuid, count in group.deleted.items()}
        if not deleted:
            return
        whole = FileGroup(None, self.groups.groups[0].places[:0], deleted)
        identity = whole.deletes_identity(self.epoch)
        if (known := self.base.carry_over("deletes", identity)) is not None:
            yield known
            return
        covered, entries = self._known_position_deletes(deleted)
        changed = {uuid for uuid, count in deleted.items() if covered.get(uuid) != count}
        if len(entries) >= MOST_DELETE_FILES:
            changed, entries = set(deleted), []
        entries += self._position_delete_files(changed)
        yield self.writer.write("deletes", identity, entries, deleted)

    def vectors(self) -> Iterator[ManifestFile]:
        """Writes one manifest of deletion vectors for each group of a v3 snapshot that has hidden rows."""
        identities = [group.deletes_identity(self.epoch) for group in self.groups.groups]
        self.base.keep("deletes", identities)
        for group, identity in zip(self.groups.groups, identities, strict=True):
            if not group.deleted:
                continue
            if (known := self.base.carry_over("deletes", identity)) is not None:
                yield known
                continue
            entries = self._vector_entries(group)
            yield self.writer.write("deletes", identity, entries)

    def _known_position_deletes(self, deleted: dict[str, int]) -> tuple[dict[str, int], list[FileEntry]]:
        """Position-delete files of the base, and the number of rows that they hide, by data file.

        Nothing is known if most of it is about files that are gone.
        """
        coverage: dict[str, int] = {}
        entries: list[FileEntry] = []
        for body in self.base.replaced("deletes"):
            coverage.update(body.coverage)
            entries += body.entries
        there = {uuid: count for uuid, count in coverage.items() if uuid in deleted and uuid not in self.added}
        if len(coverage) > 2 * len(there) or any(count > deleted[uuid] for uuid, count in there.items()):
            return {}, []
        return there, entries

    def _position_delete_files(self, changed: Collection[str]) -> Iterator[FileEntry]:
        held: dict[str, BitMap] = {}
        size = 0
        for file, positions in self._positions(changed):
            held[self.directory.path(file.path)] = positions
            size += len(positions)
            if size >= _POSITIONS_PER_FILE:
                yield self._position_delete_file(held)
                held, size = {}, 0
        if held:
            yield self._position_delete_file(held)

    def _position_delete_file(self, positions: dict[str, BitMap]) -> FileEntry:
        body = position_delete_file(positions)
        path = self.directory.write("positions", "parquet", body)
        bounds = Metrics(lower={FILE_PATH_ID: min(positions).encode()}, upper={FILE_PATH_ID: max(positions).encode()})
        return FileEntry(
            path,
            "PARQUET",
            sum(map(len, positions.values())),
            len(body),
            self.writer.snapshot,
            self.writer.sequence,
            POSITION_DELETES,
            bounds,
        )

    def _vector_entries(self, group: FileGroup) -> list[FileEntry]:
        known: dict[str, FileEntry] = {
            entry.data_file: entry
            for body in self.base.replaced("deletes")
            for entry in body.entries
            if entry.data_file is not None
        }
        entries: list[FileEntry] = []
        carried: set[str] = set()
        for file in self.groups.files(group, ()) if known else ():
            entry = known.get(self.directory.path(file.path))
            if entry is not None and file.uuid not in self.added and group.deleted.get(file.uuid) == entry.rows:
                entries.append(entry)
                carried.add(file.uuid)
        changed = self.groups.positions(group, group.deleted.keys() - carried)
        entries += self.runtime.map(self._vector_entry, changed)
        return entries

    def _vector_entry(self, item: tuple[DataFile, BitMap]) -> FileEntry:
        file, positions = item
        data_file, blob = self.directory.path(file.path), vector_blob(positions)
        body = puffin_file(blob, data_file, len(positions))
        path = self.directory.write("vector", "puffin", body)
        return FileEntry(
            path,
            "PUFFIN",
            len(positions),
            len(body),
            self.writer.snapshot,
            self.writer.sequence,
            POSITION_DELETES,
            data_file=data_file,
            blob=(BLOB_OFFSET, len(blob)),
        )

    def _positions(self, changed: Collection[str]) -> Iterator[tuple[DataFile, BitMap]]:
        for group in self.groups.groups:
            if own := group.deleted.keys() & changed:
                yield from self.groups.positions(group, own)


def write_deletes(deletes: DeletesWriter, format_version: int) -> Sequence[ManifestFile]:
    """Writes the delete files of a snapshot in this format, and their manifests."""
    found: Iterable[ManifestFile] = deletes.position_deletes() if format_version == 2 else deletes.vectors()
    return tuple(found)


BLOB_OFFSET = 4
"""Where the blob begins: after the magic."""


_MAGIC = b"PFA1"


_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"


_ROW_POSITION_ID = 2147483645
"""Reserved field id of a row's position ("Reserved Field IDs")."""


def vector_blob(positions: BitMap) -> bytes:
    """A deletion vector: length, magic, one 64-bit Roaring bitmap of one 32-bit bitmap, and CRC-32."""
    body = _VECTOR_MAGIC + struct.pack("<QI", 1, 0) + encode_vector(positions)
    return struct.pack(">I", len(body)) + body + struct.pack(">I", crc32(body))


def vector_in(body: bytes, offset: int, length: int) -> BitMap:
    """The positions in a deletion vector of a Puffin file. Raises ValueError if it is damaged."""
    blob = body[offset : offset + length]
    inner = blob[4:-4]
    if len(blob) != length or inner[:4] != _VECTOR_MAGIC or blob[-4:] != struct.pack(">I", crc32(inner)):
        raise ValueError("the deletion vector's checksum differs")
    return BitMap.deserialize(inner[16:])


def puffin_file(blob: bytes, data_file: str, cardinality: int) -> bytes:
    """A Puffin file with one deletion vector.

    Args:
        blob: as ``vector_blob`` makes it.
        data_file: absolute path of the file whose rows it deletes, as the manifest names it.
        cardinality: number of positions.
    """
    payload = msgspec.json.encode(
        {
            "blobs": [
                {
                    "type": "deletion-vector-v1",
                    "fields": [_ROW_POSITION_ID],
                    "snapshot-id": -1,
                    "sequence-number": -1,
                    "offset": BLOB_OFFSET,
                    "length": len(blob),
                    "properties": {"referenced-data-file": data_file, "cardinality": str(cardinality)},
                }
            ],
            "properties": {"created-by": "dolmen"},
        }
    )
    return b"".join([_MAGIC, blob, _MAGIC, payload, struct.pack("<II", len(payload), 0), _MAGIC])


FILE_PATH_ID = 2147483546
"""Reserved field id of the column ``file_path``."""


POSITION_ID = 2147483545
"""Reserved field id of the column ``pos``."""


_ROW_GROUP = 1 << 20


_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(FILE_PATH_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION_ID)}),
    ]
)


def position_delete_file(positions: Mapping[str, BitMap]) -> bytes:
    """The bytes of a position-delete file, sorted by path and position, as the format asks for.

    Args:
        positions: by the absolute path of their data file, as manifests name it.
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, _SCHEMA, compression="zstd", use_dictionary=["file_path"], store_schema=False) as out:
        for path in sorted(positions):
            numbers = np.asarray(positions[path].to_array(), np.int64)
            for start in range(0, len(numbers), _ROW_GROUP):
                own = numbers[start : start + _ROW_GROUP]
                out.write_batch(pa.record_batch([pa.repeat(path, len(own)), pa.array(own)], schema=_SCHEMA))
    return bytes(sink.getvalue())
