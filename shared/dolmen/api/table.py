"""Tables of a database: every read follows the newest version, and every write is one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
from msgspec import Struct

from dolmen.api.writer import MAX_BYTES, MAX_ROWS, MAX_SECONDS, BufferedWriter
from dolmen.base import arguments
from dolmen.base.runtime import AUTOCOMMIT, attempts
from dolmen.base.units import utc
from dolmen.commit.change import (
    About,
    ErasedMeanwhileError,
    Metadata,
    Note,
    find_applied,
    read_about,
    with_full_signatures,
)
from dolmen.commit.draft import ColumnsChangedError
from dolmen.commit.head import Context
from dolmen.commit.versions import manifest_at_version
from dolmen.entries.segments.erasures_in_force import reaches
from dolmen.errors import AppliedIdError, ConflictError, Error, InputError, NotFoundError
from dolmen.format.ingest_properties import TABLE_PROPERTIES
from dolmen.format.manifest import Erasure, Manifest, TableEntry
from dolmen.format.properties import effective_values
from dolmen.format.schema import Schema
from dolmen.predicate.parse import Parameters, Where
from dolmen.rows.write.row_input import is_repeatable
from dolmen.transactions.row_arguments import NewColumns
from dolmen.transactions.row_statements import TableChange
from dolmen.transactions.schema_verbs import How
from dolmen.transactions.snapshot import PinnedTable, pin, read_changes
from dolmen.transactions.transaction import Transaction, replay, unit_of
from dolmen.transactions.transaction_table import TableVerbs, drop_table
from dolmen.transactions.unit_of_work import Commit, UnitOfWork

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dolmen.iceberg.publication import ErasurePublications, IcebergPublication
    from dolmen.maintenance.compact.compaction import Compacted


class ErasureResult(Struct, frozen=True):
    """The result of an erasure: from this commit on no version shows the rows.

    Args:
        id: of the erasure, for ``Database.erasure`` and ``dolmen erasures``.
        commit: the commit that wrote it; "nothing" if its request was applied before.
        due_at: the time by which its rows have left the disk; None if the request was applied before.
        sources: tables that the erasure does not reach, although it reaches a clone of them. The rows stay on the disk
            while these tables have them, in files that they share with the clone.
        publications: the results for tables that are published as Iceberg, which are published at once.
    """

    id: str
    commit: Commit
    due_at: datetime | None
    sources: tuple[str, ...]
    publications: ErasurePublications

    @classmethod
    def of(cls, id_: str, commit: Commit, context: Context) -> ErasureResult:
        """The result of a commit of this process, once published tables with such rows are published again."""
        from dolmen.iceberg.publication import publish_erasures  # imports what writes Iceberg's metadata

        head, publications = context.head.cached, publish_erasures(context, [id_])
        listed = head.manifest.erasures if head is not None and not commit.already else ()
        erasure = next((erasure for erasure in reversed(listed) if erasure.id == id_), None)
        if head is None or erasure is None:
            return cls(id_, commit, None, (), publications)
        return cls(id_, commit, utc(erasure.due_at), _unreached_sources(erasure, head.manifest), publications)


def _unreached_sources(erasure: Erasure, manifest: Manifest) -> tuple[str, ...]:
    """Names of the tables that an erasure does not reach, although it reaches a clone of them."""
    is_reached = {entry.uuid: reaches(erasure, entry) for entry in manifest.tables.values()}
    sources = {uuid for entry in manifest.tables.values() if is_reached[entry.uuid] for uuid in entry.lineage}
    return tuple(
        sorted(name for name, entry in manifest.tables.items() if entry.uuid in sources and not is_reached[entry.uuid])
    )


@with_full_signatures
class Table(TableVerbs[Commit, ErasureResult]):
    """A table of a database. Every read follows the newest version; every write is one commit."""

    def _snapshot(self) -> Manifest:
        return self._context.head.refresh().manifest

    def _cached_snapshot(self) -> Manifest:
        cached = self._context.head.cached
        return cached.manifest if cached else self._snapshot()

    def _apply(
        self, operation: str, statement: Callable[[TableChange], None], about: About, data: Any = None, how: How = ""
    ) -> Commit:
        note, request = read_about(**about)
        if how == "needs_newest":
            unit = UnitOfWork(self._context, operation, note=note, newest=True)
            statement(TableChange(unit, self.name, request, unit.look_up(self.name)))
            return unit.commit()
        autocommit = _Autocommit(self._context, self.name, operation, statement, note, request, data)
        if how == "reads_rows":
            return autocommit.replay()
        return autocommit.run(may_delay_files=how == "may_delay_files")

    def _erasure_result(self, id_: str, done: Commit) -> ErasureResult:
        return ErasureResult.of(id_, done, self._context)

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
        """Streams the rows that commits after one version, up to another, added and removed (docs/changes.md).

        Each row has the table's columns and ``_change`` (``insert``, ``delete``, ``update_before``, ``update_after``),
        ``_version`` and ``_commit_ts``. Versions come in order; each version's changes turn the previous version's rows
        into its own. Reads only files whose rows the commits may have changed.

        Args:
            since: the version after which changes begin; or a time: a datetime, or ISO 8601 text (see
                ``Database.at``). 0 is before the first commit.
            until: the version with which they end, which also gives the columns; the newest by default.
            columns: names of columns of the table; all by default.
            where, parameters: as for ``scan``: only changes of rows for which it is TRUE.
            net: whether to return the difference of the two versions instead of each commit's changes.

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
        return read_changes(self._context, self.name, since, until, columns, where, parameters, net=net)

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

    def compact(self, *, dry_run: bool = False) -> Compacted:
        """Rewrites small and mostly deleted files of the table, where that pays. See ``Database.compact``.

        Examples:
            >>> people.compact().groups
            0
        """
        from dolmen.maintenance.compact.compaction import compact

        return compact(self._context, self.name, dry_run=arguments.flag("dry_run", dry_run))

    def drop(self, **about: Unpack[About]) -> Commit:
        """Drops the table. See ``Database.drop_table``.

        Examples:
            >>> people.drop().operation
            'drop_table'
        """
        note, request = read_about(**about)
        unit = UnitOfWork(self._context, "drop_table", note=note)
        drop_table(unit, self.name, request)
        return unit.commit()

    def writer(
        self,
        *,
        max_rows: int = MAX_ROWS,
        max_seconds: float = MAX_SECONDS,
        max_bytes: int = MAX_BYTES,
        new_columns: NewColumns = "refuse",
        message: str | None = None,
        metadata: Metadata | None = None,
    ) -> BufferedWriter:
        """Opens a writer that collects rows and deletes from any thread, and commits them as few large files.

        Args:
            max_rows: begins a commit when this many rows wait.
            max_seconds: begins a commit when the first call has waited this long. Waiting for an acknowledgement
                begins a commit at once.
            max_bytes: the most bytes of rows in memory; beyond that, calls wait for commits.
            new_columns: as for ``append``, but "add" adds columns at once, in a commit of their own.
            message, metadata: of each commit, as for ``append``.

        Raises:
            InputError: a bound is not positive.

        Examples:
            >>> with people.writer() as writer:
            ...     done = writer.append([{"id": 4, "name": "Dan", "age": 61}])
            >>> done.result().version
            3
        """
        note = Note.of(message, metadata)
        return BufferedWriter(self._context, self.name, max_rows, max_seconds, max_bytes, new_columns, note)

    def publish_iceberg(
        self, *, glue: str | None = None, anew: bool = False, dry_run: bool = False
    ) -> IcebergPublication:
        """Publishes the newest version as an Apache Iceberg snapshot, without copying data (docs/iceberg.md).

        Writes nothing if the last publication shows the same rows and columns. Settings of the table: ``iceberg`` (v2
        if it is not set) and ``iceberg_snapshots``. The result has ``metadata_location`` for readers.

        Args:
            glue: the database of the AWS Glue Data Catalog that shows it; None for the one in the environment
                (``DOLMEN_GLUE_DATABASE``, for databases in S3), "" for none.
            anew: publish everything again, and reuse nothing, if objects of a publication are damaged.
            dry_run: find out whether there is something to publish, and write nothing.

        Raises:
            ConflictError: other processes kept publishing the table.
            CorruptionError: an object that it needs is damaged or missing.
            NotFoundError, TableExistsError, AccessDeniedError, StoreUnavailableError: Glue has no such database, has
                another table of this name, or refuses. The publication is there, and the next one registers it.

        Examples:
            >>> people.publish_iceberg().metadata_location.endswith(".metadata.json")
            True
        """
        from dolmen.iceberg.publication import publish  # imports fastavro

        arguments.flag("anew", anew)
        arguments.flag("dry_run", dry_run)
        return publish(self._context, self.name, glue=glue, anew=anew, dry_run=dry_run)

    def settings(self) -> dict[str, Any]:
        """All settings of this table with their values, as they were set, or their defaults.

        Examples:
            >>> people.settings()["ttl"] is None
            True
        """
        entry = self._context.segments.whole(self._snapshot().table(self.name))
        return effective_values(entry.properties, TABLE_PROPERTIES)


