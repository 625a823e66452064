"""Reads a statement: what it does to which table, with its expressions as pieces of its author's text.

It is cut into tokens as Spark's own lexer does (``SqlBaseLexer.g4`` in
https://github.com/apache/spark/tree/v4.1.0/sql/api), so that its parts go to Spark unchanged, which evaluates them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from dolmen.errors import InputError, short_repr

T = TypeVar("T")
_TOKEN = re.compile(
    r"""
    (?P<space>   [ \t\r\n\f\u000b\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+ )
  | (?P<comment> --(?: \\\n | [^\r\n] )*\r?\n? )
  | (?P<text>    (?i:r)'[^']*' | (?i:r)"[^"]*" | (?: '(?: [^'\\] | \\. | '' )*' ) | (?: "(?: [^"\\] | \\. | "" )*" ) )
  | (?P<quoted>  `(?: [^`] | `` )*` )
  | (?P<number>  (?: \d+\.?\d* | \.\d+ )(?: [eE][+-]?\d+ )?(?: [lLsSyYfFdD](?!\w) | (?i:bd)(?!\w) )?(?!\w) )
  | (?P<word>    \w+ )
  | (?P<sign>    <=> | <> | != | <= | >= | == | :: | => | -> | \|\|? | \|> | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_OPEN, _CLOSED = {"(": ")", "[": "]"}, {")", "]"}
_CHANGES = ("INSERT", "DELETE", "UPDATE", "MERGE")
_QUERIES = {"SELECT", "VALUES", "FROM", "TABLE", "WITH", "("}
_AFTER_TARGET = {"SET", "WHERE", "USING"}
_UNQUALIFIED = "name the table as its view is called, without a catalog or a database"
_WHOLE_COLUMN = "a column is set as a whole: give all fields of a struct"


@dataclass(frozen=True)
class Token:
    """A token.

    Args:
        kind: "word", "quoted" (a name in backticks), "text" (a literal in quotes), "number" or "sign".
        depth: the number of parentheses and brackets that are open around it.
    """

    kind: str
    text: str
    start: int
    end: int
    depth: int

    @property
    def upper(self) -> str:
        """A keyword, in capitals; "" for a name in backticks, or a literal."""
        return self.text.upper() if self.kind in ("word", "sign") else ""

    @property
    def name(self) -> str | None:
        if self.kind == "quoted":
            return self.text[1:-1].replace("``", "`")
        return self.text if self.kind == "word" else None


def tokenize(sql: str) -> list[Token]:
    """The tokens of a text, without comments and spaces. Raises InputError."""
    found: list[Token] = []
    expected: list[str] = []
    at = 0
    while at < len(sql):
        if sql.startswith("/*", at) and not sql.startswith("/*+", at):
            at = _comment_end(sql, at)
            continue
        match = _TOKEN.match(sql, at)
        assert match is not None, "the last alternative takes any character"
        kind, text = match.lastgroup or "", match[0]
        if text in ("'", '"', "`"):
            raise InputError(f"the quote {text} at character {at} is left open: {_near(sql, at)}")
        if text in _CLOSED and (not expected or expected.pop() != text):
            raise InputError(f"{text} at character {at} closes nothing: {_near(sql, at)}")
        if kind not in ("space", "comment"):
            found.append(Token(kind, text, at, match.end(), len(expected)))
        if text in _OPEN:
            expected.append(_OPEN[text])
        at = match.end()
    if expected:
        raise InputError(f"{expected[-1]} is missing at the end of {short_repr(sql)}")
    return found


def _comment_end(sql: str, start: int) -> int:
    """The end of a comment in ``/* */``, which may contain others."""
    depth, at = 0, start
    while at < len(sql):
        if sql.startswith("/*", at):
            depth, at = depth + 1, at + 2
        elif sql.startswith("*/", at):
            depth, at = depth - 1, at + 2
            if depth == 0:
                return at
        else:
            at += 1
    raise InputError(f"the comment at character {start} is left open: {_near(sql, start)}")


def _near(sql: str, at: int) -> str:
    return short_repr(sql[at : at + 40])


