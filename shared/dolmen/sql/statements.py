"""Reads a statement that changes rows: what it does to which table, with its expressions as pieces of its text.

DuckDB or Spark evaluates the pieces. ``dolmen.sql.catalog_statements`` reads the statements that change tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from dolmen.base.units import count_text
from dolmen.errors import InputError, short_repr
from dolmen.sql.tokens import DUCKDB, SPARK, Lexer, SqlReader, tokenize

_CHANGES = ("INSERT", "DELETE", "UPDATE", "MERGE")
_QUERIES = {"SELECT", "VALUES", "FROM", "TABLE", "WITH", "("}
_ELSEWHERE = {
    "OPTIMIZE": "dolmen.spark.compact(spark, db) merges small files, and so does table.compact()",
    "VACUUM": "dolmen.spark.gc(spark, db) deletes what no version needs, and so does db.gc()",
    "RESTORE": "table.restore(17) brings back the rows of a version",
    "CALL": "there are methods in place of procedures: dolmen.spark.compact and gc, table.restore, db.tag",
}
"""What to call in place of statements of other table formats, by their first words."""
_AFTER_TARGET = {"SET", "WHERE", "USING", "RETURNING"}
_UNQUALIFIED = "name the table as its view is called, without a catalog or a database"
_WHOLE_COLUMN = "a column is set as a whole: give all fields of a struct"
DEFAULT = "DEFAULT"  # the text of a value that is the column's default


class Target(Struct, frozen=True):
    """The table that a statement changes, by its name and by the alias in expressions, which may be the name."""

    name: str
    alias: str


class OnConflict(Struct, frozen=True):
    """ON CONFLICT of an INSERT, by the key's ``columns`` if it names them.

    ``values``: the new values of DO UPDATE SET; None for DO NOTHING, and empty for INSERT OR REPLACE.
    """

    columns: tuple[str, ...] | None
    values: tuple[tuple[str, str], ...] | None
    when: str | None = None

    @property
    def replaces_rows(self) -> bool:
        """Whether a row takes the place of an old one as a whole."""
        return self.values == ()


class InsertStatement(Struct, frozen=True):
    """INSERT, of all columns in order if ``columns`` is None, by their names, or in place of all other rows."""

    target: Target
    query: str
    columns: tuple[str, ...] | None
    by_name: bool
    overwrites: bool
    conflict: OnConflict | None = None
    returning: str | None = None


class DeleteStatement(Struct, frozen=True):
    """DELETE; ``where`` is None for all rows."""

    target: Target
    where: str | None
    using: str | None = None
    returning: str | None = None


class UpdateStatement(Struct, frozen=True):
    """UPDATE: new values by column; ``where`` is None for all rows."""

    target: Target
    values: tuple[tuple[str, str], ...]
    where: str | None
    using: str | None = None
    returning: str | None = None


class MergeClause(Struct, frozen=True):
    """A WHEN of a MERGE: "matched", "not matched" or "not matched by source"; and "delete", "update" or "insert".

    ``values`` are expressions by column; None = all columns of the source (``*``). Without names ("") they are for all
    columns of the table, in order. DuckDB's MERGE also does "nothing".
    """

    kind: str
    action: str
    when: str | None
    values: tuple[tuple[str, str], ...] | None


class MergeStatement(Struct, frozen=True):
    """MERGE: the source is a name or a query in parentheses; its alias is its name in expressions, if there is one.

    ``using`` are names of columns of both, in place of a condition ``on``; ``source_columns`` rename the source's.
    """

    target: Target
    source: str
    source_alias: str | None
    on: str
    clauses: tuple[MergeClause, ...]
    using: tuple[str, ...] = ()
    source_columns: tuple[str, ...] = ()
    returning: str | None = None


ChangingStatement: TypeAlias = InsertStatement | DeleteStatement | UpdateStatement | MergeStatement


class SqlStatement(Struct, frozen=True):
    """A statement that changes a table, and the text of the WITH before it; "" if there is none."""

    ctes: str
    change: ChangingStatement


def kind_of(sql: str) -> tuple[str, str]:
    """The kind of a statement on Spark ("QUERY", "INSERT", ...), and the name of its table; "" for a query.

    Only the beginning is read: the rest may have versions of tables, which are replaced later. Raises InputError.
    """
    reader, _, kind = _begin(sql)
    if kind == "INSERT":
        return kind, _insert_target(reader).name
    if kind == "DELETE":
        reader.expect("FROM")
    elif kind == "MERGE":
        reader.take("WITH", "SCHEMA", "EVOLUTION")
        reader.expect("INTO")
    return kind, "" if kind == "QUERY" else reader.name()


def read_statement(sql: str) -> SqlStatement:
    """Reads a statement of Spark's SQL that changes a table, as ``kind_of`` says. Raises InputError."""
    reader, ctes, kind = _begin(sql)
    return SqlStatement(ctes, read_change(reader, kind))


