"""Transactions: statements over any tables, which see each other, and are committed as one version or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar, Unpack, get_args

from dolmen.base import arguments
from dolmen.base.late_imports import higher_function
from dolmen.base.runtime import TRANSACTION, RetryPolicy, attempts
from dolmen.commit.change import NO_NOTE, About, Metadata, Note, with_full_signatures
from dolmen.commit.head import Context
from dolmen.commit.statements.background import SetProperties
from dolmen.commit.statements.catalog import CreateTable, DropTable, RenameTable
from dolmen.errors import ConflictError, Error, InputError, TableExistsError, VersionExpiredError, short_repr
from dolmen.format.column_terms import parse_sort_key, sort_texts
from dolmen.format.ingest_properties import check_table_properties
from dolmen.format.layout import check_table_name
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import check_database_properties, check_one_order
from dolmen.format.schema import Schema
from dolmen.rows.write.data_file import check_storable
from dolmen.transactions.column_types import columns_and_rows
from dolmen.transactions.erase import Subject, forget_subjects
from dolmen.transactions.keys import check_key
from dolmen.transactions.row_statements import TableChange
from dolmen.transactions.schema_verbs import CommitT
from dolmen.transactions.snapshot import Moment, clone_table
from dolmen.transactions.transaction_table import (
    ErasedT,
    TransactionTable,
    drop_table,
    entry_unless_applied,
    read_request,
)
from dolmen.transactions.unit_of_work import Commit, UnitOfWork

if TYPE_CHECKING:
    from dolmen.rows.scan.engines.sql import Parameters, SqlResult

T = TypeVar("T")
TableT = TypeVar("TableT")
RenamedT = TypeVar("RenamedT")


Exist: TypeAlias = Literal["error", "ok", "replace"]


@with_full_signatures
class CatalogVerbs(Generic[CommitT, ErasedT, TableT, RenamedT]):
    """The verbs that change the set of tables, for a database and for a transaction.

    ``request``, ``message`` and ``metadata`` are the same in all calls: see ``Table.append``.
    """

    def _apply(
        self, operation: str, statement: Callable[[UnitOfWork], None], about: About, *, needs_newest: bool = False
    ) -> CommitT:
        """Runs one statement: on the newest version if ``needs_newest``, otherwise on the newest cached one."""
        raise NotImplementedError

    def _erasure_result(self, id_: str, done: CommitT) -> ErasedT:
        """The result of an erasure with this id."""
        raise NotImplementedError

    def _handle(self, name: str) -> TableT:
        """The table that a statement has made."""
        raise NotImplementedError

    def _rename_result(self, name: str, done: CommitT) -> RenamedT:
        """The result of a renaming."""
        raise NotImplementedError

    def create_table(
        self,
        name: str,
        schema: Any,
        primary_key: str | Sequence[str] | None = None,
        sort_key: str | Sequence[str] | None = None,
        properties: Mapping[str, Any] | None = None,
        *,
        partition_by: str | Sequence[str] | None = None,
        cluster_by: str | Sequence[str] | None = None,
        exist: Exist = "error",
        **about: Unpack[About],
    ) -> TableT:
        """Creates a table, with rows if it is given some, in one commit.

        Args:
            name: 1 to 64 characters of ``a-z``, ``0-9`` and ``_``.
            schema: columns and types: a schema of pyarrow, Polars or Spark, the ``dtypes`` of a pandas frame, text such
                as ``"id BIGINT NOT NULL, day DATE"``, or types or such texts by name. Or rows, as for ``Table.append``,
                which are added. Dictionaries are stored as their values, times in microseconds.
            primary_key: the key columns of ``upsert`` and ``delete(keys=...)``; ``append`` does not enforce them.
            sort_key: the columns that rows in a file are sorted by: best the columns that most filters use.
            properties: settings (see ``Table.set``).
            partition_by: columns, or transforms of them, of which each data file has one value:
                ``"day(event_time), tenant"`` (see docs/partitions.md).
            cluster_by: up to four columns by whose z-order compaction sorts rows, instead of a sort key.
            exist: for a table that exists: "error"; "ok" to change nothing; "replace" to drop it.
            request, message, metadata: as for ``Table.append``. A table that was created under this id, and was dropped
                or renamed since, is not created again.

        Raises:
            TableExistsError: the name is taken.
            SchemaError: a type cannot be stored, or a column cannot be part of a key.
            InputError: a setting is unknown, or its value is not allowed.
            AppliedIdError: the id was used for something else.

        Examples:
            >>> events = db.create_table("events", pa.schema({"day": pa.date32()}), sort_key="day")
            >>> events.count()
            0
            >>> db.create_table("days", "day DATE NOT NULL, total DECIMAL(10, 2)", exist="ok").columns
            ['day', 'total']
            >>> db.create_table("numbers", {"n": [1, 2, 3]}).count()
            3
        """
        request = about.get("request")
        check_table_name(name)
        arguments.one_of("exist", exist, get_args(Exist))
        columns, rows = columns_and_rows(schema)
        settings = properties
        if properties is None or isinstance(properties, Mapping):
            layout = {"partition_by": partition_by, "cluster_by": cluster_by}
            terms = {k: v if isinstance(v, str) else list(v) for k, v in layout.items() if v is not None}
            settings = {**(properties or {}), **terms}

        def statement(unit: UnitOfWork) -> None:
            if name in unit.base.tables:
                unit.refresh_once()  # it may have been dropped meanwhile
            entry = new_entry(unit, Schema.from_arrow(columns), primary_key, sort_key, settings)
            if not unit.has_applied(request):
                if exist != "error":
                    unit.depend_on_names(name)
                if name in unit.tables and exist == "ok":
                    return
                if name in unit.tables and exist == "replace":
                    unit.add(DropTable(name, unit.entry(name).uuid, request))
                unit.add(CreateTable(name, entry, request))
            keys = [entry.schema.names_of(entry.primary_key), sort_texts(entry.sort_key, entry.schema)]
            unit.add_content(request, "create_table", name, str(entry.schema.arrow), *keys, entry.properties)
            if rows is not None:
                TableChange(unit, name, request, entry).append(rows, False, None)

        try:
            self._apply("create_table", statement, about, needs_newest=exist != "error")
        except (ConflictError, TableExistsError):
            if exist != "ok":  # else somebody has just created it
                raise
        return self._handle(name)

    def drop_table(self, name: str, **about: Unpack[About]) -> CommitT:
        """Drops a table. Older versions still read it until they expire.

        Args:
            request: as for ``Table.append``. A retry does not drop a new table of this name.

        Raises:
            TableNotFoundError: there is no such table, and none was dropped under this id.
            AppliedIdError: another table was dropped under this id, or the id was used for something else.

        Examples:
            >>> db.drop_table("people").operation
            'drop_table'
        """
        request = about.get("request")

        def statement(unit: UnitOfWork) -> None:
            drop_table(unit, name, request)

        return self._apply("drop_table", statement, about)

    def rename_table(self, old: str, new: str, **about: Unpack[About]) -> RenamedT:
        """Renames a table. Its rows, settings and history stay; older versions show it under its old name.

        The memory of a table of changes (``<old>__deleted``) is renamed with it. Handles,
        declarations, delete requests and dropped files that have the old name no longer find the table.

        Args:
            new: the new name; see ``create_table``.
            request: as for ``Table.append``. A retry does not rename a new table with the old name.

        Raises:
            TableNotFoundError: there is no table ``old``, and none was renamed under this id.
            AppliedIdError: the id was used for something else.
            TableExistsError: the new name, or that of the memory, is taken.
            InputError: the new name is the old one.
            InvalidNameError: the new name is not allowed, or leaves no room for the memory's name.

        Examples:
            >>> commit = db.rename_table("people", "users")
            >>> db.tables()
            ['users']
        """
        request = about.get("request")
        check_table_name(new)
        if old == new:
            raise InputError(f"table {old!r} has this name already: give another one")

        def statement(unit: UnitOfWork) -> None:
            if new in unit.base.tables:
                unit.refresh_once()  # it may have been dropped meanwhile
            if (entry := entry_unless_applied(unit, old, request)) is not None:
                unit.add(RenameTable(old, entry.uuid, new, request))
            unit.add_content(request, "rename_table", old, new)

        return self._rename_result(new, self._apply("rename_table", statement, about))

    def clone(
        self,
        source: str,
        name: str,
        version: int | None = None,
        *,
        timestamp: datetime | int | str | None = None,
        tag: str | None = None,
        **about: Unpack[About],
    ) -> TableT:
        """Makes a copy of a table, in one commit that copies no data: both tables have the same files from then on.

        Later changes of one of them do not show in the other. Files are deleted when neither needs them.

        Args:
            source: the table, under its name in that version.
            name: the new table's name; see ``create_table``.
            version, timestamp, tag: the committed version of the source, the newest by default. It may have been
                dropped since.

        Raises:
            TableNotFoundError: that version has no table ``source``.
            TableExistsError: the name is taken.
            VersionNotFoundError, VersionExpiredError, TagNotFoundError: the version does not exist, or has expired.

        Examples:
            >>> db.clone("people", "people_copy").count()
            3
        """
        request = about.get("request")
        moment = Moment(version, timestamp, tag)
        statement = partial(clone_table, source=source, name=name, moment=moment, request=request)
        self._apply("clone", statement, about, needs_newest=True)
        return self._handle(name)

    def forget(
        self,
        subject: Subject | Iterable[Subject],
        *,
        dropped: bool = False,
        within: str | None = None,
        **about: Unpack[About],
    ) -> ErasedT:
        """Erases all rows about a subject, in every table with the property ``subject``, in ONE commit.

        Older versions, clones, and tables that were dropped since no longer show them, either. See ``Table.erase``.

        Args:
            subject: the value of that column, a whole number or a text; or a list of up to 1,000 values. Where tables
                have it in different types, give it in each of them: ``[42, "42"]``. Columns of UUIDs, dates and times
                are named by texts, as in predicates.
            dropped: accept a value that fits the type of no present table's subject, because the rows about it were in
                tables that have been dropped.
            within: as for ``Table.erase``.
            request: as for ``Table.append``. The same request has the same erasure.

        Raises:
            InputError: no value has the type of a table's subject, or a value fits no table's subject and
                ``dropped`` is False.

        Examples:
            >>> commit = people.set(subject="id")
            >>> erased = db.forget(2)
            >>> people.count()
            2
        """
        request = about.get("request")
        ids: list[str] = []

        def statement(unit: UnitOfWork) -> None:
            ids.append(forget_subjects(unit, subject, dropped, within, request))

        done = self._apply("forget", statement, about)
        return self._erasure_result(ids[-1], done)

    def set(
        self,
        *,
        request: str | None = None,
        message: str | None = None,
        metadata: Metadata | None = None,
        **changes: Any,
    ) -> CommitT:
        """Changes settings of this database, in one commit: ``set(retention="7d")``.

        Args:
            changes: values by name (``settings`` lists them); None unsets a setting, so that its default holds.
            request: as for ``Table.append``. A retry does not undo later changes of these settings.

        Raises:
            InputError: a setting is unknown, or its value is not allowed.
            AppliedIdError: other settings were changed under this id, or the id was used for something else.

        Examples:
            >>> db.set(retention="14d").operation
            'set'
        """

        def statement(unit: UnitOfWork) -> None:
            checked = check_database_properties(changes)
            if checked and not unit.has_applied(request):
                unit.add(SetProperties(None, "", checked, request))
            unit.add_content(request, "set", None, checked)

        return self._apply("set", statement, About(request=request, message=message, metadata=metadata))


class Transaction(CatalogVerbs[None, str, TransactionTable, TransactionTable]):
    """Collects statements on one snapshot; ``commit`` makes them one version.

    Use it through ``Database.transaction`` and ``Database.run``. Reads see the snapshot and the statements so far. What
    they read must not have changed at the commit, or it raises ConflictError. Without reads nothing conflicts. The end
    of a ``with`` block commits; then ``result`` is the commit.
    """

    def __init__(self, unit: UnitOfWork) -> None:
        self._unit = unit
        self._result: Commit | None = None

    def table(self, name: str) -> TransactionTable:
        """A table as this transaction sees it. Raises TableNotFoundError.

        Examples:
            >>> with db.transaction() as tx:
            ...     tx.table("people").delete("age < 30")
            ...     tx.table("people").count()
            2
        """
        self._unit.look_up(name)
        return TransactionTable(self._unit, name)

    def _apply(self, operation: str, statement: Callable[[UnitOfWork], None], about: About, **how: Any) -> None:
        read_request(about)
        self._unit.operations.append(operation)
        with self._unit.savepoint():  # a call may add several statements: all of them, or none
            statement(self._unit)

    def _erasure_result(self, id_: str, done: None) -> str:
        return id_

    def _handle(self, name: str) -> TransactionTable:
        return TransactionTable(self._unit, name)

    def _rename_result(self, name: str, done: None) -> TransactionTable:
        return TransactionTable(self._unit, name)

    def tables(self) -> list[str]:
        """Names of the tables as this transaction sees them, sorted. They must still hold at the commit.

        Examples:
            >>> db.transaction().tables()
            ['people']
        """
        self._unit.depend_on_names()
        return sorted(self._unit.tables)

    def sql(self, query: str, parameters: Parameters = None, *, request: str | None = None) -> SqlResult | Any:
        """Runs a query over the tables as this transaction sees them, or adds statements and returns None.

        See ``Database.sql``.

        Examples:
            >>> with db.transaction() as tx:
            ...     tx.sql("DELETE FROM people WHERE age < 30")
            ...     tx.sql("SELECT count(*) FROM people").fetchall()
            [(2,)]
        """
        run = higher_function("run_on_transaction")
        result: SqlResult | None = run(self._unit.context, self, query, parameters, request)
        return result

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
        """True if the snapshot contains this request, so that its statements need not be added again.

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


