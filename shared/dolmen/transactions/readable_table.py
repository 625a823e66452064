"""The reading side of a table, which is the same in the newest version, in an old one, and inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from dolmen.base import arguments
from dolmen.base.late_imports import higher_function
from dolmen.base.records import html_table
from dolmen.commit.head import Context
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.format.column_terms import partition_terms, sort_texts
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import has_index
from dolmen.format.schema import COMMIT_TS, DefaultFunction, Schema
from dolmen.predicate.ast import Predicate
from dolmen.predicate.parse import Parameters, Where, with_parameters
from dolmen.predicate.text import checks_in_sql
from dolmen.rows.scan.conditions import implied_by, read_condition
from dolmen.rows.scan.engines.dataframes import to_dicts
from dolmen.rows.scan.plan import View, output_fields
from dolmen.rows.scan.rows_by_key import Lookup
from dolmen.rows.scan.scan import Scan, sample
from dolmen.rows.write.row_digest import content_digest
from dolmen.transactions.inspection import files_of, in_words, partitions_of, stats_of, versions_of
from dolmen.transactions.keys import take_keys

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession


class ReadableTable:
    """A table in one version; subclasses decide which version."""

    def __init__(self, context: Context, name: str) -> None:
        self._context, self.name = context, name

    def _snapshot(self) -> Manifest:
        """The version to read now."""
        raise NotImplementedError

    def _cached_snapshot(self) -> Manifest:
        """A recent version, without a request to the store if this process has one."""
        return self._snapshot()

    def _view(self) -> View:
        """The table and the version to read now."""
        return View(self._context, self._snapshot(), self.name)

    def _note_read(self, predicate: Predicate | None) -> None:
        """Records a read. Only a transaction remembers it."""

    @property
    def _entry(self) -> TableEntry:
        return self._context.segments.whole(self._cached_snapshot().table(self.name))

    @property
    def version(self) -> int:
        """The number of the version that is read; of a table of a database, of the newest version seen so far."""
        return self._cached_snapshot().version

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    @property
    def schema(self) -> pa.Schema:
        """Columns and their types."""
        return self._entry.schema.arrow.remove_metadata()

    @property
    def _stored_schema(self) -> Schema:
        """Columns with their ids and stored types, as predicates are bound to them."""
        schema = self._entry.schema
        return msgspec.structs.replace(schema, fields=schema.shown, narrower=()) if schema.narrower else schema

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the key columns of ``upsert`` and ``delete(keys=...)``; empty if there are none."""
        return tuple(self._entry.schema.names_of(self._entry.primary_key))

    @property
    def sort_key(self) -> tuple[str, ...]:
        """The terms that rows in a file are sorted by: names of columns, or such as ``day(at) DESC``."""
        return tuple(sort_texts(self._entry.sort_key, self._entry.schema))

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The terms of which each new data file has one value; empty if the table has no partitions."""
        return tuple(map(str, partition_terms(self._entry.properties)))

    @property
    def checks(self) -> dict[str, str]:
        """The conditions of its checks in SQL, by name. None is FALSE for any row.

        Examples:
            >>> commit = people.add_check("adult", "age >= 18")
            >>> people.checks
            {'adult': 'age >= 18'}
        """
        return checks_in_sql(self._entry.schema)

    def identity(self, columns: Sequence[str] | None = None) -> str:
        """A short text that identifies the table and its columns, for programs that keep a copy of the rows.

        It differs in a version in which another table has the name, or in which a column was added, dropped, renamed,
        moved, or got another type; also if one was dropped and another one added under its name. While it is the same,
        the changes of ``Table.changes`` fit the copy.

        Args:
            columns: names of the columns that count; all by default.

        Raises:
            SchemaError: there is no such column.

        Examples:
            >>> before = people.identity()
            >>> commit = people.add_column("city", pa.string())
            >>> people.identity() == before
            False
        """
        entry = self._entry
        fields = output_fields(entry, columns, with_commit_ts=False)
        return f"{entry.uuid}/{content_digest([[f.id, f.added_ts, f.name, f.type] for f in fields])}"

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where = None,
        limit: int | None = None,
        *,
        parameters: Parameters | None = None,
        order_by: str | Sequence[str] | None = None,
        with_commit_ts: bool = False,
        offset: int = 0,
        batch_size: int | None = None,
    ) -> Scan:
        """Begins a scan of this version's rows, which can explain itself, stream, or become a data frame.

        Args:
            columns: names of columns, in the order of the result; all by default.
            where: a condition: only rows for which it is TRUE. SQL text, a mapping, or an expression of pyarrow or
                Polars (docs/predicates.md); it may be bound to this schema already.
            parameters: values for ``?`` in the text of ``where``, in order, or for ``:name``, by name.
            limit: the most rows to return: arbitrary ones, or the first by ``order_by``.
            order_by: columns to sort by, descending with a leading ``-``; NaN and then NULLs come last either way.
                Sorts in memory.
            with_commit_ts: add the column ``_commit_ts``, each row's commit timestamp.
            offset: the number of rows to leave out before the first, in the order of the result. Files whose rows are
                all left out are not read, if their number is known without reading.
            batch_size: the most rows in a batch; by default as many as a row group has.

        Raises:
            PredicateError: ``where`` cannot be parsed.
            InputError: DuckDB cannot evaluate it for a row.
            SchemaError: there is no such column.

        Examples:
            >>> people.scan(["name"], where="age > 30", order_by="-age").to_arrow()["name"].to_pylist()
            ['Grace', 'Ada']
        """
        view = self._view()
        where = with_parameters(where, parameters)
        now_us = self._context.store.clock.current_us
        condition = None if where is None else read_condition(where, view.entry().schema, now_us=now_us)
        self._note_read(implied_by(condition))
        return Scan(
            view,
            columns=None if columns is None else arguments.names("columns", columns),
            where=condition,
            limit=None if limit is None else arguments.number("limit", limit, 0),
            order_by=None if order_by is None else arguments.names("order_by", order_by),
            with_commit_ts=arguments.flag("with_commit_ts", with_commit_ts),
            offset=arguments.number("offset", offset, 0),
            batch_size=None if batch_size is None else arguments.number("batch_size", batch_size, 1),
        )

    def count(self, where: Where = None, *, parameters: Parameters | None = None) -> int:
        """Counts the rows, or those for which ``where`` is TRUE. Uses only metadata where that is exact.

        Examples:
            >>> people.count("age > 30")
            2
        """
        return self.scan(where=where, parameters=parameters).count()

    def __len__(self) -> int:
        """The number of rows. See ``count``."""
        return self.count()

    def __bool__(self) -> bool:
        """True, also if the table has no rows."""
        return True

    def get(self, key: Any, columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        """The row with a key, by column; None if there is none.

        If several rows have the key, which ``append`` does not prevent, it is one of those that were committed last.

        Args:
            key: the value of the primary key, or a tuple of the values of its columns.
            columns: names of columns; all by default.

        Raises:
            InputError: the table has no primary key, or the value does not fit it; or Python does not have a date or
                time of the row, which ``get_many`` returns.

        Examples:
            >>> people.get(2)
            {'id': 2, 'name': 'Grace', 'age': 45}
        """
        lookup = self._lookup([key], columns)
        rows = lookup.to_arrow()
        if not rows.num_rows:
            return None
        if rows.num_rows > 1:
            rows = lookup.to_arrow(with_commit_ts=True).sort_by([(COMMIT_TS, "descending")]).slice(0, 1)
            rows = rows.drop_columns([COMMIT_TS])
        [row] = to_dicts(rows)
        return row

    def get_many(self, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows with some keys, in any order. Keys without a row are left out, and repeated keys count once.

        Args:
            keys: values of the primary key, as a list, a Series, or an Arrow or NumPy array; tuples, if it has several
                columns; or Arrow data with columns of their names.
            columns: names of columns; all by default.

        Raises:
            InputError: the table has no primary key, or a value does not fit it.

        Examples:
            >>> people.get_many([1, 2, 7], ["id"]).num_rows
            2
        """
        return self._lookup(keys, columns).to_arrow()

    def _lookup(self, keys: Any, columns: Sequence[str] | None) -> Lookup:
        view = self._view()
        names = None if columns is None else arguments.names("columns", columns)
        lookup = Lookup(view, take_keys(view.entry(), keys), names)
        if lookup.where is not None:
            self._note_read(lookup.where)
        return lookup

    def to_arrow(self) -> pa.Table:
        """All rows. Short for ``scan().to_arrow()``.

        Examples:
            >>> people.to_arrow().num_rows
            3
        """
        return self.scan().to_arrow()

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """All rows as a pandas frame. Short for ``scan().to_pandas()``.

        Examples:
            >>> people.to_pandas().shape
            (3, 3)
        """
        return self.scan().to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars frame. Short for ``scan().to_polars()``.

        Examples:
            >>> people.to_polars().height
            3
        """
        return self.scan().to_polars()

    def scan_polars(self) -> pl.LazyFrame:
        """The rows of this version as a lazy frame of Polars, which stays at this version. See
        ``Scan.to_polars_lazy``.

        Examples:
            >>> people.scan_polars().select("name").collect().height
            3
        """
        return self.scan().to_polars_lazy()

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """The rows of this version as a DuckDB relation, which stays at this version. See ``Scan.to_duckdb``.

        Examples:
            >>> people.to_duckdb().aggregate("sum(age)").fetchall()
            [(109,)]
        """
        return self.scan().to_duckdb(connection)

    def head(self, rows: int = 5) -> pa.Table:
        """A few rows to look at: the first ones read.

        Examples:
            >>> people.head(2).num_rows
            2
        """
        return self.scan(limit=rows).to_arrow()

    def sample(self, rows: int = 5, *, seed: int | None = None) -> pa.Table:
        """Some rows, each set of this many as likely as any other. Reads only files that hold one of them.

        Args:
            rows: how many; all, if the table has fewer.
            seed: the same rows again for the same seed, as long as the files are the same.

        Examples:
            >>> people.sample(2, seed=7).num_rows
            2
        """
        return sample(self.scan(), arguments.number("rows", rows, 0), seed)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """All rows, for anything that reads Arrow streams (DuckDB, Polars, pandas, ...)."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def to_spark(
        self,
        columns: Sequence[str] | None = None,
        where: Where = None,
        *,
        with_commit_ts: bool = False,
        spark: SparkSession | None = None,
    ) -> DataFrame:
        """The rows of this version as a Spark DataFrame, which stays at this version. See ``dolmen.spark.to_spark``.

        Args:
            spark: the session; the active one by default.

        Raises:
            InputError: PySpark is not installed, or there is no session.
        """
        to_spark = higher_function("to_spark")
        frame: DataFrame = to_spark(self, columns, where, with_commit_ts=with_commit_ts, spark=spark)
        return frame

    def describe(self) -> dict[str, Any]:
        """Describes the table from the manifest and its segments, without reading data.

        Returns:
            ``table``, ``version``, ``rows_in_files`` (including rows that unresolved deletes may hide), ``files``,
            ``bytes``, ``primary_key``, ``sort_key``, ``partition_by``, ``columns`` (types by name), ``defaults`` (in
            JSON form, of rows that are written without a column; without those that are NULL) and ``comments`` by
            column, ``checks`` (conditions by name), ``properties``, ``index`` (its ``parts``, ``bytes``, ``entries``,
            including those of deleted rows, and ``lag_rows``, the least number of rows that it does not have yet; empty
            without an index), and ``unresolved_deletes`` (each with ``commit_ts``, and ``rows``: the deleted rows in
            words).

        Examples:
            >>> people.describe()["rows_in_files"]
            3
        """
        manifest = self._cached_snapshot()
        segments = self._context.segments
        live = LiveFiles.of(manifest.table(self.name), segments)
        entry, totals = live.entry, live.totals()
        return {
            "table": self.name,
            "version": manifest.version,
            "rows_in_files": totals.rows - totals.deleted,
            "files": totals.files,
            "bytes": totals.bytes,
            "primary_key": list(self.primary_key),
            "sort_key": list(self.sort_key),
            "partition_by": list(self.partition_by),
            "columns": {f.name: f"{f.type}{'' if f.nullable else ' not null'}" for f in entry.schema.arrow},
            "defaults": {
                name: str(default) if isinstance(default, DefaultFunction) else default
                for name, default in entry.schema.write_defaults.items()
            },
            "comments": {field.name: field.comment for field in entry.schema.fields if field.comment},
            "checks": checks_in_sql(entry.schema),
            "properties": entry.properties,
            "index": _index_properties(entry, totals.rows),
            "unresolved_deletes": [
                {"commit_ts": tombstone.ts, "rows": in_words(tombstone, entry)}
                for tombstone in tombstones_of(entry, segments)
            ],
        }

    def files(self) -> pa.Table:
        """The data files of this version: ``path``, ``bytes``, ``rows``, ``deleted_rows``, and commit timestamps.

        ``deleted_rows`` are those that deletes by position hide; ``describe`` lists deletes that are not resolved yet.
        In a table with partitions there is also ``partition``, such as ``event_time_day=2026-11-29/tenant=acme``; NULL
        for a file with rows of several.

        Examples:
            >>> people.files().select(["rows", "deleted_rows"]).to_pylist()
            [{'rows': 3, 'deleted_rows': 0}]
        """
        return files_of(self._context, self._snapshot(), self.name)

    def partitions(self) -> pa.Table:
        """The partitions: ``partition`` as in ``files``, and sums of ``files``, ``rows``, ``deleted_rows``, ``bytes``.

        Examples:
            >>> sales = db.create_table("sales", {"country": ["FR", "DE", "FR"]}, partition_by="country")
            >>> sales.partitions().select(["partition", "rows"]).to_pylist()
            [{'partition': 'country=DE', 'rows': 1}, {'partition': 'country=FR', 'rows': 2}]
        """
        return partitions_of(self._context, self._snapshot(), self.name)

    def stats(self) -> pa.Table:
        """Statistics by column from metadata: ``column``, ``type``, ``min`` and ``max`` (as text), ``nulls``, ``nans``.

        Rows that are deleted and still in files count, so every value lies between ``min`` and ``max``, which need
        not occur. Long text is cut. NULL means unknown, or that there is no value.

        Examples:
            >>> people.stats().select(["column", "min", "max", "nulls"]).to_pylist()[2]
            {'column': 'age', 'min': '28', 'max': '45', 'nulls': 0}
        """
        return stats_of(self._context, self._snapshot(), self.name)

    def history(self) -> pa.Table:
        """The commits up to this version that changed the table, newest first, as far as their ``did`` names it.

        Examples:
            >>> people.history()["operation"].to_pylist()
            ['append', 'create_table']
        """
        return versions_of(self._context, self._snapshot(), self.name)

    def _headline(self) -> list[tuple[str, str]]:
        table = self.describe()
        deletes = len(table["unresolved_deletes"])
        properties = [
            ("version", str(table["version"])),
            ("rows", f"{table['rows_in_files']:,}" + (f" less {deletes} unresolved deletes" if deletes else "")),
            ("files", f"{table['files']:,} ({table['bytes']:,} bytes)"),
        ]
        keys = [
            (name.replace("_", " "), ", ".join(table[name])) for name in ("primary_key", "sort_key", "partition_by")
        ]
        return properties + [(name, columns) for name, columns in keys if columns]

    def __repr__(self) -> str:
        properties = ", ".join(f"{name} {value}" for name, value in self._headline())
        columns = "\n".join(f"  {name}: {type_}" for name, type_ in self.describe()["columns"].items())
        return f"<{type(self).__name__} {self.name}: {properties}>\n{columns}"

    def _repr_html_(self) -> str:
        columns = self.describe()["columns"].items()
        return f"<b>{escape(self.name)}</b>{html_table(self._headline())}{html_table(columns)}"


def _index_properties(entry: TableEntry, rows: int) -> dict[str, int]:
    """The size of a table's index, by the manifest alone; ``rows`` are in all files."""
    parts = entry.segments_of("index")
    if not parts and not has_index(entry):
        return {}
    entries = sum(part.count for part in parts)
    return {
        "parts": len(parts),
        "entries": entries,
        "bytes": sum(part.size for part in parts),
        "lag_rows": max(0, rows - entries),
    }
