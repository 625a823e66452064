"""Manifest lists and manifests of an Iceberg snapshot, of format versions 1 to 3.

See "Manifests", "Manifest Lists" and "Sequence Number Inheritance" of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import fastavro

from dolmen.errors import AdoptionError
from dolmen.runtime import Runtime

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
        manifests = list(_records(read(path), path))
    else:  # as version 1 allows
        manifests = [{"manifest_path": path} for path in snapshot["manifests"]]
    for some in runtime.map(lambda manifest: _files(manifest, read), manifests):
        yield from some


def _files(manifest: Mapping[str, Any], read: Callable[[str], bytes]) -> list[IcebergFile]:
    path = str(manifest["manifest_path"])
    inherited = manifest.get("sequence_number") or 0
    spec = manifest.get("partition_spec_id") or 0
    return [_file(entry, inherited, spec) for entry in _records(read(path), path) if entry["status"] != _DELETED]


def _file(entry: Mapping[str, Any], inherited: int, spec: int) -> IcebergFile:
    file, sequence = entry["data_file"], entry.get("sequence_number")
    offset = file.get("content_offset")
    return IcebergFile(
        content=file.get("content") or DATA,
        path=file["file_path"],
        format=str(file["file_format"]).upper(),
        rows=file["record_count"],
        size=file["file_size_in_bytes"],
        sequence=inherited if sequence is None else sequence,
        spec=spec,
        data_file=file.get("referenced_data_file") or "",
        blob=None if offset is None else (offset, file["content_size_in_bytes"]),
        is_encrypted=file.get("key_metadata") is not None,
        columns=tuple(file.get("equality_ids") or ()),
    )


def _records(body: bytes, path: str) -> Iterator[dict[str, Any]]:
    try:
        yield from fastavro.reader(BytesIO(body))
    except (ValueError, EOFError, IndexError, KeyError, TypeError) as error:
        raise AdoptionError(path, [f"the manifest cannot be read: {error}"]) from error
