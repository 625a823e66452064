"""Long lists of literals, ``INSERT INTO t VALUES (1, 'a'), (2, 'b'), ...``, as relations.

DuckDB plans each value of a list as an expression, several times. So a relation of the same values takes the list's
place in the text, with the types that DuckDB would give them. Lists that have other expressions, or a column with
literals of several kinds, stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
from msgspec import Struct

from dolmen.rows.scan.engines.expressions import Literals
from dolmen.sql.tokens import replace_spans

LEAST_ROWS = 32  # the fewest rows whose list is replaced
VALUES = "dolmen_values_"  # begins the names of the relations
_NAME = r'(?:[^\W\d]\w*|"(?:[^"]|"")*")'
_INSERT = re.compile(
    rf"\s* INSERT\s+(?:OR\s+(?:REPLACE|IGNORE)\s+)?INTO\s+{_NAME}(?:\s*\.\s*{_NAME})?(?:\s+AS\s+{_NAME})?"
    rf"\s*(?:\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\))?\s* \bVALUES\s* (?=\()",
    re.IGNORECASE | re.VERBOSE,
)
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:E[+-]?\d+)?"
_TEXT = r"'[^']*(?:''[^']*)*'"
_VALUE = re.compile(
    rf"""\s*(?:
      (?P<null> NULL) | (?P<flag> TRUE|FALSE) | (?P<number> [+-]?{_NUMBER}|\(\s*-{_NUMBER}\s*\)) | (?P<text> {_TEXT})
    | (?P<before> DATE|TIMESTAMPTZ|TIMESTAMP|TIME)\s*(?P<of_type> {_TEXT})
    | CAST\s*\(\s*(?P<cast> {_TEXT})\s+AS\s+(?P<after> DATE|TIMESTAMPTZ|TIMESTAMP|TIME|DOUBLE|BLOB|UUID)\s*\)
    )\s*(?P<end> [,)])""",
    re.IGNORECASE | re.VERBOSE,
)
_NEXT_ROW = re.compile(r"\s*,\s*\(")
_NEXT_STATEMENT = re.compile(r"\s*;")
_AFTER = re.compile(r"\s*(?:;|\Z|(?:ON|RETURNING)\b)", re.IGNORECASE)
_MOST_DIGITS = 38


class LiteralRows(Struct, frozen=True):
    """The rows of a list: a relation, the query that reads it, and the literals of each column."""

    rows: pa.Table
    query: str
    literals: Sequence[Literals]


def begins_with_values(sql: str) -> bool:
    """True if a text begins with an INSERT of VALUES."""
    return _INSERT.match(sql) is not None


def replace_rows(sql: str) -> tuple[str, dict[str, LiteralRows]]:
    """The text with queries in place of the long lists that its first statements insert; and the lists, by relation."""
    spans, found, at = list[tuple[int, int, str]](), dict[str, LiteralRows](), 0
    while (head := _INSERT.match(sql, at)) is not None:
        name = f"{VALUES}{len(found)}"
        rows, at = _read(sql, head.end(), name)
        if rows is not None:
            found[name] = rows
            spans.append((sql.upper().rindex("VALUES", 0, head.end()), at, f"{rows.query} "))
        if (end := _NEXT_STATEMENT.match(sql, at)) is None:
            break
        at = end.end()
    return replace_spans(sql, spans), found


def _read(sql: str, start: int, name: str) -> tuple[LiteralRows | None, int]:
    """Reads a list that begins at a character: its rows, or None, and its end as far as it was read."""
    columns: list[list[str | None]] = []
    kinds: list[set[str]] = []
    at, column, rows = start + 1, 0, 0
    while (match := _VALUE.match(sql, at)) is not None:
        null, flag, number, text, before, of_type, cast, after, end = match.groups()
        if rows == 0:
            columns.append([])
            kinds.append(set())
        elif column == len(columns):
            return None, at
        value = None if null else flag or number or text or of_type or cast
        columns[column].append(value)
        kind = "NULL" if null else "flag" if flag else "number" if number else "text" if text else before or after
        kinds[column].add(kind)
        at, column = match.end(), column + 1
        if end == ",":
            continue
        if column < len(columns):
            return None, at
        rows, column = rows + 1, 0
        if (following := _NEXT_ROW.match(sql, at)) is None:
            is_replaced = rows >= LEAST_ROWS and _AFTER.match(sql, at)
            return (_rows(columns, kinds, name) if is_replaced else None), at
        at = following.end()
    return None, at


def _rows(columns: Sequence[Sequence[str | None]], kinds: Sequence[set[str]], name: str) -> LiteralRows | None:
    arrays, terms, literals = list[pa.Array](), list[str](), list[Literals]()
    for index, (values, found) in enumerate(zip(columns, kinds, strict=True)):
        own = {kind.upper() for kind in found} - {"NULL"}
        if len(own) > 1:
            return None
        [kind] = own or {"NULL"}
        array = _array(kind, values)
        if array is None:
            return None
        arrays.append(array)
        is_plain = kind in ("NULL", "FLAG", "NUMBER", "TEXT")
        terms.append(f"c{index}" if is_plain else f"CAST(c{index} AS {kind})")
        literals.append(Literals(only_literals=is_plain, only_literal_texts=is_plain, has_null="NULL" in found))
    table = pa.table(arrays, [f"c{index}" for index in range(len(arrays))])
    return LiteralRows(table, f"SELECT {', '.join(terms)} FROM {name}", literals)  # noqa: S608 - names of its own


def _array(kind: str, values: Sequence[str | None]) -> pa.Array | None:
    """The values of a column, in DuckDB's type of such literals; None where that is not plain."""
    if kind == "NULL":
        return pa.nulls(len(values), pa.int32())
    if kind == "FLAG":
        return pa.array([None if value is None else value.upper() == "TRUE" for value in values], pa.bool_())
    if kind != "NUMBER":
        return pa.array([None if value is None else value[1:-1].replace("''", "'") for value in values], pa.string())
    numbers = [None if value is None else value.strip("()+ \t\r\n") for value in values]
    present = [number for number in numbers if number is not None]
    types: list[pa.DataType]
    if any("e" in number or "E" in number for number in present):
        types = [pa.float64()]
    elif any("." in number for number in present):
        parts = [number.lstrip("-").partition(".") for number in present]
        scale = max(len(fraction) for _, _, fraction in parts)
        digits = scale + max(len(whole) for whole, _, _ in parts)
        types = [pa.decimal128(digits, scale)] if digits <= _MOST_DIGITS else []
    else:
        types = [pa.int32(), pa.int64()]
    texts = pa.array(numbers, pa.string())
    for each in types:
        try:
            return texts.cast(each)
        except pa.ArrowInvalid:
            continue
    return None
