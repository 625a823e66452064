"""Manifest lists and manifests of an Iceberg snapshot, of format versions 1 to 3.

See "Manifests", "Manifest Lists" and "Sequence Number Inheritance" of https://iceberg.apache.org/spec/.

Deleted rows of an Iceberg snapshot, as positions in its data files.

See "Delete Formats" and "Scan Planning" of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeVar

import fastavro
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fastavro.schema import SchemaParseException, UnknownType
from pyroaring import BitMap

from dolmen.adopt.columns import READ_BY_ENGINE, AdoptionFaults
from dolmen.base.runtime import Runtime
from dolmen.errors import AdoptionError, ObjectNotFoundError
from dolmen.format.checksums import crc32

R = TypeVar("R")

_DAMAGE = (
    ValueError, EOFError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, RecursionError,
    OSError, MemoryError, struct.error, zlib.error, msgspec.ValidationError, SchemaParseException, UnknownType,
)  # fmt: skip
"""The errors of fastavro on damaged bytes, and of records that lack a field."""


DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2


_ADDED, _DELETED = 1, 2


@dataclass(frozen=True, slots=True)
class IcebergFile:
    """A data file or delete file of a snapshot.

    Args:
        content: ``DATA``, ``POSITION_DELETES`` or ``EQUALITY_DELETES``.
        path: its URL.
        format: ``PARQUET``, ``PUFFIN``, ``AVRO`` or ``ORC``.
        rows, size: its number of rows, and its size in bytes.
        sequence: its data sequence number.
        spec: id of its partition spec.
        data_file: the data file whose deletion vector it is; "" for others.
        blob: where the deletion vector is: offset and length.
        is_encrypted: whether one needs a key to read it.
        columns: ids of the columns of an equality delete.
    """

    content: int
    path: str
    format: str
    rows: int
    size: int
    sequence: int
    spec: int
    data_file: str = ""
    blob: tuple[int, int] | None = None
    is_encrypted: bool = False
    columns: tuple[int, ...] = ()


class _ManifestRecord(msgspec.Struct):
    """The needed fields of an entry of a manifest list."""

    manifest_path: str
    sequence_number: int | None = None
    partition_spec_id: int | None = None


class _FileRecord(msgspec.Struct):
    """The needed fields of a file's record in a manifest."""

    file_path: str
    file_format: str
    record_count: int
    file_size_in_bytes: int
    content: int | None = None
    key_metadata: bytes | None = None
    equality_ids: list[int] | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None


class _EntryRecord(msgspec.Struct):
    """The needed fields of an entry of a manifest."""

    status: int
    data_file: _FileRecord
    sequence_number: int | None = None


def snapshot_files(
    snapshot: Mapping[str, Any], read: Callable[[str], bytes], runtime: Runtime
) -> Iterator[IcebergFile]:
    """All files of a snapshot. Manifests are read several at a time.

    Args:
        snapshot: its element in the table metadata.
        read: returns the bytes of an object by its URL.

    Raises:
        AdoptionError: a manifest cannot be read.
    """
    if "manifest-list" in snapshot:
        path = snapshot["manifest-list"]
        manifests = list(_records(read(path), path, _ManifestRecord))
    else:  # as version 1 allows
        manifests = [_ManifestRecord(path) for path in snapshot["manifests"]]
    for some in runtime.map(lambda manifest: _files(manifest, read), manifests):
        yield from some


def _files(manifest: _ManifestRecord, read: Callable[[str], bytes]) -> list[IcebergFile]:
    entries = _records(read(manifest.manifest_path), manifest.manifest_path, _EntryRecord)
    return [_file(entry, manifest) for entry in entries if entry.status != _DELETED]


def _file(entry: _EntryRecord, manifest: _ManifestRecord) -> IcebergFile:
    file, offset, length = entry.data_file, entry.data_file.content_offset, entry.data_file.content_size_in_bytes
    inherited = manifest.sequence_number or 0
    return IcebergFile(
        content=file.content or DATA,
        path=file.file_path,
        format=file.file_format.upper(),
        rows=file.record_count,
        size=file.file_size_in_bytes,
        sequence=inherited if entry.sequence_number is None else entry.sequence_number,
        spec=manifest.partition_spec_id or 0,
        data_file=file.referenced_data_file or "",
        blob=None if offset is None or length is None else (offset, length),
        is_encrypted=file.key_metadata is not None,
        columns=tuple(file.equality_ids or ()),
    )


def _records(body: bytes, path: str, kind: type[R]) -> Iterator[R]:
    """The records of an Avro file. Raises AdoptionError if it is damaged, or has records of another form."""
    try:
        reader = fastavro.reader(BytesIO(body))
        if not _takes_bytes(reader.writer_schema, set()):
            raise ValueError(_ANY_NUMBER)
        for record in reader:
            yield msgspec.convert(record, kind)
    except _DAMAGE as error:
        reason = f"the manifest cannot be read: {type(error).__name__}: {error}"
        raise AdoptionError(path, [reason], READ_BY_ENGINE) from error


