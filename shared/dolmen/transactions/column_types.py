"""Columns, types and defaults as text, in DuckDB's words, which sqlglot parses: ``id BIGINT NOT NULL``."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dolmen.base import arguments
from dolmen.base.late_imports import higher_function
from dolmen.errors import InputError, PredicateError, SchemaError, short_repr
from dolmen.format.schema import MAX_DEPTH, Default, DefaultFunction, Field, is_nested, stored_type
from dolmen.format.types import TYPES, from_json, short_type
from dolmen.predicate.constants import scalar_from_text
from dolmen.predicate.domains import Domain, domain_of
from dolmen.predicate.text import plain_text
from dolmen.predicate.tree_reader import DECIMAL_LIMITS, decimal_type
from dolmen.rows.write.row_input import as_batches

_ELSEWHERE = {
    "DefaultColumnConstraint": "; for defaults use `dolmen alter --default`, or a declaration (`dolmen apply`)",
    "PrimaryKeyColumnConstraint": "; for the primary key use --primary-key",
    "AutoIncrementColumnConstraint": "; keys get their values from the program",
    "GeneratedAsIdentityColumnConstraint": "; keys get their values from the program",
}
"""Hints by sqlglot's name for a column constraint."""

_SOME_TYPES = "there are BIGINT, VARCHAR, TIMESTAMPTZ, DECIMAL(p, s), ..."
_BY_TOKEN = {token: each.stored for each in TYPES for token in (*each.sql_tokens, *each.sql_aliases)}


def columns_and_rows(source: Any) -> tuple[pa.Schema, pa.RecordBatchReader | None]:
    """The columns of a new table as ``create_table`` takes them, and its first rows if ``source`` has rows.

    Raises SchemaError, InputError.
    """
    if isinstance(source, pa.Schema):
        return source, None
    if isinstance(source, str):
        return parse_columns(source), None
    polars, pandas = sys.modules.get("polars"), sys.modules.get("pandas")
    if polars and isinstance(source, polars.Schema):
        if wrong := [name for name, kind in source.items() if kind == polars.Object]:
            raise SchemaError(f"column {wrong[0]!r} of Polars' type Object cannot be stored", column=wrong[0])
        return source.to_frame().to_arrow().schema, None
    if pandas and isinstance(source, pandas.Series):  # ``frame.dtypes``
        frame = pandas.DataFrame({name: pandas.Series(dtype=kind) for name, kind in source.items()})
        return as_batches(frame).schema, None
    pyspark = sys.modules.get("pyspark.sql.types")
    if pyspark and isinstance(source, pyspark.StructType):
        columns: pa.Schema = higher_function("worker_schema")(source)
        return columns, None
    if isinstance(source, Mapping) and source and all(isinstance(each, (str, pa.DataType)) for each in source.values()):
        fields = [
            parse_column(name, kind) if isinstance(kind, str) else pa.field(name, kind) for name, kind in source.items()
        ]
        return pa.schema(fields), None
    rows = as_batches(source)
    return rows.schema, rows


def parse_columns(text: str) -> pa.Schema:
    """The Arrow schema of a list such as ``id BIGINT NOT NULL, tags VARCHAR[]``. Raises SchemaError."""
    fields = _fields(text, f"columns {text!r} can't be read")
    if not fields:
        raise SchemaError("no columns: write a list such as 'id BIGINT NOT NULL, name VARCHAR'")
    return pa.schema(fields)


def parse_column(name: str, text: str) -> pa.Field:
    """A column of any name, with a type such as ``BIGINT NOT NULL``. Raises SchemaError."""
    if not text.strip():
        raise SchemaError(f"column {name!r} has no type; {_SOME_TYPES}", column=name)
    fields = _fields(f"c {text}", f"type {text!r} can't be read")
    if len(fields) != 1:
        raise SchemaError(f"{text!r} is not one type; {_SOME_TYPES}")
    return fields[0].with_name(name)


def _check_depth(text: str) -> None:
    """Raises SchemaError for types whose nesting would exhaust the parser's stack."""
    depth = deepest = 0
    for sign in re.findall(r"[(<>)]", bare := re.sub(r'"[^"]*"|\'[^\']*\'', "", text)):
        depth += 1 if sign in "(<" else -1
        deepest = max(deepest, depth)
    lists = max((found.count("[") for found in re.findall(r"(?:\[[^\[\]]*\]\s*)+", bare)), default=0)
    if deepest > MAX_DEPTH + 1 or lists > MAX_DEPTH:  # a decimal may add a level of parentheses
        limit = f"a type is nested more than {MAX_DEPTH} levels deep: store the inner values as JSON text"
        raise SchemaError(f"columns {short_repr(text)}: {limit}")


