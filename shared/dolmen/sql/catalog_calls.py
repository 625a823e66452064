"""CREATE TABLE, ALTER TABLE, DROP TABLE, TRUNCATE and COMMENT as calls of a transaction's methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, TypeAlias

import pyarrow as pa
from msgspec import Struct

from dolmen.base.units import count_text
from dolmen.errors import InputError, TableNotFoundError, short_repr
from dolmen.format.schema import own_names
from dolmen.format.types import quote_name
from dolmen.rows.scan.engines.expressions import Evaluator
from dolmen.rows.write.conform import conform_batch, plan_conform
from dolmen.sql.queries import Queries
from dolmen.sql.statements import table_name
from dolmen.sql.tokens import SqlReader
from dolmen.transactions.column_types import parse_column
from dolmen.transactions.merge.clauses import Expression, casts_of
from dolmen.transactions.transaction import Exist, Transaction, unit_of
from dolmen.transactions.transaction_table import TransactionTable

CATALOG_WORDS = ("CREATE", "ALTER", "DROP", "TRUNCATE", "COMMENT")  # the first words of these statements
_CONSTRAINTS = (
    "NOT NULL", "NULL", "DEFAULT", "PRIMARY KEY", "CHECK", "CONSTRAINT", "UNIQUE", "REFERENCES", "GENERATED", "AS",
    "COLLATE",
)  # fmt: skip
_FUNCTIONS = {
    "now()": "now()", "current_timestamp": "now()", "get_current_timestamp()": "now()", "uuid()": "uuid()",
    "gen_random_uuid()": "uuid()",
}  # fmt: skip
"""Functions that can be a default."""
_DAYS = ("current_date", "current_date()", "today()")
_NOT_KEPT = "columns, PRIMARY KEY (a, b) and CHECK (condition) are expected; there are no foreign keys"
_ONLY_TABLES = "there are tables only, and no {}; keep the query in your program, or create a table AS it"
_INSTEAD = {
    "INDEX": "the index of a primary key is a property: table.set(index=True), or WITH (index = true)",
    "SCHEMA": "a database has tables only: use another database, with a URL of its own",
    "SEQUENCE": "there are no sequences; DEFAULT uuid() makes keys",
    "MACRO": "there are no functions of users: write the expression where it is used",
    "FUNCTION": "there are no functions of users: write the expression where it is used",
    "TEMP": "there are no temporary tables: use WITH, or a database in memory, memory://name",
    "TEMPORARY": "there are no temporary tables: use WITH, or a database in memory, memory://name",
}
"""Advice for CREATE, DROP and ALTER of anything but a table."""


@dataclass(frozen=True)
class CatalogCall:
    """A statement on the tables themselves, which is read as it is run."""

    transaction: Transaction
    queries: Queries
    request: str | None

    def run(self, reader: SqlReader) -> None:
        """Makes the calls of a statement. Raises as the methods do, and InputError for what they cannot do."""
        word = reader.next().upper
        calls: dict[str, Callable[[SqlReader], None]] = {
            "CREATE": self._create, "ALTER": self._alter, "DROP": self._drop, "TRUNCATE": self._truncate,
            "COMMENT": self._comment,
        }  # fmt: skip
        calls[word](reader)
        if not reader.is_done:
            raise reader.error("nothing more is expected")

    def _create(self, reader: SqlReader) -> None:
        replaces = reader.take("OR", "REPLACE")
        _expect_table(reader)
        leaves = reader.take("IF", "NOT", "EXISTS")
        name = table_name(reader).lower()
        columns = reader.items(_NewColumn.read) if reader.word() == "(" else []
        if not columns and reader.word() == "LIKE":
            raise reader.error("CREATE TABLE new AS SELECT * FROM old LIMIT 0 takes the columns of another table")
        layout = {"partition_by": _terms(reader)} if reader.take("PARTITIONED", "BY") else {}
        layout |= {"cluster_by": _terms(reader)} if reader.take("CLUSTER", "BY") else {}
        options = self._settings(reader) if reader.take("WITH") else {}
        options |= layout
        exists = name in unit_of(self.transaction).tables
        if leaves or replaces:
            unit_of(self.transaction).depend_on_names(name)
        if exists and leaves:
            _ = reader.is_done or reader.rest()
            return
        rows = self._rows(reader, reads_itself=replaces and exists) if reader.take("AS") else None
        fields = [column for column in columns if column.name]
        keys = [each for column in columns for each in column.key]
        if rows is None:
            schema = pa.schema([column.field(keys) for column in fields])
        elif keys or any(column.type for column in fields):
            raise reader.error("columns before AS have names alone, and the query's types: cast its columns")
        else:
            rows = _renamed(rows, [column.name for column in fields] or rows.schema.names)
            schema = rows.schema
        exist: Exist = "replace" if replaces else "error"
        sort_key = options.pop("sort_key", None)
        table = self.transaction.create_table(
            name, schema, own_keys(keys, schema) or None, sort_key, options, exist=exist, request=self.request
        )
        for column in fields:
            if column.default:
                default = _new_default(schema.field(column.name), column.default)
                table.set_default(column.name, default, request=self.request)
        for column in columns:
            for check in column.checks:
                check.add(table, self.request)
        if rows is not None:
            table.append(rows, request=self.request)

    def _rows(self, reader: SqlReader, *, reads_itself: bool) -> pa.RecordBatchReader:
        rows = self.queries.run(reader.rest()).stream()
        return rows.read_all().to_reader() if reads_itself else rows  # before the table is dropped

    def _alter(self, reader: SqlReader) -> None:
        _expect_table(reader)
        may_miss = reader.take("IF", "EXISTS")
        table = self._table(table_name(reader), may_miss=may_miss)
        while True:
            if reader.take("RENAME", "TO"):
                new = reader.name().lower()
                if table:
                    self.transaction.rename_table(table.name, new, request=self.request)
                return
            change = _read_change(reader, self)
            if table:
                change(table)
            if not reader.take(","):
                return

    def _drop(self, reader: SqlReader) -> None:
        _expect_table(reader)
        may_miss = reader.take("IF", "EXISTS")
        table = self._table(table_name(reader), may_miss=may_miss)
        reader.take("CASCADE")
        reader.take("RESTRICT")
        if table:
            self.transaction.drop_table(table.name, request=self.request)

    def _truncate(self, reader: SqlReader) -> None:
        reader.take("TABLE")
        table = self._table(table_name(reader), may_miss=False)
        assert table is not None
        table.delete("TRUE", request=self.request)

    def _comment(self, reader: SqlReader) -> None:
        reader.expect("ON")
        is_on_table = reader.take("TABLE")
        if not is_on_table and not reader.take("COLUMN"):
            raise reader.error("a comment is on a table or a column: COMMENT ON COLUMN t.c IS 'text'")
        parts = [table_name(reader)] if is_on_table else _path(reader)
        reader.expect("IS")
        [text] = self.queries.scalars([reader.rest()])
        table = self._table(parts[0], may_miss=False)
        assert table is not None
        if is_on_table:
            table.set(comment=text or None, request=self.request)
        else:
            table.comment(".".join(parts[1:]), "" if text is None else text, request=self.request)

    def _table(self, name: str, *, may_miss: bool) -> TransactionTable | None:
        try:
            return self.queries.target(self.transaction, name)
        except TableNotFoundError:
            if not may_miss:
                raise
            return None

    def _settings(self, reader: SqlReader) -> dict[str, Any]:
        """``(name = value, ...)``: settings of a table."""

        def read(inner: SqlReader) -> tuple[str, str]:
            name = inner.name().lower()
            inner.expect("=")
            return name, inner.until(",")

        pairs = reader.items(read)
        return dict(zip([name for name, _ in pairs], self.queries.scalars([text for _, text in pairs]), strict=True))


@dataclass(frozen=True)
class _NewColumn:
    """A column of CREATE TABLE, whose type is empty in ``t (a, b) AS query``; or a constraint, without a name."""

    name: str
    type: str = ""
    default: str = ""
    key: tuple[str, ...] = ()
    checks: tuple[_NewCheck | _Unique, ...] = ()

    @classmethod
    def read(cls, reader: SqlReader) -> _NewColumn:
        if _begins_constraint(reader):
            key, check = _constraint(reader)
            return cls("", key=key, checks=(check,) if check else ())
        name = reader.name()
        if reader.is_done or reader.word() == ",":
            return cls(name)
        return cls(name, *_definition(reader, name))

    def field(self, key: list[str]) -> pa.Field:
        is_key = self.name.lower() in {each.lower() for each in key}
        field = parse_column(self.name, self.type)
        return field.with_nullable(False) if is_key else field


class _NewCheck(Struct, frozen=True):
    """CHECK (condition); ``name`` is empty without CONSTRAINT, and ``column`` if it does not follow a column."""

    name: str
    condition: str
    column: str = ""

    def add(self, table: TransactionTable, request: str | None) -> None:
        """Adds the check, under a name of its own if it has none: ``age_check``, ``t_check``, ``t_check1``."""
        taken, stem = {name.lower() for name in table.checks}, f"{self.column or table.name}_check"
        names = chain([stem], (f"{stem}{number}" for number in count(1)))
        name = self.name or next(name for name in names if name.lower() not in taken)
        table.add_check(name, self.condition, request=request)


class _Unique(Struct, frozen=True):
    """UNIQUE (columns), which the primary key must imply."""

    columns: tuple[str, ...]

    def add(self, table: TransactionTable, request: str | None) -> None:
        """Raises InputError unless the primary key makes the columns unique."""
        key = {name.lower() for name in table.primary_key}
        if not key or not key <= {name.lower() for name in self.columns}:
            names = ", ".join(self.columns)
            raise InputError(
                f"table {table.name!r}: UNIQUE ({names}): only the primary key is unique. Make it PRIMARY KEY "
                f"({names}), primary_key= of create_table, or leave UNIQUE out"
            )


def _begins_constraint(reader: SqlReader) -> bool:
    """Whether a constraint begins here, rather than a column with a constraint's name."""
    following = reader.word(1)
    words = {"PRIMARY": "KEY", "FOREIGN": "KEY", "CHECK": "(", "UNIQUE": "(", "LIKE": following}
    return reader.word() == "CONSTRAINT" or words.get(reader.word()) == following != ""


