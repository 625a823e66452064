"""An Iceberg table to adopt: its metadata, and the files, columns and deletes of its current snapshot.

See "Schemas and Data Types", "Schema Evolution", "Column Projection" and appendix C of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import msgspec
import pyarrow as pa
from pyroaring import BitMap

from dolmen.adopt.candidate_file import CandidateFile, FileLocation, parse_location
from dolmen.adopt.columns import (
    NARROWER,
    READ_BY_ENGINE,
    AdoptedColumns,
    AdoptionRefusals,
    FilesOfShape,
    compare_column,
    field_ids,
)
from dolmen.adopt.iceberg_manifests import IcebergFile, deleted_positions, snapshot_files
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime, cached_property
from dolmen.base.units import days_since_epoch
from dolmen.entries.partitions import Partition, PartitionSpec
from dolmen.errors import AdoptionError, InputError, ObjectNotFoundError, SchemaError, short_repr
from dolmen.format.column_terms import PartitionTerm, parse_partition_by, partition_text
from dolmen.format.entries import ConstantColumn
from dolmen.format.layout import ColumnsBy, build_decoders
from dolmen.format.schema import Field, MappedColumn, Schema, TypeJson, check_column_names
from dolmen.format.types import DATE, TYPES, Json, from_json, to_json, type_of
from dolmen.iceberg.manifests import DATA, EQUALITY_DELETES
from dolmen.iceberg.metadata import ICEBERG_TYPES, NAME_MAPPING, decode_mapping
from dolmen.rows.scan.data_objects import AdoptedColumn, adopted_column, find_mapped_column
from dolmen.store.base import ObjectStore

_METADATA = re.compile(r"(?P<name>[^/]+?)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_NUMBERED = re.compile(r"(?P<v>v)?(?P<number>\d{1,18})(?(v)|-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
"""``v3``, and ``00003-`` with a UUID, are the forms of the specification ("File System Tables", "Metastore Tables")."""

_FORMATS = (1, 2, 3)
_NAME_IT = "Name the metadata file (*.metadata.json) that the table's catalog gives as the current one"

_TYPES = {ICEBERG_TYPES[each.name]: str(each.stored) for each in TYPES if each.name in ICEBERG_TYPES}  # the widest last
_TYPES |= {"uuid": "fixed_size_binary[16]", "time": "time64[us]"}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_FIXED = re.compile(r"fixed\[(\d+)\]")


class _FieldForm(msgspec.Struct, rename="kebab"):
    id: int
    name: str
    required: bool
    type: Any
    doc: Any = None
    initial_default: Any = None
    write_default: Any = None


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
    name: str = ""

    @property
    def is_identity(self) -> bool:
        return self.transform == "identity"


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
    default_spec_id: int = 0
    properties: dict[str, str] | None = None

    @property
    def current_schema(self) -> _SchemaForm:
        schemas = self.schemas or ([self.schema] if self.schema else [])  # one schema in v1
        return next((schema for schema in schemas if schema.schema_id == self.current_schema_id), schemas[-1])


build_decoders(_MetadataForm)


def find_iceberg(store: ObjectStore, runtime: Runtime, location: FileLocation) -> IcebergSource | None:
    """The Iceberg table whose metadata file or folder is at a location; None if there is none.

    In a folder, ``version-hint.text`` names the current metadata file; without it, the greatest number does. Raises
    AdoptionError if the current file remains unknown.
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
        return IcebergSource(store, runtime, location.with_key(_newest_key(names, location)))
    return IcebergSource(store, runtime, location.with_key(_key_of_hint(text, names, hint)))


def _key_of_hint(text: str, names: Mapping[str, str], hint: FileLocation) -> str:
    """The key of the metadata file that a hint names by number, name or URL. Raises AdoptionError."""
    last = text.rpartition("/")[2]
    match = _METADATA.fullmatch(last)
    keys = [key for key, name in names.items() if name == (match["name"] if match else last)]
    if not keys and re.fullmatch(r"[0-9]{1,18}", last):
        keys = [key for key, name in names.items() if _number(name) == int(last)]
    if len(keys) != 1:
        count = f"{len(keys):,} of" if keys else "none of"
        reason = f"it contains {short_repr(text)}, which names {count} the {len(names):,} metadata files in its folder"
        raise AdoptionError(hint.label, [reason], _NAME_IT)
    return keys[0]


