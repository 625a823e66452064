"""Reads a declaration: tables with their columns, keys and properties, checked as far as possible without a database.

::

    database: {retention: 30d}
    tables:
      events:
        columns:
          id: BIGINT NOT NULL
          event_time: TIMESTAMPTZ
          name: {type: VARCHAR, default: unknown, comment: the user's name, renamed_from: user}
          made: {type: TIMESTAMPTZ, default_function: now()}
        checks: {named: name <> ''}
        primary_key: id                     # or a list
        sort_key: event_time
        ttl: event_time 90d                 # any property of a table
        ingest: {format: csv, mode: upsert} # properties of ingest, without the prefix ingest_; cdc_* with it

The YAML document consists only of texts, lists and mappings, and each part knows its line. Scalars stay text: ``30d``,
``false`` and ``007`` are not converted, and a column can be called ``on``. Tags cannot construct objects.

Types are DuckDB's, which sqlglot parses. Defaults are parsed like quoted literals in predicates.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from dolmen.base.units import MIB
from dolmen.errors import Error, InputError, LimitError, SchemaError
from dolmen.format.column_terms import parse_sort_key, sort_texts
from dolmen.format.ingest_properties import INGEST_PROPERTIES, TABLE_PROPERTIES, check_table_properties
from dolmen.format.layout import check_table_name
from dolmen.format.properties import DATABASE_PROPERTIES, check_comment, check_one_order, check_properties
from dolmen.format.schema import Default, Schema
from dolmen.predicate.text import to_sql
from dolmen.transactions.column_types import parse_column, parse_default
from dolmen.transactions.constraints import parse_check
from dolmen.transactions.keys import check_key
from dolmen.transactions.merge.clauses import Expression
from dolmen.transactions.schema_verbs import column_default

T = TypeVar("T")

MAX_BYTES = MIB
MAX_TABLES = 1000
MAX_COLUMNS = 2000

_YAML = "tag:yaml.org,2002:"
_TEXTUAL = frozenset(_YAML + name for name in ("str", "int", "float", "bool", "timestamp", "merge", "value"))

_INGEST = {name.removeprefix("ingest_"): name for name in INGEST_PROPERTIES}
_OWN = [name for name in TABLE_PROPERTIES if name not in INGEST_PROPERTIES]
_MEMBERS = ["columns", "checks", "primary_key", "sort_key", *_OWN, "ingest"]

Value = str | list[str]


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A node of the document. Messages use the file's name, and the title, such as "table 'events'"."""

    node: Any
    file: str
    title: str

    @property
    def line(self) -> int:
        """The 1-based line on which the node begins."""
        return int(self.node.start_mark.line) + 1

    def error(self, reason: object, kind: type[InputError] = InputError) -> InputError:
        """An error that names the file, the line, the node and the reason."""
        return kind(f"{self.file}, line {self.line}: {self.title}: {reason}")

    def check(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls ``function``, and adds the file and line of this node to its InputError."""
        try:
            return function(*arguments)
        except InputError as error:
            raise self.error(error, type(error) if type(error).__init__ is Error.__init__ else InputError) from error

    def members(self, allowed: Iterable[str] | None = None, *, of: str = "{}") -> dict[str, DocumentPart]:
        """The members of a mapping, in their order. Raises InputError unless it is a mapping with allowed names.

        ``of`` describes a member for messages, with ``{}`` for its name.
        """
        if self.node.id != "mapping" or self.node.tag != _YAML + "map":
            raise self.error(f"{self._label()} is not a mapping: write 'name: value' lines, or {{name: value, ...}}")
        names = None if allowed is None else list(allowed)
        members: dict[str, DocumentPart] = {}
        for key, value in self.node.value:
            part = DocumentPart(key, self.file, self.title)
            name = part.text("a name")
            if name == "<<":
                raise part.error("'<<' is not supported: write the members out")
            if name in members:
                raise part.error(f"{name!r} occurs twice, first on line {members[name].line}: remove one of the two")
            if names is not None and name not in names:
                raise part.error(f"unknown member {name!r}; {_instead(name, names)}")
            members[name] = DocumentPart(value, self.file, of.format(repr(name)) if "{}" in of else f"{of} {name!r}")
        return members

    def text(self, expected: str = "one value") -> str:
        """The value as text. Raises InputError for a list, a mapping, or an empty value."""
        node = self.node
        if node.id != "scalar":
            raise self.error(f"{self._label()} is not {expected}")
        if node.tag == _YAML + "null":
            raise self.error(f"{expected} is missing: write it, or remove the line")
        if node.tag not in _TEXTUAL:
            raise self.error(f"the tag {node.tag} is not supported: write plain values")
        return str(node.value)

    def texts(self) -> list[str]:
        """A list of texts, or one text as a list. Empty and ``null`` elements are text too."""
        if self.node.id != "sequence":
            return [self.text()]
        if wrong := next((node for node in self.node.value if node.id != "scalar"), None):
            raise DocumentPart(wrong, self.file, self.title).error("a list of texts cannot contain lists and mappings")
        return [str(node.value) for node in self.node.value]

    def _label(self) -> str:
        scalar = repr(self.node.value) if self.node.value else "nothing"
        return {"sequence": "a list", "mapping": "a mapping"}.get(self.node.id, scalar)


def parse_document(text: str, file: str) -> DocumentPart:
    """Reads a YAML document. Raises InputError unless the text is one document of at most a megabyte."""
    import yaml  # only declarations need it

    if len(text) > MAX_BYTES:
        raise LimitError(f"{file}: {len(text):,} characters; a declaration has at most {MAX_BYTES:,}")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        reason = "; ".join(str(part) for part in (error.context, error.problem, error.note) if part)
        raise InputError(f"{file}{line}: not YAML: {reason}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{file}: not YAML: {error}") from error
    except RecursionError:
        raise InputError(f"{file}: not a declaration: nested too deeply") from None
    if node is None:
        raise InputError(f"{file}: empty: write 'tables:' and a table below it")
    return DocumentPart(node, file, "the file")


def _instead(name: str, allowed: list[str]) -> str:
    close = [one for one in allowed if name.endswith(f"_{one}")] or get_close_matches(name, allowed, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(allowed)}"


@dataclass(frozen=True)
class DeclaredColumn:
    """The attributes of a column other than its name and type."""

    # JSON form of the value for rows that are written without it, or the function that computes it
    default: Default = None
    comment: str = ""
    renamed_from: str | None = None  # the column's earlier name; None if it has none


@dataclass(frozen=True)
class DeclaredTable:
    """A declared table: see ``Database.create_table``. ``columns`` has further attributes of columns.

    ``checks``: the conditions by name, as ``to_sql`` writes them; None to leave them as they are.
    """

    name: str
    schema: pa.Schema
    primary_key: tuple[str, ...]
    sort_key: tuple[str, ...]
    properties: Mapping[str, Value]
    columns: Mapping[str, DeclaredColumn] = field(default_factory=dict)
    checks: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Declaration:
    """Declared tables and properties of the database."""

    tables: Mapping[str, DeclaredTable]  # the tables by name
    database: Mapping[str, Value] | None  # properties of the database; None to leave them as they are
    file: str  # name of the file, for messages

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Declaration:
        """Reads a YAML file. Raises OSError, and InputError, whose message has the line and what to write."""
        with Path(path).open("rb") as file:
            body = file.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise LimitError(f"{Path(path).name}: a declaration has at most {MAX_BYTES:,} bytes")
        try:
            return cls.parse(body.decode("utf-8-sig"), Path(path).name)
        except UnicodeDecodeError as error:
            raise InputError(f"{Path(path).name}: not UTF-8: byte {error.start}") from error

    @classmethod
    def parse(cls, text: str, file: str = "declaration") -> Declaration:
        """Reads YAML text. Raises InputError, whose message names ``file``."""
        whole = parse_document(text, file)
        members = whole.members(("database", "tables"))
        database = None
        if "database" in members:
            part = members["database"]
            database = _properties(part.members(DATABASE_PROPERTIES, of="database"), DATABASE_PROPERTIES)
        tables = members["tables"].members(of="table") if "tables" in members else {}
        if len(tables) > MAX_TABLES:
            raise LimitError(f"{file}: {len(tables):,} tables; a file can declare at most {MAX_TABLES:,}")
        if not tables and database is None:
            raise whole.error("declares nothing: write 'tables:' and a table below it")
        return cls({name: _table(name, part) for name, part in tables.items()}, database, file)


def _table(name: str, part: DocumentPart) -> DeclaredTable:
    part.check(check_table_name, name)
    members = part.members(_MEMBERS, of=f"table {name!r}, {{}}")
    if "columns" not in members:
        raise part.error("has no columns: write 'columns:' and below it lines such as 'id: BIGINT NOT NULL'")
    columns = members["columns"]
    schema, attributes = _columns(name, columns)
    table_schema = columns.check(Schema.from_arrow, schema)
    primary_key = _key(members.get("primary_key"), table_schema)
    sort_key: tuple[str, ...] = ()
    if order := members.get("sort_key"):
        sort_key = tuple(sort_texts(order.check(parse_sort_key, order.texts(), table_schema), table_schema))
    ids = [table_schema.field(column).id for column in primary_key]
    properties = _properties({key: members[key] for key in _OWN if key in members}, TABLE_PROPERTIES)
    for key, value in properties.items():  # the checked value has the columns as the schema spells them
        properties |= members[key].check(check_table_properties, {key: value}, table_schema, ids)
    if "ingest" in members:
        ingest_members = members["ingest"].members(_INGEST, of=f"table {name!r}, ingest")
        ingest = _properties({_INGEST[short]: part for short, part in ingest_members.items()}, TABLE_PROPERTIES)
        members["ingest"].check(check_table_properties, ingest, table_schema, ids)
        properties |= ingest
    if order and "cluster_by" in members:
        members["cluster_by"].check(check_one_order, (1,), properties)
    checks = None
    if "checks" in members:
        parts = members["checks"].members(of=f"table {name!r}, check")
        checks = {check: _check(each, table_schema) for check, each in parts.items()}
    return DeclaredTable(name, schema, primary_key, sort_key, properties, attributes, checks)


def _check(part: DocumentPart, schema: Schema) -> str:
    return to_sql(part.check(parse_check, part.text("its condition"), schema), schema)


def _columns(table: str, part: DocumentPart) -> tuple[pa.Schema, dict[str, DeclaredColumn]]:
    """The columns, and their attributes other than name and type."""
    members = part.members(of=f"table {table!r}, column")
    if not members:
        raise part.error("there are none: write 'name: TYPE' lines, such as 'id: BIGINT NOT NULL'")
    if len(members) > MAX_COLUMNS:
        raise part.error(f"{len(members):,} columns; a table can declare at most {MAX_COLUMNS:,}")
    fields, attributes_by_column = [], {}
    for name, column in members.items():
        if column.node.id != "mapping":
            fields.append(_declared_field(name, column))
            continue
        allowed = ("type", "default", "default_function", "comment", "renamed_from")
        attributes = column.members(allowed, of=f"table {table!r}, column {name!r}, {{}}")
        if "type" not in attributes:
            raise column.error("its type is missing: write {type: BIGINT, ...}")
        fields.append(_declared_field(name, attributes["type"]))
        attributes_by_column[name] = _declared_column(fields[-1], attributes, members)
    old_names = [column.renamed_from for column in attributes_by_column.values() if column.renamed_from is not None]
    if twice := next((old for old in old_names if old_names.count(old) > 1), None):
        raise part.error(f"two columns are renamed_from {twice!r}")
    return pa.schema(fields), attributes_by_column


def _declared_field(name: str, part: DocumentPart) -> pa.Field:
    text = part.text("its type")
    try:
        return parse_column(name, text)
    except SchemaError as error:
        hint = '; inside { }, quote a type with commas: "DECIMAL(10, 2)"'
        raise part.error(f"{error}{hint if text.count('(') > text.count(')') else ''}", SchemaError) from error


def _declared_column(
    column: pa.Field, attributes: Mapping[str, DocumentPart], columns: Mapping[str, DocumentPart]
) -> DeclaredColumn:
    default: Default = None
    comment, renamed_from = "", None
    if part := attributes.get("default"):
        value = part.check(parse_default, column, part.text("its default"))
        default = part.check(column_default, column.name, column.type, value)
    if part := attributes.get("default_function"):
        if default is not None:
            raise part.error("the column has a default, too: declare one of the two")
        default = part.check(column_default, column.name, column.type, Expression(part.text("now() or uuid()")))
    if part := attributes.get("comment"):
        comment = part.text("its comment")
        part.check(check_comment, comment)
    if part := attributes.get("renamed_from"):
        renamed_from = part.text("its earlier name")
        if renamed_from in columns:
            raise part.error(f"{renamed_from!r} is also declared as a column")
    return DeclaredColumn(default, comment, renamed_from)


def _key(part: DocumentPart | None, schema: Schema) -> tuple[str, ...]:
    if part is None:
        return ()
    names = part.texts()
    if not names:
        raise part.error("an empty list: name a column, or remove the line")
    part.check(check_key, tuple(part.check(schema.field, name) for name in names))
    return tuple(names)


def _properties(parts: Mapping[str, DocumentPart], allowed: Mapping[str, Any]) -> dict[str, Value]:
    """The values of properties. Each is checked alone, so that an error names its line."""
    values: dict[str, Value] = {}
    for name, part in parts.items():
        value: Value = part.texts() if part.node.id == "sequence" else part.text("its value")
        part.check(check_properties, {name: value}, allowed, "it")
        values[name] = value
    return values
