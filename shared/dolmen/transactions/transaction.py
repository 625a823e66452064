"""Transactions: statements over any tables, which see each other, and are committed as one version or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dolmen.base import arguments
from dolmen.commit.statements.background import SetProperties
from dolmen.commit.statements.catalog import CreateTable, DropTable, RenameTable
from dolmen.errors import InputError, SchemaError, TableNotFoundError
from dolmen.format.layout import check_table_name
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import check_database_properties, check_table_properties
from dolmen.format.schema import Schema
from dolmen.rows.write.conform import check_storable
from dolmen.rows.write.row_digest import content_digest
from dolmen.transactions import row_statements
from dolmen.transactions.erase import Subject, forget_subjects
from dolmen.transactions.restore_and_clone import Moment, clone_table
from dolmen.transactions.transaction_table import TransactionTable
from dolmen.transactions.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from dolmen.rows.scan.engines.sql import Parameters, SqlResult


class Transaction(UnitOfWork):
    """Collects statements on one snapshot; ``commit`` makes them one version.

    Use it through ``Database.transaction`` and ``Database.run``. Reads see the snapshot and the statements so far. They
    must still hold at the commit, or it raises ConflictError. Statements that read nothing never conflict.
    """

    def table(self, name: str) -> TransactionTable:
        """A table as this transaction sees it. Raises TableNotFoundError."""
        try:
            self.note_table(self.entry(name))
        except TableNotFoundError:
            self.claim_names(name)
            raise
        return TransactionTable(self, name)

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        primary_key: str | Sequence[str] | None = None,
        sort_key: str | Sequence[str] | None = None,
        properties: Mapping[str, Any] | None = None,
        *,
        request: str | None = None,
    ) -> TransactionTable:
        """See ``Database.create_table``."""
        check_table_name(name)
        if not isinstance(schema, pa.Schema):
            raise SchemaError(
                f"schema={arguments.short_repr(schema)} is a {type(schema).__name__}: give a pyarrow schema, as in "
                "pa.schema({'id': pa.int64(), 'name': pa.string()})"
            )
        if properties is not None and not isinstance(properties, Mapping):
            raise InputError(f"properties={arguments.short_repr(properties)} is no mapping of names to values")
        asked, applied = self.needs_content(request), self.has_applied(request)
        stored = Schema.from_arrow(schema)
        key = row_statements.check_key(tuple(stored.field(column) for column in _names(primary_key)))
        order = tuple(stored.field(column) for column in _names(sort_key))
        entry = TableEntry(
            uuid=self.context.runtime.uuid(),
            epoch=0,
            schema=stored,
            primary_key=tuple(field.id for field in key),
            sort_key=tuple(field.id for field in row_statements.check_sortable(order)),
            properties={
                name: value
                for name, value in check_table_properties(properties or {}, stored, [field.id for field in key]).items()
                if value is not None
            },
        )
        check_storable(entry)
        if not applied:
            self.add(CreateTable(name, entry, request))
        if request is not None and asked:
            keys = [[field.name for field in each] for each in (key, order)]
            self.add_content(request, content_digest("create_table", name, str(stored.arrow), *keys, entry.properties))
        return TransactionTable(self, name)

    def drop_table(self, name: str, *, request: str | None = None) -> None:
        """See ``Database.drop_table``."""
        asked = self.needs_content(request)
        if (entry := self._entry_unless_applied(name, request)) is not None:
            self.add(DropTable(name, entry.uuid, request))
        if request is not None and asked:
            self.add_content(request, content_digest("drop_table", name))

    def rename_table(self, old: str, new: str, *, request: str | None = None) -> TransactionTable:
        """See ``Database.rename_table``. Later statements find the table only under its new name."""
        check_table_name(new)
        if old == new:
            raise InputError(f"table {old!r} has this name already: give another one")
        asked = self.needs_content(request)
        if (entry := self._entry_unless_applied(old, request)) is not None:
            self.add(RenameTable(old, entry.uuid, new, request))
        if request is not None and asked:
            self.add_content(request, content_digest("rename_table", old, new))
        return TransactionTable(self, new)

    def clone(
        self,
        source: str,
        name: str,
        version: int | None = None,
        *,
        timestamp: datetime | int | str | None = None,
        tag: str | None = None,
        request: str | None = None,
    ) -> TransactionTable:
        """See ``Database.clone``. The source is the committed one, without statements of this transaction."""
        clone_table(self, source, name, Moment(version, timestamp, tag), request)
        return TransactionTable(self, name)

    def forget(
        self,
        subject: Subject | Iterable[Subject],
        *,
        dropped: bool = False,
        within: str | None = None,
        request: str | None = None,
    ) -> str:
        """See ``Database.forget``. Returns the id of the erasure."""
        return forget_subjects(self, subject, request, dropped=dropped, within=within)

    def set(self, *, request: str | None = None, **changes: Any) -> None:
        """See ``Database.set``."""
        asked, checked = self.needs_content(request), check_database_properties(changes)
        if checked and not self.has_applied(request):
            self.add(SetProperties(None, "", checked, request))
        if request is not None and asked:
            self.add_content(request, content_digest("set", None, checked))

    def _entry_unless_applied(self, name: str, request: str | None) -> TableEntry | None:
        """The entry of a table that this request drops or renames; None if the request was applied before."""
        arguments.text("table", name)
        if self.has_applied(request):
            return None
        try:
            return self.entry(name)
        except TableNotFoundError:  # on a newer version, which may have applied it
            if self.has_applied(request):
                return None
            raise

    def tables(self) -> list[str]:
        """Names of the tables as this transaction sees them, sorted. They must still hold at the commit."""
        self.claim_names()
        return sorted(self.manifest.tables)

    def sql(self, query: str, parameters: Parameters = None) -> SqlResult:
        """Runs a query over the tables as this transaction sees them. See ``Database.sql``."""
        from dolmen.rows.scan.engines.sql import lists_tables, run_sql  # imports DuckDB

        if lists_tables(arguments.text("query", query)):
            self.claim_names()
        return run_sql(query, _QueriedTables(self), parameters)


@dataclass(frozen=True)
class _QueriedTables:
    """The tables that a query may name. To look for them among all is no read of all names."""

    transaction: Transaction

    def tables(self) -> list[str]:
        return sorted(self.transaction.manifest.tables)

    def table(self, name: str) -> TransactionTable:
        return self.transaction.table(name)


def _names(columns: str | Sequence[str] | None) -> list[str]:
    return [] if columns is None else arguments.names("key", columns)