def _constraint(reader: SqlReader, column: str = "") -> tuple[tuple[str, ...], _NewCheck | _Unique | None]:
    """The columns of a primary key, or a check; of a ``column`` if it follows one."""
    name = reader.name() if reader.take("CONSTRAINT") else ""
    is_key = reader.take("PRIMARY", "KEY")
    if is_key or reader.take("UNIQUE"):
        columns = (column,) if column else tuple(reader.items(SqlReader.name))
        return (columns, None) if is_key else ((), _Unique(columns))
    if not reader.take("CHECK"):
        raise reader.error(_NOT_KEPT)
    return (), _NewCheck(name, _text_in_parentheses(reader), column)


def _text_in_parentheses(reader: SqlReader) -> str:
    inner = reader.group()
    if not inner:
        raise reader.error("a condition is expected")
    return reader.sql[inner[0].start : inner[-1].end]


def _definition(reader: SqlReader, name: str) -> tuple[str, str, tuple[str, ...], tuple[_NewCheck | _Unique, ...]]:
    """The type with NOT NULL, the default, the primary key and the checks that begin here."""
    type, default, key = reader.until(",", *_CONSTRAINTS), "", tuple[str, ...]()
    checks: list[_NewCheck | _Unique] = []
    while not reader.is_done and reader.word() != ",":
        if reader.take("NOT", "NULL"):
            type += " NOT NULL"
        elif reader.take("DEFAULT"):
            default = "NULL" if reader.take("NULL") else reader.until(",", *_CONSTRAINTS)
        elif reader.word() in ("CONSTRAINT", "PRIMARY", "CHECK", "UNIQUE"):
            own_key, check = _constraint(reader, name)
            key, checks = key or own_key, [*checks, *([check] if check else [])]
        elif not reader.take("NULL"):
            raise reader.error("after a type there may be NOT NULL, DEFAULT value, PRIMARY KEY and CHECK (condition)")
    return type, default, key, tuple(checks)


