"""One version of a database, pinned: what ``at()`` gives."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dolmen.commit.versions import manifest_at_time, manifest_at_version
from dolmen.context import Context
from dolmen.errors import InputError
from dolmen.format.manifest import Manifest
from dolmen.reading import ReadableTable

if TYPE_CHECKING:
    from dolmen.scan.sql import SqlResult


class PinnedTable(ReadableTable):
    """A table as one version shows it, for ever."""

    def __init__(self, context: Context, name: str, manifest: Manifest) -> None:
        manifest.table(name)
        super().__init__(context, name)
        self._manifest = manifest

    def _snapshot(self) -> Manifest:
        return self._manifest


class Snapshot:
    """All tables of one version."""

    def __init__(self, context: Context, manifest: Manifest) -> None:
        self._context, self._manifest = context, manifest

    @property
    def version(self) -> int:
        """The version that is pinned; 0 for a database that did not exist yet."""
        return self._manifest.version

    @property
    def manifest(self) -> Manifest:
        """All that the version says."""
        return self._manifest

    def tables(self) -> list[str]:
        """Names of its tables, sorted."""
        return sorted(self._manifest.tables)

    def table(self, name: str) -> PinnedTable:
        """One of its tables. Raises TableNotFoundError."""
        return PinnedTable(self._context, name, self._manifest)

    def sql(self, query: str) -> SqlResult:
        """Runs a query over the tables of this version (see ``Database.sql``)."""
        from dolmen.scan.sql import run_sql  # DuckDB and sqlglot's optimizer: only for those who ask

        return run_sql(query, self.table)

    def __repr__(self) -> str:
        return f"<Snapshot version {self.version} of {self._context.store.url}: {', '.join(self.tables()) or 'empty'}>"


def pin(context: Context, version: int | None, timestamp: datetime | int | str | None) -> Snapshot:
    """The snapshot of one version, by number or by time. See ``Database.at``."""
    if (version is None) == (timestamp is None):
        raise InputError("at() takes a version or a timestamp, one of them")
    base = context.head.refresh()
    with context.reading(base.manifest.version):  # its segments of history
        if version is not None:
            return Snapshot(context, manifest_at_version(context.head, base.manifest, version))
        return Snapshot(context, manifest_at_time(context.head, base, microseconds(timestamp)))


def microseconds(timestamp: datetime | int | str | None) -> int:
    """A point in time, however given (see ``Database.at``), since the epoch. Raises InputError."""
    if isinstance(timestamp, int):
        return timestamp
    if isinstance(timestamp, str):
        try:
            timestamp = datetime.fromisoformat(timestamp)
        except ValueError as error:
            raise InputError(f"timestamp {timestamp!r} is not ISO 8601: {error}") from error
    assert isinstance(timestamp, datetime)
    if timestamp.tzinfo is None:
        timestamp = timestamp.replace(tzinfo=UTC)
    return round(timestamp.timestamp() * 1_000_000)
