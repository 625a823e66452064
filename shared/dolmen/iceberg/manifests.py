"""Manifests and manifest lists: which data files and delete files a snapshot has, with the metrics of their columns.

See "Manifests", "Data file fields" and appendices A and D of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from dolmen.entries.segments.row_bounds import column_bounds
from dolmen.errors import CorruptionError
from dolmen.format.entries import Bounds, DataFile
from dolmen.format.layout import build_decoders
from dolmen.format.schema import Field, is_nested
from dolmen.format.transforms import EXACT
from dolmen.format.types import Plain, type_of
from dolmen.iceberg.partition_specs import UNPARTITIONED, BoundSpec, FilePartition, plain_values

_LITTLE_ENDIAN = {"bool": "<?", "int8": "<i", "int16": "<i", "int32": "<i", "float": "<f", "double": "<d", "date": "<i"}
"""The layout of values; integers of 64 bits and timestamps are ``<q``."""


@dataclass(frozen=True)
class Metrics:
    """Metrics of a data file, by field id; ``values`` counts NULL and NaN too, and bounds are serialised."""

    values: dict[int, int] = field(default_factory=dict)
    nulls: dict[int, int] = field(default_factory=dict)
    nans: dict[int, int] = field(default_factory=dict)
    lower: dict[int, bytes] = field(default_factory=dict)
    upper: dict[int, bytes] = field(default_factory=dict)


def metrics(file: DataFile, columns: Mapping[int, Field]) -> Metrics:
    """The metrics of a file's published columns, as far as its entry has them.

    With NaN, DuckDB and Spark lose rows of ``x > 1`` in a file with an upper bound or a count of NaN, so a column
    that may have NaN gets neither. A lower bound of 0.0 is written as -0.0, and an upper one of -0.0 as 0.0: for
    Iceberg for Java -0.0 is less.
    Truncated bounds of ``fixed[n]`` are left out, because they do not have the type's length.
    """
    result = Metrics()
    for id_, column in columns.items():
        arrow_type = column.arrow_type
        if is_nested(arrow_type):
            continue
        bounds = column_bounds(file, column)
        if bounds.nulls is None and bounds.min is None and bounds.max is None:
            continue
        _add(result, id_, bounds, file.rows, arrow_type)
    return result


def _add(result: Metrics, id_: int, bounds: Bounds, rows: int, arrow_type: pa.DataType) -> None:
    result.values[id_] = rows
    if bounds.nulls is not None:
        result.nulls[id_] = bounds.nulls
    least, greatest = bounds.min, bounds.max
    if pa.types.is_floating(arrow_type):
        if bounds.nans == 0:
            result.nans[id_] = 0
        else:
            greatest = None
        if least == 0:
            least = -0.0
        if greatest == 0:
            greatest = 0.0
    if (lower := single_value(least, arrow_type)) is not None:
        result.lower[id_] = lower
    if (upper := single_value(greatest, arrow_type)) is not None:
        result.upper[id_] = upper


def single_value(value: Plain, arrow_type: pa.DataType) -> bytes | None:
    """A value as bytes; None for no value, and for one that does not fit the type, such as a truncated bound."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        cut = pa.types.is_fixed_size_binary(arrow_type) and len(value) != arrow_type.byte_width
        return None if cut else value
    if isinstance(value, Decimal):
        unscaled = int(value.scaleb(arrow_type.scale, EXACT))
        return unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)
    kind = type_of(arrow_type)
    assert kind is not None
    return struct.pack(_LITTLE_ENDIAN.get(kind.name, "<q"), value)


Content: TypeAlias = Literal["data", "deletes"]

_CONTENTS: tuple[Content, Content] = ("data", "deletes")

_SYNC_MARKER = b"dolmen-publisher"
"""The mark between the blocks of an Avro file: any 16 bytes, constant so that equal records make equal files."""

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2  # values of ``content`` of a file

_EXISTING, _ADDED = 0, 1
"""Values of ``status`` of an entry. Removed files are not listed, because no reader needs them."""

_COVERAGE = "dolmen.coverage"  # key in the header of a manifest of deletes, beside Iceberg's own keys