class _Autocommit(Struct, frozen=True):
    """One statement on one table, in a commit of its own, for the columns that the table has at the commit.

    If its request was applied before, and the statement no longer fits the columns, its content is compared with the
    columns of the version that applied it. See ``TableVerbs._apply``.
    """

    context: Context
    name: str
    operation: str
    statement: Callable[[TableChange], None]
    note: Note
    request: str | None
    data: Any

    def replay(self) -> Commit:
        """Commits it on the newest version, and repeats it until nothing that it read has changed meanwhile."""
        runs = 0

        def add(transaction: Transaction) -> None:
            nonlocal runs
            runs += 1
            if runs > 1 and not is_repeatable(self.data):
                raise ConflictError(
                    f"another commit changed rows of table {self.name!r} that this call reads, and its own rows can be "
                    "read only once: repeat the call with rows from their beginning"
                )
            self._add(unit_of(transaction))

        try:
            return replay(self.context, add, self.operation, note=self.note)[1]
        except InputError as error:
            if (commit := self._find_earlier_commit(error)) is not None:
                return commit
            raise

    def run(self, *, may_delay_files: bool) -> Commit:
        """Commits it on the version in this process's cache, after any later commits.

        If it does not fit the columns of that version, or these have changed by the commit, it is repeated on the
        newest version. Raises ConflictError if the data can be read only once, or the table is another one now.
        """
        for attempt in attempts(self.context.runtime, AUTOCOMMIT):
            unit = UnitOfWork(self.context, self.operation, note=self.note)
            if may_delay_files:
                unit.uploads.files.buffer_small_files()
            try:
                self._add(unit)
                if self.operation != "alter":  # that operation compares the columns itself
                    unit.depend_on_columns(self.name)
                return unit.commit()
            except ErasedMeanwhileError:
                if attempt.is_last or not is_repeatable(self.data):
                    raise
            except (InputError, ColumnsChangedError) as error:
                if (commit := self._find_earlier_commit(error)) is not None:
                    return commit
                is_told = isinstance(error, ColumnsChangedError) and self.operation == "alter"
                if is_told or isinstance(error, AppliedIdError) or not self._has_new_columns(unit.base, error):
                    raise
                if attempt.is_last:
                    raise
                if not is_repeatable(self.data):
                    raise ConflictError(
                        f"columns of table {self.name!r} have changed since version {unit.base.version}, which "
                        "this handle knew, and the rows can be read only once: repeat the call with rows from their "
                        "beginning"
                    ) from error
        raise AssertionError("the last round returns or raises")

    def _add(self, unit: UnitOfWork) -> None:
        self.statement(TableChange(unit, self.name, self.request, unit.look_up(self.name)))

    def _find_earlier_commit(self, error: Error) -> Commit | None:
        """The commit of a request that does not fit the present columns, if an earlier version applied it.

        Raises AppliedIdError if another request was applied under its id.
        """
        if self.request is None or not is_repeatable(self.data):
            return None
        try:
            arguments.request_id(self.request)
        except InputError:  # the id itself is invalid
            return None
        newest = self.context.head.refresh().manifest
        applied = find_applied(newest, [self.request], self.context.segments).get(self.request)
        entry = newest.tables.get(self.name)
        if applied is None or entry is None:
            return None
        try:
            earlier = manifest_at_version(self.context.head, newest, applied.version)
        except NotFoundError:  # that version has expired, and its columns with it
            return None
        name = earlier.name_of(entry.uuid)
        if name is None or self._schema(earlier.tables[name]) == self._schema(entry):
            return None
        unit = UnitOfWork(self.context, self.operation, base=earlier)
        try:
            self.statement(TableChange(unit, name, self.request, unit.look_up(name)))
        except InputError:
            raise error from None
        return Commit.nothing(newest.as_history(), unit.commit().already)

    def _has_new_columns(self, base: Manifest, error: Error) -> bool:
        """True if its columns have changed since ``base``. Raises ConflictError if another table has the name now."""
        base_entry = base.tables.get(self.name)
        entry = self.context.head.refresh().manifest.table(self.name)
        if base_entry is None:
            return False
        if base_entry.uuid != entry.uuid:
            raise ConflictError(
                f"table {self.name!r} was dropped and created again after version {base.version}, which this handle "
                "has read, and the input does not fit the new table: open the table again, and repeat the call"
            ) from error
        return self._schema(base_entry) != self._schema(entry)

    def _schema(self, entry: TableEntry) -> Schema:
        return self.context.segments.whole(entry).schema