Verb: TypeAlias = Callable[[TransactionTable], None]


def _read_change(reader: SqlReader, call: CatalogCall) -> Verb:
    """The change of one action of ALTER TABLE."""
    for words, read in _ACTIONS:
        if reader.take(*words):
            return read(reader, call)
    raise reader.error("ALTER is expected")


def _add(reader: SqlReader, call: CatalogCall) -> Verb:
    if _begins_constraint(reader):
        own_key, check = _constraint(reader)
        if check:
            return lambda table: check.add(table, call.request)
        return lambda table: table.add_primary_key(own_key, request=call.request)
    reader.take("COLUMN")
    may_exist, path = reader.take("IF", "NOT", "EXISTS"), _path(reader)
    type, default, key, checks = _definition(reader, path[-1])
    if key:
        raise reader.error("a new column can't be a primary key: its values are all the same")
    field = parse_column(path[-1], type)

    def add(table: TransactionTable) -> None:
        if not (may_exist and _has(table, path)):
            value = _new_default(field, default) if default else None
            name = quote_name(path[0]) if len(path) == 1 and "." in path[0] else ".".join(path)
            table.add_column(name, field.type, value, nullable=field.nullable, request=call.request)
            for each in checks:
                each.add(table, call.request)

    return add


def _drop_constraint(reader: SqlReader, call: CatalogCall) -> Verb:
    may_miss, name = reader.take("IF", "EXISTS"), reader.name()
    reader.take("CASCADE")

    def drop_check(table: TransactionTable) -> None:
        if not (may_miss and name.lower() not in map(str.lower, table.checks)):
            table.drop_check(name, request=call.request)

    return drop_check