_ANY_NUMBER = "by its schema a few bytes can be any number of values"


def _takes_bytes(schema: Any, records: set[str]) -> bool:
    """Whether each value of a schema takes a byte or more. A partition need not: it may have no fields.

    Args:
        records: names of the records that it has so far.

    Raises:
        ValueError: a list's items take none, or a record is used twice, or in itself. No manifest has such.
    """
    if isinstance(schema, list):
        for branch in schema:
            _takes_bytes(branch, records)
        return True
    if isinstance(schema, str):
        if schema in records:
            raise ValueError(_ANY_NUMBER)
        return schema != "null"
    kind = schema["type"]
    if kind == "array":
        if not _takes_bytes(schema["items"], records):
            raise ValueError(_ANY_NUMBER)
        return True
    if kind == "map":
        _takes_bytes(schema["values"], records)
        return True
    if kind == "fixed":
        return bool(schema["size"] > 0)
    if kind in ("record", "error"):
        records.add(schema["name"])
        takes = [_takes_bytes(field["type"], records) for field in schema["fields"]]  # all are checked
        return any(takes)
    return kind == "enum" or _takes_bytes(kind, records)


_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"

_EMPTY = 16

ReadRange = Callable[[str, tuple[int, int]], bytes]
"""(URL, first and end byte) -> these bytes."""


def deleted_positions(
    deletes: Sequence[IcebergFile],
    data: Mapping[str, IcebergFile],
    label: Callable[[str], str],
    read: ReadRange,
    runtime: Runtime,
    faults: AdoptionFaults,
) -> dict[str, BitMap]:
    """The deleted positions by data file.

    A deletion vector replaces the position deletes of its file. Position deletes count in files whose sequence number
    is not greater than theirs.

    Args:
        deletes: position deletes and deletion vectors.
        data: data files by label.
        label: the label of a file by its URL.
    """
    found: dict[str, BitMap] = {}
    vectors = [file for file in deletes if file.blob is not None]

    def positions(file: IcebergFile) -> tuple[IcebergFile, dict[str, BitMap] | str]:
        try:
            if file.blob is not None:
                start, length = file.blob
                return file, {file.data_file: _vector(read(file.path, (start, start + length)), length)}
            return file, dict(_position_deletes(read(file.path, (0, file.size)), file.size))
        except ObjectNotFoundError:
            return file, "it is missing"
        except (ValueError, KeyError, pa.ArrowException, OSError) as error:
            return file, str(error)

    with_vectors = {label(file.data_file) for file in vectors}
    for file, some in runtime.map(positions, deletes):
        if isinstance(some, str):
            faults.add(file.path, f"the deletes in it cannot be read: {some}")
            continue
        for path, own in some.items():
            name = label(path)
            there = data.get(name)
            if there is None or there.sequence > file.sequence or (file.blob is None and name in with_vectors):
                continue
            if own and own.max() >= there.rows:
                faults.add(file.path, f"it deletes row {own.max():,} of a file with {there.rows:,} rows")
                continue
            found[name] = found[name] | own if name in found else own
    return found


def _vector(body: bytes, length: int) -> BitMap:
    """A deletion vector of a Puffin file ("deletion-vector-v1"). Raises ValueError if it is damaged."""
    inner = body[4:-4]
    if len(body) != length or inner[:4] != _VECTOR_MAGIC or int.from_bytes(body[-4:], "big") != crc32(inner):
        raise ValueError("the deletion vector's checksum differs")
    count = int.from_bytes(inner[4:12], "little")
    if count == 0:
        return BitMap()
    if count > 1 or inner[12:_EMPTY] != bytes(4):
        raise ValueError("the deletion vector has positions beyond 4,294,967,295")
    return BitMap.deserialize(inner[_EMPTY:])


def _position_deletes(body: bytes, size: int) -> Iterator[tuple[str, BitMap]]:
    """The positions in a file of position deletes, by the URL of the data file. Raises ValueError."""
    if len(body) != size:
        raise ValueError(f"it has not the {size:,} bytes that its manifest tells of")
    file = pq.ParquetFile(pa.BufferReader(body))
    table = file.read(["file_path", "pos"], use_threads=False)
    rows = sum(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))
    if table.num_rows != rows:
        raise ValueError(f"it holds {table.num_rows:,} rows, not the {rows:,} of its footer")
    if not table.num_rows:
        return
    paths = table["file_path"].combine_chunks().cast(pa.string()).dictionary_encode()
    positions = table["pos"].to_numpy()
    if positions.min() < 0 or positions.max() > 2**32 - 1:
        raise ValueError("a position is negative, or beyond 4,294,967,295")
    codes = paths.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(paths.dictionary)), side="right")
    for path, some in zip(paths.dictionary.to_pylist(), np.split(positions[order], ends[:-1]), strict=True):
        yield path, BitMap(some.astype(np.uint32))