def _newest_key(names: Mapping[str, str], location: FileLocation) -> str:
    """The key of the metadata file with the greatest number. Raises AdoptionError if the names are ambiguous."""
    numbers = {key: _number(name) for key, name in names.items()}
    odd = sorted(key for key, number in numbers.items() if number is None)
    of_file_systems = [name.startswith("v") for name in names.values()]
    if len(names) > 1 and (odd or any(of_file_systems) != all(of_file_systems)):
        odd_key = odd[0] if odd else min(names)
        reason = f"the name of {odd_key} does not show whether it is newer than the other metadata files"
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
    """The current snapshot of an Iceberg table with this metadata file, for a database in ``store``."""

    def __init__(self, store: ObjectStore, runtime: Runtime, metadata: FileLocation) -> None:
        self._store, self._runtime, self._label = store, runtime, metadata.label
        self._metadata = _decode(metadata)
        snapshot = self._metadata.current_snapshot_id
        self.snapshot = None if snapshot == -1 else snapshot
        self._data: dict[str, IcebergFile] = {}
        self._deletes: list[IcebergFile] = []

    def files(self, refusals: AdoptionRefusals) -> list[tuple[FileLocation, int | None]]:
        """The locations and sizes of all data files. Reasons against files are added to ``refusals``."""
        files: list[tuple[FileLocation, int | None]] = []
        for file in self._snapshot_files():
            if file.content == EQUALITY_DELETES:
                reason = f"it deletes rows by values of columns {file.columns or []} (equality deletes)"
                refusals.add(file.path, f"{reason}: rewrite the data files first, which applies them")
            elif file.key_metadata is not None:
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
                files.append((location, file.size))
            elif file.blob is None and file.format != "PARQUET":
                refusals.add(file.path, f"the format of its deletes is {file.format}, not Parquet")
            else:
                self._deletes.append(file)
        return files

    def columns(self, shapes: Sequence[FilesOfShape], refusals: AdoptionRefusals) -> AdoptedColumns:
        """The table's current columns. Reasons against columns are added to ``refusals``."""
        fields: list[Field] = []
        for form in self._metadata.current_schema.fields:
            try:
                fields.append(_field(form))
            except SchemaError as error:
                refusals.add("", str(error), form.name)
        try:
            check_column_names([field.name for field in fields])
        except SchemaError as error:
            refusals.add("", str(error))
        mapping, lacks = _name_mapping(self._metadata)
        narrower: set[int] = set()
        columns_by: list[ColumnsBy] = []
        for each in shapes:
            how, by_id = _find_columns(each, {field.id for field in fields}, mapping, lacks, refusals)
            columns_by.append(how)
            for field in fields:
                if field.id not in by_id and field.id in self._identities:
                    continue  # its values may be in partitions
                reason, is_narrower = compare_column(by_id.get(field.id), field)
                if is_narrower:
                    narrower.add(field.id)
                if reason:
                    refusals.add(each.first, reason, field.name, each.files)
        columns = (
            msgspec.structs.replace(each, widened_ts=NARROWER) if each.id in narrower else each for each in fields
        )
        names, next_id = list((mapping or ()) if "names" in columns_by else ()), self._metadata.last_column_id + 1
        for each in (each for each, how in zip(shapes, columns_by, strict=True) if how == "names"):
            for name in (column.name for some in (each.shape.columns, each.shape.unreadable) for column in some):
                if find_mapped_column(names, name) is None:  # it stays unknown, whatever columns come later
                    names.append(MappedColumn(next_id, (name,)))
                    next_id += 1
        return AdoptedColumns(Schema(tuple(columns), next_id, mapping=tuple(names)), tuple(columns_by))

    def partition_by(self, schema: Schema) -> tuple[str, dict[str, str]]:
        """The property of the current spec, and why fields of it are left out, by name."""
        terms, left_out = list[PartitionTerm](), dict[str, str]()
        for each in self._specs.get(self._metadata.default_spec_id, ()):
            if each.transform == "void":  # a field that was dropped
                continue
            column = schema.by_id.get(each.source_id or 0)
            try:
                if column is None:
                    raise SchemaError("its source is not a column, or is a field inside one")
                (term,) = parse_partition_by(f"{each.transform}(x)")
                term = replace(term, column=column.name)
                term.transform.check(column.name, column.arrow_type)
                terms = list(parse_partition_by(partition_text((*terms, term))))
            except (InputError, SchemaError) as error:
                left_out[each.name] = str(error)
        return partition_text(tuple(terms)), left_out

    def partition_of(self, one: CandidateFile, spec: PartitionSpec) -> Partition | None:
        """The values of a file by the table's terms; None if its spec is not the current one."""
        file, fields = self._data[one.location.label], self._specs.get(self._metadata.default_spec_id, [])
        values = {(each.source_id, each.transform): value for each, value in zip(fields, file.values, strict=False)}
        keys = [(field.id, str(term.transform)) for term, field in spec.terms]
        is_current = file.spec == self._metadata.default_spec_id and all(key in values for key in keys)
        return tuple(values[key] for key in keys) if is_current else None

    def constants(self, one: CandidateFile, schema: Schema, refusals: AdoptionRefusals) -> dict[int, ConstantColumn]:
        """The columns of a file whose values are only in its partition, as in imported Hive tables."""
        file, constants = self._data[one.location.label], dict[int, ConstantColumn]()
        fields = self._specs.get(file.spec, [])
        values = {each.source_id: value for each, value in zip(fields, file.values, strict=False) if each.is_identity}
        for id_ in self._identities:
            column = schema.by_id.get(id_)
            if column is None or has_column(one.shape.columns, id_, schema.mapping):
                continue
            if values.get(id_) is None and not column.nullable and (id_ in values or column.initial_default is None):
                refusals.add(one.location.label, "neither the file nor its partition has a value", column.name)
            elif id_ in values:
                constants[id_] = ConstantColumn(str(column.arrow_type), to_json(values[id_]))
                try:
                    from_json(constants[id_].value, column.arrow_type)
                except SchemaError as error:
                    refusals.add(one.location.label, f"in its partition {error}", column.name)
        return constants

    def read_deletes(self, files: Sequence[CandidateFile], refusals: AdoptionRefusals) -> dict[str, BitMap]:
        """The positions of deleted rows by the label of their data file."""
        for one in files:
            expected = self._data[one.location.label].rows
            if expected != one.rows:
                refusals.add(one.location.label, f"it has {one.rows:,} rows, and its manifest entry {expected:,}")
        return deleted_positions(self._deletes, self._data, self._label_of, self._read_range, self._runtime, refusals)

    def _snapshot_files(self) -> Iterable[IcebergFile]:
        if self.snapshot is None:
            return ()
        for snapshot in self._metadata.snapshots or ():
            if snapshot.snapshot_id == self.snapshot:
                if snapshot.manifest_list is None and snapshot.manifests is None:
                    raise AdoptionError(self._label, [f"snapshot {self.snapshot} lists no manifests"], READ_BY_ENGINE)
                return snapshot_files(snapshot.manifest_list, snapshot.manifests or (), self._read, self._runtime)
        raise AdoptionError(self._label, [f"the metadata lacks its current snapshot {self.snapshot}"], READ_BY_ENGINE)

    @cached_property
    def _specs(self) -> dict[int, list[_PartitionFieldForm]]:
        """The fields of all partition specs, by their id."""
        specs = self._metadata.partition_specs
        if specs is None:  # in v1
            return {0: self._metadata.partition_spec or []}
        return {spec.spec_id: spec.fields for spec in specs}

    @cached_property
    def _identities(self) -> set[int]:
        """The columns whose values may be in partitions alone."""
        fields = (each for fields in self._specs.values() for each in fields)
        return {each.source_id for each in fields if each.is_identity and each.source_id is not None}

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


