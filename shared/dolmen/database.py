"""A database: open it, and find its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from dolmen.commit.head import Head
from dolmen.commit.versions import commits
from dolmen.context import Context
from dolmen.results import Commit
from dolmen.runtime import Runtime, shared_runtime
from dolmen.snapshot import Snapshot, pin
from dolmen.store.base import ObjectStore
from dolmen.store.url import open_store
from dolmen.table import Table
from dolmen.transaction import Transaction, replay

if TYPE_CHECKING:
    from dolmen.scan.sql import SqlResult

T = TypeVar("T")


def open(url: str, *, runtime: Runtime | None = None, trust_clock: bool = False) -> Database:
    """Opens a database; creates nothing before the first commit.

    Args:
        url: ``s3://bucket/prefix``, a path or ``file:///path``, or ``memory://name``. S3 takes endpoint, region and
            credentials from the ordinary AWS configuration.
        runtime: clock, randomness, sleep and threads, for tests.
        trust_clock: accept a store's clock that is a day away from every other.
    """
    runtime = runtime or shared_runtime()
    return Database(open_store(url, runtime), runtime, trust_clock=trust_clock)


class Database:
    """Tables under one pointer: all of them commit together, and every reader sees whole commits.

    Args:
        store: where its objects are.
        runtime: clock, randomness, sleep and threads.
        trust_clock: see ``open``.
    """

    def __init__(self, store: ObjectStore, runtime: Runtime, *, trust_clock: bool = False) -> None:
        self._context = Context(store, runtime, Head(store, runtime, trust_clock=trust_clock))
        self._context.head.refresh()

    @property
    def url(self) -> str:
        """Where it is."""
        return self._context.store.url

    @property
    def version(self) -> int:
        """The newest version seen so far; 0 before the first commit. ``refresh`` looks again."""
        cached = self._context.head.cached
        return cached.manifest.version if cached else 0

    @property
    def manifest_bytes(self) -> int:
        """Size of the newest manifest seen so far, which every commit uploads anew; 0 before the first commit."""
        cached = self._context.head.cached
        return len(cached.manifest.encode()) if cached and cached.manifest.version else 0

    def refresh(self) -> int:
        """Looks for the newest version: one request, two if there is a new one. Returns it."""
        return self._context.head.refresh().manifest.version

    def tables(self) -> list[str]:
        """Names of the tables of the newest version, sorted."""
        return sorted(self._context.head.refresh().manifest.tables)

    def table(self, name: str) -> Table:
        """A table that follows the newest version. Raises TableNotFoundError."""
        cached = self._context.head.cached
        if cached is None or name not in cached.manifest.tables:
            self._context.head.refresh().manifest.table(name)
        return Table(self._context, name)

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        primary_key: str | Sequence[str] | None = None,
        sort_key: str | Sequence[str] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Table:
        """Creates a table.

        Args:
            name: 1 to 64 of ``a-z``, ``0-9`` and ``_``.
            schema: columns and types; dictionaries are stored as their values, times in microseconds.
            primary_key: columns that ``upsert`` and ``delete(keys=...)`` go by; not enforced by ``append``.
            sort_key: columns to sort rows by within a file: the ones that most filters name.
            properties: settings, kept with the table.

        Raises:
            TableExistsError: the name is taken.
            SchemaError: a type that can't be stored, or a key that can't be one.
        """
        with Transaction(self._context, "create_table") as transaction:
            if name in transaction.base.tables:
                transaction.refresh()  # somebody may have dropped it
            transaction.create_table(name, schema, primary_key, sort_key, properties)
        return Table(self._context, name)

    def drop_table(self, name: str) -> Commit:
        """Drops a table. Older versions still read it until they expire. Raises TableNotFoundError."""
        with Transaction(self._context, "drop_table") as transaction:
            transaction.drop_table(name)
            return transaction.commit()

    def at(self, version: int | None = None, *, timestamp: datetime | int | str | None = None) -> Snapshot:
        """The database as it was.

        Args:
            version: by number.
            timestamp: by time: a datetime (naive means UTC), an ISO 8601 text, or microseconds since the epoch.

        Raises:
            VersionNotFoundError, VersionExpiredError: not there, or no longer.
            UnsettledTimestampError: too close to now for the answer to be final.
        """
        return pin(self._context, version, timestamp)

    def history(self, limit: int | None = None) -> list[Commit]:
        """Commits, newest first; one request per 64 beyond the newest 65."""
        newest = self._context.head.refresh().manifest
        entries: Iterator[Any] = commits(self._context.head, newest)
        return [Commit.of(entry) for entry in islice(entries, limit)]

    def transaction(self, operation: str = "transaction") -> Transaction:
        """Statements over any tables that become one version: ``with db.transaction() as tx: ...``.

        Args:
            operation: a word for ``history``.

        Raises ConflictError at its end if something it read has changed; ``run`` repeats it instead.
        """
        transaction = Transaction(self._context, operation)
        transaction.refresh()
        return transaction

    def run(self, function: Callable[[Transaction], T]) -> T:
        """Calls ``function`` with a transaction and commits; on a conflict both again, on the newest version.

        Returns:
            what ``function`` returned in the run that was committed.
        """
        return replay(self._context, function).value

    def sql(self, query: str) -> SqlResult:
        """Runs a SELECT over the tables, on DuckDB. All of them are read in one version.

        Projections and predicates are pushed down into the scans.
        """
        return Snapshot(self._context, self._context.head.refresh().manifest).sql(query)

    def __repr__(self) -> str:
        cached = self._context.head.cached
        tables = sorted(cached.manifest.tables) if cached else []
        return f"<Database {self.url}: version {self.version}, tables {', '.join(tables) or 'none'}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<code>{escape(repr(self))}</code>"
