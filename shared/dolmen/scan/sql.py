"""``db.sql(...)``: DuckDB runs the query; scans bring it the columns it asks for and the rows that may matter.

Each place in the query that names a table becomes a source of its own. DuckDB's own optimizer says which columns it
needs of each, and conditions found by ``sql_pushdown`` go into the scans, where they prune files and row groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds

from dolmen.errors import Error, InputError, PredicateError, TableNotFoundError
from dolmen.format.schema import Schema
from dolmen.predicate import parse
from dolmen.scan.optional import optional
from dolmen.scan.scan import Scan
from dolmen.scan.sql_pushdown import conditions, references

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

_SETTINGS = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
"""A query sees the tables of one version and nothing else: no files, no network, no Python variables."""


class TableSource(Protocol):
    """A table of one version."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""

    def scan(self, columns: Sequence[str] | None = None, where: str | None = None) -> Scan:
        """Its rows."""


Tables: TypeAlias = Callable[[str], TableSource]


def run_sql(query: str, tables: Tables, *, push_down: bool = True) -> SqlResult:
    """Prepares a query; it runs whenever its result is asked for.

    Args:
        query: one SELECT in DuckDB's dialect.
        tables: finds a table by name, all in the same version; raises TableNotFoundError.
        push_down: whether conditions go into the scans.

    Raises:
        InputError: not one SELECT, or it does not fit the tables.
        TableNotFoundError: it names a table that is not there.
    """
    duckdb = optional("duckdb", "dolmen[sql]")
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    connection.execute("SET TimeZone = 'UTC'; SET lock_configuration = true")
    try:
        statements = connection.extract_statements(query)
    except duckdb.Error as error:
        raise InputError(str(error)) from error
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise InputError("sql() runs one SELECT; write through append, upsert, delete or transaction")
    sources, text = _sources(query, tables, push_down)
    for source in sources:
        connection.register(source.name, source)
    result = SqlResult(connection, text, sources)
    result.columns  # noqa: B018  # binds the query: what does not fit is said now
    return result


class SqlResult:
    """A query's result. It runs anew for each of these calls; nothing has run before the first."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, text: str, sources: Sequence[Source]) -> None:
        self._connection, self._text, self._sources = connection, text, sources

    @property
    def columns(self) -> list[str]:
        """Names of the result's columns."""
        return list(self._run(lambda relation: relation.columns))

    def to_arrow(self) -> pa.Table:
        """All rows in memory."""
        return self._run(lambda relation: relation.to_arrow_table())

    def to_reader(self) -> pa.RecordBatchReader:
        """A stream of the rows."""
        return self._run(lambda relation: relation.to_arrow_reader())

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """All rows as a pandas frame; ``options`` go to ``pyarrow.Table.to_pandas``."""
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars frame."""
        return optional("polars", "polars").from_arrow(self.to_arrow())

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows as Python tuples."""
        rows: list[tuple[Any, ...]] = self._run(lambda relation: relation.fetchall())
        return rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows by the Arrow PyCapsule interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def explain(self) -> str:
        """What goes into each scan, and DuckDB's plan above them."""
        pushed = [f"scan {source.label}: {source.where or 'all rows'}" for source in self._sources]
        plan: str = self._run(lambda relation: relation.explain())
        return "\n".join([*pushed, plan])

    def __repr__(self) -> str:
        return str(self._run(str))

    def _repr_html_(self) -> str:
        return str(self._run(lambda relation: relation.limit(100).df().to_html(index=False)))

    def _run(self, use: Callable[[duckdb.DuckDBPyRelation], Any]) -> Any:
        import duckdb

        try:
            return use(self._connection.sql(self._text))
        except duckdb.Error as error:
            raise self._reason(error) from error

    def _reason(self, error: Exception) -> Error:
        """What a scan raised, or else what DuckDB says. Not kept: it refers to frames that refer to the connection."""
        for source in self._sources:
            found, source.error = source.error, None
            if found:
                return found
        return InputError(str(error))


