"""Makes a table of existing files: reads all footers, reports all reasons against it, then commits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

import msgspec
from pyroaring import BitMap

from dolmen.adopt.candidate_file import (
    HIDDEN,
    CandidateFile,
    FileLocation,
    FileShape,
    FooterColumns,
    parse_location,
    read_candidate,
)
from dolmen.adopt.columns import AdoptedColumns, AdoptionRefusals, FilesOfShape, columns_of_files, ids_by_name
from dolmen.adopt.hive_folders import FolderColumns, constant_stats
from dolmen.adopt.iceberg_table import IcebergSource, find_iceberg
from dolmen.base import arguments
from dolmen.base.records import replace
from dolmen.commit.head import Context
from dolmen.commit.statements.catalog import AdoptTable
from dolmen.entries.partitions import PartitionSpec
from dolmen.errors import AdoptionError, SchemaError
from dolmen.format.entries import ConstantColumn, DataFile
from dolmen.format.layout import ColumnsBy, check_table_name
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Schema
from dolmen.rows.scan.data_objects import is_local
from dolmen.rows.write.row_digest import content_digest
from dolmen.transactions.transaction import Transaction, key_names, new_entry, unit_of
from dolmen.transactions.unit_of_work import Commit, UnitOfWork

AdoptionProgress: TypeAlias = Callable[[int, int], None]
"""Called with the number of footers read so far, and the number of files."""

FoundFile: TypeAlias = tuple[FileLocation, int | None]  # A file to adopt, and its size if a LIST returned it

_OTHER_TABLES = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}
"""Folders of other table formats, whose metadata decides which files have rows."""


@dataclass(frozen=True, repr=False)
class Adoption:
    """The result of an adoption, or of its dry run, which has no commit.

    Args:
        rows: the number of rows, without deleted ones.
        deleted_rows: the number of deleted rows of the Iceberg table; 0 for plain files.
        snapshot: id of the Iceberg snapshot; None for plain files.
        skipped: files that were left out because the table has them, or had them before.
        from_folders: the columns whose values are in folder names.
        partition_by: the property of the new table, if it has partitions.
        left_out: the reason for each field of the Iceberg table's partition spec that ``partition_by`` lacks, by name.
    """

    table: str
    source: str
    files: int = 0
    rows: int = 0
    bytes: int = 0
    deleted_rows: int = 0
    columns: tuple[str, ...] = ()
    snapshot: int | None = None
    skipped: int = 0
    from_folders: tuple[str, ...] = ()
    partition_by: str = ""
    left_out: dict[str, str] = field(default_factory=dict)
    commit: Commit | None = None

    def facts(self) -> list[tuple[str, str]]:
        """The lines that ``repr`` shows, as pairs of name and value."""
        lines = [("source", self.source)]
        lines += [(name, f"{getattr(self, name):,}") for name in ("files", "rows", "bytes")]
        lines += [("skipped files", f"{self.skipped:,}")] if self.skipped else []
        lines += [("deleted rows", f"{self.deleted_rows:,}")] if self.deleted_rows else []
        lines += [("snapshot", str(self.snapshot))] if self.snapshot is not None else []
        lines += [("columns from folders", ", ".join(self.from_folders))] if self.from_folders else []
        lines += [("partitions", self.partition_by)] if self.partition_by else []
        lines += [("left out", f"partition field {name}: {reason}") for name, reason in self.left_out.items()]
        return [*lines, ("columns", ", ".join(self.columns))]

    def __repr__(self) -> str:
        return "\n".join([f"Adoption of {self.table}", *(f"  {name}: {value}" for name, value in self.facts())])


def adopt(
    transaction: Transaction,
    name: str,
    source: str | Sequence[str],
    primary_key: str | Sequence[str] | None,
    sort_key: str | Sequence[str] | None,
    properties: Mapping[str, Any] | None,
    request: str | None = None,
    progress: AdoptionProgress | None = None,
    *,
    hive: bool | None = None,
    dry_run: bool = False,
) -> Adoption:
    """Implements ``Database.adopt`` in a transaction of its own, which it commits."""
    unit = unit_of(transaction)
    check_table_name(name)
    if name in unit.base.tables:
        unit.refresh()  # the table may have been dropped
    sources = arguments.names("source", source)
    label = sources[0] if len(sources) == 1 else f"{len(sources):,} files"
    keys = key_names(primary_key), key_names(sort_key)
    needs_content, applied = unit.needs_content(request), transaction.has_applied(request)
    result = Adoption(name, label)
    if not applied:
        result = _Adopter(unit, name, label, *keys, properties, request, progress, hive).run(sources)
    if request is not None and needs_content:
        folders = () if hive is None else (hive,)
        unit.add_content(request, content_digest("adopt", name, sources, *keys, dict(properties or {}), *folders))
    return result if dry_run else replace(result, commit=transaction.commit())


@dataclass
class CandidateReader:
    """Finds files below locations, and reads their footers, several at a time. Equal shapes are one object."""

    context: Context
    progress: AdoptionProgress | None
    refusals: AdoptionRefusals = field(default_factory=AdoptionRefusals)
    shapes: dict[str, FileShape] = field(default_factory=dict)
    modified_us: dict[FileLocation, int] = field(default_factory=dict)
    """The times of last modification, by the server's clock, of the files that a LIST returned."""

    def find(self, locations: Sequence[FileLocation]) -> list[FoundFile]:
        """The files at these locations, and all files below locations that are folders."""
        files: dict[FileLocation, FoundFile] = {}
        for location in locations:
            if location.is_data_of_iceberg:
                self.refusals.add("", "it is the data of an Iceberg table: name the folder of the table")
                self.refusals.belong_to_table = True
                continue
            count = len(files)
            for info, parts in () if location.key.endswith(".parquet") else location.files():
                if kind := next((kind for folder, kind in _OTHER_TABLES.items() if folder in parts), ""):
                    self.refusals.add("", f"it is a {kind} table, whose metadata decides which files have rows")
                    self.refusals.belong_to_table = True
                    break
                if not any(part.startswith(HIDDEN) for part in parts):
                    file = location.with_key(info.key)
                    files[file] = (file, info.size)
                    self.modified_us[file] = info.last_modified_us
            if len(files) == count:
                if location.key.endswith(".parquet") or len(locations) > 1:
                    files[location] = (location, None)
                else:
                    self.refusals.add(location.label, "there are no files")
        return list(files.values())

    def read(self, files: Sequence[FoundFile], keys: Collection[str]) -> list[CandidateFile]:
        """Reads the footers of files, with bounds of ``keys`` before those of other columns."""
        candidates: list[CandidateFile] = []
        latest: FooterColumns | None = None
        nearby = bool(files) and is_local(files[0][0].store)

        def read(item: FoundFile) -> CandidateFile | tuple[FileLocation, Sequence[str]]:
            nonlocal latest
            location, size = item
            if location.is_reserved:
                return location, ["it is in a folder whose objects dolmen manages and deletes"]
            try:
                file, latest = read_candidate(location, size, keys, latest, whole_if_small=nearby)
                return file
            except AdoptionError as error:
                return location, error.reasons

        runtime, items = self.context.runtime, iter(files)
        here = runtime.near(read, items) if nearby else ()
        for number, file in enumerate(chain(here, runtime.map(read, items)), 1):
            if isinstance(file, tuple):
                location, reasons = file
                self.refusals.belong_to_table |= location.is_reserved
                for reason in reasons:
                    self.refusals.add(location.label, reason)
            else:
                shape = self.shapes.setdefault(file.shape.key, file.shape)
                candidates.append(file if shape is file.shape else replace(file, shape=shape))
            if self.progress:
                self.progress(number, len(files))
        return candidates


