"""Streams of ``format("dolmen")``: the rows that are appended to a table, or all of its changes, by micro-batches.

A batch has some versions, between two offsets, which are positions in the history; it is the same when it is repeated.
A batch of appended rows has the rows of its end version that were committed after its start: not a row that was
appended and deleted within the batch, and a row that compaction has moved only once. A query of changes has the columns
that the table had when its frame was made. Older versions are shown in them, and a later change of columns ends the
query.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import types as s
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dolmen.api.cursor import ChangeCursor
from dolmen.api.database import Database
from dolmen.api.database import open as open_database
from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.base.runtime import cached_property
from dolmen.base.units import utc
from dolmen.commit.head import commit_of, context_of
from dolmen.commit.versions import manifest_at_time, manifest_at_version
from dolmen.entries.segments.live import LiveFiles
from dolmen.errors import ConflictError, InputError, SchemaError, VersionExpiredError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import EMPTY, Manifest, TableEntry
from dolmen.format.schema import COMMIT_TS, Field
from dolmen.predicate.ast import columns as columns_of
from dolmen.rows.scan.scan import plan_of
from dolmen.spark.frame_types import origins_of, worker_schema
from dolmen.spark.source.readers import ADDED, SharedScan, SourceFeed, SourcePartition, groups_of, parse_where
from dolmen.spark.source.source import CHANGES_STREAM_READ, STREAM_READ, Options, reads_changes, table_at
from dolmen.spark.tasks import mark_dolmen_errors
from dolmen.transactions.snapshot import microseconds

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2, which reads the latest offset once, and ends there

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Replaces Spark's marker that ``prepareForTriggerAvailableNow`` exists."""


_IDLE = timedelta(hours=1)  # a cursor moves this often when only other tables change
_UNSETTLED = "give startingVersion=latest to begin after it, or a time more than 20 minutes ago"
"""Options for a query that begins close to the present time."""


def stream_reader(raw: Mapping[str, str], schema: s.StructType) -> DataSourceStreamReader:
    """Makes the reader of a stream, of appended rows or of all changes. Raises InputError, SchemaError."""
    return FeedStreamReader(raw, schema) if reads_changes(raw) else TableStreamReader(raw, schema)


@dataclass(frozen=True)
class Offset:
    """The state of the table in one version, as a checkpoint keeps it.

    Rows keep their commit timestamps, through compaction too: the rows that were appended between two offsets are those
    of the later version with timestamps between theirs. So only the later version must still exist.
    """

    version: int  # of the database; 0 = before the first one
    commit_ts: int  # the greatest timestamp that a row of it can have
    table: str = ""  # uuid of the table; "" if no version was read
    epoch: int = 0  # version in which the table was last overwritten; 0 if no version was read

    @classmethod
    def of(cls, manifest: Manifest, entry: TableEntry) -> Offset:
        return cls(manifest.version, manifest.commit_ts, entry.uuid, entry.epoch)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Offset:
        try:
            return cls(**document)
        except TypeError as error:
            raise InputError(f"the checkpoint has no offset of a dolmen table: {document}") from error

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def check(self, name: str, entry: TableEntry, end: Offset, *, ignore_deletes: bool) -> None:
        """Raises ConflictError unless a stream at this offset may continue to the offset ``end`` of ``entry``."""
        if not self.table:
            return
        if self.table != entry.uuid:
            raise _replaced_error(name, self.version)
        if ignore_deletes:
            return
        if entry.epoch != self.epoch:
            reason = f"version {entry.epoch} has overwritten it"
        elif entry.last_delete_ts > self.commit_ts:
            reason = "rows were deleted, or replaced by an upsert"
        else:
            return
        raise ConflictError(
            f"table {name!r}: {reason} between versions {self.version} and {end.version}, and a stream of appended "
            'rows can\'t show that. Set the option "ignoreDeletes" to true to continue with the added rows'
        )


def _replaced_error(table: str, version: int) -> ConflictError:
    return ConflictError(
        f"table {table!r} was dropped and created again since version {version}: begin a new query, with a new "
        "checkpoint"
    )


