"""``readStream.format("dolmen")``: the rows that are appended to a table, a micro-batch for some versions at a time.

A batch has the rows of its end version that were committed after its start: not a row that was appended and deleted
within the batch, and a row that compaction has moved only once. An offset is a query's position in the history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as s
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dolmen.api.database import Database
from dolmen.api.database import open as open_database
from dolmen.commit.context import context_of
from dolmen.commit.head import commit_of
from dolmen.commit.versions import manifest_at_time, manifest_at_version
from dolmen.entries.segments.live import LiveFiles
from dolmen.errors import ConflictError, InputError, VersionExpiredError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import COMMIT_TS
from dolmen.rows.scan.scan import plan_of
from dolmen.spark.failures import mark_dolmen_errors
from dolmen.spark.source.batch_reader import SharedScan, groups_of, parse_where
from dolmen.spark.source.source import STREAM_READ, Options, SourceTable, table_at
from dolmen.spark.spark_types import worker_schema
from dolmen.transactions.snapshot import microseconds


@dataclass(frozen=True)
class Offset:
    """The state of the table in one version, as a checkpoint keeps it.

    Rows keep their commit timestamps, through compaction too: the rows that were appended between two offsets are those
    of the later version with timestamps between theirs. So only the later version must still exist.

    Args:
        version: of the database; 0 = before the first one.
        commit_ts: the greatest timestamp that a row of it can have.
        table: uuid of the table; "" if no version was read.
        epoch: version in which the table was last overwritten; 0 if no version was read.
    """

    version: int
    commit_ts: int
    table: str = ""
    epoch: int = 0

    @classmethod
    def of(cls, manifest: Manifest, entry: TableEntry) -> Offset:
        """The offset of a version."""
        return cls(manifest.version, manifest.commit_ts, entry.uuid, entry.epoch)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Offset:
        """Reads the offset in a checkpoint. Raises InputError."""
        try:
            return cls(**document)
        except TypeError as error:
            raise InputError(f"the checkpoint holds no offset of a dolmen table: {document}") from error

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark's checkpoint keeps it."""
        return asdict(self)

    def check(self, name: str, entry: TableEntry, end: Offset, *, ignore_deletes: bool) -> None:
        """Checks that a stream at this offset may continue to a later version.

        Args:
            entry: the table in the version ``end``.

        Raises:
            ConflictError: rows that it has read were deleted, and ``ignore_deletes`` is off.
        """
        if not self.table:
            return
        if self.table != entry.uuid:
            raise ConflictError(
                f"table {name!r} was dropped and created again since version {self.version}: "
                "begin a new query, with a new checkpoint"
            )
        if ignore_deletes:
            return
        if entry.epoch != self.epoch:
            what = f"version {entry.epoch} has overwritten it"
        elif entry.last_delete_ts > self.commit_ts:
            what = "rows were deleted, or replaced by an upsert"
        else:
            return
        raise ConflictError(
            f"table {name!r}: {what} between versions {self.version} and {end.version}, which a stream of appended "
            'rows can\'t tell. Set the option "ignoreDeletes" to true to read on with what was added'
        )


try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2, which reads the latest offset once, and ends there

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Replaces Spark's marker that ``prepareForTriggerAvailableNow`` exists."""


_UNSETTLED = "give startingVersion=latest to begin after it, or a time more than 20 minutes ago"
"""Options for a query that begins close to the present time."""


