"""Earlier versions: snapshots of them to read, tags that name them, and tables that come back from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from msgspec import Struct

from dolmen.base import arguments
from dolmen.base.late_imports import higher_function
from dolmen.base.units import LAST_US, parse_duration, since_epoch, utc
from dolmen.commit.head import Base, Context
from dolmen.commit.statements.catalog import CloneTable, DropTag, PutTag, Restore, table_and_memory
from dolmen.commit.versions import is_settled, manifest_at_tag, manifest_at_time, manifest_at_version
from dolmen.entries.segments.erasures_in_force import apply_later_erasures
from dolmen.errors import InputError, InvalidNameError, TableExistsError, TableNotFoundError, short_repr
from dolmen.format.layout import RESERVED_TAGS, Tag, check_table_name, check_tag_name
from dolmen.format.manifest import EMPTY, Manifest, TableEntry
from dolmen.predicate.parse import Parameters, Where, with_parameters
from dolmen.rows.changes.feed import ChangeFeed
from dolmen.rows.scan.conditions import read_predicate
from dolmen.rows.write.row_digest import content_digest
from dolmen.transactions.readable_table import ReadableTable
from dolmen.transactions.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from dolmen.rows.scan.engines.sql import Parameters as SqlParameters
    from dolmen.rows.scan.engines.sql import SqlResult


Time: TypeAlias = datetime | int | str
_DURATION = re.compile(r"\s*\d+\s*[a-z]+\s*")


class PinnedTable(ReadableTable):
    """A table in one version, which never changes."""

    def __init__(self, context: Context, name: str, manifest: Manifest, *, settled: bool = True) -> None:
        manifest.table(name)
        super().__init__(context, name)
        self._manifest, self.settled = manifest, settled

    def _snapshot(self) -> Manifest:
        return self._manifest


class Snapshot:
    """All tables of one version.

    Args:
        settled: False if the snapshot was asked for by a time, and a commit under way may still get a date up to that
            time. For up to 20 minutes, the same time may then lead to another version. The rows of this one stay.
    """

    def __init__(self, context: Context, manifest: Manifest, *, settled: bool = True) -> None:
        self._context, self._manifest, self.settled = context, manifest, settled

    @property
    def version(self) -> int:
        """The number of the version; 0 if the database did not exist yet."""
        return self._manifest.version

    @property
    def manifest(self) -> Manifest:
        """The version's manifest."""
        return self._manifest

    def __getitem__(self, name: str) -> PinnedTable:
        """Short for ``table(name)``."""
        return self.table(name)

    def __contains__(self, name: object) -> bool:
        """True if the version has a table of this name."""
        return name in self._manifest.tables

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names of the tables."""
        return iter(self.tables())

    def tables(self) -> list[str]:
        """Names of the tables, sorted.

        Examples:
            >>> db.at(version=2).tables()
            ['people']
        """
        return sorted(self._manifest.tables)

    def table(self, name: str) -> PinnedTable:
        """The table with this name. Raises TableNotFoundError.

        Examples:
            >>> db.at(version=2).table("people").count()
            3
        """
        return PinnedTable(self._context, name, self._manifest, settled=self.settled)

    def sql(self, query: str, parameters: SqlParameters = None) -> SqlResult:
        """Runs a query over the tables of this version (see ``Database.sql``).

        Examples:
            >>> db.at(version=1).sql("SELECT count(*) FROM people").fetchall()
            [(0,)]
        """
        result: SqlResult = higher_function("run_on_snapshot")(self._context, self, query, parameters)
        return result

    def __repr__(self) -> str:
        version = f"version {self.version}{'' if self.settled else ', not settled yet,'}"
        return f"<Snapshot {version} of {self._context.store.url}: {', '.join(self.tables()) or 'empty'}>"


def pin(
    context: Context, version: int | None, timestamp: Time | None, tag: str | None = None, *, settled: bool = False
) -> Snapshot:
    """The snapshot of one version, by number, time or tag. See ``Database.at``."""
    newest = context.head.refresh()
    manifest, is_settled = Moment(version, timestamp, tag, settled).find(context, newest)
    with context.reading(newest.manifest.version):
        return Snapshot(context, apply_later_erasures(manifest, newest.manifest, context.segments), settled=is_settled)


class Moment(Struct, frozen=True):
    """An earlier version, as a user names it: by its number, by a time (see ``Database.at``), or by a tag.

    With ``settled``, a time for which the version is not settled yet is an error.
    """

    version: int | None = None
    timestamp: Time | None = None
    tag: str | None = None
    settled: bool = False

    def find(self, context: Context, base: Base) -> tuple[Manifest, bool]:
        """The version's manifest as it is stored, and whether it is settled: no commit may still get an earlier date.

        To read rows, call ``pin``, which leaves out rows that were erased since. ``base`` is the newest version.
        Raises InputError if the version is not named in exactly one way.
        """
        arguments.flag("settled", self.settled)
        if self._ways != 1:
            raise InputError("give one of version, timestamp and tag")
        number = None if self.version is None else arguments.number("version", self.version)
        tag = None if self.tag is None else arguments.text("tag", self.tag)
        time_us = 0 if self.timestamp is None else microseconds(self.timestamp)
        with context.reading(base.manifest.version):  # for its segments of history
            if tag is not None:
                return manifest_at_tag(context.head, base.manifest, tag), True
            if number is not None:
                return manifest_at_version(context.head, base.manifest, number), True
            manifest = manifest_at_time(context.head, base, time_us, settled=self.settled)
            return manifest, is_settled(base, time_us)

    def find_or_newest(self, context: Context) -> Manifest:
        """The manifest of the version as it is stored; that of the newest one if none is named."""
        base = context.head.refresh()
        return self.find(context, base)[0] if self._ways else base.manifest

    @property
    def _ways(self) -> int:
        """The number of ways in which it is named."""
        return sum(way is not None for way in (self.version, self.timestamp, self.tag))  # == of an array is an array

    @property
    def digest(self) -> str:
        """Its part of a request's digest."""
        number = None if self.version is None else int(self.version)
        return content_digest("moment", number, None if self.timestamp is None else str(self.timestamp), self.tag)