def _decode(location: FileLocation) -> _MetadataForm:
    """Reads table metadata. Raises AdoptionError."""
    try:
        body = location.store.get(location.key).body
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        json = msgspec.json.decode(body)
        version = json.get("format-version") if isinstance(json, dict) else None
        if version not in _FORMATS:
            reason = f"it is metadata of Iceberg's format version {short_repr(version)}; supported are 1, 2 and 3"
            raise AdoptionError(location.label, [reason], READ_BY_ENGINE)
        form = msgspec.convert(json, _MetadataForm)
        if not form.schemas and form.schema is None:
            raise msgspec.ValidationError("Object contains no schema")
        return form
    except ObjectNotFoundError:
        raise AdoptionError(location.label, ["there is no such file"], _NAME_IT) from None
    except (msgspec.DecodeError, OSError, EOFError, zlib.error, RecursionError) as error:
        reason = f"it is not metadata of an Iceberg table: {error}"
        raise AdoptionError(location.label, [reason], READ_BY_ENGINE) from None


def _name_mapping(metadata: _MetadataForm) -> tuple[tuple[MappedColumn, ...] | None, str]:
    """The table's mapping of names to ids, or None and the reason."""
    text = (metadata.properties or {}).get(NAME_MAPPING)
    if text is None:
        return None, "the table has no property"
    try:
        return decode_mapping(text), ""
    except ValueError as error:
        return None, f"the table has a malformed ({error}) property"


