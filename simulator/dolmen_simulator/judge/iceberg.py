"""Reads publications as Iceberg's readers do, independently of the code that wrote them.

It follows https://iceberg.apache.org/spec/: metadata names a manifest list, that names manifests, and these name data
files and delete files. It imports nothing of ``dolmen.iceberg``.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from dolmen.store.memory import MemoryBucket
from dolmen_simulator.judge.content import Content, Values

PREFIX = "iceberg/"
HINT = "version-hint.text"
_METADATA = re.compile(r"v([1-9][0-9]*)\.metadata\.json")
_LAYOUTS = {"int": "<i", "long": "<q", "timestamp": "<q"}
"""The layout of bounds by Iceberg's type: all that tables of histories have."""


class MalformedError(Exception):
    """Metadata that breaks a rule of Iceberg, or of its readers. The text says which."""


def require(holds: bool, what: str) -> None:
    """Raises MalformedError unless a rule holds."""
    if not holds:
        raise MalformedError(what)


class AvroFile(NamedTuple):
    """A decoded Avro file: its records, and what its header says."""

    records: list[dict[str, Any]]
    header: dict[str, str]


@dataclass(frozen=True)
class IcebergTable:
    """The metadata of a publication.

    Args:
        found: the JSON document.
        root: what the paths of all objects of the database begin with, with the slash after it.
    """

    found: dict[str, Any]
    root: str

    @property
    def current(self) -> dict[str, Any]:
        """The snapshot that readers see."""
        return self.snapshot(self.found["current-snapshot-id"])

    def snapshot(self, id_: int) -> dict[str, Any]:
        """A snapshot by its id. Raises MalformedError."""
        same = [each for each in self.found["snapshots"] if each["snapshot-id"] == id_]
        require(len(same) == 1, f"there are {len(same)} snapshots with id {id_}")
        return dict(same[0])

    def schema(self, id_: int) -> list[dict[str, Any]]:
        """The fields of a schema. Raises MalformedError."""
        same = [each for each in self.found["schemas"] if each["schema-id"] == id_]
        require(len(same) == 1, f"there are {len(same)} schemas with id {id_}")
        return list(same[0]["fields"])

    def spec(self, id_: int) -> list[dict[str, Any]]:
        """The fields of a partition spec. Raises MalformedError."""
        same = [each for each in self.found["partition-specs"] if each["spec-id"] == id_]
        require(len(same) == 1, f"there are {len(same)} partition specs with id {id_}")
        return list(same[0]["fields"])

    def key(self, path: str) -> str:
        """The key of an object by its path. Raises MalformedError."""
        require(path.startswith(self.root), f"{path} is not in {self.root}")
        return path[len(self.root) :]


