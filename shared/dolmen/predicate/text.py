"""A predicate as SQL text, which people can read and ``parse`` turns back into the same predicate."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal

import numpy as np
import pyarrow as pa

from dolmen.base.units import SECOND_US
from dolmen.format.schema import Field, Schema, child_fields, type_from_json
from dolmen.format.types import Plain, quote_name, quote_text, type_text
from dolmen.predicate import ast
from dolmen.predicate.ast import Predicate, Term
from dolmen.predicate.bind import condition_of
from dolmen.predicate.constants import format_date, format_time, format_timestamp
from dolmen.predicate.domains import Domain, domain_of

_SIMPLE = re.compile(r"[a-z_][a-z0-9_]*")
_RESERVED = (
    "all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create "
    "current_date current_timestamp default deferrable desc describe distinct do else end except exists false fetch "
    "for foreign from group having if in initially interval intersect into is isnull lambda lateral leading like "
    "limit localtimestamp map not notnull null offset on only or order pivot pivot_longer pivot_wider placing primary "
    "qualify references returning select show some summarize symmetric table then to trailing true union unique "
    "unpivot using variadic when where window with current_user"
)
_RESERVED_NAMES = frozenset(_RESERVED.split())

_ANY_NUMBER = ast.Column(0, "int64")


def to_sql(p: Predicate, schema: Schema) -> str:
    """DuckDB's SQL for a predicate, which parses to the same predicate. Dropped columns keep their names."""
    match p:
        case ast.Compare(op="=", left=ast.Call(type="bool") as call, right=ast.Literal(value=True)):
            return _name(call, schema)
        case ast.Compare():
            right = p.right
            text = literal(right.plain, right.type, p.left) if isinstance(right, ast.Literal) else _name(right, schema)
            return f"{_name(p.left, schema)} {p.op} {text}"
        case ast.In():
            return _in(p, "IN", schema)
        case ast.IsNull():
            return f"{_name(p.column, schema)} IS NULL"
        case ast.Like():
            operator = "ILIKE" if p.ignore_case else "LIKE"
            escape = f" ESCAPE {quote_text(p.escape)}" if p.escape else ""
            return f"{_name(p.column, schema)} {operator} {quote_text(p.pattern)}{escape}"
        case ast.Truth():
            return _name(p.column, schema)
        case ast.Constant():
            return "NULL" if p.value is None else "TRUE" if p.value else "FALSE"
        case ast.Not(arg=ast.IsNull(column=column)):
            return f"{_name(column, schema)} IS NOT NULL"
        case ast.Not(arg=ast.In() as inner):
            return _in(inner, "NOT IN", schema)
        case ast.Not():
            return f"NOT {_parenthesize(p.arg, schema)}"
        case ast.And():
            return " AND ".join(_parenthesize(arg, schema) for arg in p.args)
        case ast.Or():
            return " OR ".join(_parenthesize(arg, schema) for arg in p.args)
    raise AssertionError(p)


def checks_in_sql(schema: Schema) -> dict[str, str]:
    """The conditions of a table's checks, by name."""
    return {check.name: to_sql(condition_of(check, schema), schema) for check in schema.checks}


def _in(p: ast.In, operator: str, schema: Schema) -> str:
    values = [literal(value, p.type, p.column) for value in p.plain]
    return f"{_name(p.column, schema)} {operator} ({', '.join(values + ['NULL'] * p.null)})"


def _parenthesize(p: Predicate, schema: Schema) -> str:
    text = to_sql(p, schema)
    return f"({text})" if isinstance(p, (ast.And, ast.Or)) else text


def _name(column: Term, schema: Schema) -> str:
    if isinstance(column, ast.Call):
        return _call(column, schema)
    field = schema.by_id[column.column_id]
    path, siblings = [_quote_if_needed(field.name, schema.fields)], schema.fields
    for id_ in column.path:
        siblings = child_fields(field.type)
        # A field that was dropped has no name any more.
        field = next((each for each in siblings if each.id == id_), Field(id_, f"dropped field {id_}", {"struct": []}))
        path.append(_quote_if_needed(field.name, siblings))
    dotted = ".".join(path)
    if len(path) > 1 and any(field.name.lower() == dotted for field in schema.fields):
        path[0] = quote_name(schema.by_id[column.column_id].name)
    return ".".join(path)


