"""Parameters of PEP 249's statements: ``:name`` beside ``?`` and ``$name``, and one INSERT for many rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Self
from uuid import UUID

import pyarrow as pa
from msgspec import Struct

from dolmen.errors import RowError, short_repr
from dolmen.format.schema import is_nested
from dolmen.sql.row_calls import ROWS
from dolmen.sql.statements import DEFAULT, read_change, split
from dolmen.sql.tokens import DUCKDB, SqlReader, Token, replace_spans, tokenize


def with_dollars(sql: str, names: Mapping[str, Any]) -> str:
    """The text with ``$name`` in place of ``:name``, for the names of parameters.

    A colon after a value, as in ``list[1:n]`` and ``a::INT``, begins no parameter.
    """
    tokens, spans = tokenize(sql, DUCKDB), []
    before: Token | None = None
    for colon, word in pairwise(tokens):
        follows = before is None or before.end < colon.start or (before.kind == "sign" and before.text not in ")]}")
        if colon.text == ":" and word.start == colon.end and word.text in names and follows:
            spans.append((colon.start, word.start, "$"))
        before = colon
    return replace_spans(sql, spans)


class ManyRows(Struct, frozen=True):
    """An INSERT of one row, as one that inserts the rows of a relation (``ROWS``)."""

    table: str  # the name of the table
    text: str  # the statement, in which the relation's columns ``p0``, ``p1``, ... replace parameters.
    keys: Sequence[str | int]  # by column of the relation, the name of its parameter, or its position
    # by column of the relation, its place among the inserted columns; -1 if an expression is around it
    places: Sequence[int]
    columns: Sequence[str] | None  # the inserted columns; None for all in order

    @classmethod
    def of(cls, sql: str) -> Self | None:
        """Reads a statement; None unless it is an INSERT with one row of VALUES, in which all parameters are."""
        statements = split(sql, DUCKDB)
        if len(statements) != 1 or statements[0].word() != "INSERT":
            return None
        tokens = statements[0].tokens
        at = next((at for at, token in enumerate(tokens) if token.upper == "VALUES" and not token.depth), len(tokens))
        reader = SqlReader(sql, tokens[at + 1 :], DUCKDB)
        if reader.word() != "(":
            return None
        keys: list[str | int] = []
        places, pieces = list[int](), list[str]()
        for place, piece in enumerate(reader.items(lambda inner: inner.until(","))):
            spans, found = [], tokenize(piece, DUCKDB)
            for token in found:
                if token.kind == "parameter":
                    spans.append((token.start, token.end, f"{ROWS}.p{len(keys)}"))
                    name = token.text[1:]
                    keys.append(int(name) - 1 if name.isdigit() else name or len(keys))
                    places.append(place if len(found) == 1 else -1)
            pieces.append(replace_spans(piece, spans))
            if piece.upper() == DEFAULT:
                return None
        is_all = len(keys) == sum(token.kind == "parameter" for token in tokens)
        if not is_all or len(set(map(type, keys))) != 1 or reader.word() == ",":
            return None
        statements[0].expect("INSERT")
        statement = read_change(statements[0], "INSERT")
        rest = "" if reader.is_done else reader.rest()
        query = f"SELECT {', '.join(pieces)} FROM {ROWS}"  # noqa: S608 - pieces of the caller's own statement
        text = f"{sql[tokens[0].start : tokens[at].start]} {query} {rest}"
        return cls(statement.target.name, text, keys, places, getattr(statement, "columns", None))

    def rows(self, schema: pa.Schema, parameters: Sequence[Any], first: int) -> pa.Table:
        """The relation. ``first`` is the number of its first row, from 1. Raises InputError, RowError."""
        expected = set(self.keys)
        for number, row in enumerate(parameters, first):
            if isinstance(row, Mapping):
                found = {*row}
            else:
                found = set(range(len(row))) if isinstance(row, Sequence) and not isinstance(row, str) else set()
            if found != expected:
                raise RowError(f"give {len(expected)} parameters: {short_repr(sorted(expected))}", row=number)
        named = {field.name.lower(): field for field in schema}
        fields = list(schema) if self.columns is None else [named.get(name.lower()) for name in self.columns]
        arrays = []
        for key, place in zip(self.keys, self.places, strict=True):
            values = [row[key] for row in parameters]
            arrays.append(_array(values, fields[place] if 0 <= place < len(fields) else None, key, first))
        return pa.table(arrays, [f"p{number}" for number in range(len(arrays))])


def _array(values: Sequence[Any], field: pa.Field | None, key: str | int, first: int) -> pa.Array:
    """The values of one parameter, mostly in their own type: so the INSERT refuses values that do not fit."""
    kind = None if field is None else field.type
    try:
        if kind is not None and all(value is None for value in values):
            return pa.nulls(len(values), kind)
        if all(value is None or isinstance(value, (str, UUID)) for value in values):
            texts = pa.array([None if value is None else str(value) for value in values], pa.string())
            return texts if kind is None or is_nested(kind) else texts.cast(kind)
        if kind is not None and is_nested(kind):
            return pa.array(values, kind)
        try:
            return pa.array(values)
        except (pa.ArrowException, TypeError):  # for example, whole numbers among Decimals
            return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        last = first + len(values) - 1
        raise RowError(
            f"parameter {key + 1 if isinstance(key, int) else key!r} of rows {first:,} to {last:,}: {error}",
            column=None if field is None else field.name,
        ) from error
