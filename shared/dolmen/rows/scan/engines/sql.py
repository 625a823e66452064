"""``db.sql(...)``: DuckDB runs the query, and scans return the columns and rows that it asks for.

Each table that the query may name is registered as a dataset. Wherever the query names a table, DuckDB's planner
decides which columns it needs there, and which conditions it pushes into the scan, where they prune files and row
groups. The query's text is never changed.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from dolmen.base import arguments
from dolmen.base.late_imports import optional
from dolmen.base.runtime import PerProcess, cached_property
from dolmen.base.temporary_files import BatchFile
from dolmen.base.units import MIB
from dolmen.errors import Error, InputError, TableNotFoundError
from dolmen.format.schema import same_names
from dolmen.predicate.ast import Predicate
from dolmen.rows.scan.engines.catalogue import asks_about_tables, create_table
from dolmen.rows.scan.engines.dataframes import RowSource, to_pandas, to_polars
from dolmen.rows.scan.engines.dataset import ScanDataset, needs_boxes
from dolmen.rows.scan.engines.sandbox import has_zone, join_sandbox, open_sandbox, reject_functions
from dolmen.rows.scan.plan import SchemaSource, stored_schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb
    import pandas as pd
    import polars as pl

AllowedFiles: TypeAlias = (
    str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, Mapping[str, str] | None] | None
)
"""What COPY may use: paths and URLs; a mapping has the ``storage_options`` of each URL."""
Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any] | None
"""Values of a query's parameters: in order, for each ``?`` or ``$1``; or by name, for each ``$name``."""

Row: TypeAlias = tuple[Any, ...]

_numbers = itertools.count()
_FETCHED_ROWS = 4_096
_CATALOGUE = re.compile(r"show|describe|information_schema|sqlite_(master|schema)|pg_\w+|duckdb_\w+|pragma_\w+")
"""Words of queries that list tables, rather than name them."""
_PRAGMA = re.compile(r"^\s*PRAGMA\s+(table_info|show)(?=\s*\()", re.IGNORECASE)

_INSTEAD = {
    "VACUUM": "db.gc(), which deletes what no kept version needs, or table.compact(); statistics come with each write",
    "CALL": "the method: db.maintain(), table.compact(), db.resolve(), db.gc()",
    "ATTACH": "dolmen.open(url); table.to_duckdb(connection) brings tables of several databases into one DuckDB",
}
"""Calls that do what a refused statement would, by DuckDB's kind: its VACUUM includes ANALYZE, its CALL CHECKPOINT."""
_ANOTHERS = {
    **dict.fromkeys(("REPLACE", "UPSERT"), "INSERT OR REPLACE INTO t, or ON CONFLICT, replaces rows by primary key"),
    **dict.fromkeys(("GRANT", "REVOKE"), "the policies of the bucket decide who may read and write"),
}
"""Advice for statements that DuckDB does not have, by their first word."""
_DESCRIBES = '"type":"SHOW_REF"'
_PARSED_WITHOUT_ERROR = '{"error":false,'
_NODE = re.compile(r'"type":"(\w+_NODE)"')
_READING_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
"""The nodes of queries in ``json_serialize_sql``."""

_NO_SUCH_TABLE = re.compile(r'Table with name "?(\w+)"? does not exist')
_AS_OF = re.compile(r"\b(version|timestamp|system_time)\s+as\s+of\b", re.IGNORECASE)
_TOO_DEEP = re.compile(r"Max expression depth limit of (\d+) exceeded")
_NO_FILES = re.compile(r"disabled by configuration|configuration has been locked")


class TableSource(SchemaSource, Protocol):
    @property
    def schema(self) -> pa.Schema: ...

    def scan(self, columns: Sequence[str] | None = None, where: Predicate | None = None) -> RowSource: ...


class Tables(Protocol):
    def tables(self) -> list[str]: ...

    def table(self, name: str) -> TableSource: ...


