"""The bytes of publications are those of the specifications (https://iceberg.apache.org/spec/, .../puffin-spec/)."""

from __future__ import annotations

import io
import json
import math
import struct
import zlib
from decimal import Decimal

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

from dolmen.errors import CorruptionError
from dolmen.format.entries import ColumnStats, DataFile, column_stats
from dolmen.format.schema import Field, Schema
from dolmen.format.types import TYPES, Plain
from dolmen.iceberg.file_groups import (
    encode_position_deletes,
    encode_puffin,
    encode_vector_blob,
    read_position_deletes,
    read_vector_blob,
)
from dolmen.iceberg.manifests import (
    FileEntry,
    ManifestBody,
    ManifestFile,
    Metrics,
    decode_manifest_list,
    encode_manifest,
    encode_manifest_list,
    manifest_entry_schema,
    manifest_list_schema,
    metrics,
    single_value,
)
from dolmen.iceberg.metadata import (
    ICEBERG_TYPES,
    PublishedSchema,
    PublishedSnapshot,
    TableMetadata,
    default_json,
    keeps_types,
)

UNSIGNED_OR_TIME = {"uint8", "uint16", "uint32", "uint64", "time"}


def test_every_column_type_is_published_or_left_out_with_a_reason() -> None:
    parametrized = {"decimal", "fixed_size_binary", "list", "struct", "map"}
    assert {known.name for known in TYPES} == set(ICEBERG_TYPES) | parametrized | UNSIGNED_OR_TIME


def test_schemas_have_the_ids_of_dolmen_and_the_types_of_the_specification() -> None:
    schema = Schema.from_arrow(
        pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                ("small", pa.int8()),
                ("price", pa.decimal128(9, 2)),
                ("code", pa.binary(4)),
                ("at", pa.timestamp("us", "UTC")),
                ("tags", pa.list_(pa.string())),
                ("who", pa.struct([pa.field("name", pa.string(), nullable=False)])),
                ("counts", pa.map_(pa.string(), pa.int32())),
                ("big", pa.uint64()),
                ("times", pa.list_(pa.time64("us"))),
            ]
        )
    )
    found = PublishedSchema.of(schema, 2)
    assert found.to_json(3) == {
        "type": "struct",
        "schema-id": 3,
        "fields": [
            {"id": 1, "name": "id", "required": True, "type": "long"},
            {"id": 2, "name": "small", "required": False, "type": "int"},
            {"id": 3, "name": "price", "required": False, "type": "decimal(9, 2)"},
            {"id": 4, "name": "code", "required": False, "type": "fixed[4]"},
            {"id": 5, "name": "at", "required": False, "type": "timestamptz"},
            {
                "id": 6,
                "name": "tags",
                "required": False,
                "type": {"type": "list", "element-id": 7, "element": "string", "element-required": False},
            },
            {
                "id": 8,
                "name": "who",
                "required": False,
                "type": {
                    "type": "struct",
                    "fields": [{"id": 9, "name": "name", "required": True, "type": "string"}],
                },
            },
            {
                "id": 10,
                "name": "counts",
                "required": False,
                "type": {
                    "type": "map",
                    "key-id": 11,
                    "key": "string",
                    "value-id": 12,
                    "value-required": False,
                    "value": "int",
                },
            },
        ],
    }
    assert set(found.left_out) == {"big", "times"}
    assert found.last_id == 15


def test_defaults_of_older_rows_are_published_in_v3_alone() -> None:
    with_default = Field(1, "n", "int32", initial_default=7, write_default=8, comment="a number")
    schema = Schema((with_default, Field(2, "id", "int64")), 3)
    assert PublishedSchema.of(schema, 2).left_out.keys() == {"n"}
    field, _ = PublishedSchema.of(schema, 3).fields
    assert field == {
        "id": 1,
        "name": "n",
        "required": False,
        "type": "int",
        "doc": "a number",
        "initial-default": 7,
        "write-default": 8,
    }


@pytest.mark.parametrize(("kind", "value"), [("date32[day]", 3_000_000), ("timestamp[us]", 2**62)])
def test_a_default_outside_of_the_years_of_iceberg_keeps_its_column_alone_out(kind: str, value: int) -> None:
    schema = Schema((Field(1, "n", "int32"), Field(2, "at", kind, write_default=value)), 3)
    found = PublishedSchema.of(schema, 3)
    assert found.left_out == {"at": "it has a default outside of the years 1 to 9999"}
    assert [field["name"] for field in found.fields] == ["n"]


