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

A YAML document whose every part knows the line it stands on, and that is only ever text, lists and mappings.

Nothing is constructed from it but text: ``30d``, ``false`` and ``007`` are what they look like, a column may be called
``on``, and no tag can name anything.
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
from dolmen.declaration.column_text import parse_column, parse_default
from dolmen.errors import Error, InputError, LimitError, SchemaError
from dolmen.format.evolution import check_comment
from dolmen.format.ingest_properties import INGEST_PROPERTIES
from dolmen.format.layout import check_table_name
from dolmen.format.properties import DATABASE_PROPERTIES, TABLE_PROPERTIES, check_table_properties
from dolmen.format.property import check_properties
from dolmen.format.schema import Schema
from dolmen.format.types import Json
from dolmen.transactions.row_statements import check_key, check_sortable, default_json

T = TypeVar("T")


MAX_BYTES = MIB


_CORE = "tag:yaml.org,2002:"


_TEXTUAL = frozenset(_CORE + name for name in ("str", "int", "float", "bool", "timestamp", "merge", "value"))


_NULL = _CORE + "null"


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A node of the document.

    Args:
        file: its name, for messages.
        what: what it is, for messages: "table 'events'".
    """

    node: Any
    file: str
    what: str

    @property
    def line(self) -> int:
        """The line on which it begins, counted from 1."""
        return int(self.node.start_mark.line) + 1

    def error(self, reason: object, kind: type[InputError] = InputError) -> InputError:
        """An error that says where in the file, about what, and why."""
        return kind(f"{self.file}, line {self.line}: {self.what}: {reason}")

    def check(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls ``function``; what it finds wrong is said with the place of this part."""
        try:
            return function(*arguments)
        except InputError as error:
            raise self.error(error, type(error) if type(error).__init__ is Error.__init__ else InputError) from error

    @property
    def is_list(self) -> bool:
        """True for a list."""
        return bool(self.node.id == "sequence")

    @property
    def is_mapping(self) -> bool:
        """True for a mapping."""
        return bool(self.node.id == "mapping")

    def members(self, known: Iterable[str] | None = None, *, of: str = "{}") -> dict[str, DocumentPart]:
        """The members of a mapping, in their order.

        Args:
            known: the names there may be; None = any.
            of: what each is, with ``{}`` for its name, for messages.

        Raises:
            InputError: no mapping, a name twice, or one that is not known.
        """
        if self.node.id != "mapping" or self.node.tag != _CORE + "map":
            raise self.error(f"{self._shown()} is no mapping: write 'name: value' lines, or {{name: value, ...}}")
        allowed = None if known is None else list(known)
        members: dict[str, DocumentPart] = {}
        for key, value in self.node.value:
            place = DocumentPart(key, self.file, self.what)
            name = place.text("a name")
            if name == "<<":
                raise place.error("'<<' is not understood here: write the members out")
            if name in members:
                raise place.error(f"{name!r} stands here twice, first on line {members[name].line}")
            if allowed is not None and name not in allowed:
                raise place.error(f"unknown member {name!r}; {_instead(name, allowed)}")
            members[name] = DocumentPart(value, self.file, of.format(repr(name)) if "{}" in of else f"{of} {name!r}")
        return members

    def text(self, wanted: str = "one value") -> str:
        """The value of this node as text. Raises InputError for a list, a mapping, or nothing."""
        node = self.node
        if node.id != "scalar":
            raise self.error(f"{self._shown()} is not {wanted}")
        if node.tag == _NULL:
            raise self.error(f"{wanted} is missing: write it, or leave the line away")
        if node.tag not in _TEXTUAL:
            raise self.error(f"the tag {node.tag} is not understood: write plain values")
        return str(node.value)

    def texts(self) -> list[str]:
        """A list of texts; one text is a list of one. An empty or ``null`` element is meant as text, too."""
        if not self.is_list:
            return [self.text()]
        if wrong := next((node for node in self.node.value if node.id != "scalar"), None):
            raise DocumentPart(wrong, self.file, self.what).error("a list of texts has no lists and mappings in it")
        return [str(node.value) for node in self.node.value]

    def _shown(self) -> str:
        if self.node.id != "scalar":
            return {"sequence": "a list", "mapping": "a mapping"}[self.node.id]
        return repr(self.node.value) if self.node.value else "nothing"


def parse_document(text: str, file: str) -> DocumentPart:
    """Reads a YAML document.

    Raises:
        LimitError: it is larger than a megabyte.
        InputError: it is not YAML, empty, or more than one document.
    """
    import yaml  # here: only those who declare tables need it

    if len(text) > MAX_BYTES:
        raise LimitError(f"{file}: {len(text):,} characters; at most {MAX_BYTES:,} are read")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}" if mark else ""
        reason = "; ".join(str(part) for part in (error.context, error.problem, error.note) if part)
        raise InputError(f"{file}{place}: not YAML: {reason}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{file}: not YAML: {error}") from error
    except RecursionError:
        raise InputError(f"{file}: not a declaration: nested too deeply") from None
    if node is None:
        raise InputError(f"{file}: empty: write 'tables:' and a table below it")
    return DocumentPart(node, file, "the file")


def _instead(name: str, known: list[str]) -> str:
    close = [one for one in known if name.endswith(f"_{one}")] or get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"


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
