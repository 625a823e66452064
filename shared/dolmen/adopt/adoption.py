"""Makes a table of files that are there already: looks at all of them, reports all reasons against it, then commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, TypeAlias

import msgspec
from pyroaring import BitMap

from dolmen.adopt.columns import AdoptedColumns, AdoptionFaults, FilesOfShape, columns_of_files, ids_by_name
from dolmen.adopt.facts import FileFacts, FileShape, read_facts, reasons
from dolmen.adopt.iceberg_table import IcebergSource, find_iceberg
from dolmen.adopt.locations import HIDDEN, FilePlace, parse_place
from dolmen.base import arguments
from dolmen.commit.statements.catalog import AdoptTable
from dolmen.errors import AdoptionError, Error, SchemaError
from dolmen.format.entries import DataFile
from dolmen.format.layout import check_table_name
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import check_table_properties
from dolmen.format.schema import Schema
from dolmen.rows.scan.read.byte_ranges import is_local
from dolmen.rows.write.conform import check_storable
from dolmen.rows.write.row_digest import content_digest
from dolmen.transactions import row_statements
from dolmen.transactions.results import Commit
from dolmen.transactions.transaction import Transaction

AdoptionProgress: TypeAlias = Callable[[int, int], None]
"""Called with the number of footers that were read, and the number of files."""

_OTHER_TABLES = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}
"""Folders by which other formats say which files are rows."""


@dataclass(frozen=True, repr=False)
class Adoption:
    """The result of an adoption, or of its dry run.

    Args:
        table: the new table's name.
        source: where the files are.
        files: the number of data files.
        rows: the number of rows, without deleted ones.
        bytes: the size of the files.
        deleted_rows: rows that the Iceberg table had deleted; 0 for plain files.
        columns: the names of the columns.
        snapshot: id of the Iceberg snapshot; None for plain files.
        commit: the commit; None after a dry run.
    """

    table: str
    source: str
    files: int = 0
    rows: int = 0
    bytes: int = 0
    deleted_rows: int = 0
    columns: tuple[str, ...] = ()
    snapshot: int | None = None
    commit: Commit | None = None

    def facts(self) -> list[tuple[str, str]]:
        """The lines that ``repr`` shows, as pairs of name and value."""
        told = [("source", self.source), ("files", f"{self.files:,}"), ("rows", f"{self.rows:,}")]
        told.append(("bytes", f"{self.bytes:,}"))
        if self.deleted_rows:
            told.append(("deleted rows", f"{self.deleted_rows:,}"))
        if self.snapshot is not None:
            told.append(("snapshot", str(self.snapshot)))
        told.append(("columns", ", ".join(self.columns)))
        return told

    def __repr__(self) -> str:
        return "\n".join([f"Adoption of {self.table}", *(f"  {name}: {value}" for name, value in self.facts())])


@dataclass(frozen=True)
class NewTableSettings:
    """Keys and settings of the new table, as ``Database.create_table`` takes them."""

    primary_key: tuple[str, ...] = ()
    sort_key: tuple[str, ...] = ()
    properties: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        primary_key: str | Sequence[str] | None,
        sort_key: str | Sequence[str] | None,
        properties: Mapping[str, Any] | None,
    ) -> NewTableSettings:
        """Takes them as callers give them."""
        keys = [() if each is None else tuple(arguments.names("key", each)) for each in (primary_key, sort_key)]
        return cls(keys[0], keys[1], properties)


def adopt(
    transaction: Transaction,
    name: str,
    source: str | Sequence[str],
    settings: NewTableSettings,
    request: str | None = None,
    progress: AdoptionProgress | None = None,
    *,
    dry_run: bool = False,
) -> Adoption:
    """Does what ``Database.adopt`` does, in a transaction of its own, which it commits."""
    check_table_name(name)
    if name in transaction.base.tables:
        transaction.refresh()  # it may have been dropped meanwhile
    sources = arguments.names("source", source)
    shown = sources[0] if len(sources) == 1 else f"{len(sources):,} files"
    asked, applied = transaction.needs_content(request), transaction.has_applied(request)
    result = Adoption(name, shown)
    if not applied:
        result = _Adopter(transaction, name, shown, settings, request, progress).run(sources)
    if request is not None and asked:
        keys = [list(settings.primary_key), list(settings.sort_key)]
        content = content_digest("adopt", name, sources, *keys, dict(settings.properties or {}))
        transaction.add_content(request, content)
    return result if dry_run else replace(result, commit=transaction.commit())


class _Adopter:
    def __init__(
        self,
        transaction: Transaction,
        name: str,
        source: str,
        settings: NewTableSettings,
        request: str | None,
        progress: AdoptionProgress | None,
    ) -> None:
        self._transaction, self._context = transaction, transaction.context
        self._name, self._source, self._settings = name, source, settings
        self._request, self._progress = request, progress
        self._faults = AdoptionFaults()

    def run(self, sources: Sequence[str]) -> Adoption:
        """Looks at all files, and adds the statement. Raises AdoptionError with all reasons."""
        store = self._context.store
        places = [parse_place(store, url) for url in sources]
        iceberg = find_iceberg(store, self._context.runtime, places[0]) if len(places) == 1 else None
        self._faults.are_of_table = iceberg is not None
        wanted = iceberg.files(self._faults) if iceberg else self._plain_files(places)
        facts = self._read(wanted)
        shapes, numbers = _by_shape(facts)
        if iceberg:
            columns = iceberg.columns(shapes, self._faults)
            iceberg.check_partitions(facts, columns.schema, self._faults)
        else:
            columns = columns_of_files(shapes, self._faults)
            self._add_folder_faults(places, facts)
        entry = self._entry(columns.schema) if not self._faults else None
        self._faults.check(self._source)
        assert entry is not None
        return self._add(entry, columns, shapes, facts, numbers, iceberg)

    def _plain_files(self, places: Sequence[FilePlace]) -> list[tuple[FilePlace, int | None]]:
        """The files at these places: files themselves, or all files below a folder."""
        found: dict[tuple[str, str, str], tuple[FilePlace, int | None]] = {}
        for place in places:
            if place.is_data_of_iceberg:
                self._faults.add("", "it is the data of an Iceberg table: name the folder of the table")
                self._faults.are_of_table = True
                continue
            count = len(found)
            for info, parts in () if place.key.endswith(".parquet") else place.files():
                if kind := next((kind for folder, kind in _OTHER_TABLES.items() if folder in parts), ""):
                    self._faults.add("", f"it is a table of {kind}, whose own files say which of the others are rows")
                    self._faults.are_of_table = True
                    break
                if not any(part.startswith(HIDDEN) for part in parts):
                    file = place.beside(info.key)
                    found[file.scheme, file.root, file.key] = (file, info.size)
            if len(found) == count:
                if place.key.endswith(".parquet") or len(places) > 1:
                    found[place.scheme, place.root, place.key] = (place, None)
                else:
                    self._faults.add(place.label, "there are no files")
        return list(found.values())

    def _read(self, wanted: Sequence[tuple[FilePlace, int | None]]) -> list[FileFacts]:
        """Reads all footers, several at a time."""
        keys = {*self._settings.primary_key, *self._settings.sort_key}
        shapes: dict[str, FileShape] = {}
        found: list[FileFacts] = []

        def read(item: tuple[FilePlace, int | None]) -> FileFacts | tuple[FilePlace, Error]:
            place, size = item
            if place.is_reserved:
                reason = "it is below a folder whose objects belong to dolmen, and are deleted by it"
                return place, AdoptionError(place.label, [reason])
            try:
                return read_facts(place, size, keys)
            except AdoptionError as error:
                return place, error

        runtime, items = self._context.runtime, iter(wanted)
        here = runtime.near(read, items) if wanted and is_local(wanted[0][0].store) else ()
        for number, facts in enumerate(chain(here, runtime.map(read, items)), 1):
            if isinstance(facts, tuple):
                self._faults.are_of_table |= facts[0].is_reserved
                for reason in reasons(facts[1]):
                    self._faults.add(facts[0].label, reason)
            else:
                shape = shapes.setdefault(facts.shape.key, facts.shape)
                found.append(replace(facts, shape=shape))
            if self._progress:
                self._progress(number, len(wanted))
        return found

    def _add_folder_faults(self, places: Sequence[FilePlace], facts: Iterable[FileFacts]) -> None:
        """Notes columns that stand only in the names of folders, as Hive and Spark write partitions."""
        roots = {place.key: number for number, place in reversed([*enumerate(places)])}
        for file in facts:
            above = [str(folder) for folder in PurePosixPath(file.place.key).parents]
            root = min((key for key in above if key in roots), key=roots.__getitem__, default="")
            inside = file.place.key.removeprefix(f"{root}/") if root else file.place.key
            names = {column.name for column in file.shape.columns}
            for part in inside.split("/")[:-1]:
                column, equals, _ = part.partition("=")
                if equals and column not in names:
                    reason = "it stands only in the names of folders, not in the file, where every column must be"
                    self._faults.add(file.place.label, reason, column)

    def _entry(self, schema: Schema) -> TableEntry | None:
        """The new table's entry, without files. Reasons against its keys are noted."""
        settings = self._settings
        try:
            key = row_statements.check_key(tuple(schema.field(column) for column in settings.primary_key))
            order = row_statements.check_sortable(tuple(schema.field(column) for column in settings.sort_key))
            ids = [field.id for field in key]
            properties = check_table_properties(settings.properties or {}, schema, ids)
            entry = TableEntry(
                uuid=self._context.runtime.uuid(),
                epoch=0,
                schema=schema,
                primary_key=tuple(ids),
                sort_key=tuple(field.id for field in order),
                properties={name: value for name, value in properties.items() if value is not None},
            )
            check_storable(entry)
        except SchemaError as error:
            self._faults.add("", str(error))
            return None
        return entry

    def _add(
        self,
        entry: TableEntry,
        columns: AdoptedColumns,
        shapes: Sequence[FilesOfShape],
        facts: Sequence[FileFacts],
        numbers: Sequence[int],
        iceberg: IcebergSource | None,
    ) -> Adoption:
        """Adds the statement, with the deletes of an Iceberg table as deletion vectors."""
        transaction, runtime = self._transaction, self._context.runtime
        ids = [ids_by_name(each.shape, entry.schema, how) for each, how in zip(shapes, columns.columns_by, strict=True)]
        deleted = iceberg.deleted(facts, self._faults) if iceberg else {}
        self._faults.check(self._source)
        files, gone = [], 0
        for one, number in zip(facts, numbers, strict=True):
            if not one.rows:
                continue
            file = _data_file(one, one.place.path(columns.columns_by[number], runtime.uuid()), ids[number])
            positions = deleted.get(one.place.label, BitMap())
            if len(positions) == one.rows:
                gone += one.rows
                continue
            if positions:
                vector = transaction.uploads.tombstone_object(self._name, entry.uuid).add_vector(file.uuid, positions)
                file = msgspec.structs.replace(file, vector=vector)
                gone += len(positions)
            files.append(file)
        entry = msgspec.structs.replace(entry, files=tuple(files))
        transaction.add(AdoptTable(self._name, entry, self._request))
        return Adoption(
            self._name,
            self._source,
            len(files),
            sum(file.live_rows for file in files),
            sum(file.size for file in files),
            gone,
            tuple(field.name for field in entry.schema.fields),
            iceberg.snapshot if iceberg else None,
        )


def _by_shape(facts: Sequence[FileFacts]) -> tuple[list[FilesOfShape], list[int]]:
    """The different shapes of files, and for each file the number of its shape."""
    places: dict[int, int] = {}
    numbers = [places.setdefault(id(file.shape), len(places)) for file in facts]
    shapes: list[FilesOfShape] = []
    for file, number in zip(facts, numbers, strict=True):
        if number == len(shapes):
            shapes.append(FilesOfShape(file.shape, 1, file.place.label))
        else:
            known = shapes[number]
            shapes[number] = FilesOfShape(known.shape, known.files + 1, known.first)
    return shapes, numbers


def _data_file(facts: FileFacts, path: str, ids: Mapping[str, int]) -> DataFile:
    stats = {ids[name]: known for name, known in facts.stats.items() if name in ids}
    return DataFile(path=path, size=facts.size, rows=facts.rows, footer=facts.footer, stats=dict(sorted(stats.items())))
