"""Adds existing files to a table that exists: compares their columns with the table's, then commits.

Columns are found by their names: the schema's ``mapping`` gets the names that it lacks. Each file's location is an
applied id, by which a later call knows the file, whatever became of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias, get_args

import msgspec
import pyarrow as pa

from dolmen.adopt.adoption import Adoption, AdoptionProgress, CandidateReader, applied_id, data_file, group_by_shape
from dolmen.adopt.candidate_file import CandidateFile, FileLocation, FileShape, parse_location, read_column, strip_ids
from dolmen.adopt.columns import (
    AdoptionRefusals,
    FilesOfShape,
    compare_column,
    decide_columns_by,
    field_ids,
    ids_by_name,
    refuse_repeated_names,
)
from dolmen.adopt.hive_folders import FolderColumns
from dolmen.adopt.iceberg_table import find_iceberg
from dolmen.base import arguments
from dolmen.base.records import replace
from dolmen.commit.change import NO_NOTE, ExpectErasures, Note
from dolmen.commit.head import Context
from dolmen.commit.statements.catalog import AdoptFiles, AlterTable
from dolmen.entries.segments.live import LiveFiles
from dolmen.errors import InputError, SchemaError
from dolmen.format.column_history import widening_problem
from dolmen.format.column_terms import sort_ids
from dolmen.format.evolution import AddColumn
from dolmen.format.layout import AdoptedPath, ColumnsBy, is_adopted
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import DatabaseSettings
from dolmen.format.schema import (
    Field,
    MappedColumn,
    Schema,
    child_fields,
    field_id,
    own_names,
    same_names,
    same_names_problem,
)
from dolmen.rows.scan.data_objects import AdoptedColumn, adopted_column, find_mapped_column
from dolmen.transactions.row_arguments import NewColumns
from dolmen.transactions.transaction import Transaction, replay, unit_of
from dolmen.transactions.unit_of_work import UnitOfWork, must_leave_out_erased

_COPY = "Append the files, which copies and converts their rows: dolmen append TABLE FILE..."

Sizes: TypeAlias = dict[FileLocation, int]


def adopt_into(
    context: Context,
    name: str,
    source: str | Sequence[str],
    new_columns: NewColumns = "refuse",
    request: str | None = None,
    note: Note = NO_NOTE,
    progress: AdoptionProgress | None = None,
    *,
    again: bool = False,
    hive: bool | None = None,
    dry_run: bool = False,
) -> Adoption:
    """Implements ``Database.adopt(into=True)``. Repeats itself on the newest version if the table changes meanwhile."""
    sources = arguments.names("source", source)
    arguments.one_of("new_columns", new_columns, get_args(NewColumns))
    adopter = _IntoTable(context, name, sources, new_columns, request, progress, arguments.flag("again", again), hive)
    if dry_run:
        return adopter.add_to(Transaction(UnitOfWork(context, "adopt", note=note, newest=True)))
    adoption, commit = replay(context, adopter.add_to, "adopt", note=note)
    return replace(adoption, commit=commit)


@dataclass
class _IntoTable:
    context: Context
    name: str
    sources: Sequence[str]
    new_columns: NewColumns
    request: str | None
    progress: AdoptionProgress | None
    again: bool
    hive: bool | None
    shapes: dict[str, FileShape] = field(default_factory=dict)
    candidates: dict[FileLocation, CandidateFile] = field(default_factory=dict)

    def add_to(self, transaction: Transaction) -> Adoption:
        """Adds the statements to a transaction. Footers that were read before are not read again."""
        unit = unit_of(transaction)
        entry = unit.look_up(self.name)
        label = self.sources[0] if len(self.sources) == 1 else f"{len(self.sources):,} files"
        adoption = Adoption(self.name, label)
        if not unit.has_applied(self.request):
            adoption = self._add(unit, entry, adoption)
        unit.add_content(self.request, "adopt into", self.name, list(self.sources), self.new_columns, self.hive)
        return adoption

    def _add(self, unit: UnitOfWork, entry: TableEntry, adoption: Adoption) -> Adoption:
        """Adds the files that the table has not had. Raises AdoptionError with all reasons."""
        self._refuse_table(entry)
        refusals = AdoptionRefusals(_COPY)
        locations = [parse_location(self.context.store, url) for url in self.sources]
        files, skipped = self._find_new(unit, entry, locations, refusals)
        folders = FolderColumns.of(locations, files, self.hive, refusals)
        folders.check(files, self.context.runtime, refusals)
        shapes, numbers = group_by_shape(files)
        # New columns come first: how a file's columns are found depends on those that the table has.
        fit = _Fit(entry.schema, self.new_columns, refusals, folders)
        added = fit.new_fields(shapes)
        refusals.check(adoption.source)
        if added:
            changes = tuple(AddColumn(each.name, each.type, is_path=False) for each in added)
            unit.add(AlterTable(self.name, entry.uuid, entry.schema, entry.sort_key, changes, self.request))
            entry = unit.entry(self.name)
            fit = _Fit(entry.schema, self.new_columns, refusals, folders)
        columns_by = [fit.find_columns(each) for each in shapes]
        refusals.check(adoption.source)
        # Values are looked at only in files whose columns fit.
        self._prove_not_null(entry.schema, files, refusals)
        self._refuse_erased(unit, entry, refusals)
        refusals.check(adoption.source)
        schema = msgspec.structs.replace(entry.schema, mapping=tuple(fit.mapping))
        ids = [ids_by_name(each.shape, schema, how) for each, how in zip(shapes, columns_by, strict=True)]
        added_files = tuple(
            data_file(
                one,
                columns_by[number],
                ids[number],
                folders.constants(one, schema, refusals),
                self.context.runtime.uuid(),
            )
            for one, number in zip(files, numbers, strict=True)
            if one.rows
        )
        refusals.check(adoption.source)
        if added_files:
            if must_leave_out_erased(entry):
                unit.add(ExpectErasures(self.name, entry.uuid, unit.base.commit_ts, None, self.request))
            self._bind(unit, entry, files)
            unit.add(
                AdoptFiles(
                    self.name, entry.uuid, entry.epoch, added_files, entry.schema, schema.mapping, fit.next_id,
                    frozenset(fit.narrower), self.request,
                )
            )  # fmt: skip
        return replace(
            adoption,
            files=len(added_files),
            rows=sum(file.rows for file in added_files),
            bytes=sum(file.size for file in added_files),
            columns=tuple(each.name for each in entry.schema.fields),
            skipped=skipped,
            from_folders=folders.names,
        )

    def _refuse_table(self, entry: TableEntry) -> None:
        if entry.primary_key:
            raise InputError(
                f"table {self.name!r} has a primary key, and footers do not show whether keys are unique: upsert the "
                "rows of the files, or insert them, which copies them"
            )
        if checks := ", ".join(sorted(check.name for check in entry.schema.checks)):
            raise InputError(
                f"table {self.name!r} has checks ({checks}), with which rows of files are compared only when they are "
                "copied: append the files"
            )

    def _find_new(
        self, unit: UnitOfWork, entry: TableEntry, locations: Sequence[FileLocation], refusals: AdoptionRefusals
    ) -> tuple[list[CandidateFile], int]:
        """Reads the files that the table has not had. Returns them, and the number of the others."""
        reader = CandidateReader(self.context, self.progress, refusals, self.shapes)
        if len(locations) == 1 and find_iceberg(self.context.store, self.context.runtime, locations[0]):
            refusals.belong_to_table = True
            refusals.add("", "it is an Iceberg table, which becomes a table of its own: adopt it without into")
        found = reader.find(locations)
        known = self._known_sizes(unit, entry, [location for location, _ in found])
        for location, size in found:
            if size not in (None, known.get(location, size)):
                reason = "the table had this file with a different size: give the new file a name of its own"
                refusals.add(location.label, reason)
        new = [location for location, _ in found if location not in known]
        if entry.schema.mapping and not self.again:
            self._refuse_old(unit, new, reader)
        names = (each.name for each in entry.schema.fields if not each.nullable)
        unread = set(new) - self.candidates.keys()
        missing = [(location, size) for location, size in found if location in unread]
        for one in reader.read(missing, {*names, *entry.schema.names_of(sort_ids(entry.sort_key))}):
            self.candidates[one.location] = one
        files = [self.candidates[location] for location in new if location in self.candidates]
        return files, len(found) - len(new)

    def _refuse_old(self, unit: UnitOfWork, new: Iterable[FileLocation], reader: CandidateReader) -> None:
        """Refuses files in folders that are older than ``applied_retention``, if the table has adopted files before."""
        before = unit.now_us - DatabaseSettings.of(unit.base).applied_retention_us
        for location in new:
            if reader.modified_us.get(location, before) < before:
                reason = (
                    "it is older than applied_retention keeps ids, so the table may have had it before: if it has not, "
                    "set applied_retention to more than its age, or name the file instead of the folder"
                )
                reader.refusals.add(location.label, reason)

    def _known_sizes(self, unit: UnitOfWork, entry: TableEntry, locations: Sequence[FileLocation]) -> Sizes:
        """The sizes of the files that the table has or, unless they may be added again, has had."""
        by_key = {(each.scheme, each.root, each.key): each for each in locations}
        sizes: Sizes = {}
        with self.context.reading(unit.base.version):
            for file in LiveFiles.of(entry, self.context.segments).find_matching(None, ids=()):
                path = AdoptedPath.parse(file.path) if is_adopted(file.path) else None
                if path and (location := by_key.get((path.scheme, path.root, path.key))):
                    sizes[location] = file.size
            if not self.again:
                ids = {applied_id(uuid, each): each for uuid in entry.lineage for each in locations}
                for id_, applied in unit.find_applied(ids).items():
                    sizes.setdefault(ids[id_], int(applied.digest))
        return sizes

    def _bind(self, unit: UnitOfWork, entry: TableEntry, files: Sequence[CandidateFile]) -> None:
        """Binds an id for each file. If another commit has one of them first, the call starts again."""
        ids = {applied_id(entry.uuid, one.location): one.size for one in files}
        if self.again:  # files that the table has had keep their ids, so another call must not add rows meanwhile
            unit.depend_on_rows(self.name, None)
            ids = {id_: ids[id_] for id_ in ids.keys() - unit.find_applied(ids).keys()}
        for id_, size in ids.items():
            unit.bind(id_, str(size))
            unit.exclude(id_)
        if self.request is not None:
            unit.exclude(self.request)

    def _refuse_erased(self, unit: UnitOfWork, entry: TableEntry, refusals: AdoptionRefusals) -> None:
        """Refuses all files if there are erased rows to leave out: only reading the files would find them."""
        if must_leave_out_erased(entry) and unit.erased_filter(entry) is not None:
            refusals.add("", "the table leaves out erased rows, and only reading all rows shows which they are")

    def _prove_not_null(self, schema: Schema, files: Sequence[CandidateFile], refusals: AdoptionRefusals) -> None:
        """Refuses NULL in columns that cannot be NULL. Reads the columns for which statistics are missing."""
        required = {each.name for each in schema.fields if not each.nullable}
        unknown: list[tuple[CandidateFile, AdoptedColumn]] = []

        def check(one: CandidateFile, column: AdoptedColumn, nulls: int) -> None:
            if nulls:
                counted = f"{nulls:,} value{'s are' if nulls > 1 else ' is'}"
                refusals.add(one.location.label, f"{counted} NULL, and it cannot be NULL in the table", column.name)

        for one in files:
            for column, name in zip(one.shape.columns, _own_names(one.shape, schema), strict=True):
                if name in required and column.nullable and one.rows:
                    stats = one.stats.get(column.name)
                    if stats is None or stats.nulls is None:
                        unknown.append((one, column))
                    else:
                        check(one, column, stats.nulls)
        counts = self.context.runtime.map(lambda each: sum(part.null_count for part in read_column(*each)), unknown)
        for each, nulls in zip(unknown, counts, strict=True):
            check(*each, nulls)


@dataclass
class _Fit:
    """How files fit a table: the additions to its schema, and reasons against the files."""

    schema: Schema
    new_columns: NewColumns
    refusals: AdoptionRefusals
    folders: FolderColumns
    mapping: list[MappedColumn] = field(init=False)
    next_id: int = field(init=False)
    narrower: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.mapping, self.next_id = list(self.schema.mapping), self.schema.next_id

    def new_fields(self, shapes: Iterable[FilesOfShape]) -> list[pa.Field]:
        """The columns to add to the table. Refuses columns that it lacks, unless they are added or ignored."""
        own, added = {each.name for each in self.schema.fields}, dict[str, pa.Field]()
        for each in shapes:
            refuse_repeated_names(each, self.refusals)
            names = _own_names(each.shape, self.schema)
            for column in (column for column, name in zip(each.shape.columns, names, strict=True) if name not in own):
                first = added.get(column.name.lower())
                if self.new_columns == "refuse":
                    reason = "the table has no such column: new_columns='add' adds it, 'ignore' leaves it out"
                    self.refusals.add(each.first, reason, column.name, each.files)
                elif first is None or (first.type != column.type and not widening_problem(first.type, column.type)):
                    added[column.name.lower()] = strip_ids(pa.field(first.name if first else column.name, column.type))
            for unreadable in each.shape.unreadable:
                is_own = own_names([unreadable.name], self.schema)[0] in own
                if is_own or self.new_columns != "ignore":
                    self.refusals.add(each.first, unreadable.reason, unreadable.name, each.files)
        for missing in self.folders.missing_fields((each.shape for each in shapes), own):
            added[missing.name.lower()] = missing.with_nullable(True)
            if self.new_columns == "refuse":
                reason = "the table has no such column: new_columns='add' adds it, hive=False ignores folders"
                self.refusals.add("", reason, missing.name)
        return list(added.values()) if self.new_columns == "add" else []

    def find_columns(self, each: FilesOfShape) -> ColumnsBy:
        """How columns of these files are found. Refuses files that do not fit the table."""
        how = decide_columns_by(each, self.refusals)
        by_name, seen = {one.name: one for one in self.schema.fields}, set[int]()
        for column, name in zip(each.shape.columns, _own_names(each.shape, self.schema), strict=True):
            own = by_name.get(name)
            try:
                if own is None:
                    self._ignore(column.name, field_ids([column]) if how == "ids" else ())
                    continue
                if own.id in seen:
                    raise SchemaError("the file has two columns of this name, but for upper and lower case")
                seen.add(own.id)
                reason, is_narrower = compare_column(self._map(column, own, by_ids=how == "ids"), own)
                if is_narrower:
                    self.narrower.add(own.id)
            except SchemaError as error:
                reason = str(error)
            if reason:
                self.refusals.add(each.first, reason, column.name, each.files)
        for unreadable in each.shape.unreadable:
            with suppress(SchemaError):  # it was refused
                self._ignore(unreadable.name, [unreadable.id] if how == "ids" else ())
        in_folders = set(own_names(self.folders.names, self.schema))
        for one in self.schema.fields:
            if one.id not in seen and one.name not in in_folders and (reason := compare_column(None, one)[0]):
                self.refusals.add(each.first, reason, one.name, each.files)
        return how

    def _ignore(self, name: str, ids: Iterable[int | None]) -> None:
        """Keeps the values of an ignored column out of the table's columns, of later ones too. Raises SchemaError."""
        used = {each.id: each.name for each in self.schema.fields}
        mapped = None if ids else find_mapped_column(self.mapping, name)
        for id_ in filter(None, ids or ([mapped.id] if mapped else ())):
            if id_ in used:
                raise SchemaError(
                    f"dolmen would read it as the column {used[id_]!r}, which has its field id or had its name"
                )
            self.next_id = max(self.next_id, id_ + 1)
        if not ids and mapped is None:
            self.mapping.append(MappedColumn(self.next_id, (name,)))
            self.next_id += 1

    def _map(self, column: AdoptedColumn, own: Field, *, by_ids: bool) -> AdoptedColumn:
        """The column with the ids of the table, once its names are in the mapping. Raises SchemaError."""
        if by_ids:
            _pair(None, column.name, column.type, own, column.id)
            return column
        before = next((each for each in self.mapping if each.id == own.id), None)
        other = find_mapped_column(self.mapping, column.name)
        if other is not None and other.id != own.id:
            raise SchemaError("files that were adopted earlier have another column under this name")
        after = _pair(before, column.name, column.type, own, None)
        if before is None:
            self.mapping.append(after)
        else:
            self.mapping[self.mapping.index(before)] = after
        plain = pa.field(column.name, column.type, column.nullable)
        return adopted_column(plain, column.leaves, self.mapping)