def read_change(reader: SqlReader, kind: str) -> ChangingStatement:
    """Reads a statement of a kind ("INSERT", ...), whose first keyword was read. Raises InputError."""
    readers: tuple[Callable[[SqlReader], ChangingStatement], ...] = _insert, _delete, _update, _merge
    does = readers[_CHANGES.index(kind)](reader)
    if not reader.is_done:
        raise reader.error("nothing more is expected")
    return does


def split(sql: str, lexer: Lexer) -> list[SqlReader]:
    """The statements of a text, without the semicolons between them. Raises InputError."""
    found, tokens = [], tokenize(sql, lexer)
    ends = [index for index, token in enumerate(tokens) if token.text == ";" and not token.depth] + [len(tokens)]
    for start, end in zip([0, *(index + 1 for index in ends)], ends, strict=False):
        if start < end:
            found.append(SqlReader(sql[: tokens[end - 1].end], tokens[start:end], lexer))
    return found


def _begin(sql: str) -> tuple[SqlReader, str, str]:
    """A reader after the first keyword of a statement of Spark's, the WITH before that, and its kind."""
    statements = split(sql, SPARK)
    if not statements:
        raise InputError("there is no statement")
    if len(statements) > 1:
        raise InputError(
            f"there is more after the semicolon at character {len(statements[0].sql)}: give one statement at a time: "
            "each is a commit of its own"
        )
    [reader] = statements
    ctes = read_ctes(reader)
    for kind in _CHANGES:
        if reader.take(kind):
            if "${" in sql:
                raise InputError("Spark would put a variable in the place of ${: give values as parameters, :name")
            return reader, ctes, kind
    if advice := _ELSEWHERE.get(reader.word()):
        raise InputError(f"{short_repr(reader.rest())}: {advice}")
    if reader.word() not in _QUERIES:
        raise InputError(
            f"{short_repr(reader.rest())}: SELECT, INSERT, UPDATE, DELETE and MERGE are understood here; give Spark's "
            "other statements to spark.sql, and change tables by db.create_table, table.add_column and so on"
        )
    before = None
    while (token := reader.peek()) is not None:
        inserts = token.upper == "INSERT" and reader.word(1) in ("INTO", "OVERWRITE")  # as in FROM s INSERT INTO ...
        if inserts and (before is None or before.text != "."):
            raise InputError(f"INSERT at character {token.start}: write INSERT INTO ... first, and then the query")
        before = reader.next()
    return reader, "", "QUERY"


def read_ctes(reader: SqlReader) -> str:
    """Goes past the WITH before a statement, and returns its text."""
    first = reader.peek()
    if not reader.take("WITH"):
        return ""
    reader.take("RECURSIVE")
    while True:
        reader.name()
        if reader.word() == "(":
            reader.group()
        if reader.take("MAX", "RECURSION", "LEVEL"):
            reader.next()
        reader.take("AS")
        if reader.lexer is DUCKDB:
            reader.take("NOT")
            reader.take("MATERIALIZED")
        reader.group()
        if not reader.take(","):
            return reader.since(first)


def table_name(reader: SqlReader) -> str:
    """The name of a table. Raises InputError: it is qualified, other than by DuckDB's ``main``."""
    token = reader.peek()
    name = reader.name()
    if reader.lexer is DUCKDB and name.lower() == "main" and reader.take("."):
        name = reader.name()
    if reader.word() == ".":
        reason = (
            _UNQUALIFIED if reader.lexer is SPARK else "a table has its name alone, or main.name: there are no schemas"
        )
        raise InputError(f"{short_repr(reader.sql[token.start if token else 0 :])}: {reason}")
    return name


def _target(reader: SqlReader) -> Target:
    token = reader.peek()
    alias = name = table_name(reader)
    if reader.word() == "(":
        raise InputError(f"{short_repr(reader.sql[token.start if token else 0 :])}: {_UNQUALIFIED}")
    following = reader.peek()
    is_alias = following is not None and following.name is not None and following.upper not in _AFTER_TARGET
    if reader.take("AS") or is_alias:
        alias = reader.name()
    if reader.word() == "(":
        raise reader.error("columns of a table have no other names here")
    return Target(name, alias)


