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
    import sqlglot
    from sqlglot import exp

    try:
        statement = sqlglot.parse_one(f"CREATE TABLE t ({text})", dialect="duckdb")
    except sqlglot.errors.ParseError as error:
        raise SchemaError(f"columns {text!r} can't be read: {error.errors[0]['description']}") from error
    definitions = statement.this.expressions if isinstance(statement, exp.Create) else []
    fields = []
    for definition in definitions:
        if not isinstance(definition, exp.ColumnDef) or definition.kind is None:
            raise SchemaError(f"{definition.sql('duckdb')!r} is not a column: give name and type, e.g. 'id BIGINT'")
        required = any(
            isinstance(c.kind, exp.NotNullColumnConstraint) and not c.kind.args.get("allow_null")
            for c in definition.args.get("constraints") or []
        )
        fields.append(pa.field(definition.name, _arrow_type(definition.kind), nullable=not required))
    if not fields:
        raise SchemaError("no columns: give e.g. 'id BIGINT NOT NULL, name VARCHAR'")
    return pa.schema(fields)


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
        precision, scale = [int(p.name) for p in inner] if len(inner) == 2 else [18, 3]  # DuckDB's default
        return pa.decimal128(precision, scale)
    if this in (types.ARRAY, types.LIST) and len(inner) == 1:
        return pa.list_(_arrow_type(inner[0]))
    if this is types.MAP and len(inner) == 2:
        return pa.map_(_arrow_type(inner[0]), _arrow_type(inner[1]))
    if this is types.STRUCT:
        return pa.struct([pa.field(child.name, _arrow_type(child.args["kind"])) for child in inner])
    raise SchemaError(
        f"type {kind.sql('duckdb')} is not stored; there are BIGINT, VARCHAR, TIMESTAMPTZ, DECIMAL(p, s), ..."
    )