@dataclass
class _Adopter:
    unit: UnitOfWork
    name: str
    source: str
    primary_key: list[str]
    sort_key: list[str]
    properties: Mapping[str, Any] | None
    request: str | None
    progress: AdoptionProgress | None
    hive: bool | None = None
    refusals: AdoptionRefusals = field(default_factory=AdoptionRefusals)
    partition_by: str = ""
    left_out: dict[str, str] = field(default_factory=dict)

    def run(self, sources: Sequence[str]) -> Adoption:
        """Reads all files, and adds the statement. Raises AdoptionError with all reasons."""
        store = self.unit.context.store
        locations = [parse_location(store, url) for url in sources]
        iceberg = find_iceberg(store, self.unit.context.runtime, locations[0]) if len(locations) == 1 else None
        self.refusals.belong_to_table = iceberg is not None
        reader = CandidateReader(self.unit.context, self.progress, self.refusals)
        found = iceberg.files(self.refusals) if iceberg else reader.find(locations)
        files = reader.read(found, {*self.primary_key, *self.sort_key, *re.findall(r"\w+", ", ".join(self.sort_key))})
        shapes, numbers = group_by_shape(files)
        folders = FolderColumns()
        if iceberg:
            columns = iceberg.columns(shapes, self.refusals)
            self.partition_by, self.left_out = iceberg.partition_by(columns.schema)
        else:
            folders = FolderColumns.of(locations, files, self.hive, self.refusals)
            folders.check(files, self.unit.context.runtime, self.refusals)
            columns = columns_of_files(shapes, self.refusals, folders.missing_fields(each.shape for each in shapes))
        entry = None if self.refusals else self._entry(columns.schema)
        self.refusals.check(self.source)
        assert entry is not None
        return self._add(entry, columns, shapes, files, numbers, folders, iceberg)

    def _entry(self, schema: Schema) -> TableEntry | None:
        """The new table's entry, without files; None if its keys or properties are refused."""
        own = {"partition_by": self.partition_by} if self.partition_by else {}
        try:
            return new_entry(self.unit, schema, self.primary_key, self.sort_key, {**own, **(self.properties or {})})
        except SchemaError as error:
            self.refusals.add("", str(error))
            return None

    def _add(
        self,
        entry: TableEntry,
        columns: AdoptedColumns,
        shapes: Sequence[FilesOfShape],
        candidates: Sequence[CandidateFile],
        numbers: Sequence[int],
        folders: FolderColumns,
        iceberg: IcebergSource | None,
    ) -> Adoption:
        """Adds the statement, with the deletes of an Iceberg table as deletion vectors."""
        unit, runtime = self.unit, self.unit.context.runtime
        ids = [ids_by_name(each.shape, entry.schema, how) for each, how in zip(shapes, columns.columns_by, strict=True)]
        deleted_by_file = iceberg.read_deletes(candidates, self.refusals) if iceberg else {}
        self.refusals.check(self.source)
        files, deleted_rows, spec = [], 0, PartitionSpec.of(entry)
        for one, number in zip(candidates, numbers, strict=True):
            if not one.rows:
                continue
            constants = (iceberg or folders).constants(one, entry.schema, self.refusals)
            file = data_file(one, columns.columns_by[number], ids[number], constants, runtime.uuid())
            if iceberg and spec and (partition := iceberg.partition_of(one, spec)) is not None:
                file = spec.record(file, partition)
            positions = deleted_by_file.get(one.location.label, BitMap())
            if len(positions) == one.rows:
                deleted_rows += one.rows
                continue
            if positions:
                vector = unit.uploads.tombstone_object(self.name, entry.uuid).add_vector(file.uuid, positions)
                file = msgspec.structs.replace(file, vector=vector)
                deleted_rows += len(positions)
            files.append(file)
        self.refusals.check(self.source)
        entry = msgspec.structs.replace(entry, files=tuple(files))
        unit.add(AdoptTable(self.name, entry, self.request))
        for one in () if iceberg else candidates:
            unit.bind(applied_id(entry.uuid, one.location), str(one.size))
        return Adoption(
            self.name,
            self.source,
            len(files),
            sum(file.live_rows for file in files),
            sum(file.size for file in files),
            deleted_rows,
            tuple(field.name for field in entry.schema.fields),
            iceberg.snapshot if iceberg else None,
            from_folders=folders.names,
            partition_by=str(entry.properties.get("partition_by") or ""),
            left_out=self.left_out,
        )


