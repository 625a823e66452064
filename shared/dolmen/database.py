"""A database: open it, and find its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa

from dolmen import arguments
from dolmen.commit.applied import applied_by
from dolmen.commit.head import Head
from dolmen.commit.versions import commits
from dolmen.context import Context
from dolmen.errors import InputError
from dolmen.format.layout import check_table_name
from dolmen.format.properties import DATABASE_PROPERTIES, shown
from dolmen.maintaining import MaintainableDatabase
from dolmen.replay import replay
from dolmen.results import Commit
from dolmen.runtime import Runtime, shared_runtime
from dolmen.snapshot import Snapshot, pin
from dolmen.store.base import ObjectStore
from dolmen.store.url import open_store, portable_url
from dolmen.table import Table
from dolmen.transaction import Transaction

if TYPE_CHECKING:  # background work is loaded by those who do it
    from dolmen.maintenance.verify.report import Progress, VerifyReport
    from dolmen.scan.sql import Parameters, SqlResult

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


def verify(
    url: str,
    *,
    version: int | None = None,
    deep: bool = False,
    all_versions: bool = False,
    progress: Progress | None = None,
    runtime: Runtime | None = None,
) -> VerifyReport:
    """``Database.verify`` without opening the database first: also for one whose pointer or manifest is damaged."""
    from dolmen.maintenance.verify import verification

    runtime = runtime or shared_runtime()
    store = open_store(url, runtime)
    context = Context(store, runtime, Head(store, runtime))
    return verification.verify(context, version=version, deep=deep, all_versions=all_versions, progress=progress)


class Database(MaintainableDatabase):
    """Tables under one pointer: all of them commit together, and every reader sees whole commits.

    Args:
        store: where its objects are.
        runtime: clock, randomness, sleep and threads.
        trust_clock: see ``open``.
    """

    def __init__(self, store: ObjectStore, runtime: Runtime, *, trust_clock: bool = False) -> None:
        arguments.flag("trust_clock", trust_clock)
        super().__init__(Context(store, runtime, Head(store, runtime, trust_clock=trust_clock)))
        self._context.head.refresh()

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes open it anew, by its URL."""
        return _reopen, (portable_url(self._context.store), self._context.head.trust_clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open: connections and threads belong to the process, for all that it opens."""

    def __getitem__(self, name: str) -> Table:
        """Short for ``table(name)``."""
        return self.table(name)

    def __contains__(self, name: object) -> bool:
        """Whether the newest version has a table of this name."""
        return isinstance(name, str) and name in self._context.head.refresh().manifest.tables

    def __iter__(self) -> Iterator[str]:
        """Names of the tables."""
        return iter(self.tables())

    @property
    def context(self) -> Context:
        """Its store, head and caches."""
        return self._context

    @property
    def url(self) -> str:
        """Where it is."""
        return self._context.store.url

    @property
    def runtime(self) -> Runtime:
        """Its clock, randomness, sleep and threads."""
        return self._context.runtime

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
        arguments.text("table", name)
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
        *,
        request: str | None = None,
        message: str | None = None,
    ) -> Table:
        """Creates a table.

        Args:
            name: 1 to 64 of ``a-z``, ``0-9`` and ``_``.
            schema: columns and types; dictionaries are stored as their values, times in microseconds.
            primary_key: columns that ``upsert`` and ``delete(keys=...)`` go by; not enforced by ``append``.
            sort_key: columns to sort rows by within a file: the ones that most filters name.
            properties: settings (see ``Table.set``).
            request, message: as for ``Table.append``. A table that was created under this id and is gone since, by
                a drop or another name, is not created again.

        Raises:
            TableExistsError: the name is taken.
            SchemaError: a type that can't be stored, or a key that can't be one.
            InputError: an unknown setting, or a value that is not allowed.
            AppliedIdError: another table was created under this id, or something else was done.
        """
        check_table_name(name)
        with Transaction(self._context, "create_table", message=message) as transaction:
            if name in transaction.base.tables:
                transaction.refresh()  # somebody may have dropped it
            transaction.create_table(name, schema, primary_key, sort_key, properties, request=request)
        return Table(self._context, name)

    def drop_table(self, name: str, *, request: str | None = None, message: str | None = None) -> Commit:
        """Drops a table. Older versions still read it until they expire.

        Args:
            request, message: as for ``Table.append``. What has this name when it is tried again is not dropped.

        Raises:
            TableNotFoundError: there is none, and none was dropped under this id.
            AppliedIdError: another table was dropped under this id, or something else was done.
        """
        with Transaction(self._context, "drop_table", message=message) as transaction:
            transaction.drop_table(name, request=request)
            return transaction.commit()

    def rename_table(self, old: str, new: str, *, request: str | None = None, message: str | None = None) -> Commit:
        """Gives a table another name. Its rows, settings and history stay; older versions show it under the old one.

        The memory of a table of changes (``<old>__deleted``) is renamed with it. Whoever knows the old name finds no
        table any more: handles, declarations, delete requests, and files dropped for it.

        Args:
            new: see ``create_table``.
            request, message: as for ``Table.append``. What has the old name when it is tried again keeps that.

        Raises:
            TableNotFoundError: there is no table ``old``, and none was renamed under this id.
            AppliedIdError: something else was done under this id.
            TableExistsError: the new name, or that of the memory, is taken.
            InputError: the new name is the old one.
            InvalidNameError: it can't be a table's name, or leaves no room for the memory's.
        """
        check_table_name(new)
        with Transaction(self._context, "rename_table", message=message) as transaction:
            if new in transaction.base.tables:
                transaction.refresh()  # somebody may have dropped it
            transaction.rename_table(old, new, request=request)
            return transaction.commit()

    def set(self, *, request: str | None = None, message: str | None = None, **changes: Any) -> Commit:
        """Changes settings of this database, in one commit: ``set(retention="7d")``.

        Args:
            changes: values by name (``settings`` shows them all); None unsets one, so that its default holds.
            request, message: as for ``Table.append``; what was set under this id may have been changed since, and
                stays so.

        Raises:
            InputError: an unknown setting, or a value that is not allowed.
            AppliedIdError: other settings were changed under this id, or something else was done.
        """
        with Transaction(self._context, "set", message=message) as transaction:
            transaction.set(request=request, **changes)
            return transaction.commit()

    def settings(self) -> dict[str, Any]:
        """Every setting of this database with the value that holds, as it was given; the default where none was."""
        return shown(self._context.head.refresh().manifest.properties, DATABASE_PROPERTIES)

    def at(
        self, version: int | None = None, *, timestamp: datetime | int | str | None = None, settled: bool = False
    ) -> Snapshot:
        """The database as it was.

        Args:
            version: by number.
            timestamp: by time: a datetime (naive means UTC), an ISO 8601 text, or microseconds since the epoch. Within
                20 minutes a commit under way may still be dated before it, unless there is a later one: then
                ``Snapshot.settled`` is False.
            settled: refuse such a time instead.

        Raises:
            VersionNotFoundError, VersionExpiredError: not there, or no longer.
            UnsettledTimestampError: the time is in the future; or not settled, though that is asked for.
        """
        return pin(self._context, version, timestamp, settled=settled)

    def history(self, limit: int | None = None) -> list[Commit]:
        """Commits, newest first: what each did to which tables, for which requests, and what its author said of it.

        One request per 64 beyond the newest 65, and one for each segment of ids that these have applied.

        Args:
            limit: no more than so many; all that are kept by default.
        """
        if limit is not None:
            arguments.number("limit", limit, 0)
        newest = self._context.head.refresh().manifest
        entries: Iterator[Any] = commits(self._context.head, newest)
        with self._context.reading(newest.version):
            told = list(islice(entries, limit))
            versions = range(told[-1].version, told[0].version + 1) if told else range(0)
            requests = applied_by(newest, versions, self._context.segments)
        return [Commit.of(entry, requests.get(entry.version, ())) for entry in told]

    def transaction(self, operation: str = "transaction", *, message: str | None = None) -> Transaction:
        """Statements over any tables that become one version: ``with db.transaction() as tx: ...``.

        Args:
            operation: a word for ``history``.
            message: what to say of it there: at most 256 bytes. Not personal: it stays when rows are deleted.

        Raises ConflictError at its end if something it read has changed; ``run`` repeats it instead.
        """
        transaction = Transaction(self._context, operation, message=message)
        transaction.refresh()
        return transaction

    def run(self, function: Callable[[Transaction], T], *, message: str | None = None) -> T:
        """Calls ``function`` with a transaction and commits; on a conflict both again, on the newest version.

        Args:
            message: see ``transaction``.

        Returns:
            what ``function`` returned in the run that was committed.
        """
        if not callable(function):
            raise InputError(f"function={arguments.short_repr(function)} can't be called")
        return replay(self._context, function, message=message).value

    def sql(self, query: str, parameters: Parameters = None) -> SqlResult:
        """Runs a query over the tables, on DuckDB. All of them are read in one version.

        Columns and conditions that DuckDB's planner finds go into the scans.

        Args:
            query: one statement that reads, in DuckDB's dialect: a SELECT, ``DESCRIBE table``, ``SHOW TABLES``, or
                EXPLAIN before one of them, which tells what each scan reads and skips.
            parameters: values for ``?``, in order, or for ``$name``, by name.

        Raises:
            InputError: another statement, or it does not fit the tables or the parameters.
            TableNotFoundError: it names a table that is not there.
        """
        return Snapshot(self._context, self._context.head.refresh().manifest).sql(query, parameters)

    def __repr__(self) -> str:
        cached = self._context.head.cached
        tables = sorted(cached.manifest.tables) if cached else []
        return f"<Database {self.url}: version {self.version}, tables {', '.join(tables) or 'none'}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<code>{escape(repr(self))}</code>"


def _reopen(url: str, trust_clock: bool) -> Database:
    return open(url, trust_clock=trust_clock)
