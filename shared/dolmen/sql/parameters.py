"""Values of a text's parameters, written into it as literals of DuckDB's SQL.

A text has several statements, and pieces of one are predicates, expressions and queries: a literal means the same in
all of them. Texts are quoted, so no value ends its literal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np

from dolmen.base import arguments
from dolmen.errors import InputError, short_repr
from dolmen.format.types import quote_text
from dolmen.predicate.constants import from_numpy
from dolmen.rows.scan.engines.sql import Parameters
from dolmen.sql.tokens import DUCKDB, Token, replace_spans, tokenize


def with_literals(sql: str, parameters: Parameters) -> str:
    """The text with a literal in place of each parameter: ``?``, ``$1`` or ``$name``. Raises InputError."""
    if parameters is not None and (isinstance(parameters, str) or not isinstance(parameters, (Sequence, Mapping))):
        raise InputError("parameters are a list of values, for each ? in turn, or a dict of them, for each $name")
    if not parameters and "?" not in sql and "$" not in sql:
        return sql
    tokens = tokenize(sql, DUCKDB)
    found = [token for token in tokens if token.kind == "parameter"]
    after_in = {token for before, token in pairwise(tokens) if before.upper == "IN"}
    if isinstance(parameters, Mapping):
        values = {str(name).removeprefix("$"): value for name, value in parameters.items()}
    else:
        values = {str(number): value for number, value in enumerate(parameters or (), 1)}
    names = _names(found)
    if missing := [name for name in names if name not in values]:
        raise InputError(
            f"no value for parameter {missing[0]!r}: the text needs {len(set(names))}, and has {len(values)}"
        )
    if unused := sorted(values.keys() - set(names)):
        raise InputError(f"parameter {short_repr(unused[0])} is not in the text")
    spans = []
    for token, name in zip(found, names, strict=True):
        text = literal(values[name])
        if token in after_in and text[0] == "[" and text != "[]":  # as in predicates, whose IN takes a list
            text = f"({text[1:-1]})"
        spans.append((token.start, token.end, f" {text} "))
    return replace_spans(sql, spans)


def _names(found: Sequence[Token]) -> list[str]:
    if len({token.text == "?" for token in found}) > 1:
        raise InputError("? takes its value by its position, and $name by its name: write one kind in a text")
    return [str(number) if token.text == "?" else token.text[1:] for number, token in enumerate(found, 1)]


def python_value(value: Any) -> Any:
    """A value of pyarrow, NumPy or pandas as Python's, except for times of NumPy, which may have nanoseconds."""
    if hasattr(value, "as_py"):
        return value.as_py()
    if isinstance(value, np.ndarray) or (
        isinstance(value, np.generic) and not isinstance(value, (np.datetime64, np.timedelta64))
    ):
        return value.tolist()
    if isinstance(value, memoryview):
        return bytes(value)
    return None if type(value).__name__ == "NAType" else value


def python_values(parameters: Parameters) -> Parameters:
    """Parameters of a query, each as ``python_value`` gives it."""
    if isinstance(parameters, Mapping):
        return {name: python_value(value) for name, value in parameters.items()}
    is_list = isinstance(parameters, Sequence) and not isinstance(parameters, str)
    return list(map(python_value, parameters)) if is_list else parameters  # type: ignore[arg-type]


def literal(value: Any) -> str:
    """A value of Python as a literal of DuckDB's SQL. Raises InputError for other types."""
    value = python_value(value)
    if isinstance(value, (np.datetime64, np.timedelta64)):
        item = value.item()  # of nanoseconds, an int
        value = from_numpy(value) if type(item) is int else item
    if isinstance(value, (datetime, np.datetime64, np.timedelta64)) and value != value:  # NaT
        value = None
    if getattr(value, "nanosecond", 0):
        raise InputError(f"a parameter is {value!r}, which has digits beyond microseconds: round it")
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case int() | Decimal() if isinstance(value, int) or value.is_finite():
            text = f"{value:f}" if isinstance(value, Decimal) else str(int(value))
            return f"({text})" if text[0] == "-" else text  # or a sign before it would begin a comment
        case float():
            return f"CAST('{float(value)!r}' AS DOUBLE)"
        case str():
            return _quote_parameter(value)
        case bytes() | bytearray():
            return "CAST('" + "".join(f"\\x{byte:02X}" for byte in value) + "' AS BLOB)"
        case datetime():
            return f"CAST('{value.isoformat(' ')}' AS {'TIMESTAMP' if value.tzinfo is None else 'TIMESTAMPTZ'})"
        case date():
            return f"CAST('{value.isoformat()}' AS DATE)"
        case time() if value.tzinfo is None:
            return f"CAST('{value.isoformat()}' AS TIME)"
        case timedelta():
            return f"to_microseconds({value // timedelta(microseconds=1)})"
        case UUID():
            return f"'{value}'"
        case list() | tuple():
            return f"[{', '.join(map(literal, value))}]"
        case dict() if all(isinstance(name, str) for name in value):
            return "{" + ", ".join(f"{_quote_parameter(name)}: {literal(each)}" for name, each in value.items()) + "}"
    raise InputError(f"a parameter is {short_repr(value)}, of type {type(value).__name__}: SQL has no literal for it")


def _quote_parameter(text: str) -> str:
    if "\0" in arguments.text("a parameter", text):
        raise InputError("a parameter has the character NUL, which SQL's text cannot have: write through the methods")
    return quote_text(text)
