"""Tables of a database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa

from dolmen.api.autocommit import Autocommit
from dolmen.api.writer import MAX_BYTES, MAX_ROWS, MAX_SECONDS, BufferedWriter
from dolmen.base import arguments
from dolmen.errors import InputError
from dolmen.format.ingest_properties import TABLE_PROPERTIES
from dolmen.format.manifest import Manifest
from dolmen.format.properties import effective_values
from dolmen.predicate import Parameters, Where, parse, with_parameters
from dolmen.rows.changes.feed import ChangeFeed
from dolmen.transactions.erase import ErasureResult
from dolmen.transactions.merge.clauses import Clauses, WhenMatched, WhenNotMatched, WhenNotMatchedBySource
from dolmen.transactions.merge.merge import is_upsert
from dolmen.transactions.merge.merge_source import SourceRows
from dolmen.transactions.merge.update import NewValues
from dolmen.transactions.reading import KeyedTable
from dolmen.transactions.results import Commit
from dolmen.transactions.row_statements import Mode
from dolmen.transactions.snapshot import PinnedTable, manifest_at, pin
from dolmen.transactions.transaction import Transaction
from dolmen.transactions.transaction_table import TransactionTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dolmen.iceberg.publication import IcebergPublication


class Table(KeyedTable):
    """A table of a database. Every read follows the newest version; every write is one commit."""

    def _snapshot(self) -> Manifest:
        return self._context.head.refresh().manifest

    def _cached_snapshot(self) -> Manifest:
        cached = self._context.head.cached
        return cached.manifest if cached else self._snapshot()

    def at(
        self,
        version: int | None = None,
        *,
        timestamp: datetime | int | str | None = None,
        tag: str | None = None,
        settled: bool = False,
    ) -> PinnedTable:
        """This table in an older version. See ``Database.at``.

        Examples:
            >>> people.at(version=1).count()
            0
        """
        return pin(self._context, version, timestamp, tag, settled=settled).table(self.name)

    def restore(
        self,
        version: int | None = None,
        *,
        timestamp: datetime | int | str | None = None,
        tag: str | None = None,
        settled: bool = True,
        request: str | None = None,
        message: str | None = None,
    ) -> Commit:
        """Makes this table what it was in an earlier version, in one commit that copies and deletes nothing.

        Rows, columns and settings become those of that version; its name stays. ``Database.restore`` brings back
        dropped tables.

        Args:
            version, timestamp, tag: the version; see ``Database.at``.
            settled: refuse a time to which a commit under way may still be dated. Without this, the newest version so
                far is restored.
            request, message: as for ``append``.

        Raises:
            UnsettledTimestampError: the time is in the future, or not settled although ``settled`` is True.
            VersionNotFoundError, VersionExpiredError, TagNotFoundError: there is no such version any more.
            TableNotFoundError: this table did not exist then.

        Examples:
            >>> commit = people.delete("TRUE")
            >>> people.restore(version=2, settled=False).version
            4
            >>> people.count()
            3
        """
        with Transaction(self._context, "restore", message=message, newest=True) as transaction:
            transaction.table(self.name).restore(
                version, timestamp=timestamp, tag=tag, settled=settled, request=request
            )
            return transaction.commit()

    def changes(
        self,
        since: int | datetime | str,
        until: int | datetime | str | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        parameters: Parameters | None = None,
        net: bool = False,
    ) -> pa.RecordBatchReader:
        """Streams the rows that commits after one version, up to another, added and took away (docs/changes.md).

        Each row has the table's columns and ``_change`` (``insert``, ``delete``, ``update_before``, ``update_after``),
        ``_version`` and ``_commit_ts``. Versions come in order, and what is fed of one makes the rows of that version
        out of those of the version before. Reads only files that the commits may have changed rows of.

        Args:
            since: the version after which changes begin; or a time: a datetime, or ISO 8601 text (see
                ``Database.at``). 0 is before the first commit.
            until: the version with which they end, which also gives the columns; the newest by default.
            columns: names of columns of the table; all by default.
            where, parameters: as for ``scan``: the feed of the rows for which it is TRUE.
            net: the difference of the two versions, in place of each commit's changes.

        Raises:
            VersionExpiredError: a version from ``since`` on is no longer kept.
            VersionNotFoundError: there is no such version.
            TableNotFoundError: the version ``until`` has no table of this name.
            SchemaError: there is no such column, or one has the name of a column that the feed adds.
            InputError: ``since`` is after ``until``.

        Examples:
            >>> commit = people.delete("id = 3")
            >>> people.changes(since=2).read_all().select(["_change", "name"]).to_pylist()
            [{'_change': 'delete', 'name': 'Linus'}]
        """
        base = self._context.head.refresh()
        last = base.manifest if until is None else manifest_at(self._context, base, until)
        first = manifest_at(self._context, base, since)
        if first.version > last.version:
            raise InputError(f"since={first.version} is after until={last.version}: exchange them")
        with self._context.reading(last.version):
            entry = self._context.segments.whole(last.table(self.name))
        where = with_parameters(where, parameters)
        predicate = None if where is None else parse(where, entry.schema, now_us=self._context.store.clock.current_us)
        names = None if columns is None else arguments.names("columns", columns)
        net = arguments.flag("net", net)
        feed = ChangeFeed(self._context, base.manifest, first, last, self.name, entry, names, predicate, net=net)
        return feed.to_reader()

    def to_spark(
        self,
        columns: Sequence[str] | None = None,
        where: Where = None,
        version: int | None = None,
        *,
        with_commit_ts: bool = False,
        spark: SparkSession | None = None,
    ) -> DataFrame:
        """The rows of the newest version, or of an older one, as a Spark DataFrame. See ``dolmen.spark.to_spark``."""
        if version is not None:
            return self.at(version).to_spark(columns, where, with_commit_ts=with_commit_ts, spark=spark)
        return super().to_spark(columns, where, with_commit_ts=with_commit_ts, spark=spark)

    def append(
        self,
        data: Any,
        *,
        cast: bool = False,
        request: str | None = None,
        message: str | None = None,
        leave_out_erased: bool | None = None,
    ) -> Commit:
        """Adds rows. Keys are not checked: appending a key twice gives two rows (see ``upsert``).

        Args:
            data: an Arrow table, batch or reader, a pandas or Polars frame, a list of dicts, or anything with an Arrow
                stream. Columns go by name, in any order. Rows are streamed in bounded memory.
            cast: round, parse or cut values that do not fit (see ``dolmen.rows.write.casts``), instead of refusing
            them.
                Casts without a loss are always made, for a pandas frame also of floats that are all integers or NaN,
                and of midnights to dates (``dolmen.rows.write.row_input``; NaN of pandas is NULL).
            request: an id under which this is applied once, however often it is tried: text of 1 to 4,096 bytes.
            message: a message for ``history``: see ``Database.transaction``.
            leave_out_erased: whether rows that match an erasure in force are left out; None = as the table's setting
                says. ``Commit.erased_rows_left_out`` counts them, and ``Commit.erased_rows_written`` those that are
                written. An erasure that lands meanwhile counts, too, if rows are left out.

        Raises:
            SchemaError, RowError: the data does not fit the table; nothing was added.
            ConflictError: rows were erased meanwhile, and the data can be read only once.
            AppliedIdError: other rows were added under this id, or the id was used for something else.

        Examples:
            >>> people.append([{"id": 4, "name": "Dan", "age": 61}]).rows
            1
        """
        return self._commit(
            "append",
            lambda table: table.append(data, cast=cast, request=request, leave_out_erased=leave_out_erased),
            message,
            request=request,
            data=data,
            holds=True,
        )

    def writer(
        self, *, max_rows: int = MAX_ROWS, max_seconds: float = MAX_SECONDS, max_bytes: int = MAX_BYTES
    ) -> BufferedWriter:
        """Opens a writer that collects rows and deletes from any thread, and commits them as few large files.

        Args:
            max_rows: begins a commit when so many rows wait.
            max_seconds: begins a commit when the first call has waited this long. A call that waits for its
                acknowledgement starts a commit at once.
            max_bytes: rows that may be held in memory; beyond that, calls wait for commits.

        Raises:
            InputError: a bound is not positive.

        Examples:
            >>> with people.writer() as writer:
            ...     done = writer.append([{"id": 4, "name": "Dan", "age": 61}])
            >>> done.result().version
            3
        """
        return BufferedWriter(self._context, self.name, max_rows, max_seconds, max_bytes)

    def insert(
        self,
        data: Any,
        *,
        cast: bool = False,
        request: str | None = None,
        message: str | None = None,
        leave_out_erased: bool | None = None,
    ) -> Commit:
        """Adds rows, provided that the table has none of their primary keys, and that no two of them have the same.

        This holds for the version that the rows land on: of two that insert a key at the same time, one gets
        DuplicateKeyError. Files that may have one of the keys, by statistics, filters and the index, are searched for
        it; a commit that is tried again searches only what came since. Up to 64 MB of rows are compared before
        anything is written. Rows and keys are streamed in bounded memory; keys that take more than 32 MB wait in
        temporary files.

        Args:
            data, cast, request, message, leave_out_erased: as for ``append``. A request that was applied before is not
                compared again.

        Raises:
            DuplicateKeyError: the table has keys of these rows, or several rows have one; nothing was added.
            RowError: a key is NULL, or a row does not fit.
            InputError: the table has no primary key.

        Examples:
            >>> people.insert([{"id": 1, "name": "Eve", "age": 20}])
            Traceback (most recent call last):
            dolmen.errors.DuplicateKeyError: ...
        """
        return self._commit(
            "insert",
            lambda table: table.insert(data, cast=cast, request=request, leave_out_erased=leave_out_erased),
            message,
            request=request,
            data=data,
        )

    def upsert(
        self,
        data: Any,
        on: str | Sequence[str] | None = None,
        *,
        cast: bool = False,
        request: str | None = None,
        message: str | None = None,
        leave_out_erased: bool | None = None,
    ) -> Commit:
        """Adds rows in place of all older rows with their keys, without reading any. Among equal keys the last wins.

        Args:
            on: the key columns; the primary key by default.
            cast, request, message, leave_out_erased: as for ``append``.

        Raises:
            RowError: a key is NULL, or a row does not fit.
            LimitError: there are more than 1,000,000 keys.

        Examples:
            >>> commit = people.upsert([{"id": 3, "name": "Linus", "age": 29}])
            >>> people.get(3)["age"]
            29
        """
        return self._commit(
            "upsert",
            lambda table: table.upsert(data, on, cast=cast, request=request, leave_out_erased=leave_out_erased),
            message,
            request=request,
            data=data,
            holds=True,
        )

    def delete(
        self,
        where: Where = None,
        *,
        parameters: Parameters | None = None,
        keys: Any = None,
        on: Sequence[str] | None = None,
        mode: Mode = "tombstone",
        request: str | None = None,
        message: str | None = None,
    ) -> Commit:
        """Deletes the present rows for which a predicate is TRUE, or that have one of the keys.

        A tombstone costs three small PUTs and reads nothing, whatever the table's size. ``mode="positions"`` finds the
        rows now, and stores their positions: later scans are faster, and ``Commit.rows`` is exact.

        Args:
            where: SQL text or a mapping; ``"TRUE"`` deletes all rows.
            parameters: values for ``?`` in the text of ``where``, in order, or for ``:name``, by name.
            keys: values (tuples for several columns) of the primary key or of the columns ``on``.
            request, message: as for ``append``. The order of keys and ``mode`` do not make it another delete.

        Examples:
            >>> commit = people.delete("age < ?", parameters=[30])
            >>> commit = people.delete(keys=[1])
            >>> people.to_arrow()["name"].to_pylist()
            ['Grace']
        """

        def statement(table: TransactionTable) -> None:
            table.delete(where, parameters=parameters, keys=keys, on=on, mode=mode, request=request)

        arguments.one_of("mode", mode, get_args(Mode))
        if mode == "positions":  # a file may be replaced before the commit: then the rows are looked up again
            return self._commit("delete", statement, message, request=request, reads=True)
        return self._commit("delete", statement, message, request=request, data=keys)

    def erase(
        self,
        where: Where = None,
        *,
        parameters: Parameters | None = None,
        keys: Any = None,
        on: Sequence[str] | None = None,
        within: str | None = None,
        request: str | None = None,
        message: str | None = None,
    ) -> ErasureResult:
        """Deletes rows from all versions at once: nobody sees them any more, whichever version, tag or clone is read.

        They leave the disk within ``erase_within``. Files that were dropped before, and are ingested later, do not
        bring them back. Rows that are written afterwards are new rows. It costs three small PUTs, as ``delete``
        does, and a GET for the server's clock.

        Args:
            where, parameters, keys, on: as for ``delete``.
            within: a time, such as "2d", within which the rows leave the disk; by default that of the setting
                ``erase_within``. It is no part of what a request asks for.
            request, message: as for ``append``. The same request has the same erasure.

        Raises:
            PredicateError, SchemaError: the predicate or the keys do not fit the table.

        Examples:
            >>> erased = people.erase(keys=[2])
            >>> people.at(version=2).count()
            2
        """
        found: list[str] = []

        def statement(table: TransactionTable) -> None:
            found.append(table.erase(where, parameters=parameters, keys=keys, on=on, within=within, request=request))

        commit = self._commit("erase", statement, message, request=request, data=keys)
        return ErasureResult.of(found[-1], commit, self._context)

    def update(
        self,
        set: NewValues,
        where: Where = None,
        *,
        parameters: Parameters | None = None,
        request: str | None = None,
        message: str | None = None,
    ) -> Commit:
        """Gives rows new values, in one commit. Other rows stay as they are in their files.

        What it reads may not change until the commit: otherwise it starts again on the newest version, so that updates
        at the same time lose nothing.

        Args:
            set: new values by column: Python values, or ``dolmen.Expression("price * 1.1")``, SQL in DuckDB's dialect
                over the row's columns.
            where: only rows for which this is TRUE, as in ``delete``; all rows by default.
            parameters: values for ``?`` in the text of ``where``, in order, or for ``:name``, by name.
            request, message: as for ``append``.

        Raises:
            InputError: DuckDB refuses an expression, or is not installed and there is one.
            SchemaError: there is no such column, it is part of the primary key, or values are of another kind.
            RowError: a value does not fit its column; nothing is rounded.
            ConflictError: others changed what it had read, a hundred times in a row.

        Examples:
            >>> commit = people.update({"age": dolmen.Expression("age + 1")}, where="name = 'Ada'")
            >>> people.get(1)["age"]
            37
        """

        def statement(table: TransactionTable) -> None:
            table.update(set, where, parameters=parameters, request=request)

        return self._commit("update", statement, message, request=request, reads=True)

    def merge(
        self,
        source: Any,
        on: str | Sequence[str],
        when_matched: WhenMatched = "update",
        when_not_matched: WhenNotMatched = "insert",
        when_not_matched_by_source: WhenNotMatchedBySource = None,
        *,
        request: str | None = None,
        message: str | None = None,
    ) -> Commit:
        """Updates, deletes and inserts rows by those of a source, in one commit (SQL's MERGE).

        A row of the table (``target``) and one of the source match when the columns ``on`` are equal in both; NULL
        equals nothing. Of the clauses for a row the first one whose condition is TRUE happens to it. Expressions are
        DuckDB's SQL over ``target.<column>`` and ``source.<column>``.

        The source is held in memory. Of the table it reads the columns it needs of the rows whose keys are within the
        source's. What it reads may not change until the commit: otherwise it starts again on the newest version. ``on``
        the primary key, with all columns updated and inserted, it is an ``upsert``, which reads nothing.

        Args:
            source: rows, as for ``append``. Columns that the table does not have may be there for expressions to use.
            on: columns of both.
            when_matched: "update" gives the target row all values that the source has; a mapping of columns to
                expressions changes just these; "delete"; ``dolmen.Update(values, when=...)`` and
                ``dolmen.Delete(when=...)`` have conditions; a list of several; None leaves it.
            when_not_matched: for source rows without a target row: "insert", a mapping, ``dolmen.Insert(values,
                when=...)``, a list, or None.
            when_not_matched_by_source: for target rows without a source row: "delete", a mapping, ``Update``,
                ``Delete``, a list, or None. Anything but None reads the whole table.
            request, message: as for ``append``.

        Raises:
            InputError: several source rows match one target row; no clause; an expression that DuckDB refuses.
            SchemaError: columns or types do not match the table's, or an update sets a column of the primary key that
                is not among ``on``.
            RowError: a value does not fit; or a NULL in ``on`` where that is the primary key.
            LimitError: the source has more than 256 MB.
            ConflictError: others changed what it had read, a hundred times in a row.

        Examples:
            >>> source = pa.table({"id": [3, 4], "name": ["Linus T.", "Dan"], "age": [28, 61]})
            >>> commit = people.merge(source, on="id", when_matched={"name": "source.name"})
            >>> people.get(3)["name"], people.count()
            ('Linus T.', 4)
        """
        rows = SourceRows.of(source, self._entry.schema)
        clauses = Clauses.of(when_matched, when_not_matched, when_not_matched_by_source)
        operation = (
            "delete" if clauses.is_delete else "upsert" if is_upsert(self._entry, rows, on, clauses) else "merge"
        )

        def statement(table: TransactionTable) -> None:
            table.merge(rows, on, clauses.matched, clauses.not_matched, clauses.by_source, request=request)

        return self._commit(operation, statement, message, request=request, reads=True)

    def publish_iceberg(
        self, *, glue: str | None = None, anew: bool = False, dry_run: bool = False
    ) -> IcebergPublication:
        """Publishes the newest version as an Apache Iceberg snapshot, without copying data (docs/iceberg.md).

        Writes nothing if what is published shows the same rows and columns. Settings of the table: ``iceberg`` (v2 if
        it is not set) and ``iceberg_snapshots``.

        Args:
            glue: the database of the AWS Glue Data Catalog that shows it; None for that of the environment
                (``DOLMEN_GLUE_DATABASE``, for databases in S3), "" for none.
            anew: publish also what is published, and carry nothing over, if objects of a publication are damaged.
            dry_run: find out whether there is something to publish, and write nothing.

        Returns:
            the result, with ``metadata_location`` for readers.

        Raises:
            ConflictError: others published again and again.
            CorruptionError: an object that it needs is damaged or missing.
            NotFoundError, TableExistsError, AccessDeniedError, StoreUnavailableError: Glue has no such database, has
                another table of this name, or refuses. The publication is there, and the next one registers it.

        Examples:
            >>> people.publish_iceberg().metadata_location.endswith(".metadata.json")
            True
        """
        from dolmen.iceberg.publication import publish  # imports fastavro

        return publish(
            self._context,
            self.name,
            glue=glue,
            anew=arguments.flag("anew", anew),
            dry_run=arguments.flag("dry_run", dry_run),
        )

    def overwrite(
        self,
        data: Any,
        *,
        force: bool = False,
        cast: bool = False,
        request: str | None = None,
        message: str | None = None,
        leave_out_erased: bool | None = None,
    ) -> Commit:
        """Replaces all rows in one commit. Older versions still show the old rows until they expire.

        Args:
            data: see ``append``; without rows the table becomes empty.
            force: also replace rows that others have added or deleted since this began.
            cast, request, message, leave_out_erased: as for ``append``. ``force`` does not make it another request.

        Raises:
            ConflictError: others added or deleted rows meanwhile (unless forced), or overwrote the table too.
            SchemaError, RowError: the data does not fit the table; nothing was changed.

        Examples:
            >>> commit = people.overwrite([{"id": 9, "name": "Zoe", "age": 33}])
            >>> people.count()
            1
        """
        return self._commit(
            "overwrite",
            lambda table: table.overwrite(
                data, force=force, cast=cast, request=request, leave_out_erased=leave_out_erased
            ),
            message,
            request=request,
            data=data,
        )

    def add_column(
        self,
        name: str,
        type: pa.DataType,
        default: Any = None,
        *,
        nullable: bool = True,
        comment: str = "",
        request: str | None = None,
        message: str | None = None,
    ) -> Commit:
        """Adds a column, in one commit that touches no file. Existing rows get ``default``.

        Args:
            name: any, but not that of another column; or the path of a field inside a column, such as
                ``address.country``, which is NULL in existing rows. All calls that change columns but ``set_default``,
                ``reorder``, ``comment`` and ``set_sort_key`` take such paths.
            type: see ``Database.create_table``.
            default: a value of the type, also for rows to come that are written without the column; None is NULL.
            nullable: whether rows may have NULL in it; without it, ``default`` is needed.
            comment: what the column is, for people.
            request, message: as for ``append``.

        Raises:
            SchemaError: the name is taken or not allowed, the type can't be stored, or a default is missing.
            InputError: the default is no value of the type.
            ConflictError: somebody changed the columns meanwhile; all calls that change columns raise it.

        Examples:
            >>> commit = people.add_column("city", pa.string(), default="Paris")
            >>> people.get(1)["city"]
            'Paris'
        """
        return self._commit(
            "alter",
            lambda table: table.add_column(name, type, default, nullable=nullable, comment=comment, request=request),
            message,
            request=request,
        )

    def drop_column(self, name: str, *, request: str | None = None, message: str | None = None) -> Commit:
        """Drops a column, in one commit that touches no file. Older versions still show it until they expire.

        Its values leave the disk when the files that hold them are compacted, and those versions expire. A new column
        of the same name is another column.

        Args:
            request, message: as for ``append``.

        Raises:
            SchemaError: there is no such column; or it is the only one, part of the primary or sort key, or named by a
                setting.

        Examples:
            >>> commit = people.drop_column("age")
            >>> people.schema.names
            ['id', 'name']
        """
        return self._commit("alter", lambda table: table.drop_column(name, request=request), message, request=request)

    def rename_column(self, old: str, new: str, *, request: str | None = None, message: str | None = None) -> Commit:
        """Renames a column, in one commit that touches no file. Settings that name it follow.

        Args:
            old: a column, or the path of a field inside of one.
            new: the column's or the field's own name.
            request, message: as for ``append``.

        Raises:
            SchemaError: there is no such column, the new name is taken or not allowed, or deletes of changes (CDC) are
                remembered by the column.
            InputError: the new name is the old one.

        Examples:
            >>> commit = people.rename_column("name", "first_name")
            >>> people.schema.names
            ['id', 'first_name', 'age']
        """
        return self._commit(
            "alter", lambda table: table.rename_column(old, new, request=request), message, request=request
        )

    def make_nullable(self, name: str, *, request: str | None = None, message: str | None = None) -> Commit:
        """Allows NULL in a column from now on.

        Args:
            request, message: as for ``append``.

        Raises:
            SchemaError: there is no such column, or it is part of the primary key.

        Examples:
            >>> commit = people.make_nullable("age")
            >>> people.schema.field("age").nullable
            True
        """
        return self._commit("alter", lambda table: table.make_nullable(name, request=request), message, request=request)

    def widen_column(
        self, name: str, type: pa.DataType, *, request: str | None = None, message: str | None = None
    ) -> Commit:
        """Gives a column a type that has all values of its own, in one commit that touches no file.

        Args:
            type: a longer integer of the same sign, double for float, a decimal of more digits and the same scale, or
                a timestamp without zone for date. Older versions keep their type.
            request, message: as for ``append``.

        Raises:
            SchemaError: there is no such column; it may not change to this type; a date is beyond all timestamps; or
                deletes of changes (CDC) are remembered by the column.

        Examples:
            >>> commit = people.add_column("visits", pa.int32())
            >>> commit = people.widen_column("visits", pa.int64())
            >>> people.schema.field("visits").type
            DataType(int64)
        """
        return self._commit(
            "alter", lambda table: table.widen_column(name, type, request=request), message, request=request
        )

    def set_default(self, name: str, default: Any, *, request: str | None = None, message: str | None = None) -> Commit:
        """Changes the value of future rows that are written without a column; existing rows keep theirs.

        Args:
            default: a value of the column's type; None is NULL.
            request, message: as for ``append``.

        Raises:
            SchemaError: there is no such column.
            InputError: the default is no value of the column's type.

        Examples:
            >>> commit = people.set_default("age", 18)
            >>> commit = people.append([{"id": 4, "name": "Dan"}])
            >>> people.get(4)["age"]
            18
        """
        return self._commit(
            "alter", lambda table: table.set_default(name, default, request=request), message, request=request
        )

    def reorder(self, columns: Sequence[str], *, request: str | None = None, message: str | None = None) -> Commit:
        """Changes the order in which scans return columns: these come first, and the others as they were.

        Args:
            request, message: as for ``append``.

        Raises:
            SchemaError: there is no such column, or one stands twice.

        Examples:
            >>> commit = people.reorder(["name"])
            >>> people.schema.names
            ['name', 'id', 'age']
        """
        return self._commit("alter", lambda table: table.reorder(columns, request=request), message, request=request)

    def comment(self, name: str, comment: str, *, request: str | None = None, message: str | None = None) -> Commit:
        """Says what a column is, for people; an empty text takes that away.

        Args:
            comment: at most 1,000 characters.
            request, message: as for ``append``.

        Examples:
            >>> commit = people.comment("age", "in years")
            >>> people.describe()["comments"]
            {'age': 'in years'}
        """
        return self._commit(
            "alter", lambda table: table.comment(name, comment, request=request), message, request=request
        )

    def set_sort_key(
        self, columns: str | Sequence[str] | None, *, request: str | None = None, message: str | None = None
    ) -> Commit:
        """Sorts new files by other columns. Existing files are sorted when they are compacted.

        Args:
            columns: names; None sorts by nothing.
            request, message: as for ``append``.

        Raises:
            SchemaError: there is no such column, or rows can't be sorted by it.

        Examples:
            >>> commit = people.set_sort_key("age")
            >>> people.sort_key
            ('age',)
        """
        return self._commit(
            "alter", lambda table: table.set_sort_key(columns, request=request), message, request=request
        )

    def set(self, *, request: str | None = None, message: str | None = None, **changes: Any) -> Commit:
        """Changes settings of this table, in one commit: ``set(ttl="event_time 90d", target_file_bytes="256MB")``.

        Args:
            changes: values by name (``settings`` lists them); None unsets a setting, so that its default holds.
            request, message: as for ``append``. When it is tried again, settings that were changed since stay so.

        Raises:
            InputError, SchemaError: a setting is unknown, or its value is not allowed.
            AppliedIdError: other settings were changed under this id, or the id was used for something else.

        Examples:
            >>> commit = people.set(target_file_bytes="256MB")
            >>> people.settings()["target_file_bytes"]
            '256MB'
        """
        return self._commit("set", lambda table: table.set(request=request, **changes), message, request=request)

    def settings(self) -> dict[str, Any]:
        """All settings of this table with their values, as they were given, or their defaults.

        Examples:
            >>> people.settings()["ttl"] is None
            True
        """
        entry = self._context.segments.whole(self._snapshot().table(self.name))
        return effective_values(entry.properties, TABLE_PROPERTIES)

    def _commit(
        self,
        operation: str,
        statement: Callable[[TransactionTable], None],
        message: str | None,
        *,
        request: str | None,
        data: Any = None,
        holds: bool = False,
        reads: bool = False,
    ) -> Commit:
        """Commits one statement; one that reads rows is made again when these have changed. See ``Autocommit``."""
        one = Autocommit(self._context, self.name, operation, statement, message, request, data, holds)
        return one.replay() if reads else one.run()