def run_sql(
    query: str, tables: Tables, parameters: Parameters = None, relations: Mapping[str, pa.Table] | None = None
) -> SqlResult:
    """Prepares a query, which runs whenever its result is read.

    Args:
        query: one statement that reads, in DuckDB's dialect: SELECT, FROM, WITH, VALUES, PIVOT, DESCRIBE, SUMMARIZE,
            SHOW TABLES, or EXPLAIN before one of them.
        tables: all of one version.
        relations: further rows, by their name in the query.

    Raises:
        InputError: another statement, or it does not fit the tables or the parameters.
        TableNotFoundError: it names a table that does not exist.
    """
    if not isinstance(query, str):
        raise InputError(f"a query is text, not {type(query).__name__}")
    if parameters is not None and (isinstance(parameters, str) or not isinstance(parameters, (Sequence, Mapping))):
        raise InputError("parameters are a list of values, for each ? in turn, or a dict of them, for each $name")
    duckdb = optional("duckdb", "dolmen[sql]")
    query = _PRAGMA.sub(r"SELECT * FROM pragma_\1", query)
    connection = _connect(is_alone=False)
    explained, parsed = _check_statement(query, connection, duckdb)
    words, table_names = _words(query), tables.tables()
    lists = lists_tables(query) or _DESCRIBES in parsed
    if is_alone := lists or needs_boxes():
        connection = _connect(is_alone=True)
    used_names = table_names if lists else [name for name in table_names if name in words]
    only_asks = lists and asks_about_tables(parsed, table_names)
    datasets, errors = [], dict[str, InputError]()
    for name, rows in (relations or {}).items():
        connection.register(name, rows)
    for name in used_names:
        table = tables.table(name)
        if alike := same_names(table.schema.names):
            errors[name] = InputError(
                f"table {name!r} has columns {alike[0]!r} and {alike[1]!r}, which SQL can't tell apart: use scan()"
            )
            continue
        dataset = ScanDataset(name, table.schema, stored_schema_of(table), table.scan)
        if only_asks:
            create_table(connection, dataset, table)
        elif is_alone:
            dataset.relation(connection).create_view(name)
        else:
            connection.register(name, dataset)
        datasets.append(dataset)
    result = SqlResult(_Query(connection, query, parameters, datasets, tables, errors), explained)
    result.columns  # noqa: B018  # binds the query, and raises its errors now
    return result


def _connect(*, is_alone: bool) -> duckdb.DuckDBPyConnection:
    """A connection for one query: to a database of its own, or to the one that all queries share, which opens faster.

    The views of the second are temporary, so other connections don't see them, but a list of tables shows them as such.
    """
    spill = _spill_root()
    if is_alone:
        return open_sandbox(os.path.join(spill, str(next(_numbers))) if spill else "")
    return join_sandbox("SELECT 1", temp_directory=os.path.join(spill, "shared") if spill else "")


def kinds_of(text: str) -> list[str]:
    """The kind of each statement of a text, as DuckDB's parser names it: SELECT, INSERT ... Raises InputError."""
    connection, errors = join_sandbox(), optional("duckdb", "dolmen[sql]").Error
    try:
        return [str(statement.type).rpartition(".")[2] for statement in connection.extract_statements(text)]
    except errors as error:
        raise InputError(_with_advice(str(error), text)) from error
    finally:
        connection.close()


def lists_tables(query: str) -> bool:
    """True if a query may list tables, rather than only name them."""
    return any(map(_CATALOGUE.fullmatch, _words(query)))


def _words(query: str) -> set[str]:
    return set(re.findall(r"[a-z0-9_]+", query.lower()))


@PerProcess
def _spill_root() -> str:
    """The directory for data of queries that exceeds memory, for this user only; empty if none can be made.

    DuckDB's default, ``.tmp`` in the working directory, would show queries the files of other programs.
    """
    try:
        root = tempfile.mkdtemp(prefix="dolmen-sql-")
    except OSError:
        return ""

    process = os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # a fork must not remove it
            shutil.rmtree(root, ignore_errors=True)

    atexit.register(remove)
    return root