class IcebergReader:
    """Reads snapshots. Keeps the decoded content of immutable objects.

    Args:
        bucket: the bucket, read directly and not through a store.
        content: reads data files.
    """

    def __init__(self, bucket: MemoryBucket, content: Content) -> None:
        self._bucket, self._content = bucket, content
        self._avro: dict[str, AvroFile] = {}
        self._positions: dict[str, dict[str, set[int]]] = {}

    def table(self, key: str) -> IcebergTable:
        """The metadata at this key. KeyError names it if it is missing."""
        found = msgspec.json.decode(self._bucket.objects[key].body)
        folder = key.partition("/metadata/")[0]
        require(found["location"].endswith(f"/{folder}"), f"its location is {found['location']}")
        return IcebergTable(found, found["location"].removesuffix(folder))

    def published(self, uuid: str) -> list[IcebergTable]:
        """The metadata that readers find of a table: the newest, and what the hint names; none if there is none."""
        folder = f"{PREFIX}{uuid}/metadata/"
        numbers = [
            int(match[1])
            for key in self._bucket.objects
            if key.startswith(folder) and (match := _METADATA.fullmatch(key, len(folder)))
        ]
        hint = self._bucket.objects.get(folder + HINT)
        shown = {max(numbers), int(hint.body) if hint else 0} - {0} if numbers else set[int]()
        return [self.table(f"{folder}v{number}.metadata.json") for number in sorted(shown)]

    def own_objects(self, table: IcebergTable, snapshot: dict[str, Any]) -> set[str]:
        """Keys of a snapshot's manifest list, manifests and delete files. KeyError names one that is missing."""
        named = {table.key(snapshot["manifest-list"])}
        for manifest in self._manifests(table, snapshot):
            key = table.key(manifest["manifest_path"])
            named.add(key)
            if manifest["content"] == 1:
                named.update(table.key(entry["data_file"]["file_path"]) for entry in self._read(key).records)
        return named

    def data_files(self, table: IcebergTable, snapshot: dict[str, Any]) -> set[str]:
        """Keys of a snapshot's data files. KeyError names an object that is missing."""
        return {
            table.key(entry["data_file"]["file_path"])
            for manifest in self._manifests(table, snapshot)
            if manifest["content"] == 0
            for entry in self._read(table.key(manifest["manifest_path"])).records
        }

    def rows(self, table: IcebergTable, snapshot: dict[str, Any]) -> list[Values]:
        """The rows that readers see in a snapshot, by field id.

        Raises:
            KeyError: an object is missing.
            MalformedError: a rule of the format is broken, or statistics make readers leave out a row.
        """
        fields = table.schema(snapshot["schema-id"])
        if table.found["format-version"] < 3:
            with_default = [field["name"] for field in fields if "initial-default" in field]
            require(not with_default, f"columns {with_default} have a default, which v2 does not know")
        data: list[dict[str, Any]] = []
        deletes: list[dict[str, Any]] = []
        for manifest in self._manifests(table, snapshot):
            entries = self._read(table.key(manifest["manifest_path"])).records
            spec = manifest["partition_spec_id"]
            _check_manifest(manifest, entries, snapshot, len(table.spec(spec)))
            entries = [each | {"partition": (spec, *each["data_file"]["partition"].values())} for each in entries]
            (deletes if manifest["content"] else data).extend(entries)
        _check_totals(snapshot, data, deletes)
        _check_row_ids(table, snapshot, data)
        gone = self._hidden(table, deletes)
        rows: list[Values] = []
        for entry in data:
            file, sequence = entry["data_file"], entry["sequence_number"]
            path = file["file_path"]
            stored = self._content.values(table.key(path))
            require(len(stored) == file["record_count"], f"{path} has {len(stored)} rows, not {file['record_count']}")
            size = len(self._bucket.objects[table.key(path)].body)
            require(size == file["file_size_in_bytes"], f"{path} has {size} bytes, not {file['file_size_in_bytes']}")
            applied = gone.get((path, entry["partition"]), ())  # readers ignore deletes of other partitions
            hidden = set().union(*(positions for ts, positions in applied if ts >= sequence))
            require(hidden <= set(range(len(stored))), f"positions of {path} are deleted that it does not have")
            shown = [_row(fields, row) for place, row in enumerate(stored) if place not in hidden]
            _check_metrics(file, fields, shown)
            _check_partition(entry["partition"], table, path, shown)
            rows += shown
        return rows

    def _manifests(self, table: IcebergTable, snapshot: dict[str, Any]) -> list[dict[str, Any]]:
        return self._read(table.key(snapshot["manifest-list"])).records

    def _hidden(self, table: IcebergTable, deletes: Iterable[dict[str, Any]]) -> dict[Any, list[tuple[int, set[int]]]]:
        """Deleted positions with the sequence number of their delete file, by the data file's path and partition."""
        found: dict[Any, list[tuple[int, set[int]]]] = {}
        vectors = set[str]()
        for entry in deletes:
            file = entry["data_file"]
            key = table.key(file["file_path"])
            if key not in self._positions:
                body = self._bucket.objects[key].body
                require(len(body) == file["file_size_in_bytes"], f"{key} has {len(body)} bytes")
                self._positions[key] = (
                    _vector(body, file) if file["file_format"] == "PUFFIN" else _position_deletes(body, file)
                )
            if file["file_format"] == "PUFFIN":
                about = file["referenced_data_file"]
                require(about not in vectors, f"{about} has two deletion vectors")
                vectors.add(about)
            count = sum(map(len, self._positions[key].values()))
            require(count == file["record_count"], f"{key} has {count} positions, not {file['record_count']}")
            for path, positions in self._positions[key].items():
                found.setdefault((path, entry["partition"]), []).append((entry["sequence_number"], positions))
        return found

    def _read(self, key: str) -> AvroFile:
        body = self._bucket.objects[key].body  # KeyError also for an object that was read before
        if key not in self._avro:
            reader = fastavro.reader(io.BytesIO(body))
            self._avro[key] = AvroFile([dict(record) for record in reader], dict(reader.metadata))
        return self._avro[key]


