"""``db.sql``, ``tx.sql`` and ``snapshot.sql``: a text of statements becomes calls, and one commit, or rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

import pyarrow as pa
from msgspec import Struct

from dolmen.base import arguments
from dolmen.base.late_imports import higher_function
from dolmen.commit.change import NO_NOTE, Note
from dolmen.commit.head import Context
from dolmen.errors import InputError, LimitError, short_repr
from dolmen.rows.scan.engines.sql import AllowedFiles, Parameters, SqlResult, kinds_of
from dolmen.rows.write.row_digest import content_digest
from dolmen.sql.catalog_calls import CATALOG_WORDS, CatalogCall
from dolmen.sql.literal_rows import LiteralRows, begins_with_values, replace_rows
from dolmen.sql.parameters import python_values, with_literals
from dolmen.sql.queries import Queries
from dolmen.sql.row_calls import RowCall
from dolmen.sql.shown import ShownRelation, replace_shown
from dolmen.sql.statements import ChangingStatement, read_change, read_ctes, split
from dolmen.sql.tokens import DUCKDB, SqlReader
from dolmen.transactions.snapshot import Snapshot
from dolmen.transactions.transaction import Transaction, replay, unit_of
from dolmen.transactions.unit_of_work import Commit

Files: TypeAlias = Mapping[str, Mapping[str, str] | None]
MAX_TEXT = 4_000_000  # characters of a text
_KINDS = {"INSERT": "INSERT", "DELETE": "DELETE", "UPDATE": "UPDATE", "MERGE": "MERGE_INTO"}
"""The first words of statements that change rows, with DuckDB's kinds of them."""
_WRITING = (*_KINDS, *CATALOG_WORDS, "COPY")
"""The first words of statements that change something. All others are queries."""
_BEGIN, _COMMIT = ("BEGIN", "START"), ("COMMIT", "END")
_REFUSED = ("ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE")


class _ParsedStatement(Struct, frozen=True):
    """A statement of a text: a query if ``kind`` is empty; ``change`` is what it does to rows, if anything."""

    kind: str
    text: str
    ctes: str = ""
    change: ChangingStatement | None = None

    @classmethod
    def of(cls, reader: SqlReader) -> _ParsedStatement:
        """Reads a statement. Raises InputError unless DuckDB's parser reads one of the same kind."""
        kind, text = _kind(reader), reader.text
        if kind not in _KINDS:  # a query is parsed when it is run, and others word by word
            return cls(kind, text)
        if (parsed := kinds_of(text)) != [_KINDS[kind]]:
            raise InputError(f"this is not {kind}: DuckDB reads it as {', '.join(parsed) or 'nothing'}")
        ctes = read_ctes(reader)
        reader.expect(kind)
        return cls(kind, text, ctes, read_change(reader, kind))


@dataclass(frozen=True)
class SqlText:
    """A text of statements, with the relations that it names (``replace_shown``).

    ``parameters`` are those of a single query without such relations; in other texts they are literals. ``lists`` are
    the literals that relations hold (``replace_rows``).
    """

    text: str
    statements: Sequence[_ParsedStatement]
    shown: Mapping[str, ShownRelation] = field(default_factory=dict)
    parameters: Parameters = None
    lists: Mapping[str, LiteralRows] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, parameters: Parameters, *, in_transaction: bool) -> SqlText:
        """Reads a text. Raises InputError, LimitError."""
        if not isinstance(text, str):
            raise InputError(f"a query is text, not {type(text).__name__}")
        if len(arguments.text("query", text)) > MAX_TEXT:
            raise LimitError(f"{len(text):,} characters of SQL: at most {MAX_TEXT:,} are read; append() takes rows")
        if "\0" in text:
            raise InputError(f"the text has the character NUL at character {text.index(chr(0))}")
        whole, lists = text, dict[str, LiteralRows]()
        if begins_with_values(text):
            text, lists = replace_rows(with_literals(text, parameters))
            parameters = None
        statements = split(text, DUCKDB)
        is_query = not statements or (len(statements) == 1 and not _kind(statements[0]))
        shows = bool(replace_shown(text)[1])
        if is_query and not shows:
            return cls(text, [_ParsedStatement("", text)], {}, python_values(parameters))
        written, shown = replace_shown(with_literals(text, parameters))
        if written != text:
            statements = split(written, DUCKDB)
        statements = _without_transaction(statements, in_transaction=in_transaction)
        found = cls(whole, list(map(_ParsedStatement.of, statements)), shown, lists=lists)
        if not found.changes and len(statements) > 1:
            raise InputError(f"{len(statements)} statements, and none changes a table: run one query at a time")
        return found

    def query(self, context: Context, source: Snapshot | Transaction) -> SqlResult:
        """Prepares the text, which is one query."""
        return Queries(context, source, self.shown).run(self.statements[0].text, parameters=self.parameters)

    @property
    def changes(self) -> int:
        """The number of statements that change something."""
        return sum(bool(statement.kind) for statement in self.statements)

    def run(self, transaction: Transaction, queries: Queries, request: str | None, files: Files) -> pa.Table | None:
        """Makes the calls in a transaction; returns the rows of the last statement, if it has some."""
        rows = None
        for statement in self.statements:
            if not statement.kind:
                result = queries.run(statement.text)
                rows = result.keep() if statement is self.statements[-1] else None
                continue
            if statement.change is not None:
                rows = RowCall(transaction, queries, statement.ctes, request, statement.change).run()
            else:
                [reader] = split(statement.text, DUCKDB)
                if reader.take("COPY"):
                    run_copy = higher_function("run_copy")
                    rows = run_copy(transaction, queries, reader, files, request, is_alone=self.changes == 1)
                    if rows is not None and request is not None:
                        raise InputError(
                            "COPY ... TO doesn't go with request=: a request that was applied before writes no file"
                        )
                else:
                    CatalogCall(transaction, queries, request).run(reader)
                    rows = None
        return rows