def _check_statement(query: str, connection: duckdb.DuckDBPyConnection, duckdb: Any) -> tuple[str | None, str]:
    """Checks that a query is one reading statement. Returns the query that an EXPLAIN explains, and it parsed."""
    kind, kinds = None, duckdb.StatementType
    try:
        statements = connection.extract_statements(query)
        explained = _query_to_explain(query, duckdb) if statements and statements[0].type == kinds.EXPLAIN else None
        if len(statements) == 1:
            kind = statements[0].type if explained is None else connection.extract_statements(explained)[0].type
    except duckdb.Error as error:
        raise InputError(_with_advice(str(error), query)) from error
    if not statements:
        raise InputError("the text has no statement")
    if kind == kinds.SELECT:
        return explained, _check_parts(query if explained is None else explained, connection)
    if kind == kinds.MULTI:
        raise InputError("PIVOT needs a list of its columns here: PIVOT ... ON column IN ('a', 'b') USING ...")
    label = f"{len(statements)} statements" if kind is None else str(kind).rpartition(".")[2].replace("_", " ")
    if instead := _INSTEAD.get(label):
        raise InputError(f"sql() takes queries and statements that change tables, not {label}: call {instead}")
    raise InputError(
        f"sql() takes a query (SELECT, DESCRIBE, SUMMARIZE, SHOW TABLES, EXPLAIN of one) or statements that change "
        f"tables (INSERT, UPDATE, DELETE, MERGE, CREATE TABLE, ALTER TABLE, DROP TABLE, TRUNCATE), not {label}; set "
        "settings through set(), and use DuckDB itself, with table.to_duckdb(connection), for anything else"
    )


def _check_parts(query: str, connection: duckdb.DuckDBPyConnection) -> str:
    """Parses a query. Raises InputError unless all its parts only read, and its functions are allowed."""
    [(parsed,)] = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    if not parsed.startswith(_PARSED_WITHOUT_ERROR):
        raise InputError(json.loads(parsed)["error_message"])
    reject_functions(parsed, connection)
    for kind in _NODE.findall(parsed):
        if kind not in _READING_NODES:
            raise InputError(f"sql() runs one statement that reads, not {kind.partition('_')[0]}")
    return parsed  # type: ignore[no-any-return]


def _query_to_explain(query: str, duckdb: Any) -> str:
    """The text after EXPLAIN, ANALYZE and their options in brackets."""
    starts = [start for start, kind in duckdb.tokenize(query) if kind != duckdb.token_type.comment]
    ends = [*starts[1:], len(query)]
    tokens = [query[start:end].strip().lower() for start, end in zip(starts, ends, strict=True)]
    index = 1 + (len(tokens) > 1 and re.match(r"analy[sz]e\b", tokens[1]) is not None)
    if tokens[index : index + 1] == ["("] and re.match(r"format|analy[sz]e", "".join(tokens[index + 1 : index + 2])):
        index = tokens.index(")", index) + 1 if ")" in tokens[index:] else index
    return query[starts[index] :] if index < len(starts) else ""


def _with_advice(text: str, query: str) -> str:
    if found := _TOO_DEEP.search(text):
        return f"the text is nested deeper than {found[1]} levels: write it with fewer parentheses, NOT or operators"
    if "does not support time travel" in text or ("syntax error" in text and _AS_OF.search(query)):
        text += (
            "\nA query reads one version of the database: db.at(n).sql(query) reads version n, and db.at() also takes "
            "timestamp= and tag=. On the command line these are --version, --at and --tag. One table has a version in "
            "FROM t AT (VERSION => n), and likewise by TIMESTAMP and TAG"
        )
    if "syntax error" in text and (advice := _ANOTHERS.get(query.lstrip().partition(" ")[0].upper())):
        text += f"\n{advice}"
    if _NO_FILES.search(text):
        text += (
            "\nsql() sees the tables of the database and nothing else: COPY t FROM 'file' adds a file to a table; "
            "to join tables with files, run DuckDB yourself, with table.to_duckdb(connection)"
        )
    return text


