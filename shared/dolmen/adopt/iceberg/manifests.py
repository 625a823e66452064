"""Manifest lists and manifests of an Iceberg snapshot, of format versions 1 to 3.

See "Manifests", "Manifest Lists" and "Sequence Number Inheritance" of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeVar

import fastavro
import msgspec
from fastavro.schema import SchemaParseException, UnknownType

from dolmen.adopt.faults import READ_BY_ENGINE
from dolmen.base.runtime import Runtime
from dolmen.errors import AdoptionError

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