def data_file(
    one: CandidateFile, columns_by: ColumnsBy, ids: Mapping[str, int], constants: dict[int, ConstantColumn], uuid: str
) -> DataFile:
    """The entry of a file; ``ids``: of its columns, by name."""
    stats = {id_: one.stats[name] for name, id_ in ids.items() if name in one.stats}
    stats |= {id_: constant_stats(each, one.rows) for id_, each in constants.items()}
    path = one.location.path(columns_by, uuid)
    return DataFile(path, one.size, one.rows, one.footer, stats=dict(sorted(stats.items())), constants=constants)


def applied_id(uuid: str, location: FileLocation) -> str:
    """The id under which a table has a file. It is bound to the file's size."""
    return f"adopt {uuid} {location.label}"


def group_by_shape(files: Sequence[CandidateFile]) -> tuple[list[FilesOfShape], list[int]]:
    """The distinct shapes of files, and for each file the index of its shape."""
    indexes: dict[int, int] = {}
    numbers = [indexes.setdefault(id(file.shape), len(indexes)) for file in files]
    counts = Counter(numbers)
    firsts = {number: file for file, number in reversed([*zip(files, numbers, strict=True)])}
    shapes = [FilesOfShape(firsts[n].shape, counts[n], firsts[n].location.label) for n in range(len(counts))]
    return shapes, numbers