@dataclass
class _Query:
    """A query with its connection, tables and parameters."""

    connection: duckdb.DuckDBPyConnection
    text: str
    parameters: Parameters
    datasets: Sequence[ScanDataset]
    tables: Tables
    refused: Mapping[str, InputError]

    def relation(self, text: str) -> duckdb.DuckDBPyRelation:
        options: Any = {} if self.parameters is None else {"params": self.parameters}
        return self.connection.sql(text, **options)

    @contextmanager
    def raising_dolmen_errors(self) -> Iterator[None]:
        """Raises the error of a scan, or else DuckDB's error as one of dolmen's."""
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            raise self.reason(error) from error

    def reason(self, error: Exception) -> Error:
        """The error of a scan, or one with DuckDB's text. It must not refer to frames that refer to the connection."""
        for dataset in self.datasets:
            found, dataset.error = dataset.error, None
            if found:
                return found
        text = str(error).partition("\n\nStack Trace")[0]  # where DuckDB fails inside
        if match := _NO_SUCH_TABLE.search(text):
            name = match[1].lower()
            try:
                self.tables.table(name)
            except (TableNotFoundError, InputError) as unknown:
                return unknown
            if name in self.refused:
                return self.refused[name]
        return InputError(_with_advice(text, self.text))

    def rehearse(self, text: str) -> list[RowSource]:
        """The scans that DuckDB asks for, in a run in which none finds a row.

        A value that DuckDB cannot convert in this run is not an error of the query: it may come from the lack of rows.
        """
        import duckdb

        scans: list[RowSource] = []
        for dataset in self.datasets:
            dataset.rehearsed = scans
        try:
            relation = self.relation(text)
            with suppress(duckdb.DataError):
                for _ in relation.to_arrow_reader():
                    pass
        finally:
            for dataset in self.datasets:
                dataset.rehearsed = None
        return scans


class _NoTables:
    def tables(self) -> list[str]:
        return []

    def table(self, name: str) -> TableSource:
        raise TableNotFoundError(f"no table {name!r}")


NO_TABLES = _NoTables()


MOST_KEPT_BYTES = 64 * MIB
"""The most bytes of rows that wait in memory for a later query. More are in a file without a name."""


class KeptRows:
    """Rows that a later query reads, in bounded memory."""

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch] = ()) -> None:
        self.schema = schema
        self.clear()
        for batch in batches:
            self.add(batch)

    def clear(self) -> None:
        self._batches, self._bytes = list[pa.RecordBatch](), 0
        self._file: BatchFile | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        if self._file is not None:
            self._file.write(batch)
            return
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes > MOST_KEPT_BYTES:
            self._file = BatchFile(self.schema, "more rows wait for a later query")
            for each in self._batches:
                self._file.write(each)
            self._batches.clear()

    def to_table(self) -> pa.Table:
        """All rows, those of a file mapped into memory. Then no more are added."""
        batches = self._batches if self._file is None else self._file.finish()
        return pa.Table.from_batches(batches, self.schema)


