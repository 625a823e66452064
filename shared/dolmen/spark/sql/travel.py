"""``table VERSION AS OF ...`` and ``table TIMESTAMP AS OF ...``: views of these versions in a statement's text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Row

from dolmen.base.arguments import short_repr
from dolmen.errors import InputError
from dolmen.spark.sql.attachment import Attachment, Attachments, frame_of
from dolmen.spark.sql.tokens import SqlReader, Token, tokenize
from dolmen.spark.sql.views import Views
from dolmen.transactions.snapshot import Snapshot

_VERSION, _TIME = ("VERSION", "SYSTEM_VERSION"), ("TIMESTAMP", "SYSTEM_TIME")
_OPERATORS = {"+", "-", "*", "/", "%", "||", "|", "&", "^", "::", ".", "[", "("}
_NO_ALIAS = {
    "ANTI", "CLUSTER", "CROSS", "DISTRIBUTE", "EXCEPT", "FULL", "GROUP", "HAVING", "INNER", "INTERSECT", "JOIN",
    "LATERAL", "LEFT", "LIMIT", "MINUS", "NATURAL", "OFFSET", "ON", "ORDER", "PIVOT", "RIGHT", "SELECT", "SEMI", "SORT",
    "TABLESAMPLE", "UNION", "UNPIVOT", "USING", "WHEN", "WHERE", "WINDOW",
}  # fmt: skip


@dataclass(frozen=True)
class _Place:
    """A table with a version in a text: ``start`` and ``end`` are characters."""

    start: int
    end: int
    view: str
    alias: str


def with_versions(sql: str, attached: Attachments, views: Views, *, case_sensitive: bool) -> str:
    """The text with views in place of tables that have a version; all else is as it was.

    Raises:
        InputError: a version that can't be read.
        VersionNotFoundError, VersionExpiredError, TagNotFoundError, TableNotFoundError: it is not there.
    """
    tokens = tokenize(sql)
    reader = SqlReader(sql, tokens)
    places = list[_Place]()
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
        view = views.make(frame_of(views.spark, attachment.database, snapshot, table))
        alias = "" if has_alias else " AS `" + token.name.replace("`", "``") + "`"
        end = reader.since(first)
        assert first is not None
        places.append(_Place(token.start, first.start + len(end), view, alias))
    for place in reversed(places):
        sql = f"{sql[: place.start]}`{place.view}`{place.alias}{sql[place.end :]}"
    return sql


def _before(tokens: list[Token], token: Token) -> str:
    place = tokens.index(token)
    return tokens[place - 1].text if place else ""


def _travels(reader: SqlReader) -> bool:
    """Whether what comes next names a version, and not, say, a column ``version`` in ``SELECT version AS of``."""
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
        reader.next()
        reader.next()
        reader.next()
        reader.next()
    text = reader.since(first)
    args = views.args if isinstance(views.args, Mapping) else None  # of a list, which one?
    if args is None and "?" in text:
        raise reader.error("a time takes named parameters (:name) alone")
    asked = f"SELECT unix_micros(CAST((\n{text}\n) AS TIMESTAMP)) AS at"
    row: Row | None = Views(views.spark, args).run(asked, text).first()
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
    """Raises InputError if a WITH may give this name to a query of its own."""
    for token, second, third in zip(tokens, tokens[1:], tokens[2:], strict=False):
        is_same = token.name is not None and token.name.lower() == name.lower()
        if is_same and second.upper == "AS" and third.text == "(":
            raise InputError(f"{short_repr(sql[token.start :])}: WITH takes the name of a table; take another one")