def _find_columns(
    each: FilesOfShape, ids: set[int], mapping: tuple[MappedColumn, ...] | None, lacks: str, refusals: AdoptionRefusals
) -> tuple[ColumnsBy, dict[int, AdoptedColumn]]:
    """How the columns of files are found, and the columns by id."""
    columns, unreadable = each.shape.columns, each.shape.unreadable
    by_ids = any(id_ is not None for id_ in field_ids(columns)) or any(column.id for column in unreadable)
    if not by_ids and mapping is None:
        refusals.add(each.first, f"the file has no field ids, and {lacks} {NAME_MAPPING}", files=each.files)
        return "names", {}
    for column in unreadable:
        source = column if by_ids else find_mapped_column(mapping or (), column.name)
        if source is not None and source.id in ids:
            refusals.add(each.first, column.reason, column.name, each.files)
    if not by_ids:
        fields = (pa.field(column.name, column.type, column.nullable) for column in columns)
        columns = tuple(
            adopted_column(field, column.leaves, mapping) for field, column in zip(fields, columns, strict=True)
        )
    return "ids" if by_ids else "names", {column.id: column for column in columns if column.id is not None}


def _field(form: _FieldForm) -> Field:
    comment = str(form.doc or "")
    field = Field(id=form.id, name=form.name, type=_type(form.type), nullable=not form.required, comment=comment)
    defaults = {"initial_default": form.initial_default, "write_default": form.write_default}
    json_defaults = {name: _default(value, field.arrow_type) for name, value in defaults.items() if value is not None}
    return msgspec.structs.replace(field, **json_defaults)


def _type(json: Any) -> TypeJson:
    """The stored type of an Iceberg type. Raises SchemaError."""
    if isinstance(json, str):
        if json in _TYPES:
            return _TYPES[json]
        if match := _DECIMAL.fullmatch(json):
            return f"decimal128({match[1]}, {match[2]})"
        if match := _FIXED.fullmatch(json):
            return f"fixed_size_binary[{match[1]}]"
        raise SchemaError(f"dolmen has no type for Iceberg's {json}")
    try:
        kind = json["type"]
        if kind == "struct":
            return {"struct": [_child(field) for field in json["fields"]]}
        if kind == "list":
            return {"list": _inner(json, "element")}
        if kind == "map":
            return {"map": [_inner(json, "key"), _inner(json, "value")]}
    except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise SchemaError(f"its type is malformed: {type(error).__name__}: {error}") from None
    raise SchemaError(f"dolmen has no type for Iceberg's {kind}")


def _child(json: Any) -> dict[str, Any]:
    form = msgspec.convert(json, _FieldForm)
    if form.initial_default is not None or form.write_default is not None:
        raise SchemaError(f"the field {form.name!r} inside it has a default")
    built: dict[str, Any] = msgspec.to_builtins(_field(form))
    return built


def _inner(json: Mapping[str, Any], name: str) -> dict[str, Any]:
    required = True if name == "key" else json[f"{name}-required"]
    return _child({"id": json[f"{name}-id"], "name": name, "type": json[name], "required": required})


def _default(value: Any, arrow_type: pa.DataType) -> Json:
    """A default in dolmen's JSON form ("JSON single-value serialization"). Raises SchemaError."""
    kind = type_of(arrow_type)
    try:
        if kind is DATE:
            return days_since_epoch(date.fromisoformat(value))
        if not pa.types.is_temporal(arrow_type) and not pa.types.is_binary(arrow_type):
            json: Json = float(value) if pa.types.is_floating(arrow_type) else value
            from_json(json, arrow_type)
            return json
    except (TypeError, ValueError, SchemaError):
        pass
    raise SchemaError("defaults of its type are not supported")


def has_column(columns: Sequence[AdoptedColumn], id_: int, mapping: Sequence[MappedColumn]) -> bool:
    """True if a file has the column, or the field inside a column, with this id."""
    if any(id_ in field_ids([column]) for column in columns):
        return True
    names = next((each.names for each in mapping if each.id == id_), ())
    return any(column.name in names for column in columns)