def _insert_target(reader: SqlReader) -> Target:
    """Goes past INTO or OVERWRITE, and the table."""
    if reader.lexer is DUCKDB or not reader.take("OVERWRITE"):
        reader.expect("INTO")
    if reader.lexer is SPARK:
        following = reader.peek(1)
        is_keyword = following is not None and following.upper not in _QUERIES
        if reader.word() == "TABLE" and is_keyword and following is not None and following.name is not None:
            reader.next()
        if reader.word() in ("DIRECTORY", "LOCAL") and is_keyword:
            raise reader.error("a directory is not a table: give this statement to spark.sql")
    name = table_name(reader)
    return Target(name, reader.name() if reader.lexer is DUCKDB and reader.take("AS") else name)


def _insert(reader: SqlReader) -> InsertStatement:
    overwrites = reader.lexer is SPARK and reader.word() == "OVERWRITE"
    conflict = None
    if reader.lexer is DUCKDB and reader.take("OR"):
        conflict = OnConflict(None, () if reader.take("REPLACE") else None)
        if conflict.values is None:
            reader.expect("IGNORE")
    target = _insert_target(reader)
    by_name = _takes_names(reader)
    columns: tuple[str, ...] | None = None
    if reader.word() == "(" and reader.word(1) not in _QUERIES:
        columns = tuple(reader.items(SqlReader.name))
        by_name = by_name or (reader.lexer is DUCKDB and _takes_names(reader))
    if reader.lexer is DUCKDB and columns is None and reader.take(DEFAULT, "VALUES"):
        return InsertStatement(target, "", (), by_name, overwrites, conflict, _returning(reader))
    if reader.word() not in _QUERIES:
        raise reader.error("rows are inserted by INSERT INTO table [(columns) | BY NAME] query, and by OVERWRITE")
    if reader.lexer is SPARK:
        return InsertStatement(target, reader.rest(), columns, by_name, overwrites)
    query = reader.until("ON CONFLICT", "RETURNING")
    if reader.take("ON", "CONFLICT"):
        conflict = _on_conflict(reader, target)
    return InsertStatement(target, query, columns, by_name, overwrites, conflict, _returning(reader))


def _takes_names(reader: SqlReader) -> bool:
    """Goes past BY NAME, or BY POSITION, which is the same as neither; True for names."""
    if reader.lexer is DUCKDB and reader.take("BY", "POSITION"):
        return False
    return reader.take("BY", "NAME")


def _on_conflict(reader: SqlReader, target: Target) -> OnConflict:
    columns = tuple(reader.items(SqlReader.name)) if reader.word() == "(" else None
    reader.expect("DO")
    if reader.take("NOTHING"):
        return OnConflict(columns, None)
    reader.expect("UPDATE", "SET")
    values = _assignments(reader, target, "WHERE", "RETURNING")
    return OnConflict(columns, values, reader.until("RETURNING") if reader.take("WHERE") else None)


def _returning(reader: SqlReader) -> str | None:
    return reader.rest() if reader.lexer is DUCKDB and reader.take("RETURNING") else None


def _until_returning(reader: SqlReader) -> str:
    return reader.until("RETURNING") if reader.lexer is DUCKDB else reader.rest()


def _delete(reader: SqlReader) -> DeleteStatement:
    reader.expect("FROM")
    target = _target(reader)
    using = None
    if reader.lexer is DUCKDB and reader.take("USING"):
        using = reader.until("WHERE", "RETURNING")
    where = _until_returning(reader) if reader.take("WHERE") else None
    return DeleteStatement(target, where, using, _returning(reader))


def _update(reader: SqlReader) -> UpdateStatement:
    target = _target(reader)
    reader.expect("SET")
    using = None
    values = _assignments(reader, target, "WHERE", *(("FROM", "RETURNING") if reader.lexer is DUCKDB else ()))
    if reader.lexer is DUCKDB and reader.take("FROM"):
        using = reader.until("WHERE", "RETURNING")
    where = _until_returning(reader) if reader.take("WHERE") else None
    return UpdateStatement(target, values, where, using, _returning(reader))