@dataclass(frozen=True)
class FileEntry:
    """A data file or a delete file of a snapshot."""

    path: str
    format: str
    rows: int  # physical rows, or the number of deleted positions
    size: int
    snapshot: int  # id of the snapshot that added it
    sequence: int  # data sequence number: deletes apply to data files with the same or a lower one
    content: int = DATA
    metrics: Metrics = field(default_factory=Metrics)
    first_row_id: int | None = None
    data_file: str | None = None  # path of the only data file that a delete file is about
    blob: tuple[int, int] | None = None  # v3: offset and length of the deletion vector in its Puffin file
    partition: FilePartition = UNPARTITIONED  # for a delete file, that of its data files


class FieldSummary(msgspec.Struct, frozen=True):
    """The values of a partition field in a manifest; none is NULL."""

    lower_bound: bytes | None
    upper_bound: bytes | None
    contains_null: bool = False


def summarize(partitions: Collection[FilePartition], spec: BoundSpec) -> list[FieldSummary]:
    """The summaries of a manifest with these partitions, which are all of one spec."""
    fields: Iterable[Any] = zip(zip(*(each.values for each in partitions), strict=True), spec.kinds, strict=True)
    return [FieldSummary(single_value(min(values), kind), single_value(max(values), kind)) for values, kind in fields]


class ManifestFile(
    msgspec.Struct,
    rename={
        "path": "manifest_path",
        "size": "manifest_length",
        "sequence": "sequence_number",
        "least_sequence": "min_sequence_number",
        "snapshot": "added_snapshot_id",
        "added_files": "added_files_count",
        "added_rows": "added_rows_count",
        "existing_files": "existing_files_count",
        "existing_rows": "existing_rows_count",
        "spec": "partition_spec_id",
    },
):
    """A manifest's entry in a manifest list. Its own entries are "added" by its snapshot, or "existing" before."""

    content: Content
    sequence: int
    snapshot: int
    least_sequence: int
    added_files: int = 0
    added_rows: int = 0
    existing_files: int = 0
    existing_rows: int = 0
    first_row_id: int | None = None
    path: str = ""
    size: int = 0
    spec: int = 0
    partitions: list[FieldSummary] = []

    @property
    def files(self) -> int:
        return self.added_files + self.existing_files

    @property
    def rows(self) -> int:
        """Rows, or deleted positions, of all its entries."""
        return self.added_rows + self.existing_rows

    def count(self, entries: Iterable[FileEntry]) -> Iterator[FileEntry]:
        """Yields the entries of a new manifest, and sums them up."""
        for entry in entries:
            if entry.snapshot == self.snapshot:
                self.added_files += 1
                self.added_rows += entry.rows
            else:
                self.existing_files += 1
                self.existing_rows += entry.rows
            self.least_sequence = min(self.least_sequence, entry.sequence)
            if entry.first_row_id is not None:
                least_id = self.first_row_id
                self.first_row_id = entry.first_row_id if least_id is None else min(least_id, entry.first_row_id)
            yield entry


build_decoders(ManifestFile)