class SqlReader:
    """Reads the tokens of one statement, one after the other. Each method raises InputError where it finds others."""

    def __init__(self, sql: str, tokens: Sequence[Token]) -> None:
        self.sql, self._tokens, self._at = sql, tokens, 0

    @property
    def is_done(self) -> bool:
        return self._at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> Token | None:
        index = self._at + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def word(self, ahead: int = 0) -> str:
        """The next token as a keyword; "" at the end, and for other tokens."""
        token = self.peek(ahead)
        return "" if token is None else token.upper

    def take(self, *words: str) -> bool:
        """Goes past these keywords if all of them come next."""
        if not all(self.word(ahead) == word for ahead, word in enumerate(words)):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        if not self.take(*words):
            raise self.error(f"{' '.join(words)} is expected")

    def next(self) -> Token:
        token = self.peek()
        if token is None:
            raise self.error("more is expected")
        self._at += 1
        return token

    def name(self) -> str:
        token = self.peek()
        if token is None or token.name is None:
            raise self.error("a name is expected")
        self._at += 1
        return token.name

    def until(self, *words: str) -> str:
        """The text up to the first of these keywords outside of parentheses and CASE, or to the end."""
        first = self.peek()
        cases = 0
        while (token := self.peek()) is not None and first is not None and token.depth >= first.depth:
            if token.depth == first.depth and not self._is_part():
                if cases == 0 and token.upper in words:
                    break
                if token.upper == "CASE":
                    cases += 1
                elif token.upper == "END" and cases:
                    cases -= 1
            self._at += 1
        return self.since(first)

    def group(self) -> list[Token]:
        """Goes past a pair of parentheses, and returns the tokens in it."""
        self.expect("(")
        start = self._at
        depth = self._tokens[start - 1].depth
        while self._tokens[self._at].depth > depth:
            self._at += 1
        self._at += 1
        return list(self._tokens[start : self._at - 1])

    def items(self, read: Callable[[SqlReader], T]) -> list[T]:
        """Reads items that are separated by commas, in a pair of parentheses."""
        inner = SqlReader(self.sql, self.group())
        found = [read(inner)]
        while inner.take(","):
            found.append(read(inner))
        if not inner.is_done:
            raise inner.error("a comma is expected")
        return found

    def rest(self) -> str:
        first, self._at = self.peek(), len(self._tokens)
        return self.since(first)

    def since(self, first: Token | None) -> str:
        """The text from a token to the last one that was read."""
        last = self._tokens[self._at - 1] if self._at else None
        if first is None or last is None or last.end <= first.start:
            raise self.error("an expression is expected")
        return self.sql[first.start : last.end]

    def error(self, reason: str) -> InputError:
        token = self.peek()
        where = "at its end" if token is None else f"at character {token.start}, {_near(self.sql, token.start)}"
        return InputError(f"can't read the statement {where}: {reason}")

    def _is_part(self) -> bool:
        """Whether the token is a part of a name, as in ``t.case``."""
        before = self._tokens[self._at - 1].text if self._at else ""
        return before == "." or self.word(1) == "."


@dataclass(frozen=True)
class Target:
    """The table that a statement changes, by its name and by the alias in expressions, which may be the name."""

    name: str
    alias: str


@dataclass(frozen=True)
class InsertStatement:
    """INSERT, of all columns in order if ``columns`` is None, by their names, or in place of all other rows."""

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
    """A WHEN of a MERGE: "matched", "not matched" or "not matched by source"; and "delete", "update" or "insert".

    ``values`` are expressions by column; None = all columns of the source (``*``).
    """

    kind: str
    action: str
    when: str | None
    values: tuple[tuple[str, str], ...] | None


@dataclass(frozen=True)
class MergeStatement:
    """MERGE: the source is a name or a query in parentheses; its alias is its name in expressions, if there is one."""

    target: Target
    source: str
    source_alias: str | None
    on: str
    clauses: tuple[MergeClause, ...]


ChangingStatement: TypeAlias = InsertStatement | DeleteStatement | UpdateStatement | MergeStatement


@dataclass(frozen=True)
class SqlStatement:
    """A statement that changes a table, and the text of the WITH before it; "" if there is none."""

    ctes: str
    change: ChangingStatement