def _row(fields: Iterable[dict[str, Any]], stored: Values) -> Values:
    """A row as the schema has it: a column that its file lacks has the default."""
    return {field["id"]: stored.get(field["id"], field.get("initial-default")) for field in _with_parts(fields)}


def _with_parts(fields: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Columns, and the fields of those that are structs."""
    parts = (field["type"]["fields"] for field in fields if isinstance(field["type"], dict))
    return [*fields, *chain.from_iterable(parts)]


def _check_manifest(
    manifest: dict[str, Any], entries: list[dict[str, Any]], snapshot: dict[str, Any], fields: int
) -> None:
    path = manifest["manifest_path"]
    for status, name in ((1, "added"), (0, "existing"), (2, "deleted")):
        own = [entry["data_file"]["record_count"] for entry in entries if entry["status"] == status]
        told = manifest[f"{name}_files_count"], manifest[f"{name}_rows_count"]
        require(told == (len(own), sum(own)), f"{path} has {len(own)} {name} files, not {told[0]}")
    summaries = manifest["partitions"]
    require(isinstance(summaries, list), f"{path}: some readers fail without partitions")
    require(len(summaries) == fields, f"{path} has summaries of {len(summaries)} partition fields, not {fields}")
    for number, summary in enumerate(summaries):
        values = [[*entry["data_file"]["partition"].values()][number] for entry in entries]
        ends = [_bound(summary[f"{name}_bound"], values[0]) for name in ("lower", "upper")]
        require(
            ends == [min(values), max(values)],
            f"{path}: partitions of field {number} are not from {ends[0]} to {ends[1]}",
        )
    require(manifest["sequence_number"] <= snapshot["sequence-number"], f"{path} is of a later snapshot")
    least = min((entry["sequence_number"] for entry in entries), default=manifest["sequence_number"])
    require(manifest["min_sequence_number"] <= least, f"{path} is older than {manifest['min_sequence_number']}")
    for entry in entries:
        require(entry["data_file"]["content"] == manifest["content"], f"{path} lists files of another content")
        require(entry["sequence_number"] <= manifest["sequence_number"], f"{path} has an entry that is newer")


def _check_totals(snapshot: dict[str, Any], data: list[dict[str, Any]], deletes: list[dict[str, Any]]) -> None:
    summary = snapshot["summary"]
    for key, entries in (("total-data-files", data), ("total-delete-files", deletes)):
        require(int(summary[key]) == len(entries), f"{key} is {summary[key]}, and there are {len(entries)}")
    for key, entries in (("total-records", data), ("total-position-deletes", deletes)):
        count = sum(entry["data_file"]["record_count"] for entry in entries)
        require(int(summary[key]) == count, f"{key} is {summary[key]}, and there are {count}")
    paths = [entry["data_file"]["file_path"] for entry in data]
    require(len(paths) == len(set(paths)), "a data file is listed twice")


def _check_row_ids(table: IcebergTable, snapshot: dict[str, Any], data: list[dict[str, Any]]) -> None:
    """Checks, for v3, that no two rows have one row id."""
    if table.found["format-version"] < 3:
        return
    firsts = sorted((entry["data_file"]["first_row_id"], entry["data_file"]["record_count"]) for entry in data)
    end = 0
    for first, rows in firsts:
        require(first >= end, f"two rows of snapshot {snapshot['snapshot-id']} have the row id {first}")
        end = first + rows
    require(end <= table.found["next-row-id"], f"row id {end - 1} is not below the next one")


def _check_metrics(file: dict[str, Any], fields: Iterable[dict[str, Any]], shown: list[Values]) -> None:
    """Checks that no reader leaves out a file because of statistics that do not hold for its rows."""
    counts = {
        name: _pairs(file[name]) for name in ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    }
    for field in _with_parts(fields):
        id_, path = field["id"], file["file_path"]
        values = [row[id_] for row in shown if row[id_] is not None]
        rows, nulls = counts["value_counts"].get(id_), counts["null_value_counts"].get(id_)
        require(rows in (None, file["record_count"]), f"{path}: {rows} values in column {id_}")
        if nulls is not None:
            right = len(shown) - len(values) <= nulls and len(values) <= file["record_count"] - nulls
            require(right, f"{path}: it has other NULLs in column {id_} than {nulls}")
        for name, wrong in (("lower_bounds", min), ("upper_bounds", max)):
            bound = counts[name].get(id_)
            if bound is not None and values:
                limit = struct.unpack(_LAYOUTS[field["type"]], bound)[0]
                require(wrong([limit, *values]) == limit, f"{path}: values of column {id_} beyond {name} {limit}")


def _check_partition(partition: tuple[Any, ...], table: IcebergTable, path: str, shown: list[Values]) -> None:
    """Checks that no reader leaves out a file because of a partition that is not that of its rows."""
    spec, *values = partition
    for field, value in zip(table.spec(spec), values, strict=True):
        name, _, size = field["transform"].rstrip("]").partition("[")
        for stored in (row[field["source-id"]] for row in shown):
            right: Any = stored
            if name == "bucket":
                right = value if 0 <= value < int(size) else None
            elif name == "truncate":
                right = stored - stored % int(size)
            elif name == "hour":
                right = stored // 3_600_000_000
            require(right == value, f"{path} has {stored} in column {field['source-id']}, and {field['name']} {value}")


def _bound(stored: bytes, like: Any) -> Any:
    return stored.decode() if isinstance(like, str) else int.from_bytes(stored, "little", signed=True)


def _pairs(found: list[dict[str, Any]] | None) -> dict[int, Any]:
    return {pair["key"]: pair["value"] for pair in found or ()}


def _position_deletes(body: bytes, file: dict[str, Any]) -> dict[str, set[int]]:
    """The positions in a position-delete file by path, after a check of its order and of its bounds."""
    table = pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False)
    pairs = list(zip(table["file_path"].to_pylist(), table["pos"].to_pylist(), strict=True))
    require(pairs == sorted(set(pairs)), f"{file['file_path']} is not sorted, or deletes a row twice")
    found: dict[str, set[int]] = {}
    for path, position in pairs:
        found.setdefault(path, set()).add(position)
    (id_,) = (int(each.metadata[b"PARQUET:field_id"]) for each in table.schema if each.name == "file_path")
    for name, end in (("lower_bounds", min(found)), ("upper_bounds", max(found))):
        bound = _pairs(file[name]).get(id_)
        require(bound in (None, end.encode()), f"{file['file_path']}: {name} {bound!r} is not {end}")
    return found


def _vector(body: bytes, file: dict[str, Any]) -> dict[str, set[int]]:
    """The positions of the deletion vector in a Puffin file, by the path that its footer names."""
    name, offset, size = file["file_path"], file["content_offset"], file["content_size_in_bytes"]
    blob = body[offset : offset + size]
    length, magic = struct.unpack(">I4s", blob[:8])
    require(magic == b"\xd1\xd3\x39\x64" and length == size - 8, f"{name} has no vector at {offset}")
    require(struct.unpack(">I", blob[-4:])[0] == zlib.crc32(blob[4:-4]), f"{name}: the checksum differs")
    require(body[:4] == body[-4:] == b"PFA1", f"{name} is no Puffin file")
    (payload,) = struct.unpack("<I", body[-12:-8])
    footer = msgspec.json.decode(body[-12 - payload : -12])
    require(len(footer["blobs"]) == 1, f"{name}: DuckDB reads other rows where a file has several vectors")
    (told,) = footer["blobs"]
    about = told["properties"]["referenced-data-file"]
    same = (about, told["offset"], told["length"]) == (file["referenced_data_file"], offset, size)
    require(same, f"{name}: its footer is about {about}, and the manifest about {file['referenced_data_file']}")
    return {about: set(BitMap64.deserialize(blob[8:-4]))}