def manifest_at(context: Context, base: Base, moment: Time) -> Manifest:
    """The manifest of a version by its number, or at a time, as it is stored. Version 0 is before the first commit.

    ``base`` is the newest version, just read. Raises as ``Database.at`` does.
    """
    newest = base.manifest
    with context.reading(newest.version):
        if isinstance(moment, (str, date)):  # a datetime is a date; other dates are refused
            return manifest_at_time(context.head, base, microseconds(moment), settled=False)
        number = arguments.number("version", moment)
        if number == 0 and newest.version:
            newest.check_kept(number)
            return EMPTY
        return manifest_at_version(context.head, newest, number)


def microseconds(timestamp: Time | None, name: str = "timestamp") -> int:
    """Microseconds since the epoch of a time as users give it (see ``Database.at``). Raises InputError."""
    if isinstance(timestamp, str):
        try:
            timestamp = datetime.fromisoformat(timestamp)
        except ValueError:
            raise InputError(
                f"{name}={short_repr(timestamp)} is not ISO 8601, as in '2026-01-31T12:00:00+00:00'"
            ) from None
    if not isinstance(timestamp, datetime):
        if isinstance(timestamp, date):
            raise InputError(f"{name}={timestamp} is a day: give a time, as in datetime(2026, 1, 31, 12, tzinfo=UTC)")
        if isinstance(timestamp, bool) or not hasattr(timestamp, "__index__"):
            raise InputError(
                f"{name}={short_repr(timestamp)} is of type {type(timestamp).__name__}: give a datetime, "
                "ISO 8601 text, or whole microseconds since 1970"
            )
        return arguments.number(name, timestamp)
    if timestamp.tzinfo is None:
        timestamp = timestamp.replace(tzinfo=UTC)
    try:
        return since_epoch(timestamp)
    except (OverflowError, ValueError) as error:  # NaT too is a datetime
        raise InputError(f"{name}={short_repr(timestamp)} is not a point in time: {error}") from error


def read_changes(
    context: Context,
    table: str,
    since: Time,
    until: Time | None,
    columns: Sequence[str] | None,
    where: Where,
    parameters: Parameters | None,
    *,
    net: bool,
) -> pa.RecordBatchReader:
    """Streams the changes of a table. See ``Table.changes``."""
    base = context.head.refresh()
    last = base.manifest if until is None else manifest_at(context, base, until)
    first = manifest_at(context, base, since)
    if first.version > last.version:
        raise InputError(f"since={first.version} is after until={last.version}: swap them")
    with context.reading(last.version):
        entry = context.segments.whole(last.table(table))
    where = with_parameters(where, parameters)
    predicate = None if where is None else read_predicate(where, entry.schema, now_us=context.store.clock.current_us)
    names = None if columns is None else arguments.names("columns", columns)
    net = arguments.flag("net", net)
    return ChangeFeed(context, base.manifest, first, last, table, entry, names, predicate, net=net).to_reader()


class TaggedVersion(Struct, frozen=True):
    """A version that has a name."""

    version: int  # its number
    created_at: datetime  # its time, as ``Commit.created_at``
    until: datetime | None  # the time from which collection may remove the tag; None = never

    @classmethod
    def of(cls, tag: Tag) -> TaggedVersion:
        """Makes it from the tag as manifests hold it."""
        return cls(tag.version, utc(tag.created_at), utc(min(tag.until, LAST_US)) if tag.until else None)