def run_on_database(
    context: Context, text: str, parameters: Parameters, request: str | None, note: Note, files: AllowedFiles = None
) -> SqlResult | Commit:
    """See ``Database.sql``."""
    read = SqlText.of(text, parameters, in_transaction=False)
    try:
        if isinstance(files, Mapping):
            allowed: Files = files
        else:
            paths = [files] if isinstance(files, (str, os.PathLike)) else files or ()
            allowed = {os.fspath(path): None for path in paths}
    except TypeError:
        raise InputError(f"files={short_repr(files)}: give paths of files and directories") from None
    if not read.changes:
        _refuse_request(request, note)
        return read.query(context, Snapshot(context, context.head.refresh().manifest))

    def apply(transaction: Transaction) -> pa.Table | None:
        rows = _apply(read, context, transaction, request, parameters, allowed)
        unit = unit_of(transaction)
        if read.changes == 1 and unit.operations:
            unit.operation = "create_table" if "create_table" in unit.operations else unit.operations[0]
        return rows

    rows, commit = replay(context, apply, note=note)
    if rows is None or (request is not None and request in commit.already):  # somebody has just applied it
        return commit
    result = SqlResult.of_rows(rows)
    result.commit = commit
    return result


def run_on_transaction(
    context: Context,
    transaction: Transaction,
    text: str,
    parameters: Parameters,
    request: str | None,
    relations: Mapping[str, pa.Table] | None = None,
) -> SqlResult | None:
    """See ``Transaction.sql``. ``relations`` are further rows, by their names in the text."""
    read = SqlText.of(text, parameters, in_transaction=True)
    if not read.changes:
        _refuse_request(request)
        return read.query(context, transaction)
    with transaction.savepoint():
        rows = _apply(read, context, transaction, request, parameters, relations=relations)
    return None if rows is None else SqlResult.of_rows(rows)


def run_on_snapshot(context: Context, snapshot: Snapshot, text: str, parameters: Parameters) -> SqlResult:
    """See ``Snapshot.sql``."""
    read = SqlText.of(text, parameters, in_transaction=True)
    if read.changes:
        raise InputError("a version is read by one query: change tables through db.sql or tx.sql")
    return read.query(context, snapshot)


def _apply(
    read: SqlText,
    context: Context,
    transaction: Transaction,
    request: str | None,
    parameters: Parameters,
    files: Files = MappingProxyType({}),
    relations: Mapping[str, pa.Table] | None = None,
) -> pa.Table | None:
    if request is not None:
        is_applied = transaction.has_applied(request)
        transaction.bind(request, content_digest("sql", with_literals(read.text, parameters)))
        if is_applied:
            return None
    rows = {name: each.rows for name, each in read.lists.items()}
    literals = {each.query: each.literals for each in read.lists.values()}
    queries = Queries(context, transaction, read.shown, {**rows, **(relations or {})}, literals)
    return read.run(transaction, queries, request, files)


def _refuse_request(request: str | None, note: Note = NO_NOTE) -> None:
    if request is not None or note != NO_NOTE:
        raise InputError(
            "request=, message= and metadata= are for statements that change a table: a query changes nothing"
        )


def _kind(statement: SqlReader) -> str:
    """The first word after WITH, if it begins a statement that changes something."""
    reader = SqlReader(statement.sql, statement.tokens, DUCKDB)
    if reader.word() == "WITH":
        read_ctes(reader)
    word = reader.word()
    return word if word in (*_WRITING, *_BEGIN, *_COMMIT, *_REFUSED) else ""


def _without_transaction(statements: list[SqlReader], *, in_transaction: bool) -> list[SqlReader]:
    """The statements without BEGIN and COMMIT around them. Raises InputError for these words elsewhere."""
    words = [statement.word() for statement in statements]
    inner = statements
    if words and words[0] in _BEGIN and words[-1] in _COMMIT and not in_transaction:
        inner, words = statements[1:-1], words[1:-1]
    if wrong := next((word for word in words if word in (*_BEGIN, *_COMMIT, *_REFUSED)), None):
        raise InputError(
            f"{wrong}: the statements of a text are one commit, with or without BEGIN before the first and COMMIT "
            "after the last; in Python, db.transaction() and tx.savepoint() do more"
        )
    if not inner:
        raise InputError("there is no statement")
    return inner
