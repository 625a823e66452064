"""Pinned versions of a database, as ``at()`` returns them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from dolmen.base import arguments
from dolmen.base.units import since_epoch
from dolmen.commit.context import Context
from dolmen.commit.head import Base
from dolmen.commit.versions import is_settled, manifest_at_tag, manifest_at_time, manifest_at_version
from dolmen.entries.segments.erasures_in_force import as_read_now
from dolmen.errors import InputError, VersionExpiredError
from dolmen.format.manifest import EMPTY, Manifest
from dolmen.transactions.reading import KeyedTable

if TYPE_CHECKING:
    from dolmen.rows.scan.engines.sql import Parameters, SqlResult


class PinnedTable(KeyedTable):
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
        settled: False if the snapshot was asked for by a time to which a commit under way may still be dated. For 20
            minutes the same question may have another answer. The rows of this version never change.
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
        """Whether the version has a table of this name."""
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

    def sql(self, query: str, parameters: Parameters = None) -> SqlResult:
        """Runs a query over the tables of this version (see ``Database.sql``).

        Examples:
            >>> db.at(version=1).sql("SELECT count(*) FROM people").fetchall()
            [(0,)]
        """
        from dolmen.rows.scan.engines.sql import run_sql  # imports DuckDB

        return run_sql(arguments.text("query", query), self, parameters)

    def __repr__(self) -> str:
        told = f"version {self.version}{'' if self.settled else ', not settled yet,'}"
        return f"<Snapshot {told} of {self._context.store.url}: {', '.join(self.tables()) or 'empty'}>"


def pin(
    context: Context,
    version: int | None,
    timestamp: datetime | int | str | None,
    tag: str | None = None,
    *,
    settled: bool = False,
) -> Snapshot:
    """The snapshot of one version, by number, time or tag. See ``Database.at``."""
    newest = context.head.refresh()
    manifest, is_settled = find_version(context, newest, version, timestamp, tag, settled=settled)
    with context.reading(newest.manifest.version):
        return Snapshot(context, as_read_now(manifest, newest.manifest, context.segments), settled=is_settled)


def find_version(
    context: Context,
    base: Base,
    version: int | None,
    timestamp: datetime | int | str | None,
    tag: str | None = None,
    *,
    settled: bool = False,
) -> tuple[Manifest, bool]:
    """The manifest of one version as it is stored, and whether no commit under way can be dated before it.

    To read rows, call ``pin``, which leaves out rows that were erased since.

    Args:
        base: the newest version, just read.
    """
    arguments.flag("settled", settled)
    if sum(given is not None for given in (version, timestamp, tag)) != 1:  # == of an array is an array
        raise InputError("give one of version, timestamp and tag")
    number = None if version is None else arguments.number("version", version)
    name = None if tag is None else arguments.text("tag", tag)
    moment = 0 if timestamp is None else microseconds(timestamp)
    with context.reading(base.manifest.version):  # for its segments of history
        if name is not None:
            return manifest_at_tag(context.head, base.manifest, name), True
        if number is not None:
            return manifest_at_version(context.head, base.manifest, number), True
        return manifest_at_time(context.head, base, moment, settled=settled), is_settled(base, moment)


def manifest_at(context: Context, base: Base, moment: datetime | int | str) -> Manifest:
    """The manifest of a version by its number, or at a time, as it is stored. Version 0 is before the first commit.

    Args:
        base: the newest version, just read.
        moment: the number of a version, as every whole number is one; or a datetime, or a time as ISO 8601 text.

    Raises:
        InputError: it is none of these.
        VersionNotFoundError, VersionExpiredError, UnsettledTimestampError: as for ``Database.at``.
    """
    newest = base.manifest
    with context.reading(newest.version):
        if isinstance(moment, (str, date)):  # a datetime is a date; other dates are refused
            return manifest_at_time(context.head, base, microseconds(moment), settled=False)
        number = arguments.number("version", moment)
        if number == 0 and newest.version:
            if newest.horizon > 1:
                raise VersionExpiredError(f"version 1 has expired: the oldest kept is {newest.horizon}")
            return EMPTY
        return manifest_at_version(context.head, newest, number)


def microseconds(timestamp: datetime | int | str | None, name: str = "timestamp") -> int:
    """Microseconds since the epoch of a time as users give it (see ``Database.at``). Raises InputError.

    Args:
        name: the argument's name.
    """
    if isinstance(timestamp, str):
        try:
            timestamp = datetime.fromisoformat(timestamp)
        except ValueError:
            raise InputError(
                f"{name}={arguments.short_repr(timestamp)} is not ISO 8601, as in '2026-01-31T12:00:00+00:00'"
            ) from None
    if not isinstance(timestamp, datetime):
        if isinstance(timestamp, date):
            raise InputError(f"{name}={timestamp} is a day: give a time, as in datetime(2026, 1, 31, 12, tzinfo=UTC)")
        if isinstance(timestamp, bool) or not hasattr(timestamp, "__index__"):
            raise InputError(
                f"{name}={arguments.short_repr(timestamp)} is of type {type(timestamp).__name__}: give a datetime, "
                "ISO 8601 text, or whole microseconds since 1970"
            )
        return arguments.number(name, timestamp)
    if timestamp.tzinfo is None:
        timestamp = timestamp.replace(tzinfo=UTC)
    try:
        return since_epoch(timestamp)
    except (OverflowError, ValueError) as error:  # NaT too is a datetime
        raise InputError(f"{name}={arguments.short_repr(timestamp)} is no point in time: {error}") from error
