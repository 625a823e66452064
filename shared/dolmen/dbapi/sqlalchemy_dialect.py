"""SQLAlchemy's dialect: ``create_engine("dolmen:///directory")``, or ``"dolmen+s3://bucket/prefix"``.

See https://docs.sqlalchemy.org/en/21/dialects/.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlalchemy import cast, exc, types
from sqlalchemy.engine import URL, default
from sqlalchemy.sql import compiler

from dolmen import dbapi
from dolmen.errors import TableNotFoundError
from dolmen.format.schema import DefaultFunction
from dolmen.format.types import quote_text, type_text
from dolmen.rows.scan.plan import stored_schema_of
from dolmen.transactions.column_types import default_text

_SCALARS: dict[pa.DataType, Any] = {
    pa.bool_(): types.BOOLEAN,
    pa.int8(): types.SMALLINT,
    pa.int16(): types.SMALLINT,
    pa.int32(): types.INTEGER,
    pa.int64(): types.BIGINT,
    pa.uint8(): types.SMALLINT,
    pa.uint16(): types.INTEGER,
    pa.uint32(): types.BIGINT,
    pa.float32(): types.REAL,
    pa.float64(): types.DOUBLE,
    pa.string(): types.VARCHAR,
    pa.binary(): types.BLOB,
    pa.date32(): types.DATE,
    pa.time64("us"): types.TIME,
}
_MAIN = "main"
_EPOCH = "TIMESTAMP '1970-01-01'"


class DuckdbType(types.UserDefinedType[Any]):  # type: ignore[misc]  # SQLAlchemy is untyped here
    """A type that SQLAlchemy has no name for, such as a list or a struct, by DuckDB's name."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


class DecimalValues(types.Numeric):  # type: ignore[misc]  # SQLAlchemy is untyped here
    """Accepts floats too, by their shortest text, as SQLAlchemy's users expect."""

    def bind_processor(self, dialect: Any) -> Any:
        return lambda value: Decimal(repr(value)) if isinstance(value, float) else value

    def result_processor(self, dialect: Any, coltype: Any) -> Any:  # DuckDB divides decimals as doubles
        return self.bind_processor(dialect) if self.asdecimal else super().result_processor(dialect, coltype)


class FloatValues(types.Float):  # type: ignore[misc]  # SQLAlchemy is untyped here
    """Accepts Decimals too."""

    def bind_processor(self, dialect: Any) -> Any:
        return lambda value: float(value) if isinstance(value, Decimal) else value


class IntervalValues(types.Interval):  # type: ignore[misc]  # SQLAlchemy is untyped here
    """Durations, stored as timestamps counted from 1970-01-01, because tables have no type for durations."""

    def literal_processor(self, dialect: Any) -> Any:
        return lambda value: f"TIMESTAMP '{self.epoch + value}'"


class _JsonPathValues:
    """Keys, numbers, and paths of them, as DuckDB writes paths in JSON."""

    def bind_processor(self, dialect: Any) -> Any:
        return _json_path

    def literal_processor(self, dialect: Any) -> Any:
        return lambda value: quote_text(_json_path(value))


class JsonIndex(_JsonPathValues, types.JSON.JSONIndexType):  # type: ignore[misc]  # SQLAlchemy is untyped here
    """A key or a number."""


class JsonPath(_JsonPathValues, types.JSON.JSONPathType):  # type: ignore[misc]  # SQLAlchemy is untyped here
    """A path of keys and numbers."""


def _json_path(value: Any) -> str:
    """A JSON pointer, in which any key can be written; with a number from the end, a path."""
    parts = [value] if isinstance(value, (int, str)) else value
    if any(isinstance(each, int) and each < 0 for each in parts):
        names = (f"[{each}]" if isinstance(each, int) else f".{json.dumps(each, ensure_ascii=False)}" for each in parts)
        return f"${''.join(names)}"
    return "".join("/" + str(each).replace("~", "~0").replace("/", "~1") for each in parts)