@pytest.mark.parametrize(
    ("value", "arrow_type", "json_value"),
    [
        (19_675, pa.date32(), "2023-11-14"),
        (1_700_000_000_000_001, pa.timestamp("us"), "2023-11-14T22:13:20.000001"),
        (1_700_000_000_000_001, pa.timestamp("us", "UTC"), "2023-11-14T22:13:20.000001+00:00"),
        (Decimal("14.20"), pa.decimal128(9, 2), "14.20"),
        (b"\x00\x01", pa.binary(), "0001"),
        (True, pa.bool_(), True),
        (1.5, pa.float64(), 1.5),
        ("a", pa.string(), "a"),
    ],
)
def test_defaults_are_single_values_in_json(value: Plain, arrow_type: pa.DataType, json_value: object) -> None:
    assert default_json(value, arrow_type) == json_value


@pytest.mark.parametrize(
    ("value", "arrow_type", "bytes_"),
    [
        (True, pa.bool_(), b"\x01"),
        (34, pa.int8(), b"\x22\x00\x00\x00"),
        (34, pa.int64(), b"\x22\x00\x00\x00\x00\x00\x00\x00"),
        (1.0, pa.float32(), struct.pack("<f", 1)),
        (1.0, pa.float64(), struct.pack("<d", 1)),
        (Decimal("14.20"), pa.decimal128(9, 2), b"\x05\x8c"),
        (Decimal("-0.01"), pa.decimal128(9, 2), b"\xff"),
        (Decimal("1.28"), pa.decimal128(9, 2), b"\x00\x80"),
        (Decimal("-1.28"), pa.decimal128(9, 2), b"\x80"),
        (Decimal(0), pa.decimal128(9, 2), b"\x00"),
        (Decimal(10**38 - 1), pa.decimal128(38, 0), (10**38 - 1).to_bytes(16, "big")),
        (-1, pa.date32(), b"\xff\xff\xff\xff"),
        (1, pa.timestamp("us", "UTC"), b"\x01" + bytes(7)),
        ("ä", pa.string(), b"\xc3\xa4"),
        (b"ab", pa.binary(2), b"ab"),
        (b"a", pa.binary(2), None),
        (None, pa.int64(), None),
    ],
)
def test_bounds_are_single_values_in_bytes(value: Plain, arrow_type: pa.DataType, bytes_: bytes | None) -> None:
    assert single_value(value, arrow_type) == bytes_


def file_with(stats: ColumnStats | None) -> DataFile:
    return DataFile("data/t/x.parquet", 100, 10, (0, 1, 2), row_ts=5, stats={} if stats is None else {1: stats})


def metrics_of(stats: ColumnStats | None, arrow: str = "double") -> Metrics:
    return metrics(file_with(stats), {1: Field(1, "x", arrow)})


def test_a_column_with_nan_has_neither_an_upper_bound_nor_a_count_of_nan() -> None:
    for nans in (3, None):
        found = metrics_of(column_stats(0.5, 2.0, 1, nans))
        assert (found.upper, found.nans, found.nulls) == ({}, {}, {1: 1})
        assert found.lower == {1: struct.pack("<d", 0.5)}
    found = metrics_of(column_stats(0.5, 2.0, 1, 0))
    assert (found.upper, found.nans) == ({1: struct.pack("<d", 2)}, {1: 0})


def test_a_lower_bound_of_zero_is_the_negative_zero() -> None:
    (least,) = struct.unpack("<d", metrics_of(column_stats(0.0, 0.0, 0, 0)).lower[1])
    assert math.copysign(1, least) == -1


def test_what_is_unknown_is_absent() -> None:
    assert metrics_of(None) == Metrics()
    found = metrics_of(ColumnStats(None, None, 10), "string")
    assert (found.values, found.nulls, found.lower, found.upper) == ({1: 10}, {1: 10}, {}, {})


def test_bounds_of_text_are_cut_outwards() -> None:
    found = metrics_of(column_stats("a" * 40, "b" * 40, 0), "string")
    assert (found.lower, found.upper) == ({1: b"a" * 16}, {1: b"b" * 15 + b"c"})