class Source(ds.Dataset):  # type: ignore[misc]  # pyarrow is untyped
    """One place in a query that names a table, as DuckDB scans it.

    DuckDB knows Arrow datasets by their class and asks them for a scanner, with the columns it needs and those
    conditions that it will not check again itself.

    Args:
        name: what the query calls it.
        label: what people call it.
        where: a condition that all rows which matter to the query fulfil.
    """

    def __init__(self, name: str, label: str, table: TableSource, where: str | None) -> None:
        self.name, self.label, self.where = name, label, where
        self._table = table
        self.error: Error | None = None

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return self._table.schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: Any = None, batch_size: int | None = None, **_: Any
    ) -> Scanner:
        """Called by DuckDB for each run of the query."""
        self.error = None
        wanted = list(self.schema.names if columns is None else columns)
        scan = self._table.scan(columns=[*wanted, *self._only_filtered(wanted, filter)], where=self.where)
        schema = pa.schema([scan.schema.field(name) for name in wanted])
        return Scanner(schema, self._batches(scan, wanted, filter))

    def _only_filtered(self, wanted: Sequence[str], filter: Any) -> list[str]:
        """Columns that the filter names and the query needs no more: Arrow's expressions don't tell, but print them."""
        shown = str(filter) if filter is not None else ""
        return [name for name in self.schema.names if name in shown and name not in wanted]

    def _batches(self, scan: Scan, wanted: list[str], filter: Any) -> Iterator[pa.RecordBatch]:
        try:
            for batch in scan.to_batches():
                kept = batch if filter is None else batch.filter(filter)
                yield kept.select(wanted)
        except Error as error:
            self.error = error  # DuckDB would only show its text
            raise


class Scanner(ds.Scanner):  # type: ignore[misc]  # pyarrow is untyped
    """One run over a Source."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self._schema, self._batches = schema, batches

    @property
    def projected_schema(self) -> pa.Schema:
        """Columns of the batches."""
        return self._schema

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches)


def _sources(query: str, tables: Tables, push_down: bool) -> tuple[list[Source], str]:
    """A source for each place that names a table, and the query that names them apart."""
    places = references(query) if push_down else None
    if places is None:
        return _sources_by_word(query, tables), query
    found = {place.table: tables(place.table) for place in places}
    types = {name: {field.name: _sql_type(field.type) for field in table.schema} for name, table in found.items()}
    wanted = conditions(query, types)
    sources, pieces, done = [], [], 0
    for number, place in enumerate(places):
        table = found[place.table]
        name = f"{place.table}@{number}"
        sources.append(Source(name, place.table, table, _understood(table.schema, wanted.get(place.start, []))))
        pieces += [query[done : place.start], f'"{name}"', "" if place.aliased else f' AS "{place.table}"']
        done = place.end
    return sources, "".join([*pieces, query[done:]])


def _sources_by_word(query: str, tables: Tables) -> list[Source]:
    """A source for each table whose name is a word of the query: all that can be told of one that is not understood."""
    sources = []
    for word in sorted(set(re.findall(r"[a-z0-9_]+", query.lower()))):
        try:
            sources.append(Source(word, word, tables(word), None))
        except (TableNotFoundError, InputError):
            continue
    return sources


def _understood(schema: pa.Schema, conditions: list[str]) -> str | None:
    """Those conditions that dolmen's predicates can say, as one."""
    numbered = Schema.from_arrow(schema)
    kept = []
    for condition in conditions:
        try:
            parse(condition, numbered, now_us=0)
        except PredicateError:
            continue
        kept.append(f"({condition})")
    return " AND ".join(kept) or None


def _sql_type(arrow_type: pa.DataType) -> str:
    """A type near enough for sqlglot to tell columns apart from functions and structs."""
    t = pa.types
    if t.is_integer(arrow_type):
        return "BIGINT"
    if t.is_floating(arrow_type):
        return "DOUBLE"
    if t.is_decimal(arrow_type):
        return f"DECIMAL({arrow_type.precision}, {arrow_type.scale})"
    if t.is_timestamp(arrow_type):
        return "TIMESTAMPTZ" if arrow_type.tz else "TIMESTAMP"
    names = {"bool": "BOOLEAN", "date32[day]": "DATE", "time64[us]": "TIME", "binary": "BLOB"}
    return names.get(str(arrow_type), "VARCHAR")
