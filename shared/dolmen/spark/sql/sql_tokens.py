"""Cuts a statement into tokens as Spark's own lexer does, so that its parts go to Spark unchanged.

Expressions are not parsed: each is a piece of its author's text, which Spark evaluates. The rules are those of Spark's
grammar, ``SqlBaseLexer.g4``: https://github.com/apache/spark/tree/v4.1.0/sql/api

``table VERSION AS OF ...`` and ``table TIMESTAMP AS OF ...`` are replaced by views of these versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Row

from dolmen.base.arguments import short_repr
from dolmen.errors import InputError
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.spark_types import quote
from dolmen.spark.sql.attachment import Attachment, Attachments, Views
from dolmen.transactions.snapshot import Snapshot

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


@dataclass(frozen=True)
class Token:
    """A token.

    Args:
        kind: "word", "quoted" (a name in backticks), "text" (a literal in quotes), "number" or "sign".
        start, end: its first character, and the one after its last.
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
        """The name that it means; None if it is no name."""
        if self.kind == "quoted":
            return self.text[1:-1].replace("``", "`")
        return self.text if self.kind == "word" else None


def tokenize(sql: str) -> list[Token]:
    """The tokens of a text, without comments and spaces.

    Raises:
        InputError: a quote, a comment or a parenthesis is left open, or closes nothing.
    """
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
    """Reads the tokens of one statement, one after the other."""

    def __init__(self, sql: str, tokens: Sequence[Token]) -> None:
        self.sql, self._tokens, self._at = sql, tokens, 0

    @property
    def is_done(self) -> bool:
        """Whether all tokens were read."""
        return self._at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> Token | None:
        """The next token, or a later one; None at the end."""
        index = self._at + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def word(self, ahead: int = 0) -> str:
        """The next token as a keyword; "" at the end, and for other tokens."""
        token = self.peek(ahead)
        return "" if token is None else token.upper

    def take(self, *words: str) -> bool:
        """Goes past these keywords if they come next, all of them."""
        if not all(self.word(ahead) == word for ahead, word in enumerate(words)):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Goes past these keywords. Raises InputError if something else comes."""
        if not self.take(*words):
            raise self.error(f"{' '.join(words)} is expected")

    def next(self) -> Token:
        """Goes past any token. Raises InputError at the end."""
        token = self.peek()
        if token is None:
            raise self.error("more is expected")
        self._at += 1
        return token

    def name(self) -> str:
        """Goes past a name. Raises InputError if there is none."""
        token = self.peek()
        if token is None or token.name is None:
            raise self.error("a name is expected")
        self._at += 1
        return token.name

    def until(self, *words: str) -> str:
        """Goes to the first of these keywords outside of parentheses and CASE, or to the end, and returns the text
        before
        it. Raises InputError if there is none."""
        first = self.peek()
        cases = 0
        while (token := self.peek()) is not None and first is not None:
            if token.depth == first.depth:
                if cases == 0 and token.upper in words and not self._is_part():
                    break
                if token.upper == "CASE" and not self._is_part():
                    cases += 1
                elif token.upper == "END" and cases and not self._is_part():
                    cases -= 1
            elif token.depth < first.depth:
                break
            self._at += 1
        return self.since(first)

    def group(self) -> list[Token]:
        """Goes past a pair of parentheses, and returns the tokens in it. Raises InputError if there is none."""
        self.expect("(")
        start = self._at
        depth = self._tokens[start - 1].depth
        while self._tokens[self._at].depth > depth:
            self._at += 1
        inside = list(self._tokens[start : self._at])
        self._at += 1
        return inside

    def rest(self) -> str:
        """The text of all remaining tokens. Raises InputError if there is none."""
        first, self._at = self.peek(), len(self._tokens)
        return self.since(first)

    def error(self, reason: str) -> InputError:
        """An error about the next token."""
        token = self.peek()
        where = "at its end" if token is None else f"at character {token.start}, {_near(self.sql, token.start)}"
        return InputError(f"can't read the statement {where}: {reason}")

    def _is_part(self) -> bool:
        """Whether the token is a part of a name, as in ``t.case``."""
        before = self._tokens[self._at - 1].text if self._at else ""
        return before == "." or self.word(1) == "."

    def since(self, first: Token | None) -> str:
        """The text from a token to the last one that was read. Raises InputError if there is none."""
        last = self._tokens[self._at - 1] if self._at else None
        if first is None or last is None or last.end <= first.start:
            raise self.error("an expression is expected")
        return self.sql[first.start : last.end]


_VERSION, _TIME = ("VERSION", "SYSTEM_VERSION"), ("TIMESTAMP", "SYSTEM_TIME")
_OPERATORS = {"+", "-", "*", "/", "%", "||", "|", "&", "^", "::", ".", "[", "("}
_NO_ALIAS = {
    "ANTI", "CLUSTER", "CROSS", "DISTRIBUTE", "EXCEPT", "FULL", "GROUP", "HAVING", "INNER", "INTERSECT", "JOIN",
    "LATERAL", "LEFT", "LIMIT", "MINUS", "NATURAL", "OFFSET", "ON", "ORDER", "PIVOT", "RIGHT", "SELECT", "SEMI", "SORT",
    "TABLESAMPLE", "UNION", "UNPIVOT", "USING", "WHEN", "WHERE", "WINDOW",
}  # fmt: skip


def with_versions(sql: str, attached: Attachments, views: Views, *, case_sensitive: bool) -> str:
    """The text with views in place of tables that have a version.

    Raises:
        InputError: a version can't be read.
        VersionNotFoundError, VersionExpiredError, TagNotFoundError, TableNotFoundError: it does not exist.
    """
    tokens = tokenize(sql)
    reader = SqlReader(sql, tokens)
    replaced: list[tuple[int, int, str]] = []  # first character, end, and the new text
    while not reader.is_done:
        token = reader.next()
        after_dot = token.start > 0 and _before(tokens, token).endswith(".")
        if token.name is None or after_dot or not _travels(reader):
            continue
        found = attached.find(token.name, case_sensitive=case_sensitive)
        if found is None:
            continue
        _check_no_cte(sql, tokens, token.name)
        attachment, table = found
        reader.take("FOR")
        by_version = reader.next().upper in _VERSION
        reader.expect("AS", "OF")
        first = reader.peek()
        snapshot = _at_version(reader, attachment) if by_version else _at_time(reader, attachment, views)
        if reader.peek() is first:
            raise reader.error("a version is expected")
        then = reader.peek()
        if not by_version and then is not None and then.upper in _OPERATORS | {"AT"}:
            raise reader.error("put the time in parentheses")
        has_alias = then is not None and then.name is not None and then.upper not in _NO_ALIAS
        view = views.make(to_spark(snapshot.table(table), spark=views.spark))
        alias = "" if has_alias else f" AS {quote(token.name)}"
        end = reader.since(first)
        assert first is not None
        replaced.append((token.start, first.start + len(end), f"`{view}`{alias}"))
    for start, stop, text in reversed(replaced):
        sql = f"{sql[:start]}{text}{sql[stop:]}"
    return sql


def _before(tokens: list[Token], token: Token) -> str:
    index = tokens.index(token)
    return tokens[index - 1].text if index else ""


def _travels(reader: SqlReader) -> bool:
    """Whether the next tokens name a version, and not a column as in ``SELECT version AS of``."""
    ahead = 1 if reader.word() == "FOR" else 0
    if reader.word(ahead) not in _VERSION + _TIME or (reader.word(ahead + 1), reader.word(ahead + 2)) != ("AS", "OF"):
        return False
    value = reader.peek(ahead + 3)
    return value is not None and value.upper not in {",", ")", ";", "FROM"}


def _at_version(reader: SqlReader, attachment: Attachment) -> Snapshot:
    token = reader.next()
    text = token.text
    if token.text == ":":
        text = f":{reader.name()}"
        raise reader.error(f"VERSION AS OF {text}: write the number or the tag itself, Spark takes no parameter there")
    if token.kind == "number" and text.isdecimal():
        return attachment.database.at(version=int(text))
    if token.kind != "text" or text[0] not in "'\"" or "\\" in text:
        raise reader.error("VERSION AS OF takes a number, or a tag in quotes")
    text = text[1:-1].replace(text[0] * 2, text[0])
    if not text.isdecimal():
        return attachment.database.at(tag=text)
    if text in attachment.database.tags():
        raise reader.error(f"{text!r} is a tag, and may be a version: write the number without quotes, or another tag")
    return attachment.database.at(version=int(text))


def _at_time(reader: SqlReader, attachment: Attachment, views: Views) -> Snapshot:
    """The version at a time that Spark evaluates, in the session's zone: a text, a call, or what is in parentheses."""
    first = reader.peek()
    _go_past_time(reader)
    while reader.word() in ("+", "-") and reader.word(1) == "INTERVAL":
        for _ in range(4):  # the sign, INTERVAL, number and unit
            reader.next()
    text = reader.since(first)
    args = views.args if isinstance(views.args, Mapping) else None  # a list does not say which
    if args is None and "?" in text:
        raise reader.error("a time takes named parameters (:name) alone")
    query = f"SELECT unix_micros(CAST((\n{text}\n) AS TIMESTAMP)) AS at"
    row: Row | None = Views(views.spark, args).run(query, text).first()
    if row is None or row["at"] is None:
        raise InputError(f"TIMESTAMP AS OF {short_repr(text)} is no time")
    return attachment.database.at(timestamp=int(row["at"]))


def _go_past_time(reader: SqlReader) -> None:
    if reader.word() == "(":
        reader.group()
        return
    if reader.take(":"):
        reader.name()
        return
    token = reader.next()
    if token.kind == "text":
        return
    following = reader.peek()
    if token.kind == "word" and following is not None:
        if following.text == "(":
            reader.group()
            return
        if token.upper in ("TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "DATE") and following.kind == "text":
            reader.next()
            return
    if token.upper not in ("CURRENT_TIMESTAMP", "CURRENT_DATE"):
        raise reader.error("TIMESTAMP AS OF takes a text, a function, or an expression in parentheses")


def _check_no_cte(sql: str, tokens: list[Token], name: str) -> None:
    """Raises InputError if a WITH may give this name to one of its queries."""
    for token, second, third in zip(tokens, tokens[1:], tokens[2:], strict=False):
        is_same = token.name is not None and token.name.lower() == name.lower()
        if is_same and second.upper == "AS" and third.text == "(":
            raise InputError(f"{short_repr(sql[token.start :])}: WITH takes the name of a table; take another one")
