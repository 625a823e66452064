"""Other versions of tables, ``FROM t AT (VERSION => 3)``, and inspection, ``FROM dolmen_files('t')``, as relations.

DuckDB knows neither. In the text a relation's name takes their place; its rows are found when a query names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from dolmen.errors import InputError
from dolmen.format.types import quote_name
from dolmen.sql.tokens import DUCKDB, SqlReader, replace_spans, tokenize

FUNCTIONS: Mapping[str, tuple[int, int]] = {
    "dolmen_files": (1, 1), "dolmen_partitions": (1, 1), "dolmen_deletes": (1, 1), "dolmen_changes": (2, 3),
    "dolmen_versions": (0, 0), "dolmen_tags": (0, 0),
}  # fmt: skip
"""The least and the greatest number of arguments, by function."""
VIEW = "dolmen_view_"  # begins the names of relations
_MAY_SHOW = re.compile(r"\bat\b|\bdolmen_", re.IGNORECASE)
_WAYS = ("VERSION", "TIMESTAMP", "TAG")
_NO_ALIAS = {
    "ANTI", "ASOF", "CROSS", "EXCEPT", "FULL", "GROUP", "HAVING", "INNER", "INTERSECT", "JOIN", "LEFT", "LIMIT",
    "NATURAL", "OFFSET", "ON", "ORDER", "POSITIONAL", "QUALIFY", "RETURNING", "RIGHT", "SELECT", "SEMI", "SET",
    "TABLESAMPLE", "UNION", "USING", "WHEN", "WHERE", "WINDOW",
}  # fmt: skip

_DESCRIBING = ("DESCRIBE", "DESC", "SHOW", "SUMMARIZE")  # words before a relation that takes no alias


class ShownRelation(Struct, frozen=True):
    """A relation: a table (``name``) in a version that ``what`` (VERSION, ...) names, or the result of a function."""

    what: str
    name: str
    arguments: Sequence[str]


def replace_shown(sql: str) -> tuple[str, dict[str, ShownRelation]]:
    """The text with the names of relations, and these by their names. Raises InputError."""
    if not _MAY_SHOW.search(sql):
        return sql, {}
    reader, spans = SqlReader(sql, tokenize(sql, DUCKDB), DUCKDB), list[tuple[int, int, str]]()
    shown: dict[str, ShownRelation] = {}
    before = ""
    while (token := reader.peek()) is not None:
        found = None if before == "." else _read(reader)
        if found is None:
            before = reader.next().text
            continue
        view = f"{VIEW}{len(shown)}"
        shown[view] = found
        following = reader.peek()
        has_alias = following is not None and following.name is not None and following.upper not in _NO_ALIAS
        has_alias = has_alias or before.upper() in _DESCRIBING
        alias = "" if has_alias else f" AS {quote_name(found.name or found.what)}"
        spans.append((token.start, token.start + len(reader.since(token)), f"{view}{alias}"))
        before = ""
    return replace_spans(sql, spans), shown


def _read(reader: SqlReader) -> ShownRelation | None:
    """Goes past a relation that begins here."""
    token, after = reader.peek(), reader.peek(1)
    if token is None or token.name is None or after is None:
        return None
    function = token.name.lower()
    if function in FUNCTIONS and after.text == "(":
        reader.next()
        arguments = _arguments(reader)
        least, most = FUNCTIONS[function]
        if not least <= len(arguments) <= most:
            raise InputError(f"{function}() takes {least if least == most else f'{least} or {most}'} arguments")
        return ShownRelation(function, "", arguments)
    ahead = 2 if token.upper == "MAIN" and after.text == "." else 0
    words = [reader.word(ahead + number) for number in range(1, 5)]
    if words[:2] != ["AT", "("] or words[2] not in _WAYS or words[3] != "=>":
        return None
    for _ in range(ahead):
        reader.next()
    name = reader.name()
    reader.expect("AT")
    inner = SqlReader(reader.sql, reader.group(), DUCKDB)
    way = inner.next().upper
    inner.expect("=>")
    return ShownRelation(way, name, [inner.rest()])


def _arguments(reader: SqlReader) -> list[str]:
    if reader.word(1) == ")":
        reader.group()
        return []
    return reader.items(lambda inner: inner.until(","))
