"""Transactions: statements over any tables, which see each other, and are committed as one version or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from dolmen.base import arguments
from dolmen.commit.context import Context
from dolmen.commit.statements.background import SetProperties
from dolmen.commit.statements.catalog import CreateTable, DropTable, RenameTable
from dolmen.errors import InputError, SchemaError, TableNotFoundError
from dolmen.format.ingest_properties import check_table_properties
from dolmen.format.layout import check_table_name
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import check_database_properties
from dolmen.format.schema import Schema
from dolmen.rows.write.data_file import check_storable
from dolmen.rows.write.row_digest import content_digest
from dolmen.transactions import row_statements
from dolmen.transactions.erase import Subject, forget_subjects
from dolmen.transactions.restore_and_clone import Moment, clone_table
from dolmen.transactions.results import Commit
from dolmen.transactions.transaction_table import TransactionTable
from dolmen.transactions.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from dolmen.rows.scan.engines.sql import Parameters, SqlResult


class Transaction:
    """Collects statements on one snapshot; ``commit`` makes them one version.

    Use it through ``Database.transaction`` and ``Database.run``. Reads see the snapshot and the statements so far. They
    must still hold at the commit, or it raises ConflictError. Statements that read nothing never conflict. The end
    of a ``with`` block commits; then ``result`` is the commit.
    """

    def __init__(
        self,
        context: Context,
        operation: str = "transaction",
        *,
        message: str | None = None,
        base: Manifest | None = None,
        newest: bool = False,
    ) -> None:
        self._unit = UnitOfWork(context, operation, message=message, base=base, newest=newest)
        self._result: Commit | None = None

    def table(self, name: str) -> TransactionTable:
        """A table as this transaction sees it. Raises TableNotFoundError.

        Examples:
            >>> with db.transaction() as tx:
            ...     tx.table("people").delete("age < 30")
            ...     tx.table("people").count()
            2
        """
        try:
            self._unit.note_table(self._unit.entry(name))
        except TableNotFoundError:
            self._unit.claim_names(name)
            raise
        return TransactionTable(self._unit, name)

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
        """See ``Database.create_table``.

        Examples:
            >>> with db.transaction() as tx:
            ...     tx.create_table("pets", pa.schema({"name": pa.string()})).append([{"name": "Rex"}])
            >>> db["pets"].count()
            1
        """
        check_table_name(name)
        if not isinstance(schema, pa.Schema):
            raise SchemaError(
                f"schema={arguments.short_repr(schema)} is a {type(schema).__name__}: give a pyarrow schema, as in "
                "pa.schema({'id': pa.int64(), 'name': pa.string()})"
            )
        if properties is not None and not isinstance(properties, Mapping):
            raise InputError(f"properties={arguments.short_repr(properties)} is no mapping of names to values")
        asked, applied = self._unit.needs_content(request), self._unit.has_applied(request)
        stored = Schema.from_arrow(schema)
        key = row_statements.check_key(tuple(stored.field(column) for column in _names(primary_key)))
        order = tuple(stored.field(column) for column in _names(sort_key))
        entry = TableEntry(
            uuid=self._unit.context.runtime.uuid(),
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
            self._unit.add(CreateTable(name, entry, request))
        if request is not None and asked:
            keys = [[field.name for field in each] for each in (key, order)]
            self._unit.add_content(
                request, content_digest("create_table", name, str(stored.arrow), *keys, entry.properties)
            )
        return TransactionTable(self._unit, name)

    def drop_table(self, name: str, *, request: str | None = None) -> None:
        """See ``Database.drop_table``."""
        asked = self._unit.needs_content(request)
        if (entry := self._entry_unless_applied(name, request)) is not None:
            self._unit.add(DropTable(name, entry.uuid, request))
        if request is not None and asked:
            self._unit.add_content(request, content_digest("drop_table", name))

    def rename_table(self, old: str, new: str, *, request: str | None = None) -> TransactionTable:
        """See ``Database.rename_table``. Later statements find the table only under its new name."""
        check_table_name(new)
        if old == new:
            raise InputError(f"table {old!r} has this name already: give another one")
        asked = self._unit.needs_content(request)
        if (entry := self._entry_unless_applied(old, request)) is not None:
            self._unit.add(RenameTable(old, entry.uuid, new, request))
        if request is not None and asked:
            self._unit.add_content(request, content_digest("rename_table", old, new))
        return TransactionTable(self._unit, new)

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
        clone_table(self._unit, source, name, Moment(version, timestamp, tag), request)
        return TransactionTable(self._unit, name)

    def forget(
        self,
        subject: Subject | Iterable[Subject],
        *,
        dropped: bool = False,
        within: str | None = None,
        request: str | None = None,
    ) -> str:
        """See ``Database.forget``. Returns the id of the erasure."""
        return forget_subjects(self._unit, subject, request, dropped=dropped, within=within)

    def set(self, *, request: str | None = None, **changes: Any) -> None:
        """See ``Database.set``."""
        asked, checked = self._unit.needs_content(request), check_database_properties(changes)
        if checked and not self._unit.has_applied(request):
            self._unit.add(SetProperties(None, "", checked, request))
        if request is not None and asked:
            self._unit.add_content(request, content_digest("set", None, checked))

    def _entry_unless_applied(self, name: str, request: str | None) -> TableEntry | None:
        """The entry of a table that this request drops or renames; None if the request was applied before."""
        arguments.text("table", name)
        if self._unit.has_applied(request):
            return None
        try:
            return self._unit.entry(name)
        except TableNotFoundError:  # on a newer version, which may have applied it
            if self._unit.has_applied(request):
                return None
            raise

    def tables(self) -> list[str]:
        """Names of the tables as this transaction sees them, sorted. They must still hold at the commit.

        Examples:
            >>> db.transaction().tables()
            ['people']
        """
        self._unit.claim_names()
        return sorted(self._unit.manifest.tables)

    def sql(self, query: str, parameters: Parameters = None) -> SqlResult:
        """Runs a query over the tables as this transaction sees them. See ``Database.sql``.

        Examples:
            >>> with db.transaction() as tx:
            ...     tx.table("people").delete("age < 30")
            ...     tx.sql("SELECT count(*) FROM people").fetchall()
            [(2,)]
        """
        from dolmen.rows.scan.engines.sql import lists_tables, run_sql  # imports DuckDB

        if lists_tables(arguments.text("query", query)):
            self._unit.claim_names()
        return run_sql(query, _QueriedTables(self), parameters)

    def bind(self, request: str, digest: str) -> None:
        """Makes this transaction apply a request exactly once, by a digest of its content that the caller computes.

        Without it, the statements of a request make up its content: their operations, tables, rows and predicates.

        Args:
            request: the request id; its statements must have it too.
            digest: the digest of its content. Another digest for the same id is refused; "" matches any.

        Raises:
            InputError: the id is invalid, or bound to another digest.

        Examples:
            >>> with db.transaction() as tx:
            ...     tx.bind("order 17", "3 apples")
            ...     tx.table("people").delete("id = 3", request="order 17")
            >>> db.transaction().has_applied("order 17")
            True
        """
        self._unit.bind(request, digest)

    def has_applied(self, request: str | None) -> bool:
        """Whether the snapshot contains this request, so that its statements need not be added again.

        Examples:
            >>> db.transaction().has_applied("order 17")
            False
        """
        return self._unit.has_applied(request)

    def exclude(self, request: str) -> None:
        """Makes ``commit`` raise ConflictError if a version has applied this request: only one of the two may be.

        Both transactions must exclude each other. Then the first to commit is applied.

        Examples:
            >>> commit = people.delete("id = 3", request="delete 3")
            >>> with db.transaction() as tx:
            ...     tx.exclude("delete 3")
            ...     tx.table("people").append([{"id": 4, "name": "Dan", "age": 61}])
            Traceback (most recent call last):
            dolmen.errors.ConflictError: ...
        """
        self._unit.exclude(request)

    def savepoint(self) -> AbstractContextManager[None]:
        """Adds all statements of a ``with`` block or, when it raises, none of them. Its reads count in any case.

        Examples:
            >>> with db.transaction() as tx:
            ...     try:
            ...         with tx.savepoint():
            ...             tx.table("people").delete("TRUE")
            ...             tx.table("people").append([{"id": "not a number"}])
            ...     except dolmen.Error:
            ...         pass
            ...     tx.table("people").count()
            3
        """
        return self._unit.savepoint()

    def commit(self) -> Commit:
        """Makes one version of the statements. Without statements, it costs no request.

        The end of a ``with`` block calls it.

        Raises:
            ConflictError: something that was read has changed: repeat the transaction, as ``Database.run`` does.
            UnknownOutcomeError: the commit may have landed.

        Examples:
            >>> tx = db.transaction()
            >>> tx.table("people").delete("id = 3")
            >>> tx.commit().version
            3
        """
        self._result = self._unit.commit()
        return self._result

    @property
    def result(self) -> Commit | None:
        """The commit that this transaction became; None before, and if it failed.

        Examples:
            >>> with db.transaction() as tx:
            ...     tx.table("people").delete("id = 3")
            >>> tx.result.version
            3
        """
        return self._result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None and not self._unit.has_ended:
            self.commit()
        self._unit.abandon()

    def __reduce__(self) -> tuple[Any, ...]:
        raise InputError("a transaction belongs to one process: send rows to the other, or the arguments of the call")

    def __repr__(self) -> str:
        return f"<Transaction {self._unit}>"


def unit_of(transaction: Transaction) -> UnitOfWork:
    """The unit of work of a transaction, for the parts of dolmen that add statements of their own."""
    return transaction._unit


@dataclass(frozen=True)
class _QueriedTables:
    """The tables that a query may name. To look for them among all is no read of all names."""

    transaction: Transaction

    def tables(self) -> list[str]:
        return sorted(unit_of(self.transaction).manifest.tables)

    def table(self, name: str) -> TransactionTable:
        return self.transaction.table(name)


def _names(columns: str | Sequence[str] | None) -> list[str]:
    return [] if columns is None else arguments.names("key", columns)