def _fields(text: str, unreadable: str) -> list[pa.Field]:
    _check_depth(text)
    import sqlglot
    from sqlglot import exp

    try:
        statement = sqlglot.parse_one(f"CREATE TABLE t ({text})", dialect="duckdb")
    except sqlglot.errors.SqlglotError as error:
        details = getattr(error, "errors", None)
        raise SchemaError(f"{unreadable}: {details[0]['description'] if details else error}") from error
    whole = isinstance(statement, exp.Create) and isinstance(statement.this, exp.Schema)
    if not whole or any(value for name, value in statement.args.items() if name not in ("this", "kind")):
        raise SchemaError(f"{unreadable}: it is more than a list of columns")
    return [_field(definition) for definition in statement.this.expressions]


def _field(definition: Any) -> pa.Field:
    from sqlglot import exp

    if not isinstance(definition, exp.ColumnDef) or definition.kind is None:
        raise SchemaError(f"{definition.sql('duckdb')!r} is not a column: write a name and a type, as in 'id BIGINT'")
    required = False
    for constraint in definition.args.get("constraints") or []:
        if not isinstance(constraint.kind, exp.NotNullColumnConstraint):
            hint = _ELSEWHERE.get(type(constraint.kind).__name__, "")
            what = "write a name, a type and optionally NOT NULL"
            raise SchemaError(f"{constraint.sql()} is not supported: {what}{hint}")
        required = not constraint.kind.args.get("allow_null")
    return pa.field(definition.name, _arrow_type(definition.kind), nullable=not required)


def _arrow_type(kind: Any) -> pa.DataType:
    from sqlglot import exp

    types = exp.DataType.Type
    this, inner = kind.this, kind.expressions
    if isinstance(this, types) and this.name in _BY_TOKEN:
        return _BY_TOKEN[this.name]
    if this is types.DECIMAL:
        decimal = decimal_type(kind)
        if decimal is None:
            raise SchemaError(f"{kind.sql('duckdb')}: a decimal has {DECIMAL_LIMITS}")
        return decimal
    if this in (types.ARRAY, types.LIST) and len(inner) == 1 and not kind.args.get("values"):
        return pa.list_(_arrow_type(inner[0]))
    if this is types.MAP and len(inner) == 2:
        return pa.map_(_arrow_type(inner[0]), _arrow_type(inner[1]))
    if this is types.STRUCT and inner and all(isinstance(child, exp.ColumnDef) for child in inner):
        return pa.struct([_field(child) for child in inner])
    instead = {
        types.UUID: "store it as VARCHAR, or as 16 bytes: pa.binary(16) in an Arrow schema",
        types.JSON: "store it as VARCHAR",
    }.get(this, _SOME_TYPES)
    raise SchemaError(f"type {kind.sql('duckdb')} cannot be stored; {instead}")


_FORMS = {
    Domain.BOOLEAN: "write true or false",
    Domain.BYTES: "write bytes as \\xAA, ASCII as it is",
    Domain.DATE: "write YYYY-MM-DD",
    Domain.TIME: "write HH:MM:SS, with up to 6 digits of fraction",
    Domain.NAIVE: "write YYYY-MM-DD HH:MM:SS, without an offset",
    Domain.ZONED: "write YYYY-MM-DD HH:MM:SS, and an offset such as Z or +02:00",
}


def parse_default(column: pa.Field, text: str) -> pa.Scalar:
    """Parses a default. Raises InputError if it is not a value of the column's type, or the type has no defaults."""
    stored = stored_type(column.type)
    if is_nested(stored):
        raise InputError(f"column {column.name!r} of type {short_type(stored)} can have no default other than NULL")
    text, domain = arguments.text("default", text), domain_of(stored)
    try:
        return scalar_from_text(text, stored)
    except PredicateError:
        form = _FORMS.get(domain, "write a number of the type")  # type: ignore[arg-type]  # not nested
        raise InputError(f"{short_repr(text)} is not a value of {short_type(stored)}: {form}") from None


def default_text(value: Default, column: Field) -> str | None:
    """A default as ``parse_default`` parses it, or the call of a function; None for NULL."""
    if isinstance(value, DefaultFunction):
        return str(value)
    return None if value is None else plain_text(from_json(value, column.arrow_type), column.arrow_type)
