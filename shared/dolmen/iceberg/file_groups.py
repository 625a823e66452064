"""Groups of a version's data files, each of which becomes one Iceberg manifest, and the files that hide their rows.

Iceberg v2 hides rows by position-delete files, each for any number of data files. Iceberg v3 hides them by deletion
vectors in Puffin files (https://iceberg.apache.org/puffin-spec/), one per file: if there are several, DuckDB 1.5
returns wrong rows without an error. The footer has the data file's absolute path, because pyiceberg and Polars look for
it there, not in the manifest.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from dolmen.base.runtime import cached_property
from dolmen.commit.head import Context
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.entries.segments.segment_reader import LiveSegment
from dolmen.entries.segments.tombstone_judge import TombstoneJudge
from dolmen.errors import LimitError
from dolmen.format.del_object import encode_vector
from dolmen.format.entries import DataFile
from dolmen.format.layout import uuid_of
from dolmen.format.manifest import Manifest, Segment, TableEntry
from dolmen.format.schema import field_id_metadata
from dolmen.rows.scan.load_deletes import BlobReader, load_deletes
from dolmen.rows.scan.plan_reader import PlanReader, hidden_rows, whole_groups
from dolmen.rows.scan.row_groups import Deletes, FilePlan, RowGroup, row_groups

_AT_ONCE = 1_000  # the most vectors that are fetched at once


@dataclass(frozen=True)
class FileGroup:
    """The data files with visible rows of a segment, or of the manifest (None), by their indexes in it.

    ``deleted`` has the number of hidden rows by the uuid of their file, in the same order, without zeros.
    """

    segment: Segment | None
    indexes: npt.NDArray[np.int64]
    deleted: dict[str, int]

    def deletes_identity(self, epoch: int) -> str:
        """16 digits that are the same for the same hidden rows. Within an epoch the hidden rows only increase, so their
        number by file identifies them."""
        return _digest([str(epoch), *(f"{uuid}:{count}" for uuid, count in self.deleted.items())], b"")


class FileGroups:
    """The groups of a table in one version, by its whole entry. For ``lookup_bytes``, see ``publish``.

    To find hidden rows, it reads only files that a tombstone may match, and only the columns that it names.
    """

    def __init__(
        self, context: Context, name: str, manifest: Manifest, entry: TableEntry, lookup_bytes: int | None = None
    ) -> None:
        self._context, self._name, self._manifest, self._entry = context, name, manifest, entry
        self._lookup_bytes_left = math.inf if lookup_bytes is None else lookup_bytes
        self._live, self._tombstones = LiveFiles.of(entry, context.segments), tombstones_of(entry, context.segments)
        self._judge = TombstoneJudge(self._tombstones, entry.schema)
        self.files_read = 0
        self._positions: dict[str, BitMap] = {}
        self.groups = [group for group in self._find_groups() if len(group.indexes)]

    def identity(self, group: FileGroup) -> str:
        """16 digits that are the same for the same data files, and for no others."""
        if group.segment is not None:
            return _digest([str(self._entry.epoch), group.segment.object], group.indexes.tobytes())
        uuids = (self._entry.files[index].uuid for index in group.indexes.tolist())
        return _digest([str(self._entry.epoch), "", *uuids], b"")

    def files(self, group: FileGroup, ids: Collection[int] | None = None) -> Iterator[DataFile]:
        """Entries of a group's files, with the bounds of these columns; of all columns by default."""
        if group.segment is None:
            yield from (self._entry.files[index] for index in group.indexes.tolist())
            return
        (live,) = self._live.live_segments([group.segment])
        yield from live.entries(group.indexes, ids)

    def positions(self, group: FileGroup, uuids: Collection[str]) -> Iterator[tuple[DataFile, BitMap]]:
        """The group's files with these uuids, with the positions of their hidden rows."""
        batch: list[DataFile] = []
        for file in self.files(group, ()):
            if file.uuid not in uuids:
                continue
            if file.path in self._positions:
                yield file, self._positions[file.path]
            else:
                batch.append(file)
            if len(batch) >= _AT_ONCE:
                yield from self._fetch_vectors(batch)
                batch = []
        yield from self._fetch_vectors(batch)

    def _fetch_vectors(self, files: list[DataFile]) -> Iterator[tuple[DataFile, BitMap]]:
        positions = self._reader().vectors([FilePlan(file, False, ()) for file in files]) if files else {}
        for file in files:
            yield file, positions[file.path]

    def _find_groups(self) -> Iterator[FileGroup]:
        is_whole_list = [self._has_all_rows(segment) for segment in self._live.segments]
        others = self._live.live_segments(
            segment for segment, is_whole in zip(self._live.segments, is_whole_list, strict=True) if not is_whole
        )
        for segment, is_whole in zip(self._live.segments, is_whole_list, strict=True):
            yield FileGroup(segment, np.arange(segment.count), {}) if is_whole else self._segment_group(next(others))
        files = self._entry.files
        counts = {index: file.rows - file.live_rows for index, file in enumerate(files)}
        self._count_hidden(enumerate(files), counts)
        yield _make_group(None, counts, [file.rows for file in files], [file.uuid for file in files])

    def _has_all_rows(self, segment: Segment) -> bool:
        """Whether the manifest alone shows that all files of a segment are live with all their rows."""
        return not (segment.deleted or len(self._live.changes.uuids) or self._judge.of_segment(segment))

    def _segment_group(self, live: LiveSegment) -> FileGroup:
        indexes = live.positions()
        deleted = live.cardinalities()
        judge = self._judge.of_segment(live.segment)
        counts = dict(zip(indexes.tolist(), deleted[indexes].tolist(), strict=True))
        if judge:
            suspects = indexes[judge.file_mask(live)[indexes]]
            self._count_hidden(zip(suspects.tolist(), live.entries(suspects, judge.ids), strict=True), counts)
        column = live.table.column("path")
        assert column is not None
        uuids = {index: uuid_of(column[index].as_py()) for index, count in counts.items() if count}
        return _make_group(live.segment, counts, live.table.numbers("rows").tolist(), uuids)

    def _count_hidden(self, files: Iterable[tuple[int, DataFile]], counts: dict[int, int]) -> None:
        """Corrects the number of hidden rows, by index, of files in which tombstones hide more rows than vectors."""
        plans = {}
        for index, file in files:
            suspects = self._judge.of_file(file) if file.live_rows else None
            if suspects is None:  # all its rows are certainly hidden
                counts[index] = file.rows
            elif suspects:
                plans[index] = FilePlan(file, False, suspects)
        positions_by_path = self._find_positions(plans.values())
        for index, plan in plans.items():
            positions = positions_by_path[plan.file.path]
            if len(positions) > counts[index]:
                counts[index] = len(positions)
                self._positions[plan.file.path] = positions

    def _find_positions(self, plans: Iterable[FilePlan]) -> dict[str, BitMap]:
        """All hidden positions of files that tombstones may match, by path. Raises LimitError."""
        plan_list = list(plans)
        if not plan_list:
            return {}
        self._lookup_bytes_left -= sum(plan.file.size for plan in plan_list)
        if self._lookup_bytes_left < 0:
            raise LimitError(
                f"table {self._name!r}: too many files would have to be searched for rows of unresolved deletes: "
                "resolve the deletes (dolmen resolve), or let the next round of maintenance do it"
            )
        reader = self._reader()
        positions: dict[str, BitMap] = {}

        def groups() -> Iterator[RowGroup]:
            for file in reader.open_files(plan_list):
                file_groups = list(row_groups(file, None, self._deletes, self._entry.schema))
                positions[file.file.path] = (file.vector or BitMap()) | whole_groups(file, file_groups)
                yield from file_groups

        for path, hidden in reader.read(hidden_rows, groups(), frozenset()):
            positions[path] |= hidden
        self.files_read += len(plan_list)
        return positions

    @cached_property
    def _deletes(self) -> Deletes:
        return load_deletes(self._tombstones, self._entry.schema, BlobReader(self._context))

    def _reader(self) -> PlanReader:
        return PlanReader.of_table(self._context, self._name, self._manifest, self._entry)