def column_type(kind: pa.DataType) -> Any:
    """SQLAlchemy's type of a column."""
    if kind in _SCALARS:
        return _SCALARS[kind]()
    if pa.types.is_decimal(kind):
        return types.NUMERIC(kind.precision, kind.scale)
    if kind == pa.uint64():
        return types.NUMERIC(20, 0)
    if pa.types.is_timestamp(kind):
        return types.TIMESTAMP(timezone=kind.tz is not None)
    return DuckdbType(type_text(kind))


class DolmenSqlCompiler(compiler.SQLCompiler):  # type: ignore[misc]  # SQLAlchemy is untyped here
    """Statements where DuckDB differs from the standard."""

    def limit_clause(self, select: Any, **how: Any) -> str:
        clauses = (("LIMIT", select._limit_clause), ("OFFSET", select._offset_clause))
        return "".join(f"\n {word} {self.process(value, **how)}" for word, value in clauses if value is not None)

    def for_update_clause(self, select: Any, **how: Any) -> str:
        return ""  # a commit is refused if what it read has changed

    def visit_empty_set_expr(self, element_types: Any, **how: Any) -> str:
        nulls = ", ".join(f"CAST(NULL AS {self._type(each)})" for each in element_types or [types.INTEGER()])
        return f"SELECT {nulls} WHERE 1 != 1"

    def _type(self, kind: Any) -> str:
        return "INTEGER" if isinstance(kind, types.NullType) else str(self.dialect.type_compiler_instance.process(kind))

    def visit_regexp_match_op_binary(self, binary: Any, operator: Any, **how: Any) -> str:
        return f"regexp_matches({self.process(binary.left, **how)}, {self.process(binary.right, **how)})"

    def visit_regexp_replace_op_binary(self, binary: Any, operator: Any, **how: Any) -> str:
        return f"regexp_replace({self.process(binary.left, **how)}, {self.process(binary.right, **how)})"

    def visit_bitwise_xor_op_binary(self, binary: Any, operator: Any, **how: Any) -> str:
        return f"xor({self.process(binary.left, **how)}, {self.process(binary.right, **how)})"  # ^ is a power

    def visit_json_getitem_op_binary(self, binary: Any, operator: Any, _cast_applied: bool = False, **how: Any) -> str:
        is_json = binary.type._type_affinity is types.JSON
        if not is_json and not _cast_applied:
            return str(self.process(cast(binary, binary.type), _cast_applied=True, **how))
        function = "json_extract" if is_json else "json_extract_string"
        return f"{function}({self.process(binary.left, **how)}, {self.process(binary.right, **how)})"

    visit_json_path_getitem_op_binary = visit_json_getitem_op_binary

    def visit_add_binary(self, binary: Any, operator: Any, **how: Any) -> str:
        return self._add(binary, "+", **how)

    def visit_sub_binary(self, binary: Any, operator: Any, **how: Any) -> str:
        return self._add(binary, "-", **how)

    def _add(self, binary: Any, sign: str, **how: Any) -> str:
        """A sum or difference, with durations instead of the moments by which they are stored."""
        left, right = (self.process(each, **how) for each in (binary.left, binary.right))
        is_left, is_right = (each.type._type_affinity is types.Interval for each in (binary.left, binary.right))
        if is_right:
            right = f"({right} - {_EPOCH})"
        elif is_left:
            left = f"({left} - {_EPOCH})"
        elif binary.type._type_affinity is types.Interval:  # of two moments
            return f"({_EPOCH} + (CAST({left} AS TIMESTAMP) - CAST({right} AS TIMESTAMP)))"
        return f"{left} {sign} {right}"

    def visit_not_regexp_match_op_binary(self, binary: Any, operator: Any, **how: Any) -> str:
        return f"NOT {self.visit_regexp_match_op_binary(binary, operator, **how)}"