def _assignments(reader: SqlReader, target: Target, *ends: str) -> tuple[tuple[str, str], ...]:
    """``column = expression``, separated by commas, up to a keyword."""
    found: list[tuple[str, str]] = []
    while True:
        names = tuple(reader.items(SqlReader.name)) if reader.word() == "(" else None
        name = "" if names else reader.name()
        if not names and reader.take("."):
            if name.lower() not in (target.alias.lower(), target.name.lower()):
                raise reader.error(_WHOLE_COLUMN)
            name = reader.name()
        if reader.word() == ".":
            raise reader.error(_WHOLE_COLUMN)
        if not reader.take("="):
            reader.expect("==")
        if names:
            reader.take("ROW")
            values = reader.items(_value)
            if len(names) != len(values):
                raise reader.error(f"{count_text(len(names), 'column')} for {count_text(len(values), 'value')}")
            found += zip(names, values, strict=True)
        else:
            found.append((name, _value(reader, *ends)))
        if not reader.take(","):
            return tuple(found)


def _value(reader: SqlReader, *ends: str) -> str:
    """An expression, up to a comma or one of the keywords."""
    text = reader.until(",", *ends)
    if text.upper() == DEFAULT and reader.lexer is SPARK:
        raise reader.error("DEFAULT: give the value, or leave the column out of an INSERT")
    return text


def _merge(reader: SqlReader) -> MergeStatement:
    if reader.take("WITH", "SCHEMA", "EVOLUTION"):
        raise reader.error("columns are not added by a MERGE: add them by table.add_column")
    reader.expect("INTO")
    target = _target(reader)
    reader.expect("USING")
    first, alias = reader.peek(), None
    if reader.word() == "(":
        reader.group()
    else:
        alias = reader.name()
        while reader.take("."):
            alias = reader.name()
    source = reader.since(first)
    if reader.take("AS") or reader.word() not in ("ON", "USING"):
        alias = reader.name()
    source_columns: tuple[str, ...] = ()
    if reader.word() == "(":
        if reader.lexer is SPARK:
            raise reader.error("columns of a source have no other names here: name them in its query")
        source_columns = tuple(reader.items(SqlReader.name))
    on, using = "", tuple[str, ...]()
    if reader.lexer is DUCKDB and reader.take("USING"):
        using = tuple(reader.items(SqlReader.name))
    else:
        reader.expect("ON")
        on = reader.until("WHEN")
    clauses = []
    while reader.take("WHEN"):
        clauses.append(_clause(reader, target))
    if not clauses:
        raise reader.error("WHEN is expected")
    return MergeStatement(target, source, alias, on, tuple(clauses), using, source_columns, _returning(reader))


def _clause(reader: SqlReader, target: Target) -> MergeClause:
    kind = "not matched" if reader.take("NOT") else "matched"
    is_duckdb = reader.lexer is DUCKDB
    reader.expect("MATCHED")
    if kind == "not matched" and not reader.take("BY", "TARGET") and reader.take("BY", "SOURCE"):
        kind = "not matched by source"
    when = reader.until("THEN") if reader.take("AND") else None
    reader.expect("THEN")
    if is_duckdb and reader.take("DO", "NOTHING"):
        return MergeClause(kind, "nothing", when, None)
    if kind == "not matched":
        reader.expect("INSERT")
        by_name = is_duckdb and _takes_names(reader)
        if reader.take("*") or by_name or (is_duckdb and reader.word() in ("", "WHEN", "RETURNING")):
            return MergeClause(kind, "insert", when, None)
        names = None if is_duckdb and reader.take("VALUES") else reader.items(SqlReader.name)
        if names is None:
            return MergeClause(kind, "insert", when, tuple(("", value) for value in reader.items(_value)))
        reader.expect("VALUES")
        values = reader.items(_value)
        if len(names) != len(values):
            raise reader.error(
                f"INSERT names {count_text(len(names), 'column')}, and gives {count_text(len(values), 'value')}"
            )
        return MergeClause(kind, "insert", when, tuple(zip(names, values, strict=True)))
    if reader.take("DELETE"):
        return MergeClause(kind, "delete", when, None)
    reader.expect("UPDATE")
    takes_all = is_duckdb and (_takes_names(reader) or reader.word() in ("", "WHEN", "RETURNING"))
    if not takes_all:
        reader.expect("SET")
    if takes_all or reader.take("*"):
        if kind != "matched":
            raise reader.error("there is no source row: name the columns that change")
        return MergeClause(kind, "update", when, None)
    return MergeClause(kind, "update", when, _assignments(reader, target, "WHEN", "RETURNING"))