def _drop_column(reader: SqlReader, call: CatalogCall) -> Verb:
    reader.take("COLUMN")
    may_miss, path = reader.take("IF", "EXISTS"), _path(reader)
    reader.take("CASCADE")

    def drop(table: TransactionTable) -> None:
        if not (may_miss and not _has(table, path)):
            table.drop_column(".".join(path), request=call.request)

    return drop


def _rename_column(reader: SqlReader, call: CatalogCall) -> Verb:
    reader.take("COLUMN")
    path = _path(reader)
    reader.expect("TO")
    new = reader.name()
    return lambda table: table.rename_column(".".join(path), new, request=call.request)


def _sort(reader: SqlReader, call: CatalogCall) -> Verb:
    terms = _terms(reader)
    return lambda table: table.set_sort_key(terms, request=call.request)


def _set(call: CatalogCall, settings: Mapping[str, Any]) -> Verb:
    return lambda table: table.set(request=call.request, **settings)


def _alter_column(reader: SqlReader, call: CatalogCall) -> Verb:
    reader.take("COLUMN")
    path, request = _path(reader), call.request
    name = ".".join(path)
    if reader.take("DROP", "NOT", "NULL"):
        return lambda table: table.make_nullable(name, request=request)
    if reader.take("SET", "NOT", "NULL"):
        return lambda table: table.set_not_null(name, request=request)
    if reader.take("DROP", "DEFAULT"):
        return lambda table: table.set_default(name, None, request=request)
    if reader.take("SET", "DEFAULT"):
        text = reader.until(",")
        return lambda table: table.set_default(name, _default(table, name, text), request=request)
    if reader.take("SET", "DATA", "TYPE") or reader.take("TYPE") or reader.take("SET", "TYPE"):
        kind = parse_column(path[-1], reader.until(",", "USING")).type
        return lambda table: table.widen_column(name, kind, request=request)
    raise reader.error(
        "a column changes by TYPE (widen_column), SET DEFAULT, DROP DEFAULT, SET NOT NULL and DROP NOT NULL"
    )