@dataclass(frozen=True)
class RangePartition(InputPartition):  # type: ignore[misc]
    """Files whose rows were partly committed within (after, until]; these rows are read.

    Args:
        scan: with ``_commit_ts`` among its columns.
        names: columns of the result.
    """

    scan: SharedScan
    names: tuple[str, ...]
    paths: tuple[str, ...]
    after: int
    until: int

    def read(self, arrow_schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yields these rows in the types that Spark takes."""
        for batch in self.scan.read(self.paths):
            ts = batch.column(COMMIT_TS)
            rows = batch.filter(pc.and_(pc.greater(ts, self.after), pc.less_equal(ts, self.until)))
            if rows.num_rows:
                yield rows.select(self.names).cast(arrow_schema)


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads one table as a stream, in a process of the driver that lives as long as the query.

    Args:
        schema: columns of the result.
    """

    known: Collection[str] = STREAM_READ
    """Names of its options."""

    def __init__(self, options: Mapping[str, str], schema: s.StructType) -> None:
        self._options, self._schema = dict(options), schema
        given = self._given = Options.of(options, self.known)
        self._most = given.number("max_versions_per_trigger")
        self._ignore_deletes = given.flag("ignore_deletes")
        if given.text("starting_version") and given.text("starting_timestamp"):
            raise InputError("the options startingVersion and startingTimestamp say two things: give one")
        self._opened: Database | None = None
        self._begin: Offset | None = None
        self._reached: Offset | None = None
        self._target: Manifest | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Workers get a copy without open handles: their partitions have all that they need."""
        return {**self.__dict__, "_opened": None}

    @mark_dolmen_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """The offset at which a query without a checkpoint begins: before all rows, or where the options say."""
        return self._from().to_json()

    @mark_dolmen_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Sets the newest version as the end of the query (Spark 4.2 and later)."""
        self._target = self._newest()

    @mark_dolmen_errors()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch: a version with changes, at most ``maxVersionsPerTrigger`` after the start.

        Args:
            start: where the batch begins; Spark 4.1 and older do not pass it, so earlier calls tell it.
            limit: Spark's; always "all", because the reader offers no other.
        """
        begin = Offset.from_json(start) if start else self._reached or self._from()
        newest = self._target or self._newest()
        end = self._end(begin, newest)
        self._reached = end
        return end.to_json()

    @mark_dolmen_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Groups the files that contain rows of a batch.

        Raises:
            ConflictError: rows were deleted since, and ``ignore_deletes`` is off.
            VersionExpiredError: the batch was planned so long ago that its end has expired.
        """
        first, last = Offset.from_json(start), Offset.from_json(end)
        self._reached = last
        if first == last:
            return []
        manifest = self._manifest(last.version)
        table, entry = self._table(manifest)
        first.check(table.table, entry, last, ignore_deletes=self._ignore_deletes)
        names = table.columns
        columns = names if COMMIT_TS in names else (*names, COMMIT_TS)
        scan = SharedScan(replace(table, columns=columns), parse_where(self._given, table.schema))
        bounds = first.commit_ts, last.commit_ts
        files = [plan.file for plan in plan_of(scan.scan()).files if _may_contain(plan.file, *bounds)]
        return [RangePartition(scan, names, tuple(file.path for file in some), *bounds) for some in groups_of(files)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one partition."""
        rows: Iterator[pa.RecordBatch] = partition.read(worker_schema(self._schema))
        return rows

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the reader keeps nothing for past batches."""

    def stop(self) -> None:
        """Does nothing: the reader has no resources to release."""

    @property
    def _database(self) -> Database:
        if self._opened is None:
            self._opened = open_database(self._given.url)
        return self._opened

    def _newest(self) -> Manifest:
        return context_of(self._database).head.refresh().manifest

    def _manifest(self, version: int) -> Manifest:
        context = context_of(self._database)
        newest = self._target or self._newest()
        if version == newest.version:
            return newest
        newest = self._newest()
        try:
            with context.reading(newest.version):
                return manifest_at_version(context.head, newest, version)
        except VersionExpiredError as error:
            raise VersionExpiredError(
                f"{error}. A batch of this stream ends there, which was begun but not finished: begin a new query, "
                "with a new checkpoint, from a version that is kept (startingVersion), or keep versions for longer"
            ) from error

    def _entry(self, manifest: Manifest) -> TableEntry:
        segments = context_of(self._database).segments
        with context_of(self._database).reading(manifest.version):
            return segments.whole(manifest.table(self._given.table))

    def _table(self, manifest: Manifest) -> tuple[SourceTable, TableEntry]:
        return table_at(self._database, manifest, self._given).with_schema(self._schema), self._entry(manifest)

    def _from(self) -> Offset:
        """The offset at which a new query begins: "latest" must not change between two calls."""
        self._begin = self._begin or self._first()
        return self._begin

    def _first(self) -> Offset:
        """The offset before all rows, before the rows of a version, or after all rows at a time."""
        version, moment = self._given.text("starting_version"), self._given.moment("starting_timestamp")
        if version is None and moment is None:
            return Offset(0, 0)
        context, newest = context_of(self._database), self._newest()
        if version is not None and version.lower() == "latest":
            return Offset.of(newest, self._entry(newest))
        with context.reading(newest.version):
            if moment is not None:
                manifest = manifest_at_time(
                    context.head, context.head.refresh(), microseconds(moment), instead=_UNSETTLED
                )
                return Offset.of(manifest, self._entry(manifest))
            number = self._given.number("starting_version") or 1
            manifest = manifest_at_version(context.head, newest, number)  # raises when it has expired
            if number == 1:
                return Offset(0, 0)
            # The version before it may have expired: the history still has its timestamp.
            before = commit_of(context.head, manifest, number - 1)
        if before is None:
            raise VersionExpiredError(f"version {number - 1} is not in the history of version {number} any more")
        entry = self._entry(manifest)
        return Offset(before.version, before.commit_ts, entry.uuid, entry.epoch)

    def _end(self, begin: Offset, newest: Manifest) -> Offset:
        """The newest version, or the last that the limit allows; ``begin`` if the table has not changed since.

        Other tables' commits make versions too. They begin no batch, or a query that writes to another table of the
        same database would start itself again without end.
        """
        if newest.version <= begin.version or not self._changed(newest, begin):
            return begin
        if self._most is None:
            return Offset.of(newest, self._entry(newest))
        version = begin.version
        horizon = newest.horizon - 1  # older versions can't be read: the first batch takes them together
        while True:
            version = min(max(version, horizon) + self._most, newest.version)
            manifest = newest if version == newest.version else self._manifest(version)
            if version == newest.version or (self._given.table in manifest.tables and self._changed(manifest, begin)):
                return Offset.of(manifest, self._entry(manifest))

    def _changed(self, manifest: Manifest, since: Offset) -> bool:
        """Whether the table has new rows, or has had deletes, since."""
        entry = self._entry(manifest)
        if since.table != entry.uuid or since.epoch != entry.epoch:
            return bool(since.table) or bool(LiveFiles.of(entry, context_of(self._database).segments).count)
        if entry.last_delete_ts > since.commit_ts:
            return True
        return any(file.greatest_row_ts > since.commit_ts for file in entry.files) or any(
            segment.greatest > since.commit_ts for segment in entry.segments_of("files")
        )


def _may_contain(file: DataFile, after: int, until: int) -> bool:
    """Whether a file may contain rows that were committed within (after, until]."""
    least, greatest = (file.row_ts, file.row_ts) if file.row_ts is not None else file.row_ts_bounds or (0, until)
    return greatest > after and least <= until