def ids_of(schema: object) -> dict[int, str]:
    """Names by all ids in an Avro schema."""
    found: dict[int, str] = {}
    if isinstance(schema, list):
        for each in schema:
            found |= ids_of(each)
    elif isinstance(schema, dict):
        if "field-id" in schema:
            found[schema["field-id"]] = schema["name"]
        if "element-id" in schema:
            found[schema["element-id"]] = "element"
        for each in schema.values():
            found |= ids_of(each)
    return found


def test_manifests_have_the_field_ids_of_the_specification() -> None:
    assert ids_of(manifest_entry_schema()) == {
        0: "status", 1: "snapshot_id", 2: "data_file", 3: "sequence_number", 4: "file_sequence_number",
        100: "file_path", 101: "file_format", 102: "partition", 103: "record_count", 104: "file_size_in_bytes",
        109: "value_counts", 110: "null_value_counts", 119: "key", 120: "value", 121: "key", 122: "value",
        125: "lower_bounds", 126: "key", 127: "value", 128: "upper_bounds", 129: "key", 130: "value", 134: "content",
        137: "nan_value_counts", 138: "key", 139: "value", 142: "first_row_id", 143: "referenced_data_file",
        144: "content_offset", 145: "content_size_in_bytes",
    }  # fmt: skip
    assert ids_of(manifest_list_schema()) == {
        500: "manifest_path", 501: "manifest_length", 502: "partition_spec_id", 503: "added_snapshot_id",
        504: "added_files_count", 505: "existing_files_count", 506: "deleted_files_count", 507: "partitions",
        508: "element", 509: "contains_null", 510: "lower_bound", 511: "upper_bound", 512: "added_rows_count",
        513: "existing_rows_count", 514: "deleted_rows_count", 515: "sequence_number", 516: "min_sequence_number",
        517: "content", 518: "contains_nan", 519: "key_metadata", 520: "first_row_id",
    }  # fmt: skip


ENTRY = FileEntry("file:///d/a.parquet", "PARQUET", 10, 100, 7, 70, first_row_id=5)
OLD = FileEntry("file:///d/b.parquet", "PARQUET", 20, 200, 3, 30)


def test_manifests_read_back_and_say_which_files_are_new() -> None:
    found = ManifestFile("data", 70, 7, 70)
    data = encode_manifest(found.count([ENTRY, OLD]), 3, "data", {"schema-id": 0, "fields": []}, 7, {"a": 1})
    assert ManifestBody.decode(data, "m") == ManifestBody((ENTRY, OLD), {"a": 1})
    reader = fastavro.reader(io.BytesIO(data))
    assert reader.metadata["content"] == "data"
    assert reader.metadata["format-version"] == "3"
    assert [record["status"] for record in reader] == [1, 0]
    found.path, found.size = "file:///d/m.avro", len(data)
    assert (found.added_files, found.added_rows, found.existing_files, found.existing_rows) == (1, 10, 1, 20)
    assert (found.least_sequence, found.first_row_id, found.files, found.rows) == (30, 5, 2, 30)
    listed = encode_manifest_list([found], 3, 7, 70)
    assert decode_manifest_list(listed, "l") == (found,)
    (record,) = fastavro.reader(io.BytesIO(listed))
    assert record["partitions"] == []


@pytest.mark.parametrize("body", [b"", b"Obj\x01", b"{}", b"Obj\x01" + bytes(100)])
def test_what_is_no_manifest_is_damage(body: bytes) -> None:
    with pytest.raises(CorruptionError):
        ManifestBody.decode(body, "m")
    with pytest.raises(CorruptionError):
        decode_manifest_list(body, "m")