def put_tag(
    unit: UnitOfWork, name: str, moment: Moment, until: Time | None, *, move: bool, request: str | None
) -> None:
    """Adds the statement of ``Database.tag`` to a transaction."""
    check_tag_name(name)
    if name.startswith(RESERVED_TAGS):
        raise InvalidNameError(
            f"tag {name!r}: names that begin with {RESERVED_TAGS!r} are dolmen's own: choose another"
        )
    arguments.flag("move", move)
    if not unit.has_applied(request):
        manifest = moment.find_or_newest(unit.context)
        if manifest.version == 0:
            raise InputError("the database has no version yet, so there is none to tag")
        end = 0 if until is None else _end(until, unit.context.store.clock.current_us)
        unit.add(PutTag(name, Tag(manifest.version, manifest.key, manifest.created_at, end), move, request=request))
    unit.add_content(request, "tag", name, moment.digest, None if until is None else str(until), move)


def drop_tag(unit: UnitOfWork, name: str, request: str | None) -> None:
    """Adds the statement of ``Database.drop_tag`` to a transaction."""
    check_tag_name(name)
    if not unit.has_applied(request):
        unit.add(DropTag(name, request=request))
    unit.add_content(request, "drop_tag", name)


def restore_table(unit: UnitOfWork, name: str, moment: Moment, request: str | None) -> None:
    """Adds the statement of ``Table.restore`` to a transaction."""
    if not unit.has_applied(request):
        uuid = unit.entry(name).uuid
        source, entries = _find_entries(unit.context, moment)
        source_name = source.name_of(uuid)
        if source_name is None:
            raise TableNotFoundError(
                f"table {name!r} did not exist in version {source.version}, so nothing can be restored"
            )
        tables = table_and_memory(name, entries[source_name], entries)
        unit.add(Restore(name, uuid, source.version, source.commit_ts, tables, must_exist=True, request=request))
    unit.add_content(request, "restore", name, moment.digest)


def restore_tables(unit: UnitOfWork, moment: Moment, names: str | Sequence[str] | None, request: str | None) -> None:
    """Adds the statements of ``Database.restore`` to a transaction."""
    names = None if names is None else arguments.names("tables", names)
    if not unit.has_applied(request):
        source, entries = _find_entries(unit.context, moment)
        if names is None:
            unit.add(Restore(None, "", source.version, source.commit_ts, entries, request=request))
        for name in names or ():
            entry = entries[name] if name in entries else source.table(name)
            if name in unit.base.tables and unit.base.tables[name].uuid != entry.uuid:
                raise TableExistsError(
                    f"table {name!r} is not the one of version {source.version}: {_other_way(entry, entries)}"
                )
            tables = table_and_memory(name, entry, entries)
            unit.add(Restore(name, entry.uuid, source.version, source.commit_ts, tables, request=request))
    unit.add_content(request, "restore", names, moment.digest)


def _find_entries(context: Context, moment: Moment) -> tuple[Manifest, dict[str, TableEntry]]:
    """A version as it is stored, with the whole entries of its tables."""
    source = moment.find(context, context.head.refresh())[0]
    return source, _whole_entries(context, source)


def _other_way(entry: TableEntry, entries: Mapping[str, TableEntry]) -> str:
    """The advice if another table has the name of a table to restore; ``entries`` are of the restored version."""
    for name, owner in entries.items():
        if owner.sequences is not None and owner.sequences.memory == entry.uuid:
            return f"it holds the deleted keys of {name!r}, and is restored with that table: restore {name!r} alone"
    return "rename or drop it first, or clone the earlier one under another name"


def clone_table(unit: UnitOfWork, source: str, name: str, moment: Moment, request: str | None) -> None:
    """Adds the statement of ``Database.clone`` to a transaction."""
    check_table_name(name)
    if not unit.has_applied(request):
        manifest = moment.find_or_newest(unit.context)
        manifest.table(arguments.text("source", source))
        entries = _whole_entries(unit.context, manifest)
        entry, new_uuid = entries[source], unit.context.runtime.uuid
        memory = [each for each in table_and_memory(source, entry, entries).values() if each is not entry]
        copy = (memory[0], new_uuid()) if memory else None
        unit.add(CloneTable(name, new_uuid(), manifest.version, manifest.commit_ts, entry, copy, request))
    unit.add_content(request, "clone", source, name, moment.digest)


def _whole_entries(context: Context, manifest: Manifest) -> dict[str, TableEntry]:
    """The entries of all tables of a version; the entries of idle tables are fetched."""
    with context.reading(manifest.version):
        return {name: context.segments.whole(entry) for name, entry in manifest.tables.items()}


def _end(until: Time, now_us: int) -> int:
    """The end of a tag in microseconds, from a time or a duration from now. Raises InputError."""
    if isinstance(until, str) and _DURATION.fullmatch(until):
        return now_us + parse_duration(until.strip())
    end = microseconds(until, "until")
    if end > LAST_US:
        raise InputError(f"until={short_repr(until)} is beyond the year 9999: leave it out for a tag without an end")
    if end <= now_us:
        raise InputError(f"until={short_repr(until)} is over already")
    return end