def kind_of(sql: str) -> tuple[str, str]:
    """The kind of a statement ("QUERY", "INSERT", ...), and the name of the table that it changes; "" for a query.

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
    """Reads a statement that changes a table, as ``kind_of`` says. Raises InputError."""
    reader, ctes, kind = _begin(sql)
    readers: tuple[Callable[[SqlReader], ChangingStatement], ...] = _insert, _delete, _update, _merge
    change = readers[_CHANGES.index(kind)](reader)
    if not reader.is_done:
        raise reader.error("nothing more is expected")
    return SqlStatement(ctes, change)


def _begin(sql: str) -> tuple[SqlReader, str, str]:
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
    for kind in _CHANGES:
        if reader.take(kind):
            if "${" in sql:
                raise InputError("Spark would put a variable in the place of ${: give values as parameters, :name")
            return reader, ctes, kind
    if reader.word() not in _QUERIES:
        raise InputError(
            f"{short_repr(reader.rest())}: SELECT, INSERT, UPDATE, DELETE and MERGE are understood here; give Spark's "
            "other statements to spark.sql, and change tables by db.create_table, table.add_column and so on"
        )
    for before, token, after in zip([None, *tokens], tokens, tokens[1:], strict=False):
        inserts = token.upper == "INSERT" and after.upper in ("INTO", "OVERWRITE")  # as in FROM s INSERT INTO ...
        if inserts and (before is None or before.text != "."):
            raise InputError(f"INSERT at character {token.start}: write INSERT INTO ... first, and then the query")
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
            return reader.since(first)


def _target(reader: SqlReader) -> Target:
    token = reader.peek()
    alias = name = reader.name()
    if reader.word() in (".", "("):
        whole = reader.sql[token.start if token else 0 :]
        raise InputError(f"{short_repr(whole)}: {_UNQUALIFIED}")
    following = reader.peek()
    is_alias = following is not None and following.name is not None and following.upper not in _AFTER_TARGET
    if reader.take("AS") or is_alias:
        alias = reader.name()
    if reader.word() == "(":
        raise reader.error("columns of a table have no other names here")
    return Target(name, alias)


def _insert_target(reader: SqlReader) -> Target:
    """Goes past INTO or OVERWRITE, and the table."""
    if not reader.take("OVERWRITE"):
        reader.expect("INTO")
    following = reader.peek(1)
    is_keyword = following is not None and following.upper not in _QUERIES
    if reader.word() == "TABLE" and is_keyword and following is not None and following.name is not None:
        reader.next()
    if reader.word() in ("DIRECTORY", "LOCAL") and is_keyword:
        raise reader.error("a directory is not a table: give this statement to spark.sql")
    name = reader.name()
    if reader.word() == ".":
        raise reader.error(_UNQUALIFIED)
    return Target(name, name)


def _insert(reader: SqlReader) -> InsertStatement:
    overwrites = reader.word() == "OVERWRITE"
    target = _insert_target(reader)
    by_name = reader.take("BY", "NAME")
    columns: tuple[str, ...] | None = None
    if reader.word() == "(" and reader.word(1) not in _QUERIES:
        columns = tuple(reader.items(SqlReader.name))
    if reader.word() not in _QUERIES:
        raise reader.error("rows are inserted by INSERT INTO table [(columns) | BY NAME] query, and by OVERWRITE")
    return InsertStatement(target, reader.rest(), columns, by_name, overwrites)


def _delete(reader: SqlReader) -> DeleteStatement:
    reader.expect("FROM")
    target = _target(reader)
    return DeleteStatement(target, reader.rest() if reader.take("WHERE") else None)


def _update(reader: SqlReader) -> UpdateStatement:
    target = _target(reader)
    reader.expect("SET")
    values = _assignments(reader, target, "WHERE")
    return UpdateStatement(target, values, reader.rest() if reader.take("WHERE") else None)


def _assignments(reader: SqlReader, target: Target, end: str) -> tuple[tuple[str, str], ...]:
    """``column = expression``, separated by commas, up to a keyword."""
    found = []
    while True:
        name = reader.name()
        if reader.take("."):
            if name.lower() not in (target.alias.lower(), target.name.lower()):
                raise reader.error(_WHOLE_COLUMN)
            name = reader.name()
        if reader.word() == ".":
            raise reader.error(_WHOLE_COLUMN)
        if not reader.take("="):
            reader.expect("==")
        found.append((name, _value(reader, end)))
        if not reader.take(","):
            return tuple(found)


def _value(reader: SqlReader, *ends: str) -> str:
    """An expression, up to a comma or one of the keywords."""
    text = reader.until(",", *ends)
    if text.upper() == "DEFAULT":
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
    kind = "not matched" if reader.take("NOT") else "matched"
    reader.expect("MATCHED")
    if kind == "not matched" and not reader.take("BY", "TARGET") and reader.take("BY", "SOURCE"):
        kind = "not matched by source"
    when = reader.until("THEN") if reader.take("AND") else None
    reader.expect("THEN")
    if kind == "not matched":
        reader.expect("INSERT")
        if reader.take("*"):
            return MergeClause(kind, "insert", when, None)
        names = reader.items(SqlReader.name)
        reader.expect("VALUES")
        values = reader.items(_value)
        if len(names) != len(values):
            raise reader.error(f"INSERT names {len(names)} columns, and gives {len(values)} values")
        return MergeClause(kind, "insert", when, tuple(zip(names, values, strict=True)))
    if reader.take("DELETE"):
        return MergeClause(kind, "delete", when, None)
    reader.expect("UPDATE")
    reader.expect("SET")
    if reader.take("*"):
        if kind != "matched":
            raise reader.error("there is no source row: say which columns change")
        return MergeClause(kind, "update", when, None)
    return MergeClause(kind, "update", when, _assignments(reader, target, "WHEN"))