def replay(
    context: Context,
    function: Callable[[Transaction], T],
    operation: str = "transaction",
    *,
    note: Note = NO_NOTE,
    policy: RetryPolicy = TRANSACTION,
    also: tuple[type[Error], ...] = (),
) -> tuple[T, Commit]:
    """Runs ``function`` in transactions on ever newer versions until one commits. Returns its result and the commit.

    Errors ``also`` count as conflicts if the commit raises them.
    """
    conflicts: tuple[type[Error], ...] = (ConflictError, *also)
    conflict: Error
    for _ in attempts(context.runtime, policy):
        transaction = Transaction(UnitOfWork(context, operation, note=note, newest=True))
        try:
            value = function(transaction)
        except VersionExpiredError as error:
            if unit_of(transaction).base.version >= context.head.refresh().manifest.horizon:
                raise  # another version has expired, which the function chose to read
            conflict = error
            continue
        try:
            return value, transaction.commit()
        except conflicts as error:
            conflict = error
    raise conflict


def new_entry(
    unit: UnitOfWork,
    schema: Schema,
    primary_key: str | Sequence[str] | None,
    sort_key: str | Sequence[str] | None,
    properties: Mapping[str, Any] | None,
) -> TableEntry:
    """The entry of a new table. See ``CatalogVerbs.create_table``."""
    if properties is not None and not isinstance(properties, Mapping):
        raise InputError(f"properties={short_repr(properties)} is not a mapping of names to values")
    key = check_key(tuple(map(schema.field, key_names(primary_key))))
    key_ids = tuple(field.id for field in key)
    checked = check_table_properties(properties or {}, schema, key_ids)
    order = parse_sort_key(key_names(sort_key), schema)
    check_one_order(order, checked)
    entry = TableEntry(
        uuid=unit.context.runtime.uuid(),
        epoch=0,
        schema=schema,
        primary_key=key_ids,
        sort_key=order,
        properties={name: value for name, value in checked.items() if value is not None},
    )
    check_storable(entry)
    return entry


def key_names(columns: str | Sequence[str] | None) -> list[str]:
    """The names of a key's columns as callers give them."""
    return [] if columns is None else arguments.names("key", columns)
