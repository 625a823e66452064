"""``readStream`` with ``option("changes", True)``: all changes of a table, a micro-batch for some versions at a time.

A batch is the feed between two versions, and is the same when it is repeated. A query has the columns that the table
had when its frame was made. Older versions are shown in them, and a later change of columns ends the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.sql import types as s
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dolmen.api.cursor import ChangeCursor
from dolmen.base.units import utc
from dolmen.commit.context import context_of
from dolmen.commit.versions import manifest_at_time, manifest_at_version
from dolmen.errors import ConflictError, SchemaError, VersionExpiredError
from dolmen.format.manifest import EMPTY, Manifest, TableEntry
from dolmen.format.schema import Field
from dolmen.predicate import columns
from dolmen.spark.failures import mark_dolmen_errors
from dolmen.spark.origin import origins_of
from dolmen.spark.source.feed_reader import ADDED, SourceFeed, feed_partitions
from dolmen.spark.source.source import CHANGES_STREAM_READ, reads_changes
from dolmen.spark.source.table_stream import Offset, TableStreamReader
from dolmen.transactions.snapshot import microseconds

_IDLE = timedelta(hours=1)
"""A cursor moves this often when only other tables change."""


class FeedStreamReader(TableStreamReader):
    """Reads the changes of one table as a stream, in a process of the driver that lives as long as the query.

    Args:
        schema: columns of the result.
    """

    known = CHANGES_STREAM_READ

    def __init__(self, options: Mapping[str, str], schema: s.StructType) -> None:
        super().__init__(options, schema)
        self._feed: SourceFeed | None = None
        self._cursor: ChangeCursor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Workers get a copy without open handles: their partitions have all that they need."""
        return {**super().__getstate__(), "_feed": None, "_cursor": None}

    @mark_dolmen_errors()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:  # noqa: N802
        """See ``TableStreamReader``. If nothing has changed for long, the cursor moves, too."""
        begin = Offset.from_json(start) if start else self._reached or self._from()
        cursor = self._cursor_at(begin)
        end: dict[str, Any] = super().latestOffset(begin.to_json(), limit)
        if cursor is not None and end == begin.to_json() and self._is_idle(cursor):
            newest = self._newest()  # Spark begins a batch only when all batches before it are done
            if not self._changed(newest, begin):
                cursor.reset(newest.version)
        return end

    @mark_dolmen_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plans the parts of the feed of one batch, from metadata.

        Raises:
            ConflictError: the table was dropped and created again; or another query uses the same cursor.
            SchemaError: the table's columns have changed since the frame of this query was made.
            VersionExpiredError: versions whose changes the query has not seen have expired.
        """
        first, last = Offset.from_json(start), Offset.from_json(end)
        self._reached = last
        if first == last:
            return []
        until = self._manifest(last.version)
        entry = self._entry(until)
        first.check(self._given.table, entry, last, ignore_deletes=True)
        feed = self._source_feed()
        self._check_columns(feed, entry, last.version)
        is_whole = not first.table
        if is_whole:
            feed = replace(feed, net=True)
        since = EMPTY if is_whole else self._since(first)
        if (cursor := self._cursor_at(first)) is not None:
            self._check_cursor(cursor, first)
        return feed_partitions(feed, feed.parts(context_of(self._database), since, until))

    @mark_dolmen_errors()
    def commit(self, end: dict[str, Any]) -> None:
        """Moves the cursor to the end of a batch that is done.

        Raises:
            ConflictError: another query uses the same cursor.
        """
        done = Offset.from_json(end)
        cursor = self._cursor_at(done)
        if cursor is not None and done.version > cursor.version:
            cursor.reset(done.version)

    def _source_feed(self) -> SourceFeed:
        """The feed with the columns of the version in the query's frame, or of the newest version if it has none."""
        if self._feed is None:
            versions = {origin.version for origin in origins_of(self._schema)}
            manifest = self._manifest(versions.pop()) if len(versions) == 1 else self._newest()
            self._feed = SourceFeed.of(self._database, manifest, self._given).with_schema(self._schema)
        return self._feed

    def _check_columns(self, feed: SourceFeed, entry: TableEntry, version: int) -> None:
        own = feed.decoded
        table = self._given.table
        if own.uuid != entry.uuid:
            raise ConflictError(
                f"table {table!r} was dropped and created again since version {min(version, feed.version)}: "
                "begin a new query, with a new checkpoint"
            )
        if version <= feed.version:  # an older version is shown in the later columns
            return
        are_chosen = self._given.columns is not None or not origins_of(self._schema)
        tested = frozenset() if feed.where is None else columns(feed.where)
        names = {name for name in feed.columns if name not in ADDED}
        was = {f.id: _shape(f) for f in own.schema.fields if not are_chosen or f.name in names or f.id in tested}
        now = {f.id: _shape(f) for f in entry.schema.fields if not are_chosen or f.id in was}
        if was != now:
            raise SchemaError(
                f"the columns of table {table!r} have changed between version {feed.version}, of which this query has "
                f"its columns, and version {version}: make the frame again (readStream...load) and start the query "
                "with the same checkpoint. It goes on where it was, with the new columns"
            )

    def _since(self, first: Offset) -> Manifest:
        """The version after which a batch begins, or a later one if the table has not changed between them.

        Raises:
            VersionExpiredError: changes after it may have expired.
        """
        if not first.version:
            return EMPTY
        context, newest = context_of(self._database), self._newest()
        with context.reading(newest.version):
            if first.version >= newest.horizon:
                return manifest_at_version(context.head, newest, first.version)
            oldest = manifest_at_version(context.head, newest, newest.horizon)
        if self._given.table in oldest.tables and not self._changed(oldest, first):
            return oldest
        raise VersionExpiredError(
            f"version {first.version}, to which this query has come, has expired, and table {self._given.table!r} has "
            f"changed since; the oldest kept is {newest.horizon}. Begin a new query, with a new checkpoint, which "
            "begins with all rows; keep versions for longer than the query may stand still (retention), or give the "
            'option("cursor", "name"), by which the database keeps what the query has not seen'
        )

    def _first(self) -> Offset:
        """The offset before all rows, before the first version to read, or after the newest version."""
        version, moment = self._given.text("starting_version"), self._given.moment("starting_timestamp")
        if version is None and moment is None:
            return Offset(0, 0)
        context, newest = context_of(self._database), self._newest()
        entry = self._entry(newest)
        if version is not None and version.lower() == "latest":
            return Offset.of(newest, entry)
        with context.reading(newest.version):
            if moment is not None:
                before = manifest_at_time(context.head, context.head.refresh(), microseconds(moment))
            elif (number := self._given.number("starting_version") or 1) == 1:
                before = EMPTY
            else:
                before = manifest_at_version(context.head, newest, number - 1)
        there = before.name_of(entry.uuid)
        return Offset(before.version, before.commit_ts, entry.uuid, before.tables[there].epoch if there else 0)

    def _end(self, begin: Offset, newest: Manifest) -> Offset:
        """See ``TableStreamReader``. A query begins with the rows of one version: the newest."""
        if begin.table:
            return super()._end(begin, newest)
        return Offset.of(newest, self._entry(newest)) if self._changed(newest, begin) else begin

    def _cursor_at(self, offset: Offset) -> ChangeCursor | None:
        """The cursor that the options name. If it does not exist, it is made at an offset, or at the newest version."""
        name = self._given.text("cursor")
        if name is not None and self._cursor is None:
            start = max(offset.version, self._newest().horizon) if offset.table else None
            self._cursor = self._database.cursor(name, start=start)
        return self._cursor

    def _check_cursor(self, cursor: ChangeCursor, first: Offset) -> None:
        """Raises ConflictError if the cursor does not keep the versions after an offset."""
        if not first.table or cursor.version <= first.version:
            return
        manifest = self._manifest(cursor.version)
        if self._given.table not in manifest.tables or self._changed(manifest, first):
            raise ConflictError(
                f"cursor {cursor.name!r} is at version {cursor.version}, after version {first.version} to which this "
                "query has come: another reader has moved it. Give each query a cursor of its own"
            )

    def _is_idle(self, cursor: ChangeCursor) -> bool:
        """Whether the cursor has not moved for long."""
        now = utc(context_of(self._database).store.clock.now_us)
        return now - cursor.moved_at >= _IDLE


def _shape(field: Field) -> tuple[object, ...]:
    """The attributes of a column that a query's schema depends on."""
    return field.name, field.type, field.nullable, field.added_ts


def stream_reader(options: Mapping[str, str], schema: s.StructType) -> DataSourceStreamReader:
    """Makes the reader of a stream, of appended rows or of all changes. Raises InputError, SchemaError."""
    return FeedStreamReader(options, schema) if reads_changes(options) else TableStreamReader(options, schema)