@dataclass(frozen=True)
class ManifestBody:
    """The content of a manifest; for deletes, ``coverage`` has the number of positions by the data file's uuid."""

    entries: tuple[FileEntry, ...]
    coverage: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def decode(cls, body: bytes, key: str) -> ManifestBody:
        """Reads a manifest that dolmen wrote, without metrics of data files. Raises CorruptionError."""
        records, metadata = _read(body, key)
        try:
            coverage = msgspec.json.decode(metadata.get(_COVERAGE, "{}"), type=dict[str, int])
            spec = int(metadata["partition-spec-id"])
            return cls(tuple(_from_avro(record, spec) for record in records), coverage)
        except (KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
            raise CorruptionError(key, f"not a manifest of a publication: {error}") from error


def encode_manifest(
    entries: Iterable[FileEntry],
    version: int,
    content: Content,
    schema: dict[str, Any],
    snapshot: int,
    coverage: Mapping[str, int] | None = None,
    spec: BoundSpec | None = None,
) -> bytes:
    """Encodes a manifest while entries arrive, so that only its compressed form is in memory."""
    fields = spec.avro_fields() if spec else []
    metadata = {
        "schema": msgspec.json.encode(schema).decode(),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": msgspec.json.encode(spec.spec.fields if spec else ()).decode(),
        "partition-spec-id": str(spec.spec.spec_id if spec else 0),
        "format-version": str(version),
        "content": content,
    }
    if coverage:
        metadata[_COVERAGE] = msgspec.json.encode(coverage).decode()
    names = [field["name"] for field in fields]
    return _write(manifest_entry_schema(fields), (_to_avro(entry, snapshot, names) for entry in entries), metadata)


def encode_manifest_list(manifests: Iterable[ManifestFile], version: int, snapshot: int, sequence: int) -> bytes:
    metadata = {
        "format-version": str(version),
        "snapshot-id": str(snapshot),
        "parent-snapshot-id": "null",
        "sequence-number": str(sequence),
    }
    constants = {"deleted_files_count": 0, "deleted_rows_count": 0}
    records = (
        msgspec.to_builtins(each, builtin_types=(bytes,)) | constants | {"content": _CONTENTS.index(each.content)}
        for each in manifests
    )
    return _write(manifest_list_schema(), records, metadata)


def decode_manifest_list(body: bytes, key: str) -> tuple[ManifestFile, ...]:
    """Reads a manifest list that dolmen wrote. Raises CorruptionError if it is another writer's."""
    records, _ = _read(body, key)
    try:
        contents = ({"content": _CONTENTS[record["content"]]} for record in records)
        return tuple(
            msgspec.convert(record | content, ManifestFile) for record, content in zip(records, contents, strict=True)
        )
    except (KeyError, TypeError, IndexError, msgspec.ValidationError) as error:
        raise CorruptionError(key, f"not a manifest list of a publication: {error}") from error


def _write(schema: Any, records: Iterable[dict[str, Any]], metadata: dict[str, str]) -> bytes:
    import fastavro  # takes a while, and most functions publish nothing

    out = io.BytesIO()
    fastavro.writer(
        out, fastavro.parse_schema(schema), records, codec="deflate", metadata=metadata, sync_marker=_SYNC_MARKER
    )
    return out.getvalue()


def _read(body: bytes, key: str) -> tuple[list[Any], dict[str, str]]:
    import fastavro

    try:
        reader = fastavro.reader(io.BytesIO(body))
        return list(reader), dict(reader.metadata)
    except (ValueError, EOFError, LookupError, TypeError, OSError, AssertionError) as error:
        raise CorruptionError(key, f"not an Avro file: {error}") from error


def _to_avro(entry: FileEntry, snapshot: int, fields: Iterable[str]) -> dict[str, Any]:
    counts = entry.metrics
    return {
        "status": _ADDED if entry.snapshot == snapshot else _EXISTING,
        "snapshot_id": entry.snapshot,
        "sequence_number": entry.sequence,
        "file_sequence_number": entry.sequence,
        "data_file": {
            "content": entry.content,
            "file_path": entry.path,
            "file_format": entry.format,
            "partition": dict(zip(fields, entry.partition.values, strict=True)),
            "record_count": entry.rows,
            "file_size_in_bytes": entry.size,
            "value_counts": _pairs(counts.values),
            "null_value_counts": _pairs(counts.nulls),
            "nan_value_counts": _pairs(counts.nans),
            "lower_bounds": _pairs(counts.lower),
            "upper_bounds": _pairs(counts.upper),
            "first_row_id": entry.first_row_id,
            "referenced_data_file": entry.data_file,
            "content_offset": entry.blob[0] if entry.blob else None,
            "content_size_in_bytes": entry.blob[1] if entry.blob else None,
        },
    }


def _pairs(values: Mapping[int, Any]) -> list[dict[str, Any]] | None:
    return [{"key": id_, "value": value} for id_, value in values.items()] or None


def _from_avro(record: dict[str, Any], spec: int) -> FileEntry:
    file = record["data_file"]
    offset = file["content_offset"]
    return FileEntry(
        file["file_path"],
        file["file_format"],
        file["record_count"],
        file["file_size_in_bytes"],
        record["snapshot_id"],
        record["sequence_number"],
        file["content"],
        _bounds(file) if file["content"] == POSITION_DELETES else Metrics(),
        file["first_row_id"],
        file["referenced_data_file"],
        None if offset is None else (offset, file["content_size_in_bytes"]),
        FilePartition(spec, tuple(plain_values(file["partition"]))),
    )


def _bounds(file: dict[str, Any]) -> Metrics:
    def pairs(name: str) -> dict[int, bytes]:
        return {pair["key"]: pair["value"] for pair in file[name] or ()}

    return Metrics(lower=pairs("lower_bounds"), upper=pairs("upper_bounds"))


Avro = dict[str, Any]


def manifest_entry_schema(partition_fields: Collection[Avro] = ()) -> Avro:
    """The schema of the entries of a manifest, with these fields of partitions; the same for v2 and v3."""
    data_file = [
        _required("content", "int", 134),
        _required("file_path", "string", 100),
        _required("file_format", "string", 101),
        _required("partition", {"type": "record", "name": "r102", "fields": list(partition_fields)}, 102),
        _required("record_count", "long", 103),
        _required("file_size_in_bytes", "long", 104),
        _optional("value_counts", _map(119, "int", 120, "long"), 109),
        _optional("null_value_counts", _map(121, "int", 122, "long"), 110),
        _optional("nan_value_counts", _map(138, "int", 139, "long"), 137),
        _optional("lower_bounds", _map(126, "int", 127, "bytes"), 125),
        _optional("upper_bounds", _map(129, "int", 130, "bytes"), 128),
        _optional("first_row_id", "long", 142),
        _optional("referenced_data_file", "string", 143),
        _optional("content_offset", "long", 144),
        _optional("content_size_in_bytes", "long", 145),
    ]
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _required("status", "int", 0),
            _optional("snapshot_id", "long", 1),
            _optional("sequence_number", "long", 3),
            _optional("file_sequence_number", "long", 4),
            _required("data_file", {"type": "record", "name": "r2", "fields": data_file}, 2),
        ],
    }