def test_a_deletion_vector_is_laid_out_as_the_specification_says() -> None:
    positions = BitMap([1, 5, 70_000])
    blob = encode_vector_blob(positions)
    (length,) = struct.unpack(">I", blob[:4])
    assert length == len(blob) - 8
    assert blob[4:8] == b"\xd1\xd3\x39\x64"
    assert struct.unpack("<QI", blob[8:20]) == (1, 0)
    assert BitMap.deserialize(blob[20:-4]) == positions
    assert struct.unpack(">I", blob[-4:]) == (zlib.crc32(blob[4:-4]),)
    file = encode_puffin(blob, "s3://b/data/x.parquet", 3)
    assert file[:4] == file[-4:] == b"PFA1"
    size, flags = struct.unpack("<II", file[-12:-4])
    assert flags == 0
    assert file[-16 - size : -12 - size] == b"PFA1"
    (described,) = json.loads(file[-12 - size : -12])["blobs"]
    assert file[described["offset"] : described["offset"] + described["length"]] == blob
    assert described["type"] == "deletion-vector-v1"
    assert described["properties"] == {"referenced-data-file": "s3://b/data/x.parquet", "cardinality": "3"}


def test_position_deletes_are_sorted_and_have_the_reserved_ids() -> None:
    body = encode_position_deletes({"s3://b/z": BitMap([3, 1]), "s3://b/a": BitMap([9])})
    found = pq.read_table(pa.BufferReader(body))
    assert found.to_pylist() == [
        {"file_path": "s3://b/a", "pos": 9},
        {"file_path": "s3://b/z", "pos": 1},
        {"file_path": "s3://b/z", "pos": 3},
    ]
    ids = [field.metadata[b"PARQUET:field_id"] for field in pq.read_schema(pa.BufferReader(body))]
    assert ids == [b"2147483546", b"2147483545"]


def test_metadata_that_somebody_changed_is_not_taken_for_dolmens() -> None:
    snapshot = PublishedSnapshot(7, "c" * 32, 70, 1_700_000_000_123_456, "s", 1, "file:///d/l.avro", 0, 1, 10, 0, 0)
    metadata = TableMetadata(2, "0" * 31 + "1", "file:///d", 1_700_000_000_200, 3, ({"schema-id": 0},), 0, (snapshot,))
    body = metadata.encode()
    assert TableMetadata.decode(body) == metadata
    found = json.loads(body)
    assert found["table-uuid"] == "00000000-0000-0000-0000-000000000001"
    assert found["snapshots"][0]["timestamp-ms"] == 1_700_000_000_123
    found["current-snapshot-id"] = 8
    for other in (json.dumps(found).encode(), b"{}", b"", b"[]", b'{"properties": 1}'):
        assert TableMetadata.decode(other) is None


def test_bounds_in_old_manifests_are_kept_while_types_stay() -> None:
    was = [{"id": 1, "type": "int"}, {"id": 2, "type": {"type": "struct", "fields": [{"id": 3, "type": "int"}]}}]
    struct_ = {"type": "struct", "fields": [{"id": 4, "type": "int"}, {"id": 3, "type": "int", "name": "renamed"}]}
    assert keeps_types(was, [{"id": 2, "type": struct_}, {"id": 9, "type": "long"}])
    assert not keeps_types(was, [{"id": 1, "type": "long"}])
    assert not keeps_types(was, [{"id": 2, "type": {"type": "struct", "fields": [{"id": 3, "type": "long"}]}}])


def test_deletes_are_read_back_and_positions_that_no_file_has_are_refused() -> None:
    positions = BitMap([1, 5, 70_000])
    blob = encode_vector_blob(positions)
    assert read_vector_blob(blob, len(blob)) == positions
    for counts in (struct.pack("<QI", 2, 0), struct.pack("<QI", 1, 1)):  # a second bitmap; positions of 33 bits
        inner = blob[4:8] + counts + blob[20:-4]
        beyond = blob[:4] + inner + struct.pack(">I", zlib.crc32(inner))
        with pytest.raises(ValueError, match="beyond"):
            read_vector_blob(beyond, len(beyond))
    with pytest.raises(ValueError, match="checksum"):
        read_vector_blob(blob[:-1] + b"\0", len(blob))
    body = encode_position_deletes({"s3://b/z": positions, "s3://b/a": BitMap([9])})
    assert dict(read_position_deletes(body, len(body))) == {"s3://b/z": positions, "s3://b/a": BitMap([9])}
    for position in (-1, 1 << 32):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"file_path": ["s3://b/a"], "pos": [position]}), sink)
        with pytest.raises(ValueError, match="negative, or beyond"):
            dict(read_position_deletes(damaged := sink.getvalue().to_pybytes(), len(damaged)))
