"""Changes of a table's rows as statements: rows become data files, predicates and keys become tombstones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from dolmen.base import arguments
from dolmen.base.records import replace
from dolmen.base.units import MIB
from dolmen.commit.change import ExpectErasures, matches_old_delete_digest
from dolmen.commit.draft import Draft, Statement
from dolmen.commit.head import Context
from dolmen.commit.statements.catalog import AlterTable
from dolmen.commit.statements.row_changes import DeletePositions, InsertRows, Overwrite, Write
from dolmen.commit.uploads import MAX_KEYS, LateIntent, PendingUploads, record_keys, record_predicate
from dolmen.entries.index.sorting import KeyRuns
from dolmen.entries.index.table_index import encoding_of
from dolmen.errors import ConflictError, DuplicateKeyError, InputError
from dolmen.format.del_object import Keys, TombstoneObject, add_keys, check_not_null
from dolmen.format.entries import DataFile, Tombstone
from dolmen.format.evolution import AddColumn
from dolmen.format.layout import tombstone_key
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field, Schema
from dolmen.format.types import to_plain
from dolmen.predicate.ast import Predicate
from dolmen.predicate.parse import Parameters, Where
from dolmen.predicate.text import plain_text
from dolmen.rows.scan.conditions import Condition, SqlCondition, columns_of, implied_by, read_condition
from dolmen.rows.scan.plan import View
from dolmen.rows.scan.rows_by_key import existing_keys
from dolmen.rows.scan.scan import Scan, matching_positions, rows_with_positions
from dolmen.rows.write.data_file import write_data_files
from dolmen.rows.write.row_digest import RowDigest, content_digest
from dolmen.rows.write.row_input import distinct_parts
from dolmen.store.base import create
from dolmen.transactions.keys import key_fields, take_keys
from dolmen.transactions.row_arguments import (
    NewColumns,
    choose_rows,
    divide_columns,
    keys_content,
    not_empty,
    only_matching,
    parse_where,
    rows_content,
    rows_of,
)
from dolmen.transactions.row_locations import HiddenRows, RowLocations, cut_into_steps
from dolmen.transactions.unit_of_work import UnitOfWork, must_leave_out_erased

Mode: TypeAlias = Literal["auto", "tombstone", "positions"]
ChooseRows: TypeAlias = Callable[[Iterable[pa.RecordBatch], tuple[Field, ...]], Iterable[pa.RecordBatch]]
BUFFER_BYTES = 64 * MIB
"""An insert with at most this much Arrow memory checks its keys before it writes; a larger one afterwards."""


MOST_NAMED_KEYS = 10  # the most keys that an error names


class TableChange:
    """The statements of one call on one table, in a unit of work."""

    def __init__(
        self, unit: UnitOfWork, name: str, request: str | None = None, entry: TableEntry | None = None
    ) -> None:
        self.unit, self.name, self.request = unit, name, request
        self.entry = unit.entry(name) if entry is None else entry

    @property
    def row_schema(self) -> Schema:
        """The columns for the rows that one statement adds: ``now()`` is the present time."""
        return self.entry.schema.at(lambda: self.unit.context.store.clock.current_us)

    def take_columns(self, data: Any, new_columns: NewColumns) -> Any:
        """Rows without the columns that the table lacks, or with them, once they are added to it (``Table.append``)."""
        rows, added = divide_columns(self.name, self.entry, data, new_columns)
        self.add_columns(added)
        return rows

    def add_columns(self, added: Sequence[pa.Field]) -> None:
        """Adds columns to the table, with NULL in older rows, unless the request was applied before."""
        if added and not self.unit.has_applied(self.request):
            changes = tuple(AddColumn(field.name, field.type, is_path=False) for field in added)
            entry = self.entry
            self.unit.add(AlterTable(self.name, entry.uuid, entry.schema, entry.sort_key, changes, self.request))
            self.entry = self.unit.entry(self.name)

    def append(self, data: Any, cast: bool, leave_out_erased: bool | None) -> None:
        """Adds the statement of ``Table.append``."""

        def make(rows: Iterator[pa.RecordBatch]) -> list[Write]:
            files = self.write_rows(rows)
            return [self._write_statement(files)] if files else []

        self._add_rows("append", make, data, cast, leave_out_erased)

    def insert(self, data: Any, cast: bool, leave_out_erased: bool | None) -> None:
        """Adds the statement of ``Table.insert``."""

        def make(rows: Iterator[pa.RecordBatch]) -> list[InsertRows]:
            statement = self.make_insert(rows)
            return [] if statement is None else [statement]

        self._add_rows("insert", make, data, cast, leave_out_erased)

    def upsert(
        self,
        data: Any,
        on: str | Sequence[str] | None,
        cast: bool = False,
        leave_out_erased: bool | None = None,
        choose: ChooseRows | None = None,
    ) -> None:
        """Adds the statements of ``Table.upsert``: rows, and tombstones for older rows with their keys.

        It is one statement, unless rows of several parts have one key: then it is one for each part, in their order.
        ``choose`` selects the rows to write among rows with distinct keys.
        """
        fields = key_fields(self.entry, on)

        def make(rows: Iterator[pa.RecordBatch]) -> Iterable[Write]:
            late, parts, part_keys = self._late_intent(), list[Write](), _PartKeys(fields)
            if choose is not None:
                return self._chosen_parts(rows, fields, late, choose)
            for latest, keys in distinct_parts(rows, fields):
                files = self.write_rows(latest.to_batches(), late)
                parts.append(self._write_statement(files, self._tombstones_of(keys, late if parts else None)))
                part_keys.add(latest)
            if len(parts) > 1 and part_keys.are_distinct():
                files = tuple(file for part in parts for file in part.files)
                return [self._write_statement(files, tuple(each for part in parts for each in part.tombstones))]
            return parts

        names = sorted(field.name for field in fields)
        self._add_rows("upsert", make, data, cast, leave_out_erased, lambda: names)

    def _chosen_parts(
        self, rows: Iterator[pa.RecordBatch], fields: tuple[Field, ...], late: LateIntent, choose: ChooseRows
    ) -> Iterator[Write]:
        """A statement for each part of the rows to write. Each part is chosen when those before it have been added."""
        is_first = True
        for part, _ in distinct_parts(rows, fields):
            for latest, keys in distinct_parts(choose(part.to_batches(), fields), fields):
                files = self.write_rows(latest.to_batches(), late)
                yield self._write_statement(files, self._tombstones_of(keys, None if is_first else late))
                is_first = False

    def replace(self, data: Any, keys: Any) -> None:
        """Adds the statement of ``TransactionTable.replace``: rows, and a tombstone for keys, perhaps of other rows."""
        chosen = take_keys(self.entry, keys)

        def make(rows: Iterator[pa.RecordBatch]) -> list[Write]:
            files = self.write_rows(rows)
            tombstones = self.delete_keys(chosen).tombstones
            return [self._write_statement(files, tombstones)] if files or tombstones else []

        # Erased rows are written, too: their older versions are hidden in any case, so a row left out would be deleted.
        self._add_rows("replace", make, data, False, False, lambda: keys_content(self.entry, chosen))

    def overwrite_where(
        self, data: Any, where: Where, force: bool, check: bool, cast: bool, leave_out_erased: bool | None
    ) -> None:
        """Adds the statement of ``Table.overwrite`` with ``where``: a tombstone for it, and rows."""
        arguments.flag("force", force)
        arguments.flag("check", check)
        predicate = parse_where(self.unit.context, self.entry, where)
        if not force:
            self.unit.depend_on_rows(self.name, predicate)

        def make(rows: Iterator[pa.RecordBatch]) -> list[Write]:
            files = self.write_rows(only_matching(rows, predicate, self.entry.schema) if check else rows)
            return [self.replace_matching(predicate, files)]

        self._add_rows("overwrite", make, data, cast, leave_out_erased, lambda: rows_content(self.entry, where, None))

    def replace_matching(self, predicate: Predicate, files: tuple[DataFile, ...]) -> Write:
        """The statement of an overwrite of some rows: a tombstone for them, and files with others."""
        return replace(self._delete_matching(predicate), files=files, is_overwrite=True)

    def overwrite(self, data: Any, force: bool, cast: bool, leave_out_erased: bool | None) -> None:
        """Adds the statement of ``Table.overwrite``."""
        arguments.flag("force", force)

        def make(rows: Iterator[pa.RecordBatch]) -> list[Overwrite]:
            base = self.unit.base
            base_name = base.name_of(self.entry.uuid)
            files = self.write_rows(rows)
            epoch = base.tables[base_name].epoch if base_name else 0
            uuid, schema = self.entry.uuid, self.entry.schema
            return [Overwrite(self.name, uuid, epoch, base.commit_ts, files, force, self.request, schema)]

        self._add_rows("overwrite", make, data, cast, leave_out_erased)

    def _add_rows(
        self,
        operation: str,
        make: Callable[[Iterator[pa.RecordBatch]], Iterable[Statement]],
        data: Any,
        cast: bool,
        leave_out_erased: bool | None,
        content: Callable[[], Any] = lambda: None,
    ) -> None:
        """Adds statements that write rows. If their request was applied before, rows are only compared by digest.

        ``make`` makes the statements from rows that fit the table, none if there is nothing to do; ``content`` returns
        what the request's digest covers besides the operation, the table's name and the rows.
        """
        arguments.flag("cast", cast)
        if leave_out_erased is not None:
            arguments.flag("leave_out_erased", leave_out_erased)
        unit, entry, request, base_ts = self.unit, self.entry, self.request, self.unit.base.commit_ts
        schema = self.row_schema
        digest = RowDigest(entry.schema.arrow) if unit.needs_content(request) else None
        if not unit.has_applied(request):
            unit.begin_upload()
            rows = rows_of(schema, data, digest, unit.erased_filter(entry, leave_out_erased), cast=cast)
            expects_erasures = must_leave_out_erased(entry, leave_out_erased)
            for statement in make(rows):
                if expects_erasures:
                    unit.add(ExpectErasures(self.name, entry.uuid, base_ts, None, request))
                    expects_erasures = False
                unit.add(statement)
        elif digest:
            for _ in rows_of(schema, data, digest, cast=cast):
                pass
        if request is not None and digest:
            unit.add_digest(request, content_digest(operation, self.name, content(), digest.hexdigest()))

    def _late_intent(self) -> LateIntent:
        return LateIntent(self.unit.context.runtime, self.unit.intent)

    def write_rows(self, batches: Iterable[pa.RecordBatch], late: LateIntent | None = None) -> tuple[DataFile, ...]:
        """Writes fitted rows into data files; without rows, none. Files after the first are named after an intent."""
        context, late = self.unit.context, late or self._late_intent()
        write = partial(write_data_files, context.store, self.name, self.entry, batches, context.runtime)
        return tuple(write(name=late.name, beat=late.beat, open_output=self.unit.uploads.files.open))

    def _write_statement(self, files: tuple[DataFile, ...], tombstones: tuple[Tombstone, ...] = ()) -> Write:
        return Write(self.name, self.entry.uuid, files, tombstones, self.request, schema=self.entry.schema)

    def make_insert(self, rows: Iterable[pa.RecordBatch]) -> InsertRows | None:
        """The statement of ``Table.insert``; None without rows, or if the request was applied meanwhile."""
        check = _InsertCheck.of(self.unit, self.name, self.entry)
        first, remaining = _buffer(check.add_keys(rows))
        if not first:
            return None
        if remaining is None and self._check_insert(InsertRows(self._write_statement(()), check), check) is None:
            return None
        statement = InsertRows(self._write_statement(self.write_rows(chain(first, remaining or ()))), check)
        return statement if remaining is None else self._check_insert(statement, check)

    def _check_insert(self, statement: InsertRows, check: _InsertCheck) -> InsertRows | None:
        """Checks the keys, and prepares the statement; None if a version new to the transaction applied the request."""
        check.check_distinct()
        try:
            return self.unit.prepare(statement)
        except DuplicateKeyError:
            if not self.unit.rebase():
                raise
        return None if self.unit.has_applied(self.request) else self.unit.prepare(statement)

    def delete(
        self,
        where: Where = None,
        parameters: Parameters | None = None,
        keys: Any = None,
        on: Sequence[str] | None = None,
        mode: Mode = "auto",
    ) -> None:
        """Adds the statement of ``Table.delete``."""
        unit, name, entry, request = self.unit, self.name, self.entry, self.request
        where, key_rows = choose_rows("delete", entry, where, parameters, keys, on)
        if mode == "positions" and key_rows is not None:
            raise InputError('mode="positions" takes a predicate, not keys')
        if not unit.has_applied(request):
            condition: Condition | None = None
            if mode != "tombstone" and key_rows is None:
                now_us = unit.context.store.clock.current_us
                condition = read_condition(not_empty(where), entry.schema, now_us=now_us)
            if condition is None or (mode == "auto" and not isinstance(condition, SqlCondition)):
                write = self.delete_rows(where, key_rows) if condition is None else self._delete_matching(condition)
                if write.tombstones:
                    unit.add(write)
            elif (deletion := self._delete_positions(condition)) is not None:
                unit.add(deletion)
        if request is not None and unit.needs_content(request):
            digest = content_digest("delete", name, *rows_content(entry, where, key_rows))
            earlier = unit.find_applied([request]).get(request)
            if earlier and matches_old_delete_digest(
                earlier.digest, {"table": name, "where": where, "keys": keys, "on": on}
            ):
                digest = earlier.digest
            unit.add_digest(request, digest)

    def delete_rows(self, where: Where, keys: Keys | None) -> Write:
        """Makes a tombstone for the rows with some keys, or for which a predicate is TRUE. Reads no data."""
        if keys is not None:
            return self.delete_keys(keys)
        return self._delete_matching(parse_where(self.unit.context, self.entry, where))

    def _delete_matching(self, predicate: Predicate) -> Write:
        open_object = partial(self.unit.uploads.tombstone_object, self.name, self.entry.uuid)
        tombstone = record_predicate(open_object, self.entry.schema, predicate)
        return self._write_statement((), (tombstone,) if tombstone else ())

    def delete_keys(self, keys: Keys) -> Write:
        """Makes a tombstone for the rows with these keys (see ``take_keys``); none without keys. Reads no data."""
        tombstone = record_keys(partial(self.unit.uploads.tombstone_object, self.name, self.entry.uuid), keys)
        return self._write_statement((), (tombstone,) if tombstone else ())

    def _tombstones_of(self, keys: Keys, late: LateIntent | None) -> tuple[Tombstone, ...]:
        """Makes tombstones for the rows with these keys, of any number; with ``late``, in an object uploaded now."""
        context = self.unit.context
        if late is None:
            target = self.unit.uploads.tombstone_object(self.name, self.entry.uuid)
        else:
            target = TombstoneObject(tombstone_key(self.name, context.store.clock.now_us, late.name()), self.entry.uuid)
        made = tuple(add_keys(target, keys.slice(at, MAX_KEYS)) for at in range(0, keys.num_rows, MAX_KEYS))
        if late is not None:
            create(context.store, target.key, target.encode(), context.runtime)
        return made

    def _delete_positions(self, condition: Condition) -> DeletePositions | None:
        """Finds matching rows, to delete them by position; reads the condition's columns. None if nothing matches.

        A condition that is not a predicate is a read: the commit is refused if rows change for which it may be TRUE.
        """
        unit, name, uuid = self.unit, self.name, self.entry.uuid
        unit.keep_base()
        if isinstance(condition, SqlCondition):
            unit.depend_on_rows(name, implied_by(condition))
        epoch = next((each.epoch for each in unit.base.tables.values() if each.uuid == uuid), 0)
        with unit.context.reading(unit.manifest.version):
            positions = matching_positions(View(unit.context, unit.manifest, name, unit.uploads.read), condition)
        if positions:
            return DeletePositions(name, uuid, positions, self.request, tuple(sorted(columns_of(condition))), epoch)
        # It may match rows after a rebase that removes earlier statements (``Change.without_requests``).
        return DeletePositions(name, uuid, {}, self.request) if unit.has_changed(uuid) else None

    def rows_to_change(
        self, columns: Sequence[str], condition: Condition | None, *, with_commit_ts: bool = False
    ) -> Iterator[tuple[pa.RecordBatch, RowLocations]]:
        """Reads rows in steps. From now on the commit is refused if another commit changes these rows."""
        self.unit.depend_on_rows(self.name, implied_by(condition))
        view = View(self.unit.context, self.unit.manifest, self.name, self.unit.uploads.read)
        scan = Scan(view, columns=columns, where=condition, with_commit_ts=with_commit_ts)
        return cut_into_steps(rows_with_positions(scan))

    def replace_rows(self, rows: Iterable[pa.RecordBatch], hidden: HiddenRows, columns: tuple[int, ...] = ()) -> None:
        """Writes rows of exactly the table's schema, and adds the statements that hide old rows and add these.

        ``hidden`` is complete after the last row was read; ``columns`` are the columns of the condition.
        """
        unit, uuid = self.unit, self.entry.uuid
        unit.begin_upload()
        # Erased rows are written, too: their older versions are hidden, so a row left out would be deleted.
        files = self.write_rows(unit.filter_erased(self.entry, rows, leave_out=False))
        if hidden or unit.has_changed(uuid):
            # Needed after a rebase that removes earlier statements (``Change.without_requests``).
            unit.add(DeletePositions(self.name, uuid, hidden, self.request, columns))
        if files:
            unit.add(self._write_statement(files))


def _buffer(batches: Iterator[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch] | None]:
    """The first ``BUFFER_BYTES`` of rows, and the remaining rows; None if none remain."""
    buffered, size = list[pa.RecordBatch](), 0
    for batch in batches:
        buffered.append(batch)
        size += batch.nbytes
        if size > BUFFER_BYTES:
            return buffered, batches
    return buffered, None


def add_inserts(unit: UnitOfWork, entry: TableEntry, write: Write, keys: Iterable[pa.RecordBatch]) -> None:
    """Adds rows that are already written, provided that the table has none of ``keys``: primary keys of these rows.

    Raises DuplicateKeyError: several rows have one key, or the table has it; RowError: a key is NULL.
    """
    check = _InsertCheck.of(unit, write.name, entry)
    for _ in check.add_keys(keys):
        pass
    check.check_distinct()
    unit.add(InsertRows(write, check))


class _InsertCheck:
    """Compares the keys of an insert with each other and with the table's."""

    def __init__(self, context: Context, name: str, uuid: str, fields: tuple[Field, ...]) -> None:
        self._context, self._name, self._uuid, self._fields = context, name, uuid, fields
        self._keys = KeyRuns(pa.schema([field.to_arrow() for field in fields]))

    @classmethod
    def of(cls, unit: UnitOfWork, name: str, entry: TableEntry) -> _InsertCheck:
        """A check without keys yet. Raises InputError if the table has no primary key."""
        if not entry.primary_key:
            raise InputError(f"table {name!r} has no primary key, by which insert would compare rows: append them")
        return cls(unit.context, name, entry.uuid, tuple(entry.schema.by_id[id_] for id_ in entry.primary_key))

    def add_keys(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Passes rows on, and collects their keys. Raises RowError for a NULL in a key."""
        names, row = [field.name for field in self._fields], 0
        for batch in batches:
            check_not_null(batch, self._fields, row)
            row += batch.num_rows
            self._keys.add(batch.select(names))
            if batch.num_rows:
                yield batch

    def check_distinct(self) -> None:
        """Raises DuplicateKeyError if several rows have one key."""
        count, first = self._keys.repeated_rows(MOST_NAMED_KEYS)
        if count:
            raise self._error(count, first, in_rows=True)

    def __call__(self, draft: Draft, uploads: PendingUploads, newer_than: int) -> None:
        """Checks the table's keys: see ``dolmen.commit.statements.row_changes.RowsCheck``."""
        entry = draft.table(self._name, self._uuid)
        if encoding_of(entry).kinds != self._keys.encoding.kinds:
            raise ConflictError(
                f"table {self._name!r}: the type of its key was changed meanwhile: insert the rows again"
            )
        manifest = msgspec.structs.replace(draft.base, tables=dict(draft.tables))
        view = View(self._context, manifest, self._name, uploads.read)
        count, first = existing_keys(view, self._keys, newer_than, MOST_NAMED_KEYS)
        if count and first is not None:
            raise self._error(count, first, in_rows=False)

    def _error(self, count: int, first: pa.Table, *, in_rows: bool) -> DuplicateKeyError:
        values = zip(*map(_shown_values, first.columns), strict=True)
        names = [field.name for field in self._fields]
        return DuplicateKeyError(self._name, names, list(values), count, in_rows=in_rows)


def _shown_values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a key's column; dates and times that Python does not have as text."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [plain_text(value, column.type) for value in to_plain(column.combine_chunks())]


class _PartKeys:
    """The keys of an upsert's parts, which are sorted from the second part on."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self._schema = pa.schema([field.to_arrow() for field in fields])
        self._first: pa.Table | None = None
        self._runs: KeyRuns | None = None

    def add(self, rows: pa.Table) -> None:
        keys = rows.select(self._schema.names)
        if self._runs is None and self._first is None:
            self._first = keys
            return
        self._runs = self._runs or KeyRuns(self._schema)
        for part in filter(None, (self._first, keys)):
            for batch in part.to_batches():
                self._runs.add(batch)
        self._first = None

    def are_distinct(self) -> bool:
        """Whether no two parts have a key in common."""
        return self._runs is None or not self._runs.repeated_rows(0)[0]
