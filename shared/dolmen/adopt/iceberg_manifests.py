"""The files of an Iceberg snapshot of format versions 1 to 3, and its deleted rows as positions in its data files.

See "Manifests", "Manifest Lists", "Sequence Number Inheritance", "Delete Formats" and "Scan Planning" of
https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import chain
from typing import Any, TypeVar

import fastavro
import msgspec
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType
from pyroaring import BitMap

from dolmen.adopt.columns import READ_BY_ENGINE, AdoptionRefusals
from dolmen.base.runtime import Runtime
from dolmen.errors import AdoptionError, ObjectNotFoundError
from dolmen.format.layout import build_decoders
from dolmen.format.types import Plain
from dolmen.iceberg.file_groups import read_position_deletes, read_vector_blob
from dolmen.iceberg.manifests import DATA
from dolmen.iceberg.partition_specs import plain_values

R = TypeVar("R")

_DAMAGE = (
    ValueError, EOFError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, RecursionError,
    OSError, MemoryError, struct.error, zlib.error, msgspec.ValidationError, SchemaParseException, UnknownType,
)  # fmt: skip
"""The errors that fastavro raises for damaged bytes, and those for records without a field."""

_DELETED_STATUS = 2


class IcebergFile(
    msgspec.Struct,
    rename={
        "path": "file_path",
        "format": "file_format",
        "rows": "record_count",
        "size": "file_size_in_bytes",
        "columns": "equality_ids",
        "data_file": "referenced_data_file",
        "offset": "content_offset",
        "length": "content_size_in_bytes",
    },
):
    """A data file or delete file of a snapshot, as far as the record in its manifest is read."""

    path: str
    format: str
    rows: int
    size: int
    content: int | None = None
    key_metadata: bytes | None = None
    columns: list[int] | None = None  # for an equality delete, the ids of its columns
    # data_file, offset, length: for a deletion vector, its data file, and its place in the file
    data_file: str | None = None
    offset: int | None = None
    length: int | None = None
    partition: dict[str, Any] = {}  # values by the name of their field in the manifest
    # sequence, spec: as the entry or the manifest list has them
    sequence: int = 0
    spec: int = 0

    def __post_init__(self) -> None:
        self.format, self.content = self.format.upper(), self.content or DATA

    @property
    def blob(self) -> tuple[int, int] | None:
        """The offset and length of a deletion vector."""
        return None if self.offset is None or self.length is None else (self.offset, self.length)

    @property
    def values(self) -> list[Plain]:
        """The values of its partition, in the order of the spec's fields."""
        return list(plain_values(self.partition))


class _ManifestRecord(msgspec.Struct):
    """The fields that are read of an entry of a manifest list."""

    manifest_path: str
    sequence_number: int | None = None
    partition_spec_id: int | None = None


class _EntryRecord(msgspec.Struct):
    """The fields that are read of an entry of a manifest."""

    status: int
    data_file: IcebergFile
    sequence_number: int | None = None


build_decoders(_ManifestRecord, _EntryRecord)


def snapshot_files(
    manifest_list: str | None, paths: Sequence[str], read: Callable[[str], bytes], runtime: Runtime
) -> Iterator[IcebergFile]:
    """All files of a snapshot, by its manifest list, or by the paths of manifests, which version 1 allows."""
    if manifest_list is None:
        manifests = [_ManifestRecord(path) for path in paths]
    else:
        manifests = list(_records(read(manifest_list), manifest_list, _ManifestRecord))

    def files(manifest: _ManifestRecord) -> list[IcebergFile]:
        entries = _records(read(manifest.manifest_path), manifest.manifest_path, _EntryRecord)
        return [_file(entry, manifest) for entry in entries if entry.status != _DELETED_STATUS]

    return chain.from_iterable(runtime.map(files, manifests))


def _file(entry: _EntryRecord, manifest: _ManifestRecord) -> IcebergFile:
    file, inherited = entry.data_file, manifest.sequence_number or 0
    file.sequence = inherited if entry.sequence_number is None else entry.sequence_number
    file.spec = manifest.partition_spec_id or 0
    return file


def _records(body: bytes, path: str, kind: type[R]) -> Iterator[R]:
    """The records of an Avro file. Raises AdoptionError if the file is damaged, or its records have another form."""
    try:
        reader = fastavro.reader(BytesIO(body))
        if not _takes_bytes(reader.writer_schema, set()):
            raise ValueError(_ANY_NUMBER)
        for record in reader:
            yield msgspec.convert(record, kind)
    except _DAMAGE as error:
        reason = f"the manifest cannot be read: {type(error).__name__}: {error}"
        raise AdoptionError(path, [reason], READ_BY_ENGINE) from error


_ANY_NUMBER = "its schema allows any number of values in a few bytes"


def _takes_bytes(schema: Any, records: set[str]) -> bool:
    """True if each value of a schema takes at least one byte. A partition without fields takes none.

    Raises ValueError if a list's items take no bytes, or a record is used twice or in itself: no manifest does that.
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
        takes = [_takes_bytes(field["type"], records) for field in schema["fields"]]  # a list, to check every field
        return any(takes)
    return kind == "enum" or _takes_bytes(kind, records)


ReadRange = Callable[[str, tuple[int, int]], bytes]  # (URL, first and end byte) -> these bytes


def deleted_positions(
    deletes: Sequence[IcebergFile],
    data: Mapping[str, IcebergFile],
    label: Callable[[str], str],
    read: ReadRange,
    runtime: Runtime,
    refusals: AdoptionRefusals,
) -> dict[str, BitMap]:
    """The deleted positions by the label of the data file.

    A deletion vector replaces the position deletes of its file. Position deletes apply to files whose sequence number
    is not greater than theirs.
    """
    deleted: dict[str, BitMap] = {}
    vectors = [file for file in deletes if file.blob is not None]

    def positions(file: IcebergFile) -> tuple[IcebergFile, dict[str, BitMap] | str]:
        try:
            if file.blob is not None:
                start, length = file.blob
                return file, {file.data_file or "": read_vector_blob(read(file.path, (start, start + length)), length)}
            return file, dict(read_position_deletes(read(file.path, (0, file.size)), file.size))
        except ObjectNotFoundError:
            return file, "it is missing"
        except (ValueError, KeyError, pa.ArrowException, OSError) as error:
            return file, str(error)

    with_vectors = {label(file.data_file or "") for file in vectors}
    for file, result in runtime.map(positions, deletes):
        if isinstance(result, str):
            refusals.add(file.path, f"its deletes cannot be read: {result}")
            continue
        for path, bitmap in result.items():
            name = label(path)
            target = data.get(name)
            if target is None or target.sequence > file.sequence or (file.blob is None and name in with_vectors):
                continue
            if bitmap and bitmap.max() >= target.rows:
                refusals.add(file.path, f"it deletes row {bitmap.max():,} of a file with {target.rows:,} rows")
                continue
            deleted[name] = deleted[name] | bitmap if name in deleted else bitmap
    return deleted
