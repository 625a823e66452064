"""The Avro schemas of manifests and manifest lists, with Iceberg's field ids.

See "Manifests", "Manifest Lists" and appendix A of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

from typing import Any

Avro = dict[str, Any]


def manifest_entry_schema() -> Avro:
    """The schema of the entries of a manifest, for an unpartitioned table; the same for v2 and v3."""
    data_file = [
        _required("content", "int", 134),
        _required("file_path", "string", 100),
        _required("file_format", "string", 101),
        _required("partition", {"type": "record", "name": "r102", "fields": []}, 102),
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
    """The schema of a manifest list; the same for v2 and v3.

    ``partitions`` is always a list: some readers fail if it is NULL.
    """
    summary = [
        _required("contains_null", "boolean", 509),
        _optional("contains_nan", "boolean", 518),
        _optional("lower_bound", "bytes", 510),
        _optional("upper_bound", "bytes", 511),
    ]
    partitions = {
        "type": "array",
        "items": {"type": "record", "name": "r508", "fields": summary},
        "element-id": 508,
    }
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
