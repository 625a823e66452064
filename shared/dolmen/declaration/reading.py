"""Reads a declaration: tables with their columns, keys and properties, checked as far as that takes no database.

::

    database: {retention: 30d}
    tables:
      events:
        columns:
          id: BIGINT NOT NULL
          event_time: TIMESTAMPTZ
          name: {type: VARCHAR, default: nobody, comment: who it was, renamed_from: user}
        primary_key: id                     # or a list
        sort_key: event_time
        ttl: event_time 90d                 # any property of a table
        ingest: {format: csv, mode: upsert} # those of ingest, without their prefix; cdc_* as they are
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from dolmen.declaration.columns import parse_column
from dolmen.declaration.defaults import parse_default
from dolmen.declaration.document import MAX_BYTES, DocumentPart, parse_document
from dolmen.errors import InputError, LimitError, SchemaError
from dolmen.format.evolution import check_comment
from dolmen.format.ingest_properties import INGEST_PROPERTIES
from dolmen.format.layout import check_table_name
from dolmen.format.properties import DATABASE_PROPERTIES, TABLE_PROPERTIES, check_table_properties
from dolmen.format.property import check_properties
from dolmen.format.schema import Schema
from dolmen.format.values import Json
from dolmen.transactions.row_statements import check_key, check_sortable, default_json

MAX_TABLES = 1000
MAX_COLUMNS = 2000

_PREFIX = "ingest_"
_INGEST = {name.removeprefix(_PREFIX): name for name in INGEST_PROPERTIES}
_OWN = [name for name in TABLE_PROPERTIES if name not in INGEST_PROPERTIES]
_COLUMN = ("type", "default", "comment", "renamed_from")
_MEMBERS = ["columns", "primary_key", "sort_key", *_OWN, "ingest"]

Value = str | list[str]


@dataclass(frozen=True)
class DeclaredColumn:
    """A column as it is to be, beside its name and type.

    Args:
        default: JSON form of the value of rows that come without it.
        renamed_from: its earlier name, if it had one.
    """

    default: Json = None
    comment: str = ""
    renamed_from: str | None = None


@dataclass(frozen=True)
class DeclaredTable:
    """A table as it is to be: see ``Database.create_table``.

    Args:
        columns: what is declared of columns beside name and type, by name.
    """

    name: str
    schema: pa.Schema
    primary_key: tuple[str, ...]
    sort_key: tuple[str, ...]
    properties: Mapping[str, Value]
    columns: Mapping[str, DeclaredColumn] = field(default_factory=dict)


@dataclass(frozen=True)
class Declaration:
    """Tables as they are to be.

    Args:
        tables: by name.
        database: properties of the database; None = it is not spoken of.
        file: where it was read, for messages.
    """

    tables: Mapping[str, DeclaredTable]
    database: Mapping[str, Value] | None
    file: str

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Declaration:
        """Reads a YAML file.

        Raises:
            OSError: it cannot be read.
            InputError: it is no declaration; names the line and what to write.
        """
        with Path(path).open("rb") as file:
            body = file.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise LimitError(f"{Path(path).name}: larger than {MAX_BYTES:,} bytes, which is all that is read")
        try:
            return cls.parse(body.decode("utf-8-sig"), Path(path).name)
        except UnicodeDecodeError as error:
            raise InputError(f"{Path(path).name}: not UTF-8: byte {error.start}") from error

    @classmethod
    def parse(cls, text: str, file: str = "declaration") -> Declaration:
        """Reads YAML text. Raises InputError; ``file`` is named in messages."""
        whole = parse_document(text, file)
        members = whole.members(("database", "tables"))
        database = None
        if "database" in members:
            part = members["database"]
            database = _properties(part.members(DATABASE_PROPERTIES, of="database"), DATABASE_PROPERTIES)
        tables = members["tables"].members(of="table") if "tables" in members else {}
        if len(tables) > MAX_TABLES:
            raise LimitError(f"{file}: {len(tables):,} tables; at most {MAX_TABLES:,} are declared in one file")
        if not tables and database is None:
            raise whole.error("declares nothing: write 'tables:' and a table below it")
        return cls({name: _table(name, part) for name, part in tables.items()}, database, file)


def _table(name: str, part: DocumentPart) -> DeclaredTable:
    part.check(check_table_name, name)
    members = part.members(_MEMBERS, of=f"table {name!r}, {{}}")
    if "columns" not in members:
        raise part.error(
            "has no columns: write 'columns:' and 'name: TYPE' lines below it, as in 'id: BIGINT NOT NULL'"
        )
    columns = members["columns"]
    schema, described = _columns(name, columns)
    stored = columns.check(Schema.from_arrow, schema)
    primary_key = _key(members.get("primary_key"), stored)
    if primary_key:
        members["primary_key"].check(check_key, tuple(map(stored.field, primary_key)))
    sort_key = _key(members.get("sort_key"), stored)
    if sort_key:
        members["sort_key"].check(check_sortable, tuple(map(stored.field, sort_key)))
    ids = [stored.field(column).id for column in primary_key]
    properties = _properties({own: members[own] for own in _OWN if own in members}, TABLE_PROPERTIES)
    for own, value in properties.items():
        members[own].check(check_table_properties, {own: value}, stored, ids)
    if "ingest" in members:
        given = members["ingest"].members(_INGEST, of=f"table {name!r}, ingest")
        ingest = _properties({_INGEST[short]: given[short] for short in given}, TABLE_PROPERTIES)
        members["ingest"].check(check_table_properties, ingest, stored, ids)
        properties |= ingest
    return DeclaredTable(name, schema, primary_key, sort_key, properties, described)


def _columns(table: str, part: DocumentPart) -> tuple[pa.Schema, dict[str, DeclaredColumn]]:
    """The columns, and what is declared of them beside name and type."""
    members = part.members(of=f"table {table!r}, column")
    if not members:
        raise part.error("there are none: write 'name: TYPE' lines, as in 'id: BIGINT NOT NULL'")
    if len(members) > MAX_COLUMNS:
        raise part.error(f"{len(members):,} columns; at most {MAX_COLUMNS:,} are declared")
    fields, described = [], {}
    for name, column in members.items():
        if not column.is_mapping:
            fields.append(_field(name, column))
            continue
        facts = column.members(_COLUMN, of=f"table {table!r}, column {name!r}, {{}}")
        if "type" not in facts:
            raise column.error("its type is missing: write {type: BIGINT, ...}")
        fields.append(_field(name, facts["type"]))
        described[name] = _described(fields[-1], facts, members)
    renamed = [column.renamed_from for column in described.values() if column.renamed_from is not None]
    if twice := next((old for old in renamed if renamed.count(old) > 1), None):
        raise part.error(f"two columns are renamed_from {twice!r}")
    return pa.schema(fields), described


def _field(name: str, part: DocumentPart) -> pa.Field:
    text = part.text("its type")
    try:
        return parse_column(name, text)
    except SchemaError as error:
        hint = '; between { and }, put a type with commas in quotes: "DECIMAL(10, 2)"'
        raise part.error(f"{error}{hint if text.count('(') > text.count(')') else ''}", SchemaError) from error


def _described(
    column: pa.Field, facts: Mapping[str, DocumentPart], columns: Mapping[str, DocumentPart]
) -> DeclaredColumn:
    default, comment, renamed_from = None, "", None
    if "default" in facts:
        default = facts["default"].check(_default, column, facts["default"].text("its default"))
    if "comment" in facts:
        comment = facts["comment"].text("its comment")
        facts["comment"].check(check_comment, comment)
    if "renamed_from" in facts:
        renamed_from = facts["renamed_from"].text("its earlier name")
        if renamed_from in columns:
            raise facts["renamed_from"].error(f"{renamed_from!r} is declared, too: a column has one name")
    return DeclaredColumn(default, comment, renamed_from)


def _default(column: pa.Field, text: str) -> Json:
    """The JSON form of a default that is written as text. Raises InputError."""
    return default_json(column.name, column.type, parse_default(column, text))


def _key(part: DocumentPart | None, schema: Schema) -> tuple[str, ...]:
    if part is None:
        return ()
    names = part.texts()
    if not names:
        raise part.error("an empty list: name a column, or leave the line away")
    for name in names:
        part.check(schema.field, name)
    return tuple(names)


def _properties(parts: Mapping[str, DocumentPart], known: Mapping[str, Any]) -> dict[str, Value]:
    """The values of properties, each checked alone, so that an error has its line."""
    values: dict[str, Value] = {}
    for name, part in parts.items():
        value: Value = part.texts() if part.is_list else part.text("its value")
        part.check(check_properties, {name: value}, known, "it")
        values[name] = value
    return values