def _make_group(
    segment: Segment | None, counts: dict[int, int], rows: list[int], uuids: dict[int, str] | list[str]
) -> FileGroup:
    """A group of the files that have visible rows, by the numbers of hidden and of physical rows of each."""
    visible = {index: count for index, count in counts.items() if count < rows[index]}
    deleted = {uuids[index]: count for index, count in visible.items() if count}
    return FileGroup(segment, np.array(sorted(visible), np.int64), deleted)


def _digest(parts: Iterable[str], data: bytes) -> str:
    return hashlib.sha256("\n".join(parts).encode() + b"\0" + data).hexdigest()[:16]


BLOB_OFFSET = 4  # where the blob begins: after the magic

_MAGIC = b"PFA1"

_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
_BITMAP = 16  # where a vector's only bitmap begins, counted from the magic

_ROW_POSITION_ID = 2147483645  # reserved field id of a row's position ("Reserved Field IDs")


def encode_vector_blob(positions: BitMap) -> bytes:
    """A deletion vector: length, magic, one 64-bit Roaring bitmap of one 32-bit bitmap, and CRC-32."""
    body = _VECTOR_MAGIC + struct.pack("<QI", 1, 0) + encode_vector(positions)
    return struct.pack(">I", len(body)) + body + struct.pack(">I", crc32(body))