def _pair(mapped: MappedColumn | None, name: str, kind: pa.DataType, own: Field, id_: int | None) -> MappedColumn:
    """The mapping of a column, or of a field inside one, to the table's. Raises SchemaError.

    With an ``id_``, that of the file, ids are only compared: readers of Iceberg would go by them.
    """
    if id_ is not None and id_ != own.id:
        raise SchemaError(f"its field id is {id_} in the file, and {own.id} in the table: Iceberg's readers go by ids")
    inner = {each.id: each for each in mapped.fields} if mapped else {}
    names = mapped.names if mapped else ()
    names = names if name in names else (*names, name)
    children = child_fields(own.type)
    if not children or kind.id != own.arrow_type.id:
        return MappedColumn(own.id, names, tuple(inner.values()))
    is_struct = pa.types.is_struct(kind)
    if is_struct:
        fields = list(kind)
    else:
        fields = [kind.key_field, kind.item_field] if pa.types.is_map(kind) else [kind.value_field]
    given = [each.name for each in fields]
    spelt = own_names(given, children) if is_struct else [each.name for each in children]
    if pair := same_names(given, spelt):
        raise SchemaError(same_names_problem(pair, "field"))
    by_name = {each.name: each for each in children}
    for file_field, spelling in zip(fields, spelt, strict=True):
        child = by_name.get(spelling)
        if child is None:
            raise SchemaError(f"the table's column has no field {file_field.name!r}")
        if file_field.nullable and not child.nullable:
            raise SchemaError(f"its field {child.name!r} may be NULL in the file, and not in the table")
        if is_struct and any(file_field.name in each.names for each in inner.values() if each.id != child.id):
            raise SchemaError(f"files that were adopted earlier have another field {file_field.name!r}")
        alias = file_field.name if is_struct else ("element" if len(fields) == 1 else spelling)
        child_id = None if id_ is None else field_id(file_field)
        inner[child.id] = _pair(inner.get(child.id), alias, file_field.type, child, child_id)
    ordered = inner.values() if is_struct else (inner[each.id] for each in children)
    return MappedColumn(own.id, names, tuple(ordered))


def _own_names(shape: FileShape, schema: Schema) -> list[str]:
    return own_names([column.name for column in shape.columns], schema)