def _quote_if_needed(name: str, siblings: Iterable[Field]) -> str:
    is_unique = sum(field.name.lower() == name for field in siblings) <= 1
    return name if is_unique and _SIMPLE.fullmatch(name) and name not in _RESERVED_NAMES else quote_name(name)


def _call(call: ast.Call, schema: Schema) -> str:
    args = [
        literal(arg.plain, arg.type, _ANY_NUMBER) if isinstance(arg, ast.Literal) else _name(arg, schema)
        for arg in call.args
    ]
    if call.function == "cast":
        target = "INT" if call.type == "int32" else type_text(call.arrow_type)  # INT is in digests of requests
        return f"TRY_CAST({args[0]} AS {target})"
    if call.function == "negate":
        return f"-({args[0]})"
    if call.function == "add_interval":
        months, days, us = (int(arg.value) for arg in call.args[1:] if isinstance(arg, ast.Literal))  # type: ignore[arg-type]
        seconds, rest = divmod(us, SECOND_US)
        return f"({args[0]} + INTERVAL '{months} months {days} days {seconds} seconds {rest} us')"
    if len(args) == 2 and call.function in ("+", "-", "*", "/", "%"):
        return f"({args[0]} {call.function} {args[1]})"
    return f"{call.function}({', '.join(args)})"


_KEYWORDS = {
    Domain.BYTES: "", Domain.DATE: "DATE ", Domain.TIME: "TIME ", Domain.NAIVE: "TIMESTAMP ",
    Domain.ZONED: "TIMESTAMPTZ ",
}  # fmt: skip


def literal(value: Plain, own: str, column: Term) -> str:
    """A literal of type ``own`` that binds to the same type when it is compared with this column."""
    own_type = type_from_json(own)
    domain, column_domain = domain_of(own_type), domain_of(column.arrow_type)
    text = plain_text(value, own_type)
    if domain is Domain.FLOAT32:
        is_plain = column_domain is domain and math.isfinite(value) and "e" not in text  # type: ignore[arg-type]
        return text if is_plain else f"CAST('{text}' AS FLOAT)"
    if domain is Domain.FLOAT64:
        if not math.isfinite(value):  # type: ignore[arg-type]
            return f"CAST('{text}' AS DOUBLE)"
        return text if column_domain is domain or "e" in text else f"{text}e0"
    if domain in _KEYWORDS:
        return f"{_KEYWORDS[domain]}'{text}'"
    return quote_text(text) if domain is Domain.TEXT else text.upper() if domain is Domain.BOOLEAN else text


def typed_literal(value: Plain, arrow_type: pa.DataType) -> str:
    """A literal of DuckDB's SQL that has this type wherever it is."""
    return f"CAST({quote_text(plain_text(value, arrow_type))} AS {type_text(arrow_type)})"


def plain_text(value: Plain, arrow_type: pa.DataType) -> str:
    """A value other than NULL as text that ``from_text`` (``dolmen.predicate.constants``) parses for this type."""
    match domain_of(arrow_type), value:
        case Domain.BOOLEAN, _:
            return "true" if value else "false"
        case Domain.EXACT, Decimal():
            return f"{value:f}"
        case Domain.FLOAT32, float():
            return str(np.float32(value))
        case Domain.BYTES, bytes():
            return "".join(chr(b) if 32 <= b < 127 and b not in b"'\\" else f"\\x{b:02X}" for b in value)
        case Domain.DATE, int():
            return format_date(value)
        case Domain.TIME, int():
            return format_time(value)
        case Domain.NAIVE, int():
            return format_timestamp(value)
        case Domain.ZONED, int():
            return f"{format_timestamp(value)}+00:00"
    return str(value)