def read_vector_blob(blob: bytes, length: int) -> BitMap:
    """The positions in a deletion vector of a Puffin file, of any writer. Raises ValueError if it is damaged."""
    inner = blob[4:-4]
    if len(blob) != length or inner[:4] != _VECTOR_MAGIC or int.from_bytes(blob[-4:], "big") != crc32(inner):
        raise ValueError("the deletion vector does not match its checksum")
    count = int.from_bytes(inner[4:12], "little")
    if count == 0:
        return BitMap()
    if count > 1 or inner[12:_BITMAP] != bytes(4):
        raise ValueError("the deletion vector has positions beyond 4,294,967,295")
    return BitMap.deserialize(inner[_BITMAP:])


def encode_puffin(blob: bytes, data_file: str, cardinality: int) -> bytes:
    """A Puffin file with one deletion vector (``vector_blob``) of a data file at this absolute path."""
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


FILE_PATH_ID = 2147483546  # reserved field id of the column ``file_path``

POSITION_ID = 2147483545  # reserved field id of the column ``pos``

_ROW_GROUP = 1 << 20

_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, field_id_metadata(FILE_PATH_ID)),
        pa.field("pos", pa.int64(), False, field_id_metadata(POSITION_ID)),
    ]
)


def encode_position_deletes(positions: Mapping[str, BitMap]) -> bytes:
    """A position-delete file, sorted by path and position. Keys are absolute paths of data files."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, _SCHEMA, compression="zstd", use_dictionary=["file_path"], store_schema=False) as out:
        for path in sorted(positions):
            numbers = np.asarray(positions[path].to_array(), np.int64)
            for start in range(0, len(numbers), _ROW_GROUP):
                part = numbers[start : start + _ROW_GROUP]
                out.write_batch(pa.record_batch([pa.repeat(path, len(part)), pa.array(part)], schema=_SCHEMA))
    return bytes(sink.getvalue())


def read_position_deletes(body: bytes, size: int) -> Iterator[tuple[str, BitMap]]:
    """The positions in a position-delete file of this size, of any writer, by the URL of the data file.

    Raises ValueError, or an error of pyarrow, if it is damaged.
    """
    if len(body) != size:
        raise ValueError(f"it does not have the {size:,} bytes of its manifest entry")
    file = pq.ParquetFile(pa.BufferReader(body))
    table = file.read(["file_path", "pos"], use_threads=False)
    rows = sum(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))
    if table.num_rows != rows:
        raise ValueError(f"it has {table.num_rows:,} rows, and its footer {rows:,}")
    if not table.num_rows:
        return
    paths = table["file_path"].combine_chunks().cast(pa.string()).dictionary_encode()
    positions = table["pos"].to_numpy()
    if positions.min() < 0 or positions.max() > 2**32 - 1:
        raise ValueError("a position is negative, or beyond 4,294,967,295")
    codes = paths.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(paths.dictionary)), side="right")
    for path, own in zip(paths.dictionary.to_pylist(), np.split(positions[order], ends[:-1]), strict=True):
        yield path, BitMap(own.astype(np.uint32))