class SqlResult:
    """A query's result. Each call runs the query, except ``fetchone`` and ``fetchmany``, which continue their run.

    ``commit`` is the commit of the statements that came before the query, or that returned these rows; else None.
    """

    def __init__(self, query: _Query, explained: str | None) -> None:
        self._query, self._explained = query, explained
        self._fetched: Iterator[Row] | None = None
        self.commit: Any = None

    @classmethod
    def of_rows(cls, rows: pa.Table) -> SqlResult:
        """A result of rows that were read before."""
        connection = _connect(is_alone=False)
        connection.register("rows", rows)
        return cls(_Query(connection, "FROM rows", None, [], NO_TABLES, {}), None)

    @cached_property
    def columns(self) -> list[str]:
        """Names of the result's columns."""
        if self._explained is not None:
            return ["explain_key", "explain_value"]
        return list(self._run(lambda relation: relation.columns))

    @cached_property
    def types(self) -> list[str]:
        """DuckDB's types of the result's columns."""
        if self._explained is not None:
            return ["VARCHAR", "VARCHAR"]
        return list(map(str, self._run(lambda relation: relation.types)))

    def to_arrow(self) -> pa.Table:
        """All rows in memory."""
        return self._run(lambda relation: relation.to_arrow_table())

    def to_reader(self) -> pa.RecordBatchReader:
        """A stream of the rows."""
        return self._run(lambda relation: relation.to_arrow_reader())

    def stream(self) -> pa.RecordBatchReader:
        """A stream of the rows, to be stored. It raises the errors of scans, and DuckDB's as InputError."""
        columns = self._run(lambda relation: list(zip(relation.columns, relation.types, strict=True)))
        for name, kind in columns:
            if has_zone(kind):  # Arrow has no type for it: the zone would be lost
                raise InputError(f"column {name!r} is a time of day with a zone: cast it to TIME")
        reader = self.to_reader()
        return pa.RecordBatchReader.from_batches(reader.schema, self._batches(reader))

    def keep(self) -> pa.Table:
        """The rows, read once, for later queries. Raises the errors of scans, and DuckDB's as InputError."""
        reader = self.to_reader()
        return KeptRows(reader.schema, self._batches(reader)).to_table()

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except (pa.ArrowException, OSError) as error:  # DuckDB's, from its stream
            raise self._query.reason(error) from error

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """All rows as a pandas frame. See ``Scan.to_pandas``."""
        return to_pandas(self.to_arrow(), **options)

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars frame."""
        return to_polars(self.to_arrow())

    def arrow(self) -> pa.Table:
        """Short for ``to_arrow``; ``df`` and ``pl`` are short for ``to_pandas`` and ``to_polars``."""
        return self.to_arrow()

    def df(self) -> pd.DataFrame:
        """See ``arrow``."""
        return self.to_pandas()

    def pl(self) -> pl.DataFrame:
        """See ``arrow``."""
        return self.to_polars()

    def show(self, rows: int = 20) -> None:
        """Prints the first rows, with the names and types of the columns."""
        rows = arguments.number("rows", rows, 0)
        self._run(lambda relation: relation.limit(rows).show())

    def fetchall(self) -> list[Row]:
        """All rows as Python tuples."""
        rows: list[Row] = self._run(lambda relation: relation.fetchall())
        return rows

    def fetchone(self) -> Row | None:
        """The next row as a tuple; None at the end. Any other call that reads the result makes it begin again."""
        return next(iter(self.fetchmany(1)), None)

    def fetchmany(self, size: int = 1) -> list[Row]:
        """The next rows, up to ``size``; an empty list at the end. See ``fetchone``."""
        size = arguments.number("size", size, 0)
        self._fetched = self._fetched or self._rows()
        return list(itertools.islice(self._fetched, size))

    def __iter__(self) -> Iterator[Row]:
        """The rows as tuples, in bounded memory, until another call reads the result."""
        self._fetched = None
        return self._rows()

    def _rows(self) -> Iterator[Row]:
        return (row for rows in self.to_tuples(_FETCHED_ROWS) for row in rows)

    def to_tuples(self, size: int) -> Iterator[list[Row]]:
        """The rows as Python tuples, up to ``size`` at a time, in bounded memory. Then no other call reads the result.

        ``fetchall`` reads all of them at once.
        """
        if self._explained is not None:
            yield self.fetchall()
            return
        with self._query.raising_dolmen_errors():
            run = self._query.connection.execute(self._query.text, self._query.parameters)
            while rows := run.fetchmany(size):
                yield rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows by the Arrow PyCapsule interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def explain(self) -> str:
        """Explains what each scan reads and skips, and shows DuckDB's plan above them.

        The query runs once over tables without rows, which reads no data. Scans that DuckDB would only begin after
        another one has found rows are not shown.
        """
        with self._query.raising_dolmen_errors():
            explained = self._explained
            plan = self._query.relation(self._query.text if explained else f"EXPLAIN {self._query.text}").fetchall()
            scans = self._query.rehearse(explained or self._query.text)
        return "\n".join([*(f"{scan.explain()}\n" for scan in scans), *(text for _, text in plan)])

    def __repr__(self) -> str:
        return self.explain() if self._explained is not None else str(self._run(str))

    def _repr_html_(self) -> str:
        return str(self._run(lambda relation: relation.limit(100).df().to_html(index=False)))

    def _run(self, use: Callable[[duckdb.DuckDBPyRelation], Any]) -> Any:
        self._fetched = None
        with self._query.raising_dolmen_errors():
            return use(self._explanation() if self._explained is not None else self._query.relation(self._query.text))

    def _explanation(self) -> duckdb.DuckDBPyRelation:
        """The rows of an EXPLAIN: one for each scan, then DuckDB's."""
        assert self._explained is not None
        rows = [("dolmen_scan", str(scan.explain())) for scan in self._query.rehearse(self._explained)]
        rows += self._query.relation(self._query.text).fetchall()
        columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
        return self._query.connection.from_arrow(pa.table(columns, self.columns))
