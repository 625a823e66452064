"""Tables inside a transaction: reads see the statements so far, and writes add statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, get_args

import pyarrow as pa

from dolmen.base import arguments
from dolmen.commit.change import ExpectErasures, Statement, is_raw_digest
from dolmen.commit.statements.background import SetProperties
from dolmen.commit.statements.catalog import AlterTable
from dolmen.commit.statements.row_changes import DeletePositions, Overwrite
from dolmen.errors import InputError
from dolmen.format.delete_object import Keys
from dolmen.format.evolution import (
    AddColumn,
    DropColumn,
    MakeNullable,
    RenameColumn,
    Reorder,
    SchemaChange,
    SetComment,
    SetDefault,
    SetSortKey,
    WidenColumn,
)
from dolmen.format.ingest_properties import TABLE_PROPERTIES, check_table_properties
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import check_properties
from dolmen.predicate import Parameters, Predicate, Where, with_parameters
from dolmen.rows.scan.plan import View
from dolmen.rows.write.row_digest import RowDigest, content_digest
from dolmen.transactions import row_statements
from dolmen.transactions.erase import erase_rows
from dolmen.transactions.insertion import insert_rows, primary_key
from dolmen.transactions.merge.clauses import Clauses, WhenMatched, WhenNotMatched, WhenNotMatchedBySource
from dolmen.transactions.merge.merge import check_once, is_upsert, merge_rows
from dolmen.transactions.merge.merge_source import SourceRows
from dolmen.transactions.merge.update import NewValues, update_rows
from dolmen.transactions.reading import KeyedTable
from dolmen.transactions.restore_and_clone import Moment, restore_table
from dolmen.transactions.unit_of_work import UnitOfWork, leaves_out_erased


class TransactionTable(KeyedTable):
    """A table inside a transaction: reads see the statements so far, and writes add statements."""

    def __init__(self, unit: UnitOfWork, name: str) -> None:
        super().__init__(unit.context, name)
        self._unit = unit

    def __reduce__(self) -> tuple[Any, ...]:
        raise InputError("a transaction belongs to one process: hand over db.at(version).table(name), or rows")

    def _snapshot(self) -> Manifest:
        return self._unit.manifest

    def _view(self) -> View:
        return View(self._context, self._snapshot(), self.name, self._read_upload)

    def _read_upload(self, key: str, offset: int, length: int) -> bytes | None:
        """A range of an object that the transaction has not uploaded yet; None for other objects."""
        return self._unit.uploads.read(key, offset, length)

    def _note_read(self, predicate: Predicate | None) -> None:
        self._unit.claim(self.name, predicate)

    def append(
        self, data: Any, *, cast: bool = False, request: str | None = None, leave_out_erased: bool | None = None
    ) -> None:
        """See ``Table.append``."""
        data = self._cast(data, cast)

        def make_statement(entry: TableEntry, digest: RowDigest | None) -> Statement | None:
            intent, uploads = self._unit.intent, self._unit.uploads
            erased = self._unit.erased_filter(entry, leave_out_erased)
            made = row_statements.append(
                self._context, self.name, entry, data, request, intent, digest, uploads, erased
            )
            return made if made.files else None

        self._write("append", data, request, make_statement, leave_out=leave_out_erased)

    def insert(
        self, data: Any, *, cast: bool = False, request: str | None = None, leave_out_erased: bool | None = None
    ) -> None:
        """See ``Table.insert``. The keys are compared with those of rows that this transaction sees, too."""
        data = self._cast(data, cast)
        primary_key(self.name, self._unit.entry(self.name))

        def make_statement(entry: TableEntry, digest: RowDigest | None) -> Statement | None:
            erased = self._unit.erased_filter(entry, leave_out_erased)
            return insert_rows(self._unit, self.name, entry, data, request, digest, erased)

        self._write("insert", data, request, make_statement, leave_out=leave_out_erased)

    def upsert(
        self,
        data: Any,
        on: str | Sequence[str] | None = None,
        *,
        cast: bool = False,
        request: str | None = None,
        leave_out_erased: bool | None = None,
    ) -> None:
        """See ``Table.upsert``."""
        data = self._cast(data, cast)
        uploads, intent = self._unit.uploads, self._unit.intent
        names = [field.name for field in row_statements.key_fields(self._unit.entry(self.name), on)]

        def make_statement(entry: TableEntry, digest: RowDigest | None) -> Statement | None:
            erased = self._unit.erased_filter(entry, leave_out_erased)
            made = row_statements.upsert(
                self._context, uploads, self.name, entry, data, names, request, intent, digest, erased
            )
            return made if made.files else None

        self._write("upsert", data, request, make_statement, sorted(names), leave_out=leave_out_erased)

    def replace(self, data: Any, keys: Any, *, request: str | None = None) -> None:
        """Adds rows and deletes older ones with ``keys``, in one statement: an upsert with given keys.

        Args:
            keys: values of the primary key, tuples for several columns, or Arrow data with columns of their names.

        Examples:
            >>> with db.transaction() as tx:
            ...     tx.table("people").replace([{"id": 4, "name": "Dan", "age": 61}], keys=[1, 2])
            >>> people.count()
            2
        """
        uploads, intent, own = self._unit.uploads, self._unit.intent, self._unit.entry(self.name)
        taken = row_statements.take_keys(own, keys)

        def make_statement(entry: TableEntry, digest: RowDigest | None) -> Statement | None:
            erased = self._unit.erased_filter(entry, False)  # the keys are given, so no row can be left out
            made = row_statements.replace(
                self._context, uploads, self.name, entry, data, taken, request, intent, digest, erased
            )
            return made if made.files or made.tombstones else None

        also = partial(row_statements.keys_content, own, taken)
        self._write("replace", data, request, make_statement, also, leave_out=False)

    def overwrite(
        self,
        data: Any,
        *,
        force: bool = False,
        cast: bool = False,
        request: str | None = None,
        leave_out_erased: bool | None = None,
    ) -> None:
        """See ``Table.overwrite``."""
        arguments.flag("force", force)
        data = self._cast(data, cast)
        unit = self._unit

        def make_statement(entry: TableEntry, digest: RowDigest | None) -> Statement:
            known = unit.base.name_of(entry.uuid)
            intent = unit.intent
            erased = self._unit.erased_filter(entry, leave_out_erased)
            files = row_statements.append(
                self._context, self.name, entry, data, request, intent, digest, None, erased
            ).files
            epoch, base_ts = unit.base.tables[known].epoch if known else 0, unit.base.commit_ts
            return Overwrite(self.name, entry.uuid, epoch, base_ts, files, force, request, entry.schema)

        self._write("overwrite", data, request, make_statement, leave_out=leave_out_erased)

    def _cast(self, data: Any, cast: bool) -> Any:
        arguments.flag("cast", cast)
        return row_statements.cast_rows(self._unit.entry(self.name), data) if cast else data

    def _write(
        self,
        operation: str,
        data: Any,
        request: str | None,
        make_statement: Callable[[TableEntry, RowDigest | None], Statement | None],
        also: Any = None,
        *,
        leave_out: bool | None,
    ) -> None:
        """Adds a statement that writes rows. If its request was applied before, rows are only compared by digest.

        Args:
            make_statement: makes the statement, or None if there is nothing to do; updates the digest with the rows.
            also: further content of the request beside its rows, or a function that returns it.
            leave_out: whether erased rows are left out; None = as the table's setting says.
        """
        if leave_out is not None:
            arguments.flag("leave_out_erased", leave_out)
        unit = self._unit
        entry, seen_ts = unit.entry(self.name), unit.base.commit_ts
        applied = unit.has_applied(request)
        digest = RowDigest(entry.schema.arrow) if unit.needs_content(request) else None
        if not applied:
            unit.begin_upload()
            if (statement := make_statement(entry, digest)) is not None:
                if leaves_out_erased(entry, leave_out):
                    unit.add(ExpectErasures(self.name, entry.uuid, seen_ts, None, request))
                unit.add(statement)
        elif digest:
            for _ in row_statements.rows_of(entry, data, digest):
                pass
        if request is not None and digest:
            beside = also() if callable(also) else also
            unit.add_content(request, content_digest(operation, self.name, beside, digest.hexdigest()))

    def add_column(
        self,
        name: str,
        type: pa.DataType,
        default: Any = None,
        *,
        nullable: bool = True,
        comment: str = "",
        request: str | None = None,
    ) -> None:
        """See ``Table.add_column``."""
        name, comment = arguments.text("name", name), arguments.text("comment", comment)
        arguments.flag("nullable", nullable)
        _arrow_type(type)
        self._alter(AddColumn(name, type, nullable, row_statements.default_json(name, type, default), comment), request)

    def drop_column(self, name: str, *, request: str | None = None) -> None:
        """See ``Table.drop_column``."""
        self._alter(DropColumn(arguments.text("name", name)), request)

    def rename_column(self, old: str, new: str, *, request: str | None = None) -> None:
        """See ``Table.rename_column``."""
        self._alter(RenameColumn(arguments.text("old", old), arguments.text("new", new)), request)

    def make_nullable(self, name: str, *, request: str | None = None) -> None:
        """See ``Table.make_nullable``."""
        self._alter(MakeNullable(arguments.text("name", name)), request)

    def widen_column(self, name: str, type: pa.DataType, *, request: str | None = None) -> None:
        """See ``Table.widen_column``."""
        self._alter(WidenColumn(arguments.text("name", name), _arrow_type(type)), request)

    def set_default(self, name: str, default: Any, *, request: str | None = None) -> None:
        """See ``Table.set_default``."""
        schema = self._unit.entry(self.name).schema
        json = row_statements.default_json(name, schema.field(arguments.text("name", name)).arrow_type, default)
        self._alter(SetDefault(name, json), request)

    def reorder(self, columns: Sequence[str], *, request: str | None = None) -> None:
        """See ``Table.reorder``."""
        self._alter(Reorder(tuple(arguments.names("columns", columns))), request)

    def comment(self, name: str, comment: str, *, request: str | None = None) -> None:
        """See ``Table.comment``."""
        self._alter(SetComment(arguments.text("name", name), arguments.text("comment", comment)), request)

    def set_sort_key(self, columns: str | Sequence[str] | None, *, request: str | None = None) -> None:
        """See ``Table.set_sort_key``."""
        names = [] if columns is None else arguments.names("columns", columns)
        self._alter(SetSortKey(tuple(names)), request)

    def _alter(self, change: SchemaChange, request: str | None) -> None:
        unit = self._unit
        entry, asked = unit.entry(self.name), unit.needs_content(request)
        if not unit.has_applied(request):
            known, sort_key = entry.schema, entry.sort_key
            unit.add(AlterTable(self.name, entry.uuid, known, sort_key, (change,), request))
        if request is not None and asked:
            unit.add_content(request, content_digest("alter", self.name, repr(change)))

    def restore(
        self,
        version: int | None = None,
        *,
        timestamp: datetime | int | str | None = None,
        tag: str | None = None,
        settled: bool = True,
        request: str | None = None,
    ) -> None:
        """See ``Table.restore``."""
        restore_table(self._unit, self.name, Moment(version, timestamp, tag, settled), request)

    def set(self, *, request: str | None = None, **changes: Any) -> None:
        """See ``Table.set``."""
        unit = self._unit
        entry, asked = unit.entry(self.name), unit.needs_content(request)
        if unit.has_applied(request):  # settings that were changed since may contradict it
            checked = check_properties(changes, TABLE_PROPERTIES, "a table")
        else:
            checked = check_table_properties(changes, entry.schema, entry.primary_key, entry.properties)
            if checked:
                unit.add(SetProperties(self.name, entry.uuid, checked, request, seen=entry))
        if request is not None and asked:
            unit.add_content(request, content_digest("set", self.name, checked))

    def delete(
        self,
        where: Where = None,
        *,
        parameters: Parameters | None = None,
        keys: Any = None,
        on: Sequence[str] | None = None,
        mode: row_statements.Mode = "tombstone",
        request: str | None = None,
    ) -> None:
        """See ``Table.delete``."""
        unit = self._unit
        entry = unit.entry(self.name)
        where = with_parameters(where, parameters)
        if (keys is None) == (where is None):
            raise InputError("delete takes either a predicate or keys=...")
        arguments.one_of("mode", mode, get_args(row_statements.Mode))
        if on is not None and keys is None:
            raise InputError("on=... is for keys: a predicate names its own columns")
        if mode == "positions" and keys is not None:
            raise InputError('mode="positions" takes a predicate, not keys')
        taken = None if keys is None else row_statements.take_keys(entry, keys, on)
        asked = unit.needs_content(request)
        if not unit.has_applied(request):
            statement = self._delete(entry, where, taken, mode, request)
            if statement is not None and getattr(statement, "tombstones", True):
                unit.add(statement)
        if request is not None and asked:
            said = (
                row_statements.where_content(entry, where)
                if taken is None
                else row_statements.keys_content(entry, taken)
            )
            content = content_digest("delete", self.name, *said)
            before = unit.find_applied([request]).get(request)
            if before and is_raw_digest(before.digest, {"table": self.name, "where": where, "keys": keys, "on": on}):
                content = before.digest
            unit.add_content(request, content)

    def erase(
        self,
        where: Where = None,
        *,
        parameters: Parameters | None = None,
        keys: Any = None,
        on: Sequence[str] | None = None,
        within: str | None = None,
        request: str | None = None,
    ) -> str:
        """See ``Table.erase``. Returns the id of the erasure."""
        where = with_parameters(where, parameters)
        if (keys is None) == (where is None):
            raise InputError("erase takes either a predicate or keys=...")
        if on is not None and keys is None:
            raise InputError("on=... is for keys: a predicate names its own columns")
        taken = None if keys is None else row_statements.take_keys(self._unit.entry(self.name), keys, on)
        return erase_rows(self._unit, self.name, where, taken, request, within)

    def update(
        self, set: NewValues, where: Where = None, *, parameters: Parameters | None = None, request: str | None = None
    ) -> None:
        """See ``Table.update``."""
        update_rows(self._unit, self.name, set, with_parameters(where, parameters), request)

    def merge(
        self,
        source: Any,
        on: str | Sequence[str],
        when_matched: WhenMatched = "update",
        when_not_matched: WhenNotMatched = "insert",
        when_not_matched_by_source: WhenNotMatchedBySource = None,
        *,
        request: str | None = None,
    ) -> None:
        """See ``Table.merge``."""
        entry = self._unit.entry(self.name)
        rows = SourceRows.of(source, entry.schema)
        clauses = Clauses.of(when_matched, when_not_matched, when_not_matched_by_source)
        if is_upsert(entry, rows, on, clauses):
            check_once(entry, rows, on)
            self.upsert(rows.rows, on, request=request)
        elif clauses.is_delete:
            keys = rows.keys(row_statements.key_fields(entry, on)).drop_null()
            self.delete(keys=keys, on=keys.column_names, request=request)
        else:
            merge_rows(self._unit, self.name, rows, on, clauses, request)

    def _delete(
        self, entry: TableEntry, where: Where, keys: Keys | None, mode: row_statements.Mode, request: str | None
    ) -> Statement | None:
        unit, context = self._unit, self._context
        if keys is not None:
            return row_statements.delete_keys(unit.uploads, self.name, entry, keys, request)
        if mode == "tombstone":
            return row_statements.delete_where(context, unit.uploads, self.name, entry, where, request)
        unit.pin()
        tables = unit.base.tables.values()
        epoch = next((each.epoch for each in tables if each.uuid == entry.uuid), 0)
        statement = row_statements.delete_positions(
            context, unit.uploads, unit.manifest, self.name, where, request, epoch=epoch
        )
        if statement is None and unit.changes(entry.uuid):
            # Earlier statements may be why it found nothing, and a rebase may remove them (Change.without).
            return DeletePositions.of(self.name, entry.uuid, {}, request)
        return statement


def _arrow_type(type: pa.DataType) -> pa.DataType:
    if not isinstance(type, pa.DataType):
        raise InputError(f"type={arguments.short_repr(type)} is no pyarrow type: give one, as in pa.int64()")
    return type