@dataclass(frozen=True)
class RangePartition(SourcePartition):
    """Files whose rows were partly committed within (after, until]; the columns ``names`` of these rows are read."""

    names: tuple[str, ...]
    after: int
    until: int

    def read(self, arrow_schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for batch in self.source.read(self.parts):
            ts = batch.column(COMMIT_TS)
            rows = batch.filter(pc.and_(pc.greater(ts, self.after), pc.less_equal(ts, self.until)))
            if rows.num_rows:
                yield rows.select(self.names).cast(arrow_schema)


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads one table as a stream, in a process of the driver that lives as long as the query."""

    allowed: Collection[str] = STREAM_READ  # names of its options
    handles: Collection[str] = ("_database",)  # attributes that workers do not get

    def __init__(self, raw: Mapping[str, str], schema: s.StructType) -> None:
        self._schema = schema
        options = self._options = Options.of(raw, self.allowed)
        self._most_versions = options.number("max_versions_per_trigger")
        self._ignore_deletes = options.flag("ignore_deletes")
        if options.text("starting_version") and options.text("starting_timestamp"):
            raise InputError("the options startingVersion and startingTimestamp exclude each other: give one")
        self._last_end: Offset | None = None
        self._target: Manifest | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Workers get a copy without open handles: their partitions have all that they need."""
        return {name: value for name, value in self.__dict__.items() if name not in self.handles}

    @mark_dolmen_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """The offset at which a query without a checkpoint begins: before all rows, or where the options say."""
        return self._start.to_json()

    @mark_dolmen_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Sets the newest version as the end of the query (Spark 4.2 and later)."""
        self._target = self._newest()

    @mark_dolmen_errors()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch: a version with changes, at most ``maxVersionsPerTrigger`` after the start.

        Spark 4.1 and older do not pass the start. ``limit`` is always "all", because the reader offers no other.
        """
        begin = Offset.from_json(start) if start else self._last_end or self._start
        self._last_end = self._end(begin, self._target or self._newest())
        return self._last_end.to_json()

    @mark_dolmen_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plans the parts of a batch. Raises ConflictError, SchemaError, VersionExpiredError."""
        first, last = Offset.from_json(start), Offset.from_json(end)
        self._last_end = last
        return [] if first == last else self._plan(first, last)

    def _plan(self, first: Offset, last: Offset) -> Sequence[InputPartition]:
        """Groups the files that contain rows of a batch."""
        manifest = self._manifest(last.version)
        table = table_at(self._database, manifest, self._options).with_schema(self._schema)
        first.check(table.table, self._entry(manifest), last, ignore_deletes=self._ignore_deletes)
        names = table.columns
        columns = names if COMMIT_TS in names else (*names, COMMIT_TS)
        scan = SharedScan(replace(table, columns=columns), parse_where(self._options, table.schema))
        bounds = first.commit_ts, last.commit_ts
        files = [plan.file for plan in plan_of(scan.scan()).files if _may_contain(plan.file, *bounds)]
        return [RangePartition(scan, tuple(file.path for file in some), names, *bounds) for some in groups_of(files)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows: Iterator[pa.RecordBatch] = partition.read(worker_schema(self._schema))
        return rows

    @cached_property
    def _database(self) -> Database:
        return open_database(self._options.url)

    def _newest(self) -> Manifest:
        return context_of(self._database).head.refresh().manifest

    def _manifest(self, version: int) -> Manifest:
        if self._target is not None and version == self._target.version:
            return self._target
        context, newest = context_of(self._database), self._newest()
        if version == newest.version:
            return newest
        try:
            with context.reading(newest.version):
                return manifest_at_version(context.head, newest, version)
        except VersionExpiredError as error:
            raise VersionExpiredError(
                f"{error}. A batch of this stream that was begun but not finished ends there: begin a new query, "
                "with a new checkpoint, from a version that is kept (startingVersion), or keep versions for longer"
            ) from error

    def _entry(self, manifest: Manifest) -> TableEntry:
        context = context_of(self._database)
        with context.reading(manifest.version):
            return context.segments.whole(manifest.table(self._options.table))

    @cached_property
    def _start(self) -> Offset:
        """The offset before all rows, or at the version or time in the options: "latest" is looked up once."""
        version, moment = self._options.text("starting_version"), self._options.moment("starting_timestamp")
        if version is None and moment is None:
            return Offset(0, 0)
        newest = self._newest()
        if version is not None and version.lower() == "latest":
            return Offset.of(newest, self._entry(newest))
        with context_of(self._database).reading(newest.version):
            if moment is not None:
                return self._offset_at(newest, microseconds(moment))
            return self._offset_before(newest, self._options.number("starting_version") or 1)

    def _offset_at(self, newest: Manifest, time_us: int) -> Offset:
        head = context_of(self._database).head
        manifest = manifest_at_time(head, head.refresh(), time_us, instead=_UNSETTLED)
        return Offset.of(manifest, self._entry(manifest))

    def _offset_before(self, newest: Manifest, version: int) -> Offset:
        head = context_of(self._database).head
        manifest = manifest_at_version(head, newest, version)  # raises when it has expired
        if version == 1:
            return Offset(0, 0)
        # The version before it may have expired: the history still has its timestamp.
        before = commit_of(head, manifest, version - 1)
        if before is None:
            raise VersionExpiredError(f"version {version - 1} is not in the history of version {version} any more")
        entry = self._entry(manifest)
        return Offset(before.version, before.commit_ts, entry.uuid, entry.epoch)

    def _end(self, begin: Offset, newest: Manifest) -> Offset:
        """The newest version, or the last that the limit allows; ``begin`` if the table has not changed since.

        Other tables' commits make versions too. They begin no batch, or a query that writes to another table of the
        same database would start itself again without end.
        """
        if newest.version <= begin.version or not self._has_changed(newest, begin):
            return begin
        if self._most_versions is None:
            return Offset.of(newest, self._entry(newest))
        version = begin.version
        horizon = newest.horizon - 1  # older versions can't be read: the first batch takes them together
        while True:
            version = min(max(version, horizon) + self._most_versions, newest.version)
            if version == newest.version:
                return Offset.of(newest, self._entry(newest))
            manifest = self._manifest(version)
            if self._options.table in manifest.tables and self._has_changed(manifest, begin):
                return Offset.of(manifest, self._entry(manifest))

    def _has_changed(self, manifest: Manifest, since: Offset) -> bool:
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


class FeedStreamReader(TableStreamReader):
    """Reads the changes of one table as a stream, in a process of the driver that lives as long as the query."""

    allowed = CHANGES_STREAM_READ
    handles = ("_database", "_feed", "_cursor")
    _cursor: ChangeCursor | None = None

    @mark_dolmen_errors()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:  # noqa: N802
        """See ``TableStreamReader``. If nothing has changed for long, the cursor moves, too."""
        begin = Offset.from_json(start) if start else self._last_end or self._start
        cursor = self._cursor_at(begin)
        end: dict[str, Any] = super().latestOffset(begin.to_json(), limit)
        now = utc(context_of(self._database).store.clock.now_us)
        if cursor is not None and end == begin.to_json() and now - cursor.moved_at >= _IDLE:
            newest = self._newest()  # Spark begins a batch only when all batches before it are done
            if not self._has_changed(newest, begin):
                cursor.reset(newest.version)
        return end

    def _plan(self, first: Offset, last: Offset) -> Sequence[InputPartition]:
        """Plans the parts of the feed of one batch."""
        until = self._manifest(last.version)
        entry = self._entry(until)
        first.check(self._options.table, entry, last, ignore_deletes=True)
        feed = self._feed
        self._check_columns(feed, entry, last.version)
        if first.table:
            since = self._since(first)
        else:  # all rows of one version
            feed, since = replace(feed, net=True), EMPTY
        if (cursor := self._cursor_at(first)) is not None:
            self._check_cursor(cursor, first)
        return feed.partitions_between(context_of(self._database), since, until)

    @mark_dolmen_errors()
    def commit(self, end: dict[str, Any]) -> None:
        """Moves the cursor to the end of a batch that is done. Raises ConflictError."""
        done = Offset.from_json(end)
        cursor = self._cursor_at(done)
        if cursor is not None and done.version > cursor.version:
            cursor.reset(done.version)

    @cached_property
    def _feed(self) -> SourceFeed:
        """The feed with the columns of the version in the query's frame, or of the newest version if it has none."""
        versions = {origin.version for origin in origins_of(self._schema)}
        manifest = self._manifest(versions.pop()) if len(versions) == 1 else self._newest()
        return SourceFeed.of(self._database, manifest, self._options).with_schema(self._schema)

    def _check_columns(self, feed: SourceFeed, entry: TableEntry, version: int) -> None:
        base, table = feed.table_entry, self._options.table
        if base.uuid != entry.uuid:
            raise _replaced_error(table, min(version, feed.version))
        if version <= feed.version:  # an older version is shown in the later columns
            return
        are_chosen = self._options.columns is not None or not origins_of(self._schema)
        tested = frozenset() if feed.where is None else columns_of(feed.where)
        names = {name for name in feed.columns if name not in ADDED}
        before = {f.id: _shape(f) for f in base.schema.fields if not are_chosen or f.name in names or f.id in tested}
        after = {f.id: _shape(f) for f in entry.schema.fields if not are_chosen or f.id in before}
        if before != after:
            raise SchemaError(
                f"the columns of table {table!r} have changed between version {feed.version}, of which this query has "
                f"its columns, and version {version}: make the frame again (readStream...load) and start the query "
                "with the same checkpoint. It continues where it stopped, with the new columns"
            )

    def _since(self, first: Offset) -> Manifest:
        """The version after which a batch begins, or a later one if the table has not changed between them.

        Raises VersionExpiredError if changes after it may have expired.
        """
        if not first.version:
            return EMPTY
        context, newest = context_of(self._database), self._newest()
        with context.reading(newest.version):
            if first.version >= newest.horizon:
                return manifest_at_version(context.head, newest, first.version)
            oldest = manifest_at_version(context.head, newest, newest.horizon)
        if self._options.table in oldest.tables and not self._has_changed(oldest, first):
            return oldest
        raise VersionExpiredError(
            f"version {first.version}, which this query has reached, has expired, and table {self._options.table!r} "
            f"has changed since; the oldest kept is {newest.horizon}. Begin a new query, with a new checkpoint, which "
            "begins with all rows; keep versions for longer than the query may be stopped (retention), or give the "
            'option("cursor", "name"), by which the database keeps what the query has not seen'
        )

    def _offset_at(self, newest: Manifest, time_us: int) -> Offset:
        head = context_of(self._database).head
        return self._offset_in(newest, manifest_at_time(head, head.refresh(), time_us))

    def _offset_before(self, newest: Manifest, version: int) -> Offset:
        head = context_of(self._database).head
        return self._offset_in(newest, EMPTY if version == 1 else manifest_at_version(head, newest, version - 1))

    def _offset_in(self, newest: Manifest, manifest: Manifest) -> Offset:
        """The offset of a version, in which the newest table may have another name, or not exist."""
        uuid = self._entry(newest).uuid
        name = manifest.name_of(uuid)
        return Offset(manifest.version, manifest.commit_ts, uuid, manifest.tables[name].epoch if name else 0)

    def _end(self, begin: Offset, newest: Manifest) -> Offset:
        """See ``TableStreamReader``. A query begins with the rows of one version: the newest."""
        if begin.table:
            return super()._end(begin, newest)
        return Offset.of(newest, self._entry(newest)) if self._has_changed(newest, begin) else begin

    def _cursor_at(self, offset: Offset) -> ChangeCursor | None:
        """The cursor that the options name. If it does not exist, it is made at an offset, or at the newest version."""
        name = self._options.text("cursor")
        if name is not None and self._cursor is None:
            start = max(offset.version, self._newest().horizon) if offset.table else None
            self._cursor = self._database.cursor(name, start=start)
        return self._cursor

    def _check_cursor(self, cursor: ChangeCursor, first: Offset) -> None:
        """Raises ConflictError if the cursor does not keep the versions after an offset."""
        if not first.table or cursor.version <= first.version:
            return
        manifest = self._manifest(cursor.version)
        if self._options.table not in manifest.tables or self._has_changed(manifest, first):
            raise ConflictError(
                f"cursor {cursor.name!r} is at version {cursor.version}, after version {first.version}, which this "
                "query has reached: another reader has moved it. Give each query a cursor of its own"
            )


def _shape(field: Field) -> tuple[object, ...]:
    return field.name, field.type, field.nullable, field.added_ts