def manifest_list_schema() -> Avro:
    """The schema of a manifest list. ``partitions`` is always a list: some readers fail if it is NULL."""
    summary = [
        _required("contains_null", "boolean", 509),
        _optional("contains_nan", "boolean", 518),
        _optional("lower_bound", "bytes", 510),
        _optional("upper_bound", "bytes", 511),
    ]
    partitions = {"type": "array", "items": {"type": "record", "name": "r508", "fields": summary}, "element-id": 508}
    return {
        "type": "record",
        "name": "manifest_file",
        "fields": [
            _required("manifest_path", "string", 500),
            _required("manifest_length", "long", 501),
            _required("partition_spec_id", "int", 502),
            _required("content", "int", 517),
            _required("sequence_number", "long", 515),
            _required("min_sequence_number", "long", 516),
            _required("added_snapshot_id", "long", 503),
            _required("added_files_count", "int", 504),
            _required("existing_files_count", "int", 505),
            _required("deleted_files_count", "int", 506),
            _required("added_rows_count", "long", 512),
            _required("existing_rows_count", "long", 513),
            _required("deleted_rows_count", "long", 514),
            _optional("partitions", partitions, 507),
            _optional("key_metadata", "bytes", 519),
            _optional("first_row_id", "long", 520),
        ],
    }


def _required(name: str, type_: Any, id_: int) -> Avro:
    return {"name": name, "type": type_, "field-id": id_}


def _optional(name: str, type_: Any, id_: int) -> Avro:
    return {"name": name, "type": ["null", type_], "default": None, "field-id": id_}


def _map(key_id: int, key: str, value_id: int, value: str) -> Avro:
    """A map whose keys are not strings, as an array of records (appendix A)."""
    fields = [_required("key", key, key_id), _required("value", value, value_id)]
    record = {"type": "record", "name": f"k{key_id}_v{value_id}", "fields": fields}
    return {"type": "array", "items": record, "logicalType": "map"}