class DolmenDdlCompiler(compiler.DDLCompiler):  # type: ignore[misc]  # SQLAlchemy is untyped here
    """Tables: dolmen keeps primary keys and checks. It has no foreign keys and indexes, so they are left out."""

    def visit_primary_key_constraint(self, constraint: Any, **how: Any) -> str:
        names = ", ".join(map(self.preparer.format_column, constraint.columns))
        return f"PRIMARY KEY ({names})" if names else ""  # it has no name

    def visit_foreign_key_constraint(self, constraint: Any, **how: Any) -> Any:
        return None

    def visit_create_index(self, create: Any, **how: Any) -> str:
        index = create.element
        if index.unique and not {*index.table.primary_key.columns} <= {*index.columns} - {None}:
            raise exc.CompileError(f"index {index.name!r}: only the primary key is unique: leave unique=True out")
        return ""

    def visit_drop_index(self, drop: Any, **how: Any) -> str:
        return ""


class DolmenNames(compiler.IdentifierPreparer):  # type: ignore[misc]  # SQLAlchemy is untyped here
    """Quotes all names: DuckDB's keywords differ from version to version."""

    def _requires_quotes(self, value: str) -> bool:
        return True


class DolmenTypeCompiler(compiler.GenericTypeCompiler):  # type: ignore[misc]  # SQLAlchemy is untyped here
    """Names of types."""

    def _text(self, type_: Any, **how: Any) -> str:
        return "VARCHAR"

    visit_CHAR = visit_VARCHAR = visit_NCHAR = visit_NVARCHAR = visit_TEXT = visit_CLOB = visit_JSON = visit_UUID = (
        _text
    )

    def visit_BLOB(self, type_: Any, **how: Any) -> str:
        return "BLOB"

    visit_BINARY = visit_VARBINARY = visit_BLOB

    def visit_FLOAT(self, type_: Any, **how: Any) -> str:
        return "DOUBLE"

    visit_DOUBLE = visit_DOUBLE_PRECISION = visit_FLOAT

    def visit_REAL(self, type_: Any, **how: Any) -> str:
        return "FLOAT"

    def visit_NUMERIC(self, type_: Any, **how: Any) -> str:
        precision, scale = (type_.precision, type_.scale or 0) if type_.precision else (38, type_.scale or 10)
        return f"DECIMAL({precision}, {scale})"

    visit_DECIMAL = visit_NUMERIC

    def visit_TIMESTAMP(self, type_: Any, **how: Any) -> str:
        return "TIMESTAMPTZ" if type_.timezone else "TIMESTAMP"

    visit_DATETIME = visit_TIMESTAMP

    def visit_TIME(self, type_: Any, **how: Any) -> str:
        return "TIME"


