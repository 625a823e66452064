"""Reads a statement: what it does to which table, with its expressions as pieces of its author's text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dolmen.base.arguments import short_repr
from dolmen.errors import InputError
from dolmen.spark.sql.sql_tokens import SqlReader, Token, tokenize

_QUERIES = {"SELECT", "VALUES", "FROM", "TABLE", "WITH", "("}
_AFTER_TARGET = {"SET", "WHERE", "USING"}


@dataclass(frozen=True)
class Target:
    """The table that a statement changes, by its name and by the alias in expressions, which may be the name."""

    name: str
    alias: str


@dataclass(frozen=True)
class QueryStatement:
    """A query: it changes nothing."""


@dataclass(frozen=True)
class InsertStatement:
    """INSERT.

    Args:
        columns: of the query's rows; None = all, in order.
        by_name: the query's columns are matched by their names.
        overwrites: the rows replace all others.
    """

    target: Target
    query: str
    columns: tuple[str, ...] | None
    by_name: bool
    overwrites: bool


@dataclass(frozen=True)
class DeleteStatement:
    """DELETE; ``where`` is None for all rows."""

    target: Target
    where: str | None


@dataclass(frozen=True)
class UpdateStatement:
    """UPDATE: new values by column; ``where`` is None for all rows."""

    target: Target
    values: tuple[tuple[str, str], ...]
    where: str | None


@dataclass(frozen=True)
class MergeClause:
    """A WHEN of a MERGE.

    Args:
        kind: "matched", "not matched" or "not matched by source".
        action: "delete", "update" or "insert".
        when: its condition.
        values: expressions by column; None = all columns of the source (``*``).
    """

    kind: str
    action: str
    when: str | None
    values: tuple[tuple[str, str], ...] | None


@dataclass(frozen=True)
class MergeStatement:
    """MERGE.

    Args:
        source: a name or a query in parentheses.
        source_alias: its name in expressions, if there is one.
    """

    target: Target
    source: str
    source_alias: str | None
    on: str
    clauses: tuple[MergeClause, ...]


Kind: TypeAlias = Literal["QUERY", "INSERT", "DELETE", "UPDATE", "MERGE"]
KINDS: tuple[Kind, ...] = ("INSERT", "DELETE", "UPDATE", "MERGE")
"""Statements that change a table."""
ChangingStatement: TypeAlias = InsertStatement | DeleteStatement | UpdateStatement | MergeStatement


@dataclass(frozen=True)
class SqlStatement:
    """A statement, and the text of the WITH before it; "" if there is none, and for queries."""

    sql: str
    ctes: str
    does: QueryStatement | ChangingStatement


def kind_of(sql: str) -> tuple[Kind, str]:
    """The kind of a statement, and the name of the table that it changes, which is "" for a query.

    Only the beginning is read: the rest may have versions of tables, which are replaced later.

    Raises:
        InputError: there is no statement, or several, or its kind is unknown.
    """
    reader, _, word = _begin(sql)
    if word == "INSERT":
        return word, _insert_target(reader).name
    if word == "DELETE":
        reader.expect("FROM")
    elif word == "MERGE":
        reader.take("WITH", "SCHEMA", "EVOLUTION")
        reader.expect("INTO")
    return word, "" if word == "QUERY" else reader.name()


def read_statement(sql: str) -> SqlStatement:
    """Reads one statement.

    Raises:
        InputError: there is no statement, or several, or it can't be read.
    """
    reader, ctes, word = _begin(sql)
    if word == "QUERY":
        return SqlStatement(sql, "", QueryStatement())
    readers: dict[str, Callable[[SqlReader], ChangingStatement]] = {
        "INSERT": _insert,
        "DELETE": _delete,
        "UPDATE": _update,
        "MERGE": _merge,
    }
    does = readers[word](reader)
    if not reader.is_done:
        raise reader.error("nothing more is expected")
    return SqlStatement(sql, ctes, does)


def _begin(sql: str) -> tuple[SqlReader, str, Kind]:
    """A reader after the first keyword of a statement, the WITH before that, and its kind."""
    tokens = tokenize(sql)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if not tokens:
        raise InputError("there is no statement")
    if second := next((token for token in tokens if token.text == ";"), None):
        raise InputError(
            f"there is more after the semicolon at character {second.start}: give one statement at a time: each is "
            "a commit of its own"
        )
    reader = SqlReader(sql[: tokens[-1].end], tokens)
    ctes = _ctes(reader)
    for kind in KINDS:
        if reader.take(kind):
            if "${" in sql:
                raise InputError("Spark would put a variable in the place of ${: give values as parameters, :name")
            return reader, ctes, kind
    if reader.word() not in _QUERIES:
        raise InputError(
            f"{short_repr(reader.rest())}: SELECT, INSERT, UPDATE, DELETE and MERGE are understood here; give Spark's "
            "other statements to spark.sql, and change tables by db.create_table, table.add_column and so on"
        )
    _check_query(tokens)
    return reader, "", "QUERY"


def _ctes(reader: SqlReader) -> str:
    """Goes past the WITH before a statement."""
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
        reader.group()
        if not reader.take(","):
            break
    return reader.since(first)


def _check_query(tokens: Sequence[Token]) -> None:
    """Raises InputError for ``FROM s INSERT INTO ...``, which is no query."""
    for before, token, behind in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        inserts = token.upper == "INSERT" and behind is not None and behind.upper in ("INTO", "OVERWRITE")
        if inserts and not (before is not None and before.text == "."):
            raise InputError(f"INSERT at character {token.start}: write INSERT INTO ... first, and then the query")


def _target(reader: SqlReader) -> Target:
    token = reader.peek()
    name = reader.name()
    if reader.word() in (".", "("):
        whole = reader.sql[token.start if token else 0 :]
        raise InputError(f"{short_repr(whole)}: name the table as its view is called, without a catalog or a database")
    alias = name
    then = reader.peek()
    if reader.take("AS") or (then is not None and then.name is not None and then.upper not in _AFTER_TARGET):
        alias = reader.name()
    if reader.word() == "(":
        raise reader.error("columns of a table have no other names here")
    return Target(name, alias)


def _insert_target(reader: SqlReader) -> Target:
    """Goes past INTO or OVERWRITE, and the table."""
    if not reader.take("OVERWRITE"):
        reader.expect("INTO")
    behind = reader.peek(1)
    if reader.word() == "TABLE" and behind is not None and behind.name is not None and behind.upper not in _QUERIES:
        reader.next()
    if reader.word() in ("DIRECTORY", "LOCAL") and behind is not None and behind.upper not in _QUERIES:
        raise reader.error("a directory is no table: give this statement to spark.sql")
    name = reader.name()
    if reader.word() == ".":
        raise reader.error("name the table as its view is called, without a catalog or a database")
    return Target(name, name)


def _insert(reader: SqlReader) -> InsertStatement:
    overwrites = reader.word() == "OVERWRITE"
    target = _insert_target(reader)
    by_name = reader.take("BY", "NAME")
    columns: tuple[str, ...] | None = None
    if reader.word() == "(" and reader.word(1) not in _QUERIES:
        columns = tuple(_names(reader.group(), reader.sql))
    if reader.word() not in _QUERIES:
        raise reader.error("rows are inserted by INSERT INTO table [(columns) | BY NAME] query, and by OVERWRITE")
    return InsertStatement(target, reader.rest(), columns, by_name, overwrites)


def _names(tokens: Sequence[Token], sql: str) -> list[str]:
    inner = SqlReader(sql, tokens)
    names = [inner.name()]
    while inner.take(","):
        names.append(inner.name())
    if not inner.is_done:
        raise inner.error("columns are expected, separated by commas")
    return names


def _delete(reader: SqlReader) -> DeleteStatement:
    reader.expect("FROM")
    target = _target(reader)
    return DeleteStatement(target, reader.rest() if reader.take("WHERE") else None)


def _update(reader: SqlReader) -> UpdateStatement:
    target = _target(reader)
    reader.expect("SET")
    values = _assignments(reader, target, "WHERE")
    return UpdateStatement(target, values, reader.rest() if reader.take("WHERE") else None)


def _assignments(reader: SqlReader, target: Target, *ends: str) -> tuple[tuple[str, str], ...]:
    """``column = expression``, separated by commas, up to one of the keywords ``ends``."""
    found = []
    while True:
        name = reader.name()
        if reader.take("."):
            if name.lower() not in (target.alias.lower(), target.name.lower()):
                raise reader.error("a column is set as a whole: give all fields of a struct")
            name = reader.name()
        if reader.word() == ".":
            raise reader.error("a column is set as a whole: give all fields of a struct")
        if not reader.take("="):
            reader.expect("==")
        found.append((name, _value(reader, reader.until(",", *ends))))
        if not reader.take(","):
            return tuple(found)


def _value(reader: SqlReader, text: str) -> str:
    if text.upper() == "DEFAULT":
        raise reader.error("DEFAULT: give the value, or leave the column out of an INSERT")
    return text


def _merge(reader: SqlReader) -> MergeStatement:
    if reader.take("WITH", "SCHEMA", "EVOLUTION"):
        raise reader.error("columns are not added by a MERGE: add them by table.add_column")
    reader.expect("INTO")
    target = _target(reader)
    reader.expect("USING")
    first = reader.peek()
    if reader.word() == "(":
        reader.group()
        default = None
    else:
        default = reader.name()
        while reader.take("."):
            default = reader.name()
    source = reader.since(first)
    alias = default
    if reader.take("AS") or reader.word() != "ON":
        alias = reader.name()
    if reader.word() == "(":
        raise reader.error("columns of a source have no other names here: name them in its query")
    reader.expect("ON")
    on = reader.until("WHEN")
    clauses = []
    while reader.take("WHEN"):
        clauses.append(_clause(reader, target))
    if not clauses:
        raise reader.error("WHEN is expected")
    return MergeStatement(target, source, alias, on, tuple(clauses))


def _clause(reader: SqlReader, target: Target) -> MergeClause:
    kind = "matched"
    if reader.take("NOT"):
        kind = "not matched"
    reader.expect("MATCHED")
    if kind == "not matched" and not reader.take("BY", "TARGET") and reader.take("BY", "SOURCE"):
        kind = "not matched by source"
    when = reader.until("THEN") if reader.take("AND") else None
    reader.expect("THEN")
    if kind == "not matched":
        reader.expect("INSERT")
        if reader.take("*"):
            return MergeClause(kind, "insert", when, None)
        names = _names(reader.group(), reader.sql)
        reader.expect("VALUES")
        inner = SqlReader(reader.sql, reader.group())
        texts = [_value(inner, inner.until(","))]
        while inner.take(","):
            texts.append(_value(inner, inner.until(",")))
        if len(names) != len(texts):
            raise reader.error(f"INSERT names {len(names)} columns, and gives {len(texts)} values")
        return MergeClause(kind, "insert", when, tuple(zip(names, texts, strict=True)))
    if reader.take("DELETE"):
        return MergeClause(kind, "delete", when, None)
    reader.expect("UPDATE")
    reader.expect("SET")
    if reader.take("*"):
        if kind != "matched":
            raise reader.error("there is no source row: say which columns change")
        return MergeClause(kind, "update", when, None)
    return MergeClause(kind, "update", when, _assignments(reader, target, "WHEN"))
