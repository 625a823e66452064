"""Columns as text: ``id BIGINT NOT NULL, event_time TIMESTAMPTZ, tags VARCHAR[]`` (DuckDB's types, through sqlglot)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dolmen.errors import SchemaError


def parse_columns(text: str) -> pa.Schema:
    """The Arrow schema of a column list.

    Raises:
        SchemaError: it can't be read, or has a type that dolmen does not store.
    """
    fields = _fields(text, f"columns {text!r} can't be read")
    if not fields:
        raise SchemaError("no columns: give e.g. 'id BIGINT NOT NULL, name VARCHAR'")
    return pa.schema(fields)


def parse_column(name: str, text: str) -> pa.Field:
    """One column by its name, which may be any, and its type: ``BIGINT NOT NULL``. Raises SchemaError."""
    fields = _fields(f"c {text}", f"type {text!r} can't be read")
    if len(fields) != 1:
        raise SchemaError(f"{text!r} is not one type; there are BIGINT, VARCHAR, TIMESTAMPTZ, DECIMAL(p, s), ...")
    return fields[0].with_name(name)


def _fields(text: str, unreadable: str) -> list[pa.Field]:
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
        raise SchemaError(f"{definition.sql('duckdb')!r} is not a column: give name and type, e.g. 'id BIGINT'")
    required = False
    for constraint in definition.args.get("constraints") or []:
        if not isinstance(constraint.kind, exp.NotNullColumnConstraint):
            raise SchemaError(f"{constraint.sql('duckdb')}: a column has a name, a type and NOT NULL or nothing")
        required = not constraint.kind.args.get("allow_null")
    return pa.field(definition.name, _arrow_type(definition.kind), nullable=not required)


def _arrow_type(kind: Any) -> pa.DataType:
    from sqlglot import exp

    types = exp.DataType.Type
    primitives = {
        types.BOOLEAN: pa.bool_(), types.TINYINT: pa.int8(), types.SMALLINT: pa.int16(), types.INT: pa.int32(),
        types.BIGINT: pa.int64(), types.UTINYINT: pa.uint8(), types.USMALLINT: pa.uint16(), types.UINT: pa.uint32(),
        types.UBIGINT: pa.uint64(), types.FLOAT: pa.float32(), types.DOUBLE: pa.float64(), types.TEXT: pa.string(),
        types.VARCHAR: pa.string(), types.CHAR: pa.string(), types.VARBINARY: pa.binary(), types.DATE: pa.date32(),
        types.TIME: pa.time64("us"), types.TIMESTAMP: pa.timestamp("us"), types.TIMESTAMPNTZ: pa.timestamp("us"),
        types.DATETIME: pa.timestamp("us"), types.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    }  # fmt: skip
    this = kind.this
    if this in primitives:
        return primitives[this]
    inner = kind.expressions
    if this is types.DECIMAL:
        return _decimal([int(part.name) for part in inner] or [18, 3], kind.sql("duckdb"))  # DuckDB's default
    if this in (types.ARRAY, types.LIST) and len(inner) == 1 and not kind.args.get("values"):
        return pa.list_(_arrow_type(inner[0]))
    if this is types.MAP and len(inner) == 2:
        return pa.map_(_arrow_type(inner[0]), _arrow_type(inner[1]))
    if this is types.STRUCT and inner and all(isinstance(child, exp.ColumnDef) for child in inner):
        return pa.struct([_field(child) for child in inner])
    raise SchemaError(
        f"type {kind.sql('duckdb')} is not stored; there are BIGINT, VARCHAR, TIMESTAMPTZ, DECIMAL(p, s), ..."
    )


def _decimal(size: list[int], text: str) -> pa.DataType:
    precision, scale = size if len(size) == 2 else (size[0], 0)
    if not (0 < precision <= 38 and 0 <= scale <= precision):
        raise SchemaError(f"{text}: a decimal has 1 to 38 digits, of which so many are after the point")
    return pa.decimal128(precision, scale)


_NAMES = {
    "bool": "BOOLEAN", "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT",
    "uint8": "UTINYINT", "uint16": "USMALLINT", "uint32": "UINTEGER", "uint64": "UBIGINT", "float": "FLOAT",
    "double": "DOUBLE", "string": "VARCHAR", "binary": "BLOB", "date32[day]": "DATE", "time64[us]": "TIME",
    "timestamp[us]": "TIMESTAMP", "timestamp[us, tz=UTC]": "TIMESTAMPTZ",
}  # fmt: skip


def column_text(field: pa.Field) -> str:
    """A stored column's type as ``parse_column`` reads it; Arrow's own words for a type that has none there."""
    return type_text(field.type) + ("" if field.nullable else " NOT NULL")


def type_text(arrow_type: pa.DataType) -> str:
    """A stored type as ``parse_columns`` reads it; Arrow's own words for one that has none there."""
    t = pa.types
    if t.is_list(arrow_type):
        return f"{type_text(arrow_type.value_type)}[]"
    if t.is_map(arrow_type):
        return f"MAP({type_text(arrow_type.key_type)}, {type_text(arrow_type.item_type)})"
    if t.is_struct(arrow_type):
        return f"STRUCT({', '.join(f'{_quoted(field.name)} {column_text(field)}' for field in arrow_type)})"
    if t.is_decimal(arrow_type):
        return f"DECIMAL({arrow_type.precision}, {arrow_type.scale})"
    return _NAMES.get(str(arrow_type), str(arrow_type))


def _quoted(name: str) -> str:
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'