class DolmenDialect(default.DefaultDialect):  # type: ignore[misc]  # SQLAlchemy is untyped here
    """The dialect. Reflection sees the transaction of its connection."""

    name = "dolmen"
    driver = "dbapi"
    default_paramstyle = "qmark"
    statement_compiler = DolmenSqlCompiler
    ddl_compiler = DolmenDdlCompiler
    preparer = DolmenNames
    colspecs = {  # noqa: RUF012 - SQLAlchemy's own form
        types.Numeric: DecimalValues, types.Float: FloatValues, types.Interval: IntervalValues,
        types.JSON.JSONIndexType: JsonIndex, types.JSON.JSONPathType: JsonPath,
    }  # fmt: skip
    type_compiler_cls = DolmenTypeCompiler
    supports_statement_cache = True
    supports_native_boolean = True
    supports_native_decimal = True
    supports_multivalues_insert = True
    supports_default_values = True
    supports_alter = False
    supports_comments = True
    supports_schemas = False
    supports_sane_rowcount = False  # deletes by a predicate count no rows
    supports_sane_multi_rowcount = False
    postfetch_lastrowid = False
    insert_returning = update_returning = delete_returning = True
    supports_empty_insert = False
    max_identifier_length = 255
    max_constraint_name_length = 200
    div_is_floordiv = False

    def __init__(self, json_serializer: Any = None, json_deserializer: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self._json_serializer, self._json_deserializer = json_serializer, json_deserializer

    @classmethod
    def import_dbapi(cls) -> Any:
        return dbapi

    def create_connect_args(self, url: URL) -> Any:
        store = url.drivername.partition("+")[2]
        path = url.database or ""
        if store:
            path = f"{store}://{url.host or ''}{'/' if path else ''}{path}"
        elif url.host or not path:
            raise exc.ArgumentError("dolmen:///directory names a directory, and dolmen:////directory an absolute one")
        return [path], dict(url.query)

    def get_isolation_level_values(self, dbapi_conn: Any) -> Any:
        return ["SERIALIZABLE", "AUTOCOMMIT"]

    def get_default_isolation_level(self, dbapi_conn: Any) -> Any:
        return "SERIALIZABLE"

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        return "AUTOCOMMIT" if dbapi_connection.autocommit else "SERIALIZABLE"

    def set_isolation_level(self, dbapi_connection: Any, level: Any) -> None:
        dbapi_connection.autocommit = level == "AUTOCOMMIT"

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if statement:  # one that is not left out
            cursor.execute(statement, parameters)

    def do_execute_no_params(self, cursor: Any, statement: str, context: Any = None) -> None:
        self.do_execute(cursor, statement, None)

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        return False  # there is no connection that could be lost

    def _get_default_schema_name(self, connection: Any) -> str:
        return _MAIN

    def _tables(self, connection: Any) -> Any:
        """The transaction of the connection, or the database if it has none."""
        own = connection.connection.dbapi_connection
        return own.database if own.autocommit else own.begin()

    def _table(self, connection: Any, name: str, schema: str | None) -> Any:
        try:
            if schema in (None, _MAIN):
                return self._tables(connection).table(name)
        except (TableNotFoundError, dbapi.DatabaseError):
            pass
        raise exc.NoSuchTableError(name)

    def has_table(self, connection: Any, table_name: str, schema: str | None = None, **_: Any) -> bool:
        return table_name in self.get_table_names(connection, schema)

    def get_schema_names(self, connection: Any, **_: Any) -> list[str]:
        return [_MAIN]

    def get_table_names(self, connection: Any, schema: str | None = None, **_: Any) -> list[str]:
        return self._tables(connection).tables() if schema in (None, _MAIN) else []

    def get_view_names(self, connection: Any, schema: str | None = None, **_: Any) -> list[str]:
        return []

    get_temp_table_names = get_temp_view_names = get_materialized_view_names = get_sequence_names = get_view_names

    def get_columns(self, connection: Any, table_name: str, schema: str | None = None, **_: Any) -> Any:
        table = self._table(connection, table_name, schema)
        comments, stored = table.describe()["comments"], stored_schema_of(table)
        defaults = {
            name: str(value)
            if isinstance(value, DefaultFunction)
            else quote_text(default_text(value, stored.field(name)) or "")
            for name, value in stored.write_defaults.items()
            if value is not None
        }
        return [
            {
                "name": field.name,
                "type": column_type(field.type),
                "nullable": field.nullable,
                "default": defaults.get(field.name),
                "comment": comments.get(field.name),
            }
            for field in table.schema
        ]

    def get_pk_constraint(self, connection: Any, table_name: str, schema: str | None = None, **_: Any) -> Any:
        return {"constrained_columns": list(self._table(connection, table_name, schema).primary_key), "name": None}

    def get_foreign_keys(self, connection: Any, table_name: str, schema: str | None = None, **_: Any) -> Any:
        self._table(connection, table_name, schema)  # raises if there is none
        return []

    get_indexes = get_unique_constraints = get_foreign_keys

    def get_check_constraints(self, connection: Any, table_name: str, schema: str | None = None, **_: Any) -> Any:
        checks = self._table(connection, table_name, schema).checks
        return [{"name": name, "sqltext": text} for name, text in checks.items()]

    def get_table_comment(self, connection: Any, table_name: str, schema: str | None = None, **_: Any) -> Any:
        return {"text": self._table(connection, table_name, schema).describe()["properties"].get("comment")}
