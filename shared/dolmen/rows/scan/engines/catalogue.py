"""Descriptions of tables in SQL: ``information_schema``, ``DESCRIBE`` and DuckDB's functions.

A query that only asks for that gets empty tables of DuckDB with the same columns, keys, checks, defaults and comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from dolmen.errors import InputError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import DefaultFunction, Schema
from dolmen.format.types import from_json, quote_name
from dolmen.predicate.ast import Column
from dolmen.predicate.text import checks_in_sql, literal
from dolmen.rows.scan.engines.dataset import ScanDataset
from dolmen.rows.scan.plan import stored_schema_of

if TYPE_CHECKING:
    import duckdb

_SCHEMAS = ("information_schema", "pg_catalog")
_RELATION = re.compile(r"sqlite_(master|schema)|pg_\w+|duckdb_\w+|pragma_\w+")
_TEXT = Column(0, "string")
_NAME = r'(?:"(?:[^"]|"")*"|[a-z_]\w*)'
_TEXT_OR_PATH = re.compile(rf"'(?:[^']|'')*'|({_NAME})((?:\.{_NAME})+)")


def asks_about_tables(parsed: str, names: Collection[str]) -> bool:
    """True if a query, from ``json_serialize_sql``, asks about tables (``names``), and reads no row of them.

    Raises:
        InputError: it does both.
    """
    try:
        found = set(_relations(json.loads(parsed), names))
    except RecursionError:
        raise InputError("a query about tables is nested too deeply: write it with fewer levels") from None
    if len(found) == 2:
        raise InputError(
            "a query that asks about tables (information_schema, DESCRIBE, duckdb_columns() ...) can't read their rows "
            "as well: run two queries"
        )
    return found == {"tables"}


def _relations(node: Any, names: Collection[str]) -> Iterator[str]:
    """``tables`` for each relation of a query that tells about tables, ``rows`` for each that is one."""
    if isinstance(node, list):
        for each in node:
            yield from _relations(each, names)
    if not isinstance(node, dict):
        return
    kind, name = node.get("type"), str(node.get("table_name", "")).lower()
    function = str(node.get("function_name", "")).lower()
    if kind == "SHOW_REF" and node["show_type"] != "SUMMARY":
        yield "tables"
        return
    if kind == "BASE_TABLE" and node["schema_name"].lower() in _SCHEMAS:
        yield "tables"
    elif kind == "BASE_TABLE" and (name in names or _RELATION.fullmatch(name)):
        yield "rows" if name in names else "tables"
    elif function == "query_table":
        yield "rows"
    elif kind == "TABLE_FUNCTION" and _RELATION.fullmatch(node["function"]["function_name"].lower()):
        yield "tables"
    for each in node.values():
        yield from _relations(each, names)


def create_table(connection: duckdb.DuckDBPyConnection, dataset: ScanDataset, table: Any) -> None:
    """Makes an empty table of DuckDB that tells what ``table``, one of a version or transaction, is."""
    entry: TableEntry = table._entry
    schema, name = stored_schema_of(table), quote_name(dataset.name)
    relation = dataset.relation(connection)
    parts = []
    for field, kind in zip(schema.fields, relation.types, strict=True):
        default, null = _default(schema, field.name), "" if field.nullable else " NOT NULL"
        parts.append(f"{quote_name(field.name)} {kind}{null}{default}")
    if entry.primary_key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quote_name, schema.names_of(entry.primary_key)))})")
    # In a CHECK, DuckDB takes s.a for a column of a table s.
    checks = (_TEXT_OR_PATH.sub(_bracket_column, text) for text in checks_in_sql(schema).values())
    parts += [f"CHECK ({text})" for text in checks]
    comments = {f"COLUMN {name}.{quote_name(field.name)}": field.comment for field in schema.fields}
    comments[f"TABLE {name}"] = entry.properties.get("comment", "")
    statements = [f"COMMENT ON {what} IS {literal(text, 'string', _TEXT)}" for what, text in comments.items() if text]
    connection.execute("; ".join([f"CREATE TABLE {name} ({', '.join(parts)})", *statements]))


def _default(schema: Schema, name: str) -> str:
    value, field = schema.write_defaults.get(name), schema.field(name)
    if value is None or isinstance(value, DefaultFunction):
        return "" if value is None else f" DEFAULT {value}"
    kind = str(field.type)
    return f" DEFAULT {literal(from_json(value, field.arrow_type), kind, Column(field.id, kind))}"


def _bracket_column(found: re.Match[str]) -> str:
    return f"({found[1]}){found[2]}" if found[1] else found[0]