_ACTIONS: Sequence[tuple[tuple[str, ...], Callable[[SqlReader, CatalogCall], Verb]]] = (
    (("ADD",), _add),
    (("DROP", "CONSTRAINT"), _drop_constraint),
    (("DROP",), _drop_column),
    (("RENAME",), _rename_column),
    (("SET", "SORTED", "BY"), _sort),
    (("RESET", "SORTED", "BY"), lambda _, call: lambda table: table.set_sort_key(None, request=call.request)),
    (("CLUSTER", "BY", "NONE"), lambda _, call: _set(call, {"cluster_by": None})),
    (("CLUSTER", "BY"), lambda reader, call: _set(call, {"cluster_by": _terms(reader)})),
    (("SET", "PARTITIONED", "BY"), lambda reader, call: _set(call, {"partition_by": _terms(reader)})),
    (("RESET", "PARTITIONED", "BY"), lambda _, call: _set(call, {"partition_by": None})),
    (("SET",), lambda reader, call: _set(call, call._settings(reader))),
    (("RESET",), lambda reader, call: _set(call, dict.fromkeys(reader.items(SqlReader.name)))),
    (("ALTER",), _alter_column),
)
"""The actions of ALTER TABLE: their first words, and what reads the rest. The first that fits is taken."""


def _default(table: TransactionTable, name: str, text: str) -> pa.Scalar | Expression:
    [own] = own_names([name], table._stored_schema)
    return _new_default(table.schema.field(own), text)


def _new_default(field: pa.Field, text: str) -> pa.Scalar | Expression:
    """A default as ``add_column`` takes it: a value in the type of a column, or a function."""
    word = "".join(text.split()).lower()
    function = "now()" if word in _DAYS and pa.types.is_date32(field.type) else _FUNCTIONS.get(word)
    return constant(field, text) if function is None else Expression(function)


def _has(table: TransactionTable, path: list[str]) -> bool:
    fields = list(table.schema)
    for part in path:
        found = [field for field in fields if field.name.lower() == part.lower()]
        if not found:
            return False
        fields = list(found[0].type) if pa.types.is_struct(found[0].type) else []
    return True


def _renamed(rows: pa.RecordBatchReader, names: list[str]) -> pa.RecordBatchReader:
    if len(names) != len(rows.schema.names):
        raise InputError(
            f"{count_text(len(names), 'name')} for {count_text(len(rows.schema.names), 'column')} of the query"
        )
    schema = pa.schema([field.with_name(name) for field, name in zip(rows.schema, names, strict=True)])
    batches = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in rows)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _terms(reader: SqlReader) -> list[str]:
    """The terms of PARTITIONED BY (day(event_time), tenant), and of other clauses."""
    return reader.items(lambda inner: inner.until(","))


def _expect_table(reader: SqlReader) -> None:
    if not reader.take("TABLE"):
        kind = reader.word()
        instead = _INSTEAD.get(kind.upper(), _ONLY_TABLES.format(kind.lower() or "such thing"))
        raise reader.error(f"TABLE is expected: {instead}")


def _path(reader: SqlReader) -> list[str]:
    """A column, or the path of a field inside of one."""
    parts = [reader.name()]
    while reader.take("."):
        parts.append(reader.name())
    return parts


def own_keys(keys: list[str], schema: pa.Schema) -> list[str]:
    """The names of a primary key as the columns have them."""
    names = {name.lower(): name for name in schema.names}
    return [names.get(key.lower(), key) for key in keys]


def constant(field: pa.Field, text: str) -> pa.Scalar:
    """The value of a literal in the type of a column. Raises InputError for an expression, RowError, SchemaError."""
    with closing(Evaluator()) as evaluator:
        if not evaluator.is_constant(text):
            raise InputError(
                f"DEFAULT {short_repr(text)}: a default is a value, now() or uuid(), and no other expression"
            )
        [array] = evaluator.evaluate([text], {"row": pa.record_batch([pa.nulls(1, pa.bool_())], ["value"])})
        find = casts_of(evaluator.literals(text, {}))
    plan = plan_conform(pa.schema([field.with_type(array.type)]), pa.schema([field]), find)
    return conform_batch(pa.record_batch([array], [field.name]), plan).column(0)[0]
