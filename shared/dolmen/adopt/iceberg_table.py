"""An Iceberg table to adopt: its metadata, and the files, columns and deletes of its current snapshot."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pyroaring import BitMap

from dolmen.adopt.candidate_file import CandidateFile, FileLocation, parse_location
from dolmen.adopt.columns import READ_BY_ENGINE, AdoptedColumns, AdoptionRefusals, FilesOfShape
from dolmen.adopt.iceberg_manifests import DATA, EQUALITY_DELETES, IcebergFile, deleted_positions, snapshot_files
from dolmen.adopt.iceberg_schema import IcebergColumns, has_column
from dolmen.base.arguments import short_repr
from dolmen.base.runtime import Runtime
from dolmen.errors import AdoptionError, InputError, ObjectNotFoundError
from dolmen.format.schema import Schema
from dolmen.store.base import ObjectStore

_METADATA = re.compile(r"(?P<name>[^/]+?)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_NUMBERED = re.compile(r"(?P<v>v)?(?P<number>\d{1,18})(?(v)|-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
"""``v3``, and ``00003-`` with a UUID, are the forms of the specification ("File System Tables", "Metastore Tables")."""

_FORMATS = (1, 2, 3)
_NAME_IT = "Name the metadata file (*.metadata.json) that the table's catalog gives as the current one"


class _FieldForm(msgspec.Struct, rename="kebab"):
    id: int
    name: str
    required: bool
    type: Any


class _SchemaForm(msgspec.Struct, rename="kebab"):
    fields: list[_FieldForm]
    schema_id: int | None = None


class _SnapshotForm(msgspec.Struct, rename="kebab"):
    snapshot_id: int
    manifest_list: str | None = None
    manifests: list[str] | None = None


class _PartitionFieldForm(msgspec.Struct, rename="kebab"):
    transform: str
    source_id: int | None = None


class _SpecForm(msgspec.Struct, rename="kebab"):
    spec_id: int
    fields: list[_PartitionFieldForm]


class _MetadataForm(msgspec.Struct, rename="kebab"):
    """The parts of table metadata that are read ("Table Metadata Fields")."""

    format_version: int
    last_column_id: int
    schemas: list[_SchemaForm] | None = None
    schema: _SchemaForm | None = None
    current_schema_id: int | None = None
    current_snapshot_id: int | None = None
    snapshots: list[_SnapshotForm] | None = None
    partition_specs: list[_SpecForm] | None = None
    partition_spec: list[_PartitionFieldForm] | None = None
    properties: dict[str, str] | None = None


def find_iceberg(store: ObjectStore, runtime: Runtime, location: FileLocation) -> IcebergSource | None:
    """The Iceberg table whose metadata file or folder is at a location; None if there is none.

    In a folder, the current metadata file is the one that ``version-hint.text`` names, or the one with the greatest
    number. For a table in a catalog, pass the metadata file that the catalog names.

    Raises:
        AdoptionError: the metadata cannot be read, or the current metadata file is not known.
    """
    if _METADATA.fullmatch(location.key.rpartition("/")[2]):
        return IcebergSource(store, runtime, location)
    if location.key.endswith(".parquet"):
        return None
    folder = f"{location.key}/metadata/".lstrip("/")
    names: dict[str, str] = {}
    for info in location.store.list(folder):
        if match := _METADATA.fullmatch(info.key[len(folder) :]):
            names[info.key] = match["name"]
    if not names:
        return None
    hint = location.with_key(f"{folder}version-hint.text")
    try:
        text = hint.store.get(hint.key).body.decode("utf-8", "replace").strip()
    except ObjectNotFoundError:
        return IcebergSource(store, runtime, location.with_key(_newest(names, location)))
    return IcebergSource(store, runtime, location.with_key(_hinted(text, names, hint)))


def _hinted(text: str, names: Mapping[str, str], hint: FileLocation) -> str:
    """The key of the metadata file that a hint names by number, name or URL. Raises AdoptionError."""
    last = text.rpartition("/")[2]
    match = _METADATA.fullmatch(last)
    named = [key for key, name in names.items() if name == (match["name"] if match else last)]
    if not named and re.fullmatch(r"[0-9]{1,18}", last):
        named = [key for key, name in names.items() if _number(name) == int(last)]
    if len(named) != 1:
        what = f"{len(named):,} of" if named else "none of"
        reason = f"it contains {short_repr(text)}, which names {what} the {len(names):,} metadata files in its folder"
        raise AdoptionError(hint.label, [reason], _NAME_IT)
    return named[0]


def _newest(names: Mapping[str, str], location: FileLocation) -> str:
    """The key of the metadata file with the greatest number. Raises AdoptionError if the names are ambiguous."""
    numbers = {key: _number(name) for key, name in names.items()}
    odd = sorted(key for key, number in numbers.items() if number is None)
    of_file_systems = [name.startswith("v") for name in names.values()]
    if len(names) > 1 and (odd or any(of_file_systems) != all(of_file_systems)):
        named = odd[0] if odd else min(names)
        reason = f"the name of {named} does not show whether it is newer than the other metadata files"
        raise AdoptionError(location.label, [reason], _NAME_IT)
    greatest = max((number for number in numbers.values() if number is not None), default=None)
    newest = sorted(key for key, number in numbers.items() if number == greatest)
    if len(newest) > 1:
        reason = f"{newest[0]} and {newest[1]} have the same number: the names do not show which one is current"
        raise AdoptionError(location.label, [reason], _NAME_IT)
    return newest[0]


def _number(name: str) -> int | None:
    match = _NUMBERED.fullmatch(name)
    return int(match["number"]) if match else None


class IcebergSource:
    """The current snapshot of an Iceberg table.

    Args:
        store: the database's store.
        metadata: the location of the table's metadata file.
    """

    def __init__(self, store: ObjectStore, runtime: Runtime, metadata: FileLocation) -> None:
        self._store, self._runtime, self._label = store, runtime, metadata.label
        self._metadata = _decode(metadata)
        snapshot = self._metadata.get("current-snapshot-id")
        self.snapshot: int | None = None if snapshot in (None, -1) else int(snapshot)
        self._data: dict[str, IcebergFile] = {}
        self._deletes: list[IcebergFile] = []

    def files(self, refusals: AdoptionRefusals) -> list[tuple[FileLocation, int | None]]:
        """The locations and sizes of all data files. Reasons against files are added to ``refusals``."""
        found: list[tuple[FileLocation, int | None]] = []
        for file in self._snapshot_files():
            if file.content == EQUALITY_DELETES:
                reason = f"it deletes rows by values of columns {list(file.columns)} (equality deletes)"
                refusals.add(file.path, f"{reason}: rewrite the data files first, which applies them")
            elif file.is_encrypted:
                refusals.add(file.path, "it is encrypted")
            elif file.content == DATA:
                if file.format != "PARQUET":
                    refusals.add(file.path, f"its format is {file.format}, not Parquet")
                    continue
                try:
                    location = parse_location(self._store, file.path, is_quoted=False)
                except InputError as error:
                    refusals.add(file.path, str(error))
                    continue
                self._data[location.label] = file
                found.append((location, file.size))
            elif file.blob is None and file.format != "PARQUET":
                refusals.add(file.path, f"the format of its deletes is {file.format}, not Parquet")
            else:
                self._deletes.append(file)
        return found

    def columns(self, shapes: Sequence[FilesOfShape], refusals: AdoptionRefusals) -> AdoptedColumns:
        """The table's current columns. Reasons against columns are added to ``refusals``."""
        return IcebergColumns(self._metadata, refusals).match(shapes)

    def check_partitions(self, files: Sequence[CandidateFile], schema: Schema, refusals: AdoptionRefusals) -> None:
        """Adds columns whose values are only in partition metadata, as in imported Hive tables."""
        specs = self._identities()
        names = {field.id: field.name for field in schema.fields}
        for one in files:
            for id_ in specs.get(self._data[one.location.label].spec, ()):
                if id_ in names and not has_column(one.shape.columns, id_, schema.mapping):
                    reason = "it is only in the table's partitions, and each column must be in the file"
                    refusals.add(one.location.label, reason, names[id_])

    def deleted(self, files: Sequence[CandidateFile], refusals: AdoptionRefusals) -> dict[str, BitMap]:
        """The positions of deleted rows by the label of their data file."""
        for one in files:
            expected = self._data[one.location.label].rows
            if expected != one.rows:
                refusals.add(one.location.label, f"it has {one.rows:,} rows, and its manifest entry {expected:,}")
        return deleted_positions(self._deletes, self._data, self._label_of, self._read_range, self._runtime, refusals)

    def _snapshot_files(self) -> list[IcebergFile]:
        if self.snapshot is None:
            return []
        for snapshot in self._metadata.get("snapshots") or ():
            if snapshot["snapshot-id"] == self.snapshot:
                return list(snapshot_files(snapshot, self._read, self._runtime))
        raise AdoptionError(self._label, [f"the metadata lacks its current snapshot {self.snapshot}"], READ_BY_ENGINE)

    def _identities(self) -> dict[int, tuple[int, ...]]:
        """By id of a partition spec, the columns with identity transforms."""
        specs = self._metadata.get("partition-specs")
        if specs is None:  # in v1
            specs = [{"spec-id": 0, "fields": self._metadata.get("partition-spec") or []}]
        return {
            spec["spec-id"]: tuple(field["source-id"] for field in spec["fields"] if field["transform"] == "identity")
            for spec in specs
        }

    def _label_of(self, url: str) -> str:
        try:
            return parse_location(self._store, url, is_quoted=False).label
        except InputError:  # not a data file of the snapshot
            return url

    def _read(self, url: str) -> bytes:
        location = parse_location(self._store, url, is_quoted=False)
        try:
            return location.store.get(location.key).body
        except ObjectNotFoundError:
            raise AdoptionError(self._label, [f"it names {location.label}, which is missing"], READ_BY_ENGINE) from None

    def _read_range(self, url: str, byte_range: tuple[int, int]) -> bytes:
        location = parse_location(self._store, url, is_quoted=False)
        return location.store.get(location.key, byte_range).body


def _decode(location: FileLocation) -> Mapping[str, Any]:
    """Reads table metadata. Raises AdoptionError."""
    try:
        body = location.store.get(location.key).body
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        found: Mapping[str, Any] = msgspec.json.decode(body)
        version = found.get("format-version") if isinstance(found, dict) else None
        if version not in _FORMATS:
            reason = f"it is metadata of Iceberg's format version {short_repr(version)}; supported are 1, 2 and 3"
            raise AdoptionError(location.label, [reason], READ_BY_ENGINE)
        form = msgspec.convert(found, _MetadataForm)
        if not form.schemas and form.schema is None:
            raise msgspec.ValidationError("Object contains no schema")
    except ObjectNotFoundError:
        raise AdoptionError(location.label, ["there is no such file"], _NAME_IT) from None
    except (msgspec.DecodeError, OSError, EOFError, zlib.error, RecursionError) as error:
        reason = f"it is not metadata of an Iceberg table: {error}"
        raise AdoptionError(location.label, [reason], READ_BY_ENGINE) from None
    return found
