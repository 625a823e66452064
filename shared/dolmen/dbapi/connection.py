"""Connections and cursors. See https://peps.python.org/pep-0249/."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeAlias

import pyarrow as pa

from dolmen.api.database import Database
from dolmen.api.database import open as open_database
from dolmen.base import arguments
from dolmen.dbapi import standard
from dolmen.dbapi.placeholders import ManyRows, with_dollars
from dolmen.dbapi.standard import InterfaceError, ProgrammingError, raising_database_errors
from dolmen.format.manifest import Counts
from dolmen.rows.scan.engines.sql import SqlResult
from dolmen.sql.row_calls import ROWS
from dolmen.sql.text import run_on_transaction
from dolmen.transactions.transaction import Transaction, unit_of

Row: TypeAlias = tuple[Any, ...]
Column: TypeAlias = tuple[str, str, None, None, int | None, int | None, None]
Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]

_ROWS_OF_A_STATEMENT = 100_000  # rows of ``executemany`` that one INSERT adds: they are in memory together
_OF_ROWS = {"append", "insert", "upsert", "update", "merge", "delete", "nothing"}
"""Operations of statements that change rows, or find none to change."""


def connect(url: str, *, autocommit: bool = False, **options: Any) -> SqlConnection:
    """Opens a connection to a database. It sends no request before its first statement.

    Args:
        url: as for ``dolmen.open``.
        autocommit: commit each statement by itself.
        options: as for ``dolmen.open``.

    Raises:
        DatabaseError: the URL or an option is wrong.

    Examples:
        >>> with dolmen.dbapi.connect(db.url) as connection:
        ...     connection.cursor().execute("SELECT name FROM people WHERE age > ?", [40]).fetchall()
        [('Grace',)]
    """
    with raising_database_errors():
        return SqlConnection(open_database(url, **options), autocommit=arguments.flag("autocommit", autocommit))


class SqlConnection:
    """A connection: its statements are one transaction, which ``commit`` commits and ``rollback`` drops.

    A transaction begins with a statement, and reads the version that is the newest then. At the end of a ``with``
    block it is committed, or dropped after an exception.
    """

    Warning = standard.Warning
    Error = standard.Error
    InterfaceError = standard.InterfaceError
    DatabaseError = standard.DatabaseError
    DataError = standard.DataError
    OperationalError = standard.OperationalError
    IntegrityError = standard.IntegrityError
    InternalError = standard.InternalError
    ProgrammingError = standard.ProgrammingError
    NotSupportedError = standard.NotSupportedError

    def __init__(self, database: Database, *, autocommit: bool) -> None:
        self._database: Database | None = database
        self._autocommit = autocommit
        self._transaction: Transaction | None = None

    @property
    def database(self) -> Database:
        """The database, for everything that SQL cannot express. Its methods commit by themselves."""
        if self._database is None:
            raise ProgrammingError("the connection is closed: connect again")
        return self._database

    @property
    def autocommit(self) -> bool:
        """True if each statement is a commit of its own. It can be changed while no change waits for a commit."""
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        with raising_database_errors():
            arguments.flag("autocommit", value)
        if self._transaction is not None and unit_of(self._transaction).operations:
            raise ProgrammingError("changes wait for a commit: call commit() or rollback() before you set autocommit")
        self.rollback()
        self._autocommit = value

    def begin(self) -> Transaction:
        """The open transaction; after a commit, a new one. Use it to add statements through methods."""
        with raising_database_errors():
            if self._transaction is None:
                self._transaction = self.database.transaction()
            return self._transaction

    def cursor(self) -> SqlCursor:
        """Makes a cursor. Several cursors of a connection share its transaction."""
        self.database  # noqa: B018  # raises if the connection is closed
        return SqlCursor(self)

    def execute(self, operation: str, parameters: Parameters | None = None) -> SqlCursor:
        """Runs a statement on a cursor of its own, as connections of sqlite3 and DuckDB do."""
        return self.cursor().execute(operation, parameters)

    def commit(self) -> None:
        """Commits the statements since the last commit as one version. Without changes, it sends no request.

        Raises:
            OperationalError: with ``retryable``, if another commit changed what they read: they are dropped.
        """
        self.database  # noqa: B018  # raises if the connection is closed
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            with raising_database_errors():
                transaction.commit()

    def rollback(self) -> None:
        """Drops the statements since the last commit."""
        self.database  # noqa: B018  # raises if the connection is closed
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            unit_of(transaction).abandon()

    def close(self) -> None:
        """Closes the connection and its cursors, and drops what was not committed."""
        if self._database is not None:
            self.rollback()
            self._database = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.commit()
        elif self._database is not None:
            self.rollback()


class SqlCursor:
    """Runs statements of a connection, one after the other, and reads the rows of the last one.

    Rows are read as they are fetched, in bounded memory. They are the rows that the statement saw, whatever the
    connection does afterwards.
    """

    def __init__(self, connection: SqlConnection) -> None:
        self.connection = connection
        self.arraysize = 1
        self._is_closed = False
        self._clear()

    lastrowid = None  # always None: rows have no ids

    def _clear(self) -> None:
        self.description: list[Column] | None = None
        self.rowcount = -1
        self._result: SqlResult | None = None
        self._rows: Iterator[Row] | None = None

    def _check_open(self) -> Database:
        if self._is_closed:
            raise ProgrammingError("the cursor is closed: make another one")
        return self.connection.database

    def execute(self, operation: str, parameters: Parameters | None = None) -> Self:
        """Runs a statement, or several in one text. Returns the cursor.

        Args:
            operation: SQL as for ``Database.sql``.
            parameters: values for ``?``, in order, or for ``:name`` or ``$name``, by name.
        """
        database = self._check_open()
        self._clear()
        with raising_database_errors():
            if isinstance(parameters, Mapping) and isinstance(operation, str):
                operation = with_dollars(operation, parameters)
            if not self.connection.autocommit:
                self._run(self.connection.begin(), operation, parameters)
                return self
            done = database.sql(operation, parameters)
            commit = done.commit if isinstance(done, SqlResult) else done
            if commit is not None:
                self._count(commit.operation, commit.counts)
            self._show(done if isinstance(done, SqlResult) else None)
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Parameters]) -> Self:
        """Runs a statement with each of several sets of parameters, in one transaction. Returns the cursor.

        An INSERT with one row of VALUES adds all rows together, 100,000 at a time. Other statements run one by one.
        """
        database = self._check_open()
        self._clear()
        with raising_database_errors():
            parameters = iter(seq_of_parameters)
            first = list(islice(parameters, 1))
            if first and isinstance(operation, str) and isinstance(first[0], Mapping):
                operation = with_dollars(operation, first[0])
            many = ManyRows.of(operation) if isinstance(operation, str) else None
            transaction = database.transaction() if self.connection.autocommit else self.connection.begin()
            total, number = 0, 1
            with unit_of(transaction).savepoint():
                while rows := first + list(islice(parameters, _ROWS_OF_A_STATEMENT if many else 1)):
                    if many is None:
                        for row in rows:
                            self._run(transaction, operation, row)
                            total = total + self.rowcount if min(total, self.rowcount) >= 0 else -1
                    else:
                        names = unit_of(transaction).tables
                        table = transaction.table(many.table if many.table in names else many.table.lower())
                        self._run(transaction, many.text, None, many.rows(table.schema, rows, number))
                        total += self.rowcount
                    first, number = [], number + len(rows)
            if self.connection.autocommit:
                transaction.commit()
            self.rowcount = total
        return self

    def _run(self, transaction: Transaction, text: str, parameters: Any, rows: pa.Table | None = None) -> None:
        """Adds statements to a transaction, or runs a query in it."""
        unit = unit_of(transaction)
        old, operations = unit.counts, len(unit.operations)
        result = run_on_transaction(
            unit.context, transaction, text, parameters, None, None if rows is None else {ROWS: rows}
        )
        if unit.operations[operations:]:
            new = unit.counts
            names = Counts.__struct_fields__
            counts = Counts(*(getattr(new, name) - getattr(old, name) for name in names))
            self._count(unit.operations[-1], counts)
        self._show(result)

    def _count(self, operation: str, counts: Counts) -> None:
        if operation in _OF_ROWS and not (counts.tombstones_added and not counts.rows_added):
            self.rowcount = counts.rows_added or counts.rows_deleted

    def _show(self, result: SqlResult | None) -> None:
        self._result, self._rows = result, None
        if result is None:
            self.description = None
            return
        self.description = [
            (name, code, None, None, *_digits(code), None)
            for name, code in zip(result.columns, result.types, strict=True)
        ]

    def _fetch(self) -> Iterator[Row]:
        self._check_open()
        if self._result is None:
            raise ProgrammingError("there are no rows to fetch: execute a query, or a statement with RETURNING")
        if self._rows is None:
            self._rows = iter(self._result)
        return self._rows

    def fetchone(self) -> Row | None:
        """The next row; None at the end."""
        with raising_database_errors():
            return next(self._fetch(), None)

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next rows, ``arraysize`` of them by default; an empty list at the end."""
        with raising_database_errors():
            return list(islice(self._fetch(), arguments.number("size", self.arraysize if size is None else size, 0)))

    def fetchall(self) -> list[Row]:
        """All remaining rows."""
        with raising_database_errors():
            return list(self._fetch())

    def fetch_arrow_table(self) -> pa.Table:
        """All rows as an Arrow table, without creating Python objects. Call it before any row is fetched."""
        self._check_open()
        if self._rows is not None:
            raise InterfaceError("rows of this result have been fetched already: execute the query again first")
        self._fetch()
        assert self._result is not None
        self._rows = iter(())
        with raising_database_errors():
            return self._result.to_arrow()

    def fetch_df(self) -> Any:
        """All rows as a pandas frame. Call it before any row is fetched."""
        table = self.fetch_arrow_table()
        with raising_database_errors():
            return SqlResult.of_rows(table).to_pandas()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.fetchone, None)

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Does nothing: parameters have the types of their values."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing: values are always returned whole."""

    def close(self) -> None:
        """Closes the cursor, and releases its result."""
        self._clear()
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _digits(code: str) -> tuple[int | None, int | None]:
    """Precision and scale of a type."""
    if not code.startswith("DECIMAL("):
        return None, None
    precision, scale = code[8:-1].split(",")
    return int(precision), int(scale)
